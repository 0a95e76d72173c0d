"""First variation in rounds: every part proposes against frozen sums, the best are re-checked and applied one after the other.

Rows and whole must-link groups move when J falls with centroids re-optimised, which frees batch assignment where it is stuck: on sparse
text a document's own share of its centroid outweighs the differences between clusters. Rows of bundles in table form or in rounds are
moved by ICM alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hmrf_dask.dataflow import Lazy, tree
from hmrf_dask.distortions.base import Distortion, TableDistortion
from hmrf_dask.em.bundles import BundlePairs
from hmrf_dask.em.centroids import maximisation
from hmrf_dask.em.engine import Engine, Pricing, real_sums
from hmrf_dask.em.model import Model, State
from hmrf_dask.em.parts import share_model
from hmrf_dask.kernels import variation
from hmrf_dask.kernels.links import adjacency
from hmrf_dask.kernels.variation import Moves, Summands, Ties
from hmrf_dask.linked_layout import CANNOT, Bundle
from hmrf_dask.rows import RowBlock
from hmrf_dask.runs import LabelsFile, RunStore
from hmrf_dask.types import AnyArray, FloatArray, IntArray, LabelArray

ROWS_PER_CLUSTER = 500  # "auto" refines up to so many rows a cluster: beyond it batch assignment is hardly ever stuck
SHARE = 64  # rows fetched in one round take at most this part of the task memory


@dataclass(frozen=True)
class Sources:
    """The frozen sums of a round as tasks need them."""

    model: Model
    sums: IntArray
    counts: IntArray

    @property
    def metric(self) -> FloatArray:
        """The weight of each column in products of summands."""
        distortion, weights = self.model.distortion, self.model.weights
        if distortion.refinement == "euclidean":
            return np.append(weights, 0.0)
        return np.append(np.ones_like(weights), -weights.sum())

    @property
    def directional(self) -> bool:
        """Whether a cluster is worth ‖S‖, not ‖S‖²/n."""
        return self.model.distortion.refinement == "directional"

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        return self.model.__sizeof__() + self.sums.nbytes


@dataclass(frozen=True)
class Proposals:
    """Moves that would lower J, best first, ties by the id of the first row.

    Addresses are row numbers of the corpus, and beyond them linked positions.
    """

    gains: FloatArray
    ids: AnyArray
    targets: LabelArray
    starts: IntArray
    addresses: IntArray
    most_rows: int


def wanted(setting: str | bool, distortion: Distortion, n_rows: int, n_clusters: int) -> bool:
    """Return whether first variation runs."""
    if distortion.refinement is None or n_clusters < 2:
        return False
    return bool(setting) if setting != "auto" else n_rows <= ROWS_PER_CLUSTER * n_clusters


def summands_of(block: RowBlock, model: Model) -> Summands:
    """Return the rows of a block as the sums hold them."""
    distortion = model.distortion
    assert isinstance(distortion, TableDistortion)
    terms = distortion.terms(block, model.weights)
    features = distortion.features(model.weights)
    return variation.summands(
        block.values,
        block.indices,
        block.indptr,
        block.is_dense,
        terms.factor,
        terms.extra,
        features,
        model.exponent,
    )


def _columns(sources: Sources) -> FloatArray:
    return np.ascontiguousarray(real_sums(sources.sums, sources.model.exponent).T)


def _squares(sources: Sources) -> FloatArray:
    return variation.cluster_squares(sources.sums, sources.metric, sources.model.exponent)


def propose_rows(
    block: RowBlock, sources: Sources, run: RunStore, file: LabelsFile, most_rows: int
) -> Proposals:
    """Return the best moves of the free rows of a part."""
    labels = run.read_labels(file)
    free = labels >= 0
    shown = np.where(free, labels, 0).astype(np.int32)
    gains, targets = variation.single_gains(
        summands_of(block, sources.model), _columns(sources), sources.metric, sources.model.exponent,
        _squares(sources), sources.counts, sources.directional, shown, ~free,
    )  # fmt: skip
    chosen = np.flatnonzero(gains > 0)
    single = np.arange(len(chosen) + 1)
    return _best(
        Proposals(
            gains[chosen],
            block.ids[chosen],
            targets[chosen],
            single,
            chosen + file.first_row,
            most_rows,
        )
    )


def ties_of(bundle: Bundle, pairs: BundlePairs) -> Ties:
    """Return the signed float64 costs of a bundle's pairs, neighbours as points."""
    signed = np.where(bundle.kind == CANNOT, pairs.penalty, -pairs.penalty)
    start, neighbour, edge = adjacency(
        len(bundle.nodes), bundle.first, bundle.second, np.arange(len(signed))
    )
    return Ties(start, neighbour, signed[edge])


