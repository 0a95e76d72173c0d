"""Where the work runs: threads or processes here, a Dask cluster, and there the driver itself.

A run that is detached has its driver in a task of the cluster: whoever started it may leave. The
task leaves its worker's thread pool, so its own tasks have all threads, and finds the scheduler as
any code on a worker does. When its worker is lost the scheduler starts it on another one, where it
resumes from the last commit as a run that was killed does.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster, fire_and_forget, get_client, worker_client
from distributed.comm.addressing import get_address_host_port

from hmrf_dask.cli.group import finished_first
from hmrf_dask.errors import (
    ClusterError,
    ConfigurationError,
    HmrfError,
    MemoryPlanError,
    in_words,
)
from hmrf_dask.flow.clients import (
    SilentClusterError,
    ask,
    closed_in_time,
    patience,
    silence_dask,
    within,
)
from hmrf_dask.flow.cluster import machine_memory
from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.job_file import CLASSES, Cluster, arguments_of
from hmrf_dask.parameters import SCHEDULER_FILE_BYTES
from hmrf_dask.storage.addresses import plain_url
from hmrf_dask.storage.whole_files import read_bounded

CONNECT_SECONDS = 20
GRACE = 5  # seconds more for one that accepts a connection and does not answer
WORKER_BYTES = 100 * 2**20  # of a Python that has read in Dask, before it has any work
DRIVER_SECONDS = 600.0  # in which what passes has passed: a lost driver's lock, a slow store
DRIVER_PAUSE = 5.0
ANSWER_SECONDS = 10.0  # in which a scheduler that is there answers
TRY_AGAIN = 75


@contextmanager
def connected(
    *,
    threads: int | None = None,
    processes: int | None = None,
    scheduler: str | None = None,
    scheduler_file: str | None = None,
    cluster: Cluster | None = None,
) -> Iterator[None]:
    """Run what is inside under one Dask scheduler; by default on all threads of this process.

    At most one argument may be given: worker processes have a thread each, `scheduler_file` has the
    address of a running `dask scheduler`, `cluster` is what a job file says.

    Examples
    --------
    >>> with connected(threads=2):
    ...     dask.config.get("num_workers")
    2
    """
    silence_dask()
    asked = cluster or Cluster.model_construct(
        local=threads, processes=processes, address=scheduler, scheduler_file=scheduler_file
    )
    with ExitStack() as stack:
        if asked.cluster_class is not None:
            stack.enter_context(_started(asked, asked.cluster_class))
        if asked.local is not None:
            stack.enter_context(dask.config.set(scheduler="threads", num_workers=asked.local))
        if asked.processes is not None:
            _local_processes(stack, asked.processes)
        if asked.scheduler_file is not None:
            path = asked.scheduler_file
            _client(stack, _address_in(path), f"the address in {path}")
        if asked.address is not None:
            _client(stack, asked.address)
        yield


def _refuse_too_many(n_workers: int) -> None:
    """Refuse more processes than this machine has memory for: they would take it down."""
    memory = machine_memory()
    if n_workers * WORKER_BYTES > memory:
        raise MemoryPlanError(
            f"worker processes must fit the memory of this machine, {memory / 2**30:.3g} GiB, got "
            f"{n_workers} of at least {WORKER_BYTES >> 20} MiB; ask for "
            f"{memory // WORKER_BYTES} at most, or for threads"
        )


def _local_processes(stack: ExitStack, n_workers: int) -> None:
    _refuse_too_many(n_workers)
    # Ctrl-C is for this process, which then ends the workers; threads and processes started
    # while the signal is blocked never get it, and one that comes meanwhile is not lost.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    resource_tracker.ensure_running()  # it outlives us; and it would unblock SIGINT further down
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Any port on loopback: with None it would take port 8787, or warn that it is taken.
        make = partial(
            LocalCluster,
            n_workers=n_workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        )
        with finished_first():
            cluster = stack.enter_context(closed_in_time("a cluster of processes here", make))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    stack.enter_context(closed_in_time("a client", partial(Client, cluster)))


@contextmanager
def _started(asked: Cluster, name: str) -> Iterator[None]:
    """Start a cluster of an allowed class with its workers, and end it afterwards."""
    assert name in CLASSES  # nothing else is imported because a file says so
    if name == "distributed.LocalCluster":
        workers = asked.kwargs.get("n_workers")
        _refuse_too_many(max(asked.workers or 0, workers if isinstance(workers, int) else 0))
    module, _, class_name = name.rpartition(".")
    system = class_name.removesuffix("Cluster").lower()
    configured = dask.config.get(f"jobqueue.{system}.scheduler-options", {})
    try:
        kind = getattr(import_module(module), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"cluster.class {name} must be installed, got {error}; install "
            f"{module.partition('.')[0].replace('_', '-')} where the job is started"
        ) from error
    with ExitStack() as stack:
        try:
            make = partial(kind, **arguments_of(name, asked.kwargs, configured))
            cluster = stack.enter_context(closed_in_time(name, make))
        except HmrfError:
            raise
        except Exception as error:  # of classes that are not ours
            raise _not_started(asked, error) from error
        if asked.workers is not None:
            scale = partial(cluster.scale, asked.workers)
            within(f"{name} must start workers, got nothing", scale)
        stack.enter_context(closed_in_time("a client", partial(Client, cluster)))
        yield


def _not_started(asked: Cluster, error: BaseException) -> ClusterError | ConfigurationError:
    """Return what it means that a cluster does not start: what a class does not take, or later."""
    first = error
    while first.__cause__ is not None:  # Dask wraps what workers raise
        first = first.__cause__
    if isinstance(first, TypeError | ValueError):
        return ConfigurationError(
            f"cluster.kwargs must be what {asked.cluster_class} takes, got {asked.kwargs} ({first})"
        )
    return ClusterError(
        f"cluster.class {asked.cluster_class} must start, got {in_words(first)}; fix what it "
        "needs, then run again"
    )


def _client(stack: ExitStack, scheduler: str, called: str = "the scheduler's address") -> None:
    scheduler = plain_url(scheduler, called)
    named = scheduler if "://" in scheduler or ":" not in scheduler else f"tcp://{scheduler}"
    try:
        # A Client with a wrong address stays Dask's default one.
        _, port = get_address_host_port(named, strict=True)
        if not 0 < port < 2**16:
            raise ValueError(f"the port must be from 1 to 65535, got {port}")
        make = partial(Client, scheduler, timeout=CONNECT_SECONDS)
        seconds = CONNECT_SECONDS + GRACE
        client = stack.enter_context(
            closed_in_time(f"a client of {scheduler}", make, seconds=seconds)
        )
        # By name: Dask forgets a default client whose scheduler ends, and threads would go on here.
        stack.enter_context(dask.config.set(scheduler=client))
    except ValueError as error:
        raise ConfigurationError(
            f"{called} must look like tcp://host:port, got {scheduler!r} ({error})"
        ) from error
    except OSError as error:
        raise ClusterError(
            f"no Dask scheduler answered at {scheduler} within {CONNECT_SECONDS} s ({error}); "
            "start one, or check the address"
        ) from error


def _address_in(scheduler_file: str) -> str:
    """Return the address that `dask scheduler --scheduler-file` wrote, or will write soon."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while not Path(scheduler_file).exists():
        if time.monotonic() > deadline:
            raise ClusterError(
                f"no scheduler file {scheduler_file!r} within {CONNECT_SECONDS} s; start a "
                "scheduler with it, or check the path"
            )
        time.sleep(0.1)
    for _ in range(10):  # a scheduler that is just starting may have written half of it
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            data = read_bounded(scheduler_file, most=SCHEDULER_FILE_BYTES)
            return str(json.loads(data)["address"])
        time.sleep(0.1)
    raise ConfigurationError(
        f"a scheduler file must be what `dask scheduler --scheduler-file` wrote, "
        f"got {scheduler_file!r}; check the path, or give --scheduler ADDRESS"
    )


def submit(inputs: Inputs) -> str:
    """Hand a run to the active client's cluster; return the task's key."""
    client = get_client()
    try:
        ask(
            client,
            "the scheduler must find a worker",
            lambda: client.wait_for_workers(1, timeout=patience()),
            seconds=patience() + ANSWER_SECONDS,
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
    with worker_client():
        return asdict(_run_when_unlocked(inputs))


def _run_when_unlocked(inputs: Inputs) -> Any:
    """Run a job, which this very task may have locked before its worker was lost."""
    from hmrf_dask.jobs.run_job import run_job

    deadline = time.monotonic() + DRIVER_SECONDS
    while True:
        try:
            return run_job(inputs)
        except HmrfError as error:
            if error.exit_code != TRY_AGAIN or time.monotonic() > deadline:
                raise
            time.sleep(DRIVER_PAUSE)
