"""Priority rounds: pieces of a component too large for one task, and what each does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.icm import move_groups, move_points
from hmrf_dask.kernels.problem import (
    Grouping,
    ProblemArrays,
    distortion_sums,
    make_grouping,
    make_problem,
    place_nearest,
)
from hmrf_dask.kernels.reconcile import (
    GroupMoves,
    HalfEdges,
    beaten_groups,
    best_groups,
    best_proposal,
    group_gain_parts,
    group_labels,
    group_proposals,
    inside_proposals,
    make_half_edges,
    merge_groups,
    merge_lists,
    near_moves,
    propose,
    select_proposals,
    winners,
)
from hmrf_dask.linked.layout import LinkedLayout
from hmrf_dask.types import AnyArray, BoolArray, IntArray, LabelArray, Sized


class Members(NamedTuple):
    """Some must-link groups of a piece: numbers in the problem, ascending; own points as places."""

    number: LabelArray
    start: IntArray
    member: LabelArray

    def between(self, first: int, last: int) -> Members:
        """Return the groups numbered `first` to `last` (exclusive)."""
        low, high = np.searchsorted(self.number, [first, last])
        start = self.start[low : high + 1]
        return Members(self.number[low:high], start - start[0], self.member[start[0] : start[-1]])

    def grouping(self, groups: LabelArray) -> Grouping:
        """Return them as kernels see them; `groups` are those of every place."""
        return make_grouping(groups, self.start, self.member)


@dataclass(frozen=True)
class Piece(Sized):
    """What a linked partition knows of its ICM problem, whatever pairs and distances cost."""

    first: int  # place of its first own point
    offset: int  # index in the problem of its first own point
    size: int  # own points
    far: LabelArray  # indices of the far ends of its pairs, ascending
    start: IntArray  # half-edges of the own points
    neighbour: LabelArray  # at the other ends, as places
    edge: LabelArray  # where each half-edge's pair stands among its blocks' pairs, end to end
    groups: LabelArray  # must-link group of every place
    inside: Members  # groups of at least two points, all of them here
    cut: Members  # some elsewhere
    seen_by: dict[int, LabelArray]  # by piece, the own points it has as far ends (indices)

    @property
    def own(self) -> slice:
        """The places of the own points."""
        return slice(self.first, self.first + self.size)

    def places(self, index: AnyArray) -> IntArray:
        """Return the places of points by their index in the problem."""
        last = self.offset + self.size
        outside = np.searchsorted(self.far, index) + np.where(index >= last, self.size, 0)
        own = (index >= self.offset) & (index < last)
        return np.where(own, index - self.offset + self.first, outside)


@dataclass(frozen=True)
class Cutting:
    """An ICM problem in pieces, as the driver knows it."""

    partitions: range  # linked partitions of the problem
    pair_blocks: range
    pieces: tuple[Piece, ...] = field(repr=False)  # emptied once they are task results
    neighbours: tuple[tuple[int, ...], ...]  # by piece, the pieces it shares pairs with
    blocks: tuple[tuple[int, ...], ...]  # by piece, the pair blocks it has ends in
    cut_groups: LabelArray  # groups with points in several pieces, ascending
    homes: LabelArray  # the piece of the first point of each group


def cut_problem(layout: LinkedLayout, number: int) -> Cutting:
    """Return the pieces of an ICM problem in mode "rounds", one for each of its partitions."""
    partitions = range(*layout.problem_starts[number : number + 2].tolist())
    starts = layout.partition_starts[partitions.start : partitions.stop + 1]
    nodes = layout.order[starts[0] : starts[-1]]
    _, groups = np.unique(layout.graph.groups[nodes], return_inverse=True)
    bounds = np.searchsorted(layout.block_partitions[:, 0], [partitions.start, partitions.stop])
    pair_blocks = range(*bounds.tolist())
    sides = layout.block_partitions[pair_blocks.start : pair_blocks.stop]
    blocks = [
        (np.flatnonzero((sides == partition).any(axis=1)) + pair_blocks.start).tolist()
        for partition in partitions
    ]
    pairs = (_pairs_of(layout, touching, int(starts[0])) for touching in blocks)
    pieces = tuple(cut_points(starts - starts[0], groups, pairs))
    homes, cut = _homes(groups, starts - starts[0])
    return Cutting(
        partitions,
        pair_blocks,
        pieces,
        neighbours=tuple(tuple(sorted(piece.seen_by)) for piece in pieces),
        blocks=tuple(tuple(touching) for touching in blocks),
        cut_groups=np.flatnonzero(cut).astype(np.int32),
        homes=homes,
    )


def _pairs_of(layout: LinkedLayout, blocks: list[int], start: int) -> tuple[LabelArray, LabelArray]:
    """Return both ends of the pairs of some blocks, counted from linked position `start`."""
    ranges = [slice(*layout.block_starts[block : block + 2].tolist()) for block in blocks]
    nothing = np.zeros(0, np.int32)
    first, second = (
        np.concatenate([nothing, *(side[pairs] for pairs in ranges)]) - np.int32(start)
        for side in (layout.pair_first, layout.pair_second)
    )
    return first, second


def cut_points(
    bounds: IntArray, groups: IntArray, pairs: Iterable[tuple[LabelArray, LabelArray]]
) -> Iterator[Piece]:
    """Yield the pieces of points cut at `bounds`; `pairs` holds for each at least its own."""
    sizes = np.bincount(groups)
    _, cut = _homes(groups, bounds)
    for number, ends in enumerate(pairs):
        yield _piece(bounds, number, ends, groups, inside=(sizes > 1) & ~cut, cut=cut)


def _homes(groups: IntArray, bounds: IntArray) -> tuple[LabelArray, BoolArray]:
    """Return the piece of each group's first point, and whether it has points elsewhere too."""
    n_groups = int(groups.max(initial=-1)) + 1
    owner = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))
    first, last = np.empty((2, n_groups), np.int32)
    first[groups[::-1]] = owner[::-1]
    last[groups] = owner
    return first, first != last


