"""Pieces of a component that does not fit one task: a linked partition and what it sees of others.

A piece numbers what it knows by *places*: its own points and the far ends of their pairs. Kernels
take it for a small component of its own whose far ends stay as they are; places ascend with the
problem's indices, so every tie is decided alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hmrf_dask.linked.layout import LinkedLayout
from hmrf_dask.types import AnyArray, BoolArray, IntArray, LabelArray


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
class Piece:
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

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        arrays: list[AnyArray] = [self.far, self.start, self.neighbour, self.edge, self.groups]
        arrays += [*self.inside, *self.cut, *self.seen_by.values()]
        return sum(one.nbytes for one in arrays) + 1024


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
    found = np.searchsorted(layout.block_partitions[:, 0], [partitions.start, partitions.stop])
    pair_blocks = range(*found.tolist())
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
