"""Candidates of the pool: a start run on the start sample in one task; two matched by answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile, MemoryRun
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.fit.journal import Candidate
from hmrf_dask.fit.loop import Fit, Iteration, Position, begin
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.problem import CorpusRows, Pairs, lay_out, whole_labels
from hmrf_dask.fit.refinement import POOL_ROWS_PER_CLUSTER, refines
from hmrf_dask.flow.dataflow import Inline
from hmrf_dask.kernels.distances import LINKED
from hmrf_dask.tasks.answers import FOLDS, Agreement, agreement, nodes_of_fold, without_answers
from hmrf_dask.tasks.first_centroids import completed
from hmrf_dask.tasks.model import Settings, State
from hmrf_dask.tasks.start_sample import LAST, StartSample, start_centroids
from hmrf_dask.types import FloatArray, LabelArray

UNCONSTRAINED, COMPLETED = "unconstrained", "completed"
FEW_ITERATIONS = 10  # after which clusters are those that a fit ends with, by and large
WHOLE_ROWS = 5_000  # of the start sample: up to so many the last candidates run to their ends


class Heat(NamedTuple):
    """A part of the pool: candidates run until so many iterations are done, the best go on."""

    iterations: int | None  # None: to their ends, refined
    going_on: int


WHOLE = Heat(None, 1)


class Turn(NamedTuple):
    """What one candidate does in one heat."""

    name: str
    heat: Heat = WHOLE
    before: Candidate | None = None  # what it was after the heat before
    fold: int | None = None  # of the answers, withheld from it

    @property
    def done(self) -> int:
        """Iterations of the heats before."""
        return 0 if self.before is None else self.before.n_iter


def ignores_pairs(name: str) -> bool:
    """Return whether a candidate is first run as if there were no pairs.

    Examples
    --------
    >>> ignores_pairs(f"{UNCONSTRAINED}0"), ignores_pairs("neighborhoods")
    (True, False)
    """
    return name.startswith(UNCONSTRAINED)


def begins_without_answers(name: str) -> bool:
    """Return whether answers, at least those since the fit before, make no centroids of a start."""
    return name.startswith((UNCONSTRAINED, LAST))


def ends_whole(settings: Settings, n_rows: int) -> bool:
    """Return whether the last candidates run to their ends, on a start sample of so many rows.

    Where clusters are small only refinement shows which start is best. A hard fit does so too: one
    that begins again at its centroids may find no way to keep all pairs.
    """
    few = min(WHOLE_ROWS, POOL_ROWS_PER_CLUSTER * settings.n_clusters)
    return settings.hard or n_rows <= few


def refines_all(settings: Settings, distortion: Distortion, n_rows: int) -> bool:
    """Return whether first variation runs in candidates, on so many rows."""
    sizes = n_rows, settings.n_clusters
    varied = refines(settings.refine, distortion, *sizes, most=POOL_ROWS_PER_CLUSTER)
    return varied and ends_whole(settings, n_rows)


def engine_over(sample: StartSample, *, constrained: bool) -> Engine:
    """Return an engine over the rows of a start sample that runs inside one task."""
    flow, block = Inline(), sample.block
    extent = replace(sample.extent, n_rows=block.n_rows)
    settings = replace(sample.settings, learn_weights=False)
    pairs = None
    if constrained and sample.graph is not None:
        values = np.diff(block.indptr)[sample.node_rows].astype(np.int64)
        pairs = Pairs(sample.graph, sample.node_rows, values, sample.cost_unit)
    rows = CorpusRows([block], [block.n_rows], sample.row_bytes)
    problem = lay_out(flow, settings, sample.distortion, extent, rows, pairs)
    return Engine(flow, problem, MemoryRun())


@dataclass
class StepsTaken:
    """The record of a candidate: it commits nothing."""

    n_iter: int = 0
    next: int = 0
    history: list[tuple[str, str, float]] = field(default_factory=list)

    def keep(self, phase: str, number: int, iteration: Iteration) -> None:
        """Keep the steps of the iterations that promise not to raise J."""
        if number and phase != "warm-up":
            self.n_iter += phase == "fit"
            self.history += [(phase, step, value) for step, value in iteration.steps]


def run_candidate(sample: StartSample, run: CheckpointStore, number: int, turn: Turn) -> Candidate:
    """Run one candidate through a heat; keep its labels, in the order of the start sample."""
    if turn.heat.iterations is not None:
        return _run_heat(sample, run, number, turn, turn.heat.iterations)
    centroids, warm = _first_of(sample, run, turn), turn.before is None
    engine, steps = engine_over(sample, constrained=True), StepsTaken()
    if sample.graph is not None and ignores_pairs(turn.name):
        alone = engine_over(sample, constrained=False)
        first = _run(_fit(alone, sample, StepsTaken()), centroids, sample, warm=warm)
        labels = alone.run.read_labels(first.free[0])
        state = _go_on_with_pairs(engine, first.model.centroids, labels, sample, steps)
    else:
        state = _run(_fit(engine, sample, steps), centroids, sample, warm=warm)
    file, n_iter = _write(engine, state, run, number), turn.done + steps.n_iter
    history = tuple((step, value) for _, step, value in steps.history)
    return Candidate(turn.name, file, state.energy, n_iter, history)


def _run_heat(
    sample: StartSample, run: CheckpointStore, number: int, turn: Turn, iterations: int
) -> Candidate:
    """Run a few iterations, one that ignores the pairs too, and find J with the pairs.

    Of a fold all run with the pairs that are left: what they keep is to be that of a fit.
    """
    alone = ignores_pairs(turn.name) and turn.fold is None
    most = min(iterations, sample.settings.max_iter)
    engine, steps = engine_over(sample, constrained=not alone), StepsTaken()
    fit = Fit(engine, steps, most - turn.done, refining=False)
    state = _run(fit, _first_of(sample, run, turn), sample, warm=turn.before is None)
    file, n_iter = _write(engine, state, run, number), turn.done + steps.n_iter
    energy = state.energy
    if alone and sample.graph is not None:
        paired, smoothing = engine_over(sample, constrained=True), state.model.smoothing
        energy = begin(paired, state.model.centroids, smoothing=smoothing).state.energy
    return Candidate(turn.name, file, energy, n_iter, ())


def run_fold(sample: StartSample, run: CheckpointStore, number: int, turn: Turn) -> Candidate:
    """Run a candidate without the answers of a fold; count how many of these it keeps."""
    assert turn.fold is not None
    nodes = nodes_of_fold(sample, turn.fold)
    candidate = run_candidate(without_answers(sample, nodes), run, number, turn)
    labels = run.read_labels(candidate.file)[sample.node_rows]
    kept = Agreement() if sample.graph is None else agreement(sample.graph, labels, nodes)
    name = f"{turn.name}, fold {turn.fold + 1}"
    return replace(candidate, name=name, history=(), agreement=kept)


def _first_of(sample: StartSample, run: CheckpointStore, turn: Turn) -> FloatArray:
    """Return the centroids that a candidate begins a heat with."""
    if turn.before is not None:
        return candidate_centroids(sample, run, turn.before.file)
    kind, number = turn.name.rsplit(" ", 1)
    return _completed(sample, number) if kind == COMPLETED else start_centroids(sample, turn.name)


def _completed(sample: StartSample, number: str) -> FloatArray:
    """Return the groups, completed by clusters that some iterations without any answer find.

    They begin with the centroids of the fit before, where there are any.
    """
    begun = UNCONSTRAINED if sample.last is None else LAST
    centroids = start_centroids(sample, f"{begun} {number}")
    if sample.graph is None:
        return centroids
    engine = engine_over(sample, constrained=False)
    most = min(FEW_ITERATIONS, sample.settings.max_iter)
    state = _run(Fit(engine, StepsTaken(), most, refining=False), centroids, sample, warm=True)
    labels = engine.run.read_labels(state.free[0]).astype(np.int64)
    rows = sample.candidate_rows(sample.distortion.first_smoothing)
    known = sample.graph, sample.node_rows
    return completed(rows, *known, labels, sample.settings.n_clusters)


def _write(engine: Engine, state: State, run: CheckpointStore, number: int) -> LabelsFile:
    """Write the labels of the one partition that a candidate's engine has."""
    problem = engine.problem
    rows = (problem.places[0], problem.positions[0])
    labels = whole_labels(engine.run, state.free[0], state.linked, *rows)
    return run.write_labels(number, f"start-{number:05d}", 0, labels)


