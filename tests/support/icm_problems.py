"""Problems of linked rows: random ones in integers, through the engine, cut into pieces."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmrf_dask.checkpoints.records import MemoryRun
from hmrf_dask.constraints.closure import ClosureRules, CostedPairs, build_graph
from hmrf_dask.constraints.pairs import AnyArray
from hmrf_dask.distortions import make_distortion
from hmrf_dask.distortions.base import Extent
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.problem import CorpusRows, Pairs, lay_out
from hmrf_dask.flow.dataflow import Dataflow
from hmrf_dask.kernels.problem import (
    Grouping,
    ProblemArrays,
    adjacency,
    make_grouping,
    make_problem,
)
from hmrf_dask.linked.plan import cost_unit
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Settings
from tests.support.icm_oracle import Component
from tests.support.loop import Bench
from tests.support.problems import Problem, random_problem


def problem_of(component: Component) -> ProblemArrays:
    """Return a component as kernels see it."""
    pairs = adjacency(component.n, *component.signed_pairs())
    return make_problem(0, component.costs(), component.shift, *pairs)


def grouping_of(component: Component) -> Grouping:
    """Return the must-link groups of a component as kernels see them."""
    return make_grouping(*component.group_arrays())


def renumbered(groups: list[int]) -> list[int]:
    """Number groups by their lowest member."""
    number: dict[int, int] = {}
    return [number.setdefault(group, len(number)) for group in groups]


def random_component(rng: np.random.Generator, most: int = 40) -> Component:
    """Return a small random component: ties, contradictions, negative differences, big numbers.

    In half of them groups hold together so tightly that single moves cannot turn them.
    """
    n = int(rng.integers(2, most + 1))
    n_clusters = int(rng.integers(1, 6))
    largest = int(rng.choice([1, 3, 1000, 2**30]))
    shift = int(rng.choice([0, 1, 20]))
    distortion = rng.integers(0, largest + 1, (n, n_clusters))
    distortion -= distortion.min(axis=1, keepdims=True)
    groups = renumbered(rng.integers(0, max(1, n // int(rng.integers(1, 5))), n).tolist())
    pairs = []
    for _ in range(int(rng.integers(0, 3 * n))):
        i, j = (int(x) for x in rng.choice(n, 2, replace=False))
        # mostly as groups say, sometimes a contradiction
        kind = "must" if (groups[i] == groups[j]) != (rng.random() < 0.1) else "cannot"
        # a pair that is cheaper than its closure adds a difference below zero
        penalty = int(rng.integers(0, largest + 1)) * int(rng.choice([1, 1, 1, -1])) << shift
        pairs.append((i, j, kind, penalty))
    if rng.random() < 0.5:
        pairs += tight_pairs(rng, groups, 2 * largest << shift)
    return Component(distortion.tolist(), pairs, groups, shift)


def two_components(rng: np.random.Generator) -> tuple[Component, Component, Component]:
    """Return two components, and both as one problem."""
    one, other = (random_component(rng) for _ in range(2))
    other.distortion = [row[:1] * one.n_clusters for row in other.distortion]
    other.shift = one.shift
    both = Component(
        one.distortion + other.distortion,
        one.pairs + [(i + one.n, j + one.n, kind, p) for i, j, kind, p in other.pairs],
        one.groups + [g + max(one.groups) + 1 for g in other.groups],
        one.shift,
    )
    return one, other, both


def tight_pairs(
    rng: np.random.Generator, groups: list[int], penalty: int
) -> list[tuple[int, int, str, int]]:
    """Must-link every member to all others of its group."""
    n = len(groups)
    ends = [(i, j) for j in range(n) for i in range(j) if groups[i] == groups[j]]
    return [(i, j, "must", penalty + int(rng.integers(0, 2))) for i, j in ends]


def starting_labels(rng: np.random.Generator, component: Component) -> np.ndarray:
    """Return random labels, in half of the cases the same within a group."""
    labels = rng.integers(0, component.n_clusters, component.n).astype(np.int32)
    return labels[np.array(component.groups)] if rng.random() < 0.5 else labels


SMALL = 6000  # bytes of a task: five or so rows with their pairs


DISTORTIONS = ("cosine", "pearson", "euclidean", "kl")


def tangled(seed: int, n: int = 60, **chosen: Any) -> Problem:
    """Return a problem whose pairs join most rows into one component too large for `SMALL`."""
    fields = {"n": n, "d": 6, "K": 4, "smooth": True, "noise": 0.1, "closure": False}
    problem = random_problem(seed, **(fields | chosen))
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, n, (2 * n, 2))
    ends = np.unique(np.sort(drawn[drawn[:, 0] != drawn[:, 1]], axis=1), axis=0)
    alike = rng.random(len(ends)) < 0.5
    extra = {"must": ends[alike], "cannot": ends[~alike]}
    costs = {f"{kind}_costs": None for kind in extra}
    return Problem(
        **{name: getattr(problem, name) for name in Problem.__dataclass_fields__} | extra | costs
    )


def in_rounds(bench: Bench) -> list[int]:
    """Return the ICM problems that are cut into pieces, more than one each."""
    found = bench.engine.problem.icm_problems
    numbers = [number for number, one in enumerate(found) if one.mode == "rounds"]
    assert numbers
    assert all(len(found[number].pieces) > 1 for number in numbers)
    return numbers


def blobs(n: int, d: int, k: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return signed rows around k centres, many nearer to a wrong one, and their classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n).astype(np.int32)
    centres = rng.normal(size=(k, d))
    rows = centres[labels] + 1.5 * rng.normal(size=(n, d))
    return rows.astype(np.float32), labels


def engine_over(
    rows: NDArray[np.float32],
    must: AnyArray,
    cannot: AnyArray,
    n_clusters: int,
    flow: Dataflow,
    *,
    task_memory: int = 2**30,
    **settings: Any,
) -> Engine:
    """Return an engine over rows in 16 parts, all of them constrained."""
    n, d = rows.shape
    asked = Settings(n_clusters, task_memory=task_memory, **settings)
    extent = Extent(n, d, rows.min(axis=0), rows.max(axis=0), 1.0, 1.0)
    largest = max(asked.must_link_cost, asked.cannot_link_cost)
    graph = build_graph(
        n,
        CostedPairs(must, closure_cost=asked.must_link_cost),
        CostedPairs(cannot, closure_cost=asked.cannot_link_cost),
        ClosureRules(asked.closure, on_conflict="keep"),
    )
    cuts = np.linspace(0, n, 17).astype(int)
    blocks = [flow.share(RowBlock.from_array(rows[first:last])) for first, last in pairwise(cuts)]
    pairs = Pairs(graph, np.arange(n), np.full(n, d), cost_unit(largest))
    distortion = make_distortion("cosine").bind(extent)
    rows_of = CorpusRows(blocks, np.diff(cuts).tolist())
    problem = lay_out(flow, asked, distortion, extent, rows_of, pairs)
    return Engine(flow, problem, MemoryRun(), 1)


def labels_by_node(engine: Engine, files: tuple[Any, ...]) -> NDArray[np.int32]:
    """Return the labels of all constrained rows."""
    laid = np.concatenate([engine.run.read_labels(file) for file in files])
    assert engine.problem.layout is not None
    return laid[engine.problem.layout.position]
