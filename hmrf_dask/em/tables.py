"""ICM of an ICM problem in table form: its rows quantised, its closures described to the kernel."""

from __future__ import annotations

import numpy as np

from hmrf_dask.distortions.table_form import TableDistortion
from hmrf_dask.em.closures import end_to_end
from hmrf_dask.em.model import Model
from hmrf_dask.em.scale import Scale
from hmrf_dask.kernels.closure_sweeps import table_icm
from hmrf_dask.kernels.closure_tables import Closure, QuantisedRows, make_closure, make_rows
from hmrf_dask.kernels.problem import ProblemArrays, make_grouping
from hmrf_dask.kernels.reconcile_groups import place_inside
from hmrf_dask.linked.layout import IcmProblem
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import LabelArray


def settle_tables(
    problem: IcmProblem,
    arrays: ProblemArrays,
    blocks: list[RowBlock],
    model: Model,
    scale: Scale,
    potts: bool,
    closure_costs: tuple[float, float],
    labels: LabelArray,
) -> tuple[int, int]:
    """Run sweeps of groups and points until neither gains; `labels` (point order) change in place.

    `blocks` are the rows of the problem's partitions. Where labels are missing groups first go,
    whole, where they are nearest.
    """
    # rows laid end to end go with the call: only their integers are held beside the tables
    rows = quantised_rows(end_to_end(blocks), model, scale, potts)
    closure = describe(problem, model, scale, potts, closure_costs, blocks[0].n_features)
    grouping = make_grouping(problem.groups, problem.group_starts, problem.group_members)
    if (labels < 0).any():
        place_inside(labels, arrays.costs, grouping.start, grouping.member, 0)
    points, groups, _ = table_icm(labels, arrays, rows, closure, grouping)
    return points, groups


def quantised_rows(block: RowBlock, model: Model, scale: Scale, potts: bool) -> QuantisedRows:
    """Return the integer rows of a component; the centring column comes after all features."""
    if potts:
        nothing = np.zeros(0, np.int32)
        half = np.full(block.n_rows, 1 << (2 * scale.bits - 1), np.int64)
        return make_rows(nothing, nothing, np.zeros(block.n_rows + 1, np.int64), half)
    distortion = model.distortion
    assert isinstance(distortion, TableDistortion)
    quantised = distortion.quantise(block, model.weights, scale.bits)
    columns = (
        np.tile(np.arange(block.n_features, dtype=np.int32), block.n_rows)
        if block.is_dense
        else block.indices
    )
    starts = block.indptr.astype(np.int64)
    if not quantised.centring.any():
        return make_rows(quantised.values, columns, starts, quantised.own)
    ends = starts[1:]
    return make_rows(
        np.insert(quantised.values, ends, quantised.centring),
        np.insert(columns, ends, np.int32(block.n_features)),
        starts + np.arange(len(starts)),
        quantised.own,
    )


def describe(
    problem: IcmProblem,
    model: Model,
    scale: Scale,
    potts: bool,
    closure_costs: tuple[float, float],
    n_features: int,
) -> Closure:
    """Return what is closed in an ICM problem, with costs in whole units."""
    distortion = model.distortion
    assert isinstance(distortion, TableDistortion)
    must, cannot = (round(cost / scale.cost_unit) for cost in closure_costs)
    n_groups = len(problem.group_starts) - 1
    ends = np.concatenate([problem.rivals, problem.rivals[:, ::-1]])
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    starts = np.searchsorted(ends[order, 0], np.arange(n_groups + 1))
    largest = 1 << (2 * scale.bits) if potts else scale.largest
    # Potts: φ is constant, so a rival's complement largest − φ would be nought, but it costs φ
    return make_closure(
        0 if potts else distortion.kappa,
        n_features,
        2 * largest if potts else largest,
        np.where(problem.group_tables, must, 0),
        starts,
        ends[order, 1],
        np.full(len(ends), cannot, np.int64),
    )
