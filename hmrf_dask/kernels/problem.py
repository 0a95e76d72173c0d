"""ICM problems as kernels see them, linear in the pairs, and first labels of must-link groups."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import frozen, inner, njit
from hmrf_dask.kernels.exact import add_limbs, join_limbs
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray


class ProblemArrays(NamedTuple):
    """Points ``first .. first + n`` of a component, with their pairs.

    Row i of cost is c[h] = (costs[i, h] << shift) + sum of the signed costs of i's neighbours whose
    label is h. A difference of two entries is the exact change of the energy by a move of i.

    Attributes
    ----------
    first : int
        Global index of the first point; 0 when the whole component is held.
    costs : int32 array, shape (n, K)
        Distortions, each row with its minimum subtracted.
    shift : int
        ``costs << shift`` is in the units of the pairs.
    start : int64 array, shape (n + 1,)
        Where the half-edges of a point begin.
    neighbour : int32 array
        Global index of the other end.
    cost : int64 array
        Cost of equal labels: negative for a must-link, positive for a cannot-link.
    """

    first: int
    costs: AnyArray
    shift: int
    start: AnyArray
    neighbour: AnyArray
    cost: AnyArray


class Grouping(NamedTuple):
    """Must-link groups: the group of every point, and the members of each group (global index).

    Attributes
    ----------
    of : int32 array, shape (n,)
        Group of every point of the component.
    start : int64 array, shape (number of groups + 1,)
        Where the members of a group begin.
    member : int32 array
        Members, ascending within a group.
    """

    of: AnyArray
    start: AnyArray
    member: AnyArray


def make_problem(
    first: int,
    costs: AnyArray,
    shift: int,
    start: AnyArray,
    neighbour: AnyArray,
    cost: AnyArray,
) -> ProblemArrays:
    """Return `ProblemArrays` of arrays in the one form the kernels are compiled for."""
    return ProblemArrays(
        int(first),
        frozen(costs, np.int32),
        int(shift),
        frozen(start, np.int64),
        frozen(neighbour, np.int32),
        frozen(cost, np.int64),
    )


def make_grouping(of: AnyArray, start: AnyArray, member: AnyArray) -> Grouping:
    """Return `Grouping` of arrays in the one form the kernels are compiled for."""
    return Grouping(frozen(of, np.int32), frozen(start, np.int64), frozen(member, np.int32))


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
    """Return the symmetric CSR form of a list of pairs.

    Parameters
    ----------
    n : int
        Number of points.
    first, second : int array, shape (pairs,)
        Ends of the pairs, ``first != second``.
    cost : int64 array, shape (pairs,)
        Signed cost of equal labels.

    Returns
    -------
    start : int64 array, shape (n + 1,)
    neighbour : int32 array, shape (2 pairs,)
    cost : int64 array, shape (2 pairs,)

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


@njit(nogil=True, cache=True, makes_arrays=False)
def _energy(labels: LabelArray, problem: ProblemArrays, high: IntArray, low: IntArray) -> None:
    for point in range(problem.costs.shape[0]):
        me = problem.first + point
        add_limbs(high, low, 0, np.int64(problem.costs[point, labels[me]]) << problem.shift)
        for edge in range(problem.start[point], problem.start[point + 1]):
            neighbour = problem.neighbour[edge]
            if neighbour > me and labels[neighbour] == labels[me]:
                add_limbs(high, low, 0, problem.cost[edge])


def energy(labels: LabelArray, problem: ProblemArrays) -> int:
    """Return the exact energy of `labels` up to a constant: costs plus signed costs of equal pairs.

    A must-link of penalty p costs −p when satisfied, so the energy of the paper is this plus the
    sum of all must-link penalties. Each pair counts where its lower end lies: pieces add up.

    Examples
    --------
    >>> start, neighbour, cost = adjacency(2, np.array([0]), np.array([1]), np.array([-9]))
    >>> problem = make_problem(0, np.array([[0, 5], [4, 0]]), 0, start, neighbour, cost)
    >>> energy(np.array([0, 1], np.int32), problem), energy(np.array([0, 0], np.int32), problem)
    (0, -5)
    """
    high, low = np.zeros(1, np.int64), np.zeros(1, np.int64)
    _energy(labels, problem, high, low)
    return join_limbs(high[0], low[0])


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
def _members(grouping: Grouping, group: Any) -> Any:
    return grouping.member[grouping.start[group] : grouping.start[group + 1]]


@inner()
def _add_rows(costs: LabelArray, members: LabelArray, first: int, total: IntArray) -> None:
    """Add the cost rows of members; `first` is the one of the first row."""
    for at in range(members.shape[0]):
        for h in range(total.shape[0]):
            total[h] += costs[members[at] - first, h]


@inner(inline="always")
def _cheapest_free(total: Any, taken: AnyArray, present: int) -> Any:
    """Return the cheapest cluster that is not taken: a tie goes to `present`, then to the lowest.

    -1 where all are taken and `present` is negative.
    """
    best = np.int64(present)
    for h in range(total.shape[0]):
        if taken[h] == 0 and (best < 0 or total[h] < total[best]):
            best = np.int64(h)
    return best


@njit(nogil=True, cache=True, makes_arrays=False)
def _place_apart(
    costs: LabelArray,
    rivalry: Rivalry,
    order: IntArray,
    labels: LabelArray,
    total: IntArray,
    taken: AnyArray,
    blocked: IntArray,
) -> None:
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
        best = np.int32(0)
        for h in range(1, total.shape[0]):
            if total[h] < total[best]:
                best = np.int32(h)
        for t in range(members.shape[0]):
            labels[members[t]] = best


def place_jointly(problem: ProblemArrays, grouping: Grouping) -> LabelArray:
    """Return a first labelling: groups by size, each where it costs least next to those placed.

    `problem` and `grouping` are of whole components; every point has a group.

    Examples
    --------
    >>> start, neighbour, cost = adjacency(2, np.array([0]), np.array([1]), np.array([9]))
    >>> problem = make_problem(0, np.array([[0, 2], [0, 5]]), 0, start, neighbour, cost)
    >>> place_jointly(problem, make_grouping([0, 1], [0, 1, 2], [0, 1])).tolist()
    [0, 1]
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
    """Return the summed int32 cost rows of some groups' own points, exact below 2**31 points.

    Examples
    --------
    >>> costs = np.array([[1, 2], [3, 4], [5, 6]])
    >>> distortion_sums(costs, np.array([0, 2, 3]), np.array([0, 2, 1]), first=0).tolist()
    [[6, 8], [3, 4]]
    """
    arrays = frozen(costs, np.int32), frozen(start, np.int64), frozen(member, np.int32)
    sums = np.zeros((len(start) - 1, costs.shape[1]), np.int64)
    _sums(*arrays, int(first), sums)
    return sums


@njit(nogil=True, cache=True, makes_arrays=False)
def _place_nearest(
    costs: LabelArray,
    start: IntArray,
    member: LabelArray,
    first: int,
    total: IntArray,
    labels: LabelArray,
) -> None:
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
