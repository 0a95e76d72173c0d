"""Exact ICM on linked rows: always the single move, then the group move, with the largest gain.

Energy: sum of D[i, l_i] plus the signed cost of every pair with equal labels, all integers, so that
every accepted move lowers it by at least one unit (KDD 2004, E-step; `design.md`, Linked rows).
"""

from __future__ import annotations

import numpy as np

from hmrf_dask.kernels.arrays import frozen
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.groups import run_groups
from hmrf_dask.kernels.heap import empty_heap, place_item
from hmrf_dask.kernels.links import Grouping, Links, make_grouping, make_links
from hmrf_dask.types import AnyArray, IntArray, LabelArray

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
def _move_points(labels, links, known, enough, hub, rows, heap):  # type: ignore[no-untyped-def]
    """Move the best point, and settle its neighbours again, until none gains.

    `rows` are the cost rows of hubs (`hub` says which; they have `enough` neighbours), the last a
    spare. Gains that are `known` stand in the heap's already.
    """
    first, costs, shift, start, neighbour, cost = links
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


def _run_points(labels: LabelArray, links: Links, gains: IntArray = _UNKNOWN) -> int:
    """Make the single move with the largest gain until none gains; return the number of moves."""
    n, n_clusters = links.costs.shape
    enough = max(HUB_DEGREE, 4 * n_clusters)
    hub, n_hubs = _hubs(links.start, enough)
    rows = np.empty((n_hubs + 1, n_clusters), np.int64)
    heap = empty_heap(n, False)
    known = n > 0 and len(gains) == n
    if known:
        heap.high[:] = gains
    return int(_move_points(labels, links, known, enough, hub, rows, heap))


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
        Pairs with signed costs, as `hmrf_dask.kernels.links.adjacency` returns them.

    Returns
    -------
    int
        Number of moves. Ties go to the present label, then the lowest cluster; equal gains are
        taken in the order of the points.
    """
    links = make_links(0, costs, shift, start, neighbour, cost)
    return _run_points(labels, links)


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
    links = make_links(first, costs, shift, start, neighbour, cost)
    return _run_points(labels, links)


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
    links = make_links(0, costs, shift, start, neighbour, cost)
    return run_groups(labels, links, make_grouping(groups, group_start, group_member))


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
    links = make_links(first, costs, shift, start, neighbour, cost)
    return run_groups(labels, links, make_grouping(groups, group_start, group_member))


@njit(nogil=True, cache=True, makes_arrays=False)
def _gains_near(labels, before, links, look, row, gains):  # type: ignore[no-untyped-def]
    """Write the gains of all points after some have moved, when none had a gain before."""
    _, costs, shift, start, neighbour, cost = links
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
    labels: LabelArray, links: Links, grouping: Grouping, gains: IntArray = _UNKNOWN
) -> tuple[int, int]:
    """Run single moves and group moves in turn until neither moves; return how often each moved.

    `links` are of whole components; `gains` as of `icm`.
    """
    points = _run_points(labels, links, gains)
    groups = 0
    while True:
        before = frozen(labels.copy(), np.int32)
        moved = run_groups(labels, links, grouping)
        groups += moved
        if moved == 0:
            return points, groups
        near, look = np.zeros(len(labels), np.int64), np.zeros(len(labels), np.bool_)
        _gains_near(labels, before, links, look, np.empty(links.costs.shape[1], np.int64), near)
        points += _run_points(labels, links, near)


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
    links = make_links(0, costs, shift, start, neighbour, cost)
    return alternate(labels, links, make_grouping(groups, group_start, group_member), gains)
