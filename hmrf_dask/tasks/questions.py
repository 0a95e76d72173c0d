"""What tasks say of rows that a person may be asked about: how far, dense and uncertain they are.

All is by cosine, whatever the fit's distortion: it needs no model, and neighbourhoods of a few
rows have no other metric yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hmrf_dask.distortions.cosine import Cosine
from hmrf_dask.kernels.compiled import Terms
from hmrf_dask.kernels.distances import UNDECIDED, Table
from hmrf_dask.kernels.hamerly import CentroidDrift, RowBounds
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.kernels.sums import Sums, fixed_point_exponent
from hmrf_dask.kernels.uncertainty import gap_counts, uncertainties
from hmrf_dask.rows.block import RowBlock, check_finite
from hmrf_dask.tasks.first_centroids import Lowest, merge_lowest
from hmrf_dask.types import FloatArray, IntArray, LabelArray, RowArray, Sized

COSINE = Cosine()
SAME_PLACE = 1e-6  # rows so near to a point lie on it: rounding parts a row from itself by less
LEAST_DENSITY = 1e-9  # of rows on the far side of the mean, which come last, but come
DISTANCE_BYTES = 2**24  # of the distances of some rows to all directions


@dataclass(frozen=True)
class Askable(Sized):
    """The rows of a partition that a person may be asked about, and their numbers in the corpus."""

    block: RowBlock
    rows: IntArray

    @cached_property
    def terms(self) -> Terms:
        """What the distortion knows of each row."""
        return COSINE.terms(self.block, np.ones(self.block.n_features))

    def distances(self, table: Table) -> FloatArray:
        """Return the cosine distances of all rows to some directions."""
        return COSINE.distances(self.block, self.terms, table)

    def directions(self) -> FloatArray:
        """Return the rows as directions, of a few of them."""
        return self.block.to_dense().astype(np.float64)

    def take(self, places: IntArray) -> Askable:
        """Return some of the rows."""
        return Askable(self.block.take(places), self.rows[places])

    def between(self, start: int, stop: int) -> Askable:
        """Return rows that follow each other."""
        stop = min(stop, len(self.rows))
        return Askable(self.block.rows(start, stop), self.rows[start:stop])

    def without(self, rows: IntArray) -> Askable:
        """Return the rows but for some, by their numbers in the corpus."""
        return self.take(np.flatnonzero(~np.isin(self.rows, rows))) if len(rows) else self

    def sums(self, labels: IntArray, n_groups: int, exponent: int) -> Sums:
        """Return the exact sums of unit rows by group."""
        nowhere, weights = np.full(len(labels), -1, np.int32), np.ones(self.block.n_features)
        rows = (self.block, self.terms, weights, nowhere, labels.astype(np.int32))
        return COSINE.sum_moves(*rows, n_groups, exponent)


def askable_rows(block: RowBlock, first_row: int, allowed: IntArray | None) -> Askable:
    """Return the rows of a partition that may be asked about: allowed, and with a direction."""
    check_finite(block)
    rows = Askable(block, np.arange(block.n_rows) + first_row)
    has_direction = rows.terms.factor > 0.0
    places = np.flatnonzero(has_direction)
    if allowed is not None:
        places = places[np.isin(rows.rows[places], allowed)]
    return rows if len(places) == block.n_rows else rows.take(places)


def of_askable(
    function: Callable[..., Any],
    block: RowBlock,
    first_row: int,
    allowed: IntArray | None,
    *arguments: Any,
) -> Any:
    """Return what a function makes of the rows of a partition that may be asked about."""
    return function(askable_rows(block, first_row, allowed), *arguments)


def direction_table(directions: FloatArray) -> Table:
    """Return directions as kernels read them."""
    return COSINE.table(directions, np.ones(directions.shape[1]))


def directions_of(sums: Sums, exponent: int) -> FloatArray:
    """Return the mean directions that exact sums of unit rows have."""
    whole = sums.dense if sums.is_dense else sums.to_dense()
    weights = np.ones(whole.shape[1] - 1)
    return COSINE.centroids(whole, exponent, sums.counts, weights, 0.0, None)


@dataclass(frozen=True)
class Means(Sized):
    """Mean directions that rows are compared with.

    Attributes
    ----------
    directions : ndarray of shape (K, d)
    lengths : ndarray of shape (K,), optional
        Of the sums of unit rows that they are directions of, where each row is in that of the
        nearest; without it rows have no share in them.
    """

    directions: FloatArray
    lengths: FloatArray | None = None


def distances_to(rows: Askable, table: Table, lengths: FloatArray | None) -> FloatArray:
    """Return cosine distances to mean directions; a row's own share is taken out of the nearest.

    Of a few texts, each lies near a mean for no other reason than that it is in it.
    """
    distances = rows.distances(table)
    if lengths is not None:
        every, nearest = np.arange(len(distances)), distances.argmin(axis=1)
        own = 1.0 - distances[every, nearest]
        distances[every, nearest] = 1.0 - without_own_share(own, lengths[nearest])
    return distances


def without_own_share(cosines: FloatArray, lengths: FloatArray) -> FloatArray:
    """Return the cosines of unit rows to sums of this length that the rows are then taken from.

    A row that is alone in its cluster has nothing left to be near to: 0.

    Examples
    --------
    >>> without_own_share(np.array([1.0, 1.0, 0.6]), np.array([5.0, 1.0, 2.0])).round(3).tolist()
    [1.0, 0.0, 0.124]
    """
    squares = lengths * lengths - 2.0 * lengths * cosines + 1.0
    left = np.sqrt(np.maximum(squares, 0.0))
    return np.divide(lengths * cosines - 1.0, left, out=np.zeros_like(cosines), where=left > 1e-9)


def nearest_of(rows: Askable, table: Table) -> tuple[LabelArray, FloatArray]:
    """Return the nearest direction of each row, and how much farther all others are at least."""
    bounds = RowBounds()
    drift = CentroidDrift("", "now", np.zeros((3, len(table.exact))))
    undecided = np.full(len(rows.rows), UNDECIDED, np.int32)
    labels, _ = COSINE.nearest(
        rows.block, rows.terms, table, undecided, measured=False, bounds=bounds, drift=drift
    )
    return labels, bounds.gaps.astype(np.float64)


def cluster_sums(
    rows: Askable, table: Table, placed: IntArray, groups: IntArray, exponent: int
) -> Sums:
    """Return the sums of a partition's rows by the nearest direction; placed rows have a group."""
    at = np.minimum(np.searchsorted(placed, rows.rows), len(placed) - 1)
    labels = np.where(placed[at] == rows.rows, groups[at], nearest_of(rows, table)[0])
    return rows.sums(labels, len(table.exact), exponent)


