"""First variation (Hartigan moves): the exact change of J by a row's move, centroids re-optimised.

A cluster is worth ‖S‖ for directional distortions and ‖S‖²/n for squared Euclidean distance: Σ D is
a constant less the sum of worths. A row is its summand z in the columns of the sums; products use
one weight a column (−Σ a for the centring column of Pearson).

The best move of each row alone is found against frozen sums, and so is that of a set of rows that
go to one cluster together: a must-link group, wherever its rows lie. Moves are applied one after
the other, each checked again on the sums as they then stand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import RowArrays, former, frozen, inner, njit
from hmrf_dask.types import BoolArray, FloatArray, IntArray, LabelArray

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


class ClusterSums(NamedTuple):
    """The sums that moves are judged by."""

    sums: IntArray  # (K, d + 1)
    metric: FloatArray  # (d + 1,), the weight of each column in products of summands
    unit: float  # of the sums
    squares: FloatArray  # (K,), ‖S_h‖² in the metric
    counts: IntArray  # (K,)
    directional: bool  # whether a cluster is worth ‖S‖, not ‖S‖²/n


class Known(NamedTuple):
    """What gains are computed of; the label of row i stands at places[i], or at i without any."""

    rows: Summands
    places: LabelArray
    labels: LabelArray
    clusters: ClusterSums
    pairs: PairCosts


class Gains(NamedTuple):
    """The best gain of each row or set of rows, and the cluster it goes to."""

    gain: FloatArray
    target: LabelArray


_make_summands, _make_costs, _make_known = former(Summands), former(PairCosts), former(Known)
_make_clusters = former(ClusterSums)


def known_of(
    rows: Summands,
    places: LabelArray,
    labels: LabelArray,
    clusters: ClusterSums,
    pair_costs: PairCosts | None,
) -> Known:
    """Return `Known` in the one form the kernels are compiled for; no pairs: None."""
    costs = _make_costs(*(pair_costs or [()] * 3))
    return _make_known(_make_summands(*rows), places, labels, clusters, costs)


@inner()
def worth_of(directional: bool, square: float, count: int) -> Any:
    """Return ‖S‖ or ‖S‖²/n from ‖S‖², which rounding may take below zero."""
    square = max(square, 0.0)
    if directional:
        return np.sqrt(square)
    return square / count if count > 0 else 0.0


@njit(nogil=True, cache=True, makes_arrays=False)
def _squares(sums: IntArray, metric: FloatArray, unit: float, out: FloatArray) -> None:
    for h in range(sums.shape[0]):
        total = 0.0
        for m in range(sums.shape[1]):
            value = np.float64(sums[h, m]) * unit
            total += metric[m] * value * value
        out[h] = total


def cluster_sums(
    sums: IntArray, metric: FloatArray, exponent: int, counts: IntArray, directional: bool
) -> ClusterSums:
    """Return sums in units of 2**-exponent, with their squares, as kernels read them."""
    whole, weights, unit = frozen(sums, np.int64), frozen(metric, np.float64), 2.0**-exponent
    squares = np.empty(len(sums))
    _squares(whole, weights, unit, squares)
    return _make_clusters(whole, weights, unit, squares, counts, directional)


@njit(nogil=True, cache=True, makes_arrays=False)
def _summands(
    rows: RowArrays,
    factor: FloatArray,
    extra: FloatArray,
    features: FloatArray,
    centred: bool,
    unit: float,
    out: Summands,
) -> None:
    start, column, entry = out
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
    _summands(rows, *factors, centred, 2.0**exponent, out)
    return out


@inner(inline="always")
def _single_products(known: Known, i: Any, columns: FloatArray, products: Any) -> Any:
    """Write z_i · S_h for every cluster; return ‖z_i‖²."""
    rows, metric, unit = known.rows, known.clusters.metric, known.clusters.unit
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
def _best_target(own: Any, length: Any, products: Any, costs: Any, clusters: Any) -> Any:
    """Return the largest gain of one row above its threshold, and its target (0, own: none)."""
    squares, counts, directional = clusters.squares, clusters.counts, clusters.directional
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


@inner(inline="always")
def _cost_pairs(known: Known, i: Any, costs: Any) -> None:
    """Write what the pairs of a row cost at each cluster."""
    pairs, labels = known.pairs, known.labels
    for h in range(costs.shape[0]):
        costs[h] = 0.0
    for p in range(pairs.start[i], pairs.start[i + 1]):
        costs[labels[pairs.neighbour[p]]] += pairs.cost[p]


@njit(nogil=True, cache=True, makes_arrays=False)
def _single_gains(
    known: Known, columns: FloatArray, skip: BoolArray, buffer: FloatArray, out: Gains
) -> None:
    products, costs = buffer[0], buffer[1]
    labels, clusters = known.labels, known.clusters
    for h in range(costs.shape[0]):
        costs[h] = 0.0
    paired = known.pairs.start.shape[0] > 0
    for i in range(labels.shape[0]):
        own = labels[i]
        if skip[i] or clusters.counts[own] < 2:
            continue
        length = _single_products(known, i, columns, products)
        if paired:
            _cost_pairs(known, i, costs)
        out.gain[i], out.target[i] = _best_target(own, length, products, costs, clusters)


def single_gains(
    rows: Summands,
    clusters: ClusterSums,
    labels: LabelArray,
    skip: BoolArray,
    pair_costs: PairCosts | None = None,
) -> Gains:
    """Return the best gain of each row alone against frozen sums, and its target; 0: none gains."""
    out = Gains(np.zeros(len(labels)), np.array(labels, np.int32))
    known = known_of(rows, np.empty(0, np.int32), labels, clusters, pair_costs)
    columns = frozen((clusters.sums * clusters.unit).T, np.float64)
    buffer = np.empty((2, len(clusters.sums)))
    _single_gains(known, columns, frozen(skip, np.bool_), buffer, out)
    return out


class SetMoves(NamedTuple):
    """Proposed moves, best first: each takes the rows start[t] .. start[t + 1] to `target`."""

    start: IntArray
    row: LabelArray
    target: LabelArray


_make_moves = former(SetMoves)


class _State(NamedTuple):
    """What changes when moves are made; arrays without length: none are made."""

    labels: LabelArray
    sums: IntArray
    squares: FloatArray
    counts: IntArray


class _Buffers(NamedTuple):
    """A sum of rows, the columns it touches and their marks; marks of places; counts of leavers."""

    total: FloatArray
    touched: IntArray
    marked: BoolArray
    chosen: BoolArray
    leavers: IntArray


@inner(inline="always")
def _load(rows: Summands, row: Any, unit: Any, buffers: _Buffers, n_touched: Any) -> Any:
    """Add a row to the dense sum, remembering which columns it touches."""
    total, touched, marked = buffers.total, buffers.touched, buffers.marked
    for p in range(rows.start[row], rows.start[row + 1]):
        m = rows.column[p]
        if not marked[m]:
            marked[m] = True
            touched[n_touched] = m
            n_touched += 1
        total[m] += np.float64(rows.entry[p]) * unit
    return n_touched


@inner(inline="always")
def _unload(clusters: Any, h: Any, buffers: _Buffers, n_touched: Any) -> Any:
    """Return z · S_h and ‖z‖² of the dense sum z, and clear it."""
    total, touched, marked = buffers.total, buffers.touched, buffers.marked
    product = 0.0
    length = 0.0
    for t in range(n_touched):
        m = touched[t]
        weighted = clusters.metric[m] * total[m]
        product += weighted * np.float64(clusters.sums[h, m]) * clusters.unit
        length += weighted * total[m]
        total[m] = 0.0
        marked[m] = False
    return product, length


@inner(inline="always")
def _change_of(
    h: Any, members: LabelArray, target: int, n_rows: Any, known: Known, buffers: _Buffers
) -> Any:
    """Return how the worth of one cluster changes: the target's by all that join it."""
    clusters, labels, places = known.clusters, known.labels, known.places
    joins = h == target
    n_touched = 0
    for row in members:
        if (labels[places[row]] == h) != joins:
            n_touched = _load(known.rows, row, clusters.unit, buffers, n_touched)
    product, length = _unload(clusters, h, buffers, n_touched)
    square, count = clusters.squares[h], clusters.counts[h]
    sign = 1 if joins else -1
    after = square + sign * 2.0 * product + length
    changed = worth_of(clusters.directional, after, count + sign * n_rows)
    return changed - worth_of(clusters.directional, square, count)


