"""Outliers kept out of centroids: J under limits against plain loops, what it buys, refusals."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hmrf_dask import KMeans, load
from hmrf_dask.distortions import make_distortion
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.fit.loop import TRIM, Fit, Iteration, Position, begin
from hmrf_dask.fit.trimming import keep_outliers_out
from hmrf_dask.jobs.inputs import load_job
from hmrf_dask.kernels.distances import OUT
from hmrf_dask.kernels.exact import exact_value
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Limits, Model, State
from hmrf_dask.tasks.trimming import settled
from tests import naive_clusters
from tests.support.job_corpus import JobCorpus
from tests.support.loop import TABLE_FORMS, Bench, some_bench
from tests.support.problems import Problem, problems

ROUNDING = 1e-9


class Turns:
    """The record of a fit: every commit with its phase."""

    def __init__(self) -> None:
        self.n_iter, self.next = 0, 1
        self.history: list[tuple[str, str, float]] = []
        self.kept: list[tuple[str, Iteration]] = []

    def keep(self, phase: str, number: int, iteration: Iteration) -> None:
        """Keep an iteration."""
        self.next += 1
        self.kept.append((phase, iteration))


def phases_of(bench: Bench, *, refining: bool, seed: int) -> dict[str, list[Iteration]]:
    """Run a fit whose outliers are kept out; return its iterations by phase."""
    engine, turns = bench.engine, Turns()
    smoothings = engine.problem.distortion.warm_smoothings

    def initialise() -> Position:
        """Begin with rows as centroids."""
        engine.number, phase = 1, "warm-up" if smoothings else "fit"
        centroids = bench.centroids(seed, smoothing=smoothings[0] if smoothings else 0.0)
        return Position(phase, 0, None, begin(engine, centroids).state)

    fit = Fit(engine, turns, 30, refining)
    keep_outliers_out(fit, fit.run(initialise)[1])
    phases: dict[str, list[Iteration]] = {}
    for phase, turn in turns.kept:
        phases.setdefault(phase, []).append(turn)
    return phases


def are_out(bench: Bench, state: State) -> NDArray[np.bool_]:
    """Return which rows are out, by what their label files say."""
    return np.concatenate([bench.engine.run.read_labels(file) for file in state.free]) <= OUT


@settings(max_examples=25)
@given(problems(max_rows=25), st.integers(0, 2**16))
def test_j_under_limits_is_that_of_plain_loops_and_never_rises(problem: Problem, seed: int) -> None:
    bench = some_bench(problem, seed)
    refining = problem.distortion in TABLE_FORMS and problem.K > 1 and bool(seed % 2)
    phases = phases_of(bench, refining=refining, seed=seed)
    linked = np.unique(np.concatenate([problem.must, problem.cannot]))
    trims = [turns for phase, turns in phases.items() if phase.startswith(TRIM)]
    assert trims
    for turns in trims:
        values = [value for turn in turns for _, value in turn.steps]
        assert all(late <= early for early, late in pairwise(values))
        first = turns[0].state.model
        assert first.limits is not None
        for turn in (turns[0], turns[-1]):
            state, oracle = turn.state, bench.oracle(turn.state)
            labels, mu, weights = bench.labels(state), state.model.centroids, state.model.weights
            began, reach = first.centroids, first.limits.reach
            near = np.array(naive_clusters.own_distances(oracle, labels, mu, weights))
            limits = np.array(naive_clusters.row_limits(oracle, labels, weights, reach, began))
            out = are_out(bench, state)
            assert not out[linked].any()
            expected = bench.energy(state)
            total = expected.total + (limits - near)[out].sum()
            slack = ROUNDING * (expected.absolute + np.abs(limits).sum() + 1.0)
            assert state.energy.value == pytest.approx(total, rel=0, abs=slack)
        if turns[-1].stop:  # nothing moves any more
            free = np.setdiff1d(np.arange(len(out)), linked)
            sure = free[np.abs(near - limits)[free] > slack]
            assert out[sure].tolist() == (near > limits)[sure].tolist()


def test_a_row_stays_out_of_a_narrow_cluster_where_a_wide_one_would_cost_more() -> None:
    block, weights = RowBlock.from_array(np.array([[3.0], [3.0], [0.1], [30.0]])), np.ones(1)
    distortion = make_distortion("euclidean")
    limits = Limits(reach=np.array([0.5, 100.0]), middle=np.zeros(0))
    model = Model(distortion, weights, np.array([[0.0], [5.0]]), limits=limits)
    model = pickle.loads(pickle.dumps(model))  # as it travels to workers
    labels = np.array([OUT, 0, OUT - 1, 1], np.int32)
    terms = distortion.terms(block, weights)
    after, change = settled(block, terms, model, labels)
    assert after.tolist() == [OUT, OUT, 0, OUT - 1]  # D of the first is 9 and 4, its limit 0.5
    assert exact_value(change) == pytest.approx((0.5 - 9) + (0.01 - 100) + (100 - 625), rel=1e-6)


def with_noise(seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return a narrow cluster, a wide one, and a few rows anywhere, last."""
    rng = np.random.default_rng(seed)
    near, wide = rng.normal(0, 0.1, (60, 2)), rng.normal(50, 5, (60, 2))
    noise = rng.uniform(-100, 150, (8, 2))
    return np.concatenate([near, wide, noise]), np.arange(128) >= 120


def test_centroids_are_those_of_the_rows_that_are_in(tmp_path: Path) -> None:
    rows, noise = with_noise()
    how: dict[str, Any] = {"distortion": "euclidean", "n_init": 3, "random_state": 0}
    marked = KMeans(2, outliers="auto", **how).fit(rows)
    model = KMeans(2, outliers="auto", trim_outliers=True, **how).fit(rows)
    out = model.outliers_
    assert out[~noise].mean() < marked.outliers_[~noise].mean()
    assert out[noise].sum() >= 7  # one of them lies in a cluster
    for cluster in range(2):
        inside = rows[(model.labels_ == cluster) & ~out]
        assert model.cluster_centers_[cluster] == pytest.approx(inside.mean(axis=0), abs=1e-6)
    assert (model.is_outlier(rows) == out).all()
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert (again.is_outlier(rows) == out).all()
    assert (again.predict(rows) == model.labels_).all()


@pytest.mark.parametrize("seed", [1, 4])
def test_rows_that_are_out_are_where_predict_puts_them(seed: int) -> None:
    rows = np.random.default_rng(seed).poisson(0.4, size=(60, 25))
    model = KMeans(20, n_init=1, outliers="auto", trim_outliers=True, random_state=0).fit(rows)
    assert (model.predict(rows) == model.labels_).all()
    assert (model.is_outlier(rows) == model.outliers_).all()
    assert np.bincount(model.labels_[~model.outliers_], minlength=20).tolist() == model._sizes


def test_a_rule_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="trim_outliers must be false"):
        KMeans(2, trim_outliers=True).fit(np.eye(3))
    corpus = JobCorpus(tmp_path)
    corpus.write_all(10)
    job = corpus.write_job(method={"n_clusters": 2, "trim_outliers": True})
    with pytest.raises(ConfigurationError, match="trim_outliers must be false"):
        load_job(job)
