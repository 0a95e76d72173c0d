"""Exact ICM on linked rows: always the single move, then the group move, with the largest gain.

Energy: sum of D[i, l_i] plus the signed cost of every pair with equal labels, all integers, so that
every accepted move lowers it by at least one unit (KDD 2004, E-step). A heap orders what may move
by (largest gain, lowest index); gains of groups are in two limbs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import frozen, inner, njit
from hmrf_dask.kernels.exact import BITS, MASK, add_limbs, best_limbs
from hmrf_dask.kernels.problem import Grouping, ProblemArrays, fill_row
from hmrf_dask.types import AnyArray, BoolArray, IntArray, LabelArray

# A point with more neighbours than this (and than 4 K) keeps its cost row up to date: a star of m
# leaves would otherwise read m neighbours m times. All kept rows together stay below 4 bytes a
# half-edge.
HUB_DEGREE = 64
# A group with more work in it than this many cost rows keeps its sums up to date when a neighbour
# moves, and is not added up again. All kept sums together take a quarter of the memory of the
# costs.
LARGE_GROUP = 64
_UNKNOWN = np.zeros(0, np.int64)
_UNKNOWN.setflags(write=False)


class Heap(NamedTuple):
    """Items ordered by (largest gain, lowest index) whose gains may change at any time.

    An item stands in the heap at most once, and only with a gain above zero, so memory is 8 bytes
    an item plus the gains.
    """

    high: IntArray  # (n,): gain of every item; never negative
    low: IntArray  # (n,) or (0,): its low limb; empty where gains fit one int64
    items: LabelArray  # (n,): the heap, in its first ``size[0]`` places
    position: LabelArray  # (n,): where an item stands in the heap, -1 when it is not in it
    size: IntArray  # (1,)


def empty_heap(n: int, two_limbs: bool) -> Heap:
    """Return a heap of n items, none of them in it."""
    low, position = np.zeros(n if two_limbs else 0, np.int64), np.full(n, -1, np.int32)
    return Heap(np.zeros(n, np.int64), low, np.empty(n, np.int32), position, np.zeros(1, np.int64))


@inner(inline="always")
def _put(heap: Heap, place: Any, item: Any) -> None:
    heap.items[place] = item
    heap.position[item] = place


@inner(inline="always")
def _before(heap: Heap, item: int, rival: Any) -> Any:
    high, low = heap.high, heap.low
    if high[item] != high[rival]:
        return high[item] > high[rival]
    if low.shape[0] > 0 and low[item] != low[rival]:
        return low[item] > low[rival]
    return item < rival


@inner(inline="always")
def _sift_up(heap: Heap, place: Any) -> Any:
    item = heap.items[place]
    while place > 0:
        parent = (place - 1) >> 1
        above = heap.items[parent]
        if not _before(heap, item, above):
            break
        _put(heap, place, above)
        place = parent
    _put(heap, place, item)
    return place


@inner(inline="always")
def _sift_down(heap: Heap, size: Any, place: Any) -> None:
    item = heap.items[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _before(heap, heap.items[child + 1], heap.items[child]):
            child += 1
        below = heap.items[child]
        if not _before(heap, below, item):
            break
        _put(heap, place, below)
        place = child
    _put(heap, place, item)


@inner()
def place_item(heap: Heap, item: int) -> None:
    """Put an item whose gain has changed where it belongs: in, out or elsewhere."""
    place = np.int64(heap.position[item])
    last = heap.size[0]
    if heap.high[item] != 0 or (heap.low.shape[0] > 0 and heap.low[item] != 0):
        if place < 0:
            place = last
            heap.items[place] = item
            last += 1
    elif place >= 0:
        heap.position[item] = -1
        last -= 1
        heap.items[place] = heap.items[last]
    heap.size[0] = last
    if 0 <= place < last:
        settled = _sift_up(heap, place)
        if settled == place:
            _sift_down(heap, last, place)


class _Hubs(NamedTuple):
    """The cost rows of points with many neighbours."""

    number: LabelArray  # (n,): the row of each hub; -1 for all other points
    rows: IntArray  # (number of hubs + 1, K): the last is a buffer for any other point
    degree: int  # neighbours of a hub, at least


def _hubs(problem: ProblemArrays) -> _Hubs:
    """Return empty rows of the hubs of a problem."""
    n_clusters = problem.costs.shape[1]
    degree = max(HUB_DEGREE, 4 * n_clusters)
    are = np.diff(problem.start) >= degree
    number = np.where(are, np.cumsum(are, dtype=np.int32) - np.int32(1), np.int32(-1))
    return _Hubs(number, np.empty((int(are.sum()) + 1, n_clusters), np.int64), degree)


@inner()
def _least(row: IntArray) -> Any:
    least = row[0]
    for h in range(1, row.shape[0]):
        least = min(least, row[h])
    return least


@inner(inline="always")
def _begin(labels: LabelArray, problem: ProblemArrays, known: Any, hubs: _Hubs, heap: Heap) -> None:
    """Put all points that gain into the heap; gains that are `known` stand in it already."""
    spare = hubs.rows[hubs.rows.shape[0] - 1]
    for point in range(problem.costs.shape[0]):
        if not known or hubs.number[point] >= 0:
            row = hubs.rows[hubs.number[point]] if hubs.number[point] >= 0 else spare
            fill_row(row, labels, problem, point)
            heap.high[point] = row[labels[problem.first + point]] - _least(row)
        if heap.high[point] > 0:
            place_item(heap, point)


@inner(inline="always")
def _follow(
    labels: LabelArray, problem: ProblemArrays, hubs: _Hubs, heap: Heap, mover: Any, old: Any
) -> None:
    """Bring the gains of a mover's neighbours up to date; it came from the cluster `old`."""
    first, n = problem.first, problem.costs.shape[0]
    new = labels[first + mover]
    for edge in range(problem.start[mover], problem.start[mover + 1]):
        point = problem.neighbour[edge] - first
        if point < 0 or point >= n:
            continue
        if problem.start[point + 1] - problem.start[point] >= hubs.degree:  # read anyway
            row = hubs.rows[hubs.number[point]]
            row[old] -= problem.cost[edge]
            row[new] += problem.cost[edge]
        else:
            row = hubs.rows[hubs.rows.shape[0] - 1]
            fill_row(row, labels, problem, point)
        gain = row[labels[first + point]] - _least(row)
        if gain != heap.high[point]:
            heap.high[point] = gain
            place_item(heap, point)


