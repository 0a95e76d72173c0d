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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import scipy.sparse

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.fit.owners import MOST
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.flow.messages import Peers
from tests.benchmarks import corpora, scale_model
from tests.benchmarks.measuring import CORES, Bench, Figure
from tests.benchmarks.scale_fit import SECONDS, TOPICS
from tests.support.dask_processes import dask_processes
from tests.support.hosts import Host, hosts, no_hosts

TICK = 0.05  # seconds between two counts of links and processes
MAX_ITER = 5
FEW = 2000  # rows that the kernel is timed with
REQUESTS = 3000  # that are timed


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
        """Return about how many bytes all workers take: centroids, tables, sums, messages."""
        return (5 * self.n_workers + 3) * 8.0 * self.n_clusters * n_features


@dataclass(frozen=True)
class Measured:
    """What an iteration of a fit took, by host or process; bytes and seconds of an iteration."""

    setting: Setting
    seconds: tuple[float, ...]  # of each iteration
    slept: float  # by each worker
    driver_cpu: float
    scheduler_cpu: float
    idle_cpu: float  # of driver and scheduler, in as much time without a fit
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
    with (
        hosts(setting.n_workers + 1, setting.megabits) as network,
        tempfile.TemporaryDirectory(prefix="hmrf-scale-") as folder,
    ):
        first, *others = network.hosts
        with dask_processes(Path(folder), 0, secured=["tcp"], places=(first,)) as processes:
            processes.environment |= {SECONDS: repr(asleep), "OMP_NUM_THREADS": "1"}
            for host in others:
                stand_in = ("--preload", "tests.benchmarks.scale_fit", "--memory-limit", "1TB")
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
            processes.end(seconds=0.0)  # nothing is lost, and workers take long to go
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
    if not number:
        raise RuntimeError(f"the fit of {setting} must have iterations, got {found['marks']}")
    links, cpu = watch.between(walls[0], walls[-1])
    at_rest = watch.between(found["rest"][0] + TICK, found["rest"][1] - TICK)[1]
    share = (walls[-1] - walls[0]) / (found["rest"][1] - found["rest"][0] - 2 * TICK)
    workers = [name for name in cpu if name.startswith("worker")]
    busiest = links[1:][links[1:].sum(axis=1).argmax()]
    return Measured(
        setting,
        seconds=tuple(np.diff(walls).tolist()),
        slept=slept,
        driver_cpu=cpu["driver"] / number,
        scheduler_cpu=cpu["scheduler"] / number,
        idle_cpu=(at_rest["driver"] + at_rest["scheduler"]) * share / number,
        worker_cpu=sum(cpu[name] for name in workers) / number,
        driver_bytes=tuple((links[0] / number).tolist()),
        worker_bytes=tuple((busiest / number).tolist()),
        driver_peak=found["peak"],
        worker_peak=max(watch.peaks[name] for name in workers),
        n_tasks=sum(walls[0] <= one < walls[-1] for one in found["tasks"]) / number,
    )


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


# ---- the row


TARGET = (1000, 200_000, 100e6, 0.03)  # clusters, features, documents, share of them that move
FAST = 10_000  # megabits
MORE = {64: (40.0, 50.0), 256: (None, None)}  # workers: must and aim


def scale(bench: Bench) -> list[Figure]:
    """Measure iterations on hosts, and model more of them than there are."""
    if why := no_hosts():
        return [Figure("scale", "iterations on hosts with links of their own", skipped=why)]
    matrix, files, n_rows = planted(bench)
    kernels = {k: kernel_times(matrix, k) for k in {k for k, _ in bench.sizes.scale}}
    runs, left_out = [], []
    for (n_clusters, megabits), numbers in bench.sizes.scale.items():
        for n_workers in numbers:
            setting = Setting(n_clusters, n_workers, megabits, bench.sizes.scale_documents)
            needed = setting.memory(bench.sizes.scale_features)
            if (here := psutil.virtual_memory().available) < needed:
                why = f"{needed / 1e9:.0f} GB are needed, {here / 1e9:.0f} are free"
                left_out.append(Figure(f"scale-{setting.name}", str(setting), skipped=why))
                continue
            bench.say(str(setting))
            runs.append(measured(setting, files, n_rows, kernels[n_clusters]["compare"]))
    return figures(bench, runs, kernels) + left_out


