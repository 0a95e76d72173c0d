"""Measures of agreement: information, the Rand index, and precision and recall over pairs."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.measures.contingency import Contingency, contingency, labels_at
from hmrf_dask.types import IntArray


def _table(truth: object, labels: object) -> Contingency:
    return truth if isinstance(truth, Contingency) else contingency(truth, labels)


def entropy(sizes: IntArray) -> float:
    """Return the entropy, in nats, of a labelling whose groups have these sizes.

    Examples
    --------
    >>> round(entropy(np.array([2, 2])), 6)
    0.693147
    """
    counts = sizes[sizes > 0].astype(np.float64)
    if len(counts) < 2:
        return 0.0
    total = counts.sum()
    return float(-(counts / total * (np.log(counts) - math.log(total))).sum())


def mutual_info(truth: object, labels: object = None) -> float:
    """Return the mutual information I(C; K) in nats.

    Parameters
    ----------
    truth : array-like, dask array or Contingency
        Known classes, or the table of both.
    labels : array-like or dask array, optional
        Clusters, where `truth` is no table.

    Examples
    --------
    >>> truth, labels = ["a", "a", "b", "b"], [0, 0, 1, 0]
    >>> round(mutual_info(truth, labels), 6)
    0.215762
    """
    table = _table(truth, labels)
    if not table.n_rows:
        return 0.0
    total = float(table.n_rows)
    counts = table.counts.astype(np.float64)
    sizes = np.log(table.class_sizes), np.log(table.cluster_sizes)
    logs = np.log(counts) - sizes[0][table.rows] - sizes[1][table.columns] + math.log(total)
    terms = counts / total * logs
    terms[np.abs(terms) < np.finfo(np.float64).eps] = 0.0
    return max(0.0, float(terms.sum()))


def normalized_mutual_info(truth: object, labels: object = None) -> float:
    """Return I(C; K) over the mean of both entropies, the NMI of the papers; see `mutual_info`.

    1 when neither splits the rows, as scikit-learn has it.

    Examples
    --------
    >>> truth, labels = ["a", "a", "b", "b"], [0, 0, 1, 0]
    >>> round(normalized_mutual_info(truth, labels), 6)
    0.343711
    """
    table = _table(truth, labels)
    if not table.n_rows or len(table.counts) == len(table.classes) == len(table.clusters):
        return 1.0  # exactly, where each is the other under other names
    shared = mutual_info(table)
    if shared == 0.0:
        return 0.0
    return shared / ((entropy(table.class_sizes) + entropy(table.cluster_sizes)) / 2.0)


def homogeneity(truth: object, labels: object = None) -> float:
    """Return I(C; K) / H(C): whether clusters are of one class each; see `mutual_info`.

    Examples
    --------
    >>> truth, labels = ["a", "a", "b", "b"], [0, 0, 1, 0]
    >>> round(homogeneity(truth, labels), 6)
    0.311278
    """
    return _share(_table(truth, labels), of_classes=True)


def completeness(truth: object, labels: object = None) -> float:
    """Return I(C; K) / H(K): whether classes are in one cluster each; see `mutual_info`.

    Examples
    --------
    >>> truth, labels = ["a", "a", "b", "b"], [0, 0, 1, 0]
    >>> round(completeness(truth, labels), 6)
    0.383689
    """
    return _share(_table(truth, labels), of_classes=False)


def _share(table: Contingency, *, of_classes: bool) -> float:
    if len(table.counts) == len(table.clusters if of_classes else table.classes):
        return 1.0  # exactly: every cluster is of one class, or every class in one cluster
    whole = entropy(table.class_sizes if of_classes else table.cluster_sizes)
    return mutual_info(table) / whole if whole else 1.0


def v_measure(truth: object, labels: object = None, *, beta: float = 1.0) -> float:
    """Return the mean of homogeneity and completeness, `beta` times as much weight on the latter.

    See `mutual_info`; with `beta` 1 it is the NMI.

    Examples
    --------
    >>> truth, labels = ["a", "a", "b", "b"], [0, 0, 1, 0]
    >>> v_measure(truth, labels, beta=0.0) == homogeneity(truth, labels)
    True
    """
    table = _table(truth, labels)
    of_classes, of_clusters = homogeneity(table), completeness(table)
    below = beta * of_classes + of_clusters
    return (1.0 + beta) * of_classes * of_clusters / below if below else 0.0


def adjusted_rand(truth: object, labels: object = None) -> float:
    """Return the Rand index, adjusted for chance; see `mutual_info`.

    Examples
    --------
    >>> truth, labels = ["a", "a", "b", "b"], [0, 0, 1, 0]
    >>> adjusted_rand(truth, truth), adjusted_rand(truth, labels)
    (1.0, 0.0)
    """
    table = _table(truth, labels)
    both, classes, clusters, every = _pairs_of(table)
    split, joined = classes - both, clusters - both
    if split == joined == 0:
        return 1.0
    # In whole numbers as long as they can be: of ten million rows they have 28 digits.
    above = 2 * (both * (every - both - split - joined) - joined * split)
    below = classes * (every - clusters) + clusters * (every - classes)
    return above / below


def pairs_within(sizes: IntArray) -> int:
    """Return how many pairs of rows are in one group, where groups have these sizes.

    Examples
    --------
    >>> pairs_within(np.array([3, 2]))
    4
    """
    return sum(math.comb(size, 2) for size in sizes.tolist())


def _pairs_of(table: Contingency) -> tuple[int, int, int, int]:
    """Return the pairs of rows in one class and cluster, in one class, in one cluster, and all."""
    sizes = (table.counts, table.class_sizes, table.cluster_sizes)
    both, classes, clusters = map(pairs_within, sizes)
    return both, classes, clusters, math.comb(table.n_rows, 2)


class PairScores(NamedTuple):
    """Of the pairs in one cluster how many are of one class, and the other way round.

    Each is 0 where there is no pair to count; `n_pairs` were judged.

    Examples
    --------
    >>> pairwise_scores(["a", "a", "b"], [0, 0, 0])
    PairScores(precision=0.3333333333333333, recall=1.0, f=0.5, n_pairs=3)
    """

    precision: float
    recall: float
    f: float
    n_pairs: int


def pairwise_scores(truth: object, labels: object, *, without: object = None) -> PairScores:
    """Return pairwise precision, recall and F-measure.

    Parameters
    ----------
    truth, labels : array-like or dask array, shape (n,)
    without : Constraints, or array-like of shape (m, 2), optional
        Pairs of row numbers that are not judged: those of the fit.

    Examples
    --------
    >>> truth, labels = ["a", "a", "b", "b"], [0, 0, 1, 0]
    >>> pairwise_scores(truth, labels).n_pairs
    6
    >>> pairwise_scores(truth, labels, without=[(2, 3)]).recall
    1.0
    """
    table = contingency(truth, labels)
    both, classes, clusters, every = _pairs_of(table)
    excluded = _pairs(without)
    if len(excluded):
        rows, places = np.unique(excluded, return_inverse=True)
        first, second = places.reshape(excluded.shape).T
        class_of, cluster_of = labels_at(truth, rows), labels_at(labels, rows)
        same_class = class_of[first] == class_of[second]
        same_cluster = cluster_of[first] == cluster_of[second]
        both -= int((same_class & same_cluster).sum())
        classes -= int(same_class.sum())
        clusters -= int(same_cluster.sum())
        every -= len(excluded)
    precision = both / clusters if clusters else 0.0
    recall = both / classes if classes else 0.0
    whole = classes + clusters
    return PairScores(precision, recall, 2 * both / whole if whole else 0.0, every)


def pairwise_f(truth: object, labels: object, *, without: object = None) -> float:
    """Return the pairwise F-measure; see `pairwise_scores`.

    Examples
    --------
    >>> truth, labels = ["a", "a", "b", "b"], [0, 0, 1, 0]
    >>> pairwise_f(truth, labels)
    0.4
    """
    return pairwise_scores(truth, labels, without=without).f


def _pairs(without: object) -> IntArray:
    """Return pairs of row numbers, each once, the lower first."""
    if without is None:
        return np.zeros((0, 2), np.int64)
    if not isinstance(without, Constraints):
        without = Constraints(must_link=without)
    if without.by_id:
        raise InvalidInputError(
            "pairs that are not judged must name row numbers, got document ids; give the rows of "
            "these documents"
        )
    both = np.concatenate([without.must_link, without.cannot_link]).astype(np.int64)
    return np.unique(both.reshape(-1, 2), axis=0)
