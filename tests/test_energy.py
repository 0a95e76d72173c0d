"""The reported J against the oracle in every form of a pair, and what must change no bit of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmrf_dask import HMRFKMeans
from hmrf_dask.fit.loop import begin
from hmrf_dask.fit.m_step import prior_value
from hmrf_dask.tasks.model import State
from tests import naive
from tests.support.long_cases import long
from tests.support.loop import (
    ROUNDING,
    Bench,
    check_energy,
    constraints_of,
    kept_iterations,
    make_bench,
    some_bench,
    written,
)
from tests.support.problems import DISTORTIONS, Problem, problems, random_problem


def check_fit(problem: Problem, seed: int) -> None:
    bench = some_bench(problem, seed)
    refining = problem.distortion in ("cosine", "pearson", "euclidean")
    for turn in kept_iterations(bench, refining=refining, most=8):
        check_energy(bench, turn.state)
        prior = prior_value(bench.engine, turn.state)
        assert bench.engine.energy(turn.state, prior) == turn.state.energy


@settings(max_examples=40)
@given(problems(max_rows=25), st.integers(0, 2**16))
def test_j_is_the_oracles_and_never_updated_wrongly(problem: Problem, seed: int) -> None:
    check_fit(problem, seed)


@pytest.mark.usefixtures("only_tables")
@pytest.mark.parametrize("distortion", ["euclidean", *long("cosine", "pearson")])
def test_j_is_the_oracles_where_closures_are_tables(distortion: str) -> None:
    n_tables = 0
    for seed in range(40):
        problem = random_problem(seed, distortion=distortion, closure=True)
        bench = some_bench(problem, seed)
        n_tables += sum(one.mode == "table" for one in bench.engine.problem.icm_problems)
        check_fit(problem, seed)
    assert n_tables >= 25


# zero rows and dropped pairs are meant here
@pytest.mark.filterwarnings("ignore::hmrf_dask.errors.HmrfWarning")
@pytest.mark.parametrize("distortion", DISTORTIONS)
@pytest.mark.parametrize("learn", [False, True])
def test_the_estimator_reports_the_oracles_j(distortion: str, learn: bool) -> None:
    for seed in range(2):
        problem = random_problem(seed, distortion=distortion, n=30, noise=0.1, K=3, ids=None)
        model = HMRFKMeans(
            problem.K,
            distortion=distortion,
            learn_weights=learn,
            penalty=problem.penalty,
            must_link_cost=problem.must_link_cost,
            cannot_link_cost=problem.cannot_link_cost,
            closure=problem.closure,
            on_conflict="drop",
            n_init=2,
            random_state=seed,
        )
        problem = replace(problem, on_conflict="drop")
        model.fit(problem.csr, must_link=constraints_of(problem))
        weights, terms = model.feature_weights_, model.objective_terms_
        oracle = problem.model(alpha=model.smoothing_)
        expected = naive.energy(oracle, model.labels_, model.cluster_centers_, weights)
        slack = 1e-9 * expected.absolute + ROUNDING * len(problem.X)
        assert model.objective_ == terms["J"]
        assert terms["must_link"] == pytest.approx(expected.must_link, rel=0, abs=slack)
        assert terms["cannot_link"] == pytest.approx(expected.cannot_link, rel=0, abs=slack)
        without = expected.total - terms["J"] + terms["prior"]
        assert without == pytest.approx(0.0, abs=slack)
        assert learn or terms["prior"] == 0.0


def test_costs_are_used_to_the_last_bit_of_a_256th() -> None:
    problem = random_problem(5, distortion="cosine", penalty="potts", n=30, noise=0.5, K=2)
    costs = [np.arange(1, len(pairs) + 1) / 256 for pairs in (problem.must, problem.cannot)]
    problem = replace(
        problem, must_costs=costs[0], cannot_costs=costs[1], must=unrepeated(problem.must),
        cannot=unrepeated(problem.cannot),
    )  # fmt: skip
    problem = replace(
        problem, must_costs=costs[0][: len(problem.must)],
        cannot_costs=costs[1][: len(problem.cannot)],
    )  # fmt: skip
    bench = make_bench(problem)
    for turn in kept_iterations(bench):
        expected, got = bench.energy(turn.state), turn.state.energy.terms()
        assert (got["must_link"], got["cannot_link"]) == (expected.must_link, expected.cannot_link)
        assert expected.must_link + expected.cannot_link > 0


def unrepeated(pairs: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return each unordered pair once."""
    return np.unique(np.sort(pairs, axis=1), axis=0)


def relabelled(bench: Bench, state: State, order: np.ndarray[Any, np.dtype[np.int64]]) -> State:
    """Return a state with its clusters renumbered: cluster h becomes order[h]."""
    run = bench.engine.run

    def write(file: Any) -> Any:
        labels = run.read_labels(file)
        after = np.where(labels >= 0, order[labels], labels).astype(np.int32)
        return run.write_labels(99, file.part, file.first_row, after)

    back = np.argsort(order)
    model = replace(state.model, centroids=state.model.centroids[back])
    return replace(
        state, model=model, free=tuple(write(file) for file in state.free),
        linked=tuple(write(file) for file in state.linked), sums=state.sums[back],
        counts=state.counts[back],
    )  # fmt: skip


@pytest.mark.parametrize("tables", [False, True])
def test_renumbering_clusters_changes_no_bit_of_j(
    tables: bool, request: pytest.FixtureRequest
) -> None:
    if tables:
        request.getfixturevalue("only_tables")
    for seed in range(20):
        problem = random_problem(seed)
        bench = some_bench(problem, seed)
        turn = list(kept_iterations(bench, most=3))[-1]
        order = np.random.default_rng(seed).permutation(problem.K)
        other = relabelled(bench, turn.state, order)
        prior = prior_value(bench.engine, turn.state)
        assert bench.engine.energy(other, prior) == turn.state.energy


def test_tables_and_pairs_agree_on_j(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(60):
        problem = random_problem(
            seed, distortion=["cosine", "pearson", "euclidean"][seed % 3], closure=True
        )
        bench = make_bench(problem)
        state = list(kept_iterations(bench, most=3))[-1].state
        labels = bench.labels(state)
        with monkeypatch.context() as patched:
            patched.setattr("hmrf_dask.constraints.closure.EXPLICIT_PAIRS", 0)
            patched.setattr("hmrf_dask.constraints.closure.EXPLICIT_RATIO", 0)
            other = make_bench(problem)
        files = written(other, labels)
        same = begin(other.engine, state.model.centroids, free=files[0], linked=files[1])
        energies = [
            bench.engine.energy(state, 0.0),
            other.engine.energy(same.state, 0.0),
        ]
        terms = [energy.terms() for energy in energies]
        absolute = bench.energy(state).absolute
        for name, value in terms[0].items():
            assert terms[1][name] == pytest.approx(value, abs=1e-11 * (1 + absolute))
