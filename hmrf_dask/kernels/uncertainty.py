"""How uncertain it is which neighbourhood a row belongs to, for each question that would settle it.

The criterion is that of normalised point-based uncertainty (Xiong, Azimi, Fern: Active learning of
constraints for semi-supervised clustering, 2014), with centroids in the place of its forest.
"""

from __future__ import annotations

import math

import numpy as np

from hmrf_dask.kernels.compiled import frozen, njit
from hmrf_dask.types import FloatArray, IntArray

BINS = 4096  # of gaps between 0 and 1: the median of them decides a scale, no more


@njit(nogil=True, cache=True)
def _uncertainties(distances: FloatArray, scale: float, out: FloatArray) -> None:
    n_groups = distances.shape[1]
    shares = np.empty(n_groups)
    for i in range(distances.shape[0]):
        least = distances[i].min()
        total = 0.0
        for p in range(n_groups):
            # one by one: vectors of exponentials may round otherwise at the end of an array
            shares[p] = math.exp(scale * (least - distances[i, p]))
            total += shares[p]
        shares.sort()  # in any order of neighbourhoods the same
        entropy = 0.0
        questions = 0.0
        for rank in range(n_groups):
            share = shares[n_groups - 1 - rank] / total
            if share > 0.0:
                entropy -= share * math.log(share)
            questions += share * min(rank + 1, n_groups - 1)
        out[i] = entropy / questions if n_groups > 1 else 0.0


def uncertainties(distances: FloatArray, scale: float) -> FloatArray:
    """Return H / E of each row: the entropy of its neighbourhood, by questions that settle it.

    A row belongs to a neighbourhood with a probability proportional to exp(-scale · distance); it
    is asked about from the likeliest on, and the last neighbourhood left is inferred.

    Examples
    --------
    >>> uncertainties(np.array([[0.5, 0.5], [0.1, 0.9]]), 10.0).round(3).tolist()
    [0.693, 0.003]
    """
    out = np.empty(len(distances))
    _uncertainties(frozen(distances, np.float64), float(scale), out)
    return out


def gap_counts(distances: FloatArray) -> IntArray:
    """Return how many rows have which gap between nearest and second, in `BINS` bins of [0, 1].

    Examples
    --------
    >>> np.flatnonzero(gap_counts(np.array([[0.25, 0.5], [0.5, 3.0]]))).tolist()
    [1024, 4095]
    """
    nearest = np.partition(distances, 1, axis=1)[:, :2]
    bins = np.minimum((nearest[:, 1] - nearest[:, 0]) * BINS, BINS - 1).astype(np.int64)
    return np.bincount(bins, minlength=BINS)


def median_gap(counts: IntArray) -> float:
    """Return the middle of the bin where the median of counted gaps lies.

    Examples
    --------
    >>> median_gap(gap_counts(np.array([[0.25, 0.5]])))
    0.2501220703125
    """
    middle = (int(counts.sum()) + 1) // 2
    return float((np.searchsorted(np.cumsum(counts), middle) + 0.5) / BINS)
