"""First variation (Hartigan moves): the exact change of J by a row's move, centroids re-optimised.

This module finds the best move of each row alone against frozen sums; moves of whole groups, and
moves made one after the other, are in `kernels.set_moves`.
"""

from __future__ import annotations

import numpy as np

from hmrf_dask.kernels.arrays import frozen
from hmrf_dask.kernels.compiled import inner, njit
from hmrf_dask.kernels.set_moves import Moves, apply_moves, group_gains
from hmrf_dask.kernels.worths import (
    ACCEPT,
    Summands,
    Ties,
    cluster_squares,
    make_summands,
    make_ties,
    summands,
    worth_of,
)
from hmrf_dask.types import BoolArray, FloatArray, IntArray, LabelArray

__all__ = [
    "Moves",
    "Summands",
    "Ties",
    "apply_moves",
    "cluster_squares",
    "group_gains",
    "single_gains",
    "summands",
]


@inner(inline="always")
def _single_products(rows, i, columns, metric, unit, products):  # type: ignore[no-untyped-def]
    """Write z_i · S_h for every cluster; return ‖z_i‖²."""
    for h in range(products.shape[0]):
        products[h] = 0.0
    length = 0.0
    for p in range(rows.start[i], rows.start[i + 1]):
        m = rows.column[p]
        value = np.float64(rows.entry[p]) * unit
        weighted = value * metric[m]
        length += weighted * value
        column = columns[m]
        for h in range(products.shape[0]):
            products[h] += weighted * column[h]
    return length


@inner(inline="always")
def _best_target(own, length, products, costs, squares, counts, directional):  # type: ignore[no-untyped-def]
    """Return the largest gain of one row above its threshold, and its target (0, own: none)."""
    leaving = worth_of(directional, squares[own], counts[own]) - worth_of(
        directional, squares[own] - 2.0 * products[own] + length, counts[own] - 1
    )
    best = 0.0
    target = own
    for h in range(products.shape[0]):
        if h != own:
            worth = worth_of(directional, squares[h], counts[h])
            joined = worth_of(directional, squares[h] + 2.0 * products[h] + length, counts[h] + 1)
            gain = joined - worth - leaving - (costs[h] - costs[own])
            if gain > best and gain > ACCEPT * (1.0 + worth):
                best = gain
                target = np.int32(h)
    return best, target


@njit(nogil=True, cache=True, makes_arrays=False)
def _single_gains(  # type: ignore[no-untyped-def]
    rows,
    columns,
    metric,
    unit,
    squares,
    counts,
    directional,
    labels,
    ties,
    tie_labels,
    skip,
    room,
    gains,
    targets,
):
    products, costs = room[0], room[1]
    for h in range(costs.shape[0]):
        costs[h] = 0.0
    tied = ties.start.shape[0] > 0
    for i in range(labels.shape[0]):
        own = labels[i]
        if skip[i] or counts[own] < 2:
            continue
        length = _single_products(rows, i, columns, metric, unit, products)
        if tied:
            for h in range(costs.shape[0]):
                costs[h] = 0.0
            for p in range(ties.start[i], ties.start[i + 1]):
                costs[tie_labels[ties.neighbour[p]]] += ties.cost[p]
        gains[i], targets[i] = _best_target(
            own, length, products, costs, squares, counts, directional
        )


def single_gains(
    rows: Summands,
    columns: FloatArray,
    metric: FloatArray,
    exponent: int,
    squares: FloatArray,
    counts: IntArray,
    directional: bool,
    labels: LabelArray,
    skip: BoolArray,
    ties: Ties | None = None,
    tie_labels: LabelArray | None = None,
) -> tuple[FloatArray, LabelArray]:
    """Return the best gain of each row alone against frozen sums, and its target; 0: none gains.

    `columns` are the sums as float64, shape (d + 1, K).
    """
    gains = np.zeros(len(labels))
    targets = np.array(labels, np.int32)
    sums = (frozen(columns, np.float64), frozen(metric, np.float64), 2.0**-exponent)
    clusters = (frozen(squares, np.float64), frozen(counts, np.int64), bool(directional))
    place = frozen(labels if tie_labels is None else tie_labels, np.int32)
    own = (frozen(labels, np.int32), make_ties(ties), place, frozen(skip, np.bool_))
    room = np.empty((2, columns.shape[1]))
    _single_gains(make_summands(rows), *sums, *clusters, *own, room, gains, targets)
    return gains, targets
