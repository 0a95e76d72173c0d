"""Memory of large arrays is used again while a fit runs, never while an array shows it."""

from __future__ import annotations

import gc
import pickle
import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from hmrf_dask.kernels.threads import LINE, STEP, buffer, buffers_kept

LARGE = (3, STEP // 8)


def address(array: Any) -> int:
    return int(array.ctypes.data)


@pytest.mark.parametrize("shape", [(0, 3), (5, 7), LARGE, (2, STEP // 4 + 1)])
@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.uint16])
def test_buffers_are_arrays_like_any_other(shape: tuple[int, ...], dtype: Any) -> None:
    array = buffer(shape, dtype)
    assert array.shape == shape
    assert array.dtype == dtype
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert address(array) % LINE == 0 or not array.size
    array[:] = 3
    assert np.array_equal(pickle.loads(pickle.dumps(array)), np.full(shape, 3, dtype))


def test_memory_is_used_again_for_an_array_of_about_the_size() -> None:
    with buffers_kept():
        first = buffer(LARGE, np.int64)
        there = address(first)
        assert address(buffer(LARGE, np.int64)) != there
        del first
        gc.collect()
        again = [buffer((3, STEP // 8 - 1), np.float64) for _ in range(3)]
        assert there in [address(one) for one in again]
        assert len({address(one) for one in again}) == 3


def test_memory_stays_as_long_as_a_view_shows_it() -> None:
    with buffers_kept():
        whole = buffer(LARGE, np.int64)
        part = whole.reshape(-1)[5:9].view(np.float64)
        whole[:] = 7
        del whole
        gc.collect()
        others = [buffer(LARGE, np.int64) for _ in range(4)]
        for one in others:
            one[:] = 8
        assert (part.view(np.int64) == 7).all()


@pytest.mark.parametrize("shared", [False, True])
def test_nothing_is_kept_when_no_fit_runs(shared: bool) -> None:
    from hmrf_dask.kernels import threads as module

    kept = module._shared if shared else module._plain
    with module.shared_buffers() if shared else nullcontext(), buffers_kept():
        with buffers_kept():
            del_me = buffer(LARGE, np.int64)
            del del_me
            gc.collect()
        assert any(kept.free.values())
    assert not any(kept.free.values())
    late = buffer(LARGE, np.int64)
    del late
    gc.collect()
    assert not any(kept.free.values())


def test_threads_never_share_memory() -> None:
    wrong: list[int] = []
    held: set[int] = set()

    def work(number: int) -> None:
        for _ in range(300):
            arrays = [buffer((1, STEP // 8), np.int64) for _ in range(3)]
            for one in arrays:
                if address(one) in held:
                    wrong.append(number)
                held.add(address(one))
            held.difference_update(address(one) for one in arrays)
            del one, arrays

    with buffers_kept():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
