"""First variation (Hartigan moves): the exact change of J by a row's move, centroids re-optimised.

A cluster is worth ‖S‖ for directional distortions and ‖S‖²/n for squared Euclidean distance: Σ D is
a constant less the sum of worths. A row is its summand z in the columns of the sums; products use
one weight a column (−Σ a for the centring column of Pearson).

This module finds the best move of each row alone against frozen sums; moves of whole groups, and
moves made one after the other, are in `kernels.set_moves`.

First variation of sets of rows: the exact change of J when they go to one cluster together.

A set is a must-link group, wherever its rows lie, or one row. Moves are applied one after the
other, each re-checked on the sums as they then stand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import RowArrays, frozen, inner, njit
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, LabelArray

ACCEPT = 1e-10  # of 1 + the receiving cluster's worth: below it a gain may be rounding


class Summands(NamedTuple):
    """Rows as summands in CSR form over the d + 1 columns of the sums, in exact integers."""

    start: IntArray
    column: LabelArray
    entry: IntArray  # rint(z · 2**exponent), what the sums really hold


class PairCosts(NamedTuple):
    """Signed pair costs of the rows in CSR form: the cost of equal labels."""

    start: IntArray
    neighbour: LabelArray  # places in the label array
    cost: FloatArray


def make_pair_costs(pair_costs: PairCosts | None) -> PairCosts:
    """Return `PairCosts` in the one form the kernels are compiled for; None: no pairs."""
    if pair_costs is None:
        return make_pair_costs(PairCosts(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0)))
    return PairCosts(
        frozen(pair_costs.start, np.int64),
        frozen(pair_costs.neighbour, np.int32),
        frozen(pair_costs.cost, np.float64),
    )


def make_summands(rows: Summands) -> Summands:
    """Return `Summands` in the one form the kernels are compiled for."""
    return Summands(
        frozen(rows.start, np.int64), frozen(rows.column, np.int32), frozen(rows.entry, np.int64)
    )


@inner()
def worth_of(directional, square, count):  # type: ignore[no-untyped-def]
    """Return ‖S‖ or ‖S‖²/n from ‖S‖², which rounding may take below nought."""
    square = max(square, 0.0)
    if directional:
        return np.sqrt(square)
    return square / count if count > 0 else 0.0


@njit(nogil=True, cache=True, makes_arrays=False)
def _squares(sums, metric, unit, out):  # type: ignore[no-untyped-def]
    for h in range(sums.shape[0]):
        total = 0.0
        for m in range(sums.shape[1]):
            value = np.float64(sums[h, m]) * unit
            total += metric[m] * value * value
        out[h] = total


def cluster_squares(sums: IntArray, metric: FloatArray, exponent: int) -> FloatArray:
    """Return ‖S_h‖² of each cluster in the metric, shape (K,)."""
    out = np.empty(len(sums))
    _squares(frozen(sums, np.int64), frozen(metric, np.float64), 2.0**-exponent, out)
    return out


@njit(nogil=True, cache=True, makes_arrays=False)
def _summands(rows, factor, extra, features, centred, unit, start, column, entry):  # type: ignore[no-untyped-def]
    filled = 0
    for i in range(factor.shape[0]):
        start[i] = filled
        first = rows.indptr[i]
        scaled = factor[i] * unit
        for p in range(first, rows.indptr[i + 1]):
            m = p - first if rows.dense else rows.indices[p]
            column[filled] = m
            entry[filled] = np.int64(np.rint(scaled * features[m] * rows.values[p]))
            filled += 1
        if centred:
            column[filled] = features.shape[0]
            entry[filled] = np.int64(np.rint(extra[i] * unit))
            filled += 1
    start[factor.shape[0]] = filled


def summands(
    rows: RowArrays, factor: FloatArray, extra: FloatArray, features: FloatArray, exponent: int
) -> Summands:
    """Return rows as summands, entry for entry what `kernels.sums` adds."""
    centred = bool(extra.any())
    size = len(rows.values) + (len(factor) if centred else 0)
    starts = np.zeros(len(factor) + 1, np.int64)
    out = Summands(starts, np.empty(size, np.int32), np.empty(size, np.int64))
    factors = (frozen(array, np.float64) for array in (factor, extra, features))
    _summands(rows, *factors, centred, 2.0**exponent, *out)
    return out


@inner(inline="always")
def _single_products(rows, i, columns, metric, unit, products):  # type: ignore[no-untyped-def]
    """Write z_i · S_h for every cluster; return ‖z_i‖²."""
    for h in range(products.shape[0]):
        products[h] = 0.0
    length = 0.0
    for p in range(rows.start[i], rows.start[i + 1]):
        m = rows.column[p]
        value = np.float64(rows.entry[p]) * unit
        weighted = value * metric[m]
        length += weighted * value
        column = columns[m]
        for h in range(products.shape[0]):
            products[h] += weighted * column[h]
    return length


@inner(inline="always")
def _best_target(own, length, products, costs, squares, counts, directional):  # type: ignore[no-untyped-def]
    """Return the largest gain of one row above its threshold, and its target (0, own: none)."""
    leaving = worth_of(directional, squares[own], counts[own]) - worth_of(
        directional, squares[own] - 2.0 * products[own] + length, counts[own] - 1
    )
    best = 0.0
    target = own
    for h in range(products.shape[0]):
        if h != own:
            worth = worth_of(directional, squares[h], counts[h])
            joined = worth_of(directional, squares[h] + 2.0 * products[h] + length, counts[h] + 1)
            gain = joined - worth - leaving - (costs[h] - costs[own])
            if gain > best and gain > ACCEPT * (1.0 + worth):
                best = gain
                target = np.int32(h)
    return best, target


@njit(nogil=True, cache=True, makes_arrays=False)
def _single_gains(  # type: ignore[no-untyped-def]
    rows,
    columns,
    metric,
    unit,
    squares,
    counts,
    directional,
    labels,
    pair_costs,
    pair_labels,
    skip,
    room,
    gains,
    targets,
):
    products, costs = room[0], room[1]
    for h in range(costs.shape[0]):
        costs[h] = 0.0
    linked = pair_costs.start.shape[0] > 0
    for i in range(labels.shape[0]):
        own = labels[i]
        if skip[i] or counts[own] < 2:
            continue
        length = _single_products(rows, i, columns, metric, unit, products)
        if linked:
            for h in range(costs.shape[0]):
                costs[h] = 0.0
            for p in range(pair_costs.start[i], pair_costs.start[i + 1]):
                costs[pair_labels[pair_costs.neighbour[p]]] += pair_costs.cost[p]
        gains[i], targets[i] = _best_target(
            own, length, products, costs, squares, counts, directional
        )


def single_gains(
    rows: Summands,
    columns: FloatArray,
    metric: FloatArray,
    exponent: int,
    squares: FloatArray,
    counts: IntArray,
    directional: bool,
    labels: LabelArray,
    skip: BoolArray,
    pair_costs: PairCosts | None = None,
    pair_labels: LabelArray | None = None,
) -> tuple[FloatArray, LabelArray]:
    """Return the best gain of each row alone against frozen sums, and its target; 0: none gains.

    `columns` are the sums as float64, shape (d + 1, K).
    """
    gains = np.zeros(len(labels))
    targets = np.array(labels, np.int32)
    sums = (frozen(columns, np.float64), frozen(metric, np.float64), 2.0**-exponent)
    clusters = (frozen(squares, np.float64), frozen(counts, np.int64), bool(directional))
    place = frozen(labels if pair_labels is None else pair_labels, np.int32)
    own = (frozen(labels, np.int32), make_pair_costs(pair_costs), place, frozen(skip, np.bool_))
    room = np.empty((2, columns.shape[1]))
    _single_gains(make_summands(rows), *sums, *clusters, *own, room, gains, targets)
    return gains, targets


class Moves(NamedTuple):
    """Proposed moves, best first: each takes the rows start[t] .. start[t + 1] to `target`."""

    start: IntArray
    row: LabelArray
    target: LabelArray


class Clusters(NamedTuple):
    """The sums moves are held against, in the form kernels read."""

    sums: IntArray
    metric: FloatArray
    unit: float
    squares: FloatArray
    counts: IntArray
    directional: bool


class _Held(NamedTuple):
    """What changes when moves are made: of no length where they are only looked for."""

    labels: LabelArray
    sums: IntArray
    squares: FloatArray
    counts: IntArray


def _nothing_held() -> _Held:
    none = np.empty(0, np.int64)
    return _Held(none.astype(np.int32), none.reshape(0, 0), np.empty(0), none)


class _Space(NamedTuple):
    """Room for a sum of rows, the columns it touches and their marks, marks of places, counts."""

    scratch: FloatArray
    touched: IntArray
    marked: BoolArray
    chosen: BoolArray
    leavers: IntArray


def _make_space(shape: tuple[int, ...], n_labels: int) -> _Space:
    n_clusters, n_columns = shape
    return _Space(
        np.zeros(n_columns),
        np.empty(n_columns, np.int64),
        np.zeros(n_columns, np.bool_),
        np.zeros(n_labels, np.bool_),
        np.empty(n_clusters, np.int64),
    )


@inner(inline="always")
def _load(rows, row, unit, scratch, touched, n_touched, marked):  # type: ignore[no-untyped-def]
    """Add a row to a dense scratch vector, remembering which columns it touches."""
    for p in range(rows.start[row], rows.start[row + 1]):
        m = rows.column[p]
        if not marked[m]:
            marked[m] = True
            touched[n_touched] = m
            n_touched += 1
        scratch[m] += np.float64(rows.entry[p]) * unit
    return n_touched


@inner(inline="always")
def _unload(clusters, h, scratch, touched, n_touched, marked):  # type: ignore[no-untyped-def]
    """Return z · S_h and ‖z‖² of the scratch vector z, and clear it."""
    product = 0.0
    length = 0.0
    for t in range(n_touched):
        m = touched[t]
        weighted = clusters.metric[m] * scratch[m]
        product += weighted * np.float64(clusters.sums[h, m]) * clusters.unit
        length += weighted * scratch[m]
        scratch[m] = 0.0
        marked[m] = False
    return product, length


@inner(inline="always")
def _change_of(h, members, target, n_rows, rows, places, labels, clusters, space):  # type: ignore[no-untyped-def]
    """Return how the worth of one cluster changes: the target's by all that join it."""
    scratch, touched, marked = space.scratch, space.touched, space.marked
    joins = h == target
    n_touched = 0
    for row in members:
        if (labels[places[row]] == h) != joins:
            n_touched = _load(rows, row, clusters.unit, scratch, touched, n_touched, marked)
    product, length = _unload(clusters, h, scratch, touched, n_touched, marked)
    square, count = clusters.squares[h], clusters.counts[h]
    sign = 1 if joins else -1
    after = square + sign * 2.0 * product + length
    changed = worth_of(clusters.directional, after, count + sign * n_rows)
    return changed - worth_of(clusters.directional, square, count)


