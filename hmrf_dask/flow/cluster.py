"""The workers of a cluster: their memory, what they see, and waiting for their tasks."""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import psutil

from hmrf_dask.errors import ClusterError, HmrfError, LostOwnerError, RunDirectoryError, counted
from hmrf_dask.flow.clients import (
    AGAIN,
    SilentClusterError,
    WorkClock,
    active_client,
    ask,
    begin,
    client_of,
    leave_the_pool,
    local_threads,
    no_progress,
    notice_every,
    patience,
    setting,
)
from hmrf_dask.flow.worker_count import worker_count_of
from hmrf_dask.kernels.compiled import kernel_path, path_differences
from hmrf_dask.storage.remote import signs_of_life, store_traffic

if TYPE_CHECKING:
    from hmrf_dask.checkpoints.directory import RunDirectory

log = logging.getLogger("hmrf_dask")
METRIC = "hmrf_life"
TRAFFIC = "hmrf_traffic"
POLL = 2.0  # seconds between two surveys of the workers while a graph runs
STALE = 30.0  # seconds without a heartbeat after which a worker is not busy
SHARE = 0.01  # of a core that a task takes at least while it computes
BUSY_CPU = 20.0  # per cent of a core, of a worker that does not report its tasks yet


class LostWorkError(ClusterError):
    """Tasks were cancelled: the scheduler went away, or a value they need is gone for good."""


def wait_for(
    client: Any,
    futures: Sequence[Any],
    keys: Collection[str] = (),
    needed: frozenset[str] = frozenset(),
) -> None:
    """Wait until all futures are done; give up, and drop them, when nothing progresses any more.

    `keys` are those of all tasks that the futures need, where they are more, and `needed` the
    workers that some of them must run on: LostOwnerError where one is gone.
    """
    leave_the_pool()
    try:
        _wait(client, futures, keys or [future.key for future in futures], needed)
    except BaseException:  # Ctrl-C in a notebook keeps the frame, and the frame keeps the futures
        _cancel(client, futures)
        raise


def _cancel(client: Any, futures: Sequence[Any]) -> None:
    """Want futures no more, whoever holds them: the scheduler forgets what nobody wants.

    It is what `Client.cancel` ends with. What that does before ends the client's connection where
    a task that nobody wants needs one that is cancelled (`assert ts.who_wants`).
    """

    def release() -> None:
        """Release the keys, on the client's loop."""
        for key in {future.key for future in futures}:
            client._release_key(key)

    with suppress(Exception):
        ask(client, "tasks must be cancelled", release, seconds=3)


@contextmanager
def _named_if_lost(what: str) -> Iterator[None]:
    """Say in words what was lost where Dask says that it was cancelled."""
    from distributed import CancelledError

    try:
        yield
    except CancelledError as error:
        raise LostWorkError(f"{what} ({error}); {AGAIN}") from error


def futures_of(client: Any, kept: Sequence[Any]) -> list[Any]:
    """Return the futures of persisted collections, or say that what they hang on is lost."""
    with _named_if_lost("tasks must stay until they are done, got them lost"):
        return list(client.futures_of(list(kept)))


def fetch(
    client: Any,
    futures: Sequence[Any],
    *,
    direct: bool | None = None,
    needed: frozenset[str] = frozenset(),
) -> list[Any]:
    """Return the results of futures that are done.

    One that dies with its worker is computed again. LostOwnerError where that cannot be: one of the
    `needed` workers is gone.
    """
    done = list(futures)
    try:
        with _named_if_lost("results must stay until they are fetched, got them lost"):
            coming = begin(client, partial(client.gather, done, direct=direct))
            _watch_until(coming, client, needed)
            return list(ask(client, "results must come", partial(asyncio.wrap_future, coming)))
    except (LostWorkError, LostOwnerError):  # the same keys may be run again: nothing old answers
        _cancel(client, done)
        raise


def _watch_until(coming: Future[Any], client: Any, needed: frozenset[str]) -> None:
    """Wait for results as long as the workers that may have to make them again are there."""
    allowed = no_progress()
    clock = WorkClock(2 * (POLL + _soon()))
    while needed and clock.now() < allowed:
        if wait([coming], min(POLL, allowed / 10)).done:
            return
        with suppress(SilentClusterError):
            check_there(needed, workers_by_name(client, seconds=_soon()))


