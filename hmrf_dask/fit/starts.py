"""The pool of starts: candidates run on a start sample; the lowest J wins.

Few rows: every candidate runs to its end, refined. Many rows: a tournament in heats, as a few
iterations show which of the candidates will end low.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile, MemoryRun
from hmrf_dask.constraints.closure import ConstraintGraph
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.fit.journal import Candidate, Journal, write_candidate
from hmrf_dask.fit.loop import Fit, Iteration, Position, begin
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.preparation import describe_nodes
from hmrf_dask.fit.problem import (
    CorpusRows,
    Pairs,
    Problem,
    gather_partitions,
    lay_out,
    whole_labels,
)
from hmrf_dask.fit.refinement import POOL_ROWS_PER_CLUSTER, refines
from hmrf_dask.flow.dataflow import Dataflow, Inline, Lazy, share_array, tree
from hmrf_dask.kernels.distances import LINKED
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.canonical import hash_ids
from hmrf_dask.tasks.first_centroids import Lowest, merge_lowest
from hmrf_dask.tasks.model import Settings, State
from hmrf_dask.tasks.start_sample import (
    Draw,
    StartSample,
    lowest_rows,
    make_start_sample,
    narrowed,
    start_centroids,
    start_sample_size,
)
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, LabelArray

log = logging.getLogger("hmrf_dask")
IN_PARALLEL = 4  # candidates computed in one graph, each committed when all four are done
WHOLE_ROWS = 5_000  # of the start sample: up to so many the last candidates run to their ends
WHOLE_WORK = 50_000  # rows × clusters: up to so many all candidates do


class Heat(NamedTuple):
    """A part of the pool: candidates run until so many iterations are done, the best go on."""

    iterations: int | None  # None: to their ends, refined
    going_on: int


class Turn(NamedTuple):
    """What one candidate does in one heat."""

    name: str
    heat: Heat = Heat(None, 1)
    before: Candidate | None = None  # what it was after the heat before

    @property
    def done(self) -> int:
        """Iterations of the heats before."""
        return 0 if self.before is None else self.before.n_iter

    @property
    def ignores_pairs(self) -> bool:
        """Whether it is first run as if there were no pairs."""
        return self.name.startswith("unconstrained")


WHOLE = Heat(None, 1)
# Chosen on 20 Newsgroups, confirmed on arXiv: the winner ends as low as the lowest of ten that all
# run to their ends, for a third of the iterations (docs/design/method.md has the figures).
TOURNAMENT = (Heat(3, 4), Heat(10, 2), Heat(30, 1))
SHORT_TOURNAMENT = (Heat(3, 4), WHOLE)


def initialise(
    engine: Engine,
    journal: Journal,
    sample: Callable[[], Lazy],
    centroids: Callable[[], FloatArray] | None = None,
) -> Position:
    """Commit the first state of a fit and return it: of given centroids, or of the best candidate.

    `sample` gives the start sample as a task result, `centroids` makes the first ones, (K, d),
    where they come from the user or from seeds. Candidates that were committed are not run again.
    """
    if centroids is not None:
        return _from_centroids(engine, journal, centroids())
    constrained = engine.problem.constraints is not None
    names, started = candidate_names(engine.problem.settings, constrained), sample()
    if len(names) == 1:
        lazy_centroids = engine.flow.lazy(start_centroids, started, names[0])
        return _from_centroids(engine, journal, engine.flow.compute([lazy_centroids])[0])
    winner = _run_pool(engine, journal, started, names)
    log.info("start %s wins with J %.6g", winner.name, winner.energy.value)
    return _from_winner(engine, journal, started, winner)


def _from_centroids(engine: Engine, journal: Journal, centroids: FloatArray) -> Position:
    engine.number = journal.next
    warm = bool(engine.problem.distortion.warm_smoothings)
    return _committed(journal, begin(engine, centroids), warm=warm)


def _run_pool(engine: Engine, journal: Journal, sample: Lazy, names: Sequence[str]) -> Candidate:
    """Run what is not done, a few candidates in parallel, commit each; return the winner."""
    flow, pool = (
        engine.flow,
        heats(engine.problem.settings, engine.problem.extent.n_rows, len(names)),
    )
    total = len(names) + sum(heat.going_on for heat in pool[:-1])
    turns, done = [Turn(name, pool[0]) for name in names], 0
    narrow = flow.persist([flow.lazy(narrowed, sample)])[0] if pool[0] != WHOLE else sample
    best: list[Candidate] = []
    for heat, following in zip(pool, [*pool[1:], WHOLE], strict=True):
        last, seen = done + len(turns), sample if heat == WHOLE else narrow
        while (first := len(journal.candidates)) < last:
            few = enumerate(turns[first - done :][:IN_PARALLEL], first + 1)
            batch = [
                flow.lazy(run_candidate, seen, engine.run, number, turn) for number, turn in few
            ]
            for candidate in flow.compute(batch):
                journal.keep_candidate(candidate, of=total)
        ran, done = journal.candidates[done:last], last
        best = ranked(ran)[: heat.going_on]
        turns = [Turn(one.name, following, one) for one in ran if one in best]
    return best[0]


def heats(settings: Settings, n_rows: int, n_candidates: int) -> tuple[Heat, ...]:
    """Return the heats of a pool for a corpus of so many rows.

    Examples
    --------
    >>> [heat.iterations for heat in heats(Settings(20), 20_000, 10)]
    [3, 10, 30]
    >>> [heat.iterations for heat in heats(Settings(20), 4_000, 10)]
    [3, None]
    >>> [heat.iterations for heat in heats(Settings(20), 2_000, 10)]
    [None]
    """
    size = start_sample_size(n_rows, settings)
    if settings.hard or size * settings.n_clusters <= WHOLE_WORK:
        return (WHOLE,)
    pool = SHORT_TOURNAMENT if ends_whole(settings, size) else TOURNAMENT
    return tuple(heat for heat in pool if heat.going_on < n_candidates)


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates that ran equally far, the best first: by J, ties in their order."""
    return sorted(candidates, key=lambda candidate: candidate.energy.total)


