"""Weighted cosine distance (KDD 2004, eq. 10, 11, 17, 19): D = φ = 1 − xᵀAy / (‖x‖_A ‖y‖_A)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hmrf_dask.distortions.base import Remade, TableDistortion
from hmrf_dask.kernels import distances, exact, hamerly, means, pairs
from hmrf_dask.kernels.compiled import Terms
from hmrf_dask.kernels.distances import Table
from hmrf_dask.kernels.distances import moments as moments_of
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import FloatArray, IntArray, LabelArray

ROUNDED = 2.0**-30  # more than was rounded off
UNIT_NORM = np.full(1, 1.0 + ROUNDED)
LEAST_CLOSENESS = 2.0**-20  # a row that has less in common with centroids has nothing
BREADTH = 0.7  # the power by which similarities of texts grow with their breadth


class _Same:
    """An array that equals itself alone, and stays alive while its roots are remembered."""

    def __init__(self, values: FloatArray) -> None:
        self.values = values

    def __hash__(self) -> int:
        return id(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.values is self.values


@lru_cache(maxsize=2)
def _roots(weights: _Same) -> FloatArray:
    """Return √a: every pass over every partition asks for it, and weights never change in place."""
    roots: FloatArray = np.sqrt(weights.values)
    roots.flags.writeable = False
    return roots


def metric_of(weights: FloatArray) -> FloatArray:
    """Return the weights that norms are taken in, none where all are 1.

    Examples
    --------
    >>> metric_of(np.ones(2)).tolist(), metric_of(np.array([1.0, 2.0])).tolist()
    ([], [1.0, 2.0])
    """
    return weights[:0] if (weights == 1.0).all() else weights


def _breadth(block: RowBlock) -> FloatArray:
    """Return Σ|x| / ‖x‖ of each row, 1 or more: how many entries of one size it could have."""
    moments = moments_of(block.arrays, np.ones(block.n_features))
    lengths = np.maximum(np.sqrt(moments[2]), LEAST_CLOSENESS)
    return np.asarray(np.maximum(moments[3] / lengths, 1.0), np.float64)


@dataclass(frozen=True)
class Cosine(TableDistortion):
    """Cosine distance of rows scaled by √a; zero rows lie at distance 1 from everything.

    Examples
    --------
    >>> block, weights = RowBlock.from_array(np.array([[3.0, 4.0], [0.0, 0.0]])), np.ones(2)
    >>> distortion = Cosine()
    >>> table = distortion.table(np.eye(2), weights)
    >>> distortion.distances(block, distortion.terms(block, weights), table).round(6).tolist()
    [[0.4, 0.2], [1.0, 1.0]]
    """

    name = "cosine"
    form = pairs.INNER
    learning = "gradient"
    refinement = "directional"
    closure_form = True
    unit_rows = True
    scaled_rows = True
    common_offset = 1.0
    zero_rows = "undecided"
    narrows = True

    def summand_bound(self, terms: Terms | None, weights: FloatArray) -> float | None:
        """Return 1: summands are unit rows."""
        return 1.0

    def features(self, weights: FloatArray) -> FloatArray:
        """Return √a."""
        return _roots(_Same(weights))

    def terms(self, block: RowBlock, weights: FloatArray) -> Terms:
        """Return the row terms: D = 1 − x·T/‖x‖_A."""
        return self.terms_of_sizes(distances.sizes(block.arrays, weights))

    def terms_of_sizes(self, sizes: FloatArray) -> Terms:
        """See `Distortion.terms_of_sizes`."""
        squares, mass = sizes
        inverse = np.divide(1.0, np.sqrt(squares), out=np.zeros_like(squares), where=squares > 0)
        zero, one = np.zeros(1), np.ones(1)
        return Terms(
            offset=one,
            scale=-inverse,
            shift=zero,
            norm=UNIT_NORM,
            mass=mass * inverse,
            factor=inverse,
            extra=zero,
            size=one,
        )

    def least_distances(self, terms: Terms) -> FloatArray:
        """Return 0, and 1 for rows without a direction.

        Examples
        --------
        >>> block = RowBlock.from_array(np.array([[3.0, 4.0], [0.0, 0.0]]))
        >>> Cosine().least_distances(Cosine().terms(block, np.ones(2))).tolist()
        [0.0, 1.0]
        """
        return np.where(terms.factor > 0, 0.0, 1.0)

    def remoteness(
        self, block: RowBlock, terms: Terms, distances: FloatArray, labels: LabelArray
    ) -> FloatArray:
        """Return −log of how similar a row is to all centroids, for one with so many entries.

        Of texts that is the mean over centroids: a foreign text has little in common with any of
        them, a text between two clusters with both. It is divided by a power of the row's breadth
        Σ|x| / ‖x‖, since a long text is more similar to everything. Rows with signs have neither.
        """
        if self.corpus.signed:
            return super().remoteness(block, terms, distances, labels)
        closeness = np.maximum(1.0 - distances.mean(axis=1), LEAST_CLOSENESS)
        return np.asarray(BREADTH * np.log(_breadth(block)) - np.log(closeness), np.float64)

    def middle(self, table: Table) -> FloatArray:
        """Return the mean of all T for texts, nothing for rows with signs."""
        return table.exact[:0, 0] if self.corpus.signed else table.exact.mean(axis=0)

    def limit_factors(
        self, block: RowBlock, terms: Terms, middle: FloatArray
    ) -> FloatArray | float:
        """Return D̄ s̄ / breadth^.7 of texts, s̄ and D̄ the similarity and distance to the middle.

        It is what makes D as remote as `remoteness` says, while a row is as far from its own
        centroid as from all: a long text is more similar to everything, and a foreign one to
        nothing.
        """
        if not len(middle):
            return 1.0
        zero, largest = np.zeros(1), float(np.abs(middle).max())
        table = Table(middle[None], zero, zero, largest, 1.0 + ROUNDED)
        distances = self.own_distances(block, terms, table, np.zeros(block.n_rows, np.int32))
        closeness = np.maximum(1.0 - distances, LEAST_CLOSENESS)
        away = np.maximum(distances, LEAST_CLOSENESS)
        return np.asarray(away * closeness / _breadth(block) ** BREADTH, np.float64)

    def table(self, centroids: FloatArray, weights: FloatArray, smoothing: float = 0.0) -> Table:
        """Return T = a∘μ/‖μ‖_A."""
        linear, entry = means.weighted_directions(centroids, weights)
        zero = np.zeros(len(centroids))
        return Table(linear, zero, zero, entry, 1.0 + ROUNDED, metric_of(weights))

    def centroids(
        self,
        sums: IntArray,
        exponent: int,
        counts: IntArray,
        weights: FloatArray,
        smoothing: float,
        previous: FloatArray | None,
    ) -> FloatArray:
        """Return μ_h = Σ x/‖x‖_A, scaled to ‖μ_h‖_A = 1.

        The printed eq. 17 sums raw rows, which does not minimise J.
        """
        return means.directions(sums, weights, previous)

    def remade(
        self,
        sums: tuple[IntArray, int, IntArray],
        metric: tuple[FloatArray, float],
        previous: FloatArray,
        before: Table | None,
    ) -> Remade:
        """See `Distortion.remade`; where all features weigh 1 it is one pass over the sums."""
        (whole, exponent, counts), (weights, _) = sums, metric
        plain = not len(metric_of(weights)) and not whole[:, -1].any()
        plain = plain and (before is None or before.exact is previous)  # no length but 1
        made = (
            means.remade_directions(whole, previous, compared=before is not None) if plain else None
        )
        if made is None:
            return super().remade(sums, metric, previous, before)
        zero = np.zeros(len(previous))
        table = Table(made.centroids, zero, zero, made.largest_entry, 1.0 + ROUNDED, weights[:0])
        known = (whole, counts, exponent)
        closed = exact.closed_sum(table, *known, made.products[:, 0])
        if before is None:
            return Remade(made.centroids, table, closed=closed)
        changes = hamerly.changes_of(made.moved, before, table)
        earlier = exact.closed_sum(before, *known, made.products[:, 1])
        return Remade(made.centroids, table, changes, closed, earlier)

    def maximum(self, weights: FloatArray) -> float:
        """Return 1 when all data are non-negative, else 2."""
        return 2.0 if self.corpus.signed else 1.0

    def span(self, weights: FloatArray, smoothing: float) -> float:
        """Return 2: similarities lie between −1 and 1."""
        return 2.0
