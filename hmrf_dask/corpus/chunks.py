"""Chunks of dask arrays as tasks, and tasks as one graph."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import numpy as np
from dask.base import optimize as dask_optimize
from dask.delayed import Delayed, delayed
from dask.highlevelgraph import HighLevelGraph

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.rows.ids import id_slices


def is_dask_array(value: Any) -> bool:
    """Whether it is a dask array; where dask.array was never imported, 0.2 s, there is none."""
    module = sys.modules.get("dask.array")
    return module is not None and isinstance(value, module.Array)


def delayed_chunks(array: Any) -> list[Any]:
    """Return the chunks as tasks, nested as the array is.

    `to_delayed` does this for classic dask arrays only, not under array.query-planning.
    """
    (optimized,) = dask_optimize(array)
    layer = f"chunks-{uuid4().hex}"
    graph = HighLevelGraph.from_collections(layer, dict(optimized.__dask_graph__()), ())

    def wrap(keys: Any) -> Any:
        return (
            [wrap(key) for key in keys]
            if isinstance(keys, list)
            else Delayed(keys, graph, layer=layer)
        )

    chunks: list[Any] = wrap(optimized.__dask_keys__())
    return chunks


def merged_graph(parts: Sequence[Delayed]) -> dict[Any, Any]:
    """Return the graphs of all parts as one."""
    merged: dict[Any, Any] = {}
    for part in parts:
        merged.update(part.__dask_graph__())
    return merged


def lazy_array(
    parts: Sequence[Delayed],
    row_counts: Sequence[int],
    columns: tuple[int, ...],
    dtype: np.dtype[Any],
    meta: Any = None,
) -> Any:
    """Return tasks that each give an array as one dask array of these row chunks.

    Empty chunks are as good as any other. `meta` is an empty chunk where chunks are no ndarrays.
    """
    name = f"rows-{uuid4().hex}"
    keys = [(name, number, *(0 for _ in columns)) for number in range(len(parts))]
    named = [delayed(_same)(part, dask_key_name=key) for part, key in zip(parts, keys, strict=True)]
    graph = HighLevelGraph.from_collections(name, merged_graph(named), dependencies=())
    chunks = (tuple(row_counts), *((width,) for width in columns))
    from dask.array import Array

    return Array(graph, name, chunks, dtype=dtype, meta=meta)


def _same(value: Any) -> Any:
    return value


def ids_by_partition(ids: Any, row_counts: Sequence[int], offsets: Sequence[int]) -> list[Any]:
    """Return the ids of each partition: a task, or None where there are none."""
    if ids is None:
        return [None] * len(row_counts)
    if not is_dask_array(ids):
        return [delayed(part, traverse=False) for part in id_slices(ids, offsets)]
    known = not any(math.isnan(n) for n in ids.chunks[0])
    if ids.ndim == 1 and known and ids.shape[0] == offsets[-1]:
        ids = ids.rechunk((tuple(row_counts),))
    elif ids.ndim != 1 or known or ids.numblocks[0] != len(row_counts):
        raise InvalidInputError(
            f"ids must be a 1-D dask array of the same row chunks as the rows ({offsets[-1]} rows "
            f"in {len(row_counts)} chunks), got shape {ids.shape} in {ids.numblocks[0]} chunks; "
            "rechunk one like the other"
        )
    return delayed_chunks(ids)
