"""Task functions over a bundle: its pairs, exact ICM in integers, and what violated pairs cost.

A bundle is one ICM problem: linked partitions that together hold whole components
(`linked_layout.Bundle`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmrf_dask.distortions.table_form import TableDistortion
from hmrf_dask.em.closures import end_to_end, table_penalties
from hmrf_dask.em.looks import BundlePairs, Looked, look_at, look_at_exactly, read_bundle
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
from hmrf_dask.kernels.links import adjacency, make_links
from hmrf_dask.kernels.messages import propagate
from hmrf_dask.linked.layout import CANNOT, Bundle, PairBlock
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


def join_pairs(bundle: Bundle, blocks: list[PairCosts]) -> BundlePairs:
    """Return all pairs of a bundle with their adjacency."""
    nothing = np.zeros(0)
    penalty = np.concatenate([nothing, *(block.penalty for block in blocks)])
    signed = np.concatenate([nothing.astype(np.int64), *(block.signed for block in blocks)])
    start, neighbour, costs = adjacency(len(bundle.nodes), bundle.first, bundle.second, signed)
    return BundlePairs(penalty, start, neighbour, costs)


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
    bundle: Bundle,
    pairs: BundlePairs,
    looks: list[Looked],
    rows: list[RowBlock],
    model: Model,
    scale: Scale,
    potts: bool,
    closure_costs: tuple[float, float],
    run: RunStore,
    files: list[LabelsFile],
) -> LabelArray:
    """Return the labels of a bundle's points after exact ICM, with or without messages before it.

    Where labels are missing all points are first placed jointly.
    """
    labels = np.array(read_bundle(run, files))
    costs = looks[0].costs if len(looks) == 1 else np.concatenate([one.costs for one in looks])
    if bundle.mode == "table":
        links = make_links(0, costs, scale.shift, pairs.start, pairs.neighbour, pairs.signed)
        settle_tables(bundle, links, rows, model, scale, potts, closure_costs, labels)
        return labels
    if (labels < 0).any():
        labels = place_groups(costs, scale.shift, pairs, bundle)
    sizes = np.diff(bundle.group_starts)
    several = sizes > 1  # most groups are one point, and cannot move as a group
    problem = (
        labels, costs, scale.shift, pairs.start, pairs.neighbour, pairs.signed, bundle.groups,
        np.concatenate([[0], np.cumsum(sizes[several])]),
        bundle.group_members[np.repeat(several, sizes)],
    )  # fmt: skip
    if bundle.mode == "messages":
        propagate(*problem, bundle.group_components[bundle.groups])
        return labels
    gains = [one.gains for one in looks if one.gains is not None]
    icm(*problem, np.concatenate(gains) if len(gains) == len(looks) else np.zeros(0, np.int64))
    return labels


def settle_alone(
    bundle: Bundle,
    pairs: BundlePairs,
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
    """Return the step of a linked partition that is a bundle by itself: its costs never travel."""
    if bundle.mode == "heap":
        look = look_at(block, kept, model, scale, bundle, pairs, 0, run, [file])
    else:
        look = look_at_exactly(block, model, scale)
    after = settle(bundle, pairs, [look], [block], model, scale, potts, closure_costs, run, [file])
    return relabel([block], [kept], model, run, number, noted, [file], after)


def place_groups(costs: AnyArray, shift: int, pairs: BundlePairs, bundle: Bundle) -> LabelArray:
    """Return a first labelling: groups by size, each where it costs least beside those placed."""
    sizes = np.diff(bundle.group_starts)
    order = np.lexsort((np.arange(len(sizes)), -sizes))
    labels = np.full(len(bundle.nodes), -1, np.int32)
    _place(
        frozen(costs, np.int32), 2.0**shift, frozen(pairs.start, np.int64),
        frozen(pairs.neighbour, np.int32), frozen(pairs.signed, np.int64),
        frozen(bundle.group_starts, np.int64), frozen(bundle.group_members, np.int32), order,
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
    """Return the labels of one partition, points `first` to `last` of the bundle."""
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
    bundle: Bundle,
    pairs: BundlePairs,
    rows: list[RowBlock],
    model: Model,
    potts: bool,
    closure_costs: tuple[float, float],
    run: RunStore,
    files: list[LabelsFile],
) -> Penalties:
    """Return what the violated pairs of a bundle cost, computed anew from the labels."""
    labels = read_bundle(run, files)
    same = labels[bundle.first] == labels[bundle.second]
    explicit = _broken(same, bundle.kind == CANNOT, pairs.penalty)
    if bundle.mode != "table":
        return explicit
    return table_penalties(bundle, end_to_end(rows), model, potts, labels, explicit, closure_costs)
