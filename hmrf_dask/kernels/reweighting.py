"""Rows under new weights: their sizes, and their sums by cluster from nothing, in one pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.by_cluster import (
    Lined,
    Moved,
    Moves,
    entries_of,
    line_up,
    members_by_cluster,
    moved_rows,
    prefetch_later,
)
from hmrf_dask.kernels.compiled import RowArrays, Terms, frozen, inner, njit
from hmrf_dask.kernels.distances import row_sizes
from hmrf_dask.kernels.instructions import floats
from hmrf_dask.kernels.threads import buffer, over_ranges
from hmrf_dask.types import FloatArray, IntArray, LabelArray


class Numbered(NamedTuple):
    """Rows of all blocks cluster by cluster; those of none come last, as one cluster more."""

    lined: Lined
    number: IntArray  # of each row in line, in the order of blocks


class Gathered(NamedTuple):
    """Numbered rows, and the blocks that must outlive them."""

    blocks: Sequence[Moved]
    rows: Numbered


@njit(nogil=True, cache=True, makes_arrays=False)
def _number(moves: Moves, base: int, filled: IntArray, number: IntArray) -> None:
    """Put the numbers of the rows of one block, from `base` on, where `filled` says."""
    for h in range(moves.start.shape[0] - 1):
        for t in range(moves.start[h], moves.start[h + 1]):
            number[filled[h]] = base + moves.row[t]
            filled[h] += 1


def all_by_cluster(rows: RowArrays, terms: Terms, labels: LabelArray, n_clusters: int) -> Moved:
    """Return all rows of a block cluster by cluster; those with a label below 0 come last."""
    chosen = np.where(labels < 0, n_clusters, labels)
    return moved_rows(rows, terms, members_by_cluster(rows.indptr, chosen, n_clusters + 1))


def gather(blocks: Sequence[Moved]) -> Gathered:
    """Return the rows of blocks that `all_by_cluster` gave."""
    lined, base = line_up(blocks, 1.0), 0
    number, filled = np.empty(len(lined.length), np.int64), lined.start[:-1].copy()
    for block in blocks:
        _number(block.moves, base, filled, number)
        base += block.rows.n_rows
    return Gathered(blocks, Numbered(lined, frozen(number, np.int64)))


@inner(inline="always")
def _add_scaled(entries: Any, scaled: Any, metric: FloatArray, out: Any) -> None:
    """Add a row's rounded summands, the roots of the weights in the metric's second column."""
    row, features, end = entries
    for p in range(row.shape[0]):
        feature = np.uint32(features[p])
        out[feature] += np.int64(np.rint(scaled * metric[feature, 1] * row[p]))
    first = metric.shape[0] - end.shape[0]
    for m in range(end.shape[0]):
        out[first + m] += np.int64(np.rint(scaled * metric[first + m, 1] * end[m]))


@njit(nogil=True, cache=True, makes_arrays=False, error_model="numpy")
def _reweigh(
    rows: Numbered,
    metric: FloatArray,
    unit: float,
    first: int,
    last: int,
    sizes: FloatArray,
    out: IntArray,
) -> None:
    lined, number = rows
    weights = metric[:, 0]
    for h in range(first, last):
        summed = h < out.shape[0]
        target = out[h if summed else 0]
        if summed:
            target[:] = 0
        for t in range(lined.start[h], lined.start[h + 1]):
            prefetch_later(lined, t)
            entries = entries_of(lined, t)
            row = floats(lined.values[t], lined.length[t])
            square, mass = row_sizes(row, entries[1], weights)
            sizes[0, number[t]] = square
            sizes[1, number[t]] = mass
            if summed and square > 0.0:
                _add_scaled(entries, 1.0 / math.sqrt(square) * unit, metric, target)


def reweigh(
    gathered: Gathered, weights: FloatArray, n_clusters: int, exponent: int
) -> tuple[list[FloatArray], IntArray]:
    """Return Σ a x² and Σ |x| of the rows of each block, and the sums of √a∘x/√(Σ a x²).

    Sizes are (2, n_rows), the bits of `distances.sizes`; sums (K, d + 1) those of `sums.scatter`.
    Clusters are shared out among threads.
    """
    rows, lined = gathered.rows, gathered.rows.lined
    metric = frozen(np.stack([weights, np.sqrt(weights)], axis=1), np.float64)
    sizes = np.empty((2, len(rows.number)))
    out = buffer((n_clusters, len(weights) + 1), np.int64)

    def work(first: int, last: int) -> None:
        """Go through the rows of a range of clusters."""
        _reweigh(rows, metric, 2.0**exponent, first, last, sizes=sizes, out=out)

    over_ranges(work, len(lined.sizes), int(lined.sizes.sum()) + out.size, lined.sizes)
    ends = np.cumsum([block.rows.n_rows for block in gathered.blocks])
    return np.split(sizes, ends[:-1], axis=1), out
