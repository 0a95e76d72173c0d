"""The nearest centroid of every row: low precision finds the candidates, float64 decides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import RowArrays, Terms, frozen, frozen_terms, of_row
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.distances import DOUBLE, LARGEST, SMALLEST, Operands, Table, distance
from hmrf_dask.kernels.exact import add_float, carry, exact_zero
from hmrf_dask.kernels.hamerly import CentroidDrift, RowBounds, rows_to_compare
from hmrf_dask.kernels.low_precision import (
    ApproximateTable,
    approximate_table,
    count_within,
    least_beyond,
    score,
)
from hmrf_dask.kernels.prefetch import prefetch_row
from hmrf_dask.kernels.products import Columns, aligned, multiply_row
from hmrf_dask.types import FloatArray, IntArray, LabelArray, RowArray

SINGLE = 1.0625 * 2.0**-24  # by how much a float32 operation rounds, in sums of up to LONGEST
OPERATIONS = 16  # float32 operations around the products, with room to spare
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
def _first_within(scores, limit):  # type: ignore[no-untyped-def]
    h = np.int32(0)
    while not scores[h] <= limit:
        h += np.int32(1)
    return h


@inner()
def _decide(read, scores, limit, i, current, change):  # type: ignore[no-untyped-def]
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
    """How products of rows with an approximate table become scores, and how far off these can be.

    Attributes
    ----------
    columns : Columns
    bias, extra : float32 arrays, shape (width,)
    scale, shift : float32 arrays, shape (n_rows,) or (1,)
    slack : float64 array, shape (n_rows,)
    """

    columns: Columns
    bias: RowArray
    extra: RowArray
    scale: RowArray
    shift: RowArray
    slack: FloatArray

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
def _nearest(read, scoring, todo, labels, scores, out):  # type: ignore[no-untyped-def]
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
    read = Operands(rows, frozen_terms(terms), table.arrays)
    scoring = Scoring.of(approximate, terms, slack)
    kept = frozen(todo, np.int32), frozen(labels, np.int32)
    scores = aligned((approximate.columns.table.shape[1],), np.float32)
    _nearest(read, scoring, *kept, scores, Nearest(out, gaps, change if measured else change[:0]))
    if bounds is not None:
        bounds.note(out, gaps, drift)
    return out, change
