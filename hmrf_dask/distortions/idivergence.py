"""Weighted I-divergence (KDD 2004, eq. 12–14, 16, 20): D = Σ a (x ln(x/μ) − x + μ), φ = D_IM."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hmrf_dask.distortions.base import Extent, TableDistortion
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.kernels import distances, means, pairs
from hmrf_dask.kernels.compiled import RowArrays, Terms, feature_of, frozen, njit
from hmrf_dask.kernels.distances import Table
from hmrf_dask.kernels.threads import buffer
from hmrf_dask.rows.block import RowBlock, named_rows
from hmrf_dask.types import FloatArray, IntArray

# A centroid entry below it is taken as this: ln 0 has no value, smoothing keeps real entries far
# above.
LEAST = 1e-300
ROUNDED = 2.0**-20  # more than was rounded off


@njit(nogil=True, cache=True)
def _entropies(rows: RowArrays, factor: FloatArray, weights: FloatArray, out: FloatArray) -> None:
    for i in range(out.shape[0]):
        total = 0.0
        for p in range(rows.indptr[i], rows.indptr[i + 1]):
            m = feature_of(rows, i, p)
            x = factor[i] * rows.values[p]
            if x > 0.0:
                total += weights[m] * (x * math.log(x) - x)
        out[i] = total


@njit(nogil=True, cache=True)
def _feature_entropies(
    rows: RowArrays, factor: FloatArray, units: FloatArray, out: IntArray
) -> None:
    for i in range(factor.shape[0]):
        for p in range(rows.indptr[i], rows.indptr[i + 1]):
            m = feature_of(rows, i, p)
            x = factor[i] * rows.values[p]
            if x > 0.0:
                out[m] += np.int64(np.rint((x * math.log(x) - x) * units[m]))


@dataclass(frozen=True)
class IDivergence(TableDistortion):
    """I-divergence of rows as given.

    Smoothing α draws centroids towards the uniform row u (eq. 16, 1/n read as 1/d).

    Examples
    --------
    >>> corpus = Extent(1, 2, np.zeros(2), np.array([2.0, 1.0]), mean_mass=3.0, largest_mass=3.0)
    >>> distortion, weights = IDivergence().bind(corpus), np.ones(2)
    >>> block = RowBlock.from_array(np.array([[2.0, 1.0]]))
    >>> table = distortion.table(np.ones((1, 2)), weights)
    >>> distortion.distances(block, distortion.terms(block, weights), table).round(6).tolist()
    [[0.386294]]
    """

    name = "i-divergence"
    form = pairs.DIVERGENCE
    default_learning = True
    learning = "entropy"
    smoothing_schedule = (16.0, 0.8, 1.0)

    def bind(self, extent: Extent) -> IDivergence:
        """Return this distortion tied to the corpus; entries must not be negative."""
        if extent.signed:
            raise InvalidInputError(
                f"{self.name}: entries must be >= 0, got {extent.minimum.min():g}; "
                "use counts or frequencies, or another distortion"
            )
        if extent.mean_mass <= 0:
            raise InvalidInputError(
                f"{self.name}: rows must not all be zero, got {extent.n_rows} rows of zeros; "
                "there is nothing to compare"
            )
        return super().bind(extent)

    def check(self, block: RowBlock) -> None:
        """Raise where entries are negative, naming rows.

        Examples
        --------
        >>> block = RowBlock.from_array(np.array([[1.0], [-2.0]]))
        >>> IDivergence().check(block)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        hmrf_dask.errors.InvalidInputError: i-divergence: entries must be >= 0, got -2 in row ...
        """
        negative = np.flatnonzero(block.values < 0)
        if len(negative):
            rows = np.unique(np.searchsorted(block.indptr, negative, side="right") - 1)
            raise InvalidInputError(
                f"{self.name}: entries must be >= 0, got {block.values[negative[0]]:g} in row "
                f"{named_rows(block, rows)}; use counts or frequencies, or another distortion"
            )

    def _factor(self, block: RowBlock) -> FloatArray:
        return np.ones(block.n_rows)

    @property
    def uniform(self) -> float:
        """The entry of the uniform row u: mean row mass / d."""
        return self.corpus.mean_mass / self.corpus.n_features

    def summand_bound(self, terms: Terms | None, weights: FloatArray) -> float | None:
        """Return the largest value of the corpus."""
        return self.corpus.largest

    def terms(self, block: RowBlock, weights: FloatArray) -> Terms:
        """Return the row terms: D = Σ a (x ln x − x) − x·(a∘ln μ) + Σ a μ."""
        factor = self._factor(block)
        offset = np.empty(block.n_rows)
        arrays = (frozen(factor, np.float64), frozen(weights, np.float64))
        _entropies(block.arrays, *arrays, offset)
        _, _, plain, mass = distances.moments(block.arrays, weights)
        zero = np.zeros(1)
        return Terms(
            offset=offset,
            scale=-factor,
            shift=zero,
            norm=np.sqrt(plain) * factor,
            mass=mass * factor,
            factor=factor,
            extra=zero,
            size=np.abs(offset),
        )

    def table(self, centroids: FloatArray, weights: FloatArray, smoothing: float = 0.0) -> Table:
        """Return T = a∘ln μ with bias Σ a μ + α D(u, μ): J has the smoothing, so has the E-step."""
        linear, bias = buffer(centroids.shape, np.float64), np.empty(len(centroids))
        norm, whole = 0.0, float(weights.sum())
        u = self.uniform
        for h, (centroid, logarithms) in enumerate(zip(centroids, linear, strict=True)):
            positive = np.maximum(centroid, LEAST)
            np.log(positive, out=logarithms)
            logarithms *= weights
            positive *= weights
            mass, logs = float(positive.sum()), float(logarithms.sum())
            prior = u * (whole * math.log(u) - logs) - u * whole + mass
            bias[h] = mass + smoothing * prior
            norm = max(norm, float(logarithms @ logarithms))
        norm = math.sqrt(norm) * (1.0 + ROUNDED)
        return Table(linear, bias, np.zeros(len(centroids)), means.largest(linear), norm)

    def centroids(
        self,
        sums: IntArray,
        exponent: int,
        counts: IntArray,
        weights: FloatArray,
        smoothing: float,
        previous: FloatArray | None,
    ) -> FloatArray:
        """Return the means drawn to u: (mean + αu)/(1 + α)."""
        return means.means(sums, exponent, counts, previous, smoothing, self.uniform)

    def maximum(self, weights: FloatArray) -> float:
        """Return a bound of φ and its complement over all pairs: ln 2 · (‖x‖_a + ‖y‖_a)."""
        return 2.0 * pairs.LOG2 * self._largest_mass * float(weights.max(initial=0.0))

    def span(self, weights: FloatArray, smoothing: float) -> float:
        """Return the reach of a row's and the prior's logarithms between centroid entries."""
        least = max(smoothing * self.uniform / (1.0 + smoothing), LEAST)
        reach = math.log(max(self.corpus.largest, 1.0) / least) + 1.0
        uniform_mass = self.uniform * self.corpus.n_features
        mass = self._largest_mass + smoothing * uniform_mass
        return 2.0 * mass * reach * float(weights.max(initial=0.0))

    @property
    def _largest_mass(self) -> float:
        return self.corpus.largest_mass

    def feature_entropies(self, block: RowBlock, units: FloatArray) -> IntArray:
        """Return Σ_i (x_im ln x_im − x_im) by feature in fixed point, `units` to one of each."""
        out = np.zeros(block.n_features, np.int64)
        arrays = (frozen(self._factor(block), np.float64), frozen(units, np.float64))
        _feature_entropies(block.arrays, *arrays, out)
        return out

    @property
    def entropy_bound(self) -> float:
        """The largest |x ln x − x| an entry can have."""
        largest = self.corpus.largest
        if largest <= 0:
            return 1.0
        bound = abs(largest * math.log(largest) - largest)
        return bound if largest < 1 else max(1.0, bound)  # 1 is where |x ln x − x| turns


@dataclass(frozen=True)
class KullbackLeibler(IDivergence):
    """I-divergence of rows normalised to sum 1, which is what text wants."""

    name = "kl"

    def check(self, block: RowBlock) -> None:
        """Raise where entries are negative or rows are zero.

        Examples
        --------
        >>> KullbackLeibler().check(RowBlock.from_array(np.zeros((1, 2))))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        hmrf_dask.errors.InvalidInputError: kl: rows must have a positive sum, got zeros in row ...
        """
        super().check(block)
        empty = np.flatnonzero(self._mass(block) <= 0)
        if len(empty):
            raise InvalidInputError(
                f"kl: rows must have a positive sum, got zeros in row {named_rows(block, empty)}; "
                "drop them or use distortion='cosine'"
            )

    @staticmethod
    def _mass(block: RowBlock) -> FloatArray:
        return np.asarray(distances.moments(block.arrays, np.ones(block.n_features))[3], np.float64)

    def _factor(self, block: RowBlock) -> FloatArray:
        mass = self._mass(block)
        return np.divide(1.0, mass, out=np.zeros_like(mass), where=mass > 0)

    @property
    def uniform(self) -> float:
        """The entry of the uniform row: 1/d."""
        return 1.0 / self.corpus.n_features

    def summand_bound(self, terms: Terms | None, weights: FloatArray) -> float | None:
        """Return 1: rows sum to 1."""
        return 1.0

    @property
    def _largest_mass(self) -> float:
        return 1.0

    @property
    def entropy_bound(self) -> float:
        """The largest |x ln x − x| of an entry in [0, 1]."""
        return 1.0
