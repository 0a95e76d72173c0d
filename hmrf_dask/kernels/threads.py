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

from hmrf_dask.kernels import shared_memory
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


def n_allowed() -> int:
    """Return how many threads kernels called here may use."""
    number, _ = _helpers.get() or (1, None)
    return number


def over_ranges(
    work: Callable[[int, int], None],
    n_items: int,
    n_numbers: int,
    sizes: IntArray | None = None,
) -> None:
    """Call work(first, last) for ranges that cover `n_items` items of `n_numbers` numbers.

    Ranges are as long as one another, or of about as many numbers where the items' `sizes` are
    given. A result must be the same for any ranges.
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


class _Kept:
    """Memory that nobody uses now, by size; there is some only while fits run."""

    def __init__(self, make: Callable[[int], AnyArray]) -> None:
        self.make = make
        self.lock = threading.RLock()  # a loan may end while another is made
        self.fits = 0
        self.free: dict[int, list[AnyArray]] = defaultdict(list)

    def take(self, size: int) -> AnyArray:
        """Return memory, new where there is none of that size."""
        with self.lock:
            if self.free[size]:
                return self.free[size].pop()
        return self.make(size)

    def give_back(self, size: int, memory: AnyArray) -> None:
        """Keep memory, if a fit may use it."""
        with self.lock:
            if self.fits:
                self.free[size].append(memory)


class _Loan:
    """Memory that goes back when the last array that shows it is gone."""

    memory: AnyArray | None = None

    def __init__(self, size: int, kept: _Kept) -> None:
        self.size, self.kept = size, kept
        self.memory = kept.take(size)
        self.__array_interface__: dict[str, Any] = self.memory.__array_interface__

    def __del__(self) -> None:
        if self.memory is not None:  # there was memory to be had
            self.kept.give_back(self.size, self.memory)


@contextmanager
def buffers_kept() -> Iterator[None]:
    """Keep memory in here; of other fits at that time, too."""
    pools = (_plain, _shared)
    for kept in pools:
        with kept.lock:
            kept.fits += 1
    try:
        yield
    finally:
        for kept in pools:
            with kept.lock:
                kept.fits -= 1
                if not kept.fits:
                    kept.free.clear()


@contextmanager
def shared_buffers() -> Iterator[None]:
    """Take the buffers that are made in here from memory that processes of the machine share."""
    before = _pool.set(_shared)
    try:
        yield
    finally:
        _pool.reset(before)


def _new(size: int) -> AnyArray:
    return np.empty(size + LINE, np.uint8)


def _new_shared(size: int) -> AnyArray:
    try:
        return shared_memory.make(size + LINE)
    except OSError:  # it is refused here: what lies elsewhere is sent, not shown
        return _new(size)


_plain, _shared = _Kept(_new), _Kept(_new_shared)
_pool: ContextVar[_Kept] = ContextVar("pool", default=_plain)


def buffer(shape: tuple[int, ...], dtype: type[np.generic]) -> AnyArray:
    """Return an array of any contents that begins at a line of the cache, as `np.empty` does."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    rounded = -(-size // STEP) * STEP
    pool = _pool.get()
    plain = size < (STEP if pool is _plain else shared_memory.LEAST)
    memory = _new(size) if plain else np.asarray(_Loan(rounded, pool))
    first = -memory.ctypes.data % LINE
    return memory[first : first + size].view(dtype).reshape(shape)
