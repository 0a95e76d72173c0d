"""Memory of large arrays, used again: an array of K × d that is new costs as much as its contents.

Every iteration makes new sums, centroids and tables and drops old ones. Beyond 32 MiB the C library
gives each back to the system, which wipes every page before it hands it out again. While a fit runs
in this process what is dropped is kept for the next array of about that size.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hmrf_dask.types import AnyArray

STEP = 2**23  # bytes; sizes are rounded up to multiples, smaller arrays are the C library's
LINE = 64  # bytes of a line of the cache


Key = tuple[Callable[[int], AnyArray], int]  # what makes memory, and its size


class _Kept:
    """Memory that nobody uses now, by kind and size; there is some only while fits run."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a loan may end while another is made
        self.fits = 0
        self.free: dict[Key, list[AnyArray]] = defaultdict(list)

    def take(self, key: Key) -> AnyArray | None:
        """Return memory, None where there is none of that kind and size."""
        with self.lock:
            return self.free[key].pop() if self.free[key] else None

    def give_back(self, key: Key, memory: AnyArray) -> None:
        """Keep memory, if a fit may use it."""
        with self.lock:
            if self.fits:
                self.free[key].append(memory)


_kept = _Kept()


class _Loan:
    """Memory that goes back when the last array that shows it is gone."""

    memory: AnyArray | None = None

    def __init__(self, make: Callable[[int], AnyArray], size: int) -> None:
        self.key = (make, size)
        memory = _kept.take(self.key)
        self.memory = make(size) if memory is None else memory
        self.__array_interface__: dict[str, Any] = self.memory.__array_interface__

    def __del__(self, give_back: Callable[[Key, AnyArray], None] = _kept.give_back) -> None:
        if self.memory is not None:  # there was memory to be had
            give_back(self.key, self.memory)  # an argument: at the end of a process modules go


@contextmanager
def buffers_kept() -> Iterator[None]:
    """Keep memory in here; of other fits at that time, too."""
    with _kept.lock:
        _kept.fits += 1
    try:
        yield
    finally:
        with _kept.lock:
            _kept.fits -= 1
            if not _kept.fits:
                _kept.free.clear()


def borrowed(make: Callable[[int], AnyArray], size: int) -> AnyArray:
    """Return memory of any contents that `make(size)` made, now or before: it is kept for a fit."""
    return np.asarray(_Loan(make, size))


def _plain(size: int) -> AnyArray:
    return np.empty(size + LINE, np.uint8)


def buffer(shape: tuple[int, ...], dtype: type[np.generic]) -> AnyArray:
    """Return an array of any contents that begins at a line of the cache, as `np.empty` does."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    rounded = -(-size // STEP) * STEP
    memory = borrowed(_plain, rounded) if size >= STEP else _plain(size)
    first = -memory.ctypes.data % LINE
    return memory[first : first + size].view(dtype).reshape(shape)
