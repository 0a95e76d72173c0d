"""First variation (Hartigan moves): the exact change of J by a row's move, centroids re-optimised.

A cluster is worth ‖S‖ for directional distortions and ‖S‖²/n for squared Euclidean distance: Σ D is
a constant less the sum of worths. A row is its summand z in the columns of the sums; products use
one weight a column (−Σ a for the centring column of Pearson).

The best move of each row alone is found against frozen sums; sets of rows, and what is done with
moves, are in `kernels/set_moves.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import RowArrays, feature_of, former, frozen, inner, njit
from hmrf_dask.kernels.threads import over_ranges
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
    columns: FloatArray  # (d + 1, K), the sums as floats, transposed; or (0, 0), see `with_columns`
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
make_clusters = former(ClusterSums)


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


def squares_of(sums: IntArray, metric: FloatArray, exponent: int) -> FloatArray:
    """Return ‖S_h‖² of sums in units of 2**-exponent, shape (K,)."""
    whole, weights, out = frozen(sums, np.int64), frozen(metric, np.float64), np.empty(len(sums))

    def work(first: int, last: int) -> None:
        """Write the squares of a range of clusters."""
        _squares(whole[first:last], weights, 2.0**-exponent, out[first:last])

    over_ranges(work, len(sums), sums.size)
    return out


def with_columns(clusters: ClusterSums) -> ClusterSums:
    """Return sums with their transpose too: what products with all clusters read."""
    columns = np.ascontiguousarray((clusters.sums * clusters.unit).T)
    return make_clusters(*clusters._replace(columns=columns))


def on_columns_of(rows: Summands, clusters: ClusterSums) -> tuple[Summands, ClusterSums]:
    """Return rows, and sums, on the columns that these rows have: few of all where rows are few."""
    used = np.zeros(clusters.sums.shape[1], np.bool_)
    used[rows.column] = True
    chosen, places = np.flatnonzero(used), np.cumsum(used, dtype=np.int32) - np.int32(1)
    sums, metric = clusters.sums.take(chosen, axis=1), clusters.metric[chosen]
    few = clusters._replace(sums=sums, metric=metric, columns=np.empty((0, 0)))
    return rows._replace(column=places[rows.column]), make_clusters(*few)


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
        scaled = factor[i] * unit
        for p in range(rows.indptr[i], rows.indptr[i + 1]):
            m = feature_of(rows, i, p)
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
def _single_products(known: Known, i: Any, products: Any) -> Any:
    """Write z_i · S_h for every cluster; return ‖z_i‖²."""
    rows, metric, unit = known.rows, known.clusters.metric, known.clusters.unit
    columns = known.clusters.columns
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
def _products_at(known: Known, i: Any, targets: LabelArray, products: Any) -> Any:
    """Write z_i · S_h for some clusters; return ‖z_i‖²."""
    rows, metric, unit = known.rows, known.clusters.metric, known.clusters.unit
    sums = known.clusters.sums
    for h in targets:
        products[h] = 0.0
    length = 0.0
    for p in range(rows.start[i], rows.start[i + 1]):
        m = rows.column[p]
        value = np.float64(rows.entry[p]) * unit
        weighted = value * metric[m]
        length += weighted * value
        for h in targets:
            products[h] += weighted * (np.float64(sums[h, m]) * unit)
    return length


@inner(inline="always")
def _best_target(
    own: Any, length: Any, products: Any, costs: Any, targets: LabelArray, clusters: Any
) -> Any:
    """Return the largest gain of one row above its threshold, and its target (0, own: none)."""
    squares, counts, directional = clusters.squares, clusters.counts, clusters.directional
    leaving = worth_of(directional, squares[own], counts[own]) - worth_of(
        directional, squares[own] - 2.0 * products[own] + length, counts[own] - 1
    )
    best = 0.0
    target = own
    for h in targets:
        if h != own:
            worth = worth_of(directional, squares[h], counts[h])
            joined = worth_of(directional, squares[h] + 2.0 * products[h] + length, counts[h] + 1)
            gain = joined - worth - leaving - (costs[h] - costs[own])
            if gain > best and gain > ACCEPT * (1.0 + worth):
                best = gain
                target = h
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
    known: Known, skip: BoolArray, everywhere: LabelArray, buffer: FloatArray, out: Gains
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
        length = _single_products(known, i, products)
        if paired:
            _cost_pairs(known, i, costs)
        best = _best_target(own, length, products, costs, everywhere, clusters)
        out.gain[i], out.target[i] = best


@njit(nogil=True, cache=True, makes_arrays=False)
def _gains_at(
    known: Known, start: IntArray, target: LabelArray, buffer: FloatArray, out: Gains
) -> None:
    products, costs = buffer[0], buffer[1]
    labels, clusters = known.labels, known.clusters
    for h in range(costs.shape[0]):
        costs[h] = 0.0
    for i in range(labels.shape[0]):
        own, targets = labels[i], target[start[i] : start[i + 1]]
        if clusters.counts[own] < 2:
            continue
        length = _products_at(known, i, targets, products)
        out.gain[i], out.target[i] = _best_target(own, length, products, costs, targets, clusters)


def single_gains(
    rows: Summands,
    clusters: ClusterSums,
    labels: LabelArray,
    skip: BoolArray,
    pair_costs: PairCosts | None = None,
) -> Gains:
    """Return the best gain of each row alone against frozen sums, and its target; 0: none gains.

    `clusters` have their columns.
    """
    out = Gains(np.zeros(len(labels)), np.array(labels, np.int32))
    known = known_of(rows, np.empty(0, np.int32), labels, clusters, pair_costs)
    everywhere = frozen(np.arange(len(clusters.sums)), np.int32)
    buffer = np.empty((2, len(clusters.sums)))
    _single_gains(known, frozen(skip, np.bool_), everywhere, buffer, out)
    return out


def gains_at(
    rows: Summands, clusters: ClusterSums, labels: LabelArray, start: IntArray, target: LabelArray
) -> Gains:
    """Return the same of rows without pairs that may gain at some clusters alone, their own too.

    Those of row i, ascending, are target[start[i]:start[i + 1]].
    """
    out = Gains(np.zeros(len(labels)), np.array(labels, np.int32))
    known = known_of(rows, np.empty(0, np.int32), labels, clusters, None)
    lists = frozen(start, np.int64), frozen(target, np.int32)
    _gains_at(known, *lists, np.empty((2, len(clusters.sums))), out)
    return out
