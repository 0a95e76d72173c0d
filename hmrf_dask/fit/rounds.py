"""ICM on a component above the memory budget: pieces reconciled in rounds, then by hand-over.

What pieces know stays on workers as task results; labels and gains of boundary points travel
between them; the driver sees flags and single best proposals and decides what is next
(`advance`). Batches of group vectors, and with them every label, depend on sizes
and configuration alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from hmrf_dask.checkpoints.records import LabelsFile
from hmrf_dask.fit.passes import Engine, Pricing
from hmrf_dask.flow.dataflow import FAN, Dataflow, Lazy, tree
from hmrf_dask.kernels.reconcile import merge_parts
from hmrf_dask.linked.plan import BOUNDARY_SHARE
from hmrf_dask.tasks import rounds as tasks
from hmrf_dask.tasks.partitions import StoredLabels
from hmrf_dask.tasks.rounds import Cutting, PricedPiece

PROPOSAL_BYTES = 24  # number, target and gain of a group that wants to move
GROUP_BYTES = 4
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
    """Where a reconciliation stands."""

    phase: Phase = Phase.POINTS
    rounds: int = 0  # done in this phase
    groups_moved: bool = False  # since points last settled


def advance(progress: Progress, unsettled: bool, rounds: int = ROUNDS) -> Progress:
    """Return the next state; `rounds` may be done before the hand-over.

    `unsettled` says whether any point (in a phase of points) or any group (in a phase of groups)
    wants to move. If so the caller does one step of the phase returned; if not, that phase begins.

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


