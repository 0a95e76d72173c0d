"""ICM in sweeps on a component with closure tables: whole groups first, then points, in order.

Equal to the same sweeps over all closure pairs, integer for integer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from hmrf_dask.kernels.limbs import add_limbs, best_limbs
from hmrf_dask.kernels.links import Grouping, Links, best_cluster, fill_row
from hmrf_dask.kernels.reconcile import find
from hmrf_dask.kernels.tables import (
    Closure,
    QuantisedRows,
    add_row,
    build_tables,
    empty_change,
    gather,
    spread,
)
from hmrf_dask.types import AnyArray, LabelArray


class _Clock(NamedTuple):
    """When something changed and when it was last looked at: what is unchanged is passed over."""

    now: AnyArray
    table_changed: AnyArray
    group_changed: AnyArray
    group_looked: AnyArray
    looked: AnyArray


@njit(nogil=True, cache=True)
def _start_clock(n, n_groups):  # type: ignore[no-untyped-def]
    return _Clock(
        np.zeros(1, np.int64),
        np.zeros(n_groups, np.int64),
        np.zeros(n_groups, np.int64),
        np.full(n_groups, -1, np.int64),
        np.full(n, -1, np.int64),
    )


@njit(nogil=True, cache=True)
def _tick(clock, closure, group):  # type: ignore[no-untyped-def]
    """Note that a member of a group moves: its closure and that of its rivals change."""
    clock.now[0] += 1
    clock.group_changed[group] = clock.now[0]
    if closure.must_weight[group] != 0:
        clock.table_changed[group] = clock.now[0]
    for at in range(closure.rival_start[group], closure.rival_start[group + 1]):
        clock.group_changed[closure.rival[at]] = clock.now[0]
        clock.table_changed[closure.rival[at]] = clock.now[0]


@njit(nogil=True, cache=True)
def _wake_neighbours(clock, links, of, point):  # type: ignore[no-untyped-def]
    for edge in range(links.start[point], links.start[point + 1]):
        other = links.neighbour[edge]
        clock.looked[other] = -1
        clock.group_changed[of[other]] = clock.now[0]


@njit(nogil=True, cache=True)
def _add_dot(row, rows, point, sums, place):  # type: ignore[no-untyped-def]
    """Add q_i · sums by cluster; `place` says where the row's features stand in `sums`."""
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        value = np.int64(rows.values[entry])
        at = place[entry]
        for h in range(row.shape[0]):
            row[h] += value * sums[at, h]


@njit(nogil=True, cache=True)
def _add_closure(row, labels, tables, rows, closure, group, point):  # type: ignore[no-untyped-def]
    """Add what the closure makes each cluster cost for a point."""
    slot = tables.slot[group]
    if slot < 0:
        return
    for h in range(row.shape[0]):
        row[h] += rows.own[point] * tables.counts[slot, h] + tables.constants[slot, h]
    sums = tables.sums[tables.feature_start[slot] : tables.feature_start[slot + 1]]
    _add_dot(row, rows, point, sums, tables.place)
    # the point itself stands in its group's sums: take it out
    row[labels[point]] += closure.must_weight[group] * tables.itself[point]


@njit(nogil=True, cache=True)
def _move_row(tables, rows, closure, group, own_group, point, old, new, weight, largest):  # type: ignore[no-untyped-def]
    """Take a point from one column of a group's table to another."""
    slot = tables.slot[group]
    tables.counts[slot, old] += weight
    tables.counts[slot, new] -= weight
    constant = weight * (largest - rows.own[point])
    tables.constants[slot, old] -= constant
    tables.constants[slot, new] += constant
    first = tables.feature_start[slot]
    features = tables.feature[first : tables.feature_start[slot + 1]]
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        at = tables.place[entry] if own_group else find(features, rows.indices[entry])
        if at >= 0:
            value = weight * closure.kappa * np.int64(rows.values[entry])
            if rows.indices[entry] == closure.negative_column:
                value = -value
            tables.sums[first + at, old] -= value
            tables.sums[first + at, new] += value


