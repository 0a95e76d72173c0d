"""Numbers of one shard of clusters in files of the run, beside labels.

They are kept as labels are, as int32 words, so that commits name them, check and clean them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hmrf_dask.runs import LabelsFile, RunStore
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray

KEPT = "centroids-"


def words(values: AnyArray) -> LabelArray:
    """Return an array of numbers of 4 or 8 bytes as labels are kept."""
    return np.ascontiguousarray(values).reshape(-1).view(np.int32)


def write_numbers(run: RunStore, number: int, part: str, values: AnyArray) -> LabelsFile:
    """Write an array of numbers of 4 or 8 bytes."""
    return run.write_labels(number, part, 0, words(values))


def read_numbers(run: RunStore, file: LabelsFile, dtype: Any, n_columns: int) -> AnyArray:
    """Return the rows of an array that was written."""
    rows: AnyArray = run.read_labels(file).view(dtype).reshape(-1, n_columns)
    return rows


def write_kept(
    run: RunStore, number: int, centroids: FloatArray, shards: Sequence[range], kept: IntArray
) -> list[LabelsFile]:
    """Write centroids that do not follow from the sums, a file for each shard."""
    files = []
    for place, clusters in enumerate(shards):
        rows = kept[(kept >= clusters.start) & (kept < clusters.stop)]
        if len(rows):
            files.append(write_numbers(run, number, f"{KEPT}{place:05d}", centroids[rows]))
    return files


def take_kept(
    centroids: FloatArray, kept: IntArray, run: RunStore, files: Sequence[LabelsFile]
) -> None:
    """Put centroids that a commit kept in their places; files are in the order of shards."""
    done = 0
    for file in files:
        if file.part.startswith(KEPT):
            rows = read_numbers(run, file, np.float64, centroids.shape[1])
            centroids[kept[done : done + len(rows)]] = rows
            done += len(rows)
