"""Tasks over partitions: the survey before a fit, labels and sums of rows, exact Σ D."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile, PartLabels
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.kernels.distances import LINKED, UNDECIDED
from hmrf_dask.kernels.exact import exact_sum, exact_zero
from hmrf_dask.kernels.hamerly import RowBounds
from hmrf_dask.kernels.sums import Accumulator, Sums, joined
from hmrf_dask.rows.block import RowBlock, check_finite, fingerprint, survey
from hmrf_dask.rows.files import Blocks, BlockSource, InTurn
from hmrf_dask.tasks.model import Model
from hmrf_dask.tasks.trimming import row_costs, settled
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray, RowArray, Sized

FEW = 5  # zero rows that are named


@dataclass(frozen=True)
class Facts:
    """What the survey of a partition finds; facts of partitions add up to the corpus's."""

    n_rows: int
    minimum: RowArray  # by feature
    maximum: RowArray
    mass: IntArray  # exact sum, limbs
    largest_mass: float
    n_zero: int
    zero_rows: tuple[tuple[int, Any], ...]  # the first few: row numbers and ids
    content: int
    order: int
    n_values: int
    nbytes: int
    largest_block: int  # bytes
    longest_block: int  # rows
    troubles: tuple[tuple[int, str], ...]  # of partitions, by their first rows


def survey_block(
    block: RowBlock,
    first_row: int,
    distortion: Distortion,
    has_ids: bool,
    fingerprinted: bool = True,
) -> Facts:
    """Return the facts of a partition; what is wrong with it comes back as text."""
    measured = survey(block)
    finite = np.isfinite(measured.mass)
    troubles: tuple[tuple[int, str], ...] = ()
    try:
        if not finite.all():
            check_finite(block)  # names the rows
        distortion.check(block)
    except InvalidInputError as error:
        troubles = ((first_row, str(error)),)
    zero = np.flatnonzero(measured.mass == 0)
    named = zip(zero[:FEW].tolist(), block.ids[zero[:FEW]].tolist(), strict=True)
    content, order = fingerprint(block, first_row, with_ids=has_ids) if fingerprinted else (0, 0)
    return Facts(
        n_rows=block.n_rows,
        minimum=measured.minimum,
        maximum=measured.maximum,
        mass=exact_sum(np.where(finite, measured.total, 0.0)),
        largest_mass=float(measured.mass.max(initial=0.0)),
        n_zero=len(zero),
        zero_rows=tuple((first_row + row, document) for row, document in named),
        content=content,
        order=order,
        n_values=len(block.values),
        nbytes=block.nbytes,
        largest_block=block.nbytes,
        longest_block=block.n_rows,
        troubles=troubles,
    )


def add_facts(partial: Sequence[Facts]) -> Facts:
    """Return the facts of several partitions together."""
    return Facts(
        n_rows=sum(facts.n_rows for facts in partial),
        minimum=np.minimum.reduce([facts.minimum for facts in partial]),
        maximum=np.maximum.reduce([facts.maximum for facts in partial]),
        mass=np.sum([facts.mass for facts in partial], axis=0, dtype=np.int64),
        largest_mass=max(facts.largest_mass for facts in partial),
        n_zero=sum(facts.n_zero for facts in partial),
        zero_rows=_first(row for facts in partial for row in facts.zero_rows)[:FEW],
        content=sum(facts.content for facts in partial) % 2**64,
        order=sum(facts.order for facts in partial) % 2**64,
        n_values=sum(facts.n_values for facts in partial),
        nbytes=sum(facts.nbytes for facts in partial),
        largest_block=max(facts.largest_block for facts in partial),
        longest_block=max(facts.longest_block for facts in partial),
        troubles=_first(trouble for facts in partial for trouble in facts.troubles)[:1],
    )


def _first(numbered: Iterable[tuple[int, Any]]) -> tuple[tuple[int, Any], ...]:
    """Return what belongs to rows in their order, however partitions are dealt out to tasks."""
    return tuple(sorted(numbered, key=lambda row: row[0]))


