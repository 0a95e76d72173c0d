"""The part of the weight gradient that needs the rows: Σ_i c_i z_im², c_i a similarity.

With S_h the sum of rows of cluster h at its own optimum (KDD eq. 19 summed over the cluster,
negated, in log a)

    ∂‖S_h‖/∂log a_m = ½ S_hm²/‖S_h‖ − ½ Σ_{i∈h} s_i z_im²,   s_i = z_i · S_h/‖S_h‖:

the first part comes from the M-step sums, this module adds up the second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.by_cluster import (
    Lined,
    Moved,
    entries_of,
    members_by_cluster,
    moved_rows,
    prefetch_later,
)
from hmrf_dask.kernels.compiled import RowArrays, Terms, feature_of, former, frozen, inner, njit
from hmrf_dask.kernels.distances import Table
from hmrf_dask.kernels.means import LANES, squared_length
from hmrf_dask.kernels.pairs import Side
from hmrf_dask.kernels.threads import over_ranges
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray

RUNS = 8  # of clusters that are added up one after the other
Compressed = tuple[AnyArray, AnyArray, AnyArray]


@inner(inline="always")
def _product(row: FloatArray, features: Any, direction: Any, dense: Any) -> Any:
    """Return row · direction, as four sums at a time: one alone would wait for itself."""
    a = b = c = d = 0.0
    whole = row.shape[0] & ~3
    for p in range(0, whole, 4):
        if dense:
            a += row[p] * direction[p]
            b += row[p + 1] * direction[p + 1]
            c += row[p + 2] * direction[p + 2]
            d += row[p + 3] * direction[p + 3]
        else:
            a += row[p] * direction[np.uint32(features[p])]
            b += row[p + 1] * direction[np.uint32(features[p + 1])]
            c += row[p + 2] * direction[np.uint32(features[p + 2])]
            d += row[p + 3] * direction[np.uint32(features[p + 3])]
    for p in range(whole, row.shape[0]):
        a += row[p] * direction[p if dense else features[p]]
    return (a + b) + (c + d)


@inner(inline="always")
def _add_squares(entries: Any, factor: Any, extra: Any, coefficient: Any, out: Any) -> None:
    """Add c x (x + 2e) of each entry and c e², x scaled by the row's factor."""
    (row, features, end), twice, last = entries, 2.0 * extra, out.shape[0] - 1
    for p in range(row.shape[0]):
        x = factor * row[p]
        out[np.uint32(features[p])] += np.int64(np.rint(coefficient * (x * (x + twice))))
    first = last - end.shape[0]
    for m in range(end.shape[0]):
        x = factor * end[m]
        out[first + m] += np.int64(np.rint(coefficient * (x * (x + twice))))
    out[last] += np.int64(np.rint(coefficient * (extra * extra)))


class Similarities(NamedTuple):
    """Linear tables of which similarities are taken, less `strength` times those to `overall`."""

    exact: FloatArray  # (K, d)
    extra: FloatArray  # (K,)
    overall: FloatArray  # (d,)
    overall_extra: float
    strength: float


_make_similarities = former(Similarities)


@njit(nogil=True, cache=True)
def _squares_in_line(
    lined: Lined, similarities: Similarities, unit: float, first: int, last: int, out: IntArray
) -> None:
    factor, extra, start = lined.factor, lined.extra, lined.start
    exact, shifts, overall, overall_extra, strength = similarities
    width = exact.shape[1]
    direction = np.empty(width)  # the cluster's: it stays in the cache for its rows
    for h in range(first, last):
        if start[h] == start[h + 1]:
            continue
        own = exact[h]
        for m in range(width):
            direction[m] = own[m] - strength * overall[m]
        constant = shifts[h] - strength * overall_extra
        for t in range(start[h], start[h + 1]):
            prefetch_later(lined, t)
            row, features, end = entries_of(lined, t)
            f, e = factor[t], extra[t]
            along = _product(row, features, direction, False)
            if end.shape[0] > 0:
                along += _product(end, features, direction[width - end.shape[0] :], True)
            near = f * along + e * constant
            _add_squares((row, features, end), f, e, near * unit, out)


