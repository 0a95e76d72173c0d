"""One run at a time on an output: numbered files name the process that holds it, and its beat."""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from hmrf_dask.errors import HeldError, RunDirectoryError
from hmrf_dask.storage import sealed
from hmrf_dask.storage.addresses import absolute_url, refuse_credentials
from hmrf_dask.storage.log import ExclusiveLog, padded
from hmrf_dask.storage.remote import seconds_of
from hmrf_dask.storage.stores import Storage, fenced, open_storage, temporary_target


def open_output(
    output: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Storage:
    """Return the store of an output, a folder or URL; its options must hold no secrets."""
    options = dict(storage_options or {})
    refuse_credentials(options)
    return open_storage(absolute_url(output), options, durable=True)


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_WAITED = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)
_LEAST_SHARE = 0.01  # of a processor: signs of life alone need a tenth of that
_LEAST_WAKES, _RARELY = 3.0, 20.0  # wakes, and seconds between two of them


@dataclass(frozen=True)
class Process:
    """A process as others can find it again.

    Attributes
    ----------
    machine : str
        Where its number means something: this start of the machine, and the container
        where numbers begin again. Containers often share the name of their host.
    started : float
        Seconds from the start of the machine to that of the process; a number that is used again
        has another.
    """

    host: str
    user: str
    machine: str
    pid: int
    started: float


def this_process() -> Process:
    """Return the process that asks."""
    return Process(
        socket.gethostname(), _user(), _machine(), os.getpid(), _started(psutil.Process())
    )


def is_alive(process: Process) -> bool | None:
    """Return whether a process lives; None where this machine cannot tell."""
    if process.machine != _machine():
        return None
    try:
        running = psutil.Process(process.pid)
        if running.status() == psutil.STATUS_ZOMBIE:  # killed, but nobody asked how it ended
            return False
        return abs(_started(running) - process.started) < 1.0
    except psutil.NoSuchProcess:
        return False


def seconds() -> float:
    """Return a time in seconds that goes on while the machine sleeps, and never jumps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Activity:
    """Whether the work of the thread that makes this object goes on.

    A thread that waits for ever, for a lock or a disk that is gone, neither wakes nor computes, and
    neither does anything else in its process. A thread that waits for a cluster wakes to see how it
    is, and one that waits for other threads has a process that computes. Some of this must be seen
    within `patience` seconds.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._status = Path(f"/proc/self/task/{threading.get_native_id()}/status")
        self._since = seconds()
        self._seen = self._measured()

    def goes_on(self) -> bool:
        """Return whether enough was done since that was last so, or it is not long ago."""
        now, measured = seconds(), self._measured()
        elapsed = now - self._since
        computed, woke = (new - old for new, old in zip(measured, self._seen, strict=True))
        if computed >= _LEAST_SHARE * elapsed or woke >= max(_LEAST_WAKES, elapsed / _RARELY):
            self._since, self._seen = now, measured
            return True
        return elapsed < self.patience

    def _measured(self) -> tuple[float, float]:
        """Return the seconds that the process computed, and how often the thread waited."""
        try:
            waited = _WAITED.search(self._status.read_text())
        except OSError:  # no Linux
            waited = None
        return time.process_time(), float(waited[1]) if waited else 0.0


def _started(process: psutil.Process) -> float:
    # The difference is what the kernel counts, which no change of the clock moves.
    return process.create_time() - psutil.boot_time()


def _machine() -> str:
    try:
        return f"{_BOOT.read_text().strip()}/{_NAMESPACE.stat().st_ino}"
    except OSError:  # no Linux
        return socket.gethostname()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container that runs under a number without a name
        return str(os.getuid())


LOCK_FOLDER = "holders"
LEASE, HUNG_AFTER = "60 s", "10 minutes"
_LOOKS = 5  # at a number that is listed and cannot be read
_KEPT = 20  # numbers of former holders; more would be listed at every start for ever
_OF = re.compile(r"([0-9]{5,9})\.(?:json|beat|done)")
log = logging.getLogger("hmrf_dask")


