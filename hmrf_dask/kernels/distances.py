"""Distances of rows to centroids in float64: those that decide, and those that are reported.

Every built-in distortion has one of two forms, so one set of kernels serves all (`Terms` of the
rows, `Table` of the centroids):

    linear    D(i, h) = offset_i + bias_h + scale_i · (x_i · T_h) + shift_i · extra_h
    squared   D(i, h) = offset_i + Σ_m a_m (x_im − T_hm)²
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hmrf_dask.kernels.by_cluster import members_by_cluster
from hmrf_dask.kernels.compiled import (
    RowArrays,
    Terms,
    feature_of,
    former,
    frozen,
    frozen_terms,
    inner,
    njit,
    of_row,
)
from hmrf_dask.kernels.instructions import AHEAD, prefetch_row
from hmrf_dask.kernels.products import Columns, aligned, layout, multiply_row
from hmrf_dask.types import FloatArray, LabelArray, Sized

LINKED = -1  # label of a constrained row in its corpus partition: a linked partition holds it
UNDECIDED = -2  # label of a row that has none yet
OUT = -3  # OUT − h: label of a row of cluster h that is kept out of its centroid
DOUBLE = 2.0**-50  # of each float64 operation, or less
SMALLEST = 2.0**-148  # of a float32 product that underflows
LARGEST = 2.0**126  # beyond it a float32 product may overflow
CACHE = 2**24  # bytes of centroids: beyond, rows are gone through cluster by cluster

Made = TypeVar("Made")


def clusters_of(labels: LabelArray) -> LabelArray:
    """Return the labels with the clusters of rows that are out.

    Examples
    --------
    >>> clusters_of(np.array([4, OUT - 2, -1])).tolist()
    [4, 2, -1]
    """
    return np.asarray(np.where(labels <= OUT, OUT - labels, labels))


class TableArrays(NamedTuple):
    """The centroids as the kernels of this module read them; see `Table`."""

    exact: FloatArray
    bias: FloatArray
    extra: FloatArray
    weights: FloatArray
    squared: bool


_make_arrays = former(TableArrays)


@dataclass(frozen=True, eq=False)
class Table(Sized):
    """The centroids as kernels use them; what is derived from them is made once in a process."""

    exact: FloatArray  # (K, d): T of the linear form, the centroids themselves of the squared one
    bias: FloatArray  # (K,): of the squared form the centroid's own weighted square
    extra: FloatArray  # (K,)
    # of the linear form; that of a squared one is a∘T, which orders centroids as distances do
    largest_entry: float
    largest_norm: float  # of a centroid in linear form, or more
    # (d,) or (0,): of the squared form the metric; of the linear one what norms are taken in, none
    # are all 1: √(Σ a x²) of a row, √(Σ t²/a) of a centroid, so no product is larger than both
    weights: FloatArray = field(default_factory=lambda: np.zeros(0))
    squared: bool = False
    made: dict[str, Any] = field(default_factory=dict, init=False, repr=False)  # by `once`
    _lock: Any = field(default_factory=threading.Lock, init=False, repr=False)

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """Return what `make` returned when `name` was first asked for; other threads wait."""
        with self._lock:
            if name not in self.made:
                self.made[name] = make()
            made: Made = self.made[name]
            return made

    @property
    def arrays(self) -> TableArrays:
        """The arrays in the one form the kernels are compiled for."""
        return _make_arrays(self.exact, self.bias, self.extra, self.weights, self.squared)

    @property
    def shares(self) -> FloatArray:
        """What squares of entries are times in a norm of the linear form; none: all 1."""
        if self.squared:
            return np.zeros(0)
        return np.divide(1.0, self.weights, out=np.zeros_like(self.weights), where=self.weights > 0)

    def __reduce__(self) -> tuple[type[Table], tuple[Any, ...]]:
        """Leave behind what can be made again faster than it travels."""
        bounds = (self.largest_entry, self.largest_norm)
        parts = (self.exact, self.bias, self.extra, *bounds, self.weights, self.squared)
        return Table, parts

    def sized_values(self) -> tuple[Any, ...]:
        """Return the arrays, and as much again for what is made of them later."""
        return self.exact, self.exact, self.bias, self.extra, self.weights


@njit(nogil=True, cache=True, makes_arrays=False)
def _moments(rows: RowArrays, weights: FloatArray, out: FloatArray) -> None:
    for i in range(rows.indptr.shape[0] - 1):
        squares = 0.0
        total = 0.0
        plain = 0.0
        mass = 0.0
        for p in range(rows.indptr[i], rows.indptr[i + 1]):
            m = feature_of(rows, i, p)
            x = np.float64(rows.values[p])
            weighted = weights[m] * x
            squares += weighted * x
            total += weighted
            plain += x * x
            mass += abs(x)
        out[0, i] = squares
        out[1, i] = total
        out[2, i] = plain
        out[3, i] = mass


def moments(rows: RowArrays, weights: FloatArray) -> FloatArray:
    """Return Σ a x², Σ a x, Σ x² and Σ |x| of each row, shape (4, n_rows)."""
    out = np.empty((4, rows.n_rows))
    _moments(rows, frozen(weights, np.float64), out)
    return out


@inner(inline="always")
def _size(row: Any, features: Any, dense: Any, weights: FloatArray, p: Any) -> Any:
    """Return a x² and |x| of an entry."""
    x = np.float64(row[p])
    weight = weights[p] if dense else weights[np.uint32(features[p])]
    return weight * x * x, abs(x)


@inner(inline="always")
def _part_sizes(row: Any, features: Any, dense: Any, weights: FloatArray) -> Any:
    """Return Σ a x² and Σ |x| of entries, as four sums at a time: one would wait for itself."""
    whole = row.shape[0] & ~3
    a = b = c = d = 0.0
    e = f = g = h = 0.0
    for p in range(0, whole, 4):
        square, size = _size(row, features, dense, weights, p)
        a, e = a + square, e + size
        square, size = _size(row, features, dense, weights, p + 1)
        b, f = b + square, f + size
        square, size = _size(row, features, dense, weights, p + 2)
        c, g = c + square, g + size
        square, size = _size(row, features, dense, weights, p + 3)
        d, h = d + square, h + size
    for p in range(whole, row.shape[0]):
        square, size = _size(row, features, dense, weights, p)
        a, e = a + square, e + size
    return (a + b) + (c + d), (e + f) + (g + h)


@inner(inline="always")
def row_sizes(row: Any, features: Any, weights: FloatArray) -> Any:
    """Return Σ a x² and Σ |x| of a row, whose entries beyond `features` are the last ones."""
    n_indexed = features.shape[0]
    square, mass = _part_sizes(row[:n_indexed], features, False, weights)
    n_dense = row.shape[0] - n_indexed
    if n_dense > 0:
        last = weights[weights.shape[0] - n_dense :]
        of_end = _part_sizes(row[n_indexed:], features, True, last)
        square, mass = square + of_end[0], mass + of_end[1]
    return square, mass


@njit(nogil=True, cache=True, makes_arrays=False)
def _sizes(rows: RowArrays, weights: FloatArray, out: FloatArray) -> None:
    n_dense = rows.n_dense
    for i in range(out.shape[1]):
        start, stop = np.int64(rows.indptr[i]), np.int64(rows.indptr[i + 1])
        features = rows.indices[start - i * n_dense : stop - (i + 1) * n_dense]
        out[0, i], out[1, i] = row_sizes(rows.values[start:stop], features, weights)


def sizes(rows: RowArrays, weights: FloatArray) -> FloatArray:
    """Return Σ a x² and Σ |x| of each row, shape (2, n_rows)."""
    out = np.empty((2, rows.n_rows))
    _sizes(rows, frozen(weights, np.float64), out)
    return out


@njit(nogil=True, cache=True, makes_arrays=False)
def _centred(
    rows: RowArrays, weights: FloatArray, weight_sum: float, means: FloatArray, out: FloatArray
) -> None:
    for i in range(out.shape[0]):
        start, stop = rows.indptr[i], rows.indptr[i + 1]
        squares = 0.0
        present = 0.0
        for p in range(start, stop):
            m = feature_of(rows, i, p)
            away = np.float64(rows.values[p]) - means[i]
            squares += weights[m] * away * away
            present += weights[m]
        if stop - start < weights.shape[0]:  # the others are zeros: each is the mean away
            squares += max(weight_sum - present, 0.0) * means[i] * means[i]
        out[i] = squares


def centred_squares(rows: RowArrays, weights: FloatArray, means: FloatArray) -> FloatArray:
    """Return Σ a (x − mean)² of each row, zeros of sparse rows included, without cancellation."""
    out = np.empty(rows.n_rows)
    arrays = (frozen(weights, np.float64), float(weights.sum()), frozen(means, np.float64))
    _centred(rows, *arrays, out)
    return out


class Operands(NamedTuple):
    """What kernels read to compute distances."""

    rows: RowArrays
    terms: Terms
    table: TableArrays


@inner(inline="always")
def _finish(total: Any, read: Operands, i: int, h: int) -> Any:
    """Return the distance that the sum over the row's entries makes."""
    rows, terms, table = read
    offset = of_row(terms.offset, i)
    if not table.squared:
        shifted = of_row(terms.shift, i) * table.extra[h]
        return offset + table.bias[h] + of_row(terms.scale, i) * total + shifted
    if rows.dense:
        return offset + total
    return offset + (total + table.bias[h])  # zeros of the row are in the bias


