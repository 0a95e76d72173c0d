"""Memory that the processes of one machine share: what one of them filled the others map.

Workers on one machine need the same table of centroids at the same time. A copy each does not fit
the cache they share, and rows are then compared a third slower. The memory is a file in RAM, locked
while somebody uses it; whoever is the last to let go of it, or finds it after a crash, removes it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from hmrf_dask.kernels.room import LINE
from hmrf_dask.types import AnyArray

with contextlib.suppress(ImportError):  # no such locks here: every process has its own memory
    import fcntl

FOLDER = Path("/dev/shm")  # files in RAM, where a system has them
LEAST = 2**20  # bytes; smaller memory fits any cache twice
PATIENCE = 5.0  # seconds for another process to fill it
POLL = 0.0005


def shared_room(name: str, size: int, fill: Callable[[AnyArray], None]) -> AnyArray | None:
    """Return bytes that `fill` wrote, here or in another process that asked for this `name`.

    None where the machine has no such memory: too small to be worth it, no room left, or whoever
    fills it does not get on.
    """
    if not name or size < LEAST or not FOLDER.is_dir():
        return None
    try:
        return _filled(FOLDER / f"{_remove_left()}{name}", size, fill)
    except OSError:
        return None


@cache
def _remove_left() -> str:
    """Return how names of files begin, when those of processes that were killed are gone."""
    prefix = f"hmrf-dask-{os.getuid()}-"
    for path in FOLDER.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            _let_go(path, _opened(path, 0))
    return prefix


def _filled(path: Path, size: int, fill: Callable[[AnyArray], None]) -> AnyArray:
    with contextlib.ExitStack() as undo:
        handle = _locked(path)
        undo.callback(_let_go, path, handle)
        os.posix_fallocate(handle, 0, LINE + size)  # to touch what is not there would end us
        pages = mmap.mmap(handle, LINE + size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        memory = np.frombuffer(pages, np.uint8)
        if not memory[0]:  # new, or whoever began to fill it is gone
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fill(memory[LINE:])
            memory[0] = 1
        fcntl.flock(handle, fcntl.LOCK_SH)
        undo.pop_all()
        weakref.finalize(pages, _let_go, path, handle)
    return memory[LINE:]


def _opened(path: Path, flags: int) -> int:
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)


def _locked(path: Path) -> int:
    """Return a handle of the file that we have to ourselves, or share once it is filled."""
    late = time.monotonic() + PATIENCE
    while True:
        handle = _opened(path, os.O_CREAT)
        try:
            while not _lock(handle):
                if time.monotonic() > late:
                    raise TimeoutError(f"{path} stays locked")
                time.sleep(POLL)
            if os.fstat(handle).st_nlink:  # else it was removed before we had the lock
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _lock(handle: int) -> bool:
    for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return True
    return False


def _let_go(path: Path, handle: int) -> None:
    """Close the file, and remove it when nobody else has it open."""
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_nlink:
            path.unlink()
    os.close(handle)