def survey_slice(
    blocks: Blocks,
    first_rows: list[int],
    distortion: Distortion,
    has_ids: bool,
    fingerprinted: bool,
) -> Facts:
    """Return the facts of some partitions together, added as they come: each holds d numbers."""
    surveys = (
        survey_block(block, first, distortion, has_ids, fingerprinted)
        for block, first in zip(blocks, first_rows, strict=True)
    )
    return reduce(lambda facts, more: add_facts([facts, more]), surveys)


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


@dataclass(frozen=True)
class RowRange:
    """Which rows a label file holds, and what it is called."""

    name: str  # "rows-00007" or "linked-00002"
    first_row: int
    n_rows: int


@dataclass(frozen=True)
class LabelledPartition(RowRange):
    """Where the rows of a partition are, and what its label files are called."""

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
    change: IntArray  # exact change of Σ D, limbs; 0 where it follows from the sums
    sums: Sums | Accumulator  # change of the centroid sums


@dataclass(frozen=True)
class RowTerms(Sized):
    """What distances need of each row of a part; Dask would take a bare tuple for a task."""

    terms: Any  # what the distortion's `terms` gave
    # what the last comparison of the rows may spare the next one
    bounds: RowBounds = field(default_factory=RowBounds, compare=False)


def row_terms(block: RowBlock, metric: tuple[Distortion, FloatArray]) -> RowTerms:
    """Return what distances need of each row; it changes with the weights alone."""
    distortion, weights = metric
    return RowTerms(distortion.terms(block, weights))


def offset_limbs(
    block: RowBlock, cached: RowTerms | None, metric: tuple[Distortion, FloatArray]
) -> IntArray:
    """Return the exact sum of the offsets of the rows of a partition, linked ones too."""
    terms = (row_terms(block, metric) if cached is None else cached).terms
    return exact_sum(np.broadcast_to(terms.offset, block.n_rows))


def summand_bound(
    block: RowBlock, cached: RowTerms | None, metric: tuple[Distortion, FloatArray]
) -> float | None:
    """Return the bound on the entries of summands of the rows of a partition."""
    distortion, weights = metric
    terms = distortion.terms(block, weights) if cached is None else cached.terms
    return distortion.summand_bound(terms, weights)


class Labelled(NamedTuple):
    """The rows of a partition, their terms if these are cached, its label file, its labels."""

    block: RowBlock
    terms: RowTerms | None
    file: LabelsFile
    labels: LabelArray


class TaskSlice(NamedTuple):
    """The partitions of one task: in the driver lazy values, in the task what they hold."""

    blocks: Any  # Blocks; of the driver lazy ones
    terms: Sequence[RowTerms | None]  # of their rows, None where these are not cached
    files: Sequence[LabelsFile]

    @property
    def lasting(self) -> bool:
        """Whether the blocks stay in memory whatever the task does: it may point into them."""
        return not isinstance(self.blocks, InTurn)

    def labelled(self, run: CheckpointStore) -> Iterator[Labelled]:
        """Yield the partitions with their labels; a block is held until the next one is there."""
        by_file = run.read_group(self.files)
        # unpacked: a zip keeps its first tuple, and the block in it, while others hold that tuple
        for block, terms, file, labels in zip(
            self.blocks, self.terms, self.files, by_file, strict=True
        ):
            yield Labelled(block, terms, file, labels)


class StoredLabels(NamedTuple):
    """Where the labels of some partitions are: in the driver, files may be lazy values."""

    run: CheckpointStore
    files: Sequence[LabelsFile]

    def read(self) -> LabelArray:
        """Return the labels of one partition after the other."""
        parts = self.run.read_group(self.files)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def moved(self, base: int, moves: tuple[IntArray, LabelArray]) -> LabelArray:
        """Return the labels with those of some rows replaced, of which number `base` is first."""
        after, (rows, labels) = np.array(self.read()), moves
        here = (rows >= base) & (rows < base + len(after))
        after[rows[here] - base] = labels[here]
        return after


