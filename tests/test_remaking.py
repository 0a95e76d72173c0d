"""One pass over the sums gives the bits of the passes that it stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hmrf_dask.distortions.base import Distortion, Remade, TableDistortion
from hmrf_dask.kernels import means, threads
from tests.support.distortion_rows import bound, text_like

K, D = 9, 70


def sums_of(seed: int, K: int = K) -> tuple[Any, int, Any]:
    """Return sums of which one is zero, with their exponent and counts."""
    rng = np.random.default_rng(seed)
    sums = rng.integers(-(2**40), 2**44, (K, D + 1))
    sums[:, -1] = 0
    sums[K // 2] = 0
    return sums, 38, rng.integers(1, 50, K)


def assert_same(one: Remade, other: Remade) -> None:
    assert one.centroids.tobytes() == other.centroids.tobytes()
    assert one.table.exact.tobytes() == other.table.exact.tobytes()
    assert one.table.largest_entry == other.table.largest_entry
    assert one.table.largest_norm == other.table.largest_norm
    assert one.table.weights.tolist() == other.table.weights.tolist()
    assert one.closed == other.closed
    assert one.closed_before == other.closed_before


@pytest.mark.parametrize("n_threads", [1, 2, 4])
@pytest.mark.parametrize("compared", [False, True])
def test_one_pass_gives_what_several_do(
    n_threads: int, compared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "WORTH", 1)
    distortion, metric = bound("cosine", text_like(40, D, 0)), (np.ones(D), 0.0)
    previous = distortion.centroids(*sums_of(0), *metric, np.ones((K, D)) / np.sqrt(D))
    for seed in range(1, 4):
        before = distortion.table(previous, *metric) if compared else None
        ends = sums_of(seed), metric, previous, before
        with threads.threads_allowed(n_threads):
            found = distortion.remade(*ends)
        assert_same(found, TableDistortion.remade(distortion, *ends))
        assert (found.closed_before is not None) == (found.changes is not None) == compared
        if before is not None and found.changes is not None:
            changes = distortion.changes(before, found.table)
            np.testing.assert_allclose(found.changes, changes, rtol=1e-12)
        previous = found.centroids


def not_plain(kind: str) -> tuple[Any, Any, Any]:
    """Return sums, weights and previous centroids that one pass cannot serve."""
    (sums, *rest), weights, previous = sums_of(1), np.ones(D), np.ones((K, D)) / np.sqrt(D)
    if kind == "weights":
        weights = np.linspace(0.5, 1.5, D)
    elif kind == "means":
        sums[0, -1] = 5
    else:
        previous = 3.0 * previous
    return (sums, *rest), weights, previous


@pytest.mark.parametrize("kind", ["weights", "means", "a kept centroid that is not of length 1"])
def test_what_is_not_plain_goes_the_long_way(kind: str) -> None:
    distortion = bound("cosine", text_like(40, D, 0))
    sums, weights, previous = not_plain(kind)
    before = distortion.table(previous, weights)
    ends = sums, (weights, 0.0), previous, before
    found, expected = distortion.remade(*ends), TableDistortion.remade(distortion, *ends)
    assert_same(found, expected)
    assert found.changes is None


@pytest.mark.parametrize("name", ["euclidean", "pearson", "i-divergence", "kl"])
def test_other_distortions_say_as_much(name: str) -> None:
    distortion: Distortion = bound(name, text_like(40, D, 0))
    (sums, *rest), metric = sums_of(2), (np.ones(D), 0.1)
    sums = np.abs(sums)
    previous = np.full((K, D), 0.3)
    exponent, counts = rest
    before = distortion.table(previous, *metric)
    found = distortion.remade((sums, *rest), metric, previous, before)
    expected = distortion.centroids(sums, *rest, *metric, previous)
    assert found.centroids.tolist() == expected.tolist()
    assert (found.closed is None) == (not distortion.linear)
    if distortion.linear:
        own = distortion.closed_distances(before, metric[0], sums, counts, exponent)
        assert found.closed_before == own


def test_a_range_of_clusters_is_as_good_as_all() -> None:
    sums, _, _ = sums_of(3)
    previous = np.ones((K, D)) / np.sqrt(D)
    whole = means.remade_directions(sums, previous, compared=True)
    some = means.remade_directions(sums[2:6], previous[2:6], compared=True)
    assert whole is not None
    assert some is not None
    assert some.centroids.tobytes() == whole.centroids[2:6].tobytes()
    assert some.products.tobytes() == whole.products[2:6].tobytes()
    assert some.moved.tolist() == whole.moved[2:6].tolist()