def check_there(needed: frozenset[str], workers: Mapping[str, Any]) -> None:
    """Raise LostOwnerError where workers that tasks are bound to are gone."""
    if gone := sorted(needed - workers.keys()):
        raise LostOwnerError(f"workers must stay, got {', '.join(gone)} gone; {AGAIN}")


def compute(*values: Any) -> tuple[Any, ...]:
    """Return the values of Dask collections, as `dask.compute` does, but not waiting for ever."""
    from dask.base import compute as dask_compute

    client = active_client()
    if client is None:
        return tuple(dask_compute(*values))
    futures = client.compute(list(values), retries=setting("retries", 3))
    wait_for(client, futures)
    return tuple(fetch(client, futures))


def _wait(
    client: Any, futures: Sequence[Any], keys: Collection[str], needed: frozenset[str]
) -> None:
    from distributed import wait as wait_for_futures

    watch = Watch(client, keys, needed)
    if worker_count_of(client).is_due:
        watch.look(0)
    lost = f"the scheduler must stay, got {watch.address} gone, or the work cancelled"
    while not any(future.status == "error" for future in futures):
        try:
            with _named_if_lost(lost):
                wait_for_futures(futures, timeout=min(POLL, no_progress() / 10))
            break
        except TimeoutError:
            watch.look(sum(future.done() for future in futures))
        except ValueError as error:  # Dask knows the client no more: its scheduler has ended
            if client.status not in ("closing", "closed"):
                raise
            raise LostWorkError(f"{lost}; {AGAIN}") from error
    for future in futures:
        if future.status == "error":
            _explain(future)


# ---- what workers report


@dataclass(frozen=True)
class WorkerState:
    """What a worker last reported of itself."""

    running: bool  # not paused, not closing
    busy: bool  # runs a task now
    transfers: int  # that it received so far
    last_seen: float  # by the scheduler's clock
    life: Mapping[str, float] | None  # by key of a task that runs; None: it does not report yet
    cpu: float  # per cent of a core

    @staticmethod
    def of(worker: Mapping[str, Any]) -> WorkerState:
        """Return what the scheduler knows of a worker.

        Examples
        --------
        >>> WorkerState.of({})
        WorkerState(running=True, busy=False, transfers=0, last_seen=0.0, life=None, cpu=0.0)
        """
        metrics = worker.get("metrics", {})
        counts = metrics.get("task_counts", {})
        return WorkerState(
            running=worker.get("status", "running") == "running",
            busy=bool(counts.get("executing") or counts.get("long-running")),
            transfers=int(metrics.get("transfer", {}).get("incoming_count_total", 0)),
            last_seen=float(worker.get("last_seen", 0.0)),
            life=metrics.get(METRIC),
            cpu=float(metrics.get("cpu", 0.0)),
        )


def workers_by_name(client: Any, *, seconds: float | None = None) -> dict[str, dict[str, Any]]:
    """Return what the scheduler knows of every worker, by address."""
    known = ask(
        client,
        "the scheduler must name its workers",
        lambda: client.scheduler.identity(n_workers=-1),
        seconds=seconds,
    )
    return dict(known["workers"])


