"""Outliers kept out of centroids: phases after a fit, each under limits of its own.

J then counts a row at most its limit (`tasks/trimming.py`). The limits are those of a phase's first
centroids, so that J falls within the phase; the next phase measures them again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hmrf_dask.fit.loop import TRIM, UNFINISHED, Fit, Iteration, Position
from hmrf_dask.fit.passes import Engine
from hmrf_dask.flow.dataflow import share_array, tree
from hmrf_dask.tasks.model import Limits, State
from hmrf_dask.tasks.outliers import added, by_nearest, reach_of, remote_counts
from hmrf_dask.tasks.partitions import StoredLabels
from hmrf_dask.tasks.trimming import middle_of

MOST = 4  # phases: the first two find most of the outliers, more than four nothing


def is_trimmed(fit: Fit) -> bool:
    """Return whether the rows of a fit are under limits."""
    return fit.phase.startswith(TRIM)


def keep_outliers_out(fit: Fit, stop: str | None) -> tuple[State, str | None]:
    """Repeat, from the end of a fit: limits of its centroids, and the fit resumed under these.

    A phase that ends in its first iteration found no row to keep out or to let in: the last. What
    J held out of a narrow cluster then goes where `predict` puts it, a phase of no iterations.
    Return the state of the last end, and why it ended.
    """
    number = int(fit.phase.removeprefix(TRIM)) if is_trimmed(fit) else 0
    while number == 0 or (number < MOST and fit.done > 1):  # 0 where a stopped fit was at its end
        number += 1
        stop = fit.run(partial(_begin, fit, f"{TRIM}{number}"))[1]
    fit.engine.number = fit.record.next
    state, moved = by_nearest_clusters(fit.engine, fit.state)
    if not moved:
        return fit.state, stop
    steps = (("limits", state.energy.value),)
    last = Iteration(state, moved, steps, stop=stop or UNFINISHED)
    fit.record.keep(f"{TRIM}{number + 1}", 0, last)
    return state, stop


def _begin(fit: Fit, phase: str) -> Position:
    """Keep the state that a phase begins with; return it."""
    state = limited(fit.engine, fit.state)
    fit.record.keep(phase, 0, Iteration(state, steps=(("limits", state.energy.value),)))
    return Position(phase, 0, None, state)


def limited(engine: Engine, state: State) -> State:
    """Return the state under limits of its own, and J under these; rows in and out stay so.

    A row that is out counts the new limit of its cluster, so J may be higher than under the limits
    before: it is another J, and falls from here on.
    """
    flow, problem, rule = engine.flow, engine.problem, engine.problem.settings.outliers
    shared = engine.share_model(state.model)
    (middle,) = flow.compute([flow.lazy(middle_of, shared)])
    known = share_array(flow, middle)
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
