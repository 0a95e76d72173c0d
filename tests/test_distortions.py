"""Every distortion against the oracle: distances, centroids, pairs, and what it refuses."""

from __future__ import annotations

import itertools
import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from hypothesis import given, settings

from hmrf_dask.distortions import DISTORTIONS, Extent, make_distortion
from hmrf_dask.errors import ConfigurationError, DistortionError, InvalidInputError
from hmrf_dask.kernels import distances as kernel
from hmrf_dask.kernels import nearest
from hmrf_dask.kernels.distances import LINKED, UNDECIDED
from hmrf_dask.kernels.exact import exact_integer
from hmrf_dask.rows.block import RowBlock
from tests import naive
from tests.support import problems
from tests.support.distortion_rows import (
    OwnEuclid,
    blocks_of,
    bound,
    check_nearest,
    dense_of,
    extent_of,
    fixed_sums,
    used,
)
from tests.support.long_cases import long

NAMES = sorted(DISTORTIONS)
CLOSE = 1e-9


def oracle(name: str) -> str:
    return "euclidean" if name == "own-euclid" else name


def weights_of(name: str, d: int, seed: int) -> Any:
    return np.ones(d) if name == "own-euclid" else problems.random_weights(d, seed)


def case(name: str, seed: int, **chosen: Any) -> tuple[problems.Problem, Any, Any]:
    """Return a problem, weights, and centroids without zeros (they have no I-divergence)."""
    problem = problems.random_problem(seed, distortion=oracle(name), **chosen)
    d = problem.X.shape[1]
    rng = np.random.default_rng(seed)
    centroids = rng.uniform(0.05, 1.0, (problem.K, d))
    if name in ("cosine", "pearson", "euclidean", "own-euclid"):
        centroids -= 0.4
    return problem, weights_of(name, d, seed), centroids


def absolute_terms(name: str, rows: Any, centroids: Any, weights: Any) -> Any:
    """Return the size of what is added up for each distance: errors are relative to it."""
    if oracle(name) == "euclidean":
        squares = (rows**2 * weights).sum(axis=1)[:, None] + (centroids**2 * weights).sum(axis=1)
        return squares + np.abs(np.log(weights)).sum() + 1.0
    if name in ("cosine", "pearson"):
        return np.full((len(rows), len(centroids)), 2.0)
    logs = np.abs(np.log(np.where(rows > 0, rows, 1.0))) + np.abs(np.log(centroids)).max() + 2.0
    return (rows * logs * weights).sum(axis=1)[:, None] + (centroids * weights).sum(axis=1) + 1.0


# --- distances -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, "own-euclid"])
@pytest.mark.parametrize("seed", range(12))
def test_distances_equal_the_oracle_sparse_and_dense(name: str, seed: int) -> None:
    problem, weights, centroids = case(name, seed)
    rows = problem.X.astype(np.float64)
    expected = naive.distances(rows.tolist(), centroids, weights, oracle(name))
    allowed = CLOSE * absolute_terms(name, rows, centroids, weights)
    labels = np.random.default_rng(seed).integers(-2, problem.K, len(rows)).astype(np.int32)
    for block in blocks_of(problem.X):
        distortion = bound(name, rows)
        terms, table = used(distortion, block, centroids, weights)
        every = distortion.distances(block, terms, table)
        assert (np.abs(every - expected) <= allowed).all()
        own = distortion.own_distances(block, terms, table, labels)
        picked = every[np.arange(len(rows)), np.maximum(labels, 0)]
        assert own.tobytes() == np.where(labels >= 0, picked, 0.0).tobytes()


@pytest.mark.parametrize("name", ["i-divergence", "kl"])
def test_smoothing_is_part_of_every_distance(name: str) -> None:
    problem, weights, centroids = case(name, 3)
    rows, alpha = problem.X.astype(np.float64), 1.7
    uniform = naive.uniform_row(rows.tolist(), name)
    expected = naive.distances(rows.tolist(), centroids, weights, name)
    expected = expected + alpha * naive.distances([uniform], centroids, weights, name)
    for block in blocks_of(problem.X):
        distortion = bound(name, rows)
        terms, table = used(distortion, block, centroids, weights, alpha)
        assert distortion.distances(block, terms, table) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", [*NAMES, "own-euclid"])
