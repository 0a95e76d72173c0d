"""Nearest centroids: candidates in low precision, the decision in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from hmrf_dask.kernels import compiled
from hmrf_dask.kernels.approximate import (
    RoundingBounds,
    RowScaling,
    approximate_table,
    dense_end,
)
from hmrf_dask.kernels.compiled import (
    RowArrays,
    Terms,
    frozen,
    frozen_terms,
    inner,
    instruction,
    njit,
    of_row,
)
from hmrf_dask.kernels.distances import Operands, Table, distance
from hmrf_dask.kernels.exact import add_float, carry, exact_zero
from hmrf_dask.kernels.hamerly import CentroidDrift, RowBounds, rows_to_compare
from hmrf_dask.kernels.instructions import prefetch_end, prefetch_indexed, prefetch_row
from hmrf_dask.kernels.products import (
    LANES,
    Columns,
    aligned,
    multiply_indexed,
    multiply_row,
    multiply_rows,
    rows_together,
    spread,
)
from hmrf_dask.types import FloatArray, IntArray, LabelArray, RowArray

_INDEX, _LANE = ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_INFINITE = ir.Constant(_VECTOR, [float("inf")] * LANES)
IN_TURN = 16  # mixed rows whose ends are multiplied before their other entries
MARGIN = 2.0**-18  # more than float32 rounds off scores that are made smaller


def _place(builder: Any, array: Any, at: Any) -> Any:
    return builder.bitcast(builder.gep(array.data, [at]), _VECTOR.as_pointer())


def _lesser(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", x, y), x, y)


def _loop(builder: Any, array: Any, firsts: list[Any], body: Callable[..., list[Any]]) -> list[Any]:
    """Emit a loop over whole vectors of an array that carries some values; return their last."""
    length = builder.extract_value(array.shape, 0)
    before, loop = builder.block, builder.append_basic_block("vectors")
    done = builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    at = builder.phi(_INDEX)
    values = [builder.phi(first.type) for first in firsts]
    after = body(at, *values)
    following = builder.add(at, ir.Constant(_INDEX, LANES))
    nodes, starts = [at, *values], [ir.Constant(_INDEX, 0), *firsts]
    for node, start, again in zip(nodes, starts, [following, *after], strict=True):
        node.add_incoming(start, before)
        node.add_incoming(again, loop)
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

        def body(at: Any, least: Any) -> list[Any]:
            """Write the scores of one vector, and keep the least of each lane."""
            number, own, more = (
                builder.load(_place(builder, array, at), align=4) for array in arrays
            )
            number = builder.fadd(builder.fmul(number, scales, flags=flags), own, flags=flags)
            number = builder.fadd(builder.fmul(more, shifts, flags=flags), number, flags=flags)
            builder.store(number, _place(builder, arrays[0], at), align=4)
            return [_lesser(builder, number, least)]

        return _least_lane(builder, *_loop(builder, arrays[0], [_INFINITE], body))

    return types.float32(scores, scores, scores, types.float32, types.float32), code


@instruction(compiled.within)
def within(typing: Any, scores: RowArray, limit: Any) -> Any:
    """Return how many scores are not above a limit, and the place of it where it is one.

    There is no branch on what is found: of rows that move it would be guessed wrong.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Emit a loop over whole vectors, and what finds the place in the last that has any."""
        array = context.make_array(scores)(context, builder, arguments[0])
        limits, bits = spread(builder, arguments[1]), ir.IntType(LANES)

        def lanes(at: Any) -> Any:
            """Return one bit for each score of a vector: whether it is within the limit."""
            number = builder.load(_place(builder, array, at), align=4)
            return builder.bitcast(builder.fcmp_ordered("<=", number, limits), bits)

        def body(at: Any, count: Any, last: Any) -> list[Any]:
            """Count the scores of one vector that are within the limit."""
            here = lanes(at)
            count = builder.add(count, builder.zext(builder.ctpop(here), _INDEX))
            return [count, builder.select(builder.icmp_unsigned("!=", here, bits(0)), at, last)]

        count, last = _loop(builder, array, [_INDEX(0), _INDEX(0)], body)
        first = builder.zext(builder.cttz(lanes(last), ir.IntType(1)(0)), _INDEX)
        found = [count, builder.add(last, first)]
        return context.make_tuple(builder, signature.return_type, found)

    return types.UniTuple(types.int64, 2)(scores, types.float32), code


@instruction(compiled.least_beyond)
def least_beyond(typing: Any, scores: RowArray, limit: Any) -> Any:
    """Return the least score that is above a limit."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Emit a loop over whole vectors."""
        array = context.make_array(scores)(context, builder, arguments[0])
        limits = spread(builder, arguments[1])

        def body(at: Any, least: Any) -> list[Any]:
            """Keep the least of each lane among the scores of one vector beyond the limit."""
            number = builder.load(_place(builder, array, at), align=4)
            beyond = builder.fcmp_ordered(">", number, limits)
            return [_lesser(builder, builder.select(beyond, number, _INFINITE), least)]

        return _least_lane(builder, *_loop(builder, array, [_INFINITE], body))

    return types.float32(scores, types.float32), code


