"""Documents whose id another file has too: an error that names both, or put aside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

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
SAME = "the id is that of an earlier document of this file"
FindLines = Callable[[Mapping[int, set[str]]], Mapping[int, Mapping[str, int]]]
Place = tuple[str, int, int]  # a file, a partition, and a row of it


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
    find_lines: FindLines,
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
    find_lines : callable
        Where documents are that an earlier part of the same file has too.
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
    where: list[list[Place]] = [[] for _ in ids]
    for part, (places, rows) in enumerate(found):
        for place, row, path in zip(places, rows, _paths(homes[part], rows), strict=True):
            where[place].append((path, part, int(row)))
    for some in where:
        some.sort(key=lambda one: (first(one[0]), *one[1:]))
    if not quarantine:
        shown = _lost(ids[:SHOWN].tolist(), where[:SHOWN], find_lines)
        _refuse(len(ids), [some[0][0] for some in where], shown)
    out: dict[int, list[int]] = defaultdict(list)
    for some in where:
        for _, part, row in some[1:]:
            out[part].append(row)
    return Unique(_without(flow, corpus, out, url), _lost(ids.tolist(), where, find_lines))


def _lost(
    ids: Sequence[str], where: Sequence[Sequence[Place]], find_lines: FindLines
) -> list[Reject]:
    """Return all documents of some ids but the first of each."""
    same: dict[int, set[str]] = defaultdict(set)
    late = [
        (one, path, part, path in {earlier for earlier, *_ in some[:number]})
        for one, some in zip(ids, where, strict=True)
        for number, (path, part, _) in enumerate(some)
        if number
    ]
    for one, _, part, is_same in late:
        if is_same:
            same[part].add(one)
    lines = find_lines(same) if same else {}
    return [
        Reject(path, lines.get(part, {}).get(one, 0), one, SAME if is_same else REASON, "")
        for one, path, part, is_same in late
    ]


def _refuse(n_ids: int, firsts: Sequence[str], lost: Sequence[Reject]) -> NoReturn:
    homes: dict[str, list[str]] = {}
    for one in lost:
        place = f"{one.source}, line {one.line}" if one.line else one.source
        homes.setdefault(str(one.id), [firsts[len(homes)]]).append(place)
    shown = "; ".join(
        f"{one!r} in {' and '.join(dict.fromkeys(home))}" for one, home in homes.items()
    )
    raise InvalidInputError(
        f"document ids must be unique, got {n_ids} of them twice: {shown}; give every "
        "document its own id, or keep the first of each with on_bad_record: quarantine"
    )


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
