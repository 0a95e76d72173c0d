"""Rows of the proof table about jobs: from a bucket to releases, killed, without a client."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet as pq

from tests.proofs.loop import Figures, Row
from tests.support.job_corpus import JobCorpus, lines
from tests.support.killed_jobs import killed_jobs
from tests.support.stores import create_in_turn

ROOT = Path(__file__).parents[2]
NEWS = ROOT.parent / "shared" / "data" / "newsgroups20.parquet"
N_ADDED, PER_FILE = 1000, 2000
KILLS = 20
STOPS, SEEDS = 12, 5
LONGEST = 300.0  # seconds to wait for a run
BUCKET = "s3://news"


def hmrf(folder: Path, *arguments: str) -> tuple[float, Any]:
    """Run a command; return its seconds and what it printed as JSON."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "hmrf_dask", *arguments, "--json", "--quiet"]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return round(time.perf_counter() - began, 2), json.loads(done.stdout)


# ---- from a bucket


@contextmanager
def bucket(address: str = "127.0.0.1") -> Iterator[Any]:
    """Give an empty bucket of a server that speaks S3 over HTTP."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for every request
    server = ThreadedMotoServer(ip_address=address, port=0)
    create_in_turn()
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    files = fsspec.filesystem("s3", skip_instance_cache=True)  # which knows a former server
    if files.exists(BUCKET):  # moto keeps what a former server of this process had
        files.rm(BUCKET, recursive=True)
    files.makedirs(BUCKET, exist_ok=True)
    yield files
    server.stop()


def news_from_a_bucket() -> Figures:
    """Run 20 Newsgroups four times: at first, with nothing new, with documents, with answers."""
    if not NEWS.exists():
        return {"skipped": f"no {NEWS}"}
    rows = pq.read_table(NEWS).to_pylist()
    documents = [{"id": r["doc_id"], "text": r["text"], "label": r["label"]} for r in rows]
    np.random.default_rng(0).shuffle(documents)
    with bucket() as files, tempfile.TemporaryDirectory() as folder:
        corpus = JobCorpus(Path(folder), documents=documents)
        job = str(
            corpus.write_job(
                resource={"path": f"{BUCKET}/documents/*.jsonl.gz"},
                columns={"label": "label", "empty_text": "keep"},
                method={"n_clusters": 20},
                text={"stop_words": "english", "min_df": 2, "max_df": 0.5},
                output=f"{BUCKET}/clusters",
            )
        )
        manifest = Path(folder) / "manifest.yaml"
        text = manifest.read_text().replace("answers.csv", f"{BUCKET}/answers.csv")
        manifest.write_text(text)
        first_ones = documents[:-N_ADDED]
        corpus.documents = first_ones
        for start in range(0, len(first_ones), PER_FILE):
            data = lines(first_ones[start : start + PER_FILE])
            files.pipe_file(f"{BUCKET}/documents/part-{start:05}.jsonl.gz", data)
        files.pipe_file(f"{BUCKET}/answers.csv", corpus.answers(500))
        seconds, first = hmrf(Path(folder), "run", job)
        again_seconds, again = hmrf(Path(folder), "run", job)
        files.pipe_file(f"{BUCKET}/documents/part-x.jsonl.gz", lines(documents[-N_ADDED:]))
        added_seconds, added = hmrf(Path(folder), "run", job)
        files.pipe_file(f"{BUCKET}/answers.csv", corpus.answers(550))
        answers_seconds, answered = hmrf(Path(folder), "run", job)
        _, cold = hmrf(Path(folder), "run", job, "--output", f"{BUCKET}/cold")
    return {
        "documents": first["documents"]["all"],
        "first_seconds": seconds,
        "nmi": first["nmi"],
        "again": again["status"],
        "again_seconds": again_seconds,
        "added_seconds": added_seconds,
        "vectorised": added["documents"]["vectorised"],
        "kept_share": 1.0 - added["documents"]["moved_share"],
        "answers_seconds": answers_seconds,
        "warm_iterations": answered["fit"]["iterations"],
        "cold_iterations": cold["fit"]["iterations"],
    }


def _from_a_bucket_holds(found: Figures) -> bool:
    return bool(
        found["again"] == "up to date"
        and found["again_seconds"] < 3
        and found["vectorised"] == N_ADDED
        and found["kept_share"] >= 0.95
        and found["warm_iterations"] < found["cold_iterations"]
    )


# ---- killed


def killed() -> Figures:
    """Kill runs at one write in each twentieth of their writes, at random, and run them again."""
    with tempfile.TemporaryDirectory() as folder:
        method = {"n_clusters": 3, "n_init": 3}
        job = JobCorpus(Path(folder)).write_all(600, 100, method=method)
        found = killed_jobs(job, KILLS, seed=7)
    figures = {
        name: sum(one[name] for one in found["kills"])
        for name in ("killed", "half", "resumed", "same")
    }
    return {"writes": found["n_writes"], **figures, "at": [one["at"] for one in found["kills"]]}


def stopped() -> Figures:
    """Stop runs at random writes, let others take over and end, and wake the first ones."""
    with tempfile.TemporaryDirectory() as folder:
        job = JobCorpus(Path(folder)).write_all(300, 50, method={"n_clusters": 3, "n_init": 2})
        found = killed_jobs(job, STOPS, seed=11, how="stopped")["kills"]
    figures = {
        name: sum(one[name] for one in found) for name in ("taken", "as_undisturbed", "same")
    }
    # One that was stopped before it held the output finds it up to date when it wakes.
    ended = sum(
        one["code"] == 0 or (one["code"] == 75 and "another run took over" in one["words"])
        for one in found
    )
    return {
        **figures,
        "ended": ended,
        "changed": [one["changed"] for one in found if one["changed"]],
    }


# ---- a store with faults


def faulty() -> Figures:
    """Run a job from and to an S3 that swallows 8 % of the requests, or is busy for 60 %."""
    with bucket() as files, tempfile.TemporaryDirectory() as folder:
        job = JobCorpus(Path(folder)).write_all(80, 20, method={"n_clusters": 3, "n_init": 2})
        command = [sys.executable, "-m", "hmrf_dask", "run", str(job), "--quiet", "--output"]
        subprocess.run([*command, f"{BUCKET}/whole"], check=True)
        expected = published(files, "whole")
        with ThreadPoolExecutor(2 * SEEDS) as pool:  # most of the time they wait
            ended = list(pool.map(partial(_run_on_faulty_s3, command), range(2 * SEEDS)))
        same = [
            published(files, f"out-{number}") == expected
            for number, done in enumerate(ended)
            if done.returncode == 0
        ]
    traces = sum("Traceback" in done.stderr for done in ended)
    codes = [done.returncode for done in ended]
    return {"codes": codes, "same": sum(same), "tracebacks": traces}


def _run_on_faulty_s3(command: list[str], number: int) -> subprocess.CompletedProcess[str]:
    """Run a job on a bucket behind a proxy: the first seeds are busy, the others silent."""
    from tests.support.faulty_s3 import faulty_s3

    with faulty_s3(os.environ["AWS_ENDPOINT_URL"], number) as server:
        server.busy, server.silent = (0.6, 0.0) if number < SEEDS else (0.0, 0.08)
        where = os.environ | {"AWS_ENDPOINT_URL": server.url}
        where |= {"DASK_HMRF__STORE_TIMEOUT": "36 s"}
        output = f"{BUCKET}/out-{number}"
        return subprocess.run([*command, output], env=where, stderr=subprocess.PIPE, text=True)


def published(files: Any, name: str) -> dict[str, str]:
    release = json.loads(files.cat_file(f"{BUCKET}/{name}/releases/00001.json"))["content"]
    return {
        file.rpartition("/")[2]: sha256
        for file, sha256 in release["files"].items()
        if "/assignments/" in file or file.endswith((".npy", "clusters.parquet"))
    }


# ---- without a client


def detached() -> Figures:
    """Submit to a scheduler and two workers of their own, and kill the client in the middle."""
    from hmrf_dask.releases.lock import holder_of, open_output
    from hmrf_dask.releases.release import damages, latest

    with tempfile.TemporaryDirectory() as folder, _cluster(Path(folder)) as scheduler_file:
        job = JobCorpus(Path(folder)).write_all(3000, 300, method={"n_clusters": 3})
        output = f"{folder}/out"
        command = [sys.executable, "-m", "hmrf_dask", "run", str(job), "--detach"]
        client = subprocess.Popen([*command, "--scheduler-file", scheduler_file])
        began = time.perf_counter()
        while holder_of(output) is None and time.perf_counter() - began < LONGEST:
            time.sleep(0.05)
        client.send_signal(signal.SIGKILL)
        client.wait()
        began = time.perf_counter()
        while (release := latest(output)) is None and time.perf_counter() - began < LONGEST:
            time.sleep(0.1)
        return {
            "seconds_after_the_kill": round(time.perf_counter() - began, 1),
            "released": release is not None and not damages(open_output(output), release),
            "documents": release.counts["documents"] if release is not None else 0,
        }


@contextmanager
def _cluster(folder: Path) -> Iterator[str]:
    script = ROOT / "deploy" / "local" / "cluster.sh"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PORT": "0", "WORKERS": "2"}
    process = subprocess.Popen(
        ["bash", str(script), str(folder / "scheduler.json")],
        env=environment, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        while not (folder / "scheduler.json").exists():
            time.sleep(0.1)
        yield str(folder / "scheduler.json")
    finally:
        process.terminate()
        process.wait()


JOB_ROWS: tuple[Row, ...] = (
    Row(
        "job-bucket",
        "20 Newsgroups in S3: again in < 3 s; 1,000 more: >= 95 % keep clusters; answers: warm",
        news_from_a_bucket,
        _from_a_bucket_holds,
    ),
    Row(
        "job-killed",
        "killed at 20 random moments and run again: the same bits, never half a release",
        killed,
        lambda f: f["killed"] == f["resumed"] == f["same"] == KILLS and not f["half"],
    ),
    Row(
        "job-stopped",
        "stopped at 12 random writes, taken over, woken: 75, the bits of one undisturbed run",
        stopped,
        lambda f: (
            f["taken"] == f["as_undisturbed"] == f["same"] == f["ended"] == STOPS
            and not f["changed"]
        ),
    ),
    Row(
        "job-faulty-s3",
        "60 % of 503, 8 % without an answer, five seeds each: 0 or 75, never a traceback",
        faulty,
        lambda f: (
            set(f["codes"]) <= {0, 75} and f["same"] == f["codes"].count(0) and not f["tracebacks"]
        ),
    ),
    Row(
        "job-detached",
        "submitted to a scheduler and two workers, the client killed: the run commits",
        detached,
        lambda f: f["released"] and f["documents"] == 3000,
    ),
)