@dataclass(frozen=True)
class LabelStore:
    """Where the tasks of a pass read labels and write new ones."""

    run: CheckpointStore
    number: int  # of the iteration whose labels are written
    in_process: bool  # whether the driver sees the rows: tasks only note those that move, for it


def terms_of(block: RowBlock, cached: RowTerms | None, model: Model) -> Any:
    """Return the terms of the rows of a partition, made now where none are cached."""
    return model.distortion.terms(block, model.weights) if cached is None else cached.terms


# Gives the new labels of a partition from its terms, and the exact change of Σ D.
Relabel = Callable[[Labelled, Any], tuple[LabelArray, IntArray]]


def _relabelled(partitions: TaskSlice, model: Model, store: LabelStore, new: Relabel) -> Step:
    """Return the step of partitions, moved rows only noted where the driver sees them."""
    sums = model.accumulator(lasting=partitions.lasting)
    labelled: list[PartLabels] = []
    n_moved, change = 0, exact_zero()
    for part in partitions.labelled(store.run):
        block, cached, file, before = part
        terms = terms_of(block, cached, model)
        after, part_change = new(part, terms)
        labelled.append((file.part, file.first_row, np.asarray(after, np.int32)))
        n_moved += int(np.count_nonzero(before != after))
        change += part_change
        model.distortion.add_moves(
            sums, block, terms, model.weights, before, after, exponent=model.exponent
        )
    files = store.run.write_group(store.number, labelled)
    return Step(files, n_moved, change, sums if store.in_process else sums.finish())


def assign(partitions: TaskSlice, model: Model, store: LabelStore) -> Step:
    """Give every row that is not linked its nearest centroid, or keep it out of that."""
    if model.limits is not None:
        return _relabelled(
            partitions, model, store,
            lambda part, terms: settled(part.block, terms, model, part.labels),
        )  # fmt: skip
    table, distortion = model.table(), model.distortion

    def nearest(part: Labelled, terms: Any) -> tuple[LabelArray, IntArray]:
        """Return the nearest centroids of a partition, and how Σ D changes."""
        bounds = None if part.terms is None else part.terms.bounds
        rows = (part.block, terms, table, part.labels)
        measured = not distortion.linear
        return distortion.nearest(*rows, measured=measured, bounds=bounds, drift=model.drift)

    return _relabelled(partitions, model, store, nearest)


def relabel(
    partitions: TaskSlice, model: Model, store: LabelStore, new_labels: Sequence[LabelArray]
) -> Step:
    """Give the rows the labels that ICM or first variation found, partition by partition."""
    labels = iter(new_labels)

    def taken(part: Labelled, _terms: Any) -> tuple[LabelArray, IntArray]:
        """Return the new labels of a partition, and how Σ D changes."""
        after = next(labels)
        return after, _change(part.block, model, part.labels, after)

    return _relabelled(partitions, model, store, taken)


def keep_labels(partitions: TaskSlice, model: Model, store: LabelStore) -> Step:
    """Leave all rows of some partitions as they are."""
    return _relabelled(partitions, model, store, lambda part, _: (part.labels, exact_zero()))


def _change(block: RowBlock, model: Model, labels: LabelArray, after: LabelArray) -> IntArray:
    """Return the exact change of Σ D of the rows that had a label; 0 where it follows from sums."""
    if model.linear:
        return exact_zero()
    moved = np.flatnonzero((labels != after) & (labels >= 0))
    rows, table = block.take(moved), model.table()
    terms = model.distortion.terms(rows, model.weights)
    there = exact_sum(model.distortion.own_distances(rows, terms, table, after[moved]))
    here = exact_sum(model.distortion.own_distances(rows, terms, table, labels[moved]))
    return there - here


