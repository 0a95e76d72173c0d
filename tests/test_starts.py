"""The pool of starts: what candidates are worth, who wins, what they see of a large corpus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hmrf_dask.checkpoints.records import MemoryRun
from hmrf_dask.constraints.closure import ClosureRules, ConstraintGraph, CostedPairs, build_graph
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.distortions import make_distortion
from hmrf_dask.fit import candidates, fitting
from hmrf_dask.fit import starts as fit_starts
from hmrf_dask.fit.candidates import WHOLE, Heat, Turn, run_candidate
from hmrf_dask.fit.fitting import FitInput, Fitted, fit_corpus
from hmrf_dask.fit.journal import Candidate
from hmrf_dask.fit.starts import candidate_names
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.rows.canonical import hash_ids
from hmrf_dask.tasks import start_sample
from hmrf_dask.tasks.model import Energy, Settings
from hmrf_dask.tasks.start_sample import StartSample, narrowed
from tests import naive
from tests.support.long_cases import long
from tests.support.loop import Bench, constraints_of, make_bench
from tests.support.problems import (
    DISTORTIONS,
    Problem,
    label_pairs,
    planted_text,
    random_problem,
    string_ids,
)
from tests.support.start_samples import (
    random_rows,
    sample_of,
    start_sample_of,
    start_sample_of_bench,
)

Labels = NDArray[np.int32]


def pairs_problem(seed: int, **chosen: Any) -> Problem:
    """A problem with pairs, its rows not all alike."""
    settings: dict[str, Any] = {"distortion": DISTORTIONS[seed % 5], "n": 20, "K": 3, "d": 6}
    problem = random_problem(seed, smooth=True, **(settings | chosen))
    return problem if len(problem.must) else pairs_problem(seed + 100, **(settings | chosen))


def pool_of(bench: Bench, n_init: int = 3) -> tuple[list[Candidate], list[Labels]]:
    """Run all candidates; return them and their labels in the order of the rows."""
    whole, run = start_sample_of_bench(bench), MemoryRun()
    constrained = bench.engine.problem.constraints is not None
    settings = Settings(bench.problem.K, n_init=n_init)
    names = candidate_names(settings, bench.problem.K + 1 if constrained else 0)
    found = [run_candidate(whole, run, 1 + at, Turn(name)) for at, name in enumerate(names)]
    return found, [start_sample.labels_by_row(whole, run, one.file) for one in found]


def energy_of(bench: Bench, labels: Labels) -> naive.Energy:
    """The oracle's J of labels at their best centroids, all features weighing 1."""
    schedule = bench.engine.problem.distortion.smoothing_schedule
    model = bench.problem.model(alpha=0.0 if schedule is None else schedule[2])
    ones = [1.0] * model.rows.shape[1]
    centroids = naive.optimal_centroids(model, labels, bench.problem.K, ones)
    return naive.energy(model, labels, np.nan_to_num(centroids), ones)


def fit(problem: Problem, n_partitions: int, **settings: Any) -> tuple[Fitted, list[Any]]:
    """Fit a problem from the corpus up; return the fit and the record of every commit."""
    records: list[Any] = []
    values = {
        "penalty": problem.penalty,
        "must_link_cost": problem.must_link_cost,
        "cannot_link_cost": problem.cannot_link_cost,
        "closure": problem.closure,
        "on_conflict": problem.on_conflict,
        "seed": problem.seed,
        "n_init": 3,
    }
    asked = FitInput(
        Corpus.from_rows(problem.csr, problem.ids, n_partitions=n_partitions),
        constraints_of(problem) if len(problem.must) + len(problem.cannot) else None,
        Settings(problem.K, **(values | settings)),
        make_distortion(problem.distortion),
    )
    return fit_corpus(asked, progress=records.append), records


def pool_records(records: list[Any]) -> list[Any]:
    """The commits of candidates that were given all pairs."""
    began = [one for one in records if one["phase"] == "start"]
    return [one for one in began if one["starts"][-1]["agreement"] is None]


def name_of_winner(start_reason: str) -> str:
    return " ".join(start_reason.split()[:2]).strip(",")


def labels_of(fitted: Fitted) -> Labels:
    return np.concatenate(fitted.flow.compute(fitted.labels()))


# --- what a candidate is worth


@pytest.mark.parametrize("seed", [*range(8), *long(*range(8, 20))])
def test_a_candidates_energy_is_that_of_the_oracle(seed: int) -> None:
    bench = make_bench(pairs_problem(seed))
    for candidate, labels in zip(*pool_of(bench), strict=True):
        expected = energy_of(bench, labels)
        assert candidate.energy.value == pytest.approx(
            expected.total, abs=1e-9 * (1 + expected.absolute)
        )
        assert candidate.energy.prior == 0


@pytest.mark.filterwarnings("ignore:.* rows are zero")  # problems are full of them
@pytest.mark.parametrize("seed", [*range(4), *long(*range(4, 10))])
def test_the_winners_energy_is_the_loops_to_the_last_bit(seed: int) -> None:
    problem = pairs_problem(seed, noise=0.0, on_conflict="raise")
    fitted, records = fit(problem, 3)
    pool = {one["name"]: Energy.decoded(one["energy"]).total for one in pool_records(records)}
    assert len(pool) == 6
    first = next(one for one in records if one["phase"] != "start")
    winner = pool[name_of_winner(fitted.start_reason)]
    assert Energy.decoded(first["energy"]).total == winner
    assert winner == min(pool.values()) or ", whose J is" in fitted.start_reason
    assert Energy.decoded(records[-1]["energy"]).total <= winner


def test_a_candidate_counts_fit_iterations_and_reports_every_step() -> None:
    pool, _ = pool_of(make_bench(pairs_problem(5, distortion="cosine")))
    assert [one.n_iter for one in pool[:3]] == [1, 1, 1]  # first variation did the rest
    for one in pool:
        assert one.history[-1][1] == one.energy.value
        assert np.diff([value for _, value in one.history]).max(initial=0.0) <= 0
        assert one.n_iter >= 1
    assert {"A", "variation"} <= {step for one in pool for step, _ in one.history}
    last = pool[-1]
    assert Candidate.decoded(last.encoded(), last.file) == last


