"""Rows in the order of their clusters: what is summed up or compared stays in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import RowArrays, Terms, former, frozen, inner, njit, of_row
from hmrf_dask.kernels.instructions import AHEAD, floats, integers, prefetch_at
from hmrf_dask.kernels.threads import over_ranges
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray


class Moves(NamedTuple):
    """Which rows come to (i) and go from (~i) each cluster, and what that makes."""

    row: LabelArray  # cluster by cluster
    start: IntArray  # (K + 1,), where the rows of a cluster begin
    sizes: IntArray  # (K,), the entries of its rows, one more a row for its `extra`
    counts: IntArray  # (K,), the change of its number of rows


@inner(inline="always")
def _count(h: Any, length: Any, sign: Any, moves: Moves) -> None:
    """Count a row that comes or goes; below 0 is nowhere."""
    if h >= 0:
        moves.start[h + 1] += 1
        moves.sizes[h] += length
        moves.counts[h] += sign


@inner(inline="always")
def _place(h: Any, row: Any, moves: Moves, filled: IntArray) -> None:
    if h >= 0:
        moves.row[filled[h]] = row
        filled[h] += 1


@njit(nogil=True, cache=True, makes_arrays=False)
def _by_cluster(
    indptr: LabelArray,
    before: LabelArray,
    after: LabelArray,
    moved: LabelArray,
    filled: IntArray,
    moves: Moves,
) -> None:
    start = moves.start
    for i in moved:
        length = np.int64(indptr[i + 1] - indptr[i]) + 1
        _count(np.int64(after[i]), length, 1, moves)
        _count(np.int64(before[i]), length, -1, moves)
    for cluster in range(filled.shape[0]):
        filled[cluster] = start[cluster]
        start[cluster + 1] += start[cluster]
    for i in moved:
        _place(np.int64(after[i]), i, moves, filled)
        _place(np.int64(before[i]), ~i, moves, filled)


def moves_by_cluster(
    indptr: AnyArray, before: LabelArray, after: LabelArray, n_clusters: int
) -> Moves:
    """Return the moves of rows from the clusters of one labelling to those of another."""
    start = np.zeros(n_clusters + 1, np.int64)
    sizes, counts, filled = np.zeros((3, n_clusters), np.int64)
    moved = np.flatnonzero(before != after).astype(np.int32)
    moves = Moves(np.empty(2 * len(moved), np.int32), start, sizes, counts)
    _by_cluster(indptr, before, after, moved, filled, moves)
    return moves._replace(row=moves.row[: start[-1]])


def members_by_cluster(indptr: AnyArray, labels: LabelArray, n_clusters: int) -> Moves:
    """Return the rows of each cluster; those with a label below 0 have none.

    Examples
    --------
    >>> indptr = frozen(np.array([0, 2, 3, 5]), np.int32)
    >>> members_by_cluster(indptr, np.array([1, -1, 0]), n_clusters=2).row.tolist()
    [2, 0]
    """
    nowhere = frozen(np.full(len(labels), -1, np.int32), np.int32)
    return moves_by_cluster(indptr, nowhere, frozen(labels, np.int32), n_clusters)


class Moved(NamedTuple):
    """Rows of one block, of their terms what makes summands, and how they move."""

    rows: RowArrays
    factor: FloatArray
    extra: FloatArray
    moves: Moves


_make_moves, _make_moved = former(Moves), former(Moved)


def moved_rows(rows: RowArrays, terms: Terms, moves: Moves) -> Moved:
    """Return rows of a block as moves of it, in the one form kernels are compiled for."""
    return _make_moved(rows, terms.factor, terms.extra, _make_moves(*moves))


class Lined(NamedTuple):
    """Rows of several blocks in the order of their clusters, by address: none is copied."""

    values: IntArray  # where the entries of a row are
    indices: IntArray  # where the columns of those are that have an index
    length: IntArray  # the number of entries
    n_indexed: IntArray  # of those that have an index: the others are of the last columns
    factor: FloatArray  # the row's times the unit, negative where a row goes
    extra: FloatArray
    start: IntArray  # (K + 1,), where the rows of a cluster begin
    sizes: IntArray  # (K,), the entries of its rows, one more a row for its `extra`


@inner(inline="always")
def entries_of(lined: Lined, t: Any) -> Any:
    """Return the entries of a row in line: values and columns by index, and the last values."""
    length, n_indexed = lined.length[t], lined.n_indexed[t]
    row = floats(lined.values[t], length)
    return row[:n_indexed], integers(lined.indices[t], n_indexed), row[n_indexed:]


@inner(inline="always")
def prefetch_later(lined: Lined, t: Any) -> None:
    """Have the entries of the row fetched that comes a little after row t."""
    if t + AHEAD < lined.values.shape[0]:
        later = t + AHEAD
        n_indexed = lined.n_indexed[later]
        prefetch_at(lined.values[later], lined.indices[later], lined.length[later], n_indexed)


@njit(nogil=True, cache=True, makes_arrays=False)
def _line_up(
    moved: Moved, first_value: int, first_index: int, unit: float, filled: IntArray, lined: Lined
) -> None:
    """Put the rows of one block, whose values and indices begin there, where `filled` says."""
    indptr, n_dense, moves = moved.rows.indptr, moved.rows.n_dense, moved.moves
    for h in range(moves.start.shape[0] - 1):
        for t in range(moves.start[h], moves.start[h + 1]):
            i = moves.row[t] if moves.row[t] >= 0 else ~moves.row[t]
            signed = unit if moves.row[t] >= 0 else -unit
            at = filled[h]
            filled[h] += 1
            start, length = np.int64(indptr[i]), np.int64(indptr[i + 1] - indptr[i])
            lined.values[at] = first_value + 4 * start  # bytes
            lined.indices[at] = first_index + 4 * (start - i * n_dense)
            lined.length[at], lined.n_indexed[at] = length, length - n_dense
            lined.factor[at] = of_row(moved.factor, i) * signed
            lined.extra[at] = of_row(moved.extra, i) * signed


def line_up(blocks: Sequence[Moved], unit: float) -> Lined:
    """Return the moves of all blocks by cluster; the blocks must outlive it."""
    start = frozen(reduce(np.add, [block.moves.start for block in blocks]), np.int64)
    sizes = frozen(reduce(np.add, [block.moves.sizes for block in blocks]), np.int64)
    values, indices, length, n_indexed = np.empty((4, start[-1]), np.int64)
    factors, extras = np.empty((2, start[-1]))
    lined = Lined(values, indices, length, n_indexed, factors, extras, start=start, sizes=sizes)
    counts = np.array([np.diff(block.moves.start) for block in blocks]).reshape(-1, len(sizes))
    filled = start[:-1] + np.cumsum(counts, axis=0) - counts  # where each block begins

    def work(first: int, last: int) -> None:
        """Put the rows of a range of blocks where they belong."""
        for block, places in zip(blocks[first:last], filled[first:last], strict=True):
            firsts = block.rows.values.ctypes.data, block.rows.indices.ctypes.data
            _line_up(block, *firsts, unit, places, lined)

    over_ranges(work, len(blocks), len(lined) * int(start[-1]))
    return lined