@inner()
def _set_gain(members: LabelArray, target: int, known: Known, buffers: _Buffers) -> tuple[Any, ...]:
    """Return (gain, threshold) of moving `members`; gain −1: it empties a cluster or moves none."""
    clusters, labels, places = known.clusters, known.labels, known.places
    leavers = buffers.leavers
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
            gain += _change_of(a, members, target, n_rows, known, buffers)
    if known.pairs.start.shape[0] > 0:
        gain -= _set_cost(members, target, known, buffers.chosen)
    return gain, threshold


@inner(inline="always")
def _set_cost(members: LabelArray, target: int, known: Known, chosen: Any) -> Any:
    """Return the change of the pair costs when all `members` go to `target`."""
    labels, places, pairs = known.labels, known.places, known.pairs
    change = 0.0
    for row in members:
        chosen[places[row]] = True
    for row in members:
        own = labels[places[row]]
        for p in range(pairs.start[row], pairs.start[row + 1]):
            neighbour = pairs.neighbour[p]
            before = pairs.cost[p] if labels[neighbour] == own else 0.0
            if chosen[neighbour]:  # both move and end together; each end counts half
                change += 0.5 * (pairs.cost[p] - before)
            else:
                change += (pairs.cost[p] if labels[neighbour] == target else 0.0) - before
    for row in members:
        chosen[places[row]] = False
    return change


