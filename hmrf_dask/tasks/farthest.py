"""The rows that would save most as centroids of their own: they reseed empty clusters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Model
from hmrf_dask.types import AnyArray, FloatArray, IntArray


@dataclass(frozen=True)
class Far:
    """The rows of a part that would save most as centroids of their own, most first, ties by id."""

    distances: FloatArray
    ids: AnyArray
    rows: IntArray  # row numbers of the corpus
    most: int


def farthest(
    block: RowBlock,
    model: Model,
    counts: IntArray,
    run: CheckpointStore,
    file: LabelsFile,
    most: int,
) -> Far:
    """Return the farthest free rows of a part, those left out that are alone in their cluster."""
    labels = run.read_labels(file)
    terms = model.distortion.terms(block, model.weights)
    distances = model.distortion.own_distances(block, terms, model.table(), labels)
    distances = distances - model.distortion.least_distances(terms)
    free = np.flatnonzero((labels >= 0) & (distances > 0) & (counts[labels] > 1))
    return _first(Far(distances[free], block.ids[free], free + file.first_row, most))


def _first(far: Far) -> Far:
    order = np.lexsort((far.ids, -far.distances))[: far.most]
    return Far(far.distances[order], far.ids[order], far.rows[order], far.most)


def merge_farthest(lists: list[Far]) -> Far:
    """Return the farthest rows of several parts, as many as were asked of each."""
    return _first(
        Far(
            np.concatenate([one.distances for one in lists]),
            np.concatenate([one.ids for one in lists]),
            np.concatenate([one.rows for one in lists]),
            lists[0].most,
        )
    )


def move_rows(
    run: CheckpointStore, file: LabelsFile, rows: IntArray, targets: IntArray
) -> AnyArray:
    """Return the labels of a part with some rows of the corpus moved."""
    labels = np.array(run.read_labels(file))
    here = (rows >= file.first_row) & (rows < file.first_row + file.n_rows)
    labels[rows[here] - file.first_row] = targets[here]
    return labels
