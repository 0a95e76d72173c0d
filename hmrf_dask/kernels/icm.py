"""Exact ICM on linked rows: always the single move, then the group move, with the largest gain.

Energy: sum of D[i, l_i] plus the signed cost of every pair with equal labels, all integers, so that
every accepted move lowers it by at least one unit (KDD 2004, E-step; `design.md`, Linked rows).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from hmrf_dask.kernels.groups import run_groups
from hmrf_dask.kernels.heap import Heap, build_heap, empty_heap, set_gain
from hmrf_dask.kernels.links import (
    Grouping,
    Links,
    best_cluster,
    fill_row,
    make_grouping,
    make_links,
)
from hmrf_dask.types import AnyArray, IntArray, LabelArray

# A point with more neighbours than this (and than 4 K) keeps its cost row up to date: a star of m
# leaves would otherwise cost m looks at m neighbours. All kept rows together stay below 4 bytes a
# half-edge.
HUB_DEGREE = 64


class _Search(NamedTuple):
    """What a run of single moves keeps: targets, the heap, and the cost rows of hubs."""

    targets: AnyArray
    heap: Heap
    row: AnyArray
    hub_degree: int
    hub: AnyArray
    hub_rows: AnyArray


# inlined: a call that passes all these arrays costs more than the work it does
@njit(nogil=True, cache=True, inline="always")
def _settle(labels, links, search, point):  # type: ignore[no-untyped-def]
    """Set the target of a local point and return its gain."""
    present = labels[links.first + point]
    if links.start[point + 1] - links.start[point] >= search.hub_degree:
        row = search.hub_rows[search.hub[point]]
        target = best_cluster(row, present)
        gain = row[present] - row[target]
    else:
        fill_row(search.row, labels, links, point)
        target = best_cluster(search.row, present)
        gain = search.row[present] - search.row[target]
    if gain > 0:
        search.targets[point] = target
    return gain


@njit(nogil=True, cache=True)
def _begin(labels, links):  # type: ignore[no-untyped-def]
    n, n_clusters = links.costs.shape
    least = max(HUB_DEGREE, 4 * n_clusters)
    hub = np.full(n, -1, np.int32)
    n_hubs = 0
    for point in range(n):
        if links.start[point + 1] - links.start[point] >= least:
            hub[point] = n_hubs
            n_hubs += 1
    search = _Search(
        np.empty(n, np.int32),
        empty_heap(n, False),
        np.empty(n_clusters, np.int64),
        least,
        hub,
        np.empty((n_hubs, n_clusters), np.int64),
    )
    for point in range(n):
        if hub[point] >= 0:
            fill_row(search.hub_rows[hub[point]], labels, links, point)
        search.heap.high[point] = _settle(labels, links, search, point)
    build_heap(search.heap)
    return search


@njit(nogil=True, cache=True)
def _move(labels, links, search, point):  # type: ignore[no-untyped-def]
    """Move a local point to its target and settle its neighbours again; outside stays as it is."""
    old = labels[links.first + point]
    new = search.targets[point]
    labels[links.first + point] = new
    # its own row does not depend on its own label: it is now where it is cheapest
    set_gain(search.heap, point, 0, 0)
    for edge in range(links.start[point], links.start[point + 1]):
        other = links.neighbour[edge] - links.first
        if other < 0 or other >= links.costs.shape[0]:
            continue
        if links.start[other + 1] - links.start[other] >= search.hub_degree:
            search.hub_rows[search.hub[other], old] -= links.cost[edge]
            search.hub_rows[search.hub[other], new] += links.cost[edge]
        set_gain(search.heap, other, _settle(labels, links, search, other), 0)


@njit(nogil=True, cache=True)
def _run_points(labels, links):  # type: ignore[no-untyped-def]
    search = _begin(labels, links)
    moves = 0
    while search.heap.size[0] > 0:
        _move(labels, links, search, search.heap.items[0])
        moves += 1
    return moves


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