def _piece(
    bounds: IntArray,
    number: int,
    ends: tuple[LabelArray, LabelArray],
    groups: IntArray,
    *,
    inside: BoolArray,
    cut: BoolArray,
) -> Piece:
    """Return a piece; of every group `inside` and `cut` say which list it may be in."""
    (first, second), (offset, last) = ends, bounds[number : number + 2].tolist()
    size = last - offset
    here = [np.flatnonzero((side >= offset) & (side < last)) for side in (first, second)]
    point = np.concatenate([first[here[0]], second[here[1]]]) - offset
    order = np.argsort(point, kind="stable")
    neighbour = np.concatenate([second[here[0]], first[here[1]]])[order]
    edge = np.concatenate(here)[order].astype(np.int32)
    start = np.concatenate([[0], np.cumsum(np.bincount(point, minlength=size))]).astype(np.int64)
    outside = (neighbour < offset) | (neighbour >= last)
    far = np.unique(neighbour[outside])
    below = int(np.searchsorted(far, offset))
    places = np.searchsorted(far, neighbour) + np.where(neighbour >= last, size, 0)
    places = np.where(outside, places, neighbour - offset + below)
    seen = np.searchsorted(bounds, neighbour[outside], side="right") - 1
    seen_by = _seen_by(seen, (point[order] + offset)[outside], int(bounds[-1]))
    view = np.concatenate([groups[far[:below]], groups[offset:last], groups[far[below:]]])
    own = groups[offset:last]
    return Piece(
        below,
        offset,
        size,
        far=far.astype(np.int32),
        start=start,
        neighbour=places.astype(np.int32),
        edge=edge,
        groups=view.astype(np.int32),
        inside=_members(own, inside[own], below),
        cut=_members(own, cut[own], below),
        seen_by=seen_by,
    )


def _seen_by(seen: IntArray, points: LabelArray, n_points: int) -> dict[int, LabelArray]:
    """Return by piece the points it sees, from a list with repetitions."""
    keys = np.unique(seen * n_points + points)
    owners, index = np.divmod(keys, n_points)
    numbers, starts = np.unique(owners, return_index=True)
    parts = np.split(index.astype(np.int32), starts[1:])
    return dict(zip(numbers.tolist(), parts, strict=False))


def _members(own: IntArray, chosen: BoolArray, first: int) -> Members:
    """Return the groups of the chosen own points."""
    local = np.flatnonzero(chosen)
    order = np.argsort(own[local], kind="stable")
    number, start = np.unique(own[local][order], return_index=True)
    starts = np.concatenate([start, [len(local)]]).astype(np.int64)
    return Members(number.astype(np.int32), starts, (local[order] + first).astype(np.int32))


Boundary = tuple[LabelArray, AnyArray]  # indices in the problem, ascending, and a value for each


