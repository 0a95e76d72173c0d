"""Must-link groups one after the other to the nearest cluster that breaks no cannot-link."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.arrays import frozen
from hmrf_dask.kernels.compiled import njit
from hmrf_dask.types import AnyArray, IntArray, LabelArray


class Rivalry(NamedTuple):
    """Groups of points, and which must not share a cluster.

    Attributes
    ----------
    group_start : int64 array, shape (n_groups + 1,)
    group_member : int32 array, points of each group
    component : int32 array, shape (n_groups,), over both kinds of pairs
    start : int64 array, shape (n_groups + 1,)
        Where the cannot-links of a group begin.
    rival : int32 array, the group at the other end
    pair : int64 array, the number of each cannot-link
    """

    group_start: AnyArray
    group_member: AnyArray
    component: AnyArray
    start: AnyArray
    rival: AnyArray
    pair: AnyArray


@njit(nogil=True, cache=True, makes_arrays=False)
def _place(  # type: ignore[no-untyped-def]
    costs, group_start, group_member, component, start, rival, order, labels, total, taken, blocked
):
    for t in range(order.shape[0]):
        g = order[t]
        if blocked[component[g]] >= 0:
            continue
        for h in range(total.shape[0]):
            total[h] = 0
            taken[h] = 0
        for p in range(start[g], start[g + 1]):
            if labels[rival[p]] >= 0:
                taken[labels[rival[p]]] = 1
        for t_member in range(group_start[g], group_start[g + 1]):
            i = group_member[t_member]
            for h in range(total.shape[0]):
                total[h] += costs[i, h]
        best = np.int64(labels[g])
        for h in range(total.shape[0]):
            if taken[h] == 0 and (best < 0 or total[h] < total[best]):
                best = np.int64(h)
        if best < 0:
            blocked[component[g]] = g
        else:
            labels[g] = np.int32(best)


def place(
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
    n_clusters = costs.shape[1]
    _place(
        frozen(costs, np.int32), frozen(rivalry.group_start, np.int64),
        frozen(rivalry.group_member, np.int32), frozen(rivalry.component, np.int32),
        frozen(rivalry.start, np.int64), frozen(rivalry.rival, np.int32), frozen(order, np.int64),
        labels, np.empty(n_clusters, np.int64), np.empty(n_clusters, np.int8), blocked,
    )  # fmt: skip
    return blocked