def _from_winner(engine: Engine, journal: Journal, sample: Lazy, winner: Candidate) -> Position:
    """Commit the winner: with its labels if it ran to its end on every row, else its centroids."""
    flow, distortion = engine.flow, engine.problem.distortion
    n_rows, settings = engine.problem.extent.n_rows, engine.problem.settings
    ended = start_sample_size(n_rows, settings) == n_rows and ends_whole(settings, n_rows)
    if ended and not engine.learning:  # else its J is of another sum, and it was another fit
        journal.n_iter = winner.n_iter
        journal.history = [("start", step, value) for step, value in winner.history]
    lazy_centroids = flow.lazy(candidate_centroids, sample, engine.run, winner.file)
    centroids: FloatArray = flow.compute([lazy_centroids])[0]
    engine.number = journal.next
    free = linked = None
    if ended:
        free, linked = write_candidate(engine, sample, winner.file)
    smoothing = distortion.final_smoothing
    iteration = begin(engine, centroids, smoothing=smoothing, free=free, linked=linked)
    warm = engine.learning and bool(distortion.warm_smoothings)
    return _committed(journal, iteration, warm=warm)


def _committed(journal: Journal, iteration: Iteration, *, warm: bool) -> Position:
    phase = "warm-up" if warm else "fit"
    journal.keep(phase, 0, iteration)
    return Position(phase, 0, None, iteration.state)


# ---- a candidate, which runs inside one task


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
    if sample.graph is not None and turn.ignores_pairs:
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
    """Run a few iterations, one that ignores the pairs too, and find J with the pairs."""
    alone, most = turn.ignores_pairs, min(iterations, sample.settings.max_iter)
    engine, steps = engine_over(sample, constrained=not alone), StepsTaken()
    fit = Fit(engine, steps, most - turn.done, refining=False)
    state = _run(fit, _first_of(sample, run, turn), sample, warm=turn.before is None)
    file, n_iter = _write(engine, state, run, number), turn.done + steps.n_iter
    energy = state.energy
    if alone and sample.graph is not None:
        paired, smoothing = engine_over(sample, constrained=True), state.model.smoothing
        energy = begin(paired, state.model.centroids, smoothing=smoothing).state.energy
    return Candidate(turn.name, file, energy, n_iter, ())


def _first_of(sample: StartSample, run: CheckpointStore, turn: Turn) -> FloatArray:
    """Return the centroids that a candidate begins a heat with."""
    if turn.before is None:
        return start_centroids(sample, turn.name)
    return candidate_centroids(sample, run, turn.before.file)


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


def candidate_names(settings: Settings, constrained: bool) -> list[str]:
    """Return the candidates of a fit, in the order in which ties are decided.

    Examples
    --------
    >>> candidate_names(Settings(3, n_init=2), constrained=False)
    ['unconstrained 0', 'unconstrained 1']
    """
    if settings.init in ("k-means++", "random"):
        return [f"{settings.init} {number}" for number in range(settings.n_init)]
    if settings.init == "neighborhoods":
        return ["neighborhoods 0"]
    names = [f"unconstrained {number}" for number in range(settings.n_init)]
    from_pairs = ["farthest-first 0", "agglomerated 0", "agglomerated-singles 0"]
    return [*names, *from_pairs] if constrained else names