class Watch:
    """Judges, look by look, whether tasks progress."""

    def __init__(
        self, client: Any, keys: Collection[str], needed: frozenset[str] = frozenset()
    ) -> None:
        self.address = client_of(client)
        self._client = client
        self._needed = needed
        self._keys = frozenset(map(str, keys))
        self._asked = list(keys)
        self._now = WorkClock(2 * (POLL + _soon())).now  # read before and after each question
        self._progress = self._took_work = self._noticed = self._answered = self._now()
        self._worker_count = worker_count_of(client)
        self._done = 0
        self._transfers = -1
        self._statuses: dict[Any, Any] | None = None
        self._heard: dict[str, tuple[float, float]] = {}  # last_seen, and when that was new here
        self._lives: dict[tuple[str, str], tuple[float, float]] = {}  # life, and when it was new
        self._states: dict[str, WorkerState] = {}

    def look(self, done: int) -> None:
        """Take notice of `done` futures and of the workers; raise when nothing progresses."""
        ended, self._done = done > self._done, done
        try:
            found = workers_by_name(self._client, seconds=_soon())
        except SilentClusterError:
            self._judge(ended)
            return
        now = self._answered = self._now()
        self._states = {name: WorkerState.of(worker) for name, worker in found.items()}
        check_there(self._needed, found)
        for name, state in self._states.items():
            if self._heard.get(name, (None,))[0] != state.last_seen:
                self._heard[name] = state.last_seen, now
        self._worker_count.check(len(found), self.address)
        works = self._lives_go_on(now)
        self._judge(ended or works or self._tasks_end())
        self._check_taken(ended)

    def _judge(self, progress: bool) -> None:
        """Note progress, or how long there was none."""
        now = self._now()
        if progress:
            self._progress = self._noticed = now
            return
        quiet, allowed = now - self._progress, no_progress()
        if quiet >= allowed:
            raise ClusterError(
                f"tasks must progress, got no progress on {self.address} for {allowed:g} s "
                f"(hmrf.no-progress-timeout): {self._silence()}; {AGAIN}"
            )
        if now - self._noticed >= notice_every():
            self._noticed = now
            log.warning(
                "no progress on %s for %.0f s, giving up at %g s: %s",
                self.address, quiet, allowed, self._silence(),
            )  # fmt: skip

    def _check_taken(self, ended: bool) -> None:
        """Raise where no worker can take work, or none does though all are well."""
        states, now = self._states.values(), self._now()
        transfers = sum(state.transfers for state in states)
        if ended or transfers != self._transfers or any(state.busy for state in states):
            self._took_work, self._transfers = now, transfers
        allowed = patience()
        if now - self._took_work > allowed and not self._silent(now):
            raise ClusterError(
                f"no worker of {self.address} took work for {allowed:g} s: {self._idle()}, and "
                f"{AGAIN}"
            )

    def _lives_go_on(self, now: float) -> bool:
        """Tell whether a task of ours works; where none runs, whether those before it do."""
        silent = self._silent(now)
        heard = {name: state for name, state in self._states.items() if name not in silent}
        pairs = [(name, key) for name, state in heard.items() for key in state.life or ()]
        ours = [pair for pair in pairs if pair[1] in self._keys]
        goes_on = False
        for name, key in pairs:
            life = (heard[name].life or {})[key]
            before = self._lives.get((name, key))
            if before is None or life - before[0] > SHARE * (now - before[1]):
                self._lives[name, key] = life, now
                goes_on |= not ours or (name, key) in ours
        self._lives = {pair: self._lives[pair] for pair in pairs}
        return goes_on or any(
            state.life is None and state.busy and state.cpu >= BUSY_CPU for state in heard.values()
        )

    def _tasks_end(self) -> bool:
        """Tell whether tasks changed their state since the last time."""
        before, question = self._statuses, self._client.scheduler.get_task_status
        try:
            self._statuses = ask(
                self._client,
                "the scheduler must report the states of tasks",
                lambda: question(keys=self._asked),
                seconds=_soon(),
            )
        except SilentClusterError:
            return False
        return before is not None and before != self._statuses

    def _age(self, name: str, now: float) -> float:
        return now - self._heard[name][1]

    def _silent(self, now: float) -> list[str]:
        """Return the workers whose heartbeats do not come."""
        stale = min(STALE, no_progress() / 2)
        return [name for name in sorted(self._states) if self._age(name, now) >= stale]

    def _silence(self) -> str:
        """Return in words what does not move."""
        now = self._now()
        if now - self._answered > max(POLL, no_progress() / 5):
            return f"its scheduler gave no answer for {now - self._answered:.0f} s (is it frozen?)"
        if silent := self._silent(now):
            longest = max(self._age(name, now) for name in silent)
            names = ", ".join(silent[:3]) + (" and more" if len(silent) > 3 else "")
            return (
                f"{len(silent)} of {counted(len(self._states), 'worker')} without a heartbeat for "
                f"up to {longest:.0f} s (frozen?): {names}"
            )
        waiting = [
            f"{key} on {name}"
            for name, state in self._states.items()
            for key in self._keys.intersection(state.life or ())
        ]
        if waiting:
            names = ", ".join(waiting[:3])
            return f"{names} runs but computes nothing (a store that does not answer?)"
        if busy := sum(state.busy for state in self._states.values()):
            return f"{counted(busy, 'worker')} of {len(self._states)} at work, but no task ends"
        return self._idle()

    def _idle(self) -> str:
        """Return in words why no worker takes work."""
        number = len(self._states)
        paused = sum(not state.running for state in self._states.values())
        if not number:
            return "there is none; start some"
        if paused:
            who, advice = f"{paused} of {number} workers", ", the others do nothing; give them"
            if paused == number:
                who, advice = f"all {number}", "; start more, or give them"
            return f"{who} are paused for want of memory or closing{advice} more memory"
        return (
            f"{number} are there and do nothing; look at their logs (a value that cannot be "
            "pickled stops them without an error)"
        )


