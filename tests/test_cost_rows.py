"""Cost rows in low precision: what a row wants is what float64 says, no move is flattered."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from hmrf_dask.checkpoints.records import MemoryRun
from hmrf_dask.distortions.base import Extent
from hmrf_dask.distortions.cosine import Cosine
from hmrf_dask.distortions.euclidean import Euclidean
from hmrf_dask.kernels import cost_rows
from hmrf_dask.kernels.icm import icm
from hmrf_dask.kernels.problem import adjacency, make_grouping, make_problem
from hmrf_dask.linked.plan import Scale, make_scale
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks import icm as tasks_icm
from hmrf_dask.tasks.model import Model
from hmrf_dask.tasks.partitions import RowTerms, StoredLabels, TaskSlice
from tests.support.icm_problems import tangled
from tests.support.loop import iterations, make_bench


def make_case(seed: int, *, n: int = 60, d: int = 200, k: int = 5, **how: Any) -> dict[str, Any]:
    """Return a block, a model, random pairs and labels; some centroids and rows are alike."""
    rng = np.random.default_rng(seed)
    dense = how.get("dense", False)
    rows = rng.gamma(0.5, size=(n, d)) * (rng.random((n, d)) < (1.0 if dense else 0.4))
    rows[: n // 4] = rows[n // 4 : 2 * (n // 4)]
    rows[0] = 0.0
    values = (rows + how.get("far", 0.0)).astype(np.float32)
    make = RowBlock.from_array if dense else RowBlock.from_scipy
    block = make(values if dense else scipy.sparse.csr_array(values))
    extent = Extent(n, d, values.min(axis=0), values.max(axis=0), 1.0, float(values.sum(1).max()))
    kind = Euclidean if how.get("euclidean") else Cosine
    distortion = kind().bind(extent)
    chosen = values[rng.choice(n - 1, k, replace=False) + 1].astype(np.float64)
    chosen[-1] = chosen[0] * (1.0 + how.get("near", 0.0) * rng.random(d))
    model = Model(distortion, np.ones(d), chosen)
    pairs = rng.integers(0, n, (n, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    scale = make_scale(
        distortion, model.weights, potts=False, degree=20.0,
        span=distortion.span(model.weights, 0.0), unit_of_costs=2.0**-8,
    )  # fmt: skip
    reach = how.get("reach", 0.2) * distortion.maximum(model.weights)
    signed = np.rint(rng.normal(size=len(pairs)) * reach / scale.unit).astype(np.int64)
    first, second = pairs.T.astype(np.int32)
    start, neighbour, cost = adjacency(n, first, second, signed)
    return {
        "block": block,
        "model": model,
        "scale": scale,
        "problem": SimpleNamespace(mode="heap", in_groups=how.get("in_groups", 0.0)),
        "pairs": tasks_icm.PricedPairs(np.zeros(len(pairs)), start, neighbour, cost),
        "labels": rng.integers(0, k, n).astype(np.int32),
    }


def costs_of(
    case: dict[str, Any], labels: np.ndarray, parts: tuple[int, ...] = ()
) -> tasks_icm.LinkedCosts:
    """Return what is known of all rows, worked out in parts."""
    run, block, model = MemoryRun(), case["block"], case["model"]
    file = run.write_labels(0, "linked-00000", 0, labels)
    stored = StoredLabels(run, [file])
    priced = tasks_icm.PricedProblem(case["problem"], case["pairs"], stored)
    found = []
    for number, (first, last) in enumerate(pairwise([0, *parts, block.n_rows])):
        few = block.rows(first, last)
        terms = RowTerms(model.distortion.terms(few, model.weights)) if number % 2 else None
        rows = TaskSlice([few], [terms], [file])
        found.append(tasks_icm.linked_costs(rows, model, case["scale"], priced, first))
    gains = [one.gains for one in found if one.gains is not None]
    costs = np.concatenate([one.costs for one in found])
    return tasks_icm.LinkedCosts(costs, np.concatenate(gains) if gains else None)


def totals_of(case: dict[str, Any], costs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return costs with those of pairs at the labels."""
    pairs, scale = case["pairs"], case["scale"]
    totals: np.ndarray = costs.astype(np.int64) << scale.shift
    owner = np.repeat(np.arange(len(costs)), np.diff(pairs.start))
    np.add.at(totals, (owner, labels[pairs.neighbour]), pairs.signed)
    return totals