@njit(nogil=True, cache=True)
def _move_point(labels, links, tables, rows, closure, of, clock, point, new):  # type: ignore[no-untyped-def]
    group = of[point]
    old = labels[point]
    labels[point] = new
    weight = closure.must_weight[group]
    if weight != 0:
        _move_row(tables, rows, closure, group, True, point, old, new, weight, 0)
    for at in range(closure.rival_start[group], closure.rival_start[group + 1]):
        rival = closure.rival[at]
        weight = closure.rival_weight[at]
        largest = closure.largest
        _move_row(tables, rows, closure, rival, False, point, old, new, weight, largest)
    _tick(clock, closure, group)
    _wake_neighbours(clock, links, of, point)


@njit(nogil=True, cache=True)
def _sweep_points(labels, links, tables, rows, closure, of, clock):  # type: ignore[no-untyped-def]
    row = np.empty(links.costs.shape[1], np.int64)
    moves = 0
    for point in range(labels.shape[0]):
        group = of[point]
        if clock.looked[point] >= clock.table_changed[group]:
            continue
        fill_row(row, labels, links, point)
        _add_closure(row, labels, tables, rows, closure, group, point)
        target = best_cluster(row, labels[point])
        if target != labels[point]:
            _move_point(labels, links, tables, rows, closure, of, clock, point, target)
            moves += 1
        clock.looked[point] = clock.now[0]
    return moves


@njit(nogil=True, cache=True)
def _inner_pairs(labels, links, of, point):  # type: ignore[no-untyped-def]
    """Return the explicit costs inside the point's group: of all pairs, of those at its cluster."""
    together = np.int64(0)
    together_now = np.int64(0)
    for edge in range(links.start[point], links.start[point + 1]):
        other = links.neighbour[edge]
        if of[other] == of[point]:
            together += links.cost[edge]
            if labels[other] == labels[point]:
                together_now += links.cost[edge]
    return together, together_now


@njit(nogil=True, cache=True)
def _own_part(inner, labels, tables, rows, closure, group, point, change):  # type: ignore[no-untyped-def]
    """Write what the closure inside the point's own group makes each cluster cost."""
    block, count, own = change
    weight = closure.must_weight[group]
    inner[:] = 0
    _add_dot(inner, rows, point, block, tables.place)
    for h in range(inner.shape[0]):
        inner[h] = weight * (closure.kappa * inner[h] - count[h] * rows.own[point] - own[h])
    inner[labels[point]] += weight * tables.itself[point]


@njit(nogil=True, cache=True)
def _group_energies(labels, links, tables, rows, closure, grouping, group):  # type: ignore[no-untyped-def]
    """Return the K + 1 energies of a group, doubled: a pair inside it counts at each of its ends.

    The cost row of a member holds its pairs inside the group too: they are taken out of it, and
    put back for "all at h" (every pair) and "as it is" (pairs at one cluster).
    """
    n_clusters = links.costs.shape[1]
    high = np.zeros(n_clusters + 1, np.int64)
    low = np.zeros(n_clusters + 1, np.int64)
    row = np.empty(n_clusters, np.int64)
    inner = np.zeros(n_clusters, np.int64)
    closed = closure.must_weight[group] != 0
    change = (tables.scratch[:0], inner, inner)
    if closed:
        change = gather(labels, tables, rows, closure, grouping, group)
    for at in range(grouping.start[group], grouping.start[group + 1]):
        point = grouping.member[at]
        label = labels[point]
        fill_row(row, labels, links, point)
        _add_closure(row, labels, tables, rows, closure, group, point)
        if closed:
            _own_part(inner, labels, tables, rows, closure, group, point, change)
        together, together_now = _inner_pairs(labels, links, grouping.of, point)
        together += inner.sum()
        together_now += inner[label]
        _take_out(row, inner, labels, links, grouping.of, point)
        for h in range(n_clusters):
            add_limbs(high, low, h, 2 * row[h] + together)
        add_limbs(high, low, n_clusters, 2 * row[label] + together_now)
    return high, low


@njit(nogil=True, cache=True)
def _take_out(row, inner, labels, links, of, point):  # type: ignore[no-untyped-def]
    for h in range(row.shape[0]):
        row[h] -= inner[h]
    for edge in range(links.start[point], links.start[point + 1]):
        other = links.neighbour[edge]
        if of[other] == of[point]:
            row[labels[other]] -= links.cost[edge]


