"""Min-sum belief propagation on linked rows, all messages at once, in the integers of ICM.

The energy is that of `hmrf_dask.kernels.icm`. A point tells each neighbour what every cluster of
that neighbour would cost itself and all behind it (KDD 2004 names the method). A pair only cares
whether two labels are equal, so a message takes one look at K numbers, not at K × K. It is exact
where the pairs form a tree; on a loop costs are counted again and again, so what comes of it is
polished by ICM, and taken only where it lowers the energy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import frozen
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.icm import icm
from hmrf_dask.kernels.limbs import add_limbs
from hmrf_dask.kernels.problem import best_cluster
from hmrf_dask.types import AnyArray, BoolArray, IntArray, LabelArray

# Passes as they come: a tree of at most this diameter is exact. Loops begin to swing, and are
# damped from then on. A component that stands still stays so, whoever is packed beside it.
FREE_PASSES, DAMPED_PASSES = 32, 32


class Edges(NamedTuple):
    """The pairs, one entry for any two points, ascending: ends and signed costs of equal labels."""

    first: AnyArray
    second: AnyArray
    cost: AnyArray


def make_edges(start: AnyArray, neighbour: AnyArray, cost: AnyArray) -> Edges:
    """Return the pairs of an adjacency; several of the same two points are one, or a loop."""
    n = len(start) - 1
    point = np.repeat(np.arange(n, dtype=np.int64), np.diff(start))
    once = point < neighbour
    keys, place = np.unique(point[once] * n + neighbour[once], return_inverse=True)
    total = np.zeros(len(keys), np.int64)
    np.add.at(total, place, cost[once])
    first, second = np.divmod(keys, max(n, 1))
    return Edges(frozen(first, np.int32), frozen(second, np.int32), frozen(total, np.int64))


@inner(inline="always")
def _nearer(wanted, before, damped):  # type: ignore[no-untyped-def]
    """Return a message; of a damped one half of the way, rounded up so that it arrives."""
    step = wanted - before
    if damped:
        return wanted - (step // 2 if step >= 0 else -(-step // 2))
    return wanted


@inner(inline="always")
def _wanted(apart, second, cost):  # type: ignore[no-untyped-def]
    """Return what a cluster costs `apart` from the sender's best one, which is 0 apart."""
    if cost < 0:
        return apart if apart < -cost else -cost
    if apart > 0:
        return 0
    return second if second < cost else cost


@njit(nogil=True, cache=True, makes_arrays=False)
def exchange(edges, beliefs, messages, damped):  # type: ignore[no-untyped-def]
    """Renew every message from the beliefs of before; return how many numbers changed.

    `messages` are of shape (pairs, 2, K), first to second and back, each with least 0. Beliefs are
    those of the messages before and stay as they are, so the order of the pairs does not matter.
    """
    changed = 0
    for edge in range(edges.first.shape[0]):
        one, other, cost = edges.first[edge], edges.second[edge], edges.cost[edge]
        least = beliefs[one, 0] - messages[edge, 1, 0]
        least_back = beliefs[other, 0] - messages[edge, 0, 0]
        second = second_back = np.int64(2**62)
        for h in range(1, beliefs.shape[1]):
            value = beliefs[one, h] - messages[edge, 1, h]
            if value < least:
                least, second = value, least
            elif value < second:
                second = value
            value = beliefs[other, h] - messages[edge, 0, h]
            if value < least_back:
                least_back, second_back = value, least_back
            elif value < second_back:
                second_back = value
        for h in range(beliefs.shape[1]):
            there, back = messages[edge, 0, h], messages[edge, 1, h]
            apart, apart_back = (
                beliefs[one, h] - back - least,
                beliefs[other, h] - there - least_back,
            )
            wanted = _wanted(apart, second - least, cost)
            messages[edge, 0, h] = _nearer(wanted, there, damped)
            wanted = _wanted(apart_back, second_back - least_back, cost)
            messages[edge, 1, h] = _nearer(wanted, back, damped)
            changed += (messages[edge, 0, h] != there) + (messages[edge, 1, h] != back)
    return changed


@njit(nogil=True, cache=True, makes_arrays=False)
def believe(edges, costs, shift, messages, beliefs):  # type: ignore[no-untyped-def]
    """Write what each cluster costs a point and, by their messages, its neighbours."""
    for point in range(costs.shape[0]):
        for h in range(costs.shape[1]):
            beliefs[point, h] = np.int64(costs[point, h]) << shift
    for edge in range(edges.first.shape[0]):
        one, other = edges.first[edge], edges.second[edge]
        for h in range(costs.shape[1]):
            beliefs[other, h] += messages[edge, 0, h]
            beliefs[one, h] += messages[edge, 1, h]


