"""What a fit records: its history, one commit per iteration, and states restored from them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, Commit, LabelsFile
from hmrf_dask.errors import RunDirectoryError, rows_moved
from hmrf_dask.fit.loop import LAST_ITERATIONS, Iteration, Position
from hmrf_dask.fit.m_step import FLOOR, effective_share, keeps_centroid
from hmrf_dask.fit.owners import Owned
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.problem import LabelFiles, Problem
from hmrf_dask.flow.dataflow import Lazy, share_array
from hmrf_dask.kernels.compiled import frozen
from hmrf_dask.progress import Tell
from hmrf_dask.tasks import start_sample
from hmrf_dask.tasks.answers import Agreement
from hmrf_dask.tasks.model import (
    NO_FACTOR,
    Energy,
    Limits,
    Model,
    NoCentroids,
    State,
    WeightPrior,
    centroids_of,
)
from hmrf_dask.tasks.owners import CENTROIDS, KeptRows
from hmrf_dask.tasks.partitions import cut_labels, write_free, write_linked

SENT = 2**19  # bytes of centroids that owners send for a commit
log = logging.getLogger("hmrf_dask")


@dataclass(frozen=True)
class Candidate:
    """A finished candidate: its labels in a file, J, and how it went."""

    name: str
    file: LabelsFile
    energy: Energy
    n_iter: int
    history: tuple[tuple[str, float], ...]
    agreement: Agreement | None = None  # of a fold: with the answers that were withheld from it

    def encoded(self) -> dict[str, Any]:
        """Return what a commit keeps of it; its label file is among the files of the commit."""
        return {
            "name": self.name,
            "energy": self.energy.encoded(),
            "n_iter": self.n_iter,
            "history": [list(step) for step in self.history],
            "agreement": self.agreement,
        }

    @staticmethod
    def decoded(record: dict[str, Any], file: LabelsFile) -> Candidate:
        """Return the candidate a commit holds."""
        history = tuple((str(step), float(value)) for step, value in record["history"])
        energy, counts = Energy.decoded(record["energy"]), record["agreement"]
        agreement = None if counts is None else Agreement(*counts)
        return Candidate(record["name"], file, energy, record["n_iter"], history, agreement)


@dataclass
class Journal:
    """Where a fit stands. Everything in here is in the last commit too."""

    run: CheckpointStore
    progress: Tell  # called with the record of every commit
    candidates: list[Candidate] = field(default_factory=list)  # those that are done
    history: list[tuple[str, str, float]] = field(default_factory=list)  # phase, step, J
    n_iter: int = 0  # iterations of E-step and M-steps of the winner
    start_reason: str = ""  # why it is the winner; nothing where there was no pool
    committed: int = 0  # number of the last commit
    recorded: list[dict[str, Any]] = field(default_factory=list)  # events, of iterations all
    tol: float = 0.0  # of the settings, for who guesses when a phase ends
    n_rows: int = 0

    @property
    def next(self) -> int:
        """The number of the commit to come."""
        return self.committed + 1

    def open(self, problem: Problem) -> Commit | None:
        """Report that a fit starts or resumes; return the last commit, None where it starts."""
        self.tol, self.n_rows = problem.settings.tol, problem.extent.n_rows
        commit = self.run.latest()
        modes = [plan.mode for plan in problem.icm_problems]
        odds = problem.constraints.odds if problem.constraints else None
        self.run.event(
            {
                "event": "start" if commit is None else "resume",
                "commit": None if commit is None else commit.number,
                "n_rows": problem.extent.n_rows,
                "n_features": problem.extent.n_features,
                "n_clusters": problem.settings.n_clusters,
                "distortion": problem.distortion.name,
                "seed": problem.settings.seed,
                "partitions": len(problem.free),
                "linked_partitions": len(problem.linked),
                "icm_problems": modes[:100],
                "inference": problem.settings.inference,
                "icm_problems_with_icm_alone": len(modes) - modes.count("messages"),
            }
            | (odds.encoded() if odds is not None else {})
        )
        if commit is not None:
            log.info("resuming from commit %d", commit.number)
            self._recall(commit)
        return commit

    def _recall(self, commit: Commit) -> None:
        record = commit.record
        self.committed = commit.number
        self.n_iter = record["n_iter"]
        self.start_reason = record["start_reason"]
        self.recorded = self.run.events
        self.history = [
            (str(phase), str(step), float(value)) for phase, step, value in record["history"]
        ]
        if record["phase"] == "start":
            self.candidates = [
                Candidate.decoded(start, file)
                for start, file in zip(record["starts"], commit.files, strict=True)
            ]

    def keep_candidate(self, candidate: Candidate, *, of: int) -> None:
        """Commit a finished candidate of the pool, with all that were finished before it.

        A pool has `of` of them; one that runs in several heats counts in each.
        """
        self.candidates.append(candidate)
        files = [finished.file for finished in self.candidates]
        record = self._record("start", len(self.candidates), candidate.energy, moved=0, stop=None)
        self.run.commit(self.next, record, {}, files)
        self.committed += 1
        name, value = candidate.name, candidate.energy.value
        log.debug("start %s ends with J %.6g", name, value)
        event = {"event": "candidate", "commit": self.committed, "name": name, "J": value}
        event |= {"n_iter": candidate.n_iter}
        if candidate.agreement is not None:
            event |= candidate.agreement._asdict()
        self.run.event(event)
        self.progress(record | {"name": name, "of": of, "n_rows": candidate.file.n_rows})

    def choose(self, reason: str, record: dict[str, Any]) -> None:
        """Report which candidate begins the fit, and why; the commits to come say so too."""
        self.start_reason = reason
        log.debug("start %s", reason)
        self.run.event({"event": "chosen start", "commit": self.committed} | record)

    def keep(self, phase: str, number: int, iteration: Iteration) -> None:
        """Commit iteration `number` of a phase, report it, and remove what no commit needs."""
        state = iteration.state
        if phase == "fit" and number:  # 0 is what the phase starts from
            self.n_iter += 1
        self.history += [(phase, step, value) for step, value in iteration.steps]
        record = self._record(
            phase, number, state.energy, moved=iteration.moved, stop=iteration.stop
        )
        record |= {
            "smoothing": state.model.smoothing,
            "exponent": state.model.exponent,
            "strength": state.prior.strength,
            "offset": state.prior.offset,
        }
        arrays, owned = state_arrays(state), list[LabelsFile]()
        if not len(arrays["centroids"]) and len(arrays["kept"]):
            centroids = state.model.centroids
            owned = centroids.owners.written(centroids, self.run, self.next)
            arrays["kept"] = np.zeros(0, np.int64)
        self.run.commit(self.next, record, arrays, [*state.free, *state.linked, *owned])
        self.committed += 1
        health = _health(state)
        self._report(phase, number, iteration, health)
        self.run.clean()
        enough = self.tol * abs(state.energy.value) / LAST_ITERATIONS
        self.progress(record | health | {"n_rows": self.n_rows, "enough": enough})

    def _record(
        self, phase: str, number: int, energy: Energy, *, moved: int, stop: str | None
    ) -> dict[str, Any]:
        return {
            "phase": phase,
            "iteration": number,
            "moved": moved,
            "stop": stop,
            "energy": energy.encoded(),
            "J": energy.value,
            "n_iter": self.n_iter,
            "start_reason": self.start_reason,
            "history": list(self.history),
            "starts": [candidate.encoded() for candidate in self.candidates],
        }

    def _report(
        self, phase: str, number: int, iteration: Iteration, health: dict[str, Any]
    ) -> None:
        """Write the events of an iteration, and log it."""
        state, steps, moved = iteration.state, dict(iteration.steps), iteration.moved
        value = state.energy.value
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %d: J %.9g, %s", phase, number, value, rows_moved(number, moved))
        event = {"event": "iteration", "commit": self.committed, "phase": phase}
        event |= {"iteration": number, "moved": moved, "stop": iteration.stop}
        event |= state.energy.terms()
        self.recorded.append(event)
        if state.model.limits is not None:
            health = health | {"kept_out": self.n_rows - int(state.counts.sum())}
        self.run.event(event | {"steps": steps} | health)
        if "reseed" in steps:
            log.debug("empty clusters were reseeded with the farthest rows")
            self.run.event({"event": "reseed", "commit": self.committed, "J": steps["reseed"]})
        empty = np.flatnonzero(state.counts == 0).tolist()
        if empty:
            log.warning("%d of %d clusters are empty", len(empty), len(state.counts))
            event = {"event": "empty-clusters", "commit": self.committed}
            self.run.event(event | {"clusters": empty})


def _health(state: State) -> dict[str, Any]:
    """Return what a report of a state holds that its commit does not."""
    weights = state.model.weights
    health: dict[str, Any] = {"empty": int((state.counts == 0).sum())}
    if (weights != 1.0).any():
        health["floors"] = int((weights <= FLOOR).sum())
        health["effective_share"] = effective_share(weights)
    return health


def state_arrays(state: State) -> dict[str, np.ndarray[Any, Any]]:
    """Return what a commit must hold next to labels: the state is a function of both.

    Centroids follow from the sums, so only those that do not are kept: of clusters that are empty
    or whose rows have no direction, and of all clusters before their first M-step.
    """
    model = state.model
    rows = np.flatnonzero(keeps_centroid(state))
    if isinstance(model.centroids, Owned):  # none of many: their owners write them
        few = rows if 8 * len(rows) * len(model.weights) <= SENT else rows[:0]
        centroids = model.centroids.owners.rows(model.centroids, few)
    else:
        centroids = model.centroids[rows] if len(rows) < model.n_clusters else model.centroids
    limits = {} if model.limits is None else asdict(model.limits)
    return {
        "weights": model.weights,
        "kept": rows,
        "centroids": frozen(centroids, np.float64),
        "reference": state.prior.reference,
        **limits,
        **({"factor": state.factor} if len(state.factor) else {}),
    }


def resume(engine: Engine, commit: Commit) -> Position:
    """Return where a fit stood after a commit."""
    record, state = commit.record, restore(engine, commit)
    if record["phase"] == "metric":  # the fit goes on under it
        return Position("fit", record["n_iter"], None, state)
    return Position(record["phase"], record["iteration"], record["stop"], state)


def restore(engine: Engine, commit: Commit) -> State:
    """Return the state of a commit: sums and centroids are functions of labels and weights."""
    problem, record = engine.problem, commit.record
    arrays = engine.run.load_state(commit)
    engine.number = commit.number
    files = recut(engine, commit)
    n_clusters, n_features = problem.settings.n_clusters, problem.extent.n_features
    model = Model(
        problem.distortion,
        arrays["weights"],
        NoCentroids(n_clusters, n_features),
        record["smoothing"],
        record["exponent"],
        Limits(arrays["reach"], arrays["middle"]) if "reach" in arrays else None,
    )
    state = State(
        model,
        sums=np.zeros((0, 0), np.int64),
        counts=np.zeros(0, np.int64),
        free=files.free,
        linked=files.linked,
        energy=Energy.decoded(record["energy"]),
        prior=WeightPrior(record["strength"], arrays["reference"], record["offset"]),
        factor=arrays.get("factor", NO_FACTOR),
    )
    sums, counts = engine.total_sums(model, state)
    state = replace(state, sums=sums, counts=counts)
    owned = tuple(file for file in commit.files if file.part.startswith(CENTROIDS))
    kept = KeptRows(arrays["kept"], arrays["centroids"], engine.run, owned)
    if engine.owners is not None:
        return replace(state, model=engine.owners.restored(state, kept))
    none = np.zeros((n_clusters, n_features))
    centroids = centroids_of(replace(state, model=replace(model, centroids=none)))
    kept.put(0, centroids)
    return replace(state, model=replace(model, centroids=centroids))


def recut(engine: Engine, commit: Commit) -> LabelFiles:
    """Return label files of the present partitions, cut again where a commit has others."""
    problem, flow, run = engine.problem, engine.flow, engine.run
    rows = [file for file in commit.files if file.part.startswith("rows-")]
    linked = tuple(file for file in commit.files if file.part.startswith("linked-"))
    if [file.n_rows for file in linked] != [partition.n_rows for partition in problem.linked]:
        raise RunDirectoryError(
            f"commit {commit.number} must hold the linked partitions of this fit, got "
            f"{[file.n_rows for file in linked]} rows for "
            f"{[partition.n_rows for partition in problem.linked]}; "
            "resume with the version of hmrf_dask that began the run"
        )
    cuts = [(partition.first_row, partition.n_rows) for partition in problem.free]
    if [(file.first_row, file.n_rows) for file in rows] == cuts:
        return LabelFiles(tuple(rows), linked)
    files = [
        flow.lazy(
            cut_labels, run, commit.number, partition.rows,
            overlapping(rows, partition.first_row, partition.n_rows),
        )
        for partition in problem.free
    ]  # fmt: skip
    return LabelFiles(tuple(flow.compute(files)), linked)


def overlapping(files: Sequence[LabelsFile], first_row: int, n_rows: int) -> list[LabelsFile]:
    """Return the files that hold some of these rows: a task is given no others.

    Examples
    --------
    >>> files = [LabelsFile(name, "", row, 10, name) for name, row in (("a", 0), ("b", 10))]
    >>> [file.name for file in overlapping(files, first_row=8, n_rows=2)]
    ['a']
    """
    last_row = first_row + n_rows
    return [
        file
        for file in files
        if file.first_row < last_row and file.first_row + file.n_rows > first_row
    ]


def write_candidate(engine: Engine, sample: Lazy, file: LabelsFile) -> LabelFiles:
    """Write the labels of a candidate that knows every row as those of every partition."""
    flow, problem, run, number = engine.flow, engine.problem, engine.run, engine.number
    labels = flow.lazy(start_sample.labels_by_row, sample, run, file)
    free = [
        flow.lazy(write_free, run, number, partition.rows, share_array(flow, places), labels)
        for partition, places in zip(problem.free, problem.places, strict=True)
    ]
    linked = [
        flow.lazy(
            write_linked, run, number, partition.rows,
            share_array(flow, problem.laid_rows(partition)), labels,
        )
        for partition in problem.linked
    ]  # fmt: skip
    files = flow.compute([*free, *linked])
    return LabelFiles(tuple(files[: len(free)]), tuple(files[len(free) :]))