def _soon() -> float:
    """Return the seconds in which a scheduler that is watched must answer."""
    return min(10.0, no_progress() / 10)


def _explain(future: Any) -> None:
    """Raise the error of a failed future; a worker killed under a task is no fault of the task."""
    error = future.exception()
    if isinstance(error, HmrfError):
        raise error
    if type(error).__name__ == "KilledWorker":
        raise ClusterError(
            "workers died again and again, probably for want of memory, the last time while they "
            f"held {future.key} or what it needs (which may be innocent): {error} Give workers "
            f"more memory or make partitions smaller, and {AGAIN}"
        ) from error
    raise error


# ---- what a worker's heartbeat says of each task that it runs: the processor time of its thread,
# ---- and signs of whatever comes from stores; that a task runs says nothing


def report_life() -> None:
    """Let the worker of this task, if any, report its tasks with each heartbeat from now on."""
    if "distributed" in sys.modules:
        from distributed import get_worker

        try:
            metrics = get_worker().metrics
            metrics.setdefault(METRIC, _life_of_tasks)
            metrics.setdefault(TRAFFIC, _traffic_of)
        except ValueError:  # no task of a worker
            return


def threads_here() -> int:
    """Return how many tasks the worker of this task runs at a time; 1 where it has none."""
    if "distributed" in sys.modules:
        from distributed import get_worker

        with suppress(ValueError):
            return max(1, int(get_worker().state.nthreads))
    return 1


def _life_of_tasks(worker: Any) -> dict[str, float]:
    """Return the life of each task that runs: processor seconds, and signs."""
    with worker.active_threads_lock:  # no thread ends meanwhile
        running = dict(worker.active_threads)
        signs = signs_of_life()  # each counts as a second of processor time
        return {str(key): _processor_seconds(thread) + signs for thread, key in running.items()}


def _traffic_of(worker: Any) -> dict[str, int]:
    """Return the bytes that a worker sent of its values, and what it had to do with stores."""
    return {"worker_sent_bytes": worker.transfer_outgoing_bytes_total, **store_traffic()}


def _processor_seconds(thread: int) -> float:
    if not hasattr(time, "pthread_getcpuclockid"):  # not every system counts by thread
        return time.process_time()
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
PROCESS = 320 * 2**20  # bytes of a worker with all modules and kernels loaded, without any rows
ANSWER = 3.0  # seconds in which a worker answers a client that can reach it
# By client: the worker that was greeted, and whether it answered.
_REACHED: WeakKeyDictionary[Any, tuple[str, bool]] = WeakKeyDictionary()
GRACE = 10.0  # seconds in which a scheduler says which workers are there yet


def reaches_workers(client: Any) -> bool:
    """Return whether this process can speak to workers itself: half of the way of large values."""
    if client.direct_to_workers is not None:
        return bool(client.direct_to_workers)
    greeted, reached = _REACHED.get(client, ("", False))
    if reached:
        return True
    addresses = list(workers_by_name(client))
    if not addresses or addresses[0] == greeted:
        return False
    # Behind a gateway, or just gone: another one may answer.
    with suppress(SilentClusterError):
        ask(
            client,
            f"worker {addresses[0]} must answer",
            lambda: client.rpc(addresses[0]).identity(),
            seconds=ANSWER,
        )
        reached = True
    _REACHED[client] = addresses[0], reached
    return reached


