"""Rows that move, gone through cluster by cluster: the sum they go to stays in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.abreast import over_ranges
from hmrf_dask.kernels.arrays import RowArrays, Terms, frozen, of_row
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.prefetch import AHEAD, floats, integers, prefetch_at
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray

GATHERED = 16  # from a 16th of its columns on, a cluster's rows are added up aside
FOLDED = 4  # the same where the sums are wanted as entries


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


@inner(inline="always")
def _add_row(row, indices, scaled, features, out):  # type: ignore[no-untyped-def]
    """Add a row's rounded summands; no `features`: all 1.

    Unsigned indices spare the question whether one is counted from the end.
    """
    length = np.int64(row.shape[0])
    plain = features.shape[0] == 0
    if indices == 0:
        for m in range(length):
            factor = scaled if plain else scaled * features[m]
            out[m] += np.int64(np.rint(factor * row[m]))
        return
    columns = integers(indices, length)
    if plain:
        for p in range(length):
            out[np.uint32(columns[p])] += np.int64(np.rint(scaled * row[p]))
    else:
        for p in range(length):
            feature = np.uint32(columns[p])
            out[feature] += np.int64(np.rint(scaled * features[feature] * row[p]))


@njit(nogil=True, cache=True, makes_arrays=False)
def _scatter(lined, features, sizes, first, last, aside, out):  # type: ignore[no-untyped-def]
    values, indices, length, factor, extra, start = lined
    columns = out.shape[1]
    for h in range(first, last):
        gathered = GATHERED * sizes[h] >= columns  # spares a miss of the cache for each line
        target = aside if gathered else out[h]
        for t in range(start[h], start[h + 1]):
            if t + AHEAD < values.shape[0]:
                later = t + AHEAD
                prefetch_at(values[later], indices[later], length[later])
            _add_row(floats(values[t], length[t]), indices[t], factor[t], features, target)
            target[columns - 1] += np.int64(np.rint(extra[t]))
        if gathered:
            whole = out[h]
            for m in range(columns):
                whole[m] += aside[m]
                aside[m] = 0


def scatter(
    blocks: Sequence[Moved], features: FloatArray, sizes: IntArray, unit: float, out: IntArray
) -> None:
    """Add the summands of moves to whole sums; no `features`: all 1."""
    lined, entries_of = line_up(blocks, unit), frozen(sizes, np.int64)
    factors = frozen(features, np.float64)

    def some(first: int, last: int) -> None:
        aside = np.zeros(out.shape[1], np.int64)
        _scatter(lined, factors, entries_of, first, last, aside, out)

    over_ranges(some, len(out), int(sizes.sum()), sizes)


@inner(inline="always")
def _write_row(row, indices, scaled, features, base, filled, places, amounts):  # type: ignore[no-untyped-def]
    """Write a row's rounded summands as entries from `filled` on."""
    length = np.int64(row.shape[0])
    plain, dense = features.shape[0] == 0, indices == 0
    columns = integers(indices, length)
    for p in range(length):
        m = np.uint32(p if dense else columns[p])
        factor = scaled if plain else scaled * features[m]
        places[filled + p] = base + np.int64(m)
        amounts[filled + p] = np.int64(np.rint(factor * row[p]))


@inner(inline="always")
def _write_sums(aside, base, filled, places, amounts):  # type: ignore[no-untyped-def]
    """Write what is not nought as entries and wipe it; return where they end, −1: no room."""
    found = 0
    for m in range(aside.shape[0]):
        found += aside[m] != 0
    if filled + found >= places.shape[0]:
        return -1
    for m in range(aside.shape[0]):  # written in any case: a branch would be guessed wrong
        places[filled] = base + m
        amounts[filled] = aside[m]
        filled += aside[m] != 0
        aside[m] = 0
    return filled


@njit(nogil=True, cache=True, makes_arrays=False)
def _emit(lined, features, sizes, aside, places, amounts):  # type: ignore[no-untyped-def]
    values, indices, length, factor, extra, start = lined
    columns = aside.shape[0]
    filled = 0
    for h in range(start.shape[0] - 1):
        base = h * columns
        gathered = FOLDED * sizes[h] >= columns  # many are of the same features
        if not gathered and filled + sizes[h] > places.shape[0]:
            return -1
        for t in range(start[h], start[h + 1]):
            if t + AHEAD < values.shape[0]:
                later = t + AHEAD
                prefetch_at(values[later], indices[later], length[later])
            row, last = floats(values[t], length[t]), np.int64(np.rint(extra[t]))
            if gathered:
                _add_row(row, indices[t], factor[t], features, aside)
                aside[columns - 1] += last
            else:
                _write_row(row, indices[t], factor[t], features, base, filled, places, amounts)
                filled += length[t] + 1
                places[filled - 1] = base + columns - 1
                amounts[filled - 1] = last
        if gathered:
            filled = _write_sums(aside, base, filled, places, amounts)
            if filled < 0:
                return -1
    return filled


def emit(
    blocks: Sequence[Moved],
    features: FloatArray,
    sizes: IntArray,
    unit: float,
    columns: int,
    places: IntArray,
    amounts: IntArray,
) -> int:
    """Write the summands of moves as entries; return how many, −1 where there is no room.

    There must be room for one entry more than there are.
    """
    factors = frozen(features, np.float64), frozen(sizes, np.int64)
    aside = np.zeros(columns, np.int64)
    return int(_emit(line_up(blocks, unit), *factors, aside, places, amounts))
