"""Counts of terms in texts: scikit-learn's CountVectorizer bit for bit, in memory or Parquet."""

from __future__ import annotations

import json
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import scipy.sparse
from pydantic import BaseModel, ConfigDict, Field, StrictBool, field_validator, model_validator
from sklearn.feature_extraction.text import CountVectorizer

from hmrf_dask.errors import ConfigurationError, InvalidInputError, UnreadableFileError
from hmrf_dask.kernels.tokens import character_table, count_entries, read_words
from hmrf_dask.parameters import LIST_ITEMS, within
from hmrf_dask.rows.encoding import as_arrow, as_numpy
from hmrf_dask.storage.whole_files import encode_parquet
from hmrf_dask.types import IntArray, LabelArray, Sized

Count = Annotated[int, Field(**within("document_count"))]
Columns = Annotated[int, Field(**within("columns"))]
Length = Annotated[int, Field(**within("ngram"))]
Share = Annotated[float, Field(**within("share"))]
Word = Annotated[str, Field(max_length=1_000)]


class TextSettings(BaseModel):
    """How texts become rows, as a job file says it; names and meanings are scikit-learn's.

    `kind` is words, or n-grams of characters within words ("char_wb"), in an exact vocabulary;
    words hashed into `n_features` columns, none with a sign; or embeddings.

    Examples
    --------
    >>> TextSettings(stop_words="english", min_df=2).ngram_range
    (1, 1)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["words", "characters", "hashing", "embeddings"] = Field(
        default="words",
        description="What rows are made of: words, letters within words, words hashed into "
        "n_features columns, or numbers of a model.",
    )
    column: Annotated[str, Field(min_length=1, max_length=1_000)] | None = Field(
        default=None,
        description="Which of several columns of documents.text this is made of; without it, all.",
    )
    lowercase: StrictBool = Field(default=True, description="Whether letters are made small first.")
    strip_accents: Literal["ascii", "unicode"] | None = Field(
        default=None, description="Whether accents are taken off, as in scikit-learn."
    )
    stop_words: Word | Annotated[tuple[Word, ...], Field(max_length=LIST_ITEMS)] | None = Field(
        default=None,
        description="Words that are left out: english (scikit-learn's), or a list of them.",
    )
    ngram_range: tuple[Length, Length] = Field(
        default=(1, 1), description="Words in a row that count as one: [1, 2] is one or two."
    )
    min_df: Count | Share = Field(
        default=1,
        description="Words of fewer documents are left out; 0.01 is a share of the documents.",
    )
    max_df: Count | Share = Field(
        default=1.0,
        description="Words of more documents are left out; 0.5 is a share of the documents.",
    )
    max_features: Columns | None = Field(
        default=None,
        description="Only so many words, the commonest; of equal ones the first in the alphabet.",
    )
    n_features: Columns = Field(
        default=2**18, description="Columns that words are hashed into, where kind is hashing."
    )
    sublinear_tf: StrictBool = Field(
        default=False, description="Whether a word counts 1 + ln(times) in place of times."
    )
    norm: Literal["l2", "l1"] | None = Field(
        default="l2", description="What makes rows equally long."
    )
    lsa: Annotated[int, Field(**within("n_components"))] | None = Field(
        default=None, description="So many dimensions in place of words (a truncated SVD)."
    )

    @field_validator("stop_words")
    @classmethod
    def _known_language(cls, value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        """Refuse a language without a list; words are composed as texts are, sorted and unique."""
        if isinstance(value, tuple):
            return tuple(sorted({unicodedata.normalize("NFC", word) for word in value}))
        if value not in (None, "english"):
            raise ValueError(
                "must be a language with a list of stop words (there is: english) or a list of "
                f"words, got {value!r}; give the words themselves"
            )
        return value

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        """Refuse values that contradict one another."""
        shortest, longest = self.ngram_range
        if shortest > longest:
            raise ValueError(
                f"ngram_range must not fall, got {list(self.ngram_range)}; "
                f"give {[longest, shortest]}"
            )
        if self.kind == "characters" and self.stop_words is not None:
            raise ValueError("stop_words must be left out for characters; they are whole words")
        limited = self.min_df != 1 or self.max_df != 1.0 or self.max_features is not None
        if self.kind == "hashing" and limited:
            raise ValueError(
                "min_df, max_df and max_features must be left out where words are hashed; "
                "n_features says how many columns there are"
            )
        return self

    @property
    def counting_identity(self) -> str:
        """What counts of a text depend on, hashed: equal where counts can be used again.

        Examples
        --------
        >>> words, few = TextSettings(), TextSettings(max_features=10)
        >>> words.counting_identity == few.counting_identity
        True
        >>> words.counting_identity == TextSettings(lowercase=False).counting_identity
        False
        """
        unit = "characters" if self.kind == "characters" else "words"
        counting = {"lowercase", "strip_accents", "stop_words", "ngram_range"}
        content = {"unit": unit, **self.model_dump(mode="json", include=counting)}
        if self.column is not None:
            content["column"] = self.column
        return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _without_nulls(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


_NUMBERS = pa.list_(pa.field("element", pa.int32(), nullable=False))
_ROWS = _without_nulls(id=pa.string(), indices=_NUMBERS, counts=_NUMBERS)
_TERMS = _without_nulls(term=pa.large_string(), documents=pa.int64(), occurrences=pa.int64())
_ENCODINGS = {
    "id": "DELTA_LENGTH_BYTE_ARRAY",
    "indices.list.element": "DELTA_BINARY_PACKED",
    "counts.list.element": "DELTA_BINARY_PACKED",
    "term": "DELTA_BYTE_ARRAY",  # in ascending order they begin alike
    "documents": "DELTA_BINARY_PACKED",
    "occurrences": "DELTA_BINARY_PACKED",
    "idf": "BYTE_STREAM_SPLIT",
}


@dataclass(frozen=True, eq=False)
class Counted(Sized):
    """How often each text has each term of a batch."""

    indptr: LabelArray
    indices: LabelArray  # ascending within a text
    counts: LabelArray
    terms: pa.Array  # strings, ascending, each of them in one text at least

    @property
    def n_texts(self) -> int:
        """Number of texts.

        Examples
        --------
        >>> count_texts(["a tree", "no tree"], TextSettings()).n_texts
        2
        """
        return len(self.indptr) - 1

    @property
    def documents(self) -> IntArray:
        """How many texts have each term.

        Examples
        --------
        >>> counted = count_texts(["tree tree", "house tree"], TextSettings())
        >>> counted.terms.to_pylist(), counted.documents.tolist()
        (['house', 'tree'], [1, 2])
        """
        return np.bincount(self.indices, minlength=len(self.terms)).astype(np.int64)

    def without(self, rows: IntArray) -> Counted:
        """Return the counts of the other texts, with the terms that these have.

        Examples
        --------
        >>> counted = count_texts(["a tree", "no tree", "some house"], TextSettings())
        >>> left = counted.without(np.array([1]))
        >>> left.terms.to_pylist(), left.to_scipy().toarray().tolist()
        (['house', 'some', 'tree'], [[0, 0, 1], [1, 1, 0]])
        """
        matrix = self.to_scipy()[np.delete(np.arange(self.n_texts), rows)]
        used = np.flatnonzero(np.bincount(matrix.indices, minlength=len(self.terms)))
        rank = np.zeros(len(self.terms), np.int32)
        rank[used] = np.arange(len(used), dtype=np.int32)
        terms = self.terms.take(as_arrow(used, pa.int64()))
        indptr, counts = matrix.indptr.astype(np.int32), matrix.data
        return Counted(indptr, rank[matrix.indices], counts, terms)

    @property
    def occurrences(self) -> IntArray:
        """How often each term occurs.

        Examples
        --------
        >>> counted = count_texts(["tree tree", "house tree"], TextSettings())
        >>> counted.terms.to_pylist(), counted.occurrences.tolist()
        (['house', 'tree'], [1, 3])
        """
        totals = np.bincount(self.indices, self.counts, minlength=len(self.terms))
        return totals.astype(np.int64)  # exact: whole numbers below 2**53

    def to_scipy(self) -> scipy.sparse.csr_array:
        """Return the counts as a matrix, a column for each term.

        Examples
        --------
        >>> count_texts(["tree tree", "house tree"], TextSettings()).to_scipy().toarray().tolist()
        [[0, 2], [1, 1]]
        """
        shape = (self.n_texts, len(self.terms))
        return scipy.sparse.csr_array((self.counts, self.indices, self.indptr), shape=shape)


def encode_rows(counted: Counted, ids: Sequence[str]) -> bytes:
    """Return a Parquet file of the ids of texts, and of what each has of which term."""
    offsets = as_arrow(counted.indptr, pa.int32())
    lists = [
        pa.ListArray.from_arrays(offsets, as_arrow(numbers, pa.int32()), type=_NUMBERS)
        for numbers in (counted.indices, counted.counts)
    ]
    return encode_table(pa.Table.from_arrays([pa.array(ids, pa.string()), *lists], schema=_ROWS))


def encode_terms(counted: Counted) -> bytes:
    """Return a Parquet file of the terms, and of how many texts have each, how often."""
    documents, occurrences = counted.documents, counted.occurrences
    columns = [counted.terms, as_arrow(documents, pa.int64()), as_arrow(occurrences, pa.int64())]
    return encode_table(pa.Table.from_arrays(columns, schema=_TERMS))


def decode_rows(content: bytes, terms: pa.Array, path: str) -> tuple[Counted, list[str]]:
    """Return what `encode_rows` was given; arrays share the buffers of the reader.

    Examples
    --------
    >>> counted = count_texts(["tree tree", "house tree"], TextSettings())
    >>> content = encode_rows(counted, ["a", "b"])
    >>> decode_rows(content, counted.terms, "rows.parquet")[1]
    ['a', 'b']
    """
    ids, *lists = decode_table(content, _ROWS, path)
    (indptr, indices), (same, counts) = (
        (as_numpy(column.offsets, np.int32), as_numpy(column.flatten(), np.int32))
        for column in lists
    )
    inside = not indices.size or (indices.min() >= 0 and indices.max() < len(terms))
    if not inside or not np.array_equal(indptr, same):
        refuse_file(path, f"its numbers of terms do not fit its counts or its {len(terms)} terms")
    return Counted(indptr, indices, counts, terms), ids.to_pylist()


def decode_terms(content: bytes, path: str) -> tuple[pa.Array, IntArray, IntArray]:
    """Return terms, in how many texts each is, and how often.

    Examples
    --------
    >>> counted = count_texts(["tree tree", "house tree"], TextSettings())
    >>> terms, documents, occurrences = decode_terms(encode_terms(counted), "terms.parquet")
    >>> terms.to_pylist(), documents.tolist(), occurrences.tolist()
    (['house', 'tree'], [1, 2], [1, 3])
    """
    terms, documents, occurrences = decode_table(content, _TERMS, path)
    return terms, as_numpy(documents, np.int64), as_numpy(occurrences, np.int64)


def encode_table(table: pa.Table) -> bytes:
    """Return the bytes of a Parquet file with one row group and checksums of its pages."""
    return encode_parquet(
        table,
        compression_level=3,
        use_dictionary=False,
        write_statistics=False,
        column_encoding={
            name: code
            for name, code in _ENCODINGS.items()
            if name.split(".")[0] in table.schema.names
        },
        row_group_size=max(1, len(table)),
    )


def decode_table(content: bytes, schema: pa.Schema, path: str) -> list[pa.Array]:
    """Return the columns of a Parquet file, which must be those of `schema`."""
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        if not file.schema_arrow.equals(schema):
            refuse_file(path, f"its columns are {file.schema_arrow.names} or of other types")
        table = file.read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        refuse_file(path, f"it cannot be read as Parquet ({error})")
    return [column.combine_chunks() for column in table.columns]


def refuse_file(path: str, what: str) -> NoReturn:
    """Raise UnreadableFileError that names a file and what is wrong with it.

    Examples
    --------
    >>> refuse_file("counts/a.parquet", "it is missing")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    hmrf_dask.errors.UnreadableFileError: the file 'counts/a.parquet' must be as ...
    """
    raise UnreadableFileError(
        f"the file {path!r} must be as vectorising wrote it, but {what}; restore it, or remove "
        "its folder and run again",
        path,
        what,
    )


class Occurrences(NamedTuple):
    """Every occurrence of a term: of which text, which term; those of a term by text."""

    rows: LabelArray
    numbers: LabelArray
    terms: pa.Array


def texts_of(batch: Any, column: str | None) -> Sequence[str]:
    """Return the texts of a batch of documents, or what one of several columns has of them.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> batch = SimpleNamespace(texts=["cats purr"], columns={"title": ["cats"]})
    >>> texts_of(batch, None), texts_of(batch, "title")
    (['cats purr'], ['cats'])
    """
    texts: Sequence[str] = batch.texts if column is None else batch.columns.get(column, batch.texts)
    return texts


def count_texts(texts: Sequence[str], settings: TextSettings) -> Counted:
    """Return how often each text has each term, and the terms of all in ascending order.

    Examples
    --------
    >>> counted = count_texts(["to be or not to be", "be"], TextSettings())
    >>> counted.terms.to_pylist(), counted.to_scipy().toarray().tolist()
    (['be', 'not', 'or', 'to'], [[2, 1, 1, 2], [1, 0, 0, 0]])
    """
    if settings.kind == "embeddings":
        raise ConfigurationError(
            "kind must be words, characters or hashing to count texts, got embeddings; give the "
            "column of embeddings to what makes rows"
        )
    if settings.kind == "characters":
        return _count_characters(texts, settings)
    return _counted(_grams(_words(texts, settings), settings.ngram_range), len(texts))


def _vectoriser(settings: TextSettings) -> CountVectorizer:
    """Return the scikit-learn vectoriser whose matrix is made, of composed texts."""
    characters = settings.kind == "characters"
    stop_words = settings.stop_words
    return CountVectorizer(
        analyzer="char_wb" if characters else "word",
        lowercase=settings.lowercase,
        strip_accents=settings.strip_accents,
        stop_words=list(stop_words) if isinstance(stop_words, tuple) else stop_words,
        ngram_range=settings.ngram_range,
    )


def stray_stop_words(settings: TextSettings) -> list[str]:
    """Return what stop words become in texts that is no stop word itself: "don't" leaves "don".

    Examples
    --------
    >>> stray_stop_words(TextSettings(stop_words=("don't", "the")))
    ['don']
    """
    vectoriser = _vectoriser(settings)
    words = vectoriser.get_stop_words() or frozenset()
    prepare, find = vectoriser.build_preprocessor(), vectoriser.build_tokenizer()
    return sorted({part for word in words for part in find(prepare(word))} - words)


# ---- words


@lru_cache(maxsize=8)
def _words_of(settings: TextSettings) -> Callable[[str], str]:
    """Return what puts the words of a text that is not ASCII between single spaces."""
    vectoriser = _vectoriser(settings)
    prepare, find = vectoriser.build_preprocessor(), vectoriser.build_tokenizer()
    return lambda text: " ".join(find(prepare(unicodedata.normalize("NFC", text))))


def _words(texts: Sequence[str], settings: TextSettings) -> Occurrences:
    """Return the words of texts without stop words, in the order of the texts."""
    words_of = _words_of(settings)
    plain = pa.array([t if t.isascii() else words_of(t) for t in texts], pa.large_string())
    _, offsets, content = plain.buffers()
    starts = np.frombuffer(offsets, np.int64, len(plain) + 1)
    characters = np.frombuffer(b"" if content is None else content, np.uint8)
    read = read_words(characters, starts, character_table(lowercase=settings.lowercase))
    rows = np.repeat(np.arange(len(texts), dtype=np.int32), np.diff(read.ends))
    buffers = [None, pa.py_buffer(read.bounds), pa.py_buffer(read.characters)]
    terms = pa.Array.from_buffers(pa.large_string(), len(read.bounds) - 1, buffers)
    stop_words = _vectoriser(settings).get_stop_words()
    if not stop_words:
        return Occurrences(rows, read.numbers, terms)
    stopped = pc.is_in(terms, value_set=pa.array(sorted(stop_words), pa.large_string()))
    kept = ~stopped.to_numpy(zero_copy_only=False)[read.numbers]
    return Occurrences(rows[kept], read.numbers[kept], terms)


def _grams(words: Occurrences, ngram_range: tuple[int, int]) -> Occurrences:
    """Return the n-grams of words that follow one another in a text."""
    shortest, longest = ngram_range
    by_length = [words]
    for length in range(2, longest + 1):
        by_length.append(_longer(by_length[-1], words, length))
    chosen = by_length[shortest - 1 :]
    if len(chosen) == 1:
        return chosen[0]
    firsts = np.cumsum([0, *(len(grams.terms) for grams in chosen[:-1])], dtype=np.int32)
    numbers = [grams.numbers + first for grams, first in zip(chosen, firsts, strict=True)]
    return Occurrences(
        np.concatenate([grams.rows for grams in chosen]),
        np.concatenate(numbers),
        pa.concat_arrays([grams.terms for grams in chosen]),
    )


def _longer(grams: Occurrences, words: Occurrences, length: int) -> Occurrences:
    """Return grams one word longer: of `length` words, each begins where one of them begins.

    A gram lies at the place of its first word among the words of its text, so the word to add is
    `length` - 1 places on; the last gram of a text has none.
    """
    n_words, n_grams = np.bincount(words.rows), np.bincount(grams.rows)
    n_grams = np.pad(n_grams, (0, len(n_words) - len(n_grams)))
    offset = np.cumsum(n_words) - n_words - (np.cumsum(n_grams) - n_grams)
    next_word = np.arange(len(grams.rows)) + offset[grams.rows] + length - 1
    inside = next_word < np.cumsum(n_words)[grams.rows]
    first, second = grams.numbers[inside], words.numbers[next_word[inside]]
    both = first.astype(np.int64) * len(words.terms) + second
    encoded = as_arrow(both, pa.int64()).dictionary_encode()
    pairs = as_numpy(encoded.dictionary, np.int64)
    before, after = np.divmod(pairs, max(len(words.terms), 1))
    terms = pc.binary_join_element_wise(
        grams.terms.take(as_arrow(before, pa.int64())),
        words.terms.take(as_arrow(after, pa.int64())),
        pa.scalar(" ", pa.large_string()),
    )
    return Occurrences(grams.rows[inside], as_numpy(encoded.indices, np.int32), terms)


# ---- characters


def _count_characters(texts: Sequence[str], settings: TextSettings) -> Counted:
    """Return counts of n-grams within words: those of each distinct word, times its occurrences."""
    prepare = _vectoriser(settings).build_preprocessor()
    book: defaultdict[str, int] = defaultdict()
    book.default_factory = book.__len__
    numbers, lengths = [], []
    for text in texts:
        words = prepare(text if text.isascii() else unicodedata.normalize("NFC", text)).split()
        numbers.extend([book[word] for word in words])
        lengths.append(len(words))
    rows = np.repeat(np.arange(len(texts), dtype=np.int32), lengths)
    of_texts = count_entries(rows, np.asarray(numbers, np.int32), len(texts), len(book))
    grams = _counted(_grams_of_words(list(book), settings), len(book))
    ahead = scipy.sparse.csr_array(
        (of_texts.counts, of_texts.indices, of_texts.indptr), shape=(len(texts), len(book))
    )
    product = (ahead @ grams.to_scipy()).tocsr()
    product.sort_indices()
    return Counted(
        product.indptr.astype(np.int32), product.indices.astype(np.int32), product.data, grams.terms
    )


def _grams_of_words(words: Sequence[str], settings: TextSettings) -> Occurrences:
    """Return the n-grams of words that are prepared already."""
    analyse = CountVectorizer(
        analyzer="char_wb", lowercase=False, ngram_range=settings.ngram_range
    ).build_analyzer()
    book: defaultdict[str, int] = defaultdict()
    book.default_factory = book.__len__
    grams = [[book[gram] for gram in analyse(word)] for word in words]
    rows = np.repeat(np.arange(len(words), dtype=np.int32), list(map(len, grams)))
    numbers = np.fromiter(chain.from_iterable(grams), np.int32, len(rows))
    try:
        return Occurrences(rows, numbers, pa.array(list(book), pa.large_string()))
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"texts must be valid Unicode, got a lone surrogate in {error.object!r}; fix this text"
        ) from None


# ---- what both share


def _counted(occurrences: Occurrences, n_texts: int) -> Counted:
    """Return the counts of occurrences, the terms that occur in ascending order."""
    rows, numbers, terms = occurrences
    used = np.bincount(numbers, minlength=len(terms)) > 0
    order = as_numpy(pc.sort_indices(terms), np.uint64).astype(np.int64)
    order = order[used[order]]
    rank = np.zeros(len(terms), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    entries = count_entries(rows, rank[numbers], n_texts, len(order))
    terms = terms.take(as_arrow(order, pa.int64()))
    return Counted(entries.indptr.astype(np.int32), entries.indices, entries.counts, terms)
