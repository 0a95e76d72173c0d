"""Where the work runs: threads or processes here, a Dask cluster, and there the driver itself.

A run that is detached has its driver in a task of the cluster: whoever started it may leave. The
task leaves its worker's thread pool, so its own tasks have all threads, and finds the scheduler as
any code on a worker does. When its worker is lost the scheduler starts it on another one, where it
resumes from the last commit as a run that was killed does.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import signal
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask
from dask.system import CPU_COUNT
from distributed import (
    Client,
    LocalCluster,
    Security,
    fire_and_forget,
    get_client,
    performance_report,
    worker_client,
)
from distributed.comm.addressing import get_address_host, get_address_host_port, parse_address

from hmrf_dask.cli.group import finished_first, start_silent_tracker
from hmrf_dask.errors import (
    ClusterError,
    ConfigurationError,
    HmrfError,
    HmrfWarning,
    MemoryPlanError,
    counted,
    in_words,
)
from hmrf_dask.flow.clients import (
    SilentClusterError,
    active_client,
    ask,
    closed_in_time,
    patience,
    silence_dask,
    within,
)
from hmrf_dask.flow.cluster import PROCESS, machine_memory, workers_by_name
from hmrf_dask.flow.versions import check_versions
from hmrf_dask.jobs.clusters import CLASSES, Bounds, Cluster, arguments_of
from hmrf_dask.jobs.inputs import Inputs
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
ENCRYPTED = ("tls", "wss", "gateway", "inproc")  # a gateway's own protocol is TLS
# Dask gives a worker up that is not there so long after it died. Where it had come back and died
# once more, the second death is taken for the first, and nobody starts it again.
_RESTARTED = {"distributed.deploy.lost-worker-timeout": "1000 days"}
SAFE_WAYS = (
    "give it TLS (deploy/tls), or --host 127.0.0.1 where all runs on one machine, or allow it by "
    "--insecure or cluster: {insecure: true}"
)


@contextmanager
def connected(
    *,
    threads: int | None = None,
    processes: int | None = None,
    scheduler: str | None = None,
    scheduler_file: str | None = None,
    cluster: Cluster | None = None,
    insecure: bool | None = None,
) -> Iterator[None]:
    """Run what is inside under one Dask scheduler; by default on all threads of this process.

    At most one way may be given: worker processes share the cores, `scheduler_file` has the
    address of a running `dask scheduler`, `cluster` is what a job file says. `insecure` allows a
    scheduler without TLS that other machines reach.

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
    if insecure:
        if not (asked.cluster_class or asked.stays):
            raise ConfigurationError(
                "--insecure must go with a scheduler that others reach (--scheduler, "
                "--scheduler-file, or cluster: of a job), got none; leave it out"
            )
        asked = asked.model_copy(update={"insecure": True})
    with ExitStack() as stack:
        if asked.cluster_class is not None:
            stack.enter_context(_started(asked, asked.cluster_class))
        if asked.local is not None:
            stack.enter_context(dask.config.set(scheduler="threads", num_workers=asked.local))
        if asked.processes is not None:
            _local_processes(stack, asked.processes)
        if asked.scheduler_file is not None:
            path = asked.scheduler_file
            _client(stack, asked, _address_in(path), f"the address in {path}")
        if asked.address is not None:
            _client(stack, asked, asked.address)
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
    stack.enter_context(dask.config.set(_RESTARTED))
    # Ctrl-C is for this process, which then ends the workers; threads and processes started
    # while the signal is blocked never get it, and one that comes meanwhile is not lost.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    start_silent_tracker()  # by what outlives us; and it would unblock SIGINT further down
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Any port on loopback: with None it would take port 8787, or warn that it is taken.
        make = partial(
            LocalCluster,
            n_workers=n_workers,
            threads_per_worker=max(1, CPU_COUNT // n_workers),
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
    kind = _class_of(name)
    if name == "distributed.LocalCluster":
        workers = asked.kwargs.get("n_workers")
        _refuse_too_many(max(asked.most_workers, workers if isinstance(workers, int) else 0))
    elif not CLASSES[name].has_tls and not asked.insecure:
        raise ConfigurationError(
            f"cluster.class must be one that encrypts, got {name}, which has no TLS: whoever "
            "reaches its scheduler reads the documents and runs code; keep others away by a "
            "NetworkPolicy (deploy/kubernetes/overlays/cluster), then say cluster: {insecure: true}"
        )
    with ExitStack() as stack:
        if name == "distributed.LocalCluster":
            stack.enter_context(dask.config.set(_RESTARTED))
        try:
            make = partial(kind, **_arguments(asked, name))
            cluster = stack.enter_context(closed_in_time(name, make))
        except HmrfError:
            raise
        except Exception as error:  # of classes that are not ours
            raise _not_started(asked, error) from error
        client = stack.enter_context(closed_in_time("a client", partial(Client, cluster)))
        _refuse_open(asked, cluster.scheduler_address, _own_address(client))
        if asked.workers is not None:
            within(f"{name} must start workers, got nothing", partial(_scale, cluster, asked))
            _wait_for_workers(stack, client, asked)
        if name != "distributed.LocalCluster":  # of this very environment
            _check_workers(client)
        yield


def _class_of(name: str) -> Any:
    """Return an allowed class; nothing else is imported because a file says so."""
    assert name in CLASSES
    module, _, class_name = name.rpartition(".")
    ctrl_c = signal.getsignal(signal.SIGINT)
    try:
        kind = getattr(import_module(module), class_name)
        if signal.getsignal(signal.SIGINT) is not ctrl_c:  # dask_jobqueue makes it end at once
            signal.signal(signal.SIGINT, ctrl_c)
        return kind
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"cluster.class {name} must be installed, got {error}; install "
            f"{module.partition('.')[0].replace('_', '-')} where the job is started"
        ) from error


def _arguments(asked: Cluster, name: str) -> dict[str, Any]:
    """Return what a class is made with; batch systems have TLS unless the job does without."""
    system = name.rpartition(".")[2].removesuffix("Cluster").lower()
    configured = dask.config.get(f"jobqueue.{system}.scheduler-options", {})
    arguments = arguments_of(name, asked.kwargs, configured)
    if name.startswith("dask_jobqueue.") and not asked.insecure:
        arguments["security"] = _certificates()
    return arguments


def _certificates() -> Security:
    """Return the certificates that Dask's configuration names, or new ones for this cluster."""
    if dask.config.get("distributed.comm.tls.ca-file", None):
        return Security(require_encryption=True)
    try:
        certificates: Security = Security.temporary()
        return certificates
    except ImportError as error:
        raise ConfigurationError(
            "a batch system's cluster must have certificates, got none in Dask's configuration "
            "(distributed.comm.tls) and no package that makes them; install cryptography, or "
            f"{SAFE_WAYS}"
        ) from error


def _scale(cluster: Any, asked: Cluster) -> None:
    """Ask a cluster for its workers."""
    if isinstance(asked.workers, Bounds):
        cluster.adapt(minimum=asked.workers.least, maximum=asked.workers.most)
    else:
        cluster.scale(asked.workers)


def _wait_for_workers(stack: ExitStack, client: Client, asked: Cluster) -> None:
    """Wait until the workers are there that the work needs, and let it end where they do not stay.

    While the work lasts `flow.cluster` counts them.
    """
    least, seconds = asked.least_workers, asked.wait_seconds
    try:
        ask(
            client,
            f"{counted(least, 'worker')} must come within {seconds:g} s (cluster.wait_seconds)",
            lambda: client.wait_for_workers(least),  # Dask's own deadline would count a stop
            seconds=seconds,
        )
    except SilentClusterError as error:
        there = len(workers_by_name(client, seconds=ANSWER_SECONDS))
        raise ClusterError(
            f"{counted(least, 'worker')} must be there before the work begins, got {there} within "
            f"{seconds:g} s (cluster.wait_seconds); see why no more come (quota, queue, image), "
            "ask for fewer (cluster.wait_for), or run again later"
        ) from error
    stay = {"hmrf.least-workers": least, "hmrf.refill-timeout": f"{seconds} s"}
    stack.enter_context(dask.config.set(stay))


def _check_workers(client: Client) -> None:
    """Refuse workers of other environments, and those that the program alone would fill.

    Dask pauses these as soon as they have imported it, and the work would wait for them.
    """
    check_versions(client)
    least = int(PROCESS / (dask.config.get("distributed.worker.memory.pause", 0.8) or 1.0))
    limits = {name: worker["memory_limit"] for name, worker in workers_by_name(client).items()}
    small = sorted(name for name, limit in limits.items() if limit and limit <= least)
    if small:
        more = f" and {len(small) - 3} more" if len(small) > 3 else ""
        raise MemoryPlanError(
            f"workers must have more memory than the program itself takes, {least >> 20} MiB "
            f"before Dask pauses them, got {', '.join(small[:3])}{more} with "
            f"{min(limits[name] for name in small) / 2**20:.0f} MiB; give them more "
            "(--memory-limit of dask worker)"
        )


def _refuse_open(asked: Cluster, *addresses: str) -> None:
    """Refuse a scheduler that others reach and that does not encrypt; say it where that is allowed.

    `addresses` are those it is called by and what it calls itself: it may be reached through a
    tunnel on loopback and be open to its own network.
    """
    address = next((one for one in addresses if not _is_safe(one)), None)
    if address is None:
        return
    risk = "whoever reaches it can read the documents and run code as the workers"
    if not asked.insecure:
        raise ConfigurationError(
            f"a scheduler that other machines reach must have TLS, got {address}: {risk}; "
            f"{SAFE_WAYS}"
        )
    warnings.warn(
        f"the scheduler {address} has no TLS: {risk} (allowed as insecure)",
        HmrfWarning,
        stacklevel=2,
    )


def _own_address(client: Any) -> str:
    """Return the address that a scheduler has in its own network."""
    identity = ask(client, "the scheduler must say its address", client.scheduler.identity)
    return str(identity["address"])


def _is_safe(address: str) -> bool:
    """Return whether what goes to an address is encrypted, or stays on this machine."""
    protocol, _ = parse_address(address)
    if protocol in ENCRYPTED:
        return True
    try:
        found = socket.getaddrinfo(get_address_host(address), None)
    except OSError:  # no such name here: whoever knows it is elsewhere
        return False
    return all(ipaddress.ip_address(name[4][0]).is_loopback for name in found)


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


def _client(
    stack: ExitStack, asked: Cluster, scheduler: str, called: str = "the scheduler's address"
) -> None:
    scheduler = plain_url(scheduler, called)
    named = scheduler if "://" in scheduler or ":" not in scheduler else f"tcp://{scheduler}"
    try:
        # A Client with a wrong address stays Dask's default one.
        _, port = get_address_host_port(named, strict=True)
        if not 0 < port < 2**16:
            raise ValueError(f"the port must be from 1 to 65535, got {port}")
    except ValueError as error:
        raise ConfigurationError(
            f"{called} must look like tcp://host:port, got {scheduler!r} ({error})"
        ) from error
    if not asked.insecure:
        _refuse_open(asked, named)  # before anything is said to it
    make = partial(Client, named, timeout=CONNECT_SECONDS, security=_own_certificates(named))
    seconds = CONNECT_SECONDS + GRACE
    try:
        client = stack.enter_context(closed_in_time(f"a client of {named}", make, seconds=seconds))
    except OSError as error:
        raise ClusterError(
            f"no Dask scheduler answered at {named} within {CONNECT_SECONDS} s ({error}); "
            f"start one, or check the address{_tls_advice(named)}"
        ) from error
    except MemoryError as error:  # Dask takes the first bytes of another protocol for a length
        raise ConfigurationError(
            f"{called} must be that of a Dask scheduler, got {named}, where something else "
            "answers, such as its dashboard; a scheduler says its address when it starts"
        ) from error
    # By name: Dask forgets a default client whose scheduler ends, and threads would go on here.
    stack.enter_context(dask.config.set(scheduler=client))
    _refuse_open(asked, named, _own_address(client))
    if asked.wait_for is not None:
        _wait_for_workers(stack, client, asked)
    _check_workers(client)


def _tls_advice(address: str) -> str:
    if address.startswith("tls://"):
        return ", and that both sides have certificates of the same authority"
    return ", which begins with tls:// where the scheduler has TLS"


def _own_certificates(address: str) -> Security | None:
    """Return the certificates of Dask's configuration; refuse a tls:// address without them."""
    if not address.startswith("tls://"):
        return None
    configured = {
        name: dask.config.get(f"distributed.comm.tls.{name}", None)
        for name in ("ca-file", "client.cert")
    }
    for name, path in configured.items():
        if not path or ("BEGIN" not in path and not Path(path).is_file()):
            variable = f"DASK_DISTRIBUTED__COMM__TLS__{name.replace('.', '__').upper()}"
            raise ConfigurationError(
                f"a tls:// address must go with certificates, got {path or 'nothing'} in Dask's "
                f"configuration as distributed.comm.tls.{name}; name a file there, or in "
                f"{variable.replace('-', '_')} (deploy/tls makes them)"
            )
    return Security()


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


@contextmanager
def reported_by_dask(path: str | None) -> Iterator[None]:
    """Write Dask's performance report of what is inside, which runs on the active client."""
    if path is None:
        yield
        return
    if active_client() is None:
        raise ConfigurationError(
            "--performance-report must go with a cluster, got threads of this process; give "
            "--processes or --scheduler, or leave it out"
        )
    if find_spec("bokeh") is None:
        raise ConfigurationError(
            "--performance-report must have bokeh, got none; install bokeh here, and where the "
            "scheduler runs"
        )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with performance_report(filename=path):
        yield


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
