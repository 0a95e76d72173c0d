"""The form all built-in distortions share: linear or squared in the row, one set of kernels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from hmrf_dask.distortions.base import Distortion, Extent
from hmrf_dask.kernels import distances, hamerly, linear_energy, low_precision, pairs, sums
from hmrf_dask.kernels import nearest as nearest_rows
from hmrf_dask.kernels.arrays import Terms
from hmrf_dask.kernels.distances import Table
from hmrf_dask.kernels.hamerly import Watch
from hmrf_dask.kernels.pairs import Quantised
from hmrf_dask.kernels.sums import Accumulator, Sums
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import FloatArray, IntArray, LabelArray


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

    def make_ready(self, table: Table) -> None:
        """See `Distortion.make_ready`."""
        low_precision.finder_of(table)

    def nearest(
        self,
        block: RowBlock,
        terms: Terms,
        table: Table,
        labels: LabelArray,
        *,
        measured: bool = True,
        watch: Watch | None = None,
    ) -> tuple[LabelArray, IntArray]:
        """See `Distortion.nearest`."""
        return nearest_rows.nearest(
            block.arrays, terms, table, labels, measured=measured, watch=watch
        )

    def falls_between(self, before: Table, after: Table) -> FloatArray:
        """See `Distortion.falls_between`."""
        return hamerly.falls_between(before, after)

    def own_distances(
        self, block: RowBlock, terms: Terms, table: Table, labels: LabelArray
    ) -> FloatArray:
        """See `Distortion.own_distances`."""
        return distances.own_distances(block.arrays, terms, table, labels)

    def distances(self, block: RowBlock, terms: Terms, table: Table) -> FloatArray:
        """See `Distortion.distances`."""
        return distances.all_distances(block.arrays, terms, table)

    def sum_moves(
        self,
        block: RowBlock,
        terms: Terms,
        weights: FloatArray,
        before: LabelArray,
        after: LabelArray,
        n_clusters: int,
        exponent: int,
    ) -> Sums:
        """See `Distortion.sum_moves`."""
        rows = (block.arrays, terms, self.features(weights))
        return sums.sum_moves(*rows, before, after, n_clusters, exponent)

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
        sides = self.sides(left, right, weights)
        return pairs.pair_values(self.form, *sides, first, second, weights, self.maximum(weights))

    def sides(
        self, left: RowBlock, right: RowBlock, weights: FloatArray
    ) -> tuple[pairs.Side, pairs.Side]:
        """Return both sides of pairs as the kernels read them."""
        one = pairs.side(left.arrays, self.terms(left, weights))
        return one, one if right is left else pairs.side(right.arrays, self.terms(right, weights))

    def quantise(self, block: RowBlock, weights: FloatArray, bits: int) -> Quantised:
        """Return the rows in integers, the common ground of explicit pairs and closure tables."""
        rows = pairs.side(block.arrays, self.terms(block, weights))
        squared = self.form == pairs.SQUARED
        return pairs.quantise(
            rows, np.sqrt(weights), bits, squared=squared, radius=self.radius(weights)
        )

    def radius(self, weights: FloatArray) -> float:
        """Return the length by which rows are scaled before they are quantised."""
        return 1.0

    def pair_gradient(
        self,
        left: RowBlock,
        right: RowBlock,
        first: LabelArray,
        second: LabelArray,
        signed: FloatArray,
        weights: FloatArray,
        units: FloatArray,
    ) -> IntArray:
        """Return Σ signed · dφ by feature in fixed point; see `kernels.pairs.pair_gradient`."""
        chosen = (*self.sides(left, right, weights), first, second, signed)
        return pairs.pair_gradient(self.form, *chosen, weights, units)

    def closed_distances(
        self, table: Table, weights: FloatArray, sums: IntArray, counts: IntArray, exponent: int
    ) -> int:
        """See `Distortion.closed_distances`; terms of rows have scale −factor and shift −extra."""
        return linear_energy.closed_distances(table, self.features(weights), sums, counts, exponent)
