"""Distances of rows to centroids: float32 finds the candidates, float64 decides.

Every built-in distortion has one of two forms, so one set of kernels serves all (`Terms` of the
rows, `Table` of the centroids):

    linear    D(i, h) = offset_i + bias_h + scale_i · (x_i · T_h) + shift_i · extra_h
    squared   D(i, h) = offset_i + Σ_m a_m (x_im − T_hm)²
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import njit
from hmrf_dask.kernels.exact import add_float, carry, exact_zero
from hmrf_dask.kernels.links import frozen
from hmrf_dask.kernels.products import LANES, entries, multiply_row
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import FloatArray, IntArray, LabelArray, RowArray

LINKED = -1  # label of a constrained row in its corpus partition: a linked partition holds it
UNDECIDED = -2  # label of a row that has none yet
SINGLE = 2.0**-23  # of a float32 table entry and of each float32 multiply-add, with room to spare
DOUBLE = 2.0**-50  # the same for float64
SMALLEST = 2.0**-148  # of a float32 product that underflows
LARGEST = 2.0**126  # beyond it a float32 product may overflow


class Terms(NamedTuple):
    """What the kernels know of each row under the present weights; arrays of shape (n_rows,)."""

    offset: FloatArray
    scale: FloatArray
    shift: FloatArray
    norm: FloatArray  # Euclidean norm of the row, |scale| included
    mass: FloatArray  # sum of absolute values of the row, |scale| included
    factor: FloatArray  # the summand is factor · f∘x + extra · f, f the distortion's factors
    extra: FloatArray
    size: FloatArray  # of the row's own part of a distance: float64 rounding is relative to it


class Table(NamedTuple):
    """The centroids as the kernels use them."""

    fast: RowArray  # (d, K padded), finds candidates
    exact: FloatArray  # (K, d), decides
    bias: FloatArray  # (K,), of the squared form the centroid's own weighted square
    extra: FloatArray  # (K,)
    weights: FloatArray  # (d,) used by the squared form
    largest_norm: float  # over the columns of the fast table
    largest_entry: float
    largest_bias: float
    largest_extra: float
    squared: bool


def make_table(
    linear: FloatArray,
    bias: FloatArray,
    extra: FloatArray,
    *,
    exact: FloatArray | None = None,
    weights: FloatArray | None = None,
) -> Table:
    """Return the table of centroids in linear form (K, d); `exact` and `weights` make it squared.

    Of the squared form `linear` is a∘μ and `bias` Σ a μ²: they order centroids as distances do.
    """
    n_clusters, n_features = linear.shape
    fast = np.zeros((n_features, -(-n_clusters // LANES) * LANES), np.float32)
    with np.errstate(over="ignore"):  # the kernel looks at largest_entry before it trusts them
        fast[:, :n_clusters] = linear.T
    return Table(
        fast=fast,
        exact=np.ascontiguousarray(linear if exact is None else exact, np.float64),
        bias=np.asarray(bias, np.float64),
        extra=np.asarray(extra, np.float64),
        weights=np.zeros(0) if weights is None else weights,
        largest_norm=float(np.sqrt((linear * linear).sum(axis=1).max())),
        largest_entry=float(np.abs(linear).max(initial=0.0)),
        largest_bias=float(np.abs(bias).max()),
        largest_extra=float(np.abs(extra).max()),
        squared=exact is not None,
    )


def _frozen_terms(terms: Terms) -> Terms:
    return Terms(*(frozen(term, np.float64) for term in terms))


def _frozen_table(table: Table) -> Table:
    return table._replace(
        fast=frozen(table.fast, np.float32),
        exact=frozen(table.exact, np.float64),
        bias=frozen(table.bias, np.float64),
        extra=frozen(table.extra, np.float64),
        weights=frozen(table.weights, np.float64),
    )


@njit(nogil=True, cache=True)
def _moments(rows, weights, out):  # type: ignore[no-untyped-def]
    for i in range(rows.indptr.shape[0] - 1):
        start = rows.indptr[i]
        squares = 0.0
        total = 0.0
        plain = 0.0
        mass = 0.0
        for p in range(start, rows.indptr[i + 1]):
            m = p - start if rows.dense else rows.indices[p]
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


def moments(block: RowBlock, weights: FloatArray) -> FloatArray:
    """Return Σ a x², Σ a x, Σ x² and Σ |x| of each row, shape (4, n_rows)."""
    out = np.empty((4, block.n_rows))
    _moments(entries(block), frozen(weights, np.float64), out)
    return out


@njit(nogil=True, cache=True)
def _centred(rows, weights, weight_sum, means, out):  # type: ignore[no-untyped-def]
    for i in range(out.shape[0]):
        start, stop = rows.indptr[i], rows.indptr[i + 1]
        squares = 0.0
        present = 0.0
        for p in range(start, stop):
            m = p - start if rows.dense else rows.indices[p]
            away = np.float64(rows.values[p]) - means[i]
            squares += weights[m] * away * away
            present += weights[m]
        if stop - start < weights.shape[0]:  # the others are zeros: each is the mean away
            squares += max(weight_sum - present, 0.0) * means[i] * means[i]
        out[i] = squares


def centred_squares(block: RowBlock, weights: FloatArray, means: FloatArray) -> FloatArray:
    """Return Σ a (x − mean)² of each row, zeros of sparse rows included, without cancellation."""
    out = np.empty(block.n_rows)
    arrays = (frozen(weights, np.float64), float(weights.sum()), frozen(means, np.float64))
    _centred(entries(block), *arrays, out)
    return out


@njit(nogil=True, cache=True, inline="always")
def _distance(rows, terms, table, i, h):  # type: ignore[no-untyped-def]
    """Return D(i, h) in float64, summed over the row's entries in their order."""
    start = rows.indptr[i]
    centroid = table.exact[h]
    total = 0.0
    if not table.squared:
        for p in range(start, rows.indptr[i + 1]):
            m = p - start if rows.dense else rows.indices[p]
            total += np.float64(rows.values[p]) * centroid[m]
        shifted = terms.shift[i] * table.extra[h]
        return terms.offset[i] + table.bias[h] + terms.scale[i] * total + shifted
    if rows.dense:
        for p in range(start, rows.indptr[i + 1]):
            away = np.float64(rows.values[p]) - centroid[p - start]
            total += table.weights[p - start] * away * away
        return terms.offset[i] + total
    for p in range(start, rows.indptr[i + 1]):  # zeros of the row are in the bias
        m = rows.indices[p]
        x = np.float64(rows.values[p])
        total += table.weights[m] * x * (x - 2.0 * centroid[m])
    return terms.offset[i] + (total + table.bias[h])


