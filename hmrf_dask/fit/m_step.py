"""The M-steps: centroids from exact sums, empty clusters reseeded, and one step of the weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hmrf_dask.fit.passes import Engine, Pricing
from hmrf_dask.flow.dataflow import share_array, tree
from hmrf_dask.tasks.farthest import Far, farthest, merge_farthest, move_rows
from hmrf_dask.tasks.model import State
from hmrf_dask.tasks.partitions import labels_of
from hmrf_dask.types import BoolArray, FloatArray

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


# ---- the closed forms
