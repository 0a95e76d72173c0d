"""The loop: J never rises, no move is left that lowers it, what must not matter does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hmrf_dask import HMRFKMeans, MPCKMeans
from hmrf_dask.errors import HmrfError, InvalidInputError, MemoryPlanError
from hmrf_dask.fit.journal import restore, state_arrays
from hmrf_dask.fit.loop import Iteration, begin, check_progress, fit_iteration, refine_iteration
from hmrf_dask.fit.m_step import maximisation, maximisation_after, reseed
from hmrf_dask.fit.passes import Engine
from hmrf_dask.tasks.model import State
from tests import naive
from tests.support.loop import (
    TABLE_FORMS,
    Bench,
    check_energy,
    check_local_optimum,
    check_steps,
    iterations,
    kept_iterations,
    make_bench,
    some_bench,
    written,
)
from tests.support.problems import DISTORTIONS, Problem, problems, random_problem


def plain_problem(X: Any, K: int, **fields: Any) -> Problem:
    """Return a problem without pairs, or with those given."""
    none = np.zeros((0, 2), np.int64)
    chosen: dict[str, Any] = {"distortion": "euclidean", "must": none, "cannot": none}
    chosen |= {"must_costs": None, "cannot_costs": None}
    return replace(random_problem(0), X=np.asarray(X, np.float32), K=K, ids=None, **chosen | fields)


# --- J never rises -------------------------------------------------------------------------------


def refines(problem: Problem) -> bool:
    return problem.distortion in TABLE_FORMS and problem.K > 1


@settings(max_examples=40)
@given(problems(max_rows=25), st.integers(0, 2**16))
def test_j_never_rises(problem: Problem, seed: int) -> None:
    check_steps(some_bench(problem, seed), refining=refines(problem), seed=seed)


@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_j_never_rises_while_weights_are_learned(distortion: str) -> None:
    n_learned = 0
    for seed in range(8):
        problem = random_problem(seed, distortion=distortion, smooth=True, n=40)
        steps = check_steps(some_bench(problem, seed, learn=True), seed=seed)
        n_learned += sum(name == "B" for name in steps)
    assert n_learned >= 3


@pytest.mark.usefixtures("only_tables")
@pytest.mark.parametrize("distortion", TABLE_FORMS)
def test_j_never_rises_in_table_form(distortion: str) -> None:
    for seed in range(10):
        problem = random_problem(seed, distortion=distortion, closure=True)
        check_steps(some_bench(problem, seed), refining=refines(problem), seed=seed)


@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_j_never_rises_in_the_history_of_an_estimator(distortion: str) -> None:
    for seed in range(2):
        problem = random_problem(seed, distortion=distortion, n=40, K=4, noise=0.0, smooth=True)
        rows = problem.X[problem.X.any(axis=1)]
        model = HMRFKMeans(
            4, distortion=distortion, learn_weights=True, n_init=2, random_state=seed
        )
        kept = {tuple(pair) for pair in problem.must.tolist() if max(pair) < len(rows)}
        model.fit(rows, must_link=sorted(kept) or None)
        history = model.objective_history_
        assert (np.diff(history) <= 0).all()
        assert history[-1] == model.objective_


def test_a_state_with_a_higher_j_is_refused() -> None:
    bench = make_bench(random_problem(3, distortion="cosine", smooth=True))
    first, *_, last = kept_iterations(bench)
    check_progress(first.state, last.state)
    with pytest.raises(HmrfError, match="J rose from"):
        check_progress(last.state, first.state)


# --- no move is left after an E-step -------------------------------------------------------------


@settings(max_examples=40)
@given(problems(max_rows=20), st.integers(0, 2**16))
def test_no_move_is_left_after_an_e_step(problem: Problem, seed: int) -> None:
    bench = some_bench(problem, seed)
    for turn in kept_iterations(bench, most=2, seed=seed):
        check_local_optimum(bench, turn)


@pytest.mark.usefixtures("only_tables")
@pytest.mark.parametrize("distortion", TABLE_FORMS)
def test_no_move_is_left_in_table_form(distortion: str) -> None:
    for seed in range(10):
        problem = random_problem(seed, distortion=distortion, closure=True)
        bench = some_bench(problem, seed)
        for turn in kept_iterations(bench, most=2, seed=seed):
            check_local_optimum(bench, turn)


def scattered(bench: Bench, seed: int) -> Iteration:
    """Return a state in which every row has a random label: many groups are far from home."""
    rng, problem = np.random.default_rng(seed), bench.problem
    labels = rng.integers(0, problem.K, len(problem.X)).astype(np.int32)
    free, linked = written(bench, labels)
    smoothing = 1.0 if problem.distortion in ("kl", "i-divergence") else 0.0
    centroids = bench.centroids(seed, smoothing)
    return begin(bench.engine, centroids, smoothing=smoothing, free=free, linked=linked)


@pytest.mark.parametrize("far", [0.0, 50.0])
@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_no_move_is_left_whatever_the_labels_were(distortion: str, far: float) -> None:
    for seed in range(10):
        problem = random_problem(seed, distortion=distortion, n=20)
        bench = some_bench(replace(problem, X=problem.X + np.float32(far)), seed)
        check_local_optimum(bench, scattered(bench, seed))


@pytest.mark.usefixtures("only_tables")
@pytest.mark.parametrize("far", [0.0, 50.0])
@pytest.mark.parametrize("distortion", TABLE_FORMS)
def test_no_move_is_left_in_table_form_whatever_the_labels_were(
    distortion: str, far: float
) -> None:
    for seed in range(10):
        problem = random_problem(seed, distortion=distortion, n=20, closure=True)
        bench = some_bench(replace(problem, X=problem.X + np.float32(far)), seed)
        check_local_optimum(bench, scattered(bench, seed))


@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_components_in_pieces_keep_every_promise(distortion: str) -> None:
    n_rounds = 0
    for seed in range(4):
        problem = random_problem(seed, distortion=distortion, n=30)
        for memory in (3000, 5000, 8000):  # the least that holds a row with all its pairs
            try:
                bench = some_bench(problem, seed, task_memory=memory)
                break
            except MemoryPlanError:
                continue
        n_rounds += sum(one.mode == "rounds" for one in bench.engine.problem.icm_problems)
        turn = scattered(bench, seed)
        check_energy(bench, turn.state)
        check_local_optimum(bench, turn)
        check_steps(bench, refining=refines(problem), seed=seed, most=3)
    assert n_rounds >= 1


@pytest.mark.parametrize("far", [0.0, 100.0])
def test_the_quantum_is_small_next_to_a_distance(far: float) -> None:
    problem = random_problem(7, distortion="euclidean", n=40, smooth=True, must_link_cost=1.0)
    bench = make_bench(replace(problem, X=problem.X + np.float32(far)))
    turn = next(kept_iterations(bench))
    assert 0 < bench.engine.price(turn.state.model).scale.quantum < 0.01


@pytest.mark.parametrize(("cost", "advice"), [(1e-9, "raise all costs"), (1e9, "lower must_link")])
def test_costs_beyond_exact_integers_are_refused_with_advice(cost: float, advice: str) -> None:
    problem = random_problem(
        7, distortion="euclidean", penalty="distance", must_costs=None, cannot_costs=None,
        must_link_cost=cost, cannot_link_cost=cost,
    )  # fmt: skip
    bench = make_bench(problem)
    with pytest.raises(InvalidInputError, match=advice):
        next(kept_iterations(bench))


# --- what must not matter ------------------------------------------------------------------------


def plain_lloyd(bench: Bench, centroids: NDArray[np.float64], most: int) -> list[NDArray[Any]]:
    """Return the labels of every iteration of K-means, by the oracle's distances and centroids."""
    model = bench.problem.model()
    ones = np.ones(model.rows.shape[1])
    labels = naive.distances(model.rows, centroids, ones, model.distortion).argmin(axis=1)
    found = [labels]
    for _ in range(most):
        centroids = naive.optimal_centroids(model, labels, len(centroids), ones, centroids)
        labels = naive.distances(model.rows, centroids, ones, model.distortion).argmin(axis=1)
        found.append(labels)
    return found


