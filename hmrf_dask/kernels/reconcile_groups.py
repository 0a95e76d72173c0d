"""Moves of must-link groups with members in several pieces: parts of gains that add up exactly.

Every piece adds up its members' parts in two limbs; the sums over pieces give the gain of every
group; a group moves if and only if its (gain, -number) beats every adjacent group that also wants
to. Groups wholly inside one piece need no sums to travel, and can be handed over to its own heap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import find, frozen
from hmrf_dask.kernels.compiled import njit
from hmrf_dask.kernels.icm import add_member
from hmrf_dask.kernels.limbs import BITS, MASK, best_limbs
from hmrf_dask.kernels.problem import ProblemArrays
from hmrf_dask.types import AnyArray, BoolArray, IntArray, LabelArray


class GroupMoves(NamedTuple):
    """Groups that want to move, ascending, with target and gain (high · 2**32 + low)."""

    group: LabelArray
    target: LabelArray
    high: IntArray
    low: IntArray


@njit(nogil=True, cache=True, makes_arrays=False)
def _parts(labels, groups, group_start, member, problem, row, high, low):  # type: ignore[no-untyped-def]
    for group in range(group_start.shape[0] - 1):
        base = group * (row.shape[0] + 1)
        for at in range(group_start[group], group_start[group + 1]):
            point = np.int64(member[at]) - problem.first
            add_member(high, low, base, row, labels, problem, groups, point)


def group_gain_parts(
    labels: LabelArray,
    groups: LabelArray,
    group_start: IntArray,
    member: LabelArray,
    problem: ProblemArrays,
) -> tuple[IntArray, IntArray]:
    """Return a piece's part of the K + 1 energies of some groups.

    Parameters
    ----------
    labels, groups : int32 arrays
        Of the piece's own points and all far ends of their pairs.
    group_start, member : int64 and int32 arrays
        The groups' own points in the piece as CSR.
    problem : ProblemArrays
        The piece.

    Returns
    -------
    high, low : int64 arrays, shape (groups, K + 1)
        Entry h: all members at h; the last: as they are. Parts of the pieces add up.
    """
    arrays = (labels, np.int32), (groups, np.int32), (group_start, np.int64), (member, np.int32)
    n_clusters = problem.costs.shape[1]
    row = np.empty(n_clusters, np.int64)
    shape = (len(group_start) - 1, n_clusters + 1)
    high, low = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    _parts(*(frozen(*one) for one in arrays), problem, row, high.reshape(-1), low.reshape(-1))
    return high, low


def merge_parts(
    lists: Sequence[tuple[LabelArray, IntArray, IntArray]],
) -> tuple[LabelArray, IntArray, IntArray]:
    """Return (number, high, low) of groups added up over lists, each sorted by number.

    Parts are added exactly: up to 2**31 of them, since the low limbs use 32 bits each.
    """
    number = np.unique(np.concatenate([one[0] for one in lists]))
    shape = (len(number), lists[0][1].shape[1])
    high, low = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for groups, part_high, part_low in lists:
        at = np.searchsorted(number, groups)
        high[at] += part_high
        low[at] += part_low
    high += low >> BITS
    low &= MASK
    return number, high, low


@njit(nogil=True, cache=True, makes_arrays=False)
def _inside(labels, groups, group_start, member, problem, row, sums, target, gains):  # type: ignore[no-untyped-def]
    high, low = sums[0], sums[1]
    for group in range(target.shape[0]):
        for h in range(high.shape[0]):
            high[h] = 0
            low[h] = 0
        for at in range(group_start[group], group_start[group + 1]):
            point = np.int64(member[at]) - problem.first
            add_member(high, low, 0, row, labels, problem, groups, point)
        found, gain, rest = best_limbs(high, low, 0, row.shape[0])
        target[group], gains[0, group], gains[1, group] = found, gain, rest


def inside_proposals(
    labels: LabelArray,
    groups: LabelArray,
    number: LabelArray,
    group_start: IntArray,
    member: LabelArray,
    problem: ProblemArrays,
) -> GroupMoves:
    """Return which groups that lie wholly in a piece want to move; parameters as above."""
    arrays = (labels, np.int32), (groups, np.int32), (group_start, np.int64), (member, np.int32)
    n_groups, n_clusters = len(group_start) - 1, problem.costs.shape[1]
    target, gains = np.empty(n_groups, np.int32), np.empty((2, n_groups), np.int64)
    scratch = np.empty(n_clusters, np.int64), np.empty((2, n_clusters + 1), np.int64)
    _inside(*(frozen(*one) for one in arrays), problem, *scratch, target, gains)
    wants = target >= 0
    return GroupMoves(number[wants], target[wants], gains[0, wants], gains[1, wants])


@njit(nogil=True, cache=True, makes_arrays=False)
def _sums(costs, group_start, member, first, sums):  # type: ignore[no-untyped-def]
    for group in range(sums.shape[0]):
        for at in range(group_start[group], group_start[group + 1]):
            for h in range(costs.shape[1]):
                sums[group, h] += costs[member[at] - first, h]


def distortion_sums(
    costs: AnyArray, group_start: IntArray, member: LabelArray, first: int
) -> IntArray:
    """Return the summed int32 cost rows of some groups' own points, exact below 2**31 points."""
    arrays = (costs, np.int32), (group_start, np.int64), (member, np.int32)
    sums = np.zeros((len(group_start) - 1, costs.shape[1]), np.int64)
    _sums(*(frozen(*one) for one in arrays), int(first), sums)
    return sums


