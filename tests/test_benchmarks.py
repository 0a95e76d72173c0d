"""The rows of `make bench` at tiny sizes, with no clock asserted: they run, and results agree."""

from __future__ import annotations

import io
import json
import runpy
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from hmrf_dask.distortions.base import TableDistortion
from hmrf_dask.kernels.exact import exact_zero
from tests.benchmarks import (
    __main__,
    ablation,
    commands,
    dense_peers,
    end_to_end,
    growth,
    measuring,
    report,
    rows_kernels,
    rows_processes,
    scheduling,
    user_tables,
)
from tests.benchmarks.commands import Ran
from tests.benchmarks.measuring import Bench, Figure, Timed
from tests.benchmarks.sizes import TINY
from tests.benchmarks.tricks import TRICKS, Trick
from tests.support.long_cases import long


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Give a bench of tiny sizes and an abstract or two, whose programs run in this process."""

    def run_here(code: str, *arguments: str, environment: Any = None) -> Any:
        monkeypatch.setattr(sys, "argv", ["-c", *arguments])
        with redirect_stdout(io.StringIO()) as printed:
            exec(code, {})
        return json.loads(printed.getvalue().splitlines()[-1])

    def command_here(command: Sequence[str]) -> Ran:
        _, *arguments = [one for one in command if one not in ("-W", "ignore")]
        run = runpy.run_module if arguments[0] == "-m" else runpy.run_path
        name, *given = arguments[1:] if arguments[0] == "-m" else arguments
        monkeypatch.setattr(sys, "argv", [name, *given])
        began = time.time()
        with redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
            run(name, run_name="__main__")
        value = json.loads(printed.getvalue().splitlines()[-1])
        ended = time.time()
        return Ran(Timed(ended - began, ended - began, value), began, ended, 2**20)

    def fit(rows: Any, n_clusters: int, bench: Bench, n_pairs: int = 0) -> Any:
        n_rows, n_features = rows.X.shape
        seconds = n_rows * n_clusters**2 * n_features**0.5 * 3.0**n_pairs
        return SimpleNamespace(iteration=Timed(seconds, seconds))

    # Collecting the garbage of all tests takes longer than what is measured.
    monkeypatch.setattr(measuring, "gc", SimpleNamespace(collect=lambda: 0))
    monkeypatch.setattr(rows_processes, "run_python", run_here)
    monkeypatch.setattr(end_to_end, "run_command", command_here)
    monkeypatch.setitem(sys.modules, "faiss", SimpleNamespace(**PRETENDED_FAISS))
    monkeypatch.setattr(growth, "_fit", fit)
    monkeypatch.setattr(ablation, "workers", lambda number: nullcontext())
    monkeypatch.setattr(ablation, "TRICKS", [one for one in TRICKS if one.name in FEW_TRICKS])
    write_abstracts(tmp_path / "arxiv.parquet")
    return Bench(TINY, cache=tmp_path / "cache", arxiv=tmp_path / "arxiv.parquet")


class PretendedKMeans:
    """Lloyd's spherical k-means behind the interface of faiss, which is no dependency."""

    def __init__(self, n_features: int, n_clusters: int, *, niter: int, **_: Any) -> None:
        self.niter, self.index = niter, self

    def train(self, X: Any, init_centroids: Any) -> None:
        self.centroids = init_centroids
        for _ in range(self.niter):
            labels = self.search(X, 1)[1][:, 0]
            sums = np.stack([X[labels == k].sum(axis=0) for k in range(len(init_centroids))])
            self.centroids = sums / np.linalg.norm(sums, axis=1, keepdims=True)

    def search(self, X: Any, n_nearest: int) -> Any:
        scores = X @ self.centroids.T
        return scores, scores.argmax(axis=1)[:, np.newaxis]


PRETENDED_FAISS = {"Kmeans": PretendedKMeans, "omp_set_num_threads": lambda number: None}


def write_abstracts(path: Path) -> None:
    chance = np.random.default_rng(3)
    words = np.array([f"word{i}" for i in range(160)])
    label = chance.integers(0, 4, 240)
    texts = [
        " ".join(words[(40 * topic + chance.integers(0, 60, 50)) % 160]) for topic in label.tolist()
    ]
    fine = [f"{topic}.{i % 2}" for i, topic in enumerate(label)]
    table = {
        "doc_id": [f"a/{i}" for i in range(240)],
        "text": texts,
        "label": [str(topic) for topic in label],
        "label_fine": fine,
    }
    parquet.write_table(pa.table(table), path)


def exponents(facts: dict[str, Any], figure: Figure) -> bool:
    wanted = {"growth-n": 1.0, "growth-K": 2.0, "growth-d": 0.5}
    return figure.name not in wanted or figure.median == pytest.approx(wanted[figure.name])


