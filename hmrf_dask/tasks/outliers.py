"""Outliers: rows that are farther from every centroid than most rows of their cluster are.

How far a row is, is a number on a logarithmic scale (`Distortion.remoteness`). It is counted in
classes of equal width: medians of integers are the same for any partitioning.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from hmrf_dask.distortions.base import Distortion
from hmrf_dask.kernels.distances import LINKED, OUT, clusters_of
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.criteria import nonzero_rows
from hmrf_dask.tasks.model import Model
from hmrf_dask.tasks.partitions import StoredLabels
from hmrf_dask.tasks.trimming import remote, settled
from hmrf_dask.types import BoolArray, FloatArray, IntArray, LabelArray

WIDTH = 256  # classes in each unit of the logarithm
CLASSES = 2**15
NOWHERE = CLASSES - 1  # the class of rows without a direction
# Outliers are beyond the median of their cluster by this times the median deviation of all rows,
# TRIMMED where they are kept out of centroids: chosen on two triples of newsgroups with abstracts
# of arXiv and of Classic3 among them.
DEVIATIONS, TRIMMED = (7, 2), (27, 8)
BATCH_BYTES = 2**26  # of the distances of some rows to all centroids


class Metric(NamedTuple):
    """What a distance is made of, but for the centroids."""

    distortion: Distortion
    weights: FloatArray
    n_clusters: int


def classes_of(block: RowBlock, metric: Metric, table: Any, labels: LabelArray) -> IntArray:
    """Return the class of each row; `labels` are those of its cluster, negative ones of none."""
    distortion, weights, n_clusters = metric
    step = max(1, BATCH_BYTES // (8 * n_clusters))
    found = np.empty(block.n_rows, np.int64)
    for start in range(0, block.n_rows, step):
        some = slice(start, min(start + step, block.n_rows))
        rows = block.rows(some.start, some.stop)
        terms = distortion.terms(rows, weights)
        distances = distortion.distances(rows, terms, table)
        far = distortion.remoteness(rows, terms, distances, np.maximum(labels[some], 0))
        found[some] = np.floor(far * WIDTH).astype(np.int64) + CLASSES // 2
    np.clip(found, 0, NOWHERE - 1, out=found)
    if distortion.zero_rows == "undecided":
        directed = np.zeros(block.n_rows, np.bool_)
        directed[nonzero_rows(block)] = True
        found[~directed] = NOWHERE
    return found


def counts_by_cluster(block: RowBlock, stored: StoredLabels, model: Model) -> sp.csr_array:
    """Return how many free rows of each cluster are in each class, (K, CLASSES)."""
    labels, metric = stored.read(), Metric(model.distortion, model.weights, model.n_clusters)
    free = np.flatnonzero(labels != LINKED)
    rows, own = block.take(free), labels[free]
    return _counted(own, classes_of(rows, metric, model.table(), own), model.n_clusters)


def _counted(labels: LabelArray, classes: IntArray, n_clusters: int) -> sp.csr_array:
    ones = np.ones(len(labels), np.int64)
    counts = sp.csr_array((ones, (labels, classes)), shape=(n_clusters, CLASSES))
    counts.sum_duplicates()
    return counts


def remote_counts(
    block: RowBlock, stored: StoredLabels, model: Model, middle: FloatArray
) -> sp.csr_array:
    """Return the same by how far rows are from their own centroids, (K, CLASSES).

    Rows that are out count too, in their clusters.
    """
    labels = clusters_of(stored.read())
    free = np.flatnonzero(labels != LINKED)
    rows, own = block.take(free), labels[free]
    terms = model.distortion.terms(rows, model.weights)
    far = remote(rows, terms, model, middle, own)
    directed = np.isfinite(far)
    classes = np.full(len(free), NOWHERE)
    numbers = np.floor(np.log(far[directed]) * WIDTH).astype(np.int64) + CLASSES // 2
    classes[directed] = np.clip(numbers, 0, NOWHERE - 1)
    return _counted(own, classes, model.n_clusters)


def reach_of(counts: sp.csr_array, share: float | None) -> FloatArray:
    """Return the distance at which the classes above the limit of each cluster begin.

    A cluster without rows has the widest limit: whoever comes to be nearest to it is in.

    Examples
    --------
    >>> counts = np.zeros((2, CLASSES), np.int64)
    >>> counts[0, CLASSES // 2] = 5
    >>> (WIDTH * np.log(reach_of(sp.csr_array(counts), None))).round().tolist()
    [4.0, 4.0]
    """
    limits = limits_of(counts, share, TRIMMED)
    filled = np.diff(counts.indptr) > 0
    limits[~filled] = limits[filled].max(initial=0)
    return np.asarray(np.exp((limits + 1 - CLASSES // 2) / WIDTH), np.float64)


def added(parts: Sequence[sp.csr_array]) -> sp.csr_array:
    """Return the sum of several counts."""
    return reduce(add, parts)


def limits_of(
    counts: sp.csr_array, share: float | None, multiple: tuple[int, int] = DEVIATIONS
) -> IntArray:
    """Return the class beyond which the rows of each cluster are outliers.

    That is the median of the cluster and a distance from it that is the same for all: a multiple of
    the median deviation, or for a `share` as far as at most this share of all rows lies beyond.

    Examples
    --------
    >>> counts = np.zeros((1, CLASSES), np.int64)
    >>> counts[0, [7, 8, 9, 30, NOWHERE]] = [3, 5, 3, 1, 1]
    >>> limits_of(sp.csr_array(counts), None), limits_of(sp.csr_array(counts), 0.1)
    (array([11]), array([30]))
    """
    medians = np.zeros(counts.shape[0], np.int64)
    deviations = np.zeros(2 * CLASSES, np.int64)  # how many rows are how far above their median
    for number in range(len(medians)):
        row = slice(counts.indptr[number], counts.indptr[number + 1])
        sizes = np.zeros(CLASSES, np.int64)
        sizes[counts.indices[row]] = counts.data[row]
        ordinary = sizes[:NOWHERE]
        medians[number] = _median(ordinary)
        places = np.flatnonzero(ordinary)
        deviations[places - medians[number] + CLASSES] += ordinary[places]
    if share is None:
        both = deviations[CLASSES:].copy()
        both[1:] += deviations[CLASSES - 1 : 0 : -1]
        factor, divisor = multiple
        reach = factor * max(1, _median(both)) // divisor
    else:
        allowed = int(share * int(counts.sum())) - int(counts[:, [NOWHERE]].sum())
        beyond = np.cumsum(deviations[:CLASSES:-1])[::-1]  # more than so far above
        reach = int(np.count_nonzero(beyond > max(allowed, 0)))
    return np.minimum(medians + reach, NOWHERE - 1)


def _median(sizes: IntArray) -> int:
    """Return the lower median of numbers of which there are so many each."""
    until = np.cumsum(sizes)
    return int(np.argmax(2 * until >= until[-1]))


def outliers(block: RowBlock, stored: StoredLabels, model: Model, limits: IntArray) -> BoolArray:
    """Return which rows are outliers; linked rows never are."""
    metric = Metric(model.distortion, model.weights, model.n_clusters)
    return beyond_limits(block, metric, model.table(), stored.read(), limits)


def are_out(stored: StoredLabels) -> BoolArray:
    """Return which rows of a partition are kept out of centroids."""
    return np.asarray(stored.read() <= OUT)


def by_nearest(block: RowBlock, stored: StoredLabels, model: Model) -> LabelArray:
    """Return the labels of a partition, rows that are out by their nearest clusters."""
    terms = model.distortion.terms(block, model.weights)
    return settled(block, terms, model, stored.read(), freely=True)[0]


def beyond_limits(
    block: RowBlock, metric: Metric, table: Any, labels: LabelArray, limits: IntArray
) -> BoolArray:
    """Return which rows with a label are beyond the limit of their cluster."""
    free, found = labels >= 0, np.zeros(block.n_rows, np.bool_)
    classes = classes_of(block, metric, table, labels)
    found[free] = classes[free] > limits[labels[free]]
    return found
