"""The rows that starts work on: the whole of a small corpus, a keyed sample of a larger one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.dataflow import Dataflow, Lazy, share_array, tree
from hmrf_dask.em.model import Settings
from hmrf_dask.em.prepare import Pairs, describe_nodes
from hmrf_dask.em.problem import Problem, gather_parts
from hmrf_dask.em.starts import Ground, make_ground, restrict
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.ids import hash_ids
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray

SAMPLE_ROWS = 50_000
SAMPLE_ROWS_PER_CLUSTER = 200


def ground_size(n_rows: int, settings: Settings) -> int:
    """Return how many rows the starts see."""
    return min(n_rows, max(SAMPLE_ROWS, SAMPLE_ROWS_PER_CLUSTER * settings.n_clusters))


def prepare_ground(flow: Dataflow, corpus: Corpus, problem: Problem, pairs: Pairs | None) -> Lazy:
    """Return the rows of the starts, and the constraints among them, as a task result."""
    settings = problem.settings
    most = ground_size(corpus.n_rows, settings)
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
    plan = Ground(
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
    return flow.persist([flow.lazy(make_ground, part.block, flow.share(plan))])[0]


@dataclass(frozen=True)
class Lowest:
    """The rows of a part with the lowest keyed numbers."""

    numbers: FloatArray
    ids: AnyArray
    rows: IntArray
    most: int

    def __sizeof__(self) -> int:
        """Tell Dask the true size."""
        return self.numbers.nbytes + self.ids.nbytes + self.rows.nbytes + 128


def lowest_rows(
    block: RowBlock, first_row: int, linked: IntArray, taken: IntArray, seed: int, most: int
) -> Lowest:
    """Return the `most` rows of a part with the lowest keyed numbers, those `taken` left out.

    Linked rows come after all free ones, and without their pairs: they only fill up.
    """
    numbers = uniforms(block.keys, seed, "sample", 0, 0, 0)
    numbers[linked] += 1.0
    rows = np.delete(np.arange(block.n_rows), taken)
    return _first(Lowest(numbers[rows], block.ids[rows], rows + first_row, most))


def _first(lowest: Lowest) -> Lowest:
    order = np.lexsort((lowest.ids, lowest.numbers))[: lowest.most]
    return Lowest(lowest.numbers[order], lowest.ids[order], lowest.rows[order], lowest.most)


def merge_lowest(lists: Sequence[Lowest]) -> Lowest:
    """Return the lowest of several parts."""
    some = [one for one in lists if len(one.rows)] or list(lists[:1])  # none: ids of any type
    return _first(
        Lowest(
            np.concatenate([one.numbers for one in some]),
            np.concatenate([one.ids for one in some]),
            np.concatenate([one.rows for one in some]),
            some[0].most,
        )
    )


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
