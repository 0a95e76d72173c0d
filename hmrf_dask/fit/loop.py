"""HMRF-KMeans (KDD 2004, fig. 2): initialise, then E-step, M-step A, M-step B until labels stand.

A warm-up comes before where the distortion is smoothed, refinement after; then a full metric may
follow the labels (`metric_steps`), or outliers be kept out of centroids (`trimming`), and the fit
goes on. Every iteration is one commit, and a function of the corpus, the constraints and the commit
before it: so a fit that was stopped resumes from its last commit to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from hmrf_dask.checkpoints.records import LabelsFile
from hmrf_dask.errors import HmrfError
from hmrf_dask.fit.e_step import expectation, settle_linked
from hmrf_dask.fit.m_step import (
    first_prior,
    held_prior,
    learn,
    maximisation,
    maximisation_after,
    prior_value,
    reseed,
    reweighted,
    warm_weights,
)
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.problem import LabelFiles, undecided_labels
from hmrf_dask.fit.refinement import first_variation
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.tasks.model import Energy, Model, State, WeightPrior

UNFINISHED = "max_iter iterations done"
LAST_ITERATIONS = 5  # that `tol` compares: one alone may lower J little, and those after it more
LAST_STEPS = 4 * LAST_ITERATIONS  # no iteration has more steps than four
IN_EVERY_ITERATION = ("A", "variation")  # one of these steps
TRIM = "trim-"  # phases that keep outliers out of centroids: trim-1, trim-2 …
MOST_ROUNDS = 1000  # of refinement; each lowers J, so this is a guard and not a tuning knob
Steps = tuple[tuple[str, float], ...]  # of one iteration: their names, and J after each


@dataclass(frozen=True)
class Iteration:
    """What one iteration did."""

    state: State  # after it
    moved: int = 0  # rows that changed their label
    steps: Steps = ()
    stop: str | None = None  # why the phase ended, if it did


class Position(NamedTuple):
    """Where a fit stands: a phase, its iterations that are done, why it ended if it did."""

    phase: str  # "warm-up", "fit", "refine" or one of "trim-1" …
    done: int
    stop: str | None
    state: State


class Record(Protocol):
    """What keeps the iterations of a fit."""

    n_iter: int  # iterations of the phase "fit"
    history: list[tuple[str, str, float]]  # phase, step, J

    @property
    def next(self) -> int:
        """The number of the commit to come."""

    def keep(self, phase: str, number: int, iteration: Iteration) -> None:
        """Keep iteration `number` of a phase."""


@dataclass
class Fit:
    """One fit, of the corpus or of a candidate on the start sample."""

    engine: Engine
    record: Record
    max_iter: int  # most iterations of E-step and M-steps
    refining: bool  # whether refinement follows them
    # Held here alone: a frame that held an earlier one would keep its K × d arrays alive.
    state: State = field(init=False, repr=False)
    phase: str = field(default="", init=False)  # the last one
    done: int = field(default=0, init=False)  # its iterations

    def run(self, initialise: Callable[[], Position]) -> tuple[State, str | None]:
        """Run to the end; return the last state and why it ended, None at the most iterations."""
        engine = self.engine
        # 1. Initialise: from must-link neighbourhoods (section 3.3), or where a stopped fit stood.
        phase, done, stop, self.state = initialise()
        self.phase, self.done = phase, done
        if phase == "warm-up":
            self._warm_up(done)
            phase, done = "fit", 0
        # 2. Repeat until convergence: 2a E-step, 2b M-step (A), 2c M-step (B).
        if phase == "fit":
            numbers = range(done, self.max_iter - (self.record.n_iter - done))  # less the start's
            stop = stop or self._repeat(
                "fit", numbers, lambda number: fit_iteration(engine, self.state, number)
            )
            if self.refining:
                phase, done, stop = "refine", 0, None
        # 3. Refine, which the paper does not: until no row or must-link group alone can lower J.
        if phase == "refine":
            numbers = range(done, MOST_ROUNDS)
            stop = stop or self._repeat(
                "refine", numbers, lambda _: refine_iteration(engine, self.state)
            )
        # 4. Or go on under limits, which the paper has not: rows beyond count in no centroid.
        if phase.startswith(TRIM):
            numbers = range(done, MOST_ROUNDS if self.refining else self.max_iter)
            stop = stop or self._repeat(
                phase,
                numbers,
                lambda _: trimmed_iteration(engine, self.state, refining=self.refining),
            )
        return self.state, stop

    def _repeat(
        self, phase: str, numbers: range, iterate: Callable[[int], Iteration]
    ) -> str | None:
        """Run and keep the iterations of a phase; return why it ended early, None if it did not."""
        for number in numbers:
            self.engine.number = self.record.next
            iteration = iterate(number)
            check_progress(self.state, iteration.state)
            iteration = self._judged(phase, iteration)
            self._keep(phase, number + 1, iteration)
            if iteration.stop is not None:
                return iteration.stop
        return None

    def _judged(self, phase: str, iteration: Iteration) -> Iteration:
        """Return an iteration that ends its phase where the last ones brought too little."""
        if iteration.stop is not None or self.engine.learning:
            return iteration
        values = [
            value
            for earlier, step, value in self.record.history[-LAST_STEPS:]
            if earlier == phase and step in IN_EVERY_ITERATION
        ]
        tol = self.engine.problem.settings.tol
        if pays([*values, iteration.state.energy.value], tol):
            return iteration
        stop = f"the last {LAST_ITERATIONS} iterations lowered J by less than {tol:g} of it"
        return replace(iteration, stop=stop)

    def _warm_up(self, done: int) -> None:
        """Run iterations with a smoothing that falls, then hold it."""
        smoothings = self.engine.problem.distortion.warm_smoothings
        for number in range(done, len(smoothings)):
            self.engine.number = self.record.next
            iteration = warm_iteration(self.engine, self.state, smoothings[number], number)
            self._keep("warm-up", number + 1, iteration)
        self.engine.number = self.record.next
        self._keep("fit", 0, end_warm_up(self.engine, self.state))

    def _keep(self, phase: str, number: int, iteration: Iteration) -> None:
        self.state, self.phase, self.done = iteration.state, phase, number
        self.record.keep(phase, number, iteration)


# ---- one iteration of each phase


def begin(
    engine: Engine,
    centroids: Any,
    *,
    smoothing: float = 0.0,
    free: tuple[LabelsFile, ...] | None = None,
    linked: tuple[LabelsFile, ...] | None = None,
) -> Iteration:
    """Return the first state: every row labelled, centroids still the given ones, J measured.

    With labels of the `free` partitions free rows keep these and only linked rows are settled; with
    labels of the `linked` partitions too nothing moves.
    """
    undecided = LabelFiles((), ())
    if free is None or linked is None:
        undecided = undecided_labels(engine.flow, engine.problem, engine.run)
    state, moved = _first_state(engine, centroids, smoothing), 0
    state = replace(state, free=free or undecided.free, linked=linked or undecided.linked)
    if free is None:
        state, moved = expectation(engine, state)
    else:
        sums, counts = engine.total_sums(state.model, state)
        state = replace(state, sums=sums, counts=counts)
        if linked is None:
            state, moved = settle_linked(engine, state)
    energy = engine.energy(state, prior_value(engine, state))
    return Iteration(replace(state, energy=energy), moved, (("begin", energy.value),))


def _first_state(engine: Engine, centroids: Any, smoothing: float) -> State:
    """Return the state before any row has a label; all features weigh 1."""
    problem = engine.problem
    weights = np.ones(problem.extent.n_features)
    exponent = fixed_point_exponent(problem.extent.n_rows, engine.summand_bound(weights))
    n_clusters, model = (
        problem.settings.n_clusters,
        Model(problem.distortion, weights, centroids, smoothing, exponent),
    )
    return State(
        model if engine.owners is None else engine.owners.placed(model, centroids),
        sums=engine.no_sums(n_clusters),
        counts=np.zeros(n_clusters, np.int64),
        free=(),
        linked=(),
        energy=Energy(),
        prior=first_prior(engine),
    )


def fit_iteration(
    engine: Engine, state: State, number: int, *, learning: bool | None = None
) -> Iteration:
    """Run one iteration of the box; the E-step of number 0 was done when the fit began.

    Weights are learned where the engine's problem says so, but for another `learning`.
    """
    learning = engine.learning if learning is None else learning
    steps: list[tuple[str, float]] = []
    moved = 0

    if number == 0:
        after = maximisation(engine, state)
    else:
        # 2a. E-step (section 3.4): every row to the cluster that lowers J most, the rest held.
        labelled, moved = expectation(engine, state)
        if moved == 0:
            return Iteration(replace(state, sums=labelled.sums), stop="no label moved")
        # J after it and the centroids of 2b come from one pass: either step may still be undone.
        labelled, after = maximisation_after(engine, labelled, moved, learning=learning)
        if labelled.energy.total > state.energy.total:
            stop = "the E-step found no move that lowers J in float64"
            return Iteration(engine.with_sums(state), stop=stop)
        state = labelled
        steps.append(("E", state.energy.value))

    # 2b. M-step (A), section 3.5: centroids; then farthest rows into clusters that ran empty.
    if after.energy.total > state.energy.total:
        stop = "new centroids would not lower J in float64"
        return Iteration(state, moved, tuple(steps), stop)
    state = after
    steps.append(("A", state.energy.value))
    seeded = reseed(engine, state)
    if seeded is not None:
        state = seeded
        steps.append(("reseed", state.energy.value))

    # 2c. M-step (B): the weights of features (eq. 18 to 20), if they are learned.
    learned = learn(engine, state) if learning else None
    if learned is not None:
        state = learned
        steps.append(("B", state.energy.value))
    return Iteration(state, moved, tuple(steps))


def refine_iteration(engine: Engine, state: State) -> Iteration:
    """Run one round of first variation, or an E-step where it moves nothing, or an M-step B.

    Weights in closed form are their labels' minimiser, so they follow the labels that refinement
    finds; a gradient step would go on for ever, and going on after labels are stable harms.
    """
    varied, moved = first_variation(engine, state)
    if moved:
        return Iteration(varied, moved, (("variation", varied.energy.value),))
    iteration = fit_iteration(engine, state, 1, learning=False)
    if iteration.stop is None:
        return iteration
    learning = engine.learning and state.model.limits is None  # limits are under those weights
    if learning and engine.problem.distortion.learning != "gradient":
        learned = learn(engine, iteration.state)
        if learned is not None:
            return Iteration(learned, steps=(("B", learned.energy.value),))
    return replace(iteration, stop="neither a row nor a group can move with a gain")


def trimmed_iteration(engine: Engine, state: State, *, refining: bool) -> Iteration:
    """Run one iteration under limits, at the weights that were learned before."""
    if refining:
        return refine_iteration(engine, state)
    return fit_iteration(engine, state, 1, learning=False)


def pays(values: Sequence[float], tol: float) -> bool:
    """Return whether the last iterations lowered J enough to go on; `values`: J after each.

    Examples
    --------
    >>> pays([9, 8, 7.5, 7.2, 7.1, 7.05], 0.1), pays([8, 7.5, 7.2, 7.1, 7.05, 7.04], 0.2)
    (True, False)
    """
    if len(values) <= LAST_ITERATIONS:
        return True
    before = values[-1 - LAST_ITERATIONS]
    return before - values[-1] >= tol * abs(before)


def warm_iteration(engine: Engine, state: State, smoothing: float, number: int) -> Iteration:
    """Run one iteration of the warm-up at smoothing α: it makes no promise on J.

    α is in the centroids alone. J's term α·D(u, μ), which the E-step has later on, would draw rows
    to the flattest centroids here, where α is large: few would ever leave their first cluster.
    """
    state, moved = replace(state, model=replace(state.model, smoothing=0.0)), 0
    if number:  # the E-step of number 0 was done when the fit began
        state, moved = expectation(engine, state)
    state = maximisation(engine, replace(state, model=replace(state.model, smoothing=smoothing)))
    prior = state.prior
    if engine.learning:
        weights, strength = warm_weights(engine, state, prior.strength)
        state = reweighted(engine, replace(state, prior=WeightPrior()), weights)
        prior = WeightPrior(strength=strength)
    state = replace(state, prior=prior)
    return Iteration(state, moved, (("warm-up", state.energy.value),))


def end_warm_up(engine: Engine, state: State) -> Iteration:
    """Hold α, λ and the prior's constants from here on, and measure J with them."""
    smoothing = engine.problem.distortion.final_smoothing
    state = maximisation(engine, replace(state, model=replace(state.model, smoothing=smoothing)))
    if engine.learning:
        state = replace(state, prior=held_prior(engine, state, state.prior.strength))
    energy = engine.energy(state, prior_value(engine, state))
    return Iteration(replace(state, energy=energy), steps=(("settled", energy.value),))


def check_progress(before: State, after: State) -> None:
    """Raise when a kept step raised J: a promise, so it is checked wherever a state is kept."""
    if after.energy.total > before.energy.total:
        raise HmrfError(
            f"J rose from {before.energy.value!r} to {after.energy.value!r}: this is an error of "
            "hmrf_dask, please report it with the seed"
        )
