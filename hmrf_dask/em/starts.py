"""The pool of starts: every candidate runs to its end in one task on a sample (the whole of a small corpus), the lowest J wins.

Unconstrained solutions make it safe, never far below plain K-means with as many starts; the neighbourhood starts find what only pairs tell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hmrf_dask.closure import ConstraintGraph
from hmrf_dask.dataflow import Inline
from hmrf_dask.distortions.base import Distortion, Extent
from hmrf_dask.em import initialise, phases
from hmrf_dask.em.engine import Engine
from hmrf_dask.em.initialise import Sample
from hmrf_dask.em.model import Energy, Settings
from hmrf_dask.em.phases import Turn
from hmrf_dask.em.problem import lay_out, whole_labels
from hmrf_dask.em.refine import wanted
from hmrf_dask.kernels.distances import LINKED
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.rows import RowBlock
from hmrf_dask.runs import LabelsFile, MemoryRun, RunStore
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray


@dataclass(frozen=True)
class Ground:
    """What candidates start from: rows sorted by id, and the constraints among them."""

    block: RowBlock
    rows: IntArray  # row number in the corpus of each row
    graph: ConstraintGraph | None
    node_rows: IntArray  # place in `block` of each node
    settings: Settings
    distortion: Distortion
    extent: Extent
    cost_unit: float
    row_bytes: int

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        return self.block.__sizeof__() + self.rows.nbytes + 4096

    @property
    def smoothing(self) -> float:
        """The α that candidates are compared at: where the warm-up ends."""
        schedule = self.distortion.smoothing_schedule
        return 0.0 if schedule is None else schedule[2]

    def sample(self) -> Sample:
        """Return the rows as initialisation sees them: all features weigh 1."""
        weights = np.ones(self.extent.n_features)
        bound = self.distortion.summand_bound(None, weights)
        if bound is None:
            bound = self.distortion.summand_bound(self.block, weights) or 1.0
        exponent = fixed_point_exponent(self.block.n_rows, bound)
        return Sample(
            self.block, self.distortion, weights, self.smoothing, exponent, self.settings.seed
        )

    def engine(self, *, constrained: bool) -> Engine:
        """Return an engine over these rows that runs inside one task."""
        graph = self.graph if constrained else None
        values = np.diff(self.block.indptr)[self.node_rows].astype(np.int64)
        problem = lay_out(
            Inline(), self.settings, self.distortion, replace(self.extent, n_rows=self.block.n_rows), [self.block],
            [self.block.n_rows], graph, self.node_rows, values, self.cost_unit, self.row_bytes,
        )  # fmt: skip
        return Engine(Inline(), problem, MemoryRun())


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


def sort_ground(ground: Ground) -> Ground:
    """Return the ground with its rows in id order, so that index order is id order."""
    order = np.argsort(ground.block.ids, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return replace(
        ground,
        block=ground.block.take(order),
        rows=ground.rows[order],
        node_rows=place[ground.node_rows],
    )


def make_ground(block: RowBlock, ground: Ground) -> Ground:
    """Return the ground with its rows, which come as a task result."""
    return sort_ground(replace(ground, block=block))


def candidate_names(settings: Settings, constrained: bool) -> list[str]:
    """Return the candidates of a fit, in the order in which ties are decided."""
    if settings.init in ("k-means++", "random"):
        return [f"{settings.init} {number}" for number in range(settings.n_init)]
    if settings.init == "neighborhoods":
        return ["neighborhoods 0"]
    names = [f"unconstrained {number}" for number in range(settings.n_init)]
    return (
        [*names, "farthest-first 0", "agglomerated 0", "agglomerated-singles 0"]
        if constrained
        else names
    )


def first_centroids(ground: Ground, name: str) -> FloatArray:
    """Return the centroids a candidate starts from."""
    settings, sample = ground.settings, ground.sample()
    kind, number = name.rsplit(" ", 1)
    start, n_clusters = int(number), settings.n_clusters
    if kind in ("unconstrained", "k-means++"):
        return initialise.kmeans_plus_plus(sample, n_clusters, start)
    if kind == "random":
        return initialise.random_rows(sample, n_clusters, start)
    nothing = np.zeros((0, ground.extent.n_features))
    given = nothing
    if ground.graph is not None:
        singles = kind == "agglomerated-singles"
        found = initialise.neighbourhoods(sample, ground.graph, ground.node_rows, singles=singles)
        pick = (
            initialise.farthest_first
            if kind in ("farthest-first", "neighborhoods")
            else initialise.agglomerate
        )
        given = pick(sample, found, n_clusters) if len(found) else nothing
    how = settings.fill if kind == "neighborhoods" else "k-means++"
    return initialise.fill(sample, n_clusters, start, given, how)


def run_candidate(ground: Ground, name: str, run: RunStore, number: int) -> Candidate:
    """Run one candidate to its end and keep its labels (in the order of the ground)."""
    settings = ground.settings
    refining = wanted(settings.refine, ground.distortion, ground.block.n_rows, settings.n_clusters)
    centroids = first_centroids(ground, name)
    engine = ground.engine(constrained=True)
    turns: list[Turn] = []
    if ground.graph is None or not name.startswith("unconstrained"):
        turn, turns = _run(engine, centroids, ground, refining)
    else:
        alone = ground.engine(constrained=False)
        free, _ = _run(alone, centroids, ground, refining)
        if (
            refining
        ):  # its labels are better than any batch assignment: only linked rows are settled anew
            labels = np.array(alone.run.read_labels(free.state.free[0]))
            labels[engine.problem.places[0]] = LINKED
            file = engine.run.write_labels(0, "rows-00000", 0, labels)
            turn = phases.begin(
                engine, free.state.model.centroids, smoothing=ground.smoothing, free=(file,)
            )
            turn, turns = phases.run_turns(engine, turn, 0, refining=True, fitting=False)
        else:
            turn = phases.begin(engine, free.state.model.centroids, smoothing=ground.smoothing)
            turn, turns = phases.run_turns(engine, turn, settings.max_iter, refining=False)
    part = f"start-{number:05d}"
    file = run.write_labels(number, part, 0, sample_labels(engine, turn))
    history = tuple(step for one in turns for step in one.steps)
    return Candidate(name, file, turn.state.energy, len(turns), history)


def _run(
    engine: Engine, centroids: FloatArray, ground: Ground, refining: bool
) -> tuple[Turn, list[Turn]]:
    """Run a start at weights 1: warm-up where the distortion has one, fit, refinement."""
    steps = phases.smoothing_steps(ground.distortion.smoothing_schedule)
    turn = phases.begin(engine, centroids, smoothing=steps[0] if steps else ground.smoothing)
    for number, smoothing in enumerate(steps):
        turn = phases.warm_turn(
            engine, turn.state, smoothing=smoothing, learning=False, first=number == 0
        )
    if steps:
        turn = phases.settle_warm(engine, turn.state, smoothing=ground.smoothing, learning=False)
    return phases.run_turns(engine, turn, ground.settings.max_iter, refining=refining)


def sample_labels(engine: Engine, turn: Turn) -> LabelArray:
    """Return all labels of a one-part problem, linked rows included."""
    problem, state = engine.problem, turn.state
    return whole_labels(
        engine.run, state.free[0], state.linked, problem.places[0], problem.positions[0]
    )


def candidate_centroids(ground: Ground, run: RunStore, file: LabelsFile) -> FloatArray:
    """Return the centroids of a finished candidate."""
    sample = ground.sample()
    labels = run.read_labels(file).astype(np.int64)
    return sample.centroids(*sample.sums(labels, ground.settings.n_clusters))


def labels_by_row(ground: Ground, run: RunStore, file: LabelsFile) -> AnyArray:
    """Return the labels of a candidate over the whole corpus in the order of its rows."""
    out = np.empty(len(ground.rows), np.int32)
    out[ground.rows] = run.read_labels(file)
    return out


def restrict(graph: ConstraintGraph, keep: AnyArray) -> ConstraintGraph:
    """Return the graph of some whole components, nodes and groups renumbered in order; `keep` is a mask of nodes."""
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
    )
