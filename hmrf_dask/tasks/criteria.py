"""What labels of a sample say of their K: without their own row, against shuffled rows, to answers.

Rows that are shuffled have nothing in common, rows that count for no centroid of theirs flatter
none, and answers that no fit saw are held out, all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.sparse

from hmrf_dask.constraints.closure import connected_numbers
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, LabelArray, Sized


class Criteria(NamedTuple):
    """What one K brings on a sample.

    `fall` is how far J lies below that of shuffled rows, as a share of J with one cluster; `own`
    the share of rows that are nearest to their own cluster, the row left out of it; `silhouette`
    the mean over rows; `stability` the adjusted Rand index of fits of two halves of the rows.
    `split` counts answers "same" whose documents are in two clusters, `joined` those "different"
    whose documents are in one; both 0 without answers.
    """

    n_clusters: int
    fall: float
    own: float
    silhouette: float
    stability: float
    split: float = 0.0
    joined: float = 0.0


def nonzero_rows(block: RowBlock) -> IntArray:
    """Return the places of rows that have an entry other than zero.

    Examples
    --------
    >>> nonzero_rows(RowBlock.from_array(np.array([[0.0], [3.0]]))).tolist()
    [1]
    """
    owners = np.repeat(np.arange(block.n_rows), np.diff(block.indptr))
    return np.flatnonzero(np.bincount(owners[block.values != 0], minlength=block.n_rows))


def n_distinct(block: RowBlock) -> int:
    """Return how many different rows there are.

    Examples
    --------
    >>> n_distinct(RowBlock.from_array(np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 1.0]])))
    2
    """
    ends, places = pairwise(block.indptr.tolist()), pairwise(block.index_ends.tolist())
    return len(
        {
            block.indices[first:last].tobytes() + block.values[begin:end].tobytes()
            for (begin, end), (first, last) in zip(ends, places, strict=True)
        }
    )


def first_half(block: RowBlock, seed: int) -> BoolArray:
    """Return which rows are of the first half: those with the lower keyed numbers.

    Examples
    --------
    >>> int(first_half(RowBlock.from_array(np.eye(5)), 0).sum())
    2
    """
    chosen = np.zeros(block.n_rows, np.bool_)
    chosen[_keyed_order(block, seed, "half")[: block.n_rows // 2]] = True
    return chosen


def shuffled(block: RowBlock, seed: int) -> RowBlock:
    """Return rows in which the values of every feature are dealt out again: nothing belongs.

    Rows stand in a keyed order, and each feature is turned round in it by a keyed number of rows;
    rows that get nothing are left out.

    Examples
    --------
    >>> rows = RowBlock.from_array(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    >>> sorted(shuffled(rows, 0).to_dense()[:, 1].tolist())
    [2.0, 4.0, 6.0]
    """
    n_rows, n_features = block.n_rows, block.n_features
    order = _keyed_order(block, seed, "shuffle")
    rank = np.empty(n_rows, np.int64)
    rank[order] = np.arange(n_rows)
    drawn = uniforms(np.arange(n_features, dtype=np.uint64), seed, "shuffle", 1, 0, 0)
    turns = (drawn * n_rows).astype(np.int64)
    if block.is_dense:
        rows = order[(rank[:, None] + turns) % n_rows]
        dealt = np.empty((n_rows, n_features), np.float32)
        dealt[rows, np.arange(n_features)] = block.to_dense()
        again = RowBlock.from_array(dealt, block.ids)
    else:
        owners = np.repeat(np.arange(n_rows), np.diff(block.indptr))
        features = block.arrays.indexed.indices
        rows = order[(rank[owners] + turns[features]) % n_rows]
        entries = (block.values, (rows, features))
        matrix = scipy.sparse.coo_array(entries, shape=(n_rows, n_features))
        again = RowBlock.from_scipy(matrix, block.ids)
    return again.take(nonzero_rows(again))


def _keyed_order(block: RowBlock, seed: int, purpose: str) -> IntArray:
    numbers = uniforms(block.keys, seed, purpose, 0, 0, 0)
    return np.lexsort((block.ids, numbers))


def without_own_row(own: FloatArray, labels: LabelArray, form: str | None) -> FloatArray:
    """Return how far rows are from the centroids that their clusters have without them.

    `own` are their distances to the centroids as they are; `form` says what centroids are, as
    `Distortion.refinement` does. Sums of unit rows are as long as the sum of their members' cosines
    with them, so no row is read. Without a form distances stay.

    Examples
    --------
    >>> labels = np.zeros(2, np.int32)
    >>> without_own_row(np.array([1.0, 1.0]), labels, "euclidean").tolist()  # of rows 0 and 2
    [4.0, 4.0]
    """
    if form is None:
        return own
    if form == "euclidean":
        counts = np.bincount(labels)[labels]
        factor = counts / np.maximum(counts - 1, 1)
        return np.where(counts > 1, own * factor * factor, np.inf)
    cosines = 1.0 - own
    lengths = np.bincount(labels, weights=cosines)[labels]
    squares = lengths * lengths - 2.0 * lengths * cosines + 1.0
    alone = squares <= 1e-9  # of one row
    return np.where(
        alone, 1.0, 1.0 - (lengths * cosines - 1.0) / np.sqrt(np.where(alone, 1, squares))
    )


def own_and_next(
    distances: FloatArray, labels: LabelArray, form: str | None
) -> tuple[FloatArray, FloatArray]:
    """Return the distances of rows to their own cluster without them, and to the nearest other."""
    rows = np.arange(len(labels))
    own = without_own_row(distances[rows, labels], labels, form)
    others = distances.copy()
    others[rows, labels] = np.inf
    return own, others.min(axis=1)


def mean_silhouette(own: FloatArray, other: FloatArray) -> float:
    """Return the mean of (b − a) / max(a, b) over rows, a their own distance, b the next one.

    Examples
    --------
    >>> mean_silhouette(np.array([1.0, 2.0, 0.0]), np.array([2.0, 1.0, 0.0]))
    0.0
    """
    larger = np.maximum(own, other)
    known = np.where(np.isfinite(larger) & (larger > 0), larger, 1.0)
    shares = np.where(np.isfinite(own), (other - own) / known, -1.0)
    return float(shares.mean())


@dataclass(frozen=True)
class SampledPairs(Sized):
    """Answers about documents of a sample: ends are places in `rows`."""

    rows: IntArray  # of the corpus
    must: IntArray  # (m, 2)
    cannot: IntArray

    def groups(self, places: IntArray) -> AnsweredGroups | None:
        """Return what they say about the sample; `places` of `rows` in it, -1: it has not."""
        there = [(places[pairs] >= 0).all(axis=1) for pairs in (self.must, self.cannot)]
        must, cannot = self.must[there[0]], self.cannot[there[1]]
        if not len(must) or not len(cannot):
            return None  # answers of one kind alone say nothing of K
        return AnsweredGroups.of(places, must, cannot)


@dataclass(frozen=True)
class AnsweredGroups(Sized):
    """What answers say about rows of a sample, with all that follows from it.

    Questions are often asked about documents that are near one another, but whoever knows which
    of a few documents are alike knows it of all pairs of them: these are no choice of anybody's.
    """

    rows: IntArray  # that answers name
    groups: LabelArray  # of each of them: those that are the same
    rivals: IntArray  # pairs of groups that are different
    n_pairs: int  # answers, as they were given

    @staticmethod
    def of(rows: IntArray, must: AnyArray, cannot: AnyArray) -> AnsweredGroups:
        """Return groups for pairs of places in `rows`; answers that contradict others tell nothing.

        Examples
        --------
        >>> pairs = np.array([[0, 1]]), np.array([[1, 2], [0, 2]])
        >>> AnsweredGroups.of(np.array([7, 8, 9]), *pairs).rivals.tolist()
        [[0, 1]]
        """
        groups = connected_numbers(len(rows), must)
        ends = np.sort(groups[cannot].astype(np.int64).reshape(-1, 2), axis=1)
        rivals = np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)
        return AnsweredGroups(rows, groups, rivals, len(must) + len(cannot))

    @property
    def n_same(self) -> int:
        """How many pairs of documents are the same."""
        return _pairs_within(np.bincount(self.groups))

    @property
    def n_different(self) -> int:
        """How many pairs of documents are different."""
        sizes = np.bincount(self.groups).astype(np.int64)
        return int((sizes[self.rivals[:, 0]] * sizes[self.rivals[:, 1]]).sum())

    def contradicted(self, labels: LabelArray, n_clusters: int) -> tuple[float, float]:
        """Return how many answers "same" and "different" labels contradict.

        Pairs that follow from others count as much together as the answers that were given.
        """
        n_known = self.n_same + self.n_different
        if not n_known:
            return 0.0, 0.0
        cells = self.groups.astype(np.int64) * n_clusters + labels[self.rows]
        counts = np.bincount(cells, minlength=(int(self.groups.max()) + 1) * n_clusters)
        table = counts.reshape(-1, n_clusters)
        joined = int((table[self.rivals[:, 0]] * table[self.rivals[:, 1]]).sum())
        share = self.n_pairs / n_known
        return (self.n_same - _pairs_within(counts)) * share, joined * share


def _pairs_within(sizes: AnyArray) -> int:
    """Return how many pairs there are within groups of these sizes."""
    counts = sizes.astype(np.int64)
    return int((counts * (counts - 1) // 2).sum())