@njit(nogil=True, cache=True, makes_arrays=False)
def _move_points(
    labels: LabelArray, problem: ProblemArrays, known: bool, hubs: _Hubs, heap: Heap
) -> int:
    """Move the best point, and settle its neighbours again, until none gains."""
    first = problem.first
    _begin(labels, problem, known, hubs, heap)
    moves = 0
    while heap.size[0] > 0:
        mover = np.int64(heap.items[0])
        row = hubs.rows[hubs.number[mover]]  # of no hub the last one
        if hubs.number[mover] < 0:
            fill_row(row, labels, problem, mover)
        old = labels[first + mover]
        least = _least(row)
        new = 0
        while row[new] != least:
            new += 1
        labels[first + mover] = new
        # its own row does not depend on its own label: it is now where it is cheapest
        heap.high[mover] = 0
        place_item(heap, mover)
        moves += 1
        _follow(labels, problem, hubs, heap, mover, old)
    return moves


def move_points(labels: LabelArray, problem: ProblemArrays, gains: IntArray = _UNKNOWN) -> int:
    """Make the single move with the largest gain until no single move gains; return how many.

    The problem is a component or a piece of one. `labels`, those of the whole component, change in
    place; points that are not the problem's own stay. Ties go to the present label, then the lowest
    cluster; equal gains are taken in the order of the points. `gains` are what each point would
    gain by its best move, where that is known already.
    """
    n = len(problem.costs)
    heap = empty_heap(n, False)
    known = n > 0 and len(gains) == n
    if known:
        heap.high[:] = gains
    return int(_move_points(labels, problem, known, _hubs(problem), heap))


class GroupSums(NamedTuple):
    """Energies of groups in two limbs: K + 1 a group in flat arrays, and a buffer of one row.

    Number h of a group is the energy it takes part in with all members at h, the last one as it is
    now.
    """

    high: IntArray
    low: IntArray
    row: IntArray


def empty_sums(n_groups: int, n_clusters: int) -> GroupSums:
    """Return sums of nothing."""
    high, low = np.zeros((2, n_groups * (n_clusters + 1)), np.int64)
    return GroupSums(high, low, np.empty(n_clusters, np.int64))


@inner(inline="always")
def add_member(
    sums: GroupSums,
    base: int,
    labels: LabelArray,
    problem: ProblemArrays,
    of: LabelArray,
    point: int,
) -> None:
    """Add a local point's part to the K + 1 sums of its group, from `base` on.

    A pair inside the group counts at its lower end, so parts of several pieces add up.
    """
    row, high, low = sums.row, sums.high, sums.low
    me = problem.first + point
    present = labels[me]
    last = row.shape[0]
    for h in range(last):
        row[h] = np.int64(problem.costs[point, h]) << problem.shift
    together = np.int64(0)
    together_now = np.int64(0)
    for edge in range(problem.start[point], problem.start[point + 1]):
        end = problem.neighbour[edge]
        cost = problem.cost[edge]
        if of[end] != of[me]:
            row[labels[end]] += cost
        elif end > me:
            together += cost
            together_now += cost if labels[end] == present else 0
    add_limbs(high, low, base + last, row[present] + together_now)
    for h in range(last):  # `add_limbs`, all clusters at a time
        total = low[base + h] + ((row[h] + together) & MASK)
        high[base + h] += ((row[h] + together) >> BITS) + (total >> BITS)
        low[base + h] = total & MASK


