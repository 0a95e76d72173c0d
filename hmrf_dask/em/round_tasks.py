"""Task functions of priority rounds: what a piece does, what it writes to others, what is joined.

Between pieces only *letters* travel: (index in the bundle, gain or label) of points that the reader
has as far ends. Every function makes new arrays; what a piece knows between rounds are its labels
by place, and what its points want.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hmrf_dask.em.pieces import Piece
from hmrf_dask.kernels.icm import component_moves_piece, heap_moves_piece
from hmrf_dask.kernels.links import Links, make_links
from hmrf_dask.kernels.reconcile import (
    best_proposal,
    look_again,
    merge_lists,
    propose,
    winners,
)
from hmrf_dask.kernels.reconcile_groups import (
    GroupProposals,
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

Letter = tuple[LabelArray, AnyArray]  # indices in the bundle, ascending, and a value for each


@dataclass(frozen=True)
class Wishes:
    """Where the own points of a piece want to go; a gain of 0 stays."""

    targets: LabelArray
    gains: IntArray

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        return self.targets.nbytes + self.gains.nbytes + 128


class Brief(NamedTuple):
    """What the driver learns of a piece's wishes."""

    best: tuple[int, int]  # (gain, -index) of the best, (0, 0) for none
    readers: tuple[int, ...]  # the pieces that have one of the wanting points as a far end


def links_of(piece: Piece, costs: AnyArray, pair_costs: IntArray, shift: int) -> Links:
    """Return a piece as ICM kernels see it."""
    return make_links(piece.first, costs, shift, piece.start, piece.neighbour, pair_costs)


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


def nearest(sums: tuple[LabelArray, IntArray, IntArray]) -> Letter:
    """Return where groups go whose summed distortions are these."""
    number, high, low = sums
    return number, np.asarray(((high << 32) + low).argmin(axis=1), np.int32)


def first_own(piece: Piece, costs: AnyArray, targets: list[Letter]) -> LabelArray:
    """Return a first labelling: every group whole where its summed distortion is least."""
    labels = costs.argmin(axis=1).astype(np.int32)
    place_inside(labels, costs, piece.inside.start, piece.inside.member, piece.first)
    for number, target in targets:
        chosen = piece.cut.between(int(number[0]), int(number[-1]) + 1)
        goals = target[np.searchsorted(number, chosen.number)]
        labels[chosen.member - piece.first] = np.repeat(goals, np.diff(chosen.start))
    return np.asarray(labels, np.int32)


def own_for(piece: Piece, labels: LabelArray, reader: int) -> Letter:
    """Return the labels of the own points that another piece sees."""
    index = piece.mail[reader]
    return index, labels[index - piece.offset]


def open_piece(piece: Piece, own: LabelArray, letters: list[Letter]) -> LabelArray:
    """Return the labels by place."""
    labels = np.empty(piece.size + len(piece.far), np.int32)
    labels[piece.own] = own
    for index, label in letters:
        labels[piece.places(index)] = label
    return labels


def close_piece(piece: Piece, labels: LabelArray) -> LabelArray:
    """Return the labels of the own points."""
    return labels[piece.own].copy()


# ---- points


def look_at_points(
    piece: Piece, costs: AnyArray, pair_costs: IntArray, shift: int, labels: LabelArray
) -> Wishes:
    """Return what all own points want."""
    return Wishes(*propose(labels, links_of(piece, costs, pair_costs, shift)))


def look_near_moves(
    piece: Piece,
    costs: AnyArray,
    pair_costs: IntArray,
    shift: int,
    labels: LabelArray,
    wishes: Wishes,
    moves: list[Letter],
) -> Wishes:
    """Return what own points want after `moves`, which `labels` has already."""
    places = piece.places(np.concatenate([letter[0] for letter in moves]))
    look = look_again(len(labels), piece.first, piece.start, piece.neighbour, places)
    targets, gains = wishes.targets.copy(), wishes.gains.copy()
    found = propose(labels, links_of(piece, costs, pair_costs, shift), look)
    targets[look], gains[look] = found
    return Wishes(targets, gains)


def brief_of(piece: Piece, wishes: Wishes) -> Brief:
    """Return what the driver learns."""
    readers = (
        reader
        for reader, index in piece.mail.items()
        if (wishes.gains[index - piece.offset] > 0).any()
    )
    return Brief(best_proposal(piece.offset, wishes.gains), tuple(readers))


def gains_for(piece: Piece, wishes: Wishes, reader: int) -> Letter:
    """Return the gains of the wanting points that another piece sees."""
    index = piece.mail[reader]
    gains = wishes.gains[index - piece.offset]
    return index[gains > 0], gains[gains > 0]


def moves_for(piece: Piece, moves: Letter, reader: int) -> Letter:
    """Return the moves of points that another piece sees."""
    seen = np.isin(moves[0], piece.mail[reader], assume_unique=True)
    return moves[0][seen], moves[1][seen]


