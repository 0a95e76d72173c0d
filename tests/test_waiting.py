"""Nothing waits for ever on a cluster: frozen processes, tasks that hang, fits as tasks."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import joblib
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster

from hmrf_dask.errors import ClusterError, ConfigurationError, HmrfWarning
from hmrf_dask.flow import clients, places, worker_count
from hmrf_dask.flow import cluster as flow_cluster
from hmrf_dask.flow.clients import SilentClusterError, closed_in_time, no_progress
from hmrf_dask.flow.cluster import LostWorkError, wait_for
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.storage.remote import alive
from tests.support.fits import fit, labels_of_a_fit, text_case

CASE = text_case(120, 150, 3, 60, distortion="euclidean")
SOON = "3 s"
SPAWN = multiprocessing.get_context("spawn")

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[LocalCluster]:
    """Give a cluster of one process, which a test may freeze."""
    with LocalCluster(
        n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster


@pytest.fixture
def own_client(own_cluster: LocalCluster) -> Iterator[Client]:
    with Client(own_cluster) as client:
        yield client


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freeze a process; it goes on afterwards."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def worker_pid(client: Client) -> int:
    (pid,) = client.run(os.getpid).values()
    return int(pid)


# --- frozen workers


def test_a_worker_that_is_frozen_before_the_start(own_client: Client) -> None:
    pid = worker_pid(own_client)
    words = r"every worker must answer before the start, got none within 3 s from tcp://127"
    soon = dask.config.set({"hmrf.no-progress-timeout": SOON})
    with frozen(pid), soon, pytest.raises(ClusterError, match=words):
        fit(CASE, 2)
    with dask.config.set(scheduler="synchronous"):
        wanted = fit(CASE, 2)
    assert fit(CASE, 2).digest == wanted.digest


def test_a_worker_that_freezes_while_it_works(
    own_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    pid = worker_pid(own_client)
    flow = DaskFlow()
    soon = dask.config.set({"hmrf.no-progress-timeout": SOON})
    words = r"got no progress on tcp://\S+ for 3 s .*without a heartbeat"
    with frozen(pid), soon, pytest.raises(ClusterError, match=words):
        flow.compute([flow.lazy(os.getpid)])
    assert "giving up at 3 s" in caplog.text
    assert flow.compute([flow.lazy(os.getpid)]) == [pid]


# --- tasks that hang, and tasks that only take long


def _waits(seconds: float) -> bool:
    return threading.Event().wait(seconds)


def _computes(seconds: float) -> float:
    began = time.process_time()
    while time.process_time() - began < seconds:
        np.arange(1000).sum()
    return seconds


def _reports(seconds: float) -> float:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        alive()
        threading.Event().wait(0.1)
    return seconds


def test_a_task_that_only_waits_ends_the_wait(process_client: Client) -> None:
    flow = DaskFlow()
    flow.compute([flow.lazy(_waits, 0.1) for _ in range(4)])  # a worker that imports is silent
    soon = dask.config.set({"hmrf.no-progress-timeout": "3 s"})
    words = r"no progress .* for 3 s .*waits-\S+ on tcp://\S+ runs but computes nothing"
    with soon, pytest.raises(ClusterError, match=words):
        flow.compute([flow.lazy(_waits, 6.0), flow.lazy(int, 7)])


def test_long_work_and_signs_of_life_are_waited_for(process_client: Client) -> None:
    flow = DaskFlow()
    with dask.config.set({"hmrf.no-progress-timeout": "3 s"}):
        tasks = [flow.lazy(_computes, 4.5), flow.lazy(_reports, 4.5)]
        assert flow.compute(tasks) == [4.5, 4.5]


@pytest.mark.parametrize("wrong", ["0 s", "-1", "soon", "inf", "nan", "", "1e400 s"])
def test_a_deadline_is_a_time_in_a_range(wrong: str) -> None:
    with (
        dask.config.set({"hmrf.no-progress-timeout": wrong}),
        pytest.raises(ConfigurationError, match=r"no-progress-timeout must be a time from 0\.01 s"),
    ):
        no_progress()


def test_what_does_not_close_in_time_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmrf_dask.flow.clients.CLOSING", 0.5)
    never = threading.Event()

    class Cluster:
        def __init__(self) -> None:
            self.process = multiprocessing.get_context("spawn").Process(
                target=time.sleep, args=(60,)
            )
            self.process.start()

        def close(self) -> None:
            never.wait(60)

    with closed_in_time("a cluster", Cluster) as cluster:
        pid = cluster.process.pid
    cluster.process.join(30)
    never.set()
    assert not psutil.pid_exists(pid)


# --- fits in tasks and in forked processes


def test_more_fits_as_tasks_than_there_are_threads(process_client: Client) -> None:
    wanted = [labels_of_a_fit(seed) for seed in range(3)]
    assert (
        process_client.gather(process_client.map(labels_of_a_fit, range(3), pure=False)) == wanted
    )
    with joblib.parallel_backend("dask"):
        assert (
            joblib.Parallel()(joblib.delayed(labels_of_a_fit)(seed) for seed in range(3)) == wanted
        )


FORK = """
import multiprocessing
from tests.support.fits import labels_of_a_fit
wanted = labels_of_a_fit(0)
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map_async(labels_of_a_fit, [0, 0]).get(100) == [wanted, wanted]
"""


@pytest.mark.long
def test_a_fit_in_a_forked_process() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr


# --- clients that cannot be used


def test_an_asynchronous_client_is_refused_in_its_loop(process_cluster: LocalCluster) -> None:
    words = "must be a synchronous one, got Client"

    async def fit_in_the_loop() -> None:
        async with Client(process_cluster.scheduler_address, asynchronous=True):
            with pytest.raises(ConfigurationError, match=words):
                fit(CASE, 2)

    asyncio.run(fit_in_the_loop())


def test_an_asynchronous_client_that_was_closed_is_no_lost_one(
    process_cluster: LocalCluster,
) -> None:
    async def close_one() -> Client:
        async with Client(process_cluster.scheduler_address, asynchronous=True) as client:
            return client

    closed = asyncio.run(close_one())
    assert closed.status == "closed"
    fit(CASE, 2)  # any warning fails a test


def test_a_closed_client_is_refused(process_cluster: LocalCluster) -> None:
    client = Client(process_cluster, set_as_default=False)
    client.close()
    refused = pytest.raises(ClusterError, match="must be open, got a closed one")
    with dask.config.set(scheduler=client), refused:
        fit(CASE, 2)


def test_threads_take_the_place_of_a_scheduler_that_is_gone_with_a_warning() -> None:
    place = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=0, processes=False, protocol="tcp", **place) as cluster:
        client = Client(cluster.scheduler_address)
        client._timeout = 0.2  # in which it tries to connect again
    last = time.monotonic() + 60
    while client.status != "closed" and time.monotonic() < last:
        time.sleep(0.02)
    with pytest.warns(HmrfWarning, match="scheduler of the active Client has ended.*threads"):
        fit(CASE, 2)
    fit(CASE, 2)  # once is enough


# --- what reaches the terminal


@pytest.mark.long
def test_a_command_shows_nothing_of_dask(tmp_path: Path) -> None:
    rows = tmp_path / "rows.npy"
    np.save(rows, np.random.default_rng(0).random((200, 30), np.float32))
    command = [sys.executable, "-m", "hmrf_dask", "fit", str(rows), "-k", "3", "--quiet"]
    command += ["--run-dir", str(tmp_path / "run"), "--processes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_the_client_of_the_parent_is_refused_in_a_fork(process_client: Client) -> None:
    code = multiprocessing.get_context("fork").SimpleQueue()
    pid = os.fork()
    if pid == 0:
        words = ""
        try:
            DaskFlow().broadcast(1)
        except ClusterError as error:
            words = str(error)
        finally:
            code.put(words)
            os._exit(0)
    os.waitpid(pid, 0)
    assert "got one made before this process was forked" in code.get()


def test_a_client_that_ends_with_its_scheduler_while_nobody_waits(
    own_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(own_cluster, set_as_default=False) as client:
        futures = [client.submit(time.sleep, 60)]
    monkeypatch.setattr(futures[0]._state, "status", "pending")  # nobody has told it yet
    with pytest.raises(LostWorkError, match=r"the scheduler must stay, got .* gone.*run again"):
        wait_for(client, futures)


# ---- a process that was stopped, or whose machine slept, has not waited


@pytest.fixture
def leaping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an hour pass between two readings of the clock."""
    for module in (clients, worker_count):
        hours = itertools.count(0.0, 3600.0)
        there = SimpleNamespace(monotonic=hours.__next__)
        monkeypatch.setattr(module, "time", there)


@pytest.mark.usefixtures("leaping")
def test_an_answer_may_come_after_a_process_was_stopped() -> None:
    future: Future[int] = Future()
    threading.Timer(0.2, future.set_result, [7]).start()
    with dask.config.set({"hmrf.no-progress-timeout": "0.5 s"}):
        assert clients.answer_of(future, "an answer must come", seconds=20) == 7
    with pytest.raises(SilentClusterError, match=r"an answer must come for 0.1 s"):
        clients.answer_of(Future(), "an answer must come", seconds=0.1)


@pytest.mark.usefixtures("leaping")
def test_workers_may_start_after_a_process_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = [{}, {}, {}, {"tcp://a": {}}]
    monkeypatch.setattr(places, "workers_by_name", lambda _client: found.pop(0))
    monkeypatch.setattr(places, "POLL", 0.01)
    assert places.some_workers(None) == ["tcp://a"]
    found += [{}] * 10  # each after an hour
    with pytest.raises(ClusterError, match=r"must have workers, got none for 60 s"):
        places.some_workers(None)


def test_a_stop_leaves_a_look_time_for_workers_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    hour = [0.0]
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: hour[0]))
    monkeypatch.setattr(flow_cluster, "workers_by_name", lambda _client, seconds: {})
    monkeypatch.setattr(flow_cluster, "ask", lambda *_, **__: {})
    nobody = SimpleNamespace(get_task_status=None, address="tcp://a")
    watch = flow_cluster.Watch(type("Nowhere", (), {"scheduler": nobody})(), ["a"])
    watch.look(0)
    for passed in [2.0] * 10 + [3600.0] + [2.0] * 8:  # 20 s without workers, a stop, 16 s
        hour[0] += passed
        watch.look(0)
    hour[0] += 2.0
    with pytest.raises(ClusterError, match=r"no worker of tcp://a took work for 60 s"):
        watch.look(0)


@pytest.mark.usefixtures("leaping")
def test_workers_that_are_short_at_one_count_have_time_to_come_back() -> None:
    count = worker_count.WorkerCount()
    with dask.config.set({"hmrf.least-workers": 2, "hmrf.refill-timeout": "25 s"}):
        for number in (1, 1, 2, 1, 1):
            count.check(number, "tcp://a")
        with pytest.raises(ClusterError, match=r"2 workers must stay .* got 1"):
            count.check(1, "tcp://a")
