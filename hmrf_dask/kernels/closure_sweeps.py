"""ICM in sweeps on a component with closure tables: whole groups first, then points, in order.

Equal to the same sweeps over all closure pairs, integer for integer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import find
from hmrf_dask.kernels.closure_tables import (
    Closure,
    QuantisedRows,
    add_row,
    build_tables,
    empty_change,
    gather,
    put_point,
    spread,
)
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.exact import add_limbs, best_limbs
from hmrf_dask.kernels.problem import Grouping, ProblemArrays, best_cluster, fill_row
from hmrf_dask.types import AnyArray, LabelArray


@inner(inline="always")
def _lay_out(tables, rows, negative_column, point, sign):  # type: ignore[no-untyped-def]
    """Write a row into the spread-out one (sign 1), or nought where it stands (sign 0)."""
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        feature = rows.indices[entry]
        value = sign * rows.values[entry]
        tables.laid[feature] = -value if feature == negative_column else value


@inner(inline="always")
def _add_members(row, labels, tables, rows, kappa, grouping, group, point, weight, largest):  # type: ignore[no-untyped-def]
    """Add what the closure of the point laid out with the members of a group costs, one by one.

    Of must-problem `largest` is 0.
    """
    for at in range(grouping.start[group], grouping.start[group + 1]):
        other = grouping.member[at]
        if other == point:
            continue
        product = np.int64(0)
        for entry in range(rows.indptr[other], rows.indptr[other + 1]):
            product += np.int64(rows.values[entry]) * np.int64(tables.laid[rows.indices[entry]])
        phi = rows.own[point] + rows.own[other] - kappa * product
        row[labels[other]] += weight * (largest - phi)


@inner(inline="always")
def _add_owner(row, tables, rows, closure, rival, point, weight):  # type: ignore[no-untyped-def]
    """Add what a point's closure with a large rival costs, from the sums it keeps of itself."""
    mine = tables.owner[rival]
    for h in range(row.shape[0]):
        row[h] += weight * (
            tables.owner_counts[mine, h] * (closure.largest - rows.own[point])
            - tables.owner_own[mine, h]
        )
    slot = tables.slot[rival]
    features = tables.feature[tables.feature_start[slot] : tables.feature_start[slot + 1]]
    first = tables.owner_start[mine]
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        at = find(features, rows.indices[entry])
        if at >= 0:
            value = weight * closure.kappa * np.int64(rows.values[entry])
            for h in range(row.shape[0]):
                row[h] += value * tables.owner_sums[first + at, h]


@inner()
def _add_partners(row, labels, tables, rows, closure, grouping, group, point, end):  # type: ignore[no-untyped-def]
    """Add what the closure costs a point: inside its group and with its rivals up to `end`."""
    _lay_out(tables, rows, closure.negative_column, point, 1)
    begin = closure.rival_start[group]
    for at in range(begin - 1, end):
        own = at < begin
        partner = np.int64(group) if own else np.int64(closure.rival[at])
        weight = closure.must_weight[group] if own else closure.rival_weight[at]
        if not own and tables.owner[partner] >= 0:
            _add_owner(row, tables, rows, closure, partner, point, weight)
        elif weight != 0:
            largest = 0 if own else closure.largest
            _add_members(
                row, labels, tables, rows, closure.kappa, grouping, partner, point, weight, largest
            )
    _lay_out(tables, rows, closure.negative_column, point, 0)


@inner(inline="always")
def _add_dot(row, rows, point, sums, first, place):  # type: ignore[no-untyped-def]
    """Add q_i · sums by cluster; `place` says where the row's features stand from `first` on."""
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        value = np.int64(rows.values[entry])
        at = first + place[entry]
        for h in range(row.shape[0]):
            row[h] += value * sums[at, h]


@inner()
def add_closure(row, labels, tables, rows, closure, grouping, group, point):  # type: ignore[no-untyped-def]
    """Add what the closure makes each cluster cost for a point."""
    slot = tables.slot[group]
    if slot < 0:
        end = closure.rival_start[group + 1]
        _add_partners(row, labels, tables, rows, closure, grouping, group, point, end)
        return
    for h in range(row.shape[0]):
        row[h] += rows.own[point] * tables.counts[slot, h] + tables.constants[slot, h]
    _add_dot(row, rows, point, tables.sums, tables.feature_start[slot], tables.place)
    # the point itself stands in its group's sums: take it out
    row[labels[point]] += closure.must_weight[group] * tables.itself[point]


@inner(inline="always")
def _own_part(labels, tables, rows, closure, grouping, group, point):  # type: ignore[no-untyped-def]
    """Write into `part` what the closure inside the point's own group makes each cluster cost."""
    part = tables.part
    part[:] = 0
    weight = closure.must_weight[group]
    if weight == 0:
        return
    if tables.slot[group] < 0:
        none = closure.rival_start[group]
        _add_partners(part, labels, tables, rows, closure, grouping, group, point, none)
        return
    _add_dot(part, rows, point, tables.block, 0, tables.place)
    own = rows.own[point]
    for h in range(part.shape[0]):
        part[h] = weight * (closure.kappa * part[h] - tables.members[h] * own - tables.summed[h])
    part[labels[point]] += weight * tables.itself[point]


