"""Folds of the answers: documents whose answers are withheld, and what labels keep of these."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hmrf_dask.constraints.closure import ConstraintGraph
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.tasks.start_sample import StartSample, restrict
from hmrf_dask.types import BoolArray, IntArray, KeyArray, LabelArray

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