def _run(fit: Fit, centroids: FloatArray, sample: StartSample, *, warm: bool) -> State:
    """Run a fit at weights 1 from centroids on: warm-up where the distortion has one, the rest."""
    phase, smoothing = "fit", sample.distortion.final_smoothing
    if warm and sample.distortion.warm_smoothings:
        phase, smoothing = "warm-up", 0.0

    def initialise() -> Position:
        """Label all rows by the centroids of the start."""
        return Position(phase, 0, None, begin(fit.engine, centroids, smoothing=smoothing).state)

    return fit.run(initialise)[0]


def _fit(engine: Engine, sample: StartSample, steps: StepsTaken) -> Fit:
    settings = sample.settings
    refining = refines_all(settings, sample.distortion, sample.block.n_rows)
    return Fit(engine, steps, settings.max_iter, refining)


def _go_on_with_pairs(
    engine: Engine, centroids: FloatArray, labels: LabelArray, sample: StartSample,
    steps: StepsTaken,
) -> State:  # fmt: skip
    """Run on with pairs from what a fit without them found.

    Labels that first variation found are better than any batch assignment, so free rows keep these
    and only linked rows are settled again.
    """
    fit = _fit(engine, sample, steps)
    free = None
    if fit.refining:
        fit.max_iter = 1  # its E-step is that of the beginning, so it is an M-step
        kept = np.array(labels)
        kept[engine.problem.places[0]] = LINKED
        free = (engine.run.write_labels(0, "rows-00000", 0, kept),)

    def initialise() -> Position:
        """Begin with labels that the fit without pairs found."""
        smoothing = sample.distortion.final_smoothing
        iteration = begin(engine, centroids, smoothing=smoothing, free=free)
        return Position("fit", 0, None, iteration.state)

    return fit.run(initialise)[0]


