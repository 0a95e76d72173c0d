"""Ranges on threads cover every item once, on as many threads as are allowed."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from hmrf_dask.kernels import threads
from hmrf_dask.kernels.threads import over_ranges, threads_allowed


def ranges(n_items: int, number: int, sizes: Any = None) -> list[tuple[int, int]]:
    """Return the ranges that are worked on, in their order."""
    found: list[tuple[int, int]] = []
    with threads_allowed(number):
        over_ranges(lambda *ends: found.append(ends), n_items, threads.WORTH, sizes)
    return sorted(found)


@pytest.mark.parametrize("number", [1, 2, 3, 8])
@pytest.mark.parametrize("n_items", [1, 2, 7, 100])
def test_ranges_cover_every_item_once(n_items: int, number: int) -> None:
    rng = np.random.default_rng(n_items)
    for sizes in (None, rng.integers(0, 9, n_items), np.eye(1, n_items, dtype=int)[0] * 5):
        covered = [i for ends in ranges(n_items, number, sizes) for i in range(*ends)]
        assert covered == list(range(n_items))


def test_ranges_are_of_about_as_many_numbers() -> None:
    assert ranges(8, 2) == [(0, 4), (4, 8)]
    assert ranges(8, 2, np.array([7, 1, 1, 1, 1, 1, 1, 1])) == [(0, 1), (1, 8)]
    assert ranges(8, 4, np.array([1, 1, 1, 1, 1, 1, 1, 9])) == [(0, 4), (4, 8), (8, 8), (8, 8)]


def test_few_numbers_and_tasks_stay_on_their_thread() -> None:
    seen: list[int] = []

    def work(first: int, last: int) -> None:
        seen.append(threading.get_ident())

    with threads_allowed(4):
        over_ranges(work, 10, threads.WORTH - 1)
        task = threading.Thread(target=over_ranges, args=(work, 10, threads.WORTH))
        task.start()
        task.join()
    over_ranges(work, 10, threads.WORTH)
    assert len(seen) == 3
    assert seen[0] == seen[2] == threading.get_ident()


def test_what_goes_wrong_on_another_thread_is_raised() -> None:
    def work(first: int, last: int) -> None:
        if first:
            raise ValueError("in the second range")

    with threads_allowed(2), pytest.raises(ValueError, match="in the second range"):
        over_ranges(work, 4, threads.WORTH)
