"""Row `scale`: an iteration on 1 to 8 hosts with links of their own, what each sends, a model.

Hosts are network namespaces (`tests/support/hosts.py`): links of 1 or 10 Gbit/s, no latency. Two
cores stand in for all of them, so E-steps sleep for the time that their kernel would take
(`scale_fit`); all that is left is real, and shares the cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import scipy.sparse

from hmrf_dask.corpus.partitioned import Corpus
from tests.benchmarks import corpora
from tests.benchmarks.measuring import Bench, Figure
from tests.benchmarks.scale_fit import SECONDS, TOPICS
from tests.support.dask_processes import dask_processes
from tests.support.hosts import Host, hosts, no_hosts

TICK = 0.05  # seconds between two looks at links and processes
MAX_ITER = 5
FEW = 2000  # rows that the kernel is timed with


@dataclass(frozen=True)
class Setting:
    """One fit: how many clusters, workers, megabits a second, and documents in all."""

    n_clusters: int
    n_workers: int
    megabits: int
    documents: int

    @property
    def name(self) -> str:
        return f"{self.n_workers}-{self.n_clusters}-{self.megabits // 1000}"

    def memory(self, n_features: int) -> float:
        """Return about how many bytes all processes take: centroids, tables, sums, messages."""
        return (4 * self.n_workers + 8) * 8.0 * self.n_clusters * n_features


@dataclass(frozen=True)
class Measured:
    """What an iteration of a fit took, by host or process; bytes and seconds of an iteration."""

    setting: Setting
    seconds: tuple[float, ...]  # of each iteration
    slept: float  # by each worker
    driver_cpu: float
    scheduler_cpu: float
    worker_cpu: float  # of all workers
    driver_bytes: tuple[float, float]  # sent, received; scheduler and driver share a host
    worker_bytes: tuple[float, float]  # the most of one worker's link
    driver_peak: int
    worker_peak: int
    n_tasks: float

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


class Watch:
    """Bytes of links and processor seconds of processes, taken down every few milliseconds."""

    def __init__(self, links: Sequence[Host], processes: dict[str, int]) -> None:
        self.links, self.processes = links, processes
        self.times: list[float] = []
        self.numbers: list[list[float]] = []
        self.peaks: dict[str, int] = dict.fromkeys(processes, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        known = {name: psutil.Process(pid) for name, pid in self.processes.items()}
        last = dict.fromkeys(known, 0.0)
        while not self._ended.wait(TICK):
            for name, process in known.items():
                try:
                    used = process.cpu_times()
                    last[name] = used.user + used.system
                    self.peaks[name] = max(self.peaks[name], process.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
            counted = [float(one) for host in self.links for one in host.sent_and_received()]
            self.times.append(time.perf_counter())
            self.numbers.append([*counted, *last.values()])

    def between(self, began: float, ended: float) -> tuple[Any, dict[str, float]]:
        """Return the bytes of each link (sent, received), and the seconds of each process."""
        columns = np.asarray(self.numbers).T
        change = np.asarray([np.diff(np.interp([began, ended], self.times, c))[0] for c in columns])
        n_links = len(self.links)
        seconds = dict(zip(self.processes, change[2 * n_links :].tolist(), strict=True))
        return change[: 2 * n_links].reshape(n_links, 2), seconds


def measured(setting: Setting, rows: Path, n_rows: int, seconds_a_row: float) -> Measured:
    """Return what the iterations of one fit take."""
    asleep = seconds_a_row * setting.documents / n_rows
    with hosts(setting.n_workers + 1, setting.megabits) as network, _folder() as folder:
        first, *others = network.hosts
        with dask_processes(folder, 0, secured=["tcp"], places=(first,)) as processes:
            processes.environment |= {SECONDS: repr(asleep), "OMP_NUM_THREADS": "1"}
            for host in others:
                stand_in = ("--preload", "tests.benchmarks.scale_fit", "--memory-limit", "0")
                processes.worker(*stand_in, host=host)
            fit = ("fit", processes.address, str(rows), str(setting.n_clusters), str(MAX_ITER))
            driver = subprocess.Popen(
                first.command(sys.executable, "-m", "tests.benchmarks.scale_fit", *fit),
                env=processes.environment, cwd=corpora.ROOT, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            started = {f"worker {n}": one.pid for n, one in enumerate(processes.started[1:])}
            pids = {"driver": driver.pid, "scheduler": processes.started[0].pid} | started
            with Watch(network.hosts, pids) as watch:
                printed = driver.communicate()[0]
            if driver.returncode:
                raise RuntimeError(f"the fit of {setting} ended with {driver.returncode}")
    slept = asleep * n_rows / setting.n_workers
    return _judged(setting, slept, json.loads(printed.splitlines()[-1]), watch)


def _judged(setting: Setting, slept: float, found: dict[str, Any], watch: Watch) -> Measured:
    """Return the figures of an iteration: those after the second, as in `iterations_of`."""
    marks = [one for one in found["marks"] if one["phase"] == "fit" and one["iteration"] >= 2]
    marks = [marks[0], *(one for one in marks[1:] if one["moved"])]
    walls = [one["wall"] for one in marks]
    number = len(walls) - 1
    links, cpu = watch.between(walls[0], walls[-1])
    workers = [name for name in cpu if name.startswith("worker")]
    busiest = links[1:][links[1:].sum(axis=1).argmax()]
    return Measured(
        setting,
        seconds=tuple(np.diff(walls).tolist()),
        slept=slept,
        driver_cpu=cpu["driver"] / number,
        scheduler_cpu=cpu["scheduler"] / number,
        worker_cpu=sum(cpu[name] for name in workers) / number,
        driver_bytes=tuple((links[0] / number).tolist()),
        worker_bytes=tuple((busiest / number).tolist()),
        driver_peak=found["peak"],
        worker_peak=max(watch.peaks[name] for name in workers),
        n_tasks=sum(walls[0] <= one < walls[-1] for one in found["tasks"]) / number,
    )


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hmrf-scale-") as name:
        yield Path(name)


def planted(bench: Bench) -> tuple[Path, Path, int]:
    """Return where rows of known clusters are, as a matrix and as Parquet, and their number."""
    sizes = bench.sizes
    n_rows, n_features = sizes.scale_rows, sizes.scale_features
    matrix = bench.cache / f"planted-{corpora.VERSION}-{n_rows}-{n_features}"
    files = matrix.with_name(f"{matrix.name}-parquet")
    if not files.exists():
        words = corpora.synthetic(n_rows, n_features - TOPICS, cache=bench.cache).X
        topics = np.arange(n_rows) % TOPICS
        own = scipy.sparse.csr_matrix(
            (np.ones(n_rows, np.float32), (np.arange(n_rows), topics)), shape=(n_rows, TOPICS)
        )
        X = scipy.sparse.hstack([own, words], "csr", dtype=np.float32)
        corpora.keep(bench.cache, matrix.name, corpora.Rows(X, topics))
        Corpus.from_rows(X, n_partitions=32).to_parquet(str(files))
    return matrix, files, n_rows
