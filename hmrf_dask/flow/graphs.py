"""Tasks as Dask takes them: calls that guard the bits, values in their places, graphs of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from hmrf_dask.errors import ClusterError
from hmrf_dask.flow.cluster import other_path, report_life, threads_here
from hmrf_dask.flow.here import Call
from hmrf_dask.flow.messages import answer_peers
from hmrf_dask.kernels.compiled import kernel_path
from hmrf_dask.kernels.threads import threads_allowed
from hmrf_dask.rows.files import BlockSource, InTurn

if TYPE_CHECKING:
    from dask.delayed import Delayed


@dataclass(frozen=True)
class Guarded:
    """A call that runs only where it gives the client's bits: workers join at any time.

    `arguments` holds the literal ones; where a `Slot` stands, a value of another task goes, and
    where a `BlockSource` stands, the block that it reads: of a list of them one after the other.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    path: tuple[tuple[str, str], ...]
    alone: bool = False  # no other task runs here meanwhile: kernels take all threads

    def __call__(self, *values: Any) -> Any:
        """Return function(*arguments), or raise ClusterError on a machine of another kind."""
        report_life()
        answer_peers()
        own = kernel_path()
        if tuple(own.items()) != self.path:
            raise ClusterError(other_path("a worker that joined", own, dict(self.path)))
        arguments = filled(self.arguments, values)
        with threads_allowed(threads_here()) if self.alone else nullcontext():
            return self.function(*arguments)


@dataclass(frozen=True)
class Slot:
    """The place of a value among those a call is given."""

    number: int


class Joined(NamedTuple):
    """What stands for function(*arguments), made where a task begins: of values of many tasks.

    Its threads wait for one another there, so it may use all of them; it knows what it made before.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


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
    """

    key: str
    layer: Mapping[str, Any]  # the task, and what it needs of other collections, as Dask takes it
    needs: tuple[Planned, ...] = ()  # held here: Dask forgets a kept value that nobody holds
    place: str = ""  # the only worker that may run it; none: any

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
        return itemgetter(0), ()

    def __dask_postpersist__(self) -> tuple[Callable[..., Planned], tuple[Any, ...]]:
        """Say how to make this again of a graph that was run."""
        return _replanned, (self.key,)

    __dask_optimize__ = None  # every task is wanted, and as it is


def with_needs(tasks: Sequence[Planned]) -> Iterator[Planned]:
    """Return tasks and all that they need, each once."""
    seen: set[str] = set()
    waiting = list(tasks)
    while waiting:
        task = waiting.pop()
        if task.key not in seen:
            seen.add(task.key)
            waiting.extend(task.needs)
            yield task


def merged(tasks: Sequence[Planned]) -> dict[str, Any]:
    """Return the graph of several tasks and of all they need."""
    graph: dict[str, Any] = {}
    for task in with_needs(tasks):
        graph.update(task.layer)
    return graph


def calls_of(tasks: Sequence[Planned]) -> list[Call] | None:
    """Return tasks and all they need as calls in order, None where some are the user's own."""
    calls = []
    for task in with_needs(tasks):
        own = task.layer[task.key] if len(task.layer) == 1 else None
        if type(own) is not tuple or type(own[0]) is not Guarded:
            return None
        calls.append(Call(task.key, own[0], own[1:]))
    return calls[::-1]


def _replanned(graph: Mapping[str, Any], key: str, **_renamed: Any) -> Planned:
    return Planned(key, {key: graph[key]})


def filled(arguments: Any, values: Sequence[Any]) -> Any:
    """Return arguments with values in their slots, and blocks in place of their sources.

    Examples
    --------
    >>> filled([Slot(1), "text"], ["a", "b"])
    ['b', 'text']
    """
    if type(arguments) is Slot:
        return values[arguments.number]
    if type(arguments) is BlockSource:
        return arguments.read()
    if type(arguments) is Joined:
        parts = filled(arguments.arguments, values)
        with threads_allowed(threads_here()):
            return arguments.function(*parts)
    if is_walked(arguments):
        if arguments and all(type(argument) is BlockSource for argument in arguments):
            return InTurn(arguments)
        return alike(arguments, [filled(argument, values) for argument in arguments])
    return arguments


def is_walked(argument: Any) -> bool:
    """Return whether an argument may hold values of tasks: lists, tuples, NamedTuples."""
    return type(argument) in (list, tuple) or (
        isinstance(argument, tuple) and hasattr(argument, "_fields")
    )


def alike(container: Any, values: list[Any]) -> Any:
    """Return a list, tuple or NamedTuple of the type of another one."""
    kind = type(container)
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def planned(value: Planned | Delayed) -> Planned:
    """Return a Delayed of the user's, or of a corpus, as the loop takes it."""
    if isinstance(value, Planned):
        return value
    layer: Mapping[Any, Any] = value.__dask_graph__()
    return Planned(value.key, dict(layer))
