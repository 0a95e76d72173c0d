"""New rows under a fitted model: nearest cluster, distances, score; lazily where rows are lazy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import numpy as np

from hmrf_dask.corpus.partitioned import Corpus, lazy_array
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.fit.preparation import TaskMemory, check_memory, reading_task, table_task
from hmrf_dask.flow.dataflow import DaskFlow, Lazy, tree
from hmrf_dask.kernels.distances import UNDECIDED
from hmrf_dask.kernels.exact import exact_sum, exact_value
from hmrf_dask.kernels.sketches import Basis
from hmrf_dask.rows.block import RowBlock, check_finite
from hmrf_dask.tasks.metric import in_metric
from hmrf_dask.tasks.model import Limits
from hmrf_dask.tasks.outliers import Metric, beyond_limits
from hmrf_dask.tasks.partitions import add_limbs
from hmrf_dask.tasks.trimming import row_limits
from hmrf_dask.types import BoolArray, FloatArray, IntArray, LabelArray

OUTLIER = -1  # the cluster of outliers in files


@dataclass(frozen=True)
class Predictor:
    """A fitted model, as far as new rows need it."""

    distortion: Distortion
    centroids: FloatArray
    weights: FloatArray
    smoothing: float
    # beyond which rows are outliers, classes or those of the last phase; None: none are
    limits: IntArray | Limits | None = None
    factor: FloatArray | None = None  # F of a full metric: rows are x·F, as centroids are here

    def rows(self, block: RowBlock) -> RowBlock:
        """Return rows in the space that centroids are in: of a full metric x·F."""
        return block if self.factor is None else in_metric(block, Basis(self.factor))

    def terms(self, block: RowBlock) -> Any:
        """Return what distances need of the rows, or raise what is wrong with them."""
        check_finite(block)
        self.distortion.check(block)
        return self.distortion.terms(block, self.weights)


def table_of(predictor: Predictor) -> Any:
    """Return the centroids as the distortion's kernels use them."""
    return predictor.distortion.table(predictor.centroids, predictor.weights, predictor.smoothing)


def labels_of(block: RowBlock, predictor: Predictor, table: Any) -> LabelArray:
    """Return the nearest cluster of each row; ties go to the lowest.

    Examples
    --------
    >>> from hmrf_dask.distortions import make_distortion
    >>> from hmrf_dask.rows.block import RowBlock
    >>> predictor = Predictor(make_distortion("cosine"), np.eye(2), np.ones(2), smoothing=0.0)
    >>> block = RowBlock.from_array(np.array([[0.1, 0.9], [5.0, 1.0]]))
    >>> labels_of(block, predictor, table_of(predictor)).tolist()
    [1, 0]
    """
    return _nearest(block, predictor, predictor.terms(block), table)


def _nearest(block: RowBlock, predictor: Predictor, terms: Any, table: Any) -> LabelArray:
    undecided = np.full(block.n_rows, UNDECIDED, np.int32)
    return predictor.distortion.nearest(block, terms, table, undecided)[0]


def outliers_of(block: RowBlock, predictor: Predictor, table: Any) -> BoolArray:
    """Return which rows are farther from every centroid than the limit of the nearest.

    Examples
    --------
    >>> from hmrf_dask.distortions import make_distortion
    >>> from hmrf_dask.rows.block import RowBlock
    >>> predictor = Predictor(make_distortion("cosine"), np.eye(2), np.ones(2), smoothing=0.0)
    >>> block = RowBlock.from_array(np.array([[0.1, 0.9], [5.0, 1.0]]))
    >>> outliers_of(block, predictor, table_of(predictor)).tolist()
    [False, False]
    """
    outliers: BoolArray = marked_labels_of(block, predictor, table) == OUTLIER
    return outliers


def marked_labels_of(block: RowBlock, predictor: Predictor, table: Any) -> LabelArray:
    """Return the nearest cluster of each row, and -1 of outliers.

    Examples
    --------
    >>> from hmrf_dask.distortions import make_distortion
    >>> from hmrf_dask.rows.block import RowBlock
    >>> predictor = Predictor(make_distortion("cosine"), np.eye(2), np.ones(2), smoothing=0.0)
    >>> marked_labels_of(RowBlock.from_array(np.eye(2)), predictor, table_of(predictor)).tolist()
    [0, 1]
    """
    distortion, limits, terms = predictor.distortion, predictor.limits, predictor.terms(block)
    labels = _nearest(block, predictor, terms, table)
    if limits is None:
        return labels
    if isinstance(limits, Limits):
        distances = distortion.own_distances(block, terms, table, labels)
        outliers = distances > row_limits(block, terms, distortion, limits).of(labels)
    else:
        metric = Metric(distortion, predictor.weights, len(predictor.centroids))
        outliers = beyond_limits(block, metric, table, labels, limits)
    return np.where(outliers, np.int32(OUTLIER), labels)


