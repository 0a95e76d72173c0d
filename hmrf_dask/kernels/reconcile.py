"""ICM on a component in pieces: priority rounds, then hand-over; only sparse lists travel.

A piece holds its own points with their costs and pairs, and the labels of these and of all far ends
of their pairs: its *places*, own points standing together, all in the order of the component, so
that ties are decided as in the whole. In a round a point moves if and only if its (gain, -place)
beats every linked point that also wants to move: movers are never linked and their gains add up
exactly. After `ROUNDS` rounds pieces run their own heaps, never two linked ones at a time.
`advance` says what is next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from hmrf_dask.kernels.arrays import find, frozen
from hmrf_dask.kernels.compiled import njit
from hmrf_dask.kernels.problem import ProblemArrays, best_cluster, fill_row
from hmrf_dask.types import AnyArray, IntArray, LabelArray

ROUNDS = 40  # random graphs of 1M points need 5 to 21; a chain would need one a point


class Phase(Enum):
    """What the pieces do next."""

    POINTS = "priority rounds of points"
    POINT_HANDOVER = "pieces that are not linked run their heaps of points"
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


def advance(progress: Progress, unsettled: bool, rounds: int = ROUNDS) -> Progress:
    """Return the next state.

    Parameters
    ----------
    progress : Progress
        The present state.
    unsettled : bool
        Whether any point (in a phase of points) or any group (in a phase of groups) wants to move.
        If so the caller does one step of the phase returned; if not, that phase begins anew.
    rounds : int
        Rounds before the hand-over.

    Examples
    --------
    >>> advance(advance(Progress(), unsettled=False), unsettled=False).phase.name
    'DONE'
    """
    of_points = progress.phase in (Phase.POINTS, Phase.POINT_HANDOVER)
    if progress.phase is Phase.DONE:
        return progress
    if not unsettled and of_points:
        return Progress(Phase.GROUPS)
    if not unsettled:
        return Progress(Phase.POINTS if progress.groups_moved else Phase.DONE)
    if progress.phase in (Phase.POINTS, Phase.GROUPS) and progress.rounds >= rounds:
        handover = Phase.POINT_HANDOVER if of_points else Phase.GROUP_HANDOVER
        return Progress(handover, 1, not of_points)
    return replace(progress, rounds=progress.rounds + 1, groups_moved=not of_points)


@njit(nogil=True, cache=True, makes_arrays=False)
def _propose(labels, problem, look, row, targets, gains):  # type: ignore[no-untyped-def]
    for place in range(look.shape[0]):
        fill_row(row, labels, problem, look[place])
        present = labels[problem.first + look[place]]
        target = best_cluster(row, present)
        targets[place] = target
        gains[place] = row[present] - row[target]


def propose(
    labels: LabelArray, problem: ProblemArrays, look: AnyArray | None = None
) -> tuple[LabelArray, IntArray]:
    """Return where points of a piece want to go, given all labels as they stand.

    Parameters
    ----------
    labels : int32 array
        By place.
    problem : ProblemArrays
        The piece.
    look : int array or None
        Own points to look at (the piece's first is 0), None for all.

    Returns
    -------
    targets : int32 array, shape (looked at,)
    gains : int64 array, shape (looked at,)
        0 for a point that stays: it wants to move if and only if its gain is above 0.
    """
    chosen = np.arange(problem.costs.shape[0], dtype=np.int32) if look is None else look
    targets, gains = np.empty(len(chosen), np.int32), np.empty(len(chosen), np.int64)
    row = np.empty(problem.costs.shape[1], np.int64)
    _propose(frozen(labels, np.int32), problem, frozen(chosen, np.int32), row, targets, gains)
    return targets, gains


def merge_lists(parts: Sequence[tuple[LabelArray, AnyArray]]) -> tuple[LabelArray, AnyArray]:
    """Return (index, value) lists that do not overlap as one, sorted by index."""
    index = np.concatenate([part[0] for part in parts])
    value = np.concatenate([part[1] for part in parts])
    order = np.argsort(index, kind="stable")
    return index[order], value[order]


@njit(nogil=True, cache=True, makes_arrays=False)
def _winners(first, gains, start, neighbour, index, others, wins):  # type: ignore[no-untyped-def]
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


def winners(
    first: int,
    gains: IntArray,
    start: AnyArray,
    neighbour: AnyArray,
    other_place: LabelArray,
    other_gain: IntArray,
) -> LabelArray:
    """Return the own points (the piece's first is 0) that move in this round.

    Parameters
    ----------
    first, gains, start, neighbour
        The piece: gains of all its points (0: stays) and its half-edges.
    other_place, other_gain : int32 and int64 arrays
        What far ends want, sorted by place.
    """
    wins = gains > 0
    _winners(
        int(first),
        frozen(gains, np.int64),
        frozen(start, np.int64),
        frozen(neighbour, np.int32),
        frozen(other_place, np.int32),
        frozen(other_gain, np.int64),
        wins,
    )
    return np.flatnonzero(wins).astype(np.int32)


@njit(nogil=True, cache=True, makes_arrays=False)
def _look_again(start, neighbour, mark, look):  # type: ignore[no-untyped-def]
    for point in range(look.shape[0]):
        for edge in range(start[point], start[point + 1]):
            look[point] |= mark[neighbour[edge]]


def look_again(
    n_places: int, first: int, start: AnyArray, neighbour: AnyArray, moved: AnyArray
) -> LabelArray:
    """Return the own points (the piece's first is 0) that moved or have a neighbour that moved.

    `moved` holds places.
    """
    mark = np.zeros(n_places, np.bool_)
    mark[moved] = True
    look = mark[first : first + len(start) - 1].copy()
    _look_again(frozen(start, np.int64), frozen(neighbour, np.int32), frozen(mark, np.bool_), look)
    return np.flatnonzero(look).astype(np.int32)


def best_proposal(offset: int, gains: IntArray) -> tuple[int, int]:
    """Return (gain, -index) of a piece's best proposal, (0, 0) when it has none.

    `offset` is the index in the component of the piece's first point.
    """
    if gains.shape[0] == 0 or gains.max() == 0:
        return 0, 0
    point = int(gains.argmax())
    return int(gains[point]), -(offset + point)


def next_pieces(bests: Sequence[tuple[int, int]], neighbours: Sequence[Sequence[int]]) -> list[int]:
    """Return the pieces whose turn it is in the hand-over: their best beats those of linked ones.

    Examples
    --------
    >>> next_pieces([(5, -1), (9, -20), (7, -30), (7, -40)], [[1], [0, 2], [1, 3], [2]])
    [1]
    >>> next_pieces([(5, -1), (4, -20), (7, -30), (0, 0)], [[1], [0, 2], [1, 3], [2]])
    [0, 2]
    """
    return [
        number
        for number, best in enumerate(bests)
        if best[0] > 0 and all(best > bests[other] for other in neighbours[number])
    ]
