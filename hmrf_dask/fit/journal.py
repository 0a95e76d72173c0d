"""What a fit records: its history, one commit per iteration, and states restored from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, Commit, LabelsFile
from hmrf_dask.errors import RunDirectoryError, rows_moved
from hmrf_dask.fit.m_step import FLOOR, centroids_beside_sums, centroids_of, effective_share
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.phases import Iteration
from hmrf_dask.fit.starts import Candidate
from hmrf_dask.flow.dataflow import Lazy, share_array
from hmrf_dask.kernels.compiled import frozen
from hmrf_dask.tasks import start_sample
from hmrf_dask.tasks.model import Energy, Model, State, WeightPrior
from hmrf_dask.tasks.partitions import cut_labels, write_free, write_linked

log = logging.getLogger("hmrf_dask")

Progress = Callable[[dict[str, Any]], None]


@dataclass
class Journal:
    """Where a fit stands. Everything in here is in the last commit too.

    Attributes
    ----------
    run : RunStore
    progress : callable
        Called with the record of every commit.
    candidates : list of Candidate
        Those that are done.
    history : list of (phase, step, J)
    n_iter : int
        Fit iterations of the winner.
    committed : int
        Number of the last commit.
    """

    run: CheckpointStore
    progress: Progress
    candidates: list[Candidate] = field(default_factory=list)
    history: list[tuple[str, str, float]] = field(default_factory=list)
    n_iter: int = 0
    committed: int = 0

    @property
    def next(self) -> int:
        """The number of the commit to come."""
        return self.committed + 1

    def keep_candidate(self, candidate: Candidate) -> None:
        """Commit a finished candidate of the pool, with all that were finished before it."""
        self.candidates.append(candidate)
        files = [one.file for one in self.candidates]
        record = self._record("start", len(self.candidates), candidate.energy, moved=0, stop=None)
        self.run.commit(self.next, record, {}, files)
        self.committed += 1
        log.info("start %s ends with J %.6g", candidate.name, candidate.energy.value)
        told = {"name": candidate.name, "J": candidate.energy.value, "n_iter": candidate.n_iter}
        self.run.event({"event": "candidate", "commit": self.committed, **told})
        self.progress(record | {"name": candidate.name})

    def keep(self, phase: str, iteration: int, turn: Iteration) -> None:
        """Commit one iteration, tell who watches, and remove what no commit needs any more."""
        state = turn.state
        self.history += [(phase, step, value) for step, value in turn.steps]
        record = self._record(phase, iteration, state.energy, moved=turn.moved, stop=turn.stop)
        record |= {
            "smoothing": state.model.smoothing,
            "exponent": state.model.exponent,
            "strength": state.prior.strength,
            "offset": state.prior.offset,
        }
        self.run.commit(self.next, record, state_arrays(state), [*state.free, *state.linked])
        self.committed += 1
        seen = self._tell(phase, iteration, turn)
        self.run.clean()
        self.progress(record | seen)

    def recall(self, commit: Commit) -> None:
        """Stand where the fit stood after `commit`."""
        record = commit.record
        self.committed = commit.number
        self.n_iter = record["n_iter"]
        self.history = [
            (str(phase), str(step), float(value)) for phase, step, value in record["history"]
        ]
        if record["phase"] == "start":
            told = zip(record["starts"], commit.files, strict=True)
            self.candidates = [Candidate.decoded(one, file) for one, file in told]

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

    def _tell(self, phase: str, iteration: int, turn: Iteration) -> dict[str, Any]:
        """Write the event of an iteration, log it, and return what it says beyond the record."""
        state, weights = turn.state, turn.state.model.weights
        empty = np.flatnonzero(state.counts == 0).tolist()
        seen: dict[str, Any] = {"empty": len(empty)}
        if (weights != 1.0).any():
            seen["floors"] = int((weights <= FLOOR).sum())
            seen["effective_share"] = effective_share(weights)
        moved = rows_moved(iteration, turn.moved)
        log.info("%s %d: J %.9g, %s", phase, iteration, state.energy.value, moved)
        event = {"event": "iteration", "commit": self.committed, "phase": phase}
        event |= {"iteration": iteration, "moved": turn.moved, "stop": turn.stop}
        steps = dict(turn.steps)
        self.run.event(event | {"steps": steps} | state.energy.terms() | seen)
        if "reseed" in steps:
            log.info("empty clusters were reseeded with the farthest rows")
            self.run.event({"event": "reseed", "commit": self.committed, "J": steps["reseed"]})
        if empty:
            log.warning("%d of %d clusters are empty", len(empty), len(state.counts))
            told = {"event": "empty-clusters", "commit": self.committed, "clusters": empty}
            self.run.event(told)
        return seen


def state_arrays(state: State) -> dict[str, np.ndarray[Any, Any]]:
    """Return what a commit must hold beside labels: the rest of the state is a function of these.

    Centroids follow from the sums, so only those that do not are kept: of clusters that are empty
    or whose rows have no direction, and of all clusters before their first M-step.
    """
    model = state.model
    rows = np.flatnonzero(centroids_beside_sums(state))
    centroids = model.centroids[rows] if len(rows) < model.n_clusters else model.centroids
    return {
        "weights": model.weights,
        "kept": rows,
        "centroids": frozen(centroids, np.float64),
        "reference": state.prior.reference,
    }


Files = tuple[tuple[LabelsFile, ...], tuple[LabelsFile, ...]]  # of corpus parts, of linked parts


def restore(engine: Engine, commit: Commit) -> State:
    """Return the state of a commit: sums and centroids are functions of labels and weights."""
    problem, record = engine.problem, commit.record
    arrays = engine.run.load_state(commit)
    engine.number = commit.number
    free, linked = recut(engine, commit)
    n_clusters, n_features = problem.settings.n_clusters, problem.extent.n_features
    model = Model(
        problem.distortion,
        arrays["weights"],
        np.zeros((n_clusters, n_features)),
        record["smoothing"],
        record["exponent"],
    )
    state = State(
        model,
        np.zeros((0, 0), np.int64),
        np.zeros(0, np.int64),
        free,
        linked,
        Energy.decoded(record["energy"]),
        WeightPrior(record["strength"], arrays["reference"], record["offset"]),
    )
    sums, counts = engine.total_sums(model, state)
    state = replace(state, sums=sums, counts=counts)
    centroids = centroids_of(state)
    centroids[arrays["kept"]] = arrays["centroids"]
    return replace(state, model=replace(model, centroids=centroids))


def recut(engine: Engine, commit: Commit) -> Files:
    """Return label files of the present parts: those of the commit, cut anew where it must be."""
    problem, flow, run = engine.problem, engine.flow, engine.run
    rows = [file for file in commit.files if file.part.startswith("rows-")]
    linked = tuple(file for file in commit.files if file.part.startswith("linked-"))
    if [file.n_rows for file in linked] != [part.n_rows for part in problem.linked]:
        raise RunDirectoryError(
            f"commit {commit.number} must hold the linked parts of this fit, got "
            f"{[file.n_rows for file in linked]} rows for {[p.n_rows for p in problem.linked]}; "
            "resume with the version of hmrf_dask that began the run"
        )
    cuts = [(part.first_row, part.n_rows) for part in problem.free]
    if [(file.first_row, file.n_rows) for file in rows] == cuts:
        return tuple(rows), linked
    files = [
        flow.lazy(
            cut_labels,
            run,
            commit.number,
            part.name,
            part.first_row,
            part.n_rows,
            overlapping(rows, part.first_row, part.n_rows),
        )
        for part in problem.free
    ]
    return tuple(flow.compute(files)), linked


def overlapping(files: Sequence[LabelsFile], first_row: int, n_rows: int) -> list[LabelsFile]:
    """Return the files that hold some of these rows: a task is told of no others."""
    last_row = first_row + n_rows
    return [
        file
        for file in files
        if file.first_row < last_row and file.first_row + file.n_rows > first_row
    ]


def spread(engine: Engine, ground: Lazy, file: LabelsFile) -> Files:
    """Write the labels of a candidate, which knows every row, as those of every part."""
    flow, problem, run, number = engine.flow, engine.problem, engine.run, engine.number
    labels = flow.lazy(start_sample.labels_by_row, ground, run, file)
    free = [
        flow.lazy(
            write_free,
            run,
            number,
            part.name,
            part.first_row,
            part.n_rows,
            share_array(flow, places),
            labels,
        )
        for part, places in zip(problem.free, problem.places, strict=True)
    ]
    linked = [
        flow.lazy(
            write_linked,
            run,
            number,
            part.name,
            part.first_row,
            share_array(flow, problem.laid_rows(part)),
            labels,
        )
        for part in problem.linked
    ]
    files = flow.compute([*free, *linked])
    return tuple(files[: len(free)]), tuple(files[len(free) :])
