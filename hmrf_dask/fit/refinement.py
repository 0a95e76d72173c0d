"""First variation in rounds: every part proposes against frozen sums, the best moves are applied.

Rows and whole must-link groups move when J falls with centroids re-optimised, which frees batch
assignment where it is stuck: on sparse text a document's own share of its centroid outweighs the
differences between clusters. Moves are re-checked one after the other on the sums as they then
stand. Rows of ICM problems in table form or in rounds are moved by ICM alone, rows with hard
pairs by the E-step alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hmrf_dask.checkpoints.records import LabelsFile
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.fit.m_step import maximisation
from hmrf_dask.fit.passes import Engine, Pricing
from hmrf_dask.flow.dataflow import Lazy, share_array, tree
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.first_variation import (
    Proposals,
    Sources,
    apply_proposals,
    chosen_ties,
    free_labels,
    merge_proposals,
    moved_labels,
    propose_linked,
    propose_rows,
)
from hmrf_dask.tasks.model import State
from hmrf_dask.tasks.partitions import LabelledPartition
from hmrf_dask.types import IntArray

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
