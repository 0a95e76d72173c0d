"""What tasks say of rows next to the clusters of a finished model: who is between two of them.

A row's own share is taken out of the centroid of its cluster: of a few texts, each lies near its
own centroid for no other reason than that it is in it, and none would look uncertain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hmrf_dask.kernels.distances import Table
from hmrf_dask.kernels.exact import LIMBS, exact_sum
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.first_centroids import Lowest, merge_lowest
from hmrf_dask.tasks.partitions import find_ids
from hmrf_dask.tasks.questions import (
    COSINE,
    Askable,
    join_rows,
    nearest_of,
    without_own_share,
)
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, LabelArray, Sized

CENTRAL = 5  # documents of a cluster nearest to its centroid


# ---- the clusters themselves


@dataclass(frozen=True)
class ClusterParts(Sized):
    """How many rows of a partition each cluster has, how far they are, and the nearest of them."""

    sizes: IntArray
    distances: IntArray  # (K, LIMBS), exact sums
    central: list[Lowest]


def cluster_parts(rows: Askable, table: Table) -> ClusterParts:
    """Return what a partition has of each cluster."""
    n_clusters, labels = len(table.exact), nearest_of(rows, table)[0]
    own = COSINE.own_distances(rows.block, rows.terms, table, labels)
    order = np.argsort(labels, kind="stable")
    places = np.split(order, np.searchsorted(labels[order], np.arange(1, n_clusters)))
    sums = [exact_sum(own[some]) for some in places]
    return ClusterParts(
        np.bincount(labels, minlength=n_clusters),
        np.asarray(sums, np.int64).reshape(n_clusters, LIMBS),
        [_central(rows, own, some) for some in places],
    )


def _central(rows: Askable, own: FloatArray, places: IntArray) -> Lowest:
    return Lowest(own[places], rows.block.ids[places], rows.rows[places], CENTRAL).cut()


def merge_clusters(parts: Sequence[ClusterParts]) -> ClusterParts:
    """Return what several partitions have of each cluster."""
    return ClusterParts(
        np.sum([part.sizes for part in parts], axis=0, dtype=np.int64),
        np.sum([part.distances for part in parts], axis=0, dtype=np.int64),
        [merge_lowest(lists) for lists in zip(*(part.central for part in parts), strict=True)],
    )


# ---- rows that a question could settle


@dataclass(frozen=True)
class Wanted(Sized):
    """What a pass over the rows is to report.

    Attributes
    ----------
    documents : ndarray of str, sorted
        Those that answers name: of all of them it reports where they are.
    closed : ndarray of bool
        Which of them nobody is to be asked about any more.
    lengths : ndarray of shape (K,)
        Of the sums of unit rows of each cluster.
    most : int
        How many rows of a kind.
    share : float
        Of the rows, whose gaps it reports: the median of all is estimated from them.
    explored : float
        Share of the rows among which those far from all are sought.
    """

    documents: AnyArray
    closed: BoolArray
    lengths: FloatArray
    most: int
    share: float
    explored: float = 1.0


@dataclass(frozen=True)
class Listed(Sized):
    """Rows in the order of a value, lowest first, ties by id, with their cosines to clusters."""

    values: FloatArray
    rows: Askable
    cosines: FloatArray  # (n, K), without the own share
    labels: LabelArray
    most: int

    def cut(self) -> Listed:
        """Return the first of them."""
        return self.take(np.lexsort((self.rows.block.ids, self.values))[: self.most])

    def take(self, places: IntArray) -> Listed:
        """Return some of them."""
        return Listed(
            self.values[places], self.rows.take(places), self.cosines[places], self.labels[places],
            self.most,
        )  # fmt: skip


def merge_listed(lists: Sequence[Listed]) -> Listed:
    """Return the first rows of several lists, as many as were asked of each."""
    return Listed(
        np.concatenate([part.values for part in lists]),
        join_rows([part.rows for part in lists]),
        np.concatenate([part.cosines for part in lists]),
        np.concatenate([part.labels for part in lists]),
        lists[0].most,
    ).cut()


@dataclass(frozen=True)
class OpenRows(Sized):
    """What a pass found: rows between clusters, rows far from all, those named, and some gaps."""

    between: Listed  # the least gap between the nearest and the second cluster first
    far: Listed | None  # the greatest distance × density first
    named: Listed  # by number; their values are places in `Wanted.documents`
    gaps: FloatArray  # of a share of the open rows


def open_rows(rows: Askable, table: Table, wanted: Wanted, mean: Table | None) -> OpenRows:
    """Return what a partition has of all that is wanted; rows far from all if there is a `mean`."""
    labels, gaps = nearest_of(rows, table)
    numbers, places = named_in(rows.block, wanted.documents)
    is_open = np.ones(len(rows.rows), np.bool_)
    is_open[places[wanted.closed[numbers]]] = False
    candidates = np.flatnonzero(is_open)
    chance = uniforms(rows.block.keys[candidates], 0, "question", 0, 0, 0)
    drawn, explored = candidates[chance < wanted.share], candidates[chance < wanted.explored]
    compared = _listed(rows, np.concatenate([places, drawn]), table, wanted)
    named = compared.take(np.arange(len(places)))
    # a bound on how much the own share may be: cos(x, S) − cos(x, S − x) ≤ 1.0625 / (‖S‖ − 1)
    reach = 1.125 / np.maximum(wanted.lengths - 1.0, 0.5)
    least = np.maximum(gaps[candidates] - reach[labels[candidates]], 0.0)
    return OpenRows(
        _between(rows, candidates, least, table, wanted),
        None
        if mean is None
        else _far(rows.take(explored), labels[explored], (table, mean), wanted),
        Listed(numbers.astype(np.float64), named.rows, named.cosines, named.labels, len(rows.rows)),
        compared.values[len(places) :],
    )


def merge_open(parts: Sequence[OpenRows]) -> OpenRows:
    """Return what several partitions have."""
    far = [part.far for part in parts if part.far is not None]
    most = sum(part.named.most for part in parts)
    named = [Listed(*_fields(part.named), most) for part in parts]
    return OpenRows(
        merge_listed([part.between for part in parts]),
        merge_listed(far) if far else None,
        merge_listed(named),
        np.concatenate([part.gaps for part in parts]),
    )


def _fields(listed: Listed) -> tuple[FloatArray, Askable, FloatArray, LabelArray]:
    return listed.values, listed.rows, listed.cosines, listed.labels


def named_in(block: RowBlock, documents: AnyArray) -> tuple[IntArray, IntArray]:
    """Return which of the sorted documents, named in text, a partition holds, and its rows.

    Examples
    --------
    >>> block = RowBlock.from_array(np.eye(12), np.arange(12))
    >>> [found.tolist() for found in named_in(block, np.array(["10", "9", "x"]))]
    [[1, 0], [9, 10]]
    """
    if block.ids.dtype.kind == "U":
        return find_ids(block, documents)
    names: list[str] = documents.tolist()
    known = np.flatnonzero([name.isdecimal() and str(int(name)) == name for name in names])
    numbers = np.array([int(names[place]) for place in known], np.int64)
    order = np.argsort(numbers)
    found, places = find_ids(block, numbers[order])
    return known[order[found]], places


def _listed(rows: Askable, places: IntArray, table: Table, wanted: Wanted) -> Listed:
    """Return some rows with their cosines and the gaps between the two best of them."""
    some = rows.take(places)
    if not len(places):
        none = np.zeros((0, len(table.exact)))
        return Listed(none[:, 0], some, none, np.zeros(0, np.int32), wanted.most)
    cosines = 1.0 - some.distances(table)
    labels = cosines.argmax(axis=1).astype(np.int32)
    every = np.arange(len(labels))
    cosines[every, labels] = without_own_share(cosines[every, labels], wanted.lengths[labels])
    best = np.partition(cosines, -2, axis=1)
    return Listed(best[:, -1] - best[:, -2], some, cosines, labels, wanted.most)


def _between(
    rows: Askable, candidates: IntArray, least: FloatArray, table: Table, wanted: Wanted
) -> Listed:
    """Return the rows with the least gaps, of which `least` is known of each without its cosines.

    More and more rows are compared in full, until no other can have a gap as small.
    """
    count = wanted.most + wanted.most // 2
    while count < len(candidates):
        limit = np.partition(least, count)[count]
        chosen = np.flatnonzero(least <= limit)
        found = _listed(rows, candidates[chosen], table, wanted).cut()
        if len(found.values) == wanted.most and found.values[-1] <= limit:
            return found
        count = max(4 * count, len(chosen))
    return _listed(rows, candidates, table, wanted).cut()


def _far(some: Askable, labels: LabelArray, tables: tuple[Table, Table], wanted: Wanted) -> Listed:
    """Return the rows with the greatest distance to their own centroid × density."""
    table, mean = tables
    own = 1.0 - COSINE.own_distances(some.block, some.terms, table, labels)
    own = without_own_share(own, wanted.lengths[labels])
    worth = (1.0 - own) * np.maximum(1.0 - some.distances(mean)[:, 0], 0.0)
    order = np.lexsort((some.block.ids, -worth))[: wanted.most]
    found = _listed(some, order, table, wanted)
    return Listed(-worth[order], *_fields(found)[1:], wanted.most)
