"""Tables in place of the pairs of must-link and cannot-link closures: exact and linear in the rows.

φ_ij = A_i + A_j − κ q_i·q_j in integers. For group g and cluster h the closure of point i needs
only sums over the members at h of g and of its rivals, and all of them enter c_i(h) in one
combination, so one table serves a group:

    c_i(h) = … + A_i · counts[g, h] + constants[g, h] + q_i · sums[g, :, h]

It holds the features of the group's own rows only: together no more than the rows' entries, but K
columns of them. So most groups have none (`table_forms`): a group of few members with few partners
reads the rows of small rivals one by one, and the sums that large ones keep of themselves.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import find, frozen, inner, njit
from hmrf_dask.kernels.problem import Grouping
from hmrf_dask.types import AnyArray, BoolArray, IntArray, LabelArray

LARGE_GROUP = 64  # a group of more members keeps sums over itself that its rivals read
# A group has a table when it would have to read more rows than this, one by one, for a point.
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
        Whether the must-links inside a group are closed.
    rival_start, rival : int arrays
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
    single = np.concatenate([[0], np.cumsum(np.where(owner, 0, sizes)[rival])])
    partners = single[rival_start[1:]] - single[rival_start[:-1]] + np.where(closed, sizes, 0)
    return owner | (taking_part & (partners > MOST_PARTNERS)), owner


class TableSizes(NamedTuple):
    """What the bytes of a component's tables follow from, with K and the features.

    Attributes
    ----------
    slot_values, owner_values : int arrays
        Entries of the rows of each group that has a table, and of each that keeps its own sums.
    n_values, n_points, n_groups, n_rivals : int
        Entries of all rows, rows, groups of any kind, and pairs of rivals.
    """

    slot_values: IntArray
    owner_values: IntArray
    n_values: int
    n_points: int
    n_groups: int
    n_rivals: int


def table_bytes(n_features: int, n_clusters: int, sizes: TableSizes) -> int:
    """Return how many bytes the tables of a component need at most, next to its rows and costs.

    Parameters
    ----------
    n_features : int
        Features of the component's rows (0 for Potts).
    n_clusters : int
    sizes : TableSizes

    Examples
    --------
    >>> large = np.array([10**7, 10**7])
    >>> table_bytes(50_000, 20, TableSizes(large, large, 2 * 10**7, 200_000, 2, 1)) // 10**6
    204
    """
    slots = np.minimum(sizes.slot_values, n_features)
    owners = np.minimum(sizes.owner_values, n_features)
    wide = int(slots.sum()) + int(owners.sum()) + int(slots.max(initial=0))
    tables = 8 * n_clusters * wide + 4 * int(slots.sum()) + 8 * n_features
    vectors = 16 * n_clusters * (len(slots) + len(owners)) + 16 * (len(slots) + len(owners))
    # where an entry stands in its table 4; while rows are gathered they are held once more 4
    of_points = 8 * sizes.n_values + 16 * sizes.n_points
    of_groups = 48 * sizes.n_groups + RIVAL_BYTES * sizes.n_rivals
    return tables + vectors + of_points + of_groups + 64 * n_clusters + 128


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


class Slots(NamedTuple):
    """Which groups have a table, and for which features.

    Attributes
    ----------
    slot : int32 array, shape (G,)
        Place of a group's table, -1 without one.
    feature_start, feature : int64 and int32 arrays
        Features of each slot, ascending.
    """

    slot: AnyArray
    feature_start: AnyArray
    feature: AnyArray


class OwnerSums(NamedTuple):
    """Sums over large groups themselves, which their rivals without a table read.

    Attributes
    ----------
    owner : int32 array, shape (G,)
        Place of a group's sums, -1 without them; a group that has them has a slot too.
    start : int64 array
        Where the features of each owner begin in `sums`, in the order of its slot's.
    sums : int64 array, shape (features of owners, K)
    counts, own : int64 arrays, shape (owners, K)
        Members of each owner at each cluster, and their summed A.
    """

    owner: AnyArray
    start: AnyArray
    sums: AnyArray
    counts: AnyArray
    own: AnyArray


class Change(NamedTuple):
    """One change of the members of a group with a table.

    Attributes
    ----------
    block : int64 array, shape (longest list of features, K)
        Summed rows by cluster, over the features of the group.
    members, summed : int64 arrays, shape (K,)
        Their number, and their summed A.
    """

    block: AnyArray
    members: AnyArray
    summed: AnyArray


class Buffers(NamedTuple):
    """Arrays that hold nothing from one point or group to the next.

    Attributes
    ----------
    dense : int32 array, shape (features,)
        One row with all its features; zeros in between.
    row, part : int64 arrays, shape (K,)
        The costs of a point: all, and those of the closure inside its group.
    energies : int64 array, shape (2, K + 1)
        The energies of a group, in two limbs.
    """

    dense: AnyArray
    row: AnyArray
    part: AnyArray
    energies: AnyArray


class Tables(NamedTuple):
    """The tables; only groups with many partners have a slot.

    Attributes
    ----------
    slots : Slots
    place : int32 array, shape (entries of the rows,)
        Where an entry's feature stands among those of its own group.
    sums : int64 array, shape (len(slots.feature), K)
    counts, constants : int64 arrays, shape (slots, K)
    owners : OwnerSums
    strong_start, strong, strong_weight : arrays
        The rivals of each group that have a slot, as in `Closure`.
    itself : int64 array, shape (n,)
        φ_ii of the quantised rows.
    change : Change
    buffers : Buffers
    """

    slots: Slots
    place: AnyArray
    sums: AnyArray
    counts: AnyArray
    constants: AnyArray
    owners: OwnerSums
    strong_start: AnyArray
    strong: AnyArray
    strong_weight: AnyArray
    itself: AnyArray
    change: Change
    buffers: Buffers


class TableForm(NamedTuple):
    """A component in table form: its rows, what is closed, its groups, and their tables."""

    rows: QuantisedRows
    closure: Closure
    grouping: Grouping
    tables: Tables


def make_rows(
    values: AnyArray, indices: AnyArray, indptr: AnyArray, own: AnyArray
) -> QuantisedRows:
    """Return `QuantisedRows` of arrays in the one form the kernels are compiled for.

    Examples
    --------
    >>> make_rows(np.array([3]), np.array([0]), np.array([0, 1]), np.array([9])).values.dtype
    dtype('int32')
    """
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
        must_weight=frozen(must_weight, np.int64),
        rival_start=frozen(rival_start, np.int64),
        rival=frozen(rival, np.int32),
        rival_weight=frozen(rival_weight, np.int64),
    )


@inner(inline="always")
def _list_new(
    rows: QuantisedRows, point: int, group: int, stamp: LabelArray, feature: Any, place: LabelArray
) -> Any:
    """List the features of a row that its group had not yet, from `place` on; return the next."""
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        if stamp[rows.indices[entry]] != group:
            stamp[rows.indices[entry]] = group
            if feature.shape[0] > 0:
                feature[place] = rows.indices[entry]
            place += 1
    return place


@njit(nogil=True, cache=True, makes_arrays=False)
def _collect(rows: QuantisedRows, grouping: Grouping, slots: Slots, stamp: LabelArray) -> None:
    """List the features of each slot as they come, or count them where the list is empty."""
    for group in range(slots.slot.shape[0]):
        if slots.slot[group] < 0:
            continue
        first = slots.feature_start[slots.slot[group]]
        place = first
        for at in range(grouping.start[group], grouping.start[group + 1]):
            place = _list_new(rows, grouping.member[at], group, stamp, slots.feature, place)
        if slots.feature.shape[0] == 0:
            slots.feature_start[slots.slot[group] + 1] = place - first


@njit(nogil=True, cache=True, makes_arrays=False)
def _number(
    rows: QuantisedRows, grouping: Grouping, slots: Slots, stamp: LabelArray, place: LabelArray
) -> None:
    """Write where every entry stands among the features of its group."""
    for group in range(slots.slot.shape[0]):
        if slots.slot[group] < 0:
            continue
        first = slots.feature_start[slots.slot[group]]
        for at in range(first, slots.feature_start[slots.slot[group] + 1]):
            stamp[slots.feature[at]] = at - first
        for at in range(grouping.start[group], grouping.start[group + 1]):
            point = grouping.member[at]
            for entry in range(rows.indptr[point], rows.indptr[point + 1]):
                place[entry] = stamp[rows.indices[entry]]


@njit(nogil=True, cache=True, makes_arrays=False)
def _own_phi(rows: QuantisedRows, closure: Closure, itself: IntArray) -> None:
    """Write φ_ii of every row."""
    for point in range(itself.shape[0]):
        square = np.int64(0)
        for entry in range(rows.indptr[point], rows.indptr[point + 1]):
            value = np.int64(rows.values[entry])
            negative = rows.indices[entry] == closure.negative_column
            square += -value * value if negative else value * value
        itself[point] = 2 * rows.own[point] - closure.kappa * square


def _slots(rows: QuantisedRows, grouping: Grouping, slot: AnyArray, stamp: AnyArray) -> Slots:
    """Return the features of each slot, ascending, as CSR."""
    start = np.zeros(int(slot.max(initial=-1)) + 2, np.int64)
    stamp[:] = -1
    _collect(rows, grouping, Slots(slot, start, np.empty(0, np.int32)), stamp)
    start = np.cumsum(start)
    slots = Slots(slot, start, np.empty(start[-1], np.int32))
    stamp[:] = -1
    _collect(rows, grouping, slots, stamp)
    for first, last in pairwise(start.tolist()):
        slots.feature[first:last].sort()
    return slots


def _zeros(*shape: int) -> IntArray:
    return np.zeros(shape, np.int64)


def _owner_sums(owner: AnyArray, widths: IntArray, n_clusters: int) -> OwnerSums:
    """Return empty sums of groups with so many features."""
    start = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
    n_owners = len(widths)
    return OwnerSums(
        owner,
        start,
        _zeros(start[-1], n_clusters),
        _zeros(n_owners, n_clusters),
        _zeros(n_owners, n_clusters),
    )


def build_tables(
    rows: QuantisedRows, closure: Closure, grouping: Grouping, n_clusters: int
) -> TableForm:
    """Return a component with empty tables; their sizes do not depend on the labels."""
    sizes = np.diff(grouping.start)
    forms = table_forms(sizes, closure.must_weight != 0, closure.rival_start, closure.rival)
    slot, owner = (np.where(form, np.cumsum(form) - 1, -1).astype(np.int32) for form in forms)
    n_features = int(rows.indices.max()) + 1 if rows.indices.size else 0
    stamp = np.empty(n_features, np.int32)
    slots = _slots(rows, grouping, slot, stamp)
    place, itself = np.zeros(rows.indices.shape[0], np.int32), np.empty(len(rows.own), np.int64)
    _number(rows, grouping, slots, stamp, place)
    _own_phi(rows, closure, itself)
    widths = np.diff(slots.feature_start)
    strong = forms[0][closure.rival]
    n_strong = np.concatenate([[0], np.cumsum(strong)]).astype(np.int64)
    longest = int(widths.max(initial=0))
    tables = Tables(
        slots,
        place,
        sums=_zeros(len(slots.feature), n_clusters),
        counts=_zeros(len(widths), n_clusters),
        constants=_zeros(len(widths), n_clusters),
        owners=_owner_sums(owner, widths[slot[forms[1]]], n_clusters),
        strong_start=n_strong[closure.rival_start],
        strong=closure.rival[strong],
        strong_weight=closure.rival_weight[strong],
        itself=itself,
        change=Change(_zeros(longest, n_clusters), _zeros(n_clusters), _zeros(n_clusters)),
        buffers=Buffers(
            np.zeros(n_features, np.int32),
            _zeros(n_clusters),
            _zeros(n_clusters),
            _zeros(2, n_clusters + 1),
        ),
    )
    return TableForm(rows, closure, grouping, tables)


@inner()
def put_point(form: TableForm, group: int, point: int, cluster: int, sign: int) -> None:
    """Count a point in (sign 1) or out (sign -1) at a cluster of every table it counts in.

    Of its own group's, where the group is closed and has one, and of its rivals'.
    """
    rows, closure, tables, slots = form.rows, form.closure, form.tables, form.tables.slots
    begin = tables.strong_start[group]
    for at in range(begin - 1, tables.strong_start[group + 1]):
        own = at < begin
        slot = slots.slot[group] if own else slots.slot[tables.strong[at]]
        weight = sign * (closure.must_weight[group] if own else tables.strong_weight[at])
        if slot < 0 or weight == 0:
            continue
        largest = 0 if own else closure.largest
        tables.counts[slot, cluster] -= weight
        tables.constants[slot, cluster] += weight * (largest - rows.own[point])
        first = slots.feature_start[slot]
        features = slots.feature[first : slots.feature_start[slot + 1]]
        for entry in range(rows.indptr[point], rows.indptr[point + 1]):
            feature = rows.indices[entry]
            place = np.int64(tables.place[entry]) if own else find(features, feature)
            if place >= 0:
                value = weight * closure.kappa * np.int64(rows.values[entry])
                signed = -value if feature == closure.negative_column else value
                tables.sums[first + place, cluster] += signed
    if tables.owners.owner[group] >= 0:
        _put_into_owner(form, tables.owners.owner[group], point, cluster, sign)


@inner(inline="always")
def _put_into_owner(form: TableForm, mine: Any, point: int, cluster: int, sign: int) -> None:
    """Count a point in or out of the sums its group keeps over itself."""
    rows, owners = form.rows, form.tables.owners
    owners.counts[mine, cluster] += sign
    owners.own[mine, cluster] += sign * rows.own[point]
    start = owners.start[mine]
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        value = sign * np.int64(rows.values[entry])
        signed = -value if rows.indices[entry] == form.closure.negative_column else value
        owners.sums[start + form.tables.place[entry], cluster] += signed


@inner(inline="always")
def empty_change(tables: Any, group: int) -> None:
    """Make the change of a group with a table one of nothing."""
    slot, start = tables.slots.slot[group], tables.slots.feature_start
    tables.change.block[: start[slot + 1] - start[slot]] = 0
    tables.change.members[:] = 0
    tables.change.summed[:] = 0


@inner()
def add_row(form: TableForm, point: int, cluster: int, sign: int) -> None:
    """Count a member in (sign 1) or out (sign -1) at a cluster of the change."""
    rows, change = form.rows, form.tables.change
    change.members[cluster] += sign
    change.summed[cluster] += sign * rows.own[point]
    for entry in range(rows.indptr[point], rows.indptr[point + 1]):
        value = sign * np.int64(rows.values[entry])
        signed = -value if rows.indices[entry] == form.closure.negative_column else value
        change.block[form.tables.place[entry], cluster] += signed


@inner()
def gather(labels: LabelArray, form: TableForm, group: int) -> None:
    """Make all members of a group at their clusters the change."""
    empty_change(form.tables, group)
    for at in range(form.grouping.start[group], form.grouping.start[group + 1]):
        point = np.int64(form.grouping.member[at])
        add_row(form, point, np.int64(labels[point]), np.int64(1))


@inner()
def spread_change(form: TableForm, group: int) -> None:
    """Add the change of the members of a group with a table wherever it counts.

    To its own table, must-links: −w (n A_i + Σ A − κ q_i·S). To a rival's:
    w̄ (n (largest − A_i) − Σ A + κ q_i·S). With largest 0 they are the same formula.
    """
    closure, tables = form.closure, form.tables
    change, slots = tables.change, tables.slots
    theirs = slots.slot[group]
    features = slots.feature[slots.feature_start[theirs] : slots.feature_start[theirs + 1]]
    begin = tables.strong_start[group]
    for at in range(begin - 1, tables.strong_start[group + 1]):
        own = at < begin
        weight = closure.must_weight[group] if own else tables.strong_weight[at]
        if weight == 0:
            continue
        mine = theirs if own else slots.slot[tables.strong[at]]
        largest = 0 if own else closure.largest
        for h in range(change.members.shape[0]):
            tables.counts[mine, h] -= weight * change.members[h]
            tables.constants[mine, h] += weight * (largest * change.members[h] - change.summed[h])
        _spread_sums(tables, mine, features, weight * closure.kappa)
    if tables.owners.owner[group] >= 0:
        _spread_to_owner(tables, tables.owners.owner[group], features.shape[0])


@inner(inline="always")
def _spread_sums(tables: Any, mine: Any, theirs: Any, factor: Any) -> None:
    """Add the block over the features `theirs` to a table, walking the shorter list of features."""
    change, slots = tables.change, tables.slots
    first = slots.feature_start[mine]
    ours = slots.feature[first : slots.feature_start[mine + 1]]
    shorter = ours.shape[0] <= theirs.shape[0]
    for step in range(min(ours.shape[0], theirs.shape[0])):
        match = find(theirs, ours[step]) if shorter else find(ours, theirs[step])
        if match >= 0:
            at = step if shorter else match
            source = match if shorter else step
            for h in range(change.members.shape[0]):
                tables.sums[first + at, h] += factor * change.block[source, h]


@inner(inline="always")
def _spread_to_owner(tables: Any, mine: Any, width: Any) -> None:
    """Add the change to the sums a group keeps over itself."""
    change, owners = tables.change, tables.owners
    first = owners.start[mine]
    for h in range(change.members.shape[0]):
        owners.counts[mine, h] += change.members[h]
        owners.own[mine, h] += change.summed[h]
    for step in range(width):
        for h in range(change.members.shape[0]):
            owners.sums[first + step, h] += change.block[step, h]
