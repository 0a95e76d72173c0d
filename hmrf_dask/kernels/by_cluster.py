"""Rows in the order of their clusters: what is summed up or compared stays in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import RowArrays, Terms, frozen, of_row
from hmrf_dask.kernels.compiled import njit
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray


@njit(nogil=True, cache=True, makes_arrays=False)
def _by_cluster(indptr, before, after, start, sizes, counts, filled, moves):  # type: ignore[no-untyped-def]
    for i in range(after.shape[0]):
        if before[i] != after[i]:
            length = np.int64(indptr[i + 1] - indptr[i]) + 1
            for goes in range(2):
                h = np.int64(before[i] if goes else after[i])
                if h >= 0:
                    start[h + 1] += 1
                    sizes[h] += length
                    counts[h] += 1 - 2 * goes
    for cluster in range(counts.shape[0]):
        filled[cluster] = start[cluster]
        start[cluster + 1] += start[cluster]
    for i in range(after.shape[0]):
        if before[i] != after[i]:
            for goes in range(2):
                h = np.int64(before[i] if goes else after[i])
                if h >= 0:
                    moves[filled[h]] = i ^ -goes
                    filled[h] += 1


def moves_by_cluster(
    indptr: AnyArray, before: LabelArray, after: LabelArray, n_clusters: int
) -> tuple[LabelArray, IntArray, IntArray, IntArray]:
    """Return which rows come to (i) and go from (~i) each cluster, and what that makes.

    That is: rows, where those of a cluster start, their entries by cluster, the change of counts.
    """
    start = np.zeros(n_clusters + 1, np.int64)
    sizes, counts, filled = np.zeros((3, n_clusters), np.int64)
    moved = before != after
    n_moves = np.count_nonzero(moved & (before >= 0)) + np.count_nonzero(moved & (after >= 0))
    moves = np.empty(n_moves, np.int32)
    _by_cluster(indptr, before, after, start, sizes, counts, filled, moves)
    return moves, start, sizes, counts


class Moved(NamedTuple):
    """Rows of one block by cluster: those that come (i) and those that go (~i).

    Attributes
    ----------
    rows : RowArrays
    factor, extra : float64 arrays, of the rows' terms
    moves : int32 array
    start : int64 array, shape (K + 1,), where the moves of a cluster begin
    """

    rows: RowArrays
    factor: FloatArray
    extra: FloatArray
    moves: LabelArray
    start: IntArray


def moved_rows(rows: RowArrays, terms: Terms, moves: LabelArray, start: IntArray) -> Moved:
    """Return rows of a block as moves of it, in the one form kernels are compiled for."""
    factor, extra = frozen(terms.factor, np.float64), frozen(terms.extra, np.float64)
    return Moved(rows, factor, extra, frozen(moves, np.int32), frozen(start, np.int64))


class Lined(NamedTuple):
    """Rows of several blocks in the order of their clusters, by address: none is copied.

    Attributes
    ----------
    values, indices : int64 arrays, where the entries of a row are; no indices: 0
    length : int64 array, the number of entries
    factor, extra : float64 arrays, the row's times the unit, negative where a row goes
    start : int64 array, shape (K + 1,), where the rows of a cluster begin
    """

    values: IntArray
    indices: IntArray
    length: IntArray
    factor: FloatArray
    extra: FloatArray
    start: IntArray


@njit(nogil=True, cache=True, makes_arrays=False)
def _line_up(indptr, factor, extra, moves, start, unit, places, filled, lined):  # type: ignore[no-untyped-def]
    """Put the rows of one block where `filled` says; `places` are its values and indices."""
    first_value, first_index = places
    for h in range(start.shape[0] - 1):
        for t in range(start[h], start[h + 1]):
            i = moves[t] if moves[t] >= 0 else ~moves[t]
            signed = unit if moves[t] >= 0 else -unit
            at = filled[h]
            filled[h] += 1
            shift = 4 * np.int64(indptr[i])  # bytes
            lined.values[at] = first_value + shift
            lined.indices[at] = first_index + shift if first_index != 0 else 0
            lined.length[at] = indptr[i + 1] - indptr[i]
            lined.factor[at] = of_row(factor, i) * signed
            lined.extra[at] = of_row(extra, i) * signed


def line_up(blocks: Sequence[Moved], unit: float) -> Lined:
    """Return the moves of all blocks by cluster; the blocks must outlive it."""
    start = np.asarray(np.sum([block.start for block in blocks], axis=0), np.int64)
    values, indices, length = np.empty((3, start[-1]), np.int64)
    factors, extras = np.empty((2, start[-1]))
    lined, filled = Lined(values, indices, length, factors, extras, start), start[:-1].copy()
    for rows, factor, extra, moves, own in blocks:
        index = 0 if rows.dense else rows.indices.ctypes.data
        here = (rows.values.ctypes.data, index)
        _line_up(rows.indptr, factor, extra, moves, own, unit, here, filled, lined)
    return lined
