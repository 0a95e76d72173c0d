"""The E-step: free rows to their nearest centroid, linked rows by ICM or under hard pairs."""

from __future__ import annotations

from collections.abc import Sequence

from hmrf_dask.checkpoints.records import LabelsFile
from hmrf_dask.errors import MemoryPlanError
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.rounds import settle_in_rounds
from hmrf_dask.flow.dataflow import Lazy
from hmrf_dask.tasks import icm, partitions
from hmrf_dask.tasks import icm as tasks_icm
from hmrf_dask.tasks.hard_pairs import keyed_costs, settle
from hmrf_dask.tasks.model import Model, State


def settled_problem(engine: Engine, number: int, model: Model, files: Sequence[LabelsFile]) -> Lazy:
    """Return lazily the labels of the points of an ICM problem, no pair broken."""
    flow, settings = engine.flow, engine.problem.settings
    plan = engine.problem.icm_problems[number]
    linked = [engine.problem.linked[part] for part in plan.partitions]
    if plan.mode != "heap":
        n_rows = sum(part.n_rows for part in linked)
        raise MemoryPlanError(
            f"documents joined by hard pairs must fit one task, got {n_rows} of them with "
            f"{settings.n_clusters} costs each, above hmrf.task-memory ({settings.task_memory} "
            "bytes); raise it, or use PCKMeans, whose pairs are reconciled between tasks"
        )
    shared, scale = engine.share_model(model), engine.price(model).scale
    costs = [flow.lazy(keyed_costs, part.block, shared, scale) for part in linked]
    return flow.lazy(settle, plan.problem, costs, settings, engine.run, list(files))


def expectation(engine: Engine, state: State) -> tuple[State, int]:
    """Return the state after an E-step at frozen centroids and weights, and how many rows moved."""
    flow = engine.flow
    if flow.shares_memory:  # by all threads now, or by the first task while the others wait for it
        engine.problem.distortion.make_ready(state.model.table())
    model = engine.share_model(state.model)
    slices, _ = engine.slices(state)
    free = [flow.lazy(partitions.assign, free, model, engine.store) for free in slices]
    return engine.finish(state, [*free, *_linked_steps(engine, state)])


def settle_linked(engine: Engine, state: State) -> tuple[State, int]:
    """Return the state after ICM on linked rows alone; free rows keep their labels."""
    flow = engine.flow
    model = engine.share_model(state.model)
    slices, _ = engine.slices(state)
    free = [flow.lazy(partitions.keep_labels, free, model, engine.store) for free in slices]
    return engine.finish(state, [*free, *_linked_steps(engine, state)])


def _linked_steps(engine: Engine, state: State) -> list[Lazy]:
    """Return the steps of linked partitions: cost rows, ICM by problem, their labels."""
    flow, problem = engine.flow, engine.problem
    model, pricing = engine.share_model(state.model), engine.price(state.model)
    known = engine.corpus_terms(state.model.weights).linked
    _, slices = engine.slices(state)
    if problem.held:
        return [
            flow.lazy(partitions.relabel, rows, model, engine.store, [labels])
            for rows, labels in zip(slices, problem.held, strict=True)
        ]
    steps: list[Lazy] = []
    for number, plan in enumerate(problem.icm_problems):
        if plan.mode != "rounds" and len(plan.partitions) == 1 and not problem.settings.hard:
            part = plan.partitions.start
            steps.append(
                flow.lazy(
                    icm.settle_alone, plan.problem, pricing.problems[number],
                    problem.linked[part].block, known[part], model, pricing.scale, problem.potts,
                    problem.closure_costs, engine.store, state.linked[part],
                )
            )  # fmt: skip
            continue
        settled = _settled_partitions(engine, number, state)
        steps += [
            flow.lazy(partitions.relabel, slices[place], model, engine.store, [labels])
            for place, labels in zip(plan.partitions, settled, strict=True)
        ]
    return steps


def _settled_partitions(engine: Engine, number: int, state: State) -> list[Lazy]:
    """Return the labels of each partition of an ICM problem after ICM, or under hard pairs."""
    flow, problem, plan = engine.flow, engine.problem, engine.problem.icm_problems[number]
    blocks = [problem.linked[part].block for part in plan.partitions]
    files = [state.linked[part] for part in plan.partitions]
    if problem.settings.hard:
        return engine.cut(number, settled_problem(engine, number, state.model, files))
    model, pricing = engine.share_model(state.model), engine.price(state.model)
    if plan.mode == "rounds":
        costs = [flow.lazy(tasks_icm.exact_costs, block, model, pricing.scale) for block in blocks]
        return settle_in_rounds(engine, number, pricing, costs, files)
    starts = [problem.linked[part].first_row for part in plan.partitions]
    starts = [start - starts[0] for start in starts]
    pairs = pricing.problems[number]
    if plan.mode != "heap":
        found = [
            flow.lazy(tasks_icm.exact_linked_costs, block, model, pricing.scale) for block in blocks
        ]
    else:
        known = engine.corpus_terms(state.model.weights).linked
        found = [
            flow.lazy(
                tasks_icm.linked_costs, block, known[part], model, pricing.scale, plan.problem,
                pairs, start, engine.run, files,
            )
            for part, block, start in zip(plan.partitions, blocks, starts, strict=True)
        ]  # fmt: skip
    settled = flow.lazy(
        icm.settle, plan.problem, pairs, found, engine.rows_of(number), model, pricing.scale,
        problem.potts, problem.closure_costs, engine.run, files,
    )  # fmt: skip
    return engine.cut(number, settled)
