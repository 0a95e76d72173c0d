"""Penalties of pairs of rows: φ, its complement and its gradient, pair by pair or from sums.

Three forms: `INNER` φ = 1 − z·z', `SQUARED` φ = Σ a (x − y)², `DIVERGENCE` φ = D_IM (KDD eq. 13).
A row's summand is z_m = √a_m (factor · x_m + extra). The rows of `INNER` are centred or `extra` is
0, so z·z' is corrected by one column: Σ a factor x factor' x' − (Σ a) extra extra'.

Both ends enter every operation alike: (i, j) and (j, i) give the same bits.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import RowArrays, Terms, find, former, frozen, inner, njit, spread
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


_make_quantised = former(Quantised)


class RowPairs(NamedTuple):
    """Pairs of rows: row first[t] of the left side, and row second[t] of the right one."""

    left: Side
    right: Side
    first: LabelArray
    second: LabelArray


row_pairs = former(RowPairs)


class _Metric(NamedTuple):
    """Which form φ has, the weights of the features, and their sum."""

    form: int
    weights: FloatArray
    weight_sum: float


class _FixedPoint(NamedTuple):
    """Sums by feature in units of their own, and what is counted once for all features."""

    units: FloatArray
    sums: IntArray


def side(rows: RowArrays, terms: Terms) -> Side:
    """Return rows and their terms as pair kernels read them."""
    rows = rows.indexed
    own = (spread(term, rows.n_rows) for term in (terms.factor, terms.extra))
    factors = (frozen(term, np.float64) for term in own)
    return Side(rows.values, rows.indices, rows.indptr, rows.dense, *factors)


def _metric(form: int, weights: FloatArray) -> _Metric:
    return _Metric(form, frozen(weights, np.float64), float(weights.sum()))


@inner(inline="always")
def _feature(rows: Side, p: Any, start: Any, stop: Any) -> Any:
    if p >= stop:
        return np.int64(_NONE)
    return np.int64(p - start) if rows.dense else np.int64(rows.indices[p])


@inner(inline="always")
def _product(pairs: RowPairs, i: Any, j: Any, metric: _Metric) -> Any:
    """Return z_i · z_j over the features both rows have, the centring corrected."""
    left, right = pairs.left, pairs.right
    p = p_start = left.indptr[i]
    q = q_start = right.indptr[j]
    p_stop, q_stop = left.indptr[i + 1], right.indptr[j + 1]
    total = 0.0
    while p < p_stop and q < q_stop:
        m = _feature(left, p, p_start, p_stop)
        n = _feature(right, q, q_start, q_stop)
        if m == n:
            product = np.float64(left.values[p]) * np.float64(right.values[q])
            total += metric.weights[m] * product
        p += m <= n
        q += n <= m
    factors = left.factor[i] * right.factor[j]
    return factors * total - metric.weight_sum * (left.extra[i] * right.extra[j])


@inner(inline="always")
def _to_middle(x: Any, y: Any) -> Any:
    """Return x ln(2x/(x + y)) + y ln(2y/(x + y)), a feature's part of D_IM without its weight."""
    from_x = x * math.log(2.0 * x / (x + y)) if x > 0.0 else 0.0
    from_y = y * math.log(2.0 * y / (x + y)) if y > 0.0 else 0.0
    return from_x + from_y


@inner(inline="always")
def _from_middle(x: Any, y: Any) -> Any:
    """Return −x ln(x/(x + y)) − y ln(y/(x + y)), the complement in ln 2 (x + y)."""
    from_x = x * math.log(x / (x + y)) if x > 0.0 else 0.0
    from_y = y * math.log(y / (x + y)) if y > 0.0 else 0.0
    return -(from_x + from_y)


@inner(inline="always")
def _by_feature(pairs: RowPairs, i: Any, j: Any, metric: _Metric) -> Any:
    """Return φ and, of a divergence, its complement, summed over the features either row has."""
    left, right = pairs.left, pairs.right
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
        weight = metric.weights[m if m <= n else n]
        if metric.form == DIVERGENCE:
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
def _values(
    metric: _Metric, pairs: RowPairs, maximum: float, out: FloatArray, complement: FloatArray
) -> None:
    for t in range(out.shape[0]):
        i, j = pairs.first[t], pairs.second[t]
        if metric.form == INNER:
            out[t] = 1.0 - _product(pairs, i, j, metric)
            complement[t] = maximum - out[t]
        else:
            total, rest = _by_feature(pairs, i, j, metric)
            out[t] = total
            complement[t] = rest if metric.form == DIVERGENCE else maximum - total


