"""Where values lie on a cluster, and which workers there are to give work to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from hmrf_dask.errors import ClusterError
from hmrf_dask.flow.clients import (
    AGAIN,
    WorkClock,
    active_client,
    ask,
    local_threads,
    patience,
)
from hmrf_dask.flow.cluster import POLL, WorkerState, futures_of, workers_by_name

TASKS = 2  # of a pass for each local thread: fewer wait for the slowest, each may hold K x d sums


def some_workers(client: Any) -> list[str]:
    """Return the addresses of the workers that run, once there is one: they may be starting."""
    pause = min(POLL, patience()) / 10
    clock = WorkClock(10 * pause + 10.0)  # a scheduler may take as long to answer
    while True:
        states = {name: WorkerState.of(one) for name, one in workers_by_name(client).items()}
        running = sorted(name for name, state in states.items() if state.running)
        if running:
            return running
        if clock.now() > patience():
            raise ClusterError(
                f"a cluster must have workers, got none for {patience():g} s; {AGAIN}"
            )
        time.sleep(pause)


def slices_of(values: Sequence[Any]) -> list[list[int]]:
    """Return the numbers of persisted values in slices, a few a thread, each on one worker.

    A worker gets one task a thread: one that waits there is stolen, and drags its rows along. Rows
    that each task reads for itself are in one place: everywhere.
    """
    client, everywhere = active_client(), range(len(values))
    if client is None:
        return _split(everywhere, TASKS * local_threads())
    threads = {name: int(worker["nthreads"]) for name, worker in workers_by_name(client).items()}
    if not any(hasattr(value, "key") for value in values):
        return _split(everywhere, TASKS * max(1, sum(threads.values())))
    kept = futures_of(client, values)
    places = ask(client, "the scheduler must say where values lie", lambda: client.who_has(kept))
    numbers: dict[str, list[int]] = {}
    for number, value in enumerate(values):
        holders = sorted(set(places.get(value.key, ())) & threads.keys())
        least = min(holders or threads, key=lambda name: len(numbers.get(name, ())), default="")
        numbers.setdefault(least, []).append(number)
    by_worker = [_split(numbers[name], threads.get(name, 1)) for name in sorted(numbers)]
    return list(chain.from_iterable(by_worker))


def shares_of(client: Any, sizes: Sequence[int]) -> list[str]:
    """Return a worker for each of some values of these sizes: runs that suit their threads."""
    workers = workers_by_name(client)
    names = sorted(workers)
    if not names:
        return [""] * len(sizes)
    threads = np.asarray([max(1, int(workers[name]["nthreads"])) for name in names])
    weights = np.maximum(np.asarray(sizes, np.float64), 1.0)
    middles = (np.cumsum(weights) - weights / 2) / weights.sum()
    ends = np.cumsum(threads) / threads.sum()
    return [names[place] for place in np.searchsorted(ends[:-1], middles, side="right")]


def homes_of(values: Sequence[Any]) -> list[str]:
    """Return the worker that keeps each persisted value; none of what is not kept on one."""
    client = active_client()
    kept = [value for value in values if hasattr(value, "layer") or hasattr(value, "key")]
    if client is None or not kept:
        return [""] * len(values)
    futures = {future.key: future for future in futures_of(client, kept)}
    question = partial(client.who_has, list(futures.values()))
    places = ask(client, "the scheduler must say where values lie", question)
    return [min(places.get(getattr(value, "key", ""), ()), default="") for value in values]


def _split(numbers: Sequence[int], n_parts: int) -> list[list[int]]:
    return [part.tolist() for part in np.array_split(numbers, min(n_parts, len(numbers)))]
