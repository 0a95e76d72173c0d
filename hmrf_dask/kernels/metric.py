"""A full metric A = F Fᵀ as matrices in the driver, d × d, each in one order of operations."""

from __future__ import annotations

import numpy as np

from hmrf_dask.types import FloatArray

NEGLIGIBLE = 1e-9  # of a feature's variance or mean square: less is rounding


def factor_of(covariance: FloatArray) -> FloatArray:
    """Return F, upper triangular, with F Fᵀ the inverse of a covariance; 0 where features are 0.

    Examples
    --------
    >>> factor_of(np.array([[4.0, 0.0], [0.0, 0.0]])).round(6).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    used = np.flatnonzero(np.diag(covariance) > 0.0)
    sizes = np.sqrt(np.diag(covariance)[used])
    correlation = covariance[np.ix_(used, used)] / sizes / sizes[:, None]
    lower = cholesky(correlation + NEGLIGIBLE * np.eye(len(used)))
    factor = np.zeros_like(covariance)
    factor[np.ix_(used, used)] = (inverse_of(lower) / sizes).T
    return factor


def cholesky(matrix: FloatArray) -> FloatArray:
    """Return the lower triangular L with L Lᵀ = matrix, column by column.

    Examples
    --------
    >>> cholesky(np.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    lower = np.zeros_like(matrix)
    for j in range(len(matrix)):
        rest = matrix[j:, j] - (lower[j:, :j] * lower[j, :j]).sum(axis=1)
        lower[j:, j] = rest / np.sqrt(max(rest[0], NEGLIGIBLE))
    return lower


def inverse_of(lower: FloatArray) -> FloatArray:
    """Return the inverse of a lower triangular matrix, row by row.

    Examples
    --------
    >>> inverse_of(np.array([[2.0, 0.0], [1.0, 4.0]])).tolist()
    [[0.5, -0.0], [-0.125, 0.25]]
    """
    inverse = np.zeros_like(lower)
    for i in range(len(lower)):
        row = -(lower[i, :i, None] * inverse[:i]).sum(axis=0)
        row[i] += 1.0
        inverse[i] = row / lower[i, i]
    return inverse


def metric_of(factor: FloatArray) -> FloatArray:
    """Return A = F Fᵀ.

    Examples
    --------
    >>> metric_of(np.array([[2.0, 1.0], [0.0, 1.0]])).tolist()
    [[5.0, 1.0], [1.0, 1.0]]
    """
    return np.asarray(np.einsum("ij,kj->ik", factor, factor), np.float64)


def vectors_under(centroids: FloatArray, factor: FloatArray) -> FloatArray:
    """Return centroids in the space of a metric.

    Examples
    --------
    >>> vectors_under(np.array([[3.0, 1.0]]), np.diag([2.0, 0.0])).tolist()
    [[6.0, 0.0]]
    """
    return np.asarray(np.einsum("kd,de->ke", centroids, factor), np.float64)


def vectors_before(centroids: FloatArray, factor: FloatArray) -> FloatArray:
    """Return centroids in the space of the rows, 0 where a feature has no part in the metric.

    Examples
    --------
    >>> vectors_before(np.array([[6.0, 0.0]]), np.diag([2.0, 0.0])).tolist()
    [[3.0, 0.0]]
    """
    used = np.flatnonzero(np.diag(factor))
    back = np.zeros_like(factor)
    back[np.ix_(used, used)] = inverse_of(factor[np.ix_(used, used)].T).T
    return np.asarray(np.einsum("kd,de->ke", centroids, back), np.float64)


def prior_of(factor: FloatArray, n_rows: int) -> float:
    """Return what J has of a metric M = G Gᵀ by its factor alone: N (tr M − d) − 2 N ln det M.

    Features of which G has nothing have no part in it. It is 0 where M is 1, the first metric.

    Examples
    --------
    >>> prior_of(np.eye(3), 10), prior_of(np.diag([2.0, 0.0]), 10).__round__(3)
    (0.0, 2.274)
    """
    used = np.diag(factor)[np.diag(factor) > 0.0]
    trace = float((factor * factor).sum())
    return n_rows * (trace - len(used) - 4.0 * float(np.log(used).sum()))
