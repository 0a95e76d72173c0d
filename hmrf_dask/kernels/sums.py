"""Centroid sums in int64 fixed point: any order, any tree, any partitioning gives the same bits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hmrf_dask.kernels.compiled import njit
from hmrf_dask.kernels.distances import Terms
from hmrf_dask.kernels.links import frozen
from hmrf_dask.kernels.products import entries
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import FloatArray, IntArray, LabelArray

LARGEST_EXPONENT = 43


def fixed_point_exponent(n_rows: int, bound: float) -> int:
    """Return e so that n_rows numbers of size `bound`, times 2**e and rounded, fit into int64."""
    if n_rows == 0 or bound <= 0:
        return LARGEST_EXPONENT
    # Two bits stay free: each summand may be rounded up by a half, and a change of the sums, rows
    # that come less rows that go, may be twice as large as a sum. Data in small units get as many
    # digits as data near 1.
    finest = LARGEST_EXPONENT - min(0, math.floor(math.log2(bound)))
    return min(finest, 61 - math.ceil(math.log2(n_rows * bound)))


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of rows by cluster, whole or as the entries of a few moved rows.

    The last column holds `extra`.

    Attributes
    ----------
    dense : int64 array, shape (K, d + 1), or (0, 0) when only `places` and `values` are set
    places : int64 array, sorted flat positions in the dense form
    values : int64 array, the entries there
    counts : int64 array, shape (K,)
    n_columns : int, d + 1
    """

    dense: IntArray
    places: IntArray
    values: IntArray
    counts: IntArray
    n_columns: int

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        arrays = (self.dense, self.places, self.values, self.counts)
        return sum(array.nbytes for array in arrays) + 128

    @property
    def is_dense(self) -> bool:
        """Whether the whole K × (d + 1) array is held."""
        return self.dense.size > 0

    @staticmethod
    def zero(n_clusters: int, n_features: int) -> Sums:
        """Return sums over no rows, in the sparse form."""
        nothing = np.zeros(0, np.int64)
        counts = np.zeros(n_clusters, np.int64)
        return Sums(np.zeros((0, 0), np.int64), nothing, nothing, counts, n_features + 1)

    def to_dense(self) -> IntArray:
        """Return a (K, d + 1) array of one's own."""
        if self.is_dense:
            return self.dense.copy()
        out = np.zeros((len(self.counts), self.n_columns), np.int64)
        out.reshape(-1)[self.places] = self.values
        return out


def add_sums(parts: list[Sums]) -> Sums:
    """Return the sum of partial sums; dense when one of them is."""
    counts = np.zeros_like(parts[0].counts)
    for part in parts:
        counts += part.counts
    columns = parts[0].n_columns
    dense = [part for part in parts if part.is_dense]
    nothing = np.zeros(0, np.int64)
    if dense:
        total = dense[0].to_dense()
        for part in dense[1:]:
            total += part.dense
        for part in parts:
            if not part.is_dense:
                total.reshape(-1)[part.places] += part.values
        return Sums(total, nothing, nothing, counts, columns)
    places = np.concatenate([part.places for part in parts])
    values = np.concatenate([part.values for part in parts])
    places, values = _fold(places, values)
    return Sums(np.zeros((0, 0), np.int64), places, values, counts, columns)


def _fold(places: IntArray, values: IntArray) -> tuple[IntArray, IntArray]:
    """Add up values of equal places."""
    if not len(places):
        return places, values
    order = np.argsort(places, kind="stable")
    places, values = places[order], values[order]
    first = np.flatnonzero(np.r_[True, places[1:] != places[:-1]])
    folded = np.add.reduceat(values, first)
    kept = folded != 0
    return places[first][kept], folded[kept]


@njit(nogil=True, cache=True)
def _scatter(rows, factor, extra, features, positions, labels, sign, unit, out, counts):  # type: ignore[no-untyped-def]
    last = out.shape[1] - 1
    for i in positions:
        h = labels[i]
        if h < 0:
            continue
        counts[h] += sign
        start = rows.indptr[i]
        scaled = factor[i] * unit
        for p in range(start, rows.indptr[i + 1]):
            m = p - start if rows.dense else rows.indices[p]
            out[h, m] += sign * np.int64(np.rint(scaled * features[m] * rows.values[p]))
        out[h, last] += sign * np.int64(np.rint(extra[i] * unit))


@njit(nogil=True, cache=True)
def _entries(rows, factor, extra, features, positions, labels, sign, unit, places, values, counts):  # type: ignore[no-untyped-def]
    filled = 0
    columns = np.int64(features.shape[0]) + 1
    for i in positions:
        h = np.int64(labels[i])
        if h < 0:
            continue
        counts[h] += sign
        start = rows.indptr[i]
        scaled = factor[i] * unit
        for p in range(start, rows.indptr[i + 1]):
            m = p - start if rows.dense else rows.indices[p]
            places[filled] = h * columns + m
            values[filled] = sign * np.int64(np.rint(scaled * features[m] * rows.values[p]))
            filled += 1
        places[filled] = h * columns + columns - 1
        values[filled] = sign * np.int64(np.rint(extra[i] * unit))
        filled += 1
    return filled


def sum_moves(
    block: RowBlock,
    terms: Terms,
    features: FloatArray,
    before: LabelArray,
    after: LabelArray,
    n_clusters: int,
    exponent: int,
) -> Sums:
    """Return what moved rows add to their new clusters and take from their old ones.

    Labels below 0 are nowhere. Few moves come as places and values, many as a whole array.
    """
    before, after = frozen(before, np.int32), frozen(after, np.int32)
    moved = np.flatnonzero(before != after)
    n_entries = int(np.diff(block.indptr)[moved].sum(dtype=np.int64)) + len(moved)
    columns = block.n_features + 1
    factors = (frozen(values, np.float64) for values in (terms.factor, terms.extra, features))
    rows = (entries(block), *factors, frozen(moved, np.int64))
    counts = np.zeros(n_clusters, np.int64)
    nothing = np.zeros(0, np.int64)
    unit = 2.0**exponent
    if 4 * n_entries > n_clusters * columns:
        out = np.zeros((n_clusters, columns), np.int64)
        _scatter(*rows, after, 1, unit, out, counts)
        _scatter(*rows, before, -1, unit, out, counts)
        return Sums(out, nothing, nothing, counts, columns)
    places, values = np.empty(2 * n_entries, np.int64), np.empty(2 * n_entries, np.int64)
    filled = _entries(*rows, after, 1, unit, places, values, counts)
    filled += _entries(*rows, before, -1, unit, places[filled:], values[filled:], counts)
    folded = _fold(places[:filled], values[:filled])
    return Sums(np.zeros((0, 0), np.int64), *folded, counts, columns)
