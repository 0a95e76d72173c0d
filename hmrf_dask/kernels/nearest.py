"""Nearest centroids: candidates in low precision, the decision in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from hmrf_dask.kernels import compiled
from hmrf_dask.kernels.compiled import (
    RowArrays,
    Terms,
    former,
    frozen,
    frozen_terms,
    inner,
    instruction,
    njit,
    of_row,
)
from hmrf_dask.kernels.distances import DOUBLE, LARGEST, SMALLEST, Operands, Table, distance
from hmrf_dask.kernels.exact import add_float, carry, exact_zero
from hmrf_dask.kernels.hamerly import CentroidDrift, RowBounds, rows_to_compare
from hmrf_dask.kernels.instructions import prefetch, prefetch_row
from hmrf_dask.kernels.products import (
    LANES,
    Columns,
    aligned,
    has_half,
    layout,
    multiply_row,
    spread,
    store,
)
from hmrf_dask.kernels.threads import buffer, over_ranges
from hmrf_dask.types import BoolArray, FloatArray, IntArray, LabelArray, RowArray

_INDEX, _LANE = ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_INFINITE = ir.Constant(_VECTOR, [float("inf")] * LANES)
TILE = 16  # features that are turned at a time: two lines of each centroid
RUN = 4096  # features whose bounds are added up together
SMALL = 32  # up to so many centroids half the bytes are no sooner fetched
HALF_BITS = 14  # half floats reach 2**15.99; twice the largest entry must fit
MARGIN = 2.0**-18  # more than float32 rounds off scores that are made smaller


class ApproximateTable(NamedTuple):
    """A table of centroids in single or half precision, times a power of two."""

    columns: Columns
    bias: RowArray  # (width,): of `Table`; the bias of columns that are no centroid is infinite
    extra: RowArray
    unit: float  # what the entries are times
    # the largest norm of a column (see `Table.weights`) and the largest entry, without `unit`
    norm: float
    entry: float
    norm_error: float  # the same of what rounding took from them
    entry_error: float


@inner()
def _mean(line: FloatArray, lanes: FloatArray) -> Any:
    """Return the mean, every 16th number in a sum of its own."""
    n_clusters = line.shape[0]
    whole = n_clusters - n_clusters % LANES
    lanes[:] = 0.0
    for first in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += line[first + lane]
    for h in range(whole, n_clusters):
        lanes[h - whole] += line[h]
    half = LANES // 2
    while half > 0:
        for lane in range(half):
            lanes[lane] += lanes[half + lane]
        half //= 2
    return lanes[0] / n_clusters


class _Source(NamedTuple):
    """What an approximate table is made of; no `metric`, no `shares`: all 1."""

    exact: FloatArray
    metric: FloatArray
    shares: FloatArray
    unit: float


_make_source = former(_Source)


@njit(nogil=True, cache=True)
def _fill(
    source: _Source, begin: int, n_features: int, table: RowArray, moments: FloatArray
) -> None:
    """Write features `begin` to `n_features` of a table, and into `moments` what it is like.

    That is, sums of squares of entries and of what is lost, times the features' `shares`, and the
    largest entry, column by column.
    """
    exact, metric, shares, unit = source
    norms, errors, tops = moments[0], moments[1], moments[2]
    n_clusters = exact.shape[0]
    tile, lanes = np.empty((TILE, n_clusters)), np.empty(LANES)
    for first in range(begin, n_features, TILE):
        count = min(TILE, n_features - first)
        for h in range(n_clusters):
            row = exact[h]
            for ahead in range(first + 2 * TILE, min(first + 3 * TILE, n_features), TILE // 2):
                prefetch(row, ahead)  # the machine follows few arrays at once
            for t in range(count):
                tile[t, h] = row[first + t]
        for t in range(count):
            line = tile[t]
            middle = _mean(line, lanes)
            scale = unit if metric.shape[0] == 0 else unit * metric[first + t]
            share = 1.0 if shares.shape[0] == 0 else shares[first + t]
            for h in range(n_clusters):
                value = scale * (line[h] - middle)
                lost = value - store(table, first + t, h, value)
                norms[h] += share * (value * value)
                errors[h] += share * (lost * lost)
            for h in range(n_clusters):  # by itself: of more arrays LLVM makes no vectors
                size = abs(scale * (line[h] - middle))
                tops[h] = size if size > tops[h] else tops[h]


def make_approximate_table(table: Table, *, half: bool) -> ApproximateTable:
    """Return the approximate table of a table, in half or in single precision."""
    n_clusters, n_features = table.exact.shape
    width, vectors = layout(n_clusters, np.float32)
    entries = buffer((n_features, width), np.uint16 if half else np.float32)
    entries[:, n_clusters:] = 0
    exponent = math.frexp(2.0 * table.largest_entry)[1]
    unit = math.ldexp(1.0, (HALF_BITS if half else 0) - exponent)
    metric = table.weights if table.squared else np.zeros(0)
    source = _make_source(table.exact, metric, table.shares, unit)
    # By fixed runs of features: slack goes into cost rows, so bounds may not know of threads.
    moments = np.zeros((-(-n_features // RUN), 3, n_clusters))

    def work(first: int, last: int) -> None:
        """Fill the table for a range of runs of features."""
        for number in range(first, last):
            ends = number * RUN, min((number + 1) * RUN, n_features)
            _fill(source, *ends, entries, moments[number])

    over_ranges(work, len(moments), table.exact.size)
    norms, errors, _ = moments.sum(axis=0)
    largest = float(moments[:, 2].max(initial=0.0))
    entry_error = largest * 2.0**-10.99 + 2.0**-14 if half else largest * 2.0**-23.99 + 2.0**-140
    bias = np.full(width, np.inf, np.float32)
    extra = np.zeros(width, np.float32)
    with np.errstate(over="ignore"):  # what overflows is seen before it is used
        bias[:n_clusters], extra[:n_clusters] = table.bias, table.extra
    loose = 1.0 + 2.0**-20  # what was measured was rounded itself
    return ApproximateTable(
        columns=Columns(entries, vectors),
        bias=bias,
        extra=extra,
        unit=unit,
        norm=loose * math.sqrt(norms.max(initial=0.0)) / unit,
        entry=loose * largest / unit,
        norm_error=loose * math.sqrt(errors.max(initial=0.0)) / unit,
        entry_error=loose * entry_error / unit,
    )


def approximate_table(table: Table, *, single: bool = False) -> ApproximateTable:
    """Return an approximate table in the precision that is the fastest here, or in `single`."""
    half = has_half() and len(table.exact) > SMALL and not single
    return table.once(
        "half" if half else "single", lambda: make_approximate_table(table, half=half)
    )


def _place(builder: Any, array: Any, at: Any) -> Any:
    return builder.bitcast(builder.gep(array.data, [at]), _VECTOR.as_pointer())


def _lesser(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", x, y), x, y)


def _loop(builder: Any, array: Any, first: Any, body: Callable[[Any, Any], Any]) -> Any:
    """Emit a loop over whole vectors of an array that carries one value; return its last."""
    length = builder.extract_value(array.shape, 0)
    before, loop = builder.block, builder.append_basic_block("vectors")
    done = builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    at, value = builder.phi(_INDEX), builder.phi(first.type)
    after = body(at, value)
    following = builder.add(at, ir.Constant(_INDEX, LANES))
    at.add_incoming(ir.Constant(_INDEX, 0), before)
    at.add_incoming(following, loop)
    value.add_incoming(first, before)
    value.add_incoming(after, loop)
    builder.cbranch(builder.icmp_signed("<", following, length), loop, done)
    builder.position_at_end(done)
    return after


def _least_lane(builder: Any, least: Any) -> Any:
    """Return the least number of a vector."""
    half = LANES // 2
    while half:  # halves against halves
        kind = ir.VectorType(_LANE, LANES)
        turned = ir.Constant(kind, [(lane + half) % LANES for lane in range(LANES)])
        least = _lesser(builder, least, builder.shuffle_vector(least, least, turned))
        half //= 2
    return builder.extract_element(least, ir.Constant(_LANE, 0))


@instruction(compiled.score)
def score(typing: Any, scores: RowArray, bias: Any, extra: Any, scale: Any, shift: Any) -> Any:
    """Turn products into scores, which are distances but for the row's own part; return the least.

    Lengths are whole vectors, and all are float32.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Emit a loop over whole vectors."""
        arrays = [context.make_array(scores)(context, builder, array) for array in arguments[:3]]
        scales, shifts = (spread(builder, number) for number in arguments[3:])
        flags = ("contract",)

        def body(at: Any, least: Any) -> Any:
            """Write the scores of one vector, and keep the least of each lane."""
            number, own, more = (
                builder.load(_place(builder, array, at), align=4) for array in arrays
            )
            number = builder.fadd(builder.fmul(number, scales, flags=flags), own, flags=flags)
            number = builder.fadd(builder.fmul(more, shifts, flags=flags), number, flags=flags)
            builder.store(number, _place(builder, arrays[0], at), align=4)
            return _lesser(builder, number, least)

        return _least_lane(builder, _loop(builder, arrays[0], _INFINITE, body))

    return types.float32(scores, scores, scores, types.float32, types.float32), code


@instruction(compiled.count_within)
def count_within(typing: Any, scores: RowArray, limit: Any) -> Any:
    """Return how many scores are not above a limit."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Emit a loop over whole vectors."""
        array = context.make_array(scores)(context, builder, arguments[0])
        limits, bits = spread(builder, arguments[1]), ir.IntType(LANES)

        def body(at: Any, count: Any) -> Any:
            """Count the scores of one vector that are within the limit."""
            number = builder.load(_place(builder, array, at), align=4)
            within = builder.bitcast(builder.fcmp_ordered("<=", number, limits), bits)
            return builder.add(count, builder.zext(builder.ctpop(within), _INDEX))

        return _loop(builder, array, ir.Constant(_INDEX, 0), body)

    return types.int64(scores, types.float32), code


