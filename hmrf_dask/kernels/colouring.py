"""Hard pairs as a colouring: must-link groups, one cluster for each, never that of a rival.

What it costs is integers, so that every change that is kept lowers J by at least one unit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import former, frozen, inner, njit
from hmrf_dask.kernels.graphs import Graph
from hmrf_dask.kernels.icm import Heap, empty_heap, place_item
from hmrf_dask.kernels.problem import Grouping
from hmrf_dask.types import BoolArray, IntArray, LabelArray

MOST_SWEEPS = 32  # over all pairs of clusters; a few are enough until no chain gains


class Rivalry(NamedTuple):
    """Groups of points, and which must not share a cluster."""

    groups: Grouping
    graph: Graph  # of the groups: rivals are joined


make_rivalry = former(Rivalry)


class _Choice(NamedTuple):
    """What is known of each group that waits for its cluster."""

    barred: BoolArray  # (n_groups, K): clusters that a rival has
    best: LabelArray  # (n_groups,): the cheapest one that is left
    second: LabelArray  # the next one, -1 where there is none
    total: IntArray  # (K,): a buffer
    heap: Heap  # groups in the order in which they are placed


@inner()
def _rank(costs: LabelArray, rivalry: Rivalry, choice: _Choice, group: int) -> None:
    """Find what is left to a group, and put it into the heap by what another cluster would cost.

    A group with one cluster left comes before all others; one with none leaves the heap.
    """
    total, heap = choice.total, choice.heap
    for h in range(total.shape[0]):
        total[h] = 0
    for at in range(rivalry.groups.start[group], rivalry.groups.start[group + 1]):
        for h in range(total.shape[0]):
            total[h] += costs[rivalry.groups.member[at], h]
    best = -1
    second = -1
    for h in range(total.shape[0]):
        if choice.barred[group, h]:
            continue
        if best < 0 or total[h] < total[best]:
            second = best
            best = h
        elif second < 0 or total[h] < total[second]:
            second = h
    choice.best[group] = best
    choice.second[group] = second
    heap.high[group] = 0 if best < 0 else 2 if second < 0 else 1
    heap.low[group] = 0 if second < 0 else total[second] - total[best]
    place_item(heap, group)


@njit(nogil=True, cache=True, makes_arrays=False)
def _place_apart(costs: LabelArray, rivalry: Rivalry, labels: LabelArray, choice: _Choice) -> None:
    for at in range(labels.shape[0]):
        _rank(costs, rivalry, choice, at)
    graph, heap = rivalry.graph, choice.heap
    while heap.size[0] > 0:
        group = np.int64(heap.items[0])
        chosen = choice.best[group]
        labels[group] = chosen
        heap.high[group] = 0
        heap.low[group] = 0
        place_item(heap, group)
        for edge in range(graph.start[group], graph.start[group + 1]):
            rival = np.int64(graph.neighbour[edge])
            if labels[rival] >= 0 or choice.barred[rival, chosen]:
                continue
            choice.barred[rival, chosen] = True
            if chosen == choice.best[rival] or chosen == choice.second[rival]:
                _rank(costs, rivalry, choice, rival)


def place_apart(costs: LabelArray, rivalry: Rivalry) -> LabelArray:
    """Return the cluster of every group: the cheapest that no rival has, -1 where none is left.

    The group that has only one cluster left is always next; else the one whose second cheapest
    cluster would cost most more than its cheapest. Ties go to the lowest group and cluster.
    `costs` are int32 rows of the points.
    """
    n_groups, n_clusters = len(rivalry.graph.start) - 1, costs.shape[1]
    labels, best, second = np.full((3, n_groups), -1, np.int32)
    barred, total = np.zeros((n_groups, n_clusters), np.bool_), np.empty(n_clusters, np.int64)
    choice = _Choice(barred, best, second, total, empty_heap(n_groups, True))
    _place_apart(frozen(costs, np.int32), rivalry, labels, choice)
    return labels


class _Lists(NamedTuple):
    """The groups of each cluster as linked lists, and what a visit to two of them needs."""

    head: LabelArray  # (K,): the first group, -1 of an empty cluster
    following: LabelArray  # (n_groups,)
    changed: IntArray  # (K,): the sweep in which groups last came or went
    pool: LabelArray  # (n_groups,): groups of two clusters
    chain: LabelArray  # (n_groups,): those of them that change together
    seen: IntArray  # (n_groups,): the visit in which a group was met


@inner(inline="always")
def _gather(lists: _Lists, cluster: Any, n_pooled: Any) -> Any:
    """Move the groups of a cluster into the pool; return how many are there."""
    group = lists.head[cluster]
    while group >= 0:
        lists.pool[n_pooled] = group
        n_pooled += 1
        group = lists.following[group]
    lists.head[cluster] = -1
    return n_pooled


@inner(inline="always")
def _grow(lists: _Lists, graph: Graph, labels: LabelArray, clusters: Any, visit: Any) -> Any:
    """Write the Kempe chain of the first group of `chain`; return its length."""
    length = 1
    at = 0
    while at < length:
        group = lists.chain[at]
        at += 1
        for edge in range(graph.start[group], graph.start[group + 1]):
            rival = graph.neighbour[edge]
            is_rival = labels[rival] == clusters[0] or labels[rival] == clusters[1]
            if is_rival and lists.seen[rival] != visit:
                lists.seen[rival] = visit
                lists.chain[length] = rival
                length += 1
    return length


@inner(inline="always")
def _change(
    costs: LabelArray, rivalry: Rivalry, labels: LabelArray, chain: LabelArray, both: Any
) -> Any:
    """Return by how much the cost of a chain rises where its groups change clusters."""
    total = np.int64(0)
    for at in range(chain.shape[0]):
        group, label = chain[at], labels[chain[at]]
        for place in range(rivalry.groups.start[group], rivalry.groups.start[group + 1]):
            point = rivalry.groups.member[place]
            total += np.int64(costs[point, both - label]) - np.int64(costs[point, label])
    return total


@inner()
def _visit(
    costs: LabelArray, rivalry: Rivalry, labels: LabelArray, lists: _Lists, pair: Any, visit: Any
) -> Any:
    """Let every chain of two clusters that gains by it change; return whether any did."""
    both = pair[0] + pair[1]
    n_pooled = _gather(lists, pair[1], _gather(lists, pair[0], 0))
    moved = False
    for at in range(n_pooled):
        if lists.seen[lists.pool[at]] == visit:
            continue
        lists.seen[lists.pool[at]] = visit
        lists.chain[0] = lists.pool[at]
        chain = lists.chain[: _grow(lists, rivalry.graph, labels, pair, visit)]
        if _change(costs, rivalry, labels, chain, both) < 0:
            moved = True
            for i in range(chain.shape[0]):
                labels[chain[i]] = both - labels[chain[i]]
    for at in range(n_pooled):
        group = lists.pool[at]
        lists.following[group] = lists.head[labels[group]]
        lists.head[labels[group]] = group
    return moved


@inner()
def _sweep(
    costs: LabelArray, rivalry: Rivalry, labels: LabelArray, lists: _Lists, sweep: Any
) -> Any:
    """Visit all pairs of clusters; return whether any group moved."""
    n_clusters = lists.head.shape[0]
    moved = False
    for a in range(n_clusters):
        for b in range(n_clusters):
            if lists.head[a] < 0:
                break
            # each pair once; two clusters that stood still since the last visit bring nothing
            twice = b == a or (b < a and lists.head[b] >= 0)
            if twice or (lists.changed[a] < sweep - 1 and lists.changed[b] < sweep - 1):
                continue
            visit = (sweep * n_clusters + a) * n_clusters + b
            if _visit(costs, rivalry, labels, lists, (a, b), visit):
                lists.changed[a] = sweep
                lists.changed[b] = sweep
                moved = True
    return moved


@njit(nogil=True, cache=True, makes_arrays=False)
def _swap_chains(costs: LabelArray, rivalry: Rivalry, labels: LabelArray, lists: _Lists) -> int:
    for group in range(labels.shape[0] - 1, -1, -1):
        lists.following[group] = lists.head[labels[group]]
        lists.head[labels[group]] = group
    for sweep in range(1, MOST_SWEEPS + 1):
        if not _sweep(costs, rivalry, labels, lists, sweep):
            return sweep
    return MOST_SWEEPS


def swap_chains(costs: LabelArray, rivalry: Rivalry, labels: LabelArray) -> None:
    """Swap two clusters along Kempe chains while that lowers the cost; labels change in place.

    A chain of clusters a and b is a group in one of them with all groups that are joined to it by
    cannot-links between a and b. Where all of its groups change from a to b and from b to a no pair
    breaks; a chain of one group is its move. It ends where no chain gains, or after `MOST_SWEEPS`
    sweeps of (groups × K + cannot-links) steps.
    """
    n_groups, n_clusters = len(labels), costs.shape[1]
    lists = _Lists(
        np.full(n_clusters, -1, np.int32),
        np.empty(n_groups, np.int32),
        np.zeros(n_clusters, np.int64),
        np.empty(n_groups, np.int32),
        np.empty(n_groups, np.int32),
        np.zeros(n_groups, np.int64),
    )
    _swap_chains(frozen(costs, np.int32), rivalry, labels, lists)
