"""What kernels take: rows and their terms as plain arrays, in the one form code is compiled for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import inner
from hmrf_dask.types import AnyArray, FloatArray, LabelArray, RowArray


def frozen(array: AnyArray, dtype: type[np.generic]) -> Any:
    """Return a read-only contiguous view (or copy) of `dtype`.

    Arrays that come out of a message are read-only, new ones are not; numba would compile every
    mixture again.
    """
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view


class RowArrays(NamedTuple):
    """Rows, sparse or dense: entry p of row i is feature p − indptr[i] where they are dense.

    Attributes
    ----------
    values : float32 array, shape (n_values,)
    indices : int32 array, shape (n_values,), or (0,) where rows are dense
    indptr : int32 array, shape (n_rows + 1,)
    dense : bool
    n_features : int
    """

    values: RowArray
    indices: LabelArray
    indptr: LabelArray
    dense: bool
    n_features: int

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1


class Terms(NamedTuple):
    """What the kernels know of each row under the present weights.

    Arrays of shape (n_rows,), or (1,) where all rows share the number.
    """

    offset: FloatArray
    scale: FloatArray
    shift: FloatArray
    norm: FloatArray  # norm of the row (see `Table.weights`), |scale| included, or more
    mass: FloatArray  # sum of absolute values of the row, |scale| included, or more
    factor: FloatArray  # the summand is factor · f∘x + extra · f, f the distortion's factors
    extra: FloatArray
    size: FloatArray  # of the row's own part of a distance: float64 rounding is relative to it


def spread(term: FloatArray, n_rows: int) -> FloatArray:
    """Return one of the `Terms` with a number for every row."""
    return np.ascontiguousarray(np.broadcast_to(term, n_rows))


def frozen_terms(terms: Terms) -> Terms:
    """Return the terms in the one form the kernels are compiled for."""
    return Terms(*(frozen(term, np.float64) for term in terms))


@inner(inline="always")
def of_row(term, i):  # type: ignore[no-untyped-def]
    """Return the number of a row, or the one that all rows share."""
    return term[min(i, term.shape[0] - 1)]


@inner()
def find(values, value):  # type: ignore[no-untyped-def]
    """Return where `value` stands in sorted `values`, -1 when it does not."""
    low = 0
    high = values.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    if low < values.shape[0] and values[low] == value:
        return low
    return -1
