"""First variation (Hartigan moves): the exact change of J by a row's move, centroids re-optimised.

A cluster is worth ‖S‖ for directional distortions and ‖S‖²/n for squared Euclidean distance: Σ D is
a constant less the sum of worths. A row is its summand z in the columns of the sums; products use
one weight a column (−Σ a for the centring column of Pearson).

This module finds the best move of each row alone against frozen sums; moves of whole groups, and
moves made one after the other, are in `kernels.set_moves`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import RowArrays, frozen
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.types import BoolArray, FloatArray, IntArray, LabelArray

ACCEPT = 1e-10  # of 1 + the receiving cluster's worth: below it a gain may be rounding


class Summands(NamedTuple):
    """Rows as summands in CSR form over the d + 1 columns of the sums, in exact integers."""

    start: IntArray
    column: LabelArray
    entry: IntArray  # rint(z · 2**exponent), what the sums really hold


class Ties(NamedTuple):
    """Signed pair costs of the rows in CSR form: the cost of equal labels."""

    start: IntArray
    neighbour: LabelArray  # places in the label array
    cost: FloatArray


def make_ties(ties: Ties | None) -> Ties:
    """Return `Ties` in the one form the kernels are compiled for; None: no pairs."""
    if ties is None:
        return make_ties(Ties(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0)))
    return Ties(
        frozen(ties.start, np.int64),
        frozen(ties.neighbour, np.int32),
        frozen(ties.cost, np.float64),
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
    ties,
    tie_labels,
    skip,
    room,
    gains,
    targets,
):
    products, costs = room[0], room[1]
    for h in range(costs.shape[0]):
        costs[h] = 0.0
    tied = ties.start.shape[0] > 0
    for i in range(labels.shape[0]):
        own = labels[i]
        if skip[i] or counts[own] < 2:
            continue
        length = _single_products(rows, i, columns, metric, unit, products)
        if tied:
            for h in range(costs.shape[0]):
                costs[h] = 0.0
            for p in range(ties.start[i], ties.start[i + 1]):
                costs[tie_labels[ties.neighbour[p]]] += ties.cost[p]
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
    ties: Ties | None = None,
    tie_labels: LabelArray | None = None,
) -> tuple[FloatArray, LabelArray]:
    """Return the best gain of each row alone against frozen sums, and its target; 0: none gains.

    `columns` are the sums as float64, shape (d + 1, K).
    """
    gains = np.zeros(len(labels))
    targets = np.array(labels, np.int32)
    sums = (frozen(columns, np.float64), frozen(metric, np.float64), 2.0**-exponent)
    clusters = (frozen(squares, np.float64), frozen(counts, np.int64), bool(directional))
    place = frozen(labels if tie_labels is None else tie_labels, np.int32)
    own = (frozen(labels, np.int32), make_ties(ties), place, frozen(skip, np.bool_))
    room = np.empty((2, columns.shape[1]))
    _single_gains(make_summands(rows), *sums, *clusters, *own, room, gains, targets)
    return gains, targets
