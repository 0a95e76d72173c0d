"""The start sample: rows drawn by keyed numbers that candidates start from, and first centroids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile
from hmrf_dask.constraints.closure import ConstraintGraph
from hmrf_dask.distortions.base import Distortion, Extent
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks import first_centroids
from hmrf_dask.tasks.first_centroids import (
    CandidateRows,
    Lowest,
    agglomerate,
    farthest_first,
    find_neighbourhoods,
    largest_first,
)
from hmrf_dask.tasks.model import Settings
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, LabelArray, Sized

LAST = "last-centroids"  # the start that begins with those of the fit before


@dataclass(frozen=True)
class StartSample(Sized):
    """What candidates start from: rows sorted by id, and the constraints among them."""

    block: RowBlock
    rows: IntArray  # row number in the corpus of each row
    graph: ConstraintGraph | None
    node_rows: IntArray  # place in `block` of each node
    settings: Settings
    distortion: Distortion
    extent: Extent
    cost_unit: float
    row_bytes: int
    last: FloatArray | None = None  # centroids that the fit before ended with: a start, too

    def candidate_rows(self, smoothing: float) -> CandidateRows:
        """Return the rows as initialisation sees them: all features weigh 1."""
        weights = np.ones(self.extent.n_features)
        bound = self.distortion.summand_bound(None, weights)
        if bound is None:
            terms = self.distortion.terms(self.block, weights)
            bound = self.distortion.summand_bound(terms, weights) or 1.0
        exponent = fixed_point_exponent(self.block.n_rows, bound)
        return CandidateRows(self.block, self.distortion, smoothing, exponent, self.settings.seed)


def make_start_sample(block: RowBlock, sample: StartSample) -> StartSample:
    """Return a start sample with its rows, which come as a task result, now in id order."""
    order = np.argsort(block.ids, kind="stable")  # so index order is id order
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return replace(
        sample,
        block=block.take(order),
        rows=sample.rows[order],
        node_rows=place[sample.node_rows],
    )


def narrowed(sample: StartSample) -> StartSample:
    """Return the sample without features that only one of its rows has.

    They make no rows alike, and are most of the features of a sample of texts: an iteration takes
    as long as there are features.
    """
    block, extent = sample.block, sample.extent
    if block.is_dense or not sample.distortion.narrows:
        return sample
    often = np.bincount(block.indices, minlength=block.n_features) > 1
    often[block.n_features - block.n_dense :] = True
    features = np.flatnonzero(often)
    if len(features) in (0, block.n_features):
        return sample
    ends = extent.minimum[features], extent.maximum[features]
    extent = replace(extent, n_features=len(features), minimum=ends[0], maximum=ends[1])
    distortion, block = sample.distortion.bind(extent), block.with_features(features)
    last = None if sample.last is None else np.ascontiguousarray(sample.last[:, features])
    return replace(sample, block=block, distortion=distortion, extent=extent, last=last)


def start_centroids(sample: StartSample, name: str) -> FloatArray:
    """Return the centroids a candidate starts from."""
    settings, rows = sample.settings, sample.candidate_rows(sample.distortion.first_smoothing)
    kind, number = name.rsplit(" ", 1)
    start, n_clusters = int(number), settings.n_clusters
    if kind == LAST:
        assert sample.last is not None
        return smoothed(sample.distortion, sample.last)
    if kind in ("unconstrained", "k-means++"):
        return first_centroids.kmeans_plus_plus(rows, n_clusters, start)
    if kind == "random":
        return first_centroids.random_rows(rows, n_clusters, start)
    known = np.zeros((0, sample.extent.n_features))
    if sample.graph is not None and (kind, settings.neighborhoods) == ("neighborhoods", "largest"):
        known = largest_first(rows, sample.graph, sample.node_rows, n_clusters)
    elif sample.graph is not None:
        singles = kind == "agglomerated-singles"
        groups = find_neighbourhoods(rows, sample.graph, sample.node_rows, singles=singles)
        pick = farthest_first if kind in ("farthest-first", "neighborhoods") else agglomerate
        known = pick(rows, groups, n_clusters) if len(groups) else known
    how = settings.fill if kind == "neighborhoods" else "k-means++"
    return first_centroids.fill(rows, n_clusters, start, known, how)


def smoothed(distortion: Distortion, means: FloatArray) -> FloatArray:
    """Return first centroids for means that the user gave: drawn to the uniform row."""
    smoothing = distortion.first_smoothing
    if not smoothing:
        return means
    exponent = fixed_point_exponent(1, float(np.abs(means).max(initial=0.0)))
    sums = np.rint(means * 2.0**exponent).astype(np.int64)
    sums = np.column_stack([sums, np.zeros(len(means), np.int64)])
    counts, weights = np.ones(len(means), np.int64), np.ones(means.shape[1])
    return distortion.centroids(sums, exponent, counts, weights, smoothing, None)


def labels_by_row(sample: StartSample, run: CheckpointStore, file: LabelsFile) -> AnyArray:
    """Return the labels of a candidate over the whole corpus in the order of its rows."""
    out = np.empty(len(sample.rows), np.int32)
    out[sample.rows] = run.read_labels(file)
    return out


def restrict(graph: ConstraintGraph, keep: BoolArray) -> ConstraintGraph:
    """Return the graph of the pairs among the `keep` nodes, renumbered in their order.

    Groups and components stay as they are, less the nodes that go.
    """
    group_kept = np.bincount(graph.groups[keep], minlength=graph.n_groups) > 0
    component_kept = np.bincount(graph.components[keep], minlength=graph.n_components) > 0
    nodes, groups, components = (np.cumsum(kept) - 1 for kept in (keep, group_kept, component_kept))

    def inside(pairs: LabelArray, mask: AnyArray, number: AnyArray) -> tuple[LabelArray, AnyArray]:
        """Return the pairs both of whose ends are kept, in new numbers, and which they are."""
        chosen = np.asarray(mask[pairs].all(axis=1))
        return number[pairs[chosen]].astype(np.int32).reshape(-1, 2), chosen

    must, must_chosen = inside(graph.must_pairs, keep, nodes)
    cannot, cannot_chosen = inside(graph.cannot_pairs, keep, nodes)
    rivals, _ = inside(graph.rivals, group_kept, groups)
    dropped, _ = inside(graph.dropped_pairs, keep, nodes)
    contradictory = graph.contradictory_groups[group_kept[graph.contradictory_groups]]
    return replace(
        graph,
        groups=groups[graph.groups[keep]].astype(np.int32),
        components=components[graph.components[keep]].astype(np.int32),
        group_components=components[graph.group_components[group_kept]].astype(np.int32),
        must_pairs=must,
        must_pair_costs=graph.must_pair_costs[must_chosen],
        cannot_pairs=cannot,
        cannot_pair_costs=graph.cannot_pair_costs[cannot_chosen],
        table_components=graph.table_components[component_kept],
        table_groups=graph.table_groups[group_kept],
        rivals=rivals,
        contradictory_groups=groups[contradictory].astype(np.int32),
        dropped_pairs=dropped,
    )


class Draw(NamedTuple):
    """Rows that a start sample still needs."""

    seed: int
    most: int


def lowest_rows(
    block: RowBlock, first_row: int, linked: IntArray, taken: IntArray, draw: Draw
) -> Lowest:
    """Return the rows of a partition with the lowest keyed numbers, those `taken` left out.

    Linked rows come after all free ones, and without their pairs: they only fill up.
    """
    numbers = uniforms(block.keys, draw.seed, "sample", 0, 0, 0)
    numbers[linked] += 1.0
    rows = np.delete(np.arange(block.n_rows), taken)
    return Lowest(numbers[rows], block.ids[rows], rows + first_row, draw.most).cut()


def fill_classes(sample: StartSample, known: FloatArray, classes: IntArray) -> FloatArray:
    """Return all centroids: those of `classes` are known, the others filled up as of a start."""
    n_clusters = sample.settings.n_clusters
    rows = sample.candidate_rows(sample.distortion.first_smoothing)
    made = first_centroids.fill(rows, n_clusters, 0, known, sample.settings.fill)
    others = np.setdiff1d(np.arange(n_clusters), classes)
    out = np.empty_like(made)
    out[classes], out[others] = made[: len(classes)], made[len(classes) :]
    return out


SAMPLE_ROWS = 20_000
SAMPLE_ROWS_PER_CLUSTER = 100


def start_sample_size(n_rows: int, settings: Settings) -> int:
    """Return how many rows the starts see."""
    return min(n_rows, max(SAMPLE_ROWS, SAMPLE_ROWS_PER_CLUSTER * settings.n_clusters))
