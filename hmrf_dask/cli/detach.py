"""The driver of a run as a task of the cluster: whoever started it may go.

The task leaves its worker's thread pool, so its own tasks have all threads, and finds the scheduler
as any code on a worker does. When its worker is lost the scheduler starts it on another one, where
it goes on from the last commit as a run that was killed does.
"""

from __future__ import annotations

import time
from typing import Any

from distributed import fire_and_forget, get_client, worker_client

from hmrf_dask.errors import ClusterError, HmrfError
from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.workers import patience

PATIENCE = 600.0  # seconds in which what passes has passed: a lost driver's hold, a slow store
PAUSE = 5.0
TRY_AGAIN = 75


def submit(inputs: Inputs) -> str:
    """Hand a run to the active client's cluster; return the task's key."""
    client = get_client()
    try:
        client.wait_for_workers(1, timeout=patience())
    except TimeoutError as error:
        raise ClusterError(
            f"a run to detach must find a worker that drives it, got a scheduler without any for "
            f"{patience():g} s; start workers, then run again"
        ) from error
    # A new key each time: that of a driver that failed would give its error again.
    key = f"hmrf-run-{inputs.identity[:12]}-{time.time_ns():x}"
    future = client.submit(drive, inputs, key=key, pure=False)
    fire_and_forget(future)
    return key


def drive(inputs: Inputs) -> dict[str, Any]:
    """Run a job from inside a task."""
    from dataclasses import asdict

    from hmrf_dask.jobs.run_job import run_job

    with worker_client():
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return asdict(run_job(inputs))
            except HmrfError as error:  # held perhaps by this task, before its worker was lost
                if error.exit_code != TRY_AGAIN or time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE)