@pytest.mark.parametrize("seed", range(12))
def test_nearest_is_the_least_float64_distance(name: str, seed: int) -> None:
    problem, weights, centroids = case(name, seed, n=60, K=7)
    centroids[3] = centroids[1]  # ties
    centroids[5] = centroids[1] * (1 + 1e-9)  # nearly a tie
    for block in blocks_of(problem.X):
        distortion = bound(name, problem.X)
        check_nearest(distortion, block, *used(distortion, block, centroids, weights))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("K", [1, 2, 16, 17, 100, *long(40, 129, 300)])
def test_nearest_covers_every_width_of_table(name: str, K: int) -> None:
    problem, weights, _ = case(name, K, n=40, d=9, smooth=True)
    centroids = np.random.default_rng(K).uniform(0.01, 1.0, (K, 9))
    for block in blocks_of(problem.X):
        distortion = bound(name, problem.X)
        check_nearest(distortion, block, *used(distortion, block, centroids, weights))


@given(
    st.sampled_from(["cosine", "pearson", "euclidean"]),
    st.integers(-120, 120),
    st.integers(-120, 120),
    st.integers(0, 10**6),
)
@settings(max_examples=60)
def test_nearest_survives_any_magnitude(name: str, row_power: int, power: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.choice([0.0, 1.0, -0.5, 0.75], (12, 5)) * 2.0**row_power).astype(np.float32)
    rows[3] *= np.float32(2.0**-20)
    centroids = rng.choice([0.0, 1.0, -0.5, 0.75], (6, 5)) * 2.0**power
    centroids[4] = centroids[2]
    weights = problems.random_weights(5, seed)
    for block in blocks_of(rows):
        distortion = bound(name, rows)
        check_nearest(distortion, block, *used(distortion, block, centroids, weights))


@pytest.mark.parametrize("name", ["cosine", "pearson"])
def test_nearest_survives_products_that_underflow(name: str) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.integers(1, 40, (50, 6)) * 2.0**-147).astype(np.float32)  # subnormal
    centroids = rng.uniform(0.4, 0.6, (9, 6))
    weights = problems.random_weights(6, 0)
    for block in blocks_of(rows):
        distortion = bound(name, rows)
        check_nearest(distortion, block, *used(distortion, block, centroids, weights))


@pytest.mark.parametrize("name", NAMES)
def test_cutting_rows_into_blocks_changes_no_bit(name: str) -> None:
    problem, weights, centroids = case(name, 21, n=40, K=5)
    labels = np.random.default_rng(1).integers(-2, 5, 40).astype(np.int32)
    for block in blocks_of(problem.X):
        distortion = bound(name, problem.X)
        found = []
        for cuts in ([0, 40], [0, 1, 2, 13, 13, 40]):
            near, own, change = [], [], 0
            for start, stop in itertools.pairwise(cuts):
                part = block.rows(start, stop)
                terms, table = used(distortion, part, centroids, weights)
                one = distortion.nearest(part, terms, table, labels[start:stop])
                near.append(one[0])
                change += exact_integer(one[1])
                own.append(distortion.own_distances(part, terms, table, labels[start:stop]))
            found.append((np.concatenate(near).tobytes(), np.concatenate(own).tobytes(), change))
        assert found[0] == found[1]