def kernel_times(matrix: Path, n_clusters: int) -> dict[str, float]:
    """Return the seconds of a row in kernels, in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.scale_fit", "kernel", str(matrix)]
    done = subprocess.run(
        [*command, str(n_clusters), str(FEW)],
        cwd=corpora.ROOT, stdout=subprocess.PIPE, text=True, check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found | {"request": request_time()}


def request_time() -> float:
    """Return the processor seconds of a request to another worker and its answer, on both."""
    from distributed import Client, LocalCluster

    address = "127.0.0.1:0"
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=address
        ) as own,
        Client(own) as client,
    ):
        client.wait_for_workers(2, timeout=60)
        flow = DaskFlow()
        here, there = flow.workers()
        flow.compute([flow.lazy_at(place, asked, there, 1) for place in (there, here)])
        began = sum(client.run(time.process_time).values())
        flow.compute([flow.lazy_at(here, asked, there, REQUESTS)])
        return float(sum(client.run(time.process_time).values()) - began) / REQUESTS


def asked(address: str, number: int) -> int:
    """Ask a worker as often as that for nothing; return how many answers came."""
    return len(list(Peers(60.0).ask(int, [(address, ())] * number)))


def figures(
    bench: Bench, runs: Sequence[Measured], kernels: dict[int, dict[str, float]]
) -> list[Figure]:
    """Return what was measured, what is asked of the driver, and what the model says."""
    largest = max(runs, key=lambda run: run.setting.n_clusters)
    there = f"K = {largest.setting.n_clusters:,}, d = {bench.sizes.scale_features:,}"
    busiest = max(sum(run.driver_bytes) / run.setting.n_workers for run in runs)
    found = [_of_run(run, bench.sizes.scale_features) for run in runs]
    found += [
        Figure(
            "scale-driver-bytes", "MB to and from the driver an iteration, a worker, at most",
            (busiest / 1e6,), "", "less", 1.0, 1.0,
        ),
        Figure(
            "scale-driver-memory", f"MB of the driver's process at most, {there}",
            (largest.driver_peak / 1e6,), "", "less", 500.0, 500.0,
        ),
    ]  # fmt: skip
    alike = [run for run in runs if run.setting.megabits == max(r.setting.megabits for r in runs)]
    alike = [run for run in alike if run.setting.n_clusters == runs[0].setting.n_clusters]
    alike.sort(key=lambda run: run.setting.n_workers)
    if len(alike) > 2:  # else nothing can be fitted
        found += _modelled(bench, alike, kernels)
    return found


def _of_run(run: Measured, n_features: int) -> Figure:
    where = run.setting
    sent, received = (round(one / 1e6, 2) for one in run.worker_bytes)
    facts = {
        "worker_MB": {"sent": sent, "received": received},
        "driver_MB": [round(one / 1e6, 3) for one in run.driver_bytes],
        "slept_s": round(run.slept, 2),
        "driver_s": round(run.driver_cpu, 3), "scheduler_s": round(run.scheduler_cpu, 3),
        "idle_s": round(run.idle_cpu, 3),
        "all_workers_s": round(run.worker_cpu, 2), "tasks": round(run.n_tasks, 1),
        "peak_MB": {"driver": run.driver_peak // 10**6, "worker": run.worker_peak // 10**6},
    }  # fmt: skip
    what = (
        f"an iteration on {where.n_workers} hosts, {where.megabits // 1000} Gbit/s, "
        f"K·d = {where.n_clusters * n_features:.0e}"
    )
    return Figure(f"scale-{where.name}", what, run.seconds, "s", "less", facts=facts)


def _modelled(
    bench: Bench, runs: Sequence[Measured], kernels: dict[int, dict[str, float]]
) -> list[Figure]:
    """Return how well fewer workers predict the most, and what many more would gain."""
    known, last = [_as_run(run) for run in runs], runs[-1]
    bits = last.setting.megabits * 1e6
    before = scale_model.Pieces.of(known[:-1], bits, CORES)
    predicted = before.seconds(last.setting.n_workers, last.slept)
    off = 100 * abs(predicted / last.median - 1)
    few = ", ".join(str(run.setting.n_workers) for run in runs[:-1])
    found = [
        Figure(
            "scale-predicted",
            f"an iteration on {last.setting.n_workers} hosts, as {few} predict it: off by",
            (off,), "%", "less", 20.0, 20.0,
            facts={"predicted_s": round(predicted, 2), "measured_s": round(last.median, 2)},
        )
    ]  # fmt: skip
    numbers = float(last.setting.n_clusters * bench.sizes.scale_features)
    pieces = scale_model.Pieces.of(known, bits, CORES)
    corpus = target(kernels[max(kernels)])
    for n_threads in (1, 8):
        alone = _parts(corpus, pieces, numbers, 1, n_threads)
        for n_workers, (must, aim) in MORE.items():
            parts = _parts(corpus, pieces, numbers, n_workers, n_threads)
            bench.say(f"{n_workers} workers of {n_threads} threads:")
            for line in scale_model.lines(parts):
                bench.say(line)
            times = scale_model.total(alone) / scale_model.total(parts)
            asked = (must, aim) if n_threads == 1 else (None, None)
            shown = {name: f"{seconds:.3g} s: {why}" for name, (seconds, why) in parts.items()}
            found.append(
                Figure(
                    f"scale-{n_workers}x{n_threads}",
                    f"{n_workers} workers of {n_threads} threads against one, 10 Gbit/s, K = 1,000,"
                    " d = 200,000, 100M documents: modelled",
                    (times,), "x", "more", *asked,
                    facts=shown,
                )
            )  # fmt: skip
    return found


def target(kernel: dict[str, float]) -> scale_model.Corpus:
    """Return the corpus that the model speaks of, with measured times of its rows."""
    n_clusters, n_features, documents, moving = TARGET
    return scale_model.Corpus(
        documents, n_clusters, n_features, kernel["words"], moving, kernel["compare"],
        kernel["add"], kernel["request"],
    )  # fmt: skip


def _parts(
    corpus: scale_model.Corpus, pieces: scale_model.Pieces, numbers: float, n_workers: int,
    n_threads: int,
) -> dict[str, tuple[float, str]]:  # fmt: skip
    cluster = scale_model.Cluster(n_workers, min(n_workers, MOST), n_threads, FAST * 1e6)
    return scale_model.arithmetic(corpus, cluster, pieces, numbers)


def _as_run(run: Measured) -> scale_model.Run:
    return scale_model.Run(
        run.setting.n_workers, run.slept, run.worker_cpu, run.driver_cpu + run.scheduler_cpu,
        run.idle_cpu, max(run.worker_bytes + run.driver_bytes), run.n_tasks, run.median,
    )  # fmt: skip
