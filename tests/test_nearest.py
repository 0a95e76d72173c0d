"""The nearest centroid is that of the float64 distances, whatever finds the candidates."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings

from hmrf_dask.distortions import DISTORTIONS
from hmrf_dask.kernels import approximate, distances, means, nearest, products
from hmrf_dask.kernels.approximate import make_approximate_table
from hmrf_dask.kernels.compiled import Terms, spread
from hmrf_dask.kernels.distances import LINKED, UNDECIDED, Table
from hmrf_dask.kernels.products import aligned, has_half, layout
from hmrf_dask.rows.block import RowBlock
from tests.support import problems
from tests.support.distortion_rows import (
    blocks_of,
    bound,
    check_nearest,
    expected_nearest,
    text_like,
    used,
)
from tests.support.long_cases import long, long_but

NAMES = sorted(DISTORTIONS)
PRECISIONS = ["single", "half"] if has_half() else ["single"]
anything = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def find_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what makes all tables of candidates have one precision."""

    def use(precision: str) -> None:
        def approximate_table(table: Table, **_: Any) -> Any:
            return make_approximate_table(table, half=precision == "half")

        monkeypatch.setattr(nearest, "approximate_table", approximate_table)

    return use


def near_ties(K: int, d: int, seed: int) -> Any:
    """Return centroids that differ by more, about as much, and less than tables can hold."""
    rng = np.random.default_rng(seed)
    centroids = rng.uniform(0.05, 1.0, (K, d))
    for h in range(1, K):
        if rng.random() < 0.7:
            size = 2.0 ** -rng.integers(5, 52)
            centroids[h] = centroids[h - 1] * (1.0 + size * rng.choice([-1.0, 0.0, 1.0], d))
    return centroids[rng.permutation(K)]


# --- products ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("K", [1, 17, 70, 128, *long(16, 64, 129, 270)])
def test_products_of_a_row_with_columns_of_any_number(kind: Any, K: int) -> None:
    import numba

    if kind is np.float16 and not has_half():
        pytest.skip("this machine converts no half floats")

    @numba.njit
    def multiply(rows, columns, out):  # type: ignore[no-untyped-def]
        for i in range(out.shape[0]):
            products.multiply_row(rows, i, columns, out[i])

    rng, d = np.random.default_rng(K), 37
    rows = rng.choice([0.0, 1.0, -2.0, 0.5, 3.0], (9, d)).astype(np.float32)
    rows[4] = 0.0
    sums = np.float64 if kind is np.float64 else np.float32
    width, vectors = layout(K, sums)
    stored = np.uint16 if kind is np.float16 else kind
    table = aligned((d, width), stored)
    numbers = rng.integers(-99, 99, (d, K))  # no order of additions rounds these
    table.view(kind)[:, :K] = numbers
    for block in blocks_of(rows):
        out = np.full((9, width), np.nan, sums)
        multiply(block.arrays, products.Columns(table, vectors), out)
        assert np.array_equal(out[:, :K], rows @ numbers)
        assert not out[:, K:].any()


def test_the_sums_of_all_distances_are_in_the_order_of_the_entries() -> None:
    rows = text_like(40, 90, 0)
    centroids = np.random.default_rng(0).uniform(0.1, 1.0, (37, 90))
    weights = problems.random_weights(90, 0)
    for block in blocks_of(rows):
        for name in NAMES:
            distortion = bound(name, rows)
            terms, table = used(distortion, block, centroids, weights)
            every = distortion.distances(block, terms, table)
            for h in range(37):
                labels = np.full(40, h, np.int32)
                own = distortion.own_distances(block, terms, table, labels)
                assert own.tobytes() == every[:, h].tobytes()


