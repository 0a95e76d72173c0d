"""The row against Spark MLlib: a process fed with Parquet, asked for fits in turn with ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import spark_peer
from tests.benchmarks.iterations import warm_up, watched_commits
from tests.benchmarks.measuring import CORES, Bench, Figure, Timed, threads
from tests.benchmarks.rows_fits import loss, ours

NAME = "spark"
WHAT = "CPU of an iteration, JVM and all, against Spark MLlib KMeans (cosine)"


def missing(python: str) -> str:
    """Return why Spark cannot run under this Python, "" if it can."""
    java = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (java and Path(java, "bin", "java").exists()):
        return "no Java"
    asked = [python, "-c", "import pyspark, numpy"]
    try:
        found = subprocess.run(asked, capture_output=True, check=False).returncode == 0
    except OSError:
        found = False
    return "" if found else f"no pyspark in {python}; give one that has it as --spark-python"


class Peer:
    """Spark in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.facts = self._answer()

    def fit(self, **asked: Any) -> dict[str, Any]:
        """Return what Spark reports of one fit."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(spark_peer.MARK):
                found: dict[str, Any] = json.loads(line.removeprefix(spark_peer.MARK))
                return found
        raise RuntimeError(f"Spark ended with exit code {self.process.wait()} and no answer")


@contextmanager
def spark(python: str, folder: Path) -> Iterator[Peer]:
    """Start Spark on the vectors in `folder`; it ends when its input does."""
    command = [python, spark_peer.__file__, str(folder), str(CORES)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield Peer(process)
    finally:
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def write_vectors(X: Any, folder: Path) -> None:
    """Write rows as the Parquet form of MLlib's sparse vectors, which need float64."""
    import pyarrow as pa
    from pyarrow import parquet

    ends = pa.array(X.indptr)
    columns = {
        "type": pa.array(np.zeros(X.shape[0], np.int8)),
        "size": pa.array(np.full(X.shape[0], X.shape[1], np.int32)),
        "indices": pa.ListArray.from_arrays(ends, pa.array(X.indices)),
        "values": pa.ListArray.from_arrays(ends, pa.array(X.data.astype(np.float64))),
    }
    vectors = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    table = pa.table({"features": vectors})
    parquet.write_table(table, folder / "rows.parquet", row_group_size=20_000)


def against_spark(bench: Bench) -> list[Figure]:
    """Time an iteration as the difference of fits of 2 I and I iterations from the same centroids.

    Ours are the iterations after the first I of a fit of 2 I, from Spark's own first centroids.
    """
    n_rows, half = bench.sizes.spark
    why_not = missing(bench.spark_python)
    if why_not:
        return [Figure(NAME, WHAT, must=16.0, aim=30.0, skipped=why_not)]
    bench.say(f"Spark, K = {bench.sizes.n_clusters}, {n_rows:,} rows")
    X = bench.rows(n_rows).X
    with tempfile.TemporaryDirectory(prefix="hmrf-spark-") as name:
        folder = Path(name)
        (folder / "rows").mkdir()
        write_vectors(X, folder / "rows")
        with spark(bench.spark_python, folder / "rows") as peer, threads(CORES):
            return [_measured(bench, X, peer, half, folder / "centers.npy")]


def _measured(bench: Bench, X: Any, peer: Peer, half: int, centers: Path) -> Figure:
    asked = {"n_clusters": bench.sizes.n_clusters, "seed": 1}
    peer.fit(**asked, max_iter=0, centers=str(centers))
    init = np.load(centers)
    for _ in range(2):
        peer.fit(**asked, max_iter=2 * half)  # the JVM compiles what is hot
    warm_up(X, len(init))
    mine: list[Timed] = []
    theirs: list[Timed] = []
    for _ in range(bench.sizes.repeats):
        with watched_commits() as marks:
            model = ours(X, init, 2 * half)
        last = marks[-1]
        first = next(m for m in marks if m.iteration >= min(half, last.iteration - 1))
        n_iter = last.iteration - first.iteration
        mine.append(Timed((last.wall - first.wall) / n_iter, (last.cpu - first.cpu) / n_iter))
        short, long = (peer.fit(**asked, max_iter=count) for count in (half, 2 * half))
        n_iter = max(long["n_iter"] - short["n_iter"], 1)
        spent = ((long[one] - short[one]) / n_iter for one in ("wall", "cpu"))
        theirs.append(Timed(*spent))
    values = tuple(their.cpu / own.cpu for own, their in zip(mine, theirs, strict=True))
    facts = {
        "rows": X.shape[0], "non_zeros": int(X.nnz), "iterations": [half, 2 * half],
        "spark": peer.facts, "loss": [round(loss(X, model.labels_), 6),
                                     round(long["cost"] / X.shape[0], 6)],
    }  # fmt: skip
    raw = {"ours": [one.seconds() for one in mine], "spark": [one.seconds() for one in theirs]}
    return Figure(
        NAME, f"{WHAT}, K = {len(init)}", values, must=16.0, aim=30.0, raw=raw, facts=facts
    )
