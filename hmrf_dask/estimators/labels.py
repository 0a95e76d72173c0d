"""Labels of some rows, as `fit` gets them in `y`, brought into the form of seeds."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmrf_dask.corpus.chunks import delayed_chunks, is_dask_array
from hmrf_dask.distortions import Distortion
from hmrf_dask.distortions.own import OwnDistortion
from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.fit.seeds import CERTAIN, Seeds
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.redaction import shortened
from hmrf_dask.rows.canonical import sound_csr
from hmrf_dask.types import AnyArray, IntArray

UNLABELLED = -1
ROUNDING = 1e-6  # by how much probabilities of a row may miss the sum of 1
Entries = tuple[int, IntArray, AnyArray, AnyArray]  # number of rows; row, class and share of each


def given_seeds(
    y: Any, n_rows: int, n_clusters: int, distortion: Distortion, *, held: bool
) -> Seeds:
    """Return the seeds that `y` means; refuse what cannot be one, naming rows.

    Parameters
    ----------
    y : array-like or dask array, shape (n_rows,) or (n_rows, n_clusters), or None
        Classes, -1 where unlabelled; or the probability of each class, nought where unlabelled.
    n_rows, n_clusters : int
    distortion : Distortion
    held : bool
        Whether seeds keep their labels.
    """
    if y is None:
        nothing = np.zeros(0, np.int64)
        return Seeds(nothing, nothing.astype(np.int32), nothing, held)
    found, rows, labels, shares = _entries(y, n_clusters)
    if found != n_rows:
        raise InvalidInputError(
            f"y must have one entry for each of the {n_rows} rows of X, got {found}; use -1 for "
            "rows without a label"
        )
    _check_labels(rows, labels, n_clusters)
    units = _units(rows, shares)
    some = units > 0
    seeds = Seeds(rows[some], labels[some].astype(np.int32), units[some], held)
    if seeds.soft and held:
        raise InvalidInputError(
            "seeds that keep their labels must be certain, got probabilities between 0 and 1; use "
            "SeededKMeans, or give one class for each seed"
        )
    if seeds.soft and isinstance(distortion, OwnDistortion):
        raise ConfigurationError(
            f"soft seeds must go with a built-in distortion, got {distortion.name!r}, whose rows "
            "cannot be weighed; give one class for each seed"
        )
    return seeds


def _entries(y: Any, n_clusters: int) -> Entries:
    """Return the labelled rows of all of `y`; of a dask array they alone reach this process."""
    if not is_dask_array(y):
        return entries_of(y, n_clusters)
    if y.ndim > 1:
        if y.ndim > 2 or y.shape[1] != n_clusters:
            raise _not_labels(y.shape, y.dtype, n_clusters)
        y = y.rechunk({1: -1})
    chunks = [one[0] if isinstance(one, list) else one for one in delayed_chunks(y)]
    flow = DaskFlow()
    parts = flow.compute([flow.lazy(entries_of, one, n_clusters) for one in chunks])
    offsets = np.cumsum([0, *(part[0] for part in parts)])
    rows = [part[1] + offset for part, offset in zip(parts, offsets, strict=False)]
    labels, shares = ([part[place] for part in parts] for place in (2, 3))
    return (
        int(offsets[-1]), np.concatenate(rows), np.concatenate(labels), np.concatenate(shares),
    )  # fmt: skip


def entries_of(y: Any, n_clusters: int) -> Entries:
    """Return number of rows, and row, class and probability of what is labelled, by row."""
    if isinstance(y, np.ma.MaskedArray):
        raise InvalidInputError("y must not be masked, got a masked array; use -1 for no label")
    sparse = hasattr(y, "tocsr")
    if isinstance(y, list | tuple) and any(isinstance(one, bool | np.bool_) for one in y):
        raise InvalidInputError("y must hold numbers of classes, got true or false among them")
    try:
        array = sound_csr(y) if sparse else np.asarray(y)
    except InvalidInputError:
        raise
    except ValueError as error:
        raise InvalidInputError(f"y must be a table of numbers, got {shortened(y)}") from error
    if array.ndim == 2 and array.shape[1] == n_clusters and array.dtype.kind in "biuf":
        rows, classes = array.nonzero()
        order = np.lexsort((classes, rows))
        rows, classes = rows[order].astype(np.int64), classes[order].astype(np.int64)
        shares = np.asarray(array[rows, classes], np.float64).ravel()
        return array.shape[0], rows, classes, shares
    whole = array.dtype.kind == "f" and not sparse and _is_whole(array)
    if array.ndim != 1 or not (array.dtype.kind in "iu" or whole):
        raise _not_labels(array.shape, array.dtype, n_clusters)
    rows = np.flatnonzero(array != UNLABELLED)
    return len(array), rows, array[rows].astype(np.int64), np.ones(len(rows))


def _is_whole(array: AnyArray) -> bool:
    return bool((np.isfinite(array) & (array == np.floor(array))).all())


def _not_labels(shape: tuple[float, ...], dtype: Any, n_clusters: int) -> InvalidInputError:
    unknown = "" if np.dtype(dtype).kind in "biuf" else "Unknown label type: "
    return InvalidInputError(  # what scikit-learn says of labels that are no numbers comes first
        f"{unknown}y must hold a class from 0 to {n_clusters - 1} or -1 for each row, or a "
        f"probability for each row and class, shape (n_samples, {n_clusters}), got an array of "
        f"shape {shape} and type {dtype}"
    )


def _check_labels(rows: IntArray, labels: AnyArray, n_clusters: int) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= n_clusters))
    if len(wrong):
        told = ", ".join(f"{labels[one]} (row {rows[one]})" for one in wrong[:5])
        raise InvalidInputError(
            f"y must hold classes from 0 to {n_clusters - 1} for n_clusters={n_clusters}, or -1 "
            f"where unlabelled, got {told}{' and more' if len(wrong) > 5 else ''}; number the "
            "classes from 0, or ask for more clusters"
        )


def _units(rows: IntArray, shares: AnyArray) -> IntArray:
    """Return probabilities in units of a share; refuse rows where they are none."""
    known, starts = np.unique(rows, return_index=True)
    sums = np.add.reduceat(shares, starts) if len(rows) else np.zeros(0)
    lowest = np.minimum.reduceat(shares, starts) if len(rows) else np.zeros(0)
    good = (np.abs(sums - 1.0) <= ROUNDING) & (lowest >= 0)
    wrong = np.flatnonzero(~good)  # NaN is not good either
    if len(wrong):
        raise InvalidInputError(
            f"probabilities of a row must be 0 or more and sum to 1, or all be 0 where it is "
            f"unlabelled, got the sum {sums[wrong[0]]:.9g} and the lowest {lowest[wrong[0]]:g} in "
            f"row {known[wrong[0]]} ({len(wrong)} such rows)"
        )
    return np.asarray(np.rint(shares * CERTAIN), np.int64)
