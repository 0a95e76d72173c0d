"""First variation (Hartigan moves): the exact change of J, centroids re-optimised, when a set of rows changes cluster.

A cluster is worth value(N², n): ‖S‖ for directional distortions, ‖S‖²/n for squared Euclidean; Σ D is a constant minus the sum of worths.
A row is its summand z in the columns of the sums; products use one weight a column (−Σa for the centring column of Pearson).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, LabelArray

ACCEPT = 1e-10  # of 1 + the receiving cluster's worth: below it a gain may be rounding


class Summands(NamedTuple):
    """Rows as summands in CSR form over the d + 1 columns of the sums, with their exact integer entries."""

    start: IntArray
    column: LabelArray
    entry: IntArray  # rint(z · 2**exponent), what the sums really hold


class Moves(NamedTuple):
    """Proposed moves, best first: each moves the rows start[t] .. start[t + 1] of `row` to `target`."""

    start: IntArray
    row: LabelArray
    target: LabelArray


class Ties(NamedTuple):
    """Signed pair costs of the rows (`row` CSR): cost of equal labels, neighbours as places in the label array."""

    start: IntArray
    neighbour: LabelArray
    cost: FloatArray


@njit(nogil=True, cache=True, inline="always")
def _worth(directional, square, count):  # type: ignore[no-untyped-def]
    square = max(square, 0.0)
    if directional:
        return np.sqrt(square)
    return square / count if count > 0 else 0.0


@njit(nogil=True, cache=True)
def _squares(sums, metric, unit, out):  # type: ignore[no-untyped-def]
    for h in range(sums.shape[0]):
        total = 0.0
        for m in range(sums.shape[1]):
            value = np.float64(sums[h, m]) * unit
            total += metric[m] * value * value
        out[h] = total


def cluster_squares(sums: IntArray, metric: FloatArray, exponent: int) -> FloatArray:
    """Return ‖S_h‖² of each cluster in the metric, shape (K,)."""
    out = np.empty(len(sums))
    _squares(sums, metric, 2.0**-exponent, out)
    return out


@njit(nogil=True, cache=True)
def _single_gains(rows, columns, metric, unit, squares, counts, directional, labels, ties, tie_labels, skip, gains, targets):  # type: ignore[no-untyped-def]
    n_clusters = columns.shape[1]
    products = np.empty(n_clusters)
    costs = np.zeros(n_clusters)
    for i in range(labels.shape[0]):
        own = labels[i]
        targets[i] = own
        gains[i] = 0.0
        if skip[i] or counts[own] < 2:
            continue
        products[:] = 0.0
        length = 0.0
        for p in range(rows.start[i], rows.start[i + 1]):
            m = rows.column[p]
            value = np.float64(rows.entry[p]) * unit
            weighted = value * metric[m]
            length += weighted * value
            column = columns[m]
            for h in range(n_clusters):
                products[h] += weighted * column[h]
        if ties.start.shape[0] > 0:
            costs[:] = 0.0
            for p in range(ties.start[i], ties.start[i + 1]):
                costs[tie_labels[ties.neighbour[p]]] += ties.cost[p]
        leaving = _worth(directional, squares[own], counts[own]) - _worth(
            directional, squares[own] - 2.0 * products[own] + length, counts[own] - 1
        )
        for h in range(n_clusters):
            if h == own:
                continue
            worth = _worth(directional, squares[h], counts[h])
            joined = _worth(directional, squares[h] + 2.0 * products[h] + length, counts[h] + 1)
            gain = joined - worth - leaving - (costs[h] - costs[own])
            if gain > gains[i] and gain > ACCEPT * (1.0 + worth):
                gains[i] = gain
                targets[i] = h


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
    """Return the best gain of each row alone against frozen sums (`columns`: (d + 1, K)), and its target; 0 where none gains."""
    gains = np.zeros(len(labels))
    targets = labels.copy()
    nothing = Ties(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0))
    _single_gains(
        rows, columns, metric, 2.0**-exponent, squares, counts, directional, labels, ties or nothing,
        tie_labels if tie_labels is not None else labels, skip, gains, targets,
    )  # fmt: skip
    return gains, targets


@njit(nogil=True, cache=True)
def _load(rows, row, unit, sign, scratch, touched, n_touched, marked):  # type: ignore[no-untyped-def]
    """Add a row to a dense scratch vector, remembering which columns it touches."""
    for p in range(rows.start[row], rows.start[row + 1]):
        m = rows.column[p]
        if not marked[m]:
            marked[m] = True
            touched[n_touched] = m
            n_touched += 1
        scratch[m] += sign * np.float64(rows.entry[p]) * unit
    return n_touched


@njit(nogil=True, cache=True)
def _set_gain(members, target, rows, places, labels, sums, metric, unit, squares, counts, directional, ties, chosen, scratch, touched, marked):  # type: ignore[no-untyped-def]
    """Return (gain, threshold) of moving all `members` to `target`; gain −1 when it would empty a cluster or move nobody."""
    n_clusters = sums.shape[0]
    leavers = np.zeros(n_clusters, np.int64)
    for row in members:
        leavers[labels[places[row]]] += 1
    leavers[target] = 0
    moving = leavers.sum()
    worth = _worth(directional, squares[target], counts[target])
    threshold = ACCEPT * (1.0 + worth) * len(members)
    if moving == 0:
        return -1.0, threshold
    for a in range(n_clusters):
        if leavers[a] > 0 and leavers[a] >= counts[a]:
            return -1.0, threshold
    # every part that leaves a cluster, then all of them together as they join
    gain = 0.0
    for a in range(n_clusters + 1):
        joining = a == n_clusters
        if not joining and leavers[a] == 0:
            continue
        n_touched = 0
        for row in members:
            label = labels[places[row]]
            if (joining and label != target) or label == a:
                n_touched = _load(rows, row, unit, 1.0, scratch, touched, n_touched, marked)
        cluster = target if joining else a
        product = 0.0
        length = 0.0
        for t in range(n_touched):
            m = touched[t]
            product += metric[m] * scratch[m] * np.float64(sums[cluster, m]) * unit
            length += metric[m] * scratch[m] * scratch[m]
            scratch[m] = 0.0
            marked[m] = False
        if joining:
            gain += _worth(directional, squares[target] + 2.0 * product + length, counts[target] + moving) - worth
        else:
            gain -= _worth(directional, squares[a], counts[a]) - _worth(
                directional, squares[a] - 2.0 * product + length, counts[a] - leavers[a]
            )
    if ties.start.shape[0] > 0:
        gain -= _set_cost(members, target, places, labels, ties, chosen)
    return gain, threshold


@njit(nogil=True, cache=True)
def _set_cost(members, target, places, labels, ties, chosen):  # type: ignore[no-untyped-def]
    """Return the change of the pair costs when all `members` go to `target`."""
    change = 0.0
    for row in members:
        chosen[places[row]] = True
    for row in members:
        own = labels[places[row]]
        for p in range(ties.start[row], ties.start[row + 1]):
            other = ties.neighbour[p]
            before = ties.cost[p] if labels[other] == own else 0.0
            if chosen[other]:  # both move and end together; each end counts half
                change += 0.5 * (ties.cost[p] - before)
            else:
                change += (ties.cost[p] if labels[other] == target else 0.0) - before
    for row in members:
        chosen[places[row]] = False
    return change


@njit(nogil=True, cache=True)
def _move_set(members, target, rows, places, labels, sums, metric, unit, squares, counts):  # type: ignore[no-untyped-def]
    for row in members:
        own = labels[places[row]]
        if own == target:
            continue
        leave = 0.0
        join = 0.0
        length = 0.0
        for p in range(rows.start[row], rows.start[row + 1]):
            m = rows.column[p]
            value = np.float64(rows.entry[p]) * unit
            length += metric[m] * value * value
            leave += metric[m] * value * np.float64(sums[own, m]) * unit
            join += metric[m] * value * np.float64(sums[target, m]) * unit
            sums[own, m] -= rows.entry[p]
            sums[target, m] += rows.entry[p]
        squares[own] += length - 2.0 * leave
        squares[target] += length + 2.0 * join
        counts[own] -= 1
        counts[target] += 1
        labels[places[row]] = target


@njit(nogil=True, cache=True)
def _apply(moves, rows, places, labels, sums, metric, unit, squares, counts, directional, ties, accepted):  # type: ignore[no-untyped-def]
    scratch = np.zeros(sums.shape[1])
    touched = np.empty(sums.shape[1], np.int64)
    marked = np.zeros(sums.shape[1], np.bool_)
    chosen = np.zeros(labels.shape[0], np.bool_)
    for t in range(moves.target.shape[0]):
        members = moves.row[moves.start[t] : moves.start[t + 1]]
        gain, threshold = _set_gain(
            members, moves.target[t], rows, places, labels, sums, metric, unit, squares, counts, directional, ties,
            chosen, scratch, touched, marked,
        )  # fmt: skip
        if gain > threshold:
            _move_set(members, moves.target[t], rows, places, labels, sums, metric, unit, squares, counts)
            accepted[t] = True


def apply_moves(
    moves: Moves,
    rows: Summands,
    places: LabelArray,
    labels: LabelArray,
    sums: IntArray,
    metric: FloatArray,
    exponent: int,
    counts: IntArray,
    directional: bool,
    ties: Ties | None = None,
) -> BoolArray:
    """Apply moves in order, each re-checked on the current sums; `labels`, `sums` and `counts` change in place.

    `places[row]` is where a row's label stands in `labels`, which also holds the labels of neighbours that do not move.
    """
    accepted = np.zeros(len(moves.target), np.bool_)
    squares = cluster_squares(sums, metric, exponent)
    nothing = Ties(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0))
    _apply(
        moves, rows, places, labels, sums, metric, 2.0**-exponent, squares, counts, directional, ties or nothing,
        accepted,
    )  # fmt: skip
    return accepted


@njit(nogil=True, cache=True)
def _group_gains(starts, members, rows, labels, sums, metric, unit, squares, counts, directional, ties, gains, targets):  # type: ignore[no-untyped-def]
    scratch = np.zeros(sums.shape[1])
    touched = np.empty(sums.shape[1], np.int64)
    marked = np.zeros(sums.shape[1], np.bool_)
    chosen = np.zeros(labels.shape[0], np.bool_)
    places = np.arange(labels.shape[0])
    for g in range(gains.shape[0]):
        group = members[starts[g] : starts[g + 1]]
        for h in range(sums.shape[0]):
            gain, threshold = _set_gain(
                group, h, rows, places, labels, sums, metric, unit, squares, counts, directional, ties, chosen, scratch,
                touched, marked,
            )  # fmt: skip
            if gain > threshold and gain > gains[g]:
                gains[g] = gain
                targets[g] = h


def group_gains(
    starts: IntArray,
    members: LabelArray,
    rows: Summands,
    labels: LabelArray,
    sums: IntArray,
    metric: FloatArray,
    exponent: int,
    counts: IntArray,
    directional: bool,
    ties: Ties,
) -> tuple[FloatArray, LabelArray]:
    """Return the best gain of moving each whole group against frozen sums, and its target; 0 where none gains."""
    gains = np.zeros(len(starts) - 1)
    targets = np.full(len(starts) - 1, -1, np.int32)
    squares = cluster_squares(sums, metric, exponent)
    _group_gains(
        starts, members, rows, labels, sums, metric, 2.0**-exponent, squares, counts, directional, ties, gains, targets
    )
    return gains, targets


@njit(nogil=True, cache=True)
def _summands(values, indices, indptr, dense, factor, extra, features, centred, unit, start, column, entry):  # type: ignore[no-untyped-def]
    filled = 0
    n_features = features.shape[0]
    for i in range(factor.shape[0]):
        start[i] = filled
        scaled = factor[i] * unit
        for p in range(indptr[i], indptr[i + 1]):
            m = p - indptr[i] if dense else indices[p]
            column[filled] = m
            entry[filled] = np.int64(np.rint(scaled * features[m] * values[p]))
            filled += 1
        if centred:
            column[filled] = n_features
            entry[filled] = np.int64(np.rint(extra[i] * unit))
            filled += 1
    start[factor.shape[0]] = filled


def summands(
    values: AnyArray,
    indices: AnyArray,
    indptr: AnyArray,
    dense: bool,
    factor: FloatArray,
    extra: FloatArray,
    features: FloatArray,
    exponent: int,
) -> Summands:
    """Return rows as summands, entry for entry what `kernels.sums` adds."""
    centred = bool(extra.any())
    size = len(values) + (len(factor) if centred else 0)
    out = Summands(np.zeros(len(factor) + 1, np.int64), np.empty(size, np.int32), np.empty(size, np.int64))
    _summands(values, indices, indptr, dense, factor, extra, features, centred, 2.0**exponent, *out)
    return out