KEPT = np.float32(1.0 - 2.0**-20)  # of a margin that was rounded


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
    rows: RowScaling


class Nearest(NamedTuple):
    """What is found: labels; gaps, if wanted; the exact change of Σ D as limbs, if wanted."""

    labels: LabelArray
    gaps: RowArray
    change: IntArray


@inner(inline="always")
def _choose(
    read: Operands, scoring: Scoring, i: int, current: Any, scores: RowArray, out: Nearest
) -> None:
    """Write the nearest centroid of a row from its products with all of them."""
    slack, change = scoring.rows.slack[i], out.change
    if slack < np.inf:
        scale, shift = of_row(scoring.rows.scale, i), of_row(scoring.rows.shift, i)
        lowest = score(scores, scoring.bias, scoring.extra, scale, shift)
        limit = np.float32(np.float64(lowest) + slack)
        count, only = within(scores, limit)
        alone = count == 1
    else:  # what overflowed says nothing
        for h in range(scores.shape[0]):
            scores[h] = np.float32(0.0)
        limit, only, alone = np.float32(0.0), np.int64(0), False
    if alone and (change.shape[0] == 0 or current < 0 or current == only):
        out.labels[i] = only
    else:
        out.labels[i] = _decide(read, scores, limit, i, current, change)
        alone = False
    if out.gaps.shape[0] > 0:
        gap = least_beyond(scores, limit) - limit if alone else np.float32(0.0)
        out.gaps[i] = KEPT * gap


@njit(nogil=True, cache=True, makes_arrays=False)
def _nearest(
    read: Operands,
    scoring: Scoring,
    todo: LabelArray,
    labels: LabelArray,
    scores: RowArray,
    out: Nearest,
) -> None:
    rows = read.rows
    for t in range(todo.shape[0]):
        i = np.int64(todo[t])
        if t + 1 < todo.shape[0] and todo[t + 1] > i + 1:  # else the machine itself fetches it
            prefetch_row(rows, todo[t + 1])
        if scoring.rows.slack[i] < np.inf:
            multiply_row(rows, i, scoring.columns, scores)
        _choose(read, scoring, i, labels[i], scores, out)
    if out.change.shape[0] > 0:
        carry(out.change)


@njit(nogil=True, cache=True, makes_arrays=False)
def _nearest_dense(
    read: Operands,
    scoring: Scoring,
    todo: LabelArray,
    labels: LabelArray,
    starts: IntArray,
    scores: RowArray,
    out: Nearest,
) -> None:
    """Do the same for dense rows, as many at a time as there are `scores`."""
    rows, n_rows = read.rows, scores.shape[0]
    for first in range(0, todo.shape[0], n_rows):
        count = min(n_rows, todo.shape[0] - first)
        for r in range(n_rows):  # at the end the last row again
            starts[r] = rows.indptr[todo[first + min(r, count - 1)]]
        for t in range(first + count, min(first + count + n_rows, todo.shape[0])):
            prefetch_row(rows, todo[t])
        multiply_rows(rows, starts, scoring.columns, scores)
        for r in range(count):
            i = np.int64(todo[first + r])
            _choose(read, scoring, i, labels[i], scores[r], out)
    if out.change.shape[0] > 0:
        carry(out.change)


