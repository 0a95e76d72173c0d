"""First centroids (KDD 2004, §3.3): greedy k-means++, random rows, neighbourhoods chosen farthest-first or agglomerated.

Everything here works on one block of rows sorted by id (the corpus, or a sample of it), so index order is id order; random numbers are
keyed by document, so nothing depends on how the corpus was cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hmrf_dask.closure import ConstraintGraph
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.em.engine import real_sums
from hmrf_dask.kernels.random import exponentials, uniforms
from hmrf_dask.rows import RowBlock
from hmrf_dask.types import BoolArray, FloatArray, IntArray

MOST_NEIGHBOURHOODS = (
    300  # agglomeration takes so many, the largest: its cost grows with their square
)
PERTURBATION = 0.35  # of each entry, either way; the paper gives no size


@dataclass(frozen=True)
class Sample:
    """Rows to start from, and what is needed to make centroids of them."""

    block: RowBlock
    distortion: Distortion
    weights: FloatArray
    smoothing: float
    exponent: int
    seed: int

    def terms(self) -> Any:
        """Return the row terms."""
        return self.distortion.terms(self.block, self.weights)

    def sums(self, labels: IntArray, n_groups: int) -> tuple[FloatArray, IntArray]:
        """Return sums (n_groups, d + 1) and counts of the rows with a label >= 0."""
        nowhere = np.full(self.block.n_rows, -1, np.int32)
        sums = self.distortion.sum_moves(
            self.block,
            self.terms(),
            self.weights,
            nowhere,
            labels.astype(np.int32),
            n_groups,
            self.exponent,
        )
        return real_sums(sums.to_dense(), self.exponent), sums.counts

    def centroids(self, totals: FloatArray, counts: IntArray) -> FloatArray:
        """Return the centroids of sums."""
        return self.distortion.centroids(totals, counts, self.weights, self.smoothing, None)

    def centroids_of_rows(self, rows: IntArray) -> FloatArray:
        """Return single rows as centroids."""
        labels = np.full(self.block.n_rows, -1, np.int64)
        order = np.argsort(rows, kind="stable")
        labels[rows[order]] = order
        return self.centroids(*self.sums(labels, len(rows)))

    def distances(self, centroids: FloatArray) -> FloatArray:
        """Return the distances of all rows to some centroids."""
        table = self.distortion.table(centroids, self.weights)
        return self.distortion.distances(self.block, self.terms(), table)


def decided_rows(sample: Sample) -> BoolArray:
    """Return which rows may become a centroid: a zero row has no direction to give."""
    if sample.distortion.zero_rows == "ordinary":
        return np.ones(sample.block.n_rows, np.bool_)
    return (
        np.diff(sample.block.indptr) > 0
        if not sample.block.is_dense
        else sample.block.to_dense().any(axis=1)
    )


def kmeans_plus_plus(
    sample: Sample, n_clusters: int, start: int, given: FloatArray | None = None
) -> FloatArray:
    """Return `given` centroids filled up to K by greedy k-means++: of 2 + ln K draws the one that helps most.

    A draw with probability proportional to the distance is a race: the least exponential / distance wins.
    """
    block, decided = sample.block, decided_rows(sample)
    chosen = np.zeros((0, block.n_features)) if given is None else given
    trials = 2 + int(math.log(n_clusters))
    nearest = np.ones(block.n_rows)
    if len(chosen):
        nearest = np.maximum(sample.distances(chosen).min(axis=1), 0.0)
    while len(chosen) < n_clusters:
        first = not len(chosen)
        weights = np.where(decided, nearest, 0.0)
        if not weights.any():  # all rows lie on centroids: any rows will do
            weights = np.where(decided, 1.0, 0.0) if decided.any() else np.ones(block.n_rows)
        draws = []
        for draw in range(1 if first else trials):
            race = exponentials(block.keys, sample.seed, "k-means++", start, len(chosen), draw)
            draws.append(
                int(np.argmin(np.where(weights > 0, race / np.maximum(weights, 1e-300), np.inf)))
            )
        candidates = sample.centroids_of_rows(np.unique(draws))
        reach = np.maximum(sample.distances(candidates), 0.0)
        reach = reach if first else np.minimum(reach, nearest[:, None])
        best = int(reach.sum(axis=0).argmin())
        nearest = reach[:, best]
        chosen = np.concatenate([chosen, candidates[best : best + 1]])
    return chosen


def random_rows(sample: Sample, n_clusters: int, start: int) -> FloatArray:
    """Return K different rows as centroids, those with the lowest keyed numbers."""
    numbers = uniforms(sample.block.keys, sample.seed, "random", start, 0, 0)
    numbers = np.where(decided_rows(sample), numbers, 2.0)
    return sample.centroids_of_rows(np.argsort(numbers, kind="stable")[:n_clusters])


def perturbations(sample: Sample, n_wanted: int, start: int) -> FloatArray:
    """Return random perturbations of the global centroid, as the paper fills missing clusters."""
    totals, counts = sample.sums(np.zeros(sample.block.n_rows, np.int64), 1)
    overall = sample.centroids(totals, counts)[0]
    features = np.arange(sample.block.n_features, dtype=np.uint64)
    out = np.empty((n_wanted, len(overall)))
    for number in range(n_wanted):
        noise = uniforms(features, sample.seed, "perturb", start, number, 0)
        out[number] = overall * (1.0 + PERTURBATION * (2.0 * noise - 1.0))
    return out


def fill(sample: Sample, n_clusters: int, start: int, given: FloatArray, how: str) -> FloatArray:
    """Return `given` centroids filled up to K, by k-means++ or as the paper does."""
    if len(given) >= n_clusters:
        return given[:n_clusters]
    if how == "perturb":
        return np.concatenate([given, perturbations(sample, n_clusters - len(given), start)])
    return kmeans_plus_plus(sample, n_clusters, start, given)


@dataclass(frozen=True)
class Neighbourhoods:
    """Must-link groups of the sample, largest first, with the sums of their rows."""

    totals: FloatArray
    sizes: IntArray
    rivals: BoolArray  # (n, n): a cannot-link lies between

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.sizes)


def neighbourhoods(
    sample: Sample, graph: ConstraintGraph, node_rows: IntArray, *, singles: bool
) -> Neighbourhoods:
    """Return the largest must-link groups, single documents of cannot-links included if `singles`."""
    sizes = np.bincount(graph.groups, minlength=graph.n_groups)
    order = np.lexsort((np.arange(graph.n_groups), -sizes))
    order = order[sizes[order] >= (1 if singles else 2)][:MOST_NEIGHBOURHOODS]
    place = np.full(graph.n_groups, -1, np.int64)
    place[order] = np.arange(len(order))
    labels = np.full(sample.block.n_rows, -1, np.int64)
    labels[node_rows] = place[graph.groups]
    totals, counts = sample.sums(labels, len(order))
    rivals = np.zeros((len(order), len(order)), np.bool_)
    ends = np.concatenate([place[graph.groups[graph.cannot_pairs]], place[graph.rivals]])
    ends = ends[(ends >= 0).all(axis=1) & (ends[:, 0] != ends[:, 1])]
    rivals[ends[:, 0], ends[:, 1]] = rivals[ends[:, 1], ends[:, 0]] = True
    return Neighbourhoods(totals, counts, rivals)


def farthest_first(sample: Sample, found: Neighbourhoods, n_clusters: int) -> FloatArray:
    """Return up to K neighbourhood centroids, weighted farthest-first: distance × size × size, from the largest on.

    Ties go to the one farthest from the global centroid, then to the larger, then to the lower id.
    """
    centroids = sample.centroids(found.totals, found.sizes)
    if len(found) <= n_clusters:
        return centroids
    apart = _between(sample, centroids) * found.sizes[:, None] * found.sizes[None, :]
    totals, counts = sample.sums(np.zeros(sample.block.n_rows, np.int64), 1)
    off_centre = _between(sample, centroids, sample.centroids(totals, counts))[:, 0]
    chosen = [0]
    while len(chosen) < n_clusters:
        score = apart[:, chosen].min(axis=1)
        score[chosen] = -np.inf
        chosen.append(int(np.lexsort((np.arange(len(found)), -off_centre, -score))[0]))
    return centroids[chosen]


def _between(sample: Sample, centroids: FloatArray, others: FloatArray | None = None) -> FloatArray:
    """Return the distances of centroids, taken as rows, to others (or to each other)."""
    rows = RowBlock.from_array(centroids.astype(np.float32))
    table = sample.distortion.table(centroids if others is None else others, sample.weights)
    return np.maximum(
        sample.distortion.distances(rows, sample.distortion.terms(rows, sample.weights), table), 0.0
    )


def agglomerate(sample: Sample, found: Neighbourhoods, n_clusters: int) -> FloatArray:
    """Return the centroids of neighbourhoods merged to K, always the two whose union costs least, never across a cannot-link."""
    if len(found) <= n_clusters:
        return sample.centroids(found.totals, found.sizes)
    totals, sizes, rivals = found.totals.copy(), found.sizes.copy(), found.rivals.copy()
    alive = np.ones(len(found), np.bool_)
    rise = np.full((len(found), len(found)), np.inf)
    for one in range(len(found)):
        rise[one] = _rise(sample, totals, sizes, one)
    while int(alive.sum()) > n_clusters:
        open_pairs = np.where(rivals | ~alive[:, None] | ~alive[None, :], np.inf, rise)
        np.fill_diagonal(open_pairs, np.inf)
        one, other = sorted(divmod(int(open_pairs.argmin()), len(found)))
        if not np.isfinite(open_pairs[one, other]):
            break
        totals[one] += totals[other]
        sizes[one] += sizes[other]
        alive[other] = False
        rivals[one] |= rivals[other]
        rivals[:, one] |= rivals[:, other]
        rise[one] = rise[:, one] = _rise(sample, totals, sizes, one)
    left = np.flatnonzero(alive)
    kept = left[np.lexsort((left, -sizes[left]))][:n_clusters]
    return sample.centroids(totals[kept], sizes[kept])


def _rise(sample: Sample, totals: FloatArray, sizes: IntArray, one: int) -> FloatArray:
    """Return what merging one neighbourhood with each other costs: ‖A‖ + ‖B‖ − ‖A + B‖, or Ward's criterion."""
    if sample.distortion.refinement == "directional":
        metric = np.append(np.ones(totals.shape[1] - 1), -sample.weights.sum())
        own = np.sqrt(np.maximum((totals * totals) @ metric, 0.0))
        merged = totals + totals[one]
        return np.asarray(own + own[one] - np.sqrt(np.maximum((merged * merged) @ metric, 0.0)))
    centroids = sample.centroids(totals, sizes)
    apart = _between(sample, centroids, centroids[one : one + 1])[:, 0]
    return np.asarray(sizes * sizes[one] / (sizes + sizes[one]) * apart)
