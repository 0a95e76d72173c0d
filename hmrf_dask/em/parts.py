"""Task functions over parts: rows of corpus partitions or of linked partitions, with labels.

A corpus part labels its constrained rows `LINKED`: those have their label in a linked part. Every
function is pure: rows, model and label files in, label files and sums out. A task takes a group of
parts, one after the other, so that what it gives back does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hmrf_dask.dataflow import Lazy
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.em.model import Model
from hmrf_dask.kernels.exact import exact_sum, exact_zero
from hmrf_dask.kernels.sums import Sums, add_sums
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.runs import LabelsFile, RunStore
from hmrf_dask.types import FloatArray, IntArray, LabelArray


@dataclass(frozen=True)
class Part:
    """Where the rows of a part are, and what its label files are called."""

    name: str  # "rows-00007" or "linked-00002"
    first_row: int
    n_rows: int
    block: Lazy


@dataclass(frozen=True)
class Step:
    """What parts give back after their labels changed."""

    files: tuple[LabelsFile, ...]
    n_moved: int
    change: IntArray  # exact change of Σ D, limbs
    sums: Sums  # change of the centroid sums

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        return self.sums.__sizeof__() + self.change.nbytes + 512 * len(self.files)


@dataclass(frozen=True)
class KeptTerms:
    """What distances need of each row of a part; Dask would take a bare tuple for a task."""

    terms: Any

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        return 256 + int(sum(array.nbytes for array in self.terms))


def row_terms(block: RowBlock, metric: tuple[Distortion, FloatArray]) -> KeptTerms:
    """Return what distances need of each row; it changes with the weights alone."""
    distortion, weights = metric
    return KeptTerms(distortion.terms(block, weights))


def offset_limbs(kept: KeptTerms, n_rows: int) -> IntArray:
    """Return the exact sum of the offsets of the rows of a part, of its linked ones too."""
    return exact_sum(np.broadcast_to(kept.terms.offset, n_rows))


def _terms(block: RowBlock, kept: KeptTerms | None, model: Model) -> Any:
    return model.distortion.terms(block, model.weights) if kept is None else kept.terms


def assign(
    blocks: Sequence[RowBlock],
    kept: Sequence[KeptTerms | None],
    model: Model,
    run: RunStore,
    number: int,
    files: Sequence[LabelsFile],
) -> Step:
    """Give every row that is not linked its nearest centroid."""
    table, taken = model.table(), _Taken(model, run, number)
    for block, known, file in zip(blocks, kept, files, strict=True):
        labels = run.read_labels(file)
        terms = _terms(block, known, model)
        measured = not model.distortion.linear
        after, change = model.distortion.nearest(block, terms, table, labels, measured=measured)
        taken.add(block, terms, file, labels, after, change)
    return taken.step()


def relabel(
    blocks: Sequence[RowBlock],
    kept: Sequence[KeptTerms | None],
    model: Model,
    run: RunStore,
    number: int,
    files: Sequence[LabelsFile],
    *afters: LabelArray,
) -> Step:
    """Give the rows the labels that ICM or first variation found.

    These come as arguments of their own: Dask forgets a persisted value that is in a list.
    """
    taken = _Taken(model, run, number)
    for block, known, file, after in zip(blocks, kept, files, afters, strict=True):
        labels = run.read_labels(file)
        change = _change(block, model, labels, after)
        taken.add(block, _terms(block, known, model), file, labels, after, change)
    return taken.step()


def _change(block: RowBlock, model: Model, labels: LabelArray, after: LabelArray) -> IntArray:
    """Return the exact change of Σ D of the rows that had a label; nought where sums tell it."""
    if model.distortion.linear:
        return exact_zero()
    moved = np.flatnonzero((labels != after) & (labels >= 0))
    some, table = block.take(moved), model.table()
    terms = model.distortion.terms(some, model.weights)
    there = exact_sum(model.distortion.own_distances(some, terms, table, after[moved]))
    here = exact_sum(model.distortion.own_distances(some, terms, table, labels[moved]))
    return there - here


class _Taken:
    """The parts of a group that a task has dealt with so far."""

    def __init__(self, model: Model, run: RunStore, number: int) -> None:
        self.model, self.run, self.number = model, run, number
        self.files: list[LabelsFile] = []
        self.n_moved = 0
        self.change = exact_zero()
        self.sums = model.accumulator()

    def add(
        self,
        block: RowBlock,
        terms: Any,
        file: LabelsFile,
        labels: LabelArray,
        after: LabelArray,
        change: IntArray,
    ) -> None:
        """Keep the labels of one part, and what they change."""
        model, kept = self.model, np.asarray(after, np.int32)
        self.files.append(self.run.write_labels(self.number, file.part, file.first_row, kept))
        self.n_moved += int(np.count_nonzero(labels != after))
        self.change += change
        model.distortion.add_moves(
            self.sums, block, terms, model.weights, labels, after, model.exponent
        )

    def step(self) -> Step:
        """Return what they give back."""
        return Step(tuple(self.files), self.n_moved, self.change, self.sums.finish())


def merge_steps(steps: Sequence[Step]) -> Step:
    """Return several steps as one."""
    if len(steps) == 1:
        return steps[0]
    return Step(
        tuple(file for one in steps for file in one.files),
        sum(one.n_moved for one in steps),
        add_limbs([one.change for one in steps]),
        add_sums([one.sums for one in steps]),
    )


def file_of(step: Step) -> LabelsFile:
    """Return the label file of a step over one part."""
    (file,) = step.files
    return file


def labels_of(run: RunStore, file: LabelsFile) -> LabelArray:
    """Return the labels of a part as they are."""
    return run.read_labels(file)


def total(
    blocks: Sequence[RowBlock],
    kept: Sequence[KeptTerms | None],
    model: Model,
    run: RunStore,
    files: Sequence[LabelsFile],
) -> Sums:
    """Return the centroid sums of parts from nothing, under the model's weights."""
    sums = model.accumulator()
    for block, known, file in zip(blocks, kept, files, strict=True):
        nowhere = np.full(block.n_rows, -1, np.int32)
        terms, labels = _terms(block, known, model), run.read_labels(file)
        model.distortion.add_moves(
            sums, block, terms, model.weights, nowhere, labels, model.exponent
        )
    return sums.finish()


def measure(
    blocks: Sequence[RowBlock],
    kept: Sequence[KeptTerms | None],
    model: Model,
    run: RunStore,
    files: Sequence[LabelsFile],
) -> IntArray:
    """Return Σ D of parts exactly, every row computed anew."""
    table, limbs = model.table(), [exact_zero()]
    for block, known, file in zip(blocks, kept, files, strict=True):
        labels, terms = run.read_labels(file), _terms(block, known, model)
        limbs.append(exact_sum(model.distortion.own_distances(block, terms, table, labels)))
    return add_limbs(limbs)


def add_limbs(parts: Sequence[IntArray]) -> IntArray:
    """Return the sum of exact sums."""
    return np.asarray(np.sum(parts, axis=0, dtype=np.int64))