# --- Pearson -------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [10.0, 1e3, 1e5])
def test_pearson_of_rows_far_from_zero(offset: float) -> None:
    rng = np.random.default_rng(0)
    rows = (offset + rng.normal(size=(8, 30))).astype(np.float32)
    weights = problems.random_weights(30, 0)
    centroids = rng.normal(size=(3, 30))
    distances = naive.distances(rows.astype(float).tolist(), centroids, weights, "pearson")
    for block in blocks_of(rows):
        distortion = bound("pearson", rows)
        terms, table = used(distortion, block, centroids, weights)
        # x·T has terms of the size of the row's mean over its spread
        errors = distortion.distances(block, terms, table) - distances
        assert np.abs(errors).max() < 1e-13 * offset
        first, second = np.arange(7, dtype=np.int32), np.arange(1, 8, dtype=np.int32)
        phi, _ = distortion.pair_values(block, block, first, second, weights)
        pairs = zip(first, second, strict=True)
        expected = [naive.penalty_scale(rows[i], rows[j], weights, "pearson") for i, j in pairs]
        assert np.abs(phi - expected).max() < 1e-14 * offset**2 + 1e-12
        check_nearest(distortion, block, terms, table)


def test_pearson_rows_that_are_constant_have_no_direction() -> None:
    rows = np.ones((5, 6), np.float32)
    rows[1] = 0.1  # no exact mean
    rows[2, 3] = np.nextafter(np.float32(1), np.float32(2))
    rows[3] = 0.0
    rows[4, 0] = 1.001
    weights = problems.random_weights(6, 1)
    for block in blocks_of(rows):
        terms = bound("pearson", rows).terms(block, weights)
        assert (terms.factor[:4] == 0).all()
        assert (terms.extra[:4] == 0).all()
        assert terms.factor[4] > 0


def test_pearson_never_makes_sparse_rows_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = 10**6
    block = RowBlock.from_scipy(
        scipy.sparse.csr_array(
            ([1.0, 2.0, 3.0, 5.0], ([0, 0, 1, 1], [3, 9, 3, 99_999])), shape=(2, wide)
        )
    )
    weights = np.ones(wide)
    extent = Extent(2, wide, np.zeros(wide), np.full(wide, 5.0), 5.5, 8.0)
    distortion = make_distortion("pearson").bind(extent)
    monkeypatch.setattr(RowBlock, "to_dense", None)
    terms = distortion.terms(block, weights)
    assert sum(term.size for term in terms) <= 2 * len(terms)
    phi, rest = distortion.pair_values(block, block, np.array([0]), np.array([1]), weights)
    mean, other = 3 / wide, 8 / wide
    lengths = math.sqrt(5 - 3 * mean) * math.sqrt(34 - 8 * other)
    assert phi[0] == pytest.approx(1 - (3 - 3 * other) / lengths, rel=1e-12)
    assert rest[0] == 2.0 - phi[0]


# --- centroids -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, "own-euclid"])
@pytest.mark.parametrize("seed", range(10))
def test_centroids_equal_the_oracle(name: str, seed: int) -> None:
    problem, weights, _ = case(name, seed, n=30, K=4)
    alpha = 0.7 if name in ("kl", "i-divergence") else 0.0
    labels = np.random.default_rng(seed).integers(0, 3, 30).astype(np.int32)  # one is empty
    previous = np.random.default_rng(seed).uniform(0.1, 1.0, (4, problem.X.shape[1]))
    model = naive.Model(problem.X.astype(np.float64), oracle(name), alpha=alpha)
    expected = naive.optimal_centroids(model, labels, 4, weights, previous)
    for block in blocks_of(problem.X):
        distortion = bound(name, problem.X)
        sums = fixed_sums(distortion, block, labels, 4, weights)
        found = distortion.centroids(*sums, weights, alpha, previous)
        assert np.array_equal(found[3], previous[3])
        for h in range(3):
            one, other = found[h], expected[h]
            if name in ("cosine", "pearson"):
                if np.ptp(expected[h]) < 1e-6:  # opposite rows: no direction is better
                    continue
                one, other = directed(name, one, weights), directed(name, other, weights)
            assert np.abs(one - other).max() < 1e-6 * (1.0 + np.abs(other).max())


def directed(name: str, centroid: Any, weights: Any) -> Any:
    if name == "pearson":
        centroid = centroid - (weights * centroid).sum() / weights.sum()
    return centroid / math.sqrt((weights * centroid**2).sum())


