"""Moves of whole must-link groups: exact gains in two limbs, largest first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import njit
from hmrf_dask.kernels.heap import Heap, build_heap, empty_heap, set_gain
from hmrf_dask.kernels.limbs import BITS, MASK, add_limbs, best_limbs
from hmrf_dask.types import AnyArray

# A group with more work in it than this many cost rows keeps its sums up to date when a neighbour
# moves, and is not added up anew. All kept sums together take a quarter of the memory of the costs.
LARGE_GROUP = 64


class _Search(NamedTuple):
    """What a run of group moves keeps.

    `slot` is the place of a local point's group in the list of groups, -1 when it may not move;
    `high`, `low` hold the K + 1 sums of large groups (`kept` says where), and last one spare row.
    """

    slot: AnyArray
    targets: AnyArray
    heap: Heap
    kept: AnyArray
    high: AnyArray
    low: AnyArray
    row: AnyArray
    waiting: AnyArray
    queue: AnyArray


@njit(nogil=True, cache=True)
def add_member(high, low, row, labels, links, of, point):  # type: ignore[no-untyped-def]
    """Add a local point's part to the K + 1 sums of its group.

    Sum h is the energy the group takes part in with all members at h, the last one as it is now.
    A pair inside the group counts at its lower end, so parts of several pieces add up.
    """
    _add_part(
        high, low, 0, row, labels, links.first, links.costs, links.shift, links.start,
        links.neighbour, links.cost, of, point,
    )  # fmt: skip


# Numba counts references, atomically, to an array taken out of a tuple: what runs for every member
# is given plain arrays.
@njit(nogil=True, cache=True, inline="always")
def _add_part(high, low, base, row, labels, first, costs, shift, start, neighbour, cost, of, point):  # type: ignore[no-untyped-def]
    """Do `add_member` on the sums that begin at `base` of flat arrays."""
    me = first + point
    present = labels[me]
    last = row.shape[0]
    for h in range(last):
        row[h] = np.int64(costs[point, h]) << shift
    together = np.int64(0)
    together_now = np.int64(0)
    for edge in range(start[point], start[point + 1]):
        other = neighbour[edge]
        if of[other] != of[me]:
            row[labels[other]] += cost[edge]
        elif other > me:
            together += cost[edge]
            if labels[other] == present:
                together_now += cost[edge]
    add_limbs(high, low, base + last, row[present] + together_now)
    for h in range(last):  # `add_limbs`, all clusters at a time
        total = low[base + h] + ((row[h] + together) & MASK)
        high[base + h] += ((row[h] + together) >> BITS) + (total >> BITS)
        low[base + h] = total & MASK


@njit(nogil=True, cache=True)
def _add_members(high, low, row, labels, first, costs, shift, start, neighbour, cost, of, members):  # type: ignore[no-untyped-def]
    high[:] = 0
    low[:] = 0
    for place in range(members.shape[0]):
        point = np.int64(members[place] - first)
        _add_part(high, low, 0, row, labels, first, costs, shift, start, neighbour, cost, of, point)


@njit(nogil=True, cache=True)
def _add_large(high, low, kept, slot, row, labels, first, costs, shift, start, neighbour, cost, of):  # type: ignore[no-untyped-def]
    """Add up the kept sums, by points and not by groups: each reads its costs in one go."""
    high[:] = 0
    low[:] = 0
    for point in range(slot.shape[0]):
        if slot[point] >= 0 and kept[slot[point]] >= 0:
            base = np.int64(kept[slot[point]]) * (row.shape[0] + 1)
            _add_part(
                high, low, base, row, labels, first, costs, shift, start, neighbour, cost, of, point
            )


@njit(nogil=True, cache=True)
def _settle(labels, links, grouping, search, group):  # type: ignore[no-untyped-def]
    """Work out the best move of a group; return its gain."""
    keep = search.kept[group]
    high = search.high[keep]
    low = search.low[keep]
    if keep < 0:  # the spare row
        members = grouping.member[grouping.start[group] : grouping.start[group + 1]]
        _add_members(
            high, low, search.row, labels, links.first, links.costs, links.shift, links.start,
            links.neighbour, links.cost, grouping.of, members,
        )  # fmt: skip
    target, high_gain, low_gain = best_limbs(high, low)
    search.targets[group] = target
    return high_gain, low_gain


@njit(nogil=True, cache=True)
def _large_groups(links, grouping):  # type: ignore[no-untyped-def]
    """Return where the sums of each group are kept (-1: nowhere), and how many are."""
    n_groups = grouping.start.shape[0] - 1
    n_clusters = links.costs.shape[1]
    kept = np.full(n_groups, -1, np.int32)
    n_kept = 0
    for group in range(n_groups):
        if grouping.start[group + 1] - grouping.start[group] < 2:
            continue
        work = np.int64(0)
        for place in range(grouping.start[group], grouping.start[group + 1]):
            point = grouping.member[place] - links.first
            work += n_clusters + links.start[point + 1] - links.start[point]
        if work >= LARGE_GROUP * n_clusters:
            kept[group] = n_kept
            n_kept += 1
    return kept, n_kept


@njit(nogil=True, cache=True)
def _begin(labels, links, grouping):  # type: ignore[no-untyped-def]
    n, n_clusters = links.costs.shape
    n_groups = grouping.start.shape[0] - 1
    kept, n_kept = _large_groups(links, grouping)
    search = _Search(
        np.full(n, -1, np.int32),
        np.empty(n_groups, np.int32),
        empty_heap(n_groups, True),
        kept,
        np.empty((n_kept + 1, n_clusters + 1), np.int64),
        np.empty((n_kept + 1, n_clusters + 1), np.int64),
        np.empty(n_clusters, np.int64),
        np.zeros(n_groups, np.uint8),
        np.empty(n_groups, np.int32),
    )
    for group in range(n_groups):
        if grouping.start[group + 1] - grouping.start[group] > 1:
            for place in range(grouping.start[group], grouping.start[group + 1]):
                search.slot[grouping.member[place] - links.first] = group
    _add_large(
        search.high.reshape(-1), search.low.reshape(-1), kept, search.slot, search.row, labels,
        links.first, links.costs, links.shift, links.start, links.neighbour, links.cost,
        grouping.of,
    )  # fmt: skip
    for group in range(n_groups):
        if grouping.start[group + 1] - grouping.start[group] < 2:
            continue
        high_gain, low_gain = _settle(labels, links, grouping, search, group)
        search.heap.high[group] = high_gain
        search.heap.low[group] = low_gain
    build_heap(search.heap)
    return search


@njit(nogil=True, cache=True, inline="always")
def _carry(high, low, base, last, old, new, label, cost):  # type: ignore[no-untyped-def]
    """Carry into a large group that a neighbour of a member at `label` went from `old` to `new`."""
    add_limbs(high, low, base + old, -cost)
    add_limbs(high, low, base + new, cost)
    if label == old:
        add_limbs(high, low, base + last, -cost)
    elif label == new:
        add_limbs(high, low, base + last, cost)


@njit(nogil=True, cache=True)
def _tell_neighbours(  # type: ignore[no-untyped-def]
    high, low, kept, slot, waiting, queue, n_queue, labels, first, n_clusters, start, neighbour,
    cost, point, old, new,
):  # fmt: skip
    """Queue the groups next to a moved member and carry the change into large ones."""
    for edge in range(start[point], start[point + 1]):
        other = neighbour[edge] - first
        if other < 0 or other >= slot.shape[0]:
            continue
        group = np.int64(slot[other])
        if group < 0 or group == slot[point]:
            continue
        if kept[group] >= 0:
            base = kept[group] * (n_clusters + 1)
            label = labels[neighbour[edge]]
            _carry(high, low, base, n_clusters, old, new, label, cost[edge])
        if not waiting[group]:
            waiting[group] = 1
            queue[n_queue] = group
            n_queue += 1
    return n_queue


@njit(nogil=True, cache=True)
def _move_members(labels, links, search, members, new):  # type: ignore[no-untyped-def]
    """Move a group; return how many others are queued."""
    high, low = search.high.reshape(-1), search.low.reshape(-1)
    n_queue = 0
    for place in range(members.shape[0]):
        old = labels[members[place]]
        if old != new:
            labels[members[place]] = new
            n_queue = _tell_neighbours(
                high, low, search.kept, search.slot, search.waiting, search.queue, n_queue, labels,
                links.first, links.costs.shape[1], links.start, links.neighbour, links.cost,
                np.int64(members[place] - links.first), old, new,
            )  # fmt: skip
    return n_queue


@njit(nogil=True, cache=True)
def _move(labels, links, grouping, search, group):  # type: ignore[no-untyped-def]
    new = search.targets[group]
    members = grouping.member[grouping.start[group] : grouping.start[group + 1]]
    n_queue = _move_members(labels, links, search, members, new)
    keep = search.kept[group]
    if keep >= 0:  # the present is now "all at new"; nothing else depends on its own labels
        last = search.row.shape[0]
        search.high[keep, last] = search.high[keep, new]
        search.low[keep, last] = search.low[keep, new]
    set_gain(search.heap, group, 0, 0)
    for place in range(n_queue):
        other = search.queue[place]
        search.waiting[other] = 0
        high_gain, low_gain = _settle(labels, links, grouping, search, other)
        set_gain(search.heap, other, high_gain, low_gain)


@njit(nogil=True, cache=True)
def run_groups(labels, links, grouping):  # type: ignore[no-untyped-def]
    """Make the group move with the largest gain until none gains; return the number of moves."""
    search = _begin(labels, links, grouping)
    moves = 0
    while search.heap.size[0] > 0:
        _move(labels, links, grouping, search, search.heap.items[0])
        moves += 1
    return moves