@instruction(compiled.least_beyond)
def least_beyond(typing: Any, scores: RowArray, limit: Any) -> Any:
    """Return the least score that is above a limit."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Emit a loop over whole vectors."""
        array = context.make_array(scores)(context, builder, arguments[0])
        limits = spread(builder, arguments[1])

        def body(at: Any, least: Any) -> Any:
            """Keep the least of each lane among the scores of one vector beyond the limit."""
            number = builder.load(_place(builder, array, at), align=4)
            beyond = builder.fcmp_ordered(">", number, limits)
            return _lesser(builder, builder.select(beyond, number, _INFINITE), least)

        return _least_lane(builder, _loop(builder, array, _INFINITE, body))

    return types.float32(scores, types.float32), code


SINGLE = 1.0625 * 2.0**-24  # by how much a float32 operation rounds, in sums of up to LONGEST
OPERATIONS = 16  # float32 operations around the products, more than there are
LONGEST = 2**19  # entries of a row; longer ones are left to float64
WIDEST = 2.0**100  # of factors in float32
WIDER, MOST = 1.125, 2.0  # how much wider bounds are made, and may be
KEPT = np.float32(1.0 - 2.0**-20)  # of a margin that was rounded


class RoundingBounds(NamedTuple):
    """What bounds the rounding of scores under a table, but for what the rows themselves add."""

    norm_error: float
    entry_error: float
    approximate_norm: float
    approximate_entry: float
    norm: float
    entry: float
    bias: float
    extra: float
    unit: float  # a power of two

    @staticmethod
    def of(table: Table, approximate: ApproximateTable) -> RoundingBounds:
        """Return the bounds of a table and its approximate table."""
        return RoundingBounds(
            norm_error=approximate.norm_error,
            entry_error=approximate.entry_error,
            approximate_norm=approximate.norm,
            approximate_entry=approximate.entry,
            norm=table.largest_norm,
            entry=table.largest_entry,
            bias=float(np.abs(table.bias).max()),
            extra=float(np.abs(table.extra).max()),
            unit=approximate.unit,
        )

    def above(self) -> RoundingBounds:
        """Return bounds a little wider, which hold for other tables, too."""
        return RoundingBounds._make([*(WIDER * bound for bound in self[:-1]), self.unit])

    def hold(self, others: RoundingBounds) -> bool:
        """Return whether these bounds hold for what `others` do, and are not far too wide."""
        pairs = zip(others[:-1], self[:-1], strict=True)
        within = (least <= own <= MOST * least for least, own in pairs)
        return self.unit == others.unit and all(within)


