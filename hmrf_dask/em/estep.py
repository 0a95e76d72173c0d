"""The E-step: every free row to its nearest centroid, linked rows by exact ICM, J never higher."""

from __future__ import annotations

from hmrf_dask.dataflow import Lazy
from hmrf_dask.em import bundles, parts
from hmrf_dask.em.engine import Engine, Pricing
from hmrf_dask.em.model import State
from hmrf_dask.em.parts import Shared, share_model
from hmrf_dask.em.rounds import settle_in_rounds


def expectation(engine: Engine, state: State, pricing: Pricing) -> tuple[State, int]:
    """Return the state after an E-step at frozen centroids and weights, and how many rows moved."""
    flow, problem = engine.flow, engine.problem
    shared = share_model(flow, state.model)
    free = [
        flow.lazy(
            parts.assign,
            part.block,
            shared.model,
            shared.table,
            engine.run,
            engine.number,
            part.name,
            file,
        )
        for part, file in zip(problem.free, state.free, strict=True)
    ]
    linked = _linked_steps(engine, state, pricing, shared)
    return engine.finish(state, [*free, *linked], pricing, shared.model)


def settle_linked(engine: Engine, state: State, pricing: Pricing) -> tuple[State, int]:
    """Return the state after ICM on linked rows alone; free rows keep their labels."""
    flow = engine.flow
    shared = share_model(flow, state.model)
    free = [
        flow.lazy(
            parts.relabel, part.block, shared.model, shared.table, engine.run, engine.number,
            part.name, file, flow.lazy(parts.labels_of, engine.run, file),
        )
        for part, file in zip(engine.problem.free, state.free, strict=True)
    ]  # fmt: skip
    return engine.finish(
        state, [*free, *_linked_steps(engine, state, pricing, shared)], pricing, shared.model
    )


def _linked_steps(engine: Engine, state: State, pricing: Pricing, shared: Shared) -> list[Lazy]:
    """Return the steps of the linked parts: cost rows, ICM by bundle, labels back to the parts."""
    flow, problem = engine.flow, engine.problem
    steps: list[Lazy] = []
    for number, one in enumerate(problem.bundles):
        costs = [
            flow.lazy(
                bundles.linked_costs,
                problem.linked[part].block,
                shared.model,
                shared.table,
                pricing.scale,
            )
            for part in one.parts
        ]
        files = [state.linked[part] for part in one.parts]
        if one.mode == "rounds":
            labels = settle_in_rounds(engine, number, pricing, costs, files)
        else:
            settled = flow.lazy(
                bundles.settle, one.bundle, pricing.bundles[number], costs,
                engine.rows_of(number), shared.model, pricing.scale, problem.potts,
                problem.closure_costs, engine.run, files,
            )  # fmt: skip
            start = problem.linked[one.parts.start].first_row
            labels = [
                flow.lazy(
                    bundles.part_labels, settled, one.bundle,
                    problem.linked[part].first_row - start,
                    problem.linked[part].first_row - start + problem.linked[part].n_rows,
                )
                for part in one.parts
            ]  # fmt: skip
        for part, after in zip(one.parts, labels, strict=True):
            steps.append(
                flow.lazy(
                    parts.relabel, problem.linked[part].block, shared.model, shared.table,
                    engine.run, engine.number, problem.linked[part].name, state.linked[part],
                    after,
                )
            )  # fmt: skip
    return steps