def propose_linked(
    bundle: Bundle,
    blocks: list[RowBlock],
    pairs: BundlePairs,
    sources: Sources,
    run: RunStore,
    files: list[LabelsFile],
    base: int,
    most_rows: int,
) -> Proposals:
    """Return the best moves of the points and whole groups of a bundle; `base` is the address of its first row."""
    labels = np.concatenate([run.read_labels(file) for file in files])[bundle.rows]
    block = RowBlock.concatenate(blocks).take(bundle.rows)
    rows, ties = summands_of(block, sources.model), ties_of(bundle, pairs)
    exponent, metric = sources.model.exponent, sources.metric
    gains, targets = variation.single_gains(
        rows, _columns(sources), metric, exponent, _squares(sources), sources.counts, sources.directional, labels,
        np.zeros(len(labels), np.bool_), ties, labels,
    )  # fmt: skip
    chosen = np.flatnonzero(gains > 0)
    addresses = base + bundle.rows.astype(np.int64)
    single = Proposals(
        gains[chosen],
        block.ids[chosen],
        targets[chosen],
        np.arange(len(chosen) + 1),
        addresses[chosen],
        most_rows,
    )
    starts, members = _larger_groups(bundle)
    if len(starts) == 1:
        return _best(single)
    group_gains, group_targets = variation.group_gains(
        starts,
        members,
        rows,
        labels,
        sources.sums,
        metric,
        exponent,
        sources.counts,
        sources.directional,
        ties,
    )
    moving = np.flatnonzero(group_gains > 0)
    cuts, whole = _pick(starts, members, moving)
    grouped = Proposals(
        group_gains[moving],
        block.ids[members[starts[moving]]],
        group_targets[moving],
        cuts,
        addresses[whole],
        most_rows,
    )
    return merge_proposals([single, grouped])


def _larger_groups(bundle: Bundle) -> tuple[IntArray, LabelArray]:
    """Return the groups of at least two points as CSR."""
    sizes = np.diff(bundle.group_starts)
    return _pick(bundle.group_starts, bundle.group_members, np.flatnonzero(sizes > 1))


def _pick(starts: IntArray, members: AnyArray, chosen: IntArray) -> tuple[IntArray, AnyArray]:
    """Return some lists of a CSR of lists."""
    lengths = np.diff(starts)[chosen]
    cuts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = np.repeat(starts[:-1][chosen] - cuts[:-1], lengths) + np.arange(cuts[-1])
    return cuts, members[places]


def _best(proposals: Proposals) -> Proposals:
    """Return proposals best first, as many as may be fetched."""
    order = np.lexsort((proposals.ids, -proposals.gains))
    sizes = np.diff(proposals.starts)[order]
    order = order[np.cumsum(sizes) <= max(proposals.most_rows, int(sizes[:1].sum()))]
    starts, addresses = _pick(proposals.starts, proposals.addresses, order)
    return Proposals(
        proposals.gains[order],
        proposals.ids[order],
        proposals.targets[order],
        starts,
        addresses,
        proposals.most_rows,
    )


def merge_proposals(lists: list[Proposals]) -> Proposals:
    """Return the best of several lists."""
    ends = np.cumsum([0, *(one.starts[-1] for one in lists)])
    starts = [one.starts[:-1] + end for one, end in zip(lists, ends, strict=False)]
    return _best(
        Proposals(
            np.concatenate([one.gains for one in lists]),
            np.concatenate([one.ids for one in lists]),
            np.concatenate([one.targets for one in lists]),
            np.concatenate([*starts, ends[-1:]]),
            np.concatenate([one.addresses for one in lists]),
            lists[0].most_rows,
        )
    )


@dataclass(frozen=True)
class Chosen:
    """The pair costs and neighbours of a few linked rows, in addresses."""

    addresses: IntArray
    starts: IntArray
    neighbours: IntArray
    costs: FloatArray
    near: IntArray  # addresses of rows and neighbours, sorted
    labels: LabelArray  # their labels


def chosen_ties(
    bundle: Bundle,
    pairs: BundlePairs,
    run: RunStore,
    files: list[LabelsFile],
    base: int,
    addresses: IntArray,
) -> Chosen:
    """Return what re-checking needs to know of some rows of a bundle."""
    labels = np.concatenate([run.read_labels(file) for file in files])
    point = np.empty(len(bundle.rows), np.int64)
    point[bundle.rows] = np.arange(len(bundle.rows))
    ties = ties_of(bundle, pairs)
    starts, edges = _pick(ties.start, np.arange(len(ties.cost)), point[addresses - base])
    neighbours = base + bundle.rows[ties.neighbour[edges]].astype(np.int64)
    near = np.unique(np.concatenate([addresses, neighbours]))
    return Chosen(addresses, starts, neighbours, ties.cost[edges], near, labels[near - base])


def free_labels(run: RunStore, file: LabelsFile, addresses: IntArray) -> LabelArray:
    """Return the labels of a few rows of a part."""
    return run.read_labels(file)[addresses - file.first_row]