@dataclass(frozen=True)
class PointProposals(Sized):
    """The best cluster of each own point of a piece, and its gain; a gain of 0 stays."""

    targets: LabelArray
    gains: IntArray


class Summary(NamedTuple):
    """What the driver learns of a piece's proposals."""

    best: tuple[int, int]  # (gain, -index) of the best, (0, 0) for none
    readers: tuple[int, ...]  # the pieces that have a point with a gain as a far end


class PricedPiece(NamedTuple):
    """A piece, its int32 cost rows, and the signed costs of its half-edges."""

    piece: Piece
    costs: LabelArray  # in units of 2**shift
    pair_costs: IntArray
    shift: int

    @property
    def arrays(self) -> ProblemArrays:
        """The piece as ICM kernels see it."""
        piece, ends = self.piece, (self.piece.start, self.piece.neighbour, self.pair_costs)
        return make_problem(piece.first, self.costs, self.shift, *ends)


def half_edges(piece: Piece) -> HalfEdges:
    """Return the pairs of a piece's own points as kernels see them."""
    return make_half_edges(piece.first, piece.start, piece.neighbour)


# ---- opening


def undecided(labels: LabelArray) -> bool:
    """Return whether a point has no label yet.

    Examples
    --------
    >>> undecided(np.array([0, 2], np.int32)), undecided(np.array([0, -2], np.int32))
    (False, True)
    """
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
    place_nearest(labels, costs, piece.inside.start, piece.inside.member, piece.first)
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


def propose_points(priced: PricedPiece, labels: LabelArray) -> PointProposals:
    """Return the proposals of all own points."""
    return PointProposals(*propose(labels, priced.arrays))


def propose_near_moves(
    priced: PricedPiece, labels: LabelArray, proposals: PointProposals, moves: list[Boundary]
) -> PointProposals:
    """Return the proposals of own points after `moves`, which `labels` has already."""
    places = priced.piece.places(np.concatenate([boundary[0] for boundary in moves]))
    changed = near_moves(len(labels), half_edges(priced.piece), places)
    targets, gains = proposals.targets.copy(), proposals.gains.copy()
    targets[changed], gains[changed] = propose(labels, priced.arrays, changed)
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
    won = winners(half_edges(piece), proposals.gains, *others)
    return won + np.int32(piece.offset), proposals.targets[won]


def heap_moves(priced: PricedPiece, labels: LabelArray) -> Boundary:
    """Return the moves of a piece's own heap of points, all others as they are."""
    after = labels.copy()
    move_points(after, priced.arrays)
    return _changes(priced.piece, labels, after)


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
class GroupProposals(Sized):
    """The groups that want to move most, as many as may travel."""

    moves: GroupMoves
    most: int


def propose_inside_groups(priced: PricedPiece, labels: LabelArray, most: int) -> GroupProposals:
    """Return the best moves of groups that lie wholly in a piece."""
    inside, groups = priced.piece.inside, priced.piece.groups
    moves = inside_proposals(labels, priced.arrays, inside.grouping(groups), inside.number)
    return GroupProposals(best_groups(moves, most), most)


def cut_group_energies(
    priced: PricedPiece, labels: LabelArray, first: int, last: int
) -> tuple[LabelArray, IntArray, IntArray]:
    """Return a piece's part of the energies of the cut groups numbered `first` to `last`."""
    cut = priced.piece.cut.between(first, last)
    return cut.number, *group_gain_parts(labels, priced.arrays, cut.grouping(priced.piece.groups))


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
    return beaten_groups(piece.groups, half_edges(piece), proposals.moves)


def unbeaten(proposals: GroupProposals, flags: BoolArray) -> GroupMoves:
    """Return the groups that no piece saw beaten: they move."""
    return select_proposals(proposals.moves, ~flags)


def group_moves(piece: Piece, labels: LabelArray, moving: GroupMoves) -> Boundary:
    """Return the moves of own points whose group moves."""
    place, label = group_labels(labels, piece.groups, piece.first, piece.first + piece.size, moving)
    return place + np.int32(piece.offset - piece.first), label


def group_heap_moves(priced: PricedPiece, labels: LabelArray) -> Boundary:
    """Return the moves of a piece's own heap of the groups that lie wholly in it."""
    after = labels.copy()
    move_groups(after, priced.arrays, priced.piece.inside.grouping(priced.piece.groups))
    return _changes(priced.piece, labels, after)