def pair_values(
    form: int, pairs: RowPairs, weights: FloatArray, maximum: float
) -> tuple[FloatArray, FloatArray]:
    """Return φ and φ_max − φ of pairs."""
    out, complement = np.empty((2, len(pairs.first)))
    _values(_metric(form, weights), pairs, float(maximum), out, complement)
    return out, complement


class _Grid(NamedTuple):
    """√a by feature, its length, and how many integers are 1 where entries are rounded."""

    features: FloatArray
    length: float
    unit: float


_make_grid = former(_Grid)


@inner(inline="always")
def _quantise_row(rows: Side, i: Any, grid: _Grid, extra: Any, values: Any) -> Any:
    """Write the entries of one row; return Σ q², or -1 where an entry does not fit into int32."""
    start, factor = rows.indptr[i], rows.factor[i]
    total = np.int64(0)
    for p in range(start, rows.indptr[i + 1]):
        m = p - start if rows.dense else rows.indices[p]
        scaled = grid.features[m] * (factor * rows.values[p] + extra) * grid.unit
        if not abs(scaled) <= _LARGEST:
            return np.int64(-1)
        values[p] = np.int32(np.rint(scaled))
        total += np.int64(values[p]) * np.int64(values[p])
    return total


@njit(nogil=True, cache=True, makes_arrays=False)
def _quantise(rows: Side, grid: _Grid, squared: bool, half: int, out: Quantised) -> None:
    for i in range(out.own.shape[0]):
        start, stop = rows.indptr[i], rows.indptr[i + 1]
        whole = stop - start == grid.features.shape[0]  # no zeros: centred here, entry by entry
        extra = rows.extra[i] if whole else 0.0
        shift = 0.0 if whole else rows.extra[i] * grid.length * grid.unit
        total = _quantise_row(rows, i, grid, extra, out.values)
        if total < 0 or abs(shift) > _LARGEST:
            for p in range(start, stop):
                out.values[p] = 0
            shift = 0.0
        out.centring[i] = np.int32(np.rint(shift))
        out.own[i] = total if squared else half


def quantise(
    rows: Side, features: FloatArray, bits: int, *, squared: bool, radius: float
) -> Quantised:
    """Return rows in integers; `features` are √a.

    A centred sparse row that is nearly constant has entries beyond int32 before its mean is taken
    off; it becomes a zero row, as if its correlation with all others were 0. Integers only
    find moves, float64 decides whether they are kept. Where the form is `squared` A is the row's
    own square, and the `radius` scales rows into the unit ball; it is 1 otherwise.
    """
    n_rows = len(rows.indptr) - 1
    values = np.empty(len(rows.values), np.int32)
    out = Quantised(values, np.zeros(n_rows, np.int32), np.empty(n_rows, np.int64))
    half = 1 << max(2 * bits - 1, 0)
    grid = _make_grid(features, np.sqrt((features * features).sum()), 2.0**bits / radius)
    _quantise(rows, grid, squared, half, out)
    return out


@njit(nogil=True, cache=True, makes_arrays=False)
def _integers(
    pairs: RowPairs, q_left: Quantised, q_right: Quantised, kappa: int, out: IntArray
) -> None:
    left, right = pairs.left, pairs.right
    for t in range(out.shape[0]):
        i, j = pairs.first[t], pairs.second[t]
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


def pair_integers(pairs: RowPairs, q_left: Quantised, q_right: Quantised, kappa: int) -> IntArray:
    """Return φ of pairs in integers, equal to what the closure tables add up."""
    out = np.empty(len(pairs.first), np.int64)
    _integers(pairs, _make_quantised(*q_left), _make_quantised(*q_right), kappa, out)
    return out


@inner(inline="always")
def _turn(x: Any, y: Any, e: Any, f: Any, similarity: Any) -> Any:
    """Return −∂φ/∂log a of a feature without a and without the parts all features share."""
    cross = x * y + (x * f + y * e)
    squares = x * (x + 2.0 * e) + y * (y + 2.0 * f)
    return cross - 0.5 * similarity * squares