def apply_proposals(
    proposals: Proposals,
    addresses: IntArray,
    blocks: list[RowBlock],
    free: list[LabelArray],
    tied: list[Chosen],
    sources: Sources,
) -> tuple[IntArray, LabelArray]:
    """Return the addresses and labels of the rows that moved: each move re-checked on the sums as they then stand.

    `addresses` are those of the rows of `blocks`, sorted; `free` their labels as far as they are free rows.
    """
    n_free = sum(len(one) for one in free)
    known = np.concatenate([addresses[:n_free], *(one.near for one in tied)])
    labels = np.concatenate([*free, *(one.labels for one in tied)]).astype(np.int32)
    places = np.searchsorted(known, addresses).astype(np.int64)
    lengths = np.concatenate([np.zeros(n_free, np.int64), *(np.diff(one.starts) for one in tied)])
    ties = Ties(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.searchsorted(
            known, np.concatenate([np.zeros(0, np.int64), *(one.neighbours for one in tied)])
        ).astype(np.int32),
        np.concatenate([np.zeros(0), *(one.costs for one in tied)]),
    )
    rows = summands_of(RowBlock.concatenate(blocks), sources.model)
    members = np.searchsorted(addresses, proposals.addresses).astype(np.int32)
    before = labels[places].copy()
    variation.apply_moves(
        Moves(proposals.starts, members, proposals.targets), rows, places.astype(np.int32), labels, sources.sums.copy(),
        sources.metric, sources.model.exponent, sources.counts.copy(), sources.directional, ties,
    )  # fmt: skip
    after = labels[places]
    moved = np.flatnonzero(before != after)
    return addresses[moved], after[moved]


def moved_labels(
    run: RunStore, file: LabelsFile, base: int, moves: tuple[IntArray, LabelArray]
) -> LabelArray:
    """Return the labels of a part after the moves; `base` is the address of its first row."""
    labels = np.array(run.read_labels(file))
    here = (moves[0] >= base) & (moves[0] < base + file.n_rows)
    labels[moves[0][here] - base] = moves[1][here]
    return labels


def vary(engine: Engine, state: State, pricing: Pricing) -> tuple[State, int]:
    """Return the state after one round, centroids optimal, and how many rows moved; the same state when J would not fall."""
    flow, problem = engine.flow, engine.problem
    base = problem.extent.n_rows
    sources = flow.share(Sources(state.model, state.sums, state.counts))
    most = max(1024, problem.settings.task_memory // (SHARE * max(problem.row_bytes, 1)))
    lists = [
        flow.lazy(propose_rows, part.block, sources, engine.run, file, most)
        for part, file in zip(problem.free, state.free, strict=True)
    ]
    joined = [number for number, one in enumerate(problem.bundles) if one.mode == "heap"]
    for number in joined:
        one = problem.bundles[number]
        lists.append(
            flow.lazy(
                propose_linked, one.bundle, [problem.linked[part].block for part in one.parts], pricing.bundles[number],
                sources, engine.run, [state.linked[part] for part in one.parts],
                base + problem.linked[one.parts.start].first_row, most,
            )
        )  # fmt: skip
    proposals: Proposals = flow.compute([tree(flow, merge_proposals, lists)])[0]
    if not len(proposals.gains):
        return state, 0
    moves = _apply(engine, state, pricing, proposals, sources, joined)
    after = [
        flow.lazy(moved_labels, engine.run, file, file.first_row, moves) for file in state.free
    ]
    after += [
        flow.lazy(moved_labels, engine.run, file, base + file.first_row, moves)
        for file in state.linked
    ]
    moved, count = engine.move(state, after, pricing, share_model(flow, state.model))
    settled = maximisation(engine, moved)
    return (settled, count) if count and settled.energy.total < state.energy.total else (state, 0)


def _apply(
    engine: Engine,
    state: State,
    pricing: Pricing,
    proposals: Proposals,
    sources: Lazy,
    joined: Sequence[int],
) -> Lazy:
    """Return the moves that stand, lazily: rows are fetched from their parts, one task applies them."""
    flow, problem = engine.flow, engine.problem
    base = problem.extent.n_rows
    addresses = np.unique(proposals.addresses)
    blocks: list[Lazy] = []
    free: list[Lazy] = []
    for part, file in engine.all_parts(state):
        linked = part.name.startswith("linked")
        first = part.first_row + (base if linked else 0)
        here = addresses[slice(*np.searchsorted(addresses, [first, first + part.n_rows]))]
        if not len(here):
            continue
        blocks.append(flow.lazy(RowBlock.take, part.block, here - first))
        if not linked:
            free.append(flow.lazy(free_labels, engine.run, file, here))
    tied = []
    for number in joined:
        one = problem.bundles[number]
        first = base + problem.linked[one.parts.start].first_row
        last = first + sum(problem.linked[part].n_rows for part in one.parts)
        here = addresses[slice(*np.searchsorted(addresses, [first, last]))]
        if len(here):
            files = [state.linked[part] for part in one.parts]
            tied.append(
                flow.lazy(
                    chosen_ties, one.bundle, pricing.bundles[number], engine.run, files, first, here
                )
            )
    return flow.lazy(apply_proposals, proposals, addresses, blocks, free, tied, sources)
