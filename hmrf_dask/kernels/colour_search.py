"""The search for a colouring where placing group after group gets stuck: by DSATUR, and at random.

Nodes are must-link groups, colours are clusters. Depth first a search that ends has found a
colouring or proved that there is none; one that does not end within its steps has learned which
nodes were left without a colour, and these come first in the next (Boussemart et al., ECAI 2004).
In large graphs, where it does not end, a walk over colourings with fewer and fewer conflicts finds
one sooner (Seitz, Alava, Orponen: Focused local search, 2005); it proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import frozen, inner, njit
from hmrf_dask.kernels.graphs import Graph, smallest_last, subgraph
from hmrf_dask.kernels.icm import Heap, empty_heap, place_item
from hmrf_dask.types import AnyArray, BoolArray, IntArray, LabelArray

STEPS = 100  # of every search, for each node and each end of an edge
MORE_STEPS = 2**17  # that it has as well, and that each has more than the one before
WALK = 4  # times as many steps has a walk: they take a quarter of the time
# How likely a walk takes a change that brings one more conflict, in turn: .15 is best for three to
# five colours, .1 for more. Two more are as likely as one more twice.
UPHILL = (0.15, 0.1)
CRITICAL_STEPS = 2**22  # that may go into making a proof small


class _Colours(NamedTuple):
    """The colour of every node, and what its neighbours leave it."""

    of: LabelArray  # (n,): -1 for none
    near: LabelArray  # (n, K): how many neighbours have a colour
    free: LabelArray  # (n,): colours that no neighbour has
    uses: LabelArray  # (K,): nodes that have a colour


class _Tree(NamedTuple):
    """The nodes that have a colour, by depth; the others wait in a heap."""

    order: LabelArray  # (n, K): the colours of each node as they are tried
    node: LabelArray  # (n,)
    tried: LabelArray  # (n,): how many of them were tried at each depth
    opened: BoolArray  # (n,): whether one that no node had was among these
    weight: IntArray  # (n,): how often each node was left without a colour
    met: BoolArray  # (n,): nodes that what was searched depends on
    heap: Heap  # the fewest free colours first, then the greatest weight, then the lowest


@inner()
def _wait(tree: _Tree, colours: _Colours, node: int) -> None:
    tree.heap.high[node] = colours.uses.shape[0] + 1 - colours.free[node]
    tree.heap.low[node] = tree.weight[node]
    place_item(tree.heap, node)


@inner()
def _give(graph: Graph, tree: _Tree, colours: _Colours, node: int, colour: int) -> Any:
    """Give a node a colour; return a neighbour that has none left, -1 if all have."""
    colours.of[node] = colour
    colours.uses[colour] += 1
    left_without: Any = -1
    for edge in range(graph.start[node], graph.start[node + 1]):
        near = np.int64(graph.neighbour[edge])
        colours.near[near, colour] += 1
        if colours.near[near, colour] > 1:
            continue
        colours.free[near] -= 1
        if colours.of[near] < 0:
            _wait(tree, colours, near)
            if colours.free[near] == 0:
                left_without = near
    return left_without


@inner()
def _take_back(graph: Graph, tree: _Tree, colours: _Colours, node: int) -> None:
    colour = colours.of[node]
    colours.of[node] = -1
    colours.uses[colour] -= 1
    for edge in range(graph.start[node], graph.start[node + 1]):
        near = np.int64(graph.neighbour[edge])
        colours.near[near, colour] -= 1
        if colours.near[near, colour] == 0:
            colours.free[near] += 1
            if colours.of[near] < 0:
                _wait(tree, colours, near)


@inner(inline="always")
def _descend(tree: _Tree, depth: Any) -> None:
    """Choose the first node of those that wait for a depth."""
    node = np.int64(tree.heap.items[0])
    tree.node[depth] = node
    tree.tried[depth] = 0
    tree.opened[depth] = False
    tree.met[node] = True
    tree.heap.high[node] = 0
    tree.heap.low[node] = 0
    place_item(tree.heap, node)


@inner(inline="always")
def _next_colour(tree: _Tree, colours: _Colours, depth: Any) -> Any:
    """Return the next colour to try, -1 if none is left; of those in no use one stands for all."""
    node = tree.node[depth]
    while tree.tried[depth] < colours.uses.shape[0]:
        colour = np.int64(tree.order[node, tree.tried[depth]])
        tree.tried[depth] += 1
        unused = colours.uses[colour] == 0
        if colours.near[node, colour] == 0 and not (unused and tree.opened[depth]):
            tree.opened[depth] |= unused
            return colour
    return -1


@njit(nogil=True, cache=True, makes_arrays=False)
def _search(graph: Graph, tree: _Tree, colours: _Colours, most: int) -> tuple[int, int]:
    """Return the depth that was reached, -1 where there is no colouring, and the steps taken."""
    n = colours.of.shape[0]
    for at in range(n):
        _wait(tree, colours, at)
    steps = 0
    depth = 0
    _descend(tree, depth)
    while steps < most:
        node = np.int64(tree.node[depth])
        colour = _next_colour(tree, colours, depth)
        if colour < 0:
            _wait(tree, colours, node)
            depth -= 1
            if depth < 0:
                break
            _take_back(graph, tree, colours, np.int64(tree.node[depth]))
            continue
        steps += 1 + graph.start[node + 1] - graph.start[node]
        left_without = _give(graph, tree, colours, node, colour)
        if left_without >= 0:
            tree.weight[left_without] += 1
            tree.met[left_without] = True
            _take_back(graph, tree, colours, node)
        elif depth == n - 1:
            return n, steps
        else:
            depth += 1
            _descend(tree, depth)
    return depth, steps


class Search(NamedTuple):
    """What came of a search."""

    steps: int
    labels: LabelArray | None = None  # the colour of every node; None where none was found
    proof: LabelArray | None = None  # nodes that alone have no colouring; None without a proof


def search_once(graph: Graph, order: AnyArray, weight: IntArray, most: int) -> Search:
    """Search for a colouring within so many steps; `weight` learns which nodes were in the way.

    `order` holds all colours of each node, (n, K), in the order in which they are tried. A step is
    a node that gets a colour, or a neighbour of it.
    """
    n, n_colours = order.shape
    if n == 0:
        return Search(0, np.zeros(0, np.int32))
    of, free = np.full(n, -1, np.int32), np.full(n, n_colours, np.int32)
    near, uses = np.zeros((n, n_colours), np.int32), np.zeros(n_colours, np.int32)
    node, tried = np.empty((2, n), np.int32)
    opened, met = np.zeros((2, n), np.bool_)
    heap, trying = empty_heap(n, True), frozen(order, np.int32)
    tree = _Tree(trying, node, tried, opened=opened, weight=weight, met=met, heap=heap)
    depth, steps = _search(graph, tree, _Colours(of, near, free, uses), most)
    if depth == n:
        return Search(steps, of)
    return Search(steps, proof=np.flatnonzero(met).astype(np.int32) if depth < 0 else None)


class _Conflicts(NamedTuple):
    """The nodes that have a neighbour of their own colour."""

    nodes: LabelArray  # (n,): the first ``size[0]``
    place: LabelArray  # (n,): where a node stands among them, -1 of all others
    size: IntArray  # (1,)


@inner()
def _list(conflicts: _Conflicts, colours: _Colours, node: int) -> None:
    """Put a node among those in conflict, or take it out."""
    place = conflicts.place[node]
    if (colours.near[node, colours.of[node]] > 0) == (place >= 0):
        return
    if place < 0:
        conflicts.nodes[conflicts.size[0]] = node
        conflicts.place[node] = conflicts.size[0]
        conflicts.size[0] += 1
        return
    conflicts.size[0] -= 1
    last = conflicts.nodes[conflicts.size[0]]
    conflicts.nodes[place] = last
    conflicts.place[last] = place
    conflicts.place[node] = -1


@inner(inline="always")
def _drawn(state: Any) -> Any:
    """Return the next state of a sequence of pseudo-random numbers (Knuth's MMIX), and 31 bits."""
    state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return state, np.int64(state >> np.uint64(33))


@njit(nogil=True, cache=True, makes_arrays=False)
def _walk(
    graph: Graph, colours: _Colours, conflicts: _Conflicts, state: Any, uphill: int, most: int
) -> int:
    """Change nodes in conflict until none is or the steps are used up; return the steps."""
    n_colours = colours.uses.shape[0]
    for at in range(colours.of.shape[0]):
        state, number = _drawn(state)
        colours.of[at] = number % n_colours
        for edge in range(graph.start[at], graph.start[at + 1]):
            colours.near[graph.neighbour[edge], colours.of[at]] += 1
    for at in range(colours.of.shape[0]):
        _list(conflicts, colours, at)
    steps = 0
    while conflicts.size[0] > 0 and steps < most:
        state, number = _drawn(state)
        node = np.int64(conflicts.nodes[number % conflicts.size[0]])
        state, number = _drawn(state)
        old = np.int64(colours.of[node])
        new = (old + 1 + number % (n_colours - 1)) % n_colours
        more = colours.near[node, new] - colours.near[node, old]
        steps += 1
        while more > 0:
            state, number = _drawn(state)
            if number >= uphill:
                break
            more -= 1
        if more > 0:
            continue
        colours.of[node] = new
        for edge in range(graph.start[node], graph.start[node + 1]):
            near = np.int64(graph.neighbour[edge])
            colours.near[near, old] -= 1
            colours.near[near, new] += 1
            _list(conflicts, colours, near)
            steps += 1
        _list(conflicts, colours, node)
    return steps


def walk(graph: Graph, n_colours: int, number: int, most: int) -> Search:
    """Change one node in conflict after the other, within so many steps.

    A node and a colour are drawn, and the change is made if it brings no more conflicts, else now
    and then (`UPHILL`). What is drawn depends on the `number` of the walk alone. A step is a colour
    that is drawn, or a neighbour of a node that changes.
    """
    n = len(graph.start) - 1
    if n_colours < 2:
        return Search(0)
    of, free, nodes = np.zeros((3, n), np.int32)
    near, uses = np.zeros((n, n_colours), np.int32), np.zeros(n_colours, np.int32)
    conflicts = _Conflicts(nodes, np.full(n, -1, np.int32), np.zeros(1, np.int64))
    uphill = int(UPHILL[number % len(UPHILL)] * 2**31)
    colours = _Colours(of, near, free, uses)
    steps = _walk(graph, colours, conflicts, np.uint64(number), uphill=uphill, most=most)
    return Search(steps, of if conflicts.size[0] == 0 else None)


@njit(nogil=True, cache=True, makes_arrays=False)
def _place_after(
    graph: Graph, sums: IntArray, order: IntArray, labels: LabelArray, taken: IntArray
) -> None:
    for at in range(order.shape[0] - 1, -1, -1):
        node = order[at]
        for edge in range(graph.start[node], graph.start[node + 1]):
            if labels[graph.neighbour[edge]] >= 0:
                taken[labels[graph.neighbour[edge]]] = node
        best = -1
        for h in range(taken.shape[0]):
            if taken[h] != node and (best < 0 or sums[node, h] < sums[node, best]):
                best = h
        labels[node] = best


def search(graph: Graph, sums: IntArray, retries: int) -> Search:
    """Search for a colouring of a graph, depth first and by a walk in turn, each time longer.

    Only nodes with K neighbours in a part of the graph where all have so many (the K-core) can be
    in the way; all others get the cheapest colour that is left, after these. `sums`, (n, K), say
    what each colour costs. The first search tries the cheapest colours first; all that comes after
    it does not depend on `sums`, and so finds the same whatever they are.
    """
    n_colours = sums.shape[1]
    peeling, numbers = smallest_last(graph)
    core = np.flatnonzero(numbers >= n_colours)
    after = peeling[numbers[peeling] < n_colours]
    inside, steps = subgraph(graph, core), 0
    for tried in _attempts(inside, np.argsort(sums[core], axis=1, kind="stable"), retries):
        steps += tried.steps
        if tried.proof is not None:
            return Search(steps, proof=core[tried.proof].astype(np.int32))
        if tried.labels is not None:
            labels, taken = np.full(len(sums), -1, np.int32), np.full(n_colours, -1, np.int64)
            labels[core] = tried.labels
            _place_after(graph, frozen(sums, np.int64), after, labels, taken)
            return Search(steps, labels)
    return Search(steps)


def _attempts(graph: Graph, order: IntArray, retries: int) -> Iterator[Search]:
    """Yield what comes of one attempt after the other."""
    weight = np.zeros(len(order), np.int64)
    for number in range(1 + retries):
        size = len(order) + len(graph.neighbour)
        most = STEPS * size + MORE_STEPS * (1 + number)
        yield search_once(graph, order, weight, most)
        yield walk(graph, order.shape[1], number, WALK * most)
        if number == 0:
            order, weight = np.sort(order, axis=1), np.zeros_like(weight)


def critical_part(graph: Graph, n_colours: int, nodes: LabelArray) -> LabelArray:
    """Return a part of some nodes without a colouring that has none either, the smaller the better.

    Without any node of it there is one, unless `CRITICAL_STEPS` do not show that.

    Examples
    --------
    >>> from hmrf_dask.kernels.graphs import graph_of
    >>> triangle_with_tail = graph_of(4, np.array([[0, 1], [1, 2], [0, 2], [2, 3]]))
    >>> critical_part(triangle_with_tail, 2, np.arange(4, dtype=np.int32)).tolist()
    [0, 1, 2]
    """
    part, left, at = subgraph(graph, nodes), CRITICAL_STEPS, 0
    while at < len(nodes) and left > 0:
        others = np.delete(np.arange(len(nodes)), at)
        smaller = subgraph(part, others)
        order = np.tile(np.arange(n_colours, dtype=np.int32), (len(others), 1))
        tried = search_once(smaller, order, np.zeros(len(others), np.int64), MORE_STEPS)
        left -= tried.steps + len(part.neighbour)
        if tried.proof is None:
            at += 1
            continue
        kept = others[tried.proof]
        part, nodes, at = subgraph(part, kept), nodes[kept], int((kept < at).sum())
    return nodes
