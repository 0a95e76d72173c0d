"""From counts to rows: frequencies, the vocabulary made of them, TF-IDF as scikit-learn has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse
from sklearn.feature_extraction import FeatureHasher
from sklearn.preprocessing import normalize

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.encoding import as_arrow, as_numpy
from hmrf_dask.text.counts import Counted, TextSettings
from hmrf_dask.types import FloatArray, IntArray, LabelArray, RowArray, Sized


@dataclass(frozen=True, eq=False)
class Frequencies(Sized):
    """In how many documents each term is, and how often; of several batches together by `merge`."""

    terms: pa.Array  # strings, ascending
    documents: IntArray
    occurrences: IntArray
    n_documents: int
    buckets: IntArray  # how many documents have a word of each bucket, where words are hashed

    @staticmethod
    def of(counted: Counted, settings: TextSettings) -> Frequencies:
        """Return the frequencies of one batch.

        Examples
        --------
        >>> from hmrf_dask.text.counts import count_texts
        >>> settings = TextSettings()
        >>> frequencies = Frequencies.of(count_texts(["tree tree", "tree"], settings), settings)
        >>> frequencies.documents.tolist(), frequencies.occurrences.tolist()
        ([2], [3])
        """
        buckets = np.zeros(0, np.int64)
        if settings.kind == "hashing":
            hashed = _in_buckets(counted, settings.n_features)
            buckets = np.bincount(hashed.indices, minlength=settings.n_features).astype(np.int64)
        return Frequencies(
            counted.terms, counted.documents, counted.occurrences, counted.n_texts, buckets
        )

    @staticmethod
    def none(settings: TextSettings) -> Frequencies:
        """Return the frequencies of no documents.

        Examples
        --------
        >>> Frequencies.none(TextSettings()).n_documents
        0
        """
        nothing = np.zeros(0, np.int64)
        n_buckets = settings.n_features if settings.kind == "hashing" else 0
        terms = pa.array([], pa.large_string())
        return Frequencies(terms, nothing, nothing, 0, np.zeros(n_buckets, np.int64))

    @staticmethod
    def merge(parts: Sequence[Frequencies]) -> Frequencies:
        """Return the frequencies of all documents together: exact, so in any order the same.

        Examples
        --------
        >>> from hmrf_dask.text.counts import count_texts
        >>> settings = TextSettings()
        >>> counted = [count_texts([text], settings) for text in ("tree", "house")]
        >>> parts = [Frequencies.of(batch, settings) for batch in counted]
        >>> Frequencies.merge(parts).terms.to_pylist()
        ['house', 'tree']
        """
        encoded = pa.concat_arrays([part.terms for part in parts]).dictionary_encode()
        terms = encoded.dictionary
        order = pc.sort_indices(terms)
        rank = np.empty(len(terms), np.int64)
        rank[as_numpy(order, np.uint64)] = np.arange(len(terms))
        places = rank[as_numpy(encoded.indices, np.int32)]
        totals = np.zeros((2, len(terms)), np.int64)
        np.add.at(totals[0], places, np.concatenate([part.documents for part in parts]))
        np.add.at(totals[1], places, np.concatenate([part.occurrences for part in parts]))
        buckets = parts[0].buckets.copy()
        for part in parts[1:]:
            buckets += part.buckets
        n_documents = sum(part.n_documents for part in parts)
        return Frequencies(terms.take(order), totals[0], totals[1], n_documents, buckets)


@dataclass(frozen=True)
class Dense:
    """Vectors of texts that are a part of rows, or all of them.

    Examples
    --------
    >>> Dense("wordllama/4c1a", "wordllama", 256, share=1.0).alone
    True
    """

    identity: str  # of the embedder, "" where vectors are a column of the documents
    model: str = field(compare=False)  # as the job names it, a folder as an absolute path
    width: int
    share: float  # of the squared length of a row; what is left is the words'
    column: str | None = None  # of the documents that was embedded; None: all of their text

    @property
    def described(self) -> str:
        """What a vocabulary's name depends on: a setting that is not used changes nothing."""
        values = self.identity, "", self.width, self.share
        return repr(values if self.column is None else (*values, self.column))

    @property
    def alone(self) -> bool:
        """Whether rows are vectors and nothing else; words are counted for people then."""
        return self.share == 1.0


