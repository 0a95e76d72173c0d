"""ICM in sweeps on a component with closure tables: whole groups first, then points, in order.

Equal to the same sweeps over all closure pairs, integer for integer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.closure_tables import (
    Closure,
    QuantisedRows,
    TableForm,
    add_row,
    build_tables,
    empty_change,
    gather,
    put_point,
    spread_change,
)
from hmrf_dask.kernels.compiled import find, inner, njit
from hmrf_dask.kernels.exact import add_limbs, best_limbs
from hmrf_dask.kernels.problem import Grouping, ProblemArrays, best_cluster, fill_row
from hmrf_dask.types import IntArray, LabelArray


@inner(inline="always")
def _write_dense(form: TableForm, point: int, sign: Any) -> None:
    """Write a row into the dense one (sign 1), or zeros over it (sign 0)."""
    rows, dense = form.rows, form.tables.buffers.dense
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        feature = rows.indices[entry]
        value = sign * rows.values[entry]
        dense[feature] = -value if feature == form.closure.negative_column else value


@inner(inline="always")
def _add_members(
    row: IntArray, labels: LabelArray, form: TableForm, group: int, point: int, terms: Any
) -> None:
    """Add what the closure of the point in the dense row with the members of a group costs.

    `terms` are the weight of a pair and what φ is taken from: 0 for must-links, φ_max for rivals.
    """
    rows, grouping, dense = form.rows, form.grouping, form.tables.buffers.dense
    weight, largest = terms
    for at in range(grouping.start[group], grouping.start[group + 1]):
        member = grouping.member[at]
        if member == point:
            continue
        product = np.int64(0)
        for entry in range(rows.indptr[member], rows.indptr[member + 1]):
            product += np.int64(rows.values[entry]) * np.int64(dense[rows.indices[entry]])
        phi = rows.own[point] + rows.own[member] - form.closure.kappa * product
        row[labels[member]] += weight * (largest - phi)


@inner(inline="always")
def _add_owner(row: IntArray, form: TableForm, rival: Any, point: int, weight: Any) -> None:
    """Add what a point's closure with a large rival costs, from the sums it keeps of itself."""
    rows, owners, slots = form.rows, form.tables.owners, form.tables.slots
    mine = owners.owner[rival]
    for h in range(row.shape[0]):
        row[h] += weight * (
            owners.counts[mine, h] * (form.closure.largest - rows.own[point]) - owners.own[mine, h]
        )
    slot = slots.slot[rival]
    features = slots.feature[slots.feature_start[slot] : slots.feature_start[slot + 1]]
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        at = find(features, rows.indices[entry])
        if at >= 0:
            value = weight * form.closure.kappa * np.int64(rows.values[entry])
            for h in range(row.shape[0]):
                row[h] += value * owners.sums[owners.start[mine] + at, h]


@inner()
def _add_partners(
    row: IntArray, labels: LabelArray, form: TableForm, group: int, point: int, end: int
) -> None:
    """Add what the closure costs a point: inside its group and with its rivals up to `end`."""
    closure = form.closure
    _write_dense(form, point, 1)
    begin = closure.rival_start[group]
    for at in range(begin - 1, end):
        own = at < begin
        partner = np.int64(group) if own else np.int64(closure.rival[at])
        weight = closure.must_weight[group] if own else closure.rival_weight[at]
        if not own and form.tables.owners.owner[partner] >= 0:
            _add_owner(row, form, partner, point, weight)
        elif weight != 0:
            largest = 0 if own else closure.largest
            _add_members(row, labels, form, partner, point, (weight, largest))
    _write_dense(form, point, 0)


@inner(inline="always")
def _add_dot(row: IntArray, rows: Any, point: int, sums: Any, first: Any, place: Any) -> None:
    """Add q_i · sums by cluster; `place` says where the row's features stand from `first` on."""
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        value = np.int64(rows.values[entry])
        at = first + place[entry]
        for h in range(row.shape[0]):
            row[h] += value * sums[at, h]


@inner()
def add_closure(row: IntArray, labels: LabelArray, form: TableForm, group: int, point: int) -> None:
    """Add what the closure makes each cluster cost for a point."""
    rows, closure, tables = form.rows, form.closure, form.tables
    slot = tables.slots.slot[group]
    if slot < 0:
        _add_partners(row, labels, form, group, point, closure.rival_start[group + 1])
        return
    for h in range(row.shape[0]):
        row[h] += rows.own[point] * tables.counts[slot, h] + tables.constants[slot, h]
    _add_dot(row, rows, point, tables.sums, tables.slots.feature_start[slot], tables.place)
    # the point itself stands in its group's sums: take it out
    row[labels[point]] += closure.must_weight[group] * tables.itself[point]