def winning_moves(piece: Piece, wishes: Wishes, letters: list[Letter]) -> Letter:
    """Return the own points that beat every linked point that wants to move too."""
    nothing = (np.zeros(0, np.int32), np.zeros(0, np.int64))
    index, gains = merge_lists([nothing, *letters])
    others = piece.places(index).astype(np.int32), gains
    won = winners(piece.first, wishes.gains, piece.start, piece.neighbour, *others)
    return won + np.int32(piece.offset), wishes.targets[won]


def heap_moves(
    piece: Piece, costs: AnyArray, pair_costs: IntArray, shift: int, labels: LabelArray
) -> Letter:
    """Return the moves of a piece's own heap of points, all others as they are."""
    after = labels.copy()
    heap_moves_piece(after, *links_of(piece, costs, pair_costs, shift))
    return _changes(piece, labels, after)


def _changes(piece: Piece, before: LabelArray, after: LabelArray) -> Letter:
    moved = np.flatnonzero(before[piece.own] != after[piece.own]).astype(np.int32)
    return moved + np.int32(piece.offset), after[piece.own][moved]


def take_moves(piece: Piece, labels: LabelArray, moves: list[Letter]) -> LabelArray:
    """Return the labels after moves of own points and far ends."""
    after = labels.copy()
    for index, label in moves:
        after[piece.places(index)] = label
    return after


# ---- groups


@dataclass(frozen=True)
class Wanting:
    """The groups that want to move most, as many as may travel."""

    proposals: GroupProposals
    most: int

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        return sum(one.nbytes for one in self.proposals) + 128


def look_at_inside(
    piece: Piece, costs: AnyArray, pair_costs: IntArray, shift: int, labels: LabelArray, most: int
) -> Wanting:
    """Return the best moves of groups that lie wholly in a piece."""
    links = links_of(piece, costs, pair_costs, shift)
    proposals = inside_proposals(labels, piece.groups, *piece.inside, links)
    return Wanting(best_groups(proposals, most), most)


def look_at_cut(
    piece: Piece,
    costs: AnyArray,
    pair_costs: IntArray,
    shift: int,
    labels: LabelArray,
    first: int,
    last: int,
) -> tuple[LabelArray, IntArray, IntArray]:
    """Return a piece's part of the energies of the cut groups numbered `first` to `last`."""
    links = links_of(piece, costs, pair_costs, shift)
    cut = piece.cut.between(first, last)
    return cut.number, *group_gain_parts(labels, piece.groups, cut.start, cut.member, links)


def add_parts(
    parts: list[tuple[LabelArray, IntArray, IntArray]],
) -> tuple[LabelArray, IntArray, IntArray]:
    """Return parts of the energies of groups, added up."""
    return merge_parts(parts)


def wanting_groups(parts: tuple[LabelArray, IntArray, IntArray], most: int) -> Wanting:
    """Return the best moves of groups whose energies are these."""
    return Wanting(best_groups(group_proposals(*parts), most), most)


def merge_wanting(lists: list[Wanting]) -> Wanting:
    """Return the best of several lists of different groups."""
    most = lists[0].most
    return Wanting(merge_groups([one.proposals for one in lists], most), most)


def leader(wanting: Wanting) -> int:
    """Return the group with the largest gain, then the lowest; -1 when none wants to move."""
    best = best_groups(wanting.proposals, 1).group
    return int(best[0]) if len(best) else -1


def beaten(piece: Piece, wanting: Wanting) -> BoolArray:
    """Return which groups lose to an adjacent one, as far as this piece sees."""
    arrays = piece.groups, piece.first, piece.start, piece.neighbour
    return beaten_groups(*arrays, wanting.proposals)


def either(flags: list[BoolArray]) -> BoolArray:
    """Return where any of the flags is set."""
    return np.asarray(np.logical_or.reduce(flags), np.bool_)


def unbeaten(wanting: Wanting, flags: BoolArray) -> GroupProposals:
    """Return the groups that no piece saw beaten: they move."""
    return select_proposals(wanting.proposals, ~flags)


def group_moves(piece: Piece, labels: LabelArray, moving: GroupProposals) -> Letter:
    """Return the moves of own points whose group moves."""
    place, label = group_labels(labels, piece.groups, piece.first, piece.first + piece.size, moving)
    return place + np.int32(piece.offset - piece.first), label


def group_heap_moves(
    piece: Piece, costs: AnyArray, pair_costs: IntArray, shift: int, labels: LabelArray
) -> Letter:
    """Return the moves of a piece's own heap of the groups that lie wholly in it."""
    after = labels.copy()
    links = links_of(piece, costs, pair_costs, shift)
    component_moves_piece(after, *links, piece.groups, piece.inside.start, piece.inside.member)
    return _changes(piece, labels, after)
