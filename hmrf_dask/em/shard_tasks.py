"""Task functions of a fit whose clusters come in shards: none holds more of K × d than one shard.

Rows meet one shard after the other. What is known of a row so far, its nearest cluster and how far
that is, lies in files of the run between them. Distances decide in float64, and those of a row to
one cluster are the same bits whatever clusters are beside it; so the nearest is the same, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hmrf_dask.em.looks import BundlePairs, Looked, in_single, judge, read_bundle
from hmrf_dask.em.model import Model
from hmrf_dask.em.parts import KeptTerms, Step, terms_of, within
from hmrf_dask.em.scale import Scale, cost_rows
from hmrf_dask.em.shard_files import read_numbers, words, write_numbers
from hmrf_dask.kernels.cost_rows import Quick, Ties
from hmrf_dask.kernels.distances import LINKED, UNDECIDED
from hmrf_dask.kernels.finders import Frame
from hmrf_dask.kernels.nearest import Bounds
from hmrf_dask.kernels.shard_scores import Scores, bounds_of_all, quick_costs_of, shard_scores
from hmrf_dask.kernels.sums import Accumulator, Sums
from hmrf_dask.linked.layout import Bundle
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.runs import LabelsFile, RunStore
from hmrf_dask.store.reading import Blocks, lasting
from hmrf_dask.types import FloatArray, IntArray, LabelArray

Near = tuple[LabelsFile, LabelsFile]  # of a group of parts: the nearest so far, and how far it is
DISTANCES = 8192  # rows whose float64 distances are made at a time
NOTHING = np.zeros(0, np.int64)
NO_SUMS = Sums(NOTHING.reshape(0, 0), NOTHING, NOTHING, NOTHING, 0)  # they are made shard by shard


def compare(
    blocks: Blocks,
    kept: Sequence[KeptTerms | None],
    model: Model,
    first: int,
    run: RunStore,
    number: int,
    files: Sequence[LabelsFile],
    near: Near | None,
) -> Near:
    """Compare free rows with the clusters of a shard, from its `first` one on.

    Ties stay at the present label, then go to the lowest cluster; shards come in their order.
    """
    table, distortion, before = model.table(), model.distortion, run.read_group(files)
    nearest, distances = [], []
    for block, known, labels in zip(blocks, kept, before, strict=True):
        terms, seen = terms_of(block, known, model), _seen(labels, first, model.n_clusters)
        found, _ = distortion.nearest(block, terms, table, seen, measured=False)
        nearest.append(np.where(found >= 0, found + np.int32(first), found))
        distances.append(distortion.own_distances(block, terms, table, found))
    best, away, labels = (np.concatenate(one) for one in (nearest, distances, before))
    if near is not None:
        known_best, known_words = run.read_group(near)
        least = known_words.view(np.float64)
        stays = (least < away) | ((least == away) & (best != labels))
        best, away = np.where(stays, known_best, best), np.where(stays, least, away)
    part = files[0].part
    pieces = [(f"{part}-near", 0, best), (f"{part}-away", 0, words(away))]
    one, other = run.write_group(number, pieces)
    return one, other


def _seen(labels: LabelArray, first: int, n_clusters: int) -> LabelArray:
    """Return labels as a shard sees them: rows of other clusters are undecided."""
    seen = within(labels, first, n_clusters)
    return np.where((seen < 0) & (labels != LINKED), np.int32(UNDECIDED), seen)


def settle(run: RunStore, number: int, near: Near, files: Sequence[LabelsFile]) -> Step:
    """Return the step of parts whose rows go where they are nearest."""
    ends = np.cumsum([file.n_rows for file in files])[:-1]
    return relabel(run, number, files, *np.split(run.read_labels(near[0]), ends))


def relabel(run: RunStore, number: int, files: Sequence[LabelsFile], *afters: LabelArray) -> Step:
    """Return the step of parts whose rows get other labels; what sums it changes comes later."""
    pairs = zip(run.read_group(files), afters, strict=True)
    n_moved = sum(int(np.count_nonzero(before != after)) for before, after in pairs)
    pieces = [
        (file.part, file.first_row, np.asarray(after, np.int32))
        for file, after in zip(files, afters, strict=True)
    ]
    return Step(run.write_group(number, pieces), n_moved, None, NO_SUMS)


def change(
    blocks: Blocks,
    kept: Sequence[KeptTerms | None],
    model: Model,
    clusters: range,
    run: RunStore,
    noted: bool,
    before: Sequence[LabelsFile] | None,
    after: Sequence[LabelsFile],
) -> Sums | Accumulator:
    """Return what moved rows change in the sums of a shard; of all rows, if there is no `before`.

    Where none moved no row is read.
    """
    sums = Accumulator(len(clusters), len(model.weights) + 1, lasting=lasting(blocks))
    new = [within(one, clusters.start, len(clusters)) for one in run.read_group(after)]
    if before is None:
        old = [np.full(len(one), -1, np.int32) for one in new]
    else:
        old = [within(one, clusters.start, len(clusters)) for one in run.read_group(before)]
    if all(np.array_equal(one, other) for one, other in zip(old, new, strict=True)):
        return sums if noted else sums.finish()
    for block, known, one, other in zip(blocks, kept, old, new, strict=True):
        terms = terms_of(block, known, model)
        model.distortion.add_moves(sums, block, terms, model.weights, one, other, model.exponent)
    return sums if noted else sums.finish()


@dataclass(frozen=True)
class Apart:
    """What a linked partition knows of one shard of clusters.

    Attributes
    ----------
    clusters : range
    distances : LabelsFile
        In float64.
    scores : LabelsFile, optional
        In low precision, and what bounds their rounding.
    """

    clusters: range
    distances: LabelsFile
    scores: LabelsFile | None = None
    bounds: Bounds | None = None

    @property
    def files(self) -> list[LabelsFile]:
        """What lies in files."""
        return [one for one in (self.distances, self.scores) if one is not None]


def measure_linked(
    block: RowBlock,
    kept: KeptTerms | None,
    model: Model,
    first: int,
    run: RunStore,
    number: int,
    part: str,
    frame: Frame | None,
    bundle: Bundle | None,
) -> Apart:
    """Write how far the rows of a linked partition are from the clusters of a shard.

    With the `frame` of the whole table, and the bundle, in low precision too.
    """
    clusters, name = range(first, first + model.n_clusters), f"{part}-{first:05d}"
    found = [np.zeros((0, model.n_clusters))]
    for start in range(0, block.n_rows, DISTANCES):
        some = block.take(np.arange(start, min(start + DISTANCES, block.n_rows)))
        terms = model.distortion.terms(some, model.weights)
        found.append(model.distortion.distances(some, terms, model.table()))
    file = write_numbers(run, number, f"{name}-distances", np.concatenate(found))
    if frame is None or bundle is None:
        return Apart(clusters, file)
    terms, single = terms_of(block, kept, model), in_single(bundle, model)
    quick = shard_scores(block, terms, model.table(), frame, single=single)
    scores = write_numbers(run, number, f"{name}-scores", quick.scores)
    return Apart(clusters, file, scores, quick.bounds)


class Measured:
    """The float64 distances of a linked partition, read shard by shard."""

    def __init__(self, run: RunStore, aparts: Sequence[Apart], scale: Scale) -> None:
        self.run, self.aparts, self.scale = run, aparts, scale

    def _each(self) -> Iterator[tuple[range, FloatArray]]:
        for one in self.aparts:
            clusters = one.clusters
            yield clusters, read_numbers(self.run, one.distances, np.float64, len(clusters))

    def of(self, rows: IntArray, clusters: IntArray) -> FloatArray:
        """Return the distances of some rows, each to one cluster."""
        out = np.empty(len(rows))
        for shard, found in self._each():
            here = (clusters >= shard.start) & (clusters < shard.stop)
            out[here] = found[rows[here], clusters[here] - shard.start]
        return out

    def fill(self, costs: LabelArray, rows: IntArray) -> None:
        """Write the integer cost rows of some rows."""
        if not len(rows):
            return
        least = np.full((len(rows), 1), np.inf)
        for _, found in self._each():
            np.minimum(least, found[rows].min(axis=1, keepdims=True), out=least)
        for shard, found in self._each():
            costs[rows, shard.start : shard.stop] = cost_rows(found[rows], self.scale, least)


def linked_costs(run: RunStore, aparts: Sequence[Apart], n_rows: int, scale: Scale) -> LabelArray:
    """Return the integer cost rows of a linked partition from float64 distances."""
    costs = np.empty((n_rows, aparts[-1].clusters.stop), np.int32)
    Measured(run, aparts, scale).fill(costs, np.arange(n_rows))
    return costs


def look_at(
    block: RowBlock,
    kept: KeptTerms | None,
    model: Model,
    scale: Scale,
    pairs: BundlePairs,
    first: int,
    run: RunStore,
    files: list[LabelsFile],
    aparts: Sequence[Apart],
) -> Looked:
    """Return cost rows, and what their points want; see `looks.look_at`."""
    bounds = [one.bounds for one in aparts if one.bounds is not None]
    if not bounds:
        return Looked(linked_costs(run, aparts, block.n_rows, scale))
    terms, measured = terms_of(block, kept, model), Measured(run, aparts, scale)
    scores = np.empty((block.n_rows, aparts[-1].clusters.stop), np.float32)
    for one in aparts:
        assert one.scores is not None
        found = read_numbers(run, one.scores, np.float32, len(one.clusters))
        scores[:, one.clusters.start : one.clusters.stop] = found
    known = Scores(scores, bounds_of_all(bounds))

    def quick(ties: Ties) -> Quick:
        return quick_costs_of(block, terms, known, ties, scale.step, scale.tolerance)

    labels = read_bundle(run, files)
    return judge(labels, first, scale, pairs, quick, measured.of, measured.fill)
