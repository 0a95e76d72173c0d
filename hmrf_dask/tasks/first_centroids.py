"""First centroids (KDD 2004, section 3.3): neighbourhoods, greedy k-means++, random rows.

The rows that would save most as centroids of their own: they reseed empty clusters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from scipy.optimize import linear_sum_assignment

from hmrf_dask.constraints.closure import ConstraintGraph
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.kernels.compiled import Terms, spread
from hmrf_dask.kernels.random import exponentials, uniforms
from hmrf_dask.kernels.sums import Sums
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Model
from hmrf_dask.tasks.partitions import StoredLabels
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, Sized

DRAWN_ROWS = 2_000  # that k-means++ sees at least
DRAWN_ROWS_PER_CLUSTER = 100  # measured: all rows give starts that end no lower
PERTURBATION = 0.35  # of each entry, either way; the paper gives no size


@dataclass(frozen=True)
class CandidateRows:
    """Rows to start from, and what is needed to make centroids of them."""

    block: RowBlock
    distortion: Distortion
    smoothing: float
    exponent: int
    seed: int

    @cached_property
    def weights(self) -> FloatArray:
        """All features weigh 1."""
        return np.ones(self.block.n_features)

    @cached_property
    def terms(self) -> Any:
        """What the distortion knows of each row."""
        return self.distortion.terms(self.block, self.weights)

    @cached_property
    def decided(self) -> BoolArray:
        """Which rows may become a centroid: one without a direction has none to give."""
        if self.distortion.zero_rows == "ordinary":
            return np.ones(self.block.n_rows, np.bool_)
        if isinstance(self.terms, Terms):  # a constant row has no correlation to give either
            return np.asarray(spread(self.terms.factor, self.block.n_rows) != 0.0)
        owners = np.repeat(np.arange(self.block.n_rows), np.diff(self.block.indptr))
        return np.bincount(owners[self.block.values != 0], minlength=self.block.n_rows) > 0

    def drawn(self, n_rows: int, start: int) -> CandidateRows:
        """Return so many of the rows, other ones for every start; undecided ones come last."""
        if n_rows >= self.block.n_rows:
            return self
        numbers = uniforms(self.block.keys, self.seed, "drawn", start, 0, 0)
        numbers = np.where(self.decided, numbers, 2.0)
        chosen = np.argsort(numbers, kind="stable")[:n_rows]
        return replace(self, block=self.block.take(np.sort(chosen)))

    def sum_by(self, labels: IntArray, n_groups: int) -> Sums:
        """Return the fixed-point sums of the rows with a label >= 0."""
        nowhere = np.full(self.block.n_rows, -1, np.int32)
        after = labels.astype(np.int32)
        rows = (self.block, self.terms, self.weights)
        return self.distortion.sum_moves(*rows, nowhere, after, n_groups, self.exponent)

    def sums(self, labels: IntArray, n_groups: int) -> tuple[IntArray, IntArray]:
        """Return sums (n_groups, d + 1) and counts of the rows with a label >= 0."""
        sums = self.sum_by(labels, n_groups)
        return sums.dense if sums.is_dense else sums.to_dense(), sums.counts

    def centroids(self, sums: IntArray, counts: IntArray) -> FloatArray:
        """Return the centroids of fixed-point sums."""
        scale = (self.weights, self.smoothing, None)
        return self.distortion.centroids(sums, self.exponent, counts, *scale)

    def centroids_of_rows(self, rows: IntArray) -> FloatArray:
        """Return single rows as centroids."""
        few = replace(self, block=self.block.take(rows))
        return few.centroids(*few.sums(np.arange(len(rows)), len(rows)))

    def overall(self) -> FloatArray:
        """Return the centroid of all rows, shape (1, d)."""
        return self.centroids(*self.sums(np.zeros(self.block.n_rows, np.int64), 1))

    def distances(self, centroids: FloatArray) -> FloatArray:
        """Return the distances of all rows to some centroids, none below zero."""
        table = self.distortion.table(centroids, self.weights)
        return np.maximum(self.distortion.distances(self.block, self.terms, table), 0.0)


def kmeans_plus_plus(
    sample: CandidateRows, n_clusters: int, start: int, known: FloatArray | None = None
) -> FloatArray:
    """Return `known` centroids filled up to K by rows: of 2 + ln K draws the one that helps most.

    A draw with probability proportional to the distance is a race: the least exponential / distance
    wins. Of many rows only some are seen.
    """
    sample = sample.drawn(max(DRAWN_ROWS, DRAWN_ROWS_PER_CLUSTER * n_clusters), start)
    n_known, nearest = 0, np.ones(sample.block.n_rows)
    if known is not None and len(known):
        n_known, nearest = len(known), sample.distances(known).min(axis=1)
    chosen = np.empty(n_clusters - n_known, np.int64)
    for step in range(n_known, n_clusters):
        n_draws = 2 + int(math.log(n_clusters)) if step else 1
        drawn = _draw(sample, nearest, start, step, n_draws)
        reach = sample.distances(sample.centroids_of_rows(drawn))
        if step:
            reach = np.minimum(reach, nearest[:, None])
        best = int(reach.sum(axis=0).argmin())
        nearest = reach[:, best]
        chosen[step - n_known] = drawn[best]
    drawn_rows = sample.centroids_of_rows(chosen)
    return drawn_rows if known is None else np.concatenate([known, drawn_rows])


def _draw(
    sample: CandidateRows, nearest: FloatArray, start: int, step: int, n_draws: int
) -> IntArray:
    """Return rows drawn in proportion to how far they are, sorted, each once."""
    weights = np.where(sample.decided, nearest, 0.0)
    if not weights.any():  # all rows lie on centroids: any rows will do
        anyone = sample.decided if sample.decided.any() else np.ones_like(sample.decided)
        weights = anyone.astype(np.float64)
    odds = np.maximum(weights, 1e-300)
    drawn = []
    for draw in range(n_draws):
        race = exponentials(sample.block.keys, sample.seed, "k-means++", start, step, draw)
        drawn.append(int(np.where(weights > 0, race / odds, np.inf).argmin()))
    return np.unique(drawn)


def random_rows(sample: CandidateRows, n_clusters: int, start: int) -> FloatArray:
    """Return K different rows as centroids, those with the lowest keyed numbers."""
    numbers = uniforms(sample.block.keys, sample.seed, "random", start, 0, 0)
    numbers = np.where(sample.decided, numbers, 2.0)
    return sample.centroids_of_rows(np.argsort(numbers, kind="stable")[:n_clusters])


def perturbations(sample: CandidateRows, n_wanted: int, start: int) -> FloatArray:
    """Return random perturbations of the global centroid, as the paper fills missing clusters."""
    overall = sample.overall()[0]
    features = np.arange(sample.block.n_features, dtype=np.uint64)
    out = np.empty((n_wanted, len(overall)))
    for number in range(n_wanted):
        noise = uniforms(features, sample.seed, "perturb", start, number, 0)
        out[number] = overall * (1.0 + PERTURBATION * (2.0 * noise - 1.0))
    return out


def fill(
    sample: CandidateRows, n_clusters: int, start: int, known: FloatArray, how: str
) -> FloatArray:
    """Return `known` centroids filled up to K, by k-means++, random rows or as the paper does."""
    if len(known) >= n_clusters:
        return known[:n_clusters]
    if how == "k-means++":
        return kmeans_plus_plus(sample, n_clusters, start, known)
    more = random_rows if how == "random" else perturbations
    return np.concatenate([known, more(sample, n_clusters - len(known), start)])


MOST_NEIGHBOURHOODS = 300  # the largest are taken: merging them costs as much as their square
MOST_CENTROIDS = 16  # neighbourhood centroids held at a time, in full width


@dataclass(frozen=True)
class Neighbourhoods:
    """Must-link groups of the sample, largest first (ties: lowest id), with sums of their rows."""

    sums: scipy.sparse.csr_array  # int64 (n, d + 1), in units of 2**-exponent
    exponent: int
    sizes: IntArray
    rivals: BoolArray  # (n, n): a cannot-link lies between

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.sizes)

    @cached_property
    def totals(self) -> scipy.sparse.csr_array:
        """The sums as float64."""
        return self.sums * 2.0**-self.exponent


def find_neighbourhoods(
    sample: CandidateRows, graph: ConstraintGraph, node_rows: IntArray, *, singles: bool
) -> Neighbourhoods:
    """Return the largest must-link groups; with `singles` single documents of cannot-links too."""
    sizes, order = _by_size(graph)
    order = order[sizes[order] >= (1 if singles else 2)][:MOST_NEIGHBOURHOODS]
    place, labels = _labels(sample, graph, node_rows, order)
    sums = sample.sum_by(labels, len(order))
    rivals = np.zeros((len(order), len(order)), np.bool_)
    ends = np.concatenate([place[graph.groups[graph.cannot_pairs]], place[graph.rivals]])
    ends = ends[(ends >= 0).all(axis=1) & (ends[:, 0] != ends[:, 1])]
    rivals[ends[:, 0], ends[:, 1]] = rivals[ends[:, 1], ends[:, 0]] = True
    return Neighbourhoods(_as_sparse(sums), sample.exponent, sums.counts, rivals)


def _by_size(graph: ConstraintGraph) -> tuple[IntArray, IntArray]:
    """Return the sizes of must-link groups, and their order: largest first, ties by number."""
    sizes = np.bincount(graph.groups, minlength=graph.n_groups)
    return sizes, np.lexsort((np.arange(graph.n_groups), -sizes))


def _labels(
    sample: CandidateRows, graph: ConstraintGraph, node_rows: IntArray, chosen: IntArray
) -> tuple[IntArray, IntArray]:
    """Return of all groups, and of all rows, the place among the chosen groups; -1: none."""
    place, labels = (
        np.full(graph.n_groups, -1, np.int64),
        np.full(sample.block.n_rows, -1, np.int64),
    )
    place[chosen] = np.arange(len(chosen))
    labels[node_rows] = place[graph.groups]
    return place, labels


def _as_sparse(sums: Sums) -> scipy.sparse.csr_array:
    """Return fixed-point sums as CSR."""
    if sums.is_dense:
        return scipy.sparse.csr_array(sums.dense)
    shape = (len(sums.counts), sums.n_columns)
    places, values = sums.folded()
    ends = (places // sums.n_columns, places % sums.n_columns)
    return scipy.sparse.csr_array((values, ends), shape=shape)


def centroids_of(sample: CandidateRows, groups: Neighbourhoods, chosen: IntArray) -> FloatArray:
    """Return the centroids of some neighbourhoods."""
    return sample.centroids(groups.sums[chosen].toarray(), groups.sizes[chosen])


def _distances_to(
    sample: CandidateRows, groups: Neighbourhoods, centroids: FloatArray
) -> FloatArray:
    """Return the distances of neighbourhoods, their means taken as rows, to centroids."""
    counts = np.repeat(groups.sizes, np.diff(groups.totals.indptr))
    means = groups.totals.copy()
    means.data = means.data / counts
    means = means[:, :-1]
    dense = sample.block.is_dense
    rows = RowBlock.from_array(means.toarray()) if dense else RowBlock.from_scipy(means)
    table = sample.distortion.table(centroids, sample.weights)
    terms = sample.distortion.terms(rows, sample.weights)
    return np.maximum(sample.distortion.distances(rows, terms, table), 0.0)


def _all_distances(sample: CandidateRows, groups: Neighbourhoods) -> FloatArray:
    """Return the distances of neighbourhoods to the centroids of all of them, shape (n, n)."""
    everyone = np.arange(len(groups))
    few = (everyone[at : at + MOST_CENTROIDS] for at in range(0, len(groups), MOST_CENTROIDS))
    columns = [
        _distances_to(sample, groups, centroids_of(sample, groups, chosen)) for chosen in few
    ]
    return np.concatenate(columns, axis=1)


def farthest_first(sample: CandidateRows, groups: Neighbourhoods, n_clusters: int) -> FloatArray:
    """Return up to K neighbourhood centroids, weighted farthest-first, from the largest on.

    The next has the largest distance × size × size to the nearest of those chosen. Ties go to the
    one farthest from the global centroid, then to the larger, then to the lower id.
    """
    everyone = np.arange(len(groups))
    if len(groups) <= n_clusters:
        return centroids_of(sample, groups, everyone)
    between = _all_distances(sample, groups) * groups.sizes[:, None] * groups.sizes[None, :]
    off_centre = _distances_to(sample, groups, sample.overall())[:, 0]
    chosen = [int(np.lexsort((everyone, -off_centre, -groups.sizes))[0])]
    while len(chosen) < n_clusters:
        score = between[:, chosen].min(axis=1)
        score[chosen] = -np.inf
        chosen.append(int(np.lexsort((everyone, -off_centre, -score))[0]))
    return centroids_of(sample, groups, np.asarray(chosen))


def largest_first(
    sample: CandidateRows, graph: ConstraintGraph, node_rows: IntArray, n_clusters: int
) -> FloatArray:
    """Return the centroids of up to K neighbourhoods of two rows or more, the largest (SDM 2004).

    Where they are fewer, a document that is cannot-linked to all of them comes next, if there is
    one: that of the lowest id.
    """
    sizes, order = _by_size(graph)
    chosen = order[sizes[order] > 1][:n_clusters]
    if 0 < len(chosen) < n_clusters:
        chosen = np.append(chosen, _rivals_of_all(graph, sizes, chosen)[:1])
    _, labels = _labels(sample, graph, node_rows, chosen)
    return sample.centroids(*sample.sums(labels, len(chosen)))


def _rivals_of_all(graph: ConstraintGraph, sizes: IntArray, chosen: IntArray) -> IntArray:
    """Return the groups of one document that are cannot-linked to every one of some groups."""
    ends = np.concatenate([graph.groups[graph.cannot_pairs], graph.rivals]).astype(np.int64)
    ends = np.concatenate([ends, ends[:, ::-1]])
    ends = ends[(sizes[ends[:, 0]] == 1) & np.isin(ends[:, 1], chosen)]
    numbers, n_rivals = np.unique(np.unique(ends, axis=0)[:, 0], return_counts=True)
    return np.asarray(numbers[n_rivals == len(chosen)])


def agglomerate(sample: CandidateRows, groups: Neighbourhoods, n_clusters: int) -> FloatArray:
    """Return the centroids of neighbourhoods merged to K.

    Always the two are merged whose union costs least, never across a cannot-link; where that ends
    early, the K largest are taken.
    """
    owner = merge_to(sample, groups, n_clusters)
    left = np.unique(owner)
    sizes = np.bincount(owner, groups.sizes, len(groups)).astype(np.int64)
    kept = left[np.lexsort((left, -sizes[left]))][:n_clusters]
    joined = scipy.sparse.csr_array((owner[None, :] == kept[:, None]).astype(np.int64))
    return sample.centroids((joined @ groups.sums).toarray(), sizes[kept])


def completed(
    sample: CandidateRows, graph: ConstraintGraph, node_rows: IntArray, labels: IntArray,
    n_clusters: int,
) -> FloatArray:  # fmt: skip
    """Return centroids of must-link groups, single documents too, and of clusters next to them.

    Each group takes one of the clusters of all rows, so that most documents are where they are
    known to be; the clusters that none takes may be classes that nobody named.
    """
    _, order = _by_size(graph)
    _, known = _labels(sample, graph, node_rows, order[:MOST_NEIGHBOURHOODS])
    n_known = min(len(order), MOST_NEIGHBOURHOODS)
    shared = np.zeros((n_known, n_clusters), np.int64)
    rows = np.flatnonzero(known >= 0)
    np.add.at(shared, (known[rows], labels[rows]), 1)
    left = np.setdiff1d(np.arange(n_clusters), linear_sum_assignment(shared, maximize=True)[1])
    groups = sample.centroids(*sample.sums(known, n_known))
    return np.concatenate([groups, sample.centroids(*sample.sums(labels, n_clusters))[left]])


def merge_to(sample: CandidateRows, groups: Neighbourhoods, n_clusters: int) -> IntArray:
    """Return for each neighbourhood the first one of the union it ends in."""
    owner = np.arange(len(groups))
    if len(groups) <= n_clusters:
        return owner
    worths = sample.distortion.refinement is not None
    merging = _Worths(sample, groups) if worths else _Ward(sample, groups)
    closed = groups.rivals.copy()  # pairs that must not be merged, or no longer stand
    np.fill_diagonal(closed, True)
    rise = np.stack([merging.rise(number) for number in range(len(groups))])
    rise[closed] = np.inf
    for _ in range(len(groups) - n_clusters):
        kept, gone = sorted(divmod(int(rise.argmin()), len(groups)))
        if not np.isfinite(rise[kept, gone]):
            break
        merging.merge(kept, gone)
        owner[owner == gone] = kept
        closed[kept] |= closed[gone]
        closed[:, kept] = closed[kept]
        closed[gone] = closed[:, gone] = True
        rise[kept] = rise[:, kept] = np.where(closed[kept], np.inf, merging.rise(kept))
        rise[gone] = rise[:, gone] = np.inf
    return owner


class _Worths:
    """What unions cost where clusters have a worth: ‖A‖ + ‖B‖ − ‖A + B‖, or ‖S‖²/n for ‖S‖."""

    def __init__(self, sample: CandidateRows, groups: Neighbourhoods) -> None:
        self.directional = sample.distortion.refinement == "directional"
        last = -sample.weights.sum() if self.directional else 0.0
        metric = np.append(sample.weights, last)
        weighted = scipy.sparse.csr_array(groups.totals * metric)
        self.products = np.asarray((weighted @ groups.totals.T).toarray())
        self.sizes = groups.sizes.astype(np.float64)

    def _worth(self, squares: FloatArray, sizes: FloatArray) -> FloatArray:
        squares = np.maximum(squares, 0.0)
        return np.sqrt(squares) if self.directional else squares / sizes

    def rise(self, kept: int) -> FloatArray:
        """Return what merging a neighbourhood with each other costs."""
        squares, sizes = np.diag(self.products), self.sizes
        own = self._worth(squares, sizes)
        union = squares + squares[kept] + 2.0 * self.products[kept]
        return np.asarray(own + own[kept] - self._worth(union, sizes + sizes[kept]))

    def merge(self, kept: int, gone: int) -> None:
        """Add one neighbourhood's sums to those of another."""
        self.products[kept] += self.products[gone]
        self.products[:, kept] += self.products[:, gone]
        self.sizes[kept] += self.sizes[gone]


