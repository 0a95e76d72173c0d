"""Priority rounds: pieces of a component too large for one task, and what each does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile
from hmrf_dask.kernels.icm import move_groups, move_points
from hmrf_dask.kernels.problem import (
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
    merge_parts,
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


@dataclass(frozen=True)
class Piece(Sized):
    """What a linked partition knows of its ICM problem, whatever pairs and distances cost.

    Attributes
    ----------
    first : place of its first own point
    offset, size : index in the problem of its first own point, and how many it has
    far : indices of the far ends of its pairs, ascending
    start, neighbour : half-edges of the own points, neighbours as places
    edge : where the pair of each half-edge stands among those of the piece's blocks, end to end
    groups : must-link group of every place
    inside, cut : groups of at least two points: all of them here, or some elsewhere
    seen_by : by piece, the own points it has as far ends (indices, ascending)
    """

    first: int
    offset: int
    size: int
    far: LabelArray
    start: IntArray
    neighbour: LabelArray
    edge: LabelArray
    groups: LabelArray
    inside: Members
    cut: Members
    seen_by: dict[int, LabelArray]

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
    """An ICM problem in pieces, as the driver knows it.

    Attributes
    ----------
    partitions, pair_blocks : linked partitions and pair blocks of the problem
    pieces : emptied once they are task results
    neighbours : by piece, the pieces it shares pairs with
    blocks : by piece, the pair blocks it has ends in
    cut_groups : groups with points in several pieces, ascending
    homes : the piece of the first point of each group
    """

    partitions: range
    pair_blocks: range
    pieces: tuple[Piece, ...] = field(repr=False)
    neighbours: tuple[tuple[int, ...], ...]
    blocks: tuple[tuple[int, ...], ...]
    cut_groups: LabelArray
    homes: LabelArray


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
    neighbours = tuple(tuple(sorted(piece.seen_by)) for piece in pieces)
    cut_groups = np.flatnonzero(cut).astype(np.int32)
    touched = tuple(tuple(touching) for touching in blocks)
    return Cutting(partitions, pair_blocks, pieces, neighbours, touched, cut_groups, homes)


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
    for number, (first, second) in enumerate(pairs):
        yield _piece(number, bounds, first, second, groups, sizes, cut)


def _homes(groups: IntArray, bounds: IntArray) -> tuple[LabelArray, BoolArray]:
    """Return the piece of each group's first point, and whether it has points elsewhere too."""
    n_groups = int(groups.max(initial=-1)) + 1
    owner = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))
    first, last = np.empty((2, n_groups), np.int32)
    first[groups[::-1]] = owner[::-1]
    last[groups] = owner
    return first, first != last


def _piece(
    number: int,
    bounds: IntArray,
    first: LabelArray,
    second: LabelArray,
    groups: IntArray,
    sizes: IntArray,
    cut: BoolArray,
) -> Piece:
    offset, last = bounds[number : number + 2].tolist()
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
        far.astype(np.int32),
        start,
        places.astype(np.int32),
        edge,
        view.astype(np.int32),
        _members(own, (sizes[own] > 1) & ~cut[own], below),
        _members(own, cut[own], below),
        seen_by,
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


def piece_arrays(piece: Piece, costs: AnyArray, pair_costs: IntArray, shift: int) -> ProblemArrays:
    """Return a piece as ICM kernels see it."""
    return make_problem(piece.first, costs, shift, piece.start, piece.neighbour, pair_costs)


def half_edges(piece: Piece) -> HalfEdges:
    """Return the pairs of a piece's own points as kernels see them."""
    return make_half_edges(piece.first, piece.start, piece.neighbour)


# ---- opening


def read_own(run: CheckpointStore, file: LabelsFile) -> LabelArray:
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
    changed = near_moves(len(labels), half_edges(piece), places)
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
    won = winners(half_edges(piece), proposals.gains, *others)
    return won + np.int32(piece.offset), proposals.targets[won]


def heap_moves(
    piece: Piece, costs: AnyArray, pair_costs: IntArray, shift: int, labels: LabelArray
) -> Boundary:
    """Return the moves of a piece's own heap of points, all others as they are."""
    after = labels.copy()
    move_points(after, piece_arrays(piece, costs, pair_costs, shift))
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
class GroupProposals(Sized):
    """The groups that want to move most, as many as may travel."""

    moves: GroupMoves
    most: int


def propose_inside_groups(
    piece: Piece, costs: AnyArray, pair_costs: IntArray, shift: int, labels: LabelArray, most: int
) -> GroupProposals:
    """Return the best moves of groups that lie wholly in a piece."""
    arrays = piece_arrays(piece, costs, pair_costs, shift)
    inside = make_grouping(piece.groups, piece.inside.start, piece.inside.member)
    moves = inside_proposals(labels, arrays, inside, piece.inside.number)
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
    grouping = make_grouping(piece.groups, cut.start, cut.member)
    return cut.number, *group_gain_parts(labels, arrays, grouping)


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
    return beaten_groups(piece.groups, half_edges(piece), proposals.moves)


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
    inside = make_grouping(piece.groups, piece.inside.start, piece.inside.member)
    move_groups(after, arrays, inside)
    return _changes(piece, labels, after)
