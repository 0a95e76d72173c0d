"""Graphs of our own tasks on threads of this process end as under Dask's scheduler."""

from __future__ import annotations

import gc
import signal
import threading
import time
import weakref
from typing import Any

import dask
import pytest
from dask.callbacks import Callback

from hmrf_dask.flow.dataflow import DaskFlow, tree
from hmrf_dask.flow.here import Call, Pool
from hmrf_dask.kernels.threads import _helpers, threads_allowed


class Value:
    """Something that can be watched."""


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_a_graph_is_computed_whatever_the_threads(n_threads: int) -> None:
    calls = [Call(number, lambda number=number: number, ()) for number in range(20)]
    calls += [Call(("sum", n), lambda *parts: sum(parts), tuple(range(n))) for n in range(20)]
    calls += [Call("twice", lambda one, same: one + same, (3, 3))]
    found = Pool(n_threads).compute(calls, [("sum", 7), "twice", 5, ("sum", 19), 5])
    assert found == [sum(range(7)), 6, 5, sum(range(19)), 5]
    assert Pool(n_threads).compute([], []) == []


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_first_error_ends_a_graph(n_threads: int, error: type[BaseException]) -> None:
    def fail() -> None:
        raise error("one")

    called: list[int] = []
    calls = [Call("fails", fail, ()), Call("never", called.append, ("fails",))]
    pool = Pool(n_threads)
    with pytest.raises(error, match="one"):
        pool.compute(calls, ["never"])
    assert not called
    assert pool.compute([Call("works", lambda: 7, ())], ["works"]) == [7]


def test_threads_that_never_begin_are_not_waited_for() -> None:
    pool, ended = Pool(2), threading.Event()
    busy = pool._others.submit(ended.wait, 60.0)  # as after a fork, where they are gone
    calls = [Call(number, lambda: 7, ()) for number in range(4)]
    assert pool.compute(calls, range(4)) == [7] * 4
    assert not busy.done()
    ended.set()


def test_an_interrupt_while_others_work_begins_nothing_new() -> None:
    both, called = threading.Barrier(2, timeout=60.0), list[int]()
    caller = threading.get_ident()

    def first() -> None:
        both.wait()
        if threading.get_ident() != caller:
            time.sleep(0.2)  # until the main thread waits for what is done here
            signal.pthread_kill(caller, signal.SIGINT)
            time.sleep(0.2)

    calls = [Call("one", first, ()), Call("two", first, ())]
    calls.append(Call("three", lambda *_: called.append(3), ("one", "two")))
    pool = Pool(2)
    with pytest.raises(KeyboardInterrupt):
        pool.compute(calls, ["three"])
    assert not called
    assert pool.compute([Call("works", lambda: 7, ())], ["works"]) == [7]


def test_results_that_nobody_needs_are_let_go_of() -> None:
    seen: list[Any] = []

    def make() -> Value:
        value = Value()
        seen.append(weakref.ref(value))
        return value

    def look(_: Value) -> None:
        """Use a value."""

    def alive() -> list[bool]:
        gc.collect()
        return [reference() is not None for reference in seen]

    calls = [Call("made", make, ()), Call("used", look, ("made",))]
    calls.append(Call("alive", lambda _: alive(), ("used",)))
    assert Pool(1).compute(calls, ["alive"]) == [[False]]


def test_tasks_start_no_threads_of_kernels() -> None:
    with threads_allowed(4):
        calls = [Call(number, _helpers.get, ()) for number in range(4)]
        assert Pool(2).compute(calls, range(4)) == [None] * 4


def test_who_watches_or_gives_threads_sees_dask() -> None:
    def named(part: int) -> str:
        return f"{part} on {threading.current_thread().name}"

    with dask.config.set(scheduler="threads", num_workers=2):
        flow = DaskFlow()
        parts = tree(flow, "".join, [flow.lazy(named, part) for part in range(3)])
        assert "Pool" not in flow.compute([parts])[0]
        keys: list[Any] = []
        with Callback(posttask=lambda key, *_: keys.append(key)):
            flow.compute([flow.lazy(named, 0)])
        assert len(keys) == 1
