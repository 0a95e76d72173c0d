"""The problem of one fit, laid out once: parts of rows, linked parts, ICM problems, pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile
from hmrf_dask.constraints.closure import ConstraintGraph
from hmrf_dask.distortions.base import Distortion, Extent
from hmrf_dask.flow.dataflow import Dataflow, Lazy, share_array
from hmrf_dask.linked.layout import LinkedLayout
from hmrf_dask.linked.plan import RowSizes, plan_layout
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Settings
from hmrf_dask.tasks.partitions import LabelledPartition, first_labels, gather_rows, take_rows
from hmrf_dask.tasks.rounds import Cutting, cut_problem
from hmrf_dask.types import AnyArray, IntArray, LabelArray

ENTRY_BYTES = 8  # value and index of an entry
ROW_BYTES = 64  # indptr, key and a short id


@dataclass(frozen=True)
class ProblemPlan:
    """One ICM problem: which linked parts it joins, and its layout as a task result.

    A problem in mode "rounds" is never in one place: it has `pieces`, one for each of its parts,
    and `cutting` for the driver.
    """

    mode: str
    partitions: range
    blocks: range
    problem: Lazy = None
    pieces: tuple[Lazy, ...] = ()
    cutting: Cutting | None = None


@dataclass(frozen=True)
class PairPart:
    """The explicit pairs between two linked parts, as a task result, and their costs."""

    partitions: tuple[int, int]
    block: Lazy
    cost: Lazy


@dataclass(frozen=True)
class Problem:
    """Everything that stays the same through a fit."""

    settings: Settings
    distortion: Distortion
    extent: Extent
    free: tuple[LabelledPartition, ...]
    linked: tuple[LabelledPartition, ...] = ()
    icm_problems: tuple[ProblemPlan, ...] = ()
    pairs: tuple[PairPart, ...] = ()
    layout: LinkedLayout | None = None
    graph: ConstraintGraph | None = None
    cost_unit: float = 2.0**-8
    degree: float = 0.0  # the largest sum of pair costs of one row
    node_rows: IntArray = field(
        default_factory=lambda: np.zeros(0, np.int64), repr=False
    )  # corpus row of each node
    places: tuple[IntArray, ...] = field(default=(), repr=False)  # linked rows of each corpus part
    positions: tuple[IntArray, ...] = field(
        default=(), repr=False
    )  # linked position of each of those rows
    row_bytes: int = 1024  # of an average row of the corpus
    slices: tuple[tuple[int, ...], ...] = ()  # free partitions that one task takes, by number
    held: tuple[
        Lazy, ...
    ] = ()  # of each linked part, the labels its rows keep; then no ICM problems

    @property
    def potts(self) -> bool:
        """Whether penalties ignore distances."""
        return self.settings.penalty == "potts"

    def laid_rows(self, part: LabelledPartition) -> IntArray:
        """Return the corpus rows of a linked part, in its order."""
        assert self.layout is not None
        return self.node_rows[self.layout.order[part.first_row : part.first_row + part.n_rows]]

    @property
    def closure_costs(self) -> tuple[float, float]:
        """What one must-link and one cannot-link of a closure in table form cost."""
        return (
            (self.graph.must_link_cost, self.graph.cannot_link_cost) if self.graph else (0.0, 0.0)
        )


def part_name(kind: str, number: int) -> str:
    """Return the name of a part's label files."""
    return f"{kind}-{number:05d}"


