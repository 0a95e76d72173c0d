"""RowBlock: the rows of one partition, sparse, dense or both, with their ids, as tasks see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.kernels.compiled import RowArrays, inner, njit
from hmrf_dask.rows.canonical import (
    as_float32,
    as_ids,
    canonical_csr,
    hash_ids,
    require_int32,
    require_matrix,
    sound_csr,
)
from hmrf_dask.types import AnyArray, FloatArray, IntArray, KeyArray, LabelArray, RowArray, Sized

_NEGATIVE_ZERO = np.uint32(0x80000000)
_SHOWN = 5


@dataclass(frozen=True, slots=True, eq=False)
class RowBlock(Sized):
    """Rows of one partition, in the one form that every kernel reads.

    The arrays are read-only and aligned wherever the block comes from (the caller's matrix, a
    Parquet buffer, a network frame), so nobody writes into shared memory and a numba kernel is
    compiled for one signature. `from_scipy`, `from_array` and `rows.files` make blocks; the plain
    constructor trusts its arguments.

    Examples
    --------
    >>> block = RowBlock.from_array(np.array([[1.0, 0.0], [0.0, 2.0]]), ids=["a", "b"])
    >>> block.n_rows, block.n_features, block.is_dense
    (2, 2, True)
    """

    values: RowArray  # the entries that are not zero, row by row; of a dense block all
    indices: LabelArray  # the feature of each value, ascending within a row; empty for dense rows
    indptr: LabelArray  # shape (n_rows + 1,): where each row begins in `values`
    ids: AnyArray  # int64 or str: document ids, or row numbers where no ids were given
    keys: KeyArray  # what random choices are keyed by: `hash_ids` of the ids
    n_features: int
    # Of mixed rows: that many of the last features end every row, zeros too, and have no index.
    n_dense: int = 0

    def __post_init__(self) -> None:
        """Make every array aligned, contiguous and read-only; copies only what is not aligned."""
        for name in ("values", "indices", "indptr", "ids", "keys"):
            array = np.require(getattr(self, name), requirements=["C", "A"]).view()
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def __reduce__(self) -> tuple[type[RowBlock], tuple[Any, ...]]:
        """Go through the constructor: arrays out of network frames are often not aligned."""
        return RowBlock, tuple(getattr(self, field.name) for field in fields(self))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays.

        Examples
        --------
        >>> RowBlock.from_array(np.eye(2)).nbytes
        60
        """
        arrays = (self.values, self.indices, self.indptr, self.ids, self.keys)
        return sum(array.nbytes for array in arrays)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of features."""
        return self.n_rows, self.n_features

    @property
    def is_dense(self) -> bool:
        """Whether entry p of row i is feature p - indptr[i]; False where there are no values."""
        return self.indices.size == 0 and self.values.size > 0 and not self.n_dense

    @property
    def index_ends(self) -> LabelArray:
        """Where each row begins in `indices`, shape (n_rows + 1,)."""
        if not self.n_dense:
            return self.indptr
        return self.indptr - np.arange(self.n_rows + 1, dtype=np.int32) * np.int32(self.n_dense)

    @property
    def arrays(self) -> RowArrays:
        """The rows as kernels read them.

        Examples
        --------
        >>> rows = RowBlock.from_array(np.array([[1.0, 2.0]])).arrays
        >>> rows.values.tolist(), rows.dense
        ([1.0, 2.0], True)
        """
        dense, n_features = self.is_dense, self.n_features
        n_dense = n_features if dense else self.n_dense
        return RowArrays(self.values, self.indices, self.indptr, dense, n_features, n_dense)

    @staticmethod
    def from_scipy(matrix: Any, ids: ArrayLike | None = None, first_row: int = 0) -> RowBlock:
        """Make a block of a scipy sparse matrix or array of any format, index width and dtype.

        Duplicates are summed, explicit zeros (also values that are zero in float32) dropped. The
        matrix is never modified; where it is in the block's form already, its memory is shared.
        Without `ids` these are the numbers of the rows, from `first_row` on.

        Examples
        --------
        >>> block = RowBlock.from_scipy(scipy.sparse.coo_array([[0, 2], [3, 0]]), ids=["a", "b"])
        >>> block.indices, block.values
        (array([1, 0], dtype=int32), array([2., 3.], dtype=float32))
        """
        require_matrix(matrix)
        csr = sound_csr(matrix)
        parts = (csr.data, csr.indices, csr.indptr)
        return RowBlock.from_csr(*parts, int(csr.shape[1]), ids, first_row)

    @staticmethod
    def from_csr(
        values: AnyArray,
        indices: AnyArray,
        indptr: AnyArray,
        n_features: int,
        ids: ArrayLike | None = None,
        first_row: int = 0,
    ) -> RowBlock:
        """Make a block of the three arrays of a CSR matrix; see `from_scipy`.

        Examples
        --------
        >>> values, indices, indptr = np.array([3, 2]), np.array([1, 0]), np.array([0, 2])
        >>> RowBlock.from_csr(values, indices, indptr, n_features=2).values.tolist()
        [2.0, 3.0]
        """
        values, indices, indptr = canonical_csr(values, indices, indptr, n_features)
        row_ids = as_ids(ids, len(indptr) - 1, first_row)
        narrow = (indices.astype(np.int32, copy=False), indptr.astype(np.int32, copy=False))
        return RowBlock(values, *narrow, row_ids, hash_ids(row_ids), n_features)

    @staticmethod
    def from_array(dense: Any, ids: ArrayLike | None = None, first_row: int = 0) -> RowBlock:
        """Make a block of dense rows; see `from_scipy` for ids, sharing and what is never modified.

        Examples
        --------
        >>> RowBlock.from_array(np.array([[1.0, 0.0]]), first_row=7).ids.tolist()
        [7]
        """
        require_matrix(dense)
        n_rows, n_features = dense.shape
        require_int32(n_rows * n_features, "the number of entries of a dense partition")
        values = as_float32(np.asarray(dense)).reshape(-1)
        if np.any(values.view(np.uint32) == _NEGATIVE_ZERO):
            values = values + np.float32(0)
        row_ids = as_ids(ids, n_rows, first_row)
        indptr = np.arange(n_rows + 1, dtype=np.int32) * np.int32(n_features)
        empty = np.empty(0, np.int32)
        return RowBlock(values, empty, indptr, row_ids, hash_ids(row_ids), int(n_features))

    @staticmethod
    def side_by_side(words: RowBlock, vectors: RowBlock) -> RowBlock:
        """Return mixed rows of sparse and dense ones of the same documents.

        Examples
        --------
        >>> words = RowBlock.from_scipy(scipy.sparse.csr_array([[0.0, 2.0], [0.0, 0.0]]))
        >>> mixed = RowBlock.side_by_side(words, RowBlock.from_array(np.array([[3.0], [0.0]])))
        >>> mixed.values.tolist(), mixed.indices.tolist(), mixed.to_dense().tolist()
        ([2.0, 3.0, 0.0], [1], [[0.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
        """
        n_dense, ends = vectors.n_features, np.arange(words.n_rows + 1) * vectors.n_features
        indptr = words.indptr + ends
        require_int32(int(indptr[-1]), "the number of values of rows of several kinds")
        values, last = np.empty(indptr[-1], np.float32), np.zeros(indptr[-1], np.bool_)
        last[(indptr[1:, None] + np.arange(-n_dense, 0)).reshape(-1)] = True
        values[last], values[~last] = vectors.values, words.values
        n_features = words.n_features + n_dense
        rows = (values, words.indices, indptr.astype(np.int32), words.ids, words.keys)
        return RowBlock(*rows, n_features, n_dense)

    def rows(self, start: int, stop: int) -> RowBlock:
        """Return rows start..stop-1 as views into this block's memory.

        Examples
        --------
        >>> RowBlock.from_array(np.eye(3)).rows(1, 3).ids.tolist()
        [1, 2]
        """
        first, last = self.indptr[start], self.indptr[stop]
        ends = first - start * self.n_dense, last - stop * self.n_dense
        indices = self.indices if self.is_dense else self.indices[slice(*ends)]
        indptr = self.indptr[start : stop + 1] - first
        rows = (self.values[first:last], indices, indptr, self.ids[start:stop])
        return RowBlock(*rows, self.keys[start:stop], self.n_features, self.n_dense)

    def take(self, positions: ArrayLike) -> RowBlock:
        """Return a new block of the rows at integer positions, in that order, repeats allowed.

        Examples
        --------
        >>> RowBlock.from_array(np.eye(3)).take([2, 0, 2]).ids.tolist()
        [2, 0, 2]
        """
        chosen = np.asarray(positions, dtype=np.intp)
        n_values = int(np.diff(self.indptr)[chosen].sum(dtype=np.int64))
        require_int32(n_values, "the number of values of the rows taken")
        if self.is_dense:
            values, indices = self.to_dense()[chosen].reshape(-1), self.indices
            indptr = np.arange(len(chosen) + 1, dtype=np.int32) * np.int32(self.n_features)
        elif self.n_dense:
            values, indptr = _taken(self.values, self.indptr, chosen)
            indices, _ = _taken(self.indices, self.index_ends, chosen)
        else:
            taken = self.to_scipy()[chosen]
            values, indices, indptr = taken.data, taken.indices, taken.indptr
        ids, keys = self.ids[chosen], self.keys[chosen]
        return RowBlock(values, indices, indptr, ids, keys, self.n_features, n_dense=self.n_dense)

    def with_features(self, features: IntArray) -> RowBlock:
        """Return a new block with these features alone, sorted, all of a dense end among them.

        Examples
        --------
        >>> block = RowBlock.from_scipy(scipy.sparse.csr_array([[0, 2, 0], [3, 0, 1]]))
        >>> block.with_features(np.array([1, 2])).to_dense().tolist()
        [[2.0, 0.0], [0.0, 1.0]]
        """
        places = np.full(self.n_features, -1, np.int32)
        places[features] = np.arange(len(features), dtype=np.int32)
        columns = places[self.arrays.indexed.indices]
        kept, indices = columns >= 0, places[self.indices]
        ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(kept, dtype=np.int32)])
        rows = self.values[kept], indices[indices >= 0], ends[self.indptr]
        return RowBlock(*rows, self.ids, self.keys, len(features), self.n_dense)

    @staticmethod
    def concatenate(blocks: Sequence[RowBlock]) -> RowBlock:
        """Return one block of the rows of all, in order; it shares no memory with them.

        Examples
        --------
        >>> parts = [RowBlock.from_array(np.eye(2), ids=ids) for ids in (["a", "b"], ["c", "d"])]
        >>> RowBlock.concatenate(parts).ids.tolist()
        ['a', 'b', 'c', 'd']
        """
        _require_alike(blocks)
        if any(block.is_dense for block in blocks):
            blocks = [_densified(block) for block in blocks]
        counts = np.concatenate([np.diff(block.indptr) for block in blocks]).astype(np.int64)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        require_int32(int(ends[-1]), "the number of values of the rows put together")
        # The ids of an empty block may have another type than those of its neighbours.
        with_rows = [block for block in blocks if block.n_rows] or list(blocks[:1])
        return RowBlock(
            np.concatenate([block.values for block in blocks]),
            np.concatenate([block.indices for block in blocks]),
            ends.astype(np.int32),
            np.concatenate([block.ids for block in with_rows]),
            np.concatenate([block.keys for block in with_rows]),
            n_features=blocks[0].n_features,
            n_dense=max(block.n_dense for block in blocks),
        )

    def to_scipy(self) -> scipy.sparse.csr_array:
        """Return the rows as a float32 `csr_array`, which shares the memory of a sparse block.

        Zeros of a dense end are entries of it.

        Examples
        --------
        >>> RowBlock.from_array(np.eye(2)).to_scipy().shape
        (2, 2)
        """
        shape = (self.n_rows, self.n_features)
        if self.is_dense:
            return scipy.sparse.csr_array(self.values.reshape(shape))
        indices = self.arrays.indexed.indices
        matrix = scipy.sparse.csr_array((self.values, indices, self.indptr), shape=shape)
        matrix.has_canonical_format = True
        return matrix

    def to_dense(self) -> RowArray:
        """Return the rows as a float32 array, shape (n_rows, n_features).

        Examples
        --------
        >>> RowBlock.from_scipy(scipy.sparse.csr_array([[0, 2]])).to_dense()
        array([[0., 2.]], dtype=float32)
        """
        if self.is_dense:
            return self.values.reshape(self.n_rows, self.n_features)
        dense: RowArray = self.to_scipy().toarray()
        return dense


def check_finite(block: RowBlock) -> None:
    """Raise InvalidInputError, with the first ids and the count, if a value is NaN or infinite.

    Examples
    --------
    >>> block = RowBlock.from_array(np.array([[1.0], [np.nan]]), ids=["a", "b"])
    >>> check_finite(block)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    hmrf_dask.errors.InvalidInputError: every value must be finite (not NaN or infinity, ...
    """
    finite = np.isfinite(block.values)
    if finite.all():
        return
    entries = np.flatnonzero(~finite)
    rows = np.unique(np.searchsorted(block.indptr, entries, side="right") - 1)
    shown = ", ".join(repr(id_) for id_ in block.ids[rows[:_SHOWN]].tolist())
    raise InvalidInputError(
        f"every value must be finite (not NaN or infinity, and below 3.4e38 in float32), got "
        f"{len(entries)} that are not in {len(rows)} rows, the first with ids {shown}; "
        "fix or remove these rows"
    )


def fingerprint(block: RowBlock, first_row: int, *, with_ids: bool = True) -> tuple[int, int]:
    """Return two sums mod 2**64 by which a changed corpus is known, whatever its partitioning.

    The same rows in another order keep the first and change the second. Add the results of all
    blocks mod 2**64, each with the number of its first row in the corpus. Dense and sparse blocks
    of the same numbers agree. Ids that are only row numbers are no content.

    Examples
    --------
    >>> orders = [0, 1], [1, 0]
    >>> first, second = (RowBlock.from_array(np.eye(2)[order], ids=order) for order in orders)
    >>> fingerprint(first, 0)[0] == fingerprint(second, 0)[0]
    True
    >>> fingerprint(first, 0)[1] == fingerprint(second, 0)[1]
    False
    """
    keys = block.keys if with_ids else np.zeros_like(block.keys)
    content, order = _sum_row_hashes(block.arrays, block.values.view(np.uint32), keys, first_row)
    return int(content), int(order)


def _require_alike(blocks: Sequence[RowBlock]) -> None:
    widths = sorted({block.n_features for block in blocks})
    if len(widths) != 1:
        raise InvalidInputError(
            f"blocks must be at least one and of the same number of features, got {len(blocks)} "
            f"blocks with {widths} features; give all rows the same columns"
        )
    kinds = {block.ids.dtype.kind for block in blocks if block.n_rows}
    if len(kinds) > 1:
        raise InvalidInputError(
            "ids must be all strings or all integers, got both; make them alike"
        )
    if len({(block.is_dense, block.n_dense) for block in blocks if block.values.size}) > 1:
        raise InvalidInputError("rows must be all sparse or all dense, got both; convert one kind")


def _taken(entries: AnyArray, ends: LabelArray, rows: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return the entries of some rows, where each row begins in `entries`, and where in these."""
    counts = np.diff(ends)[rows]
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    places = np.arange(begins[-1]) + np.repeat(ends[rows] - begins[:-1], counts)
    return entries[places], begins.astype(np.int32)


def _densified(block: RowBlock) -> RowBlock:
    """Return a block that has no values, hence no kind, as dense rows of zeros."""
    if block.is_dense:
        return block
    values = np.zeros(block.n_rows * block.n_features, np.float32)
    indptr = np.arange(block.n_rows + 1, dtype=np.int32) * np.int32(block.n_features)
    return RowBlock(values, block.indices, indptr, block.ids, block.keys, block.n_features)


@njit(nogil=True, cache=True)
def _mix(z: np.uint64) -> np.uint64:
    """Return splitmix64's finaliser: every bit of the result depends on every bit of z."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(nogil=True, cache=True)
def _sum_row_hashes(
    rows: RowArrays, bits: AnyArray, keys: KeyArray, first_row: int
) -> tuple[np.uint64, np.uint64]:
    golden, half = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)
    content, order = np.uint64(0), np.uint64(0)
    for i in range(rows.indptr.shape[0] - 1):
        entries = np.uint64(0)
        stop, offset = np.uint64(rows.indptr[i + 1]), np.uint64(i * rows.n_dense)
        middle, last = stop - np.uint64(rows.n_dense), stop - np.uint64(rows.n_features)
        for p in range(np.uint64(rows.indptr[i]), middle):
            feature = np.uint64(np.uint32(rows.indices[p - offset]))
            entries += _mix(((feature << half) | np.uint64(bits[p])) + golden)
        for p in range(middle, stop):  # no branches: vector instructions take a sixth of the time
            content_of = np.uint64(bits[p] != 0)  # zeros are none
            entries += content_of * _mix((((p - last) << half) | np.uint64(bits[p])) + golden)
        row = _mix(entries + _mix(keys[i] + golden))
        content += row
        order += _mix(row + _mix(np.uint64(first_row + i) + np.uint64(2) * golden))
    return content, order


def named_rows(block: RowBlock, rows: Sequence[int] | IntArray, most: int = 5) -> str:
    """Return the ids of a few rows for an error text.

    Examples
    --------
    >>> named_rows(RowBlock.from_array(np.eye(3), ids=["a", "b", "c"]), [0, 1, 2], most=2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(repr(value) for value in block.ids[np.asarray(rows)[:most]].tolist())
    return shown + (f" and {len(rows) - most} more" if len(rows) > most else "")


_ROWS_TRIED = 64  # before all entries are counted


class Survey(NamedTuple):
    """What one pass over the entries of a block finds.

    A mass of 0 is a row of zeros; one that is not finite has an entry that is not, as float32
    cannot overflow it.
    """

    minimum: RowArray  # by feature, zeros of sparse rows included; inf and -inf without rows
    maximum: RowArray
    total: FloatArray  # Σ x of each row, added in the order of its entries, as is the mass
    mass: FloatArray  # Σ |x|


def survey(block: RowBlock) -> Survey:
    """Return the facts of a block; 1 ns an entry.

    Examples
    --------
    >>> facts = survey(RowBlock.from_array(np.array([[1.0, -2.0], [3.0, 0.0]])))
    >>> facts.minimum.tolist(), facts.total.tolist(), facts.mass.tolist()
    ([1.0, -2.0], [-1.0, 3.0], [3.0, 3.0])
    """
    ranges = _empty_ranges(block)
    rows = np.zeros((2, block.n_rows))
    _survey(block.arrays, ranges, rows)
    return Survey(ranges[:, 0].copy(), ranges[:, 1].copy(), rows[0], rows[1])


def _empty_ranges(block: RowBlock) -> RowArray:
    """Return least and greatest value by feature before any entry: 0 where some row has none."""
    ranges = np.zeros((block.n_features, 2), np.float32)
    if block.is_dense or not block.n_rows:
        ranges[:] = np.inf, -np.inf
    else:
        ranges[_features_of_all_rows(block)] = np.inf, -np.inf
        ranges[block.n_features - block.n_dense :] = np.inf, -np.inf
    return ranges


def _features_of_all_rows(block: RowBlock) -> AnyArray:
    """Return features with an index that no row lacks; of text a few rows leave none."""
    ends = block.index_ends
    shared = block.indices[: ends[1]]
    for i in range(1, min(block.n_rows, _ROWS_TRIED)):
        if not shared.size:
            return shared
        row = block.indices[ends[i] : ends[i + 1]]
        shared = np.intersect1d(shared, row, assume_unique=True)
    if shared.size:
        counts = np.bincount(block.indices, minlength=block.n_features)
        shared = shared[counts[shared] == block.n_rows]
    return shared


@inner(inline="always")
def _widen(ranges: RowArray, m: Any, value: Any) -> None:
    """Count a value in; no branches; least and greatest are neighbours in the cache."""
    ranges[m, 0] = min(ranges[m, 0], value)
    ranges[m, 1] = max(ranges[m, 1], value)


@njit(nogil=True, cache=True)
def _survey(rows: RowArrays, ranges: RowArray, out: FloatArray) -> None:
    n_dense = rows.n_dense
    for i in range(out.shape[1]):
        start, stop = np.int64(rows.indptr[i]), np.int64(rows.indptr[i + 1])
        middle, offset = stop - n_dense, i * n_dense
        features = rows.indices[start - offset : middle - offset]
        row, end = rows.values[start:middle], rows.values[middle:stop]
        last = ranges[rows.n_features - n_dense :]
        total = mass = 0.0
        for p in range(row.shape[0]):
            x = np.float64(row[p])
            total += x
            mass += abs(x)
            _widen(ranges, np.uint32(features[p]), row[p])
        for p in range(end.shape[0]):
            x = np.float64(end[p])
            total += x
            mass += abs(x)
            _widen(last, p, end[p])
        out[0, i] = total
        out[1, i] = mass
