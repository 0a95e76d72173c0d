from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from hmrf_dask.kernels import first_variation, set_moves
from hmrf_dask.kernels.compiled import spread
from hmrf_dask.kernels.first_variation import PairCosts, Summands
from hmrf_dask.kernels.hamerly import RowBounds
from hmrf_dask.kernels.nearest import rows_that_may_move
from hmrf_dask.kernels.problem import adjacency
from hmrf_dask.kernels.set_moves import SetMoves
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.first_variation import Sources, column_weights, summands_of
from hmrf_dask.tasks.model import Model
from tests import naive
from tests.support import problems
from tests.support.distortion_rows import blocks_of, bound, text_like
from tests.support.long_cases import long

NAMES = ["cosine", "pearson", "euclidean"]


@dataclass
class Case:
    """A problem with a labelling, its sums and summands, and the J of brute force."""

    model: naive.Model
    weights: Any
    labels: Any
    K: int
    distortion: Any
    block: RowBlock
    exponent: int
    rows: Summands
    pair_costs: PairCosts

    def clusters(self, sums: Any, counts: Any) -> first_variation.ClusterSums:
        directional = self.model.distortion != "euclidean"
        metric = np.append(self.weights, 0.0)
        if directional:
            metric = np.append(np.ones_like(self.weights), -self.weights.sum())
        squares = first_variation.squares_of(sums, metric, self.exponent)
        unit, columns = 2.0**-self.exponent, np.empty((0, 0))
        return first_variation.with_columns(
            first_variation.make_clusters(
                sums, metric, unit, squares, columns, counts=counts, directional=directional
            )
        )

    def sums(self, labels: Any) -> tuple[Any, Any]:
        terms = self.distortion.terms(self.block, self.weights)
        nowhere = np.full(len(labels), -1, np.int32)
        found = self.distortion.sum_moves(
            self.block, terms, self.weights, nowhere, labels, self.K, self.exponent
        )
        return found.to_dense(), found.counts

    def energy(self, labels: Any) -> float:
        centroids = naive.optimal_centroids(self.model, labels, self.K, self.weights)
        return naive.energy(self.model, labels, centroids, self.weights).total

    def gain(self, labels: Any, members: Any, target: int) -> float:
        moved = np.array(labels)
        moved[members] = target
        return self.energy(labels) - self.energy(moved)


def make_case(name: str, seed: int, dense: bool, linked: bool) -> Case:
    problem = problems.random_problem(
        seed, distortion=name, n=18, d=5, K=4, smooth=bool(seed % 2), closure=False,
        on_conflict="keep", penalty="distance",
    )  # fmt: skip
    weights, rng = problems.random_weights(5, seed), np.random.default_rng(seed)
    model = problem.model() if linked else replace(problem.model(), pairs=naive.Pairs())
    block, distortion = blocks_of(problem.X)[dense], bound(name, problem.X)
    labels = rng.integers(0, 4, 18).astype(np.int32)
    labels[labels == 3] = rng.integers(0, 3)
    labels[seed % 18] = 3  # a cluster of one
    terms = distortion.terms(block, weights)
    limit = distortion.summand_bound(None, weights) or distortion.summand_bound(terms, weights)
    exponent = fixed_point_exponent(18, float(limit or 1.0))
    features = distortion.features(weights)
    factor, extra = spread(terms.factor, 18), spread(terms.extra, 18)
    rows = first_variation.summands(block.arrays, factor, extra, features, exponent)
    must, cannot = naive.pair_costs(model, weights)
    pairs = [(*ends, -cost) for ends, cost in must.items()]
    pairs += [(*ends, cost) for ends, cost in cannot.items()]
    first, second, signed = (np.array([pair[t] for pair in pairs]) for t in range(3))
    start, neighbour, edge = adjacency(18, first, second, np.arange(len(pairs)))
    costs = PairCosts(start, neighbour, signed.astype(np.float64)[edge])
    return Case(model, weights, labels, 4, distortion, block, exponent, rows, costs)


CASES = [
    (name, seed, dense, linked)
    for name in NAMES
    for seed in range(3)
    for dense, linked in ((False, False), (True, True), (False, True))
]
TOLERANCE = 2e-7  # naive and integer sums differ by roundings of sums of 18 rows


