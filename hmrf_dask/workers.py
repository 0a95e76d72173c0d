"""The workers of a Dask cluster: whether there are any, what they see, waiting for them.

Dask waits without an end and without a word for workers that are gone, paused, or cannot pass a
value on; here every wait has its deadline. Without a client the local schedulers need none of this.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import dask
import dask.local
import dask.threaded
import psutil
from dask.base import get_scheduler, named_schedulers
from dask.utils import parse_timedelta

from hmrf_dask.errors import ClusterError, HmrfError, RunDirectoryError
from hmrf_dask.kernels.path import kernel_path, path_differences

CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
PROCESS = 320 * 2**20  # bytes of a worker with all modules and kernels loaded, without any rows
POLL = 2.0  # seconds between two looks at the workers while a graph runs
ANSWER = 3.0  # seconds in which a worker answers a client that can reach it
# By client: the worker that was greeted, and whether it answered.
_REACHED: WeakKeyDictionary[Any, tuple[str, bool]] = WeakKeyDictionary()
TASKS = 2  # of a pass for each local thread: fewer wait for the slowest, each may hold K x d sums


def setting(name: str, default: Any) -> Any:
    """Return a setting of the `hmrf` section of Dask's configuration."""
    return dask.config.get(f"hmrf.{name}", default)


def known_scheduler() -> Any:
    """Return a local scheduler where nothing else can be meant, None where Dask has to find out.

    To look for a client it imports distributed, half a second, even where a local scheduler is
    named; without distributed there is none.
    """
    named = dask.config.get("scheduler", None)
    if isinstance(named, str):
        return named_schedulers.get(named.lower())
    return None if named or "distributed" in sys.modules else dask.threaded.get


def _scheduler() -> Any:
    """Return the function that Dask would run graphs with, or None for the default."""
    return get_scheduler(scheduler=known_scheduler())


def active_client() -> Any:
    """Return the Client that Dask would use now, or None for a local scheduler."""
    owner = getattr(_scheduler(), "__self__", None)
    return owner if hasattr(owner, "scheduler_info") else None


def in_this_process() -> bool:
    """Return whether tasks run on threads of this process, or one after the other in it."""
    return _scheduler() in (None, dask.local.get_sync, dask.threaded.get)


def reaches_workers(client: Any) -> bool:
    """Return whether this process can speak to workers itself: half of the way of large values."""
    if client.direct_to_workers is not None:
        return bool(client.direct_to_workers)
    greeted, reached = _REACHED.get(client, ("", False))
    if reached:
        return True
    addresses = list(_workers_by_name(client))
    if not addresses or addresses[0] == greeted:
        return False
    try:
        client.sync(_greet, client, addresses[0], callback_timeout=ANSWER)
        reached = True
    except (OSError, TimeoutError):  # behind a gateway, or just gone: another one may answer
        pass
    _REACHED[client] = addresses[0], reached
    return reached


async def _greet(client: Any, address: str) -> None:
    await client.rpc(address).identity()


# ---- waiting


class LostWorkError(ClusterError):
    """Tasks were cancelled: the scheduler went away, or a value they need is gone for good."""


def patience() -> float:
    """Return for how many seconds nothing may move on the workers."""
    return float(parse_timedelta(setting("no-workers-timeout", "60 s"), default="s"))


def wait_for(client: Any, futures: Sequence[Any]) -> None:
    """Wait until all futures are done; give up, and drop them, when nothing moves any more."""
    try:
        _watch(client, futures)
    except BaseException:  # Ctrl-C in a notebook keeps the frame, and the frame keeps the futures
        with contextlib.suppress(Exception):
            client.cancel(list(futures))
        raise


def futures_of(client: Any, kept: Sequence[Any]) -> list[Any]:
    """Return the futures of persisted collections, or say that what they hang on is lost."""
    from distributed import CancelledError

    try:
        return list(client.futures_of(list(kept)))
    except CancelledError as error:
        raise LostWorkError(
            f"tasks must stay until they are done, got them lost ({error}); {_AGAIN}"
        ) from error


def fetch(client: Any, futures: Sequence[Any]) -> list[Any]:
    """Return the results of futures that are done."""
    from distributed import CancelledError

    try:
        return list(client.gather(list(futures), direct=reaches_workers(client)))
    except CancelledError as error:
        with contextlib.suppress(Exception):  # the same keys are run again: nothing old may answer
            client.cancel(list(futures))
        raise LostWorkError(
            f"results must stay until they are fetched, got them lost ({error}); {_AGAIN}"
        ) from error


def _watch(client: Any, futures: Sequence[Any]) -> None:
    from distributed import CancelledError, wait

    address = client.scheduler.address
    patient = patience()
    quiet_since, last = time.monotonic(), -1
    while not any(future.status == "error" for future in futures):
        try:
            wait(futures, timeout=POLL)
            break
        except TimeoutError:
            states = worker_states(client)
            transfers = sum(state.transfers for state in states)
            if transfers != last or any(state.busy for state in states):
                quiet_since, last = time.monotonic(), transfers
            if time.monotonic() - quiet_since > patient:
                raise ClusterError(_stalled(address, states, patient)) from None
        except CancelledError as error:
            raise LostWorkError(
                f"the scheduler must stay, got {address} gone, or the work cancelled ({error}); "
                f"{_AGAIN}"
            ) from error
    for future in futures:
        if future.status == "error":
            _explain(future)


@dataclass(frozen=True)
class WorkerState:
    """What a worker last told of itself."""

    running: bool  # not paused, not closing
    busy: bool  # runs a task now
    transfers: int  # that it received so far


