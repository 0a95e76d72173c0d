"""Where the work runs: threads, processes on loopback, a scheduler that is there or is not."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import psutil
import pytest
from distributed import Client, LocalCluster, get_client

from hmrf_dask.cli import connect
from hmrf_dask.cli.connect import connected
from hmrf_dask.errors import ClusterError, ConfigurationError
from hmrf_dask.jobs.clusters import Cluster
from tests.support.long_cases import long


def test_threads_are_set_and_set_back() -> None:
    before = dask.config.get("scheduler", None)
    with connected(threads=3):
        assert dask.config.get("scheduler") == "threads"
        assert dask.config.get("num_workers") == 3
    assert dask.config.get("scheduler", None) == before


def test_nothing_given_changes_nothing() -> None:
    before = dask.config.get("scheduler", None)
    with connected():
        assert dask.config.get("scheduler", None) == before


def test_no_scheduler_is_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 0.2)
    # Port 9 (discard) on loopback: nothing of ours listens there.
    refusal = pytest.raises(
        ClusterError, match=r"no Dask scheduler answered at tcp://127\.0\.0\.1:9"
    )
    with refusal, connected(scheduler="tcp://127.0.0.1:9"):
        pass


def test_another_server_is_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 3.07 EiB")  # the length is b"HTTP/1.1"

    monkeypatch.setattr(connect, "Client", read)
    refusal = pytest.raises(ConfigurationError, match=r"something else answers.*dashboard")
    with refusal, connected(scheduler="127.0.0.1:8787"):
        pass


def test_a_frozen_scheduler_is_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(connect, "GRACE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # the kernel accepts, nobody answers
        address = f"tcp://127.0.0.1:{frozen.getsockname()[1]}"
        with pytest.raises(ClusterError, match=address), connected(scheduler=address):
            pass


def test_no_scheduler_file_is_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 0.2)
    path = str(tmp_path / "none.json")
    with pytest.raises(ClusterError, match="no scheduler file"), connected(scheduler_file=path):
        pass


@pytest.mark.parametrize(
    ("first", "kind", "message"),
    [
        (TypeError("no argument n_wrkers"), ConfigurationError, r"kwargs must be .* n_wrkers"),
        (OSError("no quota"), ClusterError, "LocalCluster must start, got OSError: no quota"),
    ],
)
def test_what_workers_raise_is_reported(
    first: Exception, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("Nanny failed to start") from first

    monkeypatch.setattr("distributed.LocalCluster", fail)
    asked = Cluster(**{"class": "distributed.LocalCluster"})
    with pytest.raises(kind, match=message), connected(cluster=asked):
        pass


@pytest.mark.parametrize("address", ["nowhere", "tcp://127.0.0.1:99999"])
def test_a_scheduler_file_with_a_wrong_address_is_named(address: str, tmp_path: Path) -> None:
    path = tmp_path / "scheduler.json"
    path.write_text(json.dumps({"address": address}), encoding="utf-8")
    refusal = pytest.raises(ConfigurationError, match=r"the address in .*scheduler.json must look")
    with refusal, connected(scheduler_file=str(path)):
        pass


def test_another_file_is_no_scheduler_file(tmp_path: Path) -> None:
    for number, text in enumerate(("a,b,kind\n0,1,must\n", "{}", "[1]")):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        refusal = pytest.raises(ConfigurationError, match="a scheduler file must be what")
        with refusal, connected(scheduler_file=str(path)):
            pass


def test_a_class_that_is_not_installed_is_reported() -> None:
    asked = Cluster(**{"class": "dask_yarn.YarnCluster"})
    with (
        pytest.raises(ConfigurationError, match=r"dask_yarn\.YarnCluster must be installed"),
        connected(cluster=asked),
    ):
        pass


@pytest.mark.cluster
def test_a_class_of_the_list_is_started_and_ended() -> None:
    kwargs = {"n_workers": 0, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    asked = {"class": "distributed.LocalCluster", "kwargs": kwargs, "workers": 1}
    with connected(cluster=Cluster(**asked)):
        client = get_client()
        assert client.submit(sum, [1, 2]).result(timeout=60) == 3
    assert client.status == "closed"


def test_kwargs_that_a_class_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**kwargs: object) -> None:
        raise TypeError(f"unexpected {', '.join(kwargs)}")

    module = SimpleNamespace(SLURMCluster=refuse)
    monkeypatch.setattr(connect, "import_module", lambda name: module)
    asked = {"class": "dask_jobqueue.SLURMCluster", "kwargs": {"cores": 2}}
    with (
        pytest.raises(ConfigurationError, match=r"kwargs must be what .* \(unexpected cores,"),
        connected(cluster=Cluster(**asked)),
    ):
        pass


@pytest.mark.cluster
@pytest.mark.parametrize("cluster", [None, *long({"class": "distributed.LocalCluster"})])
def test_a_process_that_dies_is_started_again_however_soon(cluster: dict[str, Any] | None) -> None:
    way: dict[str, Any] = {"processes": 1}
    if cluster is not None:
        way = {"cluster": Cluster(**cluster, kwargs={"n_workers": 1, "threads_per_worker": 1})}
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "0 s"}), connected(**way):
        client = get_client()
        ((address, pid),) = client.run(os.getpid).items()
        os.kill(pid, signal.SIGKILL)
        while address in client.scheduler_info()["workers"]:
            time.sleep(0.02)
        client.wait_for_workers(1, timeout=60)
        assert set(client.run(os.getpid).values()) != {pid}


@pytest.mark.cluster
def test_the_first_workers_have_their_time_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = itertools.count(0.0, 3600.0)
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as local,
        Client(local.scheduler_address) as client,
        ExitStack() as stack,
    ):
        monkeypatch.setattr("distributed.client.time", hours.__next__)
        threading.Timer(0.3, local.scale, [1]).start()
        connect._wait_for_workers(stack, client, Cluster(address=local.scheduler_address))


@pytest.mark.cluster
@pytest.mark.parametrize("cluster", [None, *long({"class": "distributed.LocalCluster"})])
def test_processes_listen_on_loopback_only(cluster: dict[str, Any] | None) -> None:
    asked = {"n_workers": 1, "threads_per_worker": 1}
    way: dict[str, Any] = {"processes": 1}
    if cluster is not None:
        way = {"cluster": Cluster(**cluster, kwargs=asked)}
    with connected(**way):
        assert get_client().submit(sum, [1, 2]).result(timeout=60) == 3
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        addresses = {
            connection.laddr.ip
            for process in processes
            for connection in process.net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert addresses == {"127.0.0.1"}