@inner()
def _set_gain(members, target, rows, places, labels, clusters, pair_costs, space):  # type: ignore[no-untyped-def]
    """Return (gain, threshold) of moving all `members` to `target`.

    The gain is −1 when the move would empty a cluster or move nobody.
    """
    leavers = space.leavers
    for a in range(leavers.shape[0]):
        leavers[a] = 0
    moving = 0
    for row in members:
        if labels[places[row]] != target:
            leavers[labels[places[row]]] += 1
            moving += 1
    worth = worth_of(clusters.directional, clusters.squares[target], clusters.counts[target])
    threshold = ACCEPT * (1.0 + worth) * members.shape[0]
    if moving == 0:
        return -1.0, threshold
    for a in range(leavers.shape[0]):
        if leavers[a] > 0 and leavers[a] >= clusters.counts[a]:
            return -1.0, threshold
    gain = 0.0
    for a in range(leavers.shape[0]):
        n_rows = moving if a == target else leavers[a]
        if n_rows > 0:
            gain += _change_of(a, members, target, n_rows, rows, places, labels, clusters, space)
    if pair_costs.start.shape[0] > 0:
        gain -= _set_cost(members, target, places, labels, pair_costs, space)
    return gain, threshold


@inner(inline="always")
def _set_cost(members, target, places, labels, pair_costs, space):  # type: ignore[no-untyped-def]
    """Return the change of the pair costs when all `members` go to `target`."""
    chosen = space.chosen
    change = 0.0
    for row in members:
        chosen[places[row]] = True
    for row in members:
        own = labels[places[row]]
        for p in range(pair_costs.start[row], pair_costs.start[row + 1]):
            other = pair_costs.neighbour[p]
            before = pair_costs.cost[p] if labels[other] == own else 0.0
            if chosen[other]:  # both move and end together; each end counts half
                change += 0.5 * (pair_costs.cost[p] - before)
            else:
                change += (pair_costs.cost[p] if labels[other] == target else 0.0) - before
    for row in members:
        chosen[places[row]] = False
    return change


