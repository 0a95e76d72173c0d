"""M-step B: gradients and closed forms against the oracle, and that only what lowers J is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dask.callbacks import Callback
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hmrf_dask import HMRFKMeans, MPCKMeans
from hmrf_dask.fit import m_step
from hmrf_dask.fit.m_step import FLOOR, Scatter, _kept, effective_share, reweighted, weight_gradient
from hmrf_dask.fit.passes import Engine
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.tasks.model import State
from tests import naive
from tests.support.loop import Bench, iterations, kept_iterations, make_bench
from tests.support.problems import Problem, random_problem, random_weights

GRADIENT = ("cosine", "pearson")
LINEAR = ("euclidean", "i-divergence", "kl")


def learning_bench(seed: int, distortion: str, **fields: Any) -> Bench:
    """Return a problem with broken pairs of both kinds, about to learn weights."""
    how = {key: fields.pop(key) for key in ("weight_update", "dense") if key in fields}
    chosen = {"noise": 0.5, "smooth": True, "n": 30, "K": 3, "on_conflict": "keep", "d": 7}
    problem = random_problem(seed, distortion=distortion, **chosen | fields)
    return make_bench(problem, learn=True, **how)


def settled(bench: Bench, most: int = 2) -> State:
    """Return the state some iterations into the fit, centroids optimal."""
    return list(kept_iterations(bench, most=most))[-1].state


# --- the gradient rule ---------------------------------------------------------------------------


def check_gradient(bench: Bench, seed: int) -> None:
    state = settled(bench)
    weights = random_weights(len(state.model.weights), seed)
    state = reweighted(bench.engine, state, weights)
    found = weight_gradient(bench.engine, state)
    labels, model = bench.labels(state), state.model
    expected = naive.numerical_gradient(bench.oracle(state), labels, model.centroids, weights)
    size = bench.energy(state).absolute
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * size)
    assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize("distortion", GRADIENT)
@pytest.mark.parametrize("weight_update", ["normalized", "paper"])
@pytest.mark.parametrize("dense", [False, True])
def test_the_gradient_is_that_of_j(distortion: str, weight_update: str, dense: bool) -> None:
    for seed in range(4):
        check_gradient(
            learning_bench(seed, distortion, weight_update=weight_update, dense=dense), seed
        )


@pytest.mark.usefixtures("only_tables")
@pytest.mark.parametrize("distortion", GRADIENT)
def test_the_gradient_is_that_of_j_where_closures_are_tables(distortion: str) -> None:
    n_tables = 0
    for seed in range(8):
        bench = learning_bench(seed, distortion, closure=True, penalty="distance")
        n_tables += sum(one.mode == "table" for one in bench.engine.problem.icm_problems)
        check_gradient(bench, seed)
    assert n_tables >= 4


@pytest.mark.parametrize("distortion", GRADIENT)
def test_kept_weights_have_mean_one_and_a_floor(distortion: str) -> None:
    changed = 0
    for seed in range(10):
        bench = learning_bench(seed, distortion)
        for turn in kept_iterations(bench):
            weights = turn.state.model.weights
            assert weights.mean() == pytest.approx(1.0, abs=1e-12)
            assert weights.min() >= FLOOR
            changed += int((weights != 1.0).any())
    assert changed > 10


@given(
    hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e3, 1e6)),
    st.floats(1e-6, 1e6),
)
def test_projected_weights_have_mean_one_and_a_floor(
    weights: NDArray[np.float64], factor: float
) -> None:
    kept = _kept(weights)
    assert kept.mean() == pytest.approx(1.0, abs=1e-12)
    assert kept.min() >= FLOOR
    above = np.flatnonzero(kept != FLOOR)
    if (weights > 0).any():
        ratios = kept[above] / weights[above]  # the others keep their proportions
        np.testing.assert_allclose(ratios, ratios[0], rtol=1e-9)
        np.testing.assert_allclose(_kept(weights * factor), kept, rtol=1e-9)


def test_weights_that_are_no_numbers_fall_back_to_one() -> None:
    for bad in ([np.nan, 1.0], [np.inf, 1.0], [0.0, 0.0], [-1.0, -2.0]):
        np.testing.assert_array_equal(_kept(np.array(bad)), [1.0, 1.0])


# --- the closed forms ----------------------------------------------------------------------------


def closed_form(bench: Bench, state: State) -> NDArray[np.float64]:
    if bench.problem.distortion == "euclidean":
        return m_step._variance_weights(bench.engine, state)
    return m_step._entropy_weights(bench.engine, state)


def check_minimiser(bench: Bench, seed: int) -> None:
    """Compare the closed form with the oracle's formula, and J there with J nearby."""
    state = settled(bench)
    labels, mu = bench.labels(state), state.model.centroids
    oracle = bench.oracle(state)
    found = closed_form(bench, state)
    own = np.array(naive.feature_distortions(oracle, labels, mu))
    if bench.problem.distortion == "euclidean":
        expected = len(labels) / np.maximum(own, 1e-9)
    else:
        prior = state.prior
        if not prior.strength:
            return
        held = prior.reference + prior.offset
        expected = np.exp(-prior.strength * (own - prior.reference) / held)
    # neither at a floor, nor at the end of its reach, nor a feature that is the same in all rows
    inside = (found > 1e-4) & (found < 1e4) & (own > 1e-6)
    np.testing.assert_allclose(found[inside], expected[inside], rtol=1e-6)
    at_best = naive.energy(oracle, labels, mu, found).total
    rng = np.random.default_rng(seed)
    for _ in range(5):
        nearby = found * np.exp(np.where(inside, rng.normal(scale=0.1, size=len(found)), 0.0))
        assert naive.energy(oracle, labels, mu, nearby).total >= at_best


