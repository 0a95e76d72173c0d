"""What clusters are worth to first variation, and rows as the summands that make them so.

A cluster is worth ‖S‖ for directional distortions and ‖S‖²/n for squared Euclidean distance: Σ D is
a constant less the sum of worths. A row is its summand z in the columns of the sums; products use
one weight a column (−Σ a for the centring column of Pearson).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import RowArrays, frozen
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.types import FloatArray, IntArray, LabelArray

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
