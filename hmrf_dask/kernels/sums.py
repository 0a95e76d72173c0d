"""Centroid sums in int64 fixed point: any order, any tree, any partitioning gives the same bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.by_cluster import (
    Lined,
    Moved,
    entries_of,
    line_up,
    moved_rows,
    moves_by_cluster,
    prefetch_later,
)
from hmrf_dask.kernels.compiled import RowArrays, Terms, frozen, frozen_terms, inner, njit, of_row
from hmrf_dask.kernels.threads import buffer, over_ranges
from hmrf_dask.types import FloatArray, IntArray, LabelArray, Sized

LARGEST_EXPONENT = 43
SPARSE = 4  # entries times this are fewer than all places: beyond, the whole array is held
LIKELY = 0.75  # as many summands a place may make few enough entries: features recur
CHUNK = 2**15  # places that are added up at a time: they stay in the cache
GATHERED = 16  # from a 16th of its columns on, a cluster's rows are added up aside
FOLDED = 4  # the same where the sums are wanted as entries
NEAR = 2**16  # numbers of sums that stay in the cache: dense rows are added to them as they come


def fixed_point_exponent(n_rows: int, bound: float) -> int:
    """Return e so that n_rows numbers of size `bound`, times 2**e and rounded, fit into int64.

    Examples
    --------
    >>> fixed_point_exponent(1000, 1.0), fixed_point_exponent(10**12, 1.0)
    (43, 21)
    """
    if n_rows == 0 or bound <= 0:
        return LARGEST_EXPONENT
    # Two bits stay free: each summand may be rounded up by a half, and a change of the sums, rows
    # that come less rows that go, may be twice as large as a sum. Data in small units get as many
    # digits as data near 1.
    finest = LARGEST_EXPONENT - min(0, math.floor(math.log2(bound)))
    return min(finest, 61 - math.ceil(math.log2(n_rows * bound)))


@inner(inline="always")
def _add_row(lined: Lined, t: Any, features: FloatArray, out: Any) -> None:
    """Add a row's rounded summands, its `extra` in the last column; no `features`: all 1.

    Unsigned indices spare the question whether one is counted from the end.
    """
    scaled, plain, last = lined.factor[t], features.shape[0] == 0, out.shape[0] - 1
    row, columns, end = entries_of(lined, t)
    out[last] += np.int64(np.rint(lined.extra[t]))
    if plain:
        for p in range(row.shape[0]):
            out[np.uint32(columns[p])] += np.int64(np.rint(scaled * row[p]))
    else:
        for p in range(row.shape[0]):
            feature = np.uint32(columns[p])
            out[feature] += np.int64(np.rint(scaled * features[feature] * row[p]))
    first = last - end.shape[0]
    for m in range(end.shape[0]):
        factor = scaled if plain else scaled * features[first + m]
        out[first + m] += np.int64(np.rint(factor * end[m]))


@njit(nogil=True, cache=True, makes_arrays=False)
def _scatter(
    lined: Lined, features: FloatArray, aside: IntArray, out: IntArray, first: int, last: int
) -> None:
    columns = out.shape[1]
    for h in range(first, last):
        gathered = GATHERED * lined.sizes[h] >= columns  # spares a cache miss for each line
        target = aside if gathered else out[h]
        for t in range(lined.start[h], lined.start[h + 1]):
            prefetch_later(lined, t)
            _add_row(lined, t, features, target)
        if gathered:
            whole = out[h]
            for m in range(columns):
                whole[m] += aside[m]
                aside[m] = 0


def scatter(blocks: Sequence[Moved], features: FloatArray, unit: float, out: IntArray) -> None:
    """Add the summands of moves to whole sums; no `features`: all 1."""
    lined, factors = line_up(blocks, unit), frozen(features, np.float64)

    def work(first: int, last: int) -> None:
        """Add the summands of a range of clusters."""
        aside = np.zeros(out.shape[1], np.int64)
        _scatter(lined, factors, aside, out, first, last)

    over_ranges(work, len(out), int(lined.sizes.sum()), lined.sizes)


class Near(NamedTuple):
    """Sums and counts that stay in the cache; the last row of each stands for nowhere."""

    sums: IntArray  # (K + 1, d + 1)
    counts: IntArray


@njit(nogil=True, cache=True, makes_arrays=False)
def _move_dense(
    rows: RowArrays,
    terms: Terms,
    features: FloatArray,
    unit: float,
    before: LabelArray,
    after: LabelArray,
    out: Near,
) -> None:
    """Add the rounded summands of dense rows where they come, and take them from where they go.

    No `features`: all 1.
    """
    nowhere, last, plain = out.counts.shape[0] - 1, rows.n_features, features.shape[0] == 0
    for i in range(before.shape[0]):
        h, g = np.int64(after[i]), np.int64(before[i])
        if h == g:
            continue
        h, g = h if h >= 0 else nowhere, g if g >= 0 else nowhere
        target, source = out.sums[h], out.sums[g]
        start, scaled = np.int64(rows.indptr[i]), of_row(terms.factor, i) * unit
        row = rows.values[start : start + last]
        value = np.int64(np.rint(of_row(terms.extra, i) * unit))
        target[last] += value
        source[last] -= value
        out.counts[h] += 1
        out.counts[g] -= 1
        if plain:
            for m in range(last):
                value = np.int64(np.rint(scaled * row[m]))
                target[m] += value
                source[m] -= value
        else:
            for m in range(last):
                value = np.int64(np.rint(scaled * features[m] * row[m]))
                target[m] += value
                source[m] -= value


class Entries(NamedTuple):
    """Places in the flat sums, and what is added there: int64 arrays."""

    places: IntArray
    values: IntArray


@inner(inline="always")
def _write_row(
    lined: Lined, t: Any, features: FloatArray, ends: Any, filled: IntArray, out: Any
) -> None:
    """Write a row's rounded summands as entries from `filled` on.

    The place of its first column and that of its `extra` are `ends`.
    """
    (base, last), scaled, plain = ends, lined.factor[t], features.shape[0] == 0
    row, columns, end = entries_of(lined, t)
    places, values = out.places, out.values
    for p in range(row.shape[0]):
        feature = np.uint32(columns[p])
        factor = scaled if plain else scaled * features[feature]
        places[filled + p] = base + np.int64(feature)
        values[filled + p] = np.int64(np.rint(factor * row[p]))
    filled += row.shape[0]
    first = last - base - end.shape[0]
    for m in range(end.shape[0]):
        factor = scaled if plain else scaled * features[first + m]
        places[filled + m] = base + first + m
        values[filled + m] = np.int64(np.rint(factor * end[m]))
    places[filled + end.shape[0]] = last
    values[filled + end.shape[0]] = np.int64(np.rint(lined.extra[t]))


@inner(inline="always")
def _write_sums(aside: IntArray, base: Any, filled: IntArray, out: Any) -> Any:
    """Write what is not zero as entries and wipe it; return where they end, −1: they do not fit."""
    n_entries = 0
    places, values = out.places, out.values
    for m in range(aside.shape[0]):
        n_entries += aside[m] != 0
    if filled + n_entries >= places.shape[0]:
        return -1
    for m in range(aside.shape[0]):  # written in any case: a branch would be guessed wrong
        places[filled] = base + m
        values[filled] = aside[m]
        filled += aside[m] != 0
        aside[m] = 0
    return filled


@njit(nogil=True, cache=True, makes_arrays=False)
def _emit(lined: Lined, features: FloatArray, aside: IntArray, out: Entries) -> int:
    """Write the summands of moves as entries; return how many, −1 where they do not fit."""
    columns, start, sizes = aside.shape[0], lined.start, lined.sizes
    filled = 0
    for h in range(start.shape[0] - 1):
        base = h * columns
        gathered = FOLDED * sizes[h] >= columns  # many are of the same features
        if not gathered and filled + sizes[h] > out.places.shape[0]:
            return -1
        for t in range(start[h], start[h + 1]):
            prefetch_later(lined, t)
            if gathered:
                _add_row(lined, t, features, aside)
            else:
                _write_row(lined, t, features, (base, base + columns - 1), filled, out)
                filled += lined.length[t] + 1
        if gathered:
            filled = _write_sums(aside, base, filled, out)
            if filled < 0:
                return -1
    return filled


@dataclass(frozen=True, slots=True)
class Sums(Sized):
    """Sums of rows by cluster, whole or as the entries of a few moved rows.

    The last column holds `extra`.
    """

    dense: IntArray  # (K, d + 1), or (0, 0) when only `places` and `values` are set
    places: IntArray  # flat positions in the dense form, in no order, each as often as it came
    values: IntArray  # what is added there
    counts: IntArray  # (K,)
    n_columns: int  # d + 1

    @property
    def is_dense(self) -> bool:
        """Whether the whole K × (d + 1) array is held."""
        return self.dense.size > 0

    def to_dense(self) -> IntArray:
        """Return a (K, d + 1) array of one's own.

        Examples
        --------
        >>> counts, places = np.zeros(2, np.int64), np.array([5, 1, 5])
        >>> values = np.array([10, 20, 30])
        >>> sums = Sums(np.zeros((0, 0), np.int64), places, values, counts, n_columns=3)
        >>> sums.to_dense().tolist()
        [[0, 20, 0], [0, 0, 40]]
        """
        if self.is_dense:
            return self.dense.copy()
        return _total(len(self.counts), self.n_columns, [self])

    def cut(self, ends: Sequence[int]) -> list[Sums]:
        """Return the sums of runs of clusters, each from one of the `ends` to the next.

        Examples
        --------
        >>> counts, places = np.zeros(3, np.int64), np.array([5, 1, 8])
        >>> sums = Sums(np.zeros((0, 0), np.int64), places, places, counts, n_columns=3)
        >>> [run.to_dense().tolist() for run in sums.cut([0, 1, 3])]
        [[[0, 1, 0]], [[0, 0, 5], [0, 0, 8]]]
        """
        runs = list(pairwise(ends))
        starts, places, values = np.zeros(len(ends), np.int64), self.places, self.values
        if not self.is_dense:
            run_of = np.repeat(np.arange(len(runs), dtype=np.uint16), np.diff(ends))
            run = run_of[places // self.n_columns]
            if (run[1:] < run[:-1]).any():
                order = np.argsort(run, kind="stable")  # by its digits
                places, values = places[order], values[order]
            starts[1:] = np.cumsum(np.bincount(run, minlength=len(runs)))
        cut = []
        for number, (first, last) in enumerate(runs):
            here = slice(starts[number], starts[number + 1])
            whole, counts = self.dense[first:last], self.counts[first:last]
            own = places[here] - first * self.n_columns
            cut.append(Sums(whole, own, values[here], counts, self.n_columns))
        return cut

    def without_numbers(self) -> Sums:
        """Return the counts alone, nothing of the size of the sums."""
        nothing = np.zeros(0, np.int64)
        return Sums(np.zeros((0, 0), np.int64), nothing, nothing, self.counts, self.n_columns)

    def folded(self) -> tuple[IntArray, IntArray]:
        """Return places and values of the sparse form, every place once, in order."""
        order = np.argsort(self.places, kind="stable")
        places, values = self.places[order], self.values[order]
        first = np.flatnonzero(np.diff(places, prepend=-1))
        total = np.add.reduceat(values, first) if len(first) else values
        kept = total != 0
        return places[first][kept], total[kept]


@njit(nogil=True, cache=True)
def _add_entries(places: IntArray, values: IntArray, out: IntArray) -> None:
    for t in range(places.shape[0]):
        out[places[t]] += values[t]


def _add_sparse(change: Sums, out: IntArray) -> None:
    """Add the entries of a change in sparse form to a whole array."""
    places, values = frozen(change.places, np.int64), frozen(change.values, np.int64)
    _add_entries(places, values, out.reshape(-1))


def _add_dense(arrays: Sequence[IntArray]) -> IntArray:
    """Return the sum of whole arrays, every place read and written once."""
    if len(arrays) == 1:
        return arrays[0].copy()
    out = buffer(arrays[0].shape, np.int64)
    flat = [array.reshape(-1) for array in (out, *arrays)]
    for start in range(0, out.size, CHUNK):
        here, first, second, *others = (array[start : start + CHUNK] for array in flat)
        np.add(first, second, out=here)
        for other in others:
            here += other
    return out


def _total(n_clusters: int, n_columns: int, parts: Sequence[Sums]) -> IntArray:
    """Return the sum of partial sums as a whole array of one's own."""
    dense = [part.dense for part in parts if part.is_dense]
    out = _add_dense(dense) if dense else np.zeros((n_clusters, n_columns), np.int64)
    for part in parts:
        if not part.is_dense:
            _add_sparse(part, out)
    return out


