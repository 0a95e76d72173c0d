"""Clients: which one is active, questions with a deadline, how our own begin and end."""

from __future__ import annotations

import asyncio
import inspect
import logging
import multiprocessing
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakSet

from hmrf_dask.errors import ClusterError, ConfigurationError, HmrfWarning
from hmrf_dask.storage.remote import seconds_of

# Clients of the process that this one was forked from; their event loops are not here.
_INHERITED: WeakSet[Any] = WeakSet()
# Clients whose scheduler has ended, as was said.
_REPORTED: WeakSet[Any] = WeakSet()


def setting(name: str, default: Any) -> Any:
    """Return a setting of the `hmrf` section of Dask's configuration.

    Examples
    --------
    >>> setting("no-such-setting", 7)
    7
    """
    import dask

    return dask.config.get(f"hmrf.{name}", default)


def settings() -> dict[str, Any]:
    """Return the `hmrf` section of Dask's configuration.

    Examples
    --------
    >>> "no-such-setting" in settings()
    False
    """
    import dask

    return dict(dask.config.get("hmrf", {}))


def scheduler_in_use() -> Any:
    """Return the function that Dask would run graphs with, or None for the default.

    To look for a client Dask imports distributed, half a second, even where a local scheduler is
    named; without distributed there is none.
    """
    import dask
    import dask.threaded
    from dask.base import get_scheduler, named_schedulers

    named, known = dask.config.get("scheduler", None), None
    if isinstance(named, str):
        known = named_schedulers.get(named.lower())
    elif not named and "distributed" not in sys.modules:
        known = dask.threaded.get
    try:
        return get_scheduler(scheduler=known)
    except RuntimeError as error:  # Dask's own refusal of an asynchronous client
        raise ConfigurationError(
            "the active Client must be a synchronous one, got Client(asynchronous=True), or a call "
            "from inside its event loop; make the client without asynchronous=True, or call from "
            "a thread: await asyncio.to_thread(model.fit, rows)"
        ) from error


def active_client() -> Any:
    """Return the Client that Dask would use now, or None for a local scheduler."""
    owner = getattr(scheduler_in_use(), "__self__", None)
    if not hasattr(owner, "scheduler_info"):
        _warn_of_lost()
        return None
    _check_usable(owner)
    return owner


def _warn_of_lost() -> None:
    """Say once that threads are used here only because Dask forgot its default client.

    It does that when the scheduler has ended; the work was meant for a cluster.
    """
    import dask

    if "distributed" not in sys.modules or dask.config.get("scheduler", None):
        return
    from distributed import Client

    for client in set(Client._instances) - set(_REPORTED):
        if _lost_its_scheduler(client):
            _REPORTED.add(client)
            warnings.warn(
                "the scheduler of the active Client has ended, so the work runs on threads of this "
                "process; make a new Client to run it on a cluster",
                HmrfWarning,
                stacklevel=2,
            )


def _lost_its_scheduler(client: Any) -> bool:
    """Tell whether a default client was connected, and closed though nobody called its close().

    An asynchronous client ends with its event loop, and is never one that work was meant for.
    """
    cluster_closed = str(getattr(client.cluster, "status", "")).endswith("closed")
    return (
        client.status == "closed"
        and client._set_as_default
        and client._handle_report_task is not None
        and client._loop_runner.is_started()
        and not (cluster_closed or client._asynchronous or client in _INHERITED)
    )


def _check_usable(client: Any) -> None:
    """Refuse a client that can never answer."""
    if client in _INHERITED:
        raise ClusterError(
            "the active Client must be made by the process that uses it, got one made before this "
            "process was forked; make a Client here, or dask.config.set(scheduler='threads')"
        )
    if client.status in ("closing", "closed"):
        raise ClusterError(
            "the active Client must be open, got a closed one (closed here, or its scheduler "
            "ended); make a new Client, or leave out dask.config's scheduler to use threads"
        )


def in_this_process() -> bool:
    """Return whether tasks run on threads of this process, or one after the other in it."""
    import dask.local
    import dask.threaded

    return scheduler_in_use() in (None, dask.local.get_sync, dask.threaded.get)


def runs_unseen() -> bool:
    """Return whether nobody sees by which scheduler of this process a graph is run."""
    import dask
    from dask.callbacks import Callback

    return in_this_process() and not Callback.active and dask.config.get("pool", None) is None


def local_threads() -> int:
    """Return how many tasks a local scheduler runs at a time."""
    import dask
    import dask.local

    if scheduler_in_use() is dask.local.get_sync:
        return 1
    return int(dask.config.get("num_workers", None) or dask.system.CPU_COUNT)


@contextmanager
def on_threads(number: int | None = None) -> Iterator[None]:
    """Run what is inside on threads of this process, whatever client is active.

    Examples
    --------
    >>> with on_threads(2):
    ...     local_threads()
    2
    """
    import dask

    workers = dask.config.get("num_workers", None) if number is None else number
    with dask.config.set(scheduler="threads", num_workers=workers):
        yield


