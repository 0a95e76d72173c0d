"""First variation through the real engine: J falls in every round, at the end nothing can move."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hmrf_dask import HMRFKMeans
from hmrf_dask.distortions import make_distortion
from hmrf_dask.fit import refinement
from hmrf_dask.fit.loop import Iteration, begin, refine_iteration
from hmrf_dask.fit.refinement import first_variation, refines
from hmrf_dask.kernels.distances import LINKED
from hmrf_dask.tasks.first_variation import Proposals, best_first, merge_proposals, that_fit
from hmrf_dask.tasks.model import State
from tests import naive
from tests.support.loop import Bench, iterations, make_bench
from tests.support.problems import Problem, label_pairs, planted_text, random_problem

NEITHER = "neither a row nor a group can move with a gain"
REFINED = ("cosine", "pearson", "euclidean")
SLACK = 1e-8  # of 1 + |J|: gains below it may be rounding

Labels = NDArray[np.int32]


def from_labels(bench: Bench, labels: Labels) -> Iteration:
    """Return the first turn of a fit that begins with these labels at their best centroids."""
    engine, laid = bench.engine, bench.engine.problem
    free, linked = [], []
    for part, places in zip(laid.free, laid.places, strict=True):
        own = np.array(labels[part.first_row : part.first_row + part.n_rows], np.int32)
        own[places] = LINKED
        free.append(engine.run.write_labels(0, part.name, part.first_row, own))
    for part in laid.linked:
        own = np.array(labels[laid.laid_rows(part)], np.int32)
        linked.append(engine.run.write_labels(0, part.name, part.first_row, own))
    centroids = np.nan_to_num(optimum(bench, labels, np.ones(bench.problem.X.shape[1])))
    return begin(engine, centroids, free=tuple(free), linked=tuple(linked))


def optimum(bench: Bench, labels: Labels, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    return naive.optimal_centroids(bench.problem.model(), labels, bench.problem.K, weights)


def best_energy(bench: Bench, labels: Labels, state: State) -> float:
    """The oracle's J of labels with centroids re-optimised, under the state's weights and prior."""
    weights = state.model.weights
    centroids = np.nan_to_num(optimum(bench, labels, weights))
    return naive.energy(bench.oracle(state), labels, centroids, weights).total


def everything(bench: Bench) -> list[list[int]]:
    """Every row and every must-link group of a problem."""
    groups = [list(rows) for rows in bench.problem.pairs().components]
    return [[row] for row in range(len(bench.problem.X))] + groups


def largest_gain(bench: Bench, state: State, movable: list[list[int]]) -> float:
    """By how much J can fall, centroids re-optimised, when some rows move together.

    Moves that would empty a cluster do not count.
    """
    labels = bench.labels(state)
    now = best_energy(bench, labels, state)
    best = 0.0
    for rows in movable:
        for target in range(bench.problem.K):
            after = labels.copy()
            after[rows] = target
            if np.array_equal(after, labels) or set(labels[rows]) - set(after) - {target}:
                continue
            best = max(best, now - best_energy(bench, after, state))
    return best


def refined(bench: Bench, turn: Iteration, most: int = 500) -> list[Iteration]:
    """Run the refinement of a fit to its end."""
    done = [turn]
    for _ in range(most):
        done.append(refine_iteration(bench.engine, done[-1].state))
        if done[-1].stop is not None:
            return done
    raise AssertionError(f"no end after {most} rounds")


def small_problem(seed: int, **chosen: Any) -> Problem:
    rng = np.random.default_rng(seed)
    name = REFINED[seed % 3]
    settings = {"distortion": name, "n": int(rng.integers(8, 19)), "K": int(rng.integers(2, 4))}
    return random_problem(seed, **(settings | chosen))


def random_labels(problem: Problem, seed: int = 0) -> Labels:
    """Labels with nobody's cluster empty."""
    labels = np.arange(len(problem.X)) % problem.K
    return np.random.default_rng(seed).permutation(labels).astype(np.int32)


# --- every round, and the end


