"""The fit (KDD 2004, fig. 2): starts → warm-up → fit → refinement, every iteration one commit; resume goes on to the same bits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hmrf_dask.dataflow import Lazy
from hmrf_dask.em import phases, starts
from hmrf_dask.em.centroids import centroids_of
from hmrf_dask.em.engine import Engine
from hmrf_dask.em.model import Energy, Model, Settings, State, WeightPrior
from hmrf_dask.em.phases import Turn
from hmrf_dask.em.refine import wanted
from hmrf_dask.em.starts import Candidate
from hmrf_dask.errors import RunDirectoryError
from hmrf_dask.kernels.distances import LINKED
from hmrf_dask.runs import Commit, LabelsFile, RunStore
from hmrf_dask.types import FloatArray, IntArray, LabelArray

log = logging.getLogger("hmrf_dask")
ABREAST = 4  # candidates computed in one graph, each committed when all four are done

Progress = Callable[[dict[str, Any]], None]


@dataclass
class Fit:
    """One fit: what it works on, and where it stands.

    `ground` is the sample of the starts as a task result, `whole` whether it is the whole corpus. `given` are centroids of the user.
    """

    engine: Engine
    ground: Lazy
    whole: bool
    constrained: bool
    given: FloatArray | None = None
    progress: Progress = field(default=lambda record: None)
    candidates: list[Candidate] = field(default_factory=list)
    history: list[tuple[str, str, float]] = field(default_factory=list)  # phase, step, J
    n_iter: int = 0
    committed: int = 0  # number of the last commit

    @property
    def settings(self) -> Settings:
        """The fit's parameters."""
        return self.engine.problem.settings

    def run(self) -> tuple[State, str]:
        """Run to the end, from the last commit if there is one; return the last state and why it ended."""
        commit = self.engine.run.latest()
        if commit is None:
            return self._from_starts()
        self._recall(commit)
        if commit.record["phase"] == "start":
            return self._from_starts()
        state = self._restore(commit)
        return self._from_state(
            state, commit.record["phase"], commit.record["iteration"], commit.record["stop"]
        )

    # ---- starts

    def _from_starts(self) -> tuple[State, str]:
        names = (
            []
            if self.given is not None
            else starts.candidate_names(self.settings, self.constrained)
        )
        if len(names) > 1:
            self._run_candidates(names)
            return self._from_winner(min(self.candidates, key=lambda one: one.energy.total))
        centroids = self.given
        if centroids is None:
            centroids = self.engine.flow.compute(
                [self.engine.flow.lazy(starts.first_centroids, self.ground, names[0])]
            )[0]
        schedule = phases.smoothing_steps(self.engine.problem.distortion.smoothing_schedule)
        self.engine.number = self._next()
        turn = phases.begin(
            self.engine,
            centroids,
            smoothing=schedule[0] if schedule else 0.0,
            learning=self.settings.learn_weights,
        )
        return self._from_turn(turn, warm=bool(schedule))

    def _run_candidates(self, names: Sequence[str]) -> None:
        flow = self.engine.flow
        while len(self.candidates) < len(names):
            first = len(self.candidates)
            batch = [
                flow.lazy(
                    starts.run_candidate, self.ground, name, self.engine.run, first + number + 1
                )
                for number, name in enumerate(names[first : first + ABREAST])
            ]
            for candidate in flow.compute(batch):
                self.candidates.append(candidate)
                self._commit_candidate()

    def _commit_candidate(self) -> None:
        last = self.candidates[-1]
        record = self._record("start", len(self.candidates), last.energy, moved=0, stop=None)
        self.engine.run.commit(self._next(), record, {}, [one.file for one in self.candidates])
        self.committed += 1
        self.progress(record | {"name": last.name})

    def _from_winner(self, winner: Candidate) -> tuple[State, str]:
        """Go on from the best candidate: with its labels if it knows every row, else with its centroids."""
        engine, flow = self.engine, self.engine.flow
        log.info("start %s wins with J %.6g", winner.name, winner.energy.value)
        self.n_iter = winner.n_iter
        self.history = [("start", step, value) for step, value in winner.history]
        centroids = flow.compute(
            [flow.lazy(starts.candidate_centroids, self.ground, engine.run, winner.file)]
        )[0]
        schedule = engine.problem.distortion.smoothing_schedule
        smoothing = 0.0 if schedule is None else schedule[2]
        engine.number = self._next()
        learning = self.settings.learn_weights
        if not self.whole:
            turn = phases.begin(engine, centroids, smoothing=smoothing, learning=learning)
        else:
            free, linked = self._spread(winner.file)
            turn = phases.begin(
                engine, centroids, smoothing=smoothing, learning=learning, free=free, linked=linked
            )
        return self._from_turn(turn, warm=learning and schedule is not None)

    def _spread(self, file: LabelsFile) -> tuple[tuple[LabelsFile, ...], tuple[LabelsFile, ...]]:
        """Write a candidate's labels as those of every part."""
        engine, flow, problem = self.engine, self.engine.flow, self.engine.problem
        labels = flow.lazy(starts.labels_by_row, self.ground, engine.run, file)
        free = [
            flow.lazy(
                write_free,
                engine.run,
                engine.number,
                part.name,
                part.first_row,
                part.n_rows,
                places,
                labels,
            )
            for part, places in zip(problem.free, problem.places, strict=True)
        ]
        linked = [
            flow.lazy(
                write_linked,
                engine.run,
                engine.number,
                part.name,
                part.first_row,
                problem.laid_rows(part),
                labels,
            )
            for part in problem.linked
        ]
        files = flow.compute([*free, *linked])
        return tuple(files[: len(free)]), tuple(files[len(free) :])

    # ---- phases

    def _from_turn(self, turn: Turn, *, warm: bool) -> tuple[State, str]:
        self._keep("warm-up" if warm else "fit", 0, turn)
        return self._from_state(turn.state, "warm-up" if warm else "fit", 0, None)

    def _from_state(
        self, state: State, phase: str, iteration: int, stop: str | None
    ) -> tuple[State, str]:
        if phase == "warm-up":
            state = self._warm_up(state, iteration)
            phase, iteration = "fit", 0
        if phase == "fit" and stop is None:
            state, stop = self._fit(state, iteration)
            phase, iteration = "fit", self.settings.max_iter
        refining = wanted(
            self.settings.refine,
            self.engine.problem.distortion,
            self.engine.problem.extent.n_rows,
            self.settings.n_clusters,
        )
        if refining and (phase == "fit" or stop is None):
            state, stop = self._refine(state, iteration if phase == "refine" else 0)
        return state, stop or "max_iter iterations done"

    def _warm_up(self, state: State, done: int) -> State:
        schedule = self.engine.problem.distortion.smoothing_schedule
        assert schedule is not None
        learning = self.settings.learn_weights
        for number, smoothing in enumerate(phases.smoothing_steps(schedule)):
            if number < done:
                continue
            self.engine.number = self._next()
            turn = phases.warm_turn(
                self.engine, state, smoothing=smoothing, learning=learning, first=number == 0
            )
            state = turn.state
            self._keep("warm-up", number + 1, turn)
        self.engine.number = self._next()
        turn = phases.settle_warm(self.engine, state, smoothing=schedule[2], learning=learning)
        self._keep("fit", 0, turn)
        return turn.state

    def _fit(self, state: State, done: int) -> tuple[State, str | None]:
        pricing = self.engine.price(state.model)
        stop: str | None = None
        for number in range(done, self.settings.max_iter):
            self.engine.number = self._next()
            turn = phases.fit_turn(
                self.engine, state, pricing, learning=self.settings.learn_weights, first=number == 0
            )
            phases.check_progress(state, turn.state)
            state, pricing, stop = turn.state, turn.pricing, turn.stop
            self.n_iter += 1
            self._keep("fit", number + 1, turn)
            if stop is not None:
                break
        return state, stop

    def _refine(self, state: State, done: int) -> tuple[State, str | None]:
        pricing = self.engine.price(state.model)
        stop: str | None = None
        for number in range(done, phases.MOST_ROUNDS):
            self.engine.number = self._next()
            turn = phases.refine_turn(self.engine, state, pricing)
            phases.check_progress(state, turn.state)
            state, pricing, stop = turn.state, turn.pricing, turn.stop
            self._keep("refine", number + 1, turn)
            if stop is not None:
                break
        return state, stop

    # ---- commits

    def _next(self) -> int:
        return self.committed + 1

    def _record(
        self, phase: str, iteration: int, energy: Energy, *, moved: int, stop: str | None
    ) -> dict[str, Any]:
        return {
            "phase": phase,
            "iteration": iteration,
            "moved": moved,
            "stop": stop,
            "energy": energy.encoded(),
            "J": energy.value,
            "n_iter": self.n_iter,
            "history": [list(step) for step in self.history],
            "starts": [one.encoded() for one in self.candidates],
        }

    def _keep(self, phase: str, iteration: int, turn: Turn) -> None:
        """Commit one iteration and tell who watches."""
        state, model = turn.state, turn.state.model
        self.history += [(phase, step, value) for step, value in turn.steps]
        record = self._record(phase, iteration, state.energy, moved=turn.moved, stop=turn.stop)
        record |= {
            "smoothing": model.smoothing,
            "exponent": model.exponent,
            "strength": state.prior.strength,
            "offset": state.prior.offset,
        }
        kept = np.flatnonzero(
            (centroids_of(state) != model.centroids).any(axis=1) | (state.counts == 0)
        )
        arrays = {
            "weights": model.weights,
            "kept": kept,
            "centroids": model.centroids[kept],
            "reference": state.prior.reference,
        }
        files = [*state.free, *state.linked]
        self.engine.run.commit(self._next(), record, arrays, files)
        self.committed += 1
        empty = int((state.counts == 0).sum())
        if empty:
            log.warning("%d of %d clusters are empty", empty, len(state.counts))
        self.engine.run.clean()
        self.progress(record | {"empty": empty})

    # ---- resume

    def _recall(self, commit: Commit) -> None:
        record = commit.record
        self.committed = commit.number
        self.n_iter = record["n_iter"]
        self.history = [
            (str(phase), str(step), float(value)) for phase, step, value in record["history"]
        ]
        if record["phase"] == "start":
            self.candidates = [
                Candidate.decoded(one, file)
                for one, file in zip(record["starts"], commit.files, strict=True)
            ]

    def _restore(self, commit: Commit) -> State:
        """Return the state of a commit: S and centroids are functions of labels and weights and are made anew."""
        engine, problem, record = self.engine, self.engine.problem, commit.record
        arrays = engine.run.load_state(commit)
        engine.number = commit.number
        free, linked = self._recut(commit)
        energy = Energy.decoded(record["energy"])
        nothing = np.zeros((self.settings.n_clusters, problem.extent.n_features))
        model = Model(
            problem.distortion, arrays["weights"], nothing, record["smoothing"], record["exponent"]
        )
        prior = WeightPrior(record["strength"], arrays["reference"], record["offset"])
        state = State(
            model, np.zeros((0, 0), np.int64), np.zeros(0, np.int64), free, linked, energy, prior
        )
        sums, counts = engine.total_sums(replace(model, centroids=nothing), state)
        state = replace(state, sums=sums, counts=counts)
        centroids = centroids_of(state)
        centroids[arrays["kept"]] = arrays["centroids"]
        return replace(state, model=replace(model, centroids=centroids))

    def _recut(self, commit: Commit) -> tuple[tuple[LabelsFile, ...], tuple[LabelsFile, ...]]:
        """Return label files of the present parts: those of the commit, cut anew when the partitioning changed."""
        problem, flow = self.engine.problem, self.engine.flow
        rows = [file for file in commit.files if file.part.startswith("rows-")]
        linked = tuple(file for file in commit.files if file.part.startswith("linked-"))
        if len(linked) != len(problem.linked):
            raise RunDirectoryError(
                f"commit {commit.number} holds {len(linked)} linked parts, this fit has {len(problem.linked)}"
            )
        if [(file.first_row, file.n_rows) for file in rows] == [
            (part.first_row, part.n_rows) for part in problem.free
        ]:
            return tuple(rows), linked
        files = [
            flow.lazy(
                recut, self.engine.run, commit.number, part.name, part.first_row, part.n_rows, rows
            )
            for part in problem.free
        ]
        return tuple(flow.compute(files)), linked


def recut(
    run: RunStore, number: int, part: str, first_row: int, n_rows: int, files: Sequence[LabelsFile]
) -> LabelsFile:
    """Write the labels of a part from files of another partitioning."""
    return run.write_labels(
        number,
        part,
        first_row,
        np.array(run.read_label_range(files, first_row, first_row + n_rows)),
    )


def write_free(
    run: RunStore,
    number: int,
    part: str,
    first_row: int,
    n_rows: int,
    places: IntArray,
    labels: LabelArray,
) -> LabelsFile:
    """Write the labels of a corpus part, its linked rows marked."""
    own = np.array(labels[first_row : first_row + n_rows])
    own[places] = LINKED
    return run.write_labels(number, part, first_row, own)


def write_linked(
    run: RunStore, number: int, part: str, first_row: int, rows: IntArray, labels: LabelArray
) -> LabelsFile:
    """Write the labels of a linked part."""
    return run.write_labels(number, part, first_row, np.array(labels[rows], np.int32))