def rounding_slack(rows: RowArrays, terms: Terms, bounds: RoundingBounds) -> FloatArray:
    """Return how far a row's scores, and two of its distances, can disagree; inf: without bound.

    A score of a row is a distance but for the row's own part, and what its entries make of the
    centring of the table.
    """
    lengths = np.diff(rows.indptr)
    scale, shift = np.abs(terms.scale), np.abs(terms.shift)
    bias, extra, unit = bounds.bias, bounds.extra, bounds.unit
    with np.errstate(over="ignore", invalid="ignore"):
        lost = np.minimum(terms.norm * bounds.norm_error, terms.mass * bounds.entry_error)
        reach = lost + np.minimum(
            terms.norm * bounds.approximate_norm, terms.mass * bounds.approximate_entry
        )
        size = np.minimum(terms.norm * bounds.norm, terms.mass * bounds.entry)
        other = bias + shift * extra
        slack = SINGLE * reach + DOUBLE * (size + (other + terms.size))
        slack = (slack + (SMALLEST / unit) * scale) * (lengths + OPERATIONS)
        slack += lost + OPERATIONS * (SINGLE * (other + extra) + SMALLEST * (1.0 + extra))
        slack *= 2.0 + 2.0**-18
        within = (reach * (unit / LARGEST) <= scale) & (slack < np.inf)
    within &= (scale < unit * WIDEST) & (scale > unit / WIDEST)
    within &= (shift < WIDEST) & (lengths < LONGEST)
    return np.where(within & (bias < WIDEST) & (extra < WIDEST), slack, np.inf)


