"""First variation of sets of rows: must-link groups proposed, moves applied one after the other.

The members of a set go to one cluster together, wherever they lie: the gain counts what leaves each
cluster and what joins the target. Moves are applied in order, each checked on the sums of then.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import former, inner, njit
from hmrf_dask.kernels.first_variation import (
    ACCEPT,
    ClusterSums,
    Gains,
    Known,
    PairCosts,
    Summands,
    known_of,
    make_clusters,
    worth_of,
)
from hmrf_dask.types import BoolArray, FloatArray, IntArray, LabelArray


class SetMoves(NamedTuple):
    """Proposed moves, best first: each takes the rows start[t] .. start[t + 1] to `target`."""

    start: IntArray
    row: LabelArray
    target: LabelArray


_make_moves = former(SetMoves)


class _State(NamedTuple):
    """What changes when moves are made."""

    labels: LabelArray
    sums: IntArray
    squares: FloatArray
    counts: IntArray


class _Buffers(NamedTuple):
    """A sum of rows, the columns it touches and their marks; marks of places.

    Of every cluster the number of rows that leave it, and the clusters that rows leave, in order.
    """

    total: FloatArray
    touched: IntArray
    marked: BoolArray
    chosen: BoolArray
    leavers: IntArray
    left: IntArray


@inner(inline="always")
def _load(rows: Summands, row: Any, unit: Any, buffers: _Buffers, n_touched: Any) -> Any:
    """Add a row to the dense sum, remembering which columns it touches."""
    total, touched, marked = buffers.total, buffers.touched, buffers.marked
    for p in range(rows.start[row], rows.start[row + 1]):
        m = rows.column[p]
        if not marked[m]:
            marked[m] = True
            touched[n_touched] = m
            n_touched += 1
        total[m] += np.float64(rows.entry[p]) * unit
    return n_touched


@inner(inline="always")
def _unload(clusters: Any, h: Any, buffers: _Buffers, n_touched: Any) -> Any:
    """Return z · S_h and ‖z‖² of the dense sum z, and clear it."""
    total, touched, marked = buffers.total, buffers.touched, buffers.marked
    product = 0.0
    length = 0.0
    for t in range(n_touched):
        m = touched[t]
        weighted = clusters.metric[m] * total[m]
        product += weighted * np.float64(clusters.sums[h, m]) * clusters.unit
        length += weighted * total[m]
        total[m] = 0.0
        marked[m] = False
    return product, length


@inner(inline="always")
def _change_of(
    h: Any, members: LabelArray, target: int, n_rows: Any, known: Known, buffers: _Buffers
) -> Any:
    """Return how the worth of one cluster changes: the target's by all that join it."""
    clusters, labels, places = known.clusters, known.labels, known.places
    joins = h == target
    n_touched = 0
    for row in members:
        if (labels[places[row]] == h) != joins:
            n_touched = _load(known.rows, row, clusters.unit, buffers, n_touched)
    product, length = _unload(clusters, h, buffers, n_touched)
    square, count = clusters.squares[h], clusters.counts[h]
    sign = 1 if joins else -1
    after = square + sign * 2.0 * product + length
    changed = worth_of(clusters.directional, after, count + sign * n_rows)
    return changed - worth_of(clusters.directional, square, count)


@inner()
def _set_gain(members: LabelArray, target: int, known: Known, buffers: _Buffers) -> tuple[Any, ...]:
    """Return (gain, threshold) of moving `members`; gain −1: it empties a cluster or moves none."""
    clusters, labels, places = known.clusters, known.labels, known.places
    leavers = buffers.leavers
    for a in range(leavers.shape[0]):
        leavers[a] = 0
    moving = 0
    for row in members:
        if labels[places[row]] != target:
            leavers[labels[places[row]]] += 1
            moving += 1
    worth = worth_of(clusters.directional, clusters.squares[target], clusters.counts[target])
    threshold = ACCEPT * (1.0 + worth) * members.shape[0]
    if moving == 0:
        return -1.0, threshold
    for a in range(leavers.shape[0]):
        if leavers[a] > 0 and leavers[a] >= clusters.counts[a]:
            return -1.0, threshold
    gain = 0.0
    for a in range(leavers.shape[0]):
        n_rows = moving if a == target else leavers[a]
        if n_rows > 0:
            gain += _change_of(a, members, target, n_rows, known, buffers)
    if known.pairs.start.shape[0] > 0:
        gain -= _set_cost(members, target, known, buffers.chosen)
    return gain, threshold


