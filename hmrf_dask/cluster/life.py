"""Signs of life of tasks: what a worker's heartbeat tells of each task that it runs.

That a task runs says nothing: one that waits for a store waits as a running one. So heartbeats
carry the processor time of the thread of each task, and whatever a task reports itself.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

METRIC = "hmrf_life"
_SIGN = 1.0  # seconds of processor time that a sign counts as
_signs: dict[int, float] = {}  # by thread


def alive() -> None:
    """Report that the task of this thread goes on, though it computes nothing."""
    thread = threading.get_ident()
    _signs[thread] = _signs.get(thread, 0.0) + _SIGN


def report_life() -> None:
    """Let the worker of this task, if there is one, tell of its tasks from now on."""
    if "distributed" in sys.modules:
        from distributed import get_worker

        try:
            watch_tasks_of(get_worker())
        except ValueError:  # no task of a worker
            return


def watch_tasks_of(worker: Any) -> None:
    """Let a worker tell of its tasks with each heartbeat."""
    worker.metrics.setdefault(METRIC, _life_of_tasks)


def _life_of_tasks(worker: Any) -> dict[str, float]:
    """Return the life of each task that runs: processor seconds, and signs."""
    with worker.active_threads_lock:  # no thread ends meanwhile
        running = dict(worker.active_threads)
        for thread in _signs.keys() - running.keys():
            _signs.pop(thread, None)
        return {str(key): _seconds(thread) for thread, key in running.items()}


def _seconds(thread: int) -> float:
    return _processor_seconds(thread) + _signs.get(thread, 0.0)


def _processor_seconds(thread: int) -> float:
    if not hasattr(time, "pthread_getcpuclockid"):  # not every system counts by thread
        return time.process_time()
    return time.clock_gettime(time.pthread_getcpuclockid(thread))
