"""Rows in canonical form, whatever they came in: sorted, finite, with ids and keys."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.parameters import LARGEST_INT32
from hmrf_dask.types import AnyArray, KeyArray, RowArray


def as_ids(ids: ArrayLike | None, n_rows: int, first_row: int = 0) -> AnyArray:
    """Return ids as an int64 or str array; without ids the row numbers from `first_row` on.

    Examples
    --------
    >>> as_ids(["a", "b"], 2).tolist(), as_ids(None, 2, first_row=5).tolist()
    (['a', 'b'], [5, 6])
    """
    if ids is None:
        return np.arange(first_row, first_row + n_rows, dtype=np.int64)
    array = _one_each(ids, n_rows)
    if array.dtype.kind in "OT":
        array = _ids_of_objects(array.tolist(), first_row)
    if array.dtype.kind == "u" and np.any(array > np.iinfo(np.int64).max):
        raise InvalidInputError("integer ids must be below 2**63; give them as strings")
    if array.dtype.kind not in "iuU":
        raise InvalidInputError(
            f"ids must be strings or integers, got dtype {array.dtype}; use astype(str)"
        )
    return array if array.dtype.kind == "U" else array.astype(np.int64, copy=False)


def hash_ids(ids: AnyArray) -> KeyArray:
    """Return blake2b-64 of string ids (of their UTF-8, little endian), integer ids as they are.

    Examples
    --------
    >>> hash_ids(np.array([7, 3]))
    array([7, 3], dtype=uint64)
    """
    if ids.dtype.kind != "U":
        return ids.astype(np.int64, copy=False).view(np.uint64)
    try:
        digests = [blake2b(id_.encode(), digest_size=8).digest() for id_ in ids.tolist()]
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"ids must be valid Unicode, got {error.object!r} with a lone surrogate; fix this id"
        ) from None
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64, copy=False)


def _one_each(ids: ArrayLike, n_rows: int) -> AnyArray:
    array = ids if isinstance(ids, np.ndarray) else np.asarray(ids, dtype=object)
    if array.shape != (n_rows,):
        raise InvalidInputError(
            f"ids must be one for each of the {n_rows} rows, got shape {array.shape}; "
            "give a list or a 1-D array as long as the rows"
        )
    return array


def _ids_of_objects(ids: list[Any], first_row: int) -> AnyArray:
    kinds: tuple[type, ...] = (str,) if ids and isinstance(ids[0], str) else (int, np.integer)
    for position, id_ in enumerate(ids):
        if not isinstance(id_, kinds) or isinstance(id_, bool):
            raise InvalidInputError(
                f"ids must be all strings or all integers, got {id_!r} in row "
                f"{first_row + position}; convert them with astype(str)"
            )
        if isinstance(id_, str) and id_.endswith("\0"):
            raise InvalidInputError(f"ids must not end in a NUL character, got {id_!r}; fix it")
    if kinds == (str,):
        return np.array(ids, dtype=np.str_)
    try:
        return np.array(ids, dtype=np.int64)
    except OverflowError:
        raise InvalidInputError("integer ids must be below 2**63; give them as strings") from None


def id_slices(ids: ArrayLike, offsets: Sequence[int]) -> list[AnyArray]:
    """Cut ids in memory at the bounds of partitions.

    Examples
    --------
    >>> [part.tolist() for part in id_slices(["a", "b", "c"], [0, 2, 3])]
    [['a', 'b'], ['c']]
    """
    array = _one_each(ids, offsets[-1])
    slices = [as_ids(array[start:stop], stop - start, start) for start, stop in pairwise(offsets)]
    if len({part.dtype.kind for part in slices if part.size}) > 1:
        raise InvalidInputError(
            "ids must be all strings or all integers, got both; convert them with astype(str)"
        )
    return slices


def require_matrix(matrix: Any) -> None:
    """Refuse what is not two-dimensional or not of real numbers, in scikit-learn's words.

    Examples
    --------
    >>> require_matrix([[1.0]])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    hmrf_dask.errors.InvalidInputError: Expected 2D array, got list instead; give a matrix ...
    """
    if not hasattr(matrix, "ndim") or not hasattr(matrix, "dtype"):
        raise InvalidInputError(
            f"Expected 2D array, got {type(matrix).__name__} instead; give a matrix or an array"
        )
    if matrix.ndim < 2:
        kind = "scalar" if matrix.ndim == 0 else "1D"
        raise InvalidInputError(
            f"Expected 2D array, got {kind} array instead, shape {tuple(matrix.shape)}. Reshape "
            "your data either using array.reshape(-1, 1) if your data has a single feature or "
            "array.reshape(1, -1) if it contains a single sample."
        )
    if matrix.ndim > 2:
        raise InvalidInputError(
            f"Found array with dim {matrix.ndim}, expected 2: rows must be documents and columns "
            "features; reshape the data"
        )
    require_numbers(matrix.dtype)


def require_numbers(dtype: Any) -> None:
    """Refuse a type of values that are no real numbers: dates and texts can be cast to some.

    Examples
    --------
    >>> require_numbers(np.dtype("datetime64[D]"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    hmrf_dask.errors.InvalidInputError: rows must be of real numbers, got dtype ...
    """
    if dtype.kind == "c":
        raise InvalidInputError("Complex data not supported: rows must be of real numbers")
    if dtype.kind not in "biuf":
        raise InvalidInputError(
            f"rows must be of real numbers, got dtype {dtype!s:.80}; use astype(float)"
        )


def as_float32(values: AnyArray) -> RowArray:
    """Return contiguous float32 values; too large ones become inf, which `check_finite` finds.

    Examples
    --------
    >>> as_float32(np.array([1, 2]))
    array([1., 2.], dtype=float32)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if values.dtype.kind in "iu" or values.dtype.itemsize > 8:
            # One way of rounding, whether a row's duplicates had to be summed in float64 or not.
            values = values.astype(np.float64)
        return np.ascontiguousarray(values, dtype=np.float32)


def canonical_csr(
    values: AnyArray, indices: AnyArray, indptr: AnyArray, n_features: int
) -> tuple[RowArray, AnyArray, AnyArray]:
    """Return the arrays of a CSR matrix with sorted rows, no duplicates and no zeros.

    The arrays given are never modified; where they are in that form, they are returned as they are.

    Examples
    --------
    >>> values, indices, indptr = np.array([3, 2, 4]), np.array([1, 0, 1]), np.array([0, 3])
    >>> [part.tolist() for part in canonical_csr(values, indices, indptr, n_features=2)]
    [[2.0, 7.0], [0, 1], [0, 2]]
    """
    require_int32(n_features, "the number of features")
    values, indices, indptr = _whole_rows(values, indices, indptr)
    if not is_csr(indices, indptr, n_features):
        raise InvalidInputError(
            f"feature numbers must lie in 0..{n_features - 1} and row pointers must ascend, "
            "got a sparse matrix that breaks this; rebuild it and call its check_format()"
        )
    if not is_sorted(indices, indptr):
        values, indices, indptr = _sum_duplicates(values, indices, indptr, n_features)
    values = as_float32(values)
    if np.any(values == 0):
        values, indices, indptr = _drop_zeros(values, indices, indptr)
    return values, indices, indptr


def sound_csr(matrix: Any) -> Any:
    """Return a sparse matrix as CSR, refused where its numbers leave its shape.

    The compiled loops that turn one format into another trust them.

    Examples
    --------
    >>> sound_csr(scipy.sparse.coo_array([[0, 2]])).format
    'csr'
    """
    with contextlib.suppress(ValueError, TypeError, AttributeError, IndexError, OverflowError):
        if matrix.format == "dok":
            matrix = matrix.tocoo()
        if _is_sound(matrix) and ((csr := matrix.tocsr()) is matrix or _is_sound(csr)):
            return csr
    raise InvalidInputError(
        f"the numbers of a {matrix.format.upper()} matrix must lie within its shape "
        f"{tuple(matrix.shape)} and its pointers must ascend, got others; rebuild it and call "
        "its check_format()"
    )


def _is_sound(matrix: Any) -> bool:
    if matrix.ndim != 2:
        return True  # the caller refuses it by its shape
    rows, columns = matrix.shape
    if min(rows, columns) < 0:
        return False
    if matrix.format == "coo":
        ends = zip(matrix.coords, (rows, columns), strict=True)
        n_values = len(matrix.data)
        return all(_lie_below(places, n) and len(places) == n_values for places, n in ends)
    if matrix.format not in ("csr", "csc", "bsr"):
        return True
    major, minor = (columns, rows) if matrix.format == "csc" else (rows, columns)
    if matrix.format == "bsr":
        height, width = matrix.data.shape[1:]
        if rows % height or columns % width:
            return False
        major, minor = rows // height, columns // width
    numbers, pointers = matrix.indices, matrix.indptr
    return (
        numbers.dtype.kind in "iu"
        and pointers.dtype.kind in "iu"
        and len(pointers) == major + 1
        and len(matrix.data) >= len(numbers) >= pointers[-1]
        and is_csr(numbers[: pointers[-1]], pointers, minor)
    )


def _lie_below(numbers: AnyArray, size: int) -> bool:
    whole = numbers.dtype.kind in "iu"
    return whole and (not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < size))


def is_csr(indices: AnyArray, indptr: AnyArray, n_features: int) -> bool:
    """Whether row pointers ascend over exactly these entries, and features lie in 0..n_features-1.

    What a kernel may read without leaving the arrays; it says nothing of the order within rows.

    Examples
    --------
    >>> is_csr(np.array([0, 2]), np.array([0, 2]), n_features=3)
    True
    >>> is_csr(np.array([0, 3]), np.array([0, 2]), n_features=3)
    False
    """
    if indptr[0] != 0 or indptr[-1] != len(indices) or np.any(indptr[1:] < indptr[:-1]):
        return False
    return _lie_below(indices, n_features)


def is_sorted(indices: AnyArray, indptr: AnyArray) -> bool:
    """Whether the features of every row of a CSR matrix ascend without duplicates.

    Falls are counted over all entries, then where rows begin: those are no falls within a row.

    Examples
    --------
    >>> is_sorted(np.array([0, 2, 1]), np.array([0, 2, 3]))
    True
    >>> is_sorted(np.array([2, 0]), np.array([0, 2]))
    False
    """
    falls = np.count_nonzero(indices[1:] <= indices[:-1])
    begins = indptr[:-1][indptr[:-1] < indptr[1:]][1:]  # of rows with entries, but for the first
    return bool(falls == np.count_nonzero(indices[begins] <= indices[begins - 1]))


def require_int32(count: int, what: str) -> None:
    """Refuse what one block's int32 row pointers and feature numbers cannot hold.

    Examples
    --------
    >>> require_int32(2**31, "the number of features")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    hmrf_dask.errors.InvalidInputError: the number of features must be at most 2147483647 ...
    """
    if count > LARGEST_INT32:
        raise InvalidInputError(
            f"{what} must be at most {LARGEST_INT32} (2**31 - 1), got {count}; use more partitions"
        )


def _whole_rows(
    values: AnyArray, indices: AnyArray, indptr: AnyArray
) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Cut the arrays to what the row pointers name, rebased to 0."""
    first, last = int(indptr[0]), int(indptr[-1])
    require_int32(last - first, "the number of values of a partition")
    if not 0 <= first <= last <= min(len(values), len(indices)):
        first, last = 0, 0  # the row pointers are broken: the check of the caller will say so
    return values[first:last], indices[first:last], indptr - indptr[0]


def _sum_duplicates(
    values: AnyArray, indices: AnyArray, indptr: AnyArray, n_features: int
) -> tuple[AnyArray, AnyArray, AnyArray]:
    # Booleans keep their own sum (or); all others are summed wide, so that nothing wraps round.
    wide = values.copy() if values.dtype.kind == "b" else values.astype(np.float64)
    parts = (wide, indices.copy(), indptr.copy())
    matrix = scipy.sparse.csr_array(parts, shape=(len(indptr) - 1, n_features))
    matrix.has_canonical_format = False
    matrix.sum_duplicates()
    return matrix.data, matrix.indices, matrix.indptr


def _drop_zeros(
    values: RowArray, indices: AnyArray, indptr: AnyArray
) -> tuple[RowArray, AnyArray, AnyArray]:
    kept = values != 0
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
    return values[kept], indices[kept], before[indptr]
