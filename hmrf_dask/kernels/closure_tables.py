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

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import find, former, inner, njit
from hmrf_dask.kernels.pairs import features_of_sets
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

    `sizes` are the members of each group, `closed` says whether its must-links are closed, rivals
    are those of `Closure`.

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
    """What the bytes of a component's tables follow from, with K and the features."""

    # entries of the rows of each group that has a table, and of each that keeps its own sums
    slot_values: IntArray
    owner_values: IntArray
    n_values: int  # entries of all rows
    n_points: int  # rows
    n_groups: int  # of any kind
    n_rivals: int  # pairs of them


def table_bytes(n_features: int, n_clusters: int, sizes: TableSizes) -> int:
    """Return how many bytes the tables of a component need at most, next to its rows and costs.

    Features are those of the component's rows, 0 for Potts.

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
    """Integer rows of a component, features numbered within it."""

    values: LabelArray  # CSR entries, features ascending within a row
    indices: LabelArray
    indptr: IntArray  # (n + 1,)
    own: IntArray  # (n,): A_i of the penalty scale


class Closure(NamedTuple):
    """What is closed, and how φ is made of the rows.

    A must-link closure costs ``must_weight[g] · φ`` for each pair of group g at different clusters,
    a cannot-link closure ``rival_weight · (largest − φ)`` for each pair of rival groups at one.
    """

    kappa: int  # 1 cosine and Pearson, 2 squared Euclidean, 0 Potts (rows are not read)
    negative_column: int  # feature whose products count negatively (Pearson's means), -1 for none
    largest: int  # φ_max in the same units
    # (G,): 0 where a group has no closure: contradictory groups, groups held as explicit pairs
    must_weight: IntArray
    rival_start: IntArray  # rival groups of each group as CSR, both directions
    rival: LabelArray
    rival_weight: IntArray  # weight of each entry of `rival`, the same in both directions


class Slots(NamedTuple):
    """Which groups have a table, and for which features."""

    slot: LabelArray  # (G,): place of a group's table, -1 without one
    feature_start: IntArray  # features of each slot, ascending
    feature: LabelArray


class OwnerSums(NamedTuple):
    """Sums over large groups themselves, which their rivals without a table read."""

    # (G,): place of a group's sums, -1 without them; a group that has them has a slot too
    owner: LabelArray
    start: IntArray  # where the features of each owner begin in `sums`, in the order of its slot's
    sums: IntArray  # (features of owners, K)
    counts: IntArray  # (owners, K): members of each owner at each cluster
    own: IntArray  # (owners, K): their summed A


class Change(NamedTuple):
    """One change of the members of a group with a table."""

    # (longest list of features, K): summed rows by cluster, over the features of the group
    block: IntArray
    members: IntArray  # (K,): their number
    summed: IntArray  # (K,): their summed A


class Buffers(NamedTuple):
    """Arrays that hold nothing from one point or group to the next."""

    dense: LabelArray  # (features,): one row with all its features; zeros in between
    row: IntArray  # (K,): the costs of a point
    part: IntArray  # (K,): those of the closure inside its group
    energies: IntArray  # (2, K + 1): the energies of a group, in two limbs


class Tables(NamedTuple):
    """The tables; only groups with many partners have a slot."""

    slots: Slots
    # (entries of the rows,): where an entry's feature stands among those of its own group
    place: LabelArray
    sums: IntArray  # (len(slots.feature), K)
    counts: IntArray  # (slots, K)
    constants: IntArray
    owners: OwnerSums
    strong_start: AnyArray  # the rivals of each group that have a slot, as in `Closure`
    strong: AnyArray
    strong_weight: AnyArray
    itself: IntArray  # (n,): φ_ii of the quantised rows
    change: Change
    buffers: Buffers


class TableForm(NamedTuple):
    """A component in table form: its rows, what is closed, its groups, and their tables."""

    rows: QuantisedRows
    closure: Closure
    grouping: Grouping
    tables: Tables


make_rows, make_closure = former(QuantisedRows), former(Closure)


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


def _slots(rows: QuantisedRows, grouping: Grouping, slot: LabelArray, n_features: int) -> Slots:
    """Return the features of each slot, ascending, as CSR."""
    sizes, chosen = np.diff(grouping.start), slot >= 0
    start = np.concatenate([[0], np.cumsum(sizes[chosen])])
    member = grouping.member[np.repeat(chosen, sizes)]
    return Slots(slot, *features_of_sets(rows, start, member, n_features))


def _zeros(*shape: int) -> IntArray:
    return np.zeros(shape, np.int64)


def build_tables(
    rows: QuantisedRows, closure: Closure, grouping: Grouping, n_clusters: int
) -> TableForm:
    """Return a component with empty tables; their sizes do not depend on the labels."""
    sizes = np.diff(grouping.start)
    forms = table_forms(sizes, closure.must_weight != 0, closure.rival_start, closure.rival)
    slot, owner = (np.where(form, np.cumsum(form) - 1, -1).astype(np.int32) for form in forms)
    n_features = int(rows.indices.max()) + 1 if rows.indices.size else 0
    slots = _slots(rows, grouping, slot, n_features)
    place, itself = np.zeros(rows.indices.shape[0], np.int32), np.empty(len(rows.own), np.int64)
    _number(rows, grouping, slots, np.empty(n_features, np.int32), place)
    _own_phi(rows, closure, itself)
    widths = np.diff(slots.feature_start)
    strong = forms[0][closure.rival]
    n_strong = np.concatenate([[0], np.cumsum(strong)]).astype(np.int64)
    longest = int(widths.max(initial=0))
    owned = np.concatenate([[0], np.cumsum(widths[slot[forms[1]]])])
    row, part = _zeros(2, n_clusters)
    tables = Tables(
        slots,
        place,
        sums=_zeros(len(slots.feature), n_clusters),
        counts=_zeros(len(widths), n_clusters),
        constants=_zeros(len(widths), n_clusters),
        owners=OwnerSums(
            owner, owned, _zeros(owned[-1], n_clusters), *_zeros(2, len(owned) - 1, n_clusters)
        ),
        strong_start=n_strong[closure.rival_start],
        strong=closure.rival[strong],
        strong_weight=closure.rival_weight[strong],
        itself=itself,
        change=Change(_zeros(longest, n_clusters), _zeros(n_clusters), _zeros(n_clusters)),
        buffers=Buffers(np.zeros(n_features, np.int32), row, part, _zeros(2, n_clusters + 1)),
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
