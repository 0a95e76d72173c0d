"""What first variation proposes: the moves of rows and of whole must-link groups that lower J.

Gains are exact against the sums of the round, centroids re-optimised. Every list is cut to the rows
that one task may fetch, so nothing N-sized travels.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.distortions.base import TableDistortion
from hmrf_dask.kernels.compiled import spread
from hmrf_dask.kernels.first_variation import (
    ClusterSums,
    Gains,
    PairCosts,
    Summands,
    gains_at,
    make_clusters,
    on_columns_of,
    single_gains,
    squares_of,
    summands,
    with_columns,
)
from hmrf_dask.kernels.hamerly import RowBounds
from hmrf_dask.kernels.nearest import rows_that_may_move
from hmrf_dask.kernels.problem import adjacency
from hmrf_dask.kernels.set_moves import SetMoves, apply_moves, group_gains
from hmrf_dask.linked.layout import CANNOT
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.icm import PricedProblem, end_to_end
from hmrf_dask.tasks.model import Model, State
from hmrf_dask.tasks.partitions import RowTerms, StoredLabels, pick, terms_of
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray, Sized


@dataclass(frozen=True)
class Sources(Sized):
    """The frozen sums of a round as tasks need them."""

    model: Model
    sums: IntArray
    counts: IntArray
    squares: FloatArray  # ‖S_h‖²
    optimal: bool  # whether the centroids are those of the sums
    _made: list[ClusterSums] = field(default_factory=list, init=False, repr=False, compare=False)
    _lock: Any = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    @staticmethod
    def of(state: State) -> Sources:
        """Return the sums of a state."""
        model, sums = state.model, state.sums
        squares = squares_of(sums, column_weights(model), model.exponent)
        return Sources(model, sums, state.counts, squares, state.optimal)

    @property
    def screening(self) -> bool:
        """Whether low precision shows which rows may move."""
        return self.optimal and self.model.distortion.refinement == "directional"

    def clusters(self) -> ClusterSums:
        """Return the sums that moves are judged by."""
        return make_clusters(
            self.sums,
            column_weights(self.model),
            2.0**-self.model.exponent,
            self.squares,
            columns=np.empty((0, 0)),
            counts=self.counts,
            directional=self.model.distortion.refinement == "directional",
        )

    def clusters_with_columns(self) -> ClusterSums:
        """Return them for products with all clusters, made once in a process."""
        with self._lock:  # tasks on other threads wait for the one that makes them
            if not self._made:
                self._made.append(with_columns(self.clusters()))
        return self._made[0]

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave behind what is made again faster than it travels."""
        return Sources, (self.model, self.sums, self.counts, self.squares, self.optimal)


def column_weights(model: Model) -> FloatArray:
    """Return the weight of each column of the sums in products of summands."""
    if model.distortion.refinement == "directional":
        return np.append(np.ones_like(model.weights), -model.weights.sum())
    return np.append(model.weights, 0.0)


@dataclass(frozen=True)
class Proposals(Sized):
    """Moves that would lower J, best first, ties by the id of the first row.

    Move t takes rows addresses[starts[t]:starts[t + 1]] to targets[t]. Addresses are row numbers of
    the corpus, and beyond them linked positions. All moves together have at most `most_rows` rows.
    """

    gains: FloatArray
    ids: AnyArray
    targets: LabelArray
    starts: IntArray
    addresses: IntArray
    most_rows: int


def summands_of(block: RowBlock, model: Model) -> Summands:
    """Return the rows of a block as the sums hold them."""
    distortion = model.distortion
    assert isinstance(distortion, TableDistortion)
    terms = distortion.terms(block, model.weights)
    features = distortion.features(model.weights)
    factor, extra = spread(terms.factor, block.n_rows), spread(terms.extra, block.n_rows)
    return summands(block.arrays, factor, extra, features, model.exponent)


class _Rows(NamedTuple):
    """Rows that may move: as the sums hold them, their ids, labels and addresses."""

    rows: Summands
    ids: AnyArray
    labels: LabelArray
    addresses: IntArray


