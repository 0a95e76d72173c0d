"""ICM on a component in pieces: what points and groups of a piece would move, and which of them do.

A piece holds its own points with their costs and pairs, and the labels of these and of all far ends
of their pairs: its *places*, own points standing together, all in the order of the component, so
that ties are decided as in the whole. In a round a point moves if and only if its (gain, -place)
beats every linked point that also gains by a move: movers are never linked and their gains add up
exactly. Every piece adds up its members' parts of the energies of groups in two limbs; the sums
over pieces are exact. A group moves if and only if its (gain, -number) beats every adjacent group
that also gains by a move. Groups wholly inside one piece need no sums to travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import find, former, frozen, inner, njit
from hmrf_dask.kernels.exact import BITS, MASK, best_limbs
from hmrf_dask.kernels.icm import GroupSums, add_member, empty_sums
from hmrf_dask.kernels.problem import Grouping, ProblemArrays, best_cluster, fill_row
from hmrf_dask.types import AnyArray, BoolArray, IntArray, LabelArray


class HalfEdges(NamedTuple):
    """The pairs of a piece's own points, whatever they cost."""

    first: int  # place of the first own point
    start: IntArray  # (n + 1,): where the half-edges of an own point begin
    neighbour: LabelArray  # place of the other end


make_half_edges = former(HalfEdges)


@njit(nogil=True, cache=True, makes_arrays=False)
def _propose(
    labels: LabelArray,
    problem: ProblemArrays,
    points: LabelArray,
    row: IntArray,
    targets: LabelArray,
    gains: IntArray,
) -> None:
    for place in range(points.shape[0]):
        fill_row(row, labels, problem, points[place])
        present = labels[problem.first + points[place]]
        target = best_cluster(row, present)
        targets[place] = target
        gains[place] = row[present] - row[target]


def propose(
    labels: LabelArray, problem: ProblemArrays, points: AnyArray | None = None
) -> tuple[LabelArray, IntArray]:
    """Return the best clusters of points of a piece, and their gains, all labels as they stand.

    `labels` are by place, `points` the own ones (the piece's first is 0), None for all. A point
    wants to move if and only if its gain is above 0.
    """
    chosen = np.arange(problem.costs.shape[0], dtype=np.int32) if points is None else points
    targets, gains = np.empty(len(chosen), np.int32), np.empty(len(chosen), np.int64)
    row = np.empty(problem.costs.shape[1], np.int64)
    _propose(frozen(labels, np.int32), problem, frozen(chosen, np.int32), row, targets, gains)
    return targets, gains


def merge_lists(parts: Sequence[tuple[LabelArray, AnyArray]]) -> tuple[LabelArray, AnyArray]:
    """Return (index, value) lists that do not overlap as one, sorted by index.

    Examples
    --------
    >>> left, right = (np.array([2, 7]), np.array([20, 70])), (np.array([5]), np.array([50]))
    >>> [numbers.tolist() for numbers in merge_lists([left, right])]
    [[2, 5, 7], [20, 50, 70]]
    """
    index = np.concatenate([part[0] for part in parts])
    value = np.concatenate([part[1] for part in parts])
    order = np.argsort(index, kind="stable")
    return index[order], value[order]


@njit(nogil=True, cache=True, makes_arrays=False)
def _winners(
    edges: HalfEdges, gains: IntArray, far_place: LabelArray, far_gain: IntArray, wins: BoolArray
) -> None:
    n = gains.shape[0]
    for point in range(n):
        if not wins[point]:
            continue
        for edge in range(edges.start[point], edges.start[point + 1]):
            end = edges.neighbour[edge] - edges.first
            if 0 <= end < n:
                gain = gains[end]
            else:
                place = find(far_place, edges.neighbour[edge])
                gain = far_gain[place] if place >= 0 else np.int64(0)
            if gain > gains[point] or (gain == gains[point] and end < point):
                wins[point] = False
                break


def winners(
    edges: HalfEdges, gains: IntArray, far_place: LabelArray, far_gain: IntArray
) -> LabelArray:
    """Return the own points (the piece's first is 0) that move in this round.

    `gains` are those of the piece's own points, `far_gain` those of the far ends that want to move,
    sorted by place.
    """
    wins = gains > 0
    far = frozen(far_place, np.int32), frozen(far_gain, np.int64)
    _winners(edges, frozen(gains, np.int64), *far, wins)
    return np.flatnonzero(wins).astype(np.int32)


