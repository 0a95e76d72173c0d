"""The base of a user's own distortion: three methods over plain scipy or numpy rows, no weights, no closure form."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np

from hmrf_dask.distortions.base import Distortion, Extent, filled
from hmrf_dask.errors import DistortionError
from hmrf_dask.kernels import sums
from hmrf_dask.kernels.distances import LINKED, Terms
from hmrf_dask.kernels.exact import exact_sum
from hmrf_dask.kernels.sums import Sums
from hmrf_dask.rows import RowBlock
from hmrf_dask.types import FloatArray, IntArray, LabelArray


class OwnDistortion(Distortion):
    """Derive from this, give `name` and the three abstract methods, and pass an instance as `distortion=`.

    `rows` is what the corpus holds: a scipy `csr_array` or a numpy array, float64. A row's numbers must depend on the row alone,
    or labels will depend on the partitioning.
    """

    name = "own"
    _largest: float = np.inf

    @abstractmethod
    def distance_matrix(self, rows: Any, centroids: FloatArray) -> FloatArray:
        """Return D of every row to every centroid, shape (n_rows, K)."""

    @abstractmethod
    def pair_distances(self, rows: Any, others: Any) -> FloatArray:
        """Return φ of rows[t] and others[t], shape (m,); symmetric and never above `largest_pair_distance`."""

    @abstractmethod
    def largest_pair_distance(self, minimum: FloatArray, maximum: FloatArray) -> float:
        """Return φ_max of a corpus whose entries lie between `minimum` and `maximum` (by feature)."""

    def summands(self, rows: Any) -> Any:
        """Return what each row adds to its centroid; the row itself unless overridden."""
        return rows

    def centre(self, means: FloatArray) -> FloatArray:
        """Return the centroids that minimise Σ D for clusters whose summands have these means."""
        return means

    def bind(self, extent: Extent) -> Self:
        """Remember φ_max."""
        largest = float(self.largest_pair_distance(extent.minimum, extent.maximum))
        if not np.isfinite(largest) or largest < 0:
            raise DistortionError(f"{self.name}: largest_pair_distance must be finite and >= 0, got {largest}")
        self._largest = largest
        return self

    def examine(self, block: RowBlock, n_clusters: int) -> None:
        """Try the methods on a few rows and raise DistortionError with what is wrong."""
        few = block.take(np.arange(min(block.n_rows, 8)))
        if not few.n_rows:
            return
        rows = _plain(few)
        centroids = np.repeat(_dense(rows)[:1], n_clusters, axis=0)
        self._matrix(rows, centroids)
        ends = np.arange(few.n_rows)
        phi = self._pairs(rows, rows[ends[::-1]])
        if not np.allclose(phi, self._pairs(rows[ends[::-1]], rows)):
            raise DistortionError(f"{self.name}: pair_distances must be symmetric; it is not on the first rows of the corpus")
        if (phi > self._largest * (1 + 1e-9)).any():
            raise DistortionError(
                f"{self.name}: pair_distances must not exceed largest_pair_distance = {self._largest:g}, got {phi.max():g}"
            )

    def _matrix(self, rows: Any, centroids: FloatArray) -> FloatArray:
        out = np.asarray(self.distance_matrix(rows, centroids))
        shape = (rows.shape[0], len(centroids))
        if out.shape != shape or not np.isfinite(out).all():
            raise DistortionError(
                f"{self.name}: distance_matrix must return finite numbers of shape {shape}, got shape {out.shape}"
                + ("" if np.isfinite(out).all() else " with NaN or infinity")
            )
        return np.asarray(out, np.float64)

    def _pairs(self, rows: Any, others: Any) -> FloatArray:
        out = np.asarray(self.pair_distances(rows, others))
        if out.shape != (rows.shape[0],) or not np.isfinite(out).all():
            raise DistortionError(
                f"{self.name}: pair_distances must return finite numbers of shape ({rows.shape[0]},), got shape {out.shape}"
            )
        return np.asarray(out, np.float64)

    def summand_bound(self, block: RowBlock | None, weights: FloatArray) -> float | None:
        """Return the largest absolute summand of the block."""
        if block is None:
            return None
        return float(np.abs(self._summand_block(block).values).max(initial=1e-300))

    def _summand_block(self, block: RowBlock) -> RowBlock:
        summands = self.summands(_plain(block))
        if summands.shape != (block.n_rows, block.n_features):
            raise DistortionError(
                f"{self.name}: summands must keep the shape {(block.n_rows, block.n_features)}, got {summands.shape}"
            )
        make = RowBlock.from_array if isinstance(summands, np.ndarray) else RowBlock.from_scipy
        return make(summands, ids=block.ids)

    def terms(self, block: RowBlock, weights: FloatArray) -> Any:
        """Return the rows as the user's methods take them."""
        return _plain(block)

    def table(self, centroids: FloatArray, weights: FloatArray, smoothing: float = 0.0) -> Any:
        """Return the centroids."""
        return centroids

    def nearest(
        self, block: RowBlock, terms: Any, table: Any, labels: LabelArray
    ) -> tuple[LabelArray, IntArray]:
        """See `Distortion.nearest`."""
        matrix = self._matrix(terms, table)
        everyone = np.arange(block.n_rows)
        best = matrix.argmin(axis=1).astype(np.int32)
        decided = labels >= 0
        stays = decided & (matrix[everyone, np.maximum(labels, 0)] <= matrix[everyone, best])
        best = np.where(stays | (labels == LINKED), labels, best).astype(np.int32)
        moved = np.flatnonzero(decided & (best != labels))
        return best, exact_sum(matrix[moved, best[moved]]) - exact_sum(matrix[moved, labels[moved]])

    def own_distances(self, block: RowBlock, terms: Any, table: Any, labels: LabelArray) -> FloatArray:
        """See `Distortion.own_distances`."""
        own = self._matrix(terms, table)[np.arange(block.n_rows), np.maximum(labels, 0)]
        return np.where(labels >= 0, own, 0.0)

    def distances(self, block: RowBlock, terms: Any, table: Any) -> FloatArray:
        """See `Distortion.distances`."""
        return self._matrix(terms, table)

    def sum_moves(
        self,
        block: RowBlock,
        terms: Any,
        weights: FloatArray,
        before: LabelArray,
        after: LabelArray,
        n_clusters: int,
        exponent: int,
    ) -> Sums:
        """See `Distortion.sum_moves`."""
        rows = self._summand_block(block)
        one, nought = np.ones(block.n_rows), np.zeros(block.n_rows)
        plain = Terms(nought, one, nought, nought, nought, one, nought, nought)
        return sums.sum_moves(rows, plain, np.ones(block.n_features), before, after, n_clusters, exponent)

    def centroids(
        self, totals: FloatArray, counts: IntArray, weights: FloatArray, smoothing: float, previous: FloatArray | None
    ) -> FloatArray:
        """See `Distortion.centroids`."""
        means = totals[:, :-1] / np.maximum(counts, 1)[:, None]
        return filled(np.asarray(self.centre(means), np.float64), counts > 0, previous)

    def pair_values(
        self, left: RowBlock, right: RowBlock, first: LabelArray, second: LabelArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """See `Distortion.pair_values`."""
        phi = self._pairs(_plain(left)[first], _plain(right)[second])
        return phi, self._largest - phi

    def maximum(self, weights: FloatArray) -> float:
        """Return φ_max."""
        return self._largest

    def span(self, weights: FloatArray, smoothing: float) -> float:
        """Return a few times φ_max: centroids may lie farther off than rows do."""
        return 4.0 * self._largest or 1.0


def _plain(block: RowBlock) -> Any:
    return block.to_dense().astype(np.float64) if block.is_dense else block.to_scipy().astype(np.float64)


def _dense(rows: Any) -> FloatArray:
    return np.asarray(rows if isinstance(rows, np.ndarray) else rows.toarray(), np.float64)
