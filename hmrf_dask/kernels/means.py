"""Centroids from exact sums: one pass over the integers of a cluster, no arrays in between."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels import exact
from hmrf_dask.kernels.compiled import frozen, inner, njit
from hmrf_dask.kernels.exact import multiply_sums
from hmrf_dask.kernels.hamerly import length_between
from hmrf_dask.kernels.threads import buffer, over_ranges
from hmrf_dask.types import BoolArray, FloatArray, IntArray

LANES = 32  # sums that are added up side by side: one alone would wait for itself
UNIT = 2.0**-46  # a direction this near to length 1 is not scaled again


@inner()
def _fold(lanes: FloatArray) -> Any:
    """Return the sum of all lanes, halves added to halves."""
    half = LANES // 2
    while half > 0:
        for lane in range(half):
            lanes[lane] += lanes[half + lane]
        half //= 2
    return lanes[0]


@inner()
def squared_length(row: FloatArray, lanes: FloatArray) -> Any:
    """Return Σ x², every 32nd feature in a sum of its own."""
    whole = row.shape[0] - row.shape[0] % LANES
    lanes[:] = 0.0
    for first in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += row[first + lane] * row[first + lane]
    for m in range(whole, row.shape[0]):
        lanes[m - whole] += row[m] * row[m]
    return _fold(lanes)


@inner(error_model="numpy")
def write_direction(row: IntArray, roots: FloatArray, lanes: FloatArray, target: FloatArray) -> Any:
    """Write the direction of a cluster's sums; return whether they have one. No `roots`: all 1."""
    n_features = target.shape[0]
    last = np.float64(row[n_features])
    for m in range(n_features):
        target[m] = np.float64(row[m])
    if roots.shape[0] > 0:
        for m in range(n_features):
            target[m] += last * roots[m]
    length = math.sqrt(squared_length(target, lanes))
    if not length > 0.0:
        return False
    inverse = 1.0 / length
    if roots.shape[0] == 0:
        for m in range(n_features):
            target[m] *= inverse
    else:
        for m in range(n_features):
            target[m] = target[m] * inverse / roots[m]
    return True


@njit(nogil=True, cache=True, makes_arrays=False, error_model="numpy")
def _directions(
    sums: IntArray, roots: FloatArray, lanes: FloatArray, decided: BoolArray, out: FloatArray
) -> None:
    for h in range(out.shape[0]):
        decided[h] = write_direction(sums[h], roots, lanes, out[h])


@njit(nogil=True, cache=True, makes_arrays=False, error_model="numpy")
def _means(
    sums: IntArray, counts: IntArray, unit: float, smoothing: float, uniform: float, out: FloatArray
) -> None:
    drawn, whole = smoothing * uniform, 1.0 + smoothing
    for h in range(out.shape[0]):
        row, target = sums[h], out[h]
        count = np.float64(counts[h])
        if count <= 0.0:
            continue
        if smoothing == 0.0:
            for m in range(out.shape[1]):
                target[m] = np.float64(row[m]) * unit / count
        else:
            for m in range(out.shape[1]):
                target[m] = (np.float64(row[m]) * unit / count + drawn) / whole


def fill(out: FloatArray, decided: BoolArray, previous: FloatArray | None) -> FloatArray:
    """Write what undecided clusters keep: their previous centroid, zero where there is none."""
    open_clusters = np.flatnonzero(~decided)
    out[open_clusters] = 0.0 if previous is None else previous[open_clusters]
    return out


def directions(sums: IntArray, weights: FloatArray, previous: FloatArray | None) -> FloatArray:
    """Return the directions of sums (K, d + 1), the last column that of the means, ‖μ‖_A = 1.

    With √a∘(x − mean) summed up to S and the means to s: μ = (S + s √a) / ‖S + s √a‖ / √a. A
    cluster whose sum is zero has none.

    Examples
    --------
    >>> directions(np.array([[30, 40, 0]]), np.ones(2), previous=None).tolist()
    [[0.6, 0.8]]
    """
    out = buffer((sums.shape[0], sums.shape[1] - 1), np.float64)
    decided = np.empty(len(out), np.bool_)
    plain = bool((weights == 1.0).all()) and not sums[:, -1].any()
    roots = np.zeros(0) if plain else np.sqrt(weights)
    totals, known = frozen(sums, np.int64), frozen(roots, np.float64)

    def work(first: int, last: int) -> None:
        """Make the directions of a range of clusters."""
        lanes = np.empty(LANES)
        _directions(totals[first:last], known, lanes, decided[first:last], out[first:last])

    over_ranges(work, len(out), out.size)
    return fill(out, decided, previous)


