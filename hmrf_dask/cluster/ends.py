"""Where clients and clusters of our own begin and end: neither waits for a frozen process."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import dask

from hmrf_dask.cluster.questions import CLOSING, within
from hmrf_dask.errors import ClusterError

log = logging.getLogger("hmrf_dask")
T = TypeVar("T")
_LOGGERS = ("distributed", "distributed.client", "distributed.gc", "tornado", "tornado.application")


@contextmanager
def closed_in_time(
    what: str, make: Callable[[], T], *, seconds: float | None = None
) -> Iterator[T]:
    """Give what `make` returns, and close it; it and its processes end in time, or are killed."""
    before = set(multiprocessing.active_children())
    try:
        made = within(f"{what} must start, got nothing", make, seconds=seconds)
        try:
            yield made
        finally:
            _close(what, made)
    finally:
        for process in set(multiprocessing.active_children()) - before:
            log.debug("%s: killed process %s, which did not end", what, process.pid)
            process.kill()


def _close(what: str, made: Any) -> None:
    try:
        within(f"{what} must close, got nothing", made.close, seconds=CLOSING)
    except (ClusterError, OSError, RuntimeError, AssertionError, TimeoutError) as error:
        log.debug("%s was left behind: %s", what, error)


def silence_dask() -> None:
    """Let Dask's own loggers write nothing, here and in processes that are started from here.

    What goes wrong is said in our words. Whoever configures Dask's logging sees what it logs.
    """
    if dask.config.get("logging", None):
        return
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "critical")
    os.environ.setdefault("DASK_LOGGING__ASYNCIO", "critical")
    for name in (*_LOGGERS, "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
