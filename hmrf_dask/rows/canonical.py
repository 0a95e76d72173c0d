"""Matrices of any format and dtype to the one form that rows are kept in."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.kernels.compiled import njit
from hmrf_dask.types import AnyArray, RowArray

LARGEST_INT32 = int(np.iinfo(np.int32).max)
_SORTED, _UNSORTED, _BROKEN = 0, 1, 2


def require_matrix(matrix: Any) -> None:
    """Refuse what is not two-dimensional or not of real numbers, in scikit-learn's words."""
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
    if matrix.dtype.kind == "c":
        raise InvalidInputError("Complex data not supported: rows must be of real numbers")
    if matrix.dtype.kind not in "biuf":
        raise InvalidInputError(
            f"rows must be of real numbers, got dtype {matrix.dtype}; use astype(float)"
        )


def as_float32(values: AnyArray) -> RowArray:
    """Return contiguous float32 values; too large ones become inf, which `check_finite` finds."""
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
    """
    require_int32(n_features, "the number of features")
    values, indices, indptr = _whole_rows(values, indices, indptr)
    state = _csr_state(indptr, indices, n_features)
    if state == _BROKEN:
        raise InvalidInputError(
            f"feature numbers must lie in 0..{n_features - 1} and row pointers must ascend, "
            "got a sparse matrix that breaks this; rebuild it and call its check_format()"
        )
    if state == _UNSORTED:
        values, indices, indptr = _sum_duplicates(values, indices, indptr, n_features)
    values = as_float32(values)
    if np.count_nonzero(values) < len(values):
        values, indices, indptr = _drop_zeros(values, indices, indptr)
    return values, indices, indptr


def require_int32(count: int, what: str) -> None:
    """Refuse what one block's int32 row pointers and feature numbers cannot hold."""
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


@njit(nogil=True, cache=True)
def _csr_state(indptr, indices, n_features):  # type: ignore[no-untyped-def]
    state = _SORTED
    if indptr[indptr.shape[0] - 1] != indices.shape[0]:
        return _BROKEN
    for i in range(indptr.shape[0] - 1):
        if indptr[i + 1] < indptr[i] or indptr[i + 1] > indices.shape[0]:
            return _BROKEN
        last = -1
        for p in range(indptr[i], indptr[i + 1]):
            m = indices[p]
            if m < 0 or m >= n_features:
                return _BROKEN
            if m <= last:
                state = _UNSORTED
            last = m
    return state


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
