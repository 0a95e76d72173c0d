"""Graphs of pairs: connected parts, breadth-first order, shortest paths, pairs of a closure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from hmrf_dask.kernels.compiled import njit
from hmrf_dask.types import IntArray, LabelArray


class Adjacency(NamedTuple):
    """Neighbours of every node, ascending: those of node i at starts[i]..starts[i + 1]."""

    starts: IntArray
    neighbours: LabelArray


def adjacency(n_nodes: int, pairs: LabelArray) -> Adjacency:
    """Return the neighbours of every node, both ways, each once."""
    graph = _matrix(n_nodes, np.concatenate([pairs, pairs[:, ::-1]])).tocsr()
    graph.sort_indices()
    return Adjacency(graph.indptr.astype(np.int64), graph.indices.astype(np.int32, copy=False))


def connected_numbers(n_nodes: int, pairs: LabelArray) -> LabelArray:
    """Return the connected part of every node, parts numbered by their lowest node."""
    if n_nodes == 0:
        return np.zeros(0, np.int32)
    n_parts, labels = connected_components(_matrix(n_nodes, pairs), directed=False)
    lowest = np.empty(n_parts, np.int64)
    lowest[labels[::-1]] = np.arange(n_nodes - 1, -1, -1)  # the last to write is the lowest
    number = np.empty(n_parts, np.int32)
    number[np.argsort(lowest)] = np.arange(n_parts, dtype=np.int32)
    return number[labels]


def _matrix(n_nodes: int, pairs: LabelArray) -> sp.coo_array:
    ones = np.ones(len(pairs), np.float64)  # csgraph works in float64: no copy on the way
    return sp.coo_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(n_nodes, n_nodes))


def members_by_number(
    numbers: LabelArray | IntArray, n_numbers: int
) -> tuple[IntArray, LabelArray]:
    """Return where the members of each number start, and the members, ascending in each."""
    starts = np.zeros(n_numbers + 1, np.int64)
    np.cumsum(np.bincount(numbers, minlength=n_numbers), out=starts[1:])
    return starts, np.argsort(numbers, kind="stable").astype(np.int32)


class BreadthFirst:
    """Breadth-first searches over one graph, neighbours in index order."""

    def __init__(self, graph: Adjacency) -> None:
        self._graph = graph
        n_nodes = len(graph.starts) - 1
        self._parent = np.full(n_nodes, -1, np.int32)
        self._queue = np.empty(n_nodes, np.int32)

    def order(self, source: int) -> LabelArray:
        """Return all nodes that can be reached, in the order they are met."""
        reached = self._run(source, -1)
        self._parent[reached] = -1
        return reached

    def path(self, source: int, target: int) -> list[int]:
        """Return the shortest path; of several, the one that is lowest node by node."""
        reached = self._run(source, target)
        path = [target]
        while path[-1] != source:
            path.append(int(self._parent[path[-1]]))
        self._parent[reached] = -1  # a search pays for what it reached, not for the graph
        return path[::-1]

    def _run(self, source: int, target: int) -> LabelArray:
        n_reached = _search(*self._graph, source, target, self._parent, self._queue)
        return self._queue[:n_reached].copy()


@njit(nogil=True, cache=True, makes_arrays=False)
def _search(starts, neighbours, source, target, parent, queue):  # type: ignore[no-untyped-def]
    """Fill `queue` and `parent` from `source`, up to `target`; return how many were met."""
    parent[source] = source
    queue[0] = source
    head = 0
    tail = 1
    while head < tail:
        node = queue[head]
        head += 1
        for place in range(starts[node], starts[node + 1]):
            other = neighbours[place]
            if parent[other] < 0:
                parent[other] = node
                queue[tail] = other
                tail += 1
                if other == target:
                    return tail
    return tail


def pair_keys_within(
    starts: IntArray, members: LabelArray, groups: LabelArray, n_nodes: int
) -> IntArray:
    """Return lower × n_nodes + higher for all pairs of members of the same group, unsorted."""
    sizes = starts[groups + 1] - starts[groups]
    keys = np.empty(int((sizes * (sizes - 1) // 2).sum()), np.int64)
    _write_within(starts, members, groups, n_nodes, keys)
    return keys


@njit(nogil=True, cache=True, makes_arrays=False)
def _write_within(starts, members, groups, n_nodes, keys):  # type: ignore[no-untyped-def]
    place = 0
    for group in groups:
        for first in range(starts[group], starts[group + 1]):
            base = np.int64(members[first]) * n_nodes  # members ascend: `first` is the lower
            for second in range(first + 1, starts[group + 1]):
                keys[place] = base + members[second]
                place += 1


def pair_keys_across(
    starts: IntArray, members: LabelArray, rivals: LabelArray, n_nodes: int
) -> IntArray:
    """Return lower × n_nodes + higher for all pairs across two rival groups, unsorted."""
    sizes = starts[rivals + 1] - starts[rivals]
    keys = np.empty(int((sizes[:, 0] * sizes[:, 1]).sum()), np.int64)
    _write_across(starts, members, rivals, n_nodes, keys)
    return keys


@njit(nogil=True, cache=True, makes_arrays=False)
def _write_across(starts, members, rivals, n_nodes, keys):  # type: ignore[no-untyped-def]
    place = 0
    for number in range(rivals.shape[0]):
        one, other = rivals[number, 0], rivals[number, 1]
        for first in range(starts[one], starts[one + 1]):
            for second in range(starts[other], starts[other + 1]):
                here, there = np.int64(members[first]), np.int64(members[second])
                keys[place] = here * n_nodes + there if here < there else there * n_nodes + here
                place += 1
