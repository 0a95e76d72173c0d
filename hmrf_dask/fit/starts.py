"""The pool of starts: candidates run to their ends on a start sample; the lowest J wins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hmrf_dask.constraints.closure import ConstraintGraph
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.fit.preparation import Pairs, describe_nodes
from hmrf_dask.fit.problem import Problem, gather_parts
from hmrf_dask.flow.dataflow import Dataflow, Lazy, share_array, tree
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.ids import hash_ids
from hmrf_dask.tasks.model import Settings
from hmrf_dask.tasks.start_sample import (
    Lowest,
    StartSample,
    lowest_rows,
    make_start_sample,
    merge_lowest,
)
from hmrf_dask.types import AnyArray, BoolArray, IntArray, LabelArray


def candidate_names(settings: Settings, constrained: bool) -> list[str]:
    """Return the candidates of a fit, in the order in which ties are decided."""
    if settings.init in ("k-means++", "random"):
        return [f"{settings.init} {number}" for number in range(settings.n_init)]
    if settings.init == "neighborhoods":
        return ["neighborhoods 0"]
    names = [f"unconstrained {number}" for number in range(settings.n_init)]
    from_pairs = ["farthest-first 0", "agglomerated 0", "agglomerated-singles 0"]
    return [*names, *from_pairs] if constrained else names


def restrict(graph: ConstraintGraph, keep: AnyArray) -> ConstraintGraph:
    """Return the graph of some whole components, nodes and groups renumbered in their order.

    `keep` is the mask of their nodes.
    """
    nodes = np.cumsum(keep) - 1
    group_kept = np.zeros(graph.n_groups, np.bool_)
    group_kept[graph.groups[keep]] = True
    groups = np.cumsum(group_kept) - 1
    component_kept = np.zeros(graph.n_components, np.bool_)
    component_kept[graph.components[keep]] = True
    components = np.cumsum(component_kept) - 1

    def inside(pairs: LabelArray, mask: AnyArray, number: AnyArray) -> tuple[LabelArray, AnyArray]:
        chosen = mask[pairs[:, 0]]
        return number[pairs[chosen]].astype(np.int32).reshape(-1, 2), chosen

    must, must_chosen = inside(graph.must_pairs, keep, nodes)
    cannot, cannot_chosen = inside(graph.cannot_pairs, keep, nodes)
    rivals, _ = inside(graph.rivals, group_kept, groups)
    dropped, _ = inside(graph.dropped_pairs, keep, nodes)
    contradictory = graph.contradictory_groups[group_kept[graph.contradictory_groups]]
    return replace(
        graph,
        groups=groups[graph.groups[keep]].astype(np.int32),
        components=components[graph.components[keep]].astype(np.int32),
        group_components=components[graph.group_components[group_kept]].astype(np.int32),
        must_pairs=must,
        must_pair_costs=graph.must_pair_costs[must_chosen],
        cannot_pairs=cannot,
        cannot_pair_costs=graph.cannot_pair_costs[cannot_chosen],
        table_components=graph.table_components[component_kept],
        table_groups=graph.table_groups[group_kept],
        rivals=rivals,
        contradictory_groups=groups[contradictory].astype(np.int32),
        dropped_pairs=dropped,
    )


SAMPLE_ROWS = 50_000
SAMPLE_ROWS_PER_CLUSTER = 200


def start_sample_size(n_rows: int, settings: Settings) -> int:
    """Return how many rows the starts see."""
    return min(n_rows, max(SAMPLE_ROWS, SAMPLE_ROWS_PER_CLUSTER * settings.n_clusters))


def prepare_start_sample(
    flow: Dataflow, corpus: Corpus, problem: Problem, pairs: Pairs | None
) -> Lazy:
    """Return the rows of the starts, and the constraints among them, as a task result."""
    settings = problem.settings
    most = start_sample_size(corpus.n_rows, settings)
    graph = pairs.graph if pairs else None
    nodes = pairs.node_rows if pairs else np.zeros(0, np.int64)
    if most == corpus.n_rows:
        rows = np.arange(corpus.n_rows, dtype=np.int64)
    else:
        keep = np.zeros(0, np.bool_)
        if pairs:
            keep = _sampled_nodes(flow, corpus, pairs, settings, most // 2)
        graph = restrict(pairs.graph, keep) if pairs and keep.any() else None
        nodes = nodes[keep]
        rows = np.concatenate([nodes, _sampled_rows(flow, corpus, problem, np.sort(nodes), most)])
    order = np.argsort(rows, kind="stable")
    places = order[np.searchsorted(rows[order], nodes)]
    bounds = np.asarray([0, len(rows)])
    offsets = np.asarray(corpus.offsets)
    part = gather_parts(flow, corpus.blocks, offsets, rows, bounds, "sample")[0]
    plan = StartSample(
        RowBlock.from_array(np.zeros((0, corpus.n_features), np.float32)),
        rows,
        graph,
        places,
        settings,
        problem.distortion,
        problem.extent,
        problem.cost_unit,
        problem.row_bytes,
    )
    return flow.persist([flow.lazy(make_start_sample, part.block, flow.share(plan))])[0]


def _sampled_rows(
    flow: Dataflow, corpus: Corpus, problem: Problem, taken: IntArray, most: int
) -> IntArray:
    """Return rows that fill the sample up to `most`; `taken` are those it has, sorted."""
    lists = []
    for part, block, places in zip(problem.free, corpus.named, problem.places, strict=True):
        here = slice(*np.searchsorted(taken, [part.first_row, part.first_row + part.n_rows]))
        lists.append(
            flow.lazy(
                lowest_rows,
                block,
                part.first_row,
                share_array(flow, places),
                share_array(flow, taken[here] - part.first_row),
                problem.settings.seed,
                most - len(taken),
            )
        )
    lowest: Lowest = flow.compute([tree(flow, merge_lowest, lists)])[0]
    return lowest.rows


def _sampled_nodes(
    flow: Dataflow, corpus: Corpus, pairs: Pairs, settings: Settings, most: int
) -> BoolArray:
    """Return a mask of the nodes of whole components that fit into `most` rows.

    They come by the lowest keyed number of a member.
    """
    graph = pairs.graph
    ids, _ = describe_nodes(flow, corpus, pairs.node_rows)
    numbers = uniforms(hash_ids(ids), settings.seed, "sample", 0, 0, 0)
    lowest = np.full(graph.n_components, np.inf)
    np.minimum.at(lowest, graph.components, numbers)
    sizes = np.bincount(graph.components, minlength=graph.n_components)
    order = np.argsort(lowest, kind="stable")
    order = order[sizes[order] <= most]  # the giant one must not keep the others out
    chosen = np.zeros(graph.n_components, np.bool_)
    chosen[order[np.cumsum(sizes[order]) <= most]] = True
    return chosen[graph.components]