# ---- memory


def memory_of_a_task() -> tuple[int, str]:
    """Return the memory one task may really have, and where that number comes from."""
    import dask

    pause = dask.config.get("distributed.worker.memory.pause", 0.8) or 1.0
    shares = [(int(limit * pause) - PROCESS) // threads for limit, threads in _limits()]
    if shares:
        return max(0, min(shares)), (
            f"{100 * pause:.0f} % of the smallest worker's memory limit, beyond which it pauses, "
            f"less {PROCESS >> 20} MiB for its process, shared by its threads"
        )
    threads = local_threads()
    shared = f" shared by {threads} threads" if threads > 1 else ""
    return machine_memory() // threads, f"this machine's memory limit{shared}"


def memory_of_all() -> int:
    """Return the memory of the whole cluster, or of this machine, that its processes leave."""
    limits = [limit for limit, _ in _limits()] or [machine_memory()]
    return sum(max(0, limit - PROCESS) for limit in limits)


def least_memory() -> int:
    """Return the memory of the worker that has the least, or of this machine."""
    return min((limit for limit, _ in _limits()), default=machine_memory())


def _limits() -> list[tuple[int, int]]:
    """Return the memory limit and the threads of each worker that has a limit."""
    client = active_client()
    return [
        (int(worker["memory_limit"]), max(int(worker["nthreads"]), 1))
        for worker in (() if client is None else workers_by_name(client).values())
        if worker["memory_limit"]
    ]


def machine_memory() -> int:
    """Return the memory of this machine, or what its container may have of it."""
    limits = [int(psutil.virtual_memory().total)]
    for file in CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int(Path(file).read_text()))
    return min(limit for limit in limits if limit > 0)


def peak_memory() -> int:
    """Return the most bytes that this process had in memory at a time."""
    with suppress(OSError, IndexError):  # `ru_maxrss` begins with that of a larger parent
        return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# ---- workers


def check_workers(run: RunDirectory) -> None:
    """Raise before any work if a worker cannot see the run directory or computes other bits."""
    client = active_client()
    if client is None:
        return
    token = run.probe()
    try:
        answers = _answers(client, run, token)
    finally:
        run.remove_probe(token)
    own = kernel_path()
    for worker, (trouble, path) in sorted(answers.items()):
        if trouble is not None:
            raise RunDirectoryError(f"worker {worker}: {trouble}")
        if path != own:
            raise ClusterError(other_path(f"worker {worker}", path, own))


def _answers(client: Any, run: RunDirectory, token: str) -> dict[str, Any]:
    """Return the answer of each worker, or say which of them gave none."""
    answers: dict[str, Any] = {}

    async def ask_worker(worker: str) -> None:
        """Keep the answer of one worker."""
        answers.update(await client.run(_worker_answer, run, token, workers=[worker]))

    workers = list(workers_by_name(client))
    what = "every worker must answer before the start"
    errors: list[Any] = []
    with suppress(SilentClusterError):
        ask_all = partial(asyncio.gather, return_exceptions=True)
        errors = ask(client, what, lambda: ask_all(*map(ask_worker, workers)))
    for error in errors:
        if error is not None and not isinstance(error, OSError):
            raise error
    silent = sorted(set(workers) - answers.keys())
    if silent and set(silent) & workers_by_name(client, seconds=GRACE).keys():
        raise ClusterError(  # one that has left meanwhile is no fault
            f"{what}, got none within {no_progress():g} s from {', '.join(silent)} (frozen, or cut "
            f"off?); see that its process runs, or end it, and {AGAIN}"
        )
    return answers


def _worker_answer(run: RunDirectory, token: str) -> tuple[str | None, dict[str, str]]:
    report_life()
    try:
        run.check_probe(token)
    except RunDirectoryError as error:
        return str(error), kernel_path()
    return None, kernel_path()


def other_path(worker: str, path: dict[str, str], own: dict[str, str]) -> str:
    """Return the words that refuse a worker whose kernel path is not the client's own."""
    return (
        f"workers must compute the same bits as the client, got {worker} with another kernel path "
        f"or instruction set ({path_differences(path, own)}); use machines and environments of "
        "one kind"
    )