@njit(nogil=True, cache=True, makes_arrays=False)
def _place(costs, group_start, member, first, total, labels):  # type: ignore[no-untyped-def]
    for group in range(group_start.shape[0] - 1):
        for h in range(total.shape[0]):
            total[h] = 0
        for at in range(group_start[group], group_start[group + 1]):
            for h in range(costs.shape[1]):
                total[h] += costs[member[at] - first, h]
        best = 0
        for h in range(1, total.shape[0]):
            if total[h] < total[best]:
                best = h
        for at in range(group_start[group], group_start[group + 1]):
            labels[member[at] - first] = best


def place_inside(
    labels: LabelArray, costs: AnyArray, group_start: IntArray, member: LabelArray, first: int
) -> None:
    """Put groups that lie wholly in a piece, whole, where their summed costs are least."""
    arrays = (costs, np.int32), (group_start, np.int64), (member, np.int32)
    total = np.empty(costs.shape[1], np.int64)
    _place(*(frozen(*one) for one in arrays), int(first), total, labels)


@njit(nogil=True, cache=True, makes_arrays=False)
def _choose(high, low, target, gains):  # type: ignore[no-untyped-def]
    for place in range(high.shape[0]):
        found, gain, rest = best_limbs(high[place], low[place], 0, high.shape[1] - 1)
        target[place], gains[0, place], gains[1, place] = found, gain, rest


def group_proposals(chosen: LabelArray, high: IntArray, low: IntArray) -> GroupMoves:
    """Return which of the chosen groups want to move, from their added-up energies."""
    target, gains = np.empty(len(high), np.int32), np.empty((2, len(high)), np.int64)
    _choose(frozen(high, np.int64), frozen(low, np.int64), target, gains)
    wants = target >= 0
    return GroupMoves(chosen[wants], target[wants], gains[0, wants], gains[1, wants])


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
    columns = [np.concatenate(column) for column in zip(*lists, strict=True)]
    both = GroupMoves(*columns)
    return best_groups(select_proposals(both, np.argsort(both.group, kind="stable")), most)


@njit(nogil=True, cache=True, makes_arrays=False)
def _beaten(groups, first, start, neighbour, moving, high, low, beaten):  # type: ignore[no-untyped-def]
    for point in range(start.shape[0] - 1):
        group = groups[first + point]
        mine = find(moving, group)
        if mine < 0 or beaten[mine]:
            continue
        for edge in range(start[point], start[point + 1]):
            if groups[neighbour[edge]] == group:
                continue
            other = find(moving, groups[neighbour[edge]])
            if other < 0:
                continue
            if high[other] != high[mine]:
                lost = high[other] > high[mine]
            elif low[other] != low[mine]:
                lost = low[other] > low[mine]
            else:
                lost = other < mine
            beaten[mine] |= lost


def beaten_groups(
    groups: LabelArray,
    first: int,
    start: AnyArray,
    neighbour: AnyArray,
    proposals: GroupMoves,
) -> BoolArray:
    """Return which proposals lose to an adjacent group, as far as this piece's pairs show.

    A group moves if and only if no piece sees it beaten.
    """
    beaten = np.zeros(len(proposals.group), np.bool_)
    _beaten(
        frozen(groups, np.int32),
        int(first),
        frozen(start, np.int64),
        frozen(neighbour, np.int32),
        frozen(proposals.group, np.int32),
        frozen(proposals.high, np.int64),
        frozen(proposals.low, np.int64),
        beaten,
    )
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
