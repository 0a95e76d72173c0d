"""A corpus of blocks that lie in several folders."""

from __future__ import annotations

from collections.abc import Sequence

from dask.delayed import delayed

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.store.blocks import BlockSource


def corpus_of_files(
    sources: Sequence[BlockSource], n_features: int, *, has_ids: bool = True
) -> Corpus:
    """Return the rows of files, in their order; one file, one task.

    Parameters
    ----------
    sources : sequence of BlockSource
        At least one.
    n_features : int
        That of all.
    has_ids : bool
        Whether their ids are document ids.

    Returns
    -------
    Corpus
    """
    parts = tuple(delayed(source.read, pure=False)() for source in sources)
    counts = tuple(source.file.n_rows for source in sources)
    return Corpus(parts, n_features, counts, has_ids, sources=tuple(sources))