def means_of(sums: Sums, exponent: int) -> Means:
    """Return the mean directions of clusters by exact sums of their unit rows."""
    whole = sums.dense if sums.is_dense else sums.to_dense()
    lengths = np.linalg.norm(np.ldexp(whole[:, :-1].astype(np.float64), -exponent), axis=1)
    return Means(directions_of(sums, exponent), lengths)


def overall_sum(rows: Askable, n_rows: int) -> Sums:
    """Return the sum of all rows of a partition, scaled for so many in all."""
    return rows.sums(np.zeros(len(rows.rows), np.int64), 1, fixed_point_exponent(n_rows, 1.0))


# ---- farthest-first


@dataclass(frozen=True)
class Reach(Sized):
    """How far the rows of a partition are from all points chosen, and what that counts."""

    distance: RowArray  # (n,) to the nearest point
    density: RowArray  # (n,)


def first_reach(rows: Askable, mean: Table | None) -> Reach:
    """Return the reach before any point is chosen; without a mean all rows are as dense."""
    density = np.ones(len(rows.rows), np.float32)
    if mean is not None:
        density = np.maximum(1.0 - rows.distances(mean)[:, 0], LEAST_DENSITY).astype(np.float32)
    return Reach(np.full(len(density), np.inf, np.float32), density)


def shorten(rows: Askable, reach: Reach, points: Table) -> Reach:
    """Return the reach after more points were chosen."""
    nearest = rows.distances(points).min(axis=1).astype(np.float32)
    nearest[nearest < SAME_PLACE] = 0.0
    return Reach(np.minimum(reach.distance, nearest), reach.density)


@dataclass(frozen=True)
class Outermost(Sized):
    """The rows with the greatest distance × density, greatest first, ties by id."""

    rows: Askable
    reach: Reach
    most: int  # of a list
    beyond: float = -np.inf  # what the next one has, which is not among them

    @property
    def worth(self) -> RowArray:
        """Distance × density of each."""
        return self.reach.distance * self.reach.density

    def cut(self) -> Outermost:
        """Return the first of them."""
        order = np.lexsort((self.rows.block.ids, -self.worth))
        left = self.worth[order[self.most :]]
        order = order[: self.most]
        reach = Reach(self.reach.distance[order], self.reach.density[order])
        beyond = max(self.beyond, float(left.max(initial=-np.inf)))
        return Outermost(self.rows.take(order), reach, self.most, beyond)


