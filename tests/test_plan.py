"""`hmrf-dask plan`: what is read, what is rehearsed, and that its arithmetic is that of a fit."""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.documents.files import list_files
from hmrf_dask.documents.manifest import SCHEMA, Manifest, base_of, load_manifest
from hmrf_dask.documents.segments import list_documents
from hmrf_dask.fit import fitting
from hmrf_dask.fit.preparation import TaskMemory
from hmrf_dask.flow.clients import on_threads
from hmrf_dask.jobs import plan, plan_sample, reckoning
from hmrf_dask.jobs.inputs import gather, load_job
from hmrf_dask.jobs.plan_sample import DocumentSample, read_sample, sample_of
from hmrf_dask.jobs.run_job import run_job
from tests.support.job_corpus import JobCorpus

N = 3_000
WHERE = plan.Where("threads", 2)


@cache
def records(n_documents: int = N) -> list[dict[str, str]]:
    """Return documents whose length differs a lot."""
    rng = np.random.default_rng(0)
    words = [f"w{number:04x}" for number in range(2_000)]
    return [
        {"id": f"d{number}", "text": " ".join(rng.choice(words, length).tolist())}
        for number, length in enumerate(rng.integers(2, 60, n_documents).tolist())
    ]


def as_lines(folder: Path) -> None:
    text = "".join(f"{json.dumps(one)}\n" for one in records())
    (folder / "all.jsonl").write_text(text)


def as_several(folder: Path) -> None:
    for first in range(0, N, 300):
        text = "".join(f"{json.dumps(one)}\n" for one in records()[first : first + 300])
        (folder / f"{first:05}.jsonl").write_text(text)


def as_compressed(folder: Path) -> None:
    text = "".join(f"{json.dumps(one)}\n" for one in records())
    (folder / "all.jsonl.gz").write_bytes(gzip.compress(text.encode()))