@njit(nogil=True, cache=True, makes_arrays=False)
def _add_neighbours(edges: HalfEdges, moved: BoolArray, near: BoolArray) -> None:
    for point in range(near.shape[0]):
        for edge in range(edges.start[point], edges.start[point + 1]):
            near[point] |= moved[edges.neighbour[edge]]


def near_moves(n_places: int, edges: HalfEdges, moved: AnyArray) -> LabelArray:
    """Return the own points (the piece's first is 0) that moved or have a neighbour that moved.

    `moved` holds places.
    """
    mark = np.zeros(n_places, np.bool_)
    mark[moved] = True
    near = mark[edges.first : edges.first + len(edges.start) - 1].copy()
    _add_neighbours(edges, frozen(mark, np.bool_), near)
    return np.flatnonzero(near).astype(np.int32)


def best_proposal(offset: int, gains: IntArray) -> tuple[int, int]:
    """Return (gain, -index) of a piece's best proposal, (0, 0) when it has none.

    `offset` is the index in the component of the piece's first point.

    Examples
    --------
    >>> best_proposal(100, np.array([0, 3, 8, 8])), best_proposal(100, np.array([0, 0]))
    ((8, -102), (0, 0))
    """
    if gains.shape[0] == 0 or gains.max() == 0:
        return 0, 0
    point = int(gains.argmax())
    return int(gains[point]), -(offset + point)


class GroupMoves(NamedTuple):
    """Groups that want to move, ascending, with target and gain (high · 2**32 + low)."""

    group: LabelArray
    target: LabelArray
    high: IntArray
    low: IntArray


_make_moves = former(GroupMoves)


@njit(nogil=True, cache=True, makes_arrays=False)
def _parts(
    labels: LabelArray,
    problem: ProblemArrays,
    grouping: Grouping,
    sums: GroupSums,
    target: LabelArray,
    gains: IntArray,
) -> None:
    """Add up the energies of groups, or one after the other, where their best moves are wanted."""
    size, chosen = sums.row.shape[0] + 1, target.shape[0] > 0
    for group in range(grouping.start.shape[0] - 1):
        base = 0 if chosen else group * size
        own = GroupSums(sums.high[base : base + size], sums.low[base : base + size], sums.row)
        for h in range(size):
            own.high[h] = 0
            own.low[h] = 0
        for at in range(grouping.start[group], grouping.start[group + 1]):
            point = np.int64(grouping.member[at]) - problem.first
            add_member(own, 0, labels, problem, grouping.of, point)
        if chosen:
            best, high, low = best_limbs(own.high, own.low, 0, size - 1)
            target[group], gains[0, group], gains[1, group] = best, high, low


def group_gain_parts(
    labels: LabelArray, problem: ProblemArrays, grouping: Grouping
) -> tuple[IntArray, IntArray]:
    """Return a piece's part of the K + 1 energies of some groups, high and low limbs.

    Entry h of a group is that with all members at h, the last that as they are; parts of the pieces
    add up. Labels and groups are those of every place, members the groups' own points in the piece.
    """
    n_groups, n_clusters = len(grouping.start) - 1, problem.costs.shape[1]
    sums = empty_sums(n_groups, n_clusters)
    no_moves = np.empty(0, np.int32), np.empty((2, 0), np.int64)
    _parts(frozen(labels, np.int32), problem, grouping, sums, *no_moves)
    shape = n_groups, n_clusters + 1
    return sums.high.reshape(shape), sums.low.reshape(shape)


def merge_parts(
    lists: Sequence[tuple[LabelArray, IntArray, IntArray]],
) -> tuple[LabelArray, IntArray, IntArray]:
    """Return (number, high, low) of groups added up over lists, each sorted by number.

    Parts are added exactly: up to 2**31 of them, since the low limbs use 32 bits each.

    Examples
    --------
    >>> parts = [(np.array([number]), np.array([[0]]), np.array([[MASK]])) for number in (3, 3)]
    >>> number, high, low = merge_parts(parts)
    >>> number.tolist(), high.tolist(), (low == MASK - 1).tolist()
    ([3], [[1]], [[True]])
    """
    number = np.unique(np.concatenate([part[0] for part in lists]))
    shape = (len(number), lists[0][1].shape[1])
    high, low = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for groups, part_high, part_low in lists:
        at = np.searchsorted(number, groups)
        high[at] += part_high
        low[at] += part_low
    high += low >> BITS
    low &= MASK
    return number, high, low


