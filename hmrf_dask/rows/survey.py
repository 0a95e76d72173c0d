"""What one pass over a block's entries tells: range by feature, sum and mass by row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import njit
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import AnyArray, FloatArray, RowArray

_ROWS_TRIED = 64  # before all entries are counted


class Survey(NamedTuple):
    """Facts of a block's rows and features.

    Attributes
    ----------
    minimum, maximum : float32 arrays, shape (n_features,)
        Zeros of sparse rows included; inf and -inf where there are no rows.
    total, mass : float64 arrays, shape (n_rows,)
        Σ x and Σ |x| of each row, added in the order of its entries. A mass of 0 is a row of zeros;
        one that is not finite has an entry that is not, as float32 cannot overflow it.
    """

    minimum: RowArray
    maximum: RowArray
    total: FloatArray
    mass: FloatArray


def survey(block: RowBlock) -> Survey:
    """Return the facts of a block; 1 ns an entry.

    Examples
    --------
    >>> import numpy as np
    >>> from hmrf_dask.rows.block import RowBlock
    >>> from hmrf_dask.rows.survey import survey
    >>> found = survey(RowBlock.from_array(np.array([[1.0, -2.0], [3.0, 0.0]])))
    >>> found.minimum.tolist(), found.total.tolist(), found.mass.tolist()
    ([1.0, -2.0], [-1.0, 3.0], [3.0, 3.0])
    """
    ranges = _empty_ranges(block)
    rows = np.zeros((2, block.n_rows))
    _survey(block.values, block.indices, block.indptr, block.is_dense, ranges, rows)
    return Survey(ranges[:, 0].copy(), ranges[:, 1].copy(), rows[0], rows[1])


def _empty_ranges(block: RowBlock) -> RowArray:
    """Return least and greatest value by feature before any entry: 0 where some row has none."""
    ranges = np.zeros((block.n_features, 2), np.float32)
    if block.is_dense or not block.n_rows:
        ranges[:] = np.inf, -np.inf
    else:
        ranges[_features_of_all_rows(block)] = np.inf, -np.inf
    return ranges


def _features_of_all_rows(block: RowBlock) -> AnyArray:
    """Return the features that no row of a sparse block lacks; of text a few rows leave none."""
    shared = block.indices[: block.indptr[1]]
    for i in range(1, min(block.n_rows, _ROWS_TRIED)):
        if not shared.size:
            return shared
        row = block.indices[block.indptr[i] : block.indptr[i + 1]]
        shared = np.intersect1d(shared, row, assume_unique=True)
    if shared.size:
        counts = np.bincount(block.indices, minlength=block.n_features)
        shared = shared[counts[shared] == block.n_rows]
    return shared


@njit(nogil=True, cache=True)
def _survey(values, indices, indptr, dense, ranges, out):  # type: ignore[no-untyped-def]
    for i in range(out.shape[1]):
        start = np.uint32(indptr[i])
        total = 0.0
        mass = 0.0
        for p in range(start, np.uint32(indptr[i + 1])):
            value = values[p]
            # Unsigned, or every access would ask whether to count from the end.
            m = np.uint32(p - start) if dense else np.uint32(indices[p])
            x = np.float64(value)
            total += x
            mass += abs(x)
            # No branches: least and greatest lie side by side in the cache.
            ranges[m, 0] = min(ranges[m, 0], value)
            ranges[m, 1] = max(ranges[m, 1], value)
        out[0, i] = total
        out[1, i] = mass