# --- the nearest ---------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
# Every K of the first vectors, then steps that leave each remainder by 4 and by 16 in turn.
@pytest.mark.parametrize(
    "K", long_but((1, 2, 5, 12, 16, 17, 32, 65, 131), [*range(1, 20), *range(21, 132, 11)])
)
def test_near_ties_are_decided_in_float64(find_in: Any, precision: str, K: int) -> None:
    find_in(precision)
    rows = text_like(30, 40, 3)
    rows[5] = 0.0
    name = ("cosine", "euclidean", "pearson", "i-divergence")[K % 4]
    centroids, weights = near_ties(K, 40, K), problems.random_weights(40, K)
    block, distortion = blocks_of(rows)[K // 4 % 2], bound(name, rows)
    check_nearest(distortion, block, *used(distortion, block, centroids, weights))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_precision_changes_the_answer(
    find_in: Any, precision: str, name: str, seed: int
) -> None:
    find_in(precision)
    rows, weights = text_like(50, 60, seed), problems.random_weights(60, seed)
    centroids = near_ties(40, 60, seed)
    for block in blocks_of(rows):
        distortion = bound(name, rows)
        check_nearest(distortion, block, *used(distortion, block, centroids, weights))


@pytest.mark.parametrize("precision", PRECISIONS)
@given(
    st.sampled_from(["cosine", "pearson", "euclidean"]),
    st.integers(-145, 125),
    st.integers(-145, 125),
    st.integers(0, 10**6),
)
@anything
def test_any_magnitude(
    find_in: Any, precision: str, name: str, row_power: int, power: int, seed: int
) -> None:
    find_in(precision)
    rng = np.random.default_rng(seed)
    rows = (rng.choice([0.0, 1.0, -0.5, 0.75], (12, 5)) * 2.0**row_power).astype(np.float32)
    rows[3] *= np.float32(2.0**-20)
    rows[4] = 0.0
    centroids = rng.choice([0.0, 1.0, -0.5, 0.75, 1e-5], (6, 5)) * 2.0**power
    centroids[4] = centroids[2]
    weights = problems.random_weights(5, seed)
    for block in blocks_of(rows):
        distortion = bound(name, rows)
        with np.errstate(over="ignore"):
            check_nearest(distortion, block, *used(distortion, block, centroids, weights))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_entries_too_small_for_a_half_float_count(find_in: Any, precision: str) -> None:
    find_in(precision)
    rows = np.zeros((40, 40), np.float32)
    rows[:, 1:] = np.eye(40, 39)
    rows[:, 0] = 1e-6
    centroids = np.full((40, 40), 2.0**-40)
    centroids[:, 0] = 1.0  # all point the same way but for a trace
    centroids[np.arange(39), np.arange(1, 40)] = 2.0**-35
    for block in blocks_of(rows):
        distortion = bound("cosine", rows)
        terms, table = used(distortion, block, centroids, np.ones(40))
        check_nearest(distortion, block, terms, table)
        undecided = np.full(40, UNDECIDED, np.int32)
        found = distortion.nearest(block, terms, table, undecided)[0]
        assert found[:39].tolist() == list(range(39))


@pytest.mark.parametrize("precision", PRECISIONS)
@given(st.integers(0, 10**6))
@anything
def test_scores_disagree_by_no_more_than_the_slack(find_in: Any, precision: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    name, K, d = NAMES[seed % len(NAMES)], int(rng.integers(2, 40)), int(rng.integers(2, 50))
    rows, weights = text_like(20, d, seed), problems.random_weights(d, seed)
    centroids = rng.uniform(1e-3, 1.0, (K, d)) ** 3
    for block in blocks_of(rows):
        distortion = bound(name, rows)
        terms, table = used(distortion, block, centroids, weights)
        coarse = make_approximate_table(table, half=precision == "half")
        stored = coarse.columns.table.view(np.float16 if precision == "half" else np.float32)
        x = block.to_dense().astype(np.float64)
        scores = spread(terms.scale, 20)[:, None] * (x @ stored[:, :K].astype(np.float64))
        scores = scores / coarse.unit + table.bias
        scores = scores + spread(terms.shift, 20)[:, None] * table.extra
        every = distortion.distances(block, terms, table)
        wrong = (scores - scores[:, :1]) - (every - every[:, :1])
        bounds = approximate.RoundingBounds.of(table, coarse)
        slack = approximate.rounding_slack(block.arrays, terms, bounds)
        assert (np.abs(wrong) <= slack[:, None]).all()
        assert (slack < 0.1 * (1.0 + np.abs(every).max(axis=1))).all()


@pytest.mark.parametrize("name", NAMES)
def test_few_rows_of_text_are_left_to_float64(name: str) -> None:
    rows = text_like(300, 200, 1)
    block, distortion = blocks_of(rows)[0], bound(name, rows)
    centroids = np.random.default_rng(0).uniform(0.01, 1.0, (50, 200)) ** 4
    terms, table = used(distortion, block, centroids, np.ones(200))
    every = np.sort(distortion.distances(block, terms, table), axis=1)
    bounds = approximate.RoundingBounds.of(table, approximate.approximate_table(table))
    slack = approximate.rounding_slack(block.arrays, terms, bounds)
    assert (every[:, 1] - every[:, 0] <= slack).mean() < 0.05


@pytest.mark.parametrize("name", ["cosine", "pearson"])
def test_uneven_weights_leave_no_more_rows_to_float64(name: str) -> None:
    rows = text_like(300, 200, 1)
    block, distortion = blocks_of(rows)[0], bound(name, rows)
    centroids = np.random.default_rng(0).uniform(0.01, 1.0, (50, 200)) ** 4
    uneven = np.random.default_rng(1).permutation(np.geomspace(1e-2, 1e2, 200))
    widths = []
    for weights in (np.ones(200), uneven / uneven.mean()):
        terms, table = used(distortion, block, centroids, weights)
        bounds = approximate.RoundingBounds.of(table, approximate.approximate_table(table))
        widths.append(float(np.median(approximate.rounding_slack(block.arrays, terms, bounds))))
    assert widths[1] < 1.5 * widths[0]  # four times as much by Euclidean lengths


def test_what_is_not_measured_is_the_same_but_for_the_change() -> None:
    rows, rng = text_like(80, 30, 2), np.random.default_rng(0)
    labels = rng.integers(-2, 40, 80).astype(np.int32)
    for name in NAMES:
        block, distortion = blocks_of(rows)[0], bound(name, rows)
        terms, table = used(distortion, block, near_ties(40, 30, 0), np.ones(30))
        one = distortion.nearest(block, terms, table, labels)
        other = distortion.nearest(block, terms, table, labels, measured=False)
        assert one[0].tobytes() == other[0].tobytes()
        assert one[1].any()
        assert not other[1].any()


def test_linked_rows_stay_and_rows_without_a_label_get_one() -> None:
    rows = text_like(40, 20, 5)
    for block in blocks_of(rows):
        distortion = bound("cosine", rows)
        terms, table = used(distortion, block, near_ties(3, 20, 1), np.ones(20))
        labels = np.full(40, LINKED, np.int32)
        assert distortion.nearest(block, terms, table, labels)[0].tolist() == labels.tolist()
        labels[10:] = UNDECIDED
        found = distortion.nearest(block, terms, table, labels)[0]
        every = distortion.distances(block, terms, table)
        assert found.tolist() == expected_nearest(every, labels).tolist()
        nobody = block.rows(0, 0)
        terms = distortion.terms(nobody, np.ones(20))
        assert not len(distortion.nearest(nobody, terms, table, labels[:0])[0])


def test_a_row_too_long_for_its_bound_is_left_to_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = text_like(30, 40, 6)
    block, distortion = RowBlock.from_array(rows), bound("cosine", rows)
    monkeypatch.setattr(approximate, "LONGEST", 40)
    terms, table = used(distortion, block, near_ties(35, 40, 2), np.ones(40))
    bounds = approximate.RoundingBounds.of(table, approximate.approximate_table(table))
    assert np.isinf(approximate.rounding_slack(block.arrays, terms, bounds)).all()
    check_nearest(distortion, block, terms, table)


# --- tables, terms -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_table_that_travelled_is_aligned_and_gives_the_same(name: str) -> None:
    rows = text_like(60, 50, 7)
    block, distortion = blocks_of(rows)[0], bound(name, rows)
    terms, table = used(distortion, block, near_ties(40, 50, 3), problems.random_weights(50, 1))
    labels = np.random.default_rng(0).integers(-2, 40, 60).astype(np.int32)

    def found(table: Table) -> Any:
        near, change = distortion.nearest(block, terms, table, labels)
        own = distortion.own_distances(block, terms, table, labels)
        every = distortion.distances(block, terms, table)
        return [array.tobytes() for array in (near, change, own, every)]

    expected = found(table)
    frames: list[pickle.PickleBuffer] = []
    text = pickle.dumps(table, protocol=5, buffer_callback=frames.append)
    assert sum(frame.raw().nbytes for frame in frames) < 2.5 * table.exact.nbytes
    moved = [bytearray(1 + frame.raw().nbytes) for frame in frames]  # frames begin anywhere
    for memory, frame in zip(moved, frames, strict=True):
        memory[1:] = frame.raw().tobytes()
    shifted = [memoryview(memory).toreadonly()[1:] for memory in moved]
    other = pickle.loads(text, buffers=shifted)
    assert found(other) == expected
    assert approximate.approximate_table(other).columns.table.ctypes.data % products.LINE == 0
    assert approximate.approximate_table(other) is approximate.approximate_table(other)


def test_terms_that_all_rows_share_give_the_same() -> None:
    rows = text_like(60, 50, 8)
    for name in NAMES:
        for block in blocks_of(rows):
            distortion = bound(name, rows)
            weights = problems.random_weights(50, 2)
            terms, table = used(distortion, block, near_ties(40, 50, 4), weights)
            assert any(len(term) == 1 for term in terms)
            whole = Terms(*(spread(term, 60) for term in terms))
            labels = np.random.default_rng(0).integers(-2, 40, 60).astype(np.int32)
            for one, other in zip(
                distortion.nearest(block, terms, table, labels),
                distortion.nearest(block, whole, table, labels),
                strict=True,
            ):
                assert one.tobytes() == other.tobytes()
            for one, other in zip(
                (distortion.own_distances(block, terms, table, np.maximum(labels, 0)),
                 distortion.distances(block, terms, table)),
                (distortion.own_distances(block, whole, table, np.maximum(labels, 0)),
                 distortion.distances(block, whole, table)),
                strict=True,
            ):  # fmt: skip
                assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("weights", [np.ones(50), np.linspace(0.5, 2.0, 50)], ids=["plain", "own"])
def test_cosine_keeps_three_numbers_of_a_row(weights: Any) -> None:
    rows = text_like(1000, 50, 9)
    terms = bound("cosine", rows).terms(blocks_of(rows)[0], weights)
    assert sum(term.nbytes for term in terms) <= 24 * 1000 + 64


def test_rows_taken_cluster_by_cluster_have_the_same_distances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = text_like(60, 50, 10)
    labels = np.random.default_rng(0).integers(-2, 9, 60).astype(np.int32)
    for name in NAMES:
        for block in blocks_of(rows):
            distortion = bound(name, rows)
            terms, table = used(distortion, block, near_ties(9, 50, 5), np.ones(50))
            monkeypatch.setattr(distances, "CACHE", 2**60)
            expected = distortion.own_distances(block, terms, table, labels)
            monkeypatch.setattr(distances, "CACHE", 0)
            found = distortion.own_distances(block, terms, table, labels)
            assert found.tobytes() == expected.tobytes()
            none = distortion.own_distances(block, terms, table, np.full(60, -1, np.int32))
            assert not none.any()


def test_half_floats_are_used_where_the_machine_converts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import numba

    try:
        for features, expected in (("+sse2,-f16c", False), ("+avx2,+f16c", True)):
            monkeypatch.setattr(numba.config, "CPU_FEATURES", features)
            products._features.cache_clear()
            assert has_half() == expected
            assert layout(300, np.float32)[1] == (0,) * 5  # 19 vectors in four passes
    finally:
        products._features.cache_clear()


# --- centroids -----------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("plain", [True, False])
def test_directions_of_sums(d: int, plain: bool) -> None:
    rng = np.random.default_rng(d)
    sums = rng.integers(-(2**60), 2**60, (5, d + 1))
    sums[2] = 0
    weights = np.ones(d) if plain else problems.random_weights(d, 0)
    sums[:, -1] *= 0 if plain else 1
    previous = rng.random((5, d))
    found = means.directions(sums, weights, previous)
    whole = sums[:, :-1].astype(np.longdouble) + sums[:, -1:] * np.sqrt(weights)
    lengths = np.sqrt((whole * whole).sum(axis=1, keepdims=True))
    lengths[2] = 1.0
    expected = whole / lengths / np.sqrt(weights)
    expected[2] = previous[2]
    assert np.abs(found - expected).max() <= 1e-14 * np.abs(expected).max()
    assert not means.directions(sums, weights, None)[2].any()
    again = means.directions(np.asfortranarray(sums), weights, previous)
    assert again.tobytes() == found.tobytes()


def test_the_mean_of_equal_rows_is_the_row() -> None:
    row = np.random.default_rng(0).integers(-(2**45), 2**45, 20)
    sums = np.stack([row * count for count in (1, 3, 7, 11, 0)])
    counts = np.array([1, 3, 7, 11, 0])
    found = means.means(sums, 43, counts, None)
    assert (found[:4] == row[:-1] * 2.0**-43).all()
    assert not found[4].any()
    drawn = means.means(sums, 43, counts, np.ones((5, 19)), 0.5, 0.25)
    assert drawn[:4] == pytest.approx(
        np.tile((row[:-1] * 2.0**-43 + 0.125) / 1.5, (4, 1)), rel=1e-15
    )
    assert (drawn[4] == 1.0).all()


def test_unit_centroids_are_their_own_table() -> None:
    centroids = np.random.default_rng(0).normal(size=(7, 50))
    centroids[3] = 0.0
    linear, largest = means.weighted_directions(centroids, np.ones(50))
    assert linear is not centroids
    lengths = np.linalg.norm(linear, axis=1)
    assert lengths == pytest.approx(np.where(np.arange(7) == 3, 0.0, 1.0), abs=1e-15)
    again, entry = means.weighted_directions(linear, np.ones(50))
    assert again is linear
    assert entry == largest == np.abs(linear).max()
    other, entry = means.weighted_directions(linear, np.full(50, 4.0))
    assert other == pytest.approx(2.0 * linear, rel=1e-14)
    assert entry == np.abs(other).max()


def test_sparse_and_dense_rows_find_the_same() -> None:
    rows = text_like(80, 64, 11)
    sparse, dense = RowBlock.from_scipy(scipy.sparse.csr_array(rows)), RowBlock.from_array(rows)
    distortion, undecided = bound("cosine", rows), np.full(80, UNDECIDED, np.int32)
    centroids = np.random.default_rng(0).uniform(0.1, 1.0, (50, 64))
    found = [
        distortion.nearest(block, *used(distortion, block, centroids, np.ones(64)), undecided)[0]
        for block in (sparse, dense)
    ]
    assert found[0].tolist() == found[1].tolist()


def test_an_approximate_table_is_made_once() -> None:
    table = Table(np.eye(2), np.zeros(2), np.zeros(2), 1.0, 1.0)
    assert nearest.approximate_table(table) is nearest.approximate_table(table)
    assert table.once("name", lambda: "first") == table.once("name", lambda: "second") == "first"


def test_bounds_of_rounding_hold_for_narrower_ones_that_are_not_far_narrower() -> None:
    bounds = approximate.RoundingBounds(*[1.0] * 9)
    assert bounds.hold(bounds)
    assert bounds.above().hold(bounds)
    assert not bounds.hold(bounds.above())
    narrow = approximate.RoundingBounds(*[0.1] * 8, 1.0)
    assert not bounds.hold(narrow)
