"""A row of the proof table: a million generated documents, from JSONL files to assignments."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.proofs.loop import Figures, Row
from tests.support.job_corpus import JobCorpus

N_DOCUMENTS, PER_FILE = 1_000_000, 25_000
N_TOPICS, N_WORDS, TOPIC_WORDS, LENGTH = 100, 50_000, 300, 80
N_ANSWERS = 10_000
GIB = 2**30


def million() -> Figures:
    """Run a job over a million documents as a command of its own, its memory watched."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = JobCorpus(Path(folder))
        topics = write_documents(Path(folder) / "documents", N_DOCUMENTS, PER_FILE)
        corpus.write({"answers.csv": answers(topics, N_ANSWERS)})
        job = corpus.write_job(
            resource={"path": "documents/*.jsonl"},
            method={"n_clusters": N_TOPICS, "n_init": 1, "init": "k-means++"},
        )
        command = [sys.executable, "-m", "hmrf_dask", "run", str(job), "--json", "--quiet"]
        began = time.perf_counter()
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
            peaks = Peaks(process.pid)
            assert process.stdout is not None
            report = json.loads(process.stdout.read())
            peak = peaks.end()
        return {
            "documents": report["documents"]["all"],
            "terms": report["vocabulary"]["terms"],
            "nmi": report["nmi"],
            "iterations": report["fit"]["iterations"],
            "seconds": round(time.perf_counter() - began, 1),
            "seconds_by_step": report["seconds"],
            "peak_gib": round(peak / GIB, 2),
        }


def write_documents(folder: Path, n_documents: int, per_file: int) -> list[int]:
    """Write documents of planted topics as JSONL; return the topics.

    Half of a document's words are of its topic, half of all; both by Zipf's law.
    """
    folder.mkdir(parents=True)
    words = np.array([f"w{number:05x}" for number in range(N_WORDS)])
    own = np.random.default_rng(0).permutation(N_WORDS)[: N_TOPICS * TOPIC_WORDS]
    own = own.reshape(N_TOPICS, TOPIC_WORDS)
    topics: list[int] = []
    for first in range(0, n_documents, per_file):
        rng = np.random.default_rng([1, first])
        some = rng.integers(0, N_TOPICS, per_file)
        drawn = np.concatenate(
            [
                own[some[:, None], _zipf(rng, (per_file, LENGTH // 2), TOPIC_WORDS)],
                _zipf(rng, (per_file, LENGTH // 2), N_WORDS),
            ],
            axis=1,
        )
        with (folder / f"part-{first:08}.jsonl").open("w") as file:
            for number, (topic, row) in enumerate(zip(some, drawn, strict=True), first):
                record = {"id": str(number), "text": " ".join(words[row]), "label": str(topic)}
                file.write(json.dumps(record) + "\n")
        topics += some.tolist()
    return topics


def _zipf(rng: np.random.Generator, shape: tuple[int, int], n_words: int) -> Any:
    shares = 1.0 / np.arange(1, n_words + 1)
    ends = np.cumsum(shares) / shares.sum()
    return np.minimum(np.searchsorted(ends, rng.random(shape)), n_words - 1)


def answers(topics: list[int], n_pairs: int) -> bytes:
    """Return a pair file of right answers, half of them must-links."""
    rng, by_topic = np.random.default_rng(2), np.argsort(topics, kind="stable")
    pairs = set()
    while len(pairs) < n_pairs:
        place = int(rng.integers(0, len(topics) - 1))
        near = (int(by_topic[place]), int(by_topic[place + 1]))
        far = (place, int(rng.integers(place + 1, len(topics))))
        pairs.add(tuple(sorted(near if len(pairs) % 2 else far)))
    rows = [f"{a},{b},{'must' if topics[a] == topics[b] else 'cannot'}" for a, b in sorted(pairs)]
    return "\n".join(["a,b,kind", *rows, ""]).encode()


class Peaks:
    """Watches the memory of a process and of its children, those that begin later too."""

    def __init__(self, pid: int) -> None:
        self._process, self._peak, self._done = psutil.Process(pid), 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            try:
                family = [self._process, *self._process.children(recursive=True)]
                self._peak = max(self._peak, sum(one.memory_info().rss for one in family))
            except psutil.NoSuchProcess:
                continue  # one has just ended

    def end(self) -> int:
        """Stop, and return the most bytes that were resident at a time."""
        self._done.set()
        self._thread.join()
        return self._peak


MILLION_ROWS: tuple[Row, ...] = (
    Row(
        "job-million",
        "1,000,000 documents from JSONL to assignments, K = 100, within 8 GB",
        million,
        lambda f: f["documents"] == N_DOCUMENTS and f["peak_gib"] <= 8e9 / GIB,
    ),
)
