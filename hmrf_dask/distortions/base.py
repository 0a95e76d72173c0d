"""What the loop asks of a distortion, and the form that all built-in ones share.

A distortion is a small immutable object. `bind` ties it to the facts of a corpus (domain check,
φ_max); every other method is a pure function of its arguments. Weights are always a float64 array
(d,), centroids a float64 array (K, d) in the space of the rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from hmrf_dask.kernels import approximate, distances, exact, hamerly, pairs
from hmrf_dask.kernels import nearest as nearest_rows
from hmrf_dask.kernels.compiled import Terms
from hmrf_dask.kernels.distances import Table
from hmrf_dask.kernels.hamerly import CentroidDrift, RowBounds
from hmrf_dask.kernels.pairs import Quantised
from hmrf_dask.kernels.sums import Accumulator, Sums
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import FloatArray, IntArray, LabelArray

LEAST_DISTANCE = 2.0**-60  # below it rows are as near as can be


@dataclass(frozen=True)
class Extent:
    """Facts of a whole corpus, the same for any partitioning.

    Examples
    --------
    >>> lowest, highest = np.array([-3.0, 0.0]), np.array([1.0, 2.0])
    >>> corpus = Extent(2, 2, lowest, highest, mean_mass=0.0, largest_mass=4.0)
    >>> corpus.signed, corpus.largest
    (True, 3.0)
    """

    n_rows: int
    n_features: int
    minimum: FloatArray  # shape (d,), zeros of sparse rows included, as in `maximum`
    maximum: FloatArray
    mean_mass: float  # over rows, of Σ_m x_m
    largest_mass: float  # the largest Σ_m |x_m| of a row

    @property
    def signed(self) -> bool:
        """Whether any entry is negative."""
        return bool(self.minimum.min(initial=0.0) < 0)

    @property
    def largest(self) -> float:
        """The largest absolute value."""
        return float(max(-self.minimum.min(initial=0.0), self.maximum.max(initial=0.0)))


class Remade(NamedTuple):
    """Centroids that sums ask for, and what an M-step makes of them."""

    centroids: FloatArray
    table: Any = None  # of them; None: it was not needed
    changes: FloatArray | None = None  # from the table before to that one, if the pass gives them
    closed: int | None = None  # `closed_distances`
    closed_before: int | None = None  # the same at the centroids before


class Distortion(ABC):
    """What the loop asks of a distortion."""

    name: ClassVar[str]
    default_learning: ClassVar[bool] = False  # whether `learn_weights="auto"` learns
    # The rule by which weights can be learned; None: not at all.
    learning: ClassVar[Literal["gradient", "variance", "entropy"] | None] = None
    # The closed form of first variation; None: there is none.
    refinement: ClassVar[Literal["directional", "euclidean"] | None] = None
    closure_form: ClassVar[bool] = False  # whether closures cost counts and sums, not pairs
    # Whether a row of zeros has a nearest centroid, or is as far from all.
    zero_rows: ClassVar[Literal["ordinary", "undecided"]] = "ordinary"
    # Start, factor and floor of α (eq. 16).
    smoothing_schedule: ClassVar[tuple[float, float, float] | None] = None
    keeps_terms: ClassVar[bool] = False  # whether terms are small next to rows, and made once
    # Whether Σ D follows from the exact sums (`closed_distances`), and no row is read for it.
    linear: ClassVar[bool] = False
    common_offset: ClassVar[float | None] = None  # of the distances of all rows; None: each its own
    # Whether rows are scaled to length 1, so that distances of any row reach the span.
    unit_rows: ClassVar[bool] = False
    # Whether rows are as much alike without the features that only one of them has.
    narrows: ClassVar[bool] = False
    # Whether summands are √a∘x/√(Σ a x²), and Σ a x² and Σ |x| of rows give their terms.
    scaled_rows: ClassVar[bool] = False

    @property
    def identity(self) -> str:
        """What no other distortion has: a run is resumed with no other."""
        return self.name

    @property
    def warm_smoothings(self) -> tuple[float, ...]:
        """The α of each iteration of the warm-up, more than at its end; none without a schedule."""
        if self.smoothing_schedule is None:
            return ()
        smoothing, factor, final = self.smoothing_schedule
        smoothings = []
        while smoothing > final:
            smoothings.append(smoothing)
            smoothing *= factor
        return tuple(smoothings)

    @property
    def first_smoothing(self) -> float:
        """The α that a warm-up begins with.

        First centroids are made with it: at a lower one a row is as far from a centroid as the
        words that this lacks, whatever the words of the row, and clusters run empty.
        """
        return (*self.warm_smoothings, 0.0)[0]

    @property
    def final_smoothing(self) -> float:
        """The α that a warm-up ends with: all reported J have it."""
        return 0.0 if self.smoothing_schedule is None else self.smoothing_schedule[2]

    @abstractmethod
    def bind(self, extent: Extent) -> Self:
        """Return this distortion tied to a corpus; InvalidInputError: the data are not for it."""

    def check(self, block: RowBlock) -> None:  # noqa: B027 - most distortions take any finite rows
        """Raise InvalidInputError naming rows of `block` outside the domain."""

    @abstractmethod
    def summand_bound(self, terms: Any | None, weights: FloatArray) -> float | None:
        """Return a bound on the entries of summands.

        None: only the rows can tell; then it is called with the terms of each block.
        """

    @abstractmethod
    def terms(self, block: RowBlock, weights: FloatArray) -> Any:
        """Return what the other methods need of each row under these weights."""

    def terms_of_sizes(self, sizes: FloatArray) -> Any:
        """Return the terms of rows from their Σ a x² and Σ |x|, (2, n_rows), if `scaled_rows`."""
        raise NotImplementedError(f"{self.name}: terms need more of a row than its sizes")

    @abstractmethod
    def table(self, centroids: FloatArray, weights: FloatArray, smoothing: float = 0.0) -> Any:
        """Return what the other methods need of the centroids under these weights."""

    def changes(self, before: Any, after: Any) -> FloatArray | None:
        """Return how each centroid changed between two tables; see `kernels.hamerly.losses_of`."""
        return None

    def make_ready(self, table: Any, *, dense: bool) -> None:  # noqa: B027 - there may be nothing
        """Make what `nearest` derives from the table at its first call, for dense rows or not."""

    @abstractmethod
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
        """Return the nearest centroid of each row and, if `measured`, the exact change of Σ D.

        See `kernels.nearest` for ties, linked and undecided rows, and for what spares work.
        """

    @abstractmethod
    def own_distances(
        self, block: RowBlock, terms: Any, table: Any, labels: LabelArray
    ) -> FloatArray:
        """Return each row's distance to the centroid of its label, the terms of the reported J."""

    def least_distances(self, terms: Any) -> FloatArray | float:
        """Return the distance of each row to a centroid of its own: no other can be nearer."""
        return 0.0

    def remoteness(
        self, block: RowBlock, terms: Any, distances: FloatArray, labels: LabelArray
    ) -> FloatArray:
        """Return how far each row is, as a logarithm: the larger, the more it is an outlier.

        `distances` are those to all centroids; here that to the own one counts.
        """
        own = distances[np.arange(block.n_rows), labels] - self.least_distances(terms)
        return np.asarray(np.log(np.maximum(own, LEAST_DISTANCE)), np.float64)

    def middle(self, table: Any) -> FloatArray:
        """Return what `limit_factors` needs of the centroids, (d,), or nothing, (0,)."""
        return np.zeros(0)

    def limit_factors(self, block: RowBlock, terms: Any, middle: FloatArray) -> FloatArray | float:
        """Return what the limit of a cluster is times for each row; above 0."""
        return 1.0

    @abstractmethod
    def distances(self, block: RowBlock, terms: Any, table: Any) -> FloatArray:
        """Return all distances, shape (n_rows, K), the same bits as `own_distances`."""

    @abstractmethod
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
        """Add what rows add to new clusters and take from old ones (labels < 0: nowhere)."""

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
        """Return the same of one block alone."""
        sums = Accumulator(n_clusters, block.n_features + 1)
        self.add_moves(sums, block, terms, weights, before, after, exponent=exponent)
        return sums.finish()

    def closed_distances(
        self, table: Any, weights: FloatArray, sums: IntArray, counts: IntArray, exponent: int
    ) -> int:
        """Return Σ D less the rows' offsets as an exact integer; see `kernels.exact`."""
        raise NotImplementedError(f"{self.name}: distances are not linear in the rows")

    @abstractmethod
    def centroids(
        self,
        sums: IntArray,
        exponent: int,
        counts: IntArray,
        weights: FloatArray,
        smoothing: float,
        previous: FloatArray | None,
    ) -> FloatArray:
        """Return centroids (K, d) from sums (K, d + 1) in units of 2**-exponent.

        A cluster whose sum decides nothing keeps its `previous` one.
        """

    def remade(
        self,
        sums: tuple[IntArray, int, IntArray],
        metric: tuple[FloatArray, float],
        previous: FloatArray,
        before: Any | None,
    ) -> Remade:
        """Return the centroids of sums (with their exponent and counts) and what is made of them.

        The metric is weights and smoothing; `before` is the table of the `previous` centroids where
        the new ones are compared with these.
        """
        whole, exponent, counts = sums
        weights, smoothing = metric
        centroids = self.centroids(*sums, weights, smoothing, previous)
        if not self.linear:
            return Remade(centroids)
        table, known = self.table(centroids, weights, smoothing), (weights, whole, counts, exponent)
        closed = self.closed_distances(table, *known)
        earlier = None if before is None else self.closed_distances(before, *known)
        return Remade(centroids, table, closed=closed, closed_before=earlier)

    @abstractmethod
    def pair_values(
        self,
        left: RowBlock,
        right: RowBlock,
        first: LabelArray,
        second: LabelArray,
        weights: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Return φ and φ_max − φ of pairs (first[t] of left, second[t] of right)."""

    @abstractmethod
    def maximum(self, weights: FloatArray) -> float:
        """Return φ_max, or where it is by pair an upper bound of φ and φ_max − φ."""

    @abstractmethod
    def span(self, weights: FloatArray, smoothing: float) -> float:
        """Return how much the distances of one row to two centroids can differ.

        Beyond it ICM sees centroids as equally far.
        """


@dataclass(frozen=True)
class TableDistortion(Distortion):
    """A distortion that is linear or squared in the row, served by the shared kernels."""

    extent: Extent | None = field(default=None, repr=False)

    form: ClassVar[int]
    kappa: ClassVar[int] = 1
    keeps_terms = True
    linear = True

    def bind(self, extent: Extent) -> Self:
        """Return this distortion tied to the corpus."""
        return replace(self, extent=extent)

    @property
    def corpus(self) -> Extent:
        """The corpus this distortion is bound to."""
        if self.extent is None:
            raise RuntimeError(f"{self.name}: bind() comes first")
        return self.extent

    def features(self, weights: FloatArray) -> FloatArray:
        """Return the feature factors f of a row's summand."""
        return np.ones_like(weights)

    def make_ready(self, table: Table, *, dense: bool) -> None:
        """See `Distortion.make_ready`."""
        approximate.approximate_table(table, dense=dense)

    def nearest(
        self,
        block: RowBlock,
        terms: Terms,
        table: Table,
        labels: LabelArray,
        *,
        measured: bool = True,
        bounds: RowBounds | None = None,
        drift: CentroidDrift | None = None,
    ) -> tuple[LabelArray, IntArray]:
        """See `Distortion.nearest`."""
        return nearest_rows.nearest(
            block.arrays, terms, table, labels, measured=measured, bounds=bounds, drift=drift
        )

    def changes(self, before: Table, after: Table) -> FloatArray:
        """See `Distortion.changes`."""
        return hamerly.changes_between(before, after)

    def own_distances(
        self, block: RowBlock, terms: Terms, table: Table, labels: LabelArray
    ) -> FloatArray:
        """See `Distortion.own_distances`."""
        return distances.own_distances(block.arrays, terms, table, labels)

    def distances(self, block: RowBlock, terms: Terms, table: Table) -> FloatArray:
        """See `Distortion.distances`."""
        return distances.all_distances(block.arrays, terms, table)

    def add_moves(
        self,
        accumulator: Accumulator,
        block: RowBlock,
        terms: Terms,
        weights: FloatArray,
        before: LabelArray,
        after: LabelArray,
        exponent: int,
    ) -> None:
        """See `Distortion.add_moves`."""
        accumulator.add(block.arrays, terms, self.features(weights), before, after, exponent)

    def pair_values(
        self,
        left: RowBlock,
        right: RowBlock,
        first: LabelArray,
        second: LabelArray,
        weights: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """See `Distortion.pair_values`."""
        chosen = self.row_pairs(left, right, first, second, weights)
        return pairs.pair_values(self.form, chosen, weights, self.maximum(weights))

    def row_pairs(
        self,
        left: RowBlock,
        right: RowBlock,
        first: LabelArray,
        second: LabelArray,
        weights: FloatArray,
    ) -> pairs.RowPairs:
        """Return pairs (first[t] of left, second[t] of right) as the kernels read them."""
        here = there = pairs.side(left.arrays, self.terms(left, weights))
        if right is not left:
            there = pairs.side(right.arrays, self.terms(right, weights))
        return pairs.row_pairs(here, there, first, second)

    def quantise(self, block: RowBlock, weights: FloatArray, bits: int) -> Quantised:
        """Return the rows in integers, as explicit pairs and closure tables both take them."""
        rows = pairs.side(block.arrays, self.terms(block, weights))
        squared = self.form == pairs.SQUARED
        return pairs.quantise(
            rows, np.sqrt(weights), bits, squared=squared, radius=self.radius(weights)
        )

    def radius(self, weights: FloatArray) -> float:
        """Return the length by which rows are scaled before they are quantised."""
        return 1.0

    def closed_distances(
        self, table: Table, weights: FloatArray, sums: IntArray, counts: IntArray, exponent: int
    ) -> int:
        """See `Distortion.closed_distances`; terms of rows have scale −factor and shift −extra."""
        return exact.closed_distances(table, self.features(weights), sums, counts, exponent)
