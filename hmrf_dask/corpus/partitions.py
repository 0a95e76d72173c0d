"""What the tasks of a corpus do: chunks to blocks, blocks cut and joined; it knows no Dask."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse import issparse

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.parameters import check_count
from hmrf_dask.redaction import shortened
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.canonical import as_ids, hash_ids
from hmrf_dask.types import AnyArray, KeyArray

PARTITIONS = 64
LEAST_ROWS, LEAST_BYTES = 2**13, 2**23
PARTITION_ROWS = 2**16
EVEN = 4  # partitions come in multiples of it: threads that share them end together
_SHOWN = 10


def even_bounds(n_rows: int, n_partitions: int) -> list[int]:
    """Return the bounds of partitions of equal numbers of rows, give or take one.

    Examples
    --------
    >>> even_bounds(10, 3)
    [0, 3, 6, 10]
    """
    check_count("n_partitions", n_partitions)
    return [n_rows * i // n_partitions for i in range(n_partitions + 1)]


def bounds_by_bytes(matrix: Any, partition_bytes: int) -> list[int]:
    """Return bounds of partitions of about equal bytes, `PARTITIONS` of them where rows allow.

    That many keep 16 threads busy to the end of a pass. Partitions have at least `LEAST_ROWS` rows
    and `LEAST_BYTES` bytes on average, as each costs something of its own, or a little less where
    that makes their number a multiple of `EVEN`; and at most `partition_bytes` bytes and
    `PARTITION_ROWS` rows.

    Examples
    --------
    >>> bounds_by_bytes(np.ones((5, 2)), partition_bytes=16)
    [0, 2, 4, 5]
    """
    check_count("partition_bytes", partition_bytes)
    n_rows, n_features = matrix.shape
    dense = isinstance(matrix, np.ndarray)
    ends = np.arange(n_rows + 1) * n_features if dense else matrix.indptr
    each = 4 if dense else 8  # bytes
    n_entries = int(ends[-1]) - int(ends[0])
    wanted = max(1, min(PARTITIONS, n_rows // LEAST_ROWS, each * n_entries // LEAST_BYTES))
    wanted = wanted if wanted == 1 else -(-wanted // EVEN) * EVEN
    bounds = [0]
    while bounds[-1] < n_rows or len(bounds) == 1:
        start = bounds[-1]
        here, left = int(ends[start]), max(wanted - len(bounds) + 1, 1)
        share = int(np.searchsorted(ends, here + (int(ends[-1]) - here) // left, "right")) - 1
        fitting = int(np.searchsorted(ends, here + partition_bytes // each, side="right")) - 1
        stop = max(start + 1, min(share, fitting, start + PARTITION_ROWS))
        bounds.append(min(stop, n_rows))
    return bounds


def slice_block(matrix: Any, start: int, stop: int, ids: AnyArray | None) -> RowBlock:
    """Return rows start..stop-1 of a CSR or dense matrix, or block, that shares its memory.

    Examples
    --------
    >>> slice_block(np.eye(3), 1, 3, None).ids.tolist()
    [1, 2]
    """
    if isinstance(matrix, np.ndarray):
        return RowBlock.from_array(matrix[start:stop], ids, start)
    if isinstance(matrix, RowBlock):
        own = as_ids(ids, stop - start, start)
        return replace(matrix.rows(start, stop), ids=own, keys=hash_ids(own))
    parts = (matrix.data, matrix.indices, matrix.indptr[start : stop + 1])
    return RowBlock.from_csr(*parts, int(matrix.shape[1]), ids, start)


def joined_chunks(chunks: list[Any], partition: int) -> Any:
    """Put the chunks of one row of chunks side by side.

    Examples
    --------
    >>> joined_chunks([np.zeros((2, 1)), np.ones((2, 2))], partition=0).tolist()
    [[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
    """
    sparse = [issparse(chunk) for chunk in chunks]
    plain = [isinstance(chunk, np.ndarray) for chunk in chunks]
    if not (all(sparse) or all(plain)) or len({chunk.shape[0] for chunk in chunks}) != 1:
        got = ", ".join(f"{type(c).__name__} {getattr(c, 'shape', '')}" for c in chunks)
        raise InvalidInputError(
            f"the chunks of partition {partition} must be all scipy sparse or all ndarrays, with "
            f"the same rows, got {got}; convert them with map_blocks"
        )
    if len(chunks) == 1:
        return chunks[0]
    return scipy.sparse.hstack(chunks, format="csr") if all(sparse) else np.hstack(chunks)


def chunk_shape(chunks: list[Any], partition: int) -> tuple[int, int]:
    """Return the rows and features of chunks that lie side by side.

    Examples
    --------
    >>> chunk_shape([np.zeros((2, 1)), np.ones((2, 2))], partition=0)
    (2, 3)
    """
    n_rows, n_features = joined_chunks(chunks, partition).shape
    return n_rows, n_features


def block_of_chunks(
    chunks: list[Any], ids: Any, first_row: int, shape: tuple[int, int], partition: int
) -> RowBlock:
    """Return the block of chunks that lie side by side; errors name the partition.

    Examples
    --------
    >>> block_of_chunks([np.eye(2)], None, 7, (2, 2), partition=1).ids.tolist()
    [7, 8]
    """
    matrix = joined_chunks(chunks, partition)
    _require_shape(matrix.shape, shape, partition)
    make = RowBlock.from_scipy if issparse(matrix) else RowBlock.from_array
    try:
        return make(matrix, ids, first_row)
    except InvalidInputError as error:
        raise InvalidInputError(f"partition {partition}: {error}") from error


def checked_block(
    block: RowBlock, shape: tuple[int, int], partition: int, first_row: int | None
) -> RowBlock:
    """Return a block that has the shape it must have, numbered again from `first_row`.

    Examples
    --------
    >>> checked_block(RowBlock.from_array(np.eye(2)), (2, 2), 1, first_row=7).ids.tolist()
    [7, 8]
    """
    _require_shape((block.n_rows, block.n_features), shape, partition)
    if first_row is None:
        return block
    ids = as_ids(None, block.n_rows, first_row)
    return replace(block, ids=ids, keys=hash_ids(ids))


def _require_shape(got: tuple[int, ...], wanted: tuple[int, int], partition: int) -> None:
    if tuple(got) != wanted:
        raise InvalidInputError(
            f"partition {partition} must have {wanted[0]} rows of {wanted[1]} features, got "
            f"{got[0]} rows of {got[1]}; give all partitions the same columns and their true sizes"
        )


def one_width(widths: Sequence[float]) -> int:
    """Return the number of features that all partitions must share.

    Examples
    --------
    >>> one_width([3, 3])
    3
    >>> one_width([3, 4])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    hmrf_dask.errors.InvalidInputError: all partitions must have the same columns, got 3 ...
    """
    differing = [i for i, width in enumerate(widths) if width != widths[0]]
    if differing:
        raise InvalidInputError(
            f"all partitions must have the same columns, got {widths[0]} features in partition 0 "
            f"but {widths[differing[0]]} in partition {differing[0]} (differing: "
            f"{shortened(differing)}); give all rows the same columns"
        )
    return int(widths[0])


def overlaps(
    start: int, stop: int, offsets: Sequence[int]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the partitions that hold rows start..stop-1, and which of each; none: none of 0.

    Examples
    --------
    >>> overlaps(1, 4, offsets=[0, 3, 6])
    ([0, 1], [(1, 3), (0, 1)])
    """
    places, ranges = [], []
    for place in range(max(0, bisect_right(offsets, start) - 1), bisect_left(offsets, stop)):
        first, last = max(start, offsets[place]), min(stop, offsets[place + 1])
        if first < last:
            places.append(place)
            ranges.append((first - offsets[place], last - offsets[place]))
    return places or [0], ranges or [(0, 0)]


def join_rows(blocks: list[RowBlock], ranges: list[tuple[int, int]]) -> RowBlock:
    """Return one block of row ranges of several.

    Examples
    --------
    >>> blocks = [RowBlock.from_array(np.eye(3)), RowBlock.from_array(np.eye(3), first_row=3)]
    >>> join_rows(blocks, [(1, 3), (0, 1)]).ids.tolist()
    [1, 2, 3]
    """
    # concatenate copies, so that a slice does not keep the whole block it came from alive.
    pairs = zip(blocks, ranges, strict=True)
    return RowBlock.concatenate([block.rows(start, stop) for block, (start, stop) in pairs])


def keys_in_bucket(block: RowBlock, bucket: int, n_buckets: int) -> KeyArray:
    """Return the keys that fall into one of some buckets.

    Examples
    --------
    >>> keys_in_bucket(RowBlock.from_array(np.eye(3)), bucket=0, n_buckets=2).tolist()
    [0, 2]
    """
    keys: KeyArray = block.keys[block.keys % np.uint64(n_buckets) == bucket]
    return keys


def repeated_keys(parts: list[KeyArray]) -> KeyArray:
    """Return the first few keys that occur more than once; an answer names a few ids, not all.

    Examples
    --------
    >>> repeated_keys([np.array([1, 2], np.uint64), np.array([2, 3], np.uint64)]).tolist()
    [2]
    """
    keys = np.sort(np.concatenate(parts))
    return np.unique(keys[1:][keys[1:] == keys[:-1]])[:_SHOWN]


def ids_with_keys(block: RowBlock, keys: KeyArray) -> dict[str | int, int]:
    """Return how many rows have each id whose key is among `keys`.

    Examples
    --------
    >>> block = RowBlock.from_array(np.eye(3), ids=[7, 8, 7])
    >>> ids_with_keys(block, np.array([7], np.uint64))
    {7: 2}
    """
    return dict(Counter(block.ids[np.isin(block.keys, keys)].tolist()))