def _rows_of(block: RowBlock, model: Model, labels: LabelArray, first: int) -> _Rows:
    addresses = first + np.arange(block.n_rows)
    return _Rows(summands_of(block, model), block.ids, labels, addresses)


def _single_moves(
    moving: _Rows, sources: Sources, most_rows: int, pair_costs: PairCosts | None = None
) -> Proposals:
    """Return the moves of single rows that lower J; rows with a label below 0 stay."""
    skip = moving.labels < 0
    shown = np.where(skip, 0, moving.labels).astype(np.int32)
    clusters = sources.clusters_with_columns()
    gains = single_gains(moving.rows, clusters, shown, skip, pair_costs)
    return _best_of(moving, gains, most_rows)


def _best_of(moving: _Rows, found: Gains, most_rows: int) -> Proposals:
    """Return the moves of single rows that gain."""
    (_, ids, _, addresses), (gains, targets) = moving, found
    chosen = np.flatnonzero(gains > 0)
    starts = np.arange(len(chosen) + 1)
    best = (gains[chosen], ids[chosen], targets[chosen])
    return best_first(Proposals(*best, starts, addresses[chosen], most_rows))


def propose_rows(
    block: RowBlock,
    cached: RowTerms | None,
    sources: Sources,
    labels: StoredLabels,
    most_rows: int,
) -> Proposals:
    """Return the best moves of the free rows of a partition."""
    model, known, first = sources.model, labels.read(), labels.files[0].first_row
    if not sources.screening:
        return _single_moves(_rows_of(block, model, known, first), sources, most_rows)
    terms, bounds = terms_of(block, cached, model), RowBounds() if cached is None else cached.bounds
    table = model.table()
    squares = sources.squares
    near, start, target = rows_that_may_move(block.arrays, terms, table, squares, known, bounds)
    rows = block if len(near) == block.n_rows else block.take(near)
    addresses = first + near.astype(np.int64)
    moving = _Rows(summands_of(rows, model), rows.ids, known[near], addresses)
    gains = gains_at(moving.rows, sources.clusters(), moving.labels, start, target)
    return _best_of(moving, gains, most_rows)


def pair_costs_of(priced: PricedProblem) -> PairCosts:
    """Return the signed float64 costs of an ICM problem's pairs, neighbours as points."""
    problem, penalty = priced.problem, priced.pairs.penalty
    signed = np.where(problem.kind == CANNOT, penalty, -penalty)
    edges = np.arange(len(signed))
    start, neighbour, edge = adjacency(len(problem.nodes), problem.first, problem.second, edges)
    return PairCosts(start, neighbour, signed[edge])


def propose_linked(
    priced: PricedProblem, blocks: list[RowBlock], sources: Sources, base: int, most_rows: int
) -> Proposals:
    """Return the best moves of points and whole groups of an ICM problem, addressed from `base`."""
    problem, pair_costs = priced.problem, pair_costs_of(priced)
    moving = _rows_of(end_to_end(blocks), sources.model, priced.labels.read(), base)
    singles = _single_moves(moving, sources, most_rows, pair_costs)
    sizes = np.diff(problem.group_starts)
    starts, members = pick(problem.group_starts, problem.group_members, np.flatnonzero(sizes > 1))
    if len(starts) == 1:
        return singles
    rows, ids, labels, addresses = moving
    clusters = sources.clusters_with_columns()
    gains, targets = group_gains(starts, members, rows, labels, clusters, pair_costs)
    chosen = np.flatnonzero(gains > 0)
    cuts, whole = pick(starts, members, chosen)
    best = (gains[chosen], ids[members[starts[chosen]]], targets[chosen])
    groups = Proposals(*best, cuts, addresses[whole], most_rows)
    return merge_proposals([singles, groups])


def best_first(proposals: Proposals) -> Proposals:
    """Return proposals best first, with the first one that no longer fits into a round.

    It ends the list of all partitions, too: what comes after it there is not taken, though it may
    be smaller and fit.
    """
    order = np.lexsort((proposals.ids, -proposals.gains))
    sizes = np.diff(proposals.starts)[order]
    return _picked(proposals, order[np.cumsum(sizes) - sizes <= proposals.most_rows])


