"""Every configuration under deploy/ is run, not only read."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from distributed import get_client

from hmrf_dask.cli.connect import connected

LOCAL = Path(__file__).parents[1] / "deploy" / "local" / "cluster.sh"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def local_cluster(address_file: Path) -> Iterator[psutil.Process]:
    binaries = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "PORT": str(free_port()),
        "WORKERS": "1",
    }
    process = subprocess.Popen(
        ["bash", str(LOCAL), str(address_file)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


@pytest.mark.cluster
def test_local_cluster_works_on_loopback_and_leaves_nothing(tmp_path: Path) -> None:
    address_file = tmp_path / "scheduler.json"
    with local_cluster(address_file) as script:
        # Dask waits for the file of a scheduler that is still starting.
        with connected(scheduler_file=str(address_file)):
            assert get_client().submit(sum, [1, 2]).result(timeout=60) == 3
        started = script.children(recursive=True)
        addresses = {
            connection.laddr.ip
            for process in started
            for connection in process.net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert addresses == {"127.0.0.1"}
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive
