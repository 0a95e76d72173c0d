"""Where the work runs: threads here, processes here, or a Dask cluster that is already there."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster
from distributed.comm.addressing import get_address_host_port

from hmrf_dask.cli.endings import finished_first
from hmrf_dask.errors import (
    ClusterError,
    ConfigurationError,
    HmrfError,
    MemoryPlanError,
    in_words,
)
from hmrf_dask.flow.clients import closed_in_time, silence_dask, within
from hmrf_dask.flow.workers import machine_memory
from hmrf_dask.jobs.job_file import CLASSES, Cluster, arguments_of
from hmrf_dask.limits import SCHEDULER_FILE_BYTES
from hmrf_dask.storage.addresses import plain_url
from hmrf_dask.storage.whole_files import read_bounded

CONNECT_SECONDS = 20
GRACE = 5  # seconds more for one that accepts a connection and does not answer
WORKER_BYTES = 100 * 2**20  # of a Python that has read in Dask, before it has any work


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

    At most one argument may be given.

    Parameters
    ----------
    threads, processes : int, optional
        How many threads of this process, or worker processes of one thread each on this machine.
    scheduler, scheduler_file : str, optional
        Address, or file with the address, of a running `dask scheduler`.
    cluster : Cluster, optional
        What a job file says.
    """
    silence_dask()
    with ExitStack() as stack:
        if cluster is not None and cluster.cluster_class is not None:
            stack.enter_context(_started(cluster))
            yield
            return
        if cluster is not None:
            threads, processes = cluster.local, cluster.processes
            scheduler, scheduler_file = cluster.address, cluster.scheduler_file
        if threads is not None:
            stack.enter_context(dask.config.set(scheduler="threads", num_workers=threads))
        elif processes is not None:
            _local_processes(stack, processes)
        elif scheduler is not None or scheduler_file is not None:
            _client(stack, scheduler, scheduler_file)
        yield


def _refuse_too_many(n_workers: int) -> None:
    """Refuse more processes than this machine has memory for: they would take it down."""
    needed, there = n_workers * WORKER_BYTES, machine_memory()
    if needed > there:
        raise MemoryPlanError(
            f"worker processes must fit the memory of this machine, {there / 2**30:.3g} GiB, got "
            f"{n_workers} of at least {WORKER_BYTES >> 20} MiB; ask for "
            f"{there // WORKER_BYTES} at most, or for threads"
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
    stack.enter_context(_client_of(cluster))


@contextmanager
def _started(asked: Cluster) -> Iterator[None]:
    """Start a cluster of an allowed class with its workers, and end it afterwards."""
    assert asked.cluster_class is not None
    assert asked.cluster_class in CLASSES  # nothing else is imported because a file says so
    if asked.cluster_class == "distributed.LocalCluster":
        told = asked.kwargs.get("n_workers")
        _refuse_too_many(max(asked.workers or 0, told if isinstance(told, int) else 0))
    module, _, name = asked.cluster_class.rpartition(".")
    system = name.removesuffix("Cluster").lower()
    configured = dask.config.get(f"jobqueue.{system}.scheduler-options", {})
    try:
        kind = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"cluster.class {asked.cluster_class} must be installed, got {error}; install "
            f"{module.partition('.')[0].replace('_', '-')} where the job is started"
        ) from error
    with ExitStack() as stack:
        try:
            arguments = arguments_of(asked.cluster_class, asked.kwargs, configured)
            made = closed_in_time(asked.cluster_class, partial(kind, **arguments))
            cluster = stack.enter_context(made)
        except HmrfError:
            raise
        except Exception as error:  # of classes that are not ours
            raise _not_started(asked, error) from error
        if asked.workers is not None:
            scaled = partial(cluster.scale, asked.workers)
            within(f"{asked.cluster_class} must start workers, got nothing", scaled)
        stack.enter_context(_client_of(cluster))
        yield


def _client_of(cluster: Any) -> AbstractContextManager[Client]:
    return closed_in_time("a client", partial(Client, cluster))


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
        f"cluster.class {asked.cluster_class} must start, got {in_words(first)}; mend what it "
        "needs, then run again"
    )


def _client(stack: ExitStack, scheduler: str | None, scheduler_file: str | None) -> None:
    if scheduler_file is not None:
        _refuse_other_files(scheduler_file)
    if scheduler is not None:
        scheduler = plain_url(scheduler, "the scheduler's address")
    try:
        if scheduler is not None:  # a Client with a wrong address stays Dask's default one
            named = (
                scheduler if "://" in scheduler or ":" not in scheduler else f"tcp://{scheduler}"
            )
            _check_address(named)
        make = partial(Client, scheduler, scheduler_file=scheduler_file, timeout=CONNECT_SECONDS)
        who = f"a client of {scheduler or scheduler_file}"
        client = stack.enter_context(closed_in_time(who, make, seconds=CONNECT_SECONDS + GRACE))
        # By name: Dask forgets a default client whose scheduler ends, and threads would go on here.
        stack.enter_context(dask.config.set(scheduler=client))
    except ValueError as error:
        raise ConfigurationError(
            f"the scheduler's address must look like tcp://host:port, got {scheduler!r} ({error})"
        ) from error
    except OSError as error:
        raise ClusterError(
            f"no Dask scheduler answered at {scheduler or scheduler_file} within "
            f"{CONNECT_SECONDS} s ({error}); start one, or check the address"
        ) from error


def _refuse_other_files(scheduler_file: str) -> None:
    """Refuse a file that no `dask scheduler --scheduler-file` wrote: a Client only asserts."""
    waited_until = time.monotonic() + CONNECT_SECONDS
    while not Path(scheduler_file).exists():  # a Client would wait for ever
        if time.monotonic() > waited_until:
            raise ClusterError(
                f"no scheduler file {scheduler_file!r} within {CONNECT_SECONDS} s; start a "
                "scheduler with it, or check the path"
            )
        time.sleep(0.1)
    for _ in range(10):  # a scheduler that is just starting may have written half of it
        if _names_a_scheduler(scheduler_file):
            return
        time.sleep(0.1)
    raise ConfigurationError(
        f"a scheduler file must be what `dask scheduler --scheduler-file` wrote, "
        f"got {scheduler_file!r}; check the path, or give --scheduler ADDRESS"
    )


def _names_a_scheduler(scheduler_file: str) -> bool:
    """Tell whether a file has the address of a scheduler; one with a secret is an error."""
    try:
        found = json.loads(read_bounded(scheduler_file, most=SCHEDULER_FILE_BYTES))["address"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False
    plain_url(str(found), f"the address in {scheduler_file}")
    try:
        _check_address(found)
    except (ValueError, TypeError):
        return False
    return True


def _check_address(address: str) -> None:
    """Raise ValueError unless it is one that a Client can try."""
    _, port = get_address_host_port(address, strict=True)
    if not 0 < port < 2**16:
        raise ValueError(f"the port must be from 1 to 65535, got {port}")