@pytest.mark.parametrize("distortion", LINEAR)
@pytest.mark.parametrize("dense", [False, True])
def test_the_closed_form_minimises_j(distortion: str, dense: bool) -> None:
    for seed in range(6):
        check_minimiser(learning_bench(seed, distortion, dense=dense), seed)


@pytest.mark.usefixtures("only_tables")
def test_the_closed_form_minimises_j_where_closures_are_tables() -> None:
    for seed in range(6):
        check_minimiser(learning_bench(seed, "euclidean", closure=True, penalty="distance"), seed)


def test_the_closed_form_minds_costs_far_below_one() -> None:
    for seed in range(4):
        bench = learning_bench(
            seed, "euclidean", must_link_cost=1e-6, cannot_link_cost=1e-6, closure=True,
            must_costs=None, cannot_costs=None, penalty="distance",
        )  # fmt: skip
        unit = bench.engine.problem.cost_unit
        rounded = round(1e-6 / unit) * unit
        problem = replace(bench.problem, must_link_cost=rounded, cannot_link_cost=rounded)
        state = settled(bench)
        labels, mu = bench.labels(state), state.model.centroids
        own, alone = (
            np.array(naive.feature_distortions(model, labels, mu))
            for model in (problem.model(), replace(problem.model(), pairs=naive.Pairs()))
        )
        found = m_step.pair_statistics(bench.engine, state)
        broken = own - alone
        np.testing.assert_allclose(found, broken, atol=1e-4 * np.abs(broken).max())


@pytest.mark.parametrize("power", [-40, 30])
def test_learned_metrics_follow_the_units(power: int) -> None:
    rng = np.random.default_rng(0)
    topics = rng.integers(0, 3, 200)
    X = np.column_stack([rng.normal(size=200), 10 * topics + rng.normal(size=200)])
    units = 2.0 ** np.array([0, power])  # each feature has its own
    for columns in (units, np.full(2, 2.0**power)):
        model = MPCKMeans(3, refine=False, random_state=0, n_init=1).fit(X * columns)
        rows = (X * columns).astype(np.float32).astype(np.float64)
        scatter = ((rows - model.cluster_centers_[model.labels_]) ** 2).sum(axis=0)
        np.testing.assert_allclose(model.feature_weights_, 200 / scatter, rtol=1e-5)


def test_entropy_weights_follow_the_units() -> None:
    counts = np.random.default_rng(0).poisson(3, (60, 8)).astype(np.float64)
    one, small = (
        HMRFKMeans(3, distortion="i-divergence", random_state=0, n_init=1).fit(
            counts * unit, cannot_link=[(0, 1), (1, 2), (0, 2)]
        )
        for unit in (1.0, 2.0**-100)
    )
    assert one.violations_ == small.violations_ == {"must_link": 0, "cannot_link": 0}
    assert one.labels_.tolist() == small.labels_.tolist()
    np.testing.assert_allclose(small.feature_weights_, one.feature_weights_, rtol=1e-6)


