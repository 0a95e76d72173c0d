"""Integer cost rows of linked rows: low precision finds what is near, float64 decides.

A row's costs are its distances above the least of them, in whole steps. They come from the scores
that find the nearest centroid, so two of them can be off by the row's slack. Where that leaves open
which cluster is the cheapest, the pairs of the row counted at the present labels, those in question
are measured in float64: what a row wants first is what float64 says. All other costs are raised by
the slack against that of the present label. So no sequence of moves away from the present labels
costs more than the integers say, but for the rounding to steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.approximate import WIDEST, RoundingBounds, RowScaling, approximate_table
from hmrf_dask.kernels.compiled import RowArrays, Terms, former, frozen, inner, njit, of_row
from hmrf_dask.kernels.distances import Table
from hmrf_dask.kernels.instructions import stream
from hmrf_dask.kernels.nearest import Scoring, score
from hmrf_dask.kernels.products import aligned, multiply_row
from hmrf_dask.types import BoolArray, FloatArray, IntArray, LabelArray, RowArray

NEAR = 4096  # distances to be measured that one call can list
ROWS = 16  # that are stored together: whatever K is, they fill whole lines of the cache
_MOST = 2.0**31 - 1
_LARGEST = np.float32(2.0**31 - 2.0**7)  # the largest float32 that fits into int32


class PointPairs(NamedTuple):
    """The labels of all points, and the pairs of those that are the rows of a block."""

    first: int  # point of the first row
    labels: LabelArray  # of all points; negative where there is none, and then nowhere is one
    shift: int  # costs are in units of ``2**shift`` of the pairs' unit
    start: IntArray  # as of `kernels.problem.ProblemArrays`, of all points
    neighbour: LabelArray
    cost: IntArray


make_point_pairs = former(PointPairs)


class ApproximateCosts(NamedTuple):
    """Cost rows in low precision."""

    costs: LabelArray  # (n_rows, K)
    # (n_rows,): what each row gains by its best move; 0 for one that stays, or has no label
    gains: IntArray
    margins: IntArray  # (n_rows,): the slack in steps
    # (n_rows,): rows with more slack than is tolerated: their costs and gains are not set
    coarse: BoolArray
    # distances that must be measured, by row; the present label of a row comes first
    near_row: IntArray
    near_cluster: IntArray


class _Steps(NamedTuple):
    """How scores are made of rows, and how many steps, float32, are in 1."""

    scoring: Scoring
    per_step: Any


class _Buffers(NamedTuple):
    """Arrays that hold one row (`scores`, `wide`, `row`, `totals`), or `ROWS` of them (`lines`).

    `row` are the first K numbers of `wide`, which is as long as the scores.
    """

    scores: RowArray
    wide: LabelArray
    row: LabelArray
    totals: IntArray
    lines: LabelArray


# Whole vectors, those beyond the clusters too; nothing that overflowed comes here.
@inner(fastmath={"nnan", "nsz", "contract"})
def _to_steps(scores: RowArray, least: float, per_step: float, row: LabelArray) -> None:
    """Write scores above the least of them in whole steps."""
    for h in range(row.shape[0]):
        steps = (scores[h] - least) * per_step
        row[h] = np.int32(np.rint(steps if steps < _LARGEST else _LARGEST))


@inner()
def _add_pairs(row: LabelArray, totals: IntArray, pairs: PointPairs, point: int) -> Any:
    """Write the costs of all clusters, pairs counted; return the least."""
    for h in range(row.shape[0]):
        totals[h] = np.int64(row[h]) << pairs.shift
    for edge in range(pairs.start[point], pairs.start[point + 1]):
        totals[pairs.labels[pairs.neighbour[edge]]] += pairs.cost[edge]
    least = totals[0]
    for h in range(totals.shape[0]):
        least = totals[h] if totals[h] < least else least
    return least


@inner(inline="always")
def _count_within(totals: IntArray, limit: Any) -> Any:
    within = 0
    for h in range(totals.shape[0]):
        within += totals[h] <= limit
    return within


@inner(inline="always")
def _broken(pairs: PointPairs, point: int) -> Any:
    """Return how many pairs the label of a point breaks."""
    present = pairs.labels[point]
    count = 0
    for edge in range(pairs.start[point], pairs.start[point + 1]):
        count += (pairs.labels[pairs.neighbour[edge]] == present) != (pairs.cost[edge] < 0)
    return count


@inner(inline="always")
def _gain(
    row: LabelArray, present: Any, margin: Any, totals: IntArray, least: Any, shift: Any
) -> Any:
    """Return what a row gains by its best move; -1 where that must be measured."""
    limit = least + (margin << shift)
    if _count_within(totals, limit) > 1:
        return np.int64(-1)
    row[present] -= margin  # as good as raising all others
    return totals[present] - limit if totals[present] > least else np.int64(0)


@inner(inline="always")
def _list_near(
    out: ApproximateCosts, place: Any, i: Any, present: Any, totals: IntArray, limit: Any
) -> Any:
    """List the distances of a row that must be measured from `place` on; return the next."""
    out.near_row[place], out.near_cluster[place] = i, present
    place += 1
    for h in range(totals.shape[0]):
        if h != present and totals[h] <= limit:
            out.near_row[place], out.near_cluster[place] = i, h
            place += 1
    return place


@inner(inline="always")
def _judge(pairs: PointPairs, i: Any, buffers: _Buffers, out: ApproximateCosts, place: Any) -> Any:
    """Write the gain of a row with a label, or list what of it must be measured."""
    row, totals, margin, point = buffers.row, buffers.totals, out.margins[i], pairs.first + i
    present = np.int64(pairs.labels[point])
    if (
        row[present] == 0
        and _count_within(buffers.wide, np.int32(margin)) == 1
        and _broken(pairs, point) == 0
    ):  # most often: by far the nearest to where it is, and no pair is broken
        row[present] -= margin
        return place
    least = _add_pairs(row, totals, pairs, point)
    out.gains[i] = _gain(row, present, margin, totals, least, pairs.shift)
    if out.gains[i] < 0:
        place = _list_near(out, place, i, present, totals, least + (margin << pairs.shift))
    return place


@njit(nogil=True, cache=True, makes_arrays=False)
def _approximate(
    rows: RowArrays,
    steps: _Steps,
    pairs: PointPairs,
    buffers: _Buffers,
    begin: int,
    out: ApproximateCosts,
) -> tuple[Any, ...]:
    """Go through rows from `begin` on; return where to go on, and how many distances are near.

    The first row that may list more distances than there are places is left for the next call.
    """
    scoring = steps.scoring
    scores, wide, lines = buffers.scores, buffers.wide, buffers.lines
    n_rows, n_clusters = out.coarse.shape[0], buffers.row.shape[0]
    place = 0
    for i in range(begin, n_rows):
        if place + n_clusters > out.near_row.shape[0]:
            return i, place
        if not out.coarse[i]:
            multiply_row(rows, i, scoring.columns, scores)
            scale, shift = of_row(scoring.rows.scale, i), of_row(scoring.rows.shift, i)
            least = score(scores, scoring.bias, scoring.extra, scale, shift)
            _to_steps(scores, least, steps.per_step, wide)
            if pairs.labels[pairs.first + i] >= 0:
                place = _judge(pairs, i, buffers, out, place)
        at = i % ROWS
        for h in range(n_clusters):
            lines[at * n_clusters + h] = wide[h]
        if at == ROWS - 1 or i == n_rows - 1:
            stream(lines, (at + 1) * n_clusters, out.costs, (i - at) * n_clusters)
    return n_rows, place


def _buffers(n_clusters: int, width: int) -> _Buffers:
    wide = aligned((width,), np.int32)
    totals, lines = np.empty(n_clusters, np.int64), np.zeros(ROWS * n_clusters, np.int32)
    return _Buffers(aligned((width,), np.float32), wide, wide[:n_clusters], totals, lines)


def approximate_costs(
    rows: RowArrays,
    terms: Terms,
    table: Table,
    pairs: PointPairs,
    step: float,
    tolerance: float,
    *,
    single: bool = False,
) -> ApproximateCosts:
    """Return the cost rows of a block, and what of them must be measured in float64.

    A `step` is J of one integer, the `tolerance` the most slack, in J: rows that have more are left
    out. With `single`, scores are in single precision even where half is faster.
    """
    approximate, per_step = approximate_table(table, single=single), 1.0 / step
    scaling = RowScaling.of(rows, terms, RoundingBounds.of(table, approximate))
    slack = scaling.slack
    coarse = ~(slack <= tolerance) | (max(step, per_step) > WIDEST)
    n_rows, n_clusters = rows.n_rows, len(table.bias)
    near = np.empty((2, max(n_clusters, NEAR)), np.int64)
    out = ApproximateCosts(
        aligned((n_rows * n_clusters,), np.int32),
        np.zeros(n_rows, np.int64),
        np.ceil(np.where(coarse, 0.0, slack) * per_step).astype(np.int64) + 2,
        coarse,
        *near,
    )
    scoring = Scoring(approximate.columns, approximate.bias, approximate.extra, scaling)
    steps = _Steps(scoring, np.float32(per_step))
    buffers = _buffers(n_clusters, approximate.columns.table.shape[1])
    listed, done = [near[:, :0]], 0
    while done < n_rows:
        done, count = _approximate(rows, steps, pairs, buffers, done, out)
        listed.append(near[:, :count].copy())
    near_row, near_cluster = np.concatenate(listed, axis=1)
    costs = out.costs.reshape(n_rows, n_clusters)
    return out._replace(costs=costs, near_row=near_row, near_cluster=near_cluster)


@njit(nogil=True, cache=True, makes_arrays=False)
def _take_measured(
    approximate: Any, distances: Any, per_step: Any, pairs: PointPairs, totals: IntArray
) -> None:
    near_row, near_cluster = approximate.near_row, approximate.near_cluster
    first = 0
    while first < near_row.shape[0]:
        i, present = near_row[first], near_cluster[first]
        row, margin = approximate.costs[i], approximate.margins[i]
        own = np.int64(row[present])
        for h in range(row.shape[0]):
            row[h] = np.int32(min(row[h] + margin, np.int64(_MOST)))
        last = first
        while last < near_row.shape[0] and near_row[last] == i:
            steps = own + np.rint((distances[last] - distances[first]) * per_step)
            row[near_cluster[last]] = np.int32(min(max(steps, -_MOST), _MOST))
            last += 1
        least = _add_pairs(row, totals, pairs, pairs.first + i)
        approximate.gains[i] = totals[present] - least
        first = last


def take_measured(
    approximate: ApproximateCosts, distances: FloatArray, step: float, pairs: PointPairs
) -> None:
    """Write the float64 distances of ``near_row`` to ``near_cluster`` into cost rows and gains."""
    totals = np.empty(approximate.costs.shape[1], np.int64)
    _take_measured(approximate, frozen(distances, np.float64), 1.0 / step, pairs, totals)


@njit(nogil=True, cache=True, makes_arrays=False)
def _gains(
    costs: LabelArray, rows: IntArray, pairs: PointPairs, totals: IntArray, gains: IntArray
) -> None:
    for i in rows:
        point = pairs.first + i
        least = _add_pairs(costs[i], totals, pairs, point)
        gains[i] = totals[pairs.labels[point]] - least


def set_gains(costs: LabelArray, rows: IntArray, pairs: PointPairs, gains: IntArray) -> None:
    """Write what some rows gain by their best moves, from their costs; all points have labels."""
    _gains(costs, frozen(rows, np.int64), pairs, np.empty(costs.shape[1], np.int64), gains)
