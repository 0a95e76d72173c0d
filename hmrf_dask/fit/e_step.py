"""The E-step: free rows to their nearest centroid, linked rows by ICM or under hard pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hmrf_dask.errors import MemoryPlanError
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.rounds import settle_in_rounds
from hmrf_dask.flow.dataflow import Lazy
from hmrf_dask.tasks import icm, partitions
from hmrf_dask.tasks.hard_pairs import named_costs, settle
from hmrf_dask.tasks.model import State
from hmrf_dask.tasks.partitions import Step, TaskSlice


def expectation(engine: Engine, state: State) -> tuple[State, int]:
    """Return the state after an E-step at frozen centroids and weights, and how many rows moved.

    The sums are changed in place, K × d numbers, and so are those of the state before: see
    `Engine.with_sums` for who goes back to it.
    """
    if engine.flow.shares_memory:  # by all threads now, or by the first task while others wait
        problem = engine.problem
        problem.distortion.make_ready(state.model.table(), dense=problem.dense)
    return _moved(engine, state, partitions.assign)


def settle_linked(engine: Engine, state: State) -> tuple[State, int]:
    """Return the state after ICM on linked rows alone; free rows keep their labels."""
    return _moved(engine, state, partitions.keep_labels)


def _moved(engine: Engine, state: State, free_step: Callable[..., Step]) -> tuple[State, int]:
    model, (slices, linked) = engine.share_ready(state.model), engine.slices(state)
    free = [engine.flow.lazy(free_step, rows, model, engine.store) for rows in slices]
    return engine.finish(state, [*free, *_linked_steps(engine, state, linked)], in_place=True)


def _linked_steps(engine: Engine, state: State, slices: Sequence[TaskSlice]) -> list[Lazy]:
    """Return the steps of linked partitions: cost rows, ICM by problem, their labels."""
    flow, problem, store = engine.flow, engine.problem, engine.store
    model = engine.share_model(state.model)
    if problem.held:
        return [
            flow.lazy(partitions.relabel, rows, model, store, [labels])
            for rows, labels in zip(slices, problem.held, strict=True)
        ]
    steps: list[Lazy] = []
    for number, plan in enumerate(problem.icm_problems):
        if plan.mode != "rounds" and len(plan.partitions) == 1 and not problem.settings.hard:
            pricing = engine.price(state.model)
            priced = engine.priced(pricing, number, state.linked)
            rows = slices[plan.partitions.start]
            steps.append(flow.lazy(icm.settle_alone, priced, rows, model, pricing.scale, store))
            continue
        settled = _settled_partitions(engine, number, state, slices)
        steps += [
            flow.lazy(partitions.relabel, slices[place], model, store, [labels])
            for place, labels in zip(plan.partitions, settled, strict=True)
        ]
    return steps


def _settled_partitions(
    engine: Engine, number: int, state: State, slices: Sequence[TaskSlice]
) -> list[Lazy]:
    """Return the labels of each partition of an ICM problem after ICM, or under hard pairs."""
    flow, problem, plan = engine.flow, engine.problem, engine.problem.icm_problems[number]
    model, pricing = engine.share_model(state.model), engine.price(state.model)
    scale, stored = pricing.scale, engine.stored(plan.partitions, state.linked)
    parts = [problem.linked[place] for place in plan.partitions]
    if problem.settings.hard:
        _refuse_pieces(engine, number)
        named = [flow.lazy(named_costs, part.block, model, scale) for part in parts]
        return engine.cut(number, flow.lazy(settle, plan.problem, named, problem.settings, stored))
    if plan.mode == "rounds":
        costs = [flow.lazy(icm.exact_costs, part.block, model, scale) for part in parts]
        return settle_in_rounds(engine, number, pricing, costs, stored.files)
    priced = engine.priced(pricing, number, state.linked)
    if plan.mode == "heap":
        first = parts[0].first_row
        costs = [
            flow.lazy(icm.linked_costs, slices[place], model, scale, priced, part.first_row - first)
            for place, part in zip(plan.partitions, parts, strict=True)
        ]
    else:  # tables and messages see every cost, whatever the pairs
        costs = [flow.lazy(icm.all_costs, part.block, model, scale) for part in parts]
    settled = flow.lazy(icm.settle, priced, costs, engine.rows_of(number), model, scale)
    return engine.cut(number, settled)


def _refuse_pieces(engine: Engine, number: int) -> None:
    """Refuse hard pairs on a component that no task can settle whole."""
    settings, plan = engine.problem.settings, engine.problem.icm_problems[number]
    if plan.mode != "heap":
        n_rows = sum(engine.problem.linked[place].n_rows for place in plan.partitions)
        raise MemoryPlanError(
            f"documents joined by hard pairs must fit one task, got {n_rows} of them with "
            f"{settings.n_clusters} costs each, above hmrf.task-memory ({settings.task_memory} "
            "bytes); raise it, or use PCKMeans, whose pairs are reconciled between tasks"
        )
