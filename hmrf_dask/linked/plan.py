"""Linked rows: the partitions constrained documents lie in, and which of them ICM joins."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from hmrf_dask.constraints.closure import ConstraintGraph
from hmrf_dask.constraints.graphs import BreadthFirst, adjacency, members_by_number
from hmrf_dask.errors import ConfigurationError, MemoryPlanError
from hmrf_dask.kernels.closure_tables import table_forms
from hmrf_dask.linked.layout import LinkedLayout, Mode, arrange
from hmrf_dask.linked.sizes import heap_bytes, message_bytes, round_bytes, table_mode_bytes
from hmrf_dask.types import BoolArray, IntArray, LabelArray

# (K, entries of each group with a table, of each that keeps its own sums, of all rows; rows,
# groups, pairs of rivals) -> bytes
TableBytes = Callable[[int, IntArray, IntArray, int, int, int, int], int]

KINDS: tuple[Mode, ...] = ("heap", "messages", "table")  # of components in one task, laid out so
ROWS_SHARE = 4  # a linked partition's rows take at most this part of the task memory


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
    row_bytes: IntArray,
    row_values: IntArray,
    *,
    task_memory: int,
    table_bytes: TableBytes,
    rows_per_partition: int = 65536,
    propagating: bool = False,
) -> LinkedLayout:
    """Lay the constrained documents out in linked partitions, and join these to ICM problems.

    Linked order is: whole components in explicit form, those of them with messages after the
    others, whole components in table form, then the components too large for one partition, each
    alone; within each part by lowest member, inside a
    component by node. Only a component that is settled in rounds is laid out breadth-first from its
    lowest member, so that neighbours lie near each other whatever their ids.

    Parameters
    ----------
    graph : ConstraintGraph
        The constrained documents and their pairs.
    n_clusters : int
        K.
    row_bytes : ndarray of shape (n,), int64
        Bytes of every node's row.
    row_values : ndarray of shape (n,), int64
        Entries of every node's row (the number of features for a dense one).
    task_memory : int
        Bytes one task may use (``hmrf.task-memory``).
    table_bytes : callable
        Bytes of a component's tables: `hmrf_dask.kernels.closure_tables.table_bytes` with the
        features bound.
    rows_per_partition : int, default=65536
        Most rows of a linked partition.
    propagating : bool, default=False
        Whether components in explicit form pass messages where these fit into their task.

    Returns
    -------
    LinkedLayout
        It depends on these arguments alone, never on the partitions of the corpus.

    Raises
    ------
    MemoryPlanError
        A component in table form, or a single row, does not fit; the arithmetic is shown.
    """
    if rows_per_partition < 1:
        raise ConfigurationError(f"rows_per_partition must be at least 1, got {rows_per_partition}")
    limits = _Limits(rows_per_partition, task_memory // ROWS_SHARE, task_memory)
    row_bytes = np.asarray(row_bytes, np.int64)
    _refuse_large_rows(row_bytes, limits)
    needs = _component_needs(graph, n_clusters, row_bytes, row_values, table_bytes)
    if propagating:
        needs = _with_messages(needs, n_clusters, task_memory)
    _refuse_large_tables(graph, needs, task_memory)
    alone = (needs.rows > limits.rows) | (needs.nbytes > limits.nbytes)
    alone |= needs.task > limits.task
    pieces = ~graph.table_components & (needs.task > limits.task)
    order = _linked_order(graph, np.where(alone, len(KINDS), needs.kinds), pieces)
    plan = _Plan([], [], [])
    for kind, mode in enumerate(KINDS):
        _pack(plan, mode, needs, np.flatnonzero(~alone & (needs.kinds == kind)), limits)
    ends = _ends_per_node(graph)
    first = sum(plan.sizes)
    for component in np.flatnonzero(alone).tolist():
        nodes = order[first : first + int(needs.rows[component])]
        weights = [np.ones(len(nodes), np.int64), row_bytes[nodes]]
        mode = KINDS[needs.kinds[component]]
        if pieces[component]:
            mode = "rounds"
            weights.append(round_bytes(weights[0], ends[nodes], n_clusters))
            _refuse_large_ends(weights[2], nodes, ends, n_clusters, limits)
        plan.add(np.diff(_cuts(weights, limits)).tolist(), mode)
        first += len(nodes)
    return arrange(graph, n_clusters, order, plan.sizes, plan.problems, plan.modes)


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


def _pack(plan: _Plan, mode: Mode, needs: _Needs, components: IntArray, limits: _Limits) -> None:
    """Fill partitions with whole components, one after the other; each is a problem."""
    rows = needs.rows[components]
    cuts = _cuts([rows, needs.nbytes[components], needs.task[components]], limits)
    for first, last in itertools.pairwise(cuts):
        plan.add([int(rows[first:last].sum())], mode)


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


def _component_needs(
    graph: ConstraintGraph,
    n_clusters: int,
    row_bytes: IntArray,
    row_values: IntArray,
    table_bytes: TableBytes,
) -> _Needs:
    n_components = graph.n_components
    rows = np.bincount(graph.components, minlength=n_components)
    nbytes, values = np.zeros((2, n_components), np.int64)
    np.add.at(nbytes, graph.components, row_bytes)
    np.add.at(values, graph.components, row_values)
    firsts = np.concatenate([graph.must_pairs[:, 0], graph.cannot_pairs[:, 0]])
    pairs = np.bincount(graph.components[firsts], minlength=n_components)
    task = heap_bytes(rows, pairs, n_clusters)
    groups = np.bincount(graph.group_components, minlength=n_components)
    for component, tables in _table_needs(graph, n_clusters, rows, row_values, table_bytes):
        task[component] = table_mode_bytes(
            rows[component], pairs[component], n_clusters, nbytes[component], tables
        )
    kinds = np.where(graph.table_components, KINDS.index("table"), KINDS.index("heap"))
    return _Needs(rows, nbytes, pairs, groups, task, kinds)


def _with_messages(needs: _Needs, n_clusters: int, task_memory: int) -> _Needs:
    """Return the needs where every component in explicit form passes messages that can."""
    task = needs.task + message_bytes(needs.rows, needs.pairs, n_clusters)
    passing = (needs.kinds == KINDS.index("heap")) & (task <= task_memory)
    kinds = np.where(passing, KINDS.index("messages"), needs.kinds)
    return needs._replace(task=np.where(passing, task, needs.task), kinds=kinds)


def _table_needs(
    graph: ConstraintGraph,
    n_clusters: int,
    rows: IntArray,
    row_values: IntArray,
    table_bytes: TableBytes,
) -> Iterator[tuple[int, int]]:
    """Yield every component in table form with the bytes of its tables."""
    ends = np.concatenate([graph.rivals, graph.rivals[:, ::-1]])
    order = np.argsort(ends[:, 0], kind="stable")
    starts = np.searchsorted(ends[order, 0], np.arange(graph.n_groups + 1))
    sizes = np.bincount(graph.groups, minlength=graph.n_groups)
    slots, owners = table_forms(sizes, graph.table_groups, starts, ends[order, 1])
    values = np.bincount(graph.groups, row_values, graph.n_groups).astype(np.int64)
    n_rivals = np.bincount(graph.group_components[graph.rivals[:, 0]], minlength=len(rows))
    first, members = members_by_number(graph.group_components, len(rows))
    for component in np.flatnonzero(graph.table_components).tolist():
        mine = members[first[component] : first[component + 1]]
        yield (
            component,
            table_bytes(
                n_clusters,
                values[mine[slots[mine]]],
                values[mine[owners[mine]]],
                int(values[mine].sum()),
                int(rows[component]),
                len(mine),
                int(n_rivals[component]),
            ),
        )


def _linked_order(graph: ConstraintGraph, section: IntArray, pieces: BoolArray) -> LabelArray:
    """Return the node at every linked position, components by their section.

    Those in `pieces` go breadth-first.
    """
    rank = np.empty(graph.n_components, np.int64)
    rank[np.argsort(section, kind="stable")] = np.arange(graph.n_components)
    place = rank[graph.components]
    order = np.argsort(place, kind="stable").astype(np.int32)
    if not pieces.any():
        return order
    pairs = np.concatenate([graph.must_pairs, graph.cannot_pairs])
    search = BreadthFirst(adjacency(graph.n_nodes, pairs[pieces[graph.components[pairs[:, 0]]]]))
    placed = place[order]
    for component in np.flatnonzero(pieces):
        first, last = np.searchsorted(placed, [rank[component], rank[component] + 1])
        order[first:last] = search.order(int(order[first]))
    return order


def _ends_per_node(graph: ConstraintGraph) -> IntArray:
    ends = np.concatenate([graph.must_pairs.ravel(), graph.cannot_pairs.ravel()])
    return np.bincount(ends, minlength=graph.n_nodes)


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