class _Ward:
    """What unions cost where there are only distances: Ward's criterion by Lance and Williams."""

    def __init__(self, sample: CandidateRows, groups: Neighbourhoods) -> None:
        between = _all_distances(sample, groups)
        sizes = groups.sizes.astype(np.float64)
        weights = sizes[:, None] * sizes[None, :] / (sizes[:, None] + sizes[None, :])
        self.table = weights * (between + between.T) / 2.0
        self.sizes = sizes

    def rise(self, kept: int) -> FloatArray:
        """Return what merging a neighbourhood with each other costs."""
        return np.array(self.table[kept])

    def merge(self, kept: int, gone: int) -> None:
        """Work out what the union of two would cost with each other one."""
        sizes, table = self.sizes, self.table
        both = (sizes[kept] + sizes) * table[kept] + (sizes[gone] + sizes) * table[gone]
        merged = both - sizes * table[kept, gone]
        table[kept] = table[:, kept] = merged / (sizes[kept] + sizes[gone] + sizes)
        sizes[kept] += sizes[gone]


@dataclass(frozen=True)
class Lowest(Sized):
    """The `most` rows of a partition with the lowest values, ties by id."""

    values: FloatArray
    ids: AnyArray
    rows: IntArray  # row numbers of the corpus
    most: int

    def cut(self) -> Lowest:
        """Return them lowest first, and no others."""
        order = np.lexsort((self.ids, self.values))[: self.most]
        return Lowest(self.values[order], self.ids[order], self.rows[order], self.most)


def merge_lowest(lists: Sequence[Lowest]) -> Lowest:
    """Return the lowest rows of several partitions, as many as were asked of each."""
    filled = [part for part in lists if len(part.rows)] or lists[:1]  # no row: ids of any type
    return Lowest(
        np.concatenate([part.values for part in filled]),
        np.concatenate([part.ids for part in filled]),
        np.concatenate([part.rows for part in filled]),
        lists[0].most,
    ).cut()


def farthest(
    block: RowBlock, model: Model, counts: IntArray, stored: StoredLabels, most: int
) -> Lowest:
    """Return the free rows that would save most as centroids, unless alone in their cluster."""
    labels = stored.read()
    terms = model.distortion.terms(block, model.weights)
    distances = model.distortion.own_distances(block, terms, model.table(), labels)
    distances = distances - model.distortion.least_distances(terms)
    crowded = counts[np.maximum(labels, 0)] > 1
    free = np.flatnonzero((labels >= 0) & (distances > 0) & crowded)
    rows = free + stored.files[0].first_row
    return Lowest(-distances[free], block.ids[free], rows, most).cut()
