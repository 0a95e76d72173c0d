"""Sums by cluster and by feature in fixed point: the integers of the compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hmrf_dask.kernels.plain.centroids import sum_in_lanes
from hmrf_dask.kernels.plain.numbers import logarithms
from hmrf_dask.kernels.plain.pieces import Piece, chosen_pieces, pieces, silent
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray


def rounded(values: FloatArray) -> IntArray:
    """Return the nearest integers, halves to even."""
    return np.rint(values).astype(np.int64)


def _signed(moves: IntArray) -> tuple[IntArray, AnyArray]:
    """Return which rows move, and 1 where they come, −1 where they go."""
    return np.where(moves >= 0, moves, ~moves), np.where(moves >= 0, 1.0, -1.0)


def _summands(
    piece: Piece, factors: FloatArray, features: FloatArray, extras: FloatArray
) -> tuple[IntArray, IntArray]:
    """Return the summands of rows, and those of the last column; no `features` are all 1."""
    scaled = piece.spread(factors)
    if len(features):
        scaled = scaled * features[piece.features]
    return rounded(scaled * piece.values), rounded(extras)


def _changes(
    rows: Any,
    factor: FloatArray,
    extra: FloatArray,
    features: FloatArray,
    moves: IntArray,
    start: IntArray,
    unit: float,
    columns: int,
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield what moves add to the sums: flat places and numbers."""
    which, sign = _signed(moves)
    first = np.repeat(np.arange(len(start) - 1) * columns, np.diff(start))
    begun = 0
    for piece in chosen_pieces(rows, which):
        here = slice(begun, begun + piece.n_rows)
        begun = here.stop
        signed = sign[here] * unit
        numbers = (piece.of(factor) * signed, features, piece.of(extra) * signed)
        entries, lasts = _summands(piece, *numbers)
        yield piece.spread(first[here]) + piece.features, entries
        yield first[here] + (columns - 1), lasts


def moves_by_cluster(
    indptr: AnyArray, before: LabelArray, after: LabelArray, n_clusters: int
) -> tuple[LabelArray, IntArray, IntArray, IntArray]:
    """Return which rows come to (i) and go from (~i) each cluster; see `kernels.moves`."""
    moved = np.flatnonzero(before != after)
    ends = np.stack([after[moved], before[moved]], axis=1).reshape(-1)
    moves = np.stack([moved, ~moved], axis=1).reshape(-1)
    somewhere = ends >= 0
    ends, moves = ends[somewhere].astype(np.int64), moves[somewhere]
    which, sign = _signed(moves)
    lengths = np.diff(indptr)[which].astype(np.int64) + 1
    sizes, counts = np.zeros(n_clusters, np.int64), np.zeros(n_clusters, np.int64)
    np.add.at(sizes, ends, lengths)
    np.add.at(counts, ends, sign.astype(np.int64))
    start = np.zeros(n_clusters + 1, np.int64)
    start[1:] = np.cumsum(np.bincount(ends, minlength=n_clusters))
    return moves[np.argsort(ends, kind="stable")].astype(np.int32), start, sizes, counts


@silent
def scatter(blocks: Any, features: FloatArray, sizes: IntArray, unit: float, out: IntArray) -> None:
    """Add the summands of moves to whole sums."""
    for rows, factor, extra, moves, start in blocks:
        numbers = (rows, factor, extra, features, moves, start, unit, out.shape[1])
        for places, amounts in _changes(*numbers):
            np.add.at(out.reshape(-1), places, amounts)


@silent
def emit(
    blocks: Any,
    features: FloatArray,
    sizes: IntArray,
    unit: float,
    columns: int,
    places: IntArray,
    amounts: IntArray,
) -> int:
    """Write the summands of moves as entries; return how many, −1 where there is no room."""
    if sizes.sum() > len(places):
        return -1
    filled = 0
    for rows, factor, extra, moves, start in blocks:
        numbers = (rows, factor, extra, features, moves, start, unit, columns)
        for where, entries in _changes(*numbers):
            places[filled : filled + len(where)] = where
            amounts[filled : filled + len(where)] = entries
            filled += len(where)
    return filled


def add_entries(places: IntArray, values: IntArray, out: IntArray) -> None:
    """Add numbers to the places of a flat array."""
    np.add.at(out, places, values)


