"""First variation of single rows and what it is made of, as in kernels.worths and variation."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from hmrf_dask.kernels.plain.pieces import ENTRIES, pieces, row_sums, silent, spans
from hmrf_dask.kernels.plain.sums import rounded
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, LabelArray

_ACCEPT = 1e-10  # as in kernels.worths


def cluster_squares(sums: IntArray, metric: FloatArray, unit: float, out: FloatArray) -> None:
    """Write ‖S_h‖² of each cluster in the metric."""
    n_columns = sums.shape[1]
    for h in range(len(sums)):
        value = sums[h].astype(np.float64) * unit
        out[h] = row_sums(metric * value * value, np.array([0, n_columns], np.int64))[0]


@silent
def summands(
    rows: Any,
    factor: FloatArray,
    extra: FloatArray,
    features: FloatArray,
    centred: bool,
    unit: float,
    start: IntArray,
    column: LabelArray,
    entry: IntArray,
) -> None:
    """Write rows as summands, each with the centring column last where rows are centred."""
    start[:] = rows.indptr + (np.arange(len(start)) if centred else 0)
    for piece in pieces(rows):
        first = int(start[piece.rows.start])
        scaled = piece.spread(piece.of(factor) * unit) * features[piece.features]
        places = first + np.arange(len(piece.values))
        if centred:
            places += piece.spread(np.arange(piece.n_rows))
            last = start[piece.rows.start + 1 : piece.rows.stop + 1] - 1
            column[last] = len(features)
            entry[last] = rounded(piece.of(extra) * unit)
        column[places] = piece.features
        entry[places] = rounded(scaled * piece.values)


def _worth(directional: bool, square: AnyArray, count: AnyArray) -> FloatArray:
    square = np.where(square > 0.0, square, 0.0)
    if directional:
        return np.sqrt(square)
    return np.where(count > 0, square / np.maximum(count, 1), 0.0)


@silent
def single_gains(
    rows: Any,
    columns: FloatArray,
    metric: FloatArray,
    unit: float,
    squares: FloatArray,
    counts: IntArray,
    directional: bool,
    labels: LabelArray,
    ties: Any,
    tie_labels: LabelArray,
    skip: BoolArray,
    _room: FloatArray,
    gains: FloatArray,
    targets: LabelArray,
) -> None:
    """Write the best gain of each row alone against frozen sums, and its target."""
    able = ~skip & (counts[labels] >= 2)
    for first, last in spans(np.diff(rows.start), ENTRIES, 4 * ENTRIES // columns.shape[1]):
        begin, end = rows.start[first], rows.start[last]
        indptr = rows.start[first : last + 1] - begin
        features = rows.column[begin:end]
        value = rows.entry[begin:end].astype(np.float64) * unit
        weighted = value * metric[features]
        matrix = scipy.sparse.csr_array(
            (weighted, features, indptr), shape=(last - first, len(columns))
        )
        costs = _tie_costs(ties, tie_labels, first, last, columns.shape[1])
        found = _best_targets(
            matrix @ columns, row_sums(weighted * value, indptr), costs, squares, counts,
            directional, labels[first:last],
        )  # fmt: skip
        chosen = np.flatnonzero(able[first:last])
        gains[first + chosen], targets[first + chosen] = found[0][chosen], found[1][chosen]


def _tie_costs(ties: Any, labels: LabelArray, first: int, last: int, n_clusters: int) -> FloatArray:
    """Return the signed costs of pairs of each row by cluster."""
    costs = np.zeros((last - first, n_clusters))
    if len(ties.start):
        span = slice(ties.start[first], ties.start[last])
        row = np.repeat(np.arange(last - first), np.diff(ties.start[first : last + 1]))
        np.add.at(costs, (row, labels[ties.neighbour[span]]), ties.cost[span])
    return costs


def _best_targets(
    products: FloatArray,
    length: FloatArray,
    costs: FloatArray,
    squares: FloatArray,
    counts: IntArray,
    directional: bool,
    own: LabelArray,
) -> tuple[FloatArray, LabelArray]:
    """Return the largest gain of each row above its threshold, and its target (0, own: none)."""
    every = np.arange(len(own))
    left = squares[own] - 2.0 * products[every, own] + length
    leaving = _worth(directional, squares[own], counts[own])
    leaving = leaving - _worth(directional, left, counts[own] - 1)
    worth = _worth(directional, squares, counts)
    joined = _worth(directional, squares + 2.0 * products + length[:, None], counts + 1)
    gain = joined - worth - leaving[:, None] - (costs - costs[every, own][:, None])
    gain[~(gain > _ACCEPT * (1.0 + worth))] = 0.0
    gain[every, own] = 0.0
    best = gain.argmax(axis=1)
    return gain[every, best], np.where(gain[every, best] > 0.0, best, own).astype(np.int32)
