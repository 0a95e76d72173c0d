"""First variation in rounds: rows and must-link groups move, centroids re-optimised with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hmrf_dask.distortions.base import Distortion
from hmrf_dask.fit.m_step import maximisation
from hmrf_dask.fit.owners import Owned
from hmrf_dask.fit.passes import Engine
from hmrf_dask.flow.dataflow import Lazy, share_array, tree
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.first_variation import (
    Proposals,
    Sources,
    apply_proposals,
    free_labels,
    merge_proposals,
    pairs_of_rows,
    propose_linked,
    propose_rows,
    that_fit,
)
from hmrf_dask.tasks.model import State
from hmrf_dask.tasks.partitions import LabelledPartition, StoredLabels
from hmrf_dask.types import IntArray

# "auto" refines up to so many rows a cluster: every candidate of a pool, or only the one that wins.
# Measured on TF-IDF (pipelines/papers/refinement.py; docs/design/method.md has the table).
POOL_ROWS_PER_CLUSTER = 200
ROWS_PER_CLUSTER = 2000
SHARE = 16  # rows fetched in one round take at most this part of the task memory
LEAST_ROWS = 64  # but so many may always be fetched


def refines(
    setting: str | bool,
    distortion: Distortion,
    n_rows: int,
    n_clusters: int,
    most: int = ROWS_PER_CLUSTER,
) -> bool:
    """Return whether first variation runs; `most` rows a cluster are where "auto" ends.

    Examples
    --------
    >>> from hmrf_dask.distortions import make_distortion
    >>> cosine = make_distortion("cosine")
    >>> refines("auto", cosine, 20_000, 10), refines("auto", cosine, 20_001, 10)
    (True, False)
    """
    if distortion.refinement is None or n_clusters < 2:
        return False
    return bool(setting) if setting != "auto" else n_rows <= most * n_clusters


def first_variation(engine: Engine, state: State) -> tuple[State, int]:
    """Return the state after one round, centroids optimal, and how many rows moved.

    The same state, and 0, when J would not fall.
    """
    flow = engine.flow
    if isinstance(state.sums, Owned):
        sources = state.sums.owners.sources(state, engine.share_model(state.model))
    else:
        sources = flow.share(Sources.of(state))
    proposals = _propose(engine, state, sources)
    if not len(proposals.gains):
        return state, 0
    moves = _apply(engine, state, proposals, sources)
    labels = [
        flow.lazy(StoredLabels.moved, stored, first, moves)
        for _, stored, first in _addressed(engine, state)
    ]
    moved, n_moved = engine.move(state, labels)
    after = maximisation(engine, moved)
    lower = n_moved and after.energy.total < state.energy.total
    return (after, n_moved) if lower else (state, 0)


def _addressed(engine: Engine, state: State) -> list[tuple[LabelledPartition, StoredLabels, int]]:
    """Return every partition, where its labels are, and the address of its first row.

    Addresses are row numbers of the corpus and, beyond them, linked positions.
    """
    problem, beyond = engine.problem, engine.problem.extent.n_rows
    offsets = [0] * len(problem.free) + [beyond] * len(problem.linked)
    files = [*state.free, *state.linked]
    return [
        (part, StoredLabels(engine.run, [file]), part.first_row + offset)
        for part, file, offset in zip(problem.partitions, files, offsets, strict=True)
    ]


def _varied_problems(engine: Engine) -> list[tuple[int, range]]:
    """Return the numbers of the ICM problems whose rows take part, and their addresses."""
    problem = engine.problem
    varied = []
    for number, plan in enumerate(problem.icm_problems):
        if plan.mode in ("heap", "messages") and not problem.settings.hard:
            first = problem.extent.n_rows + problem.linked[plan.partitions.start].first_row
            n_rows = sum(problem.linked[place].n_rows for place in plan.partitions)
            varied.append((number, range(first, first + n_rows)))
    return varied


def _propose(engine: Engine, state: State, sources: Lazy) -> Proposals:
    """Return the best moves of all partitions."""
    flow, problem = engine.flow, engine.problem
    memory = problem.settings.task_memory
    most = max(LEAST_ROWS, memory // (SHARE * max(problem.row_bytes, 1)))
    terms = engine.corpus_terms(state.model.weights).rows
    free = zip(_addressed(engine, state)[: len(problem.free)], terms, strict=False)
    lists = [
        flow.lazy(propose_rows, partition.block, cached, sources, labels, most)
        for (partition, labels, _), cached in free
    ]
    for number, addresses in _varied_problems(engine):
        plan = problem.icm_problems[number]
        blocks = [problem.linked[place].block for place in plan.partitions]
        priced = engine.priced(engine.price(state.model), number, state.linked)
        lists.append(flow.lazy(propose_linked, priced, blocks, sources, addresses.start, most))
    best: Proposals = flow.compute([tree(flow, merge_proposals, lists)])[0]
    return that_fit(best)


def _apply(engine: Engine, state: State, proposals: Proposals, sources: Lazy) -> Lazy:
    """Return the accepted moves, lazily: rows come from their partitions, one task applies them."""
    flow, problem = engine.flow, engine.problem
    wanted = np.unique(proposals.addresses)

    def inside(first: int, stop: int) -> IntArray:
        """Return those of the wanted addresses that are in a range."""
        low, high = np.searchsorted(wanted, [first, stop])
        return wanted[low:high]

    blocks: list[Lazy] = []
    free: list[Lazy] = []
    for partition, labels, first in _addressed(engine, state):
        here = inside(first, first + partition.n_rows)
        if len(here):
            places = share_array(flow, here - first)
            blocks.append(flow.lazy(RowBlock.take, partition.block, places))
            if first < problem.extent.n_rows:
                free.append(flow.lazy(free_labels, labels, share_array(flow, here)))
    pairs: Sequence[Lazy] = [
        flow.lazy(
            pairs_of_rows,
            engine.priced(engine.price(state.model), number, state.linked), addresses.start,
            share_array(flow, inside(addresses.start, addresses.stop)),
        )
        for number, addresses in _varied_problems(engine)
        if len(inside(addresses.start, addresses.stop))
    ]  # fmt: skip
    return flow.lazy(apply_proposals, flow.share(proposals), blocks, free, pairs, sources)
