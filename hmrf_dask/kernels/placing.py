"""First labels of must-link groups: each group whole, to the cluster where it costs least."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import frozen
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.problem import Grouping, ProblemArrays
from hmrf_dask.types import AnyArray, IntArray, LabelArray


class Rivalry(NamedTuple):
    """Groups of points, and which must not share a cluster.

    Attributes
    ----------
    groups : Grouping
    component : int32 array, shape (n_groups,), over both kinds of pairs
    start : int64 array, shape (n_groups + 1,)
        Where the cannot-links of a group begin.
    rival : int32 array, the group at the other end
    pair : int64 array, the number of each cannot-link
    """

    groups: Grouping
    component: AnyArray
    start: AnyArray
    rival: AnyArray
    pair: AnyArray


def make_rivalry(
    groups: Grouping, component: AnyArray, start: AnyArray, rival: AnyArray, pair: AnyArray
) -> Rivalry:
    """Return `Rivalry` of arrays in the one form the kernels are compiled for."""
    return Rivalry(
        groups,
        frozen(component, np.int32),
        frozen(start, np.int64),
        frozen(rival, np.int32),
        frozen(pair, np.int64),
    )


@inner(inline="always")
def _members(grouping, group):  # type: ignore[no-untyped-def]
    return grouping.member[grouping.start[group] : grouping.start[group + 1]]


@inner()
def _add_rows(costs, members, first, total):  # type: ignore[no-untyped-def]
    """Add the cost rows of members; `first` is the one of the first row."""
    for at in range(members.shape[0]):
        for h in range(total.shape[0]):
            total[h] += costs[members[at] - first, h]


@inner(inline="always")
def _cheapest_free(total, taken, present):  # type: ignore[no-untyped-def]
    """Return the cheapest cluster that is not taken: a tie goes to `present`, then to the lowest.

    -1 where all are taken and `present` is negative.
    """
    best = np.int64(present)
    for h in range(total.shape[0]):
        if taken[h] == 0 and (best < 0 or total[h] < total[best]):
            best = np.int64(h)
    return best


@njit(nogil=True, cache=True, makes_arrays=False)
def _place_apart(costs, rivalry, order, labels, total, taken, blocked):  # type: ignore[no-untyped-def]
    for t in range(order.shape[0]):
        g = order[t]
        if blocked[rivalry.component[g]] >= 0:
            continue
        total[:] = 0
        taken[:] = 0
        for p in range(rivalry.start[g], rivalry.start[g + 1]):
            if labels[rivalry.rival[p]] >= 0:
                taken[labels[rivalry.rival[p]]] = 1
        _add_rows(costs, _members(rivalry.groups, g), 0, total)
        best = _cheapest_free(total, taken, labels[g])
        if best < 0:
            blocked[rivalry.component[g]] = g
        else:
            labels[g] = np.int32(best)


def place_apart(
    costs: LabelArray, rivalry: Rivalry, order: IntArray, labels: LabelArray, n_components: int
) -> IntArray:
    """Give groups, in this order, the cheapest cluster that no rival has; ties: present, lowest.

    Parameters
    ----------
    costs : int32 array, shape (n_points, K)
    rivalry : Rivalry
    order : int64 array
        The groups to place.
    labels : int32 array, shape (n_groups,)
        Labels of the groups, -1 for none; they are changed.
    n_components : int

    Returns
    -------
    int64 array, shape (n_components,)
        The group of each component that had no cluster left, where the component was given up; -1
        for none.
    """
    blocked = np.full(n_components, -1, np.int64)
    total, taken = np.empty(costs.shape[1], np.int64), np.empty(costs.shape[1], np.int8)
    rows, groups = frozen(costs, np.int32), frozen(order, np.int64)
    _place_apart(rows, rivalry, groups, labels, total, taken=taken, blocked=blocked)
    return blocked


@inner(inline="always")
def _add_point(total, labels, problem, unit, point):  # type: ignore[no-untyped-def]
    """Add what each cluster costs a point, with its pairs to points that have a label."""
    for h in range(total.shape[0]):
        total[h] += unit * problem.costs[point, h]
    for edge in range(problem.start[point], problem.start[point + 1]):
        h = labels[problem.neighbour[edge]]
        if h >= 0:
            total[h] += problem.cost[edge]


@njit(nogil=True, cache=True, makes_arrays=False)
def _place_jointly(problem, unit, grouping, order, labels, total):  # type: ignore[no-untyped-def]
    for g in order:
        total[:] = 0.0
        members = _members(grouping, g)
        for t in range(members.shape[0]):
            _add_point(total, labels, problem, unit, members[t])
        best = np.int32(0)
        for h in range(1, total.shape[0]):
            if total[h] < total[best]:
                best = np.int32(h)
        for t in range(members.shape[0]):
            labels[members[t]] = best


def place_jointly(problem: ProblemArrays, grouping: Grouping) -> LabelArray:
    """Return a first labelling: groups by size, each where it costs least next to those placed.

    `problem` and `grouping` are of whole components; every point has a group.
    """
    sizes = np.diff(grouping.start)
    order = np.lexsort((np.arange(len(sizes)), -sizes))
    labels = np.full(len(problem.costs), -1, np.int32)
    total = np.empty(problem.costs.shape[1])
    _place_jointly(problem, 2.0**problem.shift, grouping, order, labels, total)
    return labels


@njit(nogil=True, cache=True, makes_arrays=False)
def _sums(costs, start, member, first, sums):  # type: ignore[no-untyped-def]
    for group in range(sums.shape[0]):
        _add_rows(costs, member[start[group] : start[group + 1]], first, sums[group])


def distortion_sums(costs: AnyArray, start: IntArray, member: LabelArray, first: int) -> IntArray:
    """Return the summed int32 cost rows of some groups' own points, exact below 2**31 points."""
    arrays = frozen(costs, np.int32), frozen(start, np.int64), frozen(member, np.int32)
    sums = np.zeros((len(start) - 1, costs.shape[1]), np.int64)
    _sums(*arrays, int(first), sums)
    return sums


@njit(nogil=True, cache=True, makes_arrays=False)
def _place_nearest(costs, start, member, first, total, labels):  # type: ignore[no-untyped-def]
    for group in range(start.shape[0] - 1):
        total[:] = 0
        members = member[start[group] : start[group + 1]]
        _add_rows(costs, members, first, total)
        best = 0
        for h in range(1, total.shape[0]):
            if total[h] < total[best]:
                best = h
        for at in range(members.shape[0]):
            labels[members[at] - first] = best


def place_nearest(
    labels: LabelArray, costs: AnyArray, start: IntArray, member: LabelArray, first: int
) -> None:
    """Put groups that lie wholly in a piece where their summed costs are least, pairs aside.

    `first` is the point of the first row; `labels` are of the rows.
    """
    arrays = frozen(costs, np.int32), frozen(start, np.int64), frozen(member, np.int32)
    _place_nearest(*arrays, int(first), np.empty(costs.shape[1], np.int64), labels)
