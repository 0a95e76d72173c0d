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
from hmrf_dask.types import AnyArray
from hmrf_dask.workers import setting


def shelf(shape: tuple[int, ...], dtype: Any) -> AnyArray:
    """Return an array of noughts in a file of its own, below `hmrf.scratch-directory`."""
    folder = setting("scratch-directory", None)
    size = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)  # to find a full disk now, not in a loop
            return np.asarray(np.memmap(file, dtype, "r+", shape=shape))
    except OSError as error:
        raise RunDirectoryError(
            "hmrf.scratch-directory must be a folder with room for what the driver keeps of "
            f"centroids, {size / 2**20:,.0f} MiB at a time, got {folder or tempfile.gettempdir()} "
            f"({error}); set it to another one"
        ) from error


def noughts(shape: tuple[int, ...], dtype: Any, *, shelved: bool) -> AnyArray:
    """Return an array of noughts, `shelved` where there are shards."""
    return shelf(shape, dtype) if shelved else np.zeros(shape, dtype)
