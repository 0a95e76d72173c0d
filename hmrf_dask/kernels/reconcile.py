"""ICM on a component in pieces: priority rounds, then hand-over; only sparse lists travel.

A piece holds the points ``first .. first + n`` with their costs and pairs; labels are of the whole
component. In a round a point moves if and only if its (gain, -index) beats every linked point that
also wants to move, so movers are never linked and their gains add up exactly. After `ROUNDS`
rounds the piece with the best proposal runs its own heap, one piece at a time. `advance` says what
is next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numba import njit

from hmrf_dask.kernels.links import best_cluster, fill_row, frozen, make_links
from hmrf_dask.types import AnyArray, IntArray, LabelArray

ROUNDS = 40  # random graphs of 1M points need 5 to 21; a chain would need one a point


class Phase(Enum):
    """What the pieces do next."""

    POINTS = "priority rounds of points"
    POINT_HANDOVER = "one piece at a time runs its heap of points"
    GROUPS = "priority rounds of groups"
    GROUP_HANDOVER = "one piece at a time runs its heap of groups"
    DONE = "neither a point nor a group can move with a gain"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a reconciliation stands.

    Attributes
    ----------
    phase : Phase
        What is being done.
    rounds : int
        Rounds done in this phase.
    groups_moved : bool
        Whether a group moved since points last settled.
    """

    phase: Phase = Phase.POINTS
    rounds: int = 0
    groups_moved: bool = False


def advance(progress: Progress, wanting: bool, rounds: int = ROUNDS) -> Progress:
    """Return the next state.

    Parameters
    ----------
    progress : Progress
        The present state.
    wanting : bool
        Whether any point (in a phase of points) or any group (in a phase of groups) wants to move.
        If so the caller does one step of the phase returned; if not, that phase begins anew.
    rounds : int
        Rounds before the hand-over.

    Examples
    --------
    >>> advance(advance(Progress(), wanting=False), wanting=False).phase.name
    'DONE'
    """
    of_points = progress.phase in (Phase.POINTS, Phase.POINT_HANDOVER)
    if progress.phase is Phase.DONE:
        return progress
    if not wanting and of_points:
        return Progress(Phase.GROUPS)
    if not wanting:
        return Progress(Phase.POINTS if progress.groups_moved else Phase.DONE)
    if progress.phase in (Phase.POINTS, Phase.GROUPS) and progress.rounds >= rounds:
        handover = Phase.POINT_HANDOVER if of_points else Phase.GROUP_HANDOVER
        return Progress(handover, 1, not of_points)
    return replace(progress, rounds=progress.rounds + 1, groups_moved=not of_points)


@njit(nogil=True, cache=True)
def _propose(labels, links, look):  # type: ignore[no-untyped-def]
    row = np.empty(links.costs.shape[1], np.int64)
    targets = np.empty(look.shape[0], np.int32)
    gains = np.empty(look.shape[0], np.int64)
    for place in range(look.shape[0]):
        fill_row(row, labels, links, look[place])
        present = labels[links.first + look[place]]
        target = best_cluster(row, present)
        targets[place] = target
        gains[place] = row[present] - row[target]
    return targets, gains


def propose(
    labels: LabelArray,
    first: int,
    costs: AnyArray,
    shift: int,
    start: AnyArray,
    neighbour: AnyArray,
    cost: AnyArray,
    look: AnyArray | None = None,
) -> tuple[LabelArray, IntArray]:
    """Return where points of a piece want to go, given all labels as they stand.

    Parameters
    ----------
    labels : int32 array, shape (n,)
        Labels of the whole component.
    first : int
        Global index of the piece's first point.
    costs, shift, start, neighbour, cost
        The piece's links, `neighbour` as global indices (`hmrf_dask.kernels.links.Links`).
    look : int array or None
        Local indices to look at, None for all.

    Returns
    -------
    targets : int32 array, shape (looked at,)
    gains : int64 array, shape (looked at,)
        0 for a point that stays: it wants to move if and only if its gain is above 0.
    """
    links = make_links(first, costs, shift, start, neighbour, cost)
    chosen = np.arange(links.costs.shape[0], dtype=np.int32) if look is None else look
    targets, gains = _propose(labels, links, frozen(chosen, np.int32))
    return targets, gains


