"""Task functions over one part: rows of a corpus partition or a linked partition, with labels.

A corpus part labels its constrained rows `LINKED`: those have their label in a linked part. Every
function is pure: rows, model and label file in, label file and small sums out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hmrf_dask.dataflow import Dataflow, Lazy
from hmrf_dask.em.model import Model
from hmrf_dask.kernels.exact import exact_sum
from hmrf_dask.kernels.sums import Sums
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.runs import LabelsFile, RunStore
from hmrf_dask.types import IntArray, LabelArray


@dataclass(frozen=True)
class Part:
    """Where the rows of a part are, and what its label files are called."""

    name: str  # "rows-00007" or "linked-00002"
    first_row: int
    n_rows: int
    block: Lazy


@dataclass(frozen=True)
class PartStep:
    """What one part gives back after its labels changed."""

    file: LabelsFile
    n_moved: int
    change: IntArray  # exact change of Σ D, limbs
    sums: Sums  # change of the centroid sums

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        return self.sums.__sizeof__() + self.change.nbytes + 512


@dataclass(frozen=True)
class Brief:
    """A `PartStep` without its sums: what the driver needs of every part."""

    file: LabelsFile
    n_moved: int
    change: IntArray


def assign(
    block: RowBlock,
    model: Model,
    table: Any,
    run: RunStore,
    number: int,
    part: str,
    before: LabelsFile,
) -> PartStep:
    """Give every row that is not linked its nearest centroid."""
    labels = run.read_labels(before)
    terms = model.distortion.terms(block, model.weights)
    after, change = model.distortion.nearest(block, terms, table, labels)
    return _step(block, model, terms, run, number, part, before, labels, after, change)


def relabel(
    block: RowBlock,
    model: Model,
    table: Any,
    run: RunStore,
    number: int,
    part: str,
    before: LabelsFile,
    after: LabelArray,
) -> PartStep:
    """Give the rows the labels that ICM or first variation found."""
    labels = run.read_labels(before)
    terms = model.distortion.terms(block, model.weights)
    moved = np.flatnonzero((labels != after) & (labels >= 0))
    some = block.take(moved)
    few = model.distortion.terms(some, model.weights)
    change = exact_sum(model.distortion.own_distances(some, few, table, after[moved])) - exact_sum(
        model.distortion.own_distances(some, few, table, labels[moved])
    )
    return _step(block, model, terms, run, number, part, before, labels, after, change)


def _step(
    block: RowBlock,
    model: Model,
    terms: Any,
    run: RunStore,
    number: int,
    part: str,
    before: LabelsFile,
    labels: LabelArray,
    after: LabelArray,
    change: IntArray,
) -> PartStep:
    file = run.write_labels(number, part, before.first_row, np.asarray(after, np.int32))
    sums = model.distortion.sum_moves(
        block, terms, model.weights, labels, after, model.n_clusters, model.exponent
    )
    return PartStep(file, int((labels != after).sum()), change, sums)


def labels_of(run: RunStore, file: LabelsFile) -> LabelArray:
    """Return the labels of a part as they are."""
    return run.read_labels(file)


def brief(step: PartStep) -> Brief:
    """Return what the driver needs of a step."""
    return Brief(step.file, step.n_moved, step.change)


def sums_of(step: PartStep) -> Sums:
    """Return the centroid sums of a step."""
    return step.sums


def total(block: RowBlock, model: Model, run: RunStore, file: LabelsFile) -> Sums:
    """Return the centroid sums of a part from nothing, under the model's weights."""
    labels = run.read_labels(file)
    terms = model.distortion.terms(block, model.weights)
    nowhere = np.full(block.n_rows, -1, np.int32)
    return model.distortion.sum_moves(
        block, terms, model.weights, nowhere, labels, model.n_clusters, model.exponent
    )


def measure(block: RowBlock, model: Model, table: Any, run: RunStore, file: LabelsFile) -> IntArray:
    """Return Σ D of a part exactly, every row computed anew."""
    labels = run.read_labels(file)
    terms = model.distortion.terms(block, model.weights)
    return exact_sum(model.distortion.own_distances(block, terms, table, labels))


def add_limbs(parts: list[IntArray]) -> IntArray:
    """Return the sum of exact sums."""
    return np.asarray(np.sum(parts, axis=0, dtype=np.int64))


@dataclass(frozen=True)
class Shared:
    """A model and what is derived from it, as task results."""

    model: Lazy
    table: Lazy


def share_model(flow: Dataflow, model: Model) -> Shared:
    """Send a model out once; its table is computed where it is needed."""
    shared = flow.share(model)
    return Shared(shared, flow.lazy(Model.table, shared))