@inner(inline="always")
def _feature_change(metric: _Metric, m: Any, x: Any, y: Any, extras: Any, violation: Any) -> Any:
    """Return signed · dφ of feature m, where the rows have x and y."""
    signed, similarity = violation  # the signed weight of the pair, z · z'
    if metric.form == SQUARED:
        change = signed * ((x - y) * (x - y))
    elif metric.form == INNER:
        change = -signed * (metric.weights[m] * _turn(x, y, extras[0], extras[1], similarity))
    elif signed < 0.0:  # a violated cannot-link costs the complement
        change = -signed * _from_middle(x, y)
    else:
        change = signed * _to_middle(x, y)
    return change


@inner(inline="always")
def _add_gradient(
    pairs: RowPairs,
    t: Any,
    metric: _Metric,
    signed: FloatArray,
    similarity: Any,
    fixed: _FixedPoint,
) -> None:
    """Add signed · dφ of one pair to the sums of the features either row has."""
    left, right, i, j = pairs.left, pairs.right, pairs.first[t], pairs.second[t]
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
        if metric.form != SQUARED:
            x *= left.factor[i]
            y *= right.factor[j]
        extras = left.extra[i], right.extra[j]
        change = _feature_change(metric, m, x, y, extras, (signed, similarity))
        fixed.sums[m] += np.int64(np.rint(change * fixed.units[m]))


@njit(nogil=True, cache=True, makes_arrays=False)
def _gradient(pairs: RowPairs, metric: _Metric, signed: FloatArray, fixed: _FixedPoint) -> None:
    last = fixed.sums.shape[0] - 1
    for t in range(signed.shape[0]):
        if signed[t] == 0.0:
            continue
        similarity = 0.0
        if metric.form == INNER:
            i, j = pairs.first[t], pairs.second[t]
            similarity = _product(pairs, i, j, metric)
            e, f = pairs.left.extra[i], pairs.right.extra[j]
            shared = e * f - 0.5 * similarity * (e * e + f * f)
            fixed.sums[last] += np.int64(np.rint(-signed[t] * shared * fixed.units[last]))
        _add_gradient(pairs, t, metric, signed[t], similarity, fixed)


def pair_gradient(
    form: int, pairs: RowPairs, signed: FloatArray, weights: FloatArray, units: FloatArray
) -> IntArray:
    """Return Σ signed · dφ by feature in fixed point, `units` and result of shape (d + 1,).

    `signed` is +w for a violated must-link, −w for a violated cannot-link and 0 for a satisfied
    pair. For `INNER` the derivative is by log a (the last entry is times a, in every feature); for
    the others it is the coefficient of a_m in J, but for the bounding box.
    """
    fixed = _FixedPoint(frozen(units, np.float64), np.zeros(len(weights) + 1, np.int64))
    _gradient(pairs, _metric(form, weights), frozen(signed, np.float64), fixed)
    return fixed.sums


class RowSums(NamedTuple):
    """Σ z of sets of rows as CSR, features ascending, the centring last; and their ΣA.

    All pairs between two sets cost N'·ΣA + N·ΣA' − κ S·S': what their rows cost, never the pairs.
    """

    start: IntArray
    feature: LabelArray
    value: FloatArray
    own: FloatArray


class _Sets(NamedTuple):
    """Sets of rows as CSR."""

    start: IntArray
    member: LabelArray


_make_sets = former(_Sets)


@inner(inline="always")
def _list_new(rows: Any, point: Any, number: Any, seen: Any, feature: Any, place: Any) -> Any:
    """List the features of a row that its set had not yet, from `place` on; return the next."""
    indices, indptr = rows
    first, dense = indptr[point], indices.shape[0] == 0
    for p in range(first, indptr[point + 1]):
        m = p - first if dense else np.int64(indices[p])
        if seen[m] != number:
            seen[m] = number
            if feature.shape[0] > 0:
                feature[place] = m
            place += 1
    return place