def means(
    sums: IntArray,
    exponent: int,
    counts: IntArray,
    previous: FloatArray | None,
    smoothing: float = 0.0,
    uniform: float = 0.0,
) -> FloatArray:
    """Return the means of clusters, drawn to a uniform row: (mean + αu)/(1 + α).

    Examples
    --------
    >>> sums = np.array([[6, 8, 0], [0, 0, 0]])
    >>> means(sums, 1, np.array([2, 0]), previous=np.ones((2, 2))).tolist()
    [[1.5, 2.0], [1.0, 1.0]]
    """
    out = buffer((sums.shape[0], sums.shape[1] - 1), np.float64)
    numbers = (2.0**-exponent, float(smoothing), float(uniform))
    totals, sizes = frozen(sums, np.int64), frozen(counts, np.int64)

    def work(first: int, last: int) -> None:
        """Make the means of a range of clusters."""
        _means(totals[first:last], sizes[first:last], *numbers, out[first:last])

    over_ranges(work, len(out), out.size)
    return fill(out, counts > 0, previous)


@inner(inline="always")
def _measure(
    row: FloatArray, weights: FloatArray, m: Any, lanes: FloatArray, most: FloatArray, lane: Any
) -> None:
    x = row[m]
    weighted = x if weights.shape[0] == 0 else weights[m] * x
    lanes[lane] += weighted * x
    size = abs(x)
    most[lane] = size if size > most[lane] else most[lane]


@inner()
def measure_centroid(
    row: FloatArray, weights: FloatArray, lanes: FloatArray, most: FloatArray
) -> float:
    """Return ‖μ‖_A of a centroid; no `weights` are all 1. Its largest entries go into `most`."""
    whole = row.shape[0] - row.shape[0] % LANES
    lanes[:] = 0.0
    most[:] = 0.0
    for first in range(0, whole, LANES):
        for lane in range(LANES):
            _measure(row, weights, first + lane, lanes, most, lane)
    for m in range(whole, row.shape[0]):
        _measure(row, weights, m, lanes, most, m - whole)
    return math.sqrt(_fold(lanes))


@inner()
def top(most: FloatArray) -> float:
    """Return the largest of all lanes."""
    largest_yet = 0.0
    for lane in range(LANES):
        largest_yet = max(largest_yet, most[lane])
    return largest_yet


@njit(nogil=True, cache=True, makes_arrays=False, error_model="numpy")
def _weigh(
    centroids: FloatArray,
    weights: FloatArray,
    lanes: FloatArray,
    most: FloatArray,
    lengths: FloatArray,
    tops: FloatArray,
    out: FloatArray,
) -> None:
    """Write ‖μ‖_A and the largest entry of μ; or, if wanted, a∘μ/‖μ‖_A and its largest entry."""
    n_features = out.shape[1]
    whole = n_features - n_features % LANES
    for h in range(lengths.shape[0]):
        length = measure_centroid(centroids[h], weights, lanes, most)
        lengths[h], tops[h] = length, top(most)
        if out.shape[0] == 0:
            continue
        row, target = centroids[h], out[h]
        most[:] = 0.0
        if length > 0.0:
            for m in range(n_features):
                target[m] = row[m] / length * weights[m]
        else:
            target[:] = 0.0
        for first in range(0, whole, LANES):
            for lane in range(LANES):
                size = abs(target[first + lane])
                most[lane] = size if size > most[lane] else most[lane]
        for m in range(whole, n_features):
            most[0] = max(most[0], abs(target[m]))
        tops[h] = top(most)