class DenseEnd(NamedTuple):
    """The last columns, which all rows have; buffer for where each row's begin."""

    columns: Columns
    starts: IntArray


@inner(inline="always")
def _multiply_ends(rows: RowArrays, chosen: LabelArray, end: DenseEnd, scores: RowArray) -> None:
    """Write the products of the dense ends of some rows, as many at a time as have `starts`."""
    together = end.starts.shape[0]
    for first in range(0, chosen.shape[0], together):
        for r in range(together):  # at the end the last row again
            i = chosen[min(first + r, chosen.shape[0] - 1)]
            end.starts[r] = np.int64(rows.indptr[i + 1]) - rows.n_dense
        multiply_rows(rows, end.starts, end.columns, scores[first : first + together])


@njit(nogil=True, cache=True, makes_arrays=False)
def _nearest_mixed(
    read: Operands,
    scoring: Scoring,
    end: DenseEnd,
    todo: LabelArray,
    labels: LabelArray,
    scores: RowArray,
    out: Nearest,
) -> None:
    """Do the same for rows that are sparse but for the last columns, those of `end`.

    Many rows in turn are multiplied with these and with the others, whose table would else be taken
    out of the cache for each; the last of `scores` are of the entries before.
    """
    rows, n_rows, before = read.rows, scores.shape[0] - 1, scores[scores.shape[0] - 1]
    for first in range(0, todo.shape[0], n_rows):
        count = min(n_rows, todo.shape[0] - first)
        _multiply_ends(rows, todo[first : first + count], end, scores)
        for r in range(count):
            i = np.int64(todo[first + r])
            if r + 1 < count:
                prefetch_indexed(rows, todo[first + r + 1])
            if first + n_rows + r < todo.shape[0]:
                prefetch_end(rows, todo[first + n_rows + r])
            multiply_indexed(rows, i, scoring.columns, before)
            for h in range(before.shape[0]):
                scores[r, h] += before[h]
            _choose(read, scoring, i, labels[i], scores[r], out)
    if out.change.shape[0] > 0:
        carry(out.change)


