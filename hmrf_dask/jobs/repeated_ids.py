"""Documents whose id another file has too: an error that names both, or put aside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hmrf_dask.corpus.duplicates import find_duplicate_ids
from hmrf_dask.corpus.files import corpus_of_files
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.dataflow import DaskFlow
from hmrf_dask.documents.batches import Reject
from hmrf_dask.em.prepare import find_ids
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.jobs.job_rows import Home
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.store.blocks import BlockSource, write_block
from hmrf_dask.types import IntArray

SHOWN = 5
REASON = "the id is that of a document of another file"


@dataclass(frozen=True)
class Unique:
    """A corpus without ids that come twice, and the documents left out."""

    corpus: Corpus
    rejects: list[Reject]


def without_repeated(
    corpus: Corpus,
    homes: Sequence[Home],
    url: str,
    *,
    first: Callable[[str], Any],
    quarantine: bool,
) -> Unique:
    """Return the corpus with each id once: of several documents that of the first file stays.

    Parameters
    ----------
    corpus : Corpus
        Of files.
    homes : sequence of lists
        The files in each partition, and how many documents of each.
    url : str
        Folder for the rows of partitions that lose some.
    first : callable
        What files are put in order by.
    quarantine : bool
        Whether documents are left out; else they are an error.
    """
    flow = DaskFlow()
    repeated = find_duplicate_ids(
        corpus, blocks=corpus.named, lazy=flow.lazy, compute=_computing(flow)
    )
    if not repeated:
        return Unique(corpus, [])
    ids = np.sort(np.asarray(repeated, np.str_))
    shared = flow.share(ids)
    found = flow.compute([flow.lazy(find_ids, block, shared) for block in corpus.named])
    where: list[list[tuple[str, int, int]]] = [[] for _ in ids]  # file, partition, row
    for part, (places, rows) in enumerate(found):
        for place, row, path in zip(places, rows, _paths(homes[part], rows), strict=True):
            where[place].append((path, part, int(row)))
    for some in where:
        some.sort(key=lambda one: (first(one[0]), *one[1:]))
    if not quarantine:
        shown = "; ".join(
            f"{one!r} in {' and '.join(dict.fromkeys(path for path, *_ in some))}"
            for one, some in zip(ids[:SHOWN].tolist(), where, strict=False)
        )
        raise InvalidInputError(
            f"document ids must be unique, got {len(ids)} of them twice: {shown}; give every "
            "document its own id, or keep the first of each with on_bad_record: quarantine"
        )
    lost = [
        Reject(path, 0, one, REASON, "")
        for one, some in zip(ids.tolist(), where, strict=True)
        for path, *_ in some[1:]
    ]
    out: dict[int, list[int]] = defaultdict(list)
    for some in where:
        for _, part, row in some[1:]:
            out[part].append(row)
    return Unique(_without(flow, corpus, out, url), lost)


def _paths(home: Home, rows: IntArray) -> list[str]:
    """Return the file of each of some rows of a partition."""
    ends = np.cumsum([n for _, n in home])
    return [home[place][0] for place in np.searchsorted(ends, rows, side="right")]


def _computing(flow: DaskFlow) -> Callable[..., tuple[Any, ...]]:
    return partial(_computed, flow)


def _computed(flow: DaskFlow, *values: Any) -> tuple[Any, ...]:
    return tuple(flow.compute(values))


def _without(flow: DaskFlow, corpus: Corpus, out: dict[int, list[int]], url: str) -> Corpus:
    """Return the corpus with other files in the place of those that lose rows."""
    made = flow.compute(
        [
            flow.lazy(_write_rest, corpus.sources[part], rows, part, url)
            for part, rows in out.items()
        ]
    )
    changed = dict(zip(out, made, strict=True))
    sources = [changed.get(part, source) for part, source in enumerate(corpus.sources)]
    return corpus_of_files(sources, corpus.n_features)


def _write_rest(block: RowBlock, rows: list[int], part: int, url: str) -> BlockSource:
    rest = block.take(np.delete(np.arange(block.n_rows), rows))
    return BlockSource(url, write_block(rest, url, part), block.n_features)
