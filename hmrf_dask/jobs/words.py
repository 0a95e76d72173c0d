"""What clusters are about: words that tell each from the others, and documents of usual length.

Words are those that were counted, whatever the rows of documents are made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from hmrf_dask.flow.dataflow import Dataflow, Lazy
from hmrf_dask.jobs.rows import JobRows
from hmrf_dask.rows.encoding import as_arrow, as_numpy
from hmrf_dask.rows.files import number_of
from hmrf_dask.text.counts import refuse_file
from hmrf_dask.text.files import COUNTED, COUNTS, Place, read_counted, read_source
from hmrf_dask.text.tfidf import Vocabulary
from hmrf_dask.types import BoolArray, IntArray, LabelArray, Sized

N_WORDS = 10  # listed of a cluster
LENGTHS = 64  # classes of length: two for each time that lengths double
QUARTERS = 4


@dataclass(frozen=True, eq=False)
class DocumentWords(Sized):
    """The words of the documents of a partition."""

    terms: sp.csr_array  # (n_documents, n_terms), 1 where a document has a term
    lengths: IntArray  # words of each document, whether the vocabulary has them or not

    def sized_values(self) -> tuple[Any, ...]:
        """Return the arrays."""
        return self.terms.data, self.terms.indices, self.terms.indptr, self.lengths


def words_of_partitions(
    flow: Dataflow, rows: JobRows, partitions: Sequence[Lazy], place: Place
) -> list[Lazy] | None:
    """Return the words of the documents of each partition, lazily; None where none are counted.

    Partitions say which documents there are; others that were counted with them are left out.
    """
    if rows.vocabulary is None:
        return None
    vocabulary = flow.broadcast(rows.vocabulary)
    batches = [
        (key, number_of(file))
        for key, source in zip(rows.keys, rows.rows, strict=True)
        for file in source.files
        if file.n_rows
    ]
    return [
        flow.lazy(_words_of, block, *batch, vocabulary, place)
        for block, batch in zip(partitions, batches, strict=True)
    ]


def _words_of(
    block: Any, key: str, number: int, vocabulary: Vocabulary, place: Place
) -> DocumentWords:
    """Return the words of the documents of a partition, from the counts of its batch."""
    storage = place.storage
    source = read_source(storage, key)
    if source is None:
        refuse_file(f"{storage.url}/{COUNTS}/{key}/{COUNTED}", "it is missing")
    counted, ids = read_counted(storage, source.batches[number])
    columns = vocabulary.places(counted.terms)[counted.indices]
    terms = _where_known(columns, counted.indptr, vocabulary.n_terms)
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(counted.counts, dtype=np.int64)])
    wanted = pa.array(block.ids.tolist(), pa.string())
    found = as_numpy(pc.index_in(wanted, value_set=pa.array(ids, pa.string())), np.int32)
    return DocumentWords(terms[found], np.diff(sums[counted.indptr])[found])


def _where_known(columns: LabelArray, indptr: LabelArray, n_terms: int) -> sp.csr_array:
    """Return 1 where a document has a term; columns are -1 where the vocabulary has none."""
    known = columns >= 0
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(known)])
    ones = np.ones(before[-1], np.int64)
    shape = (len(indptr) - 1, n_terms)
    terms = sp.csr_array((ones, columns[known], before[indptr]), shape=shape)
    terms.sum_duplicates()  # words that share a bucket
    terms.data[:] = 1
    return terms


def sums_by_cluster(terms: sp.csr_array, labels: LabelArray, n_clusters: int) -> sp.csr_array:
    """Return how many documents of each cluster have each term, (n_clusters, n_terms).

    Examples
    --------
    >>> terms = sp.csr_array(np.array([[1, 0], [1, 1], [0, 1]]))
    >>> sums_by_cluster(terms, np.array([0, 0, 1], np.int32), 2).toarray().tolist()
    [[2, 1], [0, 1]]
    """
    ones, rows = np.ones(len(labels), np.int64), np.arange(len(labels))
    members = sp.csr_array((ones, (labels, rows)), shape=(n_clusters, len(labels)))
    return sp.csr_array(members @ terms)


def telling_words(counts: sp.csr_array, terms: pa.Array, n_words: int = N_WORDS) -> list[list[str]]:
    """Return the words that tell each cluster from the others, best first, equals in order.

    `counts` says how many documents of each cluster have each term. A word counts by its share p of
    all that its cluster has, by how rare it is, as in c-TF-IDF, log(1 + A / f) (f: documents that
    have it, A: the mean of what clusters have), and by its share within against that without,
    log(1 + p / q). A list is shorter than `n_words` where its documents have fewer terms.

    Examples
    --------
    >>> counts = sp.csr_array(np.array([[9, 0, 8], [0, 5, 9]]))
    >>> telling_words(counts, pa.array(["orbit", "goal", "article"]), 2)
    [['orbit', 'article'], ['goal', 'article']]
    """
    per_cluster, per_term = counts.sum(axis=1), counts.sum(axis=0)
    total, n_used = int(per_term.sum()), max(1, int(np.count_nonzero(per_cluster)))
    found = []
    for number, in_all in enumerate(per_cluster.tolist()):
        stored = slice(counts.indptr[number], counts.indptr[number + 1])
        columns, inside = counts.indices[stored], counts.data[stored]
        share = inside / max(1, in_all)
        # One more document without that has it: else a word of one document alone would win.
        outside = (per_term[columns] - inside + 1) / (total - in_all + 1)
        rarity = np.log1p(total / n_used / per_term[columns])
        scores = share * rarity * np.log1p(share / outside)
        best = columns[np.lexsort((columns, -scores))[:n_words]]
        found.append(terms.take(as_arrow(best.astype(np.int64), pa.int64())).to_pylist())
    return found


def length_classes(lengths: IntArray) -> IntArray:
    """Return the class of each length: exact, as it goes by the bits of its square.

    Examples
    --------
    >>> length_classes(np.array([0, 1, 2, 3, 4, 5, 6, 8])).tolist()
    [0, 1, 3, 4, 5, 5, 6, 7]
    """
    bits = np.frexp(lengths.astype(np.float64) ** 2)[1]
    return np.minimum(bits, LENGTHS - 1).astype(np.int64)


def usual_classes(sizes: IntArray) -> BoolArray:
    """Return the classes of length from the first to the third quartile of a cluster.

    Examples
    --------
    >>> usual_classes(np.array([1, 0, 4, 9, 0, 4, 1])).tolist()
    [False, False, True, True, True, True, False]
    """
    until, total = np.cumsum(sizes), int(sizes.sum())
    first = int(np.argmax(QUARTERS * until >= total))
    last = int(np.argmax(QUARTERS * until >= (QUARTERS - 1) * total))
    every = np.arange(len(sizes))
    return np.asarray((every >= first) & (every <= last))
