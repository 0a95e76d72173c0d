"""Graphs of which nothing is known but who is joined: the order that peels them, and cliques."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import find, former, inner, njit
from hmrf_dask.kernels.problem import adjacency
from hmrf_dask.types import AnyArray, IntArray, LabelArray

CLIQUE_STEPS = 16  # comparisons for each end of an edge, and for each node, at most


class Graph(NamedTuple):
    """An undirected graph in CSR form: neighbours ascending, each once, no loops."""

    start: IntArray  # (n + 1,)
    neighbour: LabelArray


make_graph = former(Graph)


def graph_of(n: int, edges: AnyArray) -> Graph:
    """Return the graph of n nodes and edges in any order and direction, some of them twice.

    Examples
    --------
    >>> graph_of(3, np.array([[1, 0], [1, 2], [0, 1]])).neighbour.tolist()
    [1, 0, 2, 1]
    """
    ends = np.sort(np.asarray(edges, np.int64).reshape(-1, 2), axis=1)
    first, second = np.divmod(np.unique(ends[:, 0] * n + ends[:, 1]), max(n, 1))
    start, neighbour, _ = adjacency(n, first, second, np.zeros(len(first), np.int64))
    return make_graph(start, neighbour)


def subgraph(graph: Graph, nodes: AnyArray) -> Graph:
    """Return the graph of some nodes, given in ascending order, in their local numbers.

    Examples
    --------
    >>> path = graph_of(4, np.array([[0, 1], [1, 2], [2, 3]]))
    >>> subgraph(path, np.array([0, 2, 3])).neighbour.tolist()
    [2, 1]
    """
    local = np.full(len(graph.start) - 1, -1, np.int32)
    local[nodes] = np.arange(len(nodes), dtype=np.int32)
    owner = np.repeat(local, np.diff(graph.start))
    inside = (owner >= 0) & (local[graph.neighbour] >= 0)
    starts = np.searchsorted(owner[inside], np.arange(len(nodes) + 1))
    return make_graph(starts, local[graph.neighbour[inside]])


@njit(nogil=True, cache=True, makes_arrays=False)
def _smallest_last(
    graph: Graph, degree: IntArray, bins: IntArray, order: IntArray, place: IntArray
) -> None:
    """Peel node after node of least degree, nodes lying sorted by degree, bins where each begins.

    Batagelj and Zaveršnik 2003: `degree` ends as the core number of every node.
    """
    for at in range(order.shape[0]):
        node = order[at]
        for edge in range(graph.start[node], graph.start[node + 1]):
            near = graph.neighbour[edge]
            if degree[near] > degree[node]:  # one degree less: it goes to the front of its bin
                front = bins[degree[near]]
                ahead = order[front]
                order[place[near]] = ahead
                place[ahead] = place[near]
                order[front] = near
                place[near] = front
                bins[degree[near]] += 1
                degree[near] -= 1


def smallest_last(graph: Graph) -> tuple[IntArray, IntArray]:
    """Return the nodes in the order that peels the least connected first, and their core numbers.

    The core number of a node is the largest k such that it is in a part of the graph where every
    node has k neighbours. In the order a node has at most that many neighbours after it.

    Examples
    --------
    >>> triangle_with_tail = graph_of(4, np.array([[0, 1], [1, 2], [0, 2], [2, 3]]))
    >>> order, core = smallest_last(triangle_with_tail)
    >>> order.tolist(), core.tolist()
    ([3, 0, 1, 2], [2, 2, 2, 1])
    """
    degree = np.diff(graph.start)
    order = np.argsort(degree, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    bins = np.searchsorted(degree[order], np.arange(int(degree.max(initial=0)) + 1))
    _smallest_last(graph, degree, bins, order, place)
    return order, degree


@inner(inline="always")
def _copy(source: LabelArray, length: Any, target: LabelArray) -> None:
    for place in range(length):
        target[place] = source[place]


@njit(nogil=True, cache=True, makes_arrays=False)
def _largest_clique(
    graph: Graph, ends: IntArray, rows: LabelArray, chosen: LabelArray, best: LabelArray
) -> int:
    """Write the largest clique that is met and return its size; nodes come in peeling order.

    Carraghan and Pardalos 1990, from every node through those after it: candidates of each level
    lie behind those of the level before, `ends` says where they end.
    """
    size = 0
    for first in range(graph.start.shape[0] - 2, -1, -1):
        steps = CLIQUE_STEPS * (graph.start[first + 1] - graph.start[first] + 1)
        ends[0] = 0
        ends[1] = 0
        for edge in range(graph.start[first], graph.start[first + 1]):
            if graph.neighbour[edge] > first:
                rows[ends[1]] = graph.neighbour[edge]
                ends[1] += 1
        chosen[0] = first
        level = 1
        while level > 0:
            if level > size:
                size = level
                _copy(chosen, level, best)
            stop = ends[level]
            if steps <= 0 or level + stop - ends[level - 1] <= size:
                level -= 1
                ends[level] -= 1  # what was chosen last is no candidate any more
                continue
            node = rows[stop - 1]
            chosen[level] = node
            ends[level + 1] = stop
            near = graph.neighbour[graph.start[node] : graph.start[node + 1]]
            for i in range(ends[level - 1], stop - 1):
                steps -= 1
                if find(near, rows[i]) >= 0:
                    rows[ends[level + 1]] = rows[i]
                    ends[level + 1] += 1
            level += 1
    return size


def largest_clique(graph: Graph) -> LabelArray:
    """Return the nodes of the largest clique that is found, ascending.

    It is the largest there is, unless some node has so many neighbours after it in peeling order
    that `CLIQUE_STEPS` comparisons for each of its edges do not try all: linear in the edges.

    Examples
    --------
    >>> triangle_with_tail = graph_of(4, np.array([[0, 1], [1, 2], [0, 2], [2, 3]]))
    >>> largest_clique(triangle_with_tail).tolist()
    [0, 1, 2]
    """
    order, core = smallest_last(graph)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    owner = np.repeat(place, np.diff(graph.start))
    peeled = graph_of(len(order), np.stack([owner, place[graph.neighbour]], axis=1))
    width = int(core.max(initial=-1)) + 1
    chosen, best = np.zeros((2, width + 1), np.int32)
    ends, rows = np.zeros(width + 3, np.int64), np.zeros(width * (width + 1) // 2 + 1, np.int32)
    size = _largest_clique(peeled, ends, rows, chosen, best)
    return np.sort(order[best[:size]]).astype(np.int32)