def add_sums(parts: Sequence[Sums]) -> Sums:
    """Return the sum of partial sums; whole when one of them is or their entries are many."""
    return joined(parts).finish()


def joined(parts: Sequence[Sums | Accumulator]) -> Accumulator:
    """Return what changes several sums as one change."""
    accumulator = Accumulator(len(parts[0].counts), parts[0].n_columns)
    for part in parts:
        accumulator.join(part)
    return accumulator


def add_to(sums: IntArray, change: Sums | Accumulator, *, in_place: bool = False) -> IntArray:
    """Return sums (K, d + 1) after a change: a new array, or the same one where that may be."""
    out = sums
    if not (in_place and sums.flags.writeable):
        out = buffer(sums.shape, np.int64)

        def copy(first: int, last: int) -> None:
            """Copy the sums of a range of clusters."""
            np.copyto(out[first:last], sums[first:last])

        over_ranges(copy, len(out), out.size)
    joined([change]).add_into(out)
    return out


class Accumulator(Sized):
    """Adds up what moved rows change, over many blocks.

    Rows are only noted when they are added, and gone through cluster by cluster at the end: entries
    of the sums where rows are few, the whole array where they are many; or, where the sums are at
    hand, straight into these. Blocks that are not `lasting` may not be held until the end: their
    rows are added up one block at a time. So are dense rows where the sums stay in the cache.
    """

    def __init__(self, n_clusters: int, n_columns: int, *, lasting: bool = True) -> None:
        self.n_clusters, self.n_columns, self._lasting = n_clusters, n_columns, lasting
        self.counts, self._n_entries = np.zeros(n_clusters, np.int64), 0
        self._features, self._unit = np.zeros(0), 1.0
        self._blocks: list[Moved] = []
        self._sums: list[Sums] = []
        self._near: IntArray | None = None  # but for the last row, which is nowhere, in `_sums` too

    def add(
        self,
        rows: RowArrays,
        terms: Terms,
        features: FloatArray,
        before: LabelArray,
        after: LabelArray,
        exponent: int,
    ) -> None:
        """Add what rows add to their new clusters and take from their old ones.

        Labels below 0 are nowhere. Features and exponent are those of every other block, too.
        """
        ends = frozen(before, np.int32), frozen(after, np.int32)
        if rows.dense and self._size <= NEAR:
            self._add_near(rows, terms, features, ends, 2.0**exponent)
            return
        moves = moves_by_cluster(rows.indptr, *ends, self.n_clusters)
        if len(moves.row):
            self._blocks.append(moved_rows(rows, terms, moves))
            self._n_entries += int(moves.sizes.sum())
            self.counts += moves.counts
            self._features, self._unit = features, 2.0**exponent
            self._settle()

    def _add_near(
        self,
        rows: RowArrays,
        terms: Terms,
        features: FloatArray,
        ends: tuple[LabelArray, LabelArray],
        unit: float,
    ) -> None:
        """Add what dense rows change to sums that stay in the cache."""
        counts = np.zeros(self.n_clusters + 1, np.int64)
        if self._near is None:
            self._near = np.zeros((len(counts), self.n_columns), np.int64)
            whole, nothing = self._near[:-1], np.zeros(0, np.int64)
            self._sums.append(Sums(whole, nothing, nothing, self.counts, self.n_columns))
        self._features = features
        factors, out = frozen(self._factors, np.float64), Near(self._near, counts)
        _move_dense(rows, frozen_terms(*terms), factors, unit, *ends, out)
        self.counts += counts[:-1]

    def sized_values(self) -> tuple[object, ...]:
        """Return what is not rows: these are counted where they are kept."""
        return self._sums, self.counts

    def join(self, change: Sums | Accumulator) -> None:
        """Add rows that were noted, or added up, elsewhere."""
        self.counts += change.counts
        if isinstance(change, Sums):
            self._sums.append(change)
            self._settle()
            return
        self._sums += change._sums
        self._n_entries += change._n_entries
        self._blocks += change._blocks
        if change._blocks:
            self._features, self._unit = change._features, change._unit

    def _settle(self) -> None:
        """Let go of blocks that may not be held: their rows are added up."""
        if self._lasting:
            return
        whole = self._sums[0].dense if len(self._sums) == 1 else np.zeros(0, np.int64)
        if self._blocks and whole.size:  # made here, by the line below
            scatter(self._blocks, self._factors, self._unit, whole)
        else:
            self._sums, self._near = [self.finish()], None
        self._blocks, self._n_entries = [], 0

    def add_into(self, out: IntArray) -> None:
        """Add the change to sums (K, d + 1)."""
        whole = [one.dense for one in self._sums if one.is_dense]

        def work(first: int, last: int) -> None:
            """Add up the sums of a range of clusters."""
            for dense in whole:
                out[first:last] += dense[first:last]

        over_ranges(work, len(out), len(whole) * out.size)
        for one in self._sums:
            if not one.is_dense:
                _add_sparse(one, out)
        if self._blocks:
            scatter(self._blocks, self._factors, self._unit, out)

    def finish(self) -> Sums:
        """Return the sums."""
        known = [*self._sums, *self._as_entries()]
        n_entries = sum(len(one.places) for one in known)
        rest = self._blocks if len(known) == len(self._sums) else []
        nothing = np.zeros(0, np.int64)
        if rest or SPARSE * n_entries > self._size or any(one.is_dense for one in known):
            out = _total(self.n_clusters, self.n_columns, known)
            if rest:
                scatter(rest, self._factors, self._unit, out)
            return Sums(out, nothing, nothing, self.counts.copy(), self.n_columns)
        if len(known) == 1:
            return replace(known[0], counts=self.counts.copy())
        places = np.concatenate([nothing, *(one.places for one in known)])
        values = np.concatenate([nothing, *(one.values for one in known)])
        return self._sparse(places, values)

    @property
    def _size(self) -> int:
        return self.n_clusters * self.n_columns

    @property
    def _factors(self) -> FloatArray:
        """The features' factors, none where all are 1."""
        return np.zeros(0) if (self._features == 1.0).all() else self._features

    def _sparse(self, places: IntArray, values: IntArray) -> Sums:
        whole = np.zeros((0, 0), np.int64)
        return Sums(whole, places, values, self.counts.copy(), self.n_columns)

    def _as_entries(self) -> list[Sums]:
        """Return the rows' sums as entries, none where that would be too many."""
        whole = any(part.is_dense for part in self._sums)
        if whole or not self._blocks or self._n_entries > LIKELY * self._size:
            return []
        most = min(self._n_entries, self._size // SPARSE) + 1
        entries = Entries(*np.empty((2, most), np.int64))  # one more than there may be
        lined, factors = line_up(self._blocks, self._unit), frozen(self._factors, np.float64)
        filled = int(_emit(lined, factors, np.zeros(self.n_columns, np.int64), entries))
        return [] if filled < 0 else [self._sparse(*(array[:filled] for array in entries))]
