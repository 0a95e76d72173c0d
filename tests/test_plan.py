"""`hmrf-dask plan`: what is read, what is rehearsed, and that its arithmetic is that of a fit."""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from distributed import Client

from hmrf_dask.cli import plan_command
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.cli.plan_command import _way
from hmrf_dask.distortions.cosine import Cosine
from hmrf_dask.documents.files import list_files
from hmrf_dask.documents.manifest import SCHEMA, Manifest, base_of, load_manifest
from hmrf_dask.documents.segments import list_documents
from hmrf_dask.fit import fitting
from hmrf_dask.fit.preparation import ADDING, SLICE_ROWS, TaskMemory
from hmrf_dask.flow.clients import SilentClusterError, on_threads
from hmrf_dask.jobs import plan, plan_sample, reckoning, rehearsal
from hmrf_dask.jobs.clusters import Cluster
from hmrf_dask.jobs.inputs import gather, load_job
from hmrf_dask.jobs.plan_sample import DocumentSample, read_sample, sample_of
from hmrf_dask.jobs.rehearsal import (
    BEGINNING,
    ENDING,
    STARTS,
    SURVEY,
    Rehearsal,
)
from hmrf_dask.jobs.run_job import run_job
from hmrf_dask.kernels.compiled import COMPILED, njit
from hmrf_dask.progress import compile_seconds
from hmrf_dask.tasks.model import Settings
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
    assert whole.kept_bytes == len(whole.lines(0, n_documents))
    size = sum(file.stat().st_size for file in (tmp_path / "documents").iterdir())
    monkeypatch.setattr(plan_sample, "BYTES", size // 4)
    monkeypatch.setattr(plan_sample, "PROBE", size // 20)
    part = sampled(tmp_path, n_documents // 10)
    assert len(part.records) == len(set(part.ids)) <= 0.2 * n_documents
    assert part.bytes_read <= size / 2
    off = 0.25 if write is as_compressed else 0.1  # its part is 47 documents
    assert abs(part.n_documents / n_documents - 1.0) <= off
    if write in (as_lines, as_several):  # read at several places, none of which ends at once
        assert 0 < part.error < 0.2 * n_documents
        assert len(part.records) >= 0.08 * n_documents
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


REHEARSAL = Rehearsal(
    n_documents=500, n_features=9_000, n_clusters=100, steps={}, n_iterations=1, iteration=0.0,
    n_rounds=0, round=0.0, row_bytes=800.0, row_values=80.0, written=0, n_answered=0,
    driver_peak=0, worker_peak=0, labelling=0.0, compiling=0.0,
)  # fmt: skip


def sizes_of(n_documents: int, n_features: int, n_clusters: int = 100) -> reckoning.Sizes:
    sample = DocumentSample(1, 1, n_documents, characters=500, n_read=1)
    facts = reckoning._facts_of(sample, REHEARSAL, n_documents)
    settings = Settings(n_clusters)
    return reckoning.Sizes(
        sample, settings, n_documents, n_features, 0, 0, facts, Cosine(), n_packs=3,
        together=False,
    )  # fmt: skip


def times_of(
    sizes: reckoning.Sizes, whole: Rehearsal, part: Rehearsal, few: Rehearsal = REHEARSAL,
    *, workers: int = 2,
) -> dict[str, float]:  # fmt: skip
    """Return the seconds of all steps, from runs over the whole sample, and over a part of it."""
    seen = reckoning.Runs(few, whole, part, part, 1)
    times = reckoning.Times(seen, sizes, 0.0, kept=True, rehearsed=2, alone=True)
    return {step.name: step.seconds(workers, rehearsed=2) for step in times.steps()}


def test_starts_take_what_their_rows_and_their_centroids_do() -> None:
    steps = dict.fromkeys((SURVEY, BEGINNING, ENDING), 0.0) | {STARTS: 3.0}
    whole = replace(REHEARSAL, n_documents=20_000, n_features=60_000, steps=steps)
    made = times_of(sizes_of(10**6, 180_000), whole, whole)
    assert made[STARTS] == pytest.approx(3.0 * (1 + 3) / 2)


def test_the_report_page_shows_no_more_of_more_documents() -> None:
    steps = dict.fromkeys((SURVEY, STARTS, BEGINNING, ENDING), 0.0)
    whole = replace(REHEARSAL, n_documents=4_000, steps=steps | {reckoning.PAGE: 0.5})
    part = replace(REHEARSAL, n_documents=2_000, steps=steps | {reckoning.PAGE: 0.3})
    for n_documents, seconds in ((4_500, 0.55), (5_000, 0.6), (10**6, 0.6)):
        made = times_of(sizes_of(n_documents, 9_000), whole, part)
        assert made[reckoning.PAGE] == pytest.approx(seconds)


def test_kernels_that_a_rehearsal_compiled_are_there_for_a_run() -> None:
    steps = dict.fromkeys((SURVEY, STARTS, BEGINNING, ENDING), 0.0)
    part = replace(REHEARSAL, n_documents=5_000, steps=steps)
    few = replace(part, n_documents=500, steps=steps | {SURVEY: 9.0}, compiling=7.0)
    made = times_of(sizes_of(40_000, 9_000), replace(part, n_documents=20_000), part, few)
    assert made[reckoning.ONCE] == pytest.approx(2.0)


def test_kernels_that_were_compiled_while_k_was_chosen_are_not_multiplied() -> None:
    steps = dict.fromkeys((SURVEY, STARTS, BEGINNING, ENDING), 0.0)
    part = replace(REHEARSAL, n_documents=5_000, steps=steps)
    for choosing, more, seconds, once in ((9.0, 2.0, 4 * 2.0, 2.0), (4.0, 5.0, 0.0, 2.0)):
        known = steps | {reckoning.CHOOSE: choosing, SURVEY: more}
        few = replace(part, n_documents=1_000, steps=known, compiling=7.0)
        made = times_of(sizes_of(40_000, 9_000), replace(part, n_documents=20_000), part, few)
        assert made[reckoning.CHOOSE] == pytest.approx(seconds)
        assert made[reckoning.ONCE] == pytest.approx(once)


def test_workers_compile_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, taken in (([1.0, 5.0, 4.0], 6.0), ([3.0], 3.0)):
        monkeypatch.setattr(rehearsal, "_of_processes", lambda _, found=seconds: found)
        assert rehearsal._compiled() == taken


def test_workers_that_do_not_answer_a_plan_end_it() -> None:
    with (
        Client(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ),
        dask.config.set({"hmrf.no-progress-timeout": "0.1 s"}),
        pytest.raises(SilentClusterError, match="workers must answer a plan"),
    ):  # fmt: skip
        rehearsal._of_processes(partial(time.sleep, 0.3))


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled")
def test_compiling_is_timed() -> None:
    before = compile_seconds()
    njit()(lambda x: x + 1)(1)
    assert compile_seconds() > before


def test_a_file_is_read_by_one_worker() -> None:
    steps = dict.fromkeys((SURVEY, STARTS, BEGINNING, ENDING), 0.0)
    whole = replace(REHEARSAL, n_documents=20_000, steps=steps | {"count words": 2.0})
    part = replace(REHEARSAL, n_documents=5_000, steps=steps | {"count words": 0.5})
    for n_packs, workers, seconds in ((3, 2, 4.0), (3, 8, 8 / 3), (1, 1, 8.0), (1, 8, 8.0)):
        sizes = replace(sizes_of(40_000, 9_000), n_packs=n_packs)
        made = times_of(sizes, whole, part, workers=workers)
        assert made["count words"] == pytest.approx(seconds)


def test_centroids_lie_with_owners_as_in_a_fit() -> None:
    sizes = sizes_of(10**6, 50_000)
    every = 8 * 100 * 50_000
    assert reckoning.traffic_of(sizes, 0)["to_a_worker"] == 0  # threads
    of_two = reckoning.traffic_of(sizes, 2)
    assert of_two == {"owners": 2, "to_a_worker": every // 2, "from_the_driver": 0}
    assert [sizes.owners(number) for number in (1, 2, 8, 64)] == [1, 2, 8, 38]
    together = replace(sizes, together=True)
    assert [together.owners(number) for number in (1, 2, 8, 64)] == [1, 1, 1, 1]
    of_one = {"owners": 1, "to_a_worker": 0, "from_the_driver": 0}
    assert reckoning.traffic_of(together, 64) == of_one
    few = reckoning.traffic_of(sizes_of(10**6, 9_000), 4)
    assert few == {"owners": 0, "to_a_worker": 8 * 900_000, "from_the_driver": 4 * 8 * 900_000}
    adding = [
        {task.name for task in reckoning.tasks_of(sizes, n_workers, refining=False)}
        for n_workers in (0, 2)
    ]
    assert [ADDING in names for names in adding] == [True, False]
    memory = reckoning.Memory(REHEARSAL, sizes, 2, kept=True)
    assert memory.driver(2, alone=False) < 2 * every < memory.driver(2, alone=True)
    assert memory.worker(2) > memory.worker(8) > every


def said(folder: Path, n_documents: int, where: plan.Where = WHERE, **job: Any) -> plan.Plan:
    """Return what is said of so many documents of rehearsals that took some seconds."""
    steps = dict.fromkeys((SURVEY, STARTS, BEGINNING, ENDING), 1.0)
    seen = replace(REHEARSAL, steps=steps)
    written = JobCorpus(folder).write_all(n_documents=30, n_pairs=4, **job)
    with on_threads(2):
        return plan._planned(
            gather(load_job(str(written)), str(written)), where, sizes_of(n_documents, 9_000),
            reckoning.Runs(seen, seen, seen, seen, 1), (0.0, 1.0),
        )  # fmt: skip


def test_rows_that_do_not_stay_are_in_the_memory_of_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[TaskMemory] = []
    monkeypatch.setattr(plan, "check_memory", tasks.extend)
    for memory, name in ((2**60, "its partition"), (0, "its partition and the next")):
        monkeypatch.setattr(plan, "memory_of_all", lambda found=memory: found)
        tasks.clear()
        said(tmp_path, 10**6)
        assert name in dict(tasks[0].parts)
    assert reckoning.rows_read(sizes_of(10**9, 9_000), 2) == SLICE_ROWS


def test_a_plan_says_on_how_many_documents_k_was_chosen(tmp_path: Path) -> None:
    made = said(tmp_path, 700, method={"n_clusters": "auto"})
    assert made.assumed[0].startswith("K was chosen on 500 documents")


def test_a_cluster_that_was_not_asked_is_named_where_no_option_was_given(tmp_path: Path) -> None:
    where = plan.Where("threads", 1)  # so that no client is needed
    cluster = {"address": "tls://scheduler:8786"}
    for asked in (False, True):
        made = said(tmp_path, 700, replace(where, asked=asked), cluster=cluster)
        words = "was not asked: 1 worker of one thread is planned for"
        assert any(words in line for line in made.assumed) is not asked


@pytest.mark.parametrize(("owners", "seconds"), [(0, 1.0), (1, 3.0)])
def test_an_iteration_is_that_of_centroids_with_owners(
    owners: int, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rehearse(_: Any, name: str, n_documents: int, **__: Any) -> Rehearsal:
        """Return fits of which the first one has no owners, and more iterations."""
        again = {"n_iterations": 3, "iteration": 3.0} if name == "again" else {}
        first = replace(REHEARSAL, n_iterations=5, iteration=1.0, n_documents=n_documents)
        return replace(first, **again)

    monkeypatch.setattr(plan, "rehearse", rehearse)
    monkeypatch.setattr(plan, "_n_owners", lambda *_: owners)
    job = JobCorpus(tmp_path).write_all(n_documents=30, n_pairs=4)
    lots = DocumentSample(1, 1, 10**6, ids=[""] * 20_000, records=[b""] * 20_000)
    asked = plan.Rehearsed(gather(load_job(str(job)), str(job)), lots, "")
    assert plan._rehearsed(asked, WHERE, print).whole.iteration == seconds


def test_k_is_chosen_once_on_few_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[int, Any]]()

    def rehearse(_: Any, __: str, n_documents: int, **how: Any) -> Rehearsal:
        """Note what was asked for."""
        asked.append((n_documents, how.get("n_clusters", "the job's")))
        return replace(REHEARSAL, n_documents=n_documents, n_clusters=7)

    monkeypatch.setattr(plan, "rehearse", rehearse)
    job = JobCorpus(tmp_path).write_all(n_documents=30, n_pairs=4, method={"n_clusters": "auto"})
    lots = DocumentSample(1, 1, 10**6, ids=[""] * 20_000, records=[b""] * 20_000)
    plan._rehearsed(plan.Rehearsed(gather(load_job(str(job)), str(job)), lots, ""), WHERE, print)
    numbers, clusters = zip(*asked, strict=True)
    assert numbers == (1_000, 20_000, 5_000, 5_000, 20_000)
    assert clusters == ("the job's", 7, 7, 7, 7)


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


@pytest.mark.parametrize(
    ("where", "cluster", "way"),
    [
        ({"threads": 3}, {}, ("threads", 3)),
        ({}, {"local": 2}, ("threads", 2)),
        ({"workers": 9}, {"processes": 2}, ("processes", 9)),
        ({}, {"address": "tls://scheduler:8786", "wait_for": 5}, ("processes", 5)),
        ({}, {"class": "dask_jobqueue.SLURMCluster", "workers": {"least": 4, "most": 16}},
         ("processes", 16)),
        ({}, {"class": "dask_kubernetes.operator.KubeCluster"}, ("processes", 1)),
    ],
)  # fmt: skip
def test_a_job_is_planned_for_where_it_runs(
    where: dict[str, int], cluster: dict[str, Any], way: tuple[str, int]
) -> None:
    options = dict.fromkeys(("threads", "processes", "workers")) | where
    assert _way(options, Cluster.model_validate(cluster)) == way


@pytest.mark.parametrize(
    ("options", "cluster", "there"),
    [
        (["--workers=64"], {"processes": 2}, {"n_workers": 2, "threads_per_worker": 1}),
        ([], {"address": "tls://scheduler:8786"}, {"n_workers": 1, "threads_per_worker": 1}),
        (["--processes=3"], {"address": "tls://scheduler:8786"}, {"processes": 2}),
        ([], {"processes": 2}, {"processes": 2}),
        (["--threads=1"], {}, {"threads": 1}),
    ],
)  # fmt: skip
def test_a_job_is_rehearsed_on_the_threads_that_it_will_have(
    options: list[str], cluster: dict[str, Any], there: dict[str, int], made: plan.Plan,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked = list[Any]()

    def connected_to(where: dict[str, int], cluster: Cluster | None = None) -> Any:
        """Note where a rehearsal is to run."""
        asked.append(where if cluster is None else cluster.kwargs)
        return nullcontext()

    monkeypatch.setattr(plan_command, "connected_to", connected_to)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(plan, "plan_job", lambda _, where, **__: asked.append(where) or made)
    job = JobCorpus(tmp_path).write_all(n_documents=30, n_pairs=4, cluster=cluster)
    assert CliRunner().invoke(hmrf, ["plan", str(job), *options]).exit_code == 0
    assert asked[0] == there
    assert asked[1].together == ("threads_per_worker" not in there)
    assert asked[1].asked == bool(options)
