"""Pearson correlation distance (KDD 2004, §3.1): the cosine of rows centred by their own weighted mean, never densified."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmrf_dask.distortions.base import filled
from hmrf_dask.distortions.cosine import Cosine
from hmrf_dask.kernels import distances
from hmrf_dask.kernels.distances import Table, Terms
from hmrf_dask.rows import RowBlock
from hmrf_dask.types import FloatArray, IntArray

CONSTANT_ROW = 1e-12  # share of a row's square that must be left after centring; below it the row has no direction


@dataclass(frozen=True)
class Pearson(Cosine):
    """1 − correlation; a row's summand is √a∘(x − mean)/‖x − mean‖_A, its mean part kept in one more column."""

    name = "pearson"

    def summand_bound(self, block: RowBlock | None, weights: FloatArray) -> float | None:
        """Return the largest part of a summand before its mean is taken off: only the rows can tell."""
        if block is None:
            return None
        terms = self.terms(block, weights)
        entries = terms.norm * np.sqrt(weights.max(initial=0.0))
        return float(max(np.abs(terms.extra).max(initial=0.0), entries.max(initial=0.0), 1.0))

    def terms(self, block: RowBlock, weights: FloatArray) -> Terms:
        """Return the row terms: D = 1 − (x·T − mean ΣT)/‖x − mean‖_A."""
        squares, total, plain, mass = distances.moments(block, weights)
        weight_sum = float(weights.sum())
        mean = total / weight_sum
        centred = squares - mean * total
        directed = centred > CONSTANT_ROW * squares
        inverse = np.divide(1.0, np.sqrt(np.where(directed, centred, 1.0)), out=np.zeros_like(mean), where=directed)
        return Terms(
            offset=np.ones(block.n_rows), size=np.ones(block.n_rows), scale=-inverse, shift=mean * inverse, norm=np.sqrt(plain) * inverse,
            mass=mass * inverse, factor=inverse, extra=-mean * inverse,
        )  # fmt: skip

    def table(self, centroids: FloatArray, weights: FloatArray, smoothing: float = 0.0) -> Table:
        """Return T = a∘(μ − mean)/‖μ − mean‖_A and ΣT."""
        mean = (centroids * weights).sum(axis=1, keepdims=True) / weights.sum()
        centred = centroids - mean
        lengths = np.sqrt((centred * centred * weights).sum(axis=1, keepdims=True))
        decided = lengths > np.sqrt(CONSTANT_ROW) * np.sqrt((centroids * centroids * weights).sum(axis=1, keepdims=True))
        linear = np.divide(centred, lengths, out=np.zeros_like(centred), where=decided) * weights
        return distances.make_table(linear, np.zeros(len(centroids)), linear.sum(axis=1))

    def centroids(
        self, totals: FloatArray, counts: IntArray, weights: FloatArray, smoothing: float, previous: FloatArray | None
    ) -> FloatArray:
        """Return the direction of the summed centred rows."""
        roots = np.sqrt(weights)
        rows = totals[:, :-1] + totals[:, -1:] * roots
        lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
        units = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
        return filled(units / roots, lengths[:, 0] > 0, previous)

    def maximum(self, weights: FloatArray) -> float:
        """Return 2: centred rows are signed."""
        return 2.0
