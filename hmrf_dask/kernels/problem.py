"""ICM problems as kernels see them, linear in the pairs, and first labels of must-link groups."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import former, frozen, inner, njit
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray

STEP = 2**18  # sums of groups that are held at a time


class ProblemArrays(NamedTuple):
    """Points ``first .. first + n`` of a component, with their pairs.

    Row i of cost is c[h] = (costs[i, h] << shift) + sum of the signed costs of i's neighbours whose
    label is h. A difference of two entries is the exact change of the energy by a move of i.
    """

    first: int  # global index of the first point; 0 when the whole component is held
    costs: LabelArray  # (n, K): distortions, each row with its minimum subtracted
    shift: int  # ``costs << shift`` is in the units of the pairs
    start: IntArray  # (n + 1,): where the half-edges of a point begin
    neighbour: LabelArray  # global index of the other end
    cost: IntArray  # cost of equal labels: negative for a must-link, positive for a cannot-link


class Grouping(NamedTuple):
    """Must-link groups: the group of every point, and the members of each group (global index)."""

    of: LabelArray  # (n,): group of every point of the component
    start: IntArray  # (number of groups + 1,): where the members of a group begin
    member: LabelArray  # members, ascending within a group


make_problem, make_grouping = former(ProblemArrays), former(Grouping)


@njit(nogil=True, cache=True, makes_arrays=False)
def _adjacency(
    first: LabelArray,
    second: LabelArray,
    cost: IntArray,
    free: IntArray,
    neighbour: LabelArray,
    costs: IntArray,
) -> None:
    """Write the half-edges; `free` says where the next one of each point goes."""
    for edge in range(first.shape[0]):
        i = first[edge]
        j = second[edge]
        neighbour[free[i]] = j
        costs[free[i]] = cost[edge]
        free[i] += 1
        neighbour[free[j]] = i
        costs[free[j]] = cost[edge]
        free[j] += 1


def adjacency(
    n: int, first: AnyArray, second: AnyArray, cost: AnyArray
) -> tuple[IntArray, LabelArray, IntArray]:
    """Return start, neighbour and cost of the symmetric CSR form of a list of pairs of n points.

    The ends of a pair are different, its cost is the signed one of equal labels.

    Examples
    --------
    >>> adjacency(3, np.array([0, 1]), np.array([1, 2]), np.array([-5, 7]))[1].tolist()
    [1, 0, 2, 1]
    """
    ends = frozen(first, np.int32), frozen(second, np.int32)
    start = np.zeros(n + 1, np.int64)
    for end in ends:
        start[1:] += np.bincount(end, minlength=n)
    np.cumsum(start, out=start)
    neighbour, costs = np.empty(start[n], np.int32), np.empty(start[n], np.int64)
    _adjacency(*ends, frozen(cost, np.int64), start[:-1].copy(), neighbour, costs)
    return start, neighbour, costs


@inner()
def fill_row(row: IntArray, labels: LabelArray, problem: ProblemArrays, point: int) -> None:
    """Write the costs of all clusters for a local point, given its neighbours' labels."""
    for h in range(row.shape[0]):
        row[h] = np.int64(problem.costs[point, h]) << problem.shift
    for edge in range(problem.start[point], problem.start[point + 1]):
        row[labels[problem.neighbour[edge]]] += problem.cost[edge]


@inner()
def best_cluster(row: IntArray, present: int) -> int:
    """Return the cheapest cluster: a tie goes to the present one, then to the lowest."""
    least = row[present]
    for h in range(row.shape[0]):  # without branches: most often the present one is the cheapest
        least = min(least, row[h])
    if row[present] == least:
        return present
    target = 0
    while row[target] != least:
        target += 1
    return target


@inner(inline="always")
def _members(grouping: Grouping, group: Any) -> Any:
    return grouping.member[grouping.start[group] : grouping.start[group + 1]]


@inner()
def _add_rows(costs: LabelArray, members: LabelArray, first: int, total: IntArray) -> None:
    """Add the cost rows of members; `first` is the one of the first row."""
    for at in range(members.shape[0]):
        for h in range(total.shape[0]):
            total[h] += costs[members[at] - first, h]


@inner(inline="always")
def _add_point(
    total: Any, labels: LabelArray, problem: ProblemArrays, unit: Any, point: int
) -> None:
    """Add what each cluster costs a point, with its pairs to points that have a label."""
    for h in range(total.shape[0]):
        total[h] += unit * problem.costs[point, h]
    for edge in range(problem.start[point], problem.start[point + 1]):
        h = labels[problem.neighbour[edge]]
        if h >= 0:
            total[h] += problem.cost[edge]


@njit(nogil=True, cache=True, makes_arrays=False)
def _place_jointly(
    problem: ProblemArrays,
    unit: float,
    grouping: Grouping,
    order: IntArray,
    labels: LabelArray,
    total: FloatArray,
) -> None:
    for g in order:
        total[:] = 0.0
        members = _members(grouping, g)
        for t in range(members.shape[0]):
            _add_point(total, labels, problem, unit, members[t])
        best = best_cluster(total, 0)
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
def _sums(
    costs: LabelArray, start: IntArray, member: LabelArray, first: int, sums: IntArray
) -> None:
    for group in range(sums.shape[0]):
        _add_rows(costs, member[start[group] : start[group + 1]], first, sums[group])


def distortion_sums(costs: AnyArray, start: IntArray, member: LabelArray, first: int) -> IntArray:
    """Return the summed int32 cost rows of some groups' own points, exact below 2**31 points."""
    arrays = frozen(costs, np.int32), frozen(start, np.int64), frozen(member, np.int32)
    sums = np.zeros((len(start) - 1, costs.shape[1]), np.int64)
    _sums(*arrays, int(first), sums)
    return sums


def place_nearest(
    labels: LabelArray, costs: AnyArray, start: IntArray, member: LabelArray, first: int
) -> None:
    """Put groups that lie wholly in a piece where their summed costs are least, pairs aside.

    `first` is the point of the first row; `labels` are of the rows.
    """
    step = max(1, STEP // costs.shape[1])
    for begin in range(0, len(start) - 1, step):
        ends = start[begin : begin + step + 1]
        goals = distortion_sums(costs, ends, member, first).argmin(axis=1)
        labels[member[ends[0] : ends[-1]] - first] = np.repeat(goals, np.diff(ends))
