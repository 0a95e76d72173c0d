"""Changes of closure tables: of one point, or of a whole group at once."""

from __future__ import annotations

import numpy as np

from hmrf_dask.kernels.compiled import inner
from hmrf_dask.kernels.reconcile import find


@inner()
def put_point(tables, rows, closure, group, point, cluster, sign):  # type: ignore[no-untyped-def]
    """Count a point in (sign 1) or out (sign -1) at a cluster of every table it counts in.

    Of its own group's, where the group is closed and has one, and of its rivals'.
    """
    begin = tables.strong_start[group]
    for at in range(begin - 1, tables.strong_start[group + 1]):
        own = at < begin
        slot = tables.slot[group] if own else tables.slot[tables.strong[at]]
        weight = sign * (closure.must_weight[group] if own else tables.strong_weight[at])
        if slot < 0 or weight == 0:
            continue
        largest = 0 if own else closure.largest
        tables.counts[slot, cluster] -= weight
        tables.constants[slot, cluster] += weight * (largest - rows.own[point])
        first = tables.feature_start[slot]
        features = tables.feature[first : tables.feature_start[slot + 1]]
        for entry in range(rows.indptr[point], rows.indptr[point + 1]):
            feature = rows.indices[entry]
            place = np.int64(tables.place[entry]) if own else find(features, feature)
            if place >= 0:
                value = weight * closure.kappa * np.int64(rows.values[entry])
                signed = -value if feature == closure.negative_column else value
                tables.sums[first + place, cluster] += signed
    if tables.owner[group] >= 0:
        _put_into_owner(tables, rows, closure, tables.owner[group], point, cluster, sign)


@inner(inline="always")
def _put_into_owner(tables, rows, closure, mine, point, cluster, sign):  # type: ignore[no-untyped-def]
    """Count a point in or out of the sums its group keeps over itself."""
    tables.owner_counts[mine, cluster] += sign
    tables.owner_own[mine, cluster] += sign * rows.own[point]
    start = tables.owner_start[mine]
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        value = sign * np.int64(rows.values[entry])
        signed = -value if rows.indices[entry] == closure.negative_column else value
        tables.owner_sums[start + tables.place[entry], cluster] += signed


@inner(inline="always")
def empty_change(tables, group):  # type: ignore[no-untyped-def]
    """Make the one change of a group with a table (`block`, `members`, `summed`) one of nothing."""
    slot = tables.slot[group]
    tables.block[: tables.feature_start[slot + 1] - tables.feature_start[slot]] = 0
    tables.members[:] = 0
    tables.summed[:] = 0


@inner()
def add_row(tables, rows, negative_column, point, cluster, sign):  # type: ignore[no-untyped-def]
    """Count a member in (sign 1) or out (sign -1) at a cluster of the change."""
    tables.members[cluster] += sign
    tables.summed[cluster] += sign * rows.own[point]
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        value = sign * np.int64(rows.values[entry])
        signed = -value if rows.indices[entry] == negative_column else value
        tables.block[tables.place[entry], cluster] += signed


@inner()
def gather(labels, tables, rows, closure, grouping, group):  # type: ignore[no-untyped-def]
    """Make all members of a group at their clusters the change."""
    empty_change(tables, group)
    for at in range(grouping.start[group], grouping.start[group + 1]):
        point = np.int64(grouping.member[at])
        add_row(tables, rows, closure.negative_column, point, np.int64(labels[point]), np.int64(1))


@inner()
def spread(tables, closure, owner):  # type: ignore[no-untyped-def]
    """Add the change of the members of a group with a table wherever it counts.

    To its own table, must-links: −w (n A_i + Σ A − κ q_i·S). To a rival's:
    w̄ (n (largest − A_i) − Σ A + κ q_i·S). With largest 0 they are the same formula.
    """
    theirs = tables.slot[owner]
    features = tables.feature[tables.feature_start[theirs] : tables.feature_start[theirs + 1]]
    begin = tables.strong_start[owner]
    for at in range(begin - 1, tables.strong_start[owner + 1]):
        own = at < begin
        weight = closure.must_weight[owner] if own else tables.strong_weight[at]
        if weight == 0:
            continue
        mine = theirs if own else tables.slot[tables.strong[at]]
        largest = 0 if own else closure.largest
        for h in range(tables.members.shape[0]):
            tables.counts[mine, h] -= weight * tables.members[h]
            tables.constants[mine, h] += weight * (largest * tables.members[h] - tables.summed[h])
        _spread_sums(tables, mine, features, weight * closure.kappa)
    mine = tables.owner[owner]
    if mine >= 0:
        _spread_to_owner(tables, mine, features.shape[0])


@inner(inline="always")
def _spread_sums(tables, mine, other, factor):  # type: ignore[no-untyped-def]
    """Add the block over the features `other` to a table, walking the shorter list of features."""
    first = tables.feature_start[mine]
    one = tables.feature[first : tables.feature_start[mine + 1]]
    shorter = one.shape[0] <= other.shape[0]
    for step in range(min(one.shape[0], other.shape[0])):
        found = find(other, one[step]) if shorter else find(one, other[step])
        if found >= 0:
            at = step if shorter else found
            source = found if shorter else step
            for h in range(tables.members.shape[0]):
                tables.sums[first + at, h] += factor * tables.block[source, h]


@inner(inline="always")
def _spread_to_owner(tables, mine, width):  # type: ignore[no-untyped-def]
    """Add the change to the sums a group keeps over itself."""
    first = tables.owner_start[mine]
    for h in range(tables.members.shape[0]):
        tables.owner_counts[mine, h] += tables.members[h]
        tables.owner_own[mine, h] += tables.summed[h]
    for step in range(width):
        for h in range(tables.members.shape[0]):
            tables.owner_sums[first + step, h] += tables.block[step, h]
