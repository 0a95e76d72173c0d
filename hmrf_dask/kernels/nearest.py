"""The nearest centroid of every row: low precision finds the candidates, float64 decides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import RowArrays, Terms, frozen, frozen_terms, of_row
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.distances import DOUBLE, LARGEST, SMALLEST, Table, distance
from hmrf_dask.kernels.exact import add_float, carry, exact_zero
from hmrf_dask.kernels.hamerly import Margins, Watch, rows_to_compare
from hmrf_dask.kernels.low_precision import Finder, count_within, finder_of, least_beyond, score
from hmrf_dask.kernels.prefetch import prefetch_row
from hmrf_dask.kernels.products import aligned, multiply_row
from hmrf_dask.types import FloatArray, IntArray, LabelArray

SINGLE = 1.0625 * 2.0**-24  # by how much a float32 operation rounds, in sums of up to LONGEST
OPERATIONS = 16  # float32 operations around the products, with room to spare
LONGEST = 2**19  # entries of a row; longer ones are left to float64
WIDEST = 2.0**100  # of factors in float32
WIDER, MOST = 1.125, 2.0  # how much wider bounds are made, and may be
KEPT = np.float32(1.0 - 2.0**-20)  # of a margin that was rounded


class Bounds(NamedTuple):
    """What bounds the rounding of scores under a table, beside the rows themselves."""

    norm_error: float
    entry_error: float
    finder_norm: float
    finder_entry: float
    norm: float
    entry: float
    bias: float
    extra: float
    unit: float  # a power of two

    @staticmethod
    def of(table: Table, finder: Finder) -> Bounds:
        """Return the bounds of a table and its finder."""
        bias, extra = float(np.abs(table.bias).max()), float(np.abs(table.extra).max())
        return Bounds(
            finder.norm_error, finder.entry_error, finder.norm, finder.entry, table.largest_norm,
            table.largest_entry, bias, extra, finder.unit,
        )  # fmt: skip

    def above(self) -> Bounds:
        """Return bounds a little wider, which hold for other tables, too."""
        return Bounds._make([*(WIDER * bound for bound in self[:-1]), self.unit])

    def hold(self, others: Bounds) -> bool:
        """Return whether these bounds hold for what `others` do, and are not far too wide."""
        within = (one <= own <= MOST * one for own, one in zip(self[:-1], others[:-1], strict=True))
        return self.unit == others.unit and all(within)


def slack_of(rows: RowArrays, terms: Terms, bounds: Bounds) -> FloatArray:
    """Return how far a row's scores, and two of its distances, can disagree; inf: without bound.

    A score of a row is a distance but for the row's own part, and what its entries make of the
    centring of the table.
    """
    lengths = np.diff(rows.indptr)
    scale, shift = np.abs(terms.scale), np.abs(terms.shift)
    bias, extra, unit = bounds.bias, bounds.extra, bounds.unit
    with np.errstate(over="ignore", invalid="ignore"):
        lost = np.minimum(terms.norm * bounds.norm_error, terms.mass * bounds.entry_error)
        reach = np.minimum(terms.norm * bounds.finder_norm, terms.mass * bounds.finder_entry) + lost
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
def _decide(rows, terms, table, scores, limit, i, current, change):  # type: ignore[no-untyped-def]
    """Return the nearest of the candidates: ties stay at `current`, then go to the lowest index.

    What a move changes is added to `change`, unless that has no limbs.
    """
    measured = change.shape[0] > 0
    present = np.inf
    if current >= 0 and (measured or scores[current] <= limit):
        present = distance(rows, terms, table, i, np.int64(current))
    best, least = current, present
    for h in range(table.exact.shape[0]):
        if h != current and scores[h] <= limit:
            value = distance(rows, terms, table, i, h)
            if value < least:
                least = value
                best = np.int32(h)
    if measured and current >= 0 and best != current:
        add_float(change, least)
        add_float(change, -present)
    return best


# Arrays are taken out of their tuples before the loops: numba counts references at every access.
@njit(nogil=True, cache=True, makes_arrays=False)
def _nearest(rows, terms, table, finder, factors, slack, todo, labels, scores, gaps, out, change):  # type: ignore[no-untyped-def]
    columns, bias, extra = finder.columns, finder.bias, finder.extra
    scale, shift = factors
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
            out[i] = current
        elif alone and (current < 0 or change.shape[0] == 0):
            out[i] = _first_within(scores, limit)
        else:
            out[i] = _decide(rows, terms, table, scores, limit, i, current, change)
            alone = False
        if gaps.shape[0] > 0:
            gap = least_beyond(scores, limit) - limit if alone else np.float32(0.0)
            gaps[i] = KEPT * gap
    if change.shape[0] > 0:
        carry(change)


def _lasting_slack(rows: RowArrays, terms: Terms, bounds: Bounds, margins: Margins) -> FloatArray:
    """Return `slack_of` for bounds that last for some tables."""
    if margins.slack is None or not margins.slack[0].hold(bounds):
        wider = bounds.above()
        margins.slack = (wider, slack_of(rows, terms, wider))
    return margins.slack[1]


def nearest(
    rows: RowArrays,
    terms: Terms,
    table: Table,
    labels: LabelArray,
    *,
    measured: bool = True,
    watch: Watch | None = None,
) -> tuple[LabelArray, IntArray]:
    """Return the nearest centroid of each row and the exact change of Σ D over rows with a label.

    Ties stay at the present label, then go to the lowest index. `LINKED` rows stay linked,
    `UNDECIDED` ones are decided. The nearest is that of the float64 distances, whatever was rounded
    to find it. Where the change is not `measured` it is nought. A `watch` spares what cannot have
    changed, and notes margins for the next time.
    """
    change = exact_zero()
    finder = finder_of(table)
    bounds = Bounds.of(table, finder)
    if watch is None:
        slack, gaps, drift = slack_of(rows, terms, bounds), np.zeros(0, np.float32), None
    else:
        slack = _lasting_slack(rows, terms, bounds, watch.margins)
        gaps, drift = watch.taken(labels), watch.drift
    out, todo = rows_to_compare(terms, slack, drift, gaps, labels)
    with np.errstate(over="ignore"):  # such rows have no finite slack
        factors = tuple(
            frozen(factor.astype(np.float32), np.float32)
            for factor in (terms.scale / finder.unit, terms.shift)
        )
    _nearest(
        rows, frozen_terms(terms), table.arrays, finder, factors,
        frozen(slack, np.float64), frozen(todo, np.int32), frozen(labels, np.int32),
        aligned((finder.columns.table.shape[1],), np.float32), gaps, out,
        change if measured else change[:0],
    )  # fmt: skip
    if watch is not None:
        watch.note(out, gaps)
    return out, change
