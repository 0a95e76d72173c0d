"""One iteration of each phase, as a function from state to state; what calls them decides where states are kept.

No step is kept that raises the reported J (the I-divergence's warm-up excepted, which promises nothing): it is undone and ends its phase.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from hmrf_dask.em.centroids import maximisation, reseed
from hmrf_dask.em.engine import Engine, Pricing
from hmrf_dask.em.estep import expectation, settle_linked
from hmrf_dask.em.model import Energy, Model, State, WeightPrior
from hmrf_dask.em.problem import begin_labels
from hmrf_dask.em.refine import vary
from hmrf_dask.em.weights import (
    first_prior,
    held_prior,
    learn,
    prior_value,
    reweighted,
    warm_weights,
)
from hmrf_dask.errors import HmrfError
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.runs import LabelsFile
from hmrf_dask.types import FloatArray

MOST_ROUNDS = 1000  # of refinement; each lowers J, so this is a guard and not a tuning knob


@dataclass(frozen=True)
class Turn:
    """What one iteration did: the state after it, its pairs' prices, J after each of its steps, why the phase ended if it did."""

    state: State
    pricing: Pricing
    moved: int
    steps: tuple[tuple[str, float], ...] = field(default=())
    stop: str | None = None


def begin(
    engine: Engine,
    centroids: FloatArray,
    *,
    smoothing: float = 0.0,
    learning: bool = False,
    free: tuple[LabelsFile, ...] | None = None,
    linked: tuple[LabelsFile, ...] | None = None,
) -> Turn:
    """Return the first state: every row labelled, centroids still those given, J measured.

    With labels of the `free` parts free rows keep theirs and only linked rows are settled; with those of the `linked` parts too nothing
    moves.
    """
    problem = engine.problem
    weights = np.ones(problem.extent.n_features)
    exponent = fixed_point_exponent(problem.extent.n_rows, engine.summand_bound(weights))
    model = Model(problem.distortion, weights, centroids, smoothing, exponent)
    undecided = begin_labels(engine.flow, problem, engine.run)
    n_clusters, n_columns = len(centroids), problem.extent.n_features + 1
    state = State(
        model, np.zeros((n_clusters, n_columns), np.int64), np.zeros(n_clusters, np.int64),
        undecided[0] if free is None else free, undecided[1] if linked is None else linked, Energy(),
        first_prior(engine, learning),
    )  # fmt: skip
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
    return Turn(state, pricing, moved, (("begin", energy.value),))


def fit_turn(
    engine: Engine, state: State, pricing: Pricing, *, learning: bool, first: bool = False
) -> Turn:
    """Run one iteration: E-step, M-step A, reseeding, M-step B. The `first` one follows `begin`, which was its E-step."""
    steps: list[tuple[str, float]] = []
    moved = 0
    if not first:
        after, moved = expectation(engine, state, pricing)
        if moved == 0:
            return Turn(state, pricing, 0, stop="no label moved")
        if after.energy.total > state.energy.total:
            return Turn(state, pricing, 0, stop="the E-step found no move that lowers J in float64")
        state = after
        steps.append(("E", state.energy.value))
    after = maximisation(engine, state)
    if after.energy.total > state.energy.total:
        return Turn(
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
    return Turn(state, pricing, moved, tuple(steps))


def refine_turn(engine: Engine, state: State, pricing: Pricing) -> Turn:
    """Run one round of first variation; when it moves nothing an E-step with its component moves; when neither moves, stop."""
    after, moved = vary(engine, state, pricing)
    if moved:
        return Turn(after, pricing, moved, (("variation", after.energy.value),))
    turn = fit_turn(engine, state, pricing, learning=False)
    return (
        turn
        if turn.stop is None
        else replace(turn, stop="neither a row nor a group can move with a gain")
    )


def warm_turn(
    engine: Engine, state: State, *, smoothing: float, learning: bool, first: bool
) -> Turn:
    """Run one iteration of the warm-up at smoothing α: it makes no promise on J."""
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
    return Turn(replace(state, prior=prior), pricing, moved, (("warm-up", state.energy.value),))


def settle_warm(engine: Engine, state: State, *, smoothing: float, learning: bool) -> Turn:
    """End the warm-up: α, λ and the prior's constants stand from here on, and J is measured with them."""
    state = replace(state, model=replace(state.model, smoothing=smoothing))
    state = maximisation(engine, state)
    if learning:
        state = replace(state, prior=held_prior(engine, state, state.prior.strength))
    pricing = engine.price(state.model)
    energy = engine.energy(state, pricing, prior_value(engine, state))
    return Turn(replace(state, energy=energy), pricing, 0, (("settled", energy.value),))


def smoothing_steps(schedule: tuple[float, float, float] | None) -> tuple[float, ...]:
    """Return α of each warm-up iteration, none above the floor's; empty without a schedule."""
    if schedule is None:
        return ()
    start, factor, floor = schedule
    steps = []
    while start > floor:
        steps.append(start)
        start *= factor
    return tuple(steps)


def run_turns(
    engine: Engine, turn: Turn, max_iter: int, *, refining: bool, fitting: bool = True
) -> tuple[Turn, list[Turn]]:
    """Run fit iterations and then refinement to their ends at fixed weights; return the last turn and all of them."""
    turns: list[Turn] = []
    for number in range(max_iter if fitting else 0):
        turn = fit_turn(engine, turn.state, turn.pricing, learning=False, first=number == 0)
        turns.append(turn)
        if turn.stop is not None:
            break
    for _ in range(MOST_ROUNDS if refining else 0):
        turn = refine_turn(engine, turn.state, turn.pricing)
        turns.append(turn)
        if turn.stop is not None:
            break
    return turn, turns


def check_progress(before: State, after: State) -> None:
    """Raise when a kept step raised J: a promise of this package, so it is checked wherever a state is kept."""
    if after.energy.total > before.energy.total:
        raise HmrfError(
            f"J rose from {before.energy.value!r} to {after.energy.value!r}: this is an error of hmrf_dask, please report it with the seed"
        )
