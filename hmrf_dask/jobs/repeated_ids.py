"""Documents whose id another file has too: an error that names both, or put aside."""

from __future__ import annotations

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


def without_repeated(corpus: Corpus, paths: Sequence[str], url: str, *, quarantine: bool) -> Unique:
    """Return the corpus with each id once: of several documents that of the first file stays.

    Parameters
    ----------
    corpus : Corpus
        Of files.
    paths : sequence of str
        The file that each partition comes from.
    url : str
        Folder for the rows of partitions that lose some.
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
    homes: list[list[str]] = [[] for _ in ids]
    out: dict[int, IntArray] = {}
    for part, (places, rows) in enumerate(found):
        late = np.asarray([bool(homes[place]) for place in places], np.bool_)
        if late.any():
            out[part] = rows[late]
        for place in places:
            homes[place].append(paths[part])
    if not quarantine:
        shown = "; ".join(
            f"{one!r} in {' and '.join(dict.fromkeys(home))}"
            for one, home in zip(ids[:SHOWN].tolist(), homes, strict=False)
        )
        raise InvalidInputError(
            f"document ids must be unique, got {len(ids)} of them twice: {shown}; give every "
            "document its own id, or keep the first of each with on_bad_record: quarantine"
        )
    lost = [
        Reject(home, 0, one, REASON, "")
        for one, found_in in zip(ids.tolist(), homes, strict=True)
        for home in found_in[1:]
    ]
    return Unique(_without(flow, corpus, out, url), lost)


def _computing(flow: DaskFlow) -> Callable[..., tuple[Any, ...]]:
    return partial(_computed, flow)


def _computed(flow: DaskFlow, *values: Any) -> tuple[Any, ...]:
    return tuple(flow.compute(values))


def _without(flow: DaskFlow, corpus: Corpus, out: dict[int, IntArray], url: str) -> Corpus:
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


def _write_rest(block: RowBlock, rows: IntArray, part: int, url: str) -> BlockSource:
    kept = np.delete(np.arange(block.n_rows), rows)
    ids, matrix = block.ids[kept], block.to_scipy()[kept] if not block.is_dense else None
    rest = (
        RowBlock.from_array(block.to_dense()[kept], ids)
        if matrix is None
        else RowBlock.from_scipy(matrix, ids)
    )
    return BlockSource(url, write_block(rest, url, part), block.n_features)