def next_pieces(bests: Sequence[tuple[int, int]], neighbours: Sequence[Sequence[int]]) -> list[int]:
    """Return the pieces that are next in the hand-over: their best beats those of linked ones.

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
        if best[0] > 0 and all(best > bests[near] for near in neighbours[number])
    ]


@dataclass
class Rounds:
    """The reconciliation of the pieces of one ICM problem."""

    flow: Dataflow
    cutting: Cutting  # what the driver knows of the pieces
    pieces: Sequence[PricedPiece]  # of task results
    n_clusters: int
    budget: int  # bytes that boundary lists may take in one task
    rounds: int = ROUNDS  # before the hand-over
    watch: Callable[[list[Lazy]], None] = field(default=lambda _labels: None)
    labels: list[Lazy] = field(default_factory=list)  # by piece, as task results
    proposals: list[Lazy] = field(default_factory=list)
    summaries: list[tasks.Summary] = field(default_factory=list)
    group_proposals: Lazy = None
    leader: int = -1
    steps: list[Phase] = field(default_factory=list)

    # ---- opening

    def open(self, own: Sequence[Lazy]) -> None:
        """Take the labels of own points, and place all groups when a point has none."""
        flow = self.flow
        if any(flow.compute([flow.lazy(tasks.undecided, labels) for labels in own])):
            own = self._first_labels()
        views = []
        for number, near in enumerate(self.cutting.neighbours):
            boundaries = [
                flow.lazy(tasks.labels_for, self.pieces[source].piece, own[source], number)
                for source in near
            ]
            piece = self.pieces[number].piece
            views.append(flow.lazy(tasks.open_piece, piece, own[number], boundaries))
        self.labels = flow.persist(views)

    def _first_labels(self) -> list[Lazy]:
        flow, targets = self.flow, []
        for first, last in self._batches(8 * self.n_clusters):
            sums = [
                flow.lazy(tasks.own_sums, priced.piece, priced.costs, first, last)
                for priced in self.pieces
            ]
            targets += flow.persist([flow.lazy(tasks.nearest, tree(flow, merge_parts, sums))])
        # persisted while `targets` lives: Dask forgets a value that others hold in a list alone
        return flow.persist(
            [
                flow.lazy(tasks.first_own, priced.piece, priced.costs, targets)
                for priced in self.pieces
            ]
        )

    def _batches(self, vector: int) -> list[tuple[int, int]]:
        """Return ranges of groups whose vectors of so many bytes fit into one task of a tree."""
        most = max(1, self.budget // ((FAN + 1) * (2 * vector + GROUP_BYTES)))
        cut = self.cutting.cut_groups
        return [
            (int(cut[first]), int(cut[min(first + most, len(cut)) - 1]) + 1)
            for first in range(0, len(cut), most)
        ]

    # ---- the state machine

    def run(self) -> None:
        """Move points and groups until neither can move with a gain."""
        progress = Progress()
        self._propose_points()
        while progress.phase is not Phase.DONE:
            unsettled = self._unsettled(progress.phase)
            after = advance(progress, unsettled, self.rounds)
            if unsettled:
                self.steps.append(after.phase)
                self._step(after.phase)
                self.watch(self.labels)
            elif after.phase is Phase.POINTS:
                self._propose_points()
            elif after.phase is Phase.GROUPS:
                self._propose_groups()
            progress = after

    def _unsettled(self, phase: Phase) -> bool:
        if phase in (Phase.POINTS, Phase.POINT_HANDOVER):
            return any(summary.best[0] > 0 for summary in self.summaries)
        return self.leader >= 0

    def _step(self, phase: Phase) -> None:
        steps = {
            Phase.POINTS: self._point_round,
            Phase.POINT_HANDOVER: self._point_handover,
            Phase.GROUPS: self._group_round,
            Phase.GROUP_HANDOVER: self._group_handover,
        }
        steps[phase]()

    def _by_piece(self, function: Callable[..., Any], *arguments: Any) -> list[Lazy]:
        """Return a task of every piece that needs its costs and labels."""
        return [
            self.flow.lazy(function, priced, labels, *arguments)
            for priced, labels in zip(self.pieces, self.labels, strict=True)
        ]

    # ---- points

    def _propose_points(self) -> None:
        proposals = self._by_piece(tasks.propose_points)
        self._keep(dict(enumerate(self.labels)), dict(enumerate(proposals)))

    def _keep(self, labels: dict[int, Lazy], proposals: dict[int, Lazy]) -> None:
        """Persist new labels and proposals of some pieces, and learn their summaries."""
        flow, numbers = self.flow, list(proposals)
        summaries = [
            flow.lazy(tasks.summary_of, self.pieces[number].piece, proposals[number])
            for number in numbers
        ]
        kept = iter(flow.persist([*labels.values(), *proposals.values(), *summaries]))
        if not self.proposals:
            self.proposals = [None] * len(self.pieces)
            self.summaries = [tasks.Summary((0, 0), ())] * len(self.pieces)
        for number in labels:
            self.labels[number] = next(kept)
        for number in numbers:
            self.proposals[number] = next(kept)
        for number, summary in zip(numbers, flow.compute(list(kept)), strict=True):
            self.summaries[number] = summary

    def _point_round(self) -> None:
        flow, pieces, proposals = self.flow, self.pieces, self.proposals
        movers = [number for number, summary in enumerate(self.summaries) if summary.best[0] > 0]
        moves = {}
        for number in movers:
            boundaries = [
                flow.lazy(tasks.gains_for, pieces[source].piece, proposals[source], number)
                for source in movers
                if number in self.summaries[source].readers
            ]
            own = (pieces[number].piece, proposals[number])
            moves[number] = flow.lazy(tasks.winning_moves, *own, boundaries)
        self._move_points(moves)

    def _point_handover(self) -> None:
        turn = next_pieces([summary.best for summary in self.summaries], self.cutting.neighbours)
        self._move_points({number: self._heap(tasks.heap_moves, number) for number in turn})

    def _heap(self, function: Callable[..., Any], number: int) -> Lazy:
        return self.flow.lazy(function, self.pieces[number], self.labels[number])

    def _move_points(self, moves: dict[int, Lazy]) -> None:
        labels, proposals = {}, {}
        for number, boundaries in self._boundaries(moves).items():
            labels[number] = self._taken(number, boundaries)
            proposals[number] = self.flow.lazy(
                tasks.propose_near_moves, self.pieces[number], labels[number],
                self.proposals[number], boundaries,
            )  # fmt: skip
        self._keep(labels, proposals)

    def _taken(self, number: int, boundaries: list[Lazy]) -> Lazy:
        piece, labels = self.pieces[number].piece, self.labels[number]
        return self.flow.lazy(tasks.take_moves, piece, labels, boundaries)

    def _boundaries(self, moves: dict[int, Lazy]) -> dict[int, list[Lazy]]:
        """Return, by piece, its own moves and those of its far ends, where there may be any."""
        boundaries: dict[int, list[Lazy]] = {number: [own] for number, own in moves.items()}
        for number, own in moves.items():
            for reader in self.cutting.neighbours[number]:
                boundary = self.flow.lazy(tasks.moves_for, self.pieces[number].piece, own, reader)
                boundaries.setdefault(reader, []).append(boundary)
        return boundaries

    # ---- groups

    def _propose_groups(self) -> None:
        """Learn which groups want to move: by piece, and cut ones by parts, a batch at a time."""
        flow, most = self.flow, max(1, self.budget // ((FAN + 1) * PROPOSAL_BYTES))
        inside = self._by_piece(tasks.propose_inside_groups, most)
        kept = flow.persist([tree(flow, tasks.merge_group_proposals, inside)])
        for first, last in self._batches(8 * (self.n_clusters + 1)):
            parts = self._by_piece(tasks.cut_group_energies, first, last)
            whole = flow.lazy(tasks.cut_group_proposals, tree(flow, merge_parts, parts), most)
            kept = flow.persist([flow.lazy(tasks.merge_group_proposals, [kept[0], whole])])
        self.group_proposals = kept[0]
        self.leader = flow.compute([flow.lazy(tasks.leader, self.group_proposals)])[0]

    def _group_round(self) -> None:
        flow, groups = self.flow, self.group_proposals
        flags = [flow.lazy(tasks.beaten, priced.piece, groups) for priced in self.pieces]
        moving = flow.lazy(tasks.unbeaten, groups, tree(flow, np.logical_or.reduce, flags))
        pieces = enumerate(zip(self.pieces, self.labels, strict=True))
        self._move_members(
            {
                number: flow.lazy(tasks.group_moves, priced.piece, labels, moving)
                for number, (priced, labels) in pieces
            }
        )

    def _group_handover(self) -> None:
        """Let the piece that holds the best group run its heap; when it is cut, do a round."""
        cut = self.cutting.cut_groups
        place = int(np.searchsorted(cut, self.leader))
        if place < len(cut) and cut[place] == self.leader:
            self._group_round()
            return
        home = int(self.cutting.homes[self.leader])
        self._move_members({home: self._heap(tasks.group_heap_moves, home)})

    def _move_members(self, moves: dict[int, Lazy]) -> None:
        boundaries = self._boundaries(moves)
        after = [self._taken(number, lists) for number, lists in boundaries.items()]
        for number, labels in zip(boundaries, self.flow.persist(after), strict=True):
            self.labels[number] = labels
        self._propose_groups()


def settle_in_rounds(
    engine: Engine,
    number: int,
    pricing: Pricing,
    costs: Sequence[Lazy],
    files: Sequence[LabelsFile],
) -> list[Lazy]:
    """Return lazily the labels of each linked part of a problem in mode "rounds", after exact ICM.

    `number` is its place among the ICM problems; cost rows and label files come by linked part.
    """
    flow, settings, plan = engine.flow, engine.problem.settings, engine.problem.icm_problems[number]
    assert plan.cutting is not None
    ends = zip(plan.pieces, flow.persist(costs), pricing.problems[number].costs, strict=True)
    pieces = [PricedPiece(*own, pricing.scale.shift) for own in ends]
    budget = settings.task_memory // BOUNDARY_SHARE
    rounds = Rounds(flow, plan.cutting, pieces, settings.n_clusters, budget)
    stored = (StoredLabels(engine.run, [file]) for file in files)
    rounds.open(flow.persist([flow.lazy(StoredLabels.read, labels) for labels in stored]))
    rounds.run()
    return [
        flow.lazy(tasks.close_piece, piece, labels)
        for piece, labels in zip(plan.pieces, rounds.labels, strict=True)
    ]