@pytest.mark.parametrize("name", [*NAMES, "own-euclid"])
def test_centroids_minimise_the_sum_of_distances(name: str) -> None:
    problem, weights, _ = case(name, 5, n=20, d=4, K=1, smooth=True)
    block = blocks_of(problem.X)[1]
    distortion = bound(name, problem.X)
    alpha = 0.5 if name in ("kl", "i-divergence") else 0.0
    labels = np.zeros(20, np.int32)
    terms = distortion.terms(block, weights)
    centroid = distortion.centroids(
        *fixed_sums(distortion, block, labels, 1, weights), weights, alpha, None
    )

    def total(flat: Any) -> float:
        mu = np.exp(flat) if alpha else flat
        table = distortion.table(mu.reshape(1, -1), weights, alpha)
        return math.fsum(distortion.own_distances(block, terms, table, labels))

    start = np.random.default_rng(0).uniform(0.2, 1.0, 4)
    options = {"maxiter": 4000, "maxfev": 4000, "xatol": 1e-9, "fatol": 1e-11}
    found = scipy.optimize.minimize(total, start, method="Nelder-Mead", options=options)
    least = total(np.log(centroid[0]) if alpha else centroid[0])
    assert least <= found.fun + 1e-9 * (1 + abs(found.fun))
    assert least == pytest.approx(found.fun, rel=1e-3)


# --- pairs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, "own-euclid"])
@pytest.mark.parametrize("seed", range(12))
def test_pairs_equal_the_oracle_and_know_no_order(name: str, seed: int) -> None:
    problem, weights, _ = case(name, seed, n=20)
    rows, rng = problem.X.astype(np.float64), np.random.default_rng(seed)
    first, second = rng.integers(0, 20, (2, 60)).astype(np.int32)
    for block in blocks_of(problem.X):
        distortion = bound(name, problem.X)
        phi, rest = distortion.pair_values(block, block, first, second, weights)
        turned = distortion.pair_values(block, block, second, first, weights)
        assert (phi.tobytes(), rest.tobytes()) == (turned[0].tobytes(), turned[1].tobytes())
        pairwise = distortion.pair_values(
            block.take(first), block.take(second), np.arange(60), np.arange(60), weights
        )
        assert (phi.tobytes(), rest.tobytes()) == (pairwise[0].tobytes(), pairwise[1].tobytes())
        highest = distortion.maximum(weights)
        for t, (i, j) in enumerate(zip(first, second, strict=True)):
            expected = naive.penalty_scale(rows[i], rows[j], weights, oracle(name))
            limit = naive.penalty_limit(rows[i], rows[j], rows, weights, oracle(name))
            assert phi[t] == pytest.approx(expected, abs=CLOSE * (1 + limit))
            assert rest[t] == pytest.approx(limit - expected, abs=CLOSE * (1 + limit))
            assert -1e-12 <= phi[t] <= highest * (1 + 1e-12)
            assert -1e-12 <= rest[t] / max(highest, 1.0) <= 1 + 1e-12


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_span_bounds_what_two_centroids_differ_by(name: str, seed: int) -> None:
    problem, weights, _ = case(name, seed, n=30, K=4)
    alpha = 1.0 if name in ("kl", "i-divergence") else 0.0
    labels = np.random.default_rng(seed).integers(0, 4, 30).astype(np.int32)
    block, distortion = blocks_of(problem.X)[0], bound(name, problem.X)
    sums, exponent, counts = fixed_sums(distortion, block, labels, 4, weights)
    counts = np.maximum(counts, 1)
    centroids = distortion.centroids(sums, exponent, counts, weights, alpha, None)
    terms, table = used(distortion, block, centroids, weights, alpha)
    every = distortion.distances(block, terms, table)
    assert np.ptp(every, axis=1).max() <= distortion.span(weights, alpha) * (1 + 1e-9)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["kl", "i-divergence"])