class _Search(NamedTuple):
    """What a run of group moves keeps."""

    slot: LabelArray  # (n,): the group of a local point, -1 when it may not move
    targets: LabelArray  # (number of groups,)
    # (number of groups,): where the sums of a large group stand, -1: with all others, at the end
    kept: LabelArray
    sums: GroupSums
    waiting: AnyArray  # (number of groups,): whether a group is in the queue
    # (number of groups,): its first ``n_queued[0]`` are groups whose best move may have changed
    queue: LabelArray
    n_queued: IntArray  # (1,)


def _search(problem: ProblemArrays, grouping: Grouping, may_move: LabelArray) -> _Search:
    """Return what a run of group moves begins with, all sums zero."""
    n, n_clusters = problem.costs.shape
    n_groups = len(grouping.start) - 1
    sizes = np.diff(grouping.start)
    local = grouping.member - np.int32(problem.first)
    slot = np.full(n, -1, np.int32)
    slot[local] = np.repeat(np.where(sizes >= 2, np.arange(n_groups), -1), sizes)
    work = np.concatenate([[0], np.cumsum(n_clusters + np.diff(problem.start)[local])])
    work = work[grouping.start[1:]] - work[grouping.start[:-1]]
    large = (sizes >= 2) & (work >= LARGE_GROUP * n_clusters)
    return _Search(
        slot,
        targets=np.empty(n_groups, np.int32),
        kept=np.where(large, np.cumsum(large) - 1, -1).astype(np.int32),
        sums=empty_sums(int(large.sum()) + 1, n_clusters),
        waiting=np.zeros(n_groups, np.uint8),
        queue=np.concatenate([may_move, np.empty(n_groups - len(may_move), np.int32)]),
        n_queued=np.array([len(may_move)]),
    )


@inner(inline="always")
def _best_move(
    labels: LabelArray, problem: ProblemArrays, grouping: Grouping, search: _Search, group: Any
) -> Any:
    """Work out the best move of a group; return its gain."""
    sums = search.sums
    size = sums.row.shape[0] + 1
    base = np.int64(search.kept[group]) * size
    if base < 0:
        base = sums.high.shape[0] - size
        for at in range(base, base + size):
            sums.high[at] = 0
            sums.low[at] = 0
        for place in range(grouping.start[group], grouping.start[group + 1]):
            point = np.int64(grouping.member[place]) - problem.first
            add_member(sums, base, labels, problem, grouping.of, point)
    target, high_gain, low_gain = best_limbs(sums.high, sums.low, base, size - 1)
    search.targets[group] = target
    return high_gain, low_gain


@inner(inline="always")
def _carry(sums: GroupSums, base: int, old: Any, new: Any, label: Any, cost: Any) -> None:
    """Carry into a large group that a neighbour of a member at `label` went from `old` to `new`."""
    last = base + sums.row.shape[0]
    add_limbs(sums.high, sums.low, base + old, -cost)
    add_limbs(sums.high, sums.low, base + new, cost)
    if label == old:
        add_limbs(sums.high, sums.low, last, -cost)
    elif label == new:
        add_limbs(sums.high, sums.low, last, cost)


@inner(inline="always")
def _queue_neighbours(
    labels: LabelArray, problem: ProblemArrays, search: _Search, point: int, old: Any, new: Any
) -> None:
    """Queue the groups next to a moved member and carry the change into large ones."""
    sums, slot, first = search.sums, search.slot, problem.first
    mine, size = slot[point], sums.row.shape[0] + 1
    for edge in range(problem.start[point], problem.start[point + 1]):
        neighbour = problem.neighbour[edge]
        if neighbour < first or neighbour - first >= slot.shape[0]:
            continue
        group = np.int64(slot[neighbour - first])
        if group < 0 or group == mine:
            continue
        if search.kept[group] >= 0:
            base = np.int64(search.kept[group]) * size
            _carry(sums, base, old, new, labels[neighbour], problem.cost[edge])
        if not search.waiting[group]:
            search.waiting[group] = 1
            search.queue[search.n_queued[0]] = group
            search.n_queued[0] += 1


