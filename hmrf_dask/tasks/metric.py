"""A full metric on rows: rows in its space, and what it is learned from, exact sums over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hmrf_dask.kernels.sketches import Basis, add_sketch, project, sketch_exponent
from hmrf_dask.rows.block import RowBlock, check_finite
from hmrf_dask.types import FloatArray, IntArray, Sized


@dataclass(frozen=True)
class Reach(Sized):
    """How far rows go: the largest |x| of each feature, and whether all blocks are dense."""

    largest: FloatArray  # (d,)
    dense: bool


def in_metric(block: RowBlock, basis: Basis) -> RowBlock:
    """Return rows x as x·F, float32, with their ids: Euclidean distances there are the metric's.

    Examples
    --------
    >>> block = RowBlock.from_array(np.array([[3.0, 4.0]]), ids=["a"])
    >>> in_metric(block, Basis(np.diag([2.0, 1.0]))).to_dense().tolist()
    [[6.0, 4.0]]
    """
    check_finite(block)
    rows = RowBlock.from_array(project(block.arrays, basis, normalised=False))
    return replace(rows, ids=block.ids, keys=block.keys)


def reach_of(block: RowBlock) -> Reach:
    """Return how far the rows of a partition go."""
    check_finite(block)
    largest = np.zeros(block.n_features)
    if block.is_dense and block.n_rows:
        largest = np.abs(block.to_dense()).max(axis=0).astype(np.float64)
    return Reach(largest, block.is_dense or not block.n_rows)


def farthest_reach(parts: Sequence[Reach]) -> Reach:
    """Return how far the rows of several partitions go."""
    largest = np.maximum.reduce([part.largest for part in parts])
    return Reach(largest, all(part.dense for part in parts))


def scatter_of(block: RowBlock, scale: FloatArray, n_rows: int) -> IntArray:
    """Return Σ s x xᵀ s, and Σ s x in the last column, as integers; s brings entries below 1.

    The unit is 2**-e, e the `sketch_exponent` of all `n_rows` rows of the corpus and 1.
    """
    n_features = block.n_features
    total = np.zeros((n_features, n_features + 1), np.int64)
    scaled = RowBlock.from_array(block.to_dense() * scale.astype(np.float32))
    add_sketch(scaled.arrays, Basis(np.eye(n_features)), sketch_exponent(n_rows, 1.0), 1.0, total)
    return total


def take_rows(block: RowBlock, rows: IntArray) -> FloatArray:
    """Return some rows of a partition, as many as answers name."""
    return np.asarray(block.take(rows).to_dense(), np.float64)
