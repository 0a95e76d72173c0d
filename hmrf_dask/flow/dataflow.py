"""How work reaches Dask: tasks over partitions, trees of sums, shared state.

The loop speaks to a `Dataflow`. `DaskFlow` builds delayed tasks and runs them under whatever
scheduler Dask would use: an active `Client`, else threads. `Inline` runs every function at once: a
candidate start lives inside one task and uses it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import dask
import dask.threaded
import numpy as np
from dask.base import get_scheduler
from dask.delayed import Delayed
from dask.utils import parse_bytes

from hmrf_dask.flow.clients import active_client, in_this_process, known_scheduler, setting
from hmrf_dask.flow.graphs import (
    Constant,
    Guarded,
    Known,
    Planned,
    Sent,
    Slot,
    fed,
    merged,
    planned,
)
from hmrf_dask.flow.waiting import LostWorkError, fetch, futures_of, wait_for
from hmrf_dask.flow.workers import reaches_workers, together
from hmrf_dask.kernels.compiled import kernel_path
from hmrf_dask.types import AnyArray

log = logging.getLogger("hmrf_dask")
FAN = 8  # children of a node of a reduction tree
SMALL = 4096  # bytes of an array that may travel as an argument
Lazy = Any  # a Delayed under DaskFlow, the value itself under Inline


class Dataflow(Protocol):
    """What the loop needs of a way to run functions."""

    def lazy(self, function: Callable[..., Any], *arguments: Any) -> Lazy:
        """Return the result of function(*arguments), lazily."""

    def share(self, value: Any) -> Lazy:
        """Return `value` as a task result that survives the loss of any worker."""

    def broadcast(self, value: Any) -> Lazy:
        """Return `value` as `share` does, to be sent to all workers at once."""

    def compute(self, values: Sequence[Lazy]) -> list[Any]:
        """Return the values."""

    def persist(self, values: Sequence[Lazy]) -> list[Lazy]:
        """Return the values computed and kept where they were computed."""

    def neighbours(self, values: Sequence[Lazy]) -> list[list[int]]:
        """Return the numbers of kept values in groups: one task takes a group where it lies."""

    def holds(self, values: Sequence[Lazy]) -> bool:
        """Return whether the values lie in this process, where any task can use them."""

    @property
    def shares_memory(self) -> bool:
        """Whether tasks see the very objects that they are given."""


def tree(
    flow: Dataflow,
    combine: Callable[[list[Any]], Any],
    parts: Sequence[Lazy],
    fan: int = FAN,
) -> Lazy:
    """Return combine over all parts as a tree of `fan` children a node, a few levels deep."""
    level = list(parts)
    while len(level) > 1:
        level = [
            flow.lazy(combine, level[first : first + fan])
            if len(level[first : first + fan]) > 1
            else level[first]
            for first in range(0, len(level), fan)
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

    def broadcast(self, value: Any) -> Any:
        """Return the value."""
        return value

    def compute(self, values: Sequence[Any]) -> list[Any]:
        """Return the values."""
        return list(values)

    def persist(self, values: Sequence[Any]) -> list[Any]:
        """Return the values."""
        return list(values)

    def neighbours(self, values: Sequence[Any]) -> list[list[int]]:
        """Return all in one group."""
        return [list(range(len(values)))]

    def holds(self, values: Sequence[Any]) -> bool:
        """Return whether the values lie in this process: they do."""
        return True

    @property
    def shares_memory(self) -> bool:
        """Whether tasks see the very objects that they are given: they do."""
        return True


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
        self._sent = Sent()

    def lazy(self, function: Callable[..., Any], *arguments: Any) -> Planned:
        """Return a call to come; its key is new, as a key used again returns the old result."""
        needs: list[Planned] = []
        template = tuple(self._split(one, needs) for one in arguments)
        key = self._key(function.__name__.strip("_"))
        task = (Guarded(function, template, self.path), *(one.key for one in needs))
        return Planned(key, {key: task}, tuple(needs))

    def share(self, value: Any) -> Planned | Known:
        """Return `value` as a task result: sent once, there again when a worker is lost."""
        if active_client() is None:
            return Known(value)
        key = self._key("shared")
        return Planned(key, {key: (Constant(value),)})

    def broadcast(self, value: Any) -> Planned | Known:
        """Return `value` as `share` does, and begin to send it to all workers."""
        shared = self.share(value)
        client = active_client()
        if isinstance(shared, Planned) and reaches_workers(client):
            self._sent.send(client, shared, value)
        return shared

    def compute(self, values: Sequence[Lazy]) -> list[Any]:
        """Return the values, computed in one graph."""
        return [one.value if isinstance(one, Known) else one for one in self._run(values)]

    def persist(self, values: Sequence[Lazy]) -> list[Lazy]:
        """Return the values computed and kept; one that is lost is computed again."""
        client = active_client()
        if client is None:
            return [one if isinstance(one, Known) else Known(one) for one in self._run(values)]
        self.computes += 1
        return _submitted(client, [planned(one) for one in values])

    def settle(self) -> None:
        """Wait for values that are on their way though nothing wants them any more."""
        self._sent.settle()

    def neighbours(self, values: Sequence[Lazy]) -> list[list[int]]:
        """Return a few groups a thread of those that lie on one worker, in their order."""
        return [
            [int(number) for number in some]
            for numbers, n_tasks in together(values)
            for some in np.array_split(numbers, min(n_tasks, len(numbers)))
        ]

    def holds(self, values: Sequence[Lazy]) -> bool:
        """Return whether the values are known here, and tasks run on threads of this process."""
        return self.shares_memory and all(isinstance(one, Known) for one in values)

    @property
    def shares_memory(self) -> bool:
        """Whether tasks see the very objects that they are given, on threads of this process."""
        return in_this_process()

    def _run(self, values: Sequence[Lazy]) -> list[Any]:
        """Return what is known already as it is, everything else computed."""
        self.computes += 1
        wanted = [one if isinstance(one, Known) else planned(one) for one in values]
        tasks = [one for one in wanted if isinstance(one, Planned)]
        client = active_client()
        if client is None:
            run = get_scheduler(scheduler=known_scheduler()) or dask.threaded.get
            results = iter(run(merged(tasks), [one.key for one in tasks]) if tasks else ())
        else:
            results = iter(self._run_on(client, tasks))
        return [next(results) if isinstance(one, Planned) else one for one in wanted]

    def _run_on(self, client: Any, tasks: Sequence[Planned]) -> list[Any]:
        """Return values computed on workers, from what was sent there or, where it is lost, not."""
        sent = self._sent.taken(tasks)
        if sent:
            try:
                return _gathered(client, fed(tasks, sent))
            except LostWorkError:
                log.info("a worker was lost with values that were sent to it; they go there again")
        return _gathered(client, tasks)

    def _key(self, name: str) -> str:
        self.tasks += 1
        return f"{name}-{self.run}-{self.tasks}"

    def _split(self, argument: Any, needs: list[Planned]) -> Any:
        """Return an argument with slots for the values of tasks, which are added to `needs`."""
        if isinstance(argument, Known):
            return argument.value
        if type(argument) in (list, tuple):
            return type(argument)([self._split(one, needs) for one in argument])
        if isinstance(argument, Planned | Delayed):
            needs.append(planned(argument))
            return Slot(len(needs) - 1)
        return argument


def _gathered(client: Any, tasks: Sequence[Planned]) -> list[Any]:
    futures = [one.layer[one.key] for one in _submitted(client, tasks)]
    return fetch(client, futures, direct=reaches_workers(client))


def _submitted(client: Any, tasks: Sequence[Planned]) -> list[Planned]:
    """Return tasks run on workers, their values kept there."""
    # The model travels in the graph, once a pass: that is what Dask would warn of.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1PiB"}):
        kept = list(client.persist(list(tasks), retries=setting("retries", 3)))
    wait_for(client, futures_of(client, kept), list(merged(tasks)))
    return kept


def task_memory() -> int:
    """Return the bytes a task is planned for: `hmrf.task-memory`, 1 GiB on any machine."""
    return int(parse_bytes(setting("task-memory", "1 GiB")))
