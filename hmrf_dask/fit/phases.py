"""One iteration of each phase (the box of KDD 2004, fig. 2), and first variation in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hmrf_dask.checkpoints.records import LabelsFile
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.errors import HmrfError
from hmrf_dask.fit.e_step import expectation, settle_linked
from hmrf_dask.fit.m_step import (
    first_prior,
    held_prior,
    learn,
    maximisation,
    prior_value,
    reseed,
    reweighted,
    warm_weights,
)
from hmrf_dask.fit.passes import Engine, Pricing
from hmrf_dask.fit.problem import begin_labels
from hmrf_dask.flow.dataflow import Lazy, share_array, tree
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.first_variation import (
    Proposals,
    Sources,
    apply_proposals,
    chosen_costs,
    free_labels,
    merge_proposals,
    moved_labels,
    propose_linked,
    propose_rows,
)
from hmrf_dask.tasks.model import Energy, Model, State, WeightPrior
from hmrf_dask.tasks.partitions import LabelledPartition
from hmrf_dask.types import FloatArray, IntArray

# "auto" refines up to so many rows a cluster: every candidate of a pool, or only the one that wins.
# Measured on TF-IDF (pipelines/papers/refinement.py; docs/design/method.md has the table).
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
    linked: Sequence[Lazy] = [
        flow.lazy(
            chosen_costs, problem.icm_problems[number].problem, pricing.problems[number],
            engine.run, [state.linked[part] for part in problem.icm_problems[number].parts], first,
            share_array(flow, between(first, last)),
        )
        for number, first, last in _varied_problems(engine)
        if len(between(first, last))
    ]  # fmt: skip
    return flow.lazy(apply_proposals, flow.share(proposals), blocks, free, linked, sources)


MOST_ROUNDS = 1000  # of refinement; each lowers J, so this is a guard and not a tuning knob


Steps = tuple[tuple[str, float], ...]  # of one iteration: their names, and J after each


@dataclass(frozen=True)
class Iteration:
    """What one iteration did.

    Attributes
    ----------
    state, pricing : the state after it, and the prices of its pairs
    moved : rows that changed their label
    steps : name of each step and J after it
    stop : why the phase ended, if it did
    """

    state: State
    pricing: Pricing
    moved: int
    steps: Steps = field(default=())
    stop: str | None = None


def begin(
    engine: Engine,
    centroids: FloatArray,
    *,
    smoothing: float = 0.0,
    learning: bool = False,
    free: tuple[LabelsFile, ...] | None = None,
    linked: tuple[LabelsFile, ...] | None = None,
) -> Iteration:
    """Return the first state: every row labelled, centroids still those given, J measured.

    With labels of the `free` parts free rows keep theirs and only linked rows are settled; with
    those of the `linked` parts too nothing moves.
    """
    problem = engine.problem
    weights = np.ones(problem.extent.n_features)
    exponent = fixed_point_exponent(problem.extent.n_rows, engine.summand_bound(weights))
    model = Model(problem.distortion, weights, centroids, smoothing, exponent)
    undecided: tuple[tuple[LabelsFile, ...], tuple[LabelsFile, ...]] = ((), ())
    if free is None or linked is None:
        undecided = begin_labels(engine.flow, problem, engine.run)
    n_clusters, n_columns = len(centroids), problem.extent.n_features + 1
    state = State(
        model,
        np.zeros((n_clusters, n_columns), np.int64),
        np.zeros(n_clusters, np.int64),
        undecided[0] if free is None else free,
        undecided[1] if linked is None else linked,
        Energy(),
        first_prior(engine, learning),
    )
    pricing, moved = engine.price(model), 0
    if free is None:
        state, moved = expectation(engine, state, pricing)
    else:
        sums, counts = engine.total_sums(model, state)
        state = replace(state, sums=sums, counts=counts)
    if free is not None and linked is None:
        state, moved = settle_linked(engine, state, pricing)
    energy = engine.energy(state, pricing, prior_value(engine, state))
    state = replace(state, energy=energy)
    return Iteration(state, pricing, moved, (("begin", energy.value),))


def fit_iteration(
    engine: Engine, state: State, pricing: Pricing, *, learning: bool, first: bool = False
) -> Iteration:
    """Run one iteration: E-step (of the `first`: `begin`), M-step A, reseeding, M-step B."""
    steps: list[tuple[str, float]] = []
    moved = 0
    if not first:
        after, moved = expectation(engine, state, pricing)
        if moved == 0:
            return Iteration(state, pricing, 0, stop="no label moved")
        if after.energy.total > state.energy.total:
            return Iteration(
                state, pricing, 0, stop="the E-step found no move that lowers J in float64"
            )
        state = after
        steps.append(("E", state.energy.value))
    after = maximisation(engine, state, moved=None if first or learning else moved)
    if after.energy.total > state.energy.total:
        return Iteration(
            state, pricing, moved, tuple(steps), "new centroids would not lower J in float64"
        )
    state = after
    steps.append(("A", state.energy.value))
    seeded = reseed(engine, state, pricing)
    if seeded is not None:
        state = seeded
        steps.append(("reseed", state.energy.value))
    if learning:
        learned = learn(engine, state, pricing)
        if learned is not None:
            state, pricing = learned
            steps.append(("B", state.energy.value))
    return Iteration(state, pricing, moved, tuple(steps))


def refine_iteration(
    engine: Engine, state: State, pricing: Pricing, *, learning: bool = False
) -> Iteration:
    """Run one round of first variation, or an E-step where it moves nothing, or an M-step B.

    Weights in closed form are their labels' minimiser, so they follow the labels that refinement
    finds; a gradient step would go on for ever, and going on after labels are stable harms.
    """
    after, moved = vary(engine, state, pricing)
    if moved:
        return Iteration(after, pricing, moved, (("variation", after.energy.value),))
    turn = fit_iteration(engine, state, pricing, learning=False)
    if turn.stop is None:
        return turn
    if learning and engine.problem.distortion.learning != "gradient":
        learned = learn(engine, state, pricing)
        if learned is not None:
            return Iteration(*learned, 0, (("B", learned[0].energy.value),))
    return replace(turn, stop="neither a row nor a group can move with a gain")


def warm_iteration(
    engine: Engine, state: State, *, smoothing: float, learning: bool, first: bool
) -> Iteration:
    """Run one iteration of the warm-up at smoothing α: it makes no promise on J.

    α is in the centroids alone. J's term α·D(u, μ), which the E-step has later on, would draw rows
    to the flattest centroids here, where α is large: few would ever leave their first cluster.
    """
    state = replace(state, model=replace(state.model, smoothing=0.0))
    pricing = engine.price(state.model)
    moved = 0
    if not first:
        state, moved = expectation(engine, state, pricing)
    state = maximisation(engine, replace(state, model=replace(state.model, smoothing=smoothing)))
    prior = state.prior
    if learning:
        weights, strength = warm_weights(engine, state, prior.strength)
        state, pricing = reweighted(engine, replace(state, prior=WeightPrior()), weights)
        prior = WeightPrior(strength=strength)
    return Iteration(
        replace(state, prior=prior), pricing, moved, (("warm-up", state.energy.value),)
    )


def settle_warm(engine: Engine, state: State, *, smoothing: float, learning: bool) -> Iteration:
    """End the warm-up: α, λ and the prior's constants stand from here on; measure J with them."""
    state = replace(state, model=replace(state.model, smoothing=smoothing))
    state = maximisation(engine, state)
    if learning:
        state = replace(state, prior=held_prior(engine, state, state.prior.strength))
    pricing = engine.price(state.model)
    energy = engine.energy(state, pricing, prior_value(engine, state))
    return Iteration(replace(state, energy=energy), pricing, 0, (("settled", energy.value),))


def run_iterations(
    engine: Engine, turn: Iteration, max_iter: int, *, refining: bool
) -> tuple[Iteration, list[Steps]]:
    """Run fit and refinement to their ends at fixed weights; return the last turn, all their steps.

    Not the turns: each would keep K × d sums and centroids alive.
    """
    steps: list[Steps] = []
    for number in range(max_iter):
        turn = fit_iteration(engine, turn.state, turn.pricing, learning=False, first=number == 0)
        steps.append(turn.steps)
        if turn.stop is not None:
            break
    for _ in range(MOST_ROUNDS if refining else 0):
        turn = refine_iteration(engine, turn.state, turn.pricing)
        steps.append(turn.steps)
        if turn.stop is not None:
            break
    return turn, steps


def check_progress(before: State, after: State) -> None:
    """Raise when a kept step raised J: a promise, so it is checked wherever a state is kept."""
    if after.energy.total > before.energy.total:
        raise HmrfError(
            f"J rose from {before.energy.value!r} to {after.energy.value!r}: this is an error of "
            "hmrf_dask, please report it with the seed"
        )
