"""The fit (KDD 2004, fig. 2): starts → warm-up → fit → refinement, every iteration one commit.

A fit that was stopped goes on from its last commit to the same bits: each iteration is a function
of the corpus, the constraints and the commit before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hmrf_dask.fit import phases, starts
from hmrf_dask.fit import starts as fit_starts
from hmrf_dask.fit.journal import Journal, restore, spread
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.phases import Iteration, wanted
from hmrf_dask.fit.starts import Candidate
from hmrf_dask.flow.dataflow import Lazy
from hmrf_dask.tasks import model, start_sample
from hmrf_dask.tasks.model import Settings, State
from hmrf_dask.types import FloatArray

log = logging.getLogger("hmrf_dask")
ABREAST = 4  # candidates computed in one graph, each committed when all four are done
UNFINISHED = "max_iter iterations done"
Position = tuple[str, int, str | None]  # a phase, its iteration, and why it ended if it did


@dataclass
class Fit:
    """One fit.

    Attributes
    ----------
    engine : Engine
    journal : Journal
        Where it stands.
    ground : callable
        Gives the sample the starts work on, as a task result; a resumed fit is past it.
    whole : bool
        Whether that sample is the whole corpus.
    constrained : bool
    given : callable, optional
        Makes the first centroids, (K, d), where they come from the user or from seeds.
    """

    engine: Engine
    journal: Journal
    ground: Callable[[], Lazy]
    whole: bool
    constrained: bool
    given: Callable[[], FloatArray] | None = None
    # Held here alone: a frame that held an earlier one would keep its K × d arrays alive.
    _state: State = field(init=False, repr=False)

    @property
    def settings(self) -> Settings:
        """The fit's parameters."""
        return self.engine.problem.settings

    def run(self) -> tuple[State, str]:
        """Run to the end, from the last commit if there is one; return the state and the reason."""
        return self._go_on(*self._begin())

    def _begin(self) -> Position:
        """Find the first state, that of the last commit if there is one; return where it stands."""
        commit = self.engine.run.latest()
        self._tell(None if commit is None else commit.number)
        if commit is None:
            return self._from_starts()
        self.journal.recall(commit)
        record = commit.record
        if record["phase"] == "start":
            return self._from_starts()
        self._state = restore(self.engine, commit)
        return record["phase"], record["iteration"], record["stop"]

    def _tell(self, commit: int | None) -> None:
        problem = self.engine.problem
        modes = [one.mode for one in problem.icm_problems]
        if commit is not None:
            log.info("resuming from commit %d", commit)
        self.engine.run.event(
            {
                "event": "start" if commit is None else "resume",
                "commit": commit,
                "n_rows": problem.extent.n_rows,
                "n_features": problem.extent.n_features,
                "n_clusters": self.settings.n_clusters,
                "distortion": problem.distortion.name,
                "seed": self.settings.seed,
                "partitions": len(problem.free),
                "linked_partitions": len(problem.linked),
                "bundles": modes[:100],
                "inference": self.settings.inference,
                "bundles_with_icm_alone": len(modes) - modes.count("messages"),
            }
        )

    # ---- starts

    def _from_starts(self) -> Position:
        if self.given is not None:
            return self._from_centroids(self.given())
        names = starts.candidate_names(self.settings, self.constrained)
        ground = self.ground()
        if len(names) == 1:
            flow = self.engine.flow
            first = flow.lazy(start_sample.start_centroids, ground, names[0])
            return self._from_centroids(flow.compute([first])[0])
        self._run_candidates(ground, names)
        winner = min(self.journal.candidates, key=lambda one: one.energy.total)
        return self._from_winner(ground, winner)

    def _from_centroids(self, centroids: FloatArray) -> Position:
        schedule = model.smoothing_steps(self.engine.problem.distortion.smoothing_schedule)
        self.engine.number = self.journal.next
        turn = phases.begin(self.engine, centroids, learning=self.settings.learn_weights)
        return self._from_turn(turn, warm=bool(schedule))

    def _run_candidates(self, ground: Lazy, names: Sequence[str]) -> None:
        flow, run = self.engine.flow, self.engine.run
        while len(self.journal.candidates) < len(names):
            done = len(self.journal.candidates)
            batch = [
                flow.lazy(fit_starts.run_candidate, ground, name, run, done + number + 1)
                for number, name in enumerate(names[done : done + ABREAST])
            ]
            for candidate in flow.compute(batch):
                self.journal.keep_candidate(candidate)

    def _from_winner(self, ground: Lazy, winner: Candidate) -> Position:
        """Go on from the best candidate: with its labels if it knows every row, else centroids."""
        engine, flow, learning = self.engine, self.engine.flow, self.settings.learn_weights
        log.info("start %s wins with J %.6g", winner.name, winner.energy.value)
        if self.whole and not learning:  # else its J is of another sum, and it was another fit
            self.journal.n_iter = winner.n_iter
            self.journal.history = [("start", step, value) for step, value in winner.history]
        found = flow.lazy(fit_starts.candidate_centroids, ground, engine.run, winner.file)
        centroids: FloatArray = flow.compute([found])[0]
        schedule = engine.problem.distortion.smoothing_schedule
        smoothing = 0.0 if schedule is None else schedule[2]
        engine.number = self.journal.next
        free, linked = spread(engine, ground, winner.file) if self.whole else (None, None)
        turn = phases.begin(
            engine, centroids, smoothing=smoothing, learning=learning, free=free, linked=linked
        )
        return self._from_turn(turn, warm=learning and schedule is not None)

    # ---- phases

    def _from_turn(self, turn: Iteration, *, warm: bool) -> Position:
        phase = "warm-up" if warm else "fit"
        self.journal.keep(phase, 0, turn)
        self._state = turn.state
        return phase, 0, None

    def _go_on(self, phase: str, iteration: int, stop: str | None) -> tuple[State, str]:
        """Go on after iteration `iteration` of a phase, which ended with it if it has a `stop`."""
        if phase == "warm-up":
            self._warm_up(iteration)
            phase, iteration = "fit", 0
        if phase == "fit":
            if stop is None:
                stop = self._fit(iteration)
            problem, settings = self.engine.problem, self.settings
            sizes = problem.extent.n_rows, settings.n_clusters
            if not wanted(settings.refine, problem.distortion, *sizes):
                return self._state, stop or UNFINISHED
            iteration, stop = 0, None
        if stop is None:
            stop = self._refine(iteration)
        return self._state, stop or UNFINISHED

    def _warm_up(self, done: int) -> None:
        schedule = self.engine.problem.distortion.smoothing_schedule
        assert schedule is not None
        engine, learning = self.engine, self.settings.learn_weights
        for number, smoothing in list(enumerate(model.smoothing_steps(schedule)))[done:]:
            engine.number = self.journal.next
            first = number == 0
            turn = phases.warm_iteration(
                engine, self._state, smoothing=smoothing, learning=learning, first=first
            )
            self._state = turn.state
            self.journal.keep("warm-up", number + 1, turn)
        engine.number = self.journal.next
        turn = phases.settle_warm(engine, self._state, smoothing=schedule[2], learning=learning)
        self._state = turn.state
        self.journal.keep("fit", 0, turn)

    def _fit(self, done: int) -> str | None:
        engine, learning = self.engine, self.settings.learn_weights
        pricing = engine.price(self._state.model)
        in_start = self.journal.n_iter - done  # what the winner did of them already
        for number in range(done, self.settings.max_iter - in_start):
            engine.number = self.journal.next
            turn = phases.fit_iteration(
                engine, self._state, pricing, learning=learning, first=number == 0
            )
            self._keep_lower(turn)
            pricing = turn.pricing
            self.journal.n_iter += 1
            self.journal.keep("fit", number + 1, turn)
            if turn.stop is not None:
                return turn.stop
        return None

    def _keep_lower(self, turn: Iteration) -> None:
        """Go on from the state of a turn, which must not have raised J."""
        phases.check_progress(self._state, turn.state)
        self._state = turn.state

    def _refine(self, done: int) -> str | None:
        engine = self.engine
        pricing = engine.price(self._state.model)
        for number in range(done, phases.MOST_ROUNDS):
            engine.number = self.journal.next
            learning = self.settings.learn_weights
            turn = phases.refine_iteration(engine, self._state, pricing, learning=learning)
            self._keep_lower(turn)
            pricing = turn.pricing
            self.journal.keep("refine", number + 1, turn)
            if turn.stop is not None:
                return turn.stop
        return None
