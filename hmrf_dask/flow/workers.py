"""The workers of a Dask cluster: what they see and compute, what lies there, their memory.

Without a client the local schedulers need none of this.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import psutil

from hmrf_dask.errors import ClusterError, RunDirectoryError
from hmrf_dask.flow.clients import (
    AGAIN,
    SilentClusterError,
    active_client,
    ask,
    local_threads,
    no_progress,
)
from hmrf_dask.flow.waiting import futures_of, report_life, workers_by_name
from hmrf_dask.kernels.compiled import kernel_path, path_differences

CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
PROCESS = 320 * 2**20  # bytes of a worker with all modules and kernels loaded, without any rows
ANSWER = 3.0  # seconds in which a worker answers a client that can reach it
# By client: the worker that was greeted, and whether it answered.
_REACHED: WeakKeyDictionary[Any, tuple[str, bool]] = WeakKeyDictionary()
GRACE = 10.0  # seconds in which a scheduler says which workers are there yet
TASKS = 2  # of a pass for each local thread: fewer wait for the slowest, each may hold K x d sums


def reaches_workers(client: Any) -> bool:
    """Return whether this process can speak to workers itself: half of the way of large values."""
    if client.direct_to_workers is not None:
        return bool(client.direct_to_workers)
    greeted, reached = _REACHED.get(client, ("", False))
    if reached:
        return True
    addresses = list(workers_by_name(client))
    if not addresses or addresses[0] == greeted:
        return False
    # Behind a gateway, or just gone: another one may answer.
    with contextlib.suppress(SilentClusterError):
        ask(
            client,
            f"worker {addresses[0]} must answer",
            lambda: client.rpc(addresses[0]).identity(),
            seconds=ANSWER,
        )
        reached = True
    _REACHED[client] = addresses[0], reached
    return reached


def together(values: Sequence[Any]) -> list[tuple[list[int], int]]:
    """Return the numbers of persisted values by the worker that has them, and how many tasks.

    A worker gets one task a thread: one that waits there is stolen, and drags its rows along. Rows
    that each task reads for itself are in one place: everywhere.
    """
    client = active_client()
    if client is None:
        return [(list(range(len(values))), TASKS * local_threads())]
    threads = {name: int(one["nthreads"]) for name, one in workers_by_name(client).items()}
    if not any(hasattr(value, "key") for value in values):
        return [(list(range(len(values))), TASKS * max(1, sum(threads.values())))]
    kept = futures_of(client, values)
    places = ask(client, "the scheduler must say where values lie", lambda: client.who_has(kept))
    found: dict[str, list[int]] = {}
    for number, value in enumerate(values):
        holders = sorted(set(places.get(value.key, ())) & threads.keys())
        least = min(holders or threads, key=lambda one: len(found.get(one, ())), default="")
        found.setdefault(least, []).append(number)
    return [(numbers, threads.get(name, 1)) for name, numbers in sorted(found.items())]


# ---- memory


def memory_of_a_task() -> tuple[int, str]:
    """Return the memory one task may really have, and where that number comes from."""
    import dask

    pause = dask.config.get("distributed.worker.memory.pause", 0.8) or 1.0
    shares = [(int(limit * pause) - PROCESS) // threads for limit, threads in _limits()]
    if shares:
        return max(0, min(shares)), (
            f"{100 * pause:.0f} % of the smallest worker's memory limit, beyond which it pauses, "
            f"less {PROCESS >> 20} MiB for its process, shared by its threads"
        )
    threads = local_threads()
    shared = f" shared by {threads} threads" if threads > 1 else ""
    return machine_memory() // threads, f"this machine's memory limit{shared}"


def memory_of_all() -> int:
    """Return the memory of the whole cluster, or of this machine, that its processes leave."""
    limits = [limit for limit, _ in _limits()] or [machine_memory()]
    return sum(max(0, limit - PROCESS) for limit in limits)


def _limits() -> list[tuple[int, int]]:
    """Return the memory limit and the threads of each worker that has a limit."""
    client = active_client()
    return [
        (int(worker["memory_limit"]), max(int(worker["nthreads"]), 1))
        for worker in (() if client is None else workers_by_name(client).values())
        if worker["memory_limit"]
    ]


def machine_memory() -> int:
    """Return the memory of this machine, or what its container may have of it."""
    limits = [int(psutil.virtual_memory().total)]
    for file in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int(Path(file).read_text()))
    return min(limit for limit in limits if limit > 0)


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
        answers = _answers(client, run, token)
    own = kernel_path()
    for worker, (trouble, path) in sorted(answers.items()):
        if trouble is not None:
            raise RunDirectoryError(f"worker {worker}: {trouble}")
        if path != own:
            raise ClusterError(other_path(f"worker {worker}", path, own))


def _answers(client: Any, run: _Place, token: str) -> dict[str, Any]:
    """Return the answer of each worker, or say which of them gave none."""
    answers: dict[str, Any] = {}

    async def asked(worker: str) -> None:
        answers.update(await client.run(_worker_answer, run, token, workers=[worker]))

    async def all_asked() -> list[BaseException | None]:
        return await asyncio.gather(*map(asked, workers), return_exceptions=True)

    workers = list(workers_by_name(client))
    what = "every worker must answer before the start"
    errors: list[Any] = []
    with contextlib.suppress(SilentClusterError):
        errors = ask(client, what, all_asked)
    for error in errors:
        if error is not None and not isinstance(error, OSError):
            raise error
    silent = sorted(set(workers) - answers.keys())
    if silent and set(silent) & workers_by_name(client, seconds=GRACE).keys():
        raise ClusterError(  # one that has left meanwhile is no fault
            f"{what}, got none within {no_progress():g} s from {', '.join(silent)} (frozen, or cut "
            f"off?); see that its process runs, or end it, and {AGAIN}"
        )
    return answers


@contextlib.contextmanager
def _probed(run: _Place) -> Iterator[str]:
    token = run.probe()
    try:
        yield token
    finally:
        run.remove_probe(token)


def _worker_answer(run: _Place, token: str) -> tuple[str | None, dict[str, str]]:
    report_life()
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