def weighted_directions(centroids: FloatArray, weights: FloatArray) -> tuple[FloatArray, float]:
    """Return a∘μ/‖μ‖_A and its largest entry: the centroids themselves where they are the same.

    A centroid of length zero has no direction, and its row is zero.
    """
    rows = frozen(centroids, np.float64)
    lengths, tops = np.empty((2, len(rows)))
    metric = frozen(np.zeros(0) if (weights == 1.0).all() else weights, np.float64)
    out = buffer(rows.shape if len(metric) else (0, 0), np.float64)

    def work(first: int, last: int) -> None:
        """Weigh a range of centroids."""
        lanes, ends = np.empty((2, LANES)), slice(first, last)
        _weigh(rows[ends], metric, *lanes, lengths[ends], tops[ends], out[ends])

    over_ranges(work, len(tops), rows.size)
    unit = (np.abs(lengths - 1.0) < UNIT) | (lengths == 0.0)
    if len(metric) or unit.all():
        return out if len(metric) else centroids, float(tops.max(initial=0.0))
    # A user's, once in a fit. What becomes of a row may not depend on other rows.
    scaled = rows / np.where(unit, 1.0, lengths)[:, None]
    return scaled, largest(scaled)


def largest(rows: FloatArray) -> float:
    """Return the largest absolute value, row by row."""
    return max((max(float(row.max()), -float(row.min())) for row in rows), default=0.0)


class Directions(NamedTuple):
    """The centroids that sums ask for under weights of 1, and what one pass says of them.

    A cluster's sums, and its centroid before and after, stay in the cache while its direction is
    made and measured, the distance that it went, and its part of J at both centroids.
    """

    centroids: FloatArray  # (K, d), each of length 1 but for rounding
    largest_entry: float
    # What compares them with those before; zero where that was not asked.
    moved: FloatArray  # (K,): how far each went
    # (K, 2, 2 LANES), at the centroids and at those before, for `exact.closed_sum`
    products: FloatArray


@njit(nogil=True, cache=True, makes_arrays=False, error_model="numpy")
def _remake(
    sums: IntArray,
    previous: FloatArray,
    compared: bool,
    lanes: FloatArray,
    sizes: FloatArray,
    products: FloatArray,
    out: FloatArray,
) -> None:
    """Write centroids; into `sizes` their lengths, largest entries and how far they went."""
    plain, most = lanes[0, :0], lanes[1]
    for h in range(out.shape[0]):
        row, target, before = sums[h], out[h], previous[h]
        if compared:
            multiply_sums(row, before, plain, products[h, 1])
        if not write_direction(row, plain, lanes[0], target):
            for m in range(target.shape[0]):
                target[m] = before[m]
        sizes[h, 0] = measure_centroid(target, plain, lanes[0], most)
        sizes[h, 1] = top(most)
        sizes[h, 2] = length_between(before, target, plain) if compared else 0.0
        multiply_sums(row, target, plain, products[h, 0])


def remade_directions(sums: IntArray, previous: FloatArray, *, compared: bool) -> Directions | None:
    """Return the directions of sums (K, d + 1) whose last column is zero; see `directions`.

    Those without one keep their previous centroid: None where such a one has not length 1, so that
    a table has to be made of it.
    """
    out, products = buffer(previous.shape, np.float64), np.zeros((len(sums), 2, 2 * exact.LANES))
    totals, known = frozen(sums, np.int64), frozen(previous, np.float64)
    sizes = np.empty((len(sums), 3))

    def work(first: int, last: int) -> None:
        """Make the directions of a range of clusters."""
        here, lanes = slice(first, last), np.empty((2, LANES))
        ends = totals[here], known[here], compared
        _remake(*ends, lanes, sizes[here], products[here], out[here])

    over_ranges(work, len(out), out.size)
    lengths, tops, moved = sizes.T
    unit = (np.abs(lengths - 1.0) < UNIT) | (lengths == 0.0)
    if not unit.all():
        return None
    return Directions(out, float(tops.max(initial=0.0)), moved, products)
