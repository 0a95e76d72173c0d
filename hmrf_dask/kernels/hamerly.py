"""Rows that need not be compared again, as in Hamerly, "Making k-means even faster", SDM 2010.

When a row is compared with all centroids, the least by which any other is farther than its own is
noted. Centroids that then move a little take no more from it than the row's length times how far
its own and the farthest moved one went; while something is left, the row stays where it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import Terms, frozen, frozen_terms, inner, njit, of_row
from hmrf_dask.kernels.distances import LINKED, Table
from hmrf_dask.kernels.threads import over_ranges
from hmrf_dask.types import FloatArray, LabelArray, RowArray

LOOSE = 1.0 + 2.0**-20  # how far centroids went is rounded itself
SHRUNK = 1.0 - 2.0**-20  # so is what is left


class CentroidDrift(NamedTuple):
    """How far centroids went from one model to the next."""

    before: str  # names of the models; no name: nothing that was noted can be used
    after: str
    # (3, K): what it may take, at most, from the gap of a row of each cluster: times the row's
    # norm, as it is, and times its shift
    losses: FloatArray


class RowBounds:
    """What is known of the rows of one partition from when they were last compared with centroids.

    It is forgotten when it travels: it spares work and decides nothing.
    """

    def __init__(self) -> None:
        self.model = ""  # name of the model they were compared under, empty: none
        self.labels: LabelArray = np.zeros(0, np.int32)  # what they got
        # by how much, at least, any other centroid was farther
        self.gaps: RowArray = np.zeros(0, np.float32)
        # for which bounds of rounding, and the `RowScaling` that holds then
        self.scaling: tuple[Any, Any] | None = None

    def __reduce__(self) -> tuple[type[RowBounds], tuple[()]]:
        """Travel empty."""
        return RowBounds, ()

    def take(self, labels: LabelArray, drift: CentroidDrift | None) -> RowArray:
        """Return the gaps of rows with these labels before the drift; 0: unknown; none: no use.

        They are the caller's, to be changed, and forgotten until they are noted.
        """
        model, self.model = self.model, ""
        if drift is None:
            return np.zeros(0, np.float32)
        if model and model == drift.before and np.array_equal(labels, self.labels):
            return self.gaps
        return np.zeros(len(labels), np.float32)

    def note(self, labels: LabelArray, gaps: RowArray, drift: CentroidDrift | None) -> None:
        """Keep the gaps of rows under the model that the drift led to."""
        if drift is not None:
            self.model, self.labels, self.gaps = drift.after, labels, gaps


@inner(fastmath={"reassoc", "contract"})
def length_between(first: FloatArray, second: FloatArray, metric: FloatArray) -> Any:
    """Return how far a centroid is from another one; no `metric`: all 1."""
    total = 0.0
    if metric.shape[0] == 0:
        for m in range(first.shape[0]):
            total += (second[m] - first[m]) * (second[m] - first[m])
    else:
        for m in range(first.shape[0]):
            away = metric[m] * (second[m] - first[m])
            total += away * away
    return np.sqrt(total)


@njit(nogil=True, cache=True, makes_arrays=False)
def _lengths_between(
    before: FloatArray, after: FloatArray, metric: FloatArray, out: FloatArray
) -> None:
    for h in range(out.shape[0]):
        out[h] = length_between(before[h], after[h], metric)


def _with_others(sizes: FloatArray) -> FloatArray:
    """Return each number plus the largest of all others."""
    if len(sizes) < 2:
        return sizes
    first = int(sizes.argmax())
    others = np.full(len(sizes), sizes[first])
    others[first] = np.delete(sizes, first).max()
    return np.asarray(sizes + others)


def changes_between(before: Table, after: Table) -> FloatArray:
    """Return how far each centroid went between two tables of one metric; see `losses_of`."""
    lengths = np.empty(len(after.exact))
    old, new = before.arrays.exact, after.arrays.exact
    metric = frozen(after.weights if after.squared else np.sqrt(after.shares), np.float64)

    def work(first: int, last: int) -> None:
        """Measure how far a range of centroids moved."""
        _lengths_between(old[first:last], new[first:last], metric, lengths[first:last])

    over_ranges(work, len(lengths), new.size)
    return changes_of(lengths, before, after)


def changes_of(lengths: FloatArray, before: Table, after: Table) -> FloatArray:
    """Return how far each centroid went, and how much its bias and its `extra` changed: (3, K)."""
    changes = np.abs(after.bias - before.bias), np.abs(after.extra - before.extra)
    return np.stack([lengths, *changes])


def losses_of(changes: FloatArray) -> FloatArray:
    """Return what gaps may lose where centroids changed so; see `CentroidDrift`."""
    return LOOSE * np.stack([_with_others(sizes) for sizes in changes])


@njit(nogil=True, cache=True, makes_arrays=False)
def _rows_to_compare(
    terms: Terms,
    slack: FloatArray,
    losses: FloatArray,
    gaps: RowArray,
    labels: LabelArray,
    out: LabelArray,
) -> int:
    """Write labels to be changed and the rows to be compared; return how many these are.

    Every row is written, and counted where it is wanted: a branch would be guessed wrong.
    """
    after, todo = out[0], out[1]
    norm, shift = terms.norm, terms.shift
    known = gaps.shape[0] > 0
    count = 0
    for i in range(labels.shape[0]):
        h = labels[i]
        after[i], todo[count] = h, i
        wanted = h != LINKED
        if known:
            own = np.uint32(h if h > 0 else 0)
            lost = of_row(norm, i) * losses[0, own] + losses[1, own]
            rest = np.float64(gaps[i]) - lost - abs(of_row(shift, i)) * losses[2, own]
            spared = (h >= 0) & (gaps[i] > 0.0) & (rest > slack[i])
            gaps[i] = np.float32(SHRUNK * rest) if spared else gaps[i]
            wanted &= not spared
        count += wanted
    return count


def rows_to_compare(
    terms: Terms,
    slack: FloatArray,
    drift: CentroidDrift | None,
    gaps: RowArray,
    labels: LabelArray,
) -> tuple[LabelArray, LabelArray]:
    """Return labels to be changed, and the rows that must be compared to know theirs.

    The `gaps` of the others are brought down; without any, all free rows are compared.
    """
    out = np.empty((2, len(labels)), np.int32)
    losses = frozen(np.zeros((3, 1)) if drift is None else drift.losses, np.float64)
    known = frozen_terms(*terms), frozen(slack, np.float64), losses
    count = _rows_to_compare(*known, gaps, frozen(labels, np.int32), out)
    return out[0], out[1, :count]
