"""First centroids of a fit whose clusters come in shards: chosen by number, made shard by shard."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmrf_dask.dataflow import Lazy
from hmrf_dask.em import initialise
from hmrf_dask.em.engine import Engine
from hmrf_dask.em.initialise import Sample
from hmrf_dask.em.neighbourhoods import (
    MOST_CENTROIDS,
    Neighbourhoods,
    centroids_of,
    farthest_numbers,
    find_neighbourhoods,
    largest_neighbourhoods,
)
from hmrf_dask.em.shelf import shelf
from hmrf_dask.em.starts import Ground, first_sample
from hmrf_dask.types import FloatArray, IntArray

NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Choice:
    """First centroids before they are made: some neighbourhoods, then rows or perturbations.

    Attributes
    ----------
    found, numbers : neighbourhoods, and which of them
    rows : of the sample
    start : number of the start; it keys perturbations, where there are fewer rows than are missing
    """

    found: Neighbourhoods | None
    numbers: IntArray
    rows: IntArray
    start: int


def choose(ground: Ground, name: str) -> Choice:
    """Return what a start begins with; see `starts.first_centroids`."""
    settings, sample = ground.settings, first_sample(ground)
    kind, number = name.rsplit(" ", 1)
    start, n_clusters, how = int(number), settings.n_clusters, "k-means++"
    found: Neighbourhoods | None = None
    numbers, nearest = NONE, None
    if kind == "neighborhoods":
        found, numbers, how = *_neighbourhoods(ground, sample), settings.fill
    elif kind == "random":
        how = kind
    if found is not None and len(numbers) and how == "k-means++":
        nearest = _nearest(sample, found, numbers)
    missing = n_clusters - len(numbers)
    if how == "k-means++":
        rows = initialise.plus_plus_rows(sample, n_clusters, start, len(numbers), nearest)
    else:
        rows = NONE if how == "perturb" else initialise.lowest_rows(sample, missing, start)
    return Choice(found, numbers, rows, start)


def _neighbourhoods(ground: Ground, sample: Sample) -> tuple[Neighbourhoods | None, IntArray]:
    """Return neighbourhoods and the numbers of up to K of them, in their order."""
    graph, n_clusters = ground.graph, ground.settings.n_clusters
    if graph is None:
        return None, NONE
    if ground.settings.neighborhoods == "largest":
        found = largest_neighbourhoods(sample, graph, ground.node_rows, n_clusters)
        return found, np.arange(len(found))
    found = find_neighbourhoods(sample, graph, ground.node_rows, singles=False)
    return found, farthest_numbers(sample, found, n_clusters) if len(found) else NONE


def _nearest(sample: Sample, found: Neighbourhoods, numbers: IntArray) -> FloatArray:
    """Return how far rows are from the nearest of some neighbourhoods, a few at a time."""
    nearest = np.full(sample.block.n_rows, np.inf)
    for first in range(0, len(numbers), MOST_CENTROIDS):
        some = centroids_of(sample, found, numbers[first : first + MOST_CENTROIDS])
        np.minimum(nearest, sample.distances(some).min(axis=1), out=nearest)
    return nearest


def make_chosen(ground: Ground, choice: Choice, clusters: range) -> FloatArray:
    """Return the first centroids of some clusters."""
    sample, parts = first_sample(ground), []
    first, last = clusters.start, clusters.stop
    n_given, n_rows = len(choice.numbers), len(choice.rows)
    if first < n_given and choice.found is not None:
        parts.append(centroids_of(sample, choice.found, choice.numbers[first:last]))
    begin, end = max(first - n_given, 0), max(last - n_given, 0)
    if begin < min(end, n_rows):
        parts.append(sample.centroids_of_rows(choice.rows[begin:end]))
    elif begin < end:
        parts.append(initialise.perturbations(sample, end - begin, choice.start, begin))
    return np.concatenate(parts)


def first_centroids(engine: Engine, ground: Lazy, name: str) -> FloatArray:
    """Return the first centroids of a start, on disk."""
    flow, shards = engine.flow, engine.problem.shards
    choice = flow.persist([flow.lazy(choose, ground, name)])[0]
    out: FloatArray = shelf((shards[-1].stop, engine.problem.extent.n_features), np.float64)
    for clusters in shards:
        made = flow.compute([flow.lazy(make_chosen, ground, choice, clusters)])[0]
        out[clusters.start : clusters.stop] = made
    return out