def gather_partitions(
    flow: Dataflow,
    blocks: Sequence[Lazy],
    offsets: IntArray,
    rows: IntArray,
    bounds: IntArray,
    kind: str,
) -> tuple[LabelledPartition, ...]:
    """Return parts made of chosen rows of a corpus, `rows` in the wanted order, cut at `bounds`.

    Each corpus partition is taken once, for all new parts, and cut into a piece for each; nothing
    passes through the driver.
    """
    owners = np.searchsorted(offsets, rows, side="right") - 1
    numbers = np.searchsorted(bounds, np.arange(len(rows)), side="right") - 1
    by_home = np.lexsort((numbers, owners))  # and by new part, each in the wanted order
    pieces: list[list[Lazy]] = [[] for _ in bounds[1:]]
    for chosen in np.split(by_home, np.flatnonzero(np.diff(owners[by_home])) + 1):
        if not len(chosen):
            continue
        home, starts = owners[chosen[0]], np.flatnonzero(np.diff(numbers[chosen], prepend=-1))
        places = (rows[chosen] - offsets[home]).astype(np.int64)
        taken = flow.lazy(take_rows, blocks[home], flow.share(places))
        for start, stop in pairwise([*starts.tolist(), len(chosen)]):
            alone = len(starts) == 1
            piece = taken if alone else flow.lazy(RowBlock.rows, taken, start, stop)
            pieces[numbers[chosen[start]]].append(piece)
    parts = []
    for number, (first, stop) in enumerate(pairwise(bounds.tolist())):
        order = np.empty(stop - first, np.int64)
        order[np.argsort(owners[first:stop], kind="stable")] = np.arange(stop - first)
        block = flow.lazy(gather_rows, pieces[number], flow.share(order))
        parts.append(LabelledPartition(part_name(kind, number), first, stop - first, block))
    return tuple(parts)


def lay_out(
    flow: Dataflow,
    settings: Settings,
    distortion: Distortion,
    extent: Extent,
    blocks: Sequence[Lazy],
    row_counts: Sequence[int],
    graph: ConstraintGraph | None = None,
    node_rows: IntArray | None = None,
    row_values: IntArray | None = None,
    costs_unit: float = 2.0**-8,
    row_bytes: int = 1024,
    slices: Sequence[Sequence[int]] | None = None,
    held: LabelArray | None = None,
) -> Problem:
    """Return the problem: constrained rows are gathered into linked parts, and masked in their own.

    Parameters
    ----------
    node_rows : row number in the corpus of each node of the graph
    row_values : entries of each node's row
    row_bytes : bytes of an average row of the corpus
    slices : numbers of the corpus partitions that one task takes; each alone where it is not given
    held : label that each node keeps; without it linked rows are settled in ICM problems
    """
    together = tuple(tuple(one) for one in slices or [(number,) for number in range(len(blocks))])
    offsets = np.concatenate([[0], np.cumsum(np.asarray(row_counts, np.int64))])
    free = tuple(
        LabelledPartition(
            part_name("rows", number), int(offsets[number]), int(row_counts[number]), block
        )
        for number, block in enumerate(blocks)
    )
    if graph is None or not graph.n_nodes or node_rows is None or row_values is None:
        nowhere = (np.zeros(0, np.int64),) * len(free)
        return Problem(
            settings, distortion, extent, free, places=nowhere, positions=nowhere,
            row_bytes=row_bytes, slices=together,
        )  # fmt: skip
    features = 0 if settings.penalty == "potts" else extent.n_features + 1
    layout = plan_layout(
        graph,
        settings.n_clusters,
        RowSizes(ENTRY_BYTES * row_values + ROW_BYTES, row_values, features),
        task_memory=settings.task_memory,
        propagating=settings.inference == "belief-propagation",
    )
    laid_rows = node_rows[layout.order]
    linked = gather_partitions(flow, blocks, offsets, laid_rows, layout.partition_starts, "linked")
    kept = flow.persist([part.block for part in linked])
    linked = tuple(
        LabelledPartition(part.name, part.first_row, part.n_rows, block)
        for part, block in zip(linked, kept, strict=True)
    )
    places, positions = _homes(layout, node_rows, offsets)
    if held is None:
        plans = _problem_plans(flow, layout)
        settled: dict[str, Any] = {"icm_problems": plans, "pairs": _pairs(flow, layout)}
    else:
        laid = np.split(held[layout.order], layout.partition_starts[1:-1])
        settled = {"held": tuple(share_array(flow, one) for one in laid)}
    return Problem(
        settings, distortion, extent, free, linked, layout=layout, graph=graph,
        cost_unit=costs_unit, degree=largest_degree(graph), node_rows=node_rows, places=places,
        positions=positions, row_bytes=row_bytes, slices=together, **settled,
    )  # fmt: skip


