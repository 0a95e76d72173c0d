"""ICM in sweeps on a component with closure tables: whole groups first, then points, in order.

Equal to the same sweeps over all closure pairs, integer for integer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.limbs import best_limbs
from hmrf_dask.kernels.links import Grouping, Links, best_cluster, fill_row
from hmrf_dask.kernels.table_changes import add_row, empty_change, gather, put_point, spread
from hmrf_dask.kernels.table_costs import add_closure, group_energies
from hmrf_dask.kernels.tables import Closure, QuantisedRows, build_tables
from hmrf_dask.types import AnyArray, LabelArray


class _Clock(NamedTuple):
    """When something changed and when it was last looked at: what is unchanged is passed over.

    Groups with a table are told when a rival moves; the others ask when their rivals `moved`.
    """

    now: AnyArray
    moved: AnyArray
    table_changed: AnyArray
    group_changed: AnyArray
    group_looked: AnyArray
    looked: AnyArray


def _start_clock(n: int, n_groups: int) -> _Clock:
    return _Clock(
        np.zeros(1, np.int64),
        np.zeros(n_groups, np.int64),
        np.zeros(n_groups, np.int64),
        np.zeros(n_groups, np.int64),
        np.full(n_groups, -1, np.int64),
        np.full(n, -1, np.int64),
    )


@inner()
def _tick(clock, tables, closure, group):  # type: ignore[no-untyped-def]
    """Note that a member of a group moves: its closure and that of its rivals change."""
    clock.now[0] += 1
    clock.moved[group] = clock.now[0]
    clock.group_changed[group] = clock.now[0]
    if closure.must_weight[group] != 0:
        clock.table_changed[group] = clock.now[0]
    for at in range(tables.strong_start[group], tables.strong_start[group + 1]):
        clock.group_changed[tables.strong[at]] = clock.now[0]
        clock.table_changed[tables.strong[at]] = clock.now[0]


@inner()
def _last_change(clock, tables, closure, group):  # type: ignore[no-untyped-def]
    """Return when what the closure makes the points of a group cost changed last."""
    last = clock.table_changed[group]
    if tables.slot[group] < 0:
        for at in range(closure.rival_start[group], closure.rival_start[group + 1]):
            last = max(last, clock.moved[closure.rival[at]])
    return last


@inner()
def _wake_neighbours(clock, links, of, point):  # type: ignore[no-untyped-def]
    for edge in range(links.start[point], links.start[point + 1]):
        other = links.neighbour[edge]
        clock.looked[other] = -1
        clock.group_changed[of[other]] = clock.now[0]


@inner(inline="always")
def fill_tables(labels, tables, rows, closure, grouping):  # type: ignore[no-untyped-def]
    """Count all points in, in tables that are empty."""
    for group in range(tables.slot.shape[0]):
        if tables.slot[group] >= 0:
            gather(labels, tables, rows, closure, grouping, group)
            spread(tables, closure, group)
        else:
            for at in range(grouping.start[group], grouping.start[group + 1]):
                point = np.int64(grouping.member[at])
                put_point(tables, rows, closure, group, point, np.int64(labels[point]), np.int64(1))


@inner(inline="always")
def _sweep_points(labels, links, tables, rows, closure, grouping, clock):  # type: ignore[no-untyped-def]
    moves = 0
    for point in range(labels.shape[0]):
        group = np.int64(grouping.of[point])
        if clock.looked[point] >= _last_change(clock, tables, closure, group):
            continue
        fill_row(tables.row, labels, links, point)
        add_closure(tables.row, labels, tables, rows, closure, grouping, group, point)
        old = np.int64(labels[point])
        new = best_cluster(tables.row, old)
        if new != old:
            for sign in (-1, 1):
                put_point(tables, rows, closure, group, point, old if sign < 0 else new, sign)
            labels[point] = new
            _tick(clock, tables, closure, group)
            _wake_neighbours(clock, links, grouping.of, point)
            moves += 1
        clock.looked[point] = clock.now[0]
    return moves


@inner(inline="always")
def _move_group(labels, links, tables, rows, closure, grouping, clock, group, new):  # type: ignore[no-untyped-def]
    _tick(clock, tables, closure, group)
    summed = tables.slot[group] >= 0
    if summed:
        empty_change(tables, group)
    for at in range(grouping.start[group], grouping.start[group + 1]):
        point = np.int64(grouping.member[at])
        old = np.int64(labels[point])
        if old == new:
            continue
        for sign in (-1, 1):
            cluster = old if sign < 0 else new
            if summed:
                add_row(tables, rows, closure.negative_column, point, cluster, sign)
            else:
                put_point(tables, rows, closure, group, point, cluster, sign)
        labels[point] = new
        _wake_neighbours(clock, links, grouping.of, point)
    if summed:
        spread(tables, closure, group)
    clock.group_looked[group] = clock.now[0]


@inner(inline="always")
def _pass_groups(labels, links, tables, rows, closure, grouping, clock):  # type: ignore[no-untyped-def]
    moves = 0
    for group in range(grouping.start.shape[0] - 1):
        if grouping.start[group + 1] - grouping.start[group] < 2:
            continue
        changed = max(clock.group_changed[group], _last_change(clock, tables, closure, group))
        if clock.group_looked[group] >= changed:
            continue
        group_energies(labels, links, tables, rows, closure, grouping, group)
        energies = tables.energies
        target, _, _ = best_limbs(energies[0], energies[1], 0, energies.shape[1] - 1)
        clock.group_looked[group] = clock.now[0]
        if target >= 0:
            _move_group(labels, links, tables, rows, closure, grouping, clock, group, target)
            moves += 1
    return moves


@njit(nogil=True, cache=True, makes_arrays=False)
def _run(labels, links, tables, rows, closure, grouping, clock):  # type: ignore[no-untyped-def]
    fill_tables(labels, tables, rows, closure, grouping)
    points = 0
    groups = 0
    sweeps = 0
    while True:
        moved_groups = _pass_groups(labels, links, tables, rows, closure, grouping, clock)
        moved = _sweep_points(labels, links, tables, rows, closure, grouping, clock)
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
    tables = build_tables(rows, closure, grouping, links.costs.shape[1])
    clock = _start_clock(len(labels), len(tables.slot))
    points, groups, sweeps = _run(labels, links, tables, rows, closure, grouping, clock)
    return int(points), int(groups), int(sweeps)