@pytest.mark.parametrize("distortion", ["i-divergence", "kl"])
def test_the_held_prior_is_one_cluster_of_all_rows(distortion: str) -> None:
    strengths = []
    for seed in range(10):
        bench = learning_bench(seed, distortion)
        state = settled(bench)
        expected = naive.one_cluster_distortions(bench.problem.model(alpha=state.model.smoothing))
        np.testing.assert_allclose(state.prior.reference, expected, rtol=1e-9, atol=1e-9)
        assert state.prior.offset == pytest.approx(np.mean(expected), rel=1e-9)
        strengths.append(state.prior.strength)
    assert sum(strength > 0 for strength in strengths) >= 5


# --- what is kept --------------------------------------------------------------------------------


@pytest.mark.parametrize("distortion", [*GRADIENT, *LINEAR])
def test_learning_keeps_only_what_lowers_j(distortion: str) -> None:
    n_learned = 0
    for seed in range(6):
        bench = learning_bench(seed, distortion)
        state = settled(bench)
        ones = np.ones_like(state.model.weights)
        state = reweighted(bench.engine, state, ones)
        learned = m_step.learn(bench.engine, state)
        if learned is None:
            continue
        n_learned += 1
        assert learned.energy.total < state.energy.total
        slack = 1e-9 * bench.energy(state).absolute
        assert bench.energy(learned).total <= bench.energy(state).total + slack
        np.testing.assert_array_equal(bench.labels(learned), bench.labels(state))
    assert n_learned >= 2


