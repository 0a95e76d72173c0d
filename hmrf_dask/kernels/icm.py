"""Exact ICM on linked rows: always the single move, then the group move, with the largest gain.

Energy: sum of D[i, l_i] plus the signed cost of every pair with equal labels, all integers, so that
every accepted move lowers it by at least one unit (KDD 2004, E-step; `design.md`, Linked rows).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import njit
from hmrf_dask.kernels.groups import run_groups
from hmrf_dask.kernels.heap import Heap, build_heap, empty_heap, place_item
from hmrf_dask.kernels.links import (
    Grouping,
    Links,
    make_grouping,
    make_links,
)
from hmrf_dask.types import AnyArray, IntArray, LabelArray

# A point with more neighbours than this (and than 4 K) keeps its cost row up to date: a star of m
# leaves would otherwise cost m looks at m neighbours. All kept rows together stay below 4 bytes a
# half-edge.
HUB_DEGREE = 64


class _Search(NamedTuple):
    """What a run of single moves keeps: the heap, and the cost rows of hubs, the last a spare."""

    heap: Heap
    hub: AnyArray
    rows: AnyArray


@njit(nogil=True, cache=True)
def _hub_degree(n_clusters):  # type: ignore[no-untyped-def]
    return max(HUB_DEGREE, 4 * n_clusters)


# Numba counts references, atomically, to an array taken out of a tuple or to a row of a matrix:
# what runs for every neighbour of a move is given plain arrays.
@njit(nogil=True, cache=True, inline="always")
def _fill(rows, at, labels, costs, shift, start, neighbour, cost, point):  # type: ignore[no-untyped-def]
    """Write the cost row of a local point (`fill_row`) into a row of `rows`."""
    for h in range(costs.shape[1]):
        rows[at, h] = np.int64(costs[point, h]) << shift
    for edge in range(start[point], start[point + 1]):
        rows[at, labels[neighbour[edge]]] += cost[edge]


@njit(nogil=True, cache=True, inline="always")
def _least(rows, at):  # type: ignore[no-untyped-def]
    least = rows[at, 0]
    for h in range(1, rows.shape[1]):
        least = min(least, rows[at, h])
    return least


@njit(nogil=True, cache=True)
def _begin(labels, links):  # type: ignore[no-untyped-def]
    n, n_clusters = links.costs.shape
    start = links.start
    enough = _hub_degree(n_clusters)
    hub = np.full(n, -1, np.int32)
    n_hubs = 0
    for point in range(n):
        if start[point + 1] - start[point] >= enough:
            hub[point] = n_hubs
            n_hubs += 1
    search = _Search(empty_heap(n, False), hub, np.empty((n_hubs + 1, n_clusters), np.int64))
    _settle_all(
        search.heap.high, search.rows, hub, labels, links.first, links.costs, links.shift, start,
        links.neighbour, links.cost,
    )  # fmt: skip
    return search


@njit(nogil=True, cache=True)
def _settle_all(gains, rows, hub, labels, first, costs, shift, start, neighbour, cost):  # type: ignore[no-untyped-def]
    for point in range(costs.shape[0]):
        at = hub[point] if hub[point] >= 0 else rows.shape[0] - 1
        _fill(rows, at, labels, costs, shift, start, neighbour, cost, point)
        gains[point] = rows[at, labels[first + point]] - _least(rows, at)


@njit(nogil=True, cache=True)
def _empty_heap(  # type: ignore[no-untyped-def]
    gains, low, items, position, size, rows, hub, labels, first, costs, shift, start,
    neighbour, cost,
):  # fmt: skip
    """Move the best point of the heap, and settle its neighbours again, until the heap is empty."""
    n = costs.shape[0]
    spare = rows.shape[0] - 1
    enough = _hub_degree(rows.shape[1])
    moves = 0
    while size[0] > 0:
        point = np.int64(items[0])
        at = np.int64(hub[point])
        if at < 0:
            at = spare
            _fill(rows, at, labels, costs, shift, start, neighbour, cost, point)
        old = labels[first + point]
        least = _least(rows, at)
        new = 0
        while rows[at, new] != least:
            new += 1
        labels[first + point] = new
        # its own row does not depend on its own label: it is now where it is cheapest
        gains[point] = 0
        place_item(gains, low, items, position, size, point)
        moves += 1
        for edge in range(start[point], start[point + 1]):
            other = neighbour[edge] - first
            if other < 0 or other >= n:
                continue
            if start[other + 1] - start[other] >= enough:  # looked at anyway, unlike `hub`
                at = np.int64(hub[other])
                rows[at, old] -= cost[edge]
                rows[at, new] += cost[edge]
            else:
                at = spare
                _fill(rows, at, labels, costs, shift, start, neighbour, cost, other)
            gain = rows[at, labels[first + other]] - _least(rows, at)
            if gain != gains[other]:
                gains[other] = gain
                place_item(gains, low, items, position, size, other)
    return moves


@njit(nogil=True, cache=True)
def _run_points(labels, links):  # type: ignore[no-untyped-def]
    search = _begin(labels, links)
    heap = search.heap
    build_heap(heap)
    return _empty_heap(
        heap.high, heap.low, heap.items, heap.position, heap.size, search.rows, search.hub, labels,
        links.first, links.costs, links.shift, links.start, links.neighbour, links.cost,
    )  # fmt: skip


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
    return int(_run_points(labels, make_links(0, costs, shift, start, neighbour, cost)))


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
    return int(_run_points(labels, make_links(first, costs, shift, start, neighbour, cost)))


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
    return int(run_groups(labels, links, make_grouping(groups, group_start, group_member)))


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
    return int(run_groups(labels, links, make_grouping(groups, group_start, group_member)))


def alternate(labels: LabelArray, links: Links, grouping: Grouping) -> tuple[int, int]:
    """Run single moves and group moves in turn until neither moves; return how often each moved."""
    points = int(_run_points(labels, links))
    groups = 0
    while True:
        moved = int(run_groups(labels, links, grouping))
        groups += moved
        if moved == 0:
            return points, groups
        points += int(_run_points(labels, links))


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
) -> tuple[int, int]:
    """Run `heap_moves` and `component_moves` in turn until neither moves.

    Returns
    -------
    single_moves, group_moves : int
        How often each moved; `labels` is changed in place. In the end no single point and no
        must-link group can move with a gain.
    """
    links = make_links(0, costs, shift, start, neighbour, cost)
    return alternate(labels, links, make_grouping(groups, group_start, group_member))
