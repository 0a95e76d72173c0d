"""Which process this is, and whether another one of this machine still lives."""

from __future__ import annotations

import getpass
import os
import re
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

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
    host, user : str
    machine : str
        What tells where its number means something: this start of the machine, and the container
        where numbers count anew. Containers often share the name of their host.
    pid : int
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
        found = psutil.Process(process.pid)
        if found.status() == psutil.STATUS_ZOMBIE:  # killed, but nobody asked how it ended
            return False
        return abs(_started(found) - process.started) < 1.0
    except psutil.NoSuchProcess:
        return False


def seconds() -> float:
    """Return a time in seconds that goes on while the machine sleeps, and never jumps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Activity:
    """Whether the work of the thread that makes this object goes on.

    A thread that waits for ever, for a lock or a disk that is gone, neither wakes nor computes, and
    neither does anything else in its process. A thread that waits for a cluster wakes to see how it
    is, and one that waits for other threads has a process that computes.

    Parameters
    ----------
    patience : float
        Seconds in which some of this must be seen.
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
            found = _WAITED.search(self._status.read_text())
        except OSError:  # no Linux
            found = None
        return time.process_time(), float(found[1]) if found else 0.0


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