@njit(nogil=True, cache=True)
def _own(rows, terms, table, labels, out):  # type: ignore[no-untyped-def]
    for i in range(labels.shape[0]):
        out[i] = _distance(rows, terms, table, i, labels[i]) if labels[i] >= 0 else 0.0


def own_distances(block: RowBlock, terms: Terms, table: Table, labels: LabelArray) -> FloatArray:
    """Return the float64 distance of each row to the centroid of its label (0 without one).

    These are the terms of the reported J.
    """
    out = np.empty(block.n_rows)
    arrays = (_frozen_terms(terms), _frozen_table(table), frozen(labels, np.int32))
    _own(entries(block), *arrays, out)
    return out


@njit(nogil=True, cache=True, inline="always")
def _all_of_row(rows, weights, columns, squared, i, row):  # type: ignore[no-untyped-def]
    """Write the sums over the entries of one row, term by term those of `_distance`."""
    start = rows.indptr[i]
    row[:] = 0.0
    for p in range(start, rows.indptr[i + 1]):
        m = p - start if rows.dense else rows.indices[p]
        x = np.float64(rows.values[p])
        column = columns[m]
        if not squared:
            for h in range(row.shape[0]):
                row[h] += x * column[h]
        elif rows.dense:
            for h in range(row.shape[0]):
                away = x - column[h]
                row[h] += weights[m] * away * away
        else:
            weighted = weights[m] * x
            for h in range(row.shape[0]):
                row[h] += weighted * (x - 2.0 * column[h])


@njit(nogil=True, cache=True)
def _all(rows, terms, table, columns, out):  # type: ignore[no-untyped-def]
    for i in range(out.shape[0]):
        row = out[i]
        _all_of_row(rows, table.weights, columns, table.squared, i, row)
        for h in range(row.shape[0]):
            if not table.squared:
                shifted = terms.shift[i] * table.extra[h]
                row[h] = terms.offset[i] + table.bias[h] + terms.scale[i] * row[h] + shifted
            elif rows.dense:
                row[h] = terms.offset[i] + row[h]
            else:
                row[h] = terms.offset[i] + (row[h] + table.bias[h])