@pytest.mark.parametrize(("name", "seed", "dense", "linked"), CASES)
def test_gains_of_single_rows_are_those_of_brute_force(
    name: str, seed: int, dense: bool, linked: bool
) -> None:
    case = make_case(name, seed, dense, linked)
    sums, counts = case.sums(case.labels)
    skip = np.zeros(18, np.bool_)
    skip[5] = True
    gains, targets = first_variation.single_gains(
        case.rows,
        case.clusters(sums, counts),
        case.labels,
        skip,
        case.pair_costs if linked else None,
    )
    for i, own in enumerate(case.labels):
        if skip[i] or counts[own] < 2:
            assert (gains[i], targets[i]) == (0.0, own)
            continue
        expected = [case.gain(case.labels, [i], h) if h != own else 0.0 for h in range(4)]
        assert gains[i] == pytest.approx(max(0.0, *expected), abs=TOLERANCE)
        assert expected[targets[i]] == pytest.approx(gains[i], abs=TOLERANCE)
        assert (gains[i] > 0) == (targets[i] != own)


def random_groups(rng: np.random.Generator) -> tuple[Any, Any]:
    """Return groups of one to five rows, no row twice."""
    order = rng.permutation(18).astype(np.int32)
    sizes = [1, 2, 3, 5, 4]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return starts, np.concatenate([np.sort(order[a:b]) for a, b in itertools.pairwise(starts)])


@pytest.mark.parametrize(("name", "seed", "dense", "linked"), CASES)
def test_gains_of_groups_are_those_of_brute_force(
    name: str, seed: int, dense: bool, linked: bool
) -> None:
    case = make_case(name, seed, dense, linked)
    sums, counts = case.sums(case.labels)
    starts, members = random_groups(np.random.default_rng(seed))
    gains, targets = set_moves.group_gains(
        starts, members, case.rows, case.labels, case.clusters(sums, counts), case.pair_costs
    )
    for g in range(len(starts) - 1):
        group = members[starts[g] : starts[g + 1]]
        expected = [allowed_gain(case, group, h) for h in range(4)]
        assert gains[g] == pytest.approx(max(0.0, *expected), abs=TOLERANCE)
        assert (gains[g] > 0) == (targets[g] >= 0)
        if targets[g] >= 0:
            assert expected[targets[g]] == pytest.approx(gains[g], abs=TOLERANCE)


def allowed_gain(case: Case, group: Any, target: int, labels: Any = None) -> float:
    """Return the gain by brute force, 0 for a move that empties a cluster or moves nobody."""
    labels = case.labels if labels is None else labels
    moved = np.array(labels)
    moved[group] = target
    if len(set(moved.tolist())) < len(set(labels.tolist())):
        return 0.0
    return case.gain(labels, group, target)


@pytest.mark.parametrize(("name", "seed", "dense", "linked"), CASES)
def test_applied_moves_lower_the_energy_and_leave_exact_sums(
    name: str, seed: int, dense: bool, linked: bool
) -> None:
    case = make_case(name, seed, dense, linked)
    rng = np.random.default_rng(seed + 100)
    starts, rows, targets = [0], [], []
    for _ in range(40):
        group = rng.choice(18, int(rng.integers(1, 4)), replace=False)
        rows.extend(group.tolist())
        starts.append(len(rows))
        targets.append(int(rng.integers(0, 4)))
    # labels stand in other places than rows, among those of neighbours that do not move
    places = rng.permutation(25)[:18].astype(np.int32)
    labels = np.full(25, 2, np.int32)
    labels[places] = case.labels
    costs = case.pair_costs._replace(neighbour=places[case.pair_costs.neighbour])
    sums, counts = case.sums(case.labels)
    moves = SetMoves(np.array(starts), np.array(rows, np.int32), np.array(targets, np.int32))
    before = case.clusters(sums, counts)
    accepted, clusters = set_moves.apply_moves(
        moves, case.rows, places, labels, before, costs if linked else None
    )
    now = case.labels.copy()
    for t, target in enumerate(targets):
        group = rows[starts[t] : starts[t + 1]]
        gain = allowed_gain(case, group, target, now)
        if abs(gain) > TOLERANCE:
            assert accepted[t] == (gain > 0)
        if accepted[t]:
            assert gain > -TOLERANCE
            now[group] = target
    assert accepted.any()
    assert labels[places].tolist() == now.tolist()
    expected, count = case.sums(now)
    assert np.array_equal(clusters.sums, expected)
    assert np.array_equal(clusters.counts, count)
    assert clusters.counts.min() > 0


