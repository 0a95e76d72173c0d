"""Seeds: rows of known class make the first centroids, and may keep their labels (ICML 2002).

Seeds come as labels, as a probability per class, or as must-link groups. Their sums are exact, over
all of them; clusters without seeds are filled up like any start, given the centroids of the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hmrf_dask.constraints.closure import ClosureRules, CostedPairs, build_graph
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.preparation import describe_nodes
from hmrf_dask.fit.problem import Pairs
from hmrf_dask.flow.dataflow import Dataflow, Lazy, share_array, tree
from hmrf_dask.kernels.sums import Sums, add_sums, fixed_point_exponent
from hmrf_dask.tasks.partitions import LabelledSeeds, seed_sums
from hmrf_dask.tasks.start_sample import fill_classes
from hmrf_dask.types import FloatArray, IntArray, LabelArray

CERTAIN = 2**16  # units of a probability: shares of rows are whole numbers, so sums stay exact


@dataclass(frozen=True)
class Seeds:
    """What is known of the classes of some rows; a soft seed stands once for each it may have."""

    rows: IntArray  # row numbers of the corpus, rising
    labels: LabelArray
    shares: IntArray  # probability of that class, in units of 1 / `CERTAIN`
    held: bool  # whether seeds keep their labels to the end

    @property
    def soft(self) -> bool:
        """Whether any class is uncertain."""
        return bool((self.shares != CERTAIN).any())

    @property
    def fingerprint(self) -> str:
        """What the same seeds have again: a run is resumed with no others."""
        content = hashlib.sha256(b"held" if self.held else b"first")
        for array in (self.rows, self.labels, self.shares):
            content.update(array.tobytes())
        return content.hexdigest()


# ---- seeds and pairs


def find_seeds(
    flow: Dataflow, corpus: Corpus, seeds: Seeds, pairs: Pairs | None, n_clusters: int
) -> tuple[Seeds, Pairs | None]:
    """Return the seeds with those that pairs add, and the linked rows of the fit: seeds held."""
    if pairs is not None:
        seeds = widen(seeds, pairs, n_clusters)
    if not len(seeds.rows):
        raise InvalidInputError(
            "seeds must tell the class of at least one row, got none: label some rows (y >= 0), or "
            "give must-links, or use KMeans"
        )
    return seeds, fix_labels(flow, corpus, seeds) if seeds.held else None


def widen(seeds: Seeds, pairs: Pairs, n_clusters: int) -> Seeds:
    """Return the seeds that pairs add: must-link groups of a known class, or of a class of its own.

    Groups of at least two rows whose class is not known take the classes without seeds, the
    largest group first. Soft seeds stay as they are.
    """
    groups, n_groups = pairs.graph.groups, pairs.graph.n_groups
    classes = np.full(n_groups, -1, np.int32)
    known = _labels_of(seeds, pairs.node_rows)
    _check_must_links(pairs, known)
    classes[groups[known >= 0]] = known[known >= 0]
    _check_cannot_links(pairs, classes[groups])
    left = np.setdiff1d(np.arange(n_clusters), seeds.labels)
    sizes = np.bincount(groups, minlength=n_groups)
    soft = np.isin(pairs.node_rows, seeds.rows) & (known < 0)
    sizes[groups[soft]] = 0  # their class is known, if not for sure
    order = np.lexsort((np.arange(n_groups), -sizes))
    chosen = order[(sizes[order] > 1) & (classes[order] < 0)][: len(left)]
    classes[chosen] = left[: len(chosen)]
    added = np.flatnonzero((classes[groups] >= 0) & ~np.isin(pairs.node_rows, seeds.rows))
    rows = np.concatenate([seeds.rows, pairs.node_rows[added]])
    labels = np.concatenate([seeds.labels, classes[groups[added]]])
    shares = np.concatenate([seeds.shares, np.full(len(added), CERTAIN)])
    by_row = np.argsort(rows, kind="stable")
    return replace(seeds, rows=rows[by_row], labels=labels[by_row], shares=shares[by_row])


def _labels_of(seeds: Seeds, rows: IntArray) -> LabelArray:
    """Return the certain class of each row, -1 where it has none."""
    certain = seeds.shares == CERTAIN
    known, labels = seeds.rows[certain], seeds.labels[certain]
    if not len(known):
        return np.full(len(rows), -1, np.int32)
    place = np.minimum(np.searchsorted(known, rows), len(known) - 1)
    return np.where(known[place] == rows, labels[place], -1).astype(np.int32)


def _check_must_links(pairs: Pairs, known: LabelArray) -> None:
    """Refuse two classes in one must-link group."""
    nodes = np.flatnonzero(known >= 0)
    nodes = nodes[np.lexsort((nodes, pairs.graph.groups[nodes]))]
    groups, classes = pairs.graph.groups[nodes], known[nodes]
    wrong = np.flatnonzero((groups[1:] == groups[:-1]) & (classes[1:] != classes[:-1]))
    if len(wrong):
        pair = slice(wrong[0], wrong[0] + 2)
        (first, second), (own, second_class) = pairs.node_rows[nodes[pair]], classes[pair]
        raise InvalidInputError(
            f"seeds must agree with the must-links, got rows {first} (class {own}) and {second} "
            f"(class {second_class}) in one must-link group; correct one of the labels, or drop a "
            "pair between them"
        )


def _check_cannot_links(pairs: Pairs, classes: LabelArray) -> None:
    """Refuse a cannot-link inside a class; `classes` are those of the nodes' groups."""
    ends = classes[pairs.cannot]
    wrong = np.flatnonzero((ends[:, 0] == ends[:, 1]) & (ends[:, 0] >= 0))
    if len(wrong):
        first, second = pairs.node_rows[pairs.cannot[wrong[0]]]
        raise InvalidInputError(
            f"seeds must agree with the cannot-links, got rows {first} and {second} cannot-linked "
            f"but both of class {ends[wrong[0], 0]} ({len(wrong)} such pairs); correct a label, or "
            "drop the pairs"
        )