@inner(inline="always")
def _set_cost(members: LabelArray, target: int, known: Known, chosen: Any) -> Any:
    """Return the change of the pair costs when all `members` go to `target`."""
    labels, places, pairs = known.labels, known.places, known.pairs
    change = 0.0
    for row in members:
        chosen[places[row]] = True
    for row in members:
        own = labels[places[row]]
        for p in range(pairs.start[row], pairs.start[row + 1]):
            neighbour = pairs.neighbour[p]
            before = pairs.cost[p] if labels[neighbour] == own else 0.0
            if chosen[neighbour]:  # both move and end together; each end counts half
                change += 0.5 * (pairs.cost[p] - before)
            else:
                change += (pairs.cost[p] if labels[neighbour] == target else 0.0) - before
    for row in members:
        chosen[places[row]] = False
    return change


@inner(inline="always")
def _move_set(members: LabelArray, target: int, known: Known, state: _State) -> None:
    rows, places = known.rows, known.places
    metric, unit = known.clusters.metric, known.clusters.unit
    labels, sums, squares, counts = state
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


@njit(nogil=True, cache=True, makes_arrays=False)
def _apply(
    moves: SetMoves, known: Known, buffers: _Buffers, state: _State, accepted: BoolArray
) -> None:
    for t in range(accepted.shape[0]):
        members = moves.row[moves.start[t] : moves.start[t + 1]]
        target = np.int64(moves.target[t])
        gain, threshold = _set_gain(members, target, known, buffers)
        accepted[t] = gain > max(threshold, 0.0)
        if accepted[t]:
            _move_set(members, target, known, state)


def _buffers_for(known: Known) -> _Buffers:
    n_clusters, n_columns = known.clusters.sums.shape
    return _Buffers(
        np.zeros(n_columns),
        np.empty(n_columns, np.int64),
        np.zeros(n_columns, np.bool_),
        np.zeros(len(known.labels), np.bool_),
        *np.empty((2, n_clusters), np.int64),
    )


def apply_moves(
    moves: SetMoves,
    rows: Summands,
    places: LabelArray,
    labels: LabelArray,
    clusters: ClusterSums,
    pair_costs: PairCosts | None = None,
) -> tuple[BoolArray, ClusterSums]:
    """Apply moves in order, each re-checked on the sums after those before it.

    `labels` change in place. `places[row]` is where a row's label stands in `labels`, which also
    holds the labels of neighbours that do not move. Returned are which moves were accepted, and the
    sums after them.
    """
    state = _State(labels, clusters.sums.copy(), clusters.squares.copy(), clusters.counts.copy())
    # Frozen arrays are views: they show what is written to the state. Columns would not follow.
    after = make_clusters(
        sums=state.sums,
        metric=clusters.metric,
        unit=clusters.unit,
        squares=state.squares,
        columns=np.empty((0, 0)),
        counts=state.counts,
        directional=clusters.directional,
    )
    known = known_of(rows, places, labels, after, pair_costs)
    accepted = np.zeros(len(moves.target), np.bool_)
    _apply(_make_moves(*moves), known, _buffers_for(known), state, accepted)
    return accepted, after


class _ByTarget(NamedTuple):
    """What moving a set to each cluster would bring."""

    joining: FloatArray  # (K,): the change of the cluster's worth
    leaving: FloatArray  # (K,): the same of a cluster by what leaves it, wherever that goes
    cost: FloatArray  # (K,): the change of what pairs cost


@inner(inline="always")
def _all_joining(members: LabelArray, known: Known, buffers: _Buffers, joining: Any) -> None:
    """Write the change of every cluster's worth when all `members` join it from elsewhere."""
    clusters, total, touched = known.clusters, buffers.total, buffers.touched
    n_touched = 0
    for row in members:
        n_touched = _load(known.rows, row, clusters.unit, buffers, n_touched)
    for h in range(joining.shape[0]):
        joining[h] = 0.0
    length = 0.0
    for t in range(n_touched):
        m = touched[t]
        weighted = clusters.metric[m] * total[m]
        column = clusters.columns[m]
        for h in range(joining.shape[0]):
            joining[h] += weighted * column[h]
        length += weighted * total[m]
        total[m] = 0.0
        buffers.marked[m] = False
    for h in range(joining.shape[0]):
        square, count = clusters.squares[h], clusters.counts[h]
        after = square + 2.0 * joining[h] + length
        changed = worth_of(clusters.directional, after, count + members.shape[0])
        joining[h] = changed - worth_of(clusters.directional, square, count)


