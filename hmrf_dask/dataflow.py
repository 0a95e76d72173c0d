"""How work reaches Dask: tasks over partitions, trees, shared state, deadlines. With `corpus` the only module that imports Dask.

The loop speaks to a `Dataflow`. `DaskFlow` builds delayed tasks and runs them under whatever scheduler Dask would use: an active `Client`,
else threads. `Inline` runs every function at once: a candidate start lives inside one task and uses it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import dask
from dask.delayed import Delayed, delayed

from hmrf_dask.errors import ClusterError, HmrfError, RunDirectoryError
from hmrf_dask.kernels.path import kernel_path

FAN = 8  # children of a node of a reduction tree
Lazy = Any  # a value that may still have to be computed: a Delayed under DaskFlow, the value itself under Inline


class Dataflow(Protocol):
    """What the loop needs of a way to run functions."""

    def lazy(self, function: Callable[..., Any], *arguments: Any) -> Lazy:
        """Return the result of function(*arguments), lazily."""

    def share(self, value: Any) -> Lazy:
        """Return `value` as a task result that survives the loss of any worker."""

    def compute(self, values: Sequence[Lazy]) -> list[Any]:
        """Return the values."""

    def persist(self, values: Sequence[Lazy]) -> list[Lazy]:
        """Return the values computed and kept where they were computed."""


def tree(flow: Dataflow, combine: Callable[[list[Any]], Any], parts: Sequence[Lazy]) -> Lazy:
    """Return combine over all parts as a tree of `FAN` children a node: log₈ deep, not a chain."""
    level = list(parts)
    while len(level) > 1:
        level = [
            flow.lazy(combine, level[first : first + FAN])
            if len(level[first : first + FAN]) > 1
            else level[first]
            for first in range(0, len(level), FAN)
        ]
    return level[0]


class Inline:
    """Runs functions where they are called."""

    def lazy(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return function(*arguments)."""
        return function(*arguments)

    def share(self, value: Any) -> Any:
        """Return the value."""
        return value

    def compute(self, values: Sequence[Any]) -> list[Any]:
        """Return the values."""
        return list(values)

    def persist(self, values: Sequence[Any]) -> list[Any]:
        """Return the values."""
        return list(values)


class DaskFlow:
    """Runs functions as Dask tasks.

    Attributes
    ----------
    computes, tasks : int
        How many graphs were run and how many tasks were named so far; tests and benchmarks read them.
    """

    def __init__(self) -> None:
        self.run = uuid.uuid4().hex[:8]
        self.computes = 0
        self.tasks = 0

    def lazy(self, function: Callable[..., Any], *arguments: Any) -> Delayed:
        """Return a delayed call; its key is never used twice, because a key used twice would return the old result."""
        self.tasks += 1
        key = f"{function.__name__.strip('_')}-{self.run}-{self.tasks}"
        return delayed(function, pure=False, traverse=False)(*arguments, dask_key_name=key)

    def share(self, value: Any) -> Delayed:
        """Return `value` as the result of a task of its own: recomputable, unlike scattered data."""
        self.tasks += 1
        return delayed(value, name=f"shared-{self.run}-{self.tasks}", traverse=False)

    def compute(self, values: Sequence[Lazy]) -> list[Any]:
        """Return the values, computed in one graph."""
        self.computes += 1
        client = active_client()
        if client is None:
            return list(dask.compute(*values))
        futures = client.compute(list(values), retries=dask.config.get("hmrf.retries", 3))
        _wait(client, futures)
        return list(client.gather(futures))

    def persist(self, values: Sequence[Lazy]) -> list[Lazy]:
        """Return the values computed and kept; on a cluster a lost one is recomputed from its tasks."""
        self.computes += 1
        client = active_client()
        if client is None:
            return list(dask.persist(*values))
        kept = client.persist(list(values), retries=dask.config.get("hmrf.retries", 3))
        _wait(client, client.futures_of(kept))
        return list(kept)


