"""Questions to a cluster, each with a deadline.

A process that is frozen keeps its connections, so Dask waits for its answer without an end and
without a word. Whatever is asked of a scheduler or of workers is asked here: what waits is
reported every minute, and ends with ClusterError after `hmrf.no-progress-timeout`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from hmrf_dask.errors import ClusterError
from hmrf_dask.remote import seconds_of

log = logging.getLogger("hmrf_dask")
T = TypeVar("T")

AGAIN = "run again: a run_dir resumes where it stopped"
NOTICE = 60.0  # seconds between two reports of a wait
LEAST = 0.01  # seconds of a deadline
CLOSING = 10.0  # seconds in which a client or a cluster is closed; then it is left behind


class SilentClusterError(ClusterError):
    """A scheduler or a worker gave no answer in time."""


def patience() -> float:
    """Return for how many seconds there may be no worker that takes work."""
    return seconds_of("no-workers-timeout", "60 s", least=LEAST)


def no_progress() -> float:
    """Return for how many seconds nothing may progress, or no answer come."""
    return seconds_of("no-progress-timeout", "10 minutes", least=LEAST)


def notice_every() -> float:
    """Return the seconds between two reports of a wait."""
    return min(NOTICE, no_progress() / 10)


def ask(
    client: Any, what: str, question: Callable[[], Any], *, seconds: float | None = None
) -> Any:
    """Return what `question` returns or awaits on the client's event loop.

    Parameters
    ----------
    client : Client
    what : str
        Who is to do what, for errors: "the scheduler must say where values lie".
    question : callable
        Calls methods of the client, which return awaitables on its loop.
    seconds : float, optional
        The deadline; that of the configuration by default.

    Raises
    ------
    SilentClusterError
        After the deadline, or where the connection is gone.
    """
    words = f"{what}, got no answer from {client_of(client)}"
    try:
        return answer_of(begin(client, question), words, seconds=seconds)
    except OSError as error:
        raise SilentClusterError(f"{words} ({error}); {_LOOK}, and {AGAIN}") from error


def begin(client: Any, question: Callable[[], Any]) -> Future[Any]:
    """Ask as `ask` does, and return at once: a future that ends whenever it ends."""

    async def asked() -> Any:
        answer = question()
        return await answer if inspect.isawaitable(answer) else answer

    loop = client.loop.asyncio_loop
    if loop.is_closed():
        raise SilentClusterError(f"the active Client must be open, got a closed one; {AGAIN}")
    return asyncio.run_coroutine_threadsafe(asked(), loop)


def client_of(client: Any) -> str:
    """Return the scheduler's address of a client."""
    return str(getattr(client.scheduler, "address", "a scheduler that is gone"))


def answer_of(future: Future[T], what: str, *, seconds: float | None = None) -> T:
    """Return the result of a future; report every minute that it is waited for, and give up."""
    allowed = no_progress() if seconds is None else seconds
    began, every = time.monotonic(), notice_every()
    try:
        while True:
            waited = time.monotonic() - began
            with contextlib.suppress(FutureTimeoutError):
                return future.result(max(0.0, min(every, allowed - waited)))
            if future.done():  # just now, or with a TimeoutError of its own
                return future.result()
            waited = time.monotonic() - began
            if waited >= allowed:
                raise SilentClusterError(f"{what} for {allowed:g} s; {_LOOK}, and {AGAIN}")
            log.warning("%s for %.0f s; giving up at %g s", what, waited, allowed)
    finally:
        future.cancel()


_LOOK = "see that its processes run (not stopped, not swapped out) and can be reached"


def within(what: str, function: Callable[[], T], *, seconds: float | None = None) -> T:
    """Return function(), called on a thread that is left behind after the deadline.

    For calls that wait inside of Dask's own classes: starting and closing clusters.
    """
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    future.set_running_or_notify_cancel()
    threading.Thread(target=call, name="hmrf-within", daemon=True).start()
    return answer_of(future, what, seconds=seconds)