@inner(inline="always")
def _move(
    labels: LabelArray, problem: ProblemArrays, grouping: Grouping, search: _Search, group: Any
) -> None:
    """Move a group, and queue those next to it."""
    new = search.targets[group]
    for place in range(grouping.start[group], grouping.start[group + 1]):
        point = np.int64(grouping.member[place])
        old = labels[point]
        if old != new:
            labels[point] = new
            _queue_neighbours(labels, problem, search, point - problem.first, old, new)
    if search.kept[group] >= 0:  # now "all at new"; nothing else depends on its own labels
        sums, last = search.sums, search.sums.row.shape[0]
        base = np.int64(search.kept[group]) * (last + 1)
        sums.high[base + last] = sums.high[base + new]
        sums.low[base + last] = sums.low[base + new]


@inner(inline="always")
def _take_gain(heap: Heap, group: Any, high: Any, low: Any) -> None:
    if high != heap.high[group] or low != heap.low[group]:
        heap.high[group] = high
        heap.low[group] = low
        place_item(heap, group)


@njit(nogil=True, cache=True, makes_arrays=False)
def _move_groups(
    labels: LabelArray, problem: ProblemArrays, grouping: Grouping, search: _Search, heap: Heap
) -> int:
    """Move the best group, and look at those next to it again, until none gains."""
    # the kept sums are added up by points and not by groups: each reads its costs in one go
    for point in range(search.slot.shape[0]):
        if search.slot[point] >= 0 and search.kept[search.slot[point]] >= 0:
            base = np.int64(search.kept[search.slot[point]]) * (search.sums.row.shape[0] + 1)
            add_member(search.sums, base, labels, problem, grouping.of, point)
    moves = 0
    while True:
        for place in range(search.n_queued[0]):
            group = np.int64(search.queue[place])
            search.waiting[group] = 0
            high, low = _best_move(labels, problem, grouping, search, group)
            _take_gain(heap, group, high, low)
        search.n_queued[0] = 0
        if heap.size[0] == 0:
            return moves
        group = np.int64(heap.items[0])
        _move(labels, problem, grouping, search, group)
        _take_gain(heap, group, np.int64(0), np.int64(0))
        moves += 1


def move_groups(labels: LabelArray, problem: ProblemArrays, grouping: Grouping) -> int:
    """Move the whole must-link group with the largest gain until no group move gains.

    Groups are numbered by their lowest member; only those that lie wholly in the piece are listed,
    and those of one point do not move. A tie leaves a group as it is; then the lowest cluster;
    equal gains are taken in the order of the groups. Returned is how many moved.
    """
    may_move = np.flatnonzero(np.diff(grouping.start) >= 2).astype(np.int32)
    if len(may_move) == 0:
        return 0
    heap = empty_heap(len(grouping.start) - 1, True)
    search = _search(problem, grouping, may_move)
    return int(_move_groups(labels, problem, grouping, search, heap))


@njit(nogil=True, cache=True, makes_arrays=False)
def _gains_near(
    labels: LabelArray,
    before: LabelArray,
    problem: ProblemArrays,
    near: BoolArray,
    row: IntArray,
    gains: IntArray,
) -> None:
    """Write the gains of all points after some have moved, when none had a gain before."""
    for point in range(problem.costs.shape[0]):
        if labels[point] != before[point]:
            near[point] = True
            for edge in range(problem.start[point], problem.start[point + 1]):
                near[problem.neighbour[edge]] = True
    for point in range(problem.costs.shape[0]):
        if near[point]:
            fill_row(row, labels, problem, point)
            gains[point] = row[labels[point]] - _least(row)


def icm(
    labels: LabelArray, problem: ProblemArrays, grouping: Grouping, gains: IntArray = _UNKNOWN
) -> tuple[int, int]:
    """Run `move_points` and `move_groups` in turn until neither moves; return how often each did.

    The problem is one of whole components, whose labels change in place. In the end no single point
    and no must-link group can move with a gain.

    Examples
    --------
    >>> from hmrf_dask.kernels.problem import adjacency, make_grouping, make_problem
    >>> start, neighbour, cost = adjacency(2, np.array([0]), np.array([1]), np.array([-9]))
    >>> problem = make_problem(0, np.array([[0, 5], [4, 0]]), 0, start, neighbour, cost)
    >>> labels, groups = np.array([0, 1], np.int32), make_grouping([0, 0], [0, 2], [0, 1])
    >>> icm(labels, problem, groups), labels.tolist()
    ((1, 0), [0, 0])
    """
    points = move_points(labels, problem, gains)
    groups = 0
    while True:
        before = frozen(labels.copy(), np.int32)
        moved = move_groups(labels, problem, grouping)
        groups += moved
        if moved == 0:
            return points, groups
        renewed, near = np.zeros(len(labels), np.int64), np.zeros(len(labels), np.bool_)
        row = np.empty(problem.costs.shape[1], np.int64)
        _gains_near(labels, before, problem, near, row, renewed)
        points += move_points(labels, problem, renewed)
