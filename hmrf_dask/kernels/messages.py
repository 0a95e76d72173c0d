"""Min-sum belief propagation on linked rows, all messages at once, in the integers of ICM.

The energy is that of `hmrf_dask.kernels.icm`. A point sends each neighbour what every cluster of
that neighbour would cost itself and all behind it (KDD 2004 names the method). A pair only depends
on whether two labels are equal, so a message reads K numbers, not K × K. It is exact where the
pairs form a tree; on a loop costs are counted again and again, so what comes of it is polished by
ICM, and taken only where it lowers the energy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import former, frozen, inner, njit
from hmrf_dask.kernels.exact import add_limbs
from hmrf_dask.kernels.icm import icm
from hmrf_dask.kernels.problem import Grouping, ProblemArrays, best_cluster
from hmrf_dask.types import AnyArray, BoolArray, IntArray, LabelArray

# Undamped passes: a tree of at most this diameter is exact. Loops begin to oscillate, and are
# damped from then on. A component that stands still stays so, whatever shares its task.
FREE_PASSES, DAMPED_PASSES = 32, 32


class Edges(NamedTuple):
    """The pairs, one entry for any two points, ascending: ends and signed costs of equal labels."""

    first: LabelArray
    second: LabelArray
    cost: IntArray


_edges = former(Edges)


def make_edges(start: AnyArray, neighbour: AnyArray, cost: AnyArray) -> Edges:
    """Return the pairs of an adjacency; several of the same two points are one, or a loop."""
    n = len(start) - 1
    point = np.repeat(np.arange(n, dtype=np.int64), np.diff(start))
    once = point < neighbour
    keys, place = np.unique(point[once] * n + neighbour[once], return_inverse=True)
    total = np.zeros(len(keys), np.int64)
    np.add.at(total, place, cost[once])
    return _edges(*np.divmod(keys, max(n, 1)), total)


@inner(inline="always")
def _nearer(wanted: Any, before: LabelArray, damped: Any) -> Any:
    """Return a message; of a damped one half of the way, rounded up so that it arrives."""
    step = wanted - before
    if damped:
        return wanted - (step // 2 if step >= 0 else -(-step // 2))
    return wanted


@inner(inline="always")
def _wanted(above: Any, second: Any, cost: Any) -> Any:
    """Return what a cluster costs that lies `above` the sender's best one, which is at 0."""
    if cost < 0:
        return above if above < -cost else -cost
    if above > 0:
        return 0
    return second if second < cost else cost


@inner(inline="always")
def _two_least(belief: Any, message: Any) -> Any:
    """Return the least and the second least of beliefs without what a message adds to them."""
    least = belief[0] - message[0]
    second = np.int64(2**62)
    for h in range(1, belief.shape[0]):
        value = belief[h] - message[h]
        second = min(second, max(least, value))
        least = min(least, value)
    return least, second


@njit(nogil=True, cache=True, makes_arrays=False)
def exchange(edges: Edges, beliefs: IntArray, messages: IntArray, damped: bool) -> int:
    """Renew every message from the beliefs of before; return how many numbers changed.

    `messages` are of shape (pairs, 2, K), first to second and back, each with least 0. Beliefs are
    those of the messages before and stay as they are, so the order of the pairs does not matter.
    """
    changed = 0
    for edge in range(edges.first.shape[0]):
        first, last, cost = edges.first[edge], edges.second[edge], edges.cost[edge]
        least, second = _two_least(beliefs[first], messages[edge, 1])
        least_back, second_back = _two_least(beliefs[last], messages[edge, 0])
        for h in range(beliefs.shape[1]):
            there, back = messages[edge, 0, h], messages[edge, 1, h]
            above = beliefs[first, h] - back - least
            above_back = beliefs[last, h] - there - least_back
            wanted = _wanted(above, second - least, cost)
            messages[edge, 0, h] = _nearer(wanted, there, damped)
            wanted = _wanted(above_back, second_back - least_back, cost)
            messages[edge, 1, h] = _nearer(wanted, back, damped)
            changed += (messages[edge, 0, h] != there) + (messages[edge, 1, h] != back)
    return changed


