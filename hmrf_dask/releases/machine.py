"""Which process this is, and whether another one of this machine still lives."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


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
