"""The whole reconciliation over pieces in plain Python: what the Dask version does with tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hmrf_dask.kernels.icm import component_moves_piece, heap_moves_piece
from hmrf_dask.kernels.limbs import merge_limbs
from hmrf_dask.kernels.links import adjacency
from hmrf_dask.kernels.reconcile import (
    ROUNDS,
    Phase,
    Progress,
    advance,
    best_proposal,
    boundary_proposals,
    look_again,
    merge_proposals,
    next_piece,
    propose,
    winners,
)
from hmrf_dask.kernels.reconcile_groups import (
    GroupProposals,
    beaten_groups,
    best_group,
    group_gain_parts,
    group_labels,
    group_proposals,
    groups_inside,
    linked_groups,
    no_proposals,
    replace_proposals,
    select_proposals,
    touched_groups,
)


class Links(NamedTuple):
    """The arrays of one piece, in the order in which kernels take them."""

    first: int
    costs: np.ndarray
    shift: int
    start: np.ndarray
    neighbour: np.ndarray
    cost: np.ndarray


@dataclass
class Piece:
    """Points first .. last of the component, and what it knows between rounds."""

    links: Links
    inside: tuple[np.ndarray, np.ndarray, np.ndarray]
    targets: np.ndarray
    gains: np.ndarray

    @property
    def first(self) -> int:
        return self.links.first

    @property
    def last(self) -> int:
        return self.links.first + len(self.links.costs)

    def propose(self, labels: np.ndarray, look: np.ndarray | None = None) -> None:
        targets, gains = propose(labels, *self.links, look)
        chosen = slice(None) if look is None else look
        self.targets[chosen] = targets
        self.gains[chosen] = gains

    def moves(self, others: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        links = self.links
        local = winners(self.first, self.gains, links.start, links.neighbour, *others)
        return (local + self.first).astype(np.int32), self.targets[local]


def cut(
    costs: np.ndarray,
    shift: int,
    pairs: tuple[np.ndarray, np.ndarray, np.ndarray],
    groups: np.ndarray,
    bounds: list[int],
) -> list[Piece]:
    start, neighbour, cost = adjacency(len(costs), *pairs)
    pieces = []
    for first, last in pairwise(bounds):
        edges = slice(start[first], start[last])
        own = start[first : last + 1] - start[first]
        links = Links(first, costs[first:last], shift, own, neighbour[edges], cost[edges])
        size = last - first
        inside = groups_inside(groups, first, last)
        pieces.append(Piece(links, inside, np.zeros(size, np.int32), np.zeros(size, np.int64)))
    return pieces


class Reconciliation:
    """The whole scheme over pieces in plain Python: what the Dask version does with tasks."""

    def __init__(
        self,
        pieces: list[Piece],
        labels: np.ndarray,
        groups: np.ndarray,
        rounds: int = ROUNDS,
        watch: Callable[[np.ndarray], None] | None = None,
    ) -> None:
        self.pieces = pieces
        self.labels = labels.copy()
        self.groups = groups
        self.rounds = rounds
        self.watch = watch
        self.steps: list[Phase] = []
        self.proposals: GroupProposals = no_proposals()

    def run(self) -> np.ndarray:
        progress = Progress()
        self.look_at_points()
        while progress.phase is not Phase.DONE:
            wanting = self.wanting(progress.phase)
            after = advance(progress, wanting, self.rounds)
            if wanting:
                self.steps.append(after.phase)
                self.step(after.phase)
            elif after.phase is Phase.POINTS:
                self.look_at_points()
            elif after.phase is Phase.GROUPS:
                self.proposals = self.look_at_groups(linked_groups(self.groups))
            progress = after
        return self.labels

    def wanting(self, phase: Phase) -> bool:
        if phase in (Phase.POINTS, Phase.POINT_HANDOVER):
            return any(piece.gains.any() for piece in self.pieces)
        return len(self.proposals.group) > 0

    def step(self, phase: Phase) -> None:
        if phase is Phase.POINTS:
            self.point_round()
        elif phase is Phase.POINT_HANDOVER:
            self.point_handover()
        elif phase is Phase.GROUPS:
            self.group_round()
        else:
            self.group_handover()

    def look_at_points(self) -> None:
        for piece in self.pieces:
            piece.propose(self.labels)

    def exchange(self, index: np.ndarray, label: np.ndarray) -> None:
        self.labels[index] = label
        if self.watch:
            self.watch(self.labels)

    def point_round(self) -> None:
        boundary = merge_proposals(
            [
                boundary_proposals(p.first, p.gains, p.links.start, p.links.neighbour)
                for p in self.pieces
            ]
        )
        moved, label = merge_proposals([piece.moves(boundary) for piece in self.pieces])
        self.exchange(moved, label)
        self.look_at_points_next_to(moved)

    def look_at_points_next_to(self, moved: np.ndarray) -> None:
        for piece in self.pieces:
            links = piece.links
            n = len(self.labels)
            look = look_again(n, piece.first, links.start, links.neighbour, moved)
            piece.propose(self.labels, look)

    def point_handover(self) -> None:
        turn = next_piece([best_proposal(p.first, p.gains) for p in self.pieces])
        labels = self.labels.copy()
        assert heap_moves_piece(labels, *self.pieces[turn].links) > 0
        moved = np.flatnonzero(labels != self.labels).astype(np.int32)
        self.exchange(moved, labels[moved])
        self.look_at_points_next_to(moved)

    def look_at_groups(self, chosen: np.ndarray) -> GroupProposals:
        parts = [
            group_gain_parts(self.labels, self.groups, chosen, *piece.links)
            for piece in self.pieces
        ]
        return group_proposals(chosen, *merge_limbs(parts))

    def look_at_groups_next_to(self, moved: np.ndarray) -> None:
        touched = [
            touched_groups(self.groups, p.first, p.links.start, p.links.neighbour, moved)
            for p in self.pieces
        ]
        chosen = np.intersect1d(np.concatenate(touched), linked_groups(self.groups))
        found = self.look_at_groups(chosen.astype(np.int32))
        self.proposals = replace_proposals(self.proposals, chosen, found)

    def move_groups(self, moving: GroupProposals) -> None:
        moved, label = merge_proposals(
            [group_labels(self.labels, self.groups, p.first, p.last, moving) for p in self.pieces]
        )
        self.exchange(moved, label)
        self.look_at_groups_next_to(moved)

    def group_round(self) -> None:
        beaten = [
            beaten_groups(self.groups, p.first, p.links.start, p.links.neighbour, self.proposals)
            for p in self.pieces
        ]
        self.move_groups(select_proposals(self.proposals, ~np.logical_or.reduce(beaten)))

    def group_handover(self) -> None:
        best = best_group(self.proposals)
        for piece in self.pieces:
            if self.proposals.group[best] in piece.inside[0]:
                labels = self.labels.copy()
                _, start, member = piece.inside
                assert component_moves_piece(labels, *piece.links, self.groups, start, member) > 0
                moved = np.flatnonzero(labels != self.labels).astype(np.int32)
                self.exchange(moved, labels[moved])
                self.look_at_groups_next_to(moved)
                return
        self.move_groups(select_proposals(self.proposals, np.array([best])))