@inner(inline="always")
def _move_set(members, target, rows, places, clusters, held):  # type: ignore[no-untyped-def]
    metric, unit = clusters.metric, clusters.unit
    labels, sums, squares, counts = held
    for row in members:
        own = labels[places[row]]
        if own == target:
            continue
        leave = 0.0
        join = 0.0
        length = 0.0
        for p in range(rows.start[row], rows.start[row + 1]):
            m = rows.column[p]
            value = np.float64(rows.entry[p]) * unit
            length += metric[m] * value * value
            leave += metric[m] * value * np.float64(sums[own, m]) * unit
            join += metric[m] * value * np.float64(sums[target, m]) * unit
            sums[own, m] -= rows.entry[p]
            sums[target, m] += rows.entry[p]
        squares[own] += length - 2.0 * leave
        squares[target] += length + 2.0 * join
        counts[own] -= 1
        counts[target] += 1
        labels[places[row]] = target


# One kernel for what two functions want: it takes 0.4 s to compile.
@njit(nogil=True, cache=True, makes_arrays=False)
def _vary(moves, rows, places, labels, clusters, pair_costs, space, held, gains, targets):  # type: ignore[no-untyped-def]
    """Find the best move of each set, to its own target or, where that is −1, to any cluster.

    Where sums are `held` each move is made before the next set is looked at.
    """
    n_clusters, makes = clusters.sums.shape[0], held[0].shape[0] > 0
    for t in range(gains.shape[0]):
        members = moves.row[moves.start[t] : moves.start[t + 1]]
        proposed = np.int64(moves.target[t])
        first, last = (0, n_clusters) if proposed < 0 else (proposed, proposed + 1)
        for h in range(first, last):
            gain, threshold = _set_gain(
                members, h, rows, places, labels, clusters, pair_costs, space
            )
            if gain > threshold and gain > gains[t]:
                gains[t] = gain
                targets[t] = h
        if makes and targets[t] >= 0:
            _move_set(members, np.int64(targets[t]), rows, places, clusters, held)


