"""Rows in the order of their clusters: what is summed up or compared stays in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import RowArrays, Terms, frozen, of_row
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray


class Moves(NamedTuple):
    """Which rows come to (i) and go from (~i) each cluster, and what that makes.

    Attributes
    ----------
    row : int32 array, cluster by cluster
    start : int64 array, shape (K + 1,), where the rows of a cluster begin
    sizes : int64 array, shape (K,), the entries of its rows, one more a row for its `extra`
    counts : int64 array, shape (K,), the change of its number of rows
    """

    row: LabelArray
    start: IntArray
    sizes: IntArray
    counts: IntArray


@inner(inline="always")
def _count(h, length, sign, moves):  # type: ignore[no-untyped-def]
    """Count a row that comes or goes; below 0 is nowhere."""
    if h >= 0:
        moves.start[h + 1] += 1
        moves.sizes[h] += length
        moves.counts[h] += sign


@inner(inline="always")
def _place(h, row, moves, filled):  # type: ignore[no-untyped-def]
    if h >= 0:
        moves.row[filled[h]] = row
        filled[h] += 1


@njit(nogil=True, cache=True, makes_arrays=False)
def _by_cluster(indptr, before, after, filled, moves):  # type: ignore[no-untyped-def]
    start = moves.start
    for i in range(after.shape[0]):
        if before[i] != after[i]:
            length = np.int64(indptr[i + 1] - indptr[i]) + 1
            _count(np.int64(after[i]), length, 1, moves)
            _count(np.int64(before[i]), length, -1, moves)
    for cluster in range(filled.shape[0]):
        filled[cluster] = start[cluster]
        start[cluster + 1] += start[cluster]
    for i in range(after.shape[0]):
        if before[i] != after[i]:
            _place(np.int64(after[i]), i, moves, filled)
            _place(np.int64(before[i]), ~i, moves, filled)


def moves_by_cluster(
    indptr: AnyArray, before: LabelArray, after: LabelArray, n_clusters: int
) -> Moves:
    """Return the moves of rows from the clusters of one labelling to those of another."""
    start = np.zeros(n_clusters + 1, np.int64)
    sizes, counts, filled = np.zeros((3, n_clusters), np.int64)
    moved = before != after
    n_moves = np.count_nonzero(moved & (before >= 0)) + np.count_nonzero(moved & (after >= 0))
    moves = Moves(np.empty(n_moves, np.int32), start, sizes, counts)
    _by_cluster(indptr, before, after, filled, moves)
    return moves


def members_by_cluster(indptr: AnyArray, labels: LabelArray, n_clusters: int) -> Moves:
    """Return the rows of each cluster; those with a label below 0 have none."""
    nowhere = frozen(np.full(len(labels), -1, np.int32), np.int32)
    return moves_by_cluster(indptr, nowhere, frozen(labels, np.int32), n_clusters)


class Moved(NamedTuple):
    """Rows of one block, of their terms what makes summands, and how they move."""

    rows: RowArrays
    factor: FloatArray
    extra: FloatArray
    moves: Moves


def moved_rows(rows: RowArrays, terms: Terms, moves: Moves) -> Moved:
    """Return rows of a block as moves of it, in the one form kernels are compiled for."""
    factor, extra = frozen(terms.factor, np.float64), frozen(terms.extra, np.float64)
    row, *others = moves
    own = Moves(frozen(row, np.int32), *(frozen(array, np.int64) for array in others))
    return Moved(rows, factor, extra, own)


class Lined(NamedTuple):
    """Rows of several blocks in the order of their clusters, by address: none is copied.

    Attributes
    ----------
    values, indices : int64 arrays, where the entries of a row are; no indices: 0
    length : int64 array, the number of entries
    factor, extra : float64 arrays, the row's times the unit, negative where a row goes
    start : int64 array, shape (K + 1,), where the rows of a cluster begin
    sizes : int64 array, shape (K,), the entries of its rows, one more a row for its `extra`
    """

    values: IntArray
    indices: IntArray
    length: IntArray
    factor: FloatArray
    extra: FloatArray
    start: IntArray
    sizes: IntArray


@njit(nogil=True, cache=True, makes_arrays=False)
def _line_up(moved, first_value, first_index, unit, filled, lined):  # type: ignore[no-untyped-def]
    """Put the rows of one block, whose values and indices begin there, where `filled` says."""
    indptr, moves = moved.rows.indptr, moved.moves
    for h in range(moves.start.shape[0] - 1):
        for t in range(moves.start[h], moves.start[h + 1]):
            i = moves.row[t] if moves.row[t] >= 0 else ~moves.row[t]
            signed = unit if moves.row[t] >= 0 else -unit
            at = filled[h]
            filled[h] += 1
            shift = 4 * np.int64(indptr[i])  # bytes
            lined.values[at] = first_value + shift
            lined.indices[at] = first_index + shift if first_index != 0 else 0
            lined.length[at] = indptr[i + 1] - indptr[i]
            lined.factor[at] = of_row(moved.factor, i) * signed
            lined.extra[at] = of_row(moved.extra, i) * signed


def line_up(blocks: Sequence[Moved], unit: float) -> Lined:
    """Return the moves of all blocks by cluster; the blocks must outlive it."""
    start = frozen(reduce(np.add, [block.moves.start for block in blocks]), np.int64)
    sizes = frozen(reduce(np.add, [block.moves.sizes for block in blocks]), np.int64)
    values, indices, length = np.empty((3, start[-1]), np.int64)
    factors, extras = np.empty((2, start[-1]))
    lined = Lined(values, indices, length, factors, extras, start, sizes)
    filled = start[:-1].copy()
    for block in blocks:
        rows = block.rows
        first_index = 0 if rows.dense else rows.indices.ctypes.data
        _line_up(block, rows.values.ctypes.data, first_index, unit, filled, lined)
    return lined