def jobs_agree(facts: dict[str, Any], figure: Figure) -> bool:
    times = [one["wall"] for one in figure.raw.get("hmrf_dask", figure.raw.get("answers", []))]
    found = [one["nmi"] for one in facts["ways"].values()]
    steps = facts["steps"]
    return (
        min(found) > 0.4
        and min(steps.values()) > -0.05
        and min(steps[name] for name in ("count words", "weigh words", "starts", "fit")) > 0
        and sum(steps.values()) == pytest.approx(times[0], abs=0.02)
    )


# What the figures of a row say of the work, and when two sides did the same.
AGREES: dict[str, Any] = {
    "estep": lambda facts, _: facts["apart_beyond_ties"] == 0,
    "end-to-end": lambda facts, figure: jobs_agree(facts, figure) and len(facts["ways"]) == 4,
    "end-to-end-answers": lambda facts, figure: jobs_agree(facts, figure),
    "fit": lambda facts, _: facts["loss"][0] <= 1.02 * facts["loss"][1],
    "dense": lambda facts, _: max(facts["loss"]) <= 1.05 * min(facts["loss"]),
    "real-text": lambda facts, _: len({*facts[facts["worst"]]["n_iter"]}) == 1,
    "before-first-iteration": lambda facts, figure: facts["rows"] in TINY.before,
    "refinement-round": lambda facts, _: facts["rounds"][0] > 0,
    "pairs": lambda facts, _: facts["must_link"] + facts["cannot_link"] == TINY.pairs,
    "dask-ml": lambda facts, _: facts["nmi_of_both"] > 0.95,
    "out-of-core": lambda facts, _: facts["rows"] == TINY.copies * TINY.large,
    "memory": lambda facts, _: facts["MiB"][0]["peak"] >= facts["MiB"][0]["before"] > 10,
    "vectorising": lambda facts, _: facts["same_bits"],
    "growth": exponents,
    "scale": lambda facts, figure: "tasks" not in facts or facts["tasks"] > 0,
    "profile": lambda facts, _: sum(facts["phases_percent"].values()) == pytest.approx(100, abs=1),
}
FEW_TRICKS = ("low-costs", "margins", "sent-ahead")  # for others kernels are compiled
ON_CLUSTERS = {"processes", "tenfold"}  # which they start themselves
NOT_EVERYWHERE = {"spark", "scale"}  # one needs Java, the other root


@pytest.mark.parametrize(
    "row",
    [
        *long("end-to-end-answers", "ablation"),  # as end-to-end, and as fit
        *long("scale"),  # starts many processes
        *(
            row
            for row in __main__.ROWS
            if row not in (*ON_CLUSTERS, "end-to-end-answers", "ablation", "scale")
        ),
    ],
)
def test_a_row_runs_and_both_sides_do_the_same_work(row: str, bench: Bench) -> None:
    figures, fine = __main__.measure(row, bench)
    assert fine, figures
    for figure in figures:
        assert figure.skipped or np.isfinite(figure.values).all()
        assert row in NOT_EVERYWHERE or not figure.skipped, figure.skipped
        assert row not in AGREES or AGREES[row](figure.facts, figure)


def test_other_labels_than_those_promised_are_refused(bench: Bench, monkeypatch: Any) -> None:
    for trick in TRICKS:
        owner, name, value = trick.replacements()[0]
        before = getattr(owner, name)
        with trick.off():
            assert getattr(owner, name) is value is not before
        assert getattr(owner, name) is before

    def first(self: Any, block: Any, terms: Any, table: Any, labels: Any, **options: Any) -> Any:
        return np.zeros(len(labels), np.int32), exact_zero()

    wrong = Trick("wrong", "everything first", lambda: ((TableDistortion, "nearest", first),))
    monkeypatch.setattr(ablation, "TRICKS", (wrong,))
    with pytest.raises(RuntimeError, match="everything first: labels must be those"):
        ablation.ablation(bench)
    monkeypatch.setattr(rows_kernels.Step, "nearest", lambda step: (step.labels + 1) % 5)
    with pytest.raises(RuntimeError, match="must give scikit-learn's labels"):
        rows_kernels.estep(bench)


def test_figures_are_worked_out_as_they_are_explained() -> None:
    def task(number: int, seconds: float, *needs: int) -> scheduling.Task:
        return scheduling.Task(number, "task", needs, float(number), number + seconds)

    tasks = [task(0, 1.0), task(1, 3.0, 0), task(2, 1.0, 0), task(3, 1.0, 0), task(4, 2.0, 1)]
    assert scheduling.layout(tasks, 2) == pytest.approx(6.0)
    assert scheduling.layout(tasks, 1) == pytest.approx(8.0)
    watch = scheduling.Watch({0: task(0, 0.5), 1: task(1, 0.5, 0)}, [(0.0, 4.0)])
    share = watch.share(0.0, 5.0, 2)
    assert [share[part] for part in ("dask", "tasks", "driver")] == pytest.approx([0.6, 0.2, 0.2])
    above, below = [Timed(6.0, 1.0), Timed(9.0, 8.0)], [Timed(2.0, 2.0), Timed(3.0, 1.0)]
    assert measuring.ratios(above, below) == (3.0, 3.0)
    assert measuring.ratios(above, below, "cpu") == (0.5, 8.0)
    for better, must, aim, value, reached in (
        ("more", 4.0, 7.0, 7.0, "aim"),
        ("more", 4.0, 7.0, 6.9, "must"),
        ("more", 4.0, 7.0, 3.9, "no"),
        ("less", 10.0, 4.0, 10.0, "must"),
        ("less", 10.0, 4.0, 10.1, "no"),
        ("less", None, None, 1.0, ""),
    ):
        figure = Figure("name", "what", (value,), better=better, must=must, aim=aim)
        assert figure.reached == reached


