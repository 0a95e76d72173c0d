"""Tables of centroids that find which may be nearest, and how far what they find can be off.

A table is stored feature by feature, its columns centred by a number of each feature's own, which
moves all scores of a row alike and leaves less to be rounded: a word that few clusters have is
nought in all others. What rounding loses is measured column by column while the table is made.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.abreast import over_ranges
from hmrf_dask.kernels.arrays import frozen
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.distances import Table
from hmrf_dask.kernels.prefetch import prefetch
from hmrf_dask.kernels.products import LANES, Columns, has_half, layout, store
from hmrf_dask.kernels.room import room
from hmrf_dask.types import RowArray

TILE = 16  # features that are turned at a time: two lines of each centroid
RUN = 4096  # features whose bounds are added up together
SMALL = 32  # up to so many centroids half the bytes are no sooner fetched
HALF_BITS = 14  # half floats reach 2**15.99; twice the largest entry must fit


class Finder(NamedTuple):
    """A table of centroids in single or half precision, times a power of two.

    Attributes
    ----------
    columns : Columns
    bias, extra : float32 arrays, shape (width,)
        Of `Table`; the bias of columns that are no centroid is infinite.
    unit : float
        What the entries are times.
    norm, entry : float
        The largest norm of a column (see `Table.weights`) and the largest entry, without `unit`.
    norm_error, entry_error : float
        The same of what rounding took from them.
    """

    columns: Columns
    bias: RowArray
    extra: RowArray
    unit: float
    norm: float
    entry: float
    norm_error: float
    entry_error: float


@inner()
def _mean(line, lanes):  # type: ignore[no-untyped-def]
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


@njit(nogil=True, cache=True)
def _fill(  # type: ignore[no-untyped-def]
    exact, metric, shares, unit, begin, n_features, table, norms, errors, tops
):
    """Write features `begin` to `n_features` of a table; tell what its columns are like.

    That is, sums of squares of entries and of what is lost, times the features' `shares`, and the
    largest entry.
    """
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


def make_finder(table: Table, *, half: bool) -> Finder:
    """Return the finder of a table."""
    n_clusters, n_features = table.exact.shape
    width, vectors = layout(n_clusters, np.float32)
    found = room((n_features, width), np.uint16 if half else np.float32)
    found[:, n_clusters:] = 0
    exponent = math.frexp(2.0 * table.largest_entry)[1]
    unit = math.ldexp(1.0, (HALF_BITS if half else 0) - exponent)
    metric = frozen(table.weights if table.squared else np.zeros(0), np.float64)
    shares = frozen(table.shares, np.float64)
    # By fixed runs of features: slack goes into cost rows, so bounds may not know of threads.
    moments = np.zeros((-(-n_features // RUN), 3, n_clusters))

    def some(first: int, last: int) -> None:
        for number in range(first, last):
            ends = number * RUN, min((number + 1) * RUN, n_features)
            given = (table.arrays.exact, metric, shares, unit)
            _fill(*given, *ends, found, *moments[number])

    over_ranges(some, len(moments), table.exact.size)
    norms, errors, _ = moments.sum(axis=0)
    largest = float(moments[:, 2].max(initial=0.0))
    entry_error = largest * 2.0**-10.99 + 2.0**-14 if half else largest * 2.0**-23.99 + 2.0**-140
    bias = np.full(width, np.inf, np.float32)
    extra = np.zeros(width, np.float32)
    with np.errstate(over="ignore"):  # what overflows is seen before it is used
        bias[:n_clusters], extra[:n_clusters] = table.bias, table.extra
    loose = 1.0 + 2.0**-20  # what was measured was rounded itself
    return Finder(
        Columns(found, vectors),
        bias,
        extra,
        unit,
        loose * math.sqrt(norms.max(initial=0.0)) / unit,
        loose * largest / unit,
        loose * math.sqrt(errors.max(initial=0.0)) / unit,
        loose * entry_error / unit,
    )


def finder_of(table: Table, *, single: bool = False) -> Finder:
    """Return the finder of a table in the precision that is the fastest here, or in `single`."""
    half = has_half() and len(table.exact) > SMALL and not single
    return table.once("half" if half else "single", lambda: make_finder(table, half=half))
