"""K suggested for a corpus: a sample of its rows is tried with few and with many clusters."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.errors import HmrfWarning, InvalidInputError
from hmrf_dask.fit import preparation
from hmrf_dask.fit.choice_of_k import LEAST_K, Choice, goes_on, grid
from hmrf_dask.fit.one_k import count_answers, prepare_trials, try_out
from hmrf_dask.fit.preparation import check_memory, table_task
from hmrf_dask.fit.problem import gather_partitions
from hmrf_dask.flow.dataflow import DaskFlow, Dataflow, Lazy, tree
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.progress import SoFar, uncounted
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.canonical import hash_ids
from hmrf_dask.tasks.criteria import Criteria, SampledPairs, n_distinct, nonzero_rows
from hmrf_dask.tasks.first_centroids import Lowest, merge_lowest
from hmrf_dask.tasks.model import Settings
from hmrf_dask.tasks.start_sample import Draw, StartSample, lowest_rows, make_start_sample, narrowed
from hmrf_dask.text.lsa import decompose, projected
from hmrf_dask.types import IntArray

SAMPLE_ROWS = 4_000
SAMPLE_ROWS_PER_CLUSTER = 40  # of the largest K
DIMENSIONS = 50  # of rows for silhouettes
POWER_ITERATIONS = 4
IN_PARALLEL = 4  # K tried in one graph
LEAST_ROWS = 40
ROWS_PER_CLUSTER = 10  # of the sample, at least: fewer say nothing of a K


class Span(NamedTuple):
    """The K that may be tried."""

    least: int = LEAST_K
    most: int = 100


class Asked(NamedTuple):
    """What a K is suggested for; the number of clusters in `settings` counts for nothing."""

    corpus: Corpus
    constraints: Constraints | None
    settings: Settings
    distortion: Distortion
    span: Span = Span()


class SampleFacts(NamedTuple):
    """How much there is to try K on."""

    n_rows: int
    n_distinct: int
    n_features: int
    is_dense: bool


def suggest(asked: Asked, so_far: SoFar = uncounted) -> Choice:
    """Return what speaks for each K that was tried, and the K that all of it speaks for."""
    flow = DaskFlow()
    trials, facts = lay_out_trials(flow, asked)
    n_answers = flow.compute([flow.lazy(count_answers, trials)])[0]
    numbers, tried = grid(*_span_of(facts, asked.span)), list[Criteria]()
    while len(tried) < len(numbers) and goes_on(tried, facts.n_rows):
        so_far(len(tried), len(numbers))
        batch = numbers[len(tried) :][:IN_PARALLEL]
        tried += flow.compute([flow.lazy(try_out, trials, n_clusters) for n_clusters in batch])
    so_far(len(numbers), len(numbers))
    return Choice(tuple(tried), facts.n_rows, n_answers)


def _span_of(facts: SampleFacts, span: Span) -> Span:
    """Return the K that rows can distinguish; refuse a span that has none of them."""
    most = min(span.most, facts.n_rows // ROWS_PER_CLUSTER, facts.n_distinct)
    if most < span.least:
        raise InvalidInputError(
            f"K must be chosen among numbers that rows can distinguish, at most {most} for "
            f"{facts.n_rows} rows, {facts.n_distinct} of them different, got {span.least} to begin "
            "with; give n_clusters as a number"
        )
    return Span(span.least, most)


def warn_of_doubt(choice: Choice) -> None:
    """Warn where no K is recommended: the likeliest is taken nevertheless."""
    if not choice.is_recommended:
        warnings.warn(
            f"n_clusters='auto' took {choice.n_clusters}, which is not recommended: {choice.doubt}"
            "; give a number, or more answers",
            HmrfWarning,
            stacklevel=3,
        )


def lay_out_trials(flow: Dataflow, asked: Asked) -> tuple[Lazy, SampleFacts]:
    """Return what every K is tried on, as a task result, and what is known of it."""
    corpus, distortion = asked.corpus.persist(), asked.distortion
    facts = preparation.survey_corpus(flow, corpus, distortion, fingerprinted=False)
    extent = preparation.extent_of(facts, corpus.n_features)
    pairs = _resolved(flow, corpus, asked)
    rows = _sampled(flow, corpus, asked, pairs)
    bounds, offsets = np.asarray([0, len(rows)], np.int64), np.asarray(corpus.offsets)
    gathered = gather_partitions(flow, corpus.blocks, offsets, rows, bounds, "sample")[0]
    plan = StartSample(
        RowBlock.from_array(np.zeros((0, corpus.n_features), np.float32)),
        rows,
        None,
        np.arange(len(pairs.rows)),  # rows that answers name come first
        settings=asked.settings,
        distortion=distortion.bind(extent),
        extent=extent,
        cost_unit=1.0,
        row_bytes=facts.nbytes // max(facts.n_rows, 1),
    )
    made = flow.lazy(_trial_sample, gathered.block, flow.share(plan))
    sample = flow.persist([made])[0]
    known: SampleFacts = flow.compute([flow.lazy(_facts_of, sample)])[0]
    if known.n_rows < LEAST_ROWS:
        raise InvalidInputError(
            f"K must be chosen by at least {LEAST_ROWS} rows that are not zero, got "
            f"{known.n_rows}; give n_clusters as a number"
        )
    check_memory([table_task(min(asked.span.most, known.n_rows), known.n_features)])
    latent = None if known.is_dense else _latent(flow, sample, known, asked.settings.seed)
    trials = flow.lazy(prepare_trials, sample, latent, flow.share(pairs))
    return flow.persist([trials])[0], known


def _trial_sample(block: RowBlock, plan: StartSample) -> StartSample:
    """Return the rows that K are tried on: sorted, and none of zeros alone."""
    sample = narrowed(make_start_sample(block, plan))
    filled = nonzero_rows(sample.block)
    places = np.full(sample.block.n_rows, -1)
    places[filled] = np.arange(len(filled))
    return replace(sample, block=sample.block.take(filled), node_rows=places[sample.node_rows])


def _facts_of(sample: StartSample) -> SampleFacts:
    block = sample.block
    return SampleFacts(block.n_rows, n_distinct(block), block.n_features, block.is_dense)


def _latent(flow: Dataflow, sample: Lazy, facts: SampleFacts, seed: int) -> Lazy:
    """Return the rows of a sample in few dimensions, of length 1, as a task result."""
    block, shape = flow.persist([flow.lazy(_rows_of, sample)])[0], (facts.n_rows, facts.n_features)
    corpus = Corpus((block,), shape[1], (shape[0],), has_ids=True)
    latent = decompose(flow, corpus, min(DIMENSIONS, *shape), POWER_ITERATIONS, seed)
    return projected(flow, corpus, latent.components, normalised=True, as_blocks=True)[0]


def _rows_of(sample: StartSample) -> RowBlock:
    return sample.block


def _resolved(flow: Dataflow, corpus: Corpus, asked: Asked) -> SampledPairs:
    """Return the answers whose documents the sample has; of very many some, by keyed numbers."""
    pairs = asked.constraints
    if pairs is None or not len(pairs):
        nothing = np.zeros(0, np.int64)
        return SampledPairs(nothing, nothing.reshape(0, 2), nothing.reshape(0, 2))
    rows = preparation.rows_of(flow, corpus, pairs)
    numbers = uniforms(hash_ids(pairs.documents), asked.settings.seed, "sample", 0, 0, 0)
    nodes = np.concatenate([pairs.must_nodes, pairs.cannot_nodes]).astype(np.int64)
    order = np.argsort(numbers[nodes].min(axis=1), kind="stable")
    seen = nodes[order].ravel()
    new = np.zeros(len(seen), np.int64)
    new[np.unique(seen, return_index=True)[1]] = 1
    n_named = np.cumsum(new)[1::2]
    chosen = np.sort(order[n_named <= _sample_size(asked) // 2])
    used, places = np.unique(nodes[chosen], return_inverse=True)
    ends, is_must = places.reshape(-1, 2), chosen < len(pairs.must_nodes)
    return SampledPairs(rows[used], ends[is_must], ends[~is_must])


def _sample_size(asked: Asked) -> int:
    return max(SAMPLE_ROWS, SAMPLE_ROWS_PER_CLUSTER * asked.span.most)


def _sampled(flow: Dataflow, corpus: Corpus, asked: Asked, pairs: SampledPairs) -> IntArray:
    """Return the rows of the sample: those of answers first, then others by keyed numbers."""
    most = min(_sample_size(asked), corpus.n_rows) - len(pairs.rows)
    draw, nowhere = Draw(asked.settings.seed, most), np.zeros(0, np.int64)
    taken = np.sort(pairs.rows)
    lists = []
    for block, first, stop in zip(corpus.named, corpus.offsets, corpus.offsets[1:], strict=False):
        here = slice(*np.searchsorted(taken, [first, stop]))
        lists.append(flow.lazy(lowest_rows, block, first, nowhere, taken[here] - first, draw))
    lowest: Lowest = flow.compute([tree(flow, merge_lowest, lists)])[0]
    return np.concatenate([pairs.rows, lowest.rows])
