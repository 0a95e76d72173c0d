"""Signs of life of tasks: what a worker's heartbeat tells of each task that it runs.

That a task runs says nothing: one that waits for a store waits as a running one. So heartbeats
carry the processor time of the thread of each task, and signs of whatever comes from stores.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from hmrf_dask.storage.remote import pieces_received

METRIC = "hmrf_life"
_SIGN = 1.0  # seconds of processor time that a sign counts as
_signs = 0
_counting = threading.Lock()


def alive() -> None:
    """Report that work goes on here, though it computes nothing.

    That is a sign of every task of this process: bytes of a store come to threads of their own.
    """
    global _signs
    with _counting:
        _signs += 1


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
        signs = _SIGN * (_signs + pieces_received())
        return {str(key): _processor_seconds(thread) + signs for thread, key in running.items()}


def _processor_seconds(thread: int) -> float:
    if not hasattr(time, "pthread_getcpuclockid"):  # not every system counts by thread
        return time.process_time()
    return time.clock_gettime(time.pthread_getcpuclockid(thread))
