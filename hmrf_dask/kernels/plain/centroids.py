"""Centroids and Σ D from exact sums, a cluster at a time."""

from __future__ import annotations

import numpy as np

from hmrf_dask.kernels.plain.pieces import silent
from hmrf_dask.types import BoolArray, FloatArray, IntArray

_LANES = 32  # as in kernels.means
_SPLITTER = 134217729.0  # 2**27 + 1: halves of a float64 whose products are exact


def sum_in_lanes(values: FloatArray) -> float:
    """Return a sum of every 32nd number in a sum of its own, these added halves to halves."""
    laid = np.zeros(-(-len(values) // _LANES) * _LANES)
    laid[: len(values)] = values
    lanes = laid.reshape(-1, _LANES).sum(axis=0)  # row by row
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return float(lanes[0])


@silent
def lengths(
    centroids: FloatArray,
    _lanes: FloatArray,
    _most: FloatArray,
    out: FloatArray,
    largest: FloatArray,
) -> None:
    """Write the length and the largest entry of each centroid."""
    for h, row in enumerate(centroids):
        largest[h] = np.abs(row).max(initial=0.0)
        out[h] = np.sqrt(sum_in_lanes(row * row))


@silent
def weigh(
    centroids: FloatArray,
    weights: FloatArray,
    _lanes: FloatArray,
    _most: FloatArray,
    largest: FloatArray,
    out: FloatArray,
) -> None:
    """Write a∘μ/‖μ‖_A and its largest entry."""
    for h, row in enumerate(centroids):
        length = np.sqrt(sum_in_lanes(weights * row * row))
        out[h] = row / length * weights if length > 0.0 else 0.0
        largest[h] = np.abs(out[h]).max(initial=0.0)


@silent
def directions(
    sums: IntArray, roots: FloatArray, _lanes: FloatArray, decided: BoolArray, out: FloatArray
) -> None:
    """Write the directions of sums and whether there is one; see `kernels.means`."""
    for h, row in enumerate(sums):
        x = row[:-1].astype(np.float64)
        if len(roots):
            x += np.float64(row[-1]) * roots
        length = np.sqrt(sum_in_lanes(x * x))
        decided[h] = length > 0.0
        if decided[h]:
            x *= 1.0 / length
            out[h] = x / roots if len(roots) else x


@silent
def means(
    sums: IntArray,
    counts: IntArray,
    unit: float,
    smoothing: float,
    uniform: float,
    out: FloatArray,
) -> None:
    """Write the means of clusters that have rows, drawn to a uniform row."""
    for h in np.flatnonzero(counts > 0):
        mean = sums[h, :-1].astype(np.float64) * unit / np.float64(counts[h])
        out[h] = mean if smoothing == 0.0 else (mean + smoothing * uniform) / (1.0 + smoothing)


@silent
def linear_products(
    sums: IntArray, table: FloatArray, features: FloatArray, out: FloatArray
) -> None:
    """Write Σ_m S_hm T_hm / f_m of each cluster as sums and their errors, half of `out` each."""
    lanes = out.shape[1] // 2
    for h in range(len(table)):
        t = table[h] / features if len(features) else table[h]
        whole = sums[h, : len(t)]
        a = whole.astype(np.float64)
        rest = (whole - a.astype(np.int64)).astype(np.float64)
        product = a * t
        (a_high, a_low), (t_high, t_low) = _halves(a), _halves(t)
        error = ((a_high * t_high - product) + a_high * t_low + a_low * t_high) + a_low * t_low
        high, low = product, error + rest * t
        while len(high) > lanes:
            high, low = _fold(high, low)
        out[h] = 0.0
        out[h, : len(high)] = high
        out[h, lanes : lanes + len(low)] = low


def _halves(a: FloatArray) -> tuple[FloatArray, FloatArray]:
    big = _SPLITTER * a
    high = big - (big - a)
    return high, a - high


def _fold(high: FloatArray, low: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Add the second half of the numbers to the first, with what each sum loses."""
    half = (len(high) + 1) // 2
    more = np.zeros(half)
    more[: len(high) - half] = high[half:]
    total = high[:half] + more
    moved = total - high[:half]
    kept = low[:half] + ((high[:half] - (total - moved)) + (more - moved))
    kept[: len(low) - half] += low[half:]
    return total, kept
