"""Penalties of pairs of rows: φ and its complement in float64, and what φ adds to each feature.

Three forms: `INNER` φ = 1 − z·z', `SQUARED` φ = Σ a (x − y)², `DIVERGENCE` φ = D_IM (KDD eq. 13).
A row's summand is z_m = √a_m (factor · x_m + extra). The rows of `INNER` are centred or `extra` is
nought, so z·z' is corrected by one column: Σ a factor x factor' x' − (Σ a) extra extra'.

Both ends enter every operation alike: (i, j) and (j, i) give the same bits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import RowArrays, Terms, frozen, spread
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray

INNER, SQUARED, DIVERGENCE = 0, 1, 2
LOG2 = math.log(2.0)
_NONE = 2**62  # beyond all features
_LARGEST = 2.0**30  # of a quantised entry, which must fit into int32


class Side(NamedTuple):
    """The rows of one side of a list of pairs."""

    values: AnyArray
    indices: AnyArray
    indptr: AnyArray
    dense: bool
    factor: FloatArray
    extra: FloatArray


class Quantised(NamedTuple):
    """Rows in integers: q = rint(2^bits · z / radius) and each row's own term A.

    φ = A_i + A_j − κ q_i·q_j. The centring column enters the product with a negative sign.
    """

    values: LabelArray  # int32, along the block's entries
    centring: LabelArray  # int32 (n_rows,)
    own: IntArray  # (n_rows,)


def side(rows: RowArrays, terms: Terms) -> Side:
    """Return rows and their terms as pair kernels read them."""
    own = (spread(term, rows.n_rows) for term in (terms.factor, terms.extra))
    factors = (frozen(term, np.float64) for term in own)
    return Side(rows.values, rows.indices, rows.indptr, rows.dense, *factors)


@inner(inline="always")
def _feature(rows, p, start, stop):  # type: ignore[no-untyped-def]
    if p >= stop:
        return np.int64(_NONE)
    return np.int64(p - start) if rows.dense else np.int64(rows.indices[p])


@inner(inline="always")
def _product(left, right, i, j, weights, weight_sum):  # type: ignore[no-untyped-def]
    """Return z_i · z_j over the features both rows have, the centring corrected."""
    p = p_start = left.indptr[i]
    q = q_start = right.indptr[j]
    p_stop, q_stop = left.indptr[i + 1], right.indptr[j + 1]
    total = 0.0
    while p < p_stop and q < q_stop:
        m = _feature(left, p, p_start, p_stop)
        n = _feature(right, q, q_start, q_stop)
        if m == n:
            total += weights[m] * (np.float64(left.values[p]) * np.float64(right.values[q]))
        p += m <= n
        q += n <= m
    factors = left.factor[i] * right.factor[j]
    return factors * total - weight_sum * (left.extra[i] * right.extra[j])


@inner(inline="always")
def _to_middle(x, y):  # type: ignore[no-untyped-def]
    """Return x ln(2x/(x + y)) + y ln(2y/(x + y)), a feature's part of D_IM without its weight."""
    one = x * math.log(2.0 * x / (x + y)) if x > 0.0 else 0.0
    other = y * math.log(2.0 * y / (x + y)) if y > 0.0 else 0.0
    return one + other


@inner(inline="always")
def _from_middle(x, y):  # type: ignore[no-untyped-def]
    """Return −x ln(x/(x + y)) − y ln(y/(x + y)), what is left to ln 2 (x + y)."""
    one = x * math.log(x / (x + y)) if x > 0.0 else 0.0
    other = y * math.log(y / (x + y)) if y > 0.0 else 0.0
    return -(one + other)


@inner(inline="always")
def _by_feature(divergence, left, right, i, j, weights):  # type: ignore[no-untyped-def]
    """Return φ and, of a divergence, its complement, summed over the features either row has."""
    p = p_start = left.indptr[i]
    q = q_start = right.indptr[j]
    p_stop, q_stop = left.indptr[i + 1], right.indptr[j + 1]
    total = 0.0
    rest = 0.0
    while p < p_stop or q < q_stop:
        m = _feature(left, p, p_start, p_stop)
        n = _feature(right, q, q_start, q_stop)
        x = np.float64(left.values[p]) if m <= n else 0.0
        y = np.float64(right.values[q]) if n <= m else 0.0
        weight = weights[m if m <= n else n]
        if divergence:
            x *= left.factor[i]
            y *= right.factor[j]
            total += weight * _to_middle(x, y)
            rest += weight * _from_middle(x, y)
        else:
            total += weight * ((x - y) * (x - y))
        p += m <= n
        q += n <= m
    return total, rest


