"""The layout of linked rows: partitions, ICM problems, and the pairs of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hmrf_dask.constraints.closure import ConstraintGraph, members_by_number
from hmrf_dask.constraints.pairs import freeze_arrays
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, LabelArray, Sized

Mode = Literal["heap", "messages", "table", "rounds"]
KindArray = np.ndarray[Any, np.dtype[np.int8]]
MUST, CANNOT = 0, 1


@dataclass(frozen=True, slots=True, eq=False)
class PairBlock(Sized):
    """The explicit pairs between two linked partitions, or inside one."""

    partitions: tuple[int, int]  # of the first and of the second ends, first <= second
    first: LabelArray  # row of each end within its partition
    second: LabelArray
    kind: KindArray  # `MUST` or `CANNOT`
    cost: FloatArray  # of violating each pair; negative for some differences in table form


@dataclass(frozen=True, slots=True, eq=False)
class IcmProblem(Sized):
    """What one ICM problem consists of: points, pairs and must-link groups, in local numbers.

    Points are numbered in layout order: the rows of the problem's partitions, end to end. Within a
    component that is node order, hence by id, so that ties follow ids and not the layout; the
    exception is mode ``"rounds"``, where neighbours lie near each other. Groups and components are
    numbered by their lowest node.
    """

    mode: Mode
    partitions: range
    nodes: LabelArray  # node of each point
    first: LabelArray  # points of each explicit pair, in layout order of the pairs
    second: LabelArray
    kind: KindArray  # `MUST` or `CANNOT`
    blocks: range  # the problem's pair blocks, which hold its pairs in the same order
    groups: LabelArray  # must-link group of each point
    group_starts: IntArray  # points of each group as CSR, ascending
    group_members: LabelArray
    group_components: LabelArray
    group_tables: BoolArray  # whether a group's closure is kept as a table
    rivals: LabelArray  # (r, 2): groups cannot-linked in table form
    closure_costs: tuple[float, float]  # of one must-link and one cannot-link of a closure table

    @property
    def in_groups(self) -> float:
        """The share of points in must-link groups of at least two."""
        sizes = np.diff(self.group_starts)
        return float(sizes[sizes > 1].sum() / max(len(self.nodes), 1))


@dataclass(frozen=True, slots=True, eq=False)
class LinkedLayout:
    """Where every constrained document lies, and which partitions ICM joins."""

    graph: ConstraintGraph
    order: LabelArray  # node at each linked position
    position: LabelArray  # linked position of each node
    partition_starts: IntArray  # linked position at which each partition starts, and the end
    problem_starts: IntArray  # partition at which each problem starts, and the end
    modes: tuple[Mode, ...]  # of each problem
    pair_first: LabelArray  # linked positions of the explicit pairs, lower first,
    pair_second: LabelArray  # sorted by block, then by both ends
    pair_kind: KindArray
    pair_cost: FloatArray
    block_partitions: LabelArray  # (n_blocks, 2): partitions of each pair block, sorted
    block_starts: IntArray  # pair at which each block starts, and the end
    rivals: LabelArray  # (r, 2): rival groups of the graph, sorted by problem
    rival_starts: IntArray  # rivals at which each problem starts, and the end

    def __post_init__(self) -> None:
        """Make the arrays read-only."""
        freeze_arrays(self)

    @property
    def n_blocks(self) -> int:
        """Pair blocks."""
        return len(self.block_partitions)

    def block(self, block: int) -> PairBlock:
        """Return the pairs between two partitions, as rows within them."""
        low, high = self.block_partitions[block].tolist()
        pairs = slice(int(self.block_starts[block]), int(self.block_starts[block + 1]))
        return PairBlock(
            (low, high),
            (self.pair_first[pairs] - self.partition_starts[low]).astype(np.int32),
            (self.pair_second[pairs] - self.partition_starts[high]).astype(np.int32),
            self.pair_kind[pairs],
            self.pair_cost[pairs],
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
            first=(self.pair_first[pairs] - start).astype(np.int32),
            second=(self.pair_second[pairs] - start).astype(np.int32),
            kind=self.pair_kind[pairs],
            blocks=range(*bounds.tolist()),
            groups=groups.astype(np.int32),
            group_starts=group_starts,
            group_members=group_members,
            group_components=components.astype(np.int32),
            group_tables=self.graph.table_groups[numbers],
            rivals=np.searchsorted(numbers, rivals).astype(np.int32),
            closure_costs=(self.graph.must_link_cost, self.graph.cannot_link_cost),
        )


def arrange(
    graph: ConstraintGraph,
    order: LabelArray,
    sizes: list[int],
    problems: list[int],
    modes: list[Mode],
) -> LinkedLayout:
    """Put nodes, pairs and rivals into the places that a plan gives them.

    The plan is, in linked order: nodes, rows of each partition, partitions and mode of each
    problem.
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
