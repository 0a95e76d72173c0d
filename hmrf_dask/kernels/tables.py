"""ICM where must-link and cannot-link closures are tables, not pairs: exact and linear in the rows.

φ_ij = A_i + A_j − κ q_i·q_j in integers. For group g and cluster h the closure of point i needs
only sums over the members at h of g and of its rivals (design.md, "Closure without pairs"), and all
of them enter c_i(h) in one combination, so one table serves a group:

    c_i(h) = … + A_i · counts[g, h] + constants[g, h] + q_i · sums[g, :, h]

It holds the features of the group's own rows only: together no more than the rows' entries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from hmrf_dask.kernels.links import Grouping, frozen
from hmrf_dask.kernels.reconcile import find
from hmrf_dask.types import AnyArray, LabelArray


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
    """The tables; only groups that take part in a closure have a slot.

    Attributes
    ----------
    slot : int32 array, shape (G,)
        Place of a group's table, -1 without one.
    feature_start, feature : int64 and int32 arrays
        Features of each slot, ascending.
    place : int32 array, shape (entries of the rows,)
        Where an entry's feature stands among those of its own group.
    sums : int64 array, shape (len(feature), K)
    counts, constants : int64 arrays, shape (slots, K)
    itself : int64 array, shape (n,)
        φ_ii of the quantised rows.
    scratch : int64 array, shape (longest list of features, K)
        Room for one change.
    """

    slot: AnyArray
    feature_start: AnyArray
    feature: AnyArray
    place: AnyArray
    sums: AnyArray
    counts: AnyArray
    constants: AnyArray
    itself: AnyArray
    scratch: AnyArray


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


def table_bytes(
    n_features: int,
    n_groups: int,
    n_clusters: int,
    n_values: int | None = None,
    n_points: int = 0,
    n_groups_all: int = 0,
) -> int:
    """Return how many bytes the tables of a component need at most, beside its rows and costs.

    Parameters
    ----------
    n_features : int
        Features of the component's rows (0 for Potts).
    n_groups : int
        Groups that take part in a closure.
    n_clusters : int
    n_values : int or None
        Entries of all rows: a group's table has no more features than its rows have entries.
    n_points, n_groups_all : int
        Points, and groups of any kind, for the vectors that are kept of them.

    Examples
    --------
    >>> table_bytes(50_000, 2, 20) // 10**6
    24
    """
    widest = n_features
    entries = n_features * n_groups
    values = 0
    if n_values is not None:
        widest = min(widest, n_values)
        entries = min(entries, n_values)
        values = n_values
    tables = entries * (8 * n_clusters + 4) + widest * 8 * n_clusters + 4 * n_features
    vectors = 16 * n_clusters * n_groups + 4 * values + 16 * n_points + 28 * n_groups_all
    return tables + vectors + 64 * n_clusters + 64


@njit(nogil=True, cache=True)
def _features(rows, grouping, slot, n_slots, n_features):  # type: ignore[no-untyped-def]
    """Return the features of each slot, and where every entry stands among those of its group."""
    feature_start = np.zeros(n_slots + 1, np.int64)
    stamp = np.full(n_features, -1, np.int32)
    for group in range(slot.shape[0]):
        if slot[group] < 0:
            continue
        found = 0
        for at in range(grouping.start[group], grouping.start[group + 1]):
            point = grouping.member[at]
            for entry in range(rows.indptr[point], rows.indptr[point + 1]):
                if stamp[rows.indices[entry]] != group:
                    stamp[rows.indices[entry]] = group
                    found += 1
        feature_start[slot[group] + 1] = feature_start[slot[group]] + found
    feature = np.empty(feature_start[n_slots], np.int32)
    place = np.zeros(rows.indices.shape[0], np.int32)
    stamp[:] = -1
    for group in range(slot.shape[0]):
        if slot[group] >= 0:
            mine = feature[feature_start[slot[group]] : feature_start[slot[group] + 1]]
            _number_features(rows, grouping, group, stamp, mine, place)
    return feature_start, feature, place


@njit(nogil=True, cache=True)
def _number_features(rows, grouping, group, stamp, mine, place):  # type: ignore[no-untyped-def]
    """Fill the sorted features of one group; `stamp` is -1 everywhere before and after."""
    found = 0
    for at in range(grouping.start[group], grouping.start[group + 1]):
        point = grouping.member[at]
        for entry in range(rows.indptr[point], rows.indptr[point + 1]):
            if stamp[rows.indices[entry]] < 0:
                stamp[rows.indices[entry]] = 0
                mine[found] = rows.indices[entry]
                found += 1
    mine.sort()
    for number in range(found):
        stamp[mine[number]] = number
    for at in range(grouping.start[group], grouping.start[group + 1]):
        point = grouping.member[at]
        for entry in range(rows.indptr[point], rows.indptr[point + 1]):
            place[entry] = stamp[rows.indices[entry]]
    for number in range(found):
        stamp[mine[number]] = -1


@njit(nogil=True, cache=True)
def _selves(rows, kappa, negative_column):  # type: ignore[no-untyped-def]
    """Return φ_ii of every row: not quite nought in integers."""
    itself = np.empty(rows.own.shape[0], np.int64)
    for point in range(itself.shape[0]):
        square = np.int64(0)
        for entry in range(rows.indptr[point], rows.indptr[point + 1]):
            value = np.int64(rows.values[entry])
            square += -value * value if rows.indices[entry] == negative_column else value * value
        itself[point] = 2 * rows.own[point] - kappa * square
    return itself


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
    """Add a change of a group's members (sums, counts, sums of A by cluster) wherever it counts."""
    weight = closure.must_weight[owner]
    if weight != 0:
        _spread_one(tables, closure.kappa, owner, owner, weight, 0, change)
    for at in range(closure.rival_start[owner], closure.rival_start[owner + 1]):
        weight = closure.rival_weight[at]
        group = closure.rival[at]
        _spread_one(tables, closure.kappa, group, owner, weight, closure.largest, change)


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


@njit(nogil=True, cache=True)
def _fill(labels, tables, rows, closure, grouping):  # type: ignore[no-untyped-def]
    for group in range(tables.slot.shape[0]):
        if tables.slot[group] >= 0:
            change = gather(labels, tables, rows, closure, grouping, group)
            spread(tables, closure, group, change)


def build_tables(
    labels: LabelArray,
    rows: QuantisedRows,
    closure: Closure,
    grouping: Grouping,
    n_clusters: int,
) -> Tables:
    """Return the tables of `labels`; their sizes do not depend on the labels."""
    taking_part = (closure.must_weight != 0) | (np.diff(closure.rival_start) > 0)
    slot = np.where(taking_part, np.cumsum(taking_part) - 1, -1).astype(np.int32)
    n_slots = int(taking_part.sum())
    n_features = int(rows.indices.max()) + 1 if rows.indices.size else 0
    feature_start, feature, place = _features(rows, grouping, slot, n_slots, n_features)
    widest = int(np.diff(feature_start).max(initial=0))
    tables = Tables(
        slot,
        feature_start,
        feature,
        place,
        np.zeros((feature.shape[0], n_clusters), np.int64),
        np.zeros((n_slots, n_clusters), np.int64),
        np.zeros((n_slots, n_clusters), np.int64),
        _selves(rows, closure.kappa, closure.negative_column),
        np.zeros((widest, n_clusters), np.int64),
    )
    _fill(labels, tables, rows, closure, grouping)
    return tables
