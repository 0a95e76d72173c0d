"""A cluster in parts: K-means of its documents alone, on a sample of them, inside one task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.fit import preparation
from hmrf_dask.fit.one_k import cluster
from hmrf_dask.fit.problem import gather_partitions
from hmrf_dask.flow.dataflow import DaskFlow, Inline
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.criteria import n_distinct, nonzero_rows
from hmrf_dask.tasks.model import Settings
from hmrf_dask.tasks.partitions import find_ids
from hmrf_dask.tasks.start_sample import StartSample
from hmrf_dask.types import AnyArray, FloatArray, IntArray


class Division(NamedTuple):
    """The parts of a cluster, the largest first."""

    centroids: FloatArray
    sizes: IntArray  # documents of the sample


def divide(
    corpus: Corpus, documents: AnyArray, settings: Settings, distortion: Distortion
) -> Division | None:
    """Return as many parts as `settings` have clusters, None where too few documents differ.

    `documents` are ids, sorted, each once: all of a small cluster, a keyed sample of a large one.
    The result is a function of them and their rows, however the corpus is partitioned.
    """
    flow = DaskFlow()
    shared = flow.share(documents)
    matches = flow.compute([flow.lazy(find_ids, block, shared) for block in corpus.named])
    firsts = corpus.offsets[: len(matches)]
    places = [local + first for (_, local), first in zip(matches, firsts, strict=True)]
    rows = np.sort(np.concatenate(places))
    if len(rows) < settings.n_clusters:
        return None
    bounds, offsets = np.asarray([0, len(rows)], np.int64), np.asarray(corpus.offsets)
    (gathered,) = gather_partitions(flow, corpus.blocks, offsets, rows, bounds, "division")
    task = flow.lazy(_divided, gathered.block, flow.share((settings, distortion)))
    division: Division | None = flow.compute([task])[0]
    return division


def _divided(block: RowBlock, how: tuple[Settings, Distortion]) -> Division | None:
    """Return the parts of the rows of a block, whatever their order."""
    settings, distortion = how
    block = block.take(nonzero_rows(block))
    block = block.take(np.argsort(block.ids, kind="stable"))
    if n_distinct(block) < settings.n_clusters:
        return None
    flow, n_rows = Inline(), block.n_rows
    rows: Any = (block,)  # which Inline needs no task for
    corpus = Corpus(rows, block.n_features, (n_rows,), has_ids=True)
    facts = preparation.survey_corpus(flow, corpus, distortion, fingerprinted=False)
    extent = preparation.extent_of(facts, block.n_features)
    sample = StartSample(
        block,
        np.arange(n_rows, dtype=np.int64),
        None,
        np.zeros(0, np.int64),
        settings=replace(settings, learn_weights=False),
        distortion=distortion.bind(extent),
        extent=extent,
        cost_unit=1.0,
        row_bytes=facts.nbytes // n_rows,
    )
    found = cluster(sample, settings.n_clusters)
    sizes = np.bincount(found.labels, minlength=settings.n_clusters).astype(np.int64)
    order = np.argsort(-sizes, kind="stable")
    return Division(found.centroids[order], sizes[order])
