"""Linked rows as ICM sees them: integer costs and signed costs of pairs, linear in the pairs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import frozen
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.exact import add_limbs, join_limbs
from hmrf_dask.types import AnyArray, IntArray, LabelArray


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
def _adjacency(first, second, cost, free, neighbour, costs):  # type: ignore[no-untyped-def]
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
def fill_row(row, labels, problem, point):  # type: ignore[no-untyped-def]
    """Write the costs of all clusters for a local point, given its neighbours' labels."""
    for h in range(row.shape[0]):
        row[h] = np.int64(problem.costs[point, h]) << problem.shift
    for edge in range(problem.start[point], problem.start[point + 1]):
        row[labels[problem.neighbour[edge]]] += problem.cost[edge]


@inner()
def best_cluster(row, present):  # type: ignore[no-untyped-def]
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
def _energy(labels, problem, high, low):  # type: ignore[no-untyped-def]
    for point in range(problem.costs.shape[0]):
        me = problem.first + point
        add_limbs(high, low, 0, np.int64(problem.costs[point, labels[me]]) << problem.shift)
        for edge in range(problem.start[point], problem.start[point + 1]):
            other = problem.neighbour[edge]
            if other > me and labels[other] == labels[me]:
                add_limbs(high, low, 0, problem.cost[edge])


def energy(labels: LabelArray, problem: ProblemArrays) -> int:
    """Return the exact energy of `labels` up to a constant: costs plus signed costs of equal pairs.

    A must-link of penalty p costs −p when satisfied, so the energy of the paper is this plus the
    sum of all must-link penalties. Each pair counts where its lower end lies: pieces add up.
    """
    high, low = np.zeros(1, np.int64), np.zeros(1, np.int64)
    _energy(labels, problem, high, low)
    return join_limbs(high[0], low[0])
