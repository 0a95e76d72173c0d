"""Products of rows with a basis, y = x · V, and Σ x yᵀ over rows in int64 fixed point.

y of a row depends on that row alone and every column of V on itself alone; integers add up to the
same bits in any order. So neither partitions nor strips of columns show in the results.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from hmrf_dask.kernels.compiled import RowArrays, feature_of, njit
from hmrf_dask.kernels.products import Columns, aligned, layout, multiply_row
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.types import FloatArray, IntArray, RowArray, Sized

ROUNDER = 1.5 * 2.0**52  # x + ROUNDER holds the nearest integer to x in its last bits
ROUNDER_BITS = int(np.float64(ROUNDER).view(np.int64))
LEAST_ROWS = 2**11  # as if there were so many: a summand stays below 2**51, where ROUNDER is exact


class Basis(Sized):
    """Columns that rows are multiplied with, (d, n), laid out for kernels once in a process."""

    def __init__(self, vectors: FloatArray) -> None:
        self.vectors = vectors
        self._columns: Columns | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Basis], tuple[FloatArray]]:
        """Leave behind what is made again faster than it travels."""
        return Basis, (self.vectors,)

    def sized_values(self) -> tuple[FloatArray, FloatArray]:
        """Return the vectors, and as much again for their layout."""
        return self.vectors, self.vectors

    @property
    def columns(self) -> Columns:
        """The vectors as `multiply_row` reads them, one column of zeros after them."""
        with self._lock:
            if self._columns is None:
                n_features, n_columns = self.vectors.shape
                width, registers = layout(n_columns + 1, np.float64)
                table = aligned((n_features, width), np.float64)
                table[:, :n_columns] = self.vectors
                self._columns = Columns(table, registers)
            return self._columns


def sketch_exponent(n_rows: int, bound: float) -> int:
    """Return e so that n_rows summands of size `bound`, times 2**e, are rounded and added right."""
    return fixed_point_exponent(max(n_rows, LEAST_ROWS), bound)


def power_below(size: float) -> float:
    """Return the largest power of two that is not above `size`, 1 for zero.

    Examples
    --------
    >>> power_below(0.3), power_below(8.0), power_below(0.0)
    (0.25, 8.0, 1.0)
    """
    return 2.0 ** math.floor(math.log2(size)) if size > 0.0 else 1.0


@njit(nogil=True, cache=True, makes_arrays=False)
def _add_sketch(
    rows: RowArrays, columns: Columns, unit: Any, constant: Any, buffers: Any, out: RowArray
) -> None:
    scaled, shifted, bits = buffers
    last = out.shape[1] - 1
    for i in range(rows.indptr.shape[0] - 1):
        multiply_row(rows, i, columns, scaled)
        scaled[last] = constant
        for c in range(out.shape[1]):
            scaled[c] *= unit
        for p in range(np.int64(rows.indptr[i]), np.int64(rows.indptr[i + 1])):
            m = feature_of(rows, i, p)
            x = np.float64(rows.values[p])
            target = out[m]
            # Two loops that vectors can do: machines convert few floats to integers at a time.
            for c in range(out.shape[1]):
                shifted[c] = x * scaled[c] + ROUNDER
            for c in range(out.shape[1]):
                target[c] += bits[c] - ROUNDER_BITS


def add_sketch(
    rows: RowArrays, basis: Basis, exponent: int, constant: float, out: IntArray
) -> None:
    """Add Σ_i x_im y_ic 2**exponent to `out`, shape (d, n + 1), every summand rounded.

    The exponent is `sketch_exponent` of all rows and the largest |x_im y_ic|. The constant stands
    for y in the last column, which gets the sums of features by it.
    """
    columns = basis.columns
    scaled = aligned((columns.table.shape[1],), np.float64)
    shifted = np.empty(out.shape[1])
    buffers = scaled, shifted, shifted.view(np.int64)  # the same bytes, as numbers and as integers
    _add_sketch(rows, columns, 2.0**exponent, float(constant), buffers, out)


@njit(nogil=True, cache=True, makes_arrays=False)
def _project(
    rows: RowArrays, columns: Columns, normalised: bool, found: FloatArray, out: RowArray
) -> None:
    for i in range(out.shape[0]):
        multiply_row(rows, i, columns, found)
        factor = 1.0
        if normalised:
            squares = 0.0
            for c in range(out.shape[1]):
                squares += found[c] * found[c]
            if squares > 0.0:
                factor = 1.0 / math.sqrt(squares)
        for c in range(out.shape[1]):
            out[i, c] = np.float32(found[c] * factor)


def project(rows: RowArrays, basis: Basis, *, normalised: bool) -> RowArray:
    """Return the products of rows with a basis, float32, shape (n_rows, n).

    `normalised` ones have length 1, where they are not zero.
    """
    columns = basis.columns
    out = np.empty((rows.n_rows, basis.vectors.shape[1]), np.float32)
    found = aligned((columns.table.shape[1],), np.float64)
    _project(rows, columns, normalised, found, out)
    return out
