"""The table of a clustering against known classes, of labels in memory or in dask arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hmrf_dask.corpus.partitioned import delayed_chunks, is_dask_array
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.flow.dataflow import DaskFlow, Lazy, tree
from hmrf_dask.types import AnyArray, IntArray


@dataclass(frozen=True)
class Contingency:
    """How many rows every class has in every cluster; only cells that have some are held.

    Attributes
    ----------
    classes, clusters : ndarrays
        The values that occur, sorted.
    rows, columns : int64 arrays
        Places in `classes` and `clusters` of each cell.
    counts : int64 array
        The rows of each cell.
    """

    classes: AnyArray
    clusters: AnyArray
    rows: IntArray
    columns: IntArray
    counts: IntArray

    @property
    def n_rows(self) -> int:
        """How many rows were counted."""
        return int(self.counts.sum())

    @property
    def class_sizes(self) -> IntArray:
        """The rows of each class."""
        return _added(self.rows, self.counts, len(self.classes))

    @property
    def cluster_sizes(self) -> IntArray:
        """The rows of each cluster."""
        return _added(self.columns, self.counts, len(self.clusters))

    def to_array(self) -> IntArray:
        """Return the whole table, shape (n_classes, n_clusters)."""
        out = np.zeros((len(self.classes), len(self.clusters)), np.int64)
        out[self.rows, self.columns] = self.counts
        return out

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        arrays = (self.classes, self.clusters, self.rows, self.columns, self.counts)
        return sum(array.nbytes for array in arrays) + 128


def _added(places: IntArray, counts: IntArray, length: int) -> IntArray:
    out = np.zeros(length, np.int64)
    np.add.at(out, places, counts)
    return out


def tabulate(truth: AnyArray, labels: AnyArray) -> Contingency:
    """Return the table of rows that are here."""
    classes, rows = _values(truth, "truth")
    clusters, columns = _values(labels, "labels")
    return _folded(classes, clusters, rows, columns, np.ones(len(rows), np.int64))


def _values(labels: AnyArray, name: str) -> tuple[AnyArray, IntArray]:
    """Return the values that occur, and where in them each row's is."""
    missing = labels.dtype.kind == "f" and bool(np.isnan(labels).any())
    if labels.dtype.kind == "O":
        missing = any(one is None or one != one for one in labels)
    if missing:
        raise InvalidInputError(f"{name} must not be missing, got NaN or None; leave them out")
    values, places = np.unique(labels, return_inverse=True)
    return values, places


def merge(tables: Sequence[Contingency]) -> Contingency:
    """Return the table of the rows of several."""
    classes, rows = _joined([one.classes for one in tables], [one.rows for one in tables])
    clusters, columns = _joined([one.clusters for one in tables], [one.columns for one in tables])
    counts = np.concatenate([one.counts for one in tables])
    return _folded(classes, clusters, rows, columns, counts)


def _joined(values: Sequence[AnyArray], places: Sequence[IntArray]) -> tuple[AnyArray, IntArray]:
    """Return the values of several lists, each once, and where in it their places are now."""
    found, own = np.unique(np.concatenate(values), return_inverse=True)
    starts = np.cumsum([0, *(len(some) for some in values[:-1])])
    moved = [some + start for some, start in zip(places, starts, strict=True)]
    return found, own[np.concatenate(moved)]


def _folded(
    classes: AnyArray, clusters: AnyArray, rows: IntArray, columns: IntArray, counts: IntArray
) -> Contingency:
    """Return the table of cells that may come more than once."""
    width = max(len(clusters), 1)
    places, own = np.unique(rows * np.int64(width) + columns, return_inverse=True)
    total = _added(own, counts, len(places))
    return Contingency(classes, clusters, places // width, places % width, total)


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
