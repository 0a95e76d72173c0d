"""Totals by feature over clusters, which weights are learned from.

They are floats, so they are added up in one order whoever has which clusters: an owner continues
from what the one before it returned, and blocks of clusters begin at the same ones everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hmrf_dask.distortions.idivergence import LEAST, IDivergence
from hmrf_dask.kernels import gradients
from hmrf_dask.tasks.model import Model, real_sums
from hmrf_dask.types import FloatArray, IntArray

TOGETHER = 2**16  # numbers of several clusters that are worked on at once: they stay in the cache


class Clusters(NamedTuple):
    """Sums, counts and centroids of clusters that follow one another, in the driver all."""

    model: Model
    sums: IntArray  # (k, d + 1)
    counts: IntArray
    first: int
    n_clusters: int  # K


def block_of(n_features: int) -> int:
    """Return how many clusters are added up together: owners have whole blocks.

    Examples
    --------
    >>> block_of(100), block_of(200_000)
    (655, 1)
    """
    return max(1, TOGETHER // n_features)


def _in_blocks(
    total: FloatArray, clusters: Clusters, part: Callable[[slice], FloatArray]
) -> FloatArray:
    """Return a total with what `part` gives by feature for some clusters of them, block by block.

    Of arrays as large as the centroids no copy is made.
    """
    step, total = block_of(len(total)), total.copy()
    for first in range(0, len(clusters.counts), step):
        total += part(slice(first, first + step))
    return total


def add_sums(total: IntArray, clusters: Clusters) -> IntArray:
    """Return a total with the sums of clusters, as of one cluster: (1, d + 1)."""
    return total + gradients.sum_of_clusters(clusters.sums)


def add_squares_by_length(totals: FloatArray, clusters: Clusters, roots: FloatArray) -> FloatArray:
    """Return totals with Σ_h S_hm²/‖S_h‖ by run of clusters; see `kernels.gradients`."""
    out, ends = totals.copy(), (clusters.first, clusters.n_clusters)
    gradients.add_squares_by_length(clusters.sums, roots, ends, out)
    return out


def add_scatter_between(total: FloatArray, clusters: Clusters) -> FloatArray:
    """Return a total with the scatter of the clusters' means."""
    _, sums, counts, *_ = clusters

    def between(few: slice) -> FloatArray:
        """Return, by feature, that of some clusters."""
        totals = real_sums(sums[few, :-1], clusters.model.exponent)
        sizes = np.maximum(counts[few], 1)[:, None]
        return np.asarray((totals * totals / sizes).sum(axis=0), np.float64)

    return _in_blocks(total, clusters, between)


def add_distortions(total: FloatArray, clusters: Clusters, settled: bool) -> FloatArray:
    """Return a total with what centroids add to Σ D of the entropy rule; see `scatter_of`."""
    model, sums, counts, *_ = clusters
    distortion, alpha = model.distortion, model.smoothing
    assert isinstance(distortion, IDivergence)
    u = distortion.uniform

    def distortions(few: slice) -> FloatArray:
        """Return, by feature, what the centroids of some clusters add."""
        centroids = np.maximum(model.centroids[few], LEAST)
        sizes, logarithms = counts[few, None], np.log(centroids)
        own: FloatArray = centroids * sizes
        own -= real_sums(sums[few, :-1], model.exponent) * logarithms
        if settled and alpha:
            own += (alpha * sizes) * (u * (np.log(u) - logarithms) - u + centroids)
        return np.asarray(own.sum(axis=0), np.float64)

    return _in_blocks(total, clusters, distortions)
