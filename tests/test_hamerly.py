"""Rows that are not compared again get the labels that a comparison would give them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hmrf_dask.distortions import DISTORTIONS
from hmrf_dask.kernels import nearest as nearest_rows
from hmrf_dask.kernels.distances import LINKED, UNDECIDED
from hmrf_dask.kernels.hamerly import CentroidDrift, RowBounds, losses_of
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Model
from tests.support import problems
from tests.support.distortion_rows import bound, text_like

N, D = 400, 60


def models(name: str, K: int, seed: int, rows: Any, *, pace: float) -> list[Model]:
    """Return models whose centroids go less far from each to the next, one cluster farther."""
    rng = np.random.default_rng(seed)
    weights = problems.random_weights(D, seed) if seed % 2 else np.ones(D)
    distortion, centroids = bound(name, rows), rng.uniform(0.05, 1.0, (K, D))
    found = [Model(distortion, weights, centroids, 0.1)]
    for _ in range(12):
        steps = pace * rng.normal(size=(K, D)) * np.where(rng.random(K) < 0.2, 5.0, 1.0)[:, None]
        centroids, pace = np.maximum(centroids * (1.0 + steps), 1e-9), 0.6 * pace
        found.append(Model(distortion, weights, centroids, 0.1).moved_from(found[-1]))
    return found


@pytest.mark.parametrize("name", sorted(DISTORTIONS))
@pytest.mark.parametrize("K", [1, 2, 7, 40])
def test_what_is_spared_would_have_changed_nothing(
    name: str, K: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    kernel = nearest_rows.rows_to_compare

    def counting(*arguments: Any) -> Any:
        out, todo = kernel(*arguments)
        compared.append(len(todo))
        return out, todo

    for seed in range(4):
        rows = text_like(N, D, seed)
        block, bounds = RowBlock.from_array(rows), RowBounds()
        labels = np.full(N, UNDECIDED, np.int32)
        labels[::9] = LINKED
        for model in models(name, K, seed, rows, pace=0.2):
            terms = model.distortion.terms(block, model.weights)
            ends = block, terms, model.table(), labels
            expected, change = model.distortion.nearest(*ends)
            with monkeypatch.context() as patched:
                patched.setattr(nearest_rows, "rows_to_compare", counting)
                known = {"bounds": bounds, "drift": model.drift}
                found, changed = model.distortion.nearest(*ends, **known)
            assert found.tolist() == expected.tolist()
            assert changed.tolist() == change.tolist()
            labels = found
    assert min(compared) < N / 3
    assert max(compared) == N - len(range(0, N, 9))


def far_rows() -> tuple[Any, RowBlock, Any]:
    rows = np.repeat(np.eye(2, D, dtype=np.float32), 5, axis=0)
    block = RowBlock.from_array(rows)
    return bound("cosine", rows), block, np.eye(2, D) + 0.01


def test_bounds_hold_for_the_model_and_the_labels_they_were_noted_with() -> None:
    distortion, block, centroids = far_rows()
    labels = np.repeat([0, 1], 5).astype(np.int32)
    first = Model(distortion, np.ones(D), centroids)
    second = Model(distortion, np.ones(D), centroids + 1e-4).moved_from(first)
    third = Model(distortion, np.ones(D), centroids + 2e-4).moved_from(second)
    aside = Model(distortion, np.ones(D), centroids + 3e-4).moved_from(first)
    bounds, terms = RowBounds(), distortion.terms(block, np.ones(D))
    known = {"bounds": bounds, "drift": second.drift}
    distortion.nearest(block, terms, second.table(), labels, **known)
    noted = bounds.gaps.copy()
    assert (noted > 0.5).all()
    for model, known, unknown in ((third, labels, 0), (third, 1 - labels, 10), (aside, labels, 10)):
        again = RowBounds()
        again.model, again.labels, again.gaps = bounds.model, labels, noted.copy()
        gaps = again.take(known, model.drift)
        assert int((gaps == 0).sum()) == unknown
        assert again.model == ""  # used up, whatever happens before they are noted again
    assert len(bounds.take(labels, first.drift)) == 0


def test_a_model_that_is_changed_otherwise_begins_again() -> None:
    distortion, _, centroids = far_rows()
    first = Model(distortion, np.ones(D), centroids)
    second = Model(distortion, np.ones(D), centroids + 1e-4).moved_from(first)
    assert second.drift is not None
    assert replace(second, smoothing=1.0).drift is None
    assert replace(second, weights=np.full(D, 2.0)).drift is None
    followed = Model(distortion, np.ones(D), centroids).moved_from(replace(second, smoothing=1.0))
    assert followed.drift is not None
    assert followed.drift.before == ""


def test_bounds_travel_empty_and_models_with_their_drift() -> None:
    distortion, _, centroids = far_rows()
    first = Model(distortion, np.ones(D), centroids)
    second = Model(distortion, np.ones(D), centroids + 1e-4).moved_from(first)
    there = pickle.loads(pickle.dumps(second))
    assert isinstance(there.drift, CentroidDrift)
    assert there.drift.losses.tolist() == second.drift.losses.tolist()
    bounds = RowBounds()
    bounds.model, bounds.gaps = "a", np.ones(3, np.float32)
    assert pickle.loads(pickle.dumps(bounds)).model == ""


@pytest.mark.parametrize("name", sorted(DISTORTIONS))
def test_losses_bound_what_distances_lose(name: str) -> None:
    rows = text_like(80, D, 3)
    block = RowBlock.from_array(rows)
    for seed in range(6):
        one, *_, other = models(name, 6, seed, rows, pace=0.1 * seed + 0.01)
        terms = one.distortion.terms(block, one.weights)
        losses = losses_of(one.distortion.changes(one.table(), other.table()))
        before = one.distortion.distances(block, terms, one.table())
        after = other.distortion.distances(block, terms, other.table())
        norm, shift = (np.broadcast_to(term, 80) for term in (terms.norm, np.abs(terms.shift)))
        for h in range(6):
            lost = (before - before[:, [h]]) - (after - after[:, [h]])
            allowed = norm * losses[0, h] + losses[1, h] + shift * losses[2, h]
            assert (lost <= allowed[:, None] + 1e-9 * (1.0 + np.abs(before))).all()
