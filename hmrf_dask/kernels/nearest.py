"""The nearest centroid of every row: low precision finds the candidates, float64 decides."""

from __future__ import annotations

import numpy as np

from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.distances import (
    DOUBLE,
    LARGEST,
    LINKED,
    SMALLEST,
    Table,
    Terms,
    distance,
    frozen_terms,
    of_row,
)
from hmrf_dask.kernels.exact import add_float, carry, exact_zero
from hmrf_dask.kernels.finders import Finder, finder_of
from hmrf_dask.kernels.links import frozen
from hmrf_dask.kernels.plain import distances as plain
from hmrf_dask.kernels.plain import instead
from hmrf_dask.kernels.prefetch import prefetch_row
from hmrf_dask.kernels.products import aligned, entries, multiply_row
from hmrf_dask.kernels.scores import count_within, score
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import FloatArray, IntArray, LabelArray

SINGLE = 1.0625 * 2.0**-24  # by how much a float32 operation rounds, in sums of up to LONGEST
OPERATIONS = 16  # float32 operations around the products, with room to spare
LONGEST = 2**19  # entries of a row; longer ones are left to float64
WIDEST = 2.0**100  # of factors in float32


def slack_of(block: RowBlock, terms: Terms, table: Table, finder: Finder) -> FloatArray:
    """Return how far a row's scores, and two of its distances, can disagree; inf: without bound.

    A score of a row is a distance but for the row's own part, and what its entries make of the
    centring of the table.
    """
    lengths = np.diff(block.indptr)
    scale, shift = np.abs(terms.scale), np.abs(terms.shift)
    bias, extra = float(np.abs(table.bias).max()), float(np.abs(table.extra).max())
    with np.errstate(over="ignore", invalid="ignore"):
        lost = np.minimum(terms.norm * finder.norm_error, terms.mass * finder.entry_error)
        reach = np.minimum(terms.norm * finder.norm, terms.mass * finder.entry) + lost
        size = np.minimum(terms.norm * table.largest_norm, terms.mass * table.largest_entry)
        other = bias + shift * extra
        slack = SINGLE * reach + DOUBLE * (size + (other + terms.size))
        slack = (slack + (SMALLEST / finder.unit) * scale) * (lengths + OPERATIONS)
        slack += lost + OPERATIONS * (SINGLE * (other + extra) + SMALLEST * (1.0 + extra))
        slack *= 2.0 + 2.0**-18
        within = (reach * (finder.unit / LARGEST) <= scale) & (slack < np.inf)
    within &= (scale < finder.unit * WIDEST) & (scale > finder.unit / WIDEST)
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


@inner()
def _free_from(labels, i):  # type: ignore[no-untyped-def]
    """Return the first row from i on that is not linked."""
    while i < labels.shape[0] and labels[i] == LINKED:
        i += 1
    return i


# Arrays are taken out of their tuples before the loops: numba counts references at every access.
@instead(plain.nearest)
@njit(nogil=True, cache=True, makes_arrays=False)
def _nearest(rows, terms, table, finder, scale, shift, slack, labels, scores, out, change):  # type: ignore[no-untyped-def]
    columns, bias, extra = finder.columns, finder.bias, finder.extra
    for i in range(out.shape[0]):
        current = labels[i]
        if current == LINKED:
            out[i] = LINKED
            continue
        following = _free_from(labels, i + 1)
        if i + 1 < following < out.shape[0]:  # the machine itself fetches only the row behind
            prefetch_row(rows.values, rows.indices, rows.indptr, following)
        if slack[i] < np.inf:
            multiply_row(rows, i, columns, scores)
            lowest = score(scores, bias, extra, of_row(scale, i), of_row(shift, i))
            limit = np.float32(np.float64(lowest) + slack[i])
            alone = count_within(scores, limit) == 1
        else:  # what overflowed says nothing
            scores[:] = np.float32(0.0)
            limit = np.float32(0.0)
            alone = False
        if alone and current >= 0 and scores[current] <= limit:
            out[i] = current
        elif alone and (current < 0 or change.shape[0] == 0):
            out[i] = _first_within(scores, limit)
        else:
            out[i] = _decide(rows, terms, table, scores, limit, i, current, change)
    if change.shape[0] > 0:
        carry(change)


def nearest(
    block: RowBlock, terms: Terms, table: Table, labels: LabelArray, *, measured: bool = True
) -> tuple[LabelArray, IntArray]:
    """Return the nearest centroid of each row and the exact change of Σ D over rows with a label.

    Ties stay at the present label, then go to the lowest index. `LINKED` rows stay linked,
    `UNDECIDED` ones are decided. The nearest is that of the float64 distances, whatever was rounded
    to find it. Where the change is not `measured` it is nought.
    """
    out = np.empty(block.n_rows, np.int32)
    change = exact_zero()
    finder = finder_of(table)
    slack = slack_of(block, terms, table, finder)
    with np.errstate(over="ignore"):  # such rows have no finite slack
        factors = [
            frozen(factor.astype(np.float32), np.float32)
            for factor in (terms.scale / finder.unit, terms.shift)
        ]
    _nearest(
        entries(block), frozen_terms(terms), table.arrays, finder, *factors,
        frozen(slack, np.float64), frozen(labels, np.int32),
        aligned((finder.columns.table.shape[1],), np.float32), out,
        change if measured else change[:0],
    )  # fmt: skip
    return out, change
