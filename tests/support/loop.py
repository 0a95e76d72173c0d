"""The loop without an estimator: small problems run in this process, iteration by iteration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hmrf_dask.checkpoints.records import MemoryRun
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.distortions import make_distortion
from hmrf_dask.fit import preparation
from hmrf_dask.fit.e_step import expectation
from hmrf_dask.fit.loop import (
    Iteration,
    begin,
    end_warm_up,
    fit_iteration,
    refine_iteration,
    warm_iteration,
)
from hmrf_dask.fit.m_step import prior_value
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.problem import CorpusRows, lay_out, whole_labels
from hmrf_dask.flow.dataflow import Dataflow, Inline
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Settings, State
from tests import naive
from tests.support.problems import Problem

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
        pairs = preparation.resolve(flow, corpus, constraints_of(problem), settings, bound)
    rows = CorpusRows(blocks, corpus.row_counts)
    laid = lay_out(flow, settings, bound, extent, rows, pairs)
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


def iterations(
    bench: Bench,
    *,
    seed: int = 0,
    centroids: NDArray[np.float64] | None = None,
    refining: bool = False,
    most: int = MOST_TURNS,
) -> Iterator[tuple[str, Iteration]]:
    """Run a fit turn by turn as `loop.Fit` does: ("begin" | "warm-up" | "fit" | "refine", turn)."""
    engine = bench.engine
    smoothings = engine.problem.distortion.warm_smoothings
    engine.number = 1
    if centroids is None:
        centroids = bench.centroids(seed, smoothing=smoothings[0] if smoothings else 0.0)
    turn = begin(engine, centroids)
    yield "begin", turn
    for number, smoothing in enumerate(smoothings):
        engine.number += 1
        turn = warm_iteration(engine, turn.state, smoothing, number)
        yield "warm-up", turn
    if smoothings:
        engine.number += 1
        turn = end_warm_up(engine, turn.state)
        yield "begin", turn
    for number in range(most):
        engine.number += 1
        turn = fit_iteration(engine, turn.state, number)
        yield "fit", turn
        if turn.stop is not None:
            break
    for _ in range(most if refining else 0):
        engine.number += 1
        turn = refine_iteration(engine, turn.state)
        yield "refine", turn
        if turn.stop is not None:
            break


ROUNDING = 1e-13  # of one row: a distance of 1 - 1 is zero only up to this


@pytest.fixture
def only_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every closure as a table, however small."""
    monkeypatch.setattr("hmrf_dask.constraints.closure.EXPLICIT_PAIRS", 0)
    monkeypatch.setattr("hmrf_dask.constraints.closure.EXPLICIT_RATIO", 0)


def kept_iterations(bench: Bench, **how: Any) -> Iterator[Iteration]:
    """Run a fit and return the iterations of which a J is promised."""
    for name, turn in iterations(bench, **how):
        if name != "warm-up":
            yield turn


def some_bench(problem: Problem, seed: int, **how: Any) -> Bench:
    """Return the problem as dense or sparse rows, in a few partitions, with or without learning."""
    rng = np.random.default_rng(seed)
    drawn = {
        "dense": bool(rng.integers(2)),
        "n_parts": int(rng.integers(1, 4)),
        "learn": bool(rng.integers(2)),
        "weight_update": str(rng.choice(["normalized", "paper"])),
    }
    return make_bench(problem, **(drawn | how))


def check_energy(bench: Bench, state: State) -> None:
    """Compare J and its terms with the oracle's, to 1e-9 of the sum of absolute terms."""
    expected, got = bench.energy(state), state.energy.terms()
    slack = 1e-9 * expected.absolute + ROUNDING * len(bench.problem.X)
    assert got["J"] == pytest.approx(expected.total, rel=0, abs=slack)
    assert got["must_link"] == pytest.approx(expected.must_link, rel=0, abs=slack)
    assert got["cannot_link"] == pytest.approx(expected.cannot_link, rel=0, abs=slack)
    # the smoothing's own term stands with the distances here, with the priors there
    both = expected.distance + expected.prior
    assert got["distortion"] + got["prior"] == pytest.approx(both, rel=0, abs=slack)


def written(bench: Bench, labels: np.ndarray[Any, np.dtype[np.int32]]) -> tuple[Any, Any]:
    """Write labels of all rows as those of the free and the linked parts."""
    laid, run = bench.engine.problem, bench.engine.run
    free = []
    for part, places in zip(laid.free, laid.places, strict=True):
        own = labels[part.first_row : part.first_row + part.n_rows].copy()
        own[places] = -1
        free.append(run.write_labels(1, part.name, part.first_row, own))
    linked = [
        run.write_labels(1, part.name, part.first_row, labels[laid.laid_rows(part)].copy())
        for part in laid.linked
    ]
    return tuple(free), tuple(linked)


TABLE_FORMS = ("cosine", "pearson", "euclidean")


def check_steps(bench: Bench, **how: Any) -> list[str]:
    """Run a fit; no step of a turn that promises it may raise J. Return the names of all steps."""
    before: float | None = None
    names: list[str] = []
    for name, turn in iterations(bench, **how):
        if before is not None and name in ("fit", "refine"):
            values = [before, *(value for _, value in turn.steps)]
            assert all(late <= early for early, late in pairwise(values))
            assert turn.state.energy.value == values[-1]
            names += [name for name, _ in turn.steps]
        before = turn.state.energy.value
    return names


def check_local_optimum(bench: Bench, turn: Iteration) -> None:
    """After an E-step neither a row nor a component gains more than the integers misjudge."""
    # An E-step changes sums in place, and the fit continues from this state.
    own = replace(turn.state, sums=turn.state.sums.copy())
    state, _ = expectation(bench.engine, own)
    problem, oracle = bench.problem, bench.oracle(state)
    labels, mu, weights = bench.labels(state), state.model.centroids, state.model.weights
    quantum = bench.engine.price(turn.state.model).scale.quantum
    allowed = np.zeros(len(problem.X))
    pairs = oracle.pairs
    for costs in (pairs.must, pairs.cannot):
        for (i, j), cost in costs.items():
            allowed[[i, j]] += quantum * cost
    allowed[np.unique(np.concatenate([problem.must, problem.cannot]))] += quantum
    size = 1.0 + np.abs(naive.distances(oracle.rows, mu, weights, problem.distortion)).max()
    # Equal rows at equal distances may part by what float64 rounds: the loop undoes such a step.
    energy = bench.engine.energy(state, prior_value(bench.engine, state))
    assert energy.value - turn.state.energy.value <= 1e-12 * size
    allowed += 1e-12 * size
    alone = [[row] for row in range(len(problem.X))]
    gains = naive.move_decreases(oracle, labels, mu, weights, alone).max(axis=1)
    assert (gains <= allowed).all()
    groups = pairs.components
    if groups:
        gains = naive.move_decreases(oracle, labels, mu, weights, groups).max(axis=1)
        assert (gains <= [allowed[list(group)].sum() for group in groups]).all()