@inner(inline="always")
def _add_member(labels, problem, tables, of, point):  # type: ignore[no-untyped-def]
    """Add a member, whose `row` and `part` are worked out, to the `energies` of its group.

    Its row holds its pairs inside the group too: they are taken out of it, and put back for "all
    at h" (every pair) and "as it is" (pairs at one cluster).
    """
    row, part, label = tables.row, tables.part, labels[point]
    n_clusters = row.shape[0]
    together = np.int64(0)
    together_now = np.int64(part[label])
    for h in range(n_clusters):
        together += part[h]
        row[h] -= part[h]
    for edge in range(problem.start[point], problem.start[point + 1]):
        other = problem.neighbour[edge]
        if of[other] == of[point]:
            together += problem.cost[edge]
            row[labels[other]] -= problem.cost[edge]
            if labels[other] == label:
                together_now += problem.cost[edge]
    for h in range(n_clusters + 1):
        value = 2 * row[h] + together if h < n_clusters else 2 * row[label] + together_now
        add_limbs(tables.energies[0], tables.energies[1], h, value)


@inner(inline="always")
def group_energies(labels, problem, tables, rows, closure, grouping, group):  # type: ignore[no-untyped-def]
    """Write the K + 1 `energies` of a group, doubled: a pair inside it counts at each of its ends.

    Energy h is that with all members at h, the last one that of the present.
    """
    tables.energies[:] = 0
    if closure.must_weight[group] != 0 and tables.slot[group] >= 0:
        gather(labels, tables, rows, closure, grouping, group)
    for at in range(grouping.start[group], grouping.start[group + 1]):
        point = np.int64(grouping.member[at])
        fill_row(tables.row, labels, problem, point)
        add_closure(tables.row, labels, tables, rows, closure, grouping, group, point)
        _own_part(labels, tables, rows, closure, grouping, group, point)
        _add_member(labels, problem, tables, grouping.of, point)


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
def _wake_neighbours(clock, problem, of, point):  # type: ignore[no-untyped-def]
    for edge in range(problem.start[point], problem.start[point + 1]):
        other = problem.neighbour[edge]
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
def _sweep_points(labels, problem, tables, rows, closure, grouping, clock):  # type: ignore[no-untyped-def]
    moves = 0
    for point in range(labels.shape[0]):
        group = np.int64(grouping.of[point])
        if clock.looked[point] >= _last_change(clock, tables, closure, group):
            continue
        fill_row(tables.row, labels, problem, point)
        add_closure(tables.row, labels, tables, rows, closure, grouping, group, point)
        old = np.int64(labels[point])
        new = best_cluster(tables.row, old)
        if new != old:
            for sign in (-1, 1):
                put_point(tables, rows, closure, group, point, old if sign < 0 else new, sign)
            labels[point] = new
            _tick(clock, tables, closure, group)
            _wake_neighbours(clock, problem, grouping.of, point)
            moves += 1
        clock.looked[point] = clock.now[0]
    return moves


@inner(inline="always")
def _move_group(labels, problem, tables, rows, closure, grouping, clock, group, new):  # type: ignore[no-untyped-def]
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
        _wake_neighbours(clock, problem, grouping.of, point)
    if summed:
        spread(tables, closure, group)
    clock.group_looked[group] = clock.now[0]


@inner(inline="always")
def _pass_groups(labels, problem, tables, rows, closure, grouping, clock):  # type: ignore[no-untyped-def]
    moves = 0
    for group in range(grouping.start.shape[0] - 1):
        if grouping.start[group + 1] - grouping.start[group] < 2:
            continue
        changed = max(clock.group_changed[group], _last_change(clock, tables, closure, group))
        if clock.group_looked[group] >= changed:
            continue
        group_energies(labels, problem, tables, rows, closure, grouping, group)
        energies = tables.energies
        target, _, _ = best_limbs(energies[0], energies[1], 0, energies.shape[1] - 1)
        clock.group_looked[group] = clock.now[0]
        if target >= 0:
            _move_group(labels, problem, tables, rows, closure, grouping, clock, group, target)
            moves += 1
    return moves


@njit(nogil=True, cache=True, makes_arrays=False)
def _run(labels, problem, tables, rows, closure, grouping, clock):  # type: ignore[no-untyped-def]
    fill_tables(labels, tables, rows, closure, grouping)
    points = 0
    groups = 0
    sweeps = 0
    while True:
        moved_groups = _pass_groups(labels, problem, tables, rows, closure, grouping, clock)
        moved = _sweep_points(labels, problem, tables, rows, closure, grouping, clock)
        points += moved
        groups += moved_groups
        sweeps += 1
        if moved == 0 and moved_groups == 0:
            return points, groups, sweeps


def table_icm(
    labels: LabelArray,
    problem: ProblemArrays,
    rows: QuantisedRows,
    closure: Closure,
    grouping: Grouping,
) -> tuple[int, int, int]:
    """Move whole groups, then points, in order, until neither a group nor a point gains.

    Parameters
    ----------
    labels : int32 array, shape (n,)
        Changed in place.
    problem : ProblemArrays
        Costs of the points, and explicit pairs beside the closure (`make_problem`, first = 0).
    rows, closure : QuantisedRows, Closure
        The closure (`make_rows`, `make_closure`).
    grouping : Grouping
        Must-link group of every point (`make_grouping`).

    Returns
    -------
    point_moves, group_moves, sweeps : int
        Ties go to the present label, then to the lowest cluster.
    """
    tables = build_tables(rows, closure, grouping, problem.costs.shape[1])
    clock = _start_clock(len(labels), len(tables.slot))
    points, groups, sweeps = _run(labels, problem, tables, rows, closure, grouping, clock)
    return int(points), int(groups), int(sweeps)
