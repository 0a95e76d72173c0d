"""Contingency tables of labels in memory, in dask arrays, or some of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hmrf_dask.corpus.chunks import delayed_chunks, is_dask_array
from hmrf_dask.dataflow import DaskFlow, Lazy, tree
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.measures.table import Contingency, merge, tabulate
from hmrf_dask.types import AnyArray, IntArray


def contingency(truth: object, labels: object) -> Contingency:
    """Return how many rows every class of `truth` has in every cluster of `labels`.

    Parameters
    ----------
    truth, labels : array-like or dask array, shape (n,)
        Integers or strings. Of dask arrays only counts leave the workers.
    """
    one, other = _line(truth, "truth"), _line(labels, "labels")
    if one.shape != other.shape:
        raise InvalidInputError(
            f"truth and labels must be of the same rows, got {one.shape[0]} and {other.shape[0]}; "
            "leave out the rows that only one of them has"
        )
    if not (is_dask_array(one) or is_dask_array(other)):
        return tabulate(one, other)
    flow = DaskFlow()
    parts = zip(*chunked([one, other]), strict=True)
    tables = [flow.lazy(tabulate, *part) for part in parts]
    found: Contingency = flow.compute([tree(flow, merge, tables)])[0]
    return found


def chunked(arrays: Sequence[Any]) -> list[list[Lazy]]:
    """Return arrays of one length in the chunks of the first dask array among them."""
    chunks = next(one.chunks for one in arrays if is_dask_array(one))
    bounds = np.cumsum([0, *chunks[0]])
    return [
        delayed_chunks(one.rechunk(chunks)) if is_dask_array(one) else np.split(one, bounds[1:-1])
        for one in arrays
    ]


def labels_at(labels: object, rows: IntArray) -> AnyArray:
    """Return the labels of some rows; of a dask array only these are gathered."""
    array = _line(labels, "labels")
    if len(rows) and not 0 <= rows.min() <= rows.max() < array.shape[0]:
        raise InvalidInputError(
            f"pairs must name rows 0 to {array.shape[0] - 1}, got {rows.min()} to {rows.max()}; "
            "give row numbers of these labels"
        )
    return np.asarray(array[rows])


def _line(values: object, name: str) -> Any:
    """Return a 1-D array with a length that is known."""
    array: Any = values if is_dask_array(values) else np.asarray(values)
    if array.ndim != 1:
        raise InvalidInputError(
            f"{name} must have one dimension, got shape {array.shape}; give one label a row"
        )
    if is_dask_array(array) and np.isnan(array.shape[0]):
        raise InvalidInputError(
            f"{name} must be a dask array whose chunk sizes are known; call compute_chunk_sizes()"
        )
    return array