@contextmanager
def having_owners(number: int) -> Iterator[None]:
    """Let the fits inside have so many owners of centroids.

    Examples
    --------
    >>> with having_owners(2):
    ...     setting("owners", "auto")
    '2'
    """
    import dask

    with dask.config.set({"hmrf.owners": str(number)}):
        yield


def leave_the_pool() -> None:
    """Give back the slot of the task that calls: the tasks that it waits for need slots.

    Without this, fits as tasks that fill all slots would wait for one another for ever. A thread
    that has left does not return: to wait for a free slot again would be one more wait.
    """
    if "distributed" not in sys.modules:
        return
    from distributed import get_worker, secede
    from distributed.threadpoolexecutor import thread_state

    if not getattr(thread_state, "proceed", False):  # no pool's thread, or it has left before
        return
    with suppress(ValueError, AttributeError):  # the thread of no task
        get_worker()
        secede()


# ---- processes that are forked


def _forget_threads() -> None:
    """Forget, in a process that was forked just now, what only its parent has threads for."""
    import dask.threaded

    dask.threaded.default_pool = None
    dask.threaded.pools.clear()
    dask.threaded.pools_lock = threading.Lock()
    dask.threaded.main_thread = threading.current_thread()
    if "distributed" in sys.modules:
        from distributed import Client

        _INHERITED.update(Client._instances)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)

log = logging.getLogger("hmrf_dask")
T = TypeVar("T")

AGAIN = "run again: a run_dir resumes where it stopped"
NOTICE = 60.0  # seconds between two reports of a wait
LEAST = 0.01  # seconds of a deadline
CLOSING = 10.0  # seconds in which a client or a cluster is closed; then it is left behind


class SilentClusterError(ClusterError):
    """A scheduler or a worker gave no answer in time."""


class WorkClock:
    """Seconds in which this process ran: of a time in which it was stopped at most `most` count.

    Whoever waits reads it again and again; between two readings at most `most` seconds pass for it.
    What a process that was stopped for an hour waits for had no time to come.

    Examples
    --------
    >>> clock = WorkClock(most=0.0)
    >>> clock.now() == clock.now()
    True
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._last, self._now = time.monotonic(), 0.0

    def now(self) -> float:
        """Return the seconds so far."""
        last, self._last = self._last, time.monotonic()
        self._now += min(self._last - last, self._most)
        return self._now


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

    It raises SilentClusterError after the deadline, that of the configuration by default, and where
    the connection is gone. `what` says who must do what: "the scheduler must name its workers".
    """
    words = f"{what}, got no answer from {client_of(client)}"
    try:
        return answer_of(begin(client, question), words, seconds=seconds)
    except OSError as error:
        raise SilentClusterError(f"{words} ({error}); {_LOOK}, and {AGAIN}") from error


def begin(client: Any, question: Callable[[], Any]) -> Future[Any]:
    """Ask as `ask` does, and return at once: a future that ends whenever it ends."""

    async def asked() -> Any:
        """Wait for the answer where the question gives a coroutine."""
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
    step = min(notice_every(), allowed / 10)
    clock, noticed = WorkClock(2 * step), 0.0
    began = clock.now()
    try:
        while not wait([future], step).done:
            waited = clock.now() - began
            if waited >= allowed:
                raise SilentClusterError(f"{what} for {allowed:g} s; {_LOOK}, and {AGAIN}")
            if waited >= noticed + notice_every():
                noticed = waited
                log.warning("%s for %.0f s; giving up at %g s", what, waited, allowed)
        return future.result()
    finally:
        future.cancel()


_LOOK = "see that its processes run (not stopped, not swapped out) and can be reached"


def within(what: str, function: Callable[[], T], *, seconds: float | None = None) -> T:
    """Return function(), called on a thread that is left behind after the deadline.

    For calls that wait inside of Dask's own classes: starting and closing clusters.

    Examples
    --------
    >>> within("the answer must come", lambda: 7, seconds=60)
    7
    """
    return answer_of(on_a_thread(function), what, seconds=seconds)


def on_a_thread(function: Callable[[], T]) -> Future[T]:
    """Return the future of function(), called on a thread that nobody has to wait for.

    Examples
    --------
    >>> on_a_thread(lambda: 7).result(timeout=60)
    7
    """
    future: Future[T] = Future()

    def call() -> None:
        """Hand on what the function returns or raises."""
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - for whoever waits for the future
            future.set_exception(error)

    future.set_running_or_notify_cancel()
    threading.Thread(target=call, name="hmrf-within", daemon=True).start()
    return future


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


_LOGGERS = ("distributed", "distributed.client", "distributed.gc", "tornado", "tornado.application")


def silence_dask() -> None:
    """Let Dask's own loggers write nothing, here and in processes that are started from here.

    What goes wrong is said in our words, and so is what versions differ. Whoever configures Dask's
    logging sees what it logs.
    """
    import dask
    from distributed.versions import VersionMismatchWarning

    warnings.filterwarnings("ignore", category=VersionMismatchWarning)
    if dask.config.get("logging", None):
        return
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "critical")
    os.environ.setdefault("DASK_LOGGING__ASYNCIO", "critical")
    for name in ("asyncio", *_LOGGERS):
        logging.getLogger(name).setLevel(logging.CRITICAL)
