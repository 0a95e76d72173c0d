"""Arrays of K × d on disk, for a driver that holds no more of them than the clusters of one shard.

They lie in files that no folder shows: what is not used goes from memory, and the file goes with
the last array that shows it, whatever ends the process.
"""

from __future__ import annotations

import math
import os
import tempfile
from typing import Any

import numpy as np

from hmrf_dask.errors import RunDirectoryError
from hmrf_dask.kernels.room import borrowed
from hmrf_dask.types import AnyArray
from hmrf_dask.workers import setting

PAGE = 2**16  # bytes; sizes are rounded up to multiples, so that sums and centroids share files


def shelf(shape: tuple[int, ...], dtype: Any) -> AnyArray:
    """Return an array of any contents in a file of its own, below `hmrf.scratch-directory`.

    While a fit runs its files are used again: pages that are there already need not be made.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = borrowed(_file_of, -(-size // PAGE) * PAGE)
    found: AnyArray = memory[:size].view(dtype).reshape(shape)
    return found


def _file_of(size: int) -> AnyArray:
    folder = setting("scratch-directory", None)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # to find a full disk now, not in a loop
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
            return np.memmap(file, np.uint8, "r+", shape=(size,))
    except OSError as error:
        raise RunDirectoryError(
            "hmrf.scratch-directory must be a folder with room for what the driver keeps of "
            f"centroids, {size / 2**20:,.0f} MiB at a time, got {folder or tempfile.gettempdir()} "
            f"({error}); set it to another one"
        ) from error


def noughts(shape: tuple[int, ...], dtype: Any, *, shelved: bool) -> AnyArray:
    """Return an array of noughts, `shelved` where there are shards."""
    if not shelved:
        return np.zeros(shape, dtype)
    out = shelf(shape, dtype)
    out[...] = 0
    return out