@dataclass(frozen=True, eq=False)
class Vocabulary(Sized):
    """All that texts need to become rows, fixed once: what later texts are held against.

    Where words are hashed, its terms are the words of each bucket that occur most often, the first
    in alphabetical order of several; null where there is none.
    """

    settings: TextSettings
    terms: pa.Array  # strings, ascending
    idf: RowArray
    n_documents: int  # it was made of
    n_known: int  # occurrences in those documents of terms that are here
    n_occurrences: int  # of all terms
    components: FloatArray  # of LSA, shape (n_components, n_terms); n_components may be zero
    dense: Dense | None = None  # vectors that go with words, or in their place

    @property
    def n_terms(self) -> int:
        """Number of columns of TF-IDF rows."""
        return len(self.idf)

    @property
    def n_features(self) -> int:
        """Number of columns of rows: words or components, then vectors, where there are any."""
        width = self.dense.width if self.dense else 0
        return self.n_word_columns + width

    @property
    def n_word_columns(self) -> int:
        """Number of columns of rows that are made of words: the first ones, maybe none."""
        if self.dense is not None and self.dense.alone:
            return 0
        return len(self.components) or self.n_terms

    @property
    def unknown_share(self) -> float:
        """Share of occurrences left out where it was made: what later shares are held to.

        Examples
        --------
        >>> from hmrf_dask.text.counts import count_texts
        >>> settings = TextSettings(min_df=2)
        >>> counted = count_texts(["tree house", "tree garden"], settings)
        >>> make_vocabulary(Frequencies.of(counted, settings), settings).unknown_share
        0.5
        """
        return 1.0 - self.n_known / self.n_occurrences if self.n_occurrences else 0.0

    @cached_property
    def identity(self) -> str:
        """What it holds, hashed."""
        settings = self.settings.model_dump(mode="json")
        if self.settings.column is None:
            del settings["column"]
        counts = self.n_documents, self.n_known, self.n_occurrences
        content = sha256(repr((sorted(settings.items()), counts, self.components.shape)).encode())
        if self.dense is not None:
            content.update(self.dense.described.encode())
        content.update("\n".join(term or "" for term in self.terms.to_pylist()).encode())
        content.update(self.idf.astype("<f4").tobytes())
        content.update(self.components.astype("<f8").tobytes())
        return content.hexdigest()[:24]

    def places(self, terms: pa.Array) -> LabelArray:
        """Return the column of each term, -1 where it has none.

        Examples
        --------
        >>> from hmrf_dask.text.counts import count_texts
        >>> settings = TextSettings()
        >>> frequencies = Frequencies.of(count_texts(["garden tree"], settings), settings)
        >>> vocabulary = make_vocabulary(frequencies, settings)
        >>> vocabulary.places(pa.array(["tree", "sea"], pa.large_string()))
        array([ 1, -1], dtype=int32)
        """
        if self.settings.kind != "hashing":
            columns = pc.index_in(terms, value_set=self.terms)
            return as_numpy(pc.fill_null(columns, -1), np.int32)
        buckets = _buckets_of(terms, self.settings.n_features)
        used = self.terms.is_valid().to_numpy(zero_copy_only=False)
        return np.where(used[buckets], buckets, np.int32(-1))


def make_vocabulary(
    frequencies: Frequencies, settings: TextSettings, needed: bool = True
) -> Vocabulary:
    """Return the vocabulary of documents with these frequencies; unless `needed` it may be empty.

    Terms, their order and their IDF are those of scikit-learn's TfidfVectorizer of float32, but for
    `max_features` where terms that occur equally often are on both sides of the cut: its choice is
    up to the processor, here the first in alphabetical order stay.

    Examples
    --------
    >>> from hmrf_dask.text.counts import count_texts
    >>> settings = TextSettings(min_df=2)
    >>> counted = count_texts(["tree house", "tree garden", "garden tree"], settings)
    >>> make_vocabulary(Frequencies.of(counted, settings), settings).terms.to_pylist()
    ['garden', 'tree']
    """
    total = int(frequencies.occurrences.sum())
    if settings.kind == "hashing":
        terms = _commonest(frequencies, settings.n_features)
        documents, known = frequencies.buckets, total
    else:
        chosen = _chosen(frequencies, settings)
        terms = frequencies.terms.take(as_arrow(chosen, pa.int64()))
        documents = frequencies.documents[chosen]
        known = int(frequencies.occurrences[chosen].sum())
    if not known and needed:
        raise InvalidInputError(
            f"texts must leave at least one term, got none of {len(frequencies.terms)} terms in "
            f"{frequencies.n_documents} documents with min_df {settings.min_df}, max_df "
            f"{settings.max_df} and stop_words {'given' if settings.stop_words else 'none'}; "
            "relax these settings"
        )
    # 1 + ln((1 + n) / (1 + df)), each step in float32 as in scikit-learn.
    idf = np.full(len(documents), frequencies.n_documents + 1, np.float32)
    idf /= documents.astype(np.float32) + np.float32(1)
    np.log(idf, out=idf)
    idf += np.float32(1)
    return Vocabulary(
        settings=settings,
        terms=terms,
        idf=idf,
        n_documents=frequencies.n_documents,
        n_known=known,
        n_occurrences=total,
        components=np.empty((0, len(idf))),
    )


