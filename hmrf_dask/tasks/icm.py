"""Linked rows: their integer costs, exact ICM by pairs or closure tables, what pairs cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hmrf_dask.distortions.base import TableDistortion
from hmrf_dask.kernels import pairs as pair_kernels
from hmrf_dask.kernels.closure_sweeps import table_icm
from hmrf_dask.kernels.closure_tables import Closure, QuantisedRows, make_closure, make_rows
from hmrf_dask.kernels.cost_rows import (
    approximate_costs,
    make_point_pairs,
    set_gains,
    take_measured,
)
from hmrf_dask.kernels.distances import Table
from hmrf_dask.kernels.exact import exact_sum
from hmrf_dask.kernels.icm import icm
from hmrf_dask.kernels.messages import propagate
from hmrf_dask.kernels.problem import (
    Grouping,
    adjacency,
    make_grouping,
    make_problem,
    place_jointly,
    place_nearest,
)
from hmrf_dask.linked.layout import CANNOT, IcmProblem, PairBlock
from hmrf_dask.linked.plan import Scale, cost_rows
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Model, Penalties
from hmrf_dask.tasks.partitions import (
    LabelStore,
    Step,
    StoredLabels,
    TaskSlice,
    pick,
    relabel,
    terms_of,
)
from hmrf_dask.tasks.rounds import Piece
from hmrf_dask.types import BoolArray, FloatArray, IntArray, LabelArray, Sized

COST_ROWS = 8192  # rows whose float64 distances are held at a time
FEW_ROWS = 16  # that are measured cluster by cluster
# Where this share of points can move as groups, cost rows are in single precision: a group is held
# back by the slack of all its rows, and nothing measures it in float64.
GROUPED = 1 / 8


@dataclass(frozen=True)
class PricedPairs(Sized):
    """The pairs of an ICM problem, priced, and their adjacency for ICM."""

    penalty: FloatArray
    start: IntArray
    neighbour: LabelArray
    signed: IntArray


class PricedProblem(NamedTuple):
    """An ICM problem with its pairs priced, and where the labels of its points are."""

    problem: IcmProblem
    pairs: PricedPairs
    labels: StoredLabels


@dataclass(frozen=True)
class LinkedCosts(Sized):
    """The costs of a linked partition's rows before ICM."""

    costs: LabelArray  # int32 cost rows
    gains: IntArray | None = None  # of each row by its best move; None: not known yet


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
        part = block.take(np.repeat(chosen, each))
        terms = model.distortion.terms(part, model.weights)
        if each == 1:
            distances = model.distortion.distances(part, terms, table)
        else:
            labels = np.tile(np.arange(n_clusters, dtype=np.int32), len(chosen))
            own = model.distortion.own_distances(part, terms, table, labels)
            distances = own.reshape(-1, n_clusters)
        costs[chosen] = cost_rows(distances, scale)


def linked_costs(
    rows: TaskSlice, model: Model, scale: Scale, priced: PricedProblem, first: int
) -> LinkedCosts:
    """Return the cost rows of a linked partition, whose first row is point `first` of a problem.

    They are in low precision wherever that decides, and then have gains.
    """
    (block,), (cached,), (problem, pairs, stored) = rows.blocks, rows.terms, priced
    table = model.table()
    if not isinstance(table, Table):
        return all_costs(block, model, scale)
    labels = stored.read()
    undecided = bool((labels < 0).any())
    if undecided:
        labels = np.full(len(labels), -1, np.int32)
    terms = terms_of(block, cached, model)
    point_pairs = make_point_pairs(
        first, labels, scale.shift, pairs.start, pairs.neighbour, pairs.signed
    )
    # even where half precision is faster
    single = problem.in_groups >= GROUPED or not model.distortion.unit_rows
    approximate = approximate_costs(
        block.arrays, terms, table, point_pairs, scale.step, scale.tolerance, single=single
    )
    if len(approximate.near_row):
        near = block.take(approximate.near_row)
        few, clusters = model.distortion.terms(near, model.weights), approximate.near_cluster
        distances = model.distortion.own_distances(near, few, table, clusters.astype(np.int32))
        take_measured(approximate, distances, scale.step, point_pairs)
    coarse = np.flatnonzero(approximate.coarse)
    _fill_exactly(approximate.costs, coarse, block, model, scale)
    if undecided:
        return LinkedCosts(approximate.costs)
    set_gains(approximate.costs, coarse, point_pairs, approximate.gains)
    return LinkedCosts(approximate.costs, approximate.gains)