@pytest.mark.parametrize("distortion", TABLE_FORMS)
@pytest.mark.parametrize("dense", [False, True])
def test_without_pairs_it_is_plain_k_means(distortion: str, dense: bool) -> None:
    rng = np.random.default_rng(11)
    rows = rng.normal(size=(60, 6)) + 4 * rng.integers(0, 2, (60, 6))
    bench = make_bench(plain_problem(rows, 4, distortion=distortion), dense=dense)
    centroids = bench.centroids(3)
    met = [turn.state for turn in kept_iterations(bench, centroids=centroids, most=6)]
    assert all((state.counts > 0).all() for state in met)
    # the first fit turn follows the E-step of the beginning, so it moves no label
    expected = plain_lloyd(bench, centroids, len(met) - 2)
    expected.insert(0, expected[0])
    for state, labels in zip(met, expected, strict=True):
        np.testing.assert_array_equal(bench.labels(state), labels)
    assert len({labels.tobytes() for labels in expected}) > 2


@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_a_power_of_two_changes_nothing(distortion: str) -> None:
    for seed in range(4):
        problem = random_problem(seed, distortion=distortion, n=30, smooth=True, penalty="distance")
        small = replace(problem, X=problem.X * np.float32(2.0**-20))
        fits = []
        for one in (problem, small):
            bench = make_bench(one)
            fits.append([bench.labels(turn.state) for _, turn in iterations(bench)])
        assert len(fits[0]) == len(fits[1])
        for before, after in zip(*fits, strict=True):
            np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("distortion", ["cosine", "euclidean", "kl"])