@inner(inline="always")
def _move_set(members: LabelArray, target: int, known: Known, state: _State) -> None:
    rows, places = known.rows, known.places
    metric, unit = known.clusters.metric, known.clusters.unit
    labels, sums, squares, counts = state
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


# One kernel for two functions: it takes 0.4 s to compile.
@njit(nogil=True, cache=True, makes_arrays=False)
def _vary(moves: SetMoves, known: Known, buffers: _Buffers, state: _State, out: Gains) -> None:
    """Find the best move of each set, to any cluster if its target is −1; with a state, make it."""
    n_clusters, makes = known.clusters.sums.shape[0], state.labels.shape[0] > 0
    for t in range(out.gain.shape[0]):
        members = moves.row[moves.start[t] : moves.start[t + 1]]
        proposed = np.int64(moves.target[t])
        first, last = (0, n_clusters) if proposed < 0 else (proposed, proposed + 1)
        for h in range(first, last):
            gain, threshold = _set_gain(members, h, known, buffers)
            if gain > threshold and gain > out.gain[t]:
                out.gain[t] = gain
                out.target[t] = h
        if makes and out.target[t] >= 0:
            _move_set(members, np.int64(out.target[t]), known, state)


def _varied(moves: SetMoves, known: Known, state: _State) -> Gains:
    """Return the best gain of each set above its threshold, and its target; 0 and −1: none."""
    n_clusters, n_columns = known.clusters.sums.shape
    buffers = _Buffers(
        np.zeros(n_columns),
        np.empty(n_columns, np.int64),
        np.zeros(n_columns, np.bool_),
        np.zeros(len(known.labels), np.bool_),
        np.empty(n_clusters, np.int64),
    )
    out = Gains(np.zeros(len(moves.target)), np.full(len(moves.target), -1, np.int32))
    _vary(_make_moves(*moves), known, buffers, state, out)
    return out


def apply_moves(
    moves: SetMoves,
    rows: Summands,
    places: LabelArray,
    labels: LabelArray,
    clusters: ClusterSums,
    pair_costs: PairCosts | None = None,
) -> tuple[BoolArray, ClusterSums]:
    """Apply moves in order, each re-checked on the sums after those before it.

    `labels` change in place. `places[row]` is where a row's label stands in `labels`, which also
    holds the labels of neighbours that do not move. Returned are which moves were accepted, and the
    sums after them.
    """
    state = _State(labels, clusters.sums.copy(), clusters.squares.copy(), clusters.counts.copy())
    # frozen arrays are views: they show what is written to the state
    sums, squares, counts = state.sums, state.squares, state.counts
    after = _make_clusters(sums, clusters.metric, clusters.unit, squares, counts, clusters[-1])
    gains = _varied(moves, known_of(rows, places, labels, after, pair_costs), state)
    return np.asarray(gains.target >= 0), after


def group_gains(
    starts: IntArray,
    members: LabelArray,
    rows: Summands,
    labels: LabelArray,
    clusters: ClusterSums,
    pair_costs: PairCosts,
) -> Gains:
    """Return the best gain of moving each whole group against frozen sums, and its target.

    Where none gains they are 0 and −1.
    """
    places = np.arange(len(labels), dtype=np.int32)
    groups = SetMoves(starts, members, np.full(len(starts) - 1, -1, np.int32))
    none = np.empty(0, np.int64)
    state = _State(none.astype(np.int32), none.reshape(0, 0), np.empty(0), none)
    return _varied(groups, known_of(rows, places, labels, clusters, pair_costs), state)