def test_summands_are_entry_for_entry_what_sums_add() -> None:
    for name in NAMES:
        for dense in (False, True):
            case = make_case(name, 1, dense, False)
            sums, _ = case.sums(case.labels)
            expected = np.zeros_like(sums)
            for i, h in enumerate(case.labels):
                for p in range(case.rows.start[i], case.rows.start[i + 1]):
                    expected[h, case.rows.column[p]] += case.rows.entry[p]
            assert np.array_equal(expected, sums)


def test_kernels_are_compiled_once_for_fresh_and_for_read_only_arrays() -> None:
    for frozen in (False, True):
        case = make_case("pearson", 0, False, True)
        sums, counts = case.sums(case.labels)
        starts, members = random_groups(np.random.default_rng(0))
        skip, clusters = np.zeros(18, np.bool_), case.clusters(sums, counts)
        moves = SetMoves(starts, members, np.zeros(len(starts) - 1, np.int32))
        labels, places = case.labels.copy(), np.arange(18, dtype=np.int32)
        if frozen:
            for array in (*case.rows, *case.pair_costs, *moves, case.labels, skip, places):
                array.flags.writeable = False
        for pair_costs in (None, case.pair_costs):
            first_variation.single_gains(case.rows, clusters, case.labels, skip, pair_costs)
            set_moves.apply_moves(moves, case.rows, places, labels, clusters, pair_costs)
        set_moves.group_gains(starts, members, case.rows, case.labels, clusters, case.pair_costs)
    kernels = first_variation._single_gains, set_moves._apply, set_moves._group_gains
    for kernel in kernels:
        assert len(kernel.signatures) == 1


@pytest.mark.parametrize("name", ["cosine", "pearson"])
@pytest.mark.parametrize("K", [2, 7, *long(40)])
def test_no_row_that_gains_is_left_out(name: str, K: int) -> None:
    shares = []
    for seed in range(6):
        rows = text_like(400, 60, seed)
        rng, block = np.random.default_rng(seed), RowBlock.from_array(rows)
        distortion = bound(name, rows)
        weights = problems.random_weights(60, seed) if seed % 2 else np.ones(60)
        terms, labels = distortion.terms(block, weights), rng.integers(0, K, 400).astype(np.int32)
        labels[labels == 1] = 0 if seed == 4 else 1  # a vacant cluster
        model = Model(distortion, weights, rng.uniform(0.05, 1.0, (K, 60)), exponent=40)
        for _ in range(4):
            nowhere = np.full(400, -1, np.int32)
            found = distortion.sum_moves(block, terms, weights, nowhere, labels, K, 40)
            sums, counts = found.to_dense(), found.counts
            centroids = distortion.centroids(sums, 40, counts, weights, 0.0, model.centroids)
            model = replace(model, centroids=centroids)
            squares = first_variation.squares_of(sums, column_weights(model), 40)
            sources = Sources(model, sums, counts, squares, optimal=True)
            clusters = sources.clusters_with_columns()
            summands = summands_of(block, model)
            skip = np.zeros(400, np.bool_)
            gains = first_variation.single_gains(summands, clusters, labels, skip)
            near, *places = rows_that_may_move(
                block.arrays, terms, model.table(), clusters.squares, labels, RowBounds()
            )
            assert set(np.flatnonzero(gains.gain > 0)) <= set(near)
            few = summands_of(block.take(near), model)
            alike = first_variation.gains_at(few, sources.clusters(), labels[near], *places)
            for found, wanted in zip(alike, gains, strict=True):
                np.testing.assert_array_equal(found, wanted[near])
            shares.append(len(near) / 400)
            labels = np.where(gains.gain > 0, gains.target, labels).astype(np.int32)
    assert min(shares) < (0.8 if K == 40 else 0.3)  # small clusters leave more open


def test_a_row_may_always_move_to_or_from_a_cluster_without_a_direction() -> None:
    rows = text_like(50, 60, 0)
    block, distortion, weights = RowBlock.from_array(rows), bound("cosine", rows), np.ones(60)
    model = Model(distortion, weights, np.eye(3, 60), exponent=40)
    terms, labels = distortion.terms(block, weights), np.zeros(50, np.int32)
    for squares in ([100.0, 100.0, -1e-18], [100.0, 100.0, 1e-90], [-1e-18, 100.0, 100.0]):
        near = rows_that_may_move(
            block.arrays, terms, model.table(), np.array(squares), labels, RowBounds()
        )
        assert near.rows.tolist() == list(range(50))