def outermost(rows: Askable, reach: Reach, most: int) -> Outermost:
    """Return the outermost rows of a partition."""
    return Outermost(rows, reach, most).cut()


@dataclass(frozen=True)
class Reached(Sized):
    """How far the rows of a partition are, and the outermost of them."""

    reach: Reach
    outermost: Outermost


def reached_after(
    rows: Askable,
    before: Reached | None,
    mean: Table | None,
    points: Table | None,
    most: int,
) -> Reached:
    """Return how far rows are after more points were chosen; in the first pass from nothing."""
    reach = first_reach(rows, mean) if before is None else before.reach
    if points is not None:
        reach = shorten(rows, reach, points)
    return Reached(reach, outermost(rows, reach, most))


def outermost_of(reached: Reached) -> Outermost:
    """Return the outermost rows that a pass found in a partition."""
    return reached.outermost


def merge_outermost(lists: Sequence[Outermost]) -> Outermost:
    """Return the outermost rows of several partitions, as many as were asked of each."""
    block = RowBlock.concatenate([part.rows.block for part in lists])
    rows = Askable(block, np.concatenate([part.rows.rows for part in lists]))
    reach = Reach(
        np.concatenate([part.reach.distance for part in lists]),
        np.concatenate([part.reach.density for part in lists]),
    )
    return Outermost(rows, reach, lists[0].most, max(part.beyond for part in lists)).cut()


def densest(rows: Askable, mean: Table) -> Lowest:
    """Return the row of a partition that is nearest to the mean of all."""
    return Lowest(rows.distances(mean)[:, 0], rows.block.ids, rows.rows, 1).cut()


def nearest_to(rows: Askable, table: Table) -> list[Lowest]:
    """Return for each direction the row of a partition that is nearest to it."""
    columns = rows.distances(table).T
    return [Lowest(column, rows.block.ids, rows.rows, 1).cut() for column in columns]


def merge_nearest(lists: Sequence[list[Lowest]]) -> list[Lowest]:
    """Return for each direction the nearest row of several partitions."""
    return [merge_lowest(column) for column in zip(*lists, strict=True)]


# ---- uncertain rows


@dataclass(frozen=True)
class Uncertain(Sized):
    """The open row whose neighbourhood is most uncertain for what a question settles, if any.

    `gaps` counts the open rows by the gap between their nearest and second neighbourhood.
    """

    values: FloatArray
    rows: Askable
    gaps: IntArray

    def cut(self) -> Uncertain:
        """Return the first; ties go to the lowest id."""
        order = np.lexsort((self.rows.block.ids, -self.values))[:1]
        return Uncertain(self.values[order], self.rows.take(order), self.gaps)


def most_uncertain(
    rows: Askable, table: Table, lengths: FloatArray | None, settled: IntArray, scale: float
) -> Uncertain:
    """Return the most uncertain open row of a partition, by its distances to mean directions."""
    left = rows.without(settled)
    step = max(1, DISTANCE_BYTES // (8 * len(table.exact)))
    parts = [left.between(first, first + step) for first in range(0, len(left.rows), step)]
    return merge_uncertain([
        _uncertain(part, distances_to(part, table, lengths), scale) for part in parts or [left]
    ])  # fmt: skip


def _uncertain(rows: Askable, distances: FloatArray, scale: float) -> Uncertain:
    return Uncertain(uncertainties(distances, scale), rows, gap_counts(distances)).cut()


def merge_uncertain(lists: Sequence[Uncertain]) -> Uncertain:
    """Return the most uncertain row of several partitions."""
    values = np.concatenate([part.values for part in lists])
    gaps: IntArray = np.sum([part.gaps for part in lists], axis=0)
    return Uncertain(values, join_rows([part.rows for part in lists]), gaps).cut()


def drawn(rows: Askable, seed: int, draw: int, most: int) -> Lowest:
    """Return the rows of a partition with the lowest keyed numbers of a draw."""
    numbers = uniforms(rows.block.keys, seed, "question", 0, draw, 0)
    return Lowest(numbers, rows.block.ids, rows.rows, most).cut()


def named_rows(rows: Askable, wanted: IntArray) -> Askable:
    """Return the rows of a partition that are wanted, by their numbers in the corpus."""
    return rows.take(np.flatnonzero(np.isin(rows.rows, wanted)))


def join_rows(parts: Sequence[Askable]) -> Askable:
    """Return the rows of several partitions as one."""
    block = RowBlock.concatenate([part.block for part in parts])
    return Askable(block, np.concatenate([part.rows for part in parts]))
