"""The driver of a run as a task of the cluster: whoever started it may go.

The task leaves its worker's thread pool, so its own tasks have all threads, and finds the scheduler
as any code on a worker does. When its worker is lost the scheduler starts it on another one, where
it goes on from the last commit as a run that was killed does.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from distributed import fire_and_forget, get_client, worker_client

from hmrf_dask.errors import ClusterError, HmrfError
from hmrf_dask.flow.clients import SilentClusterError, ask, patience
from hmrf_dask.jobs.inputs import Inputs

PATIENCE = 600.0  # seconds in which what passes has passed: a lost driver's hold, a slow store
PAUSE = 5.0
ANSWER = 10.0  # seconds in which a scheduler that is there answers
TRY_AGAIN = 75


def submit(inputs: Inputs) -> str:
    """Hand a run to the active client's cluster; return the task's key."""
    client = get_client()
    try:
        ask(
            client,
            "the scheduler must find a worker",
            lambda: client.wait_for_workers(1, timeout=patience()),
            seconds=patience() + ANSWER,
        )
    except SilentClusterError as error:
        raise ClusterError(
            f"a run to detach must find a worker that drives it, got a scheduler without any for "
            f"{patience():g} s; start workers, then run again"
        ) from error
    # A new key each time: that of a driver that failed would give its error again.
    key = f"hmrf-run-{inputs.identity[:12]}-{time.time_ns():x}"
    future = client.submit(drive, inputs, key=key, pure=False)
    fire_and_forget(future)
    ask(client, "the scheduler must take the run", partial(_taken, client, key), seconds=patience())
    return key


async def _taken(client: Any, key: str) -> None:
    """Return when the scheduler knows a task: what is sent to it may not have arrived."""
    while not (await client.scheduler.get_task_status(keys=[key]))[key]:
        await asyncio.sleep(0.05)


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
