"""How work reaches Dask: tasks over partitions, trees of sums, shared state.

The loop speaks to a `Dataflow`. `DaskFlow` builds delayed tasks and runs them under whatever
scheduler Dask would use: an active `Client`, else threads. `Inline` runs every function at once: a
candidate start lives inside one task and uses it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dask.base import compute, persist
from dask.delayed import Delayed, delayed
from dask.utils import parse_bytes

from hmrf_dask.errors import ClusterError
from hmrf_dask.kernels.path import kernel_path
from hmrf_dask.types import AnyArray
from hmrf_dask.workers import active_client, other_path, setting, wait_for

FAN = 8  # children of a node of a reduction tree
SMALL = 4096  # bytes of an array that may travel as an argument
Lazy = Any  # a Delayed under DaskFlow, the value itself under Inline


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


def share_array(flow: Dataflow, values: AnyArray) -> Lazy:
    """Return an array as a task result of its own, unless it is small enough for an argument."""
    return values if values.nbytes <= SMALL else flow.share(values)


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


@dataclass(frozen=True)
class Guarded:
    """A task function that runs only where it gives the client's bits: workers join at any time."""

    function: Callable[..., Any]
    path: tuple[tuple[str, str], ...]

    def __call__(self, *arguments: Any) -> Any:
        """Return function(*arguments), or raise ClusterError on a machine of another kind."""
        own = kernel_path()
        if tuple(own.items()) != self.path:
            raise ClusterError(other_path("a worker that joined", own, dict(self.path)))
        return self.function(*arguments)


class DaskFlow:
    """Runs functions as Dask tasks.

    Attributes
    ----------
    computes, tasks : int
        How many graphs were run and how many tasks were named so far.
    """

    def __init__(self) -> None:
        self.run = uuid.uuid4().hex[:8]
        self.path = tuple(kernel_path().items())
        self.computes = 0
        self.tasks = 0

    def lazy(self, function: Callable[..., Any], *arguments: Any) -> Delayed:
        """Return a delayed call; its key is new, as a key used again returns the old result."""
        self.tasks += 1
        key = f"{function.__name__.strip('_')}-{self.run}-{self.tasks}"
        call = delayed(Guarded(function, self.path), pure=False, traverse=False)
        task: Delayed = call(*arguments, dask_key_name=key)
        return task

    def share(self, value: Any) -> Delayed:
        """Return `value` as the result of a task of its own, unlike scattered data recomputable."""
        self.tasks += 1
        leaf: Delayed = delayed(value, name=f"shared-{self.run}-{self.tasks}", traverse=False)
        return leaf

    def compute(self, values: Sequence[Lazy]) -> list[Any]:
        """Return the values, computed in one graph."""
        self.computes += 1
        client = active_client()
        if client is None:
            return list(compute(*values))
        futures = client.compute(list(values), retries=setting("retries", 3))
        wait_for(client, futures)
        return list(client.gather(futures))

    def persist(self, values: Sequence[Lazy]) -> list[Lazy]:
        """Return the values computed and kept; one that is lost is computed again."""
        self.computes += 1
        client = active_client()
        if client is None:
            return list(persist(*values))
        kept = client.persist(list(values), retries=setting("retries", 3))
        wait_for(client, client.futures_of(kept))
        return list(kept)


def task_memory() -> int:
    """Return the bytes a task is planned for: `hmrf.task-memory`, 1 GiB on any machine."""
    return int(parse_bytes(setting("task-memory", "1 GiB")))