def test_a_must_link_between_copies_costs_nothing(distortion: str) -> None:
    rows = np.random.default_rng(8).gamma(0.5, size=(30, 5))  # no two alike, so no ties
    doubled = np.concatenate([rows, rows])
    links = np.stack([np.arange(30), np.arange(30, 60)], axis=1)
    alone = make_bench(plain_problem(doubled, 3, distortion=distortion))
    linked = make_bench(
        plain_problem(doubled, 3, distortion=distortion, must=links, penalty="distance")
    )
    centroids = alone.centroids(1, 16.0 if distortion == "kl" else 0.0)
    fits = [
        [
            (bench.labels(turn.state), turn.state.energy)
            for _, turn in iterations(bench, centroids=centroids)
        ]
        for bench in (alone, linked)
    ]
    for (labels, energy), (others, other) in zip(*fits, strict=True):
        np.testing.assert_array_equal(labels[:30], labels[30:])
        np.testing.assert_array_equal(labels, others)
        assert other.value == pytest.approx(energy.value, rel=1e-12)


@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_pairs_that_cost_nothing_change_nothing(distortion: str) -> None:
    rng = np.random.default_rng(5)
    rows = rng.gamma(0.5, size=(40, 5))
    free = plain_problem(rows, 3, distortion=distortion, must_link_cost=0.0, cannot_link_cost=0.0)
    tied = replace(free, must=rng.permutation(40)[:30].reshape(-1, 2), cannot=np.array([[0, 1]]))
    centroids = make_bench(free).centroids(2, 16.0 if distortion in ("kl", "i-divergence") else 0.0)
    fits = [
        [bench.labels(turn.state) for _, turn in iterations(bench, centroids=centroids)]
        for bench in (make_bench(free), make_bench(replace(tied, on_conflict="drop")))
    ]
    for labels, others in zip(*fits, strict=True):
        np.testing.assert_array_equal(labels, others)


# --- few rows, many clusters, nothing to go by ---------------------------------------------------


def no_better(engine: Engine, state: State, moved: int, *, learning: bool) -> tuple[State, State]:
    """Run an M-step after an E-step that moved rows and is said not to lower J."""
    assert moved
    labelled, after = maximisation_after(engine, state, moved, learning=learning)
    energy = replace(labelled.energy, distortion=10 * labelled.energy.distortion)
    return replace(labelled, energy=energy), after


def before_an_e_step(distortion: str = "euclidean") -> tuple[Bench, State]:
    rows = np.random.default_rng(0).standard_normal((60, 3)) * [1.0, 2.0, 5.0]
    bench = make_bench(plain_problem(rows, 4, distortion=distortion), learn=True)
    turn = next(kept_iterations(bench, centroids=rows[:4]))
    return bench, fit_iteration(bench.engine, turn.state, 0, learning=False).state


