"""New rows under a fitted model: nearest cluster, distances, score; block by block, lazily where rows are lazy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hmrf_dask.chunks import lazy_array
from hmrf_dask.corpus import Corpus
from hmrf_dask.dataflow import DaskFlow, Lazy, tree
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.em.parts import add_limbs
from hmrf_dask.em.problem import Problem
from hmrf_dask.kernels.distances import UNDECIDED
from hmrf_dask.kernels.exact import exact_sum, exact_value
from hmrf_dask.rows import RowBlock, check_finite
from hmrf_dask.types import FloatArray, IntArray, LabelArray


@dataclass(frozen=True)
class Predictor:
    """A fitted model, as far as new rows need it."""

    distortion: Distortion
    centroids: FloatArray
    weights: FloatArray
    smoothing: float

    def table(self) -> Any:
        """Return the centroids as the distortion's kernels use them."""
        return self.distortion.table(self.centroids, self.weights, self.smoothing)

    def checked(self, block: RowBlock) -> RowBlock:
        """Return the block, or raise what is wrong with its rows."""
        check_finite(block)
        self.distortion.check(block)
        return block


def nearest_of(block: RowBlock, predictor: Predictor) -> LabelArray:
    """Return the nearest cluster of each row; ties go to the lowest."""
    terms = predictor.distortion.terms(predictor.checked(block), predictor.weights)
    undecided = np.full(block.n_rows, UNDECIDED, np.int32)
    return predictor.distortion.nearest(block, terms, predictor.table(), undecided)[0]


def distances_of(block: RowBlock, predictor: Predictor) -> FloatArray:
    """Return the distances of each row to each cluster."""
    terms = predictor.distortion.terms(predictor.checked(block), predictor.weights)
    return predictor.distortion.distances(block, terms, predictor.table())


def score_of(block: RowBlock, predictor: Predictor) -> IntArray:
    """Return the exact sum of distances to the nearest cluster, as limbs."""
    terms = predictor.distortion.terms(block, predictor.weights)
    labels = nearest_of(block, predictor)
    return exact_sum(predictor.distortion.own_distances(block, terms, predictor.table(), labels))


def predict_rows(predictor: Predictor, corpus: Corpus, X: Any) -> Any:
    """Return labels: an ndarray, or a dask array where X is lazy."""
    flow = DaskFlow()
    shared = flow.share(predictor)
    parts = [flow.lazy(nearest_of, block, shared) for block in corpus.partitions]
    return _gathered(flow, parts, corpus.row_counts, (), np.dtype(np.int32), X)


def transform_rows(predictor: Predictor, corpus: Corpus, X: Any) -> Any:
    """Return distances: an ndarray, or a dask array where X is lazy."""
    flow = DaskFlow()
    shared = flow.share(predictor)
    parts = [flow.lazy(distances_of, block, shared) for block in corpus.partitions]
    return _gathered(
        flow, parts, corpus.row_counts, (len(predictor.centroids),), np.dtype(np.float64), X
    )


def score_rows(predictor: Predictor, corpus: Corpus) -> float:
    """Return minus the sum of distances to nearest clusters."""
    flow = DaskFlow()
    shared = flow.share(predictor)
    limbs = [flow.lazy(score_of, block, shared) for block in corpus.partitions]
    return -exact_value(flow.compute([tree(flow, add_limbs, limbs)])[0])


def labels_array(parts: list[Lazy], problem: Problem, X: Any) -> Any:
    """Return the labels of a fit in the form X came in."""
    counts = tuple(part.n_rows for part in problem.free)
    return _gathered(DaskFlow(), parts, counts, (), np.dtype(np.int32), X)


def _gathered(
    flow: DaskFlow,
    parts: list[Lazy],
    counts: tuple[int, ...],
    columns: tuple[int, ...],
    dtype: np.dtype[Any],
    X: Any,
) -> Any:
    if (
        isinstance(X, Corpus)
        or hasattr(X, "dask")
        or isinstance(X, str)
        or hasattr(X, "__fspath__")
    ):
        return lazy_array(parts, counts, columns, dtype)
    return np.concatenate(flow.compute(parts))