def all_distances(block: RowBlock, terms: Terms, table: Table) -> FloatArray:
    """Return the float64 distances to all centroids, (n_rows, K), same bits as `own_distances`."""
    out = np.empty((block.n_rows, len(table.exact)))
    columns = np.ascontiguousarray(table.exact.T)
    arrays = (_frozen_terms(terms), _frozen_table(table), frozen(columns, np.float64))
    _all(entries(block), *arrays, out)
    return out


@njit(nogil=True, cache=True, inline="always")
def _slack(terms, table, i, length):  # type: ignore[no-untyped-def]
    """Return how far two scores and their distances can disagree; inf where float32 overflows."""
    reach = min(terms.norm[i] * table.largest_norm, terms.mass[i] * table.largest_entry)
    scale = abs(terms.scale[i])
    if reach > LARGEST * scale or table.largest_entry > LARGEST:
        return np.inf
    size = terms.size[i] + table.largest_bias + abs(terms.shift[i]) * table.largest_extra
    smallest = SMALLEST * (scale * length + terms.mass[i])
    return 2.0 * ((length + 4) * (SINGLE * reach + DOUBLE * size) + smallest)


# Without NaN the least is found in vectors; nothing that overflowed comes here. It calls nothing:
# numba hands `fastmath` on to functions that are first compiled from here.
@njit(nogil=True, cache=True, fastmath={"nnan", "nsz"})
def _score(products, bias, extra, scale, shift, scores):  # type: ignore[no-untyped-def]
    """Write scores, which are distances but for the row's own part; return the least."""
    for h in range(scores.shape[0]):
        scores[h] = bias[h] + scale * np.float64(products[h]) + shift * extra[h]
    lowest = scores[0]
    for h in range(scores.shape[0]):
        lowest = scores[h] if scores[h] < lowest else lowest
    return lowest


@njit(nogil=True, cache=True, inline="always")
def _count_within(scores, limit):  # type: ignore[no-untyped-def]
    within = 0
    for h in range(scores.shape[0]):
        within += scores[h] <= limit
    return within


@njit(nogil=True, cache=True)
def _decide(rows, terms, table, scores, limit, i, current, change):  # type: ignore[no-untyped-def]
    """Return the nearest of the candidates: ties stay at `current`, then go to the lowest index."""
    best = current
    least = present = _distance(rows, terms, table, i, current) if current >= 0 else np.inf
    for h in range(scores.shape[0]):
        if h != current and scores[h] <= limit:
            value = _distance(rows, terms, table, i, h)
            if value < least:
                least = value
                best = np.int32(h)
    if current >= 0 and best != current:
        add_float(change, least)
        add_float(change, -present)
    return best


# Arrays are taken out of their tuples before the loops: numba counts references at every access.
@njit(nogil=True, cache=True)
def _nearest(rows, terms, table, labels, out, change):  # type: ignore[no-untyped-def]
    fast, bias, extra = table.fast, table.bias, table.extra
    scale, shift = terms.scale, terms.shift
    products = np.empty(fast.shape[1], np.float32)
    scores = np.empty(bias.shape[0])
    for i in range(out.shape[0]):
        current = labels[i]
        if current == LINKED:
            out[i] = LINKED
            continue
        multiply_row(rows, i, fast, products)
        slack = _slack(terms, table, i, rows.indptr[i + 1] - rows.indptr[i])
        if slack < np.inf:
            limit = _score(products, bias, extra, scale[i], shift[i], scores) + slack
        else:  # what overflowed says nothing
            scores[:] = 0.0
            limit = 0.0
        if current >= 0 and scores[current] <= limit and _count_within(scores, limit) == 1:
            out[i] = current
        else:
            out[i] = _decide(rows, terms, table, scores, limit, i, current, change)
    carry(change)


def nearest(
    block: RowBlock, terms: Terms, table: Table, labels: LabelArray
) -> tuple[LabelArray, IntArray]:
    """Return the nearest centroid of each row and the exact change of Σ D over rows with a label.

    Ties stay at the present label, then go to the lowest index. `LINKED` rows stay linked,
    `UNDECIDED` ones are decided. The nearest is that of the float64 distances, whatever the
    rounding of the float32 products.
    """
    out = np.empty(block.n_rows, np.int32)
    change = exact_zero()
    arrays = (_frozen_terms(terms), _frozen_table(table), frozen(labels, np.int32))
    _nearest(entries(block), *arrays, out, change)
    return out, change