def _homes(
    layout: LinkedLayout, node_rows: IntArray, offsets: IntArray
) -> tuple[tuple[IntArray, ...], tuple[IntArray, ...]]:
    """Return of each corpus part the places of its linked rows and their linked positions."""
    by_row = np.argsort(node_rows, kind="stable")
    inside = np.split(by_row, np.searchsorted(node_rows[by_row], offsets[1:-1]))
    places = tuple(
        node_rows[nodes] - offset for nodes, offset in zip(inside, offsets, strict=False)
    )
    return places, tuple(layout.position[nodes].astype(np.int64) for nodes in inside)


def _problem_plans(flow: Dataflow, layout: LinkedLayout) -> tuple[ProblemPlan, ...]:
    parts = []
    for number, mode in enumerate(layout.modes):
        if mode == "rounds":
            cutting = cut_problem(layout, number)
            pieces = flow.persist([flow.share(piece) for piece in cutting.pieces])
            parts.append(
                ProblemPlan(
                    mode,
                    cutting.partitions,
                    cutting.pair_blocks,
                    pieces=tuple(pieces),
                    cutting=replace(cutting, pieces=()),
                )
            )
            continue
        problem = layout.problem(number)
        parts.append(ProblemPlan(mode, problem.partitions, problem.blocks, flow.share(problem)))
    return tuple(parts)


def _pairs(flow: Dataflow, layout: LinkedLayout) -> tuple[PairPart, ...]:
    parts = []
    for number in range(layout.n_blocks):
        block = layout.block(number)
        parts.append(
            PairPart(block.partitions, flow.share(block), flow.share(layout.pair_cost[block.pairs]))
        )
    return tuple(parts)


def largest_degree(graph: ConstraintGraph) -> float:
    """Return the largest sum of pair costs of one row, closures in table form included."""
    degree = np.zeros(graph.n_nodes)
    for pairs, costs in (
        (graph.must_pairs, graph.must_pair_costs),
        (graph.cannot_pairs, graph.cannot_pair_costs),
    ):
        for end in (0, 1):
            degree += np.bincount(pairs[:, end], np.abs(costs), graph.n_nodes)
    sizes = np.bincount(graph.groups, minlength=graph.n_groups).astype(np.float64)
    by_group = np.where(graph.table_groups, (sizes - 1) * graph.must_link_cost, 0.0)
    for one, other in ((0, 1), (1, 0)):
        by_group += graph.cannot_link_cost * np.bincount(
            graph.rivals[:, one], sizes[graph.rivals[:, other]], graph.n_groups
        )
    return float((degree + by_group[graph.groups]).max(initial=0.0))


def undecided_labels(
    flow: Dataflow, problem: Problem, run: CheckpointStore
) -> tuple[tuple[LabelsFile, ...], tuple[LabelsFile, ...]]:
    """Return label files in which nothing is decided."""
    nothing = np.zeros(0, np.int64)
    free = [
        flow.lazy(first_labels, run, part.rows, flow.share(places))
        for part, places in zip(problem.free, problem.places, strict=True)
    ]
    linked = [flow.lazy(first_labels, run, part.rows, nothing) for part in problem.linked]
    files = flow.compute([*free, *linked])
    return tuple(files[: len(free)]), tuple(files[len(free) :])


def whole_labels(
    run: CheckpointStore,
    file: LabelsFile,
    linked: Sequence[LabelsFile],
    places: IntArray,
    positions: IntArray,
) -> LabelArray:
    """Return the labels of a corpus part, those of its linked rows from the linked parts.

    `positions` are the linked positions of the rows at `places`; only files that hold some of them
    are read.
    """
    labels: AnyArray = np.array(run.read_labels(file))
    for one in linked:
        inside = (positions >= one.first_row) & (positions < one.first_row + one.n_rows)
        if inside.any():
            labels[places[inside]] = run.read_labels(one)[positions[inside] - one.first_row]
    return labels
