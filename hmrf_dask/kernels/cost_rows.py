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

from hmrf_dask.kernels.arrays import RowArrays, Terms, frozen, of_row
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.distances import Table
from hmrf_dask.kernels.low_precision import finder_of, score
from hmrf_dask.kernels.nearest import WIDEST, Bounds, slack_of
from hmrf_dask.kernels.products import aligned, multiply_row
from hmrf_dask.kernels.stream import stream
from hmrf_dask.types import BoolArray, FloatArray, IntArray, LabelArray

NEAR = 4096  # distances to be measured for which there is room at a time
ROWS = 16  # that are stored together: whatever K is, they fill whole lines of the cache
_MOST = 2.0**31 - 1
_LARGEST = np.float32(2.0**31 - 2.0**7)  # the largest float32 that fits into int32


class Ties(NamedTuple):
    """The labels of all points, and the pairs of those that are the rows of a block.

    Attributes
    ----------
    first : int
        Point of the first row.
    labels : int32 array
        Of all points; negative where there is none, and then nowhere is one.
    shift : int
        Costs are in units of ``2**shift`` of the pairs' unit.
    start, neighbour, cost : arrays
        As of `kernels.problem.ProblemArrays`, of all points.
    """

    first: int
    labels: LabelArray
    shift: int
    start: IntArray
    neighbour: LabelArray
    cost: IntArray


def make_ties(
    first: int,
    labels: LabelArray,
    shift: int,
    start: IntArray,
    neighbour: LabelArray,
    cost: IntArray,
) -> Ties:
    """Return `Ties` of arrays in the one form the kernels are compiled for."""
    return Ties(
        int(first),
        frozen(labels, np.int32),
        int(shift),
        frozen(start, np.int64),
        frozen(neighbour, np.int32),
        frozen(cost, np.int64),
    )


class Quick(NamedTuple):
    """Cost rows in low precision.

    Attributes
    ----------
    costs : int32 array, shape (n_rows, K)
    gains : int64 array, shape (n_rows,)
        What each row gains by its best move; 0 for one that stays, or has no label.
    margins : int64 array, shape (n_rows,)
        The slack in steps.
    coarse : bool array, shape (n_rows,)
        Rows with more slack than is tolerated: their costs and gains are not set.
    near_row, near_cluster : int64 arrays
        Distances that must be measured, by row; the present label of a row comes first.
    """

    costs: LabelArray
    gains: IntArray
    margins: IntArray
    coarse: BoolArray
    near_row: IntArray
    near_cluster: IntArray


# Whole vectors, those beyond the clusters too; nothing that overflowed comes here.
@inner(fastmath={"nnan", "nsz", "contract"})
def _to_steps(scores, least, per_step, row):  # type: ignore[no-untyped-def]
    """Write scores above the least of them in whole steps."""
    for h in range(row.shape[0]):
        steps = (scores[h] - least) * per_step
        row[h] = np.int32(np.rint(steps if steps < _LARGEST else _LARGEST))


@inner()
def _add_ties(row, totals, labels, shift, start, neighbour, cost, point):  # type: ignore[no-untyped-def]
    """Write the costs of all clusters, pairs counted; return the least."""
    for h in range(row.shape[0]):
        totals[h] = np.int64(row[h]) << shift
    for edge in range(start[point], start[point + 1]):
        totals[labels[neighbour[edge]]] += cost[edge]
    least = totals[0]
    for h in range(totals.shape[0]):
        least = totals[h] if totals[h] < least else least
    return least


@inner(inline="always")
def _count_within(totals, limit):  # type: ignore[no-untyped-def]
    within = 0
    for h in range(totals.shape[0]):
        within += totals[h] <= limit
    return within


@inner()
def _broken(labels, neighbour, cost, first, last, present):  # type: ignore[no-untyped-def]
    """Return how many pairs speak against a label."""
    found = 0
    for edge in range(first, last):
        found += (labels[neighbour[edge]] == present) != (cost[edge] < 0)
    return found


@inner(inline="always")
def _gain(row, present, margin, totals, least, shift):  # type: ignore[no-untyped-def]
    """Return what a row gains by its best move; -1 where that must be measured."""
    limit = least + (margin << shift)
    if _count_within(totals, limit) > 1:
        return np.int64(-1)
    row[present] -= margin  # as good as raising all others
    return totals[present] - limit if totals[present] > least else np.int64(0)