@njit(nogil=True, cache=True, makes_arrays=False)
def _values(form, left, right, first, second, weights, weight_sum, maximum, out, complement):  # type: ignore[no-untyped-def]
    for t in range(first.shape[0]):
        i, j = first[t], second[t]
        if form == INNER:
            out[t] = 1.0 - _product(left, right, i, j, weights, weight_sum)
            complement[t] = maximum - out[t]
        else:
            total, rest = _by_feature(form == DIVERGENCE, left, right, i, j, weights)
            out[t] = total
            complement[t] = rest if form == DIVERGENCE else maximum - total


def pair_values(
    form: int,
    left: Side,
    right: Side,
    first: LabelArray,
    second: LabelArray,
    weights: FloatArray,
    maximum: float,
) -> tuple[FloatArray, FloatArray]:
    """Return φ and φ_max − φ of the pairs (first[t] of left, second[t] of right)."""
    out = np.empty(len(first))
    complement = np.empty(len(first))
    ends = (frozen(first, np.int32), frozen(second, np.int32))
    scale = (frozen(weights, np.float64), float(weights.sum()), float(maximum))
    _values(form, left, right, *ends, *scale, out, complement)
    return out, complement


@inner(inline="always")
def _quantise_row(rows, i, features, unit, factor, extra, values):  # type: ignore[no-untyped-def]
    """Write the entries of one row; return Σ q², or -1 where an entry does not fit into int32."""
    start = rows.indptr[i]
    total = np.int64(0)
    for p in range(start, rows.indptr[i + 1]):
        m = p - start if rows.dense else rows.indices[p]
        scaled = features[m] * (factor * rows.values[p] + extra) * unit
        if not abs(scaled) <= _LARGEST:
            return np.int64(-1)
        values[p] = np.int32(np.rint(scaled))
        total += np.int64(values[p]) * np.int64(values[p])
    return total


@njit(nogil=True, cache=True, makes_arrays=False)
def _quantise(rows, features, length, unit, squared, half, values, centring, own):  # type: ignore[no-untyped-def]
    for i in range(own.shape[0]):
        start, stop = rows.indptr[i], rows.indptr[i + 1]
        whole = stop - start == features.shape[0]  # no zeros: centred here, entry by entry
        extra = rows.extra[i] if whole else 0.0
        shift = 0.0 if whole else rows.extra[i] * length * unit
        total = _quantise_row(rows, i, features, unit, rows.factor[i], extra, values)
        if total < 0 or abs(shift) > _LARGEST:
            for p in range(start, stop):
                values[p] = 0
            shift = 0.0
        centring[i] = np.int32(np.rint(shift))
        own[i] = total if squared else half


def quantise(
    rows: Side, features: FloatArray, bits: int, *, squared: bool, radius: float
) -> Quantised:
    """Return rows in integers.

    A centred sparse row that is nearly constant has entries beyond int32 before its mean is taken
    off; it becomes a zero row, as if its correlation with all others were nought. Integers only
    find moves, float64 decides whether they are kept.

    Parameters
    ----------
    rows : Side
    features : float64 array, shape (d,)
        √a.
    bits : int
    squared : bool
        Whether A is the row's own square.
    radius : float
        Scales rows of the squared form into the unit ball; 1 otherwise.
    """
    n_rows = len(rows.indptr) - 1
    values = np.empty(len(rows.values), np.int32)
    out = Quantised(values, np.zeros(n_rows, np.int32), np.empty(n_rows, np.int64))
    length = float(np.sqrt((features * features).sum()))
    half = 1 << max(2 * bits - 1, 0)
    scale = (frozen(features, np.float64), length, 2.0**bits / radius)
    _quantise(rows, *scale, squared, half, *out)
    return out


