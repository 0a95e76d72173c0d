"""Moves of whole must-link groups: exact gains in two limbs, largest first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.heap import empty_heap, place_item
from hmrf_dask.kernels.limbs import BITS, MASK, add_limbs, best_limbs
from hmrf_dask.kernels.links import Grouping, Links
from hmrf_dask.types import AnyArray, LabelArray

# A group with more work in it than this many cost rows keeps its sums up to date when a neighbour
# moves, and is not added up anew. All kept sums together take a quarter of the memory of the costs.
LARGE_GROUP = 64


class _Search(NamedTuple):
    """What a run of group moves keeps.

    `slot` is the place of a local point's group in the list of groups, -1 when it may not move.
    Large groups keep their K + 1 sums in `high` and `low` (`kept` says which); the last K + 1 are
    for any other group. `queue` begins with all groups that may move.
    """

    slot: AnyArray
    targets: AnyArray
    kept: AnyArray
    high: AnyArray
    low: AnyArray
    row: AnyArray
    waiting: AnyArray
    queue: AnyArray


@inner()
def add_member(high, low, base, row, labels, links, of, point):  # type: ignore[no-untyped-def]
    """Add a local point's part to the K + 1 sums of its group, from `base` on in flat arrays.

    Sum h is the energy the group takes part in with all members at h, the last one as it is now.
    A pair inside the group counts at its lower end, so parts of several pieces add up.
    """
    first, costs, shift, start, neighbour, cost = links
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


@inner(inline="always")
def _settle(labels, links, grouping, search, group):  # type: ignore[no-untyped-def]
    """Work out the best move of a group; return its gain."""
    size = search.row.shape[0] + 1
    base = np.int64(search.kept[group]) * size
    if base < 0:
        base = search.high.shape[0] - size
        for at in range(base, base + size):
            search.high[at] = 0
            search.low[at] = 0
        for place in range(grouping.start[group], grouping.start[group + 1]):
            point = np.int64(grouping.member[place]) - links.first
            add_member(search.high, search.low, base, search.row, labels, links, grouping.of, point)
    target, high_gain, low_gain = best_limbs(search.high, search.low, base, size - 1)
    search.targets[group] = target
    return high_gain, low_gain


@inner(inline="always")
def _carry(high, low, base, last, old, new, label, cost):  # type: ignore[no-untyped-def]
    """Carry into a large group that a neighbour of a member at `label` went from `old` to `new`."""
    add_limbs(high, low, base + old, -cost)
    add_limbs(high, low, base + new, cost)
    if label == old:
        add_limbs(high, low, base + last, -cost)
    elif label == new:
        add_limbs(high, low, base + last, cost)


@inner(inline="always")
def _tell_neighbours(labels, links, search, n_queue, point, old, new):  # type: ignore[no-untyped-def]
    """Queue the groups next to a moved member and carry the change into large ones."""
    n_clusters = search.row.shape[0]
    for edge in range(links.start[point], links.start[point + 1]):
        other = links.neighbour[edge] - links.first
        if other < 0 or other >= search.slot.shape[0]:
            continue
        group = np.int64(search.slot[other])
        if group < 0 or group == search.slot[point]:
            continue
        if search.kept[group] >= 0:
            base = np.int64(search.kept[group]) * (n_clusters + 1)
            label, cost = labels[links.neighbour[edge]], links.cost[edge]
            _carry(search.high, search.low, base, n_clusters, old, new, label, cost)
        if not search.waiting[group]:
            search.waiting[group] = 1
            search.queue[n_queue] = group
            n_queue += 1
    return n_queue


@inner(inline="always")
def _move(labels, links, grouping, search, group):  # type: ignore[no-untyped-def]
    """Move a group; return how many others are queued."""
    new = search.targets[group]
    n_queue = 0
    for place in range(grouping.start[group], grouping.start[group + 1]):
        point = np.int64(grouping.member[place])
        old = labels[point]
        if old != new:
            labels[point] = new
            n_queue = _tell_neighbours(
                labels, links, search, n_queue, point - links.first, old, new
            )
    if search.kept[group] >= 0:  # now "all at new"; nothing else depends on its own labels
        last = search.row.shape[0]
        base = np.int64(search.kept[group]) * (last + 1)
        search.high[base + last] = search.high[base + new]
        search.low[base + last] = search.low[base + new]
    return n_queue


@njit(nogil=True, cache=True, makes_arrays=False)
def _move_groups(labels, links, grouping, search, n_queue, heap):  # type: ignore[no-untyped-def]
    # the kept sums are added up by points and not by groups: each reads its costs in one go
    for point in range(search.slot.shape[0]):
        if search.slot[point] >= 0 and search.kept[search.slot[point]] >= 0:
            base = np.int64(search.kept[search.slot[point]]) * (search.row.shape[0] + 1)
            add_member(search.high, search.low, base, search.row, labels, links, grouping.of, point)
    moves = 0
    while True:
        for place in range(n_queue):
            group = np.int64(search.queue[place])
            search.waiting[group] = 0
            high, low = _settle(labels, links, grouping, search, group)
            if high != heap.high[group] or low != heap.low[group]:
                heap.high[group] = high
                heap.low[group] = low
                place_item(heap.high, heap.low, heap.items, heap.position, heap.size, group)
        if heap.size[0] == 0:
            return moves
        group = np.int64(heap.items[0])
        n_queue = _move(labels, links, grouping, search, group)
        heap.high[group] = 0
        heap.low[group] = 0
        place_item(heap.high, heap.low, heap.items, heap.position, heap.size, group)
        moves += 1


def run_groups(labels: LabelArray, links: Links, grouping: Grouping) -> int:
    """Make the group move with the largest gain until none gains; return the number of moves."""
    may_move = np.flatnonzero(np.diff(grouping.start) >= 2).astype(np.int32)
    if len(may_move) == 0:
        return 0
    search = _begin(links, grouping, may_move)
    heap = empty_heap(len(grouping.start) - 1, True)
    return int(_move_groups(labels, links, grouping, search, len(may_move), heap))


def _begin(links: Links, grouping: Grouping, may_move: LabelArray) -> _Search:
    """Return what a run of group moves keeps, with all sums at nought."""
    n, n_clusters = links.costs.shape
    n_groups = len(grouping.start) - 1
    sizes = np.diff(grouping.start)
    local = grouping.member - np.int32(links.first)
    slot = np.full(n, -1, np.int32)
    slot[local] = np.repeat(np.where(sizes >= 2, np.arange(n_groups), -1), sizes)
    work = np.concatenate([[0], np.cumsum(n_clusters + np.diff(links.start)[local])])
    work = work[grouping.start[1:]] - work[grouping.start[:-1]]
    large = (sizes >= 2) & (work >= LARGE_GROUP * n_clusters)
    sums = (int(large.sum()) + 1) * (n_clusters + 1)
    return _Search(
        slot,
        np.empty(n_groups, np.int32),
        np.where(large, np.cumsum(large) - 1, -1).astype(np.int32),
        np.zeros(sums, np.int64),
        np.zeros(sums, np.int64),
        np.empty(n_clusters, np.int64),
        np.zeros(n_groups, np.uint8),
        np.concatenate([may_move, np.empty(n_groups - len(may_move), np.int32)]),
    )
