"""M-step A: new centroids from exact sums, and the reseeding of empty clusters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hmrf_dask.dataflow import share_array, tree
from hmrf_dask.em.engine import Engine, Pricing
from hmrf_dask.em.model import Model, State
from hmrf_dask.em.parts import labels_of
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.runs import LabelsFile, RunStore
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray

FEW = 16  # one row in so many
LOOK = 1024  # columns that show whether a cluster has a direction, nearly always


def centroids_of(state: State) -> FloatArray:
    """Return the centroids the state's sums ask for; undecided clusters keep theirs."""
    model = state.model
    return model.distortion.centroids(
        state.sums,
        model.exponent,
        state.counts,
        model.weights,
        model.smoothing,
        model.centroids,
    )


def centroids_beside_sums(state: State) -> BoolArray:
    """Return which centroids the sums alone do not give."""
    if state.optimal:
        return vacant_clusters(state)
    model = state.model
    alone = replace(state, model=replace(model, centroids=np.zeros_like(model.centroids)))
    return np.asarray((centroids_of(alone) != model.centroids).any(axis=1))


def maximisation(engine: Engine, state: State, *, moved: int | None = None) -> State:
    """Return the state at its optimal centroids, Σ D computed anew.

    Where few rows `moved` centroids go so little that most rows need no comparison with them.
    """
    model = replace(state.model, centroids=centroids_of(state))
    near = moved is not None and FEW * moved < engine.problem.extent.n_rows
    if near:
        model = model.moved_from(state.model)
    engine.send(model)  # on its way while Σ D is computed
    after = replace(state, model=model, optimal=True)
    distortion = engine.distortion_sum(after)
    return replace(after, energy=replace(state.energy, distortion=distortion))


def vacant_clusters(state: State) -> BoolArray:
    """Return which clusters have no row, or none with a direction where rows may have none."""
    vacant = np.asarray(state.counts == 0)
    if state.model.distortion.zero_rows == "undecided":
        suspects = np.flatnonzero(~state.sums[:, :LOOK].any(axis=1))
        vacant[suspects] |= ~state.sums[suspects].any(axis=1)
    return vacant


@dataclass(frozen=True)
class Far:
    """The rows of a part that would save most as centroids of their own, most first, ties by id."""

    distances: FloatArray
    ids: AnyArray
    rows: IntArray  # row numbers of the corpus
    most: int


def farthest(
    block: RowBlock,
    model: Model,
    counts: IntArray,
    run: RunStore,
    file: LabelsFile,
    most: int,
) -> Far:
    """Return the farthest free rows of a part, those left out that are alone in their cluster."""
    labels = run.read_labels(file)
    terms = model.distortion.terms(block, model.weights)
    distances = model.distortion.own_distances(block, terms, model.table(), labels)
    distances = distances - model.distortion.least_distances(terms)
    free = np.flatnonzero((labels >= 0) & (distances > 0) & (counts[labels] > 1))
    return _first(Far(distances[free], block.ids[free], free + file.first_row, most))


def _first(far: Far) -> Far:
    order = np.lexsort((far.ids, -far.distances))[: far.most]
    return Far(far.distances[order], far.ids[order], far.rows[order], far.most)


def merge_farthest(lists: list[Far]) -> Far:
    """Return the farthest rows of several parts, as many as were asked of each."""
    return _first(
        Far(
            np.concatenate([one.distances for one in lists]),
            np.concatenate([one.ids for one in lists]),
            np.concatenate([one.rows for one in lists]),
            lists[0].most,
        )
    )


def move_rows(run: RunStore, file: LabelsFile, rows: IntArray, targets: IntArray) -> AnyArray:
    """Return the labels of a part with some rows of the corpus moved."""
    labels = np.array(run.read_labels(file))
    here = (rows >= file.first_row) & (rows < file.first_row + file.n_rows)
    labels[rows[here] - file.first_row] = targets[here]
    return labels


def reseed(engine: Engine, state: State, pricing: Pricing) -> State | None:
    """Return the state with the farthest free rows in empty clusters, if J falls; else None."""
    empty = np.flatnonzero(vacant_clusters(state))
    if not len(empty):
        return None
    flow, problem = engine.flow, engine.problem
    counts, model = share_array(flow, state.counts), engine.send(state.model)
    lists = [
        flow.lazy(farthest, part.block, model, counts, engine.run, file, len(empty))
        for part, file in zip(problem.free, state.free, strict=True)
    ]
    far: Far = flow.compute([tree(flow, merge_farthest, lists)])[0]
    if not len(far.rows):
        return None
    rows, targets = share_array(flow, far.rows), share_array(flow, empty[: len(far.rows)])
    after = [flow.lazy(move_rows, engine.run, file, rows, targets) for file in state.free]
    after += [flow.lazy(labels_of, engine.run, file) for file in state.linked]
    moved, _ = engine.move(state, after, pricing, model)
    seeded = maximisation(engine, moved)
    return seeded if seeded.energy.total < state.energy.total else None
