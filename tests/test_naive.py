"""The oracle judged by itself: cases on paper, laws it must keep, and the problems it is fed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

from tests import naive
from tests.support import problems

ONES = [1.0, 1.0]
LN2 = math.log(2.0)


def model_of(rows: list[list[float]], distortion: str, **settings: Any) -> naive.Model:
    return naive.Model(np.array(rows, dtype=np.float64), distortion, **settings)


def started(problem: problems.Problem, **settings: float) -> tuple[naive.Model, Any, Any, Any]:
    """A problem with random labels and weights, centroids that fit another labelling."""
    smoothed = problem.distortion in ("i-divergence", "kl")
    if smoothed:
        settings.setdefault("alpha", 0.5)
    model = problem.model(**settings)
    rng = np.random.default_rng(problem.seed)
    weights = problems.random_weights(problem.X.shape[1], problem.seed)
    labels = rng.integers(0, problem.K, len(problem.X))
    other = rng.permutation(np.arange(len(problem.X)) % problem.K)
    centroids = naive.optimal_centroids(model, other, problem.K, weights)
    return model, labels, centroids, weights


# --- on paper ------------------------------------------------------------------------------------

THREE = [[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]]


def test_cosine_distances_of_three_points() -> None:
    table = naive.distances(THREE, THREE, ONES, "cosine")
    np.testing.assert_allclose(table, [[0, 1, 0.4], [1, 0, 0.2], [0.4, 0.2, 0]], atol=1e-15)
    weighted = naive.distance(THREE[0], THREE[2], [4.0, 1.0], "cosine")
    assert weighted == pytest.approx(1 - 12 / (2 * math.sqrt(52)))


@pytest.mark.parametrize(
    ("penalty", "must", "cannot"), [("distance", 0.5, 1.2), ("potts", 0.5, 2.0)]
)
def test_energy_of_three_points(penalty: str, must: float, cannot: float) -> None:
    pairs = naive.effective_pairs(3, [(1, 0)], [(0, 2)], [0.5], [2.0], closure=False)
    model = model_of(THREE, "cosine", penalty=penalty, pairs=pairs)
    centroids = naive.optimal_centroids(model, [0, 1, 0], 2, ONES)
    np.testing.assert_allclose(centroids, [[1.6, 0.8], [0.0, 1.0]])
    found = naive.energy(model, [0, 1, 0], centroids, ONES)
    assert found.distance == pytest.approx(2 - math.sqrt(3.2))
    assert found.must_link == pytest.approx(must)
    assert found.cannot_link == pytest.approx(cannot)
    assert found.total == pytest.approx(2 - math.sqrt(3.2) + must + cannot)
    assert found.absolute == pytest.approx(found.total)


def test_moves_of_three_points_on_a_line() -> None:
    rows, centroids = [[0.0], [1.0], [10.0]], [[0.0], [10.0]]
    pairs = naive.effective_pairs(3, [(1, 2)])
    model = model_of(rows, "euclidean", penalty="potts", pairs=pairs)
    alone = replace(model, pairs=naive.Pairs())
    assert naive.best_single_move(alone, [0, 1, 1], centroids, [1.0]) == naive.Move(80.0, (1,), 0)
    assert naive.best_single_move(model, [0, 1, 1], centroids, [1.0]) == naive.Move(79.0, (1,), 0)
    assert naive.best_group_move(model, [0, 1, 1], centroids, [1.0]) == naive.Move()
    # From cluster 0 the pair gains 100 - 0 with row 2 and loses 81 - 1 with row 1.
    assert naive.best_group_move(model, [0, 0, 0], centroids, [1.0]) == naive.Move(20.0, (1, 2), 1)


def test_zero_rows_are_one_away_from_everything() -> None:
    for distortion, nothing in (("cosine", [0.0, 0.0]), ("pearson", [0.1, 0.1])):
        for other in ([1.0, 2.0], [-1.0, 0.5], nothing):
            assert naive.distance(nothing, other, [0.3, 1.7], distortion) == 1.0
            assert naive.distance(other, nothing, [0.3, 1.7], distortion) == 1.0
            assert naive.penalty_scale(nothing, other, [0.3, 1.7], distortion) == 1.0


def test_a_constant_row_is_a_zero_row_for_pearson_in_spite_of_rounding() -> None:
    other = np.arange(7.0)
    for seed in range(20):
        weights = problems.random_weights(7, seed)
        for value in (0.1, 1 / 3, 1e6 / 7):
            constant = [float(np.float32(value))] * 7
            assert naive.distance(constant, other, weights, "pearson") == 1.0
            nearly = [*constant[:6], float(np.nextafter(np.float32(value), np.float32(0)))]
            assert naive.distance(nearly, other, weights, "pearson") > 1.0


def test_penalty_limit_of_directions() -> None:
    assert naive.penalty_limit(THREE[0], THREE[1], THREE, ONES, "cosine") == 1.0
    assert naive.penalty_limit(THREE[0], THREE[1], [*THREE, [0.0, -1.0]], ONES, "cosine") == 2.0
    assert naive.penalty_limit(THREE[0], THREE[1], THREE, ONES, "pearson") == 2.0


def test_pearson_is_the_weighted_correlation() -> None:
    assert naive.distance([1, 2, 3], [7, 9, 11], [1, 1, 1], "pearson") == pytest.approx(
        0, abs=1e-15
    )
    assert naive.distance([1, 2, 3], [3, 2, 1], [1, 1, 1], "pearson") == pytest.approx(2)
    x, y, weights = np.random.default_rng(0).random((3, 7))
    covariance = np.cov(x, y, aweights=weights)
    expected = 1 - covariance[0, 1] / math.sqrt(covariance[0, 0] * covariance[1, 1])
    assert naive.distance(x, y, weights, "pearson") == pytest.approx(expected, rel=1e-12)


def test_i_divergence_on_paper() -> None:
    assert naive.distance([2, 0], [1, 1], [1, 1], "i-divergence") == pytest.approx(2 * LN2)
    # first feature 3 (2 ln 2 - 2 + 1), second 5 (0 - 0 + 1)
    assert naive.distance([2, 0], [1, 1], [3, 5], "i-divergence") == pytest.approx(6 * LN2 + 2)
    assert naive.distance([1, 0], [0, 1], [1, 1], "i-divergence") == math.inf
    assert naive.distance([8, 0], [0.5, 0.5], [1, 1], "kl") == pytest.approx(LN2)
    # eq. 13: x log(2x / (x+y)) + y log(2y / (x+y)), weights 3 and 1, x = (1, 2), y = (3, 0)
    expected = 3 * (math.log(2 / 4) + 3 * math.log(6 / 4)) + 2 * LN2
    assert naive.penalty_scale([1, 2], [3, 0], [3, 1], "i-divergence") == pytest.approx(expected)
    limit = naive.penalty_limit([1, 2], [3, 0], [], [3, 1], "i-divergence")
    assert limit == pytest.approx(LN2 * (5 + 9))
    with pytest.raises(ValueError, match="row of zeros"):
        naive.distance([0, 0], [0.5, 0.5], [1, 1], "kl")


def test_euclidean_on_paper() -> None:
    rows, weights = [[0.0, 1.0], [3.0, 5.0], [1.0, -1.0]], [2.0, 0.25]
    expected = 2 * 9 + 0.25 * 16 - math.log(2) - math.log(0.25)
    assert naive.distance(rows[0], rows[1], weights, "euclidean") == pytest.approx(expected)
    assert naive.penalty_scale(rows[0], rows[1], weights, "euclidean") == pytest.approx(22)
    limit = naive.penalty_limit(rows[0], rows[2], rows, weights, "euclidean")
    assert limit == pytest.approx(2 * 9 + 0.25 * 36)


def test_smoothed_centroid_on_paper() -> None:
    model = model_of([[2.0, 0.0], [0.0, 4.0], [2.0, 2.0]], "i-divergence", alpha=0.5)
    # u = (10 / 3) / 2; cluster 0 is the mean (1, 2) of rows 0 and 1, cluster 1 has no rows
    found = naive.optimal_centroids(model, [0, 0, 2], 3, ONES, previous=[[0, 0], [7, 8], [0, 0]])
    u = 5 / 3
    low, high = (1 + u / 2) / 1.5, (2 + u / 2) / 1.5
    smoothed = np.array([[low, high], [7.0, 8.0], [high, high]])
    np.testing.assert_allclose(found, smoothed)
    prior = math.fsum(naive.prior_terms(model, [0, 0, 2], found, ONES))
    far = [naive.distance([u, u], found[h], ONES, "i-divergence") for h in (0, 2)]
    assert prior == pytest.approx(0.5 * (2 * far[0] + far[1]))


def test_normalized_mutual_information() -> None:
    assert naive.normalized_mutual_information([0, 0, 1, 1], [5, 5, 2, 2]) == pytest.approx(1)
    assert naive.normalized_mutual_information([0, 0, 1, 1], [0, 1, 0, 1]) == pytest.approx(0)
    assert naive.normalized_mutual_information([3, 3], [1, 1]) == 1.0
    first, second = np.random.default_rng(1).integers(0, 4, (2, 60))
    found = naive.normalized_mutual_information(first, second)
    assert found == pytest.approx(normalized_mutual_info_score(first, second), rel=1e-12)


# --- pairs ---------------------------------------------------------------------------------------


def test_closure_on_paper() -> None:
    pairs = naive.effective_pairs(
        7,
        [(2, 0), (2, 1), (3, 4)],
        [(3, 2), (6, 5), (5, 4)],
        must_costs=[1, 0.5, 1],
        cannot_costs=[1, 3, 1],
        must_link_cost=0.25,
        cannot_link_cost=2,
    )
    assert pairs.must == {(0, 1): 0.25, (0, 2): 1, (1, 2): 0.5, (3, 4): 1}
    crossing = dict.fromkeys([(i, j) for i in (0, 1, 2) for j in (3, 4)], 2.0)
    assert pairs.cannot == crossing | {(2, 3): 1, (5, 6): 3, (4, 5): 1, (3, 5): 2}
    assert pairs.components == ((0, 1, 2), (3, 4))
    assert naive.degrees(pairs, 7) == [4, 4, 4, 5, 5, 3, 1]


CHAIN = [(0, 1), (1, 2), (3, 4)]
CROSSED = [(0, 2), (2, 3)]


def test_a_contradiction_is_refused_kept_or_dropped() -> None:
    with pytest.raises(ValueError, match=r"\[\(0, 2\)\]"):
        naive.effective_pairs(5, CHAIN, CROSSED)
    kept = naive.effective_pairs(5, CHAIN, CROSSED, on_conflict="keep")
    assert set(kept.must) == {(0, 1), (1, 2), (3, 4)}  # (0, 2) is not inferred
    assert set(kept.cannot) == {(0, 2), (2, 3)}
    assert kept.conflicting == ((0, 1, 2),)
    assert kept.components == ((0, 1, 2), (3, 4))
    dropped = naive.effective_pairs(5, CHAIN, CROSSED, on_conflict="drop")
    assert set(dropped.must) == {(0, 1), (0, 2), (1, 2), (3, 4)}
    assert set(dropped.cannot) == {(i, j) for i in (0, 1, 2) for j in (3, 4)}
    assert dropped.dropped == ((0, 2),)


def test_without_closure_only_the_given_pairs_stand() -> None:
    for on_conflict, cannot in (("keep", CROSSED), ("drop", CROSSED[1:])):
        given_only = naive.effective_pairs(
            5, CHAIN, CROSSED, closure=False, on_conflict=on_conflict
        )
        assert set(given_only.must) == set(CHAIN)
        assert set(given_only.cannot) == set(cannot)
        assert given_only.components == ((0, 1, 2), (3, 4))
    with pytest.raises(ValueError, match=r"\[\(0, 2\)\]"):
        naive.effective_pairs(5, CHAIN, CROSSED, closure=False)


def test_bad_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="itself"):
        naive.effective_pairs(2, [(1, 1)])
    with pytest.raises(ValueError, match="different costs"):
        naive.effective_pairs(2, [(0, 1), (1, 0)], must_costs=[1, 2])


@given(problems.problems())
def test_pairs_do_not_depend_on_their_order(problem: problems.Problem) -> None:
    turned = replace(
        problem,
        must=problem.must[::-1, ::-1],
        cannot=problem.cannot[::-1, ::-1],
        must_costs=None if problem.must_costs is None else problem.must_costs[::-1],
        cannot_costs=None if problem.cannot_costs is None else problem.cannot_costs[::-1],
    )
    assert turned.pairs() == problem.pairs()


# --- laws ----------------------------------------------------------------------------------------


@given(problems.problems())
def test_scale_is_symmetric_and_below_its_limit(problem: problems.Problem) -> None:
    rows, name = problem.X.astype(np.float64).tolist(), problem.distortion
    weights = problems.random_weights(problem.X.shape[1], problem.seed)
    for x, y in zip(rows, [*rows[1:], rows[0]], strict=True):
        scale = naive.penalty_scale(x, y, weights, name)
        assert scale == pytest.approx(naive.penalty_scale(y, x, weights, name), abs=1e-12)
        assert -1e-12 <= scale <= naive.penalty_limit(x, y, rows, weights, name) + 1e-12


@given(problems.problems(), st.data())
def test_decreases_are_differences_of_energies(
    problem: problems.Problem, data: st.DataObject
) -> None:
    model, labels, centroids, weights = started(problem)
    row = data.draw(st.integers(0, len(problem.X) - 1))
    groups = [(row,), *model.pairs.components]
    group, target = data.draw(st.sampled_from(groups)), data.draw(st.integers(0, problem.K - 1))
    moved = labels.copy()
    moved[list(group)] = target
    before = naive.energy(model, labels, centroids, weights)
    after = naive.energy(model, moved, centroids, weights)
    decrease = naive.move_decreases(model, labels, centroids, weights, [group])[0, target]
    assert decrease == pytest.approx(before.total - after.total, abs=1e-11 * (1 + before.absolute))
    best = max(
        naive.best_single_move(model, labels, centroids, weights).decrease,
        naive.best_group_move(model, labels, centroids, weights).decrease,
    )
    assert decrease <= best


@given(problems.problems())
def test_relabelled_clusters_have_the_same_energy(problem: problems.Problem) -> None:
    model, labels, centroids, weights = started(problem)
    before = naive.energy(model, labels, centroids, weights)
    turned = naive.energy(model, problem.K - 1 - labels, centroids[::-1], weights)
    assert turned == before
    assert abs(before.total) <= before.absolute * (1 + 1e-12)


@pytest.mark.parametrize("distortion", problems.DISTORTIONS)
@pytest.mark.parametrize("seed", range(6))
def test_optimal_centroids_cannot_be_bettered(distortion: str, seed: int) -> None:
    problem = problems.random_problem(seed, distortion=distortion, d=6)
    model, labels, centroids, weights = started(problem)
    centroids = naive.optimal_centroids(model, labels, problem.K, weights, previous=centroids)
    best = naive.energy(model, labels, centroids, weights)
    rng = np.random.default_rng(seed)
    for size in (1e-3, 1e-2, 0.1) * 4:
        other = centroids * rng.uniform(1 - size, 1 + size, centroids.shape)
        worse = naive.energy(model, labels, other, weights)
        assert worse.total >= best.total - 1e-12 * best.absolute
    assert worse.total > best.total + 1e-9 or not centroids.any()


# --- gradients and priors ------------------------------------------------------------------------


@pytest.mark.parametrize("distortion", ["euclidean", "i-divergence", "kl"])
@pytest.mark.parametrize("seed", range(6))
def test_gradient_of_the_linear_distortions(distortion: str, seed: int) -> None:
    model, labels, centroids, weights = started(
        problems.random_problem(seed, distortion=distortion)
    )
    expected = np.array(naive.feature_distortions(model, labels, centroids))
    if distortion == "euclidean":
        expected -= len(labels) / weights
    found = naive.numerical_gradient(model, labels, centroids, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


def test_gradient_of_cosine_is_eq_19_negated() -> None:
    x, y, weights = np.random.default_rng(2).random((3, 5)) + 0.1
    model = model_of([x.tolist()], "cosine")
    long, wide = (math.sqrt(v @ (weights * v)) for v in (x, y))
    inner = x @ (weights * y)
    shrink = inner * (x**2 * wide**2 + y**2 * long**2) / (2 * long * wide)
    similarity = (x * y * long * wide - shrink) / (long**2 * wide**2)
    found = naive.numerical_gradient(model, [0], [y], weights)
    np.testing.assert_allclose(found, -similarity, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("distortion", ["cosine", "pearson"])
@pytest.mark.parametrize("seed", range(6))
def test_scaling_the_weights_leaves_directions_alone(distortion: str, seed: int) -> None:
    problem = problems.random_problem(seed, distortion=distortion)
    model, labels, centroids, weights = started(problem, normaliser=1.0)
    before = naive.energy(model, labels, centroids, weights)
    scaled = naive.energy(model, labels, centroids, 3 * weights)
    assert scaled.total == pytest.approx(before.total, abs=1e-12 * before.absolute)
    gradient = naive.numerical_gradient(model, labels, centroids, weights)
    assert abs(gradient @ weights) <= 1e-6 * before.absolute


@pytest.mark.parametrize("seed", range(4))
def test_the_normaliser_may_hold_its_global_centroid(seed: int) -> None:
    model, labels, centroids, weights = started(
        problems.random_problem(seed, distortion="cosine"), normaliser=1.0
    )
    held = naive.numerical_gradient(model, labels, centroids, weights)
    terms = naive.prior_terms(model, labels.tolist(), centroids, weights)
    best = -len(labels) + np.linalg.norm(
        np.sqrt(weights) * naive.optimal_centroids(model, [0] * len(labels), 1, weights)[0]
    )
    assert math.fsum(terms) == pytest.approx(best, rel=1e-12)
    for m in range(len(weights)):
        step = np.zeros(len(weights))
        step[m] = 1e-4 * weights[m]
        above, below = (
            naive.energy(model, labels, centroids, weights + sign * step).total for sign in (1, -1)
        )
        assert (above - below) / (2 * step[m]) == pytest.approx(held[m], abs=1e-6)


@pytest.mark.parametrize("distortion", ["i-divergence", "kl"])
@pytest.mark.parametrize("seed", range(4))
def test_relative_entropy_is_least_at_the_closed_form(distortion: str, seed: int) -> None:
    model, labels, centroids, _ = started(problems.random_problem(seed, distortion=distortion))
    centroids = naive.optimal_centroids(
        model, labels, len(centroids), [1.0] * centroids.shape[1], centroids
    )
    one = naive.one_cluster_distortions(model)
    typical, strength = float(np.mean(one)), 0.7
    inside = replace(model, entropy=naive.RelativeEntropy(strength, one, typical))
    split = naive.feature_distortions(model, labels, centroids)
    weights = np.array(
        [math.exp(-strength * (s - s0) / (s0 + typical)) for s, s0 in zip(split, one, strict=True)]
    )
    best = naive.energy(inside, labels, centroids, weights)
    gradient = naive.numerical_gradient(inside, labels, centroids, weights)
    assert np.abs(gradient).max() <= 1e-7 * best.absolute
    assert naive.energy(inside, labels, centroids, 1.3 * weights).total > best.total


def test_one_cluster_distortions_of_both_phases() -> None:
    model = model_of([[2.0, 0.0], [0.0, 4.0]], "i-divergence", alpha=0.5)
    u, rows = 1.5, model.rows.tolist()
    centre = [(1 + u / 2) / 1.5, (2 + u / 2) / 1.5]
    warm = np.sum([naive.distance_terms(x, centre, "i-divergence") for x in rows], axis=0)
    final = 0.5 * 2 * np.array(naive.distance_terms([u, u], centre, "i-divergence"))
    np.testing.assert_allclose(naive.one_cluster_distortions(model, final_phase=False), warm)
    np.testing.assert_allclose(naive.one_cluster_distortions(model), warm + final)


# --- the problems --------------------------------------------------------------------------------


@given(problems.problems())
def test_drawn_problems_are_legal(problem: problems.Problem) -> None:
    check_legal(problem)


def test_random_problems_are_legal_and_of_every_kind() -> None:
    drawn = [problems.random_problem(seed) for seed in range(300)]
    for problem in drawn:
        check_legal(problem)
    assert {problem.distortion for problem in drawn} == set(problems.DISTORTIONS)
    for kind in (
        [bool((problem.X < 0).any()) for problem in drawn],
        [bool((~problem.X.any(axis=1)).any()) for problem in drawn],
        [len(np.unique(problem.X, axis=0)) < len(problem.X) for problem in drawn],
        [bool(problem.pairs().conflicting) for problem in drawn],
        [problem.K == 1 for problem in drawn],
        [problem.ids is not None for problem in drawn],
        [problem.must_costs is not None for problem in drawn],
    ):
        assert 10 < sum(kind) < 290
    again = problems.random_problem(7, n=9, d=3, K=2, distortion="kl", closure=True)
    assert (again.X.shape, again.K, again.distortion, again.closure) == ((9, 3), 2, "kl", True)


def check_legal(problem: problems.Problem) -> None:
    rows = problem.X
    assert rows.dtype == np.float32
    assert rows.flags.c_contiguous
    assert np.isfinite(rows).all()
    assert 1 <= problem.K <= len(rows)
    if problem.distortion in ("i-divergence", "kl"):
        assert (rows >= 0).all()
        assert rows.any()
    if problem.distortion == "kl":
        assert rows.any(axis=1).all()
    for pairs, costs in (
        (problem.must, problem.must_costs),
        (problem.cannot, problem.cannot_costs),
    ):
        assert pairs.dtype == np.int64
        assert (pairs[:, 0] != pairs[:, 1]).all()
        if costs is not None:
            assert len(costs) == len(pairs)
            assert ((costs >= 0) & (costs <= 5) & (costs * 256 == np.rint(costs * 256))).all()
    if problem.ids is not None:
        assert len(set(problem.ids.tolist())) == len(rows)
    np.testing.assert_array_equal(problem.csr.toarray(), rows)
    problem.pairs()  # refuses contradictions under "raise", and one pair with two costs


def test_planted_text_has_unit_rows_and_the_same_bits_again() -> None:
    rows, labels = problems.planted_text(500, 300, 4, seed=3)
    again, _ = problems.planted_text(500, 300, 4, seed=3)
    other, _ = problems.planted_text(500, 300, 4, seed=4)
    assert rows.toarray().tobytes() == again.toarray().tobytes()
    assert rows.toarray().tobytes() != other.toarray().tobytes()
    assert rows.dtype == np.float32
    assert rows.indices.dtype == np.int32
    assert rows.has_canonical_format
    np.testing.assert_allclose(np.asarray(rows.multiply(rows).sum(axis=1)), 1, rtol=1e-6)
    middles = np.stack([rows[labels == topic].toarray().mean(axis=0) for topic in range(4)])
    middles /= np.linalg.norm(middles, axis=1, keepdims=True)
    found = np.asarray(rows @ middles.T).argmax(axis=1)
    assert naive.normalized_mutual_information(labels, found) > 0.9  # the topics can be found


@pytest.mark.parametrize("must_share", [None, 0.0, 0.25, 1.0])
@pytest.mark.parametrize(("n", "m"), [(30, 40), (4000, 3000)])
def test_label_pairs_are_different_and_true(n: int, m: int, must_share: float | None) -> None:
    labels = np.random.default_rng(0).integers(0, 5, n) * 3 - 1
    must, cannot = problems.label_pairs(labels, m, seed=1, must_share=must_share)
    assert len(must) + len(cannot) == m
    assert (labels[must[:, 0]] == labels[must[:, 1]]).all()
    assert (labels[cannot[:, 0]] != labels[cannot[:, 1]]).all()
    both = np.sort(np.concatenate([must, cannot]), axis=1)
    assert len(np.unique(both, axis=0)) == m
    assert (both[:, 0] != both[:, 1]).all()
    if must_share is not None:
        assert len(must) == round(m * must_share)


def test_label_pairs_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="only 2 of this kind"):
        problems.label_pairs(np.array([0, 0, 1, 1]), 3, seed=0, must_share=1.0)
