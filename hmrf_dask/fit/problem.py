"""The problem of one fit, laid out once: parts of rows, linked parts, ICM problems, pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile
from hmrf_dask.constraints.closure import ConstraintGraph
from hmrf_dask.distortions.base import Distortion, Extent
from hmrf_dask.flow.dataflow import Dataflow, Lazy, share_array
from hmrf_dask.kernels.distances import clusters_of
from hmrf_dask.linked.layout import LinkedLayout
from hmrf_dask.linked.plan import RowSizes, plan_layout
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Settings
from hmrf_dask.tasks.partitions import LabelledPartition, first_labels, gather_rows
from hmrf_dask.tasks.rounds import Cutting, cut_problem
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray

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
    """The explicit pairs between two linked parts, as a task result."""

    partitions: tuple[int, int]
    block: Lazy


@dataclass(frozen=True)
class Pairs:
    """The constraints of a fit, resolved: nodes in id order, where their rows are."""

    graph: ConstraintGraph
    node_rows: IntArray  # corpus row of each node
    row_values: IntArray  # entries of each node's row
    cost_unit: float
    must: AnyArray = field(default_factory=lambda: np.zeros((0, 2), np.int64))  # given, of nodes
    cannot: AnyArray = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    odds: AnswerOdds | None = None  # of the given pairs; None where breaking them is no matter
    names: AnyArray = field(default_factory=lambda: np.zeros(0, np.int64))  # of nodes, as given
    held: LabelArray | None = None  # labels that nodes keep to the end; then there are no pairs


@dataclass(frozen=True)
class AnswerOdds:
    """How likely the given pairs are right; `trust` is that of pairs without their own."""

    kappa: float  # what a unit of log odds costs
    trust: float
    must: FloatArray  # log odds
    cannot: FloatArray

    def encoded(self) -> dict[str, float]:
        """Return what a run records: all else follows from it and the answers."""
        return {"kappa": self.kappa, "trust": self.trust}


class CorpusRows(NamedTuple):
    """The partitions of a corpus as a fit takes them."""

    blocks: Sequence[Lazy]
    counts: Sequence[int]  # rows of each
    row_bytes: int = 1024  # of an average row
    slices: Sequence[Sequence[int]] | None = None  # that one task takes, by number; None: each
    dense: bool = False  # whether no entry of the rows is left out


@dataclass(frozen=True)
class Problem:
    """Everything that stays the same through a fit."""

    settings: Settings
    distortion: Distortion
    extent: Extent
    free: tuple[LabelledPartition, ...]
    places: tuple[IntArray, ...]  # linked rows of each free partition
    positions: tuple[IntArray, ...]  # linked position of each of those rows
    row_bytes: int  # of an average row of the corpus
    slices: tuple[tuple[int, ...], ...]  # free partitions that one task takes, by number
    dense: bool = False  # whether no entry of the rows is left out
    linked: tuple[LabelledPartition, ...] = ()
    icm_problems: tuple[ProblemPlan, ...] = ()
    pairs: tuple[PairPart, ...] = ()
    layout: LinkedLayout | None = None
    constraints: Pairs | None = None
    degree: float = 0.0  # the largest sum of pair costs of one row
    held: tuple[Lazy, ...] = ()  # of linked parts, labels that rows keep; then no ICM problems

    @property
    def partitions(self) -> tuple[LabelledPartition, ...]:
        """All partitions, free ones first."""
        return self.free + self.linked

    @property
    def potts(self) -> bool:
        """Whether penalties ignore distances."""
        return self.settings.penalty != "distance"

    @property
    def cost_unit(self) -> float:
        """What costs of pairs are multiples of."""
        return self.constraints.cost_unit if self.constraints else 2.0**-8

    def laid_rows(self, part: LabelledPartition) -> IntArray:
        """Return the corpus rows of a linked part, in its order."""
        assert self.layout is not None
        assert self.constraints is not None
        nodes = self.layout.order[part.first_row : part.first_row + part.n_rows]
        return self.constraints.node_rows[nodes]


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
        taken = flow.lazy(RowBlock.take, blocks[home], flow.share(places))
        for start, stop in pairwise([*starts.tolist(), len(chosen)]):
            alone = len(starts) == 1
            piece = taken if alone else flow.lazy(RowBlock.rows, taken, start, stop)
            pieces[numbers[chosen[start]]].append(piece)
    parts = []
    for number, (first, stop) in enumerate(pairwise(bounds.tolist())):
        order = np.empty(stop - first, np.int64)
        order[np.argsort(owners[first:stop], kind="stable")] = np.arange(stop - first)
        block = flow.lazy(gather_rows, pieces[number], flow.share(order))
        parts.append(LabelledPartition(f"{kind}-{number:05d}", first, stop - first, block))
    return tuple(parts)


def lay_out(
    flow: Dataflow,
    settings: Settings,
    distortion: Distortion,
    extent: Extent,
    rows: CorpusRows,
    pairs: Pairs | None = None,
) -> Problem:
    """Return the problem: constrained rows are gathered into linked parts, masked in their own."""
    n_parts = len(rows.blocks)
    offsets = np.concatenate([[0], np.cumsum(np.asarray(rows.counts, np.int64))])
    free = tuple(
        LabelledPartition(f"rows-{number:05d}", int(offsets[number]), int(count), block)
        for number, (count, block) in enumerate(zip(rows.counts, rows.blocks, strict=True))
    )
    nowhere = (np.zeros(0, np.int64),) * n_parts
    slices = tuple(tuple(places) for places in rows.slices or zip(range(n_parts)))
    problem = Problem(
        settings, distortion, extent, free, nowhere, nowhere,
        row_bytes=rows.row_bytes, slices=slices, dense=rows.dense,
    )  # fmt: skip
    if pairs is None or not pairs.graph.n_nodes:
        return problem
    features = 0 if problem.potts else extent.n_features + 1
    layout = plan_layout(
        pairs.graph,
        settings.n_clusters,
        RowSizes(ENTRY_BYTES * pairs.row_values + ROW_BYTES, pairs.row_values, features),
        task_memory=settings.task_memory,
        propagating=settings.inference == "belief-propagation",
    )
    laid_rows, bounds = pairs.node_rows[layout.order], layout.partition_starts
    linked = gather_partitions(flow, rows.blocks, offsets, laid_rows, bounds, "linked")
    kept = flow.persist([part.block for part in linked])
    places, positions = _homes(layout, pairs.node_rows, offsets)
    if pairs.held is None:
        blocks = (layout.block(number) for number in range(layout.n_blocks))
        parts = tuple(PairPart(block.partitions, flow.share(block)) for block in blocks)
        settled: dict[str, Any] = {"icm_problems": _problem_plans(flow, layout), "pairs": parts}
    else:
        laid = np.split(pairs.held[layout.order], bounds[1:-1])
        settled = {"held": tuple(share_array(flow, labels) for labels in laid)}
    return replace(
        problem,
        linked=tuple(replace(part, block=own) for part, own in zip(linked, kept, strict=True)),
        layout=layout,
        constraints=pairs,
        degree=largest_degree(pairs.graph),
        places=places,
        positions=positions,
        **settled,
    )


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
    plans = []
    for number, mode in enumerate(layout.modes):
        if mode == "rounds":
            cutting = cut_problem(layout, number)
            pieces = tuple(flow.persist([flow.share(piece) for piece in cutting.pieces]))
            places = (cutting.partitions, cutting.pair_blocks)
            cutting = replace(cutting, pieces=())
            plans.append(ProblemPlan(mode, *places, pieces=pieces, cutting=cutting))
            continue
        problem = layout.problem(number)
        plans.append(ProblemPlan(mode, problem.partitions, problem.blocks, flow.share(problem)))
    return tuple(plans)


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
    for first, second in (graph.rivals.T, graph.rivals.T[::-1]):
        by_group += graph.cannot_link_cost * np.bincount(first, sizes[second], graph.n_groups)
    return float((degree + by_group[graph.groups]).max(initial=0.0))


class LabelFiles(NamedTuple):
    """Label files of all corpus partitions and of all linked partitions."""

    free: tuple[LabelsFile, ...]
    linked: tuple[LabelsFile, ...]


def undecided_labels(flow: Dataflow, problem: Problem, run: CheckpointStore) -> LabelFiles:
    """Return label files in which nothing is decided."""
    nothing = np.zeros(0, np.int64)
    free = [
        flow.lazy(first_labels, run, part.rows, flow.share(places))
        for part, places in zip(problem.free, problem.places, strict=True)
    ]
    linked = [flow.lazy(first_labels, run, part.rows, nothing) for part in problem.linked]
    files = flow.compute([*free, *linked])
    return LabelFiles(tuple(files[: len(free)]), tuple(files[len(free) :]))


def whole_labels(
    run: CheckpointStore,
    file: LabelsFile,
    linked: Sequence[LabelsFile],
    places: IntArray,
    positions: IntArray,
) -> LabelArray:
    """Return the labels of a corpus part, those of its linked rows from the linked parts.

    `positions` are the linked positions of the rows at `places`; only files that hold some of them
    are read. Rows that are kept out of a centroid have the label of its cluster.
    """
    labels: AnyArray = clusters_of(np.array(run.read_labels(file)))
    for part in linked:
        inside = (positions >= part.first_row) & (positions < part.first_row + part.n_rows)
        if inside.any():
            labels[places[inside]] = run.read_labels(part)[positions[inside] - part.first_row]
    return labels