def _chosen(frequencies: Frequencies, settings: TextSettings) -> IntArray:
    """Return the numbers of the terms that stay, in ascending order."""
    n_documents, documents = frequencies.n_documents, frequencies.documents
    least, most = (
        limit if isinstance(limit, int) else limit * n_documents
        for limit in (settings.min_df, settings.max_df)
    )
    chosen = np.flatnonzero((documents >= least) & (documents <= most))
    if settings.max_features is None or len(chosen) <= settings.max_features:
        return chosen
    often = np.argsort(-frequencies.occurrences[chosen], kind="stable")
    return np.sort(chosen[often[: settings.max_features]])


# ---- hashing


def _buckets_of(terms: pa.Array, n_features: int) -> LabelArray:
    """Return the column that scikit-learn's HashingVectorizer puts each term into."""
    hasher = FeatureHasher(n_features, input_type="string", alternate_sign=False)
    if not len(terms):
        return np.empty(0, np.int32)
    return np.asarray(hasher.transform([term] for term in terms.to_pylist()).indices, np.int32)


def _in_buckets(counted: Counted, n_features: int) -> scipy.sparse.csr_array:
    """Return counts with a column for each bucket."""
    indices = _buckets_of(counted.terms, n_features)[counted.indices]
    shape = (counted.n_texts, n_features)
    arrays = counted.counts, indices, counted.indptr
    hashed = scipy.sparse.csr_array(arrays, shape=shape, copy=True)  # it is changed in place
    hashed.sum_duplicates()
    return hashed


def _commonest(frequencies: Frequencies, n_features: int) -> pa.Array:
    """Return the term of each bucket that occurs most often, null where there is none."""
    order = np.argsort(-frequencies.occurrences, kind="stable")
    buckets = _buckets_of(frequencies.terms, n_features)[order]
    used, first = np.unique(buckets, return_index=True)
    places: list[int | None] = [None] * n_features
    for bucket, number in zip(used.tolist(), order[first].tolist(), strict=True):
        places[bucket] = number
    return frequencies.terms.take(pa.array(places, pa.int64()))


@dataclass(frozen=True)
class Coverage:
    """How much of some texts a vocabulary knows."""

    n_texts: int = 0
    n_empty: int = 0  # texts without a known term: their rows are empty
    n_known: int = 0  # occurrences of terms it has
    n_occurrences: int = 0  # of all terms

    @property
    def unknown_share(self) -> float:
        """Share of occurrences of terms that it does not have.

        `Vocabulary.unknown_share` is that of the texts it was made of, where `min_df` and the like
        leave out terms too: what is more than that share is news.

        Examples
        --------
        >>> Coverage(n_texts=2, n_known=6, n_occurrences=8).unknown_share
        0.25
        """
        return 1.0 - self.n_known / self.n_occurrences if self.n_occurrences else 0.0

    @staticmethod
    def total(parts: Sequence[Coverage]) -> Coverage:
        """Return how much is known of several batches together.

        Examples
        --------
        >>> Coverage.total([Coverage(n_texts=2, n_empty=1), Coverage(n_texts=3)])
        Coverage(n_texts=5, n_empty=1, n_known=0, n_occurrences=0)
        """
        return Coverage(*map(sum, zip(*map(astuple, parts), strict=True)))


def to_rows(
    counted: Counted, vocabulary: Vocabulary, ids: Sequence[str]
) -> tuple[RowBlock, Coverage]:
    """Return the TF-IDF rows of counted texts, and how much of them the vocabulary knows.

    Equal to `TfidfVectorizer(dtype=np.float32).fit(texts it was made of).transform(texts)`; the
    components of the vocabulary play no part here.

    Examples
    --------
    >>> from hmrf_dask.text.counts import count_texts
    >>> settings = TextSettings()
    >>> counted = count_texts(["garden tree", "sea"], settings)
    >>> vocabulary = make_vocabulary(Frequencies.of(counted, settings), settings)
    >>> rows, coverage = to_rows(counted, vocabulary, ["a", "b"])
    >>> rows.indices.tolist(), coverage.n_known
    ([0, 2, 1], 3)
    """
    settings = vocabulary.settings
    counts = _known_counts(counted, vocabulary)
    coverage = Coverage(
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
    return RowBlock.from_csr(*arrays, vocabulary.n_terms, list(ids)), coverage


def _known_counts(counted: Counted, vocabulary: Vocabulary) -> scipy.sparse.csr_array:
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
