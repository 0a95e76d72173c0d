"""The rows of `make bench` at tiny sizes, with no clock asserted: they run, and results agree."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from distributed import Client
from numpy.typing import NDArray
from pyarrow import parquet

from tests.benchmarks import (
    __main__,
    corpora,
    growth,
    measuring,
    plots,
    profiling,
    report,
    rows_fits,
    rows_iterations,
    rows_kernels,
    rows_out_of_core,
    rows_processes,
    scheduling,
    spark_rows,
    vectorising,
)
from tests.benchmarks.iterations import Mark, iterations_of
from tests.benchmarks.measuring import Bench, Figure, Timed
from tests.benchmarks.sizes import TINY


@pytest.fixture(autouse=True)
def uncollected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the garbage of the tests alone: collecting takes longer than what is measured."""
    monkeypatch.setattr(measuring, "gc", SimpleNamespace(collect=lambda: 0))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(TINY, cache=tmp_path / "cache", arxiv=tmp_path / "missing.parquet")


def names(figures: list[Figure]) -> list[str]:
    assert all(one.skipped or (one.values and np.isfinite(one.values).all()) for one in figures)
    return [one.name for one in figures]


# ---- rows


@pytest.mark.parametrize("K", [3, 40])
def test_our_e_step_gives_the_labels_of_scikit_learns(K: int) -> None:
    X = corpora.synthetic(800, 1500).X
    step = rows_kernels.fifth_step(X, K)
    lloyd = rows_kernels.Lloyd(X, step.centroids)
    ours = step.nearest()
    for update in (True, False):
        found = rows_kernels.differing(step, ours, lloyd(update_centers=update))
        assert found["apart_beyond_ties"] == 0
        assert found["labels_apart"] <= 2
    wrong = (ours + 1) % K
    assert rows_kernels.differing(step, ours, wrong)["apart_beyond_ties"] == len(ours)


def test_e_step_row_refuses_other_labels(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setattr(rows_kernels.Step, "nearest", lambda step: (step.labels + 1) % 5)
    with pytest.raises(RuntimeError, match="must give scikit-learn's labels"):
        rows_kernels.estep(bench)


def test_divergence_row(bench: Bench) -> None:
    found = rows_kernels.divergences(bench)
    assert names(found) == ["divergences-i-divergence", "divergences-kl"]


def test_fit_row_does_the_same_work_as_its_peer(bench: Bench) -> None:
    (figure,) = rows_fits.fit(bench)
    assert figure.told["n_iter"] == [3, 3]
    mine, theirs, _ = figure.told["loss"]
    assert mine <= theirs * 1.02
    assert figure.told["nmi_of_both"] > 0.5


def test_loss_is_the_mean_cosine_distance() -> None:
    X = corpora.synthetic(60, 300).X
    labels = np.arange(60, dtype=np.int32) % 4
    rows = X.toarray().astype(np.float64)
    expected = 0.0
    for h in range(4):
        middle = rows[labels == h].sum(axis=0)
        expected += (1.0 - rows[labels == h] @ middle / np.linalg.norm(middle)).sum()
    assert rows_fits.loss(X, labels) == pytest.approx(expected / 60, rel=1e-9)


def write_abstracts(path: Path) -> None:
    chance = np.random.default_rng(3)
    words = np.array([f"word{i}" for i in range(160)])
    label = chance.integers(0, 4, 240)
    texts = [
        " ".join(words[(40 * one + chance.integers(0, 60, 50)) % 160]) for one in label.tolist()
    ]
    fine = [f"{one}.{i % 2}" for i, one in enumerate(label)]
    table = {"text": texts, "label": [str(one) for one in label], "label_fine": fine}
    parquet.write_table(pa.table(table), path)


def test_arxiv_row_converges_and_finds_what_the_peer_finds(bench: Bench) -> None:
    write_abstracts(bench.arxiv)
    figure, truth = rows_fits.arxiv(bench)
    assert figure.told["rows"] == 240
    assert max(figure.told["n_iter"]) < rows_fits.ENOUGH
    mine, theirs = figure.told["nmi_label"]
    assert truth.name == "arxiv-nmi-4"
    assert truth.median == mine - theirs
    assert truth.reached == ("aim" if mine >= theirs else "no")
    assert mine > 0.5
    assert abs(mine - theirs) < 0.5
    again = corpora.arxiv(bench.arxiv, bench.cache)
    assert again is not None
    assert again.fine_topics is not None
    assert np.unique(again.fine_topics).size == 8


def test_arxiv_row_says_which_file_is_missing(bench: Bench) -> None:
    (figure,) = rows_fits.arxiv(bench)
    assert figure.skipped == f"no file {bench.arxiv}"
    assert figure.reached == "skipped"


def test_dask_ml_row_finds_the_same_clusters(bench: Bench) -> None:
    import dask_ml  # noqa: F401  in the lock: where it is missing the set-up is broken

    (figure,) = rows_fits.dask_ml(bench)
    assert figure.told["nmi_of_both"] > 0.95


def test_dask_ml_row_says_when_it_is_missing(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "dask_ml.cluster", None)
    (figure,) = rows_fits.dask_ml(bench)
    assert figure.skipped.startswith("dask-ml cannot be imported")


def test_spark_row(bench: Bench) -> None:
    """Where pyspark is not beside the tests, which is usual, the row says so."""
    (figure,) = spark_rows.against_spark(bench)
    if spark_rows.missing(sys.executable):
        assert figure.skipped == spark_rows.missing(sys.executable)
    else:
        mine, theirs = figure.told["loss"]
        assert mine == pytest.approx(theirs, rel=0.05)


def test_spark_row_says_which_python_has_no_pyspark(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setattr(spark_rows.shutil, "which", lambda name: "/usr/bin/java")
    (figure,) = spark_rows.against_spark(replace(bench, spark_python="/no/python"))
    assert figure.skipped.startswith("no pyspark in /no/python")
    monkeypatch.setattr(spark_rows.shutil, "which", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert spark_rows.missing(sys.executable) == "no Java"


def test_vectors_for_spark_are_the_rows(tmp_path: Path) -> None:
    X = corpora.synthetic(30, 200).X
    spark_rows.write_vectors(X, tmp_path)
    found = parquet.read_table(tmp_path / "rows.parquet")["features"].to_pylist()
    assert [one["indices"] for one in found] == [row.indices.tolist() for row in X]
    assert [one["values"] for one in found] == [row.data.tolist() for row in X]
    assert {(one["type"], one["size"]) for one in found} == {(0, 200)}


@pytest.mark.parametrize("row", ["dask_share", "weights", "commits"])
def test_iteration_rows(row: str, bench: Bench) -> None:
    found = getattr(rows_iterations, row)(bench)
    assert all(name.startswith(row.replace("_", "-")) for name in names(found))
    assert not list(bench.cache.glob("runs-*"))


def test_pairs_row_gives_pairs_that_the_truth_answers(bench: Bench) -> None:
    (figure,) = rows_iterations.pairs(bench)
    assert names([figure]) == ["pairs"]
    assert figure.told["must_link"] + figure.told["cannot_link"] == TINY.pairs


def test_sums_from_nothing_cover_every_row() -> None:
    """The pass that the weights row adds is of all rows: its parts are cut at every row."""
    seen: list[int] = []
    X = corpora.synthetic(100, 300).X
    run = rows_iterations.full_sums(X, 3)
    parts = next(
        cell.cell_contents for cell in run.__closure__ or () if isinstance(cell.cell_contents, list)
    )
    seen += [part[0].n_rows for part in parts]
    run()
    assert sum(seen) == 100


def test_out_of_core_row(bench: Bench) -> None:
    (figure,) = rows_out_of_core.out_of_core(bench)
    assert names([figure]) == ["out-of-core"]
    assert figure.told["rows"] == TINY.copies * TINY.large
    assert figure.told["workers"] == "threads, told of this memory"
    assert not list(bench.cache.glob("blocks-*"))


@pytest.mark.cluster
def test_out_of_core_row_watches_workers(
    bench: Bench, process_client: Client, monkeypatch: Any
) -> None:
    @contextmanager
    def shared(number: int, memory_limit: int) -> Iterator[Client]:
        import dask

        with dask.config.set(scheduler=None, num_workers=None):
            yield process_client

    monkeypatch.setattr(rows_out_of_core, "workers", shared)
    monkeypatch.setattr(rows_out_of_core, "LEAST_LIMIT", 0)
    monkeypatch.setattr(rows_out_of_core, "POLL", 0.01)
    (figure,) = rows_out_of_core.out_of_core(bench)
    assert figure.told["peak_MiB"] > 10
    assert (figure.told["spilled_MiB"], figure.told["restarted"]) == (0, 0)


def test_process_rows(bench: Bench, monkeypatch: Any) -> None:
    """Their programs run in this process: another one would import and compile for seconds."""

    def run_here(code: str, *arguments: str, environment: Any = None) -> Any:
        monkeypatch.setattr(sys, "argv", ["-c", *arguments])
        with redirect_stdout(io.StringIO()) as told:
            exec(code, {})
        return json.loads(told.getvalue().splitlines()[-1])

    monkeypatch.setattr(rows_processes, "run_python", run_here)
    assert names(rows_processes.compiling(bench)) == ["compile", "cached"]
    (figure,) = rows_processes.memory(bench)
    (found,) = figure.told["MiB"]
    assert found["peak"] >= found["before"] > 10


def test_vectorising_row(bench: Bench) -> None:
    found = vectorising.vectorising(bench)
    assert names(found) == ["vectorising-ascii", "vectorising-mixed"]
    assert [one.told["same_bits"] for one in found] == [True, True]
    assert found[0].told["texts_beyond_ascii"] == 0 < found[1].told["texts_beyond_ascii"] < 200


def test_vectorising_row_refuses_other_rows(bench: Bench, monkeypatch: Any) -> None:
    other = vectorising.TextSettings(norm="l1")
    monkeypatch.setattr(vectorising, "SETTINGS", other)
    with pytest.raises(RuntimeError, match="bits of scikit-learn's"):
        vectorising.vectorising(bench)


def test_growth_row_tells_the_exponents(bench: Bench, monkeypatch: Any) -> None:
    def fit(rows: Any, n_clusters: int, bench: Bench, n_pairs: int = 0) -> Any:
        n_rows, n_features = rows.X.shape
        seconds = n_rows * n_clusters**2 * n_features**0.5 * 3.0**n_pairs
        return SimpleNamespace(iteration=Timed(seconds, seconds))

    monkeypatch.setattr(growth, "_fit", fit)
    found = growth.growth(bench)
    assert names(found) == ["growth-n", "growth-K", "growth-d", "growth-pairs"]
    assert [len(one.told["seconds"]) for one in found] == [2, 2, 2, 2]
    assert [one.median for one in found[:3]] == pytest.approx([1.0, 2.0, 0.5])
    assert found[3].told["sizes"] == [20, 40]


def test_profile_row_accounts_for_all_time(bench: Bench) -> None:
    (figure,) = profiling.profile(bench)
    phases = figure.told["phases_percent"]
    assert sum(phases.values()) == pytest.approx(100, abs=1)
    assert phases["Dask"] > 0
    assert phases["labels and commits"] > 0


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("kernels.distances.nearest", "E-step: nearest centroids"),
        ("distortions.cosine.Cosine.terms", "terms of rows"),
        ("distortions.cosine.Cosine.centroids", "centroids"),
        ("kernels.sums.sum_moves", "sums of rows that moved"),
        ("checkpoints.directory.RunDirectory.commit", "labels and commits"),
        ("tasks.icm.settle", "pairs and ICM"),
        ("dask", "Dask"),
        ("fit.loop.Fit.run", "the loop"),
    ],
)
def test_phases_of_functions(name: str, phase: str) -> None:
    assert profiling.phase_of(name) == phase


# ---- data


def test_synthetic_rows_are_what_text_gives() -> None:
    X = corpora.synthetic(2000, 50_000).X
    assert 110 < X.nnz / 2000 < 122
    assert X.dtype == np.float32
    assert X.indices.dtype == X.indptr.dtype == np.int32
    assert X.has_sorted_indices
    lengths = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    np.testing.assert_allclose(lengths, 1.0, rtol=1e-5)


def test_a_document_depends_on_seed_and_number_alone(monkeypatch: Any) -> None:
    def columns(n_rows: int, seed: int = 0) -> NDArray[Any]:
        X = corpora.synthetic(n_rows, 2000, seed).X
        return np.asarray(X.indices[: X.indptr[100]])

    some = columns(100)
    np.testing.assert_array_equal(some, columns(300))
    monkeypatch.setattr(corpora, "BATCH", 7)
    np.testing.assert_array_equal(some, columns(150))
    other = columns(100, seed=1)
    assert len(other) != len(some) or (other != some).any()


def test_topics_are_in_the_words() -> None:
    """Documents of one topic are nearer to each other than to others."""
    rows = corpora.synthetic(1500, 5000)
    dense = (rows.X @ rows.X.T).toarray()
    np.fill_diagonal(dense, np.nan)
    same = rows.topics[:, None] == rows.topics[None, :]
    assert np.nanmean(dense[same]) > 2 * np.nanmean(dense[~same])


def test_a_kept_corpus_is_the_same(tmp_path: Path) -> None:
    first, kept = (corpora.synthetic(50, 300, cache=tmp_path) for _ in range(2))
    assert corpora.folder_of(tmp_path, 50, 300).is_dir()
    assert (first.X != kept.X).nnz == 0
    np.testing.assert_array_equal(first.topics, kept.topics)


# ---- measuring


def test_works_run_in_turn() -> None:
    order: list[str] = []
    works = {name: lambda name=name: order.append(name) for name in ("ours", "peer")}
    runs = measuring.in_turn(3, works)
    assert order == ["ours", "peer"] * 3
    assert [len(one) for one in runs.values()] == [3, 3]
    assert len(measuring.in_turn(3, works, budget=0.0)["ours"]) == 1


def test_ratios_are_those_of_neighbours() -> None:
    above, below = [Timed(6.0, 1.0), Timed(9.0, 8.0)], [Timed(2.0, 2.0), Timed(3.0, 1.0)]
    assert measuring.ratios(above, below) == (3.0, 3.0)
    assert measuring.ratios(above, below, "cpu") == (0.5, 8.0)
    assert measuring.more_than(below, above) == pytest.approx((-100 * 2 / 3, -100 * 2 / 3))


@pytest.mark.parametrize(
    ("better", "must", "aim", "value", "reached"),
    [
        ("more", 4.0, 7.0, 7.0, "aim"),
        ("more", 4.0, 7.0, 6.9, "must"),
        ("more", 4.0, 7.0, 3.9, "no"),
        ("less", 10.0, 4.0, -1.0, "aim"),
        ("less", 10.0, 4.0, 10.0, "must"),
        ("less", 10.0, 4.0, 10.1, "no"),
        ("less", None, None, 1.0, ""),
    ],
)
def test_reached(better: Any, must: Any, aim: Any, value: float, reached: str) -> None:
    figure = Figure("name", "what", (value,), better=better, must=must, aim=aim)
    assert figure.reached == reached


def test_iterations_without_an_e_step_or_an_m_step_are_left_out() -> None:
    marks = [Mark("fit", i, moved, float(i * i), 0.0) for i, moved in enumerate([9, 0, 8, 5, 3, 0])]
    assert [one.wall for one in iterations_of(marks)] == [5.0, 7.0]
    assert [one.value for one in iterations_of(marks)] == [5, 3]
    assert [one.wall for one in iterations_of(marks[:2])] == [1.0]
    with pytest.raises(RuntimeError, match="must have some, got 1 commits"):
        iterations_of(marks[:1])


def _task(number: int, seconds: float, *needs: int) -> scheduling.Task:
    return scheduling.Task(number, "task", needs, float(number), number + seconds)


def test_the_ideal_layout_waits_for_arguments_and_workers() -> None:
    tasks = [_task(0, 1.0), _task(1, 3.0, 0), _task(2, 1.0, 0), _task(3, 1.0, 0), _task(4, 2.0, 1)]
    assert scheduling.layout(tasks, 2) == pytest.approx(6.0)
    assert scheduling.layout(tasks, 1) == pytest.approx(8.0)
    assert scheduling.layout([_task(i, 1.0) for i in range(5)], 2) == pytest.approx(3.0)
    assert scheduling.layout([], 2) == 0.0


def test_the_share_of_dask_is_what_the_layout_leaves() -> None:
    watch = scheduling.Watch({0: _task(0, 0.5), 1: _task(1, 0.5, 0)}, [(0.0, 4.0)])
    found = watch.share(0.0, 5.0, 2)
    assert found["dask"] == pytest.approx(3.0 / 5)
    assert found["tasks"] == pytest.approx(1.0 / 5)
    assert found["driver"] == pytest.approx(1.0 / 5)


def test_watched_tasks_know_what_they_wait_for() -> None:
    from hmrf_dask.flow.dask_flow import DaskFlow
    from hmrf_dask.flow.dataflow import tree

    before = DaskFlow.lazy
    with scheduling.watched_tasks() as watch:
        flow = DaskFlow()
        parts = [flow.lazy(abs, -number) for number in range(3)]
        assert flow.compute([tree(flow, sum, parts)]) == [3]
    assert DaskFlow.lazy is before
    assert [one.needs for one in watch.tasks.values()] == [(), (), (), (0, 1, 2)]
    assert all(one.ended >= one.began > 0 for one in watch.tasks.values())
    assert len(watch.calls) >= 4


# ---- what is left behind


FIGURES = [
    Figure("estep-20", "E-step", (6.0, 7.0, 8.0), must=6.0, aim=9.0, told={"rows": 5}),
    Figure("arxiv-20", "arXiv", must=5.0, aim=12.0, skipped="no file there"),
    Figure("dask-ml", "dense", (2.0,)),
    Figure(
        "growth-n", "growth", (1.02,), "", told={"sizes": [1, 2], "seconds": [0.5, 1.0], "base": {}}
    ),
    Figure(
        "profile-20", "profile", (3.0,), "s", raw={"plain": [{"wall": 2.0, "cpu": 3.0}]},
        told={"rows": 5, "phases_percent": {"J": 40.0, "Dask": 60.0}},
    ),
]  # fmt: skip


def _result() -> report.Result:
    rows = ["estep", "arxiv", "dask-ml", "growth", "profile"]
    figures = {
        one.name: one.encoded() | {"row": row} for one, row in zip(FIGURES, rows, strict=True)
    }
    return {"figures": figures, "machine": {"cores": [0, 1]}, "versions": {"dask": "1"}}


def test_a_reader_is_told_of_sizes_and_of_rows_of_other_runs() -> None:
    result = _result() | {"sizes": "full", "began": "2026-02-02"}
    for figure in result["figures"].values():
        figure["at"] = "2026-02-03"
    assert report.caution(result) == "full sizes"
    result["figures"]["dask-ml"]["at"] = "2026-01-01"
    assert report.caution(result).endswith("not the last: dask-ml (2026-01-01)")
    assert "not what is reached" in report.caution(result | {"sizes": "quick"})


def test_results_come_back_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "bench.json"
    report.write_result(path, _result())
    found = report.figures_of(report.read_result(path), ["dask-ml"])
    assert found == [FIGURES[2], FIGURES[0], FIGURES[1], *FIGURES[3:]]
    assert json.loads(path.read_text())["figures"]["estep-20"]["median"] == 7.0
    assert report.read_result(tmp_path / "none.json") == {"figures": {}}


def test_the_page_keeps_its_text(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", encoding="utf-8")
    for _ in range(2):
        report.rewrite_page(page, _result(), ["estep", "arxiv"])
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| E-step | 7 × (6 × to 8 ×) | ≥ 6 × | ≥ 9 × | must |" in text
    assert "| arXiv | no file there | ≥ 5 × | ≥ 12 × | skipped |" in text
    assert "| dense | 2 × |" in text
    assert "| J | 40.0 % |" in text
    assert "| ms | 500.0 | 1,000.0 | 1.02 |" in text
    page.write_text("no marks", encoding="utf-8")
    with pytest.raises(ValueError, match="must hold the marks"):
        report.rewrite_page(page, _result(), [])


def test_the_projects_page_has_the_marks() -> None:
    text = __main__.PAGE.read_text(encoding="utf-8")
    assert text.count(report.BEGIN) == text.count(report.END) == 1


def test_plots_are_written(tmp_path: Path) -> None:
    written = plots.draw(FIGURES, tmp_path / "bench")
    assert [path.name for path in written] == [
        "bench.png", "bench.svg", "bench-growth.png", "bench-growth.svg",
    ]  # fmt: skip
    assert written[0].read_bytes().startswith(b"\x89PNG")
    assert b"E" in written[1].read_bytes()
    assert plots.draw([FIGURES[2]], tmp_path / "other") == []


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    report.print_table(FIGURES[:3], "title")
    told = capsys.readouterr().out
    assert "≥ 9 ×" in told
    assert "must" in told
    assert "no file there" in told


def test_one_command_measures_writes_and_goes_on(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measuring, "keep_cores", lambda number: [0, 1])
    common = ["--tiny", "--output", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    common += ["--arxiv", str(tmp_path / "none.parquet")]
    assert __main__.main(["estep", "arxiv", "imports", *common]) == 0
    monkeypatch.setitem(__main__.ROWS, "pairs", "rows_iterations.not_there")
    assert __main__.main(["pairs", *common]) == 1
    result = report.read_result(tmp_path / "out.json")
    assert set(result["figures"]) == {"estep-5", "arxiv-4", "import", "help", "pairs"}
    step = result["figures"]["estep-5"]
    assert step["told"]["apart_beyond_ties"] == 0
    assert set(step["raw"]) == {"ours", "scikit_learn", "scikit_learn_labels_only"}
    assert result["figures"]["pairs"]["skipped"].startswith("failed: AttributeError")
    assert result["machine"]["processor"]
    assert result["versions"]["scikit-learn"]
    page = tmp_path / "page.md"
    page.write_text(report.BEGIN + report.END)
    assert __main__.main(["page", "--page", str(page), *common]) == 0
    assert "E-step, one thread" in page.read_text(encoding="utf-8")
    assert (tmp_path / "out.png").exists()
    assert "NO" not in capsys.readouterr().out.splitlines()[0]


def test_every_row_is_there() -> None:
    from importlib import import_module

    for place in __main__.ROWS.values():
        module, name = place.split(".")
        assert callable(getattr(import_module(f"tests.benchmarks.{module}"), name))