@njit(nogil=True, cache=True)
def _move_group(labels, links, tables, rows, closure, grouping, clock, group, new):  # type: ignore[no-untyped-def]
    _tick(clock, closure, group)
    closed = tables.slot[group] >= 0
    change = (tables.scratch[:0], np.zeros(0, np.int64), np.zeros(0, np.int64))
    if closed:
        change = empty_change(tables, group)
    for at in range(grouping.start[group], grouping.start[group + 1]):
        point = grouping.member[at]
        if labels[point] == new:
            continue
        if closed:
            add_row(change, tables, rows, closure.negative_column, point, labels[point], -1)
            add_row(change, tables, rows, closure.negative_column, point, new, 1)
        labels[point] = new
        _wake_neighbours(clock, links, grouping.of, point)
    if closed:
        spread(tables, closure, group, change)
    clock.group_looked[group] = clock.now[0]


@njit(nogil=True, cache=True)
def _pass_groups(labels, links, tables, rows, closure, grouping, clock):  # type: ignore[no-untyped-def]
    moves = 0
    for group in range(grouping.start.shape[0] - 1):
        if grouping.start[group + 1] - grouping.start[group] < 2:
            continue
        if clock.group_looked[group] >= clock.group_changed[group]:
            continue
        high, low = _group_energies(labels, links, tables, rows, closure, grouping, group)
        target, _, _ = best_limbs(high, low)
        clock.group_looked[group] = clock.now[0]
        if target >= 0:
            _move_group(labels, links, tables, rows, closure, grouping, clock, group, target)
            moves += 1
    return moves


@njit(nogil=True, cache=True)
def _run(labels, links, tables, rows, closure, grouping):  # type: ignore[no-untyped-def]
    clock = _start_clock(labels.shape[0], tables.slot.shape[0])
    points = 0
    groups = 0
    sweeps = 0
    while True:
        moved_groups = _pass_groups(labels, links, tables, rows, closure, grouping, clock)
        moved = _sweep_points(labels, links, tables, rows, closure, grouping.of, clock)
        points += moved
        groups += moved_groups
        sweeps += 1
        if moved == 0 and moved_groups == 0:
            return points, groups, sweeps


def table_icm(
    labels: LabelArray,
    links: Links,
    rows: QuantisedRows,
    closure: Closure,
    grouping: Grouping,
) -> tuple[int, int, int]:
    """Move whole groups, then points, in order, until neither a group nor a point gains.

    Parameters
    ----------
    labels : int32 array, shape (n,)
        Changed in place.
    links : Links
        Costs of the points, and explicit pairs beside the closure (`make_links`, first = 0).
    rows, closure : QuantisedRows, Closure
        The closure (`make_rows`, `make_closure`).
    grouping : Grouping
        Must-link group of every point (`make_grouping`).

    Returns
    -------
    point_moves, group_moves, sweeps : int
        Ties go to the present label, then to the lowest cluster.
    """
    tables = build_tables(labels, rows, closure, grouping, links.costs.shape[1])
    points, groups, sweeps = _run(labels, links, tables, rows, closure, grouping)
    return int(points), int(groups), int(sweeps)


@njit(nogil=True, cache=True)
def _group_gain(labels, links, tables, rows, closure, grouping, group):  # type: ignore[no-untyped-def]
    high, low = _group_energies(labels, links, tables, rows, closure, grouping, group)
    return best_limbs(high, low)


def group_gain(
    labels: LabelArray,
    links: Links,
    rows: QuantisedRows,
    closure: Closure,
    grouping: Grouping,
    group: int,
) -> tuple[int, int]:
    """Return (best cluster, exact gain) of moving a whole group; (-1, 0) where none gains."""
    tables = build_tables(labels, rows, closure, grouping, links.costs.shape[1])
    arrays = links, tables, rows, closure, grouping
    target, high, low = _group_gain(labels, *arrays, int(group))
    return int(target), ((int(high) << 32) + int(low)) // 2
