"""Outliers kept out of centroids: a row counts at most its limit in J, and is out beyond it.

The label of a row of cluster h that is out is OUT − h: negative, so nothing adds it to the sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.distortions.base import LEAST_DISTANCE, Distortion
from hmrf_dask.kernels.distances import OUT, clusters_of
from hmrf_dask.kernels.exact import exact_sum
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Limits, Model
from hmrf_dask.types import BoolArray, FloatArray, IntArray, LabelArray


def middle_of(model: Model) -> FloatArray:
    """Return what `limit_factors` needs of all centroids."""
    return model.distortion.middle(model.table())


def remote(
    block: RowBlock, terms: Any, model: Model, middle: FloatArray, labels: LabelArray
) -> FloatArray:
    """Return how far rows are from their centroids, as their clusters' limits say it.

    That is (D − least D) / b, b the factor of the row; without a direction a row is beyond all.
    """
    distortion = model.distortion
    least = distortion.least_distances(terms)
    far = distortion.own_distances(block, terms, model.table(), labels) - least
    far = np.maximum(far, LEAST_DISTANCE) / distortion.limit_factors(block, terms, middle)
    return np.where(_undirected(distortion, least), np.inf, far)


def _undirected(distortion: Distortion, least: FloatArray | float) -> BoolArray:
    """Return which rows have no direction where rows may have none, by their least distances."""
    return np.asarray(least) > 0 if distortion.zero_rows == "undecided" else np.zeros(1, np.bool_)


class RowLimits(NamedTuple):
    """The limits of some rows, which depend on their clusters: least D + τ_h b."""

    least: FloatArray | float
    factors: FloatArray | float
    undirected: BoolArray  # rows that are out of any cluster
    reach: FloatArray

    def of(self, clusters: LabelArray) -> FloatArray:
        """Return the distance beyond which each row is out of a cluster; 0 without a direction."""
        limits = self.least + self.reach[np.maximum(clusters, 0)] * self.factors
        return np.where(self.undirected, 0.0, limits)


def row_limits(block: RowBlock, terms: Any, distortion: Distortion, limits: Limits) -> RowLimits:
    """Return the limits of the rows of a block."""
    least = distortion.least_distances(terms)
    factors = distortion.limit_factors(block, terms, limits.middle)
    return RowLimits(least, factors, _undirected(distortion, least), limits.reach)


def row_costs(block: RowBlock, terms: Any, model: Model, labels: LabelArray) -> FloatArray:
    """Return what each row of a cluster counts in J: its distance, or where it is out its limit."""
    costs = model.distortion.own_distances(block, terms, model.table(), labels)
    out = np.flatnonzero(labels <= OUT)
    if model.limits is None or not len(out):
        return costs
    rows = block.take(out)
    few, clusters = model.distortion.terms(rows, model.weights), clusters_of(labels[out])
    costs[out] = row_limits(rows, few, model.distortion, model.limits).of(clusters)
    return costs


def settled(
    block: RowBlock, terms: Any, model: Model, labels: LabelArray, *, freely: bool = False
) -> tuple[LabelArray, IntArray]:
    """Return the labels of rows after an E-step under limits, and the exact change of their J.

    A row goes to its nearest cluster, unless min(D, limit) would rise by that: a row that is out of
    a narrow cluster may be nearer to a wide one, and cost more in it. Then it is out of its cluster
    exactly where D is above the limit. `freely` rows that are out go whatever that costs.
    """
    distortion, table = model.distortion, model.table()
    assert model.limits is not None
    known, limits = clusters_of(labels), row_limits(block, terms, distortion, model.limits)
    nearest, _ = distortion.nearest(block, terms, table, known, measured=False)

    def measured(clusters: LabelArray) -> FloatArray:
        """Return the distance of each row to a cluster and its limit there, (2, n_rows)."""
        distances = distortion.own_distances(block, terms, table, clusters)
        return np.stack([distances, limits.of(clusters)])

    here, there = measured(known), measured(nearest)
    present = np.where(labels <= OUT, here[1], here[0])
    goes = there.min(axis=0) <= here.min(axis=0)
    if freely:
        goes |= labels <= OUT
    distances, bounds = np.where(goes, there, here)
    after = np.where(goes, nearest, known)
    out = (distances > bounds) & (after >= 0)
    free = after >= 0  # of linked rows J counts the distance elsewhere
    change = exact_sum(np.minimum(distances, bounds)[free]) - exact_sum(present[free])
    return np.where(out, OUT - after, after).astype(np.int32), change
