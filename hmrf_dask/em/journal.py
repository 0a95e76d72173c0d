"""What a fit remembers of itself: its history and how far it is; one commit per iteration."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hmrf_dask.em.centroids import centroids_beside_sums
from hmrf_dask.em.model import Energy, State
from hmrf_dask.em.phases import Turn
from hmrf_dask.em.starts import Candidate
from hmrf_dask.em.weights import FLOOR, effective_share
from hmrf_dask.errors import rows_moved
from hmrf_dask.kernels.arrays import frozen
from hmrf_dask.runs import Commit, RunStore

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

    run: RunStore
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

    def keep(self, phase: str, iteration: int, turn: Turn) -> None:
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

    def _tell(self, phase: str, iteration: int, turn: Turn) -> dict[str, Any]:
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