@pytest.mark.parametrize("seed", range(24))
def test_j_falls_in_every_round_and_is_that_of_the_oracle_at_its_best_centroids(seed: int) -> None:
    bench = make_bench(small_problem(seed), dense=seed % 4 == 1, n_parts=1 + seed % 3)
    begun = from_labels(bench, random_labels(bench.problem))
    steps = refined(bench, begun)
    for before, after in itertools.pairwise(steps[:-1]):
        assert after.moved > 0
        assert after.state.energy.total < before.state.energy.total
        if after.steps[0][0] == "variation":  # ICM in between may empty a cluster
            assert not ((after.state.counts == 0) & (before.state.counts > 0)).any()
    for turn in steps[1:]:
        expected, labels = bench.energy(turn.state), bench.labels(turn.state)
        size = 1e-9 * (1 + expected.absolute)
        assert turn.state.energy.value == pytest.approx(expected.total, abs=size)
        if len(steps) > 2:  # something moved, so centroids were worked out again
            best = best_energy(bench, labels, turn.state)
            assert turn.state.energy.value == pytest.approx(best, abs=size)


@pytest.mark.parametrize("seed", range(36))
def test_at_the_end_neither_a_row_nor_a_group_can_move(seed: int) -> None:
    bench = make_bench(small_problem(seed), n_parts=2)
    end = refined(bench, from_labels(bench, random_labels(bench.problem)))[-1]
    assert end.stop == NEITHER
    slack = SLACK * (1 + bench.energy(end.state).absolute)
    assert largest_gain(bench, end.state, everything(bench)) <= slack


@pytest.mark.parametrize("seed", range(8))
def test_a_whole_fit_ends_where_nothing_can_move_too(seed: int) -> None:
    for learn in (False, True):
        bench = make_bench(small_problem(seed), n_parts=2, learn=learn)
        *_, (phase, end) = iterations(bench, refining=True, most=200)
        assert (phase, end.stop) == ("refine", NEITHER)
        slack = SLACK * (1 + bench.energy(end.state).absolute)
        assert largest_gain(bench, end.state, everything(bench)) <= slack


