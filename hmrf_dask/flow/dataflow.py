"""How work reaches Dask: the dataflow that the loop sees, run inline or as Dask tasks."""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

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
    reaches_workers,
    wait_for,
    workers_by_name,
)
from hmrf_dask.flow.graphs import (
    Constant,
    Guarded,
    Known,
    Planned,
    Slot,
    alike,
    calls_of,
    is_walked,
    merged,
    planned,
    with_needs,
)
from hmrf_dask.flow.here import Pool
from hmrf_dask.flow.places import homes_of, shares_of, slices_of, some_workers
from hmrf_dask.kernels.compiled import kernel_path
from hmrf_dask.types import AnyArray

if TYPE_CHECKING:
    pass

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

    def spread(self, values: Sequence[Lazy], sizes: Sequence[int]) -> list[Lazy]:  # noqa: ARG002
        """Return the values as `persist` does, each thread of all workers with about as much."""
        return self.persist(values)

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

    def spread(self, values: Sequence[Lazy], sizes: Sequence[int]) -> list[Lazy]:
        """Return the values as `persist` does, those that follow one another on one worker.

        Left to itself Dask gives one worker more of them than another, and each pass waits for it.
        """
        client = active_client()
        if client is None:
            return self.persist(values)
        self.computes += 1
        tasks = [planned(value) for value in values]
        places = zip(tasks, shares_of(client, sizes), strict=True)
        rather = {task.key: place for task, place in places if place}
        return _submitted(client, tasks, {}, rather)

    def begin(self, values: Sequence[Lazy]) -> list[Lazy]:
        """Return the values as `persist` does, and wait for none."""
        client = active_client()
        if client is None:
            return self.persist(values)
        tasks = [planned(value) for value in values]
        return _begun(client, tasks, places_of(tasks), {})

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

        keys, calls = [task.key for task in tasks], calls_of(tasks) if runs_unseen() else None
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
        if is_walked(argument):
            return alike(argument, [self._split(part, needs) for part in argument])
        if isinstance(argument, Planned) or is_dask_collection(argument):
            needs.append(planned(argument))
            return Slot(len(needs) - 1)
        return argument


def places_of(tasks: Sequence[Planned]) -> dict[str, str]:
    """Return the only worker of each task that has one, by key."""
    return {task.key: task.place for task in with_needs(tasks) if task.place}


def _gathered(client: Any, tasks: Sequence[Planned], places: Mapping[str, str]) -> list[Any]:
    futures = [kept.layer[kept.key] for kept in _submitted(client, tasks, places)]
    needed = frozenset(places.values())
    return fetch(client, futures, direct=reaches_workers(client), needed=needed)


def _submitted(
    client: Any,
    tasks: Sequence[Planned],
    places: Mapping[str, str],
    rather: Mapping[str, str] | None = None,
) -> list[Planned]:
    """Return tasks run on workers, their values kept there; see `_begun`."""
    kept = _begun(client, tasks, places, rather or {})
    wait_for(client, futures_of(client, kept), list(merged(tasks)), frozenset(places.values()))
    return kept


def _begun(
    client: Any, tasks: Sequence[Planned], places: Mapping[str, str], rather: Mapping[str, str]
) -> list[Planned]:
    """Return tasks given to workers, their values kept there as soon as they are made.

    Each has its only worker still: a value that is lost is made again there alone. By key, `places`
    are the only workers of tasks, and `rather` those that take them if they can.
    """
    import dask
    from dask.base import annotate

    by_key = defaultdict(list, {key: [place] for key, place in {**places, **rather}.items()})
    placed: Any = nullcontext()
    if by_key:
        loose = frozenset(rather).__contains__
        placed = annotate(workers=by_key.__getitem__, allow_other_workers=loose)
    # The model travels in the graph, once a pass: that is what Dask would warn of.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1PiB"}), placed:
        begun = client.persist(list(tasks), retries=setting("retries", 3))
    return [replace(kept, place=task.place) for kept, task in zip(begun, tasks, strict=True)]


def task_memory() -> int:
    """Return the bytes a task is planned for: `hmrf.task-memory`, 1 GiB on any machine."""
    from dask.utils import parse_bytes

    return int(parse_bytes(setting("task-memory", "1 GiB")))
