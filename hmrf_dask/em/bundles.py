"""Task functions of an ICM problem: its pairs, exact ICM, and what violated pairs cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmrf_dask.distortions.table_form import TableDistortion
from hmrf_dask.em.closures import end_to_end, table_penalties
from hmrf_dask.em.looks import (
    LinkedCosts,
    PricedPairs,
    exact_linked_costs,
    linked_costs,
    problem_labels,
)
from hmrf_dask.em.model import Model, Penalties
from hmrf_dask.em.parts import KeptTerms, Step, relabel
from hmrf_dask.em.pieces import Piece
from hmrf_dask.em.scale import Scale
from hmrf_dask.em.tables import settle_tables
from hmrf_dask.kernels import pairs as pair_kernels
from hmrf_dask.kernels.arrays import frozen
from hmrf_dask.kernels.compiled import njit
from hmrf_dask.kernels.exact import exact_sum
from hmrf_dask.kernels.icm import icm
from hmrf_dask.kernels.messages import propagate
from hmrf_dask.kernels.problem import adjacency, make_problem
from hmrf_dask.linked.layout import CANNOT, IcmProblem, PairBlock
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.runs import LabelsFile, RunStore
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray


@dataclass(frozen=True)
class PairCosts:
    """What the pairs of one pair block cost under the present weights."""

    penalty: FloatArray  # J of a violated pair
    signed: IntArray  # cost of equal labels in integer units: negative for must-links

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        return self.penalty.nbytes + self.signed.nbytes + 128


def price_pairs(
    left: RowBlock,
    right: RowBlock,
    block: PairBlock,
    cost: FloatArray,
    model: Model,
    scale: Scale,
    potts: bool,
) -> PairCosts:
    """Return what each pair of a block costs when violated: float64 of J, and signed integer."""
    cannot = block.kind == CANNOT
    distortion = model.distortion
    if potts:
        penalty = cost.copy()
    else:
        phi, rest = distortion.pair_values(left, right, block.first, block.second, model.weights)
        penalty = cost * np.where(cannot, rest, phi)
    if isinstance(distortion, TableDistortion) and distortion.closure_form:
        steps = np.rint(cost / scale.cost_unit).astype(np.int64)
        signed = steps * _integer_penalties(
            distortion, left, right, block, cannot, model, scale, potts
        )
    else:
        signed = np.rint(penalty / scale.unit).astype(np.int64)
    return PairCosts(penalty, np.where(cannot, signed, -signed))


def _integer_penalties(
    distortion: TableDistortion,
    left: RowBlock,
    right: RowBlock,
    block: PairBlock,
    cannot: AnyArray,
    model: Model,
    scale: Scale,
    potts: bool,
) -> IntArray:
    if potts:
        return np.full(len(cannot), 1 << (2 * scale.bits), np.int64)
    sides = distortion.sides(left, right, model.weights)
    one = distortion.quantise(left, model.weights, scale.bits)
    other = one if right is left else distortion.quantise(right, model.weights, scale.bits)
    phi = pair_kernels.pair_integers(
        *sides, one, other, block.first, block.second, distortion.kappa
    )
    return np.where(cannot, scale.largest - phi, phi)


def join_pairs(problem: IcmProblem, blocks: list[PairCosts]) -> PricedPairs:
    """Return all pairs of an ICM problem with their adjacency."""
    nothing = np.zeros(0)
    penalty = np.concatenate([nothing, *(block.penalty for block in blocks)])
    signed = np.concatenate([nothing.astype(np.int64), *(block.signed for block in blocks)])
    start, neighbour, costs = adjacency(len(problem.nodes), problem.first, problem.second, signed)
    return PricedPairs(penalty, start, neighbour, costs)


def signed_of(costs: PairCosts) -> IntArray:
    """Return the signed costs of a block's pairs."""
    return costs.signed


def penalty_of(costs: PairCosts) -> FloatArray:
    """Return what the pairs of a block cost when violated."""
    return costs.penalty


def join_piece(piece: Piece, signed: list[IntArray]) -> IntArray:
    """Return the signed costs of a piece's half-edges; `signed` are those of its blocks."""
    return np.concatenate([np.zeros(0, np.int64), *signed])[piece.edge]