@pytest.mark.parametrize("seed", range(12))
def test_a_small_budget_takes_more_rounds_to_an_end_as_good(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = small_problem(seed, n=20)
    bench = make_bench(problem, n_parts=3)
    start = random_labels(problem)
    at_once = refined(bench, from_labels(bench, start))
    monkeypatch.setattr(refinement, "LEAST_ROWS", 1)
    monkeypatch.setattr(refinement, "SHARE", 2**40)
    one_by_one = refined(bench, from_labels(bench, start))
    assert len(one_by_one) >= len(at_once)
    sizes = [1, *(len(rows) for rows in problem.pairs().components)]
    assert all(turn.moved <= max(sizes) for turn in one_by_one)
    end = one_by_one[-1]
    assert largest_gain(bench, end.state, everything(bench)) <= SLACK * (
        1 + bench.energy(end.state).absolute
    )


def test_rounds_apply_many_moves_at_once() -> None:
    bench = make_bench(small_problem(0, n=40, K=3, noise=0.0), n_parts=2)
    assert (
        max(turn.moved for turn in refined(bench, from_labels(bench, random_labels(bench.problem))))
        > 3
    )


# --- what does not matter


@pytest.mark.parametrize("seed", range(6))
def test_dense_rows_move_as_sparse_ones(seed: int) -> None:
    problem = small_problem(seed, smooth=True)
    start = random_labels(problem)
    ends = []
    for dense in (False, True):
        bench = make_bench(problem, dense=dense)
        ends.append(bench.labels(refined(bench, from_labels(bench, start))[-1].state).tolist())
    assert ends[0] == ends[1]


# --- groups, zero rows, clusters of one


def test_a_whole_group_moves_where_no_row_would() -> None:
    rows = np.repeat(np.eye(3, dtype=np.float32), [4, 4, 4], axis=0) + np.float32(0.05)
    rows = np.concatenate([rows, rows[:3]])  # three more of the first kind, which belong together
    group = [12, 13, 14]
    problem = random_problem(
        0, distortion="cosine", n=15, d=3, K=3, X=rows, must=np.array([(12, 13), (13, 14)]),
        must_costs=None, cannot=np.zeros((0, 2), np.int64), cannot_costs=None, penalty="potts",
        must_link_cost=5.0, closure=True, on_conflict="raise", ids=None,
    )  # fmt: skip
    start = np.repeat([0, 1, 2, 1], [4, 4, 4, 3]).astype(np.int32)
    bench = make_bench(problem)
    begun = from_labels(bench, start)
    now = best_energy(bench, start, begun.state)
    for row in group:  # alone each would pay for two broken pairs
        alone = start.copy()
        alone[row] = 0
        assert best_energy(bench, alone, begun.state) > now
    first, moved = first_variation(bench.engine, begun.state)
    assert moved == 3
    assert bench.labels(first)[group].tolist() == [0, 0, 0]


def test_rows_of_zeros_stay_where_they_are_unless_pairs_move_them() -> None:
    rng = np.random.default_rng(1)
    rows = rng.random((16, 5)).astype(np.float32)
    rows[[2, 5, 9]] = 0
    problem = random_problem(
        1, distortion="cosine", n=16, d=5, K=3, X=rows, must=np.array([(9, 10)]), must_costs=None,
        cannot=np.zeros((0, 2), np.int64), cannot_costs=None, penalty="potts", must_link_cost=1.0,
        closure=True, on_conflict="raise", ids=None,
    )  # fmt: skip
    start = random_labels(problem, 3)
    start[9], start[10] = 0, 1
    bench = make_bench(problem)
    labels = bench.labels(refined(bench, from_labels(bench, start))[-1].state)
    assert labels[[2, 5]].tolist() == start[[2, 5]].tolist()
    assert labels[9] == labels[10]


@pytest.mark.parametrize("name", REFINED)
def test_no_move_ever_empties_a_cluster(name: str) -> None:
    for seed in range(6):
        problem = small_problem(seed, distortion=name, n=12, K=3)
        start = np.zeros(12, np.int32)
        start[[0, 1]] = [1, 2]  # clusters of one row each, which others would rather join
        for turn in refined(bench := make_bench(problem), from_labels(bench, start)):
            assert turn.state.counts.min() >= 1


def test_rows_may_found_an_empty_cluster() -> None:
    problem = small_problem(3, n=14, K=3, noise=0.0)
    bench = make_bench(problem)
    start = (np.arange(14) % 2).astype(np.int32)
    steps = refined(bench, from_labels(bench, start))
    assert steps[0].state.counts[2] == 0
    assert steps[-1].state.counts.min() > 0


@pytest.mark.parametrize("mode", ["table", "rounds"])
@pytest.mark.parametrize("seed", range(6))
def test_rows_of_other_problems_stay_with_icm_and_free_rows_end_at_their_best(
    seed: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode == "table":
        monkeypatch.setattr("hmrf_dask.constraints.closure.EXPLICIT_PAIRS", 0)
        monkeypatch.setattr("hmrf_dask.constraints.closure.EXPLICIT_RATIO", 0)
    must = [(0, 4), (4, 8), (1, 5), (8, 9), (2, 6)]
    problem = small_problem(
        seed, n=24, K=3, must=np.array(must), must_costs=None, cannot=np.array([(0, 1), (5, 6)]),
        cannot_costs=None, closure=True, on_conflict="keep",
    )  # fmt: skip
    memory = 2**30 if mode == "table" else 1200
    bench = make_bench(problem, n_parts=2, task_memory=memory)
    assert mode in {one.mode for one in bench.engine.problem.icm_problems}
    steps = refined(bench, from_labels(bench, random_labels(problem)))
    for before, after in itertools.pairwise(steps[:-1]):
        assert after.state.energy.total < before.state.energy.total
    end, expected = steps[-1].state, bench.energy(steps[-1].state)
    assert end.energy.value == pytest.approx(expected.total, abs=1e-9 * (1 + expected.absolute))
    linked = set(np.concatenate([problem.must, problem.cannot]).ravel().tolist())
    free = [[row] for row in range(24) if row not in linked]
    assert largest_gain(bench, end, free) <= SLACK * (1 + expected.absolute)


# --- on text, and when it runs at all


def test_first_variation_frees_batch_assignment_on_sparse_text() -> None:
    rows, hidden = planted_text(150, 1500, 3, 7, topical_share=0.3)
    must, cannot = label_pairs(hidden, 30, 7)
    found = {}
    for refining in (False, True):
        for pairs in (False, True):
            model = HMRFKMeans(3, refine=refining, random_state=0, n_init=3)
            given = {"must_link": must, "cannot_link": cannot} if pairs else {}
            found[refining, pairs] = model.fit(rows, **given)
    for pairs in (False, True):
        stuck, free = found[False, pairs], found[True, pairs]
        assert free.objective_ < stuck.objective_ - 0.5
        quality = [
            naive.normalized_mutual_information(hidden, one.labels_) for one in (stuck, free)
        ]
        assert quality[1] > quality[0]


def test_auto_refines_while_clusters_are_small() -> None:
    cosine, divergence = make_distortion("cosine"), make_distortion("kl")
    most = 3 * refinement.ROWS_PER_CLUSTER
    assert refines("auto", cosine, most, 3)
    assert not refines("auto", cosine, most + 1, 3)
    assert refines(True, cosine, most + 1, 3)
    assert not refines(False, cosine, 10, 3)
    assert not refines("auto", cosine, 10, 1)
    assert not refines("auto", divergence, 10, 3)
    most = 3 * refinement.POOL_ROWS_PER_CLUSTER
    assert refines("auto", cosine, most, 3, refinement.POOL_ROWS_PER_CLUSTER)
    assert not refines("auto", cosine, most + 1, 3, refinement.POOL_ROWS_PER_CLUSTER)
    assert most < 3 * refinement.ROWS_PER_CLUSTER


# --- lists of proposals

moves = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(1, 4)), min_size=0, max_size=12
)