@silent
def weighted_squares(
    blocks: Any,
    table: tuple[FloatArray, FloatArray],
    overall: tuple[FloatArray, float],
    strength: float,
    unit: float,
    out: IntArray,
) -> None:
    """Add Σ_i c_i z_im²/a_m to `out`, c_i a similarity; see `kernels.gradients`."""
    direction = table[0] - strength * overall[0]
    constant = table[1] - strength * overall[1]
    for rows, factor, extra, moves, start in blocks:
        clusters = np.repeat(np.arange(len(constant)), np.diff(start))
        begun = 0
        for piece in chosen_pieces(rows, moves):
            own = clusters[begun : begun + piece.n_rows]
            begun += piece.n_rows
            along = direction.reshape(-1)[piece.spread(own * direction.shape[1]) + piece.features]
            f, e = piece.of(factor), piece.of(extra)
            coefficients = (f * piece.sums_in_four(piece.values * along) + e * constant[own]) * unit
            x = piece.spread(f) * piece.values
            squares = piece.spread(coefficients) * (x * (x + piece.spread(2.0 * e)))
            np.add.at(out, piece.features, rounded(squares))
            out[-1] += rounded(coefficients * (e * e)).sum()


@silent
def squares_by_length(
    sums: IntArray, roots: FloatArray, _row: FloatArray, _lanes: FloatArray, out: FloatArray
) -> None:
    """Write Σ_h S_hm²/‖S_h‖; see `kernels.gradients`."""
    out[:] = 0.0
    for whole in sums:
        row = whole[:-1].astype(np.float64)
        if whole[-1]:
            row += np.float64(whole[-1]) * roots
        length = np.sqrt(sum_in_lanes(row * row))
        out += row * row * (1.0 / length if length > 0.0 else 0.0)


@silent
def feature_squares(rows: Any, units: FloatArray, out: IntArray) -> None:
    """Add Σ_i x_im² by feature to `out`."""
    for piece in pieces(rows):
        x = piece.values
        np.add.at(out, piece.features, rounded(x * x * units[piece.features]))


def _x_log_x(piece: Piece, factor: FloatArray) -> tuple[FloatArray, AnyArray]:
    """Return x ln x − x of the entries, nought where they are not positive."""
    x = piece.spread(piece.of(factor)) * piece.values
    positive = np.where(x > 0.0, x, 0.0)
    return logarithms(positive, positive) - positive, x


@silent
def entropies(rows: Any, factor: FloatArray, weights: FloatArray, out: FloatArray) -> None:
    """Write Σ a (x ln x − x) of each row."""
    for piece in pieces(rows):
        value, _ = _x_log_x(piece, factor)
        out[piece.rows] = piece.sums(weights[piece.features] * value)


@silent
def feature_entropies(rows: Any, factor: FloatArray, units: FloatArray, out: IntArray) -> None:
    """Add Σ_i (x_im ln x_im − x_im) by feature to `out`."""
    for piece in pieces(rows):
        value, _ = _x_log_x(piece, factor)
        np.add.at(out, piece.features, rounded(value * units[piece.features]))


@silent
def member_products(
    rows: Any,
    roots: FloatArray,
    length: float,
    tables: tuple[AnyArray, AnyArray, AnyArray],
    start: IntArray,
    member: IntArray,
    out: FloatArray,
) -> None:
    """Write the product of each row with the table it is a member of; see `kernels.gradients`."""
    others, features, others_start = tables
    for t in range(len(start) - 1):
        span = slice(others_start[t], others_start[t + 1])
        scratch = np.zeros(len(roots) + 1)
        scratch[features[span]] = others[span]
        along = scratch[:-1] * roots
        begun = start[t]
        for piece in chosen_pieces(rows, member[begun : start[t + 1]]):
            total = piece.sums_in_four(piece.values * along[piece.features])
            centring = rows.extra[piece.rows] * (scratch[-1] * length)
            out[begun : begun + piece.n_rows] = rows.factor[piece.rows] * total - centring
            begun += piece.n_rows


@silent
def member_squares(
    rows: Any, member: IntArray, coefficients: FloatArray, units: FloatArray, out: IntArray
) -> None:
    """Add Σ c_i z_im²/a_m over some rows to `out`, the part of every feature last."""
    begun = 0
    for piece in chosen_pieces(rows, member):
        c, e = coefficients[begun : begun + piece.n_rows], rows.extra[piece.rows]
        begun += piece.n_rows
        x = piece.spread(rows.factor[piece.rows]) * piece.values
        squares = piece.spread(c) * (x * (x + piece.spread(2.0 * e)))
        np.add.at(out, piece.features, rounded(squares * units[piece.features]))
        out[-1] += rounded(c * (e * e) * units[-1]).sum()