def test_one_command_measures_writes_and_keeps_what_it_did_not_measure(
    bench: Bench, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measuring, "keep_cores", lambda number: [0, 1])
    common = ["--tiny", "--output", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    common += ["--arxiv", str(tmp_path / "none.parquet")]
    assert __main__.main(["estep", "arxiv", "imports", *common]) == 0
    monkeypatch.setitem(__main__.ROWS, "pairs", "rows_iterations.not_there")
    assert __main__.main(["pairs", *common]) == 1
    result = report.read_result(tmp_path / "out.json")
    assert set(result["figures"]) == {"estep-5", "arxiv-4", "import", "help", "pairs"}
    assert result["figures"]["pairs"]["skipped"].startswith("failed: AttributeError")
    assert result["figures"]["arxiv-4"]["skipped"] == f"no file {tmp_path / 'none.parquet'}"
    assert "no file" in capsys.readouterr().out
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    page = tmp_path / "page.md"
    marks = (report.USER_BEGIN, report.USER_END, report.BEGIN, report.END)
    page.write_text("before\n{}\nold\n{}\nmiddle\n{}\nold\n{}\nafter\n".format(*marks))
    assert __main__.main(["page", "--page", str(page), *common]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "E-step, one thread" in text
    assert text.index("not measured yet") < text.index("\nmiddle\n") < text.index("E-step")
    for mark in marks:
        assert __main__.PAGE.read_text(encoding="utf-8").count(mark) == 1


def test_what_a_user_gets_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {
        "K": 20, "documents": 120_000, "MB": 116.3, "truth": "label",
        "ways": {
            "hmrf_dask": {"wall": 10.0, "cpu": 15.0, "peak_MiB": 1100, "nmi": 0.33},
            "scikit_learn": {"wall": 21.0, "cpu": 35.0, "peak_MiB": 900, "nmi": 0.32},
        },
        "steps": {"start-up": 1.5, "starts": 8.5},
    }  # fmt: skip
    figures = [
        Figure("estep-20", "E-step", (6.5,)),
        Figure("end-to-end-20", "jobs", (2.1,), must=1.7, aim=2.2, facts=facts),
        Figure("end-to-end-answers-1000", "jobs", (1.1,), better="less", must=1.5, aim=1.2,
               facts=facts | {"answers": 1000, "steps": {"starts": 9.0}}),
    ]  # fmt: skip
    line = user_tables.sentence(figures)
    assert "released in 20 clusters after 10.0 s" in line
    assert line.endswith("a scikit-learn script with its own takes 21.0 s, 2.1 times as long.")
    report.print_tables(figures, "title")
    printed = capsys.readouterr().out
    assert printed.startswith(line)
    assert printed.index("KMeans with its defaults, K = 20") < printed.index("start-up")
    assert printed.index("start-up") < printed.index("E-step")
    assert user_tables.steps(figures)[1][-1] == ["all", "10.00", "9.00"]
    assert user_tables.sentence(figures[:1]) == ""


def test_a_command_is_measured_with_all_that_it_starts() -> None:
    busy = "import json; x = bytearray(2**26); print(json.dumps(sum(range(10**6))))"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}], check=True)"
    ran = commands.run_command([sys.executable, "-c", child])
    assert ran.timed.value == sum(range(10**6))
    assert ran.peak > 2**26
    assert ran.timed.cpu > 0
    assert ran.ended - ran.began == pytest.approx(ran.timed.wall, abs=0.1)
    with pytest.raises(RuntimeError, match="must end with 0, got 3"):
        commands.run_command([sys.executable, "-c", "raise SystemExit(3)"])


def test_rows_whose_peer_or_data_is_missing_say_so(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    bench = Bench(TINY, cache=tmp_path, arxiv=tmp_path / "none.parquet")
    for row in ("end-to-end", "end-to-end-answers", "real-text", "before-first-iteration",
                "refinement-round"):  # fmt: skip
        figures, fine = __main__.measure(row, bench)
        assert fine
        assert {one.skipped for one in figures} == {f"no file {tmp_path / 'none.parquet'}"}
    assert {one.skipped for one in dense_peers.dense(bench)} == {
        "no faiss; name a folder that holds faiss-cpu as --faiss"
    }
