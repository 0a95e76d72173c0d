"""Threads of kernels, and the buffers that each of them uses again."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import numpy as np

from hmrf_dask.types import AnyArray, IntArray

_helpers: ContextVar[tuple[int, ThreadPoolExecutor] | None] = ContextVar("helpers", default=None)
WORTH = 2**18  # numbers; a smaller array is done before a thread has begun


@contextmanager
def threads_allowed(number: int) -> Iterator[None]:
    """Let kernels called in here, and not in tasks, use so many threads."""
    with ThreadPoolExecutor(max(1, number - 1), "hmrf-driver") as pool:
        before = _helpers.set((number, pool))
        try:
            yield
        finally:
            _helpers.reset(before)


def over_ranges(
    work: Callable[[int, int], None],
    n_items: int,
    n_numbers: int,
    sizes: IntArray | None = None,
) -> None:
    """Call work(first, last) for ranges that cover `n_items` items of `n_numbers` numbers.

    Ranges are as long as one another, or of about as many numbers where the items' `sizes` are
    given. A result must be the same for any ranges.

    Examples
    --------
    >>> over_ranges(lambda first, last: print(first, last), n_items=10, n_numbers=100)
    0 10
    """
    number, pool = _helpers.get() or (1, None)
    number = min(number, n_items)
    if pool is None or number < 2 or n_numbers < WORTH:
        work(0, n_items)
        return
    done = np.arange(1, n_items + 1) if sizes is None else np.cumsum(sizes)
    shares = done[-1] * np.arange(1, number) / number
    (first, last), *others = pairwise([0, *(np.searchsorted(done, shares) + 1).tolist(), n_items])
    waiting = [pool.submit(work, *ends) for ends in others]
    work(first, last)
    for one in waiting:
        one.result()


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
    """Return an array of any contents that begins at a line of the cache, as `np.empty` does.

    Examples
    --------
    >>> array = buffer((2, 3), np.float64)
    >>> array.shape, array.ctypes.data % LINE
    ((2, 3), 0)
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    rounded = -(-size // STEP) * STEP
    memory = borrowed(_plain, rounded) if size >= STEP else _plain(size)
    first = -memory.ctypes.data % LINE
    return memory[first : first + size].view(dtype).reshape(shape)
