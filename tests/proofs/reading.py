"""Rows of the proof table about documents in a database: how fast, and what becomes of faults."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests.proofs.loop import Figures, Row
from tests.proofs.measuring import MEBIBYTE, Resident, seconds
from tests.support.faulty_databases import FAULTS, play
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import assigned
from tests.support.job_runs import run as job_run
from tests.support.postgres import WAY_OUT, Postgres, programs, run
from tests.support.tables import NAME, Tickets, taken, write_sql_job

WORDS, TERMS = 80, 50_000
CHUNK = 50_000
QUERY = "SELECT id, text FROM tickets"
CLIENT = 300 * 10**6  # bytes


@contextmanager
def server() -> Iterator[Postgres]:
    """Give a PostgreSQL of our own, whose address the environment holds."""
    where = programs()
    assert where is not None
    own = Postgres(where)
    try:
        own.create()
        own.start()
        os.environ[NAME] = own.url()
        yield own
    finally:
        own.stop()
        shutil.rmtree(own.folder)


def texts(n_rows: int) -> Iterator[list[tuple[int, str]]]:
    """Yield documents of 80 words with the frequencies of language, a chunk at a time."""
    generator = np.random.default_rng(19)
    letters = np.array(list("etaoinshrdlucmfwypvbgkqjxz"))
    sizes = generator.integers(3, 10, TERMS)
    words = np.array(["".join(generator.choice(letters, size)) for size in sizes], object)
    shares = 1 / (np.arange(TERMS) + 2.7)
    for first in range(0, n_rows, CHUNK):
        n = min(CHUNK, n_rows - first)
        drawn = words[generator.choice(TERMS, (n, WORDS), p=shares / shares.sum())]
        yield [(first + number, " ".join(row)) for number, row in enumerate(drawn)]


def filled(own: Postgres, folder: Path, n_rows: int) -> None:
    """Put documents into a table, and into one file of JSON lines."""
    import pyarrow as pa
    from adbc_driver_postgresql import dbapi

    run(own.url(), "CREATE TABLE tickets (id bigint PRIMARY KEY, text text)")
    with (folder / "tickets.jsonl").open("w") as lines:
        for rows in texts(n_rows):
            table = pa.table({"id": [one for one, _ in rows], "text": [one for _, one in rows]})
            with dbapi.connect(own.url(), autocommit=True) as known, known.cursor() as cursor:
                cursor.adbc_ingest("tickets", table, mode="append")
            lines.writelines(json.dumps({"id": i, "text": t}) + "\n" for i, t in rows)
    run(own.url(), "VACUUM ANALYZE tickets")


COUNT = """
import json, sys, tempfile, time
from pathlib import Path
import dask
from distributed import Client, LocalCluster
from hmrf_dask.documents.manifest import load_manifest
from hmrf_dask.documents.segments import list_documents
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.jobs.packs import packed
from hmrf_dask.text.counts import TextSettings
from hmrf_dask.text.files import Place
from hmrf_dask.text.vectorise import count_sources

manifest, kind = sys.argv[1:]

def most_memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

def counted():
    with tempfile.TemporaryDirectory() as folder:
        place, began = Place(folder), time.perf_counter()
        documents = list_documents(load_manifest(manifest), manifest.rpartition("/")[0])
        parts = [part for one in documents.segments for part in one.parts()]
        packs = packed(parts, {}, place, stop=True)
        listed = time.perf_counter() - began
        found = count_sources(DaskFlow(), packs, TextSettings(), place)
        documents.close()
        took = time.perf_counter() - began
    return {"seconds": took, "listed": listed, "packs": len(packs),
            "texts": sum(one.n_texts for one in found),
            "client": most_memory()}

if kind == "threads":
    with dask.config.set(scheduler="threads", num_workers=2):
        print(json.dumps(counted()))
else:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster):
            print(json.dumps(counted()))
"""


def count(manifest: Path, kind: str) -> dict[str, Any]:
    """Return what counting the words of a manifest's documents took, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COUNT, str(manifest), kind],
        check=True, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def manifest_of(folder: Path, name: str, known: dict[str, Any]) -> Path:
    """Write a manifest with one resource."""
    path = folder / f"{name}.json"
    content = {"$schema": "hmrf-dask/manifest/v1", "name": name}
    path.write_text(json.dumps({**content, "resources": [{"name": "tickets", **known}]}))
    return path


def speed(n_rows: int = 1_000_000, repeats: int = 3) -> Figures:
    """Count the words of a table, and of a file with the same documents, in turn."""
    if programs() is None:
        return {"skipped": f"there is no PostgreSQL: {WAY_OUT}"}
    figures: Figures = {"rows": n_rows}
    with tempfile.TemporaryDirectory() as name, server() as own:
        folder = Path(name)
        filled(own, folder, n_rows)
        sql = {"sql": {"query": QUERY, "url_env": NAME, "key": "id"}}
        manifests = {
            "table": manifest_of(folder, "table", sql),
            "file": manifest_of(folder, "file", {"path": "tickets.jsonl"}),
        }
        for kind in ("threads", "processes"):
            ratios, taken = [], []
            for _ in range(repeats):
                found = {one: count(path, kind) for one, path in manifests.items()}
                out = own.folder / "copied"
                copied, _ = seconds(lambda out=out: run(own.url(), f"COPY ({QUERY}) TO '{out}'"))
                assert found["table"]["texts"] == found["file"]["texts"] == n_rows
                both = found["file"]["seconds"] + copied
                ratios.append(found["table"]["seconds"] / both)
                taken.append(
                    {one: round(known["seconds"], 2) for one, known in found.items()}
                    | {"copy": copied, "listed": round(found["table"]["listed"], 2)}
                )
            figures[f"{kind}: table over file and copy"] = round(median(ratios), 3)
            figures[f"{kind}: client MB"] = found["table"]["client"] // 10**6
            figures[f"{kind}: seconds"] = taken
    return figures


