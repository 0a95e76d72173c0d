"""Moves of must-link groups with members in several pieces: parts of gains that add up exactly.

Every piece adds up its members' parts in two limbs; the sums over pieces give the gain of every
group; a group moves if and only if its (gain, -number) beats every adjacent group that also wants
to. Groups wholly inside one piece can be handed over to `component_moves_piece`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from hmrf_dask.kernels.groups import add_member
from hmrf_dask.kernels.limbs import best_limbs
from hmrf_dask.kernels.links import frozen, make_links
from hmrf_dask.kernels.reconcile import find
from hmrf_dask.types import AnyArray, BoolArray, IntArray, LabelArray


class GroupProposals(NamedTuple):
    """Groups that want to move, ascending, with target and gain (high · 2**32 + low)."""

    group: LabelArray
    target: LabelArray
    high: IntArray
    low: IntArray


def no_proposals() -> GroupProposals:
    """Return an empty list of proposals."""
    nobody = np.zeros(0, np.int32)
    nothing = np.zeros(0, np.int64)
    return GroupProposals(nobody, nobody, nothing, nothing)


def linked_groups(groups: LabelArray) -> LabelArray:
    """Return the groups of at least two members, ascending."""
    return np.flatnonzero(np.bincount(groups) >= 2).astype(np.int32)


def groups_inside(
    groups: LabelArray, first: int, last: int
) -> tuple[LabelArray, IntArray, LabelArray]:
    """Return the groups of at least two members that lie wholly in ``first .. last``.

    Returns
    -------
    group : int32 array
        Their numbers, ascending.
    group_start : int64 array
    group_member : int32 array
        Their members (global indices) as CSR, as `component_moves_piece` takes them.
    """
    own = groups[first:last]
    size = np.bincount(groups)
    here = np.bincount(own, minlength=size.shape[0])
    inside = (size >= 2) & (here == size)
    group = np.flatnonzero(inside).astype(np.int32)
    start = np.concatenate(([0], np.cumsum(size[group]))).astype(np.int64)
    local = np.flatnonzero(inside[own])
    order = np.argsort(own[local], kind="stable")
    return group, start, (local[order] + first).astype(np.int32)


@njit(nogil=True, cache=True)
def _parts(labels, groups, chosen, links):  # type: ignore[no-untyped-def]
    n_clusters = links.costs.shape[1]
    high = np.zeros((chosen.shape[0], n_clusters + 1), np.int64)
    low = np.zeros((chosen.shape[0], n_clusters + 1), np.int64)
    row = np.empty(n_clusters, np.int64)
    for point in range(links.costs.shape[0]):
        place = find(chosen, groups[links.first + point])
        if place >= 0:
            add_member(high[place], low[place], row, labels, links, groups, point)
    return high, low


def group_gain_parts(
    labels: LabelArray,
    groups: LabelArray,
    chosen: LabelArray,
    first: int,
    costs: AnyArray,
    shift: int,
    start: AnyArray,
    neighbour: AnyArray,
    cost: AnyArray,
) -> tuple[IntArray, IntArray]:
    """Return a piece's part of the K + 1 energies of each chosen group.

    Parameters
    ----------
    labels, groups : int32 arrays, shape (n,)
        Of the whole component.
    chosen : int32 array, shape (g,)
        Group numbers, ascending.
    first, costs, shift, start, neighbour, cost
        The piece, as in `hmrf_dask.kernels.reconcile.propose`.

    Returns
    -------
    high, low : int64 arrays, shape (g, K + 1)
        Entry h: all members at h; the last: as they are. Parts of the pieces are added by
        `hmrf_dask.kernels.limbs.merge_limbs`.
    """
    links = make_links(first, costs, shift, start, neighbour, cost)
    high, low = _parts(labels, frozen(groups, np.int32), frozen(chosen, np.int32), links)
    return high, low


@njit(nogil=True, cache=True)
def _choose(high, low):  # type: ignore[no-untyped-def]
    target = np.empty(high.shape[0], np.int32)
    gains = np.empty((2, high.shape[0]), np.int64)
    for place in range(high.shape[0]):
        target[place], gains[0, place], gains[1, place] = best_limbs(high[place], low[place])
    return target, gains


def group_proposals(chosen: LabelArray, high: IntArray, low: IntArray) -> GroupProposals:
    """Return which of the chosen groups want to move, from their added-up energies."""
    target, gains = _choose(high, low)
    wants = target >= 0
    return GroupProposals(chosen[wants], target[wants], gains[0, wants], gains[1, wants])


def replace_proposals(
    proposals: GroupProposals, looked_at: LabelArray, found: GroupProposals
) -> GroupProposals:
    """Return the proposals after another look at some groups: theirs replaced by `found`."""
    keep = ~np.isin(proposals.group, looked_at)
    both = GroupProposals(
        np.concatenate((proposals.group[keep], found.group)),
        np.concatenate((proposals.target[keep], found.target)),
        np.concatenate((proposals.high[keep], found.high)),
        np.concatenate((proposals.low[keep], found.low)),
    )
    return select_proposals(both, np.argsort(both.group, kind="stable"))


def select_proposals(proposals: GroupProposals, chosen: AnyArray) -> GroupProposals:
    """Return the proposals at the places (or mask) `chosen`."""
    group, target, high, low = proposals
    return GroupProposals(group[chosen], target[chosen], high[chosen], low[chosen])


def best_group(proposals: GroupProposals) -> int:
    """Return the place of the proposal with the largest gain, then the lowest group."""
    return int(np.lexsort((proposals.group, -proposals.low, -proposals.high))[0])


@njit(nogil=True, cache=True)
def _beaten(groups, first, start, neighbour, wanting, high, low):  # type: ignore[no-untyped-def]
    beaten = np.zeros(wanting.shape[0], np.bool_)
    for point in range(start.shape[0] - 1):
        group = groups[first + point]
        mine = find(wanting, group)
        if mine < 0 or beaten[mine]:
            continue
        for edge in range(start[point], start[point + 1]):
            if groups[neighbour[edge]] == group:
                continue
            other = find(wanting, groups[neighbour[edge]])
            if other < 0:
                continue
            if high[other] != high[mine]:
                lost = high[other] > high[mine]
            elif low[other] != low[mine]:
                lost = low[other] > low[mine]
            else:
                lost = other < mine
            beaten[mine] |= lost
    return beaten


def beaten_groups(
    groups: LabelArray,
    first: int,
    start: AnyArray,
    neighbour: AnyArray,
    proposals: GroupProposals,
) -> BoolArray:
    """Return which proposals lose to an adjacent group, as far as this piece's pairs show.

    A group moves if and only if no piece sees it beaten.
    """
    beaten = _beaten(
        frozen(groups, np.int32),
        int(first),
        frozen(start, np.int64),
        frozen(neighbour, np.int32),
        frozen(proposals.group, np.int32),
        frozen(proposals.high, np.int64),
        frozen(proposals.low, np.int64),
    )
    return np.asarray(beaten, np.bool_)


@njit(nogil=True, cache=True)
def _touched(groups, first, start, neighbour, moved, n_groups):  # type: ignore[no-untyped-def]
    mark = np.zeros(groups.shape[0], np.bool_)
    for place in range(moved.shape[0]):
        mark[moved[place]] = True
    touched = np.zeros(n_groups, np.bool_)
    for point in range(start.shape[0] - 1):
        group = groups[first + point]
        touched[group] |= mark[first + point]
        for edge in range(start[point], start[point + 1]):
            touched[group] |= mark[neighbour[edge]]
    return np.flatnonzero(touched).astype(np.int32)


def touched_groups(
    groups: LabelArray, first: int, start: AnyArray, neighbour: AnyArray, moved: LabelArray
) -> LabelArray:
    """Return the groups with a point in this piece that moved or has a neighbour that moved.

    `moved` holds global indices. The union over pieces is what must be looked at again.
    """
    touched = _touched(
        frozen(groups, np.int32),
        int(first),
        frozen(start, np.int64),
        frozen(neighbour, np.int32),
        frozen(moved, np.int32),
        int(groups.max()) + 1,
    )
    return np.asarray(touched, np.int32)


def group_labels(
    labels: LabelArray, groups: LabelArray, first: int, last: int, moving: GroupProposals
) -> tuple[LabelArray, LabelArray]:
    """Return (global index, new label) of the points in ``first .. last`` of moving groups."""
    if moving.group.shape[0] == 0:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    own = groups[first:last]
    place = np.minimum(np.searchsorted(moving.group, own), moving.group.shape[0] - 1)
    changes = (moving.group[place] == own) & (moving.target[place] != labels[first:last])
    index = (np.flatnonzero(changes) + first).astype(np.int32)
    return index, moving.target[place[changes]]
