"""Ranges of clusters in parallel on threads, for what is done once an iteration outside of tasks.

While the driver makes new centroids no task runs, and all cores but one would wait. Inside tasks
one thread is all a kernel may use: there Dask's own are busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise

import numpy as np

from hmrf_dask.types import IntArray

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