@njit(nogil=True, cache=True, makes_arrays=False)
def _quick(  # type: ignore[no-untyped-def]
    rows, columns, parts, factors, ties, per_step, room, begin, out, near
):
    """Go through rows from `begin` on; return where to go on, and how many distances are near.

    The first row for which there may be no more room in `near` is left for the next call.
    """
    bias, extra = parts
    scale, shift = factors
    labels, start, neighbour, cost = ties.labels, ties.start, ties.neighbour, ties.cost
    scores, wide, row, totals, some = room
    costs, gains, margins, coarse = out
    near_row, near_cluster = near
    n_rows, n_clusters = coarse.shape[0], row.shape[0]
    found = 0
    for i in range(begin, n_rows):
        if found + n_clusters > near_row.shape[0]:
            return i, found
        at, point, margin = i % ROWS, ties.first + i, margins[i]
        present = np.int64(labels[point])
        if not coarse[i]:
            multiply_row(rows, i, columns, scores)
            lowest = score(scores, bias, extra, of_row(scale, i), of_row(shift, i))
            _to_steps(scores, lowest, per_step, wide)
            if present < 0:
                pass
            elif (
                wide[present] == 0
                and _count_within(wide, np.int32(margin)) == 1
                and _broken(labels, neighbour, cost, start[point], start[point + 1], present) == 0
            ):  # most often: by far the nearest to where it is, and no pair speaks against it
                wide[present] -= margin
            else:
                least = _add_ties(row, totals, labels, ties.shift, start, neighbour, cost, point)
                gains[i] = _gain(row, present, margin, totals, least, ties.shift)
                if gains[i] < 0:
                    near_row[found], near_cluster[found] = i, present
                    found += 1
                    for h in range(n_clusters):
                        if h != present and totals[h] <= least + (margin << ties.shift):
                            near_row[found], near_cluster[found] = i, h
                            found += 1
        for h in range(n_clusters):
            some[at * n_clusters + h] = wide[h]
        if at == ROWS - 1 or i == n_rows - 1:
            stream(some, (at + 1) * n_clusters, costs, (i - at) * n_clusters)
    return n_rows, found


def _factors(terms: Terms, unit: float) -> tuple[Any, ...]:
    """Return what products of rows are times, and what the second parts of centroids are times."""
    with np.errstate(over="ignore"):  # such rows have no finite slack
        return tuple(
            frozen(factor.astype(np.float32), np.float32)
            for factor in (terms.scale / unit, terms.shift)
        )


def quick_costs(
    rows: RowArrays,
    terms: Terms,
    table: Table,
    ties: Ties,
    step: float,
    tolerance: float,
    *,
    single: bool = False,
) -> Quick:
    """Return the cost rows of a block, and what of them must be measured in float64.

    Parameters
    ----------
    step : float
        J of one integer.
    tolerance : float
        The most slack, in J; rows that have more are left out.
    single : bool
        Whether scores are to be in single precision even where half is faster.
    """
    finder, per_step = finder_of(table, single=single), 1.0 / step
    slack = slack_of(rows, terms, Bounds.of(table, finder))
    coarse = ~(slack <= tolerance) | (max(step, per_step) > WIDEST)
    n_rows, n_clusters, width = rows.n_rows, len(table.bias), finder.columns.table.shape[1]
    out = (
        aligned((n_rows * n_clusters,), np.int32),
        np.zeros(n_rows, np.int64),
        np.ceil(np.where(coarse, 0.0, slack) * per_step).astype(np.int64) + 2,
        coarse,
    )
    wide = aligned((width,), np.int32)
    room = (
        aligned((width,), np.float32), wide, wide[:n_clusters], np.empty(n_clusters, np.int64),
        np.zeros(ROWS * n_clusters, np.int32),
    )  # fmt: skip
    parts = finder.bias, finder.extra
    read = rows, finder.columns, parts, _factors(terms, finder.unit), ties
    near = np.empty((2, max(n_clusters, NEAR)), np.int64)
    kept, done = [near[:, :0]], 0
    while done < n_rows:
        done, found = _quick(*read, np.float32(per_step), room, done, out, tuple(near))
        kept.append(near[:, :found].copy())
    return Quick(out[0].reshape(n_rows, n_clusters), *out[1:], *np.concatenate(kept, axis=1))


@njit(nogil=True, cache=True, makes_arrays=False)
def _take_measured(quick, distances, per_step, ties, totals):  # type: ignore[no-untyped-def]
    costs, near_row, near_cluster = quick.costs, quick.near_row, quick.near_cluster
    first = 0
    while first < near_row.shape[0]:
        i, present = near_row[first], near_cluster[first]
        row, point = costs[i], ties.first + i
        own = np.int64(row[present])
        for h in range(row.shape[0]):
            row[h] = np.int32(min(row[h] + quick.margins[i], np.int64(_MOST)))
        last = first
        while last < near_row.shape[0] and near_row[last] == i:
            steps = own + np.rint((distances[last] - distances[first]) * per_step)
            row[near_cluster[last]] = np.int32(min(max(steps, -_MOST), _MOST))
            last += 1
        least = _add_ties(
            row, totals, ties.labels, ties.shift, ties.start, ties.neighbour, ties.cost, point
        )
        quick.gains[i] = totals[present] - least
        first = last


def take_measured(quick: Quick, distances: FloatArray, step: float, ties: Ties) -> None:
    """Write the float64 distances of ``near_row`` to ``near_cluster`` into cost rows and gains."""
    totals = np.empty(quick.costs.shape[1], np.int64)
    _take_measured(quick, frozen(distances, np.float64), 1.0 / step, ties, totals)


@njit(nogil=True, cache=True, makes_arrays=False)
def _gains(costs, rows, ties, totals, gains):  # type: ignore[no-untyped-def]
    for i in rows:
        point = ties.first + i
        least = _add_ties(
            costs[i], totals, ties.labels, ties.shift, ties.start, ties.neighbour, ties.cost, point
        )
        gains[i] = totals[ties.labels[point]] - least


def set_gains(costs: LabelArray, rows: IntArray, ties: Ties, gains: IntArray) -> None:
    """Write what some rows gain by their best moves, from their costs; all points have labels."""
    _gains(costs, frozen(rows, np.int64), ties, np.empty(costs.shape[1], np.int64), gains)