def _varied(
    moves: Moves, rows: Summands, *known: Any, held: _Held
) -> tuple[FloatArray, LabelArray]:
    """Return the best gain of each set above its threshold, and its target; 0 and −1: none."""
    gains, targets = np.zeros(len(moves.target)), np.full(len(moves.target), -1, np.int32)
    sets = Moves(
        frozen(moves.start, np.int64), frozen(moves.row, np.int32), frozen(moves.target, np.int32)
    )
    _vary(sets, make_summands(rows), *known, held, gains, targets)
    return gains, targets


def apply_moves(
    moves: Moves,
    rows: Summands,
    places: LabelArray,
    labels: LabelArray,
    sums: IntArray,
    metric: FloatArray,
    exponent: int,
    counts: IntArray,
    directional: bool,
    pair_costs: PairCosts | None = None,
) -> BoolArray:
    """Apply moves in order, each re-checked on the current sums; return which were accepted.

    `labels`, `sums` and `counts` change in place. `places[row]` is where a row's label stands in
    `labels`, which also holds the labels of neighbours that do not move.
    """
    squares = cluster_squares(sums, metric, exponent)
    held = _Held(labels, sums, squares, counts)
    # frozen sums are read in the same way: read-only
    shown, read, lengths, sizes = (_shown(array) for array in held)
    scale = (frozen(metric, np.float64), 2.0**-exponent)
    clusters = Clusters(read, *scale, lengths, sizes, bool(directional))
    known = (clusters, make_pair_costs(pair_costs), _make_space(sums.shape, len(labels)))
    targets = _varied(moves, rows, frozen(places, np.int32), shown, *known, held=held)[1]
    return np.asarray(targets >= 0)


def _shown(array: AnyArray) -> AnyArray:
    """Return a read-only view, never a copy: it shows what is written to the array."""
    view = array.view()
    view.flags.writeable = False
    return view


def group_gains(
    starts: IntArray,
    members: LabelArray,
    rows: Summands,
    labels: LabelArray,
    sums: IntArray,
    metric: FloatArray,
    exponent: int,
    counts: IntArray,
    directional: bool,
    pair_costs: PairCosts,
) -> tuple[FloatArray, LabelArray]:
    """Return the best gain of moving each whole group against frozen sums; 0: none gains.

    The second array holds the targets, −1 where none gains.
    """
    squares = frozen(cluster_squares(sums, metric, exponent), np.float64)
    clusters = Clusters(
        frozen(sums, np.int64),
        frozen(metric, np.float64),
        2.0**-exponent,
        squares,
        frozen(counts, np.int64),
        bool(directional),
    )
    groups = Moves(starts, members, np.full(len(starts) - 1, -1, np.int32))
    places = frozen(np.arange(len(labels)), np.int32)
    known = (clusters, make_pair_costs(pair_costs), _make_space(sums.shape, len(labels)))
    return _varied(groups, rows, places, frozen(labels, np.int32), *known, held=_nothing_held())
