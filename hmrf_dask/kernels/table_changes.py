"""Changes of closure tables: of one point, or of a whole group at once."""

from __future__ import annotations

import numpy as np

from hmrf_dask.kernels.compiled import njit
from hmrf_dask.kernels.reconcile import find


@njit(nogil=True, cache=True)
def _spread_one(tables, kappa, group, owner, weight, largest, change):  # type: ignore[no-untyped-def]
    """Add a change of the members of `owner` to the table of `group`: itself or one of its rivals.

    Must: −w (n A_i + Σ A − κ q_i·S). Rival: w̄ (n (largest − A_i) − Σ A + κ q_i·S). With largest 0
    they are the same formula.
    """
    block, count, own = change
    mine = tables.slot[group]
    theirs = tables.slot[owner]
    for h in range(count.shape[0]):
        tables.counts[mine, h] -= weight * count[h]
        tables.constants[mine, h] += weight * (largest * count[h] - own[h])
    one = tables.feature[tables.feature_start[mine] : tables.feature_start[mine + 1]]
    other = tables.feature[tables.feature_start[theirs] : tables.feature_start[theirs + 1]]
    sums = tables.sums[tables.feature_start[mine] : tables.feature_start[mine + 1]]
    shorter = one.shape[0] <= other.shape[0]  # walk the shorter list of features
    for step in range(min(one.shape[0], other.shape[0])):
        at = step if shorter else find(one, other[step])
        source = find(other, one[step]) if shorter else step
        if at >= 0 and source >= 0:
            for h in range(count.shape[0]):
                sums[at, h] += weight * kappa * block[source, h]


@njit(nogil=True, cache=True)
def spread(tables, closure, owner, change):  # type: ignore[no-untyped-def]
    """Add a change of the members of a group with a slot wherever it counts."""
    weight = closure.must_weight[owner]
    if weight != 0:
        _spread_one(tables, closure.kappa, owner, owner, weight, 0, change)
    for at in range(tables.strong_start[owner], tables.strong_start[owner + 1]):
        weight = tables.strong_weight[at]
        group = tables.strong[at]
        _spread_one(tables, closure.kappa, group, owner, weight, closure.largest, change)
    mine = tables.owner[owner]
    if mine >= 0:
        block, count, own = change
        tables.owner_counts[mine] += count
        tables.owner_own[mine] += own
        tables.owner_sums[tables.owner_start[mine] : tables.owner_start[mine + 1]] += block


@njit(nogil=True, cache=True)
def put_row(tables, rows, closure, group, own_group, point, cluster, weight, largest):  # type: ignore[no-untyped-def]
    """Count a point in (weight above 0) or out at a cluster of the table of a group."""
    slot = tables.slot[group]
    tables.counts[slot, cluster] -= weight
    tables.constants[slot, cluster] += weight * (largest - rows.own[point])
    first = tables.feature_start[slot]
    features = tables.feature[first : tables.feature_start[slot + 1]]
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        at = tables.place[entry] if own_group else find(features, rows.indices[entry])
        if at >= 0:
            value = weight * closure.kappa * np.int64(rows.values[entry])
            if rows.indices[entry] == closure.negative_column:
                value = -value
            tables.sums[first + at, cluster] += value


@njit(nogil=True, cache=True)
def put_into_rivals(tables, rows, closure, group, point, cluster, sign):  # type: ignore[no-untyped-def]
    """Count a point in (sign 1) or out (sign -1) at a cluster of its rivals' tables."""
    for at in range(tables.strong_start[group], tables.strong_start[group + 1]):
        weight = sign * tables.strong_weight[at]
        rival = tables.strong[at]
        put_row(tables, rows, closure, rival, False, point, cluster, weight, closure.largest)


@njit(nogil=True, cache=True)
def put_into_owner(tables, rows, closure, group, point, cluster, sign):  # type: ignore[no-untyped-def]
    """Count a point in or out of the sums its group keeps over itself."""
    mine = tables.owner[group]
    tables.owner_counts[mine, cluster] += sign
    tables.owner_own[mine, cluster] += sign * rows.own[point]
    first = tables.owner_start[mine]
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        value = sign * np.int64(rows.values[entry])
        if rows.indices[entry] == closure.negative_column:
            value = -value
        tables.owner_sums[first + tables.place[entry], cluster] += value


@njit(nogil=True, cache=True)
def empty_change(tables, group):  # type: ignore[no-untyped-def]
    """Return a change of nothing, in the scratch table: one lives at a time."""
    slot = tables.slot[group]
    width = tables.feature_start[slot + 1] - tables.feature_start[slot]
    block = tables.scratch[:width]
    block[:] = 0
    n_clusters = block.shape[1]
    return block, np.zeros(n_clusters, np.int64), np.zeros(n_clusters, np.int64)


@njit(nogil=True, cache=True)
def add_row(change, tables, rows, negative_column, point, cluster, sign):  # type: ignore[no-untyped-def]
    """Count a member in (sign 1) or out (sign -1) at a cluster."""
    block, count, own = change
    count[cluster] += sign
    own[cluster] += sign * rows.own[point]
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        value = sign * np.int64(rows.values[entry])
        if rows.indices[entry] == negative_column:
            value = -value
        block[tables.place[entry], cluster] += value


@njit(nogil=True, cache=True)
def gather(labels, tables, rows, closure, grouping, group):  # type: ignore[no-untyped-def]
    """Return all members of a group at their clusters as a change."""
    change = empty_change(tables, group)
    for at in range(grouping.start[group], grouping.start[group + 1]):
        point = grouping.member[at]
        add_row(change, tables, rows, closure.negative_column, point, labels[point], 1)
    return change