@inner()
def _first_within(scores: RowArray, limit: float) -> Any:
    h = np.int32(0)
    while not scores[h] <= limit:
        h += np.int32(1)
    return h


@inner()
def _decide(
    read: Operands, scores: RowArray, limit: float, i: int, current: Any, change: IntArray
) -> Any:
    """Return the nearest of the candidates: ties stay at `current`, then go to the lowest index.

    What a move changes is added to `change`, unless that has no limbs.
    """
    measured = change.shape[0] > 0
    present = np.inf
    if current >= 0 and (measured or scores[current] <= limit):
        present = distance(read, i, np.int64(current))
    best, least = current, present
    for h in range(read.table.exact.shape[0]):
        if h != current and scores[h] <= limit:
            value = distance(read, i, h)
            if value < least:
                least = value
                best = np.int32(h)
    if measured and current >= 0 and best != current:
        add_float(change, least)
        add_float(change, -present)
    return best


class Scoring(NamedTuple):
    """How products of rows with an approximate table become scores, and how far off they can be."""

    columns: Columns
    bias: RowArray  # (width,)
    extra: RowArray
    scale: RowArray  # (n_rows,) or (1,)
    shift: RowArray
    slack: FloatArray  # (n_rows,)

    @staticmethod
    def of(approximate: ApproximateTable, terms: Terms, slack: FloatArray) -> Scoring:
        """Return how the rows of these terms are scored."""
        columns, bias, extra, unit, *_ = approximate
        with np.errstate(over="ignore"):  # such rows have no finite slack
            scale, shift = (
                frozen(factor.astype(np.float32), np.float32)
                for factor in (terms.scale / unit, terms.shift)
            )
        return Scoring(columns, bias, extra, scale, shift, frozen(slack, np.float64))


class Nearest(NamedTuple):
    """What is found: labels; gaps, if wanted; the exact change of Σ D as limbs, if wanted."""

    labels: LabelArray
    gaps: RowArray
    change: IntArray


@njit(nogil=True, cache=True, makes_arrays=False)
def _nearest(
    read: Operands,
    scoring: Scoring,
    todo: LabelArray,
    labels: LabelArray,
    scores: RowArray,
    out: Nearest,
) -> None:
    rows, columns, slack, change = read.rows, scoring.columns, scoring.slack, out.change
    bias, extra, scale, shift = scoring.bias, scoring.extra, scoring.scale, scoring.shift
    for t in range(todo.shape[0]):
        i = np.int64(todo[t])
        current = labels[i]
        if t + 1 < todo.shape[0] and todo[t + 1] > i + 1:  # else the machine itself fetches it
            prefetch_row(rows.values, rows.indices, rows.indptr, np.int64(todo[t + 1]))
        if slack[i] < np.inf:
            multiply_row(rows, i, columns, scores)
            lowest = score(scores, bias, extra, of_row(scale, i), of_row(shift, i))
            limit = np.float32(np.float64(lowest) + slack[i])
            alone = count_within(scores, limit) == 1
        else:  # what overflowed says nothing
            for h in range(scores.shape[0]):
                scores[h] = np.float32(0.0)
            limit = np.float32(0.0)
            alone = False
        if alone and current >= 0 and scores[current] <= limit:
            out.labels[i] = current
        elif alone and (current < 0 or change.shape[0] == 0):
            out.labels[i] = _first_within(scores, limit)
        else:
            out.labels[i] = _decide(read, scores, limit, i, current, change)
            alone = False
        if out.gaps.shape[0] > 0:
            gap = least_beyond(scores, limit) - limit if alone else np.float32(0.0)
            out.gaps[i] = KEPT * gap
    if change.shape[0] > 0:
        carry(change)


