"""Small sources that share a task: thousands of tiny files are not thousands of tasks.

Every source still has files of its own; which of them share a task follows from their order and
sizes alone and leaves no trace in what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from hmrf_dask.dataflow import Dataflow

T = TypeVar("T")
SMALL = 2**16  # bytes of a source that shares a task
MOST = 16  # sources of a task: sixty-four are a task each for four threads
_ABREAST = 8


def together(sizes: Sequence[int]) -> list[slice]:
    """Return neighbours that share a task: small sources, at most `MOST`; a large one is alone.

    Examples
    --------
    >>> [(one.start, one.stop) for one in together([5, 5, 2**20, 5])]
    [(0, 2), (2, 3), (3, 4)]
    """
    found: list[slice] = []
    room = False
    for number, size in enumerate(sizes):
        small = size <= SMALL
        if small and room and number - found[-1].start < MOST:
            found[-1] = slice(found[-1].start, number + 1)
        else:
            found.append(slice(number, number + 1))
        room = small
    return found


def of_each(
    flow: Dataflow,
    function: Callable[..., T],
    sources: Sequence[Any],
    sizes: Sequence[int],
    *shared: Any,
) -> list[T]:
    """Return function(source, *shared) of every source, small ones together in a task."""
    tasks = [flow.lazy(_abreast, function, sources[some], *shared) for some in together(sizes)]
    return [one for some in flow.compute(tasks) for one in some] if tasks else []


def _abreast(function: Callable[..., T], sources: Sequence[Any], *shared: Any) -> list[T]:
    # What small sources wait for is the disk or the store, which serves several at once.
    with ThreadPoolExecutor(min(len(sources), _ABREAST)) as pool:
        return list(pool.map(lambda one: function(one, *shared), sources))