@njit(nogil=True, cache=True)
def _boundary(first, gains, start, neighbour):  # type: ignore[no-untyped-def]
    last = first + gains.shape[0]
    found = np.zeros(gains.shape[0], np.bool_)
    for point in range(gains.shape[0]):
        if gains[point] == 0:
            continue
        for edge in range(start[point], start[point + 1]):
            if neighbour[edge] < first or neighbour[edge] >= last:
                found[point] = True
                break
    return np.flatnonzero(found).astype(np.int32)


def boundary_proposals(
    first: int, gains: IntArray, start: AnyArray, neighbour: AnyArray
) -> tuple[LabelArray, IntArray]:
    """Return (global index, gain) of the wanting points that have a neighbour in another piece."""
    arrays = frozen(gains, np.int64), frozen(start, np.int64), frozen(neighbour, np.int32)
    local = _boundary(int(first), *arrays)
    return (local + first).astype(np.int32), gains[local]


def merge_proposals(
    parts: Sequence[tuple[LabelArray, AnyArray]],
) -> tuple[LabelArray, AnyArray]:
    """Return the (global index, value) lists of pieces as one, sorted by index.

    For boundary proposals and for moves (index, new label) alike. Pieces do not overlap.
    """
    index = np.concatenate([part[0] for part in parts])
    value = np.concatenate([part[1] for part in parts])
    order = np.argsort(index, kind="stable")
    return index[order], value[order]


@njit(nogil=True, cache=True, inline="always")
def find(values, value):  # type: ignore[no-untyped-def]
    """Return where `value` stands in sorted `values`, -1 when it does not."""
    low = 0
    high = values.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    if low < values.shape[0] and values[low] == value:
        return low
    return -1


@njit(nogil=True, cache=True)
def _winners(first, gains, start, neighbour, index, others):  # type: ignore[no-untyped-def]
    wins = gains > 0
    for point in range(gains.shape[0]):
        if not wins[point]:
            continue
        for edge in range(start[point], start[point + 1]):
            other = neighbour[edge] - first
            if 0 <= other < gains.shape[0]:
                gain = gains[other]
            else:
                place = find(index, neighbour[edge])
                gain = others[place] if place >= 0 else np.int64(0)
            if gain > gains[point] or (gain == gains[point] and other < point):
                wins[point] = False
                break
    return np.flatnonzero(wins).astype(np.int32)


def winners(
    first: int,
    gains: IntArray,
    start: AnyArray,
    neighbour: AnyArray,
    other_index: LabelArray,
    other_gain: IntArray,
) -> LabelArray:
    """Return the local indices of the points that move in this round.

    Parameters
    ----------
    first, gains, start, neighbour
        The piece: gains of all its points (0: stays) and its half-edges.
    other_index, other_gain : int32 and int64 arrays
        Boundary proposals of the other pieces (or of all), sorted by global index.
    """
    local = _winners(
        int(first),
        frozen(gains, np.int64),
        frozen(start, np.int64),
        frozen(neighbour, np.int32),
        frozen(other_index, np.int32),
        frozen(other_gain, np.int64),
    )
    return np.asarray(local, np.int32)


@njit(nogil=True, cache=True)
def _look_again(n, first, start, neighbour, moved):  # type: ignore[no-untyped-def]
    mark = np.zeros(n, np.bool_)
    for place in range(moved.shape[0]):
        mark[moved[place]] = True
    look = np.zeros(start.shape[0] - 1, np.bool_)
    for point in range(look.shape[0]):
        look[point] = mark[first + point]
        for edge in range(start[point], start[point + 1]):
            look[point] |= mark[neighbour[edge]]
    return np.flatnonzero(look).astype(np.int32)


def look_again(
    n: int, first: int, start: AnyArray, neighbour: AnyArray, moved: LabelArray
) -> LabelArray:
    """Return the local indices of a piece's points that moved or have a neighbour that moved.

    `n` is the number of points of the component, `moved` holds global indices.
    """
    arrays = frozen(start, np.int64), frozen(neighbour, np.int32), frozen(moved, np.int32)
    return np.asarray(_look_again(int(n), int(first), *arrays), np.int32)


def best_proposal(first: int, gains: IntArray) -> tuple[int, int]:
    """Return (gain, -global index) of a piece's best proposal, (0, 0) when it has none."""
    if gains.shape[0] == 0 or gains.max() == 0:
        return 0, 0
    point = int(gains.argmax())
    return int(gains[point]), -(first + point)


def next_piece(bests: Sequence[tuple[int, int]]) -> int:
    """Return the piece whose turn it is in the hand-over: the one with the best proposal."""
    return max(range(len(bests)), key=lambda piece: bests[piece])
