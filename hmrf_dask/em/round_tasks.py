"""Task functions of priority rounds: what a piece does, what others see of it, what is joined.

Between pieces only *boundaries* travel: (index in the problem, gain or label) of points that the
reader has as far ends. Every function makes new arrays; what a piece knows between rounds are its
labels by place, and what its points want.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hmrf_dask.em.pieces import Piece
from hmrf_dask.kernels.icm import component_moves_piece, heap_moves_piece
from hmrf_dask.kernels.problem import ProblemArrays, make_problem
from hmrf_dask.kernels.reconcile import (
    best_proposal,
    look_again,
    merge_lists,
    propose,
    winners,
)
from hmrf_dask.kernels.reconcile_groups import (
    GroupMoves,
    beaten_groups,
    best_groups,
    distortion_sums,
    group_gain_parts,
    group_labels,
    group_proposals,
    inside_proposals,
    merge_groups,
    merge_parts,
    place_inside,
    select_proposals,
)
from hmrf_dask.runs import LabelsFile, RunStore
from hmrf_dask.types import AnyArray, BoolArray, IntArray, LabelArray

Boundary = tuple[LabelArray, AnyArray]  # indices in the problem, ascending, and a value for each


@dataclass(frozen=True)
class PointProposals:
    """The best cluster of each own point of a piece, and its gain; a gain of 0 stays."""

    targets: LabelArray
    gains: IntArray

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        return self.targets.nbytes + self.gains.nbytes + 128


class Summary(NamedTuple):
    """What the driver learns of a piece's proposals."""

    best: tuple[int, int]  # (gain, -index) of the best, (0, 0) for none
    readers: tuple[int, ...]  # the pieces that have a point with a gain as a far end


def piece_arrays(piece: Piece, costs: AnyArray, pair_costs: IntArray, shift: int) -> ProblemArrays:
    """Return a piece as ICM kernels see it."""
    return make_problem(piece.first, costs, shift, piece.start, piece.neighbour, pair_costs)


# ---- opening


def read_own(run: RunStore, file: LabelsFile) -> LabelArray:
    """Return the labels of a piece's own points."""
    return run.read_labels(file)


def undecided(labels: LabelArray) -> bool:
    """Return whether a point has no label yet."""
    return bool((labels < 0).any())


def own_sums(
    piece: Piece, costs: AnyArray, first: int, last: int
) -> tuple[LabelArray, IntArray, IntArray]:
    """Return a piece's part of the summed distortions of the cut groups `first` to `last`."""
    cut = piece.cut.between(first, last)
    sums = distortion_sums(costs, cut.start, cut.member, piece.first)
    return cut.number, sums >> 32, sums & 0xFFFFFFFF


def nearest(sums: tuple[LabelArray, IntArray, IntArray]) -> Boundary:
    """Return where groups go whose summed distortions are these."""
    number, high, low = sums
    return number, np.asarray(((high << 32) + low).argmin(axis=1), np.int32)


def first_own(piece: Piece, costs: AnyArray, targets: list[Boundary]) -> LabelArray:
    """Return a first labelling: every group whole where its summed distortion is least."""
    labels = costs.argmin(axis=1).astype(np.int32)
    place_inside(labels, costs, piece.inside.start, piece.inside.member, piece.first)
    for number, target in targets:
        chosen = piece.cut.between(int(number[0]), int(number[-1]) + 1)
        goals = target[np.searchsorted(number, chosen.number)]
        labels[chosen.member - piece.first] = np.repeat(goals, np.diff(chosen.start))
    return np.asarray(labels, np.int32)


def labels_for(piece: Piece, labels: LabelArray, reader: int) -> Boundary:
    """Return the labels of the own points that another piece sees."""
    index = piece.seen_by[reader]
    return index, labels[index - piece.offset]


def open_piece(piece: Piece, own: LabelArray, boundaries: list[Boundary]) -> LabelArray:
    """Return the labels by place."""
    labels = np.empty(piece.size + len(piece.far), np.int32)
    labels[piece.own] = own
    for index, label in boundaries:
        labels[piece.places(index)] = label
    return labels


def close_piece(piece: Piece, labels: LabelArray) -> LabelArray:
    """Return the labels of the own points."""
    return labels[piece.own].copy()


# ---- points


def propose_points(
    piece: Piece, costs: AnyArray, pair_costs: IntArray, shift: int, labels: LabelArray
) -> PointProposals:
    """Return the proposals of all own points."""
    return PointProposals(*propose(labels, piece_arrays(piece, costs, pair_costs, shift)))


def propose_near_moves(
    piece: Piece,
    costs: AnyArray,
    pair_costs: IntArray,
    shift: int,
    labels: LabelArray,
    proposals: PointProposals,
    moves: list[Boundary],
) -> PointProposals:
    """Return the proposals of own points after `moves`, which `labels` has already."""
    places = piece.places(np.concatenate([boundary[0] for boundary in moves]))
    changed = look_again(len(labels), piece.first, piece.start, piece.neighbour, places)
    targets, gains = proposals.targets.copy(), proposals.gains.copy()
    arrays = piece_arrays(piece, costs, pair_costs, shift)
    targets[changed], gains[changed] = propose(labels, arrays, changed)
    return PointProposals(targets, gains)


def summary_of(piece: Piece, proposals: PointProposals) -> Summary:
    """Return what the driver learns."""
    readers = (
        reader
        for reader, index in piece.seen_by.items()
        if (proposals.gains[index - piece.offset] > 0).any()
    )
    return Summary(best_proposal(piece.offset, proposals.gains), tuple(readers))