def candidate_centroids(sample: StartSample, run: CheckpointStore, file: LabelsFile) -> FloatArray:
    """Return the centroids of a finished candidate."""
    rows = sample.candidate_rows(sample.distortion.final_smoothing)
    labels = run.read_labels(file).astype(np.int64)
    return rows.centroids(*rows.sums(labels, sample.settings.n_clusters))


FROM_ANSWERS = ("farthest-first", "agglomerated", "agglomerated-singles", COMPLETED)


class Match(NamedTuple):
    """The two candidates that are cross-fitted."""

    lowest: Candidate  # the one of the lowest J, which ignored the answers, or knew the old ones
    challenger: Candidate  # made of the answers

    def turns(self, heat: Heat, alone: Candidate | None) -> list[Turn]:
        """Return the fits of both without each fold, `heat` being the last one of the pool.

        The one that ignores answers continues from what it was `alone`, if that is known; the one
        that is made of them is made again.
        """
        turns = []
        for fold in range(FOLDS):
            for name, before in ((self.lowest.name, alone), (self.challenger.name, None)):
                done = 0 if before is None else before.n_iter
                most = None if heat.iterations is None else done + FEW_ITERATIONS
                turns.append(Turn(name, Heat(most, 1), before, fold))
        return turns

    def verdict(self, fits: Sequence[Candidate]) -> Verdict:
        """Return what the first of these fits keep, in the order of `turns`."""
        counts = [candidate.agreement or Agreement() for candidate in fits]
        return Verdict(self, _total(counts[::2]), _total(counts[1::2]))


def _total(counts: Sequence[Agreement]) -> Agreement:
    return Agreement(*(sum(numbers) for numbers in zip(*counts, strict=True)))


def match_of(lowest: Candidate, pool: Sequence[Candidate]) -> Match | None:
    """Return who meets the candidate of the lowest J, None if that was made of all answers itself.

    The fit before knew the answers of its time, withheld or not: that speaks for its centroids.

    Who meets it is the lowest J of those in the `pool` made of answers; ties go to the first.
    """
    made = [candidate for candidate in pool if candidate.name.split()[0] in FROM_ANSWERS]
    if not made or not begins_without_answers(lowest.name):
        return None
    return Match(lowest, min(made, key=lambda candidate: candidate.energy.total))


class Verdict(NamedTuple):
    """What the two of a match keep of the answers that were withheld from them."""

    match: Match
    lowest: Agreement
    challenger: Agreement

    @property
    def ahead(self) -> bool:
        """Whether the one that is made of the answers keeps more of them at all."""
        return self.challenger.kept > self.lowest.kept

    @property
    def against_energy(self) -> bool:
        """Whether the answers prefer one of the two, and J is overruled."""
        return self.challenger.exceeds(self.lowest)


class Choice(NamedTuple):
    """The candidate that begins the fit, and the verdict if there was a match."""

    winner: Candidate
    verdict: Verdict | None = None

    @property
    def reason(self) -> str:
        """Why it is this one, in a sentence."""
        name, verdict = self.winner.name, self.verdict
        if verdict is None:
            return f"{name} has the lowest J"
        match, (least, _), (kept, withheld) = verdict
        if not verdict.against_energy:
            return (
                f"{name} has the lowest J; of {withheld:,} withheld relations it keeps {least:,} "
                f"and {match.challenger.name}, made of the answers, {kept:,}: no more than chance "
                "explains"
            )
        here, there = self.winner.energy.value, match.lowest.energy.value
        which = "lower" if there < here else "no lower"
        return (
            f"{name}, made of the answers, keeps {kept:,} of {withheld:,} withheld relations and "
            f"{match.lowest.name}, whose J is {which} ({there:.6g} against {here:.6g}), {least:,}"
        )

    def record(self) -> dict[str, Any]:
        """Return it as an event of the run has it."""
        chosen = {"name": self.winner.name, "J": self.winner.energy.value, "reason": self.reason}
        if self.verdict is None:
            return chosen
        match, lowest, challenger = self.verdict
        named = {"name": match.lowest.name, "J": match.lowest.energy.value}
        return chosen | {
            "lowest": named | lowest._asdict(),
            "challenger": {"name": match.challenger.name} | challenger._asdict(),
        }
