"""Rows that need not be compared again: what they preferred their centroid by outlasts the change.

When a row is compared with all centroids, the least by which any other is farther than its own is
noted. Centroids that then move a little take no more from it than the row's length times how far
its own and the farthest moved one went; while something is left, the row stays where it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import Terms, frozen, of_row
from hmrf_dask.kernels.compiled import njit
from hmrf_dask.kernels.distances import LINKED, Table
from hmrf_dask.kernels.threads import over_ranges
from hmrf_dask.types import FloatArray, LabelArray, RowArray

LOOSE = 1.0 + 2.0**-20  # how far centroids went is rounded itself
SHRUNK = 1.0 - 2.0**-20  # so is what is left


class Drift(NamedTuple):
    """How far centroids went from one model to the next.

    Attributes
    ----------
    before, after : names of the models; no name: nothing that was noted can be used
    falls : float64 array, shape (3, K)
        What it may take, at most, from the margin of a row of each cluster: times the row's norm,
        as it is, and times its shift.
    """

    before: str
    after: str
    falls: FloatArray


class Margins:
    """What is known of the rows of one part from when they were last compared with centroids.

    It is forgotten when it travels: it spares work and decides nothing.

    Attributes
    ----------
    model : name of the model they were compared under, empty: none
    labels : int32 array, the labels they got
    gaps : float32 array, by how much, at least, any other centroid was farther
    slack : for which bounds, and how far off scores can be then
    """

    def __init__(self) -> None:
        self.model = ""
        self.labels: LabelArray = np.zeros(0, np.int32)
        self.gaps: RowArray = np.zeros(0, np.float32)
        self.slack: tuple[Any, FloatArray] | None = None

    def __reduce__(self) -> tuple[type[Margins], tuple[()]]:
        """Travel empty."""
        return Margins, ()


class Watch(NamedTuple):
    """The margins of a part's rows and how far the centroids went since, where they went little."""

    drift: Drift | None
    margins: Margins

    def taken(self, labels: LabelArray) -> RowArray:
        """Return the margins of rows with these labels before the drift; 0: unknown; none: no use.

        They are the caller's, to be changed, and forgotten until they are noted.
        """
        margins, drift, model = self.margins, self.drift, self.margins.model
        margins.model = ""
        if drift is None:
            return np.zeros(0, np.float32)
        if model and model == drift.before and np.array_equal(labels, margins.labels):
            return margins.gaps
        return np.zeros(len(labels), np.float32)

    def note(self, labels: LabelArray, gaps: RowArray) -> None:
        """Keep the margins of rows under the model that the drift led to."""
        if self.drift is not None:
            margins = self.margins
            margins.model, margins.labels, margins.gaps = self.drift.after, labels, gaps


@njit(nogil=True, cache=True, makes_arrays=False, fastmath={"reassoc", "contract"})
def _lengths_between(one, other, metric, out):  # type: ignore[no-untyped-def]
    for h in range(out.shape[0]):
        first, second = one[h], other[h]
        total = 0.0
        if metric.shape[0] == 0:
            for m in range(first.shape[0]):
                total += (second[m] - first[m]) * (second[m] - first[m])
        else:
            for m in range(first.shape[0]):
                away = metric[m] * (second[m] - first[m])
                total += away * away
        out[h] = np.sqrt(total)


def _with_others(sizes: FloatArray) -> FloatArray:
    """Return each number plus the largest of all others."""
    if len(sizes) < 2:
        return sizes
    first = int(sizes.argmax())
    others = np.full(len(sizes), sizes[first])
    others[first] = np.delete(sizes, first).max()
    return np.asarray(sizes + others)


def falls_between(before: Table, after: Table) -> FloatArray:
    """Return what margins may lose between two tables of one metric; see `Drift`."""
    lengths = np.empty(len(after.exact))
    one, other = before.arrays.exact, after.arrays.exact
    metric = frozen(after.weights if after.squared else np.sqrt(after.shares), np.float64)

    def work(first: int, last: int) -> None:
        _lengths_between(one[first:last], other[first:last], metric, lengths[first:last])

    over_ranges(work, len(lengths), other.size)
    plain_falls = np.abs(after.bias - before.bias), np.abs(after.extra - before.extra)
    return LOOSE * np.stack([_with_others(one) for one in (lengths, *plain_falls)])


@njit(nogil=True, cache=True, makes_arrays=False)
def _rows_to_compare(norm, shift, slack, falls, labels, gaps, out, todo):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(labels.shape[0]):
        h = labels[i]
        out[i] = h
        if h == LINKED:
            continue
        if h >= 0 and gaps.shape[0] > 0 and gaps[i] > 0.0:
            taken = of_row(norm, i) * falls[0, h] + falls[1, h]
            left = np.float64(gaps[i]) - taken - abs(of_row(shift, i)) * falls[2, h]
            if left > slack[i]:
                gaps[i] = np.float32(SHRUNK * left)
                continue
        todo[count] = i
        count += 1
    return count


def rows_to_compare(
    terms: Terms, slack: FloatArray, drift: Drift | None, gaps: RowArray, labels: LabelArray
) -> tuple[LabelArray, LabelArray]:
    """Return labels to be changed, and the rows that must be compared to know theirs.

    The margins `gaps` of the others are brought down; without any, all free rows are compared.
    """
    out, todo = np.empty((2, len(labels)), np.int32)
    falls = np.zeros((3, 1)) if drift is None else drift.falls
    arrays = [frozen(array, np.float64) for array in (terms.norm, terms.shift, slack, falls)]
    count = _rows_to_compare(*arrays, frozen(labels, np.int32), gaps, out, todo)
    return out, todo[:count]
