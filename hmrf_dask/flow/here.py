"""Graphs of our own tasks on threads of this process: Dask's scheduler costs more than a pass."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any, NamedTuple


class Call(NamedTuple):
    """A call to come: what is called, with the results of which other calls."""

    key: Hashable
    function: Callable[..., Any]
    needs: tuple[Hashable, ...]


class Pool:
    """Threads that compute graphs, the one that asks among them; idle ones wait for the next."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._others = ThreadPoolExecutor(max(1, n_threads - 1), "hmrf-tasks")

    def compute(self, calls: Sequence[Call], asked: Sequence[Hashable]) -> list[Any]:
        """Return the results of the calls asked for; every need is among the calls.

        Examples
        --------
        >>> calls = [Call("two", lambda: 2, ()), Call("four", lambda two: two * two, ("two",))]
        >>> Pool(n_threads=2).compute(calls, ["four"])
        [4]
        """
        graph = _Graph(calls, asked)
        n_others = min(self.n_threads, graph.n_ready) - 1
        others = [self._others.submit(graph.work) for _ in range(n_others)]
        try:
            Context().run(graph.work)  # as on any other thread: tasks start none
        except BaseException as error:  # Ctrl-C between two calls
            graph.fail(error)
            raise
        finally:
            for other in others:
                if not other.cancel():  # it has begun: it ends with the call that it is at
                    other.result()
        return graph.results()


class _Graph:
    """Calls that wait, can run or are done, for some threads that work on them."""

    def __init__(self, calls: Sequence[Call], asked: Sequence[Hashable]) -> None:
        self._calls = {call.key: call for call in calls}
        self._asked = asked
        self._missing = {call.key: len(set(call.needs)) for call in calls}
        self._users: dict[Hashable, list[Hashable]] = defaultdict(list)
        for call in calls:
            for need in set(call.needs):
                self._users[need].append(call.key)
        self._readers = Counter({need: len(users) for need, users in self._users.items()})
        self._readers.update(asked)
        self._ready = deque(key for key, count in self._missing.items() if not count)
        self._left = len(calls)
        self._done: dict[Hashable, Any] = {}
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    @property
    def n_ready(self) -> int:
        """How many calls can run."""
        return len(self._ready)

    def results(self) -> list[Any]:
        """Return the results that were asked for; raise the first error of a call."""
        if self._error is not None:
            raise self._error
        return [self._done[key] for key in self._asked]

    def work(self) -> None:
        """Run calls until all are done, or one failed."""
        while (call := self._next()) is not None:
            try:
                self._finish(call, call.function(*(self._done[need] for need in call.needs)))
            except BaseException as error:  # noqa: BLE001 - for the thread that asked
                self.fail(error)

    def _next(self) -> Call | None:
        """Return a call that can run, None where nothing is left."""
        with self._changed:
            while not self._ready and self._left and self._error is None:
                self._changed.wait()
            if self._error is not None or not self._left:
                return None
            return self._calls[self._ready.popleft()]

    def _finish(self, call: Call, result: Any) -> None:
        """Keep a result, and let go of those that nobody needs any more."""
        with self._changed:
            self._done[call.key] = result
            self._left -= 1
            for user in self._users[call.key]:
                self._missing[user] -= 1
                if not self._missing[user]:
                    self._ready.appendleft(user)  # what it needs is soon let go of
            for need in set(call.needs):
                self._readers[need] -= 1
                if not self._readers[need]:
                    del self._done[need]
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Stop all threads with an error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
