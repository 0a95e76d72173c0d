"""A corpus: rows in partitions, from and to whatever holds rows."""

from __future__ import annotations

from hmrf_dask.corpus.partitioned import Corpus, as_corpus

__all__ = ["Corpus", "as_corpus"]
