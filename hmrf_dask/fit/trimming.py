"""Phases that keep outliers out of centroids: the limits of each, and J under them."""

from __future__ import annotations

from dataclasses import replace

from hmrf_dask.fit.passes import Engine
from hmrf_dask.flow.dataflow import share_array, tree
from hmrf_dask.tasks.model import Limits, State
from hmrf_dask.tasks.outliers import added, by_nearest, reach_of, remote_counts
from hmrf_dask.tasks.partitions import StoredLabels


def limited(engine: Engine, state: State) -> State:
    """Return the state under limits of its own, and J under these; rows in and out stay so.

    A row that is out counts the new limit of its cluster, so J may be higher than under the limits
    before: it is another J, and falls from here on.
    """
    flow, problem, rule = engine.flow, engine.problem, engine.problem.settings.outliers
    middle = state.model.distortion.middle(state.model.table())
    shared, known = engine.share_model(state.model), share_array(flow, middle)
    counts = [
        flow.lazy(remote_counts, part.block, StoredLabels(engine.run, [file]), shared, known)
        for part, file in zip(problem.free, state.free, strict=True)
    ]
    total = flow.compute([tree(flow, added, counts)])[0]
    reach = reach_of(total, None if isinstance(rule, str) else rule)
    limited = replace(state, model=replace(state.model, limits=Limits(reach, middle)))
    return _measured(engine, limited)


def by_nearest_clusters(engine: Engine, state: State) -> tuple[State, int]:
    """Return the state with rows that are out by their nearest clusters, and how many moved.

    There `predict` puts them. Where J held a row in a narrower cluster, J is higher now; centroids
    stay as they are.
    """
    flow, problem, shared = engine.flow, engine.problem, engine.share_model(state.model)
    free, linked = (
        [StoredLabels(engine.run, [file]) for file in files] for files in (state.free, state.linked)
    )
    labels = [
        flow.lazy(by_nearest, part.block, stored, shared)
        for part, stored in zip(problem.free, free, strict=True)
    ]
    labels += [flow.lazy(StoredLabels.read, stored) for stored in linked]
    moved, n_moved = engine.move(state, labels)
    return _measured(engine, moved), n_moved


def _measured(engine: Engine, state: State) -> State:
    """Return a state with its Σ D, or limits of rows that are out, computed again."""
    energy = replace(state.energy, distortion=engine.distortion_sum(state))
    return replace(state, energy=energy)