@pytest.mark.parametrize("distortion", ["cosine", "euclidean"])
def test_an_e_step_that_is_undone_leaves_the_state_before_whole(
    distortion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, before = before_an_e_step(distortion)
    sums, counts = before.sums.copy(), before.counts.copy()
    monkeypatch.setattr("hmrf_dask.fit.loop.maximisation_after", no_better)
    undone = fit_iteration(bench.engine, before, 1, learning=False)
    assert undone.stop == "the E-step found no move that lowers J in float64"
    assert undone.state.energy == before.energy
    np.testing.assert_array_equal(undone.state.sums, sums)
    np.testing.assert_array_equal(undone.state.counts, counts)
    assert bench.labels(undone.state).tolist() == bench.labels(before).tolist()


def test_weights_follow_the_sums_of_a_refinement_whose_e_step_is_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hmrf_dask.fit.loop.first_variation", lambda _, state: (state, 0))
    learned = []
    steps = {"expectation": lambda _, state: (state, 0), "maximisation_after": no_better}
    for name, step in steps.items():
        bench, before = before_an_e_step()
        with monkeypatch.context() as patched:
            patched.setattr(f"hmrf_dask.fit.loop.{name}", step)
            turn = refine_iteration(bench.engine, before)
        assert [step for step, _ in turn.steps] == ["B"]
        learned.append(turn.state.model.weights)
    np.testing.assert_array_equal(*learned)


def far_from_each_other() -> NDArray[np.float32]:
    return np.array([[0, 0], [0, 1], [50, 0], [50, 1], [0, 90], [1, 90]], np.float32)


def state_with_an_empty_cluster(bench: Bench) -> Iteration:
    """Return a turn whose last cluster has no row: its centroid is far from all."""
    centroids = np.array([[0.0, 0.5], [50.0, 0.5], [1e4, 1e4]])
    return next(kept_iterations(bench, centroids=centroids))


def test_an_empty_cluster_is_reseeded_where_j_falls() -> None:
    bench = make_bench(plain_problem(far_from_each_other(), 3))
    turn = state_with_an_empty_cluster(bench)
    assert turn.state.counts.tolist() == [4, 2, 0]
    after = fit_iteration(bench.engine, turn.state, 0, learning=False)
    assert [step for step, _ in after.steps] == ["A", "reseed"]
    assert (after.state.counts > 0).all()
    assert after.steps[1][1] < after.steps[0][1]


def test_an_empty_cluster_keeps_its_centroid_where_nothing_falls() -> None:
    rows = np.repeat(far_from_each_other()[[0, 2]], 3, axis=0)
    bench = make_bench(plain_problem(rows, 3))
    turn = state_with_an_empty_cluster(bench)
    after = fit_iteration(bench.engine, turn.state, 0, learning=False)
    assert [step for step, _ in after.steps] == ["A"]
    assert after.state.counts.tolist() == [3, 3, 0]
    np.testing.assert_array_equal(after.state.model.centroids[2], [1e4, 1e4])


def test_a_row_that_saves_nothing_seeds_no_cluster() -> None:
    rows = np.repeat([[1.0, 3.0], [3.0, 1.0]], 3, axis=0)
    bench = make_bench(plain_problem(rows, 3, distortion="kl"))
    centroids = np.array([[0.3, 0.7], [0.7, 0.3], [0.5, 0.5]])
    turn = begin(bench.engine, centroids, smoothing=1.0)
    settled = maximisation(bench.engine, turn.state)
    assert settled.counts.min() == 0
    # smoothing keeps every row away from its centroid, and as far from one of its own
    assert reseed(bench.engine, settled) is None


def test_linked_rows_are_not_torn_out_to_seed_a_cluster() -> None:
    links = np.array([[0, 1], [4, 5]])
    problem = plain_problem(far_from_each_other(), 3, must=links, must_link_cost=1e-6, closure=True)
    bench = make_bench(problem)
    turn = state_with_an_empty_cluster(bench)
    settled = maximisation(bench.engine, turn.state)
    seeded = reseed(bench.engine, settled)
    assert seeded is None or (bench.labels(seeded)[[0, 1, 4, 5]] != 2).all()


def test_rows_without_a_direction_do_not_keep_a_cluster_empty() -> None:
    rows = np.array([[1, 0, 0], [1, 0.1, 0], [0, 1, 0], [0, 1, 0.1], [0, 0, 0], [0, 0, 0]])
    bench = make_bench(plain_problem(rows, 3, distortion="cosine"))
    centroids = np.array([[1.0, 0.9, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
    *_, last = kept_iterations(bench, centroids=centroids)
    assert len(set(bench.labels(last.state)[:4].tolist())) == 3


def test_a_commit_holds_the_centroid_of_a_cluster_without_directions() -> None:
    rows = np.array([[0, 0], [0, 0], [1, 0], [1, 0], [0, 1], [0, 1]])
    bench = make_bench(plain_problem(rows, 3, distortion="cosine"))
    centroids = np.array([[-1.0, -1.0], [1.0, 0.0], [0.0, 1.0]])
    *_, last = kept_iterations(bench, centroids=centroids)
    assert last.state.counts.tolist() == [2, 2, 2]
    arrays = state_arrays(last.state)
    assert arrays["kept"].tolist() == [0]
    np.testing.assert_array_equal(arrays["centroids"], last.state.model.centroids[:1])
    files = [*last.state.free, *last.state.linked]
    commit = bench.engine.run.commit(1, record_of(last.state), arrays, files)
    np.testing.assert_array_equal(
        restore(bench.engine, commit).model.centroids, last.state.model.centroids
    )


def record_of(state: State) -> dict[str, Any]:
    """Return what `restore` reads of a commit's record."""
    return {
        "energy": state.energy.encoded(),
        "smoothing": state.model.smoothing,
        "exponent": state.model.exponent,
        "strength": state.prior.strength,
        "offset": state.prior.offset,
    }


def test_reseeding_works_where_learned_weights_make_distances_negative() -> None:
    rows = far_from_each_other() * np.float32(1e-3)
    bench = make_bench(plain_problem(rows, 3), learn=True)
    centroids = np.array([[0.0, 5e-4], [0.05, 5e-4], [10.0, 10.0]])
    turn = next(kept_iterations(bench, centroids=centroids))
    state = maximisation(bench.engine, turn.state)
    model = replace(state.model, weights=np.full(2, 1e3))
    state = replace(state, model=model)
    state = replace(state, energy=bench.engine.energy(state, 0.0))
    assert state.energy.value < -10.0
    assert reseed(bench.engine, state) is not None


@pytest.mark.parametrize("distortion", DISTORTIONS)
@pytest.mark.parametrize("learn", [False, True])
def test_as_many_clusters_as_rows(distortion: str, learn: bool) -> None:
    rows = np.random.default_rng(2).uniform(0.1, 1.0, (6, 4))
    model = HMRFKMeans(6, distortion=distortion, learn_weights=learn, n_init=2, random_state=0).fit(
        rows, must_link=[(0, 1)]
    )
    assert np.isfinite(model.objective_)
    assert np.isfinite(model.feature_weights_).all()
    assert (np.diff(model.objective_history_) <= 0).all()


@pytest.mark.parametrize("distortion", DISTORTIONS)
@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("n_clusters", [1, 3])
def test_rows_that_are_all_the_same(distortion: str, learn: bool, n_clusters: int) -> None:
    rows = np.tile([1.0, 0.0, 2.0], (5, 1))
    model = HMRFKMeans(
        n_clusters, distortion=distortion, learn_weights=learn, n_init=2, random_state=0
    ).fit(rows, cannot_link=[(0, 1)] if n_clusters > 1 else None)
    assert np.isfinite(model.objective_)
    assert np.isfinite(model.feature_weights_).all()
    assert set(model.labels_.tolist()) <= set(range(n_clusters))


@pytest.mark.parametrize("distortion", DISTORTIONS)
@pytest.mark.parametrize("learn", [False, True])
def test_a_single_row(distortion: str, learn: bool) -> None:
    model = HMRFKMeans(1, distortion=distortion, learn_weights=learn, n_init=1, random_state=0).fit(
        np.array([[1.0, 2.0, 4.0]])
    )
    assert model.labels_.tolist() == [0]
    assert np.isfinite(model.objective_)


@pytest.mark.filterwarnings("ignore::hmrf_dask.errors.HmrfWarning")  # zero rows are meant here
@pytest.mark.parametrize("distortion", ["cosine", "pearson", "euclidean", "i-divergence"])
def test_mostly_rows_of_zeros(distortion: str) -> None:
    rows = np.zeros((8, 3))
    rows[0], rows[1] = [1, 0, 2], [0, 3, 0]
    links = {"must_link": [(0, 2), (3, 4)], "cannot_link": [(0, 1), (5, 6)]}
    model = HMRFKMeans(3, distortion=distortion, n_init=2, random_state=0).fit(rows, **links)
    assert np.isfinite(model.objective_)
    assert model.labels_[0] != model.labels_[1]


def test_features_that_never_vary_get_no_boundless_weight() -> None:
    rng = np.random.default_rng(4)
    rows = np.zeros((40, 4))
    rows[:, 0] = rng.normal(size=40) + 20 * (np.arange(40) % 2)
    rows[:, 1] = rng.normal(size=40)
    rows[:, 2] = 1000.0
    model = MPCKMeans(2, n_init=2, random_state=0).fit(rows, must_link=[(0, 2)])
    weights = model.feature_weights_
    assert weights[2:].tolist() == [1.0, 1.0]
    assert weights[0] != 1.0
    np.testing.assert_array_equal(model.labels_ == model.labels_[0], np.arange(40) % 2 == 0)
