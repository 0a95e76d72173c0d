"""The pool of starts: candidates run to their ends on a start sample; the lowest J wins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile, MemoryRun
from hmrf_dask.constraints.closure import ConstraintGraph
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.fit import phases
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.phases import POOL_ROWS_PER_CLUSTER, Iteration, Steps, wanted
from hmrf_dask.fit.preparation import Pairs, describe_nodes
from hmrf_dask.fit.problem import Problem, gather_parts, lay_out, whole_labels
from hmrf_dask.flow.dataflow import Dataflow, Inline, Lazy, share_array, tree
from hmrf_dask.kernels.distances import LINKED
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.canonical import hash_ids
from hmrf_dask.tasks import model
from hmrf_dask.tasks.model import Energy, Settings
from hmrf_dask.tasks.start_sample import (
    Lowest,
    StartSample,
    lowest_rows,
    make_start_sample,
    merge_lowest,
    start_centroids,
    start_sample_size,
)
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, LabelArray


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


def candidate_names(settings: Settings, constrained: bool) -> list[str]:
    """Return the candidates of a fit, in the order in which ties are decided."""
    if settings.init in ("k-means++", "random"):
        return [f"{settings.init} {number}" for number in range(settings.n_init)]
    if settings.init == "neighborhoods":
        return ["neighborhoods 0"]
    names = [f"unconstrained {number}" for number in range(settings.n_init)]
    from_pairs = ["farthest-first 0", "agglomerated 0", "agglomerated-singles 0"]
    return [*names, *from_pairs] if constrained else names


def restrict(graph: ConstraintGraph, keep: AnyArray) -> ConstraintGraph:
    """Return the graph of some whole components, nodes and groups renumbered in their order.

    `keep` is the mask of their nodes.
    """
    nodes = np.cumsum(keep) - 1
    group_kept = np.zeros(graph.n_groups, np.bool_)
    group_kept[graph.groups[keep]] = True
    groups = np.cumsum(group_kept) - 1
    component_kept = np.zeros(graph.n_components, np.bool_)
    component_kept[graph.components[keep]] = True
    components = np.cumsum(component_kept) - 1

    def inside(pairs: LabelArray, mask: AnyArray, number: AnyArray) -> tuple[LabelArray, AnyArray]:
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
    bounds = np.asarray([0, len(rows)])
    offsets = np.asarray(corpus.offsets)
    part = gather_parts(flow, corpus.blocks, offsets, rows, bounds, "sample")[0]
    plan = StartSample(
        RowBlock.from_array(np.zeros((0, corpus.n_features), np.float32)),
        rows,
        graph,
        places,
        settings,
        problem.distortion,
        problem.extent,
        problem.cost_unit,
        problem.row_bytes,
    )
    return flow.persist([flow.lazy(make_start_sample, part.block, flow.share(plan))])[0]


def _sampled_rows(
    flow: Dataflow, corpus: Corpus, problem: Problem, taken: IntArray, most: int
) -> IntArray:
    """Return rows that fill the sample up to `most`; `taken` are those it has, sorted."""
    lists = []
    for part, block, places in zip(problem.free, corpus.named, problem.places, strict=True):
        here = slice(*np.searchsorted(taken, [part.first_row, part.first_row + part.n_rows]))
        lists.append(
            flow.lazy(
                lowest_rows,
                block,
                part.first_row,
                share_array(flow, places),
                share_array(flow, taken[here] - part.first_row),
                problem.settings.seed,
                most - len(taken),
            )
        )
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