def test_negative_entries_are_refused_with_their_rows(name: str) -> None:
    rows = np.array([[1.0, 2.0], [0.5, -1.0], [1.0, 0.0]], np.float32)
    with pytest.raises(InvalidInputError, match=r"entries must be >= 0, got -1"):
        bound(name, rows)
    for block in blocks_of(rows):
        with pytest.raises(InvalidInputError, match=r"must be >= 0, got -1 in row 1;"):
            make_distortion(name).check(block)


def test_rows_of_zeros_are_refused_where_they_have_no_distance() -> None:
    rows = np.zeros((9, 2), np.float32)
    rows[0, 0] = 1.0
    for block in blocks_of(rows):
        with pytest.raises(InvalidInputError, match=r"zeros in row 1, 2, 3, 4, 5 and 3 more; drop"):
            make_distortion("kl").check(block)
        make_distortion("i-divergence").check(block)
    with pytest.raises(InvalidInputError, match="must not all be zero, got 9 rows"):
        bound("i-divergence", np.zeros((9, 2)))


def test_only_distortions_are_taken() -> None:
    with pytest.raises(ConfigurationError, match=r"must be one of .*'cosine'.*got 'cosin'"):
        make_distortion("cosin")
    with pytest.raises(ConfigurationError, match=r"derives from .*OwnDistortion, got <class"):
        make_distortion(OwnEuclid)
    own = OwnEuclid()
    assert make_distortion(own) is own


def test_an_own_distortion_is_tried_before_it_is_used() -> None:
    rows = np.random.default_rng(0).random((4, 3)).astype(np.float32)
    good = bound("own-euclid", rows)
    assert isinstance(good, OwnEuclid)
    for block in blocks_of(rows):
        good.examine(block, 2)

    class Lopsided(OwnEuclid):
        def pair_distances(self, rows: Any, others: Any) -> Any:
            return np.abs(dense_of(rows)[:, 0] - 0.5 * dense_of(others)[:, 0])

    class Far(OwnEuclid):
        def largest_pair_distance(self, minimum: Any, maximum: Any) -> float:
            return 1e-9

    class Shapeless(OwnEuclid):
        def distance_matrix(self, rows: Any, centroids: Any) -> Any:
            return np.zeros(3)

    class Endless(OwnEuclid):
        def largest_pair_distance(self, minimum: Any, maximum: Any) -> float:
            return math.inf

    for kind, text in (
        (Lopsided, "must be symmetric"),
        (Far, "must lie between 0 and largest_pair_distance = 1e-09"),
        (Shapeless, r"finite numbers of shape \(4, 2\), got shape \(3,\)"),
    ):
        with pytest.raises(DistortionError, match=text):
            kind().bind(extent_of(rows)).examine(blocks_of(rows)[0], 2)
    with pytest.raises(DistortionError, match="largest_pair_distance must"):
        Endless().bind(extent_of(rows))


def test_binding_leaves_the_object_of_the_user_alone() -> None:
    own = OwnEuclid()
    own.bind(extent_of(np.eye(3)))
    assert own.maximum(np.ones(3)) == math.inf


# --- compilation ---------------------------------------------------------------------------------


def test_kernels_are_compiled_once_for_fresh_and_for_read_only_arrays() -> None:
    problem, weights, centroids = case("euclidean", 2, n=20, K=3)
    distortion = bound("euclidean", problem.X)
    kernels = (nearest._nearest, kernel._own, kernel._all)
    labels = np.zeros(20, np.int32)
    counts = []
    for frozen in (False, True, False):
        for block in blocks_of(problem.X):
            for array in (weights, centroids, labels):
                array.flags.writeable = not frozen
            terms, table = used(distortion, block, centroids, weights)
            for array in (*terms, table.exact, table.bias, table.extra, table.weights):
                array.flags.writeable = not frozen
            distortion.nearest(block, terms, table, labels)
            distortion.own_distances(block, terms, table, labels)
            distortion.distances(block, terms, table)
            counts.append([len(one.signatures) for one in kernels])
    assert counts == counts[:1] * len(counts)
    assert counts[0][1] == 1  # the others once for each width of table
    assert UNDECIDED != LINKED
