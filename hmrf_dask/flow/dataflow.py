"""How work reaches Dask: the dataflow that the loop sees, run inline or as Dask tasks."""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from hmrf_dask.errors import ClusterError
from hmrf_dask.flow.clients import (
    active_client,
    begin,
    in_this_process,
    local_threads,
    no_progress,
    runs_unseen,
    scheduler_in_use,
    setting,
)
from hmrf_dask.flow.cluster import (
    ANSWER,
    LostWorkError,
    fetch,
    futures_of,
    other_path,
    reaches_workers,
    report_life,
    threads_here,
    wait_for,
    workers_by_name,
)
from hmrf_dask.flow.here import Call, Pool
from hmrf_dask.flow.places import homes_of, slices_of, some_workers
from hmrf_dask.kernels.compiled import kernel_path
from hmrf_dask.kernels.threads import threads_allowed
from hmrf_dask.rows.files import BlockSource, InTurn
from hmrf_dask.types import AnyArray

if TYPE_CHECKING:
    from dask.delayed import Delayed

FAN = 8  # children of a node of a reduction tree
SMALL = 4096  # bytes of an array that may travel as an argument
Lazy = Any  # a Delayed under DaskFlow, the value itself under Inline


class Dataflow:
    """What the loop needs of a way to run functions; here they run where they are called."""

    def lazy(self, function: Callable[..., Any], *arguments: Any) -> Lazy:
        """Return the result of function(*arguments), lazily.

        Arguments may be lazy, and may hold lazy values in lists, tuples and NamedTuples.
        """
        return function(*arguments)

    def lazy_at(
        self,
        place: str,  # noqa: ARG002 - here all is in one place
        function: Callable[..., Any],
        *arguments: Any,
    ) -> Lazy:
        """Return the same of the one worker that may run it, on all of its threads."""
        return self.lazy(function, *arguments)

    def workers(self) -> list[str]:
        """Return the workers that tasks can be given to by name, at least one; here none."""
        return []

    def tell(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call function(*arguments) in every worker process, and wait for none of them."""

    @property
    def n_workers(self) -> int:
        """How many workers there are now."""
        return 0

    def homes(self, values: Sequence[Lazy]) -> list[str]:
        """Return the worker that keeps each value, nothing where none does."""
        return [""] * len(values)

    def share(self, value: Any) -> Lazy:
        """Return `value` as a task result that survives the loss of any worker."""
        return value

    def broadcast(self, value: Any) -> Lazy:
        """Return `value` as `share` does, to be sent to all workers at once."""
        return self.share(value)

    def compute(self, values: Sequence[Lazy]) -> list[Any]:
        """Return the values."""
        return list(values)

    def persist(self, values: Sequence[Lazy]) -> list[Lazy]:
        """Return the values computed and kept where they were computed."""
        return list(values)

    def begin(self, values: Sequence[Lazy]) -> list[Lazy]:
        """Return the values, kept as by `persist`; on workers they need not be there yet."""
        return self.persist(values)

    def co_located(self, values: Sequence[Lazy]) -> list[list[int]]:
        """Return the numbers of kept values in slices: one task takes a slice where it is."""
        return [list(range(len(values)))]

    def holds(self, values: Sequence[Lazy]) -> bool:  # noqa: ARG002 - those of `DaskFlow` differ
        """Return whether the values lie in this process, where any task can use them."""
        return True

    @property
    def shares_memory(self) -> bool:
        """Whether tasks see the very objects that they are given."""
        return True


class Inline(Dataflow):
    """Runs functions where they are called.

    Examples
    --------
    >>> Inline().lazy(max, 1, 2)
    2
    """


def tree(
    flow: Dataflow,
    combine: Callable[[list[Any]], Any],
    parts: Sequence[Lazy],
    fan: int = FAN,
) -> Lazy:
    """Return combine over all parts as a tree of `fan` children a node, a few levels deep.

    Examples
    --------
    >>> tree(Inline(), sum, [1, 2, 3, 4, 5])
    15
    """
    level = list(parts)
    while len(level) > 1:
        nodes = [level[first : first + fan] for first in range(0, len(level), fan)]
        level = [flow.lazy(combine, node) if len(node) > 1 else node[0] for node in nodes]
    return level[0]


def share_array(flow: Dataflow, values: AnyArray) -> Lazy:
    """Return an array as a task result of its own, unless it is small enough for an argument."""
    return values if values.nbytes <= SMALL else flow.share(values)


log = logging.getLogger("hmrf_dask")
# A worker that died just now takes nothing, and Dask waits for it: a value must arrive in these
# seconds, and at so many bytes a second.
ARRIVAL, SLOWEST = 10.0, 20e6


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


def _calls(tasks: Sequence[Planned]) -> list[Call] | None:
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
    if _is_walked(arguments):
        if arguments and all(type(argument) is BlockSource for argument in arguments):
            return InTurn(arguments)
        return _like(arguments, [filled(argument, values) for argument in arguments])
    return arguments


def _is_walked(argument: Any) -> bool:
    """Return whether an argument may hold values of tasks: lists, tuples, NamedTuples."""
    return type(argument) in (list, tuple) or (
        isinstance(argument, tuple) and hasattr(argument, "_fields")
    )


def _like(container: Any, values: list[Any]) -> Any:
    """Return a list, tuple or NamedTuple of the type of another one."""
    kind = type(container)
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def planned(value: Planned | Delayed) -> Planned:
    """Return a Delayed of the user's, or of a corpus, as the loop takes it."""
    if isinstance(value, Planned):
        return value
    layer: Mapping[Any, Any] = value.__dask_graph__()
    return Planned(value.key, dict(layer))


class Sent:
    """Values on their way to all workers, straight from here and not through the scheduler.

    They are lost with their workers. So only graphs that are computed at once take them, and run
    again with constants where one was lost; what is kept on workers never needs them.
    """

    def __init__(self) -> None:
        self._futures: WeakKeyDictionary[Planned, Future[Any]] = WeakKeyDictionary()
        self._under_way: list[Future[Any]] = []
        self._allowed = 0.0

    def send(self, client: Any, shared: Planned, value: Any) -> None:
        """Begin to send the value of a constant, as long as that is held."""
        from dask.sizeof import sizeof

        key = shared.key.replace("shared", "sent")
        sending = begin(client, partial(_scatter, client, key, value))
        self._futures[shared] = sending
        self._under_way.append(sending)
        self._allowed = max(self._allowed, ARRIVAL + sizeof(value) / SLOWEST)

    def settle(self) -> None:
        """Wait until all have arrived; what nobody wants any more leaves errors in logs if not."""
        if not self._under_way:
            return
        _, late = wait(self._under_way, min(self._allowed, no_progress()))
        for sending in late:  # a worker takes nothing: there is the way through the scheduler
            sending.cancel()
        self._under_way, self._allowed = [], 0.0

    def taken(self, tasks: Sequence[Planned]) -> dict[str, Any]:
        """Return what tasks need of them, by the key of the constant."""
        self.settle()
        arrived = {}
        for task in with_needs(tasks):
            sending = self._futures.get(task)
            if sending is not None and sending.done() and not sending.cancelled():
                future = sending.result()
                if future is not None and future.status == "finished":
                    arrived[task.key] = future
        return arrived


async def _scatter(client: Any, key: str, value: Any) -> Any:
    """Return a value's future on all workers, None where it cannot be sent."""
    try:
        sent = await client.scatter({key: value}, direct=True, broadcast=True, timeout=ANSWER)
        return sent[key]
    except Exception as error:  # noqa: BLE001 - then there is the way through the scheduler
        log.debug("a value could not be sent to all workers: %s", error)
        return None


def fed(tasks: Sequence[Planned], sent: Mapping[str, Any]) -> list[Planned]:
    """Return tasks that take what was sent to workers, by key, in the place of constants."""
    graph: dict[str, Any] = {future.key: future for future in sent.values()}
    for key, task in merged(tasks).items():
        if type(task) is tuple and isinstance(task[0], Guarded):
            graph[key] = (task[0], *(sent[need].key if need in sent else need for need in task[1:]))
        elif key not in sent:
            graph[key] = task
    return [Planned(task.key, graph) for task in tasks]


class DaskFlow(Dataflow):
    """Runs functions as Dask tasks; counts the graphs that it ran and the tasks that it named."""

    def __init__(self) -> None:
        self.run = uuid.uuid4().hex[:8]
        self.path = tuple(kernel_path().items())
        self.computes = 0
        self.tasks = 0
        self._sent = Sent()
        self._pool: Pool | None = None

    def lazy(self, function: Callable[..., Any], *arguments: Any) -> Planned:
        """Return a call to come; its key is new, as a key used again returns the old result."""
        return self._planned("", function, arguments)

    def lazy_at(self, place: str, function: Callable[..., Any], *arguments: Any) -> Planned:
        """Return a call to come on one worker: LostOwnerError where that is gone."""
        return self._planned(place, function, arguments)

    def workers(self) -> list[str]:
        """Return the addresses of the workers of a cluster; a first one is waited for."""
        client = active_client()
        return [] if client is None else some_workers(client)

    def tell(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call function(*arguments) in every worker process, and wait for none of them."""
        client = active_client()
        if client is not None:
            begin(client, partial(client.run, function, *arguments))

    @property
    def n_workers(self) -> int:
        """How many workers there are now."""
        client = active_client()
        return 0 if client is None else len(workers_by_name(client))

    def homes(self, values: Sequence[Lazy]) -> list[str]:
        """Return the address of the worker that keeps each value."""
        return homes_of(values)

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
        self.computes += 1
        asked = [value if isinstance(value, Known) else planned(value) for value in values]
        tasks = [value for value in asked if isinstance(value, Planned)]
        client = active_client()
        results = iter(self._run_here(tasks) if client is None else self._run_on(client, tasks))
        return [value.value if isinstance(value, Known) else next(results) for value in asked]

    def persist(self, values: Sequence[Lazy]) -> list[Lazy]:
        """Return the values computed and kept; one that is lost is computed again."""
        client = active_client()
        if client is None:
            return [Known(value) for value in self.compute(values)]
        self.computes += 1
        tasks = [planned(value) for value in values]
        return _submitted(client, tasks, places_of(tasks))

    def begin(self, values: Sequence[Lazy]) -> list[Lazy]:
        """Return the values as `persist` does, and wait for none; each keeps its only worker."""
        client = active_client()
        if client is None:
            return self.persist(values)
        tasks = [planned(value) for value in values]
        begun = _begun(client, tasks, places_of(tasks))
        return [replace(kept, place=task.place) for kept, task in zip(begun, tasks, strict=True)]

    def settle(self) -> None:
        """Wait for values that are on their way though nothing wants them any more."""
        self._sent.settle()

    def co_located(self, values: Sequence[Lazy]) -> list[list[int]]:
        """Return a few slices a thread, each of values on one worker, in their order."""
        return slices_of(values)

    def holds(self, values: Sequence[Lazy]) -> bool:
        """Return whether the values are known here, and tasks run on threads of this process."""
        return self.shares_memory and all(isinstance(value, Known) for value in values)

    @property
    def shares_memory(self) -> bool:
        """Whether tasks see the very objects that they are given, on threads of this process."""
        return in_this_process()

    def _run_here(self, tasks: Sequence[Planned]) -> list[Any]:
        """Return values computed by a local scheduler, or where that is the same without Dask."""
        import dask.threaded

        keys, calls = [task.key for task in tasks], _calls(tasks) if runs_unseen() else None
        if calls is None:
            run = scheduler_in_use() or dask.threaded.get
            return list(run(merged(tasks), keys)) if tasks else []
        if self._pool is None or self._pool.n_threads != local_threads():
            self._pool = Pool(local_threads())
        return self._pool.compute(calls, keys)

    def _run_on(self, client: Any, tasks: Sequence[Planned]) -> list[Any]:
        """Return values computed on workers, from what was sent there or, where it is lost, not."""
        sent, places = self._sent.taken(tasks), places_of(tasks)
        if sent:
            try:
                return _gathered(client, fed(tasks, sent), places)
            except LostWorkError:
                log.info("a worker was lost with values that were sent to it; they go there again")
        return _gathered(client, tasks, places)

    def _planned(
        self, place: str, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Planned:
        needs: list[Planned] = []
        template = tuple(self._split(argument, needs) for argument in arguments)
        key = self._key(function.__name__.strip("_"))
        call = Guarded(function, template, self.path, alone=bool(place))
        task = (call, *(need.key for need in needs))
        return Planned(key, {key: task}, tuple(needs), place)

    def _key(self, name: str) -> str:
        self.tasks += 1
        return f"{name}-{self.run}-{self.tasks}"

    def _split(self, argument: Any, needs: list[Planned]) -> Any:
        """Return an argument with slots for the values of tasks, which are added to `needs`."""
        from dask.base import is_dask_collection

        if isinstance(argument, Known):
            return argument.value
        if _is_walked(argument):
            return _like(argument, [self._split(part, needs) for part in argument])
        if isinstance(argument, Planned) or is_dask_collection(argument):
            needs.append(planned(argument))
            return Slot(len(needs) - 1)
        return argument


def places_of(tasks: Sequence[Planned]) -> dict[str, str]:
    """Return the only worker of each task that has one, by key."""
    return {task.key: task.place for task in with_needs(tasks) if task.place}


def _gathered(client: Any, tasks: Sequence[Planned], places: Mapping[str, str]) -> list[Any]:
    futures = [kept.layer[kept.key] for kept in _submitted(client, tasks, places)]
    return fetch(client, futures, direct=reaches_workers(client))


def _submitted(client: Any, tasks: Sequence[Planned], places: Mapping[str, str]) -> list[Planned]:
    """Return tasks run on workers, their values kept there."""
    kept = _begun(client, tasks, places)
    wait_for(client, futures_of(client, kept), list(merged(tasks)), frozenset(places.values()))
    return kept


def _begun(client: Any, tasks: Sequence[Planned], places: Mapping[str, str]) -> list[Planned]:
    """Return tasks given to workers, their values kept there as soon as they are made."""
    import dask
    from dask.base import annotate

    by_key = defaultdict(list, {key: [place] for key, place in places.items()})
    placed = annotate(workers=by_key.__getitem__) if places else nullcontext()
    # The model travels in the graph, once a pass: that is what Dask would warn of.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1PiB"}), placed:
        return list(client.persist(list(tasks), retries=setting("retries", 3)))


def task_memory() -> int:
    """Return the bytes a task is planned for: `hmrf.task-memory`, 1 GiB on any machine."""
    from dask.utils import parse_bytes

    return int(parse_bytes(setting("task-memory", "1 GiB")))
