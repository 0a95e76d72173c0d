"""Orthonormal bases and small eigenproblems in one order of operations, without BLAS or LAPACK.

Those give other bits with other numbers of threads. Everything here is of size d × n and n × n.
"""

from __future__ import annotations

import math

import numpy as np

from hmrf_dask.kernels.abreast import over_ranges
from hmrf_dask.kernels.arrays import frozen
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.types import FloatArray

SWEEPS = 60  # Jacobi needs about ten
SMALL = 2.0**-46  # of the largest eigenvalue: smaller ones are rounding
ROUNDS = 4  # each lifts seven digits
ROUND = 2.0**-13  # eigenvalues this near to one another leave vectors orthonormal to 12 digits
DIGITS = 2.0**-54
NOUGHT = 2.0**-100  # of the whole matrix


@njit(nogil=True, cache=True, makes_arrays=False)
def _add_products(left, right, first, out):  # type: ignore[no-untyped-def]
    out[:] = 0.0
    for m in range(left.shape[0]):
        for a in range(out.shape[0]):
            x = left[m, first + a]
            for b in range(out.shape[1]):
                out[a, b] += x * right[m, b]


def inner_products(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return leftᵀ · right of vectors (d, n), each sum in the order of the features."""
    out = np.empty((left.shape[1], right.shape[1]))
    one, other = frozen(left, np.float64), frozen(right, np.float64)

    def some(first: int, last: int) -> None:
        _add_products(one, other, first, out[first:last])

    over_ranges(some, len(out), out.shape[1] * left.size)
    return out


@njit(nogil=True, cache=True, makes_arrays=False)
def _turn(vectors, matrix, out):  # type: ignore[no-untyped-def]
    out[:] = 0.0
    for m in range(out.shape[0]):
        for a in range(matrix.shape[0]):
            x = vectors[m, a]
            for b in range(out.shape[1]):
                out[m, b] += x * matrix[a, b]


def turned(vectors: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return vectors (d, n) · matrix (n, l)."""
    out = np.empty((len(vectors), matrix.shape[1]))
    one, other = frozen(vectors, np.float64), frozen(matrix, np.float64)

    def some(first: int, last: int) -> None:
        _turn(one[first:last], other, out[first:last])

    over_ranges(some, len(out), out.size * len(matrix))
    return out


@inner()
def _rotate(matrix, vectors, p, q, c, s):  # type: ignore[no-untyped-def]
    """Rotate rows and columns p and q of a symmetric matrix, and rows of the vectors."""
    for b in range(matrix.shape[0]):
        one, other = matrix[p, b], matrix[q, b]
        matrix[p, b], matrix[q, b] = c * one - s * other, s * one + c * other
        one, other = vectors[p, b], vectors[q, b]
        vectors[p, b], vectors[q, b] = c * one - s * other, s * one + c * other
    for b in range(matrix.shape[0]):
        one, other = matrix[b, p], matrix[b, q]
        matrix[b, p], matrix[b, q] = c * one - s * other, s * one + c * other


@njit(nogil=True, cache=True, makes_arrays=False, error_model="numpy")
def _jacobi(matrix, vectors, nought):  # type: ignore[no-untyped-def]
    """Turn a symmetric matrix until it is diagonal; the rows of `vectors` turn with it."""
    for _ in range(SWEEPS):
        turns = 0
        for p in range(matrix.shape[0] - 1):
            for q in range(p + 1, matrix.shape[0]):
                away = matrix[p, q]
                small = DIGITS * math.sqrt(abs(matrix[p, p]) * abs(matrix[q, q]))
                if abs(away) <= small or abs(away) <= nought:
                    continue
                turns += 1
                cotangent = (matrix[q, q] - matrix[p, p]) / (2.0 * away)
                tangent = 1.0 / (abs(cotangent) + math.sqrt(cotangent * cotangent + 1.0))
                if cotangent < 0.0:
                    tangent = -tangent
                c = 1.0 / math.sqrt(tangent * tangent + 1.0)
                _rotate(matrix, vectors, p, q, c, tangent * c)
        if turns == 0:
            return


def eigenvectors(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the eigenvalues of a symmetric matrix, largest first, and their vectors as columns.

    Cyclic Jacobi. Only one half of the matrix counts.

    Examples
    --------
    >>> values, vectors = eigenvectors(np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> values.round(9).tolist(), np.abs(vectors).round(3).tolist()
    ([3.0, 1.0], [[0.707, 0.707], [0.707, 0.707]])
    """
    work = np.triu(matrix) + np.triu(matrix, 1).T
    rows = np.eye(len(work))
    _jacobi(work, rows, NOUGHT * float(np.abs(work).max(initial=0.0)))
    values = np.diagonal(work).copy()
    order = np.argsort(-values, kind="stable")
    return values[order], rows[order].T.copy()


def orthonormal(vectors: FloatArray) -> FloatArray:
    """Return an orthonormal basis of the space of vectors (d, n), as many of them.

    Directions that only rounding has told from nought become some that are orthogonal to the rest;
    vectors that are exactly nought stay so.
    """
    for _ in range(ROUNDS):
        values, turns = eigenvectors(inner_products(vectors, vectors))
        largest = float(values[0])
        if largest <= 0.0:
            break
        vectors = turned(vectors, turns / np.sqrt(np.maximum(values, SMALL * largest)))
        if values[-1] > ROUND * largest:
            break
    return vectors
