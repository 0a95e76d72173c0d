"""A block's rows in pieces of bounded size, as scipy's sparse rows: what all plain kernels read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from hmrf_dask.types import AnyArray, IntArray

ENTRIES = 1 << 16  # of a piece: its arrays stay in the cache, a row is never cut

# What overflows or is not finite is found where it matters, as in compiled kernels.
silent = np.errstate(all="ignore")


class Piece(NamedTuple):
    """Some rows of a block, one after the other.

    Attributes
    ----------
    rows : slice or int array
        Which rows of the block these are.
    values : float64 array, shape (n_entries,)
    features : int array, shape (n_entries,)
    indptr : int array, shape (n_rows + 1,)
    """

    rows: Any
    values: AnyArray
    features: AnyArray
    indptr: AnyArray

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    def of(self, term: AnyArray) -> AnyArray:
        """Return the numbers of these rows, of one for each row of the block or one for all."""
        return np.broadcast_to(term, self.n_rows) if len(term) == 1 else term[self.rows]

    def spread(self, values: AnyArray) -> AnyArray:
        """Return one number a row as one number an entry."""
        return np.repeat(values, np.diff(self.indptr))

    def sums(self, values: AnyArray) -> AnyArray:
        """Return the sum of each row's `values`, one an entry, in the order of the entries."""
        return row_sums(values, self.indptr)

    def sums_in_four(self, values: AnyArray) -> AnyArray:
        """Return the sum of each row's `values` as four sums at a time, the rest in the first."""
        inside = np.arange(len(values)) - self.spread(self.indptr[:-1])
        lane = np.where(inside < self.spread(np.diff(self.indptr) & ~3), inside & 3, 0)
        four = self.sparse(values, lane, 4).toarray()
        return np.asarray((four[:, 0] + four[:, 1]) + (four[:, 2] + four[:, 3]))

    def sparse(self, values: AnyArray, features: AnyArray, n_features: int) -> Any:
        """Return a sparse array of these rows with other entries."""
        shape = (self.n_rows, n_features)
        return scipy.sparse.csr_array((values, features, self.indptr), shape=shape)

    def take(self, positions: AnyArray) -> Piece:
        """Return a piece of rows of this one, repeats allowed."""
        places, indptr = _places(self.indptr, positions)
        return Piece(positions, self.values[places], self.features[places], indptr)


def row_sums(values: AnyArray, indptr: AnyArray) -> AnyArray:
    """Return Σ values[indptr[i] : indptr[i + 1]], added one after the other: scipy's Σ v · 1."""
    shape = (len(indptr) - 1, 1)
    column = np.zeros(len(values), indptr.dtype)
    sums = scipy.sparse.csr_array((values, column, indptr), shape=shape) @ np.ones(1, values.dtype)
    return np.asarray(sums)


def _places(indptr: AnyArray, positions: AnyArray) -> tuple[IntArray, IntArray]:
    """Return where the entries of some rows are, and where each of these rows begins then."""
    lengths = np.diff(indptr)[positions].astype(np.int64)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    shifts = np.repeat(indptr[:-1][positions] - ends[:-1], lengths)
    return np.arange(ends[-1]) + shifts, ends


def spans(lengths: AnyArray, most: int, most_rows: int) -> Iterator[tuple[int, int]]:
    """Yield first and last + 1 of runs of rows with at most so many entries, or one row."""
    ends = np.cumsum(lengths, dtype=np.int64)
    first = 0
    while first < len(ends):
        before = ends[first - 1] if first else 0
        stop = int(np.searchsorted(ends, before + most, side="right"))
        stop = min(max(stop, first + 1), first + max(most_rows, 1))
        yield first, min(stop, len(ends))
        first = stop


def pieces(rows: Any, width: int = 1) -> Iterator[Piece]:
    """Yield all rows of `Entries` or `Side`, so few at once that `width` numbers each are few."""
    for first, stop in spans(np.diff(rows.indptr), ENTRIES, 4 * ENTRIES // width):
        start, end = rows.indptr[first], rows.indptr[stop]
        values = rows.values[start:end].astype(np.float64)
        indptr = rows.indptr[first : stop + 1] - start
        features = _features(indptr) if rows.dense else rows.indices[start:end]
        yield Piece(slice(first, stop), values, features, indptr)


def chosen_pieces(rows: Any, positions: AnyArray) -> Iterator[Piece]:
    """Yield the rows at `positions`, in that order."""
    lengths = np.diff(rows.indptr)[positions]
    for first, stop in spans(lengths, ENTRIES, ENTRIES):
        yield taken(rows, positions[first:stop])


def taken(rows: Any, positions: AnyArray) -> Piece:
    """Return the rows at `positions` as one piece."""
    places, indptr = _places(rows.indptr, positions)
    features = _features(indptr) if rows.dense else rows.indices[places]
    return Piece(positions, rows.values[places].astype(np.float64), features, indptr)


def _features(indptr: AnyArray) -> AnyArray:
    """Return the features of dense rows: each row has all of them."""
    if len(indptr) < 2:
        return np.empty(0, indptr.dtype)
    return np.tile(np.arange(indptr[1] - indptr[0], dtype=indptr.dtype), len(indptr) - 1)