@inner(inline="always")
def distance(read: Operands, i: int, h: int) -> Any:
    """Return D(i, h) in float64, summed over the row's entries in their order."""
    rows, _, table = read
    start, stop = np.int64(rows.indptr[i]), np.int64(rows.indptr[i + 1])
    centroid, weights = table.exact[h], table.weights
    total = 0.0
    if not table.squared:
        # Unsigned: no access asks whether to count from the end.
        middle, offset, last = stop - rows.n_dense, i * rows.n_dense, stop - rows.n_features
        for p in range(start, middle):
            m = np.uint32(rows.indices[np.uint64(p - offset)])
            total += np.float64(rows.values[np.uint64(p)]) * centroid[m]
        for p in range(middle, stop):
            total += np.float64(rows.values[np.uint64(p)]) * centroid[np.uint64(p - last)]
    elif rows.dense:
        for p in range(start, stop):
            away = np.float64(rows.values[p]) - centroid[p - start]
            total += weights[p - start] * away * away
    else:
        for p in range(start, stop):
            m = feature_of(rows, i, p)
            x = np.float64(rows.values[p])
            total += weights[m] * x * (x - 2.0 * centroid[m])
    return _finish(total, read, i, h)


@njit(nogil=True, cache=True, makes_arrays=False)
def _own(read: Operands, labels: LabelArray, order: LabelArray, out: FloatArray) -> None:
    rows = read.rows
    if order.shape[0] == 0:
        for i in range(labels.shape[0]):
            h = np.int64(labels[i])
            out[i] = distance(read, i, h) if h >= 0 else 0.0
        return
    out[:] = 0.0
    for place in range(order.shape[0]):
        if place + AHEAD < order.shape[0]:
            prefetch_row(rows, order[place + AHEAD])
        own = np.int64(order[place])
        out[own] = distance(read, own, np.int64(labels[own]))


