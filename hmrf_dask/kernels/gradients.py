"""The part of the weight gradient that needs the rows: Σ_i c_i z_im², c_i a similarity.

With S_h the sum of rows of cluster h at its own optimum (KDD eq. 19 summed over the cluster,
negated, in log a)

    ∂‖S_h‖/∂log a_m = ½ S_hm²/‖S_h‖ − ½ Σ_{i∈h} s_i z_im²,   s_i = z_i · S_h/‖S_h‖:

the first part comes from the M-step sums, this module adds up the second.
"""

from __future__ import annotations

import numpy as np

from hmrf_dask.kernels.compiled import njit
from hmrf_dask.kernels.distances import Terms
from hmrf_dask.kernels.links import frozen
from hmrf_dask.kernels.products import entries
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import AnyArray, FloatArray, IntArray

Compressed = tuple[AnyArray, AnyArray, AnyArray]


@njit(nogil=True, cache=True)
def _weighted_squares(rows, factor, extra, coefficients, weights, unit, out):  # type: ignore[no-untyped-def]
    last = out.shape[0] - 1
    for i in range(coefficients.shape[0]):
        c = coefficients[i] * unit
        if c == 0.0:
            continue
        start = rows.indptr[i]
        e = extra[i]
        for p in range(start, rows.indptr[i + 1]):
            m = p - start if rows.dense else rows.indices[p]
            x = factor[i] * rows.values[p]
            out[m] += np.int64(np.rint(c * weights[m] * (x * x + 2.0 * x * e)))
        out[last] += np.int64(np.rint(c * e * e))


def weighted_squares(
    block: RowBlock, terms: Terms, coefficients: FloatArray, weights: FloatArray, exponent: int
) -> IntArray:
    """Return Σ_i c_i z_im² in fixed point, shape (d + 1,); the last entry is times every a."""
    out = np.zeros(block.n_features + 1, np.int64)
    arrays = (terms.factor, terms.extra, coefficients, weights)
    frozen_arrays = (frozen(array, np.float64) for array in arrays)
    _weighted_squares(entries(block), *frozen_arrays, 2.0**exponent, out)
    return out


@njit(nogil=True, cache=True)
def _feature_squares(rows, units, out):  # type: ignore[no-untyped-def]
    for i in range(rows.indptr.shape[0] - 1):
        start = rows.indptr[i]
        for p in range(start, rows.indptr[i + 1]):
            m = p - start if rows.dense else rows.indices[p]
            x = np.float64(rows.values[p])
            out[m] += np.int64(np.rint(x * x * units[m]))


def feature_squares(block: RowBlock, units: FloatArray) -> IntArray:
    """Return Σ_i x_im² by feature in fixed point, `units` to one of each feature, shape (d,)."""
    out = np.zeros(block.n_features, np.int64)
    _feature_squares(entries(block), frozen(units, np.float64), out)
    return out


@njit(nogil=True, cache=True)
def _member_products(rows, tables, members, metric, out):  # type: ignore[no-untyped-def]
    values, indices, indptr = rows
    others, other_indices, other_indptr = tables
    member, member_indptr = members
    scratch = np.zeros(metric.shape[0])
    for t in range(member_indptr.shape[0] - 1):
        for p in range(other_indptr[t], other_indptr[t + 1]):
            scratch[other_indices[p]] = others[p] * metric[other_indices[p]]
        for at in range(member_indptr[t], member_indptr[t + 1]):
            i = member[at]
            total = 0.0
            for p in range(indptr[i], indptr[i + 1]):
                total += values[p] * scratch[indices[p]]
            out[i] = total
        for p in range(other_indptr[t], other_indptr[t + 1]):
            scratch[other_indices[p]] = 0.0


def member_products(
    rows: Compressed, tables: Compressed, members: tuple[AnyArray, AnyArray], metric: FloatArray
) -> FloatArray:
    """Return the product of each row with the table it is a member of, 0 for members of none.

    Parameters
    ----------
    rows, tables : (values, indices, indptr) of matrices with the columns of `metric`
    members : (rows, indptr), which rows are members of each table
    metric : float64 array, the weight of each column
    """
    out = np.zeros(len(rows[2]) - 1)
    kept = [
        (frozen(values, np.float64), frozen(indices, np.int64), frozen(indptr, np.int64))
        for values, indices, indptr in (rows, tables)
    ]
    places = (frozen(members[0], np.int64), frozen(members[1], np.int64))
    _member_products(*kept, places, frozen(metric, np.float64), out)
    return out