def as_table(folder: Path) -> None:
    with (folder / "all.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "text"])
        writer.writeheader()
        writer.writerows(records())


def as_parquet(folder: Path) -> None:
    table = pa.Table.from_pylist(records())
    pq.write_table(table, folder / "all.parquet", row_group_size=500)


def as_files(folder: Path) -> None:
    for one in records(400):
        (folder / f"{one['id']}.txt").write_text(one["text"])


def sampled(folder: Path, most: int) -> DocumentSample:
    JobCorpus(folder).write_job(columns={})
    manifest = load_manifest(folder / "manifest.yaml")
    sources = list_files(manifest, base_of(folder / "manifest.yaml"))
    with tempfile.TemporaryDirectory() as scratch:
        return read_sample(sources, manifest.documents, most, scratch)


@pytest.mark.parametrize(
    ("write", "n_documents"),
    [
        (as_lines, N), (as_several, N), (as_compressed, N), (as_table, N), (as_parquet, N),
        (as_files, 400),
    ],
)  # fmt: skip
def test_documents_are_estimated_from_a_part_of_their_bytes(
    write: Callable[[Path], None],
    n_documents: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "documents").mkdir()
    write(tmp_path / "documents")
    (tmp_path / "answers.csv").write_text("a,b,kind\n")
    whole = sampled(tmp_path, 10_000)
    assert (whole.n_documents, whole.error, whole.n_read) == (n_documents, 0.0, n_documents)
    assert len(whole.records) == len(set(whole.ids)) == n_documents
    size = sum(file.stat().st_size for file in (tmp_path / "documents").iterdir())
    monkeypatch.setattr(plan_sample, "BYTES", size // 4)
    monkeypatch.setattr(plan_sample, "PROBE", size // 20)
    part = sampled(tmp_path, n_documents // 10)
    assert len(part.records) == len(set(part.ids)) <= 0.2 * n_documents
    assert part.bytes_read <= size / 2
    off = 0.25 if write is as_compressed else 0.1  # its part is 47 documents
    assert abs(part.n_documents / n_documents - 1.0) <= off
    if write in (as_lines, as_several):  # read at several places
        assert 0 < part.error < 0.2 * n_documents
    kept = [json.loads(line) for line in part.lines(0, 3).splitlines()]
    assert [one["id"] for one in kept] == part.ids[:3]


def test_files_next_to_a_table_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as database, database:
        database.execute("CREATE TABLE notes (id TEXT PRIMARY KEY, text TEXT)")
        rows = [(f"t{number}", "a note") for number in range(30)]
        database.executemany("INSERT INTO notes VALUES (?, ?)", rows)
    monkeypatch.setenv("NOTES_URL", f"sqlite:///{tmp_path}/a.db")
    sql = {"query": "select id, text from notes", "url_env": "NOTES_URL", "key": "id"}
    (tmp_path / "a.csv").write_text("id,text\nf1,a file\nf2,of two\n")
    resources = [{"name": "files", "path": "a.csv"}, {"name": "table", "sql": sql}]
    manifest = Manifest.model_validate({"$schema": SCHEMA, "name": "n", "resources": resources})
    with closing(list_documents(manifest, str(tmp_path))) as documents:
        found = sample_of(documents.segments, manifest.documents, 100, str(tmp_path))
    assert (found.n_documents, found.complete) == (32, True)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    (folder / "a.db").touch()
    target = {"table": "clusters", "url_env": "CLUSTERS_URL"}
    return JobCorpus(folder).write_all(n_documents=120, n_pairs=30, publish={"sql": target})


def planned(job: Path) -> plan.Plan:
    with on_threads(2):
        return plan.plan_job(gather(load_job(str(job)), str(job)), WHERE)


@pytest.fixture(scope="module")
def made(job: Path) -> Iterator[plan.Plan]:
    """The plan of a job that is small; nothing is left of it, and readers see nothing of it."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as scratch:
        patch.setattr(tempfile, "tempdir", scratch)
        patch.setenv("CLUSTERS_URL", f"sqlite:///{job.parent}/a.db")
        before = sorted(job.parent.rglob("*"))
        yield planned(job)
        assert sorted(job.parent.rglob("*")) == before
        assert not (job.parent / "a.db").stat().st_size, "a rehearsal was published"
        assert not list(Path(scratch).glob("hmrf-plan-*"))


def test_what_is_rehearsed_whole_is_what_a_fit_finds(
    job: Path, made: plan.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[TaskMemory] = []
    monkeypatch.setattr(fitting, "check_memory", tasks.extend)
    inputs = gather(
        load_job(str(job), {"output": str(tmp_path / "out"), "publish": None}), str(job)
    )
    with on_threads(2):
        report = run_job(inputs)
    assert made.documents["estimated"] == report.documents["all"]
    assert made.documents["plus_or_minus"] == 0
    assert made.features == report.vocabulary["terms"]
    assert made.clusters["n_clusters"] == report.clusters["number"]
    assert made.answers["pairs"] == sum(report.answers["pairs"].values())
    assert made.fit["iterations"] == made.fit["iterations_rehearsed"]
    largest = max(task.total for task in tasks)
    assert abs(made.memory["largest_task"] / largest - 1.0) < 0.02
    assert made.memory["rows_stay"]
    assert made.memory["driver"] > made.memory["largest_task"] / 2
    written = sum(file.stat().st_size for file in (tmp_path / "out").rglob("*") if file.is_file())
    assert 0.5 < made.store["written"] / written < 1.5
    assert made.total == pytest.approx(sum(made.seconds.values()), abs=0.1)


@pytest.mark.long  # four small jobs more
def test_a_part_is_rehearsed_of_what_is_large(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SMALL", 80), ("FEW", 20), ("LONGEST", 0.0)):
        monkeypatch.setattr(plan, name, value)
    made = planned(job)
    assert (made.documents["estimated"], made.documents["rehearsed"]) == (120, 80)
    assert {one.workers for one in made.by_workers} == {1, 2, 4, 8}
    seconds = [one.seconds for one in made.by_workers]
    assert seconds == sorted(seconds, reverse=True)
    assert made.assumed


def test_a_step_is_shared_by_as_many_as_can() -> None:
    step = reckoning.StepTime("starts", 1.0, 8.0, most=4)
    taken = [step.seconds(workers, rehearsed=2) for workers in (1, 2, 4, 8)]
    assert taken == [17.0, 9.0, 5.0, 5.0]


def test_words_grow_as_they_were_seen_to_grow() -> None:
    grown = [(number, round(40 * number**0.6)) for number in (500, 5_000, 20_000)]
    assert reckoning.features_of(grown, 10**6) == pytest.approx(40 * (10**6) ** 0.6, rel=0.01)
    ends = [(500, 9_800), (5_000, 31_000), (20_000, 45_000)]  # of 50,000 words
    assert 45_000 < reckoning.features_of(ends, 10**6) < 80_000


def test_the_command_says_it_as_a_page_and_ends_as_a_run_would(
    job: Path, made: plan.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "plan_job", lambda *_, **__: made)
    shown = CliRunner().invoke(hmrf, ["plan", str(job), "--threads", "2"])
    assert shown.exit_code == 0, shown.output
    for words in ("2 threads: about", "documents  120 in 6 files", "in all", "machine hours"):
        assert words in shown.stdout
    refused = replace(made, problems=["a task must fit"], exit_code=78)
    monkeypatch.setattr(plan, "plan_job", lambda *_, **__: refused)
    result = CliRunner().invoke(hmrf, ["plan", str(job), "--threads", "1", "--quiet"])
    assert (result.exit_code, result.output) == (78, "error: a task must fit\n")


def test_a_plan_is_refused_as_its_fit_would_be(made: plan.Plan) -> None:
    largest = TaskMemory("a task", (("all there is", 2**60),))
    assert "must fit the memory there is" in plan.problems_of([largest])[0]
    assert not made.problems


def test_more_clusters_than_documents_are_an_error_in_words(tmp_path: Path) -> None:
    few = JobCorpus(tmp_path).write_all(n_documents=30, n_pairs=4, method={"n_clusters": 31})
    result = CliRunner().invoke(hmrf, ["plan", str(few), "--threads", "1"])
    assert result.exit_code == 65
    assert "more documents than clusters, got 30 for 31" in result.stderr
