"""Centroids in low precision, which find candidates, and how far off their scores can be."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import (
    RowArrays,
    Terms,
    former,
    frozen,
    frozen_terms,
    inner,
    njit,
    of_row,
)
from hmrf_dask.kernels.distances import DOUBLE, LARGEST, SMALLEST, Table
from hmrf_dask.kernels.instructions import prefetch
from hmrf_dask.kernels.products import (
    LANES,
    Columns,
    aligned,
    has_half,
    layout,
    side_by_side,
    store,
)
from hmrf_dask.kernels.threads import buffer, over_ranges
from hmrf_dask.types import FloatArray, RowArray

TILE = 16  # features that are turned at a time: two lines of each centroid
RUN = 2048  # features whose bounds are added up together
SMALL = 32  # up to so many centroids half the bytes are no sooner fetched
NEAR = 2**21  # bytes of a table that several dense rows share: half of them, converted, are later
HALF_BITS = 14  # half floats reach 2**15.99; twice the largest entry must fit


class ApproximateTable(NamedTuple):
    """A table of centroids in single or half precision, times a power of two."""

    columns: Columns
    together: Columns  # the same for dense rows, of which several are multiplied together
    bias: RowArray  # (width,): of `Table`; the bias of columns that are no centroid is infinite
    extra: RowArray
    unit: float  # what the entries are times
    # the largest norm of a column (see `Table.weights`) and the largest entry, without `unit`
    norm: float
    entry: float
    norm_error: float  # the same of what rounding took from them
    entry_error: float


@inner()
def _mean(line: FloatArray, lanes: FloatArray) -> Any:
    """Return the mean, every 16th number in a sum of its own."""
    n_clusters = line.shape[0]
    whole = n_clusters - n_clusters % LANES
    lanes[:] = 0.0
    for first in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += line[first + lane]
    for h in range(whole, n_clusters):
        lanes[h - whole] += line[h]
    half = LANES // 2
    while half > 0:
        for lane in range(half):
            lanes[lane] += lanes[half + lane]
        half //= 2
    return lanes[0] / n_clusters


class _Source(NamedTuple):
    """What an approximate table is made of; no `metric`, no `shares`: all 1."""

    exact: FloatArray
    metric: FloatArray
    shares: FloatArray
    unit: float


_make_source = former(_Source)


@njit(nogil=True, cache=True)
def _fill(
    source: _Source, begin: int, n_features: int, table: RowArray, moments: FloatArray
) -> None:
    """Write features `begin` to `n_features` of a table, and into `moments` what it is like.

    That is, sums of squares of entries and of what is lost, times the features' `shares`, and the
    largest entry, column by column.
    """
    exact, metric, shares, unit = source
    norms, errors, tops = moments[0], moments[1], moments[2]
    n_clusters = exact.shape[0]
    tile, lanes = np.empty((TILE, n_clusters)), np.empty(LANES)
    for first in range(begin, n_features, TILE):
        count = min(TILE, n_features - first)
        for h in range(n_clusters):
            row = exact[h]
            for ahead in range(first + 2 * TILE, min(first + 3 * TILE, n_features), TILE // 2):
                prefetch(row, ahead)  # the machine follows few arrays at once
            for t in range(count):
                tile[t, h] = row[first + t]
        for t in range(count):
            line = tile[t]
            middle = _mean(line, lanes)
            for h in range(n_clusters, table.shape[1]):  # these columns are no centroids
                table[first + t, h] = 0
            scale = unit if metric.shape[0] == 0 else unit * metric[first + t]
            share = 1.0 if shares.shape[0] == 0 else shares[first + t]
            for h in range(n_clusters):
                value = scale * (line[h] - middle)
                lost = value - store(table, first + t, h, value)
                norms[h] += share * (value * value)
                errors[h] += share * (lost * lost)
            for h in range(n_clusters):  # by itself: of more arrays LLVM makes no vectors
                size = abs(scale * (line[h] - middle))
                tops[h] = size if size > tops[h] else tops[h]


def make_approximate_table(table: Table, *, half: bool) -> ApproximateTable:
    """Return the approximate table of a table, in half or in single precision."""
    n_clusters, n_features = table.exact.shape
    width, vectors = layout(n_clusters, np.float32)
    entries = buffer((n_features, width), np.uint16 if half else np.float32)
    exponent = math.frexp(2.0 * table.largest_entry)[1]
    unit = math.ldexp(1.0, (HALF_BITS if half else 0) - exponent)
    metric = table.weights if table.squared else np.zeros(0)
    source = _make_source(table.exact, metric, table.shares, unit)
    # By fixed runs of features: slack goes into cost rows, so bounds may not know of threads.
    moments = np.zeros((-(-n_features // RUN), 3, n_clusters))

    def work(first: int, last: int) -> None:
        """Fill the table for a range of runs of features."""
        for number in range(first, last):
            ends = number * RUN, min((number + 1) * RUN, n_features)
            _fill(source, *ends, entries, moments[number])

    over_ranges(work, len(moments), table.exact.size)
    norms, errors, _ = moments.sum(axis=0)
    largest = float(moments[:, 2].max(initial=0.0))
    entry_error = largest * 2.0**-10.99 + 2.0**-14 if half else largest * 2.0**-23.99 + 2.0**-140
    bias = np.full(width, np.inf, np.float32)
    extra = np.zeros(width, np.float32)
    with np.errstate(over="ignore"):  # what overflows is seen before it is used
        bias[:n_clusters], extra[:n_clusters] = table.bias, table.extra
    loose = 1.0 + 2.0**-20  # what was measured was rounded itself
    columns = Columns(entries, vectors)
    return ApproximateTable(
        columns=columns,
        together=side_by_side(columns),
        bias=bias,
        extra=extra,
        unit=unit,
        norm=loose * math.sqrt(norms.max(initial=0.0)) / unit,
        entry=loose * largest / unit,
        norm_error=loose * math.sqrt(errors.max(initial=0.0)) / unit,
        entry_error=loose * entry_error / unit,
    )


def approximate_table(
    table: Table, *, single: bool = False, dense: bool = False
) -> ApproximateTable:
    """Return an approximate table in the precision that is the fastest here, or in `single`.

    Of `dense` rows several are multiplied together, so there is less to fetch for each.
    """
    single = single or len(table.exact) <= SMALL or (dense and 4 * table.exact.size <= NEAR)
    half = has_half() and not single
    return table.once(
        "half" if half else "single", lambda: make_approximate_table(table, half=half)
    )


def dense_end(table: Table, approximate: ApproximateTable, n_dense: int) -> Columns:
    """Return the last columns of an approximate table, which several mixed rows are multiplied by.

    Half floats are made wide where these stay in the cache: the same numbers, converted once.
    """
    end, vectors = approximate.together.table[-n_dense:], approximate.together.vectors

    def widen() -> Columns:
        """Return the columns in single precision."""
        wide = aligned(end.shape, np.float32)
        wide[...] = end.view(np.float16)
        return Columns(wide, vectors)

    if end.dtype == np.float32 or 4 * end.size > NEAR:
        return Columns(end, vectors)
    return table.once(f"end {n_dense}", widen)


SINGLE = 1.0625 * 2.0**-24  # by how much a float32 operation rounds, in sums of up to LONGEST
OPERATIONS = 16  # float32 operations around the products, more than there are
LONGEST = 2**19  # entries of a row; longer ones are left to float64
WIDEST = 2.0**100  # of factors in float32
WIDER, MOST = 1.125, 2.0  # how much wider bounds are made, and may be


class RoundingBounds(NamedTuple):
    """What bounds the rounding of scores under a table, but for what the rows themselves add."""

    norm_error: float
    entry_error: float
    approximate_norm: float
    approximate_entry: float
    norm: float
    entry: float
    bias: float
    extra: float
    unit: float  # a power of two

    @staticmethod
    def of(table: Table, approximate: ApproximateTable) -> RoundingBounds:
        """Return the bounds of a table and its approximate table."""
        return RoundingBounds(
            norm_error=approximate.norm_error,
            entry_error=approximate.entry_error,
            approximate_norm=approximate.norm,
            approximate_entry=approximate.entry,
            norm=table.largest_norm,
            entry=table.largest_entry,
            bias=float(np.abs(table.bias).max()),
            extra=float(np.abs(table.extra).max()),
            unit=approximate.unit,
        )

    def above(self) -> RoundingBounds:
        """Return bounds a little wider, which hold for other tables, too."""
        return RoundingBounds._make([*(WIDER * bound for bound in self[:-1]), self.unit])

    def hold(self, others: RoundingBounds) -> bool:
        """Return whether these bounds hold for what `others` do, and are not far too wide."""
        pairs = zip(others[:-1], self[:-1], strict=True)
        within = (least <= own <= MOST * least for least, own in pairs)
        return self.unit == others.unit and all(within)


_make_bounds = former(RoundingBounds)


@njit(nogil=True, cache=True, makes_arrays=False, error_model="numpy")
def _slack(
    rows: RowArrays, terms: Terms, bounds: RoundingBounds, longest: int, out: FloatArray
) -> None:
    unit, extra = bounds.unit, bounds.extra
    for i in range(out.shape[0]):
        length = np.int64(rows.indptr[i + 1]) - np.int64(rows.indptr[i])
        scale, shift = abs(of_row(terms.scale, i)), abs(of_row(terms.shift, i))
        norm, mass = of_row(terms.norm, i), of_row(terms.mass, i)
        lost = min(norm * bounds.norm_error, mass * bounds.entry_error)
        reach = lost + min(norm * bounds.approximate_norm, mass * bounds.approximate_entry)
        size = min(norm * bounds.norm, mass * bounds.entry)
        other = bounds.bias + shift * extra
        slack = SINGLE * reach + DOUBLE * (size + (other + of_row(terms.size, i)))
        slack = (slack + (SMALLEST / unit) * scale) * np.float64(length + OPERATIONS)
        slack += lost + OPERATIONS * (SINGLE * (other + extra) + SMALLEST * (1.0 + extra))
        slack *= 2.0 + 2.0**-18
        within = reach * (unit / LARGEST) <= scale and slack < np.inf
        within = within and unit / WIDEST < scale < unit * WIDEST
        within = within and shift < WIDEST and length < longest
        out[i] = slack if within and bounds.bias < WIDEST and extra < WIDEST else np.inf


def rounding_slack(rows: RowArrays, terms: Terms, bounds: RoundingBounds) -> FloatArray:
    """Return how far a row's scores, and two of its distances, can disagree; inf: without bound.

    A score of a row is a distance but for the row's own part, and what its entries make of the
    centring of the table.
    """
    out = np.empty(rows.n_rows)
    _slack(rows, frozen_terms(*terms), _make_bounds(*bounds), LONGEST, out)
    return out


class RowScaling(NamedTuple):
    """What of rows goes into their scores, and how far off these can be."""

    scale: RowArray  # (n_rows,) or (1,)
    shift: RowArray
    slack: FloatArray  # (n_rows,)

    @staticmethod
    def of(rows: RowArrays, terms: Terms, bounds: RoundingBounds) -> RowScaling:
        """Return that of rows under any tables that these bounds hold for."""
        with np.errstate(over="ignore"):  # such rows have no finite slack
            scale, shift = (
                frozen(factor.astype(np.float32), np.float32)
                for factor in (terms.scale / bounds.unit, terms.shift)
            )
        return RowScaling(scale, shift, frozen(rounding_slack(rows, terms, bounds), np.float64))
