"""The layout of linked rows: partitions, ICM problems, and the pairs of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hmrf_dask.constraints.closure import ConstraintGraph, members_by_number
from hmrf_dask.constraints.pairs import freeze_arrays
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, LabelArray

Mode = Literal["heap", "messages", "table", "rounds"]
KindArray = np.ndarray[Any, np.dtype[np.int8]]
MUST, CANNOT = 0, 1


@dataclass(frozen=True, slots=True, eq=False)
class PairBlock:
    """The explicit pairs between two linked partitions, or inside one.

    Attributes
    ----------
    partitions : tuple of int
        Partition of the first and of the second ends, first <= second.
    first, second : ndarray of int32
        Row of each end within its partition.
    kind : ndarray of int8
        `MUST` or `CANNOT`.
    pairs : slice
        Where these pairs stand among all pairs of the layout.
    """

    partitions: tuple[int, int]
    first: LabelArray
    second: LabelArray
    kind: KindArray
    pairs: slice


@dataclass(frozen=True, slots=True, eq=False)
class IcmProblem:
    """What one ICM problem consists of: points, pairs and must-link groups, in local numbers.

    Points are numbered in layout order: the rows of the problem's partitions, end to end. Within a
    component that is node order, hence by id, so that ties follow ids and not the layout; the
    exception is mode ``"rounds"``, where neighbours lie near each other.

    Attributes
    ----------
    mode : {"heap", "messages", "table", "rounds"}
        One heap task; one that passes messages before it; one task with rows and tables; or rounds
        across partitions.
    partitions : range
        Linked partitions of the problem.
    nodes : ndarray of shape (n,), int32
        Node of each point.
    pairs : slice
        Where the problem's pairs stand among all pairs of the layout.
    first, second : ndarray of int32
        Points of each explicit pair, in layout order of the pairs.
    kind : ndarray of int8
        `MUST` or `CANNOT`.
    cost : ndarray of float64
        What violating each pair costs; negative for some differences in table form.
    blocks : range
        The problem's pair blocks, which hold its pairs in the same order.
    groups : ndarray of shape (n,), int32
        Must-link group of each point, local, numbered by lowest node.
    group_starts, group_members : ndarrays
        Points of each group, ascending.
    group_components : ndarray of int32
        Component of each group, local, numbered by lowest node.
    group_tables : ndarray of bool
        Whether a group's closure is kept as a table.
    rivals : ndarray of shape (r, 2), int32
        Local groups cannot-linked in table form.
    """

    mode: Mode
    partitions: range
    nodes: LabelArray
    pairs: slice
    first: LabelArray
    second: LabelArray
    kind: KindArray
    cost: FloatArray
    blocks: range
    groups: LabelArray
    group_starts: IntArray
    group_members: LabelArray
    group_components: LabelArray
    group_tables: BoolArray
    rivals: LabelArray

    @property
    def in_groups(self) -> float:
        """The share of points in must-link groups of at least two."""
        sizes = np.diff(self.group_starts)
        return float(sizes[sizes > 1].sum() / max(len(self.nodes), 1))


@dataclass(frozen=True, slots=True, eq=False)
class LinkedLayout:
    """Where every constrained document lies, and which partitions ICM joins.

    Attributes
    ----------
    graph : ConstraintGraph
    n_clusters : int
    order : ndarray of shape (n,), int32
        Node at each linked position.
    position : ndarray of shape (n,), int32
        Linked position of each node.
    partition_starts : ndarray of shape (n_partitions + 1,), int64
        Linked position at which each partition starts.
    problem_starts : ndarray of shape (n_problems + 1,), int64
        Partition at which each problem starts.
    modes : tuple of str
        Mode of each problem.
    pair_first, pair_second : ndarray of int32
        Linked positions of the explicit pairs, lower first, sorted by block, then by both ends.
    pair_kind : ndarray of int8
    pair_cost : ndarray of float64
    block_partitions : ndarray of shape (n_blocks, 2), int32
        Partitions of each pair block, sorted.
    block_starts : ndarray of shape (n_blocks + 1,), int64
        Pair at which each block starts.
    rivals : ndarray of shape (r, 2), int32
        Rival groups of the graph, sorted by problem.
    rival_starts : ndarray of shape (n_problems + 1,), int64
    """

    graph: ConstraintGraph
    n_clusters: int
    order: LabelArray
    position: LabelArray
    partition_starts: IntArray
    problem_starts: IntArray
    modes: tuple[Mode, ...]
    pair_first: LabelArray
    pair_second: LabelArray
    pair_kind: KindArray
    pair_cost: FloatArray
    block_partitions: LabelArray
    block_starts: IntArray
    rivals: LabelArray
    rival_starts: IntArray

    def __post_init__(self) -> None:
        """Make the arrays read-only."""
        freeze_arrays(self)

    @property
    def n_partitions(self) -> int:
        """Linked partitions."""
        return len(self.partition_starts) - 1

    @property
    def n_problems(self) -> int:
        """ICM problems."""
        return len(self.modes)

    @property
    def n_blocks(self) -> int:
        """Pair blocks."""
        return len(self.block_partitions)

    def partition_nodes(self, partition: int) -> LabelArray:
        """Return the nodes of a partition, in the order of its rows."""
        return self.order[self.partition_starts[partition] : self.partition_starts[partition + 1]]

    def block(self, block: int) -> PairBlock:
        """Return the pairs between two partitions, as rows within them."""
        low, high = self.block_partitions[block].tolist()
        pairs = slice(int(self.block_starts[block]), int(self.block_starts[block + 1]))
        return PairBlock(
            (low, high),
            (self.pair_first[pairs] - self.partition_starts[low]).astype(np.int32),
            (self.pair_second[pairs] - self.partition_starts[high]).astype(np.int32),
            self.pair_kind[pairs],
            pairs,
        )

    def problem(self, number: int) -> IcmProblem:
        """Return one ICM problem in local numbers."""
        partitions = range(*self.problem_starts[number : number + 2].tolist())
        start = int(self.partition_starts[partitions.start])
        nodes = self.order[start : self.partition_starts[partitions.stop]]
        bounds = np.searchsorted(self.block_partitions[:, 0], [partitions.start, partitions.stop])
        pairs = slice(int(self.block_starts[bounds[0]]), int(self.block_starts[bounds[1]]))
        numbers, groups = np.unique(self.graph.groups[nodes], return_inverse=True)
        group_starts, group_members = members_by_number(groups, len(numbers))
        _, components = np.unique(self.graph.group_components[numbers], return_inverse=True)
        rivals = self.rivals[self.rival_starts[number] : self.rival_starts[number + 1]]
        return IcmProblem(
            mode=self.modes[number],
            partitions=partitions,
            nodes=nodes,
            pairs=pairs,
            first=(self.pair_first[pairs] - start).astype(np.int32),
            second=(self.pair_second[pairs] - start).astype(np.int32),
            kind=self.pair_kind[pairs],
            cost=self.pair_cost[pairs],
            blocks=range(*bounds.tolist()),
            groups=groups.astype(np.int32),
            group_starts=group_starts,
            group_members=group_members,
            group_components=components.astype(np.int32),
            group_tables=self.graph.table_groups[numbers],
            rivals=np.searchsorted(numbers, rivals).astype(np.int32),
        )


def arrange(
    graph: ConstraintGraph,
    n_clusters: int,
    order: LabelArray,
    sizes: list[int],
    problems: list[int],
    modes: list[Mode],
) -> LinkedLayout:
    """Put nodes, pairs and rivals into the places that a plan gives them.

    Parameters
    ----------
    order : ndarray of shape (n,), int32
        Node at each linked position.
    sizes : list of int
        Rows of each partition, in linked order.
    problems : list of int
        Partitions of each problem, in linked order.
    modes : list of str
        Mode of each problem.
    """
    position = np.empty(graph.n_nodes, np.int32)
    position[order] = np.arange(graph.n_nodes, dtype=np.int32)
    partition_of = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    problem_of = np.repeat(np.arange(len(problems), dtype=np.int64), problems)
    first, second, kind, cost = _linked_pairs(graph, position)
    blocks = partition_of[first] * len(sizes) + partition_of[second]
    by_block = np.argsort(blocks, kind="stable")
    numbers, block_starts = np.unique(blocks[by_block], return_index=True)
    lowest = np.zeros(graph.n_groups, np.int64)
    lowest[graph.groups[::-1]] = np.arange(graph.n_nodes - 1, -1, -1)
    rival_problems = problem_of[partition_of[position[lowest[graph.rivals[:, 0]]]]]
    by_problem = np.argsort(rival_problems, kind="stable")
    return LinkedLayout(
        graph=graph,
        n_clusters=n_clusters,
        order=order,
        position=position,
        partition_starts=_starts(sizes),
        problem_starts=_starts(problems),
        modes=tuple(modes),
        pair_first=first[by_block],
        pair_second=second[by_block],
        pair_kind=kind[by_block],
        pair_cost=cost[by_block],
        block_partitions=np.stack(np.divmod(numbers, max(len(sizes), 1)), axis=1).astype(np.int32),
        block_starts=np.concatenate([block_starts, [len(blocks)]]).astype(np.int64),
        rivals=graph.rivals[by_problem],
        rival_starts=_starts(np.bincount(rival_problems, minlength=len(problems))),
    )


def _starts(sizes: list[int] | IntArray) -> IntArray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _linked_pairs(
    graph: ConstraintGraph, position: LabelArray
) -> tuple[LabelArray, LabelArray, KindArray, FloatArray]:
    """Return the explicit pairs by linked position, lower first, sorted by both ends and kind."""
    ends = np.sort(position[np.concatenate([graph.must_pairs, graph.cannot_pairs])], axis=1)
    kind = np.repeat(
        np.array([MUST, CANNOT], np.int8), [len(graph.must_pairs), len(graph.cannot_pairs)]
    )
    cost = np.concatenate([graph.must_pair_costs, graph.cannot_pair_costs])
    keys: AnyArray = ends[:, 0].astype(np.int64) * graph.n_nodes + ends[:, 1]
    chosen = np.argsort(keys, kind="stable")  # must-links come first, and stay first
    return ends[chosen, 0], ends[chosen, 1], kind[chosen], cost[chosen]