def merge_steps(steps: Sequence[Step]) -> Step:
    """Return several steps as one."""
    if len(steps) == 1:
        return steps[0]
    sums = joined([step.sums for step in steps])
    noted = any(isinstance(step.sums, Accumulator) for step in steps)
    return Step(
        tuple(file for step in steps for file in step.files),
        sum(step.n_moved for step in steps),
        add_limbs([step.change for step in steps]),
        sums if noted else sums.finish(),
    )


def file_of(step: Step) -> LabelsFile:
    """Return the label file of a step over one partition."""
    (file,) = step.files
    return file


def total(partitions: TaskSlice, model: Model, store: LabelStore) -> Sums | Accumulator:
    """Return the centroid sums of partitions from nothing, rows noted or added up as in a step."""
    sums = model.accumulator(lasting=partitions.lasting)
    for block, cached, _, labels in partitions.labelled(store.run):
        nowhere, terms = np.full(block.n_rows, -1, np.int32), terms_of(block, cached, model)
        model.distortion.add_moves(
            sums, block, terms, model.weights, nowhere, labels, exponent=model.exponent
        )
    return sums if store.in_process else sums.finish()


def measure(partitions: TaskSlice, model: Model, run: CheckpointStore) -> IntArray:
    """Return Σ D exactly, the distance of every row computed; of rows that are out their limit."""
    limbs = [exact_zero()]
    for block, cached, _, labels in partitions.labelled(run):
        terms = terms_of(block, cached, model)
        limbs.append(exact_sum(row_costs(block, terms, model, labels)))
    return add_limbs(limbs)


def add_limbs(parts: Sequence[IntArray]) -> IntArray:
    """Return the sum of exact sums."""
    return np.asarray(np.sum(parts, axis=0, dtype=np.int64))


def pick(starts: IntArray, members: AnyArray, chosen: IntArray) -> tuple[IntArray, AnyArray]:
    """Return some lists of a CSR of lists.

    Examples
    --------
    >>> starts, members = np.array([0, 2, 3, 5]), np.array([10, 11, 20, 30, 31])
    >>> [numbers.tolist() for numbers in pick(starts, members, np.array([2, 0]))]
    [[0, 2, 4], [30, 31, 10, 11]]
    """
    lengths = np.diff(starts)[chosen]
    cuts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = np.repeat(starts[:-1][chosen] - cuts[:-1], lengths) + np.arange(cuts[-1])
    return cuts, members[places]


def labels_at(labels: LabelArray, rows: IntArray | slice) -> LabelArray:
    """Return the labels of some rows."""
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


def gather_rows(pieces: list[RowBlock], order: IntArray) -> RowBlock:
    """Return the rows of several pieces, laid end to end, in another order."""
    return RowBlock.concatenate(pieces).take(order)


def first_labels(run: CheckpointStore, rows: RowRange, places: IntArray) -> LabelsFile:
    """Write the labels a fit begins with: linked rows marked as such, all others undecided."""
    labels = np.full(rows.n_rows, UNDECIDED, np.int32)
    labels[places] = LINKED
    return run.write_labels(0, rows.name, rows.first_row, labels)


class LabelledSeeds(NamedTuple):
    """The seeds in a partition: their rows there, classes and whole shares."""

    rows: IntArray
    labels: LabelArray
    shares: IntArray


def seed_sums(
    block: RowBlock,
    metric: tuple[Distortion, FloatArray],
    seeds: LabelledSeeds,
    n_clusters: int,
    exponent: int,
) -> Sums:
    """Return the sums of the seeds of a partition by class, each as often as its share says."""
    distortion, weights = metric
    rows = block.take(seeds.rows)
    terms = distortion.terms(rows, weights)
    if (seeds.shares != 1).any():
        terms = terms._replace(factor=terms.factor * seeds.shares, extra=terms.extra * seeds.shares)
    nowhere = np.full(len(seeds.rows), -1, np.int32)
    return distortion.sum_moves(
        rows, terms, weights, nowhere, seeds.labels, n_clusters, exponent=exponent
    )
