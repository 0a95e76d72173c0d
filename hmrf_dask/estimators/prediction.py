"""New rows under a fitted model: nearest cluster, distances, score; lazily where rows are lazy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hmrf_dask.corpus.chunks import lazy_array
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.dataflow import DaskFlow, Lazy, task_memory, tree
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.distortions.own import OwnDistortion
from hmrf_dask.em.memory_plan import shards_of
from hmrf_dask.em.parts import add_limbs
from hmrf_dask.em.problem import Problem
from hmrf_dask.kernels.distances import UNDECIDED
from hmrf_dask.kernels.exact import exact_sum, exact_value
from hmrf_dask.rows.block import RowBlock, check_finite
from hmrf_dask.types import FloatArray, IntArray, LabelArray


@dataclass(frozen=True)
class Predictor:
    """A fitted model, as far as new rows need it."""

    distortion: Distortion
    centroids: FloatArray
    weights: FloatArray
    smoothing: float

    @property
    def shards(self) -> tuple[range, ...]:
        """The clusters that a task takes at a time; none: all."""
        if isinstance(self.distortion, OwnDistortion):
            return ()
        n_clusters, n_features = self.centroids.shape
        return shards_of(n_clusters, n_features, task_memory())

    def terms(self, block: RowBlock) -> Any:
        """Return what distances need of the rows, or raise what is wrong with them."""
        check_finite(block)
        self.distortion.check(block)
        return self.distortion.terms(block, self.weights)


def table_of(predictor: Predictor, after: Sequence[None] = ()) -> Any:
    """Return the centroids as the distortion's kernels use them, `after` others are done."""
    return predictor.distortion.table(predictor.centroids, predictor.weights, predictor.smoothing)


@dataclass(frozen=True)
class Nearest:
    """The nearest cluster of each row of those it was compared with, and how far it is."""

    labels: LabelArray
    distances: FloatArray

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        return self.labels.nbytes + self.distances.nbytes + 128


def labels_of(
    block: RowBlock, predictor: Predictor, table: Any, first: int = 0, known: None = None
) -> LabelArray:
    """Return the nearest cluster of each row; ties go to the lowest."""
    return _nearest(block, predictor, predictor.terms(block), table)


def _nearest(block: RowBlock, predictor: Predictor, terms: Any, table: Any) -> LabelArray:
    undecided = np.full(block.n_rows, UNDECIDED, np.int32)
    return predictor.distortion.nearest(block, terms, table, undecided)[0]


def nearest_of(
    block: RowBlock, predictor: Predictor, table: Any, first: int, known: Nearest | None
) -> Nearest:
    """Return the nearest cluster of each row, counted from `first`; ties go to the lowest.

    What is `known` of clusters before them counts too.
    """
    terms = predictor.terms(block)
    labels = _nearest(block, predictor, terms, table)
    distances = predictor.distortion.own_distances(block, terms, table, labels)
    if known is None:
        return Nearest(labels, distances)
    nearer = distances < known.distances
    labels = np.where(nearer, labels + np.int32(first), known.labels)
    return Nearest(labels, np.where(nearer, distances, known.distances))


def distances_of(
    block: RowBlock, predictor: Predictor, table: Any, first: int, known: FloatArray | None
) -> FloatArray:
    """Return the distance of each row to each cluster, beside those `known`."""
    found = predictor.distortion.distances(block, predictor.terms(block), table)
    return found if known is None else np.concatenate([known, found], axis=1)


def labels_kept(nearest: Nearest) -> LabelArray:
    """Return the labels."""
    return nearest.labels


def score_of(nearest: Nearest) -> IntArray:
    """Return the exact sum of distances to the nearest cluster, as limbs."""
    return exact_sum(nearest.distances)


def predict_rows(predictor: Predictor, corpus: Corpus, ids: LabelArray, *, lazy: bool) -> Any:
    """Return the ids of the nearest clusters: int32, shape (n_rows,)."""
    flow = DaskFlow()
    parts = [flow.lazy(named, one, ids) for one in lazy_labels(flow, predictor, corpus)]
    return whole(parts, corpus.row_counts, (), np.dtype(np.int32), lazy)


def nearest_rows(predictor: Predictor, corpus: Corpus) -> Any:
    """Return the positions of the nearest clusters: a dask array that is computed once."""
    parts = lazy_labels(DaskFlow(), predictor, corpus)
    return whole(parts, corpus.row_counts, (), np.dtype(np.int32), lazy=True).persist()


def named(labels: LabelArray, ids: LabelArray) -> LabelArray:
    """Return what the clusters of rows are called."""
    return ids[labels]


def lazy_labels(flow: DaskFlow, predictor: Predictor, corpus: Corpus) -> list[Lazy]:
    """Return the labels of each partition, positions of clusters, not computed yet."""
    if not predictor.shards:
        return over_partitions(flow, labels_of, predictor, corpus)
    found = over_partitions(flow, nearest_of, predictor, corpus)
    return [flow.lazy(labels_kept, one) for one in found]


def transform_rows(predictor: Predictor, corpus: Corpus, *, lazy: bool) -> Any:
    """Return the distances: float64, shape (n_rows, K)."""
    parts = over_partitions(DaskFlow(), distances_of, predictor, corpus)
    columns = (len(predictor.centroids),)
    return whole(parts, corpus.row_counts, columns, np.dtype(np.float64), lazy)


def score_rows(predictor: Predictor, corpus: Corpus) -> float:
    """Return minus the sum of distances to nearest clusters."""
    flow = DaskFlow()
    found = over_partitions(flow, nearest_of, predictor, corpus)
    limbs = [flow.lazy(score_of, one) for one in found]
    return -exact_value(flow.compute([tree(flow, add_limbs, limbs)])[0])


def labels_of_fit(parts: list[Lazy], problem: Problem, *, lazy: bool) -> Any:
    """Return the labels that a fit left in its run: int32, shape (n_rows,)."""
    counts = tuple(part.n_rows for part in problem.free)
    return whole(parts, counts, (), np.dtype(np.int32), lazy)


def over_partitions(
    flow: DaskFlow,
    function: Callable[..., Any],
    predictor: Predictor,
    corpus: Corpus,
    known: Sequence[Lazy] | None = None,
) -> list[Lazy]:
    """Return what each partition has of all clusters, which come in shards where they are many.

    `function` takes a block, the predictor and the table of a shard, its first cluster, and what it
    returned of the shards before; of the first one what is `known` of the partition. A shard's
    table is not made before all partitions are done with the one before it.
    """
    centroids, shards = predictor.centroids, predictor.shards
    found: list[Lazy] = [None] * len(corpus.blocks) if known is None else list(known)
    for clusters in shards or (range(len(centroids)),):
        rows = centroids[clusters.start : clusters.stop] if shards else centroids
        shared = flow.share(replace(predictor, centroids=rows))
        done = [flow.lazy(nothing_of, one) for one in found] if clusters.start else []
        table = flow.lazy(table_of, shared, done)
        found = [
            flow.lazy(function, block, shared, table, clusters.start, known)
            for block, known in zip(corpus.blocks, found, strict=True)
        ]
    return found


def nothing_of(value: Any) -> None:
    """Return nothing: whoever waits for it knows that the value is there."""


def whole(
    parts: list[Lazy],
    counts: tuple[int, ...],
    columns: tuple[int, ...],
    dtype: np.dtype[Any],
    lazy: bool,
) -> Any:
    """Return the parts as a dask array with these row chunks, or computed as one ndarray."""
    if lazy:
        return lazy_array(parts, counts, columns, dtype)
    return np.concatenate(DaskFlow().compute(parts))