def _lasting_slack(
    rows: RowArrays, terms: Terms, rounding: RoundingBounds, bounds: RowBounds
) -> FloatArray:
    """Return `rounding_slack` for bounds that last for some tables."""
    if bounds.slack is None or not bounds.slack[0].hold(rounding):
        wider = rounding.above()
        bounds.slack = (wider, rounding_slack(rows, terms, wider))
    return bounds.slack[1]


def nearest(
    rows: RowArrays,
    terms: Terms,
    table: Table,
    labels: LabelArray,
    *,
    measured: bool = True,
    bounds: RowBounds | None = None,
    drift: CentroidDrift | None = None,
) -> tuple[LabelArray, IntArray]:
    """Return the nearest centroid of each row and the exact change of Σ D over rows with a label.

    Ties stay at the present label, then go to the lowest index. `LINKED` rows stay linked,
    `UNDECIDED` ones are decided. The nearest is that of the float64 distances, whatever was rounded
    to find it. Where the change is not `measured` it is 0. The `bounds` of the rows, and how far
    centroids drifted since, spare what cannot have changed; they are noted for the next time.
    """
    change, approximate = exact_zero(), approximate_table(table)
    rounding = RoundingBounds.of(table, approximate)
    if bounds is None:
        slack, gaps = rounding_slack(rows, terms, rounding), np.zeros(0, np.float32)
    else:
        slack = _lasting_slack(rows, terms, rounding, bounds)
        gaps = bounds.take(labels, drift)
    out, todo = rows_to_compare(terms, slack, drift, gaps, labels)
    read = Operands(rows, frozen_terms(*terms), table.arrays)
    scoring = Scoring.of(approximate, terms, slack)
    kept = frozen(todo, np.int32), frozen(labels, np.int32)
    scores = aligned((approximate.columns.table.shape[1],), np.float32)
    _nearest(read, scoring, *kept, scores, Nearest(out, gaps, change if measured else change[:0]))
    if bounds is not None:
        bounds.note(out, gaps, drift)
    return out, change


@njit(nogil=True, cache=True, makes_arrays=False)
def _may_move(
    rows: RowArrays,
    scoring: Scoring,
    leaving: FloatArray,
    labels: LabelArray,
    scores: RowArray,
    out: BoolArray,
) -> None:
    for i in range(labels.shape[0]):
        own = labels[i]
        if own < 0:
            continue
        out[i] = not scoring.slack[i] + leaving[own] < np.inf
        if not out[i]:
            multiply_row(rows, i, scoring.columns, scores)
            scale, shift = of_row(scoring.scale, i), of_row(scoring.shift, i)
            score(scores, scoring.bias, scoring.extra, scale, shift)
            limit = np.float64(scores[own]) + (scoring.slack[i] + leaving[own])
            out[i] = count_within(scores, np.float32(limit)) > 1


def rows_that_may_move(
    rows: RowArrays,
    terms: Terms,
    table: Table,
    squares: FloatArray,
    labels: LabelArray,
    bounds: RowBounds,
) -> LabelArray:
    """Return the rows that may gain by a move, found in low precision; all others cannot.

    The table is that of the directions of the sums, whose `squares` are ‖S‖². With c the cosine of
    a unit row and S, joining S gains at most c + 1 / (2 ‖S‖), and leaving it costs at least
    c − 1 / (2 (‖S‖ − 1)): no row goes to a centroid that is farther than its own by more than both.
    """
    approximate = approximate_table(table)
    slack = _lasting_slack(rows, terms, RoundingBounds.of(table, approximate), bounds)
    scoring = Scoring.of(approximate, terms, slack)
    bias, lengths = scoring.bias.copy(), np.sqrt(np.maximum(squares, 0.0))  # rounded themselves
    with np.errstate(divide="ignore", over="ignore"):  # vacant clusters are never out
        joining = 0.5 / lengths
        leaving = joining + np.where(lengths > 1.5, 0.5 / (lengths - 1.0), np.inf) + MARGIN
        bias[: len(lengths)] -= joining.astype(np.float32)
    scores, out = aligned(bias.shape, np.float32), np.zeros(len(labels), np.bool_)
    scoring = scoring._replace(bias=frozen(bias, np.float32))
    known = frozen(leaving, np.float64), frozen(labels, np.int32)
    _may_move(rows, scoring, *known, scores, out)
    return np.flatnonzero(out).astype(np.int32)