@inner(inline="always")
def _own_part(labels: LabelArray, form: TableForm, group: int, point: int) -> None:
    """Write into `part` what the closure inside the point's own group makes each cluster cost."""
    rows, closure, tables = form.rows, form.closure, form.tables
    part, change = tables.buffers.part, tables.change
    part[:] = 0
    weight = closure.must_weight[group]
    if weight == 0:
        return
    if tables.slots.slot[group] < 0:
        _add_partners(part, labels, form, group, point, closure.rival_start[group])  # no rivals
        return
    _add_dot(part, rows, point, change.block, 0, tables.place)
    own = rows.own[point]
    for h in range(part.shape[0]):
        part[h] = weight * (closure.kappa * part[h] - change.members[h] * own - change.summed[h])
    part[labels[point]] += weight * tables.itself[point]


@inner(inline="always")
def _add_member(
    labels: LabelArray, problem: ProblemArrays, of: LabelArray, buffers: Any, point: int
) -> None:
    """Add a member, whose `row` and `part` are worked out, to the `energies` of its group.

    Its row holds its pairs inside the group too: they are taken out of it, and put back for "all
    at h" (every pair) and "as it is" (pairs at one cluster).
    """
    row, part, label = buffers.row, buffers.part, labels[point]
    n_clusters = row.shape[0]
    together = np.int64(0)
    together_now = np.int64(part[label])
    for h in range(n_clusters):
        together += part[h]
        row[h] -= part[h]
    for edge in range(problem.start[point], problem.start[point + 1]):
        neighbour = problem.neighbour[edge]
        if of[neighbour] == of[point]:
            together += problem.cost[edge]
            row[labels[neighbour]] -= problem.cost[edge]
            if labels[neighbour] == label:
                together_now += problem.cost[edge]
    for h in range(n_clusters + 1):
        value = 2 * row[h] + together if h < n_clusters else 2 * row[label] + together_now
        add_limbs(buffers.energies[0], buffers.energies[1], h, value)


@inner(inline="always")
def group_energies(labels: LabelArray, problem: ProblemArrays, form: TableForm, group: int) -> None:
    """Write the K + 1 `energies` of a group, doubled: a pair inside it counts at each of its ends.

    Energy h is that with all members at h, the last one that of the present.
    """
    grouping, buffers = form.grouping, form.tables.buffers
    buffers.energies[:] = 0
    if form.closure.must_weight[group] != 0 and form.tables.slots.slot[group] >= 0:
        gather(labels, form, group)
    for at in range(grouping.start[group], grouping.start[group + 1]):
        point = np.int64(grouping.member[at])
        fill_row(buffers.row, labels, problem, point)
        add_closure(buffers.row, labels, form, group, point)
        _own_part(labels, form, group, point)
        _add_member(labels, problem, grouping.of, buffers, point)


class _Clock(NamedTuple):
    """When something changed and when it was last checked: what is unchanged is skipped.

    Groups with a table are marked when a rival moves; the others ask when their rivals `moved`.
    """

    now: IntArray
    moved: IntArray
    table_changed: IntArray
    group_changed: IntArray
    group_checked: IntArray
    checked: IntArray


@inner()
def _tick(clock: _Clock, form: TableForm, group: int) -> None:
    """Note that a member of a group moves: its closure and that of its rivals change."""
    tables = form.tables
    clock.now[0] += 1
    clock.moved[group] = clock.now[0]
    clock.group_changed[group] = clock.now[0]
    if form.closure.must_weight[group] != 0:
        clock.table_changed[group] = clock.now[0]
    for at in range(tables.strong_start[group], tables.strong_start[group + 1]):
        clock.group_changed[tables.strong[at]] = clock.now[0]
        clock.table_changed[tables.strong[at]] = clock.now[0]


@inner()
def _last_change(clock: _Clock, form: TableForm, group: int) -> Any:
    """Return when what the closure makes the points of a group cost changed last."""
    closure = form.closure
    last = clock.table_changed[group]
    if form.tables.slots.slot[group] < 0:
        for at in range(closure.rival_start[group], closure.rival_start[group + 1]):
            last = max(last, clock.moved[closure.rival[at]])
    return last


