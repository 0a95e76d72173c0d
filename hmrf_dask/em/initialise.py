"""First centroids (KDD 2004, §3.3): greedy k-means++, random rows, fills of what is missing.

Everything here works on one block of rows sorted by id (the corpus, or a sample of it), so index
order is id order; random numbers are keyed by document. So nothing depends on how the corpus was
cut. Feature weights are 1: they are learned later, on the winner alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hmrf_dask.distortions.base import Distortion
from hmrf_dask.kernels.arrays import Terms, spread
from hmrf_dask.kernels.random import exponentials, uniforms
from hmrf_dask.kernels.sums import Sums
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import BoolArray, FloatArray, IntArray

PERTURBATION = 0.35  # of each entry, either way; the paper gives no size


@dataclass(frozen=True)
class Sample:
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
        few = Sample(
            self.block.take(rows), self.distortion, self.smoothing, self.exponent, self.seed
        )
        return few.centroids(*few.sums(np.arange(len(rows)), len(rows)))

    def overall(self) -> FloatArray:
        """Return the centroid of all rows, shape (1, d)."""
        return self.centroids(*self.sums(np.zeros(self.block.n_rows, np.int64), 1))

    def distances(self, centroids: FloatArray) -> FloatArray:
        """Return the distances of all rows to some centroids, none below nought."""
        table = self.distortion.table(centroids, self.weights)
        found = self.distortion.distances(self.block, self.terms, table)
        return np.maximum(found, 0.0)


def kmeans_plus_plus(
    sample: Sample, n_clusters: int, start: int, given: FloatArray | None = None
) -> FloatArray:
    """Return `given` centroids filled up to K by rows of `plus_plus_rows`."""
    if given is None or not len(given):
        return sample.centroids_of_rows(plus_plus_rows(sample, n_clusters, start))
    nearest = sample.distances(given).min(axis=1)
    rows = plus_plus_rows(sample, n_clusters, start, len(given), nearest)
    return np.concatenate([given, sample.centroids_of_rows(rows)])


def plus_plus_rows(
    sample: Sample,
    n_clusters: int,
    start: int,
    n_given: int = 0,
    nearest: FloatArray | None = None,
) -> IntArray:
    """Return rows that fill `n_given` centroids up to K: of 2 + ln K draws the one that helps most.

    A draw with probability proportional to the distance is a race: the least exponential / distance
    wins. `nearest` is how far rows are from the nearest given centroid.
    """
    nearest = np.ones(sample.block.n_rows) if nearest is None else nearest
    chosen = np.empty(n_clusters - n_given, np.int64)
    for step in range(n_given, n_clusters):
        n_draws = 2 + int(math.log(n_clusters)) if step else 1
        drawn = _draw(sample, nearest, start, step, n_draws)
        reach = sample.distances(sample.centroids_of_rows(drawn))
        if step:
            reach = np.minimum(reach, nearest[:, None])
        best = int(reach.sum(axis=0).argmin())
        nearest = reach[:, best]
        chosen[step - n_given] = drawn[best]
    return chosen


def _draw(sample: Sample, nearest: FloatArray, start: int, step: int, n_draws: int) -> IntArray:
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


def random_rows(sample: Sample, n_clusters: int, start: int) -> FloatArray:
    """Return K different rows as centroids."""
    return sample.centroids_of_rows(lowest_rows(sample, n_clusters, start))


def lowest_rows(sample: Sample, n_clusters: int, start: int) -> IntArray:
    """Return K different rows, those with the lowest keyed numbers."""
    numbers = uniforms(sample.block.keys, sample.seed, "random", start, 0, 0)
    numbers = np.where(sample.decided, numbers, 2.0)
    return np.argsort(numbers, kind="stable")[:n_clusters]


def perturbations(sample: Sample, n_wanted: int, start: int, first: int = 0) -> FloatArray:
    """Return random perturbations of the global centroid, as the paper fills missing clusters.

    They are numbered, and those from the `first` one on returned.
    """
    overall = sample.overall()[0]
    features = np.arange(sample.block.n_features, dtype=np.uint64)
    out = np.empty((n_wanted, len(overall)))
    for number in range(n_wanted):
        noise = uniforms(features, sample.seed, "perturb", start, first + number, 0)
        out[number] = overall * (1.0 + PERTURBATION * (2.0 * noise - 1.0))
    return out


def fill(sample: Sample, n_clusters: int, start: int, given: FloatArray, how: str) -> FloatArray:
    """Return `given` centroids filled up to K, by k-means++, random rows or as the paper does."""
    if len(given) >= n_clusters:
        return given[:n_clusters]
    if how == "random":
        return np.concatenate([given, random_rows(sample, n_clusters - len(given), start)])
    if how == "perturb":
        return np.concatenate([given, perturbations(sample, n_clusters - len(given), start)])
    return kmeans_plus_plus(sample, n_clusters, start, given)