def _lasting_scaling(
    rows: RowArrays, terms: Terms, rounding: RoundingBounds, bounds: RowBounds
) -> RowScaling:
    """Return the scaling of rows for bounds that last for some tables."""
    if bounds.scaling is None or not bounds.scaling[0].hold(rounding):
        wider = rounding.above()
        bounds.scaling = (wider, RowScaling.of(rows, terms, wider))
    scaling: RowScaling = bounds.scaling[1]
    return scaling


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
    change, approximate = exact_zero(), approximate_table(table, dense=rows.dense)
    rounding = RoundingBounds.of(table, approximate)
    if bounds is None:
        scaling, gaps = RowScaling.of(rows, terms, rounding), np.zeros(0, np.float32)
    else:
        scaling = _lasting_scaling(rows, terms, rounding, bounds)
        gaps = bounds.take(labels, drift)
    out, todo = rows_to_compare(terms, scaling.slack, drift, gaps, labels)
    read = Operands(rows, frozen_terms(*terms), table.arrays)
    columns = approximate.together if rows.dense else approximate.columns
    scoring = Scoring(columns, approximate.bias, approximate.extra, scaling)
    kept = frozen(todo, np.int32), frozen(labels, np.int32)
    width, found = len(scoring.bias), Nearest(out, gaps, change if measured else change[:0])
    if rows.dense:
        together = rows_together(len(columns.vectors))
        scores, starts = aligned((together, width), np.float32), np.empty(together, np.int64)
        _nearest_dense(read, scoring, *kept, starts, scores, found)
    elif rows.n_dense:
        dense = dense_end(table, approximate, rows.n_dense)
        together = rows_together(len(dense.vectors))
        scores = aligned((IN_TURN // together * together + 1, width), np.float32)
        end = DenseEnd(dense, np.empty(together, np.int64))
        _nearest_mixed(read, scoring, end, *kept, scores, found)
    else:
        _nearest(read, scoring, *kept, aligned((width,), np.float32), found)
    if bounds is not None:
        bounds.note(out, gaps, drift)
    return out, change


class Movers(NamedTuple):
    """Rows that may gain by a move, and the clusters that each may gain at, its own among them."""

    rows: LabelArray
    start: IntArray  # where the clusters of each begin, and a last end
    target: LabelArray  # ascending


@inner()
def _limit_of(
    rows: RowArrays, i: Any, scoring: Scoring, leaving: FloatArray, own: Any, scores: RowArray
) -> Any:
    """Return the score above which a row gains at no cluster, NaN: not known; write its scores."""
    slack = scoring.rows.slack[i] + leaving[own]
    if not slack < np.inf:
        return np.nan
    multiply_row(rows, i, scoring.columns, scores)
    scale, shift = of_row(scoring.rows.scale, i), of_row(scoring.rows.shift, i)
    score(scores, scoring.bias, scoring.extra, scale, shift)
    return np.float64(scores[own]) + slack


@njit(nogil=True, cache=True, makes_arrays=False)
def _count_targets(
    rows: RowArrays,
    scoring: Scoring,
    leaving: FloatArray,
    labels: LabelArray,
    scores: RowArray,
    out: IntArray,
) -> None:
    for i in range(labels.shape[0]):
        own = labels[i]
        if own < 0:
            continue
        limit = _limit_of(rows, i, scoring, leaving, own, scores)
        count = leaving.shape[0]
        if not np.isnan(limit):
            count = within(scores, np.float32(limit))[0]
        out[i] = count if count > 1 else 0


@njit(nogil=True, cache=True, makes_arrays=False)
def _list_targets(
    rows: RowArrays,
    scoring: Scoring,
    leaving: FloatArray,
    labels: LabelArray,
    scores: RowArray,
    out: Movers,
) -> None:
    for t in range(out.rows.shape[0]):
        i, at = out.rows[t], out.start[t]
        limit = _limit_of(rows, i, scoring, leaving, labels[i], scores)
        for h in range(leaving.shape[0]):
            if np.isnan(limit) or scores[h] <= np.float32(limit):
                out.target[at] = h
                at += 1


def rows_that_may_move(
    rows: RowArrays,
    terms: Terms,
    table: Table,
    squares: FloatArray,
    labels: LabelArray,
    bounds: RowBounds,
) -> Movers:
    """Return the rows that may gain by a move, and where, found in low precision; no others can.

    The table is that of the directions of the sums, whose `squares` are ‖S‖². With c the cosine of
    a unit row and S, joining S gains at most c + 1 / (2 ‖S‖), and leaving it costs at least
    c − 1 / (2 (‖S‖ − 1)): no row goes to a centroid that is farther than its own by more than both.
    """
    approximate = approximate_table(table)
    scaling = _lasting_scaling(rows, terms, RoundingBounds.of(table, approximate), bounds)
    bias, lengths = approximate.bias.copy(), np.sqrt(np.maximum(squares, 0.0))  # rounded themselves
    with np.errstate(divide="ignore", over="ignore"):  # vacant clusters are never out
        joining = 0.5 / lengths
        leaving = joining + np.where(lengths > 1.5, 0.5 / (lengths - 1.0), np.inf) + MARGIN
        bias[: len(lengths)] -= joining.astype(np.float32)
    known_bias, scores = frozen(bias, np.float32), aligned(bias.shape, np.float32)
    scoring = Scoring(approximate.columns, known_bias, approximate.extra, scaling)
    known = frozen(leaving, np.float64), frozen(labels, np.int32)
    counts = np.zeros(len(labels), np.int64)
    _count_targets(rows, scoring, *known, scores, counts)
    chosen = np.flatnonzero(counts)
    start = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[chosen])])
    out = Movers(chosen.astype(np.int32), start, np.empty(start[-1], np.int32))
    _list_targets(rows, scoring, *known, scores, out)
    return out