@pytest.mark.parametrize("with_pairs", [False, True])
def test_of_larger_clusters_only_the_winner_is_refined(
    with_pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, hidden = planted_text(240, 400, 4, 3)
    corpus = Corpus.from_rows(rows, n_partitions=2)
    pairs = Constraints(*label_pairs(hidden, 40, 3)) if with_pairs else None

    def run(refine: str | bool) -> tuple[float, list[Any], Labels]:
        records: list[Any] = []
        settings = Settings(4, seed=2, n_init=3, refine=refine)
        asked = FitInput(corpus, pairs, settings, make_distortion("cosine"))
        fitted = fit_corpus(asked, progress=records.append)
        return fitted.state.energy.value, records, labels_of(fitted)

    batch, _, _ = run(False)
    every, _, refined = run(True)
    assert np.array_equal(run("auto")[2], refined)
    monkeypatch.setattr(candidates, "POOL_ROWS_PER_CLUSTER", 59)
    monkeypatch.setattr(fit_starts, "WHOLE_WORK", 0)
    winner, records, _ = run("auto")
    began = [one for one in records if one["phase"] == "start"]
    assert not any(start["history"] for one in began for start in one["starts"])
    phases = [one["phase"] for one in records]
    assert "refine" in phases[len(began) :]
    assert winner < batch
    assert every < batch


@pytest.mark.parametrize("seed", [*range(5), *long(*range(5, 15))])
def test_the_pool_is_never_below_the_unconstrained_solutions(seed: int) -> None:
    bench = make_bench(pairs_problem(seed))
    pool, _ = pool_of(bench)
    alone = make_bench(bench.problem)
    free = StartSample(**{**vars(start_sample_of_bench(alone)), "graph": None})
    run = MemoryRun()
    plain = []
    for number in range(3):
        candidate = run_candidate(free, run, number + 1, Turn(f"unconstrained {number}"))
        labels = start_sample.labels_by_row(free, run, candidate.file)
        plain.append(energy_of(bench, labels).total)
    best = min(one.energy.value for one in pool)
    assert best <= min(plain) + 1e-9 * (1 + abs(min(plain)))


def test_every_kind_of_candidate_can_win() -> None:
    missing = {"unconstrained", "farthest-first", "agglomerated-singles"}
    for seed in range(80):
        pool, _ = pool_of(make_bench(pairs_problem(seed, distortion="cosine")), n_init=1)
        best = min(pool, key=lambda one: one.energy.total)
        missing.discard(best.name.rsplit(" ", 1)[0])
        if not missing:
            break
    assert not missing


# --- who runs, who wins


def test_candidates_come_in_the_order_that_decides_ties() -> None:
    auto = Settings(4, n_init=2)
    unconstrained = ["unconstrained 0", "unconstrained 1"]
    from_pairs = ["farthest-first 0", "agglomerated 0", "agglomerated-singles 0"]
    assert candidate_names(auto, 0) == unconstrained
    assert candidate_names(auto, 4) == [*unconstrained, "agglomerated-singles 0"]
    assert candidate_names(auto, 5) == unconstrained + from_pairs
    assert candidate_names(Settings(4, init="random", n_init=2), 5) == ["random 0", "random 1"]
    assert candidate_names(Settings(4, init="neighborhoods"), 5) == ["neighborhoods 0"]
    assert candidate_names(Settings(4, init="k-means++", n_init=1), 5) == ["k-means++ 0"]
    last = "last-centroids 0"
    assert candidate_names(auto, 5, warm=True) == [last, *from_pairs]
    assert candidate_names(auto, 0, warm=True) == [last]
    assert candidate_names(Settings(4, init="neighborhoods"), 5, warm=True)[0] == last
    assert candidate_names(Settings(4, init="random"), 5, warm=True) == [last]


def test_of_candidates_as_good_the_first_wins() -> None:
    hidden = np.arange(12) % 3  # so far from each other that every start finds them
    problem = random_problem(
        3, distortion="cosine", X=np.eye(3, dtype=np.float32)[hidden] + np.float32(0.01), n=12, d=3,
        K=3, must=np.array([(0, 3), (1, 4)]), must_costs=None, cannot=np.array([(0, 1)]),
        cannot_costs=None, penalty="distance", closure=True, on_conflict="raise", ids=None,
    )  # fmt: skip
    pool, labels = pool_of(make_bench(problem), n_init=6)
    same = [one.energy.total == pool[0].energy.total for one in pool]
    assert all(same[:6])
    assert len({tuple(one) for one in labels[:6]}) > 1  # as good, yet other numbers of clusters
    fitted, records = fit(problem, 2, n_init=6)
    assert [one["name"] for one in records[:6]] == [f"unconstrained {n}" for n in range(6)]
    first = next(
        n for n, one in enumerate(pool) if one.energy.total == min(one.energy.total for one in pool)
    )
    assert labels_of(fitted).tolist() == labels[first].tolist()


@pytest.mark.parametrize("refine", [True, False])
def test_the_pool_of_text_is_not_below_any_single_start(refine: bool) -> None:
    rows, hidden = planted_text(90, 700, 3, 5, topical_share=0.3)
    must, cannot = label_pairs(hidden, 60, 5)
    corpus = Corpus.from_rows(rows, n_partitions=3)
    found = {}
    for init in ("auto", "neighborhoods", "k-means++", "random"):
        settings = Settings(3, init=init, n_init=4, refine=refine, seed=1)
        pairs = Constraints(must, cannot)
        asked = FitInput(corpus, pairs, settings, make_distortion("cosine"))
        found[init] = fit_corpus(asked).state
    assert found["auto"].energy.total <= min(one.energy.total for one in found.values())


# --- part of a constraint graph


def graph_of_pairs(n: int, must: Any, cannot: Any, closure: bool) -> ConstraintGraph:
    pairs = CostedPairs(must), CostedPairs(cannot, closure_cost=2.0)
    return build_graph(n, *pairs, ClosureRules(closure, on_conflict="keep"), names=str)


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("closure", [False, True])
def test_part_of_a_graph_is_the_graph_of_the_part(
    tables: bool, closure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tables:
        monkeypatch.setattr("hmrf_dask.constraints.closure.EXPLICIT_PAIRS", 4)
        monkeypatch.setattr("hmrf_dask.constraints.closure.EXPLICIT_RATIO", 0)
    for seed in range(30):
        rng = np.random.default_rng(seed)
        n = 40
        drawn = np.sort(rng.integers(0, n, (30, 2)), axis=1)
        drawn = np.unique(drawn[drawn[:, 0] < drawn[:, 1]], axis=0)
        kind = rng.random(len(drawn)) < 0.6
        nodes = np.unique(drawn)  # a node has a pair
        pairs = np.searchsorted(nodes, drawn)
        whole = graph_of_pairs(len(nodes), pairs[kind], pairs[~kind], closure)
        keep = (rng.random(whole.n_components) < 0.5)[whole.components]
        place = np.cumsum(keep) - 1
        inside = keep[pairs[:, 0]]
        part = start_sample.restrict(whole, keep)
        wanted = graph_of_pairs(
            int(keep.sum()), place[pairs[kind & inside]], place[pairs[~kind & inside]], closure
        )
        for name in (
            "groups", "components", "group_components", "must_pairs", "must_pair_costs",
            "cannot_pairs", "cannot_pair_costs", "table_components", "table_groups", "rivals",
            "contradictory_groups", "dropped_pairs",
        ):  # fmt: skip
            ours, theirs = getattr(part, name), getattr(wanted, name)
            assert ours.dtype == theirs.dtype, name
            assert ours.tolist() == theirs.tolist(), name


# --- a corpus larger than the sample


def sampling(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> Callable[[Corpus, Constraints | None, Settings], tuple[Fitted, StartSample]]:
    """Make samples small; return a fit that also gives the sample its starts saw."""
    monkeypatch.setattr(start_sample, "SAMPLE_ROWS", most)
    monkeypatch.setattr(start_sample, "SAMPLE_ROWS_PER_CLUSTER", 1)
    seen: list[StartSample] = []
    make = fitting.prepare_start_sample

    def spy(flow: Any, *arguments: Any) -> Any:
        found = make(flow, *arguments)
        seen.append(flow.compute([found])[0])
        return found

    monkeypatch.setattr(fitting, "prepare_start_sample", spy)

    def run(
        corpus: Corpus, pairs: Constraints | None, settings: Settings
    ) -> tuple[Fitted, StartSample]:
        return fit_corpus(FitInput(corpus, pairs, settings, make_distortion("cosine"))), seen[-1]

    return run


def plain_sample(
    ids: NDArray[np.str_], components: list[list[int]], seed: int, most: int
) -> set[int]:
    """Whole constrained components by lowest key up to half, then free rows by lowest key.

    What they leave of the half is filled with rows of components that are larger.
    """
    numbers = uniforms(hash_ids(ids), seed, "sample", 0, 0, 0)
    chosen: set[int] = set()
    fitting_ones = [rows for rows in components if len(rows) <= most // 2]
    for rows in sorted(fitting_ones, key=lambda rows: numbers[rows].min()):
        if len(chosen) + len(rows) > most // 2:
            break
        chosen |= set(rows)
    larger = [row for rows in components if len(rows) > most // 2 for row in rows]
    larger.sort(key=lambda row: numbers[row])
    chosen |= set(larger[: most // 2 - len(chosen)])
    linked = {row for rows in components for row in rows}
    free = sorted(set(range(len(ids))) - linked, key=lambda row: numbers[row])
    return chosen | set(free[: most - len(chosen)])


@pytest.mark.parametrize("giant", [False, True])
def test_a_large_corpus_starts_from_whole_components_and_other_rows_by_their_ids(
    giant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, hidden = planted_text(240, 500, 3, 2)
    ids = string_ids(240, 4)
    must, cannot = label_pairs(hidden, 70, 3)
    if giant:  # a component that never fits takes what the others leave
        chain = np.flatnonzero(hidden == 0)[:50]
        must = np.concatenate([must, np.stack([chain[:-1], chain[1:]], axis=1)])
    pairs = Constraints(ids[must], ids[cannot])
    fit_sampled = sampling(monkeypatch, 80)
    order = np.random.default_rng(0).permutation(240)
    corpus = Corpus.from_rows(rows[order], ids[order], n_partitions=3)
    _, sample = fit_sampled(corpus, pairs, Settings(3, seed=6, n_init=3))
    every = naive.must_link_components(240, [*map(tuple, must), *map(tuple, cannot)])
    linked = set(np.concatenate([must, cannot]).ravel().tolist())
    components = [rows for rows in every if rows[0] in linked]
    wanted = plain_sample(ids, components, 6, 80)
    assert sample.block.ids.tolist() == sorted(ids[sorted(wanted)].tolist())
    assert len(wanted) == 80
    kept = [[row for row in rows if row in wanted] for rows in components]
    kept = [rows for rows in kept if rows]
    assert len(kept) > 3
    assert any(len(rows) > 40 for rows in components) == giant
    assert sample.graph is not None
    assert sample.graph.n_nodes == sum(map(len, kept))
    assert sample.graph.n_components == len(kept)
    assert sample.block.ids[sample.node_rows].tolist() == sorted(
        ids[row] for rows in kept for row in rows
    )


def test_the_winner_of_a_sample_is_fitted_to_the_whole_corpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, hidden = planted_text(300, 400, 3, 8)
    corpus = Corpus.from_rows(rows, n_partitions=4)
    fit_sampled = sampling(monkeypatch, 100)
    for pairs in (None, Constraints(*label_pairs(hidden, 60, 3))):
        fitted, sample = fit_sampled(corpus, pairs, Settings(3, seed=1, n_init=2))
        labels = labels_of(fitted)
        assert sample.block.n_rows == 100
        assert len(labels) == 300
        assert fitted.history[0][0] == "fit"  # J of a sample says nothing about J of the whole
        assert np.diff([value for _, _, value in fitted.history]).max() <= 0
        assert naive.normalized_mutual_information(hidden, labels) > 0.8


def test_of_a_component_above_half_the_sample_a_part_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, hidden = planted_text(120, 300, 2, 8)
    chain = np.flatnonzero(hidden == 0)
    must = np.stack([chain[:-1], chain[1:]], axis=1)  # one component, larger than half the sample
    fit_sampled = sampling(monkeypatch, 40)
    settings = Settings(2, seed=1, n_init=2)
    fitted, sample = fit_sampled(Corpus.from_rows(rows), Constraints(must), settings)
    assert sample.graph is not None
    assert (sample.graph.n_nodes, sample.graph.n_groups) == (20, 1)
    assert len(set(labels_of(fitted)[chain].tolist())) == 1


# --- a tournament


WHOLE_POOL, SHORT = (WHOLE,), fit_starts.SHORT_TOURNAMENT
LONG = fit_starts.TOURNAMENT


def tournament(
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    pool: tuple[Heat, ...] = LONG,
    *,
    with_pairs: bool = True,
    n_init: int = 6,
) -> tuple[FitInput, list[tuple[str, int]]]:
    """Give a fit whose pool has these heats, and a list of those that will be run."""
    monkeypatch.setattr(fit_starts, "WHOLE_WORK", 10**6 if pool == WHOLE_POOL else 0)
    monkeypatch.setattr(candidates, "WHOLE_ROWS", 0 if pool == LONG else 5000)
    rows, hidden = planted_text(300, 300, 6, seed)
    corpus = Corpus.from_rows(rows, n_partitions=2)
    pairs = Constraints(*label_pairs(hidden, 30, seed)) if with_pairs else None
    asked = FitInput(
        corpus, pairs, Settings(6, seed=seed, n_init=n_init), make_distortion("cosine")
    )
    ran: list[tuple[str, int]] = []  # a candidate that runs to its end: 0
    run = fit_starts.run_candidate

    def counted(*arguments: Any) -> Candidate:
        turn = arguments[-1]
        ran.append((turn.name, turn.heat.iterations or 0))
        return run(*arguments)

    monkeypatch.setattr(fit_starts, "run_candidate", counted)
    return asked, ran


@pytest.mark.parametrize("with_pairs", [False, True])
@pytest.mark.parametrize(("pool", "seed"), [(LONG, 0), (LONG, 1), (SHORT, 0), (SHORT, 2)])
def test_the_best_of_every_heat_go_on(
    pool: tuple[Heat, ...], seed: int, with_pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ran = tournament(monkeypatch, seed, pool, with_pairs=with_pairs)
    records: list[Any] = []
    fitted = fit_corpus(asked, progress=records.append)
    starts = [one["starts"][-1] for one in pool_records(records)]
    left = candidate_names(asked.settings, 100 if with_pairs else 0)
    for iterations, going_on in pool:
        heat, starts = starts[: len(left)], starts[len(left) :]
        assert [one["name"] for one in heat] == left
        assert all(1 <= one["n_iter"] <= (iterations or 100) for one in heat)
        energies = {one["name"]: sum(map(int, one["energy"])) for one in heat}
        best = sorted(left, key=lambda name: energies[name])[:going_on]
        left = [name for name in left if name in best]
    assert not starts
    assert len(left) == 1
    going_on = sum(heat.going_on for heat in pool[:-1])
    assert len(ran) == len(set(ran)) == (9 if with_pairs else 6) + going_on
    first = next(one for one in records if one["phase"] == "fit")
    # begun with the winner's labels, or at its centroids every row is where it costs least
    assert first["J"] <= energies[left[0]] / 2.0**288 * (1 + 1e-12)
    assert pool == LONG or first["J"] == pytest.approx(energies[left[0]] / 2.0**288)
    assert fitted.n_iter <= asked.settings.max_iter


def test_a_start_that_ignores_pairs_is_judged_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, _ = tournament(monkeypatch, 1)
    records: list[Any] = []
    fit_corpus(asked, progress=records.append)
    first = [one for one in records if one["phase"] == "start"][5]["starts"]
    assert {one["name"].split()[0] for one in first} == {"unconstrained"}
    assert any(int(term) for one in first for term in one["energy"][1:3])


@pytest.mark.parametrize("name", ["cosine", "euclidean", "pearson", "kl"])
def test_a_tournament_leaves_out_features_that_one_row_has(name: str) -> None:
    rows = random_rows(0, 40, 12)
    rows[:, 2], rows[:, 7] = 0.0, 0.0
    rows[3, 2], rows[3, 5] = 1.0, 0.5  # feature 2 is one row's, 7 nobody's
    sample = start_sample_of(sample_of(rows, name))
    narrow, kept = narrowed(sample), [m for m in range(12) if m not in (2, 7)]
    if name in ("pearson", "kl"):  # whose distances depend on the number of features
        assert narrow is sample
        return
    np.testing.assert_array_equal(narrow.block.to_dense(), rows[:, kept])
    assert narrow.extent.n_features == len(kept)
    np.testing.assert_array_equal(narrow.extent.maximum, sample.extent.maximum[kept])
    again = narrowed(narrow)
    np.testing.assert_array_equal(again.block.indices, narrow.block.indices)
    candidate = run_candidate(narrow, MemoryRun(), 1, Turn("k-means++ 0", fit_starts.TOURNAMENT[0]))
    assert candidate.n_iter <= 3


def test_dense_rows_and_rows_that_share_nothing_keep_their_features() -> None:
    dense = start_sample_of(sample_of(random_rows(0), dense=True))
    assert narrowed(dense) is dense
    alone = start_sample_of(sample_of(np.eye(6)))
    assert narrowed(alone) is alone


def test_few_candidates_need_fewer_heats() -> None:
    settings, most = Settings(20), 10**6
    assert [heat.iterations for heat in fit_starts.heats(settings, most, 10)] == [3, 10, 30]
    assert [heat.iterations for heat in fit_starts.heats(settings, most, 4)] == [10, 30]
    assert [heat.iterations for heat in fit_starts.heats(settings, most, 2)] == [30]
    hard = replace(settings, hard=True)
    assert fit_starts.heats(hard, most, 10) == WHOLE_POOL
    assert fit_starts.heats(settings, 4000, 10) == SHORT  # 200 rows a cluster
    assert fit_starts.heats(settings, 4001, 10) == LONG
    assert fit_starts.heats(settings, 4000, 4) == WHOLE_POOL
    assert fit_starts.heats(settings, 2500, 10) == WHOLE_POOL
    assert fit_starts.heats(Settings(100), 5000, 10) == SHORT
    assert fit_starts.heats(Settings(100), 5001, 10) == LONG


# --- resume


@pytest.mark.parametrize(
    ("pool", "n_done"), [(SHORT, 9), (LONG, 4), *long((WHOLE_POOL, 4), (SHORT, 4), (LONG, 13))]
)
def test_a_fit_stopped_among_its_candidates_resumes_with_the_next(
    pool: tuple[Heat, ...], n_done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ran = tournament(monkeypatch, 2, pool)
    whole = fit_corpus(asked, run_dir=tmp_path / "whole")
    order = list(ran)
    ran.clear()

    def stop(record: dict[str, Any]) -> None:
        if len(record["starts"]) == n_done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_corpus(asked, run_dir=tmp_path / "two", progress=stop)
    assert sorted(ran[:n_done]) == sorted(order[:n_done])
    assert len(ran) == n_done
    ran.clear()
    again = fit_corpus(asked, run_dir=tmp_path / "two")
    assert sorted(ran) == sorted(order[n_done:])
    assert again.state.energy == whole.state.energy
    assert labels_of(again).tolist() == labels_of(whole).tolist()
    assert again.history == whole.history
