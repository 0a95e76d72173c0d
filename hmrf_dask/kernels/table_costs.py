"""What a closure makes each cluster cost: for a point, and for a whole group."""

from __future__ import annotations

import numpy as np

from hmrf_dask.kernels.compiled import inner
from hmrf_dask.kernels.limbs import add_limbs
from hmrf_dask.kernels.links import fill_row
from hmrf_dask.kernels.reconcile import find
from hmrf_dask.kernels.table_changes import gather


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

    Of must-links `largest` is 0.
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
def _add_member(labels, links, tables, of, point):  # type: ignore[no-untyped-def]
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
    for edge in range(links.start[point], links.start[point + 1]):
        other = links.neighbour[edge]
        if of[other] == of[point]:
            together += links.cost[edge]
            row[labels[other]] -= links.cost[edge]
            if labels[other] == label:
                together_now += links.cost[edge]
    for h in range(n_clusters + 1):
        value = 2 * row[h] + together if h < n_clusters else 2 * row[label] + together_now
        add_limbs(tables.energies[0], tables.energies[1], h, value)


@inner(inline="always")
def group_energies(labels, links, tables, rows, closure, grouping, group):  # type: ignore[no-untyped-def]
    """Write the K + 1 `energies` of a group, doubled: a pair inside it counts at each of its ends.

    Energy h is that with all members at h, the last one that of the present.
    """
    tables.energies[:] = 0
    if closure.must_weight[group] != 0 and tables.slot[group] >= 0:
        gather(labels, tables, rows, closure, grouping, group)
    for at in range(grouping.start[group], grouping.start[group + 1]):
        point = np.int64(grouping.member[at])
        fill_row(tables.row, labels, links, point)
        add_closure(tables.row, labels, tables, rows, closure, grouping, group, point)
        _own_part(labels, tables, rows, closure, grouping, group, point)
        _add_member(labels, links, tables, grouping.of, point)
