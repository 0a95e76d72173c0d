"""A candidate: a whole fit on the start sample, run inside one task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hmrf_dask.checkpoints.memory import MemoryRun
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.fit import phases
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.phases import Iteration, Steps
from hmrf_dask.fit.problem import lay_out, whole_labels
from hmrf_dask.fit.refinement import POOL_ROWS_PER_CLUSTER, wanted
from hmrf_dask.flow.dataflow import Inline
from hmrf_dask.kernels.distances import LINKED
from hmrf_dask.storage.records import CheckpointStore, LabelsFile
from hmrf_dask.tasks import model
from hmrf_dask.tasks.model import Energy, Settings
from hmrf_dask.tasks.start_sample import StartSample, start_centroids
from hmrf_dask.types import FloatArray, LabelArray


@dataclass(frozen=True)
class Candidate:
    """A finished start: its labels in a file, J, and how it went."""

    name: str
    file: LabelsFile
    energy: Energy
    n_iter: int
    history: tuple[tuple[str, float], ...]

    def encoded(self) -> dict[str, Any]:
        """Return what a commit keeps of it; its label file is named apart."""
        return {
            "name": self.name,
            "energy": self.energy.encoded(),
            "n_iter": self.n_iter,
            "history": [list(step) for step in self.history],
        }

    @staticmethod
    def decoded(record: dict[str, Any], file: LabelsFile) -> Candidate:
        """Return the candidate a commit holds."""
        history = tuple((str(step), float(value)) for step, value in record["history"])
        return Candidate(
            record["name"], file, Energy.decoded(record["energy"]), record["n_iter"], history
        )


def refines_all(settings: Settings, distortion: Distortion, n_rows: int) -> bool:
    """Return whether first variation runs in every candidate, on so many rows."""
    sizes = n_rows, settings.n_clusters
    return wanted(settings.refine, distortion, *sizes, most=POOL_ROWS_PER_CLUSTER)


def engine_over(sample: StartSample, *, constrained: bool) -> Engine:
    """Return an engine over the rows of a start sample that runs inside one task."""
    flow, block = Inline(), sample.block
    extent = replace(sample.extent, n_rows=block.n_rows)
    values = np.diff(block.indptr)[sample.node_rows].astype(np.int64)
    graph = sample.graph if constrained else None
    problem = lay_out(
        flow, sample.settings, sample.distortion, extent, [block], [block.n_rows],
        graph, sample.node_rows, values, sample.cost_unit, sample.row_bytes,
    )  # fmt: skip
    return Engine(flow, problem, MemoryRun())


def run_candidate(ground: StartSample, name: str, run: CheckpointStore, number: int) -> Candidate:
    """Run one candidate to its end and keep its labels (in the order of the ground)."""
    settings = ground.settings
    refining = refines_all(settings, ground.distortion, ground.block.n_rows)
    centroids = start_centroids(ground, name)
    engine = engine_over(ground, constrained=True)
    if ground.graph is not None and name.startswith("unconstrained"):
        course = _run_unconstrained_first(engine, centroids, ground, refining)
    else:
        course = _run(engine, centroids, ground, refining)
    labels = sample_labels(engine, course.last)
    file = run.write_labels(number, f"start-{number:05d}", 0, labels)
    history = tuple(step for steps in course.turns for step in steps)
    return Candidate(name, file, course.last.state.energy, course.n_iter, history)


@dataclass(frozen=True)
class _Course:
    """How a candidate went: the steps of its turns, its fit iterations, where it ended."""

    last: Iteration
    turns: list[Steps]
    n_iter: int


def _follow(engine: Engine, turn: Iteration, max_iter: int, refining: bool) -> _Course:
    """Run fit iterations and then refinement to their ends."""
    turn, fitted = phases.run_iterations(engine, turn, max_iter, refining=False)
    turn, refined = phases.run_iterations(engine, turn, 0, refining=refining)
    return _Course(turn, [*fitted, *refined], len(fitted))


def _run_unconstrained_first(
    engine: Engine, centroids: FloatArray, ground: StartSample, refining: bool
) -> _Course:
    """Run a start as if there were no pairs, then go on with them.

    Labels that first variation found are better than any batch assignment, so free rows keep them
    and only linked rows are settled anew.
    """
    alone = engine_over(ground, constrained=False)
    free = _run(alone, centroids, ground, refining).last.state
    found = free.model.centroids
    if not refining:
        turn = phases.begin(engine, found, smoothing=ground.smoothing)
        return _follow(engine, turn, ground.settings.max_iter, refining=False)
    labels = np.array(alone.run.read_labels(free.free[0]))
    labels[engine.problem.places[0]] = LINKED
    file = engine.run.write_labels(0, "rows-00000", 0, labels)
    turn = phases.begin(engine, found, smoothing=ground.smoothing, free=(file,))
    return _follow(engine, turn, 1, refining=True)  # the one iteration is an M-step


def _run(engine: Engine, centroids: FloatArray, ground: StartSample, refining: bool) -> _Course:
    """Run a start at weights 1: warm-up where the distortion has one, fit, refinement."""
    steps = model.smoothing_steps(ground.distortion.smoothing_schedule)
    turn = phases.begin(engine, centroids, smoothing=0.0 if steps else ground.smoothing)
    for number, smoothing in enumerate(steps):
        first = number == 0
        turn = phases.warm_iteration(
            engine, turn.state, smoothing=smoothing, learning=False, first=first
        )
    if steps:
        turn = phases.settle_warm(engine, turn.state, smoothing=ground.smoothing, learning=False)
    return _follow(engine, turn, ground.settings.max_iter, refining)


def sample_labels(engine: Engine, turn: Iteration) -> LabelArray:
    """Return all labels of a one-part problem, linked rows included."""
    problem, state = engine.problem, turn.state
    return whole_labels(
        engine.run, state.free[0], state.linked, problem.places[0], problem.positions[0]
    )


def candidate_centroids(ground: StartSample, run: CheckpointStore, file: LabelsFile) -> FloatArray:
    """Return the centroids of a finished candidate."""
    sample = ground.sample()
    labels = run.read_labels(file).astype(np.int64)
    return sample.centroids(*sample.sums(labels, ground.settings.n_clusters))
