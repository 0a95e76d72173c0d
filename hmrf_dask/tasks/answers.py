"""Answers next to rows: how far distances spread, and how likely the rows find each answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hmrf_dask.distortions.base import Distortion
from hmrf_dask.kernels.compiled import spread
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Model
from hmrf_dask.tasks.partitions import StoredLabels
from hmrf_dask.types import FloatArray, IntArray, LabelArray, RowArray, Sized

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