@inner()
def _wake_neighbours(clock: _Clock, problem: ProblemArrays, of: LabelArray, point: int) -> None:
    for edge in range(problem.start[point], problem.start[point + 1]):
        neighbour = problem.neighbour[edge]
        clock.checked[neighbour] = -1
        clock.group_changed[of[neighbour]] = clock.now[0]


@inner(inline="always")
def fill_tables(labels: LabelArray, form: TableForm) -> None:
    """Count all points in, in tables that are empty."""
    grouping, slot = form.grouping, form.tables.slots.slot
    for group in range(slot.shape[0]):
        if slot[group] >= 0:
            gather(labels, form, group)
            spread_change(form, group)
        else:
            for at in range(grouping.start[group], grouping.start[group + 1]):
                point = np.int64(grouping.member[at])
                put_point(form, group, point, np.int64(labels[point]), np.int64(1))


@inner(inline="always")
def _sweep_points(
    labels: LabelArray, problem: ProblemArrays, form: TableForm, clock: _Clock
) -> Any:
    of, row = form.grouping.of, form.tables.buffers.row
    moves = 0
    for point in range(labels.shape[0]):
        group = np.int64(of[point])
        if clock.checked[point] >= _last_change(clock, form, group):
            continue
        fill_row(row, labels, problem, point)
        add_closure(row, labels, form, group, point)
        old = np.int64(labels[point])
        new = best_cluster(row, old)
        if new != old:
            for sign in (-1, 1):
                put_point(form, group, point, old if sign < 0 else new, sign)
            labels[point] = new
            _tick(clock, form, group)
            _wake_neighbours(clock, problem, of, point)
            moves += 1
        clock.checked[point] = clock.now[0]
    return moves


@inner(inline="always")
def _move_group(
    labels: LabelArray, problem: ProblemArrays, form: TableForm, clock: _Clock, group: int, new: Any
) -> None:
    grouping = form.grouping
    _tick(clock, form, group)
    summed = form.tables.slots.slot[group] >= 0
    if summed:
        empty_change(form.tables, group)
    for at in range(grouping.start[group], grouping.start[group + 1]):
        point = np.int64(grouping.member[at])
        old = np.int64(labels[point])
        if old == new:
            continue
        for sign in (-1, 1):
            cluster = old if sign < 0 else new
            if summed:
                add_row(form, point, cluster, sign)
            else:
                put_point(form, group, point, cluster, sign)
        labels[point] = new
        _wake_neighbours(clock, problem, grouping.of, point)
    if summed:
        spread_change(form, group)
    clock.group_checked[group] = clock.now[0]


@inner(inline="always")
def _pass_groups(labels: LabelArray, problem: ProblemArrays, form: TableForm, clock: _Clock) -> Any:
    start, energies = form.grouping.start, form.tables.buffers.energies
    moves = 0
    for group in range(start.shape[0] - 1):
        if start[group + 1] - start[group] < 2:
            continue
        changed = max(clock.group_changed[group], _last_change(clock, form, group))
        if clock.group_checked[group] >= changed:
            continue
        group_energies(labels, problem, form, group)
        target, _, _ = best_limbs(energies[0], energies[1], 0, energies.shape[1] - 1)
        clock.group_checked[group] = clock.now[0]
        if target >= 0:
            _move_group(labels, problem, form, clock, group, target)
            moves += 1
    return moves


@njit(nogil=True, cache=True, makes_arrays=False)
def _run(
    labels: LabelArray, problem: ProblemArrays, form: TableForm, clock: _Clock
) -> tuple[Any, ...]:
    fill_tables(labels, form)
    points = 0
    groups = 0
    sweeps = 0
    while True:
        moved_groups = _pass_groups(labels, problem, form, clock)
        moved = _sweep_points(labels, problem, form, clock)
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

    The problem holds the costs of the points, and explicit pairs next to the closure. Labels change
    in place: ties go to the present one, then to the lowest cluster. Returned are the moves of
    points, those of groups, and the sweeps.
    """
    form = build_tables(rows, closure, grouping, problem.costs.shape[1])
    n_groups = len(grouping.start) - 1
    moved, table_changed, group_changed = np.zeros((3, n_groups), np.int64)
    checked, group_checked = np.full(len(labels), -1), np.full(n_groups, -1)
    now = np.zeros(1, np.int64)
    clock = _Clock(now, moved, table_changed, group_changed, group_checked, checked)
    points, groups, sweeps = _run(labels, problem, form, clock)
    return int(points), int(groups), int(sweeps)
