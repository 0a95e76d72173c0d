"""Task functions of linked rows before ICM: their integer costs, and the gains of their moves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile
from hmrf_dask.kernels.cost_rows import (
    make_ties,
    quick_costs,
    set_gains,
    take_measured,
)
from hmrf_dask.kernels.distances import Table
from hmrf_dask.linked.layout import IcmProblem
from hmrf_dask.linked.scale import Scale, cost_rows
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Model
from hmrf_dask.tasks.partitions import RowTerms
from hmrf_dask.types import FloatArray, IntArray, LabelArray

COST_ROWS = 8192  # rows whose float64 distances are held at a time
FEW_ROWS = 16  # that are measured cluster by cluster
# Where this share of points can move as groups, cost rows are in single precision: a group is held
# back by the slack of all its rows, and nothing measures it in float64.
GROUPED = 1 / 8


@dataclass(frozen=True)
class PricedPairs:
    """The pairs of an ICM problem, priced, and their adjacency for ICM."""

    penalty: FloatArray
    start: IntArray
    neighbour: LabelArray
    signed: IntArray

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        return (
            self.penalty.nbytes
            + self.start.nbytes
            + self.neighbour.nbytes
            + self.signed.nbytes
            + 128
        )


@dataclass(frozen=True)
class LinkedCosts:
    """The costs of a linked partition's rows before ICM.

    Attributes
    ----------
    costs : int32 cost rows
    gains : what each row gains by its best move; None where that is not known yet
    """

    costs: LabelArray
    gains: IntArray | None = None

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        return self.costs.nbytes + (0 if self.gains is None else self.gains.nbytes) + 128


def exact_costs(block: RowBlock, model: Model, scale: Scale) -> LabelArray:
    """Return the integer cost rows of a linked partition from float64 distances."""
    costs = np.empty((block.n_rows, model.n_clusters), np.int32)
    _fill_exactly(costs, np.arange(block.n_rows), block, model, scale)
    return costs


def _fill_exactly(
    costs: LabelArray, rows: IntArray, block: RowBlock, model: Model, scale: Scale
) -> None:
    """Write the cost rows of some rows from float64 distances, a few rows at a time."""
    table, n_clusters = model.table(), model.n_clusters
    each = 1 if len(rows) > FEW_ROWS else n_clusters  # all distances at once turn the whole table
    for first in range(0, len(rows), COST_ROWS):
        chosen = rows[first : first + COST_ROWS]
        some = block.take(np.repeat(chosen, each))
        terms = model.distortion.terms(some, model.weights)
        if each == 1:
            distances = model.distortion.distances(some, terms, table)
        else:
            labels = np.tile(np.arange(n_clusters, dtype=np.int32), len(chosen))
            own = model.distortion.own_distances(some, terms, table, labels)
            distances = own.reshape(-1, n_clusters)
        costs[chosen] = cost_rows(distances, scale)


def exact_linked_costs(block: RowBlock, model: Model, scale: Scale) -> LinkedCosts:
    """Return the cost rows of a linked partition whose tables or messages see every cost."""
    return LinkedCosts(exact_costs(block, model, scale))


def linked_costs(
    block: RowBlock,
    kept: RowTerms | None,
    model: Model,
    scale: Scale,
    problem: IcmProblem,
    pairs: PricedPairs,
    first: int,
    run: CheckpointStore,
    files: list[LabelsFile],
) -> LinkedCosts:
    """Return cost rows, and the gains of their points, in low precision wherever that decides.

    Parameters
    ----------
    kept : the terms of the rows, None where they are not kept
    first : point of the first row
    files : labels of all partitions of the problem
    """
    table = model.table()
    if not isinstance(table, Table):
        return LinkedCosts(exact_costs(block, model, scale))
    labels = problem_labels(run, files)
    undecided = bool((labels < 0).any())
    if undecided:
        labels = np.full(len(labels), -1, np.int32)
    terms = model.distortion.terms(block, model.weights) if kept is None else kept.terms
    ties = make_ties(first, labels, scale.shift, pairs.start, pairs.neighbour, pairs.signed)
    single = in_single(problem, model)
    quick = quick_costs(
        block.arrays, terms, table, ties, scale.step, scale.tolerance, single=single
    )
    if len(quick.near_row):
        near = block.take(quick.near_row)
        few, clusters = model.distortion.terms(near, model.weights), quick.near_cluster
        distances = model.distortion.own_distances(near, few, table, clusters.astype(np.int32))
        take_measured(quick, distances, scale.step, ties)
    coarse = np.flatnonzero(quick.coarse)
    _fill_exactly(quick.costs, coarse, block, model, scale)
    if undecided:
        return LinkedCosts(quick.costs)
    set_gains(quick.costs, coarse, ties, quick.gains)
    return LinkedCosts(quick.costs, quick.gains)


def in_single(problem: IcmProblem, model: Model) -> bool:
    """Return whether a problem needs cost rows in single precision even if half is faster."""
    return problem.in_groups >= GROUPED or not model.distortion.unit_rows


def problem_labels(run: CheckpointStore, files: list[LabelsFile]) -> LabelArray:
    """Return the labels of an ICM problem's points from the files of its partitions."""
    if len(files) == 1:
        return run.read_labels(files[0])
    return np.concatenate([run.read_labels(file) for file in files])
