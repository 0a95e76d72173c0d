"""What a closure makes each cluster cost: for a point, and for a whole group."""

from __future__ import annotations

import numpy as np

from hmrf_dask.kernels.compiled import njit
from hmrf_dask.kernels.limbs import add_limbs
from hmrf_dask.kernels.links import fill_row
from hmrf_dask.kernels.reconcile import find
from hmrf_dask.kernels.table_changes import gather


@njit(nogil=True, cache=True)
def _add_dot(row, rows, point, sums, place):  # type: ignore[no-untyped-def]
    """Add q_i · sums by cluster; `place` says where the row's features stand in `sums`."""
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        value = np.int64(rows.values[entry])
        at = place[entry]
        for h in range(row.shape[0]):
            row[h] += value * sums[at, h]


@njit(nogil=True, cache=True)
def _lay_out(tables, rows, closure, point, sign):  # type: ignore[no-untyped-def]
    """Write a row into the spread-out one (sign 1), or nought where it stands (sign 0)."""
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        feature = rows.indices[entry]
        value = sign * rows.values[entry]
        tables.laid[feature] = -value if feature == closure.negative_column else value


@njit(nogil=True, cache=True)
def _add_members(row, labels, tables, rows, closure, grouping, group, point, weight, largest):  # type: ignore[no-untyped-def]
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
        phi = rows.own[point] + rows.own[other] - closure.kappa * product
        row[labels[other]] += weight * (largest - phi)


@njit(nogil=True, cache=True)
def _add_own_members(row, labels, tables, rows, closure, grouping, group, point):  # type: ignore[no-untyped-def]
    """Add what the closure inside a point's own group costs, member by member."""
    _lay_out(tables, rows, closure, point, 1)
    weight = closure.must_weight[group]
    _add_members(row, labels, tables, rows, closure, grouping, group, point, weight, 0)
    _lay_out(tables, rows, closure, point, 0)


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def _add_partners(row, labels, tables, rows, closure, grouping, group, point):  # type: ignore[no-untyped-def]
    """Add what the closure makes each cluster cost for a point whose group has no table."""
    _lay_out(tables, rows, closure, point, 1)
    weight = closure.must_weight[group]
    if weight != 0:
        _add_members(row, labels, tables, rows, closure, grouping, group, point, weight, 0)
    for at in range(closure.rival_start[group], closure.rival_start[group + 1]):
        rival = closure.rival[at]
        weight = closure.rival_weight[at]
        if tables.owner[rival] >= 0:
            _add_owner(row, tables, rows, closure, rival, point, weight)
        else:
            largest = closure.largest
            _add_members(
                row, labels, tables, rows, closure, grouping, rival, point, weight, largest
            )
    _lay_out(tables, rows, closure, point, 0)


@njit(nogil=True, cache=True)
def add_closure(row, labels, tables, rows, closure, grouping, group, point):  # type: ignore[no-untyped-def]
    """Add what the closure makes each cluster cost for a point."""
    slot = tables.slot[group]
    if slot < 0:
        _add_partners(row, labels, tables, rows, closure, grouping, group, point)
        return
    for h in range(row.shape[0]):
        row[h] += rows.own[point] * tables.counts[slot, h] + tables.constants[slot, h]
    sums = tables.sums[tables.feature_start[slot] : tables.feature_start[slot + 1]]
    _add_dot(row, rows, point, sums, tables.place)
    # the point itself stands in its group's sums: take it out
    row[labels[point]] += closure.must_weight[group] * tables.itself[point]


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
def group_energies(labels, links, tables, rows, closure, grouping, group):  # type: ignore[no-untyped-def]
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
    summed = closed and tables.slot[group] >= 0
    change = (tables.scratch[:0], inner, inner)
    if summed:
        change = gather(labels, tables, rows, closure, grouping, group)
    for at in range(grouping.start[group], grouping.start[group + 1]):
        point = grouping.member[at]
        label = labels[point]
        fill_row(row, labels, links, point)
        add_closure(row, labels, tables, rows, closure, grouping, group, point)
        if summed:
            _own_part(inner, labels, tables, rows, closure, group, point, change)
        elif closed:
            inner[:] = 0
            _add_own_members(inner, labels, tables, rows, closure, grouping, group, point)
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