def own_distances(rows: RowArrays, terms: Terms, table: Table, labels: LabelArray) -> FloatArray:
    """Return the float64 distance of each row to the centroid of its label (0 without one).

    These are the terms of the reported J. Where the centroids do not fit into the cache, rows are
    taken cluster by cluster.
    """
    out, labels = np.empty(rows.n_rows), frozen(labels, np.int32)
    order = np.zeros(0, np.int32)
    if table.exact.nbytes > CACHE:
        order = members_by_cluster(rows.indptr, labels, len(table.exact)).row
    read = Operands(rows, frozen_terms(*terms), table.arrays)
    _own(read, labels, frozen(order, np.int32), out)
    return out


@inner()
def _all_squares(
    rows: RowArrays, weights: FloatArray, columns: FloatArray, i: int, sums: FloatArray
) -> None:
    """Write the sums over the entries of one row, term by term those of `distance`."""
    sums[:] = 0.0
    for p in range(rows.indptr[i], rows.indptr[i + 1]):
        m = feature_of(rows, i, p)
        x = np.float64(rows.values[p])
        column = columns[m]
        if rows.dense:
            for h in range(sums.shape[0]):
                away = x - column[h]
                sums[h] += weights[m] * away * away
        else:
            weighted = weights[m] * x
            for h in range(sums.shape[0]):
                sums[h] += weighted * (x - 2.0 * column[h])


@njit(nogil=True, cache=True, makes_arrays=False)
def _all(read: Operands, columns: Columns, sums: FloatArray, out: FloatArray) -> None:
    rows, table = read.rows, read.table
    for i in range(out.shape[0]):
        if table.squared:
            _all_squares(rows, table.weights, columns.table, i, sums)
        else:
            multiply_row(rows, i, columns, sums)
        for h in range(out.shape[1]):
            out[i, h] = _finish(sums[h], read, i, h)


def _turned(table: Table) -> Columns:
    """Return centroids feature by feature; of the squared form, which has no products, as such."""
    exact = table.exact
    width, vectors = (len(exact), (0,)) if table.squared else layout(len(exact), np.float64)
    columns = aligned((exact.shape[1], width), np.float64)
    columns[:, : len(exact)] = exact.T
    return Columns(columns, vectors)


def all_distances(rows: RowArrays, terms: Terms, table: Table) -> FloatArray:
    """Return the float64 distances to all centroids, (n_rows, K), same bits as `own_distances`."""
    out = np.empty((rows.n_rows, len(table.exact)))
    columns = table.once("columns", lambda: _turned(table))
    sums = aligned((columns.table.shape[1],), np.float64)
    _all(Operands(rows, frozen_terms(*terms), table.arrays), columns, sums, out)
    return out