def rows_by_cluster(
    rows: Sequence[RowArrays],
    terms: Sequence[Terms],
    labels: Sequence[LabelArray],
    n_clusters: int,
) -> list[Moved]:
    """Return the rows of blocks cluster by cluster; those with a label below 0 have none."""
    return [
        moved_rows(block, own, members_by_cluster(block.indptr, chosen, n_clusters))
        for block, own, chosen in zip(rows, terms, labels, strict=True)
    ]


def weighted_squares(
    lined: Lined, table: Table, overall: Table, strength: float, exponent: int
) -> IntArray:
    """Return Σ_i c_i z_im²/a_m in fixed point, shape (d + 1,); the last entry is part of every m.

    c_i is the similarity to the own centroid less `strength` times that to the only one of
    `overall`; rows are lined up with a unit of 1. Clusters are shared out among threads.
    """
    similarities = _make_similarities(
        table.exact, table.extra, overall.exact[0], overall.extra[0], strength
    )
    parts = list[IntArray]()

    def work(first: int, last: int) -> None:
        """Add up the squares of the rows of a range of clusters."""
        part = np.zeros(table.exact.shape[1] + 1, np.int64)
        _squares_in_line(lined, similarities, 2.0**exponent, first, last, part)
        parts.append(part)

    sizes = lined.sizes[: len(table.exact)]
    over_ranges(work, len(sizes), int(sizes.sum()), sizes)
    return np.asarray(np.sum(parts, axis=0))


def sum_of_clusters(sums: IntArray) -> IntArray:
    """Return the sum over all clusters of sums (K, d + 1), as one cluster.

    Examples
    --------
    >>> sum_of_clusters(np.array([[1, 2, 0], [10, 20, 1]])).tolist()
    [[11, 22, 1]]
    """
    out = np.empty((1, sums.shape[1]), np.int64)

    def work(first: int, last: int) -> None:
        """Add up a range of columns."""
        sums[:, first:last].sum(axis=0, out=out[0, first:last])

    over_ranges(work, sums.shape[1], sums.size)
    return out


@njit(nogil=True, cache=True, makes_arrays=False, error_model="numpy")
def _add_squares_by_length(
    sums: IntArray, roots: FloatArray, row: FloatArray, lanes: FloatArray, out: FloatArray
) -> None:
    for h in range(sums.shape[0]):
        whole, extra = sums[h], np.float64(sums[h, roots.shape[0]])
        for m in range(roots.shape[0]):
            row[m] = np.float64(whole[m])
        if extra != 0.0:
            for m in range(roots.shape[0]):
                row[m] += extra * roots[m]
        length = math.sqrt(squared_length(row, lanes))
        inverse = 1.0 / length if length > 0.0 else 0.0
        for m in range(roots.shape[0]):
            out[m] += row[m] * row[m] * inverse


def squares_by_length(sums: IntArray, roots: FloatArray) -> FloatArray:
    """Return Σ_h S_hm²/‖S_h‖ of sums (K, d + 1) in their own unit, shape (d,).

    The last column, the means, is worked in with √a, the `roots`. Always the same clusters are
    added up together, whatever threads there are.
    """
    totals = np.zeros((RUNS, len(roots)))
    add_squares_by_length(sums, roots, (0, len(sums)), totals)
    return np.asarray(totals.sum(axis=0))