@settings(max_examples=60)
@given(
    st.integers(0, 2**16), st.booleans(), st.booleans(), st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.0, 1e-9, 1e-6, 1e-3]), st.sampled_from([0.0, 1.0, 30.0]),
)  # fmt: skip
def test_a_row_prefers_what_float64_does(
    seed: int, euclidean: bool, dense: bool, in_groups: float, near: float, far: float
) -> None:
    how: dict[str, Any] = {"dense": dense, "in_groups": in_groups, "near": near, "far": far}
    case = make_case(seed, euclidean=euclidean, **how)
    labels, scale, model = case["labels"], case["scale"], case["model"]
    found = costs_of(case, labels)
    exact = tasks_icm.exact_costs(case["block"], model, scale)
    own = np.arange(len(labels)), labels
    wanted = totals_of(case, exact, labels)
    gains = wanted[own] - wanted.min(axis=1)
    assert found.gains is not None
    # two cost rows rounded to steps agree but for two of them
    clear = gains > 2 << scale.shift
    assert (found.gains[clear] > 0).all()
    assert (found.gains[gains == 0] <= 2 << scale.shift).all()
    mine = totals_of(case, found.costs, labels)
    np.testing.assert_array_equal(found.gains, mine[own] - mine.min(axis=1))
    best = wanted[own[0], mine.argmin(axis=1)] - wanted.min(axis=1)
    assert (best[clear] <= 2 << scale.shift).all()
    # against the present label no cost is too low, nor by more than the tolerance too high
    above = found.costs.astype(np.int64) - found.costs[own][:, None]
    right = exact.astype(np.int64) - exact[own][:, None]
    assert (above >= right - 2).all()
    assert ((above - right) * scale.step <= 2.0 * scale.tolerance + 6 * scale.step).all()


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("single", [False, True])
def test_low_precision_is_used_and_measured_where_it_is_close(dense: bool, single: bool) -> None:
    case = make_case(3, n=200, dense=dense, near=1e-7)
    model, scale, pairs = case["model"], case["scale"], case["pairs"]
    point_pairs = cost_rows.make_point_pairs(
        0, case["labels"], scale.shift, pairs.start, pairs.neighbour, pairs.signed
    )
    terms = model.distortion.terms(case["block"], model.weights)
    quick = cost_rows.approximate_costs(
        case["block"].arrays,
        terms,
        model.table(),
        point_pairs,
        scale.step,
        scale.tolerance,
        single=single,
    )
    assert np.flatnonzero(quick.coarse).tolist() == [0]  # a row of zeros
    measured = np.unique(quick.near_row)
    assert 0 < len(measured) < 150
    assert (np.diff(quick.near_row) >= 0).all()
    firsts = np.searchsorted(quick.near_row, measured)
    np.testing.assert_array_equal(quick.near_cluster[firsts], case["labels"][measured])
    exact = tasks_icm.exact_costs(case["block"], model, scale)
    assert (quick.costs != exact).any()


def test_rows_far_from_the_origin_are_left_to_float64() -> None:
    case = make_case(4, euclidean=True, far=3000.0)
    found = costs_of(case, case["labels"])
    exact = tasks_icm.exact_costs(case["block"], case["model"], case["scale"])
    np.testing.assert_array_equal(found.costs, exact)
    own = np.arange(len(exact)), case["labels"]
    totals = totals_of(case, exact, case["labels"])
    np.testing.assert_array_equal(found.gains, totals[own] - totals.min(axis=1))


@pytest.mark.parametrize("euclidean", [False, True])
def test_any_cut_into_partitions_gives_the_same(euclidean: bool) -> None:
    for seed in range(5):
        case = make_case(seed, euclidean=euclidean, near=1e-7)
        for labels in (case["labels"], np.full(60, -2, np.int32)):
            whole = costs_of(case, labels)
            for parts in ((1, 17), (30,), (10, 10, 59)):
                cut = costs_of(case, labels, parts)
                np.testing.assert_array_equal(whole.costs, cut.costs)
                np.testing.assert_array_equal(whole.gains, cut.gains)
            assert (whole.gains is None) == (labels[0] < 0)


@pytest.mark.parametrize("euclidean", [False, True])
def test_icm_never_raises_the_energy_in_float64(euclidean: bool) -> None:
    """Whatever the integers gain, distances and pairs together lose at least that much."""
    n_moved = 0
    for seed in range(40):
        case = make_case(seed, euclidean=euclidean, near=1e-7, reach=1e-6 if seed % 2 else 0.2)
        block, model, scale = case["block"], case["model"], case["scale"]
        pairs, labels = case["pairs"], case["labels"]
        distances = model.distortion.distances(
            block, model.distortion.terms(block, model.weights), model.table()
        )
        alone = np.arange(len(labels))
        grouping = make_grouping(alone, np.arange(len(labels) + 1), alone)
        for _ in range(3):
            found = costs_of(case, labels)
            assert found.gains is not None
            after, again = labels.copy(), labels.copy()
            edges = pairs.start, pairs.neighbour, pairs.signed
            problem = make_problem(0, found.costs, scale.shift, *edges)
            moves = icm(after, problem, grouping, found.gains)
            assert icm(again, problem, grouping) == moves
            np.testing.assert_array_equal(after, again)
            fall = float(energy_of(distances, scale, pairs, labels, after))
            n_moved += int((after != labels).sum())
            assert fall >= -2 * scale.step * (after != labels).sum()
            labels = after
    assert n_moved > 200


def energy_of(
    distances: np.ndarray,
    scale: Scale,
    pairs: tasks_icm.PricedPairs,
    before: np.ndarray,
    after: np.ndarray,
) -> float:
    """Return by how much distances and signed pairs fall from one labelling to the other."""
    rows = np.arange(len(before))
    owner = np.repeat(rows, np.diff(pairs.start))
    fall = (distances[rows, before] - distances[rows, after]).sum()
    for labels, sign in ((before, 1), (after, -1)):
        same = labels[owner] == labels[pairs.neighbour]
        fall += sign * int(pairs.signed[same].sum()) // 2 * scale.unit
    return float(fall)


@pytest.mark.parametrize("distortion", ["cosine", "euclidean", "kl"])
def test_a_component_over_several_partitions_is_settled_as_in_one(distortion: str) -> None:
    n_cut = 0
    for seed in range(4):
        problem = tangled(seed, n=40, d=300, distortion=distortion)
        ends = []
        for memory in (2**30, 80_000):
            bench = make_bench(problem, task_memory=memory)
            found = bench.engine.problem.icm_problems
            assert {one.mode for one in found} == {"heap"}
            n_cut += any(len(one.partitions) > 1 for one in found)
            *_, (_, turn) = iterations(bench, most=4)
            ends.append((turn.state.energy.total, bench.labels(turn.state).tolist()))
        assert ends[0] == ends[1]
    assert n_cut == 4
