"""Pearson correlation distance (KDD 2004, §3.1): the cosine of rows centred by their own mean.

The mean is weighted; sparse rows are never densified, every product is corrected by the means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hmrf_dask.distortions.base import TableDistortion
from hmrf_dask.distortions.cosine import ROUNDED, Cosine, metric_of
from hmrf_dask.kernels import distances, means
from hmrf_dask.kernels.compiled import Terms
from hmrf_dask.kernels.distances import Table
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import FloatArray

# Share of a row's square that must be left after centring; below it the row has no direction, as
# a constant row. Float32 leaves a share of 1e-14 of noise; and as the integer sums hold rows before
# centring, flatter rows (spread below a millionth of the mean) would cost all rows their bits.
CONSTANT_ROW = 1e-12


@dataclass(frozen=True)
class Pearson(Cosine):
    """1 − correlation; a row's summand is √a∘(x − mean)/‖x − mean‖_A.

    The part of the mean is kept in one more column.

    Examples
    --------
    >>> block, weights = RowBlock.from_array(np.array([[1.0, 2.0, 3.0]])), np.ones(3)
    >>> table = Pearson().table(np.array([[2.0, 4.0, 6.0], [3.0, 2.0, 1.0]]), weights)
    >>> found = Pearson().distances(block, Pearson().terms(block, weights), table)
    >>> np.allclose(found, [[0.0, 2.0]])
    True
    """

    name = "pearson"
    narrows = False  # the mean is over all features
    scaled_rows = False

    remoteness = TableDistortion.remoteness  # centred rows have signs
    middle, limit_factors = TableDistortion.middle, TableDistortion.limit_factors

    def summand_bound(self, terms: Terms | None, weights: FloatArray) -> float | None:
        """Return the largest part of a summand before its mean is taken off."""
        if terms is None:
            return None
        largest = max(np.abs(terms.extra).max(initial=0.0), terms.norm.max(initial=0.0))
        return float(max(largest, 1.0))

    def terms(self, block: RowBlock, weights: FloatArray) -> Terms:
        """Return the row terms: D = 1 − (x·T − mean ΣT)/‖x − mean‖."""
        squares, total, _, mass = distances.moments(block.arrays, weights)
        mean = total / float(weights.sum())
        centred = distances.centred_squares(block.arrays, weights, mean)
        directed = centred > CONSTANT_ROW * squares
        lengths = np.sqrt(np.where(directed, centred, 1.0))
        inverse = np.divide(1.0, lengths, out=np.zeros_like(mean), where=directed)
        one = np.ones(1)
        return Terms(
            offset=one,
            scale=-inverse,
            shift=mean * inverse,
            norm=np.sqrt(squares) * inverse * (1.0 + ROUNDED),
            mass=mass * inverse,
            factor=inverse,
            extra=-mean * inverse,
            size=one,
        )

    def table(self, centroids: FloatArray, weights: FloatArray, smoothing: float = 0.0) -> Table:
        """Return T = a∘(μ − mean)/‖μ − mean‖_A and ΣT."""
        total = float(weights.sum())
        linear, extra = np.zeros(centroids.shape), np.zeros(len(centroids))
        for h, (centroid, centred) in enumerate(zip(centroids, linear, strict=True)):
            weighted = centroid * weights
            square = float((weighted * centroid).sum())
            np.subtract(centroid, weighted.sum() / total, out=centred)
            np.multiply(centred, weights, out=weighted)
            length = math.sqrt(float((weighted * centred).sum()))
            if not length * length > CONSTANT_ROW * square:
                centred[:] = 0.0
                continue
            np.divide(weighted, length, out=centred)
            extra[h] = centred.sum()
        bounds = (means.largest(linear), 1.0 + ROUNDED)
        return Table(linear, np.zeros(len(centroids)), extra, *bounds, metric_of(weights))

    def maximum(self, weights: FloatArray) -> float:
        """Return 2: centred rows are signed."""
        return 2.0