def add_squares_by_length(
    sums: IntArray, roots: FloatArray, ends: tuple[int, int], totals: FloatArray
) -> None:
    """Add the same of some clusters to the totals of `RUNS` runs of all.

    `ends`: the number of the first cluster, and K; those before it were added before.
    """
    first_cluster, n_clusters = ends
    step, known = -(-n_clusters // RUNS), frozen(roots, np.float64)
    whole = frozen(sums, np.int64)
    cuts = np.clip(np.arange(RUNS + 1) * step - first_cluster, 0, len(sums)).tolist()

    def work(first: int, last: int) -> None:
        """Add the squares of the rows of a range of runs of clusters."""
        buffers = np.empty(len(roots)), np.empty(LANES)
        for run in range(first, last):
            _add_squares_by_length(whole[cuts[run] : cuts[run + 1]], known, *buffers, totals[run])

    over_ranges(work, RUNS, sums.size)


@njit(nogil=True, cache=True)
def _feature_squares(rows: RowArrays, units: FloatArray, out: IntArray) -> None:
    for i in range(rows.indptr.shape[0] - 1):
        for p in range(rows.indptr[i], rows.indptr[i + 1]):
            m = feature_of(rows, i, p)
            x = np.float64(rows.values[p])
            out[m] += np.int64(np.rint(x * x * units[m]))


def feature_squares(rows: RowArrays, units: FloatArray) -> IntArray:
    """Return Σ_i x_im² by feature in fixed point, `units` to one of each feature, shape (d,)."""
    out = np.zeros(rows.n_features, np.int64)
    _feature_squares(rows, frozen(units, np.float64), out)
    return out


@njit(nogil=True, cache=True)
def _member_products(
    rows: Side, roots: FloatArray, length: Any, tables: Any, start: Any, member: Any, out: Any
) -> None:
    values, indices, indptr = rows.values, rows.indices, rows.indptr
    others, features, others_start = tables
    scratch = np.zeros(roots.shape[0])
    for t in range(start.shape[0] - 1):
        span = range(others_start[t], others_start[t + 1])
        centring = 0.0
        for p in span:
            if features[p] < roots.shape[0]:
                scratch[features[p]] = others[p] * roots[features[p]]
            else:
                centring = others[p] * length
        for at in range(start[t], start[t + 1]):
            i = member[at]
            row = values[indptr[i] : indptr[i + 1]]
            along = _product(row, indices[indptr[i] : indptr[i + 1]], scratch, rows.dense)
            out[at] = rows.factor[i] * along - rows.extra[i] * centring
        for p in span:
            if features[p] < roots.shape[0]:
                scratch[features[p]] = 0.0


def member_products(
    rows: Side, roots: FloatArray, tables: Compressed, start: IntArray, member: IntArray
) -> FloatArray:
    """Return the product of rows with the tables they are members of, one number a member.

    `roots` are √a; `tables` values, indices and indptr of a matrix with d + 1 columns, the centring
    last; `start` and `member` the rows of each table as CSR.
    """
    out = np.zeros(len(member))
    length = float(np.sqrt((roots * roots).sum()))
    values, indices, indptr = tables
    known = (frozen(values, np.float64), frozen(indices, np.int32), frozen(indptr, np.int64))
    sets = (frozen(start, np.int64), frozen(member, np.int64))
    _member_products(rows, frozen(roots, np.float64), length, known, *sets, out)
    return out


@njit(nogil=True, cache=True)
def _member_squares(
    rows: Side, member: Any, coefficients: Any, units: FloatArray, out: Any
) -> None:
    values, indices, indptr = rows.values, rows.indices, rows.indptr
    last = out.shape[0] - 1
    for at in range(member.shape[0]):
        i, c = member[at], coefficients[at]
        e = rows.extra[i]
        first = indptr[i]
        for p in range(first, indptr[i + 1]):
            m = p - first if rows.dense else indices[p]
            x = rows.factor[i] * values[p]
            out[m] += np.int64(np.rint(c * (x * (x + 2.0 * e)) * units[m]))
        out[last] += np.int64(np.rint(c * (e * e) * units[last]))


def member_squares(
    rows: Side, member: IntArray, coefficients: FloatArray, units: FloatArray
) -> IntArray:
    """Return Σ c_i z_im²/a_m over some rows in fixed point, `units` to one of each feature.

    Shape (d + 1,); the last entry is part of every feature's.
    """
    out = np.zeros(len(units), np.int64)
    numbers = (frozen(coefficients, np.float64), frozen(units, np.float64))
    _member_squares(rows, frozen(member, np.int64), *numbers, out)
    return out
