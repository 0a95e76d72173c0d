"""How work reaches Dask: tasks over partitions, trees of sums, shared state.

The loop speaks to a `Dataflow`. `DaskFlow` builds delayed tasks and runs them under whatever
scheduler Dask would use: an active `Client`, else threads. `Inline` runs every function at once: a
candidate start lives inside one task and uses it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import dask
import dask.threaded
import numpy as np
from dask.base import get_scheduler
from dask.delayed import Delayed
from dask.utils import parse_bytes

from hmrf_dask.errors import ClusterError
from hmrf_dask.kernels.path import kernel_path
from hmrf_dask.types import AnyArray
from hmrf_dask.workers import (
    active_client,
    in_this_process,
    known_scheduler,
    other_path,
    setting,
    together,
    wait_for,
)

FAN = 8  # children of a node of a reduction tree
TASKS = 2  # of a pass for each thread: fewer wait for the slowest, each may hold K x d sums
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

    def neighbours(self, values: Sequence[Lazy]) -> list[list[int]]:
        """Return the numbers of kept values in groups: one task takes a group where it lies."""

    @property
    def shares_memory(self) -> bool:
        """Whether tasks see the very objects that they are given."""


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

    def neighbours(self, values: Sequence[Any]) -> list[list[int]]:
        """Return all in one group."""
        return [list(range(len(values)))]

    @property
    def shares_memory(self) -> bool:
        """Whether tasks see the very objects that they are given: they do."""
        return True


@dataclass(frozen=True)
class Guarded:
    """A call that runs only where it gives the client's bits: workers join at any time.

    `arguments` holds the literal ones; where a `Slot` stands, a value of another task goes.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    path: tuple[tuple[str, str], ...]

    def __call__(self, *values: Any) -> Any:
        """Return function(*arguments), or raise ClusterError on a machine of another kind."""
        own = kernel_path()
        if tuple(own.items()) != self.path:
            raise ClusterError(other_path("a worker that joined", own, dict(self.path)))
        return self.function(*_filled(self.arguments, values))


@dataclass(frozen=True)
class Slot:
    """The place of a value among those a call is given."""

    number: int


@dataclass(frozen=True)
class Constant:
    """A task that gives a value: unlike scattered data it is there again when its worker dies."""

    value: Any

    def __call__(self) -> Any:
        """Return the value."""
        return self.value


@dataclass(frozen=True, eq=False)
class Known:
    """A value in this process, the result of a graph or shared; it goes into calls as it is."""

    value: Any


@dataclass(frozen=True, eq=False)
class Planned:
    """A task that was not run yet, or runs on workers: a Dask collection of one key.

    Delayed objects do the same, but the cost of a graph of theirs is that of a small corpus's pass.

    Attributes
    ----------
    key : str
    layer : dict
        The task, and tasks of other collections that it needs, as Dask takes them.
    needs : tuple of Planned
        What else it needs; held, as Dask forgets a persisted value that nobody holds.
    """

    key: str
    layer: Mapping[str, Any]
    needs: tuple[Planned, ...] = ()

    def __dask_graph__(self) -> dict[str, Any]:
        """Return all tasks."""
        return merged([self])

    def __dask_keys__(self) -> list[str]:
        """Return the one key."""
        return [self.key]

    def __dask_tokenize__(self) -> str:
        """Return the key, which is used once."""
        return self.key

    def __dask_postcompute__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Say how to take the value out of the list of results."""
        return _first, ()

    def __dask_postpersist__(self) -> tuple[Callable[..., Planned], tuple[Any, ...]]:
        """Say how to make this again of a graph that was run."""
        return _replanned, (self.key,)

    __dask_scheduler__ = staticmethod(dask.threaded.get)
    __dask_optimize__ = None  # every task is wanted, and as it is


def merged(values: Sequence[Planned]) -> dict[str, Any]:
    """Return the tasks of several values and of all they need."""
    graph: dict[str, Any] = {}
    seen: set[str] = set()
    waiting = list(values)
    while waiting:
        one = waiting.pop()
        if one.key not in seen:
            seen.add(one.key)
            graph.update(one.layer)
            waiting.extend(one.needs)
    return graph


def _first(results: Sequence[Any]) -> Any:
    return results[0]


def _replanned(graph: Mapping[str, Any], key: str, rename: Any = None) -> Planned:
    return Planned(key, {key: graph[key]})


def _filled(arguments: Any, values: Sequence[Any]) -> Any:
    """Return arguments with values in their slots."""
    if type(arguments) is Slot:
        return values[arguments.number]
    if type(arguments) in (list, tuple):
        return type(arguments)([_filled(one, values) for one in arguments])
    return arguments


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

    def compute(self, values: Sequence[Lazy]) -> list[Any]:
        """Return the values, computed in one graph."""
        return [one.value if isinstance(one, Known) else one for one in self._run(values)]

    def persist(self, values: Sequence[Lazy]) -> list[Lazy]:
        """Return the values computed and kept; one that is lost is computed again."""
        client = active_client()
        if client is None:
            return [one if isinstance(one, Known) else Known(one) for one in self._run(values)]
        self.computes += 1
        return _submitted(client, [_planned(one) for one in values])

    def neighbours(self, values: Sequence[Lazy]) -> list[list[int]]:
        """Return `TASKS` groups a thread of those that lie on one worker, in their order."""
        return [
            [int(number) for number in some]
            for numbers, threads in together(values)
            for some in np.array_split(numbers, min(TASKS * threads, len(numbers)))
        ]

    @property
    def shares_memory(self) -> bool:
        """Whether tasks see the very objects that they are given, on threads of this process."""
        return in_this_process()

    def _run(self, values: Sequence[Lazy]) -> list[Any]:
        """Return what is known already as it is, everything else computed."""
        self.computes += 1
        wanted = [one if isinstance(one, Known) else _planned(one) for one in values]
        tasks = [one for one in wanted if isinstance(one, Planned)]
        client = active_client()
        if client is None:
            run = get_scheduler(scheduler=known_scheduler()) or dask.threaded.get
            results = iter(run(merged(tasks), [one.key for one in tasks]) if tasks else ())
        else:
            done = _submitted(client, tasks)
            results = iter(client.gather([one.layer[one.key] for one in done]))
        return [next(results) if isinstance(one, Planned) else one for one in wanted]

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
            needs.append(_planned(argument))
            return Slot(len(needs) - 1)
        return argument


def _planned(value: Planned | Delayed) -> Planned:
    """Return a Delayed of the user's, or of a corpus, as the loop takes it."""
    if isinstance(value, Planned):
        return value
    layer: Mapping[Any, Any] = value.__dask_graph__()
    return Planned(value.key, dict(layer))


def _submitted(client: Any, tasks: Sequence[Planned]) -> list[Planned]:
    """Return tasks run on workers, their values kept there."""
    # The model travels in the graph, once a pass: that is what Dask would warn of.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1PiB"}):
        kept = list(client.persist(list(tasks), retries=setting("retries", 3)))
    wait_for(client, client.futures_of(kept))
    return kept


def task_memory() -> int:
    """Return the bytes a task is planned for: `hmrf.task-memory`, 1 GiB on any machine."""
    return int(parse_bytes(setting("task-memory", "1 GiB")))
