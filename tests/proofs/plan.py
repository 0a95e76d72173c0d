"""A row of the proof table: what `hmrf-dask plan` says, against what runs then take.

The arithmetic of `jobs/reckoning.py` was chosen on arXiv and half of it, 2,000 newsgroup messages,
200,000 texts of 40 topics and 100,000 of 120; it is confirmed on the other corpora.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pyarrow.parquet as pq

from tests.proofs.loop import Figures, Row
from tests.proofs.million import (
    N_ANSWERS,
    N_DOCUMENTS,
    N_TOPICS,
    PER_FILE,
    answers,
    write_documents,
)
from tests.support.job_corpus import JobCorpus

DATA = Path(__file__).parents[2].parent / "shared" / "data"
MOST_OFF = 0.25


class Case(NamedTuple):
    """A job, and where it runs."""

    corpus: str
    where: tuple[str, str]


def plans() -> Figures:
    """Plan each case, run it, and compare."""
    if not DATA.exists():
        return {"skipped": f"no {DATA}"}
    with tempfile.TemporaryDirectory() as folder:
        jobs = _written(folder)
        compared = [compare(case, jobs[case.corpus]) for case in CASES]
    return {"table": list(as_table(compared)), "cases": compared}


def _written(folder: str) -> dict[str, Path]:
    """Write all jobs, and return them by their corpus.

    Other processes write: the peak of a process on Linux is at least what its parent had in memory.
    """
    jobs = {}
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        for number, (name, write) in enumerate(CORPORA.items()):
            own = Path(folder, str(number))
            own.mkdir()
            jobs[name] = pool.submit(write, own).result()
    return jobs


def compare(case: Case, job: Path) -> Figures:
    """Return what is planned and what is measured, and their ratios."""
    planned, took = _planned(job, case.where)
    with tempfile.TemporaryDirectory() as output:
        report, seconds, peaks = _watched_run(job, output, case.where)
    driver, *others = peaks
    figures = {
        "documents": (planned["documents"]["estimated"], report["documents"]["all"]),
        "features": (planned["features"], report["vocabulary"]["terms"]),
        "iterations": (planned["fit"]["iterations"], report["fit"]["iterations"]),
        "seconds": (planned["total"], seconds),
        "driver MB": (planned["memory"]["driver"] / 1e6, driver / 1e6),
    }
    if planned["way"] == "processes":
        figures["worker MB"] = (planned["memory"]["worker"] / 1e6, max(others) / 1e6)
    compared = {"case": f"{case.corpus}, {' '.join(case.where)[2:]}", **figures}
    lines = [*as_table([compared]), f"  planned in {took:.0f} s"]
    sys.stderr.writelines(f"{line}\n" for line in lines)
    return compared


def _planned(job: Path, where: tuple[str, str]) -> tuple[Any, float]:
    """Return a plan, and the seconds in which it was made."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "hmrf_dask", "plan", str(job), "--json", "--quiet", *where]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout), time.perf_counter() - began


def _watched_run(job: Path, output: str, where: tuple[str, str]) -> tuple[Any, float, list[int]]:
    """Return what a run reports, its seconds, and the peaks of its process and of others."""
    peaks: dict[int, int] = {}
    done = threading.Event()

    def watch() -> None:
        """Note the most bytes of each process, those that begin later too."""
        while not done.wait(0.05):
            for process in _family(own):
                with suppress(psutil.Error):
                    resident = process.memory_info().rss
                    peaks[process.pid] = max(peaks.get(process.pid, 0), resident)

    began = time.perf_counter()
    command = [sys.executable, "-m", "hmrf_dask", "run", str(job), "--json", "--quiet", *where]
    command += ["--output", f"{output}/out"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        own = psutil.Process(process.pid)
        watcher = threading.Thread(target=watch)
        watcher.start()
        assert process.stdout is not None
        out = process.stdout.read()
        process.wait()
        seconds = time.perf_counter() - began
        done.set()
        watcher.join()
    driver = peaks.pop(process.pid)
    return json.loads(out), seconds, [driver, *peaks.values()]


def _family(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return [process, *process.children(recursive=True)]
    return []


def as_table(compared: list[Figures]) -> Iterator[str]:
    """Yield a line for each figure: planned, measured, their ratio."""
    for one in compared:
        yield one["case"]
        for name, pair in one.items():
            if name != "case":
                planned, measured = pair
                yield f"  {name}: {planned:,.5g} planned, {measured:,.5g}: {planned / measured:.2f}"


def _holds(found: Figures) -> bool:
    pairs = [
        pair
        for one in found["cases"]
        for name, pair in one.items()
        if name == "seconds" or name.endswith(" MB")
    ]
    return all(abs(planned / measured - 1.0) <= MOST_OFF for planned, measured in pairs)


# ---- jobs


def _of_data(name: str, n_clusters: int, n_answers: int, folder: Path) -> Path:
    """Write the documents of a set in an order of chance, 5,000 a file, and a job."""
    rows = pq.read_table(DATA / f"{name}.parquet", columns=["text", "label"]).to_pylist()
    np.random.default_rng(0).shuffle(rows)
    documents = folder / "documents"
    documents.mkdir()
    for first in range(0, len(rows), 5_000):
        with (documents / f"part-{first:08}.jsonl").open("w") as file:
            for number, row in enumerate(rows[first : first + 5_000], first):
                file.write(json.dumps({"id": str(number), **row}) + "\n")
    corpus = JobCorpus(folder)
    corpus.write({"answers.csv": answers([row["label"] for row in rows], n_answers)})
    return corpus.write_job(
        resource={"path": "documents/*.jsonl"},
        columns={"label": "label", "empty_text": "keep"},
        method={"n_clusters": n_clusters},
    )


def _million(folder: Path) -> Path:
    corpus = JobCorpus(folder)
    topics = write_documents(folder / "documents", N_DOCUMENTS, PER_FILE)
    corpus.write({"answers.csv": answers(topics, N_ANSWERS)})
    return corpus.write_job(
        resource={"path": "documents/*.jsonl"},
        method={"n_clusters": N_TOPICS, "n_init": 1, "init": "k-means++"},
    )


CORPORA: dict[str, Callable[[Path], Path]] = {  # each written into a folder; returns the job
    "20 Newsgroups": partial(_of_data, "newsgroups20", 20, 1_000),
    "arXiv": partial(_of_data, "arxiv_120k", 20, 3_000),
    "a million": _million,
}
CASES = (
    Case("20 Newsgroups", ("--threads", "2")),
    Case("20 Newsgroups", ("--processes", "2")),
    Case("arXiv", ("--processes", "2")),
    Case("a million", ("--threads", "2")),
    Case("a million", ("--processes", "2")),
)
PLAN_ROWS: tuple[Row, ...] = (
    Row(
        "plan",
        "plan within 25 % of memory and time: 20,000 to 1,000,000, threads and processes",
        plans,
        _holds,
    ),
)
