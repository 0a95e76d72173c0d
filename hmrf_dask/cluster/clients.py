"""Which scheduler runs the work: the client that is active, or threads of this process."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from typing import Any
from weakref import WeakSet

import dask
import dask.local
import dask.threaded
from dask.base import get_scheduler, named_schedulers

from hmrf_dask.errors import ClusterError, ConfigurationError, HmrfWarning

# Clients of the process that this one was forked from; their event loops are not here.
_INHERITED: WeakSet[Any] = WeakSet()
# Clients whose scheduler has ended, as was said.
_REPORTED: WeakSet[Any] = WeakSet()


def setting(name: str, default: Any) -> Any:
    """Return a setting of the `hmrf` section of Dask's configuration."""
    return dask.config.get(f"hmrf.{name}", default)


def known_scheduler() -> Any:
    """Return a local scheduler where nothing else can be meant, None where Dask has to find out.

    To look for a client it imports distributed, half a second, even where a local scheduler is
    named; without distributed there is none.
    """
    named = dask.config.get("scheduler", None)
    if isinstance(named, str):
        return named_schedulers.get(named.lower())
    return None if named or "distributed" in sys.modules else dask.threaded.get


def scheduler_in_use() -> Any:
    """Return the function that Dask would run graphs with, or None for the default."""
    try:
        return get_scheduler(scheduler=known_scheduler())
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
    """Tell whether a default client was connected, and closed though nobody called its close()."""
    cluster_closed = str(getattr(client.cluster, "status", "")).endswith("closed")
    return (
        client.status == "closed"
        and client._set_as_default
        and client._handle_report_task is not None
        and client._loop_runner.is_started()
        and not (cluster_closed or client in _INHERITED)
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
    return scheduler_in_use() in (None, dask.local.get_sync, dask.threaded.get)


def local_threads() -> int:
    """Return how many tasks a local scheduler runs at a time."""
    if scheduler_in_use() is dask.local.get_sync:
        return 1
    return int(dask.config.get("num_workers", None) or dask.system.CPU_COUNT)


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
    with contextlib.suppress(ValueError, AttributeError):  # the thread of no task
        get_worker()
        secede()


# ---- processes that are forked


def _forget_threads() -> None:
    """Forget, in a process that was forked just now, what only its parent has threads for."""
    dask.threaded.default_pool = None
    dask.threaded.pools.clear()
    dask.threaded.pools_lock = threading.Lock()
    dask.threaded.main_thread = threading.current_thread()
    if "distributed" in sys.modules:
        from distributed import Client

        _INHERITED.update(Client._instances)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
