"""The base of a user's own distortion: three methods over plain scipy or numpy rows."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from hashlib import sha256
from typing import Any, NoReturn, Self

import numpy as np
from scipy.sparse import issparse

from hmrf_dask.distortions.base import Distortion, Extent
from hmrf_dask.errors import DistortionError, HmrfError
from hmrf_dask.kernels import means
from hmrf_dask.kernels.compiled import Terms
from hmrf_dask.kernels.distances import LINKED
from hmrf_dask.kernels.exact import exact_sum
from hmrf_dask.kernels.hamerly import CentroidDrift, RowBounds
from hmrf_dask.kernels.sums import Accumulator
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import FloatArray, IntArray, LabelArray


class OwnDistortion(Distortion):
    """Derive from this, give the three abstract methods, and pass an instance as `distortion=`.

    `rows` is what the corpus holds: a scipy `csr_array` or a numpy array, float64. A row's numbers
    must depend on the row alone, or labels will depend on the partitioning: a BLAS product of
    whole matrices does not keep this to the last bit. An own distortion has no feature weights and
    no closure form: closures are written out as pairs.

    Examples
    --------
    >>> from hmrf_dask import HMRFKMeans, OwnDistortion
    >>> class CityBlock(OwnDistortion):
    ...     name = "city-block"
    ...
    ...     def distance_matrix(self, rows, centroids):
    ...         return np.abs(rows[:, None] - centroids).sum(axis=2)
    ...
    ...     def pair_distances(self, rows, others):
    ...         return np.abs(rows - others).sum(axis=1)
    ...
    ...     def largest_pair_distance(self, minimum, maximum):
    ...         return (maximum - minimum).sum()
    >>> model = HMRFKMeans(2, distortion=CityBlock(), random_state=0)
    >>> labels = model.fit_predict(np.array([[0.0, 1.0], [0.1, 1.0], [4.0, 0.0]]))
    >>> bool(labels[0] == labels[1] != labels[2])
    True
    """

    name = "own"
    _largest: float = np.inf

    @abstractmethod
    def distance_matrix(self, rows: Any, centroids: FloatArray) -> FloatArray:
        """Return D of every row to every centroid, shape (n_rows, K)."""

    @abstractmethod
    def pair_distances(self, rows: Any, others: Any) -> FloatArray:
        """Return φ of rows[t] and others[t], shape (m,): symmetric, never above φ_max."""

    @abstractmethod
    def largest_pair_distance(self, minimum: FloatArray, maximum: FloatArray) -> float:
        """Return φ_max of a corpus whose entries lie between `minimum` and `maximum`, (d,) each."""

    def summands(self, rows: Any) -> Any:
        """Return what each row adds to its centroid; the row itself unless overridden."""
        return rows

    def centre(self, means: FloatArray) -> FloatArray:
        """Return the centroids that minimise Σ D where the clusters' summands have these means."""
        return means

    def bind(self, extent: Extent) -> Self:
        """Return a copy that knows φ_max."""
        given = self.largest_pair_distance(extent.minimum, extent.maximum)
        largest = float(self._numbers("largest_pair_distance", given, ()))
        if largest < 0:
            self._refuse(f"largest_pair_distance must be >= 0, got {largest:g}")
        bound = copy(self)
        bound._largest = largest
        return bound

    @property
    def identity(self) -> str:
        """Class and attributes: two objects of other parameters are other distortions."""
        kind = type(self)
        public = sorted(item for item in vars(self).items() if not item[0].startswith("_"))
        shown = ", ".join(f"{name}={_exactly(value)}" for name, value in public)
        return f"{self.name} ({kind.__module__}.{kind.__qualname__}({shown}))"

    def examine(self, block: RowBlock, n_clusters: int) -> None:
        """Try the methods on a few rows and raise DistortionError with what is wrong."""
        if not block.n_rows:
            return
        rows = _plain(block)
        try:
            self._examine_pairs(rows)
            self._examine_distances(block, rows, n_clusters)
        except HmrfError:
            raise
        except Exception as error:  # noqa: BLE001 - a user's code raises anything; it stays the cause
            self._refuse(
                f"its methods must take rows as {type(rows).__name__}, got "
                f"{type(error).__name__} ({error})"
            )

    def _examine_distances(self, block: RowBlock, rows: Any, n_clusters: int) -> None:
        summands = self._summand_block(rows).to_dense().astype(np.float64)
        centre = self._centres(summands.mean(axis=0, keepdims=True))
        matrix = self._matrix(rows, np.repeat(centre, n_clusters, axis=0))
        alone = self._matrix(rows[:1], np.repeat(centre, n_clusters, axis=0))
        if not np.allclose(matrix[:1], alone):
            self._refuse(
                "distance_matrix must give a row the same numbers whatever rows come with it, got "
                f"{matrix[0, 0]:g} among {block.n_rows} rows and {alone[0, 0]:g} alone"
            )

    def _examine_pairs(self, rows: Any) -> None:
        ends = np.arange(rows.shape[0])
        for others in (rows[ends[::-1]], rows[np.roll(ends, 1)]):
            phi, back = self._pairs(rows, others), self._pairs(others, rows)
            if not np.allclose(phi, back):
                worst = int(np.abs(phi - back).argmax())
                self._refuse(
                    f"pair_distances must be symmetric, got {phi[worst]:g} for (x, y) and "
                    f"{back[worst]:g} for (y, x)"
                )
            if phi.min() < 0 or phi.max() > self._largest * (1 + 1e-9):
                self._refuse(
                    "pair_distances must lie between 0 and largest_pair_distance = "
                    f"{self._largest:g}, got {phi.min():g} to {phi.max():g}"
                )

    def _refuse(self, what: str) -> NoReturn:
        raise DistortionError(f"{self.name}: {what}; correct {type(self).__name__}")

    def _numbers(self, method: str, returned: Any, shape: tuple[int, ...]) -> FloatArray:
        """Return what a method of the user returned, or refuse it."""
        try:
            out = np.asarray(returned, np.float64)
        except (TypeError, ValueError):
            self._refuse(f"{method} must return a numpy array, got {type(returned).__name__}")
        finite = bool(np.isfinite(out).all())
        if out.shape != shape or not finite:
            self._refuse(
                f"{method} must return finite numbers of shape {shape}, got shape {out.shape}"
                + ("" if finite else " with NaN or infinity")
            )
        return out

    def _called(self, method: str, shape: tuple[int, ...], *arguments: Any) -> FloatArray:
        """Return what a method gives; empty rows have no kind to show a user's code."""
        if not shape[0]:
            return np.zeros(shape)
        return self._numbers(method, getattr(self, method)(*arguments), shape)

    def _matrix(self, rows: Any, centroids: FloatArray) -> FloatArray:
        return self._called("distance_matrix", (rows.shape[0], len(centroids)), rows, centroids)

    def _pairs(self, rows: Any, others: Any) -> FloatArray:
        return self._called("pair_distances", (rows.shape[0],), rows, others)

    def _centres(self, means: FloatArray) -> FloatArray:
        return self._called("centre", means.shape, means)

    def summand_bound(self, terms: Any | None, weights: FloatArray) -> float | None:
        """Return the largest absolute summand of the rows."""
        if terms is None:
            return None
        return float(np.abs(self._summand_block(terms).values).max(initial=1e-300))

    def _summand_block(self, rows: Any) -> RowBlock:
        summands, shape = self.summands(rows) if rows.shape[0] else rows, rows.shape
        dense = isinstance(summands, np.ndarray)
        if (not dense and not issparse(summands)) or summands.shape != shape:
            self._refuse(
                f"summands must return an array or sparse array of shape {shape}, got "
                f"{type(summands).__name__} of shape {getattr(summands, 'shape', None)}"
            )
        made = (RowBlock.from_array if dense else RowBlock.from_scipy)(summands)
        if not np.isfinite(made.values).all():
            self._refuse("summands must return finite numbers, got NaN or infinity")
        return made

    def terms(self, block: RowBlock, weights: FloatArray) -> Any:
        """Return the rows as the user's methods take them."""
        return _plain(block)

    def table(self, centroids: FloatArray, weights: FloatArray, smoothing: float = 0.0) -> Any:
        """Return the centroids."""
        return centroids

    def nearest(
        self,
        block: RowBlock,
        terms: Any,
        table: Any,
        labels: LabelArray,
        *,
        measured: bool = True,
        bounds: RowBounds | None = None,
        drift: CentroidDrift | None = None,
    ) -> tuple[LabelArray, IntArray]:
        """See `Distortion.nearest`."""
        matrix = self._matrix(terms, table)
        everyone = np.arange(block.n_rows)
        best = matrix.argmin(axis=1).astype(np.int32)
        decided = labels >= 0
        stays = decided & (matrix[everyone, np.maximum(labels, 0)] <= matrix[everyone, best])
        best = np.where(stays | (labels == LINKED), labels, best).astype(np.int32)
        moved = np.flatnonzero(decided & (best != labels))
        gone, come = matrix[moved, labels[moved]], matrix[moved, best[moved]]
        return best, exact_sum(come) - exact_sum(gone)

    def own_distances(
        self, block: RowBlock, terms: Any, table: Any, labels: LabelArray
    ) -> FloatArray:
        """See `Distortion.own_distances`."""
        own = self._matrix(terms, table)[np.arange(block.n_rows), np.maximum(labels, 0)]
        return np.where(labels >= 0, own, 0.0)

    def distances(self, block: RowBlock, terms: Any, table: Any) -> FloatArray:
        """See `Distortion.distances`."""
        return self._matrix(terms, table)

    def add_moves(
        self,
        accumulator: Accumulator,
        block: RowBlock,
        terms: Any,
        weights: FloatArray,
        before: LabelArray,
        after: LabelArray,
        exponent: int,
    ) -> None:
        """See `Distortion.add_moves`."""
        rows = self._summand_block(terms).arrays
        plain = Terms(*[np.zeros(1)] * len(Terms._fields))._replace(factor=np.ones(1))
        own = Accumulator(accumulator.n_clusters, block.n_features + 1)
        own.add(rows, plain, np.ones(block.n_features), before, after, exponent)
        accumulator.join(own.finish())  # the summands were made here: they are not held

    def centroids(
        self,
        sums: IntArray,
        exponent: int,
        counts: IntArray,
        weights: FloatArray,
        smoothing: float,
        previous: FloatArray | None,
    ) -> FloatArray:
        """See `Distortion.centroids`."""
        out = means.means(sums, exponent, counts, previous)
        taken = counts > 0  # an empty cluster's mean is nothing to show a user's code
        out[taken] = self._centres(out[taken])
        return out

    def pair_values(
        self,
        left: RowBlock,
        right: RowBlock,
        first: LabelArray,
        second: LabelArray,
        weights: FloatArray,
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
    rows = block.to_dense() if block.is_dense else block.to_scipy()
    return rows.astype(np.float64)


def _exactly(value: Any) -> str:
    """Return a text that is the same in every process and differs for different values."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}:{sha256(value.tobytes()).hexdigest()[:16]}"
    plain = value is None or isinstance(value, bool | int | float | str | np.generic)
    return repr(value) if plain else type(value).__name__