def restrict(graph: ConstraintGraph, keep: AnyArray) -> ConstraintGraph:
    """Return the graph of the whole components of the `keep` nodes, renumbered in their order."""
    group_kept = np.bincount(graph.groups[keep], minlength=graph.n_groups) > 0
    component_kept = np.bincount(graph.components[keep], minlength=graph.n_components) > 0
    nodes, groups, components = (np.cumsum(kept) - 1 for kept in (keep, group_kept, component_kept))

    def inside(pairs: LabelArray, mask: AnyArray, number: AnyArray) -> tuple[LabelArray, AnyArray]:
        """Return the pairs whose ends are kept, in new numbers, and which they are."""
        chosen = mask[pairs[:, 0]]
        return number[pairs[chosen]].astype(np.int32).reshape(-1, 2), chosen

    must, must_chosen = inside(graph.must_pairs, keep, nodes)
    cannot, cannot_chosen = inside(graph.cannot_pairs, keep, nodes)
    rivals, _ = inside(graph.rivals, group_kept, groups)
    dropped, _ = inside(graph.dropped_pairs, keep, nodes)
    contradictory = graph.contradictory_groups[group_kept[graph.contradictory_groups]]
    return replace(
        graph,
        groups=groups[graph.groups[keep]].astype(np.int32),
        components=components[graph.components[keep]].astype(np.int32),
        group_components=components[graph.group_components[group_kept]].astype(np.int32),
        must_pairs=must,
        must_pair_costs=graph.must_pair_costs[must_chosen],
        cannot_pairs=cannot,
        cannot_pair_costs=graph.cannot_pair_costs[cannot_chosen],
        table_components=graph.table_components[component_kept],
        table_groups=graph.table_groups[group_kept],
        rivals=rivals,
        contradictory_groups=groups[contradictory].astype(np.int32),
        dropped_pairs=dropped,
    )


def prepare_start_sample(
    flow: Dataflow, corpus: Corpus, problem: Problem, pairs: Pairs | None
) -> Lazy:
    """Return the rows of the starts, and the constraints among them, as a task result."""
    settings = problem.settings
    most = start_sample_size(corpus.n_rows, settings)
    graph = pairs.graph if pairs else None
    nodes = pairs.node_rows if pairs else np.zeros(0, np.int64)
    if most == corpus.n_rows:
        rows = np.arange(corpus.n_rows, dtype=np.int64)
    else:
        keep = np.zeros(0, np.bool_)
        if pairs:
            keep = _sampled_nodes(flow, corpus, pairs, settings, most // 2)
        graph = restrict(pairs.graph, keep) if pairs and keep.any() else None
        nodes = nodes[keep]
        rows = np.concatenate([nodes, _sampled_rows(flow, corpus, problem, np.sort(nodes), most)])
    order = np.argsort(rows, kind="stable")
    places = order[np.searchsorted(rows[order], nodes)]
    bounds = np.asarray([0, len(rows)], np.int64)
    offsets = np.asarray(corpus.offsets)
    gathered = gather_partitions(flow, corpus.blocks, offsets, rows, bounds, "sample")[0]
    plan = StartSample(
        RowBlock.from_array(np.zeros((0, corpus.n_features), np.float32)),
        rows,
        graph,
        places,
        settings=settings,
        distortion=problem.distortion,
        extent=problem.extent,
        cost_unit=problem.cost_unit,
        row_bytes=problem.row_bytes,
    )
    return flow.persist([flow.lazy(make_start_sample, gathered.block, flow.share(plan))])[0]


def _sampled_rows(
    flow: Dataflow, corpus: Corpus, problem: Problem, taken: IntArray, most: int
) -> IntArray:
    """Return rows that fill the sample up to `most`; `taken` are those it has, sorted."""
    lists, draw = [], Draw(problem.settings.seed, most - len(taken))
    for part, block, places in zip(problem.free, corpus.named, problem.places, strict=True):
        here = slice(*np.searchsorted(taken, [part.first_row, part.first_row + part.n_rows]))
        arrays = (share_array(flow, rows) for rows in (places, taken[here] - part.first_row))
        lists.append(flow.lazy(lowest_rows, block, part.first_row, *arrays, draw))
    lowest: Lowest = flow.compute([tree(flow, merge_lowest, lists)])[0]
    return lowest.rows


def _sampled_nodes(
    flow: Dataflow, corpus: Corpus, pairs: Pairs, settings: Settings, most: int
) -> BoolArray:
    """Return a mask of the nodes of whole components that fit into `most` rows.

    They come by the lowest keyed number of a member.
    """
    graph = pairs.graph
    ids, _ = describe_nodes(flow, corpus, pairs.node_rows)
    numbers = uniforms(hash_ids(ids), settings.seed, "sample", 0, 0, 0)
    lowest = np.full(graph.n_components, np.inf)
    np.minimum.at(lowest, graph.components, numbers)
    sizes = np.bincount(graph.components, minlength=graph.n_components)
    order = np.argsort(lowest, kind="stable")
    order = order[sizes[order] <= most]  # the giant one must not keep the others out
    chosen = np.zeros(graph.n_components, np.bool_)
    chosen[order[np.cumsum(sizes[order]) <= most]] = True
    return chosen[graph.components]