def active_client() -> Any:
    """Return the Client that Dask would use now, or None for a local scheduler."""
    try:
        from distributed import get_client
    except ImportError:
        return None
    if isinstance(dask.config.get("scheduler", None), str) and dask.config.get("scheduler") in (
        "sync", "synchronous", "single-threaded", "threads", "threading",
    ):  # fmt: skip
        return None
    try:
        return get_client()
    except ValueError:
        return None


def _wait(client: Any, futures: Sequence[Any]) -> None:
    """Wait until all futures are done; give up when there is no worker that could do them."""
    from distributed import wait

    patience = float(dask.config.get("hmrf.no-workers-timeout", 60))
    since: float | None = None
    while True:
        try:
            wait(futures, timeout=2)
            break
        except TimeoutError:
            if any(status == "running" for status in worker_states(client)):
                since = None
                continue
            since = since or time.monotonic()
            if time.monotonic() - since > patience:
                raise ClusterError(
                    f"no worker of {client.scheduler.address} could take work for {patience:.0f} s (none left, or all paused for "
                    "memory); start workers and run again, a run_dir resumes where it stopped"
                ) from None
    for future in futures:
        if future.status == "error":
            _explain(future)


def worker_states(client: Any) -> list[str]:
    """Return the status of each worker."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return [str(worker.get("status", "running")) for worker in workers]


def _explain(future: Any) -> None:
    """Raise the error of a failed future; a worker killed under a task is no fault of the task's."""
    error = future.exception()
    if isinstance(error, HmrfError):
        raise error
    if type(error).__name__ == "KilledWorker":
        raise ClusterError(
            f"workers died while they ran {future.key}, probably for want of memory: {error}. Give workers more memory or "
            "make partitions smaller, and run again"
        ) from error
    raise error


def memory_of_a_task() -> tuple[int, str]:
    """Return the memory one task may really have, and where that number comes from."""
    client = active_client()
    if client is not None:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        shares = [
            worker["memory_limit"] // max(worker["nthreads"], 1)
            for worker in workers
            if worker["memory_limit"]
        ]
        if shares:
            return min(shares), "the smallest worker's memory limit shared by its threads"
    from distributed.system import MEMORY_LIMIT

    return int(MEMORY_LIMIT), "this machine's memory limit"


def memory_of_all() -> int:
    """Return the memory of the whole cluster, or of this machine."""
    client = active_client()
    if client is None:
        from distributed.system import MEMORY_LIMIT

        return int(MEMORY_LIMIT)
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return sum(int(worker["memory_limit"] or 0) for worker in workers)


class _Place(Protocol):
    """A run directory, as far as workers are asked about it."""

    def probe(self) -> str: ...

    def check_probe(self, token: str) -> None: ...

    def remove_probe(self, token: str) -> None: ...


def check_workers(run: _Place) -> None:
    """Raise before any work when a worker cannot see the run directory or would compute other bits."""
    client = active_client()
    if client is None:
        return
    token = run.probe()
    try:
        answers = client.run(_worker_answer, run, token)
    finally:
        run.remove_probe(token)
    own = kernel_path()
    for worker, (trouble, path) in sorted(answers.items()):
        if trouble is not None:
            raise RunDirectoryError(f"worker {worker}: {trouble}")
        if path != own:
            raise ClusterError(
                f"worker {worker} has another kernel path or instruction set ({path}) than the client ({own}), so its bits may differ; "
                "use machines of one kind"
            )


def _worker_answer(run: _Place, token: str) -> tuple[str | None, dict[str, str]]:
    try:
        run.check_probe(token)
    except RunDirectoryError as error:
        return str(error), kernel_path()
    return None, kernel_path()


def setting(name: str, default: Any) -> Any:
    """Return a setting of the `hmrf` section of Dask's configuration."""
    return dask.config.get(f"hmrf.{name}", default)


def task_memory() -> int:
    """Return the memory a task is planned for, in bytes: `hmrf.task-memory`, 1 GiB whatever the machine."""
    return int(dask.utils.parse_bytes(dask.config.get("hmrf.task-memory", "1 GiB")))