def settle(
    problem: IcmProblem,
    pairs: PricedPairs,
    partitions: list[LinkedCosts],
    rows: list[RowBlock],
    model: Model,
    scale: Scale,
    potts: bool,
    closure_costs: tuple[float, float],
    run: RunStore,
    files: list[LabelsFile],
) -> LabelArray:
    """Return the labels of a problem's points after exact ICM, with or without messages before it.

    Where labels are missing all points are first placed jointly.
    """
    labels = np.array(problem_labels(run, files))
    cost_rows = [part.costs for part in partitions]
    costs = cost_rows[0] if len(partitions) == 1 else np.concatenate(cost_rows)
    if problem.mode == "table":
        arrays = make_problem(0, costs, scale.shift, pairs.start, pairs.neighbour, pairs.signed)
        settle_tables(problem, arrays, rows, model, scale, potts, closure_costs, labels)
        return labels
    if (labels < 0).any():
        labels = place_groups(costs, scale.shift, pairs, problem)
    sizes = np.diff(problem.group_starts)
    several = sizes > 1  # most groups are one point, and cannot move as a group
    arguments = (
        labels, costs, scale.shift, pairs.start, pairs.neighbour, pairs.signed, problem.groups,
        np.concatenate([[0], np.cumsum(sizes[several])]),
        problem.group_members[np.repeat(several, sizes)],
    )  # fmt: skip
    if problem.mode == "messages":
        propagate(*arguments, problem.group_components[problem.groups])
        return labels
    gains = [part.gains for part in partitions if part.gains is not None]
    icm(
        *arguments,
        np.concatenate(gains) if len(gains) == len(partitions) else np.zeros(0, np.int64),
    )
    return labels


def settle_alone(
    problem: IcmProblem,
    pairs: PricedPairs,
    block: RowBlock,
    kept: KeptTerms | None,
    model: Model,
    scale: Scale,
    potts: bool,
    closure_costs: tuple[float, float],
    run: RunStore,
    number: int,
    noted: bool,
    file: LabelsFile,
) -> Step:
    """Return the step of a linked partition that is a whole ICM problem: its costs never travel."""
    if problem.mode == "heap":
        costs = linked_costs(block, kept, model, scale, problem, pairs, 0, run, [file])
    else:
        costs = exact_linked_costs(block, model, scale)
    after = settle(
        problem, pairs, [costs], [block], model, scale, potts, closure_costs, run, [file]
    )
    return relabel([block], [kept], model, run, number, noted, [file], after)


def place_groups(
    costs: AnyArray, shift: int, pairs: PricedPairs, problem: IcmProblem
) -> LabelArray:
    """Return a first labelling: groups by size, each where it costs least beside those placed."""
    sizes = np.diff(problem.group_starts)
    order = np.lexsort((np.arange(len(sizes)), -sizes))
    labels = np.full(len(problem.nodes), -1, np.int32)
    _place(
        frozen(costs, np.int32), 2.0**shift, frozen(pairs.start, np.int64),
        frozen(pairs.neighbour, np.int32), frozen(pairs.signed, np.int64),
        frozen(problem.group_starts, np.int64), frozen(problem.group_members, np.int32), order,
        labels, np.empty(costs.shape[1]),
    )  # fmt: skip
    return labels


@njit(nogil=True, cache=True, makes_arrays=False)
def _place(  # type: ignore[no-untyped-def]
    costs, unit, start, neighbour, signed, group_start, group_member, order, labels, total
):
    for g in order:
        for h in range(total.shape[0]):
            total[h] = 0.0
        for t in range(group_start[g], group_start[g + 1]):
            i = group_member[t]
            for h in range(total.shape[0]):
                total[h] += unit * costs[i, h]
            for p in range(start[i], start[i + 1]):
                h = labels[neighbour[p]]
                if h >= 0:
                    total[h] += signed[p]
        best = np.int32(0)
        for h in range(1, total.shape[0]):
            if total[h] < total[best]:
                best = np.int32(h)
        for t in range(group_start[g], group_start[g + 1]):
            labels[group_member[t]] = best


def part_labels(settled: LabelArray, first: int, last: int) -> LabelArray:
    """Return the labels of one partition, points `first` to `last` of the problem."""
    return settled[first:last]


def _broken(same: AnyArray, cannot: AnyArray, penalty: FloatArray) -> Penalties:
    return Penalties(exact_sum(penalty[~same & ~cannot]), exact_sum(penalty[same & cannot]))


def price_block(
    block: PairBlock, penalty: FloatArray, run: RunStore, files: tuple[LabelsFile, LabelsFile]
) -> Penalties:
    """Return what the violated pairs of one block cost; `files` are those of its two partitions."""
    same = run.read_labels(files[0])[block.first] == run.read_labels(files[1])[block.second]
    return _broken(same, block.kind == CANNOT, penalty)


def price_violations(
    problem: IcmProblem,
    pairs: PricedPairs,
    rows: list[RowBlock],
    model: Model,
    potts: bool,
    closure_costs: tuple[float, float],
    run: RunStore,
    files: list[LabelsFile],
) -> Penalties:
    """Return what the violated pairs of an ICM problem cost, computed anew from the labels."""
    labels = problem_labels(run, files)
    same = labels[problem.first] == labels[problem.second]
    explicit = _broken(same, problem.kind == CANNOT, pairs.penalty)
    if problem.mode != "table":
        return explicit
    return table_penalties(problem, end_to_end(rows), model, potts, labels, explicit, closure_costs)
