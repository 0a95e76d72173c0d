"""Precision, recall and F of "are these two in one cluster?", over pairs nobody was asked about."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.measures.counting import contingency, labels_at
from hmrf_dask.measures.scores import pairs_within
from hmrf_dask.types import IntArray


class PairScores(NamedTuple):
    """Of the pairs in one cluster how many are of one class, and the other way round.

    Attributes
    ----------
    precision, recall, f : float
        0 where there is no pair to count.
    n_pairs : int
        How many pairs were judged.
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
        Pairs of row numbers that are not judged: those that were given to the fit.
    """
    table = contingency(truth, labels)
    both, classes, clusters, every = (
        pairs_within(sizes)
        for sizes in (
            table.counts, table.class_sizes, table.cluster_sizes, np.array([table.n_rows]),
        )
    )  # fmt: skip
    given = _pairs(without)
    if len(given):
        rows, places = np.unique(given, return_inverse=True)
        first, second = places.reshape(given.shape).T
        known, found = labels_at(truth, rows), labels_at(labels, rows)
        one_class, one_cluster = known[first] == known[second], found[first] == found[second]
        both -= int((one_class & one_cluster).sum())
        classes -= int(one_class.sum())
        clusters -= int(one_cluster.sum())
        every -= len(given)
    precision = both / clusters if clusters else 0.0
    recall = both / classes if classes else 0.0
    whole = classes + clusters
    return PairScores(precision, recall, 2 * both / whole if whole else 0.0, every)


def pairwise_f(truth: object, labels: object, *, without: object = None) -> float:
    """Return the pairwise F-measure; see `pairwise_scores`."""
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
