"""Penalties of pairs of rows, many pairs at once, as `kernels.pairs` defines them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.plain.numbers import logarithms
from hmrf_dask.kernels.plain.pieces import ENTRIES, Piece, pieces, row_sums, silent, spans, taken
from hmrf_dask.kernels.plain.sums import rounded
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray

_INNER, _SQUARED, _DIVERGENCE = 0, 1, 2  # as in kernels.pairs
_LARGEST = 2.0**30


class Couples(NamedTuple):
    """Some pairs: their numbers, and their two rows side by side."""

    span: slice
    left: Piece
    right: Piece


class Merged(NamedTuple):
    """The features of the rows of each pair with both values, as the rows of a sparse array."""

    x: AnyArray
    y: AnyArray
    features: AnyArray
    indptr: AnyArray


def _couples(left: Any, right: Any, first: LabelArray, second: LabelArray) -> Iterator[Couples]:
    lengths = np.diff(left.indptr)[first].astype(np.int64) + np.diff(right.indptr)[second]
    for start, stop in spans(lengths, ENTRIES, ENTRIES):
        span = slice(start, stop)
        yield Couples(span, taken(left, first[span]), taken(right, second[span]))


def _canonical(piece: Piece, values: AnyArray, n_features: int) -> Any:
    matrix = piece.sparse(values, piece.features, n_features)
    matrix.has_canonical_format = True
    return matrix


def _either(couples: Couples, n_features: int) -> Merged:
    """Return both values of every feature that either row has: one is a real, one imaginary."""
    one = _canonical(couples.left, couples.left.values.astype(np.complex128), n_features)
    imaginary = np.zeros(len(couples.right.values), np.complex128)
    imaginary.imag = couples.right.values
    both = one + _canonical(couples.right, imaginary, n_features)
    return Merged(both.data.real.copy(), both.data.imag.copy(), both.indices, both.indptr)


def _products(couples: Couples, left: AnyArray, right: AnyArray, n_features: int) -> Any:
    """Return the products of what both rows of a pair have, as a sparse array of pairs."""
    one = _canonical(couples.left, left, n_features)
    return one.multiply(_canonical(couples.right, right, n_features)).tocsr()


def _similarities(
    couples: Couples, left: Any, right: Any, weights: FloatArray, weight_sum: float
) -> FloatArray:
    """Return z_i · z_j, the centring corrected."""
    one, other = couples.left, couples.right
    common = _products(couples, one.values, other.values, len(weights))
    total = row_sums(weights[common.indices] * common.data, common.indptr)
    extras = weight_sum * (one.of(left.extra) * other.of(right.extra))
    return np.asarray(one.of(left.factor) * other.of(right.factor) * total - extras)


def _to_middle(x: FloatArray, y: FloatArray) -> FloatArray:
    total = np.where(x + y > 0.0, x + y, 1.0)
    return logarithms(x, 2.0 * x / total) + logarithms(y, 2.0 * y / total)


def _from_middle(x: FloatArray, y: FloatArray) -> FloatArray:
    total = np.where(x + y > 0.0, x + y, 1.0)
    return -(logarithms(x, x / total) + logarithms(y, y / total))


def _scaled(merged: Merged, couples: Couples, left: Any, right: Any) -> tuple[AnyArray, AnyArray]:
    """Return both values of the features times the factors of their rows."""
    lengths = np.diff(merged.indptr)
    x = merged.x * np.repeat(couples.left.of(left.factor), lengths)
    return x, merged.y * np.repeat(couples.right.of(right.factor), lengths)


@silent
def values(
    form: int,
    left: Any,
    right: Any,
    first: LabelArray,
    second: LabelArray,
    weights: FloatArray,
    weight_sum: float,
    maximum: float,
    out: FloatArray,
    complement: FloatArray,
) -> None:
    """Write φ and φ_max − φ of pairs."""
    for couples in _couples(left, right, first, second):
        if form == _INNER:
            out[couples.span] = 1.0 - _similarities(couples, left, right, weights, weight_sum)
        else:
            merged = _either(couples, len(weights))
            weight = weights[merged.features]
        if form == _SQUARED:
            away = merged.x - merged.y
            out[couples.span] = row_sums(weight * (away * away), merged.indptr)
        if form == _DIVERGENCE:
            x, y = _scaled(merged, couples, left, right)
            out[couples.span] = row_sums(weight * _to_middle(x, y), merged.indptr)
            complement[couples.span] = row_sums(weight * _from_middle(x, y), merged.indptr)
        else:
            complement[couples.span] = maximum - out[couples.span]


@silent
def quantise(
    rows: Any,
    features: FloatArray,
    length: float,
    unit: float,
    squared: bool,
    half: int,
    out: LabelArray,
    centring: LabelArray,
    own: IntArray,
) -> None:
    """Write rows in integers; see `kernels.pairs.quantise`."""
    for piece in pieces(rows):
        lengths = np.diff(piece.indptr)
        whole = lengths == len(features)  # no zeros: centred here, entry by entry
        extra = piece.of(rows.extra)
        shift = np.where(whole, 0.0, extra * length * unit)
        inside = piece.spread(piece.of(rows.factor)) * piece.values
        inside = inside + piece.spread(np.where(whole, extra, 0.0))
        scaled = features[piece.features] * inside * unit
        large = piece.sums(np.where(np.abs(scaled) <= _LARGEST, 0, 1)) > 0
        emptied = large | (np.abs(shift) > _LARGEST)
        integers = rounded(np.where(piece.spread(large), 0.0, scaled))
        total = np.where(large, -1, piece.sums(integers * integers))
        integers[piece.spread(emptied)] = 0
        centring[piece.rows] = np.rint(np.where(emptied, 0.0, shift)).astype(np.int32)
        own[piece.rows] = total if squared else half
        begin = int(rows.indptr[piece.rows.start])
        out[begin : begin + len(integers)] = integers


@silent
def integers(
    left: Any,
    right: Any,
    q_left: Any,
    q_right: Any,
    first: LabelArray,
    second: LabelArray,
    kappa: int,
    out: IntArray,
) -> None:
    """Write φ of pairs in integers."""
    n_features = 1 + max(_last_feature(left), _last_feature(right))
    sides = left._replace(values=q_left.values), right._replace(values=q_right.values)
    for couples in _couples(*sides, first, second):
        i, j = couples.left.rows, couples.right.rows
        # A float64 holds an int32 exactly; their products and sums need all of int64.
        both = [part.values.astype(np.int64) for part in (couples.left, couples.right)]
        common = _products(couples, both[0], both[1], n_features)
        shared = -q_left.centring[i].astype(np.int64) * q_right.centring[j]
        total = shared + row_sums(common.data, common.indptr)
        out[couples.span] = q_left.own[i] + q_right.own[j] - kappa * total


def _last_feature(rows: Any) -> int:
    if rows.dense:
        return int(np.diff(rows.indptr[:2]).max(initial=0)) - 1
    return int(rows.indices.max(initial=0))


def _gradient_terms(
    form: int,
    couples: Couples,
    merged: Merged,
    left: Any,
    right: Any,
    signed: FloatArray,
    weights: FloatArray,
    similarity: FloatArray,
) -> FloatArray:
    """Return what each feature of each pair adds to the gradient."""
    lengths = np.diff(merged.indptr)
    sign = np.repeat(signed, lengths)
    if form == _SQUARED:
        away = merged.x - merged.y
        return np.asarray(sign * (away * away))
    x, y = _scaled(merged, couples, left, right)
    if form == _DIVERGENCE:  # a violated cannot-link costs the complement
        return np.where(sign < 0.0, -sign * _from_middle(x, y), sign * _to_middle(x, y))
    e = np.repeat(couples.left.of(left.extra), lengths)
    f = np.repeat(couples.right.of(right.extra), lengths)
    cross = x * y + (x * f + y * e)
    squares = x * (x + 2.0 * e) + y * (y + 2.0 * f)
    turned = cross - np.repeat(0.5 * similarity, lengths) * squares
    return np.asarray(-sign * (weights[merged.features] * turned))


@silent
def gradient(
    form: int,
    left: Any,
    right: Any,
    first: LabelArray,
    second: LabelArray,
    signed: FloatArray,
    weights: FloatArray,
    weight_sum: float,
    units: FloatArray,
    out: IntArray,
) -> None:
    """Add Σ signed · dφ by feature to `out`."""
    violated = np.flatnonzero(signed)
    first, second, signed = first[violated], second[violated], signed[violated]
    similarity = np.zeros(0)
    for couples in _couples(left, right, first, second):
        sign = signed[couples.span]
        if form == _INNER:
            similarity = _similarities(couples, left, right, weights, weight_sum)
            e, f = couples.left.of(left.extra), couples.right.of(right.extra)
            shared = e * f - 0.5 * similarity * (e * e + f * f)
            out[-1] += rounded(-sign * shared * units[-1]).sum()
        merged = _either(couples, len(weights))
        change = _gradient_terms(form, couples, merged, left, right, sign, weights, similarity)
        np.add.at(out, merged.features, rounded(change * units[merged.features]))
