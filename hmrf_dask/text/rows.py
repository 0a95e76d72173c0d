"""From counts to rows: TF-IDF as scikit-learn's TfidfVectorizer of float32 has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import scipy.sparse
from sklearn.preprocessing import normalize

from hmrf_dask.rows.block import RowBlock
from hmrf_dask.store.encoding import as_arrow
from hmrf_dask.text.counted import Counted
from hmrf_dask.text.vocabulary import Vocabulary
from hmrf_dask.types import FloatArray, IntArray


@dataclass(frozen=True)
class Coverage:
    """How much of some texts a vocabulary knows.

    Attributes
    ----------
    n_texts, n_empty : int
        Texts, and those of them without a known term: their rows are empty.
    n_known, n_occurrences : int
        Occurrences of terms it has, and of all.
    """

    n_texts: int = 0
    n_empty: int = 0
    n_known: int = 0
    n_occurrences: int = 0

    @property
    def unknown_share(self) -> float:
        """Share of occurrences of terms that it does not have.

        `Vocabulary.unknown_share` is that of the texts it was made of, where `min_df` and the like
        leave out terms too: what is more than that share is news.
        """
        return 1.0 - self.n_known / self.n_occurrences if self.n_occurrences else 0.0

    @staticmethod
    def total(parts: Sequence[Coverage]) -> Coverage:
        """Return how much is known of several batches together."""
        return Coverage(
            sum(one.n_texts for one in parts),
            sum(one.n_empty for one in parts),
            sum(one.n_known for one in parts),
            sum(one.n_occurrences for one in parts),
        )


def to_rows(
    counted: Counted, vocabulary: Vocabulary, ids: Sequence[str]
) -> tuple[RowBlock, Coverage]:
    """Return the TF-IDF rows of counted texts, and how much of them the vocabulary knows.

    Equal to `TfidfVectorizer(dtype=np.float32).fit(texts it was made of).transform(texts)`.

    Parameters
    ----------
    counted : Counted
    vocabulary : Vocabulary
        Its components play no part here.
    ids : sequence of str
        Of the texts.

    Returns
    -------
    RowBlock, Coverage
    """
    settings = vocabulary.settings
    counts = known_counts(counted, vocabulary)
    found = Coverage(
        counted.n_texts,
        int((np.diff(counts.indptr) == 0).sum()),
        int(counts.data.sum(dtype=np.int64)),
        int(counted.counts.sum(dtype=np.int64)),
    )
    rows = counts.astype(np.float32)
    if settings.sublinear_tf:
        np.log(rows.data, out=rows.data)
        rows.data += np.float32(1)
    rows.data *= vocabulary.idf[rows.indices]
    if settings.norm is not None and rows.nnz:
        rows = normalize(rows, norm=settings.norm, copy=False)
    arrays = rows.data, rows.indices, rows.indptr
    return RowBlock.from_csr(*arrays, vocabulary.n_terms, list(ids)), found


def known_counts(counted: Counted, vocabulary: Vocabulary) -> scipy.sparse.csr_array:
    """Return counts of the terms of a vocabulary, a column for each of them."""
    columns = vocabulary.places(counted.terms)[counted.indices]
    kept = columns >= 0
    before = np.concatenate([np.zeros(1, np.int32), np.cumsum(kept, dtype=np.int32)])
    shape = (counted.n_texts, vocabulary.n_terms)
    counts = scipy.sparse.csr_array(
        (counted.counts[kept], columns[kept], before[counted.indptr]), shape=shape
    )
    if vocabulary.settings.kind == "hashing":  # else columns ascend as terms do, each its own
        counts.sum_duplicates()
    return counts


def top_words(centroids: FloatArray, vocabulary: Vocabulary, n_words: int = 10) -> list[list[str]]:
    """Return the heaviest terms of each centroid, heaviest first, the first by letters of equals.

    Parameters
    ----------
    centroids : float array, shape (n_clusters, n_features)
        Of rows of this vocabulary. Where it has components, these lead back to terms.
    vocabulary : Vocabulary
        Where words are hashed a column is named after the commonest word in it.
    n_words : int

    Returns
    -------
    list of lists of str
        Shorter where fewer terms have a positive weight.
    """
    components = vocabulary.components
    found = []
    for centroid in np.asarray(centroids, np.float64):
        weights = centroid @ components if len(components) else centroid
        heaviest = _heaviest(weights, n_words)
        terms = vocabulary.terms.take(as_arrow(heaviest, pa.int64())).to_pylist()
        found.append([term for term in terms if term is not None])
    return found


def _heaviest(weights: FloatArray, n: int) -> IntArray:
    """Return the places of the largest positive numbers, largest first, the first of equals."""
    least = np.partition(weights, -n)[-n] if n < len(weights) else -np.inf
    places = np.flatnonzero((weights >= least) & (weights > 0.0))
    return places[np.argsort(-weights[places], kind="stable")][:n]
