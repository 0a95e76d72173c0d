"""First variation in rounds: every part proposes against frozen sums, the best moves are applied.

Rows and whole must-link groups move when J falls with centroids re-optimised, which frees batch
assignment where it is stuck: on sparse text a document's own share of its centroid outweighs the
differences between clusters. Moves are re-checked one after the other on the sums as they then
stand. Rows of ICM problems in table form or in rounds are moved by ICM alone, rows with hard
pairs by the E-step alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hmrf_dask.distortions.base import Distortion
from hmrf_dask.fit.m_step import maximisation
from hmrf_dask.fit.passes import Engine, Pricing
from hmrf_dask.flow.dataflow import Lazy, share_array, tree
from hmrf_dask.kernels.set_moves import Moves, apply_moves
from hmrf_dask.kernels.worths import Ties
from hmrf_dask.linked.layout import IcmProblem
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.storage.records import CheckpointStore, LabelsFile
from hmrf_dask.tasks.first_variation import (
    Proposals,
    Sources,
    merge_proposals,
    pick,
    propose_linked,
    propose_rows,
    summands_of,
    ties_of,
)
from hmrf_dask.tasks.linked_costs import PricedPairs
from hmrf_dask.tasks.model import State
from hmrf_dask.tasks.partitions import LabelledPartition
from hmrf_dask.types import FloatArray, IntArray, LabelArray

# "auto" refines up to so many rows a cluster: every candidate of a pool, or only the one that wins.
# Measured on TF-IDF (pipelines/papers/refinement.py; hmrf_dask/README.md has the table).
POOL_ROWS_PER_CLUSTER = 200
ROWS_PER_CLUSTER = 2000
SHARE = 16  # rows fetched in one round take at most this part of the task memory
LEAST_ROWS = 64  # but so many may always be fetched


def wanted(
    setting: str | bool,
    distortion: Distortion,
    n_rows: int,
    n_clusters: int,
    most: int = ROWS_PER_CLUSTER,
) -> bool:
    """Return whether first variation runs; `most` rows a cluster are where "auto" ends."""
    if distortion.refinement is None or n_clusters < 2:
        return False
    return bool(setting) if setting != "auto" else n_rows <= most * n_clusters


@dataclass(frozen=True)
class Chosen:
    """The pair costs and neighbours of a few linked rows, in addresses."""

    starts: IntArray
    neighbours: IntArray
    costs: FloatArray
    near: IntArray  # addresses of rows and neighbours, sorted
    labels: LabelArray  # their labels

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        arrays = (self.starts, self.neighbours, self.costs, self.near, self.labels)
        return sum(array.nbytes for array in arrays) + 256


def chosen_ties(
    problem: IcmProblem,
    pairs: PricedPairs,
    run: CheckpointStore,
    files: list[LabelsFile],
    base: int,
    addresses: IntArray,
) -> Chosen:
    """Return what re-checking needs to know of some rows of an ICM problem."""
    labels = np.concatenate([run.read_labels(file) for file in files])
    ties = ties_of(problem, pairs)
    starts, edges = pick(ties.start, np.arange(len(ties.cost)), addresses - base)
    neighbours = base + ties.neighbour[edges].astype(np.int64)
    near = np.unique(np.concatenate([addresses, neighbours]))
    return Chosen(starts, neighbours, ties.cost[edges], near, labels[near - base])


def free_labels(run: CheckpointStore, file: LabelsFile, addresses: IntArray) -> LabelArray:
    """Return the labels of a few rows of a part."""
    return run.read_labels(file)[addresses - file.first_row]


def apply_proposals(
    proposals: Proposals,
    blocks: list[RowBlock],
    free: list[LabelArray],
    tied: list[Chosen],
    sources: Sources,
) -> tuple[IntArray, LabelArray]:
    """Return the addresses and labels of the rows that moved.

    `blocks` are the rows of the proposals by address, `free` the labels of those that are free
    rows, `tied` what is known of the linked ones, which come after.
    """
    addresses = np.unique(proposals.addresses)
    n_free = sum(len(one) for one in free)
    known = np.concatenate([addresses[:n_free], *(one.near for one in tied)])
    labels = np.concatenate([*free, *(one.labels for one in tied)]).astype(np.int32)
    places = np.searchsorted(known, addresses).astype(np.int32)
    lengths = np.concatenate([np.zeros(n_free, np.int64), *(np.diff(one.starts) for one in tied)])
    nobody = np.zeros(0, np.int64)
    neighbours = np.concatenate([nobody, *(one.neighbours for one in tied)])
    ties = Ties(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.searchsorted(known, neighbours).astype(np.int32),
        np.concatenate([np.zeros(0), *(one.costs for one in tied)]),
    )
    rows = summands_of(RowBlock.concatenate(blocks), sources.model)
    members = np.searchsorted(addresses, proposals.addresses).astype(np.int32)
    before = labels[places]
    apply_moves(
        Moves(proposals.starts, members, proposals.targets), rows, places, labels,
        sources.sums.copy(), sources.metric, sources.model.exponent, sources.counts.copy(),
        sources.directional, ties,
    )  # fmt: skip
    after = labels[places]
    moved = np.flatnonzero(before != after)
    return addresses[moved], after[moved]


def moved_labels(
    run: CheckpointStore, file: LabelsFile, base: int, moves: tuple[IntArray, LabelArray]
) -> LabelArray:
    """Return the labels of a part after the moves; `base` is the address of its first row."""
    labels = np.array(run.read_labels(file))
    here = (moves[0] >= base) & (moves[0] < base + file.n_rows)
    labels[moves[0][here] - base] = moves[1][here]
    return labels


def vary(engine: Engine, state: State, pricing: Pricing) -> tuple[State, int]:
    """Return the state after one round, centroids optimal, and how many rows moved.

    The same state, and 0, when J would not fall.
    """
    flow = engine.flow
    sources = flow.share(Sources(state.model, state.sums, state.counts))
    proposals = _propose(engine, state, pricing, sources)
    if not len(proposals.gains):
        return state, 0
    moves = _apply(engine, state, pricing, proposals, sources)
    after = [
        flow.lazy(moved_labels, engine.run, file, first, moves)
        for _, file, first in _addressed(engine, state)
    ]
    moved, count = engine.move(state, after, pricing, engine.send(state.model))
    settled = maximisation(engine, moved)
    return (settled, count) if count and settled.energy.total < state.energy.total else (state, 0)


def _addressed(engine: Engine, state: State) -> list[tuple[LabelledPartition, LabelsFile, int]]:
    """Return every part with its label file and the address of its first row."""
    n_free, beyond = len(engine.problem.free), engine.problem.extent.n_rows
    parts = engine.all_parts(state)
    free = [(part, file, part.first_row) for part, file in parts[:n_free]]
    return free + [(part, file, beyond + part.first_row) for part, file in parts[n_free:]]


def _varied_problems(engine: Engine) -> list[tuple[int, int, int]]:
    """Return the ICM problems whose rows take part, with their first address and the one after."""
    problem, found = engine.problem, []
    for number, plan in enumerate(problem.icm_problems):
        if plan.mode in ("heap", "messages") and not problem.settings.hard:
            first = problem.extent.n_rows + problem.linked[plan.parts.start].first_row
            n_rows = sum(problem.linked[part].n_rows for part in plan.parts)
            found.append((number, first, first + n_rows))
    return found


def _propose(engine: Engine, state: State, pricing: Pricing, sources: Lazy) -> Proposals:
    """Return the best moves of all parts."""
    flow, problem = engine.flow, engine.problem
    memory = problem.settings.task_memory
    most = max(LEAST_ROWS, memory // (SHARE * max(problem.row_bytes, 1)))
    lists = [
        flow.lazy(propose_rows, part.block, sources, engine.run, file, most)
        for part, file in zip(problem.free, state.free, strict=True)
    ]
    for number, first, _ in _varied_problems(engine):
        plan = problem.icm_problems[number]
        blocks = [problem.linked[part].block for part in plan.parts]
        files = [state.linked[part] for part in plan.parts]
        pairs = pricing.problems[number]
        arguments = (plan.problem, blocks, pairs, sources, engine.run, files, first, most)
        lists.append(flow.lazy(propose_linked, *arguments))
    best: Proposals = flow.compute([tree(flow, merge_proposals, lists)])[0]
    return best


def _apply(
    engine: Engine, state: State, pricing: Pricing, proposals: Proposals, sources: Lazy
) -> Lazy:
    """Return the moves that stand, lazily: rows come from their parts, one task applies them."""
    flow, problem = engine.flow, engine.problem
    addresses = np.unique(proposals.addresses)

    def between(first: int, last: int) -> IntArray:
        low, high = np.searchsorted(addresses, [first, last])
        return addresses[low:high]

    blocks: list[Lazy] = []
    free: list[Lazy] = []
    for part, file, first in _addressed(engine, state):
        here = between(first, first + part.n_rows)
        if len(here):
            blocks.append(flow.lazy(RowBlock.take, part.block, share_array(flow, here - first)))
            if first < problem.extent.n_rows:
                free.append(flow.lazy(free_labels, engine.run, file, share_array(flow, here)))
    tied: Sequence[Lazy] = [
        flow.lazy(
            chosen_ties, problem.icm_problems[number].problem, pricing.problems[number], engine.run,
            [state.linked[part] for part in problem.icm_problems[number].parts], first,
            share_array(flow, between(first, last)),
        )
        for number, first, last in _varied_problems(engine)
        if len(between(first, last))
    ]  # fmt: skip
    return flow.lazy(apply_proposals, flow.share(proposals), blocks, free, tied, sources)
