"""The loop without an estimator: small problems run in this process, turn by turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmrf_dask.checkpoints.memory import MemoryRun
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.distortions import make_distortion
from hmrf_dask.fit import phases, preparation
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.phases import Iteration
from hmrf_dask.fit.problem import lay_out, whole_labels
from hmrf_dask.flow.dataflow import Dataflow, Inline
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Settings, State
from tests import naive
from tests.problems import Problem

MOST_TURNS = 30


@dataclass(frozen=True)
class Bench:
    """A small problem with an engine over it."""

    problem: Problem
    engine: Engine

    def centroids(self, seed: int = 0, smoothing: float = 0.0) -> NDArray[np.float64]:
        """Return K rows of the corpus as centroids."""
        n_rows, n_columns = self.problem.X.shape
        chosen = np.random.default_rng(seed).permutation(n_rows)[: self.problem.K]
        labels = np.full(n_rows, -1)
        labels[chosen] = np.arange(self.problem.K)
        oracle = self.problem.model(alpha=smoothing)
        return naive.optimal_centroids(oracle, labels, self.problem.K, np.ones(n_columns))

    def labels(self, state: State) -> NDArray[np.int32]:
        """Return the labels of all rows of the corpus."""
        laid = self.engine.problem
        found = [
            whole_labels(self.engine.run, file, state.linked, places, positions)
            for file, places, positions in zip(state.free, laid.places, laid.positions, strict=True)
        ]
        return np.concatenate(found)

    def oracle(self, state: State) -> naive.Model:
        """Return the oracle's view of J as it is in this state."""
        prior = state.prior
        held: dict[str, Any] = {"alpha": state.model.smoothing}
        rule = self.engine.problem.distortion.learning
        if prior.strength and rule == "gradient":
            held["normaliser"] = prior.strength
        if prior.strength and len(prior.reference):  # from the end of the warm-up on
            constants = (prior.strength, prior.reference.tolist(), prior.offset)
            held["entropy"] = naive.RelativeEntropy(*constants)
        return self.problem.model(**held)

    def energy(self, state: State) -> naive.Energy:
        """Return the oracle's J of a state."""
        model = state.model
        return naive.energy(self.oracle(state), self.labels(state), model.centroids, model.weights)


def make_bench(
    problem: Problem,
    *,
    dense: bool = False,
    n_parts: int = 2,
    learn: bool = False,
    weight_update: str = "normalized",
    inference: str = "icm",
    task_memory: int = 2**30,
    flow: Dataflow | None = None,
) -> Bench:
    """Return the problem laid out as a fit does it, in `n_parts` partitions; inline by default."""
    flow = flow or Inline()
    settings = Settings(
        problem.K,
        penalty=problem.penalty,  # type: ignore[arg-type]
        must_link_cost=problem.must_link_cost,
        cannot_link_cost=problem.cannot_link_cost,
        learn_weights=learn,
        weight_update=weight_update,  # type: ignore[arg-type]
        inference=inference,  # type: ignore[arg-type]
        closure=problem.closure,
        on_conflict=problem.on_conflict,  # type: ignore[arg-type]
        seed=problem.seed,
        task_memory=task_memory,
    )
    make = RowBlock.from_array if dense else RowBlock.from_scipy
    whole = make(problem.X if dense else problem.csr, problem.ids)
    cuts = np.linspace(0, len(problem.X), n_parts + 1).astype(int)
    ends = pairwise(cuts)
    blocks = [flow.share(whole.rows(first, last)) for first, last in ends]
    corpus: Any = SimpleNamespace(
        partitions=blocks,
        blocks=blocks,
        named=blocks,
        offsets=cuts.tolist(),
        n_rows=len(problem.X),
        n_features=problem.X.shape[1],
        row_counts=np.diff(cuts).tolist(),
        has_ids=problem.ids is not None,
    )
    distortion = make_distortion(problem.distortion)
    facts = preparation.survey_corpus(flow, corpus, distortion)
    extent = preparation.extent_of(facts, corpus.n_features)
    bound = distortion.bind(extent)
    pairs = None
    if len(problem.must) or len(problem.cannot):
        pairs = preparation.resolve(
            flow, corpus, constraints_of(problem), settings, bound.closure_form
        )
    resolved: tuple[Any, ...] = ()
    if pairs is not None:
        resolved = (pairs.graph, pairs.node_rows, pairs.row_values, pairs.cost_unit)
    laid = lay_out(flow, settings, bound, extent, blocks, corpus.row_counts, *resolved)
    return Bench(problem, Engine(flow, laid, MemoryRun()))


def constraints_of(problem: Problem) -> Constraints:
    """Return the pairs of a problem as a user gives them."""
    must, cannot = problem.must, problem.cannot
    if problem.ids is not None:
        must, cannot = problem.ids[must], problem.ids[cannot]
    return Constraints(
        must if len(must) else None,
        cannot if len(cannot) else None,
        must_link_costs=problem.must_costs if len(must) else None,
        cannot_link_costs=problem.cannot_costs if len(cannot) else None,
    )


def turns(
    bench: Bench,
    *,
    seed: int = 0,
    centroids: NDArray[np.float64] | None = None,
    refining: bool = False,
    most: int = MOST_TURNS,
) -> Iterator[tuple[str, Iteration]]:
    """Run a fit turn by turn as `loop.Fit` does: ("begin" | "warm-up" | "fit" | "refine", turn)."""
    engine = bench.engine
    learning = engine.problem.settings.learn_weights
    schedule = engine.problem.distortion.smoothing_schedule
    steps = phases.smoothing_steps(schedule)
    engine.number = 1
    if centroids is None:
        centroids = bench.centroids(seed, smoothing=steps[0] if steps else 0.0)
    turn = phases.begin(engine, centroids, learning=learning)
    yield "begin", turn
    for number, smoothing in enumerate(steps):
        engine.number += 1
        turn = phases.warm_iteration(
            engine, turn.state, smoothing=smoothing, learning=learning, first=number == 0
        )
        yield "warm-up", turn
    if schedule is not None:
        engine.number += 1
        turn = phases.settle_warm(engine, turn.state, smoothing=schedule[2], learning=learning)
        yield "begin", turn
    for number in range(most):
        engine.number += 1
        turn = phases.fit_iteration(
            engine, turn.state, turn.pricing, learning=learning, first=number == 0
        )
        yield "fit", turn
        if turn.stop is not None:
            break
    for _ in range(most if refining else 0):
        engine.number += 1
        turn = phases.refine_iteration(engine, turn.state, turn.pricing)
        yield "refine", turn
        if turn.stop is not None:
            break