def worker_states(client: Any) -> list[WorkerState]:
    """Return what each worker last told of itself."""
    states = []
    for worker in _workers(client):
        metrics = worker.get("metrics", {})
        counts = metrics.get("task_counts", {})
        received = metrics.get("transfer", {}).get("incoming_count_total", 0)
        running = worker.get("status", "running") == "running"
        busy = bool(counts.get("executing") or counts.get("long-running"))
        states.append(WorkerState(running, busy, int(received)))
    return states


def _workers(client: Any) -> list[dict[str, Any]]:
    return list(_workers_by_name(client).values())


def _workers_by_name(client: Any) -> dict[str, dict[str, Any]]:
    return dict(client.scheduler_info(n_workers=-1)["workers"])


def _stalled(address: str, states: list[WorkerState], patience: float) -> str:
    if not states:
        trouble = "there is none; start some"
    elif not any(state.running for state in states):
        trouble = f"all {len(states)} are paused for want of memory or closing; start more"
    else:
        trouble = (
            f"{len(states)} are there and do nothing; look at their logs (a value that cannot be "
            "pickled stops them without an error)"
        )
    return f"no worker of {address} took work for {patience:g} s: {trouble}, and {_AGAIN}"


_AGAIN = "run again: a run_dir resumes where it stopped"


def _explain(future: Any) -> None:
    """Raise the error of a failed future; a worker killed under a task is no fault of the task."""
    error = future.exception()
    if isinstance(error, HmrfError):
        raise error
    if type(error).__name__ == "KilledWorker":
        raise ClusterError(
            "workers died again and again, probably for want of memory, the last time while they "
            f"held {future.key} or what it needs (which may be innocent): {error} Give workers "
            f"more memory or make partitions smaller, and {_AGAIN}"
        ) from error
    raise error


def together(values: Sequence[Any]) -> list[tuple[list[int], int]]:
    """Return the numbers of persisted values by the worker that has them, and how many tasks.

    A worker gets one task a thread: one that waits there is stolen, and drags its rows along. Rows
    that each task reads for itself are in one place: everywhere.
    """
    client = active_client()
    if client is None:
        return [(list(range(len(values))), TASKS * local_threads())]
    threads = {name: int(one["nthreads"]) for name, one in _workers_by_name(client).items()}
    if not any(hasattr(value, "key") for value in values):
        return [(list(range(len(values))), TASKS * max(1, sum(threads.values())))]
    places = client.who_has(client.futures_of(list(values)))
    found: dict[str, list[int]] = {}
    for number, value in enumerate(values):
        holders = sorted(set(places.get(value.key, ())) & threads.keys())
        least = min(holders or threads, key=lambda one: len(found.get(one, ())), default="")
        found.setdefault(least, []).append(number)
    return [(numbers, threads.get(name, 1)) for name, numbers in sorted(found.items())]


# ---- memory


def memory_of_a_task() -> tuple[int, str]:
    """Return the memory one task may really have, and where that number comes from."""
    client = active_client()
    if client is not None:
        shares = [
            worker["memory_limit"] // max(worker["nthreads"], 1)
            for worker in _workers(client)
            if worker["memory_limit"]
        ]
        if shares:
            return min(shares), "the smallest worker's memory limit shared by its threads"
    threads = local_threads()
    shared = f" shared by {threads} threads" if threads > 1 else ""
    return machine_memory() // threads, f"this machine's memory limit{shared}"


def memory_of_all() -> int:
    """Return the memory of the whole cluster, or of this machine, that its processes leave."""
    client = active_client()
    limits = [] if client is None else [int(one["memory_limit"] or 0) for one in _workers(client)]
    limited = [limit for limit in limits if limit]
    return sum(max(0, limit - PROCESS) for limit in limited or [machine_memory()])


def machine_memory() -> int:
    """Return the memory of this machine, or what its container may have of it."""
    limits = [int(psutil.virtual_memory().total)]
    for file in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int(Path(file).read_text()))
    return min(limit for limit in limits if limit > 0)


def local_threads() -> int:
    """Return how many tasks a local scheduler runs at a time."""
    if _scheduler() is dask.local.get_sync:
        return 1
    return int(dask.config.get("num_workers", None) or dask.system.CPU_COUNT)


# ---- workers


class _Place(Protocol):
    """A run directory, as far as workers are asked about it."""

    def probe(self) -> str: ...

    def check_probe(self, token: str) -> None: ...

    def remove_probe(self, token: str) -> None: ...


def check_workers(run: _Place) -> None:
    """Raise before any work if a worker cannot see the run directory or computes other bits."""
    client = active_client()
    if client is None:
        return
    with _probed(run) as token:
        answers = client.run(_worker_answer, run, token)
    own = kernel_path()
    for worker, (trouble, path) in sorted(answers.items()):
        if trouble is not None:
            raise RunDirectoryError(f"worker {worker}: {trouble}")
        if path != own:
            raise ClusterError(other_path(f"worker {worker}", path, own))


@contextlib.contextmanager
def _probed(run: _Place) -> Iterator[str]:
    token = run.probe()
    try:
        yield token
    finally:
        run.remove_probe(token)


def _worker_answer(run: _Place, token: str) -> tuple[str | None, dict[str, str]]:
    try:
        run.check_probe(token)
    except RunDirectoryError as error:
        return str(error), kernel_path()
    return None, kernel_path()


def other_path(worker: str, path: dict[str, str], own: dict[str, str]) -> str:
    """Return the words that refuse a worker whose kernel path is not the client's own."""
    return (
        f"workers must compute the same bits as the client, got {worker} with another kernel path "
        f"or instruction set ({path_differences(path, own)}); use machines and environments of "
        "one kind"
    )
