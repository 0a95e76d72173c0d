"""Sketches of rows and small eigenproblems, as `kernels.sketches` and `kernels.bases` have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmrf_dask.kernels.plain.pieces import pieces, silent
from hmrf_dask.kernels.plain.sums import rounded
from hmrf_dask.types import AnyArray, FloatArray, IntArray, RowArray


def _products(piece: Any, columns: Any, n_columns: int) -> AnyArray:
    """Return the products of a piece's rows with the first columns, entry by entry."""
    table = np.ascontiguousarray(columns.table[:, :n_columns])
    return np.asarray(piece.sparse(piece.values, piece.features, len(table)) @ table)


@silent
def add_sketch(
    rows: Any,
    columns: Any,
    unit: float,
    constant: float,
    _scaled: FloatArray,
    _shifted: FloatArray,
    _bits: IntArray,
    out: IntArray,
) -> None:
    """Add Σ x y of every entry, rounded, to `out`."""
    for piece in pieces(rows, width=out.shape[1]):
        y = _products(piece, columns, out.shape[1])
        y[:, -1] = constant
        y *= unit
        lengths = np.diff(piece.indptr)
        amounts = rounded(piece.values[:, None] * np.repeat(y, lengths, axis=0))
        np.add.at(out, piece.features, amounts)


@silent
def project(rows: Any, columns: Any, normalised: bool, _found: FloatArray, out: RowArray) -> None:
    """Write the products of rows, of length 1 where that is asked for."""
    for piece in pieces(rows, width=out.shape[1]):
        y = _products(piece, columns, out.shape[1])
        if normalised:
            squares = np.zeros(len(y))
            for column in y.T:
                squares += column * column
            y *= np.where(squares > 0.0, 1.0 / np.sqrt(squares), 1.0)[:, None]
        out[piece.rows] = y


def add_products(left: FloatArray, right: FloatArray, first: int, out: FloatArray) -> None:
    """Write Σ_m l_ma r_mb for the columns of `left` from `first` on, as many as `out` has rows."""
    for a in range(len(out)):
        out[a] = (left[:, first + a, None] * right).sum(axis=0)  # row by row


def turn(vectors: FloatArray, matrix: FloatArray, out: FloatArray) -> None:
    """Write vectors · matrix."""
    out[:] = 0.0
    for column, row in zip(vectors.T, matrix, strict=True):
        out += column[:, None] * row


@silent
def rotate(matrix: FloatArray, vectors: FloatArray, p: int, q: int, c: float, s: float) -> None:
    """Rotate rows and columns p and q of a symmetric matrix, and rows of the vectors."""
    for array in (matrix, vectors):
        one, other = array[p].copy(), array[q].copy()
        array[p], array[q] = c * one - s * other, s * one + c * other
    one, other = matrix[:, p].copy(), matrix[:, q].copy()
    matrix[:, p], matrix[:, q] = c * one - s * other, s * one + c * other