@njit(nogil=True, cache=True, makes_arrays=False)
def believe(
    edges: Edges, costs: LabelArray, shift: int, messages: IntArray, beliefs: IntArray
) -> None:
    """Write what each cluster costs a point and, by their messages, its neighbours."""
    for point in range(costs.shape[0]):
        for h in range(costs.shape[1]):
            beliefs[point, h] = np.int64(costs[point, h]) << shift
    for edge in range(edges.first.shape[0]):
        first, second = edges.first[edge], edges.second[edge]
        for h in range(costs.shape[1]):
            beliefs[second, h] += messages[edge, 0, h]
            beliefs[first, h] += messages[edge, 1, h]


@njit(nogil=True, cache=True, makes_arrays=False)
def settle(beliefs: IntArray, labels: LabelArray) -> None:
    """Give each point its cheapest cluster: a tie goes to the present one, then to the lowest."""
    for point in range(labels.shape[0]):
        labels[point] = best_cluster(beliefs[point], labels[point])


def believed(labels: LabelArray, problem: ProblemArrays, edges: Edges) -> LabelArray:
    """Return the labels that belief propagation ends with; those of before decide ties only.

    The problem is one of whole components. Where their pairs form trees of at most `FREE_PASSES`
    pairs across, the labels are those of the least energy if only one has it: points decide by
    themselves, so of several they may mix two.
    """
    costs = problem.costs
    beliefs = np.empty(costs.shape, np.int64)
    messages = np.zeros((len(edges.first), 2, costs.shape[1]), np.int64)
    believe(edges, costs, problem.shift, messages, beliefs)
    for number in range(FREE_PASSES + DAMPED_PASSES if costs.shape[1] > 1 else 0):
        changed = exchange(edges, beliefs, messages, number >= FREE_PASSES)
        if not changed:
            break
        believe(edges, costs, problem.shift, messages, beliefs)
    settled = labels.copy()
    settle(beliefs, settled)
    return settled


@njit(nogil=True, cache=True, makes_arrays=False)
def _add_changes(
    before: LabelArray,
    after: LabelArray,
    problem: ProblemArrays,
    edges: Edges,
    component: LabelArray,
    high: IntArray,
    low: IntArray,
) -> None:
    """Add what new labels change of each component's energy."""
    costs = problem.costs
    for point in range(costs.shape[0]):
        change = np.int64(costs[point, after[point]]) - np.int64(costs[point, before[point]])
        add_limbs(high, low, component[point], change << problem.shift)
    for edge in range(edges.first.shape[0]):
        first, second = edges.first[edge], edges.second[edge]
        if before[first] == before[second]:
            add_limbs(high, low, component[first], -edges.cost[edge])
        if after[first] == after[second]:
            add_limbs(high, low, component[first], edges.cost[edge])


def lowered(
    before: LabelArray,
    after: LabelArray,
    problem: ProblemArrays,
    edges: Edges,
    component: LabelArray,
) -> BoolArray:
    """Return of each component whether the labels `after` cost less than those `before`, exactly.

    `component` holds the number of each point's.
    """
    n_components = int(component.max(initial=-1)) + 1
    high, low = np.zeros((2, n_components), np.int64)
    labels = frozen(before, np.int32), frozen(after, np.int32)
    _add_changes(*labels, problem, edges, frozen(component, np.int32), high=high, low=low)
    return high < 0


def propagate(
    labels: LabelArray, problem: ProblemArrays, grouping: Grouping, component: LabelArray
) -> int:
    """Settle each component by belief propagation and ICM after it, or else by ICM alone.

    What belief propagation ends with is polished by ICM and taken where it costs less than the
    labels that are there; other components go to where ICM leads from those. So no energy rises.
    Labels change in place, as in `icm`; returned is in how many components belief propagation was
    taken.
    """
    edges = make_edges(problem.start, problem.neighbour, problem.cost)
    polished = believed(labels, problem, edges)
    icm(polished, problem, grouping)
    taken = lowered(labels, polished, problem, edges, component)
    np.copyto(labels, polished, where=taken[component])
    icm(labels, problem, grouping)  # where it ended already nothing moves
    return int(taken.sum())
