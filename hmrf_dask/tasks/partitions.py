"""Tasks over partitions: the survey before a fit, labels and sums of rows, exact Σ D."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile, Piece
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.kernels.distances import LINKED, UNDECIDED
from hmrf_dask.kernels.exact import exact_sum, exact_zero
from hmrf_dask.kernels.hamerly import RowBounds
from hmrf_dask.kernels.sums import Accumulator, Sums, joined
from hmrf_dask.rows.block import RowBlock, check_finite, fingerprint, survey
from hmrf_dask.rows.files import Blocks, BlockSource, lasting
from hmrf_dask.tasks.model import Model
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray, RowArray, Sized


@dataclass(frozen=True)
class Facts:
    """What one look at a partition tells; facts of partitions add up to those of the corpus."""

    n_rows: int
    minimum: RowArray  # by feature
    maximum: RowArray
    mass: IntArray  # exact sum, limbs
    largest_mass: float
    n_zero: int
    zero_rows: tuple[Any, ...]  # a few ids
    content: int
    order: int
    n_values: int
    nbytes: int
    largest_block: int  # bytes
    longest_block: int  # rows
    trouble: str | None


def survey_block(
    block: RowBlock,
    first_row: int,
    distortion: Distortion,
    has_ids: bool,
    fingerprinted: bool = True,
) -> Facts:
    """Return the facts of a partition; what is wrong with it comes back as words.

    Without a fingerprint `content` and `order` are 0.
    """
    found = survey(block)
    finite = np.isfinite(found.mass)
    trouble = None
    try:
        if not finite.all():
            check_finite(block)  # names the rows
        distortion.check(block)
    except InvalidInputError as error:
        trouble = str(error)
    zero = np.flatnonzero(found.mass == 0)
    content, order = fingerprint(block, first_row, with_ids=has_ids) if fingerprinted else (0, 0)
    return Facts(
        block.n_rows, found.minimum, found.maximum,
        exact_sum(np.where(finite, found.total, 0.0)), float(found.mass.max(initial=0.0)),
        len(zero), tuple(block.ids[zero[:5]].tolist()), content, order,
        len(block.values), block.nbytes, block.nbytes,
        block.n_rows, trouble,
    )  # fmt: skip


def add_facts(parts: list[Facts]) -> Facts:
    """Return the facts of several partitions together."""
    troubles = [one.trouble for one in parts if one.trouble is not None]
    return Facts(
        sum(one.n_rows for one in parts),
        np.minimum.reduce([one.minimum for one in parts]),
        np.maximum.reduce([one.maximum for one in parts]),
        np.sum([one.mass for one in parts], axis=0, dtype=np.int64),
        max(one.largest_mass for one in parts),
        sum(one.n_zero for one in parts),
        tuple(row for one in parts for row in one.zero_rows)[:5],
        sum(one.content for one in parts) % 2**64,
        sum(one.order for one in parts) % 2**64,
        sum(one.n_values for one in parts),
        sum(one.nbytes for one in parts),
        max(one.largest_block for one in parts),
        max(one.longest_block for one in parts),
        troubles[0] if troubles else None,
    )


def survey_slice(
    blocks: Blocks,
    first_rows: list[int],
    distortion: Distortion,
    has_ids: bool,
    fingerprinted: bool,
) -> Facts:
    """Return the facts of some partitions together, added as they come: they hold d numbers."""
    looks = (
        survey_block(block, first, distortion, has_ids, fingerprinted)
        for block, first in zip(blocks, first_rows, strict=True)
    )
    return reduce(lambda facts, look: add_facts([facts, look]), looks)


def find_ids(block: RowBlock, wanted: AnyArray) -> tuple[IntArray, IntArray]:
    """Return which of the sorted `wanted` ids a partition holds, and at which of its rows."""
    if not block.n_rows or not len(wanted):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    place = np.minimum(np.searchsorted(wanted, block.ids), len(wanted) - 1)
    rows = np.flatnonzero(wanted[place] == block.ids)
    return place[rows], rows


def describe_rows(block: RowBlock, rows: IntArray) -> tuple[AnyArray, IntArray]:
    """Return ids and numbers of entries of some rows."""
    return block.ids[rows], np.diff(block.indptr)[rows].astype(np.int64)


def first_rows(block: RowBlock, most: int = 8) -> RowBlock:
    """Return the first rows of a partition."""
    return block.take(np.arange(min(block.n_rows, most)))


class RowRange(NamedTuple):
    """Which rows a label file holds, and what it is called."""

    name: str  # "rows-00007" or "linked-00002"
    first_row: int
    n_rows: int


@dataclass(frozen=True)
class LabelledPartition:
    """Where the rows of a partition are, and what its label files are called."""

    name: str  # "rows-00007" or "linked-00002"
    first_row: int
    n_rows: int
    block: Any  # lazily, rows that are kept, or a `BlockSource`, read in every pass

    @property
    def rows(self) -> RowRange:
        """What its label files hold."""
        return RowRange(self.name, self.first_row, self.n_rows)

    @property
    def is_read(self) -> bool:
        """Whether the rows are read in every pass, and nothing of each is kept."""
        return isinstance(self.block, BlockSource)


@dataclass(frozen=True)
class Step(Sized):
    """What parts give back after their labels changed.

    Rows that moved are only noted where the driver has them: it adds them straight to its sums.
    """

    files: tuple[LabelsFile, ...]
    n_moved: int
    change: IntArray | None  # exact change of Σ D, limbs; None where it is measured anew
    sums: Sums | Accumulator  # change of the centroid sums


@dataclass(frozen=True)
class RowTerms(Sized):
    """What distances need of each row of a part; Dask would take a bare tuple for a task.

    Attributes
    ----------
    terms : what the distortion's `terms` gave
    bounds : what the last comparison of the rows may spare the next one
    """

    terms: Any
    bounds: RowBounds = field(default_factory=RowBounds, compare=False)


def row_terms(block: RowBlock, metric: tuple[Distortion, FloatArray]) -> RowTerms:
    """Return what distances need of each row; it changes with the weights alone."""
    distortion, weights = metric
    return RowTerms(distortion.terms(block, weights))


def offset_limbs(
    block: RowBlock, kept: RowTerms | None, metric: tuple[Distortion, FloatArray]
) -> IntArray:
    """Return the exact sum of the offsets of the rows of a part, of its linked ones too."""
    terms = (row_terms(block, metric) if kept is None else kept).terms
    return exact_sum(np.broadcast_to(terms.offset, block.n_rows))


def summand_bound(
    block: RowBlock, kept: RowTerms | None, metric: tuple[Distortion, FloatArray]
) -> float | None:
    """Return the bound on the entries of summands of the rows of a part."""
    distortion, weights = metric
    terms = distortion.terms(block, weights) if kept is None else kept.terms
    return distortion.summand_bound(terms, weights)


def terms_of(block: RowBlock, kept: RowTerms | None, model: Model) -> Any:
    """Return the terms of the rows of a part, made anew where none are kept."""
    return model.distortion.terms(block, model.weights) if kept is None else kept.terms


def assign(
    blocks: Blocks,
    kept: Sequence[RowTerms | None],
    model: Model,
    run: CheckpointStore,
    number: int,
    noted: bool,
    files: Sequence[LabelsFile],
) -> Step:
    """Give every row that is not linked its nearest centroid."""
    table, taken = model.table(), _Taken(model, run, number, lasting(blocks))
    before = run.read_group(files)
    for block, known, file, labels in zip(blocks, kept, files, before, strict=True):
        terms = terms_of(block, known, model)
        measured = not model.distortion.linear
        bounds = None if known is None else known.bounds
        after, change = model.distortion.nearest(
            block, terms, table, labels, measured=measured, bounds=bounds, drift=model.drift
        )
        taken.add(block, terms, file, labels, after, change)
    return taken.step(noted)


def relabel(
    blocks: Blocks,
    kept: Sequence[RowTerms | None],
    model: Model,
    run: CheckpointStore,
    number: int,
    noted: bool,
    files: Sequence[LabelsFile],
    *afters: LabelArray,
) -> Step:
    """Give the rows the labels that ICM or first variation found.

    These come as arguments of their own: Dask forgets a persisted value that is in a list.
    """
    taken = _Taken(model, run, number, lasting(blocks))
    before = run.read_group(files)
    for block, known, file, labels, after in zip(blocks, kept, files, before, afters, strict=True):
        change = _change(block, model, labels, after)
        taken.add(block, terms_of(block, known, model), file, labels, after, change)
    return taken.step(noted)


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

    def __init__(self, model: Model, run: CheckpointStore, number: int, lasting: bool) -> None:
        self.model, self.run, self.number = model, run, number
        self.labels: list[Piece] = []
        self.n_moved = 0
        self.change = exact_zero()
        self.sums = model.accumulator(lasting=lasting)

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
        self.labels.append((file.part, file.first_row, kept))
        self.n_moved += int(np.count_nonzero(labels != after))
        self.change += change
        model.distortion.add_moves(
            self.sums, block, terms, model.weights, labels, after, exponent=model.exponent
        )

    def step(self, noted: bool) -> Step:
        """Return what they give back, rows that moved only `noted` or added up."""
        sums = self.sums if noted else self.sums.finish()
        files = self.run.write_group(self.number, self.labels)
        return Step(files, self.n_moved, self.change, sums)


def merge_steps(steps: Sequence[Step]) -> Step:
    """Return several steps as one."""
    if len(steps) == 1:
        return steps[0]
    sums = joined([one.sums for one in steps])
    noted = any(isinstance(one.sums, Accumulator) for one in steps)
    changes = [one.change for one in steps if one.change is not None]
    return Step(
        tuple(file for one in steps for file in one.files),
        sum(one.n_moved for one in steps),
        add_limbs(changes) if changes else None,
        sums if noted else sums.finish(),
    )


def file_of(step: Step) -> LabelsFile:
    """Return the label file of a step over one part."""
    (file,) = step.files
    return file


def labels_of(run: CheckpointStore, file: LabelsFile) -> LabelArray:
    """Return the labels of a part as they are."""
    return run.read_labels(file)


def total(
    blocks: Blocks,
    kept: Sequence[RowTerms | None],
    model: Model,
    run: CheckpointStore,
    noted: bool,
    files: Sequence[LabelsFile],
) -> Sums | Accumulator:
    """Return the centroid sums of parts from nothing, rows only `noted` or added up."""
    sums = model.accumulator(lasting=lasting(blocks))
    for block, known, labels in zip(blocks, kept, run.read_group(files), strict=True):
        nowhere, terms = np.full(block.n_rows, -1, np.int32), terms_of(block, known, model)
        model.distortion.add_moves(
            sums, block, terms, model.weights, nowhere, labels, exponent=model.exponent
        )
    return sums if noted else sums.finish()


def measure(
    blocks: Blocks,
    kept: Sequence[RowTerms | None],
    model: Model,
    run: CheckpointStore,
    files: Sequence[LabelsFile],
) -> IntArray:
    """Return Σ D exactly, every row computed anew."""
    table, limbs = model.table(), [exact_zero()]
    for block, known, labels in zip(blocks, kept, run.read_group(files), strict=True):
        terms = terms_of(block, known, model)
        limbs.append(exact_sum(model.distortion.own_distances(block, terms, table, labels)))
    return add_limbs(limbs)


def add_limbs(parts: Sequence[IntArray]) -> IntArray:
    """Return the sum of exact sums."""
    return np.asarray(np.sum(parts, axis=0, dtype=np.int64))


def labels_at(labels: LabelArray, rows: IntArray) -> LabelArray:
    """Return the labels of some rows of a part."""
    return labels[rows]


def cut_labels(
    run: CheckpointStore, number: int, rows: RowRange, files: list[LabelsFile]
) -> LabelsFile:
    """Write the labels of a partition from files of another partitioning."""
    labels = run.read_label_range(files, rows.first_row, rows.first_row + rows.n_rows)
    return run.write_labels(number, rows.name, rows.first_row, np.array(labels))


def write_free(
    run: CheckpointStore, number: int, rows: RowRange, places: IntArray, labels: LabelArray
) -> LabelsFile:
    """Write the labels of a corpus partition, its linked rows marked."""
    own = np.array(labels[rows.first_row : rows.first_row + rows.n_rows])
    own[places] = LINKED
    return run.write_labels(number, rows.name, rows.first_row, own)


def write_linked(
    run: CheckpointStore, number: int, rows: RowRange, corpus_rows: IntArray, labels: LabelArray
) -> LabelsFile:
    """Write the labels of a linked partition."""
    own = np.array(labels[corpus_rows], np.int32)
    return run.write_labels(number, rows.name, rows.first_row, own)


def take_rows(block: RowBlock, places: IntArray) -> RowBlock:
    """Return some rows of a partition."""
    return block.take(places)


def gather_rows(pieces: list[RowBlock], order: IntArray) -> RowBlock:
    """Return the rows of several pieces, laid end to end, in another order."""
    return RowBlock.concatenate(pieces).take(order)


def first_labels(run: CheckpointStore, rows: RowRange, places: IntArray) -> LabelsFile:
    """Write the labels a fit begins with: linked rows marked as such, all others undecided."""
    labels = np.full(rows.n_rows, UNDECIDED, np.int32)
    labels[places] = LINKED
    return run.write_labels(0, rows.name, rows.first_row, labels)


def seed_sums(
    block: RowBlock,
    metric: tuple[Distortion, FloatArray],
    rows: IntArray,
    labels: LabelArray,
    shares: IntArray,
    n_clusters: int,
    exponent: int,
) -> Sums:
    """Return the sums of the seeds of a part by class, each as often as its share says."""
    distortion, weights = metric
    some = block.take(rows)
    terms = distortion.terms(some, weights)
    if (shares != 1).any():
        terms = terms._replace(factor=terms.factor * shares, extra=terms.extra * shares)
    nowhere = np.full(len(rows), -1, np.int32)
    return distortion.sum_moves(
        some, terms, weights, nowhere, labels, n_clusters, exponent=exponent
    )
