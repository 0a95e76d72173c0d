"""Tables in place of the pairs of must-link and cannot-link closures: exact and linear in the rows.

φ_ij = A_i + A_j − κ q_i·q_j in integers. For group g and cluster h the closure of point i needs
only sums over the members at h of g and of its rivals, and all of them enter c_i(h) in one
combination, so one table serves a group:

    c_i(h) = … + A_i · counts[g, h] + constants[g, h] + q_i · sums[g, :, h]

It holds the features of the group's own rows only: together no more than the rows' entries, but K
columns of them. So most groups have none (`table_forms`): a group of few members with few partners
looks at the rows of small rivals one by one, and at the sums that large ones keep of themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import find, frozen
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.problem import Grouping
from hmrf_dask.types import AnyArray, BoolArray, IntArray

LARGE_GROUP = 64  # a group of more members keeps sums over itself that its rivals look at
# A group has a table when it would have to look at more rows than this, one by one, for a point.
MOST_PARTNERS = 512
RIVAL_BYTES = 128  # a pair of rivals: both directions here and there 48, as they come, sorted 80


def table_forms(
    sizes: IntArray, closed: BoolArray, rival_start: IntArray, rival: AnyArray
) -> tuple[BoolArray, BoolArray]:
    """Return which groups have a table, and which of them keep sums over themselves.

    Parameters
    ----------
    sizes : int array, shape (G,)
        Members of each group.
    closed : bool array, shape (G,)
        Whether the must-problem inside a group are closed.
    rival_start, rival
        As in `Closure`.

    Examples
    --------
    >>> sizes, closed = np.array([100, 1]), np.array([True, True])
    >>> tables, owners = table_forms(sizes, closed, np.array([0, 1, 2]), np.array([1, 0]))
    >>> tables.tolist(), owners.tolist()
    ([True, False], [True, False])
    """
    taking_part = closed | (np.diff(rival_start) > 0)
    owner = taking_part & (sizes > LARGE_GROUP)
    looked_at = np.concatenate([[0], np.cumsum(np.where(owner, 0, sizes)[rival])])
    partners = looked_at[rival_start[1:]] - looked_at[rival_start[:-1]] + np.where(closed, sizes, 0)
    return owner | (taking_part & (partners > MOST_PARTNERS)), owner


def table_bytes(
    n_features: int,
    n_clusters: int,
    slot_values: IntArray,
    owner_values: IntArray,
    n_values: int,
    n_points: int,
    n_groups: int,
    n_rivals: int,
) -> int:
    """Return how many bytes the tables of a component need at most, beside its rows and costs.

    Parameters
    ----------
    n_features : int
        Features of the component's rows (0 for Potts).
    n_clusters : int
    slot_values, owner_values : int arrays
        Entries of the rows of each group that has a table, and of each that keeps its own sums.
    n_values, n_points, n_groups, n_rivals : int
        Entries of all rows, rows, groups of any kind, and pairs of rivals.

    Examples
    --------
    >>> large = np.array([10**7, 10**7])
    >>> table_bytes(50_000, 20, large, large, 2 * 10**7, 200_000, 2, 1) // 10**6
    204
    """
    slots = np.minimum(slot_values, n_features)
    owners = np.minimum(owner_values, n_features)
    wide = int(slots.sum()) + int(owners.sum()) + int(slots.max(initial=0))
    tables = 8 * n_clusters * wide + 4 * int(slots.sum()) + 8 * n_features
    vectors = 16 * n_clusters * (len(slots) + len(owners)) + 16 * (len(slots) + len(owners))
    # where an entry stands in its table 4; while rows are gathered they are held once more 4
    of_all = 8 * n_values + 16 * n_points + 48 * n_groups + RIVAL_BYTES * n_rivals
    return tables + vectors + of_all + 64 * n_clusters + 128


class QuantisedRows(NamedTuple):
    """Integer rows of a component, features numbered within it.

    Attributes
    ----------
    values, indices : int32 arrays
        CSR entries, features ascending within a row.
    indptr : int64 array, shape (n + 1,)
    own : int64 array, shape (n,)
        A_i of the penalty scale.
    """

    values: AnyArray
    indices: AnyArray
    indptr: AnyArray
    own: AnyArray


class Closure(NamedTuple):
    """What is closed, and how φ is made of the rows.

    A must-link closure costs ``must_weight[g] · φ`` for each pair of group g at different clusters,
    a cannot-link closure ``rival_weight · (largest − φ)`` for each pair of rival groups at one.

    Attributes
    ----------
    kappa : int
        1 cosine and Pearson, 2 squared Euclidean, 0 Potts (rows are not read).
    negative_column : int
        Feature whose products count negatively (Pearson's means), -1 for none.
    largest : int
        φ_max in the same units.
    must_weight : int64 array, shape (G,)
        0 where a group has no closure: contradictory groups, groups held as explicit pairs.
    rival_start, rival : int64 and int32 arrays
        Rival groups of each group as CSR, both directions.
    rival_weight : int64 array
        Weight of each entry of `rival`, the same in both directions.
    """

    kappa: int
    negative_column: int
    largest: int
    must_weight: AnyArray
    rival_start: AnyArray
    rival: AnyArray
    rival_weight: AnyArray


class Tables(NamedTuple):
    """The tables; only groups with many partners have a slot.

    Attributes
    ----------
    slot : int32 array, shape (G,)
        Place of a group's table, -1 without one.
    owner : int32 array, shape (G,)
        Place of the sums over a large group itself, -1 without them; it has a slot too.
    feature_start, feature : int64 and int32 arrays
        Features of each slot, ascending.
    place : int32 array, shape (entries of the rows,)
        Where an entry's feature stands among those of its own group.
    sums : int64 array, shape (len(feature), K)
    counts, constants : int64 arrays, shape (slots, K)
    owner_start : int64 array
        Where the features of each owner begin in `owner_sums`, in the order of its slot's.
    owner_sums : int64 array, shape (features of owners, K)
    owner_counts, owner_own : int64 arrays, shape (owners, K)
        Members of each owner at each cluster, and their summed A.
    strong_start, strong, strong_weight : arrays
        The rivals of each group that have a slot, as in `Closure`.
    itself : int64 array, shape (n,)
        φ_ii of the quantised rows.
    block, members, summed : int64 arrays, shape (longest list of features, K), (K,) and (K,)
        Room for one change of the members of a group: their summed rows, number and summed A.
    laid : int32 array, shape (features,)
        Room for one row spread out, nought in between.
    row, part : int64 arrays, shape (K,)
        Room for the costs of a point: all, and those of the closure inside its group.
    energies : int64 array, shape (2, K + 1)
        Room for the energies of a group, in two limbs.
    """

    slot: AnyArray
    owner: AnyArray
    feature_start: AnyArray
    feature: AnyArray
    place: AnyArray
    sums: AnyArray
    counts: AnyArray
    constants: AnyArray
    owner_start: AnyArray
    owner_sums: AnyArray
    owner_counts: AnyArray
    owner_own: AnyArray
    strong_start: AnyArray
    strong: AnyArray
    strong_weight: AnyArray
    itself: AnyArray
    block: AnyArray
    members: AnyArray
    summed: AnyArray
    laid: AnyArray
    row: AnyArray
    part: AnyArray
    energies: AnyArray


def make_rows(
    values: AnyArray, indices: AnyArray, indptr: AnyArray, own: AnyArray
) -> QuantisedRows:
    """Return `QuantisedRows` of arrays in the one form the kernels are compiled for."""
    return QuantisedRows(
        frozen(values, np.int32),
        frozen(indices, np.int32),
        frozen(indptr, np.int64),
        frozen(own, np.int64),
    )


def make_closure(
    kappa: int,
    negative_column: int,
    largest: int,
    must_weight: AnyArray,
    rival_start: AnyArray,
    rival: AnyArray,
    rival_weight: AnyArray,
) -> Closure:
    """Return `Closure` of arrays in the one form the kernels are compiled for."""
    return Closure(
        int(kappa),
        int(negative_column),
        int(largest),
        frozen(must_weight, np.int64),
        frozen(rival_start, np.int64),
        frozen(rival, np.int32),
        frozen(rival_weight, np.int64),
    )


@njit(nogil=True, cache=True, makes_arrays=False)
def _collect(rows, grouping, slot, stamp, feature_start, feature):  # type: ignore[no-untyped-def]
    """Count the features of each slot or, where there is room for them, list them as they come."""
    for group in range(slot.shape[0]):
        if slot[group] < 0:
            continue
        found = 0
        for at in range(grouping.start[group], grouping.start[group + 1]):
            point = grouping.member[at]
            for entry in range(rows.indptr[point], rows.indptr[point + 1]):
                if stamp[rows.indices[entry]] != group:
                    stamp[rows.indices[entry]] = group
                    if feature.shape[0] > 0:
                        feature[feature_start[slot[group]] + found] = rows.indices[entry]
                    found += 1
        if feature.shape[0] == 0:
            feature_start[slot[group] + 1] = found


@njit(nogil=True, cache=True, makes_arrays=False)
def _number(rows, grouping, closure, slot, stamp, feature_start, feature, place, itself):  # type: ignore[no-untyped-def]
    """Write where every entry stands among the features of its group, and φ_ii of every row."""
    for group in range(slot.shape[0]):
        if slot[group] >= 0:
            first = feature_start[slot[group]]
            for at in range(first, feature_start[slot[group] + 1]):
                stamp[feature[at]] = at - first
        for at in range(grouping.start[group], grouping.start[group + 1]):
            point = grouping.member[at]
            square = np.int64(0)
            for entry in range(rows.indptr[point], rows.indptr[point + 1]):
                value = np.int64(rows.values[entry])
                negative = rows.indices[entry] == closure.negative_column
                square += -value * value if negative else value * value
                if slot[group] >= 0:
                    place[entry] = stamp[rows.indices[entry]]
            itself[point] = 2 * rows.own[point] - closure.kappa * square


def _features(
    rows: QuantisedRows, grouping: Grouping, slot: AnyArray, n_slots: int, stamp: AnyArray
) -> tuple[IntArray, AnyArray]:
    """Return the features of each slot, ascending, as CSR."""
    start = np.zeros(n_slots + 1, np.int64)
    stamp[:] = -1
    _collect(rows, grouping, slot, stamp, start, np.empty(0, np.int32))
    start = np.cumsum(start)
    feature = np.empty(start[-1], np.int32)
    stamp[:] = -1
    _collect(rows, grouping, slot, stamp, start, feature)
    for one in range(n_slots):
        feature[start[one] : start[one + 1]].sort()
    return start, feature


def build_tables(
    rows: QuantisedRows, closure: Closure, grouping: Grouping, n_clusters: int
) -> Tables:
    """Return empty tables; their sizes do not depend on the labels."""
    sizes = np.diff(grouping.start)
    forms = table_forms(sizes, closure.must_weight != 0, closure.rival_start, closure.rival)
    slot, owner = (np.where(form, np.cumsum(form) - 1, -1).astype(np.int32) for form in forms)
    n_slots, n_owners = (int(form.sum()) for form in forms)
    n_features = int(rows.indices.max()) + 1 if rows.indices.size else 0
    stamp = np.empty(n_features, np.int32)
    feature_start, feature = _features(rows, grouping, slot, n_slots, stamp)
    place, itself = np.zeros(rows.indices.shape[0], np.int32), np.empty(len(rows.own), np.int64)
    _number(rows, grouping, closure, slot, stamp, feature_start, feature, place, itself)
    widths = np.diff(feature_start)
    owner_start = np.concatenate([[0], np.cumsum(widths[slot[forms[1]]])]).astype(np.int64)
    strong = forms[0][closure.rival]
    n_strong = np.concatenate([[0], np.cumsum(strong)]).astype(np.int64)

    def empty(*shape: int) -> IntArray:
        return np.zeros(shape, np.int64)

    return Tables(
        slot,
        owner,
        feature_start,
        feature,
        place,
        empty(len(feature), n_clusters),
        empty(n_slots, n_clusters),
        empty(n_slots, n_clusters),
        owner_start,
        empty(owner_start[-1], n_clusters),
        empty(n_owners, n_clusters),
        empty(n_owners, n_clusters),
        n_strong[closure.rival_start],
        closure.rival[strong],
        closure.rival_weight[strong],
        itself,
        empty(int(widths.max(initial=0)), n_clusters),
        empty(n_clusters),
        empty(n_clusters),
        np.zeros(n_features, np.int32),
        empty(n_clusters),
        empty(n_clusters),
        empty(2, n_clusters + 1),
    )


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

    To its own table, must-problem: −w (n A_i + Σ A − κ q_i·S). To a rival's:
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
