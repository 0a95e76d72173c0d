"""Answers next to rows: how likely the rows find each, and what labels keep of withheld ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hmrf_dask.constraints.closure import ConstraintGraph
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.kernels.compiled import spread
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Model
from hmrf_dask.tasks.partitions import StoredLabels
from hmrf_dask.tasks.start_sample import StartSample, restrict
from hmrf_dask.types import BoolArray, FloatArray, IntArray, KeyArray, LabelArray, RowArray, Sized

FEW_ROWS = 90  # of so few each is compared with every other, else with
NEIGHBOURS = 8  # others
EQUAL = 1e-9  # of the largest distance: closer rows are equal but for rounding
LEAST_SPREAD = 1 / 128  # of the mean distance
PAIRS_AT_A_TIME = 8192  # whose K probabilities are held


def spread_of_distances(block: RowBlock, distortion: Distortion) -> float:
    """Return the standard deviation of φ between rows, all features at weight 1.

    Of many rows each is compared with the next ones, the last with the first. Where all are about
    as far from each other it is a small part of how far, and 1 where they are equal.
    """
    n_rows, weights = block.n_rows, np.ones(block.n_features)
    ends = np.triu_indices(n_rows, 1)
    if n_rows > FEW_ROWS:
        first, steps = np.divmod(np.arange(n_rows * NEIGHBOURS), NEIGHBOURS)
        ends = first, (first + steps + 1) % n_rows
    if not len(ends[0]):
        return 1.0
    here, there = (rows.astype(np.int32) for rows in ends)
    phi = distortion.pair_values(block, block, here, there, weights)[0].tolist()
    mean = math.fsum(phi) / len(phi)  # exactly added: the same bits on any machine
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in phi) / len(phi))
    if mean <= EQUAL * distortion.maximum(weights):
        return 1.0
    return max(deviation, LEAST_SPREAD * mean)


@dataclass(frozen=True)
class Nudges(Sized):
    """What the answers about rows of a partition add to single clusters: costs less than none."""

    rows: IntArray
    clusters: LabelArray
    costs: FloatArray


@dataclass(frozen=True)
class Clusters(Sized):
    """What is needed to take a row out of its cluster: ‖S_h‖² and how many rows it has."""

    squares: FloatArray
    counts: IntArray


def costs_of_rows(
    block: RowBlock, model: Model, labels: StoredLabels, clusters: Clusters, nudges: Nudges
) -> RowArray:
    """Return what each cluster costs each row, shape (n_rows, K): distances and answers.

    Distances are those to centroids without the row itself, which else would speak for its cluster.
    """
    terms = model.distortion.terms(block, model.weights)
    costs = model.distortion.distances(block, terms, model.table())
    summed = labels.read()
    if model.distortion.refinement == "directional":  # rows of zeros are in no sum
        summed = np.where(spread(terms.factor, block.n_rows) > 0, summed, -1)
    _take_out(costs, summed, model.distortion, clusters)
    np.add.at(costs, (nudges.rows, nudges.clusters), nudges.costs)
    return costs.astype(np.float32)  # those of all linked rows are there at once


def _take_out(
    distances: FloatArray, labels: LabelArray, distortion: Distortion, clusters: Clusters
) -> None:
    """Replace each row's distance to its own centroid by that to the centroid of the others.

    Rows with a label below 0 are left as they are.
    """
    rows = np.flatnonzero((labels >= 0) & (clusters.counts[labels] > 1))
    own, counts = labels[rows], clusters.counts[labels[rows]]
    here = distances[rows, own]
    if distortion.refinement == "directional":
        squares = clusters.squares[own]
        product = (1.0 - here) * np.sqrt(squares)
        rest = np.maximum(squares - 2.0 * product + 1.0, 0.0)
        alone = rest <= 1e-12 * squares  # nothing is left of the sum: no direction
        here = 1.0 - np.where(alone, 0.0, (product - 1.0) / np.sqrt(np.where(alone, 1.0, rest)))
    elif distortion.refinement == "euclidean":
        here = here * (counts / (counts - 1.0)) ** 2
    distances[rows, own] = here


@dataclass(frozen=True)
class Asked(Sized):
    """Answers between rows of two partitions, and what each of them adds to the costs."""

    first: IntArray  # row in the one partition
    second: IntArray  # row in the other
    first_labels: LabelArray
    second_labels: LabelArray
    costs: FloatArray  # of equal labels: less than 0 for a must-link


def likelihood_of_same(here: RowArray, there: RowArray, asked: Asked, kappa: float) -> FloatArray:
    """Return how likely the ends of each answer are of one cluster, that answer left out.

    A cluster of cost c has probability in proportion to exp(-c / κ); other rows keep their labels.
    """
    same = np.empty(len(asked.first))
    for start in range(0, len(same), PAIRS_AT_A_TIME):
        part = slice(start, start + PAIRS_AT_A_TIME)
        ends = (
            _without(here, asked.first[part], asked.second_labels[part], asked.costs[part]),
            _without(there, asked.second[part], asked.first_labels[part], asked.costs[part]),
        )
        same[part] = np.einsum("nk,nk->n", *(_probabilities(costs, kappa) for costs in ends))
    return same


def _without(costs: RowArray, rows: IntArray, labels: LabelArray, added: FloatArray) -> FloatArray:
    """Return the costs of rows without what an answer adds at the label of its other end."""
    chosen = costs[rows].astype(np.float64)
    chosen[np.arange(len(rows)), labels] -= added
    return chosen


def _probabilities(costs: FloatArray, kappa: float) -> FloatArray:
    odds = np.exp((costs.min(axis=1, keepdims=True) - costs) / kappa)
    return np.asarray(odds / odds.sum(axis=1, keepdims=True), np.float64)


FOLDS = 5


class Agreement(NamedTuple):
    """How many relations of documents to groups were withheld, and how many of these labels keep.

    A document is related to its own group, whose cluster it must share, and to each rival of that
    group, whose cluster it must not share.
    """

    kept: int = 0
    withheld: int = 0

    def exceeds(self, other: Agreement) -> bool:
        """Return whether it is better by more than the standard error of the difference.

        Both are of the same n relations. The variance of k that are kept is taken as
        (k + 1) (n - k + 1) / (n + 2), one more of each as in Laplace's rule of succession:
        k (n - k) / n is zero where all or none are kept, however few there are.

        Examples
        --------
        >>> Agreement(58, 100).exceeds(Agreement(50, 100))
        True
        >>> Agreement(57, 100).exceeds(Agreement(50, 100))
        False
        >>> Agreement(1, 1).exceeds(Agreement(0, 1))
        False
        """
        more, n = self.kept - other.kept, self.withheld
        spread = sum((each.kept + 1) * (n - each.kept + 1) for each in (self, other))
        return more > 0 and more * more * (n + 2) > spread


def fold_numbers(graph: ConstraintGraph, keys: KeyArray, seed: int) -> IntArray:
    """Return the fold of each node, drawn by the key of the lowest id in its component.

    Documents of a component that is larger than a fold are drawn one by one: known classes exclude
    each other, so all their documents are in one component.
    """
    lowest = np.unique(graph.components, return_index=True)[1]
    sizes = np.bincount(graph.components)
    alone = FOLDS * sizes[graph.components] > graph.n_nodes
    drawn_by = np.where(alone, np.arange(graph.n_nodes), lowest[graph.components])
    return (FOLDS * uniforms(keys[drawn_by], seed, "fold", 0, 0, 0)).astype(np.int64)


def nodes_of_fold(sample: StartSample, fold: int) -> BoolArray:
    """Return which nodes of a start sample are in a fold."""
    if sample.graph is None:
        return np.zeros(0, np.bool_)
    keys = sample.block.keys[sample.node_rows]
    return np.asarray(fold_numbers(sample.graph, keys, sample.settings.seed) == fold)


def without_answers(sample: StartSample, nodes: BoolArray) -> StartSample:
    """Return the sample as if nothing had been said of these nodes: they are rows like others."""
    graph = sample.graph
    if graph is not None:
        graph = None if nodes.all() else restrict(graph, ~nodes)
    return replace(sample, graph=graph, node_rows=sample.node_rows[~nodes])


def agreement(graph: ConstraintGraph, labels: LabelArray, nodes: BoolArray) -> Agreement:
    """Return what the labels of all nodes keep of the answers that were withheld of some.

    The cluster of a group is the one that has more of its documents than any other; a group that
    is spread over several alike has none.
    """
    n_clusters = int(labels.max(initial=0)) + 1
    groups, homes = graph.groups.astype(np.int64), _homes(graph, labels, n_clusters)
    related = nodes & (np.bincount(groups, minlength=graph.n_groups)[groups] > 1)
    n_own = int((labels[related] == homes[groups[related]]).sum())
    group, rival = _rivals(graph).T
    n_withheld = int(np.bincount(groups[nodes], minlength=graph.n_groups)[group].sum())
    places = np.sort(groups[nodes] * n_clusters + labels[nodes])
    wrong = (group * n_clusters + homes[rival])[homes[rival] >= 0]
    ends = (np.searchsorted(places, wrong, side=side) for side in ("left", "right"))
    first, last = (int(numbers.sum()) for numbers in ends)
    return Agreement(n_own + n_withheld - (last - first), int(related.sum()) + n_withheld)


def _homes(graph: ConstraintGraph, labels: LabelArray, n_clusters: int) -> IntArray:
    """Return the cluster of each group, -1 where it has none."""
    places, counts = np.unique(
        graph.groups.astype(np.int64) * n_clusters + labels, return_counts=True
    )
    order = np.lexsort((counts, places // n_clusters))  # the largest count of a group comes last
    places, counts = places[order], counts[order]
    groups = places // n_clusters
    last = np.append(groups[1:] != groups[:-1], True)
    tied = np.append(False, (groups[1:] == groups[:-1]) & (counts[1:] == counts[:-1]))
    return np.asarray(np.where(tied, -1, places % n_clusters)[last])


def _rivals(graph: ConstraintGraph) -> IntArray:
    """Return all groups with each of their rivals, shape (r, 2): every two of them both ways."""
    ends = np.concatenate([graph.groups[graph.cannot_pairs], graph.rivals]).astype(np.int64)
    ends = np.concatenate([ends, ends[:, ::-1]])
    keys = np.unique((ends[:, 0] * graph.n_groups + ends[:, 1])[ends[:, 0] != ends[:, 1]])
    return np.stack(np.divmod(keys, max(graph.n_groups, 1)), axis=1)
