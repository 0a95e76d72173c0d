"""The pool of starts: candidates run to their ends on a start sample; the lowest J wins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

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
    start_centroids,
    start_sample_size,
)
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, LabelArray

log = logging.getLogger("hmrf_dask")
IN_PARALLEL = 4  # candidates computed in one graph, each committed when all four are done


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
    _run_pool(engine, journal, started, names)
    return _from_winner(engine, journal, started)


def _from_centroids(engine: Engine, journal: Journal, centroids: FloatArray) -> Position:
    engine.number = journal.next
    warm = bool(engine.problem.distortion.warm_smoothings)
    return _committed(journal, begin(engine, centroids), warm=warm)


def _run_pool(engine: Engine, journal: Journal, sample: Lazy, names: Sequence[str]) -> None:
    """Run the candidates that are not done, a few in parallel, and commit each."""
    flow = engine.flow
    while len(journal.candidates) < len(names):
        done = len(journal.candidates)
        batch = [
            flow.lazy(run_candidate, sample, name, engine.run, number)
            for number, name in enumerate(names[done : done + IN_PARALLEL], done + 1)
        ]
        for candidate in flow.compute(batch):
            journal.keep_candidate(candidate)


def _from_winner(engine: Engine, journal: Journal, sample: Lazy) -> Position:
    """Commit the best candidate: with its labels if it knows every row, else its centroids."""
    flow, distortion = engine.flow, engine.problem.distortion
    n_rows = engine.problem.extent.n_rows
    whole = start_sample_size(n_rows, engine.problem.settings) == n_rows
    winner = min(journal.candidates, key=lambda candidate: candidate.energy.total)
    log.info("start %s wins with J %.6g", winner.name, winner.energy.value)
    if whole and not engine.learning:  # else its J is of another sum, and it was another fit
        journal.n_iter = winner.n_iter
        journal.history = [("start", step, value) for step, value in winner.history]
    lazy_centroids = flow.lazy(candidate_centroids, sample, engine.run, winner.file)
    centroids: FloatArray = flow.compute([lazy_centroids])[0]
    engine.number = journal.next
    free = linked = None
    if whole:
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


def refines_all(settings: Settings, distortion: Distortion, n_rows: int) -> bool:
    """Return whether first variation runs in every candidate, on so many rows."""
    sizes = n_rows, settings.n_clusters
    return refines(settings.refine, distortion, *sizes, most=POOL_ROWS_PER_CLUSTER)


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
class _StepsTaken:
    """The record of a candidate: it commits nothing."""

    n_iter: int = 0
    next: int = 0
    steps: list[tuple[str, float]] = field(default_factory=list)

    def keep(self, phase: str, number: int, iteration: Iteration) -> None:
        """Keep the steps of the iterations that promise not to raise J."""
        if number:
            self.n_iter += phase == "fit"
            self.steps += iteration.steps if phase != "warm-up" else ()


def run_candidate(sample: StartSample, name: str, run: CheckpointStore, number: int) -> Candidate:
    """Run one candidate to its end and keep its labels, in the order of the start sample."""
    centroids = start_centroids(sample, name)
    engine, steps = engine_over(sample, constrained=True), _StepsTaken()
    if sample.graph is not None and name.startswith("unconstrained"):
        state = _run_unconstrained_first(engine, centroids, sample, steps)
    else:
        state = _run(engine, centroids, sample, steps)
    problem = engine.problem  # of one partition
    rows = (problem.places[0], problem.positions[0])
    labels = whole_labels(engine.run, state.free[0], state.linked, *rows)
    file = run.write_labels(number, f"start-{number:05d}", 0, labels)
    return Candidate(name, file, state.energy, steps.n_iter, tuple(steps.steps))


def _run(engine: Engine, centroids: FloatArray, sample: StartSample, steps: _StepsTaken) -> State:
    """Run a start at weights 1: warm-up where the distortion has one, fit, refinement."""
    phase, smoothing = "fit", sample.distortion.final_smoothing
    if sample.distortion.warm_smoothings:
        phase, smoothing = "warm-up", 0.0

    def initialise() -> Position:
        """Label all rows by the centroids of the start."""
        return Position(phase, 0, None, begin(engine, centroids, smoothing=smoothing).state)

    return _fit(engine, sample, steps).run(initialise)[0]


def _fit(engine: Engine, sample: StartSample, steps: _StepsTaken) -> Fit:
    settings = sample.settings
    refining = refines_all(settings, sample.distortion, sample.block.n_rows)
    return Fit(engine, steps, settings.max_iter, refining)


def _run_unconstrained_first(
    engine: Engine, centroids: FloatArray, sample: StartSample, steps: _StepsTaken
) -> State:
    """Run a start as if there were no pairs, then with them.

    Labels that first variation found are better than any batch assignment, so free rows keep these
    and only linked rows are settled again.
    """
    alone = engine_over(sample, constrained=False)
    unconstrained = _run(alone, centroids, sample, _StepsTaken())
    fit = _fit(engine, sample, steps)
    free = None
    if fit.refining:
        fit.max_iter = 1  # its E-step is that of the beginning, so it is an M-step
        labels = np.array(alone.run.read_labels(unconstrained.free[0]))
        labels[engine.problem.places[0]] = LINKED
        free = (engine.run.write_labels(0, "rows-00000", 0, labels),)

    def initialise() -> Position:
        """Begin with labels that the unconstrained fit found."""
        centroids, smoothing = unconstrained.model.centroids, sample.distortion.final_smoothing
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
