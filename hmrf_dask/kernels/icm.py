"""Exact ICM on linked rows: always the single move, then the group move, with the largest gain.

Energy: sum of D[i, l_i] plus the signed cost of every pair with equal labels, all integers, so that
every accepted move lowers it by at least one unit (KDD 2004, E-step). A heap orders what may move
by (largest gain, lowest index); gains of groups are in two limbs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import frozen
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.limbs import BITS, MASK, add_limbs, best_limbs
from hmrf_dask.kernels.problem import Grouping, ProblemArrays, make_grouping, make_problem
from hmrf_dask.types import AnyArray, IntArray, LabelArray


class Heap(NamedTuple):
    """Arrays of the heap.

    Attributes
    ----------
    high : int64 array, shape (n,)
        Gain of every item; never negative.
    low : int64 array, shape (n,) or (0,)
        Its low limb; empty where gains fit one int64.
    items : int32 array, shape (n,)
        The heap, in its first ``size[0]`` places.
    position : int32 array, shape (n,)
        Where an item stands in the heap, -1 when it is not in it.
    size : int64 array, shape (1,)
    """

    high: AnyArray
    low: AnyArray
    items: AnyArray
    position: AnyArray
    size: AnyArray


def empty_heap(n: int, two_limbs: bool) -> Heap:
    """Return a heap of n items, none of them in it."""
    return Heap(
        np.zeros(n, np.int64),
        np.zeros(n if two_limbs else 0, np.int64),
        np.empty(n, np.int32),
        np.full(n, -1, np.int32),
        np.zeros(1, np.int64),
    )


@inner(inline="always")
def _before(high, low, one, other):  # type: ignore[no-untyped-def]
    if high[one] != high[other]:
        return high[one] > high[other]
    if low.shape[0] > 0 and low[one] != low[other]:
        return low[one] > low[other]
    return one < other


@inner(inline="always")
def _sift_up(high, low, items, position, place):  # type: ignore[no-untyped-def]
    item = items[place]
    while place > 0:
        parent = (place - 1) >> 1
        above = items[parent]
        if not _before(high, low, item, above):
            break
        items[place] = above
        position[above] = place
        place = parent
    items[place] = item
    position[item] = place
    return place


@inner(inline="always")
def _sift_down(high, low, items, position, size, place):  # type: ignore[no-untyped-def]
    item = items[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _before(high, low, items[child + 1], items[child]):
            child += 1
        below = items[child]
        if not _before(high, low, below, item):
            break
        items[place] = below
        position[below] = place
        place = child
    items[place] = item
    position[item] = place


@inner()
def place_item(high, low, items, position, size, item):  # type: ignore[no-untyped-def]
    """Put an item whose gain has changed where it belongs: in, out or elsewhere."""
    place = np.int64(position[item])
    last = size[0]
    if high[item] != 0 or (low.shape[0] > 0 and low[item] != 0):
        if place < 0:
            place = last
            items[place] = item
            last += 1
    elif place >= 0:
        position[item] = -1
        last -= 1
        items[place] = items[last]
    size[0] = last
    if 0 <= place < last:
        settled = _sift_up(high, low, items, position, place)
        if settled == place:
            _sift_down(high, low, items, position, last, place)


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
def add_member(high, low, base, row, labels, problem, of, point):  # type: ignore[no-untyped-def]
    """Add a local point's part to the K + 1 sums of its group, from `base` on in flat arrays.

    Sum h is the energy the group takes part in with all members at h, the last one as it is now.
    A pair inside the group counts at its lower end, so parts of several pieces add up.
    """
    first, costs, shift, start, neighbour, cost = problem
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
def _settle(labels, problem, grouping, search, group):  # type: ignore[no-untyped-def]
    """Work out the best move of a group; return its gain."""
    size = search.row.shape[0] + 1
    base = np.int64(search.kept[group]) * size
    if base < 0:
        base = search.high.shape[0] - size
        for at in range(base, base + size):
            search.high[at] = 0
            search.low[at] = 0
        for place in range(grouping.start[group], grouping.start[group + 1]):
            point = np.int64(grouping.member[place]) - problem.first
            add_member(
                search.high, search.low, base, search.row, labels, problem, grouping.of, point
            )
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
def _tell_neighbours(labels, problem, search, n_queue, point, old, new):  # type: ignore[no-untyped-def]
    """Queue the groups next to a moved member and carry the change into large ones."""
    n_clusters = search.row.shape[0]
    for edge in range(problem.start[point], problem.start[point + 1]):
        other = problem.neighbour[edge] - problem.first
        if other < 0 or other >= search.slot.shape[0]:
            continue
        group = np.int64(search.slot[other])
        if group < 0 or group == search.slot[point]:
            continue
        if search.kept[group] >= 0:
            base = np.int64(search.kept[group]) * (n_clusters + 1)
            label, cost = labels[problem.neighbour[edge]], problem.cost[edge]
            _carry(search.high, search.low, base, n_clusters, old, new, label, cost)
        if not search.waiting[group]:
            search.waiting[group] = 1
            search.queue[n_queue] = group
            n_queue += 1
    return n_queue


@inner(inline="always")
def _move(labels, problem, grouping, search, group):  # type: ignore[no-untyped-def]
    """Move a group; return how many others are queued."""
    new = search.targets[group]
    n_queue = 0
    for place in range(grouping.start[group], grouping.start[group + 1]):
        point = np.int64(grouping.member[place])
        old = labels[point]
        if old != new:
            labels[point] = new
            n_queue = _tell_neighbours(
                labels, problem, search, n_queue, point - problem.first, old, new
            )
    if search.kept[group] >= 0:  # now "all at new"; nothing else depends on its own labels
        last = search.row.shape[0]
        base = np.int64(search.kept[group]) * (last + 1)
        search.high[base + last] = search.high[base + new]
        search.low[base + last] = search.low[base + new]
    return n_queue


@njit(nogil=True, cache=True, makes_arrays=False)
def _move_groups(labels, problem, grouping, search, n_queue, heap):  # type: ignore[no-untyped-def]
    # the kept sums are added up by points and not by groups: each reads its costs in one go
    for point in range(search.slot.shape[0]):
        if search.slot[point] >= 0 and search.kept[search.slot[point]] >= 0:
            base = np.int64(search.kept[search.slot[point]]) * (search.row.shape[0] + 1)
            add_member(
                search.high, search.low, base, search.row, labels, problem, grouping.of, point
            )
    moves = 0
    while True:
        for place in range(n_queue):
            group = np.int64(search.queue[place])
            search.waiting[group] = 0
            high, low = _settle(labels, problem, grouping, search, group)
            if high != heap.high[group] or low != heap.low[group]:
                heap.high[group] = high
                heap.low[group] = low
                place_item(heap.high, heap.low, heap.items, heap.position, heap.size, group)
        if heap.size[0] == 0:
            return moves
        group = np.int64(heap.items[0])
        n_queue = _move(labels, problem, grouping, search, group)
        heap.high[group] = 0
        heap.low[group] = 0
        place_item(heap.high, heap.low, heap.items, heap.position, heap.size, group)
        moves += 1


def run_groups(labels: LabelArray, problem: ProblemArrays, grouping: Grouping) -> int:
    """Make the group move with the largest gain until none gains; return the number of moves."""
    may_move = np.flatnonzero(np.diff(grouping.start) >= 2).astype(np.int32)
    if len(may_move) == 0:
        return 0
    search = _begin(problem, grouping, may_move)
    heap = empty_heap(len(grouping.start) - 1, True)
    return int(_move_groups(labels, problem, grouping, search, len(may_move), heap))


def _begin(problem: ProblemArrays, grouping: Grouping, may_move: LabelArray) -> _Search:
    """Return what a run of group moves keeps, with all sums at nought."""
    n, n_clusters = problem.costs.shape
    n_groups = len(grouping.start) - 1
    sizes = np.diff(grouping.start)
    local = grouping.member - np.int32(problem.first)
    slot = np.full(n, -1, np.int32)
    slot[local] = np.repeat(np.where(sizes >= 2, np.arange(n_groups), -1), sizes)
    work = np.concatenate([[0], np.cumsum(n_clusters + np.diff(problem.start)[local])])
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


# A point with more neighbours than this (and than 4 K) keeps its cost row up to date: a star of m
# leaves would otherwise cost m looks at m neighbours. All kept rows together stay below 4 bytes a
# half-edge.
HUB_DEGREE = 64
_UNKNOWN = np.zeros(0, np.int64)
_UNKNOWN.setflags(write=False)


@inner()
def _fill(row, labels, costs, shift, start, neighbour, cost, point):  # type: ignore[no-untyped-def]
    """Write the cost row of a local point (`fill_row`)."""
    for h in range(costs.shape[1]):
        row[h] = np.int64(costs[point, h]) << shift
    for edge in range(start[point], start[point + 1]):
        row[labels[neighbour[edge]]] += cost[edge]


@inner()
def _least(row):  # type: ignore[no-untyped-def]
    least = row[0]
    for h in range(1, row.shape[0]):
        least = min(least, row[h])
    return least


@njit(nogil=True, cache=True, makes_arrays=False)
def _move_points(labels, problem, known, enough, hub, rows, heap):  # type: ignore[no-untyped-def]
    """Move the best point, and settle its neighbours again, until none gains.

    `rows` are the cost rows of hubs (`hub` says which; they have `enough` neighbours), the last a
    spare. Gains that are `known` stand in the heap's already.
    """
    first, costs, shift, start, neighbour, cost = problem
    gains, low, items, position, size = heap
    n = costs.shape[0]
    spare = rows[rows.shape[0] - 1]
    for point in range(n):
        if not known or hub[point] >= 0:
            row = rows[hub[point]] if hub[point] >= 0 else spare
            _fill(row, labels, costs, shift, start, neighbour, cost, point)
            gains[point] = row[labels[first + point]] - _least(row)
        if gains[point] > 0:
            place_item(gains, low, items, position, size, point)
    moves = 0
    while size[0] > 0:
        mover = np.int64(items[0])
        row = rows[hub[mover]] if hub[mover] >= 0 else spare
        if hub[mover] < 0:
            _fill(row, labels, costs, shift, start, neighbour, cost, mover)
        old = labels[first + mover]
        least = _least(row)
        new = 0
        while row[new] != least:
            new += 1
        labels[first + mover] = new
        # its own row does not depend on its own label: it is now where it is cheapest
        gains[mover] = 0
        place_item(gains, low, items, position, size, mover)
        moves += 1
        for edge in range(start[mover], start[mover + 1]):
            other = neighbour[edge] - first
            if other < 0 or other >= n:
                continue
            if start[other + 1] - start[other] >= enough:  # looked at anyway, unlike `hub`
                row = rows[hub[other]]
                row[old] -= cost[edge]
                row[new] += cost[edge]
            else:
                row = spare
                _fill(row, labels, costs, shift, start, neighbour, cost, other)
            gain = row[labels[first + other]] - _least(row)
            if gain != gains[other]:
                gains[other] = gain
                place_item(gains, low, items, position, size, other)
    return moves


def _run_points(labels: LabelArray, problem: ProblemArrays, gains: IntArray = _UNKNOWN) -> int:
    """Make the single move with the largest gain until none gains; return the number of moves."""
    n, n_clusters = problem.costs.shape
    enough = max(HUB_DEGREE, 4 * n_clusters)
    hub, n_hubs = _hubs(problem.start, enough)
    rows = np.empty((n_hubs + 1, n_clusters), np.int64)
    heap = empty_heap(n, False)
    known = n > 0 and len(gains) == n
    if known:
        heap.high[:] = gains
    return int(_move_points(labels, problem, known, enough, hub, rows, heap))


def _hubs(start: IntArray, degree: int) -> tuple[LabelArray, int]:
    """Return the number of each hub (-1: not one), and how many there are."""
    are = np.diff(start) >= degree
    return np.where(are, np.cumsum(are, dtype=np.int32) - np.int32(1), np.int32(-1)), int(are.sum())


def heap_moves(
    labels: LabelArray,
    costs: AnyArray,
    shift: int,
    start: AnyArray,
    neighbour: AnyArray,
    cost: AnyArray,
) -> int:
    """Make the single move with the largest gain until no single move gains.

    Parameters
    ----------
    labels : int32 array, shape (n,)
        Changed in place.
    costs : int32 array, shape (n, K)
        Distortions in units of ``2**shift``, each row with its minimum subtracted.
    shift : int
        At least 0.
    start, neighbour, cost : arrays
        Pairs with signed costs, as `hmrf_dask.kernels.problem.adjacency` returns them.

    Returns
    -------
    int
        Number of moves. Ties go to the present label, then the lowest cluster; equal gains are
        taken in the order of the points.
    """
    problem = make_problem(0, costs, shift, start, neighbour, cost)
    return _run_points(labels, problem)


def heap_moves_piece(
    labels: LabelArray,
    first: int,
    costs: AnyArray,
    shift: int,
    start: AnyArray,
    neighbour: AnyArray,
    cost: AnyArray,
) -> int:
    """Run `heap_moves` on the points ``first .. first + len(costs)`` with all others frozen.

    `labels` is of the whole component and changed in place; `neighbour` holds global indices.
    """
    problem = make_problem(first, costs, shift, start, neighbour, cost)
    return _run_points(labels, problem)


def component_moves(
    labels: LabelArray,
    costs: AnyArray,
    shift: int,
    start: AnyArray,
    neighbour: AnyArray,
    cost: AnyArray,
    groups: LabelArray,
    group_start: IntArray,
    group_member: LabelArray,
) -> int:
    """Move the whole must-link group with the largest gain until no group move gains.

    Parameters
    ----------
    labels, costs, shift, start, neighbour, cost
        As in `heap_moves`.
    groups : int32 array, shape (n,)
        Must-link group of every point, groups numbered by their lowest member.
    group_start, group_member : int64 and int32 arrays
        Members of the groups as CSR; groups of one point are passed over.

    Returns
    -------
    int
        Number of groups moved. A tie leaves a group as it is; then the lowest cluster; equal
        gains are taken in the order of the groups.
    """
    problem = make_problem(0, costs, shift, start, neighbour, cost)
    return run_groups(labels, problem, make_grouping(groups, group_start, group_member))


def component_moves_piece(
    labels: LabelArray,
    first: int,
    costs: AnyArray,
    shift: int,
    start: AnyArray,
    neighbour: AnyArray,
    cost: AnyArray,
    groups: LabelArray,
    group_start: IntArray,
    group_member: LabelArray,
) -> int:
    """Run `component_moves` on groups that lie wholly inside a piece, with all others frozen.

    `labels` and `groups` are of the whole component; `group_start` and `group_member` (global
    indices) list the groups inside the piece only.
    """
    problem = make_problem(first, costs, shift, start, neighbour, cost)
    return run_groups(labels, problem, make_grouping(groups, group_start, group_member))


@njit(nogil=True, cache=True, makes_arrays=False)
def _gains_near(labels, before, problem, look, row, gains):  # type: ignore[no-untyped-def]
    """Write the gains of all points after some have moved, when none had a gain before."""
    _, costs, shift, start, neighbour, cost = problem
    for point in range(costs.shape[0]):
        if labels[point] != before[point]:
            look[point] = True
            for edge in range(start[point], start[point + 1]):
                look[neighbour[edge]] = True
    for point in range(costs.shape[0]):
        if look[point]:
            _fill(row, labels, costs, shift, start, neighbour, cost, point)
            gains[point] = row[labels[point]] - _least(row)


def alternate(
    labels: LabelArray, problem: ProblemArrays, grouping: Grouping, gains: IntArray = _UNKNOWN
) -> tuple[int, int]:
    """Run single moves and group moves in turn until neither moves; return how often each moved.

    `problem` are of whole components; `gains` as of `icm`.
    """
    points = _run_points(labels, problem, gains)
    groups = 0
    while True:
        before = frozen(labels.copy(), np.int32)
        moved = run_groups(labels, problem, grouping)
        groups += moved
        if moved == 0:
            return points, groups
        near, look = np.zeros(len(labels), np.int64), np.zeros(len(labels), np.bool_)
        _gains_near(labels, before, problem, look, np.empty(problem.costs.shape[1], np.int64), near)
        points += _run_points(labels, problem, near)


def icm(
    labels: LabelArray,
    costs: AnyArray,
    shift: int,
    start: AnyArray,
    neighbour: AnyArray,
    cost: AnyArray,
    groups: LabelArray,
    group_start: IntArray,
    group_member: LabelArray,
    gains: IntArray = _UNKNOWN,
) -> tuple[int, int]:
    """Run `heap_moves` and `component_moves` in turn until neither moves.

    Parameters
    ----------
    gains : int64 array, shape (n,), optional
        What each point would gain by its best move, where that is known already.

    Returns
    -------
    single_moves, group_moves : int
        How often each moved; `labels` is changed in place. In the end no single point and no
        must-link group can move with a gain.
    """
    problem = make_problem(0, costs, shift, start, neighbour, cost)
    return alternate(labels, problem, make_grouping(groups, group_start, group_member), gains)