def gains_for(piece: Piece, proposals: PointProposals, reader: int) -> Boundary:
    """Return the gains of the points that want to move and that another piece sees."""
    index = piece.seen_by[reader]
    gains = proposals.gains[index - piece.offset]
    return index[gains > 0], gains[gains > 0]


def moves_for(piece: Piece, moves: Boundary, reader: int) -> Boundary:
    """Return the moves of points that another piece sees."""
    seen = np.isin(moves[0], piece.seen_by[reader], assume_unique=True)
    return moves[0][seen], moves[1][seen]


def winning_moves(piece: Piece, proposals: PointProposals, boundaries: list[Boundary]) -> Boundary:
    """Return the own points that beat every linked point that wants to move too."""
    nothing = (np.zeros(0, np.int32), np.zeros(0, np.int64))
    index, gains = merge_lists([nothing, *boundaries])
    others = piece.places(index).astype(np.int32), gains
    won = winners(piece.first, proposals.gains, piece.start, piece.neighbour, *others)
    return won + np.int32(piece.offset), proposals.targets[won]


def heap_moves(
    piece: Piece, costs: AnyArray, pair_costs: IntArray, shift: int, labels: LabelArray
) -> Boundary:
    """Return the moves of a piece's own heap of points, all others as they are."""
    after = labels.copy()
    heap_moves_piece(after, *piece_arrays(piece, costs, pair_costs, shift))
    return _changes(piece, labels, after)


def _changes(piece: Piece, before: LabelArray, after: LabelArray) -> Boundary:
    moved = np.flatnonzero(before[piece.own] != after[piece.own]).astype(np.int32)
    return moved + np.int32(piece.offset), after[piece.own][moved]


def take_moves(piece: Piece, labels: LabelArray, moves: list[Boundary]) -> LabelArray:
    """Return the labels after moves of own points and far ends."""
    after = labels.copy()
    for index, label in moves:
        after[piece.places(index)] = label
    return after


# ---- groups


@dataclass(frozen=True)
class GroupProposals:
    """The groups that want to move most, as many as may travel."""

    moves: GroupMoves
    most: int

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        return sum(array.nbytes for array in self.moves) + 128


def propose_inside_groups(
    piece: Piece, costs: AnyArray, pair_costs: IntArray, shift: int, labels: LabelArray, most: int
) -> GroupProposals:
    """Return the best moves of groups that lie wholly in a piece."""
    arrays = piece_arrays(piece, costs, pair_costs, shift)
    moves = inside_proposals(labels, piece.groups, *piece.inside, arrays)
    return GroupProposals(best_groups(moves, most), most)


def cut_group_energies(
    piece: Piece,
    costs: AnyArray,
    pair_costs: IntArray,
    shift: int,
    labels: LabelArray,
    first: int,
    last: int,
) -> tuple[LabelArray, IntArray, IntArray]:
    """Return a piece's part of the energies of the cut groups numbered `first` to `last`."""
    arrays = piece_arrays(piece, costs, pair_costs, shift)
    cut = piece.cut.between(first, last)
    return cut.number, *group_gain_parts(labels, piece.groups, cut.start, cut.member, arrays)


def add_parts(
    parts: list[tuple[LabelArray, IntArray, IntArray]],
) -> tuple[LabelArray, IntArray, IntArray]:
    """Return parts of the energies of groups, added up."""
    return merge_parts(parts)


def cut_group_proposals(parts: tuple[LabelArray, IntArray, IntArray], most: int) -> GroupProposals:
    """Return the best moves of groups whose energies are these."""
    return GroupProposals(best_groups(group_proposals(*parts), most), most)


def merge_group_proposals(lists: list[GroupProposals]) -> GroupProposals:
    """Return the best of several lists of different groups."""
    most = lists[0].most
    return GroupProposals(merge_groups([proposals.moves for proposals in lists], most), most)


def leader(proposals: GroupProposals) -> int:
    """Return the group with the largest gain, then the lowest; -1 when none wants to move."""
    best = best_groups(proposals.moves, 1).group
    return int(best[0]) if len(best) else -1


def beaten(piece: Piece, proposals: GroupProposals) -> BoolArray:
    """Return which groups lose to an adjacent one, as far as this piece sees."""
    arrays = piece.groups, piece.first, piece.start, piece.neighbour
    return beaten_groups(*arrays, proposals.moves)


def either(flags: list[BoolArray]) -> BoolArray:
    """Return where any of the flags is set."""
    return np.asarray(np.logical_or.reduce(flags), np.bool_)


def unbeaten(proposals: GroupProposals, flags: BoolArray) -> GroupMoves:
    """Return the groups that no piece saw beaten: they move."""
    return select_proposals(proposals.moves, ~flags)


def group_moves(piece: Piece, labels: LabelArray, moving: GroupMoves) -> Boundary:
    """Return the moves of own points whose group moves."""
    place, label = group_labels(labels, piece.groups, piece.first, piece.first + piece.size, moving)
    return place + np.int32(piece.offset - piece.first), label


def group_heap_moves(
    piece: Piece, costs: AnyArray, pair_costs: IntArray, shift: int, labels: LabelArray
) -> Boundary:
    """Return the moves of a piece's own heap of the groups that lie wholly in it."""
    after = labels.copy()
    arrays = piece_arrays(piece, costs, pair_costs, shift)
    component_moves_piece(after, *arrays, piece.groups, piece.inside.start, piece.inside.member)
    return _changes(piece, labels, after)