def fix_labels(flow: Dataflow, corpus: Corpus, seeds: Seeds) -> Pairs:
    """Return the seeds as linked rows that have labels in the place of pairs.

    So no E-step, reseeding or first variation of free rows ever sees them.
    """
    ids, values = describe_nodes(flow, corpus, seeds.rows)
    order = np.argsort(ids, kind="stable")
    none = CostedPairs(np.zeros((0, 2), np.int64), closure_cost=0.0)
    graph = build_graph(len(order), none, none, ClosureRules(closure=False))
    rows, labels = seeds.rows[order], seeds.labels[order]
    return Pairs(graph, rows, values[order], 2.0**-8, held=labels)


# ---- first centroids


def seeded_centroids(engine: Engine, seeds: Seeds, sample: Callable[[], Lazy]) -> FloatArray:
    """Return the centroids of the seeds of each class; classes without are filled up."""
    problem, flow = engine.problem, engine.flow
    n_clusters = problem.settings.n_clusters
    sums, counts, exponent = _total(engine, seeds)
    distortion, weights = problem.distortion, np.ones(problem.extent.n_features)
    smoothing = distortion.first_smoothing
    centroids = distortion.centroids(sums, exponent, counts, weights, smoothing, None)
    decided = counts > 0
    if distortion.zero_rows == "undecided":  # zero rows have no direction
        decided &= sums.any(axis=1)
    classes = np.flatnonzero(decided)
    others = np.setdiff1d(np.arange(n_clusters), classes)
    counted = {"n_seeds": len(np.unique(seeds.rows)), "filled": others.tolist()[:100]}
    engine.run.event({"event": "seeds", "fill": problem.settings.fill, **counted})
    if not len(others):
        return centroids
    known = flow.share(centroids[classes])
    filled: FloatArray = flow.compute([flow.lazy(fill_classes, sample(), known, classes)])[0]
    return filled


def _total(engine: Engine, seeds: Seeds) -> tuple[IntArray, IntArray, int]:
    """Return the exact sums of the seeds by class, how many rows they are worth, the exponent."""
    flow, problem = engine.flow, engine.problem
    n_clusters, n_features = problem.settings.n_clusters, problem.extent.n_features
    weights = np.ones(n_features)
    unit = CERTAIN if seeds.soft else 1
    bound = engine.summand_bound(weights) * unit
    exponent = fixed_point_exponent(len(seeds.rows), bound)
    metric, sums = flow.share((problem.distortion, weights)), []
    for part in problem.free:
        first, last = np.searchsorted(seeds.rows, [part.first_row, part.first_row + part.n_rows])
        if first < last:
            chosen = slice(first, last)
            own = LabelledSeeds(
                share_array(flow, seeds.rows[chosen] - part.first_row),
                share_array(flow, seeds.labels[chosen]),
                share_array(flow, seeds.shares[chosen] // (CERTAIN // unit)),
            )
            sums.append(flow.lazy(seed_sums, part.block, metric, own, n_clusters, exponent))
    counts = np.zeros(n_clusters, np.int64)
    np.add.at(counts, seeds.labels, seeds.shares)
    if not sums:
        return np.zeros((n_clusters, n_features + 1), np.int64), counts, exponent
    whole: Sums = flow.compute([tree(flow, add_sums, sums)])[0]
    dense = whole.dense if whole.is_dense else whole.to_dense()
    return dense, counts // (CERTAIN // unit), exponent