def test_weights_stay_where_every_proposal_raises_j(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def bad(engine: Engine, state: State, _rows: Any) -> Iterator[NDArray[np.float64]]:
        for factor in (1e3, 1e2):
            tried.append(factor)
            yield state.model.weights * np.geomspace(1.0, factor, len(state.model.weights))

    bench = learning_bench(3, "euclidean")
    state = settled(bench, most=5)
    best = m_step.learn(bench.engine, state) or state
    monkeypatch.setattr(m_step, "_proposals", bad)
    assert m_step.learn(bench.engine, best) is None
    assert tried == [1e3, 1e2]


@pytest.mark.parametrize("distortion", GRADIENT)
@pytest.mark.parametrize("seed", range(2))
def test_a_driver_that_sees_the_rows_learns_what_tasks_learn(distortion: str, seed: int) -> None:
    bench = learning_bench(seed, distortion)
    state = settled(bench)
    rows, weights = m_step._gathered(bench.engine, state), random_weights(7, seed)
    by_tasks, by_driver = (weight_gradient(bench.engine, state, seen) for seen in (None, rows))
    assert np.array_equal(by_tasks, by_driver)
    of_tasks = reweighted(bench.engine, state, weights)
    known = bench.engine.corpus_terms(weights)
    bench.engine.forget(weights)
    of_driver = reweighted(bench.engine, state, weights, rows)
    again = bench.engine.corpus_terms(weights)
    assert (again.offsets, again.bound) == (known.offsets, known.bound)
    assert of_tasks.energy == of_driver.energy
    assert np.array_equal(of_tasks.sums, of_driver.sums)
    assert np.array_equal(of_tasks.counts, of_driver.counts)
    pairs = zip(*(bench.engine.flow.compute(list(one.rows)) for one in (known, again)), strict=True)
    for one, other in pairs:
        for name in one.terms._fields:
            assert np.array_equal(getattr(one.terms, name), getattr(other.terms, name))


@pytest.mark.parametrize("distortion", GRADIENT)
def test_a_rejected_step_leaves_what_is_known_of_the_rows(
    distortion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad(engine: Engine, state: State, _rows: Any) -> Iterator[NDArray[np.float64]]:
        engine.corpus_terms(state.model.weights)
        for factor in (1e6, 1e5, 1e4):
            yield state.model.weights * np.geomspace(1.0, factor, len(state.model.weights))

    bench = learning_bench(3, distortion)
    state = settled(bench, most=5)
    before = bench.engine.corpus_terms(state.model.weights)
    monkeypatch.setattr(m_step, "_proposals", bad)
    monkeypatch.setattr(m_step, "prior_value", lambda engine, moved: 1e9)  # J rises
    assert m_step.learn(bench.engine, state) is None
    assert bench.engine.corpus_terms(state.model.weights) is before


@pytest.mark.parametrize("distortion", ["cosine", "euclidean"])
def test_terms_and_sums_under_new_weights_are_made_in_one_graph(distortion: str) -> None:
    problem = random_problem(1, distortion=distortion, n=30, K=3, d=7)
    bench = make_bench(problem, learn=True, n_parts=3, flow=DaskFlow())
    state = settled(bench)
    model = replace(state.model, weights=random_weights(7, 1))
    moved, graphs = replace(state, model=model), []
    with Callback(start=lambda graph: graphs.append(len(graph))):
        sums, counts = bench.engine.total_sums(model, moved)
        assert len(graphs) == 1
        bench.engine.slices(moved)
        again = bench.engine.total_sums(model, moved)
    assert len(graphs) == 2
    assert np.array_equal(sums, again[0])
    assert np.array_equal(counts, again[1])


@pytest.mark.parametrize("distortion", GRADIENT)
def test_the_papers_rule_tries_one_step(distortion: str) -> None:
    bench = learning_bench(1, distortion, weight_update="paper")
    state = settled(bench)
    (proposal,) = m_step._proposals(bench.engine, state)
    gradient = weight_gradient(bench.engine, state)
    step = state.model.weights - m_step.PAPER_RATE * gradient
    np.testing.assert_allclose(proposal, _kept(step))
    assert state.prior.strength == 0.0


# --- how many features are left ------------------------------------------------------------------


def test_effective_share() -> None:
    assert effective_share(np.full(7, 3.0)) == pytest.approx(1.0)
    assert effective_share(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)


def test_the_warm_up_leaves_nine_features_in_ten_in_effect() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        whole = rng.gamma(0.5, size=50)
        scatter = Scatter(whole * rng.uniform(0.2, 1.0, 50), whole)
        strength = m_step.largest_strength(scatter)
        assert effective_share(m_step.entropy_form(scatter, strength)) == pytest.approx(0.9)
        assert effective_share(m_step.entropy_form(scatter, 1.01 * strength)) < 0.9


@pytest.mark.parametrize("learn", [False, True])
def test_the_warm_up_takes_rows_to_the_nearest_centroid_smoothing_left_out(learn: bool) -> None:
    nobody = np.zeros((0, 2), np.int64)
    free: dict[str, Any] = {"must": nobody, "cannot": nobody}
    free |= {"must_costs": None, "cannot_costs": None}
    problem = random_problem(5, distortion="kl", n=60, d=30, K=4, smooth=True, **free)
    bench = make_bench(problem, learn=learn)
    before, elsewhere = None, 0
    for name, turn in iterations(bench):
        if before is not None and name == "warm-up":
            model = before.model
            rows = naive.distances(problem.X, model.centroids, model.weights, "kl")
            labels = bench.labels(turn.state)
            nearest = rows.min(axis=1)
            assert (rows[np.arange(len(rows)), labels] <= nearest + 1e-9).all()
            uniform = [naive.uniform_row(problem.X, "kl")]
            flat = naive.distances(uniform, model.centroids, model.weights, "kl")
            elsewhere += int(((rows + model.smoothing * flat).argmin(axis=1) != labels).sum())
        before = turn.state if name == "warm-up" else None  # the first turn labels nothing
    assert elsewhere > 0  # with the smoothing's own term rows would have gone elsewhere


def test_features_that_do_not_differ_are_not_distinguished() -> None:
    same = np.array([1.0, 2.0, 3.0])
    scatter = Scatter(same * (1.0 - 1e-12), same)
    assert m_step.largest_strength(scatter) == 0.0
    np.testing.assert_array_equal(m_step.entropy_form(scatter, 0.0), np.ones(3))


@pytest.mark.parametrize("distortion", ["i-divergence", "kl"])
def test_pairs_that_cost_enormously_leave_weights_finite(distortion: str) -> None:
    problem: Problem = random_problem(
        2, distortion=distortion, n=20, K=2, noise=0.5, on_conflict="keep", penalty="distance",
        must_costs=None, cannot_costs=None, must_link_cost=1e9, cannot_link_cost=1e9,
    )  # fmt: skip
    for _, turn in iterations(make_bench(problem, learn=True)):
        weights = turn.state.model.weights
        assert np.isfinite(weights).all()
        assert (weights > 0).all()
