"""Squared Euclidean distance with a diagonal metric (KDD 2004 ref. [8], MPCK-Means).

D = Σ a (x − μ)² − Σ log a, φ = Σ a (x − y)². PCKMeans (SDM eq. 2.1) has ½‖x − μ‖²: its w is half
of ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hmrf_dask.distortions.base import TableDistortion
from hmrf_dask.kernels import distances, means, pairs
from hmrf_dask.kernels.compiled import Terms
from hmrf_dask.kernels.distances import Table
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import FloatArray, IntArray

ROUNDED = 2.0**-20  # more than was rounded off


@dataclass(frozen=True)
class Euclidean(TableDistortion):
    """Squared Euclidean distance; the Gaussian normaliser −Σ log a keeps weights from vanishing.

    Examples
    --------
    >>> block, weights = RowBlock.from_array(np.array([[3.0, 4.0]])), np.array([1.0, 1.0])
    >>> distortion = Euclidean()
    >>> table = distortion.table(np.array([[0.0, 0.0], [3.0, 3.0]]), weights)
    >>> distortion.distances(block, distortion.terms(block, weights), table).tolist()
    [[25.0, 1.0]]
    """

    name = "euclidean"
    form = pairs.SQUARED
    kappa = 2
    default_learning = True
    learning = "variance"
    linear = False
    refinement = "euclidean"
    closure_form = True
    narrows = True

    def summand_bound(self, terms: Terms | None, weights: FloatArray) -> float | None:
        """Return the largest absolute value of the corpus."""
        return self.corpus.largest

    def terms(self, block: RowBlock, weights: FloatArray) -> Terms:
        """Return the row terms; the row's own square is no part of a score, it moves no minimum."""
        squares, _, plain, mass = distances.moments(block.arrays, weights)
        one, zero = np.ones(1), np.zeros(1)
        normaliser = -np.log(weights).sum()
        return Terms(
            offset=normaliser * one,
            scale=-2.0 * one,
            shift=zero,
            norm=2.0 * np.sqrt(plain),
            mass=2.0 * mass,
            factor=one,
            extra=zero,
            size=squares + abs(normaliser),
        )

    def least_distances(self, terms: Terms) -> FloatArray:
        """Return −Σ log a."""
        return terms.offset

    def table(self, centroids: FloatArray, weights: FloatArray, smoothing: float = 0.0) -> Table:
        """Return T = a∘μ with bias ‖μ‖²_A; μ itself decides."""
        centroids = np.ascontiguousarray(centroids, np.float64)
        squares, linear = np.empty(len(centroids)), np.empty(len(weights))
        norm = entry = 0.0
        for h, centroid in enumerate(centroids):
            np.multiply(centroid, weights, out=linear)
            entry = max(entry, means.largest(linear[None]))
            norm = max(norm, float(linear @ linear))
            linear *= centroid
            squares[h] = linear.sum()
        bounds = (entry, math.sqrt(norm) * (1.0 + ROUNDED))
        return Table(centroids, squares, np.zeros(len(centroids)), *bounds, weights, squared=True)

    def centroids(
        self,
        sums: IntArray,
        exponent: int,
        counts: IntArray,
        weights: FloatArray,
        smoothing: float,
        previous: FloatArray | None,
    ) -> FloatArray:
        """Return the means."""
        return means.means(sums, exponent, counts, previous)

    def maximum(self, weights: FloatArray) -> float:
        """Return φ_max = Σ a (max − min)², over the corpus's bounding box.

        Examples
        --------
        >>> from hmrf_dask.distortions.base import Extent
        >>> highest = np.array([3.0, 4.0])
        >>> corpus = Extent(2, 2, np.zeros(2), highest, mean_mass=3.5, largest_mass=7.0)
        >>> Euclidean().bind(corpus).maximum(np.ones(2))
        25.0
        """
        width = self.corpus.maximum - self.corpus.minimum
        return float((weights * width * width).sum())

    def span(self, weights: FloatArray, smoothing: float) -> float:
        """Return the squared diagonal of the box that holds rows and centroids."""
        return self.maximum(weights) or 1.0

    def radius(self, weights: FloatArray) -> float:
        """Return a length no row exceeds in the metric."""
        reach = np.maximum(np.abs(self.corpus.maximum), np.abs(self.corpus.minimum))
        return float(np.sqrt((weights * reach * reach).sum())) or 1.0
