"""Before ICM runs: linked partitions, which of them it joins, the bytes of tasks, and its integers.

Pair costs and distortions of linked rows are integers in one unit, chosen so that no sum of a row
can overflow; then every accepted move lowers J by at least one unit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from hmrf_dask.constraints.closure import (
    BreadthFirst,
    ConstraintGraph,
    members_by_number,
)
from hmrf_dask.distortions.base import Distortion, TableDistortion
from hmrf_dask.errors import InvalidInputError, MemoryPlanError
from hmrf_dask.kernels.closure_tables import TableSizes, table_bytes, table_forms
from hmrf_dask.linked.layout import LinkedLayout, Mode, arrange
from hmrf_dask.types import BoolArray, FloatArray, IntArray, LabelArray

HEADROOM = 61  # a row's distortion and all its pair costs stay below 2**61
MOST_BITS = 28
LEAST_BITS = 14
# Of the span: by how much two distances of a row in low precision may be off. Rows of length 1 have
# a span that is really reached; of others it is that of the whole corpus.
TOLERANCE, UNIT_TOLERANCE = 2.0**-14, 2.0**-11
# Costs of pairs are multiples of 2**-8, or of 2**-8 of the largest when all are below 1.
COST_BITS = 8


@dataclass(frozen=True)
class Scale:
    """How J becomes integers.

    `quantum` bounds what integers misjudge a distortion, or a pair of cost 1, by, in J. Of low
    precision it is 2 tolerances: what may be off, and as much again that is held against a move, so
    that it cannot raise J. What a row wants at the labels an E-step begins with, and hence where a
    fit ends, is judged without them.
    """

    potts: bool  # whether penalties ignore distances
    bits: int  # rows are quantised to rint(2**bits · z / radius); 0 where none has such a form
    unit: float  # J of one unit
    shift: int  # distortions are int32 in units of 2**shift · unit
    cost_unit: float  # costs of pairs are whole multiples of it
    largest: int  # φ_max in units of φ's integers, 2**(2 bits) / radius²
    # By how much two distances of a row in low precision may be off, in J; rows for which that is
    # not sure are measured in float64 (`kernels.cost_rows`).
    tolerance: float
    quantum: float

    @property
    def step(self) -> float:
        """J of one integer of a cost row."""
        return self.unit * 2.0**self.shift


def cost_unit(largest_cost: float) -> float:
    """Return the unit that costs of pairs are rounded to."""
    if largest_cost <= 0:
        return 2.0**-COST_BITS
    return float(2.0 ** (min(0, math.floor(math.log2(largest_cost))) - COST_BITS))


def rounded_costs(costs: FloatArray, unit: float) -> FloatArray:
    """Return the costs that are really used: whole multiples of `unit` (NaN stays).

    Examples
    --------
    >>> unit = cost_unit(largest_cost=1.0)
    >>> unit, rounded_costs(np.array([0.3, 1.0]), unit).tolist()
    (0.00390625, [0.30078125, 1.0])
    """
    return np.asarray(np.rint(costs / unit) * unit, np.float64)


def make_scale(
    distortion: Distortion,
    weights: FloatArray,
    *,
    potts: bool,
    degree: float,
    span: float,
    unit_of_costs: float,
) -> Scale:
    """Return the finest scale that cannot overflow.

    `degree` is the largest sum of pair costs of one row, closure included, `span` how much the
    distances of one row to two centroids can differ.
    """
    tolerance = (UNIT_TOLERANCE if distortion.unit_rows else TOLERANCE) * span
    largest = 1.0 if potts else distortion.maximum(weights)
    bits, whole, loose = 0, 0, 0.0
    if isinstance(distortion, TableDistortion) and distortion.closure_form:
        square = 1.0 if potts else distortion.radius(weights) ** 2
        largest = largest / square
        # φ is A_i + A_j − κ q_i·q_j: its parts reach 1 even where φ_max is less
        costs = degree * max(largest, 1.0)
        reach = (costs + span / square) / unit_of_costs
        bits = min(MOST_BITS, (HEADROOM - math.ceil(math.log2(max(reach, 1.0)))) // 2)
        if bits < (1 if potts else LEAST_BITS):
            advice = (
                "raise all costs, or set them to 0" if costs < span / square
                else "lower must_link_cost or cannot_link_cost, or use closure=False"
            )  # fmt: skip
            raise InvalidInputError(
                f"the costs of the pairs of one document must leave {1 if potts else LEAST_BITS} "
                f"bits for exact integers, got {bits} bits: they add up to {degree:g} in steps of "
                f"{unit_of_costs:g}, next to distances of up to {span:g}; {advice}"
            )
        unit, whole = unit_of_costs * square / 4.0**bits, round(largest * 4.0**bits)
        loose = 0.0 if potts else _loose(distortion, weights, bits)
    else:
        reach = degree * largest + span
        unit = 2.0 ** (math.ceil(math.log2(max(reach, 1e-300))) - HEADROOM)
    shift = max(0, math.ceil(math.log2(max(span / unit, 1.0))) - 30)
    quantum = loose + unit * 2.0**shift + 2.0 * tolerance
    return Scale(
        potts, bits, unit, shift, unit_of_costs, whole, tolerance=tolerance, quantum=quantum
    )


def _loose(distortion: TableDistortion, weights: FloatArray, bits: int) -> float:
    """Return by how much the integers of a pair can miss φ; a row's entries are off by half a step.

    A product z·z' is then off by ‖z‖₁ steps at most, and ‖z‖₁ <= √d. A squared distance is that of
    the quantised rows, exactly: |z − z'| is off by a step in every entry.
    """
    step, width = 2.0**-bits * distortion.radius(weights), len(weights)
    if distortion.kappa == 1:
        return step * math.sqrt(width)
    return 2.0 * step * math.sqrt(width * distortion.maximum(weights)) + width * step * step


def cost_rows(distances: FloatArray, scale: Scale) -> LabelArray:
    """Return distances of linked rows as int32, the least of each row taken off first."""
    above = distances - distances.min(axis=1, keepdims=True)
    steps = np.rint(above / scale.step)
    return np.asarray(np.minimum(steps, np.iinfo(np.int32).max), np.int32)


KINDS: tuple[Mode, ...] = ("heap", "messages", "table")  # of components in one task, laid out so
ROWS_SHARE = 4  # a linked partition's rows take at most this part of the task memory

Count = TypeVar("Count", int, IntArray)  # one component, or an array of them

# Bytes a heap ICM task keeps for one row next to its costs: labels in, out and before group moves
# 12, gains as they come and slack 24, adjacency starts and cursors 16, hub 4, heap (target, gain,
# item, place) 20, and for group moves: group, members and starts 16, slot, target, kept, waiting,
# queue 17, heap 24, what is to be settled again 9.
ROW_BYTES = 144
# One end of a pair in the adjacency: neighbour 4, cost 8, kept rows of hubs at most 4.
END_BYTES = 16
# One pair as it comes: both ends 8, kind 1, weight 8, cost from its pair block 8.
PAIR_BYTES = 25
# In a piece: a half-edge with its place among the pairs, and kept rows of hubs: 4 + 8 + 4 + 4.
HALF_EDGE_BYTES = 20
# The far end of a half-edge in another piece: index, group, label before and after 16, the list for
# its piece 4, its entry in a boundary as it comes, joined and sorted 36, its place worked out 36.
FAR_BYTES = 92
# Belief propagation on top of a heap task. Of a row, with 8 K of beliefs: labels, component 24. Of
# a pair, with 16 K of two messages: 72 while pairs are put in order.
BELIEF_BYTES, MESSAGE_BYTES = 24, 72
BOUNDARY_SHARE = 8  # proposals of must-link groups take at most this part of the task memory


def heap_bytes(n_rows: Count, n_pairs: Count, n_clusters: int) -> Count:
    """Return what one heap ICM task over these rows and explicit pairs needs, in bytes.

    Costs are int32: 4 K a row as they come, 4 K laid end to end where they come from several
    partitions, and up to K for the kept sums of group moves.
    """
    return n_rows * (9 * n_clusters + ROW_BYTES) + n_pairs * (2 * END_BYTES + PAIR_BYTES)


def message_bytes(n_rows: Count, n_pairs: Count, n_clusters: int) -> Count:
    """Return what belief propagation needs on top of `heap_bytes`, in bytes."""
    rows = n_rows * (8 * n_clusters + BELIEF_BYTES)
    return rows + n_pairs * (16 * n_clusters + MESSAGE_BYTES)


def round_bytes(n_rows: Count, n_ends: Count, n_clusters: int) -> Count:
    """Return what one partition needs in a priority round, in bytes, proposals of groups included.

    Costs come in layout order, 4 K a row, and are not copied. Each end of a pair on these rows is
    counted as if the other lay outside and wanted to move, so that far ends and their boundaries
    are covered. Nothing is held of the rest of the component.
    """
    own = n_rows * (5 * n_clusters + ROW_BYTES) + n_ends * (HALF_EDGE_BYTES + FAR_BYTES)
    return own + own // (BOUNDARY_SHARE - 1) + 1


class RowSizes(NamedTuple):
    """The sizes of every constrained document's row."""

    nbytes: IntArray
    values: IntArray  # entries (the number of features for a dense one)
    n_features: int  # that closure tables may have; 0 where penalties read no rows