@njit(nogil=True, cache=True, makes_arrays=False)
def _collect(
    rows: Any, sets: _Sets, seen: LabelArray, gap: int, begin: IntArray, feature: LabelArray
) -> None:
    """List the features of each set as they come, or count them where the list is empty."""
    for number in range(sets.start.shape[0] - 1):
        first = begin[number]
        place = first
        for at in range(sets.start[number], sets.start[number + 1]):
            place = _list_new(rows, sets.member[at], number, seen, feature, place)
        if feature.shape[0] == 0:
            begin[number + 1] = place - first + gap


def features_of_sets(
    rows: Any, start: IntArray, member: AnyArray, n_features: int, *, gap: int = 0
) -> tuple[IntArray, LabelArray]:
    """Return the features of sets of rows, ascending, as CSR, with gaps after those of each set.

    Dense rows have no indices.
    """
    entries, sets = (rows.indices, frozen(rows.indptr, np.int64)), _make_sets(start, member)
    begin, seen = np.zeros(len(start), np.int64), np.full((2, n_features), -1, np.int32)
    _collect(entries, sets, seen[0], gap, begin, np.empty(0, np.int32))
    begin = np.cumsum(begin)
    feature = np.empty(begin[-1], np.int32)
    _collect(entries, sets, seen[1], gap, begin, feature)
    for first, last in pairwise(begin.tolist()):
        feature[first : last - gap].sort()
    return begin, feature


@inner(inline="always")
def _add_summand(rows: Side, point: Any, roots: Any, total: FloatArray) -> Any:
    """Add z of a row; return z · z."""
    square = 0.0
    first = rows.indptr[point]
    for p in range(first, rows.indptr[point + 1]):
        m = p - first if rows.dense else rows.indices[p]
        z = rows.factor[point] * roots[m] * rows.values[p]
        total[m] += z
        square += z * z
    return square


@njit(nogil=True, cache=True, makes_arrays=False)
def _sum_sets(
    rows: Side, grid: _Grid, squared: bool, sets: _Sets, sums: RowSums, total: FloatArray
) -> None:
    for number in range(sets.start.shape[0] - 1):
        last = sums.start[number + 1] - 1
        for place in range(sums.start[number], last):
            total[sums.feature[place]] = 0.0
        centring = 0.0
        for at in range(sets.start[number], sets.start[number + 1]):
            point = sets.member[at]
            square = _add_summand(rows, point, grid.features, total)
            centring += rows.extra[point] * grid.length
            sums.own[number] += square if squared else 0.5
        for place in range(sums.start[number], last):
            sums.value[place] = total[sums.feature[place]]
        sums.value[last] = centring


def sum_rows(
    rows: Side, roots: FloatArray, *, squared: bool, start: IntArray, member: AnyArray
) -> RowSums:
    """Return Σ z and ΣA of sets of rows, given as CSR; `roots` are √a.

    A is a row's own square, or one half.
    """
    begin, feature = features_of_sets(rows, start, member, len(roots), gap=1)
    feature[begin[1:] - 1] = len(roots)  # the centring
    sums = RowSums(begin, feature, np.empty(len(feature)), np.zeros(len(begin) - 1))
    grid = _make_grid(roots, np.sqrt((roots * roots).sum()), 1.0)
    _sum_sets(rows, grid, squared, _make_sets(start, member), sums, np.empty(len(roots)))
    return sums


@njit(nogil=True, cache=True, makes_arrays=False)
def _products(sums: RowSums, last: int, first: IntArray, second: IntArray, out: FloatArray) -> None:
    for t in range(first.shape[0]):
        short, long = first[t], second[t]
        if sums.start[short + 1] - sums.start[short] > sums.start[long + 1] - sums.start[long]:
            short, long = long, short
        begin = sums.start[long]
        features = sums.feature[begin : sums.start[long + 1]]
        for p in range(sums.start[short], sums.start[short + 1]):
            at = find(features, sums.feature[p])
            if at >= 0:
                product = sums.value[p] * sums.value[begin + at]
                out[t] += -product if sums.feature[p] == last else product


def products(sums: RowSums, n_features: int, first: IntArray, second: IntArray) -> FloatArray:
    """Return Σ z · Σ z' of the sets first[t] and second[t], the centring counted negatively."""
    ends = frozen(first, np.int64), frozen(second, np.int64)
    out = np.zeros(len(first))
    _products(sums, int(n_features), *ends, out)
    return out