def all_costs(block: RowBlock, model: Model, scale: Scale) -> LinkedCosts:
    """Return the cost rows of a linked partition from float64 distances, no gains known."""
    return LinkedCosts(exact_costs(block, model, scale))


def end_to_end(blocks: list[RowBlock]) -> RowBlock:
    """Return the rows of an ICM problem's partitions in point order."""
    return blocks[0] if len(blocks) == 1 else RowBlock.concatenate(blocks)


def grouping_of(problem: IcmProblem) -> Grouping:
    """Return the must-link groups of an ICM problem as kernels see them."""
    return make_grouping(problem.groups, problem.group_starts, problem.group_members)


@dataclass(frozen=True)
class Entries:
    """The (group, cluster) in use of the groups that are closed, ascending, and their points."""

    group: IntArray
    cluster: IntArray
    count: FloatArray
    start: IntArray
    member: IntArray


def entries_of(problem: IcmProblem, labels: LabelArray, n_clusters: int) -> Entries:
    """Return the entries of an ICM problem's tables, points in their order."""
    points = np.flatnonzero(problem.group_tables[problem.groups])
    keys = problem.groups[points].astype(np.int64) * n_clusters + labels[points]
    order = np.argsort(keys, kind="stable")
    used, start = np.unique(keys[order], return_index=True)
    starts = np.concatenate([start, [len(points)]]).astype(np.int64)
    return Entries(
        used // n_clusters,
        used % n_clusters,
        np.diff(starts).astype(np.float64),
        starts,
        points[order],
    )


def broken_closures(
    problem: IcmProblem, entries: Entries
) -> tuple[tuple[IntArray, IntArray], tuple[IntArray, IntArray]]:
    """Return the entries between which must-links are broken, then the same of cannot-links."""
    bounds = np.searchsorted(entries.group, np.arange(len(problem.group_tables) + 1))
    first = np.arange(len(entries.group))
    after = bounds[entries.group + 1] - first - 1
    must = _spans(first, first + 1, after)
    mine, theirs = problem.rivals.astype(np.int64).T
    used = np.diff(bounds)
    fewer = used[mine] <= used[theirs]
    mine, theirs = np.where(fewer, mine, theirs), np.where(fewer, theirs, mine)
    rival, entry = _spans(np.arange(len(mine)), bounds[mine], used[mine])
    n_clusters = int(entries.cluster.max(initial=0)) + 1
    keys = entries.group * n_clusters + entries.cluster
    wanted = theirs[rival] * n_clusters + entries.cluster[entry]
    match = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    broken = keys[match] == wanted if len(keys) else np.zeros(0, np.bool_)
    return must, (entry[broken], match[broken])


def _spans(owner: IntArray, first: IntArray, length: IntArray) -> tuple[IntArray, IntArray]:
    """Return each owner with each of the `length` numbers from `first` on."""
    ends = np.cumsum(length)
    numbers = np.arange(ends[-1] if len(ends) else 0)
    return np.repeat(owner, length), numbers + np.repeat(first - ends + length, length)


def _between_rows(
    taken: RowBlock, model: Model, entries: Entries, ends: tuple[IntArray, ...]
) -> FloatArray:
    """Return Σ φ over all pairs between entries ends[0][t] and ends[1][t], from the rows."""
    distortion = model.distortion
    assert isinstance(distortion, TableDistortion)
    needed, places = np.unique(np.concatenate(ends), return_inverse=True)
    first, second = np.split(places, 2)
    start, member = pick(entries.start, entries.member, needed)
    rows = pair_kernels.side(taken.arrays, distortion.terms(taken, model.weights))
    squared = distortion.form == pair_kernels.SQUARED
    sums = pair_kernels.sum_rows(
        rows, np.sqrt(model.weights), squared=squared, start=start, member=member
    )
    count = entries.count[needed]
    cross = pair_kernels.products(sums, taken.n_features, first, second)
    own = count[second] * sums.own[first] + count[first] * sums.own[second]
    return np.asarray(own - distortion.kappa * cross, np.float64)


