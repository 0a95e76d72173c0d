"""Dask's share of an iteration: what a scheduler that costs nothing would have saved.

Every task function of a fit is timed where it runs, and what it waits for is taken from the
arguments it was named with. Then the same tasks, with the times they took, are laid out again on as
many workers, each started the moment a worker is free and its arguments are there, in the order
Dask started them. What the real computation took beyond that layout (graphs made, sent through the
scheduler, tasks handed to threads, results gathered) is Dask's; an idle core for want of tasks is
not, and neither is work of the driver between computations.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hmrf_dask.flow.dataflow import DaskFlow


@dataclass
class Task:
    """A task function: when it ran, and the tasks whose results it was given."""

    number: int
    name: str
    needs: tuple[int, ...]
    began: float = 0.0
    ended: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return self.ended - self.began


@dataclass
class Watch:
    """What was seen of the tasks of a fit.

    Attributes
    ----------
    tasks : by number
    calls : list of (began, ended)
        Calls of the dataflow: naming tasks, sharing values, computing.
    """

    tasks: dict[int, Task] = field(default_factory=dict)
    calls: list[tuple[float, float]] = field(default_factory=list)

    def share(self, began: float, ended: float, workers: int) -> dict[str, float]:
        """Return what part of the time between two moments was Dask's, and what was not.

        Returns
        -------
        dict
            Parts of the wall time: "dask"; "tasks", the ideal layout of the task functions;
            "driver", our code between computations. And the number of tasks.
        """
        calls = [one for one in self.calls if began <= one[0] and one[1] <= ended]
        ran = [one for one in self.tasks.values() if began <= one.began and one.ended <= ended]
        inside = sum(stop - start for start, stop in calls)
        least = 0.0
        for start, stop in calls:
            of_call = [one for one in ran if start <= one.began and one.ended <= stop]
            least += layout(of_call, workers)
        wall = ended - began
        return {
            "dask": max(inside - least, 0.0) / wall,
            "tasks": least / wall,
            "driver": (wall - inside) / wall,
            "n_tasks": float(len(ran)),
        }


def layout(tasks: Sequence[Task], workers: int) -> float:
    """Return how long tasks take on some workers when starting them costs nothing."""
    here = {one.number for one in tasks}
    missing = {one.number: sum(n in here for n in one.needs) for one in tasks}
    waiting: dict[int, list[Task]] = {}
    for one in tasks:
        for need in one.needs:
            waiting.setdefault(need, []).append(one)
    ready = [(one.began, one.number, one) for one in tasks if not missing[one.number]]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < workers:
            _, number, one = heapq.heappop(ready)
            heapq.heappush(running, (now + one.seconds, number))
        now, done = heapq.heappop(running)
        for one in waiting.get(done, ()):
            missing[one.number] -= 1
            if not missing[one.number]:
                heapq.heappush(ready, (one.began, one.number, one))
    return now


class _Timed:
    """A task function that records when it ran; it stands in for the function under its name."""

    def __init__(self, function: Callable[..., Any], task: Task) -> None:
        self.function, self.task = function, task
        self.__name__ = function.__name__

    def __call__(self, *arguments: Any) -> Any:
        self.task.began = time.perf_counter()
        try:
            return self.function(*arguments)
        finally:
            self.task.ended = time.perf_counter()


@contextmanager
def watched_tasks() -> Iterator[Watch]:
    """Watch the tasks of the fits inside, which must run on threads of this process."""
    watch, numbers, inside = Watch(), {}, threading.local()
    kept = {name: getattr(DaskFlow, name) for name in ("lazy", "share", "compute", "persist")}

    def lazy(flow: DaskFlow, function: Callable[..., Any], *arguments: Any) -> Any:
        number = len(watch.tasks)
        needs = tuple(numbers[key] for key in _keys(arguments) if key in numbers)
        watch.tasks[number] = task = Task(number, function.__name__, needs)
        found = kept["lazy"](flow, _Timed(function, task), *arguments)
        numbers[found.key] = number
        return found

    def seen(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if getattr(inside, "call", False):  # one method of the dataflow uses another
                return method(*arguments)
            inside.call, began = True, time.perf_counter()
            try:
                return method(*arguments)
            finally:
                inside.call = False
                watch.calls.append((began, time.perf_counter()))

        return call

    methods = {name: seen(method) for name, method in (kept | {"lazy": lazy}).items()}
    for name, method in methods.items():
        setattr(DaskFlow, name, method)
    try:
        yield watch
    finally:
        for name, method in kept.items():
            setattr(DaskFlow, name, method)


def _keys(value: Any) -> Iterator[str]:
    if isinstance(key := getattr(value, "key", None), str):  # what the dataflow calls lazy
        yield key
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _keys(one)
