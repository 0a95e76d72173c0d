"""The table of a clustering against known classes, of labels in memory or in dask arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hmrf_dask.corpus.partitioned import delayed_chunks, is_dask_array
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.flow.dataflow import DaskFlow, Lazy, tree
from hmrf_dask.types import AnyArray, IntArray, Sized


@dataclass(frozen=True)
class Contingency(Sized):
    """How many rows every class has in every cluster; only cells that have some are kept.

    Examples
    --------
    >>> table = contingency(["a", "a", "b"], [4, 4, 9])
    >>> table.n_rows, table.class_sizes.tolist(), table.cluster_sizes.tolist()
    (3, [2, 1], [2, 1])
    """

    classes: AnyArray  # the values that occur, sorted
    clusters: AnyArray
    rows: IntArray  # the place in `classes` of each cell
    columns: IntArray  # in `clusters`
    counts: IntArray  # the rows of each cell

    @property
    def n_rows(self) -> int:
        """How many rows were counted."""
        return int(self.counts.sum())

    @property
    def class_sizes(self) -> IntArray:
        """The rows of each class.

        Examples
        --------
        >>> contingency(["a", "a", "b"], [4, 4, 9]).class_sizes.tolist()
        [2, 1]
        """
        return _added(self.rows, self.counts, len(self.classes))

    @property
    def cluster_sizes(self) -> IntArray:
        """The rows of each cluster.

        Examples
        --------
        >>> contingency(["a", "a", "b"], [4, 9, 9]).cluster_sizes.tolist()
        [1, 2]
        """
        return _added(self.columns, self.counts, len(self.clusters))

    def to_array(self) -> IntArray:
        """Return the whole table, shape (n_classes, n_clusters).

        Examples
        --------
        >>> contingency(["a", "a", "b"], [4, 4, 9]).to_array().tolist()
        [[2, 0], [0, 1]]
        """
        out = np.zeros((len(self.classes), len(self.clusters)), np.int64)
        out[self.rows, self.columns] = self.counts
        return out


def _added(places: IntArray, counts: IntArray, length: int) -> IntArray:
    out = np.zeros(length, np.int64)
    np.add.at(out, places, counts)
    return out


def tabulate(truth: AnyArray, labels: AnyArray) -> Contingency:
    """Return the table of rows that are here.

    Examples
    --------
    >>> tabulate(np.array(["a", "b", "b"]), np.array([0, 0, 1])).to_array().tolist()
    [[1, 0], [1, 1]]
    """
    classes, rows = _values(truth, "truth")
    clusters, columns = _values(labels, "labels")
    return _folded(classes, clusters, rows, columns, np.ones(len(rows), np.int64))


def _values(labels: AnyArray, name: str) -> tuple[AnyArray, IntArray]:
    """Return the values that occur, and where in them each row's is."""
    missing = labels.dtype.kind == "f" and bool(np.isnan(labels).any())
    if labels.dtype.kind == "O":
        missing = any(label is None or label != label for label in labels)
    if missing:
        raise InvalidInputError(f"{name} must not be missing, got NaN or None; leave them out")
    values, places = np.unique(labels, return_inverse=True)
    return values, places


def merge(tables: Sequence[Contingency]) -> Contingency:
    """Return the table of the rows of several.

    Examples
    --------
    >>> merge([contingency(["a"], [4]), contingency(["b", "a"], [4, 9])]).to_array().tolist()
    [[1, 1], [1, 0]]
    """
    classes, rows = _joined([table.classes for table in tables], [table.rows for table in tables])
    clusters, columns = _joined(
        [table.clusters for table in tables], [table.columns for table in tables]
    )
    counts = np.concatenate([table.counts for table in tables])
    return _folded(classes, clusters, rows, columns, counts)


def _joined(values: Sequence[AnyArray], places: Sequence[IntArray]) -> tuple[AnyArray, IntArray]:
    """Return the values of several lists, each once, and where in it their places are now."""
    joined, own = np.unique(np.concatenate(values), return_inverse=True)
    starts = np.cumsum([0, *(len(listed) for listed in values[:-1])])
    shifted = [listed + start for listed, start in zip(places, starts, strict=True)]
    return joined, own[np.concatenate(shifted)]


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

    Examples
    --------
    >>> contingency(["a", "a", "b"], [4, 9, 9]).to_array().tolist()
    [[1, 1], [0, 1]]
    """
    classes, clusters = _line(truth, "truth"), _line(labels, "labels")
    if classes.shape != clusters.shape:
        raise InvalidInputError(
            f"truth and labels must be of the same rows, got {classes.shape[0]} and "
            f"{clusters.shape[0]}; leave out the rows that only one of them has"
        )
    if not (is_dask_array(classes) or is_dask_array(clusters)):
        return tabulate(classes, clusters)
    flow = DaskFlow()
    parts = zip(*chunked([classes, clusters]), strict=True)
    tables = [flow.lazy(tabulate, *part) for part in parts]
    table: Contingency = flow.compute([tree(flow, merge, tables)])[0]
    return table


def chunked(arrays: Sequence[Any]) -> list[list[Lazy]]:
    """Return arrays of one length in the chunks of the first dask array among them."""
    chunks = next(array.chunks for array in arrays if is_dask_array(array))
    bounds = np.cumsum([0, *chunks[0]])
    return [
        delayed_chunks(array.rechunk(chunks))
        if is_dask_array(array)
        else np.split(array, bounds[1:-1])
        for array in arrays
    ]


def labels_at(labels: object, rows: IntArray) -> AnyArray:
    """Return the labels of these rows; of a dask array only they are gathered.

    Examples
    --------
    >>> labels_at([5, 6, 7], np.array([2, 0])).tolist()
    [7, 5]
    """
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