@njit(nogil=True, cache=True, makes_arrays=False)
def _integers(left, right, q_left, q_right, first, second, kappa, out):  # type: ignore[no-untyped-def]
    for t in range(first.shape[0]):
        i, j = first[t], second[t]
        p = p_start = left.indptr[i]
        q = q_start = right.indptr[j]
        p_stop, q_stop = left.indptr[i + 1], right.indptr[j + 1]
        total = -np.int64(q_left.centring[i]) * np.int64(q_right.centring[j])
        while p < p_stop and q < q_stop:
            m = _feature(left, p, p_start, p_stop)
            n = _feature(right, q, q_start, q_stop)
            if m == n:
                total += np.int64(q_left.values[p]) * np.int64(q_right.values[q])
            p += m <= n
            q += n <= m
        out[t] = q_left.own[i] + q_right.own[j] - kappa * total


def pair_integers(
    left: Side,
    right: Side,
    q_left: Quantised,
    q_right: Quantised,
    first: LabelArray,
    second: LabelArray,
    kappa: int,
) -> IntArray:
    """Return φ of pairs in integers, equal to what the closure tables add up."""
    out = np.empty(len(first), np.int64)
    kept = [
        Quantised(frozen(q.values, np.int32), frozen(q.centring, np.int32), frozen(q.own, np.int64))
        for q in (q_left, q_right)
    ]
    ends = (frozen(first, np.int32), frozen(second, np.int32))
    _integers(left, right, *kept, *ends, kappa, out)
    return out


@inner(inline="always")
def _turn(x, y, e, f, similarity):  # type: ignore[no-untyped-def]
    """Return −∂φ/∂log a of a feature without a and without the parts all features share."""
    cross = x * y + (x * f + y * e)
    squares = x * (x + 2.0 * e) + y * (y + 2.0 * f)
    return cross - 0.5 * similarity * squares


@inner(inline="always")
def _add_gradient(form, left, right, i, j, signed, weights, similarity, units, out):  # type: ignore[no-untyped-def]
    p = p_start = left.indptr[i]
    q = q_start = right.indptr[j]
    p_stop, q_stop = left.indptr[i + 1], right.indptr[j + 1]
    while p < p_stop or q < q_stop:
        m = _feature(left, p, p_start, p_stop)
        n = _feature(right, q, q_start, q_stop)
        x = np.float64(left.values[p]) if m <= n else 0.0
        y = np.float64(right.values[q]) if n <= m else 0.0
        p += m <= n
        q += n <= m
        m = m if m <= n else n
        if form == SQUARED:
            change = signed * ((x - y) * (x - y))
        else:
            x *= left.factor[i]
            y *= right.factor[j]
            if form == INNER:
                turned = _turn(x, y, left.extra[i], right.extra[j], similarity)
                change = -signed * (weights[m] * turned)
            elif signed < 0.0:  # a violated cannot-link costs the complement
                change = -signed * _from_middle(x, y)
            else:
                change = signed * _to_middle(x, y)
        out[m] += np.int64(np.rint(change * units[m]))


@njit(nogil=True, cache=True, makes_arrays=False)
def _gradient(form, left, right, first, second, signed, weights, weight_sum, units, out):  # type: ignore[no-untyped-def]
    last = out.shape[0] - 1
    for t in range(first.shape[0]):
        if signed[t] == 0.0:
            continue
        i, j = first[t], second[t]
        similarity = 0.0
        if form == INNER:
            similarity = _product(left, right, i, j, weights, weight_sum)
            e, f = left.extra[i], right.extra[j]
            shared = e * f - 0.5 * similarity * (e * e + f * f)
            out[last] += np.int64(np.rint(-signed[t] * shared * units[last]))
        _add_gradient(form, left, right, i, j, signed[t], weights, similarity, units, out)


def pair_gradient(
    form: int,
    left: Side,
    right: Side,
    first: LabelArray,
    second: LabelArray,
    signed: FloatArray,
    weights: FloatArray,
    units: FloatArray,
) -> IntArray:
    """Return Σ signed · dφ by feature in fixed point, `units` and result of shape (d + 1,).

    `signed` is +w for a violated must-link, −w for a violated cannot-link and nought for a
    satisfied pair. For `INNER` the derivative is by log a (the last entry is times a, in every
    feature); for the others it is the coefficient of a_m in J, but for the bounding box.
    """
    out = np.zeros(len(weights) + 1, np.int64)
    ends = (frozen(first, np.int32), frozen(second, np.int32), frozen(signed, np.float64))
    scale = (frozen(weights, np.float64), float(weights.sum()), frozen(units, np.float64))
    _gradient(form, left, right, *ends, *scale, out)
    return out