@njit(nogil=True, cache=True, makes_arrays=False)
def settle(beliefs, labels):  # type: ignore[no-untyped-def]
    """Give each point its cheapest cluster: a tie goes to the present one, then to the lowest."""
    for point in range(labels.shape[0]):
        labels[point] = best_cluster(beliefs[point], labels[point])


def believed(labels: LabelArray, costs: AnyArray, shift: int, edges: Edges) -> LabelArray:
    """Return the labels that belief propagation ends with.

    Parameters
    ----------
    labels : int32 array, shape (n,)
        The present ones: they decide ties, and nothing else.
    costs, shift
        As in `hmrf_dask.kernels.icm.heap_moves`.
    edges : Edges

    Returns
    -------
    int32 array, shape (n,)
        Where the pairs form trees of at most `FREE_PASSES` pairs across, one of the least energy
        if only one has it: points decide by themselves, so of several they may mix two.
    """
    costs = frozen(costs, np.int32)
    beliefs = np.empty(costs.shape, np.int64)
    messages = np.zeros((len(edges.first), 2, costs.shape[1]), np.int64)
    believe(edges, costs, shift, messages, beliefs)
    for number in range(FREE_PASSES + DAMPED_PASSES if costs.shape[1] > 1 else 0):
        changed = exchange(edges, beliefs, messages, number >= FREE_PASSES)
        if not changed:
            break
        believe(edges, costs, shift, messages, beliefs)
    found = labels.copy()
    settle(beliefs, found)
    return found


@njit(nogil=True, cache=True, makes_arrays=False)
def _add_changes(before, after, costs, shift, edges, component, high, low):  # type: ignore[no-untyped-def]
    """Add what new labels change of each component's energy."""
    for point in range(costs.shape[0]):
        change = np.int64(costs[point, after[point]]) - np.int64(costs[point, before[point]])
        add_limbs(high, low, component[point], change << shift)
    for edge in range(edges.first.shape[0]):
        one, other = edges.first[edge], edges.second[edge]
        if before[one] == before[other]:
            add_limbs(high, low, component[one], -edges.cost[edge])
        if after[one] == after[other]:
            add_limbs(high, low, component[one], edges.cost[edge])


def lowered(
    before: LabelArray,
    after: LabelArray,
    costs: AnyArray,
    shift: int,
    edges: Edges,
    component: LabelArray,
) -> BoolArray:
    """Return of each component whether the labels `after` cost less than those `before`, exactly.

    `component` holds the number of each point's.
    """
    n_components = int(component.max(initial=-1)) + 1
    high, low = np.zeros(n_components, np.int64), np.zeros(n_components, np.int64)
    labels = frozen(before, np.int32), frozen(after, np.int32)
    _add_changes(
        *labels, frozen(costs, np.int32), shift, edges, frozen(component, np.int32), high, low
    )
    return high < 0


def propagate(
    labels: LabelArray,
    costs: AnyArray,
    shift: int,
    start: AnyArray,
    neighbour: AnyArray,
    cost: AnyArray,
    groups: LabelArray,
    group_start: IntArray,
    group_member: LabelArray,
    component: LabelArray,
) -> int:
    """Settle each component by belief propagation and ICM after it, or else by ICM alone.

    What belief propagation finds is polished by ICM and taken where it costs less than the labels
    that are there; other components go to where ICM leads from those. So no energy rises.

    Parameters
    ----------
    labels, costs, shift, start, neighbour, cost, groups, group_start, group_member
        As in `hmrf_dask.kernels.icm.icm`; `labels` is changed in place.
    component : int32 array, shape (n,)
        Component of every point.

    Returns
    -------
    int
        In how many components belief propagation was taken.
    """
    problem = costs, shift, start, neighbour, cost, groups, group_start, group_member
    edges = make_edges(start, neighbour, cost)
    found = believed(labels, costs, shift, edges)
    icm(found, *problem)
    taken = lowered(labels, found, costs, shift, edges, component)
    np.copyto(labels, found, where=taken[component])
    icm(labels, *problem)  # where it ended already nothing moves
    return int(taken.sum())