def inside_proposals(
    labels: LabelArray, problem: ProblemArrays, grouping: Grouping, number: LabelArray
) -> GroupMoves:
    """Return which groups that lie wholly in a piece want to move; `number` holds theirs."""
    n_groups = len(grouping.start) - 1
    target, gains = np.empty(n_groups, np.int32), np.empty((2, n_groups), np.int64)
    sums = empty_sums(1, problem.costs.shape[1])
    _parts(frozen(labels, np.int32), problem, grouping, sums, target, gains)
    return _wanted(number, target, gains)


@njit(nogil=True, cache=True, makes_arrays=False)
def _choose(high: IntArray, low: IntArray, target: LabelArray, gains: IntArray) -> None:
    for place in range(high.shape[0]):
        best, gain, rest = best_limbs(high[place], low[place], 0, high.shape[1] - 1)
        target[place], gains[0, place], gains[1, place] = best, gain, rest


def group_proposals(chosen: LabelArray, high: IntArray, low: IntArray) -> GroupMoves:
    """Return which of the chosen groups want to move, from their added-up energies."""
    target, gains = np.empty(len(high), np.int32), np.empty((2, len(high)), np.int64)
    _choose(frozen(high, np.int64), frozen(low, np.int64), target, gains)
    return _wanted(chosen, target, gains)


def _wanted(group: LabelArray, target: LabelArray, gains: IntArray) -> GroupMoves:
    return select_proposals(GroupMoves(group, target, *gains), target >= 0)


def select_proposals(proposals: GroupMoves, chosen: AnyArray) -> GroupMoves:
    """Return the proposals at the places (or mask) `chosen`."""
    group, target, high, low = proposals
    return GroupMoves(group[chosen], target[chosen], high[chosen], low[chosen])


def best_groups(proposals: GroupMoves, most: int) -> GroupMoves:
    """Return the `most` proposals with the largest gains, then the lowest groups; ascending."""
    if len(proposals.group) <= most:
        return proposals
    order = np.lexsort((proposals.group, -proposals.low, -proposals.high))
    return select_proposals(proposals, np.sort(order[:most]))


def merge_groups(lists: Sequence[GroupMoves], most: int) -> GroupMoves:
    """Return the best of several lists of different groups."""
    both = GroupMoves(*(np.concatenate(column) for column in zip(*lists, strict=True)))
    return best_groups(select_proposals(both, np.argsort(both.group, kind="stable")), most)


@inner(inline="always")
def _beats(moves: GroupMoves, rival: Any, mine: Any) -> Any:
    """Return whether a proposal goes before another one: larger gain, then lower group."""
    if moves.high[rival] != moves.high[mine]:
        return moves.high[rival] > moves.high[mine]
    if moves.low[rival] != moves.low[mine]:
        return moves.low[rival] > moves.low[mine]
    return rival < mine


@njit(nogil=True, cache=True, makes_arrays=False)
def _beaten(groups: LabelArray, edges: HalfEdges, moves: GroupMoves, beaten: BoolArray) -> None:
    for point in range(edges.start.shape[0] - 1):
        group = groups[edges.first + point]
        mine = find(moves.group, group)
        if mine < 0 or beaten[mine]:
            continue
        for edge in range(edges.start[point], edges.start[point + 1]):
            adjacent = groups[edges.neighbour[edge]]
            rival = find(moves.group, adjacent) if adjacent != group else np.int64(-1)
            if rival >= 0:
                beaten[mine] |= _beats(moves, rival, mine)


def beaten_groups(groups: LabelArray, edges: HalfEdges, proposals: GroupMoves) -> BoolArray:
    """Return which proposals lose to an adjacent group, as far as this piece's pairs show.

    A group moves if and only if no piece sees it beaten. `groups` is of every place.
    """
    beaten = np.zeros(len(proposals.group), np.bool_)
    _beaten(frozen(groups, np.int32), edges, _make_moves(*proposals), beaten)
    return beaten


def group_labels(
    labels: LabelArray, groups: LabelArray, first: int, last: int, moving: GroupMoves
) -> tuple[LabelArray, LabelArray]:
    """Return (global index, new label) of the points in ``first .. last`` of moving groups."""
    if moving.group.shape[0] == 0:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    own = groups[first:last]
    place = np.minimum(np.searchsorted(moving.group, own), moving.group.shape[0] - 1)
    changes = (moving.group[place] == own) & (moving.target[place] != labels[first:last])
    index = (np.flatnonzero(changes) + first).astype(np.int32)
    return index, moving.target[place[changes]]