@inner(inline="always")
def _all_costs(members: LabelArray, known: Known, chosen: Any, cost: Any) -> None:
    """Write the change of the pair costs when all `members` go to each cluster, as `_set_cost`."""
    labels, places, pairs = known.labels, known.places, known.pairs
    for row in members:
        chosen[places[row]] = True
    for h in range(cost.shape[0]):
        cost[h] = 0.0
    for row in members:
        own = labels[places[row]]
        for p in range(pairs.start[row], pairs.start[row + 1]):
            there = labels[pairs.neighbour[p]]
            before = pairs.cost[p] if there == own else 0.0
            change = -before
            if chosen[pairs.neighbour[p]]:
                change = 0.5 * (pairs.cost[p] - before)
                there = np.int32(-1)
            elif there != own:
                cost[there] += pairs.cost[p]
            if change != 0.0:
                for h in range(cost.shape[0]):
                    cost[h] += change if h != there else 0.0
    for row in members:
        chosen[places[row]] = False


@inner(inline="always")
def _changes(members: LabelArray, known: Known, buffers: _Buffers, by_target: _ByTarget) -> Any:
    """Write what moving `members` to each cluster would bring; return (left, emptied).

    These are the number of clusters that they leave, which are noted in order, and of those
    that would be empty.
    """
    labels, places = known.labels, known.places
    leavers, left = buffers.leavers, buffers.left
    for h in range(leavers.shape[0]):
        leavers[h] = 0
    for row in members:
        leavers[labels[places[row]]] += 1
    _all_joining(members, known, buffers, by_target.joining)
    n_left, n_emptied = 0, 0
    for h in range(leavers.shape[0]):
        if leavers[h] > 0:
            left[n_left] = h
            n_left += 1
            n_emptied += leavers[h] >= known.clusters.counts[h]
            n_joining = members.shape[0] - leavers[h]
            by_target.joining[h] = _change_of(h, members, h, n_joining, known, buffers)
            by_target.leaving[h] = _change_of(h, members, -1, leavers[h], known, buffers)
    return n_left, n_emptied


@inner(inline="always")
def _added(h: Any, by_target: _ByTarget, left: Any) -> Any:
    """Return the change of all worths by a move to a cluster, added up by cluster."""
    gain, joined = 0.0, False
    for a in left:
        if not joined and a >= h:
            gain += by_target.joining[h]
            joined = True
        if a != h:
            gain += by_target.leaving[a]
    return gain if joined else gain + by_target.joining[h]


@njit(nogil=True, cache=True, makes_arrays=False)
def _group_gains(
    groups: SetMoves, known: Known, buffers: _Buffers, by_target: _ByTarget, out: Gains
) -> None:
    """Find the best move of each group, to any cluster; the bits are those of `_set_gain`."""
    clusters, cost = known.clusters, by_target.cost
    leavers, left = buffers.leavers, buffers.left
    for t in range(out.gain.shape[0]):
        members = groups.row[groups.start[t] : groups.start[t + 1]]
        n_left, n_emptied = _changes(members, known, buffers, by_target)
        _all_costs(members, known, buffers.chosen, cost)
        for h in range(cost.shape[0]):
            emptied = leavers[h] > 0 and leavers[h] >= clusters.counts[h]
            if leavers[h] == members.shape[0] or n_emptied > emptied:
                continue
            gain = _added(h, by_target, left[:n_left]) - cost[h]
            worth = worth_of(clusters.directional, clusters.squares[h], clusters.counts[h])
            if gain > ACCEPT * (1.0 + worth) * members.shape[0] and gain > out.gain[t]:
                out.gain[t], out.target[t] = gain, h


def group_gains(
    starts: IntArray,
    members: LabelArray,
    rows: Summands,
    labels: LabelArray,
    clusters: ClusterSums,
    pair_costs: PairCosts,
) -> Gains:
    """Return the best gain of moving each whole group against frozen sums, and its target.

    Where none gains they are 0 and −1.
    """
    places, n_groups = np.arange(len(labels), dtype=np.int32), len(starts) - 1
    groups = _make_moves(starts, members, np.empty(0, np.int32))
    known = known_of(rows, places, labels, clusters, pair_costs)
    by_target = _ByTarget(*np.empty((3, len(clusters.counts))))
    out = Gains(np.zeros(n_groups), np.full(n_groups, -1, np.int32))
    _group_gains(groups, known, _buffers_for(known), by_target, out)
    return out