def that_fit(proposals: Proposals) -> Proposals:
    """Return of the best of all partitions as many as may be fetched, the first in any case."""
    sizes = np.diff(proposals.starts)
    fit = np.cumsum(sizes) <= max(proposals.most_rows, int(sizes[:1].sum()))
    return _picked(proposals, np.flatnonzero(fit))


def _picked(proposals: Proposals, order: IntArray) -> Proposals:
    starts, addresses = pick(proposals.starts, proposals.addresses, order)
    kept = (proposals.gains[order], proposals.ids[order], proposals.targets[order])
    return Proposals(*kept, starts, addresses, proposals.most_rows)


def merge_proposals(lists: Sequence[Proposals]) -> Proposals:
    """Return the best of several lists."""
    ends = np.cumsum([0, *(part.starts[-1] for part in lists)])
    starts = [part.starts[:-1] + end for part, end in zip(lists, ends, strict=False)]
    with_moves = [part for part in lists if len(part.gains)] or list(lists[:1])
    return best_first(
        Proposals(
            np.concatenate([part.gains for part in lists]),
            np.concatenate([part.ids for part in with_moves]),  # other types in an empty block
            np.concatenate([part.targets for part in lists]),
            np.concatenate([*starts, ends[-1:]]),
            np.concatenate([part.addresses for part in lists]),
            lists[0].most_rows,
        )
    )


@dataclass(frozen=True)
class Chosen(Sized):
    """The pair costs and neighbours of a few linked rows, in addresses."""

    starts: IntArray
    neighbours: IntArray
    costs: FloatArray
    near: IntArray  # addresses of rows and neighbours, sorted
    labels: LabelArray  # their labels


def pairs_of_rows(priced: PricedProblem, base: int, addresses: IntArray) -> Chosen:
    """Return what re-checking needs to know of some rows of an ICM problem."""
    labels, pair_costs = priced.labels.read(), pair_costs_of(priced)
    starts, edges = pick(pair_costs.start, np.arange(len(pair_costs.cost)), addresses - base)
    neighbours = base + pair_costs.neighbour[edges].astype(np.int64)
    near = np.unique(np.concatenate([addresses, neighbours]))
    return Chosen(starts, neighbours, pair_costs.cost[edges], near, labels[near - base])


def free_labels(labels: StoredLabels, addresses: IntArray) -> LabelArray:
    """Return the labels of a few rows of a partition."""
    return labels.read()[addresses - labels.files[0].first_row]


def apply_proposals(
    proposals: Proposals,
    blocks: list[RowBlock],
    free: list[LabelArray],
    linked: list[Chosen],
    sources: Sources,
) -> tuple[IntArray, LabelArray]:
    """Return the addresses and labels of the rows that moved.

    `blocks` are the rows of the proposals by address, `free` the labels of those that are free
    rows, `linked` what is known of the linked ones, which come after.
    """
    addresses = np.unique(proposals.addresses)
    n_free = sum(len(labels) for labels in free)
    known = np.concatenate([addresses[:n_free], *(rows.near for rows in linked)])
    labels = np.concatenate([*free, *(rows.labels for rows in linked)]).astype(np.int32)
    places = np.searchsorted(known, addresses).astype(np.int32)
    lengths = [np.zeros(n_free, np.int64), *(np.diff(rows.starts) for rows in linked)]
    neighbours = [np.zeros(0, np.int64), *(rows.neighbours for rows in linked)]
    pair_costs = PairCosts(
        np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64),
        np.searchsorted(known, np.concatenate(neighbours)).astype(np.int32),
        np.concatenate([np.zeros(0), *(rows.costs for rows in linked)]),
    )
    rows = summands_of(RowBlock.concatenate(blocks), sources.model)
    rows, clusters = on_columns_of(rows, sources.clusters())
    members = np.searchsorted(addresses, proposals.addresses).astype(np.int32)
    before = labels[places]
    moves = SetMoves(proposals.starts, members, proposals.targets)
    apply_moves(moves, rows, places, labels, clusters, pair_costs)
    after = labels[places]
    moved = np.flatnonzero(before != after)
    return addresses[moved], after[moved]