def proposals_of(listed: list[tuple[int, int, int, int]], most: int) -> Proposals:
    """Make proposals of (gain, target, number of rows, first address)."""
    starts = np.cumsum([0, *(size for _, _, size, _ in listed)])
    addresses = [first + k for _, _, size, first in listed for k in range(size)]
    return Proposals(
        np.array([gain for gain, _, _, _ in listed], np.float64),
        np.array([first for _, _, _, first in listed], np.int64),
        np.array([target for _, target, _, _ in listed], np.int32),
        starts,
        np.array(addresses, np.int64),
        most,
    )


def test_what_does_not_fit_ends_the_list_in_any_partitioning() -> None:
    moves = [(0, 0, 1, 0), (0, 0, 1, 10), (0, 0, 2, 20), (0, 0, 1, 30)]
    for cut in range(5):
        lists = [best_first(proposals_of(piece, 3)) for piece in (moves[:cut], moves[cut:])]
        assert that_fit(merge_proposals(lists)).ids.tolist() == [0, 10]


@settings(max_examples=200)
@given(moves, st.integers(1, 20), st.integers(0, 3), st.randoms(use_true_random=False))
def test_the_best_of_several_lists_are_the_best_of_all(
    drawn: list[tuple[int, int, int]], most: int, n_cuts: int, random: Any
) -> None:
    listed = [(*move, 10 * number) for number, move in enumerate(drawn)]
    ordered = sorted(listed, key=lambda move: (-move[0], move[3]))
    kept, rows = [], 0
    for move in ordered:  # the first whatever its size, then as long as they fit
        rows += move[2]
        if kept and rows > most:
            break
        kept.append(move)
    random.shuffle(listed)
    cuts = sorted(random.randint(0, len(listed)) for _ in range(n_cuts))
    pieces = [listed[a:b] for a, b in zip([0, *cuts], [*cuts, len(listed)], strict=True)]
    whole = that_fit(best_first(proposals_of(listed, most)))
    lists = [best_first(proposals_of(piece, most)) for piece in pieces]
    merged = that_fit(merge_proposals(lists))
    for found in (whole, merged):
        assert found.ids.tolist() == [move[3] for move in kept]
        wanted_rows = [move[3] + k for move in kept for k in range(move[2])]
        assert found.addresses.tolist() == wanted_rows
        assert np.diff(found.starts).tolist() == [move[2] for move in kept]