def _holds(figures: Figures) -> bool:
    kinds = ("threads", "processes")
    fast = all(figures[f"{kind}: table over file and copy"] <= 1.1 for kind in kinds)
    # With threads the client is the worker, too.
    return fast and figures["processes: client MB"] * 10**6 < CLIENT


def faults(times: int = 4) -> Figures:
    """Play every fault some times at moments by chance."""
    if programs() is None:
        return {"skipped": f"there is no PostgreSQL: {WAY_OUT}"}
    with tempfile.TemporaryDirectory() as name, server() as own:
        return play(own, Path(name), n_documents=300, times=times, seed=19)


def _all_whole(figures: Figures) -> bool:
    ended = [one for kind in FAULTS for one in figures[kind]]
    return len(ended) >= 20 and {*ended} <= {"done", "exit 75"}


def second_night(n_rows: int = 20_000) -> Figures:
    """Let a night have 1 % new, changed and gone rows; count what the server read for it."""
    if programs() is None:
        return {"skipped": f"there is no PostgreSQL: {WAY_OUT}"}
    with tempfile.TemporaryDirectory() as name, server() as own:
        return night(own, Path(name), n_rows)


def night(own: Postgres, folder: Path, n_rows: int) -> Figures:
    """Run a job twice, and return what it reports of the second night, and what the server read."""
    corpus, tickets = JobCorpus(folder), Tickets("postgresql")
    few = n_rows // 100
    documents = corpus.draw(n_rows)
    tickets.make()
    first = datetime(2026, 1, 1, tzinfo=UTC)
    times = ((first + n * timedelta(minutes=15)).isoformat() for n in range(n_rows))
    tickets.put([{**one, "updated": at} for one, at in zip(documents, times, strict=True)])
    corpus.write({"answers.csv": corpus.answers(20)})
    job = write_sql_job(
        corpus, {"changed": "updated", "deleted": "closed"}, method={"n_clusters": 3, "n_init": 1}
    )
    before = job_run(job)
    old, now = assigned(before), "2026-10-01T00:00:00+00:00"
    changed = [{**one, "text": f"{one['text']} again"} for one in documents[:few]]
    tickets.put([*changed, *corpus.draw(few)], updated=now)
    gone = ", ".join(f"'{one['id']}'" for one in documents[few : 2 * few])
    tickets.run(
        f"UPDATE tickets SET closed = '{now}', updated = '{now}' WHERE id IN ({gone})",
        "ANALYZE tickets",
    )
    own.run("SELECT pg_stat_reset()")
    after = job_run(job)
    new = assigned(after)
    ((of_table, by_index),) = own.run(
        "SELECT seq_tup_read, coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables"
    )
    told = {key: after.documents[key] for key in ("all", "new", "changed", "gone")}
    same = [one for one in old if one in new and old[one]["cluster"] == new[one]["cluster"]]
    return {
        **told,
        "rows read by scans of the table": of_table,
        "rows read by the index of changes": by_index,
        "of the same cluster": f"{len(same)} of {len(old) - few}",
    }


def large_text(n_bytes: int = 10**9) -> Figures:
    """Read a table with a text of a gigabyte: it is refused by its key, others are read."""
    if programs() is None:
        return {"skipped": f"there is no PostgreSQL: {WAY_OUT}"}
    with server() as own:
        own.run(
            "CREATE TABLE tickets AS SELECT 'small' AS id, 'a text' AS text",
            f"INSERT INTO tickets VALUES ('huge', repeat('x', {n_bytes}))",
        )
        source, memory = Tickets("postgresql").source(), Resident()
        good, bad = taken(source)
        return {"read": good, "refused": bad, "MiB": memory.growth // MEBIBYTE}


READING_ROWS = (
    Row(
        "sql-speed",
        "1M rows of 80 words read and counted from PostgreSQL: at most 1.1 x COPY and JSON lines, "
        "client under 300 MB",
        speed,
        _holds,
    ),
    Row(
        "sql-faults",
        "connections cut, timeouts, restarts, no disk, changes while rows are read: the same bits "
        "or 75, and then the same bits",
        faults,
        _all_whole,
    ),
    Row(
        "sql-night",
        "1 % new, 1 % changed, 1 % gone: the server reads these rows alone, each three times",
        second_night,
        lambda f: (
            f["rows read by scans of the table"] == 0
            and f["rows read by the index of changes"] <= 0.1 * f["all"]
            and f["new"] == f["changed"] == f["gone"] == f["all"] // 100
        ),
    ),
    Row(
        "sql-large",
        "a text of 1 GB among others is refused by its key",
        large_text,
        lambda f: f["read"] == {"small": "a text"} and [*f["refused"]] == ["huge"],
    ),
)
