"""Sums of closed rows in float64, by (group, cluster), and their products; no row is copied."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import find, frozen
from hmrf_dask.kernels.compiled import njit
from hmrf_dask.kernels.pairs import Side
from hmrf_dask.types import FloatArray, IntArray, LabelArray


class Sums(NamedTuple):
    """Σ z of some sets of rows as CSR, features ascending, the centring last; and their ΣA."""

    start: IntArray
    feature: LabelArray
    value: FloatArray
    own: FloatArray


@njit(nogil=True, cache=True, makes_arrays=False)
def _collect(rows, start, member, seen, begin, feature):  # type: ignore[no-untyped-def]
    """Count the features of each set or, where there is room for them, list them as they come."""
    for one in range(start.shape[0] - 1):
        found = 0
        for at in range(start[one], start[one + 1]):
            first = rows.indptr[member[at]]
            for p in range(first, rows.indptr[member[at] + 1]):
                m = p - first if rows.dense else rows.indices[p]
                if seen[m] != one:
                    seen[m] = one
                    if feature.shape[0] > 0:
                        feature[begin[one] + found] = m
                    found += 1
        if feature.shape[0] == 0:
            begin[one + 1] = found + 1  # the centring


@njit(nogil=True, cache=True, makes_arrays=False)
def _fill(rows, roots, length, squared, start, member, sums, total):  # type: ignore[no-untyped-def]
    for one in range(start.shape[0] - 1):
        last = sums.start[one + 1] - 1
        for place in range(sums.start[one], last):
            total[sums.feature[place]] = 0.0
        centring = 0.0
        for at in range(start[one], start[one + 1]):
            point = member[at]
            first = rows.indptr[point]
            square = 0.0
            for p in range(first, rows.indptr[point + 1]):
                m = p - first if rows.dense else rows.indices[p]
                z = rows.factor[point] * roots[m] * rows.values[p]
                total[m] += z
                square += z * z
            centring += rows.extra[point] * length
            sums.own[one] += square if squared else 0.5
        for place in range(sums.start[one], last):
            sums.value[place] = total[sums.feature[place]]
        sums.feature[last] = roots.shape[0]
        sums.value[last] = centring


def sum_rows(
    rows: Side, roots: FloatArray, *, squared: bool, start: IntArray, member: IntArray
) -> Sums:
    """Return Σ z and ΣA of sets of rows.

    Parameters
    ----------
    rows : Side
    roots : float64 array, shape (d,)
        √a.
    squared : bool
        Whether A is a row's own square; one half otherwise.
    start, member : int arrays
        The rows of each set as CSR.
    """
    sets = frozen(start, np.int64), frozen(member, np.int32)
    begin = np.zeros(len(start), np.int64)
    _collect(rows, *sets, np.full(len(roots), -1, np.int64), begin, np.empty(0, np.int32))
    np.cumsum(begin, out=begin)
    sums = Sums(begin, np.empty(begin[-1], np.int32), np.empty(begin[-1]), np.zeros(len(begin) - 1))
    _collect(rows, *sets, np.full(len(roots), -1, np.int64), begin, sums.feature)
    for first, stop in pairwise(begin):
        sums.feature[first : stop - 1].sort()
    length = float(np.sqrt((roots * roots).sum()))
    _fill(rows, frozen(roots, np.float64), length, squared, *sets, sums, np.empty(len(roots)))
    return sums


@njit(nogil=True, cache=True, makes_arrays=False)
def _products(sums, last, one, other, out):  # type: ignore[no-untyped-def]
    for t in range(one.shape[0]):
        short, long = one[t], other[t]
        if sums.start[short + 1] - sums.start[short] > sums.start[long + 1] - sums.start[long]:
            short, long = long, short
        features = sums.feature[sums.start[long] : sums.start[long + 1]]
        first = sums.start[long]
        for p in range(sums.start[short], sums.start[short + 1]):
            at = find(features, sums.feature[p])
            if at >= 0:
                product = sums.value[p] * sums.value[first + at]
                out[t] += -product if sums.feature[p] == last else product


def products(sums: Sums, n_features: int, one: IntArray, other: IntArray) -> FloatArray:
    """Return Σ z · Σ z' of the sets one[t] and other[t], the centring counted negatively."""
    ends = frozen(one, np.int64), frozen(other, np.int64)
    out = np.zeros(len(one))
    _products(sums, int(n_features), *ends, out)
    return out