@dataclass(frozen=True)
class Holder:
    """Who holds an output.

    Attributes
    ----------
    number : int
        Of the file.
    lease, beat : float
        Seconds without a sign after which it counts as gone, and between two signs.
    token : str
        Distinguishes this very attempt from any other.
    """

    number: int
    run: str
    process: Process
    since: str
    lease: float
    beat: float
    token: str

    def sealed(self) -> bytes:
        """Return the content of its file."""
        return sealed.seal(asdict(self))

    def __str__(self) -> str:
        process = self.process
        return (
            f"run {self.run} (process {process.pid} of {process.user} on host {process.host}, "
            f"since {self.since})"
        )


class OutputLock:
    """An output that this process holds; `held` makes it."""

    def __init__(self, storage: Storage, holder: Holder, activity: Activity) -> None:
        self.holder = holder
        self.storage = storage
        self._activity = activity
        self._signed = seconds()
        self._loss = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, name="hmrf-holder", daemon=True)

    def check(self) -> None:
        """Raise HeldError where another run took the output over, as this one gave no sign."""
        number = ExclusiveLog(self.storage, LOCK_FOLDER).newest()
        if number > self.holder.number:
            self._loss = (
                f"a run must give a sign every {self.holder.lease:.0f} s, got none of this one "
                f"for longer, so another run took over {self.storage.url}: "
                f"{self._successor(number)}; let that one finish, then run again"
            )
        if self._loss:
            raise HeldError(self._loss)

    def _successor(self, number: int) -> str:
        try:
            return str(_read(self.storage, number))
        except (FileNotFoundError, sealed.DamagedFileError):
            return f"number {number} in {LOCK_FOLDER}"

    def check_if_late(self) -> None:
        """Do as `check` does, but ask the store only where others may have missed a sign."""
        if self._loss or self._is_late():
            self.check()

    def begin(self) -> None:
        """Give the first sign of life and go on giving them."""
        self._sign()
        self._thread.start()

    def end(self) -> None:
        """Give no more signs, and let others in."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(self.holder.lease)  # it may hang in a disk, and cannot be waited for
        if self._loss:
            return
        try:
            self.storage.write(_name(self.holder.number, "done"), now().encode())
        except RunDirectoryError as error:  # what the run did or how it failed says more
            log.warning("the output could not be given free (%s); others wait a little", error)

    def _live(self) -> None:
        while not self._ended.wait(self.holder.beat):
            if not self._activity.goes_on():
                continue  # so others may have the output
            try:
                self._sign()
            except HeldError:
                return
            except RunDirectoryError as error:  # a later one may get through
                log.debug("no sign of life could be given: %s", error)

    def _is_late(self) -> bool:
        # Where clocks differ, others watch for this long before they pass a process over.
        return seconds() - self._signed > min(2 * self.holder.beat, self.holder.lease / 2)

    def _sign(self) -> None:
        late, began = self._is_late(), seconds()
        sign = json.dumps({"time": time.time(), "token": uuid.uuid4().hex})
        self.storage.write(_name(self.holder.number, "beat"), sign.encode())
        if late:  # whoever took over before the sign is seen now, whoever wants to later sees it
            self.check()
        self._signed = began


@contextlib.contextmanager
def held(
    output: str | os.PathLike[str],
    run_id: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    beat: float | None = None,
) -> Iterator[OutputLock]:
    """Hold an output while what is inside runs; it is given free however that ends.

    Nothing below the output is written inside once another run has taken it over.

    Parameters
    ----------
    output : str or path
        Folder or URL.
    run_id : str
        What is reported to others.
    storage_options : mapping, optional
        For fsspec, without credentials.
    beat : float, optional
        Seconds between two signs of life. Others count this process as gone after `hmrf.lease`
        without one, by default six of them.

    Raises
    ------
    HeldError
        Another run holds it, or took it over.
    """
    storage = open_output(output, storage_options)
    storage.make_root()
    lease = seconds_of("lease", LEASE, least=1.0)
    activity = Activity(seconds_of("hung-after", HUNG_AFTER, least=1.0))
    beat = lease / 6 if beat is None else beat
    hold = OutputLock(storage, _take(storage, run_id, lease, beat), activity)
    try:
        with fenced(storage.url, hold.check_if_late):
            hold.begin()
            yield hold
    except Exception:  # files may be missing only because they are another's now
        with contextlib.suppress(RunDirectoryError):
            hold.check()
        raise
    finally:
        hold.end()


def holder_of(
    output: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Holder | None:
    """Return who holds an output now, None where nobody does."""
    storage = open_output(output, storage_options)
    holder = _newest(storage)[1]
    return None if holder is None or _last_words(storage, holder) else holder


def _take(storage: Storage, run_id: str, lease: float, beat: float) -> Holder:
    """Make the next number, or raise HeldError where the last one is held."""
    log, token = ExclusiveLog(storage, LOCK_FOLDER), uuid.uuid4().hex
    while True:
        number, last = _newest(storage)
        sign = _last_words(storage, last) if last else None
        if last and sign is None:
            age = max(0.0, time.time() - _sign_of(storage, last)["time"])
            raise HeldError(
                f"an output must have one run at a time, got {storage.url} held by "
                f"{last}, which gave its last sign {age:.0f} s ago; wait until it ends, or stop "
                "it, and run again"
            )
        own = Holder(
            number=number + 1,
            run=run_id,
            process=this_process(),
            since=now(),
            lease=lease,
            beat=beat,
            token=token,
        )
        if not log.claim(own.number, own.sealed()):
            continue
        woke = last and _sign_of(storage, last) != sign
        if not woke and log.newest() <= own.number:
            _forget(storage, own.number - _KEPT)
            return own
        # The last one woke just now, or it is an old number, which was removed meanwhile.
        log.delete(own.number)


def _newest(storage: Storage) -> tuple[int, Holder | None]:
    """Return the highest number, and whose it is: None where that run has ended, or there is none.

    A run that was too late removes its number again, maybe between two reads.
    """
    log = ExclusiveLog(storage, LOCK_FOLDER)
    for _ in range(_LOOKS):
        number = log.newest()
        if not number or _is_done(storage, number):
            return number, None
        with contextlib.suppress(FileNotFoundError):
            return number, _read(storage, number)
    raise sealed.DamagedFileError(
        f"{storage.url}/{_name(number, 'json')} must be as a run wrote it, got a link to nothing; "
        "where no run is at work, remove it and run again"
    )


def _last_words(storage: Storage, holder: Holder) -> dict[str, Any] | None:
    """Return the last sign of a holder that is gone, None where it is still there.

    This may take a few of its beats to find out.
    """
    sign = _sign_of(storage, holder)
    if _is_done(storage, holder.number) or is_alive(holder.process) is False:
        return sign
    # Clocks jump, and those of two machines differ: what seems old is watched before it is
    # believed.
    if abs(time.time() - sign["time"]) >= holder.lease:
        time.sleep(min(2.5 * holder.beat, holder.lease))
        if _sign_of(storage, holder) == sign or _is_done(storage, holder.number):
            return sign
    return None


def _is_done(storage: Storage, number: int) -> bool:
    return f"{padded(number)}.done" in storage.names(LOCK_FOLDER)


def _sign_of(storage: Storage, holder: Holder) -> dict[str, Any]:
    """Return the last sign of life; before the first one, or where it is damaged, when it began."""
    with contextlib.suppress(FileNotFoundError, ValueError, RecursionError):
        sign = json.loads(storage.read(_name(holder.number, "beat")))
        if isinstance(sign, dict) and isinstance(sign.get("time"), float):
            return sign
    return {"time": datetime.fromisoformat(holder.since).timestamp()}


def _forget(storage: Storage, last: int) -> None:
    """Remove the files of holders up to number `last`, and halves that killed writers left."""
    storage.delete(
        f"{LOCK_FOLDER}/{name}"
        for name in storage.names(LOCK_FOLDER)
        if (own := _OF.fullmatch(temporary_target(name) or name)) and int(own[1]) <= last
    )


def _read(storage: Storage, number: int) -> Holder:
    name = _name(number, "json")
    try:
        return sealed.unseal_as(Holder, storage.read(name), f"{storage.url}/{name}")
    except sealed.DamagedFileError as error:
        said = str(error).removesuffix(sealed.RESTORE)
        raise sealed.DamagedFileError(
            f"{said}where no run is at work, remove the files of this number and run again"
        ) from error


def _name(number: int, kind: str) -> str:
    return f"{LOCK_FOLDER}/{padded(number)}.{kind}"


def now() -> str:
    """Return the time as records have it: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