class _Needs(NamedTuple):
    """Per component: rows and their bytes, explicit pairs, groups in tables, bytes of its task."""

    rows: IntArray
    nbytes: IntArray
    pairs: IntArray
    groups: IntArray
    task: IntArray
    kinds: IntArray  # place in `KINDS`


class _Limits(NamedTuple):
    """What one linked partition may hold."""

    rows: int
    nbytes: int
    task: int


def plan_layout(
    graph: ConstraintGraph,
    n_clusters: int,
    rows: RowSizes,
    *,
    task_memory: int,
    rows_per_partition: int = 65536,
    propagating: bool = False,
) -> LinkedLayout:
    """Lay the constrained documents out in linked partitions, and join these to ICM problems.

    Linked order is: whole components in explicit form, those of them with messages after the
    others, whole components in table form, then the components too large for one partition, each
    alone; within each part by lowest member, inside a component by node. Only a component that is
    settled in rounds is laid out breadth-first from its lowest member, so that neighbours lie near
    each other whatever their ids.

    The layout depends on these arguments alone, never on the partitions of the corpus. Components
    in explicit form pass messages if `propagating`, where these fit into their task. What does not
    fit, a component in table form or a single row, is refused with the arithmetic.
    """
    limits = _Limits(rows_per_partition, task_memory // ROWS_SHARE, task_memory)
    _refuse_large_rows(rows.nbytes, limits)
    needs = _component_needs(graph, n_clusters, rows)
    if propagating:
        needs = _with_messages(needs, n_clusters, task_memory)
    _refuse_large_tables(graph, needs, task_memory)
    return _planned(graph, n_clusters, rows, needs, limits)


def _planned(
    graph: ConstraintGraph, n_clusters: int, rows: RowSizes, needs: _Needs, limits: _Limits
) -> LinkedLayout:
    alone = (needs.rows > limits.rows) | (needs.nbytes > limits.nbytes)
    alone |= needs.task > limits.task
    pieces = ~graph.table_components & (needs.task > limits.task)
    order = _linked_order(graph, np.where(alone, len(KINDS), needs.kinds), pieces)
    plan = _Plan([], [], [])
    for kind, mode in enumerate(KINDS):
        whole = ~alone & (needs.kinds == kind)  # they fill partitions, one after the other
        weights = [needs.rows[whole], needs.nbytes[whole], needs.task[whole]]
        for begin, end in itertools.pairwise(_cuts(weights, limits)):
            plan.add([int(weights[0][begin:end].sum())], mode)
    pair_ends = np.concatenate([graph.must_pairs.ravel(), graph.cannot_pairs.ravel()])
    ends = np.bincount(pair_ends, minlength=graph.n_nodes)
    first = sum(plan.sizes)
    for component in np.flatnonzero(alone).tolist():
        nodes = order[first : first + int(needs.rows[component])]
        weights = [np.ones(len(nodes), np.int64), rows.nbytes[nodes]]
        mode = KINDS[needs.kinds[component]]
        if pieces[component]:
            mode = "rounds"
            weights.append(round_bytes(weights[0], ends[nodes], n_clusters))
            _refuse_large_ends(weights[2], nodes, ends, n_clusters, limits)
        plan.add(np.diff(_cuts(weights, limits)).tolist(), mode)
        first += len(nodes)
    return arrange(graph, order, plan.sizes, plan.problems, plan.modes)


class _Plan(NamedTuple):
    """Rows of each partition, partitions of each problem, mode of each problem, in linked order."""

    sizes: list[int]
    problems: list[int]
    modes: list[Mode]

    def add(self, sizes: list[int], mode: Mode) -> None:
        """Append one problem of partitions of these sizes."""
        self.sizes.extend(sizes)
        self.problems.append(len(sizes))
        self.modes.append(mode)


def _cuts(weights: list[IntArray], limits: _Limits) -> list[int]:
    """Return where to cut a sequence so that no stretch outweighs a limit, each as long as can be.

    Every single item must be within the limits.
    """
    n_items = len(weights[0])
    totals = [np.concatenate([[0], np.cumsum(weight)]) for weight in weights]
    cuts = [0]
    while cuts[-1] < n_items:
        here = cuts[-1]
        ends = [
            int(np.searchsorted(total, total[here] + limit, side="right")) - 1
            for total, limit in zip(totals, limits, strict=False)
        ]
        cuts.append(min(ends))
    return cuts


def _component_needs(graph: ConstraintGraph, n_clusters: int, rows: RowSizes) -> _Needs:
    n_components = graph.n_components
    counts = np.bincount(graph.components, minlength=n_components)
    nbytes = np.zeros(n_components, np.int64)
    np.add.at(nbytes, graph.components, rows.nbytes)
    firsts = np.concatenate([graph.must_pairs[:, 0], graph.cannot_pairs[:, 0]])
    pairs = np.bincount(graph.components[firsts], minlength=n_components)
    task = heap_bytes(counts, pairs, n_clusters)
    groups = np.bincount(graph.group_components, minlength=n_components)
    for component, sizes in _table_sizes(graph, rows.values, counts):
        tables = table_bytes(rows.n_features, n_clusters, sizes)
        # the rows come, and are gathered and quantised once more
        task[component] += 2 * nbytes[component] + tables
    kinds = np.where(graph.table_components, KINDS.index("table"), KINDS.index("heap"))
    return _Needs(counts, nbytes, pairs, groups, task, kinds)


def _with_messages(needs: _Needs, n_clusters: int, task_memory: int) -> _Needs:
    """Return the needs where every component in explicit form passes messages that can."""
    task = needs.task + message_bytes(needs.rows, needs.pairs, n_clusters)
    passing = (needs.kinds == KINDS.index("heap")) & (task <= task_memory)
    kinds = np.where(passing, KINDS.index("messages"), needs.kinds)
    return needs._replace(task=np.where(passing, task, needs.task), kinds=kinds)


def _table_sizes(
    graph: ConstraintGraph, row_values: IntArray, counts: IntArray
) -> Iterator[tuple[int, TableSizes]]:
    """Yield every component in table form with the sizes of its tables."""
    if not graph.table_components.any():
        return
    ends = np.concatenate([graph.rivals, graph.rivals[:, ::-1]])
    order = np.argsort(ends[:, 0], kind="stable")
    starts = np.searchsorted(ends[order, 0], np.arange(graph.n_groups + 1))
    sizes = np.bincount(graph.groups, minlength=graph.n_groups)
    slots, owners = table_forms(sizes, graph.table_groups, starts, ends[order, 1])
    values = np.bincount(graph.groups, row_values, graph.n_groups).astype(np.int64)
    n_rivals = np.bincount(graph.group_components[graph.rivals[:, 0]], minlength=len(counts))
    first, members = members_by_number(graph.group_components, len(counts))
    for component in np.flatnonzero(graph.table_components).tolist():
        mine = members[first[component] : first[component + 1]]
        yield (
            component,
            TableSizes(
                values[mine[slots[mine]]],
                values[mine[owners[mine]]],
                n_values=int(values[mine].sum()),
                n_points=int(counts[component]),
                n_groups=len(mine),
                n_rivals=int(n_rivals[component]),
            ),
        )


def _linked_order(graph: ConstraintGraph, section: IntArray, pieces: BoolArray) -> LabelArray:
    """Return the node at every linked position, components by their section.

    Those in `pieces` go breadth-first; nodes without a way to the first, of which answers were
    withheld, come last.
    """
    rank = np.empty(graph.n_components, np.int64)
    rank[np.argsort(section, kind="stable")] = np.arange(graph.n_components)
    place = rank[graph.components]
    order = np.argsort(place, kind="stable").astype(np.int32)
    if not pieces.any():
        return order
    pairs = np.concatenate([graph.must_pairs, graph.cannot_pairs])
    search = BreadthFirst(graph.n_nodes, pairs[pieces[graph.components[pairs[:, 0]]]])
    placed = place[order]
    for component in np.flatnonzero(pieces):
        first, last = np.searchsorted(placed, [rank[component], rank[component] + 1])
        nodes = order[first:last]
        reached = search.order(int(nodes[0]))
        order[first:last] = np.concatenate([reached, np.setdiff1d(nodes, reached)])
    return order


def _refuse_large_rows(row_bytes: IntArray, limits: _Limits) -> None:
    if len(row_bytes) and row_bytes.max() > limits.nbytes:
        node = int(row_bytes.argmax())
        raise MemoryPlanError(
            f"a constrained row must fit a linked partition, which holds {limits.nbytes:,} bytes "
            f"(hmrf.task-memory {limits.task:,} / {ROWS_SHARE}), got {int(row_bytes[node]):,} "
            f"bytes in row {node} of the constrained documents in id order: raise "
            f"hmrf.task-memory to at least {ROWS_SHARE * int(row_bytes[node]):,}"
        )


def _refuse_large_tables(graph: ConstraintGraph, needs: _Needs, task_memory: int) -> None:
    large = np.flatnonzero(graph.table_components & (needs.task > task_memory))
    if not len(large):
        return
    worst = int(large[needs.task[large].argmax()])
    rows, total = int(needs.nbytes[worst]), int(needs.task[worst])
    raise MemoryPlanError(
        f"a component whose closure is kept in tables must fit one task, got one of "
        f"{int(needs.rows[worst]):,} documents in {int(needs.groups[worst]):,} groups that needs "
        f"2 × {rows:,} (rows) + {total - 2 * rows:,} (tables, costs, "
        f"{int(needs.pairs[worst]):,} explicit pairs) = {total:,} bytes; hmrf.task-memory is "
        f"{task_memory:,}: raise it to at least {total:,}, or set closure to false"
    )


def _refuse_large_ends(
    needs: IntArray, nodes: LabelArray, ends: IntArray, n_clusters: int, limits: _Limits
) -> None:
    worst = int(needs.argmax())
    if needs[worst] > limits.task:
        raise MemoryPlanError(
            f"a constrained document with all its pairs must fit one task, got "
            f"{int(ends[nodes[worst]]):,} explicit pairs at row {int(nodes[worst])} of the "
            f"constrained documents in id order, which need {int(needs[worst]):,} bytes at "
            f"K = {n_clusters}; hmrf.task-memory is {limits.task:,}: raise it to at least "
            f"{int(needs[worst]):,}"
        )