def table_penalties(
    problem: IcmProblem, rows: RowBlock, model: Model, labels: LabelArray, *, potts: bool
) -> Penalties:
    """Return the penalties of a problem's closure tables; `rows` and labels are in point order."""
    entries = entries_of(problem, labels, model.n_clusters)
    must, cannot = broken_closures(problem, entries)
    split, joined = (
        entries.count[first] * entries.count[second] for first, second in (must, cannot)
    )
    if not potts:  # else φ of every pair is 1, and so is its complement
        ends = tuple(np.concatenate(side) for side in zip(must, cannot, strict=True))
        between_sets = _between_rows(rows, model, entries, ends)
        largest = model.distortion.maximum(model.weights)
        split, near = np.split(between_sets, [len(must[0])])
        joined = largest * joined - near
    costs = problem.closure_costs
    return Penalties(exact_sum(costs[0] * split), exact_sum(costs[1] * joined))


def quantised_rows(block: RowBlock, model: Model, scale: Scale) -> QuantisedRows:
    """Return the integer rows of a component; the centring column comes after all features."""
    if scale.potts:
        nothing = np.zeros(0, np.int32)
        half = np.full(block.n_rows, 1 << (2 * scale.bits - 1), np.int64)
        return make_rows(nothing, nothing, np.zeros(block.n_rows + 1, np.int64), half)
    distortion = model.distortion
    assert isinstance(distortion, TableDistortion)
    quantised = distortion.quantise(block, model.weights, scale.bits)
    columns = (
        np.tile(np.arange(block.n_features, dtype=np.int32), block.n_rows)
        if block.is_dense
        else block.arrays.indexed.indices
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


def describe(problem: IcmProblem, model: Model, scale: Scale, n_features: int) -> Closure:
    """Return what is closed in an ICM problem, with costs in whole units."""
    distortion = model.distortion
    assert isinstance(distortion, TableDistortion)
    must, cannot = (round(cost / scale.cost_unit) for cost in problem.closure_costs)
    n_groups = len(problem.group_starts) - 1
    ends = np.concatenate([problem.rivals, problem.rivals[:, ::-1]])
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    starts = np.searchsorted(ends[order, 0], np.arange(n_groups + 1))
    # Potts: φ is constant, so a rival's complement largest − φ would be 0, but it costs φ
    return make_closure(
        0 if scale.potts else distortion.kappa,
        n_features,
        2 << (2 * scale.bits) if scale.potts else scale.largest,
        must_weight=np.where(problem.group_tables, must, 0),
        rival_start=starts,
        rival=ends[order, 1],
        rival_weight=np.full(len(ends), cannot, np.int64),
    )


@dataclass(frozen=True)
class PricedBlock(Sized):
    """What the pairs of one pair block cost under the present weights."""

    penalty: FloatArray  # J of a violated pair
    signed: IntArray  # cost of equal labels in integer units: negative for must-links


def price_pairs(
    left: RowBlock, right: RowBlock, block: PairBlock, model: Model, scale: Scale
) -> PricedBlock:
    """Return what each pair of a block costs when violated: float64 of J, and signed integer."""
    cannot, distortion = block.kind == CANNOT, model.distortion
    if scale.potts:
        penalty = block.cost.copy()
    else:
        phi, rest = distortion.pair_values(left, right, block.first, block.second, model.weights)
        penalty = block.cost * np.where(cannot, rest, phi)
    if isinstance(distortion, TableDistortion) and distortion.closure_form:
        signed = np.rint(block.cost / scale.cost_unit).astype(np.int64)
        signed *= _integer_penalties(distortion, left, right, block, model.weights, scale)
    else:
        signed = np.rint(penalty / scale.unit).astype(np.int64)
    return PricedBlock(penalty, np.where(cannot, signed, -signed))


def _integer_penalties(
    distortion: TableDistortion,
    left: RowBlock,
    right: RowBlock,
    block: PairBlock,
    weights: FloatArray,
    scale: Scale,
) -> IntArray:
    if scale.potts:
        return np.full(len(block.kind), 1 << (2 * scale.bits), np.int64)
    pairs = distortion.row_pairs(left, right, block.first, block.second, weights)
    here = there = distortion.quantise(left, weights, scale.bits)
    if right is not left:
        there = distortion.quantise(right, weights, scale.bits)
    phi = pair_kernels.pair_integers(pairs, here, there, distortion.kappa)
    return np.where(block.kind == CANNOT, scale.largest - phi, phi)


def join_pairs(problem: IcmProblem, blocks: list[PricedBlock]) -> PricedPairs:
    """Return all pairs of an ICM problem with their adjacency."""
    nothing = np.zeros(0)
    penalty = np.concatenate([nothing, *(block.penalty for block in blocks)])
    signed = np.concatenate([nothing.astype(np.int64), *(block.signed for block in blocks)])
    start, neighbour, costs = adjacency(len(problem.nodes), problem.first, problem.second, signed)
    return PricedPairs(penalty, start, neighbour, costs)


def join_piece(piece: Piece, signed: list[IntArray]) -> IntArray:
    """Return the signed costs of a piece's half-edges; `signed` are those of its blocks."""
    return np.concatenate([np.zeros(0, np.int64), *signed])[piece.edge]


def settle(
    priced: PricedProblem,
    partitions: list[LinkedCosts],
    blocks: list[RowBlock],
    model: Model,
    scale: Scale,
) -> LabelArray:
    """Return the labels of a problem's points after exact ICM, with or without messages before it.

    Where labels are missing all points are first placed jointly, in table form (which alone reads
    the rows) groups whole where they are nearest.
    """
    problem, pairs, stored = priced
    labels = np.array(stored.read())
    cost_rows = [part.costs for part in partitions]
    costs = cost_rows[0] if len(partitions) == 1 else np.concatenate(cost_rows)
    arrays = make_problem(0, costs, scale.shift, pairs.start, pairs.neighbour, pairs.signed)
    if problem.mode == "table":
        # rows laid end to end go with the call: only their integers are held with the tables
        rows = quantised_rows(end_to_end(blocks), model, scale)
        closure = describe(problem, model, scale, blocks[0].n_features)
        every = grouping_of(problem)
        if (labels < 0).any():
            place_nearest(labels, arrays.costs, every.start, every.member, 0)
        table_icm(labels, arrays, rows, closure, every)
        return labels
    if (labels < 0).any():
        labels = place_jointly(arrays, grouping_of(problem))
    # most groups are one point, and cannot move as a group
    several = np.flatnonzero(np.diff(problem.group_starts) > 1)
    members = pick(problem.group_starts, problem.group_members, several)
    grouping = make_grouping(problem.groups, *members)
    if problem.mode == "messages":
        propagate(labels, arrays, grouping, problem.group_components[problem.groups])
        return labels
    gains = [part.gains for part in partitions if part.gains is not None]
    known = np.concatenate(gains) if len(gains) == len(partitions) else np.zeros(0, np.int64)
    icm(labels, arrays, grouping, known)
    return labels


def settle_alone(
    priced: PricedProblem, rows: TaskSlice, model: Model, scale: Scale, store: LabelStore
) -> Step:
    """Return the step of a linked partition that is a whole ICM problem: its costs never travel."""
    if priced.problem.mode == "heap":
        costs = linked_costs(rows, model, scale, priced, 0)
    else:
        costs = all_costs(rows.blocks[0], model, scale)
    return relabel(rows, model, store, [settle(priced, [costs], rows.blocks, model, scale)])


def _broken(same: BoolArray, cannot: BoolArray, penalty: FloatArray) -> Penalties:
    return Penalties(exact_sum(penalty[~same & ~cannot]), exact_sum(penalty[same & cannot]))


def alike(block: PairBlock, labels: StoredLabels) -> BoolArray:
    """Return which pairs of a block join two rows of one label, from its partitions' files."""
    first, second = labels.run.read_group(labels.files)
    return np.asarray(first[block.first] == second[block.second])


def price_block(block: PairBlock, penalty: FloatArray, labels: StoredLabels) -> Penalties:
    """Return what the violated pairs of one block cost."""
    return _broken(alike(block, labels), block.kind == CANNOT, penalty)


def price_violations(
    priced: PricedProblem, blocks: list[RowBlock], model: Model, scale: Scale
) -> Penalties:
    """Return what the violated pairs of an ICM problem cost, computed from the labels."""
    problem, labels = priced.problem, priced.labels.read()
    same = labels[problem.first] == labels[problem.second]
    explicit = _broken(same, problem.kind == CANNOT, priced.pairs.penalty)
    if problem.mode != "table":
        return explicit
    closed = table_penalties(problem, end_to_end(blocks), model, labels, potts=scale.potts)
    return Penalties(explicit.must + closed.must, explicit.cannot + closed.cannot)