def distances_of(block: RowBlock, predictor: Predictor, table: Any) -> FloatArray:
    """Return the distance of each row to each cluster.

    Examples
    --------
    >>> from hmrf_dask.distortions import make_distortion
    >>> from hmrf_dask.rows.block import RowBlock
    >>> predictor = Predictor(make_distortion("cosine"), np.eye(2), np.ones(2), smoothing=0.0)
    >>> block = RowBlock.from_array(np.array([[0.0, 3.0]]))
    >>> distances_of(block, predictor, table_of(predictor)).tolist()
    [[1.0, 0.0]]
    """
    return predictor.distortion.distances(block, predictor.terms(block), table)


def score_of(block: RowBlock, predictor: Predictor, table: Any) -> IntArray:
    """Return the exact sum of distances to the nearest cluster, as limbs.

    Examples
    --------
    >>> from hmrf_dask.distortions import make_distortion
    >>> from hmrf_dask.rows.block import RowBlock
    >>> predictor = Predictor(make_distortion("cosine"), np.eye(2), np.ones(2), smoothing=0.0)
    >>> block = RowBlock.from_array(np.array([[3.0, 4.0]]))
    >>> round(exact_value(score_of(block, predictor, table_of(predictor))), 6)
    0.2
    """
    terms = predictor.terms(block)
    labels = _nearest(block, predictor, terms, table)
    return exact_sum(predictor.distortion.own_distances(block, terms, table, labels))


def predict_rows(predictor: Predictor, corpus: Corpus, ids: LabelArray, *, lazy: bool) -> Any:
    """Return the ids of the nearest clusters: int32, shape (n_rows,)."""
    flow = DaskFlow()
    parts = [flow.lazy(getitem, ids, labels) for labels in lazy_labels(flow, predictor, corpus)]
    return whole(parts, corpus.row_counts, (), np.dtype(np.int32), lazy)


def nearest_rows(predictor: Predictor, corpus: Corpus) -> Any:
    """Return the positions of the nearest clusters, -1 of outliers: computed once, a dask array."""
    parts = over_partitions(DaskFlow(), marked_labels_of, predictor, corpus)
    return whole(parts, corpus.row_counts, (), np.dtype(np.int32), lazy=True).persist()


def lazy_labels(flow: DaskFlow, predictor: Predictor, corpus: Corpus) -> list[Lazy]:
    """Return the labels of each partition, positions of clusters, not computed yet."""
    return over_partitions(flow, labels_of, predictor, corpus)


def outlier_rows(predictor: Predictor, corpus: Corpus, *, lazy: bool) -> Any:
    """Return which rows are outliers: bool, shape (n_rows,)."""
    parts = over_partitions(DaskFlow(), outliers_of, predictor, corpus)
    return whole(parts, corpus.row_counts, (), np.dtype(np.bool_), lazy)


def transform_rows(predictor: Predictor, corpus: Corpus, *, lazy: bool) -> Any:
    """Return the distances: float64, shape (n_rows, K)."""
    rows = max(corpus.row_counts) if lazy else corpus.n_rows
    size = 8 * rows * len(predictor.centroids)
    check_memory([TaskMemory("transform", ((f"distances of {rows} rows", size),))])
    parts = over_partitions(DaskFlow(), distances_of, predictor, corpus)
    columns = (len(predictor.centroids),)
    return whole(parts, corpus.row_counts, columns, np.dtype(np.float64), lazy)


def score_rows(predictor: Predictor, corpus: Corpus) -> float:
    """Return minus the sum of distances to nearest clusters."""
    flow = DaskFlow()
    limbs = over_partitions(flow, score_of, predictor, corpus)
    return -exact_value(flow.compute([tree(flow, add_limbs, limbs)])[0])


def over_partitions(
    flow: DaskFlow,
    function: Callable[..., Any],
    predictor: Predictor,
    corpus: Corpus,
    *known: Sequence[Lazy],
) -> list[Lazy]:
    """Return what `function` gives for each partition.

    It takes a block, the predictor, the table of its centroids, and what is `known` of the
    partition.
    """
    check_memory([table_task(*predictor.centroids.shape), reading_task(corpus.sources)])
    shared = flow.share(predictor)
    table = flow.lazy(table_of, shared)
    blocks = list(corpus.blocks)
    if predictor.factor is not None:
        basis = flow.share(Basis(predictor.factor))
        blocks = [flow.lazy(in_metric, block, basis) for block in blocks]
    return [
        flow.lazy(function, block, shared, table, *more)
        for block, *more in zip(blocks, *known, strict=True)
    ]


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
