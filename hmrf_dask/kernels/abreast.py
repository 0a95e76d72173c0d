"""Ranges of clusters abreast on threads, for what is done once an iteration outside of tasks.

While the driver makes new centroids no task runs, and all cores but one would wait. Inside tasks
one thread is all a kernel may use: there Dask's own are busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise

_threads: ContextVar[int] = ContextVar("threads", default=1)
WORTH = 2**18  # numbers; a smaller array is done before a thread has begun


@contextmanager
def threads_allowed(number: int) -> Iterator[None]:
    """Let kernels called in here, and not in tasks, use so many threads."""
    before = _threads.set(number)
    try:
        yield
    finally:
        _threads.reset(before)


def over_ranges(work: Callable[[int, int], None], n_items: int, n_numbers: int) -> None:
    """Call work(first, last) for ranges that cover `n_items` items of `n_numbers` numbers.

    A result must be the same for any ranges.
    """
    number = min(_threads.get(), n_items)
    if number < 2 or n_numbers < WORTH:
        work(0, n_items)
        return
    bounds = [n_items * place // number for place in range(number + 1)]
    with ThreadPoolExecutor(number) as pool:
        list(pool.map(lambda ends: work(*ends), pairwise(bounds)))
