"""A run handed to a cluster goes on when whoever started it is gone, and when its worker dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from hmrf_dask.releases.lock import holder_of, open_output
from hmrf_dask.releases.release import damages, latest
from tests.support.job_corpus import JobCorpus

SECONDS = 120


def hmrf(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hmrf_dask", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


def until(there: Callable[[], Any]) -> Any:
    """Wait for something that comes; a test that waits too long fails."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        found = there()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("it did not come")


@pytest.mark.cluster
def test_a_detached_run_commits_without_its_client(
    process_cluster: LocalCluster, tmp_path: Path
) -> None:
    job = JobCorpus(tmp_path).write_all(60, 10)
    address = process_cluster.scheduler_address
    started = hmrf("run", str(job), "--detach", "--scheduler", address)
    assert started.returncode == 0, started.stderr
    assert "detached as task hmrf-run-" in started.stderr
    output = str(tmp_path / "out")
    release = until(lambda: latest(output))
    assert damages(open_output(output), release) == []
    inspected = json.loads(hmrf("inspect", output, "--json").stdout)
    assert inspected["release"]["counts"]["documents"] == 60


@pytest.mark.cluster
@pytest.mark.long
def test_a_detached_run_continues_when_its_worker_dies(tmp_path: Path) -> None:
    job = JobCorpus(tmp_path).write_all(60, 10)
    output = str(tmp_path / "out")
    with LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        done = hmrf("run", str(job), "--detach", "--scheduler", cluster.scheduler_address)
        assert done.returncode == 0, done.stderr
        holder = until(lambda: holder_of(output))
        with Client(cluster) as client:
            assert holder.process.pid in client.run(os.getpid).values()
        os.kill(holder.process.pid, signal.SIGKILL)
        release = until(lambda: latest(output))
    assert damages(open_output(output), release) == []


def test_detaching_needs_a_scheduler_that_stays(tmp_path: Path) -> None:
    job = JobCorpus(tmp_path).write_all(20, 0)
    done = hmrf("run", str(job), "--detach")
    assert done.returncode == 2
    assert "--detach needs a scheduler that stays" in done.stderr
