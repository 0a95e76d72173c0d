"""Fits on a Dask cluster: workers that die, that cannot see the run, that compute other bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster, Status, wait

from hmrf_dask.checkpoints.directory import RunDirectory
from hmrf_dask.errors import ClusterError, InvalidInputError, MemoryPlanError, RunDirectoryError
from hmrf_dask.flow import cluster as flow_cluster
from hmrf_dask.flow.clients import active_client
from hmrf_dask.flow.cluster import PROCESS, memory_of_a_task, reaches_workers, wait_for
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.kernels.compiled import kernel_path
from tests.support.fits import fit, text_case

CASE = text_case(120, 150, 3, 60, distortion="euclidean")

pytestmark = pytest.mark.cluster


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look often, and give up soon."""
    monkeypatch.setattr(flow_cluster, "POLL", 0.1)
    with dask.config.set({"hmrf.no-workers-timeout": "1500 ms"}):
        yield


@pytest.fixture
def threaded_client() -> Iterator[Client]:
    """Give a client of a cluster in this process; one worker of one thread, no dashboard."""
    with (
        # A worker with memory to spare would go on by itself after a test has paused it.
        dask.config.set({"distributed.worker.memory.pause": False}),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address="127.0.0.1:0",
            memory_limit="4 GiB",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def empty_client() -> Iterator[Client]:
    """Give a client of a scheduler that has no workers."""
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextmanager
def worker_process(client: Client, *arguments: str, **environment: str) -> Iterator[None]:
    """Run one more worker in a process of its own."""
    command = [sys.executable, "-m", "distributed.cli.dask_worker", client.scheduler.address]
    command += ["--no-nanny", "--no-dashboard", "--nthreads", "1", "--host", "127.0.0.1"]
    process = subprocess.Popen(
        [*command, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        client.wait_for_workers(len(client.scheduler_info()["workers"]) + 1, timeout=60)
        yield
    finally:
        process.kill()
        process.wait()


# --- which scheduler


def test_an_active_client_is_used_and_threads_otherwise(process_client: Client) -> None:
    def where() -> int:
        flow = DaskFlow()
        return flow.compute([flow.lazy(os.getpid)])[0]

    pids = set(process_client.run(os.getpid).values())
    assert active_client() is process_client
    assert where() in pids
    for name in ("threads", "synchronous"):
        with dask.config.set(scheduler=name):
            assert active_client() is None
            assert where() == os.getpid()
    with dask.config.set(scheduler=process_client):
        assert active_client() is process_client


def test_without_a_client_there_are_threads() -> None:
    assert active_client() is None
    flow = DaskFlow()
    seen = flow.compute([flow.lazy(threading.get_ident) for _ in range(8)])
    assert threading.get_ident() not in seen


# --- workers that die


def test_a_worker_killed_in_a_fit_changes_nothing(
    process_client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dask.config.set(scheduler="synchronous"):
        wanted = fit(CASE, 5)
    pid = min(process_client.run(os.getpid).values())
    commit = RunDirectory.commit

    def deadly_commit(run: RunDirectory, number: int, *arguments: Any) -> Any:
        if number == 6:  # the next iteration then finds its rows gone, or its task dead
            threading.Timer(0.02, os.kill, (pid, signal.SIGKILL)).start()
        return commit(run, number, *arguments)

    monkeypatch.setattr(RunDirectory, "commit", deadly_commit)
    assert fit(CASE, 5, run_dir=str(tmp_path / "run")).digest == wanted.digest
    assert pid not in process_client.run(os.getpid).values()
    process_client.wait_for_workers(2, timeout=60)


def test_a_task_that_kills_its_workers_is_explained(
    process_client: Client, process_cluster: LocalCluster
) -> None:
    flow = DaskFlow()
    allowed = process_cluster.scheduler.allowed_failures
    process_cluster.scheduler.allowed_failures = 0
    try:
        with pytest.raises(ClusterError, match=r"workers died.* exit-.*more memory"):
            flow.compute([flow.lazy(os._exit, 1)])
    finally:
        process_cluster.scheduler.allowed_failures = allowed
    process_client.wait_for_workers(2, timeout=60)


def test_errors_of_tasks_come_as_they_are(threaded_client: Client) -> None:
    def fail(error: Exception) -> None:
        raise error

    flow = DaskFlow()
    with pytest.raises(InvalidInputError, match="row 3"):
        flow.compute([flow.lazy(fail, InvalidInputError("row 3"))])
    with pytest.raises(ZeroDivisionError):
        flow.persist([flow.lazy(fail, ZeroDivisionError())])


# --- values sent to the workers


def keys_sent(client: Client) -> list[str]:
    """Return what was sent from here and lies on the workers."""
    every = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
    return [key for key in every if str(key).startswith("sent-")]


def test_a_value_is_sent_to_every_worker_once_and_goes_with_its_holder(
    process_client: Client,
) -> None:
    process_client.amm.stop()  # every two seconds it leaves one copy of what is not in use
    flow = DaskFlow()
    shared = flow.broadcast(np.arange(1000.0))
    for _ in range(2):
        tasks = [flow.lazy(np.add, shared, number) for number in range(6)]
        assert [found[999] for found in flow.compute(tasks)] == list(range(999, 1005))
        (key,) = keys_sent(process_client)
        assert len(process_client.who_has()[key]) == 2
    process_client.amm.start()
    del shared, tasks
    assert flow.compute([flow.lazy(int, 1)]) == [1]
    last = time.monotonic() + 20
    while keys_sent(process_client) and time.monotonic() < last:
        time.sleep(0.02)
    assert keys_sent(process_client) == []


@pytest.mark.parametrize(
    "when",
    [pytest.param(one, marks=pytest.mark.long) for one in ("before", "in", "kept")],
)
def test_a_value_that_is_lost_with_every_worker_is_there_again(
    process_client: Client, tmp_path: Path, when: str
) -> None:
    flow = DaskFlow()
    shared = flow.broadcast(np.arange(1000.0))
    assert flow.compute([flow.lazy(np.sum, shared)]) == [499500.0]
    pids = list(process_client.run(os.getpid).values())
    tasks = [flow.lazy(np.add, shared, number) for number in range(4)]
    if when == "in":
        markers = [tmp_path / str(number) for number in range(2)]
        tasks = [flow.lazy(_endless_once, shared, str(marker)) for marker in markers]
        threading.Thread(target=_kill_once_there, args=(pids, markers)).start()
    elif when == "kept":  # what is kept is made again from what the scheduler has
        tasks = flow.persist(tasks)
    if when != "in":
        _kill_once_there(pids, [])
    found = flow.compute(tasks)
    assert [one[7] for one in found] == ([7.0, 7.0] if when == "in" else [7.0, 8.0, 9.0, 10.0])
    process_client.wait_for_workers(2, timeout=60)
    assert not set(pids) & set(process_client.run(os.getpid).values())


def _endless_once(values: np.ndarray, marker: str) -> np.ndarray:
    """Return the values the second time."""
    if not Path(marker).exists():
        Path(marker).touch()
        time.sleep(60)
    return values


def _kill_once_there(pids: list[int], markers: list[Path]) -> None:
    """Kill processes when some files are there."""
    while not all(marker.exists() for marker in markers):
        time.sleep(0.02)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_a_client_that_cannot_reach_the_workers_uses_the_scheduler(
    process_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_client, "direct_to_workers", False)
    assert not reaches_workers(process_client)
    flow = DaskFlow()
    shared = flow.broadcast(np.arange(1000.0))
    assert flow.compute([flow.lazy(np.sum, shared)]) == [499500.0]
    assert keys_sent(process_client) == []
    monkeypatch.undo()
    assert reaches_workers(process_client)


def test_a_worker_gets_one_task_a_thread(process_client: Client) -> None:
    flow = DaskFlow()
    kept = flow.persist([flow.lazy(int, number) for number in range(12)])
    places = process_client.who_has(process_client.futures_of(kept))
    groups = flow.co_located(kept)
    assert sorted(number for group in groups for number in group) == list(range(12))
    assert len(groups) == len({places[one.key] for one in kept})
    for group in groups:
        assert len({places[kept[number].key] for number in group}) == 1


# --- workers that are not there


def test_no_workers(empty_client: Client, impatient: None, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"took work for 1\.5 s: there is none; start some"):
        fit(CASE, 2, run_dir=str(tmp_path / "run"))
    assert not list(tmp_path.rglob("*.json"))


def test_paused_workers(threaded_client: Client, impatient: None) -> None:
    def pause(dask_worker: Any) -> None:
        dask_worker.status = Status.paused

    threaded_client.run(pause)
    with pytest.raises(ClusterError, match="all 1 are paused for want of memory"):
        fit(CASE, 2)


def test_work_that_nobody_takes(threaded_client: Client, impatient: None) -> None:
    future = threaded_client.submit(int, resources={"moon": 1})
    with pytest.raises(ClusterError, match="1 are there and do nothing"):
        wait_for(threaded_client, [future])
    assert future.cancelled()


def test_long_work_is_waited_for(threaded_client: Client, impatient: None) -> None:
    done = threading.Event()
    threading.Timer(4.0, done.set).start()  # beyond the patience
    flow = DaskFlow()
    assert flow.compute([flow.lazy(_Waiter(done))]) == [True]


class _Waiter:
    """A task of this process that waits for an event, which cannot be pickled."""

    events: dict[int, threading.Event] = {}  # noqa: RUF012 - shared on purpose
    __name__ = "wait"

    def __init__(self, event: threading.Event) -> None:
        self.key = id(event)
        self.events[self.key] = event

    def __call__(self) -> bool:
        return self.events[self.key].wait(30)


def test_stopping_drops_the_work(threaded_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    never = threading.Event()
    flow = DaskFlow()
    monkeypatch.setattr(distributed, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        flow.compute([flow.lazy(_Waiter(never))])
    never.set()
    futures = threaded_client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
    assert futures == 0


def test_a_scheduler_that_goes_away(tmp_path: Path) -> None:
    cluster = LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    )  # fmt: skip
    never = threading.Event()
    with Client(cluster) as client:
        future = client.submit(_Waiter(never), pure=False)
        threading.Timer(0.5, cluster.close).start()
        threading.Timer(1.5, never.set).start()
        with pytest.raises(ClusterError, match="run_dir resumes where it stopped"):
            wait_for(client, [future])
    cluster.close()


# --- workers that cannot be used


HIDING = """
import builtins, os
def guarded(file, *arguments, real=builtins.open, hidden=os.environ["HIDDEN"], **options):
    if str(file).startswith(hidden):
        raise FileNotFoundError(2, "No such file or directory", str(file))
    return real(file, *arguments, **options)
builtins.open = guarded
"""


def test_a_worker_that_cannot_see_the_run(empty_client: Client, tmp_path: Path) -> None:
    preload = tmp_path / "hiding.py"
    preload.write_text(HIDING)
    hidden = tmp_path / "shared"
    hidden.mkdir()
    with worker_process(empty_client, "--preload", str(preload), HIDDEN=str(hidden)):
        words = r"worker tcp://127.0.0.1:\d+: a run must lie where every worker can read"
        with pytest.raises(RunDirectoryError, match=words):
            fit(CASE, 2, run_dir=str(hidden / "run"))
        # Nothing was done: no run begun, no probe left, no row sent.
        assert not list((hidden / "run").iterdir())
        scratch = {"hmrf.scratch-directory": str(hidden)}
        with dask.config.set(scratch), pytest.raises(RunDirectoryError, match=words):
            fit(CASE, 2)
        assert [path.name for path in hidden.iterdir()] == ["run"]
        keys = empty_client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
        assert keys == 0
        with dask.config.set(scheduler="synchronous"):  # the folder is good for who sees it
            fit(CASE, 2, run_dir=str(hidden / "run"))


def test_a_worker_of_another_kind(empty_client: Client, tmp_path: Path) -> None:
    with worker_process(empty_client, NUMBA_CPU_NAME="nehalem"):
        words = f"another kernel path.*cpu nehalem, not {kernel_path()['cpu']}"
        with pytest.raises(ClusterError, match=words):
            fit(CASE, 2, run_dir=str(tmp_path / "run"))
        assert not list((tmp_path / "run").iterdir())


def test_a_worker_of_another_kind_that_joins_later(process_client: Client) -> None:
    flow = DaskFlow()
    assert flow.compute([flow.lazy(int, 7)]) == [7]
    flow.path = tuple((kernel_path() | {"cpu": "abacus"}).items())
    with pytest.raises(ClusterError, match=r"that joined.*cpu .*, not abacus"):
        flow.compute([flow.lazy(int, 7)])


# --- memory


def test_memory_of_a_task_is_that_of_the_worker(threaded_client: Client) -> None:
    share, words = memory_of_a_task()
    assert share == 4 * 2**30 - PROCESS
    assert words.startswith("100 % of the smallest worker's memory limit")
    with dask.config.set({"distributed.worker.memory.pause": 0.8}):
        assert memory_of_a_task()[0] == int(0.8 * 4 * 2**30) - PROCESS
    with dask.config.set(scheduler="synchronous"):
        one, words = memory_of_a_task()
    with dask.config.set(scheduler="threads", num_workers=4):
        assert memory_of_a_task()[0] == one // 4
    assert words == "this machine's memory limit"


def test_a_plan_beyond_a_worker_is_refused(threaded_client: Client, tmp_path: Path) -> None:
    rows = text_case(1500, 400_000, 3, 10)
    large = replace(rows, parameters={**rows.parameters, "n_clusters": 1200})
    words = r"3,776.0 MiB \(100 % of the smallest worker"
    scratch = {"hmrf.scratch-directory": str(tmp_path)}
    with dask.config.set(scratch), pytest.raises(MemoryPlanError, match=words) as caught:
        fit(large, 2)
    assert "1200 centroids of 400000 features and their table" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_fit_leaves_nothing_on_the_workers(process_client: Client, tmp_path: Path) -> None:
    with dask.config.set({"hmrf.scratch-directory": str(tmp_path)}):
        fit(CASE, 2)
    wait([])
    held = process_client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
    assert held == 0
    assert not list(tmp_path.iterdir())
