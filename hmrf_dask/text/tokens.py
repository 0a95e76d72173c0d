"""Counts of terms in texts: the matrix of scikit-learn's CountVectorizer, bit for bit.

Words of texts that are ASCII are found by a kernel. All other texts are composed (NFC) and go
through scikit-learn's own preprocessing and pattern; the kernel then numbers what these found.
That pattern ends a word at a combining mark, so accents count as letters only where a composed
letter exists, and words of Hindi are cut at their vowel signs: give such texts as `characters`.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse
from sklearn.feature_extraction.text import CountVectorizer

from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.kernels.tokens import count_entries, letter_table, read_words
from hmrf_dask.store.encoding import as_arrow, as_numpy
from hmrf_dask.text.counted import Counted
from hmrf_dask.text.settings import TextSettings
from hmrf_dask.types import AnyArray, IntArray, LabelArray

Texts: TypeAlias = Sequence[str] | pa.Array


class Occurrences(NamedTuple):
    """Every occurrence of a term: of which text, which term; those of a term by text."""

    rows: LabelArray
    numbers: LabelArray
    terms: pa.Array


def count_texts(texts: Texts, settings: TextSettings) -> Counted:
    """Return how often each text has each term, and the terms of all in ascending order.

    Parameters
    ----------
    texts : sequence of str or Arrow array of strings
    settings : TextSettings

    Returns
    -------
    Counted

    Examples
    --------
    >>> found = count_texts(["to be or not to be", "be"], TextSettings())
    >>> found.terms.to_pylist(), found.to_scipy().toarray().tolist()
    (['be', 'not', 'or', 'to'], [[2, 1, 1, 2], [1, 0, 0, 0]])
    """
    given: Sequence[str] = texts.to_pylist() if isinstance(texts, pa.Array) else texts
    if settings.kind == "embeddings":
        raise ConfigurationError(
            "kind must be words, characters or hashing to count texts, got embeddings; give the "
            "column of embeddings to what makes rows"
        )
    if settings.kind == "characters":
        return _count_characters(given, settings)
    found = _words(given, settings)
    return _counted(_grams(found, settings.ngram_range), len(given))


def counting_vectoriser(settings: TextSettings) -> CountVectorizer:
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
    """Return what stop words become in texts that is no stop word itself: "don't" leaves "don"."""
    vectoriser = counting_vectoriser(settings)
    words = vectoriser.get_stop_words() or frozenset()
    prepare, find = vectoriser.build_preprocessor(), vectoriser.build_tokenizer()
    return sorted({one for word in words for one in find(prepare(word))} - words)


# ---- words


@lru_cache(maxsize=8)
def _found_words(settings: TextSettings) -> Callable[[str], str]:
    """Return what puts the words of a text that is not ASCII between single spaces."""
    vectoriser = counting_vectoriser(settings)
    prepare, find = vectoriser.build_preprocessor(), vectoriser.build_tokenizer()
    return lambda text: " ".join(find(prepare(unicodedata.normalize("NFC", text))))


def _words(texts: Sequence[str], settings: TextSettings) -> Occurrences:
    """Return the words of texts without stop words, in the order of the texts."""
    found = _found_words(settings)
    plain = pa.array([t if t.isascii() else found(t) for t in texts], pa.large_string())
    starts, letters = _buffers(plain)
    read = read_words(letters, starts, letter_table(lowercase=settings.lowercase))
    rows = np.repeat(np.arange(len(texts), dtype=np.int32), np.diff(read.ends))
    terms = _strings(read.letters, read.bounds)
    stop_words = counting_vectoriser(settings).get_stop_words()
    if not stop_words:
        return Occurrences(rows, read.numbers, terms)
    stopped = pc.is_in(terms, value_set=pa.array(sorted(stop_words), pa.large_string()))
    kept = ~np.asarray(stopped.to_pylist(), np.bool_)[read.numbers]
    return Occurrences(rows[kept], read.numbers[kept], terms)


def _grams(words: Occurrences, ngram_range: tuple[int, int]) -> Occurrences:
    """Return the n-grams of words that follow one another in a text."""
    shortest, longest = ngram_range
    found, grams = [], words
    for length in range(1, longest + 1):
        if length > 1:
            grams = _longer(grams, words, length)
        if length >= shortest:
            found.append(grams)
    if len(found) == 1:
        return found[0]
    firsts = np.cumsum([0, *(len(one.terms) for one in found[:-1])])
    return Occurrences(
        np.concatenate([one.rows for one in found]),
        np.concatenate(
            [one.numbers + np.int32(first) for one, first in zip(found, firsts, strict=True)]
        ),
        pa.concat_arrays([one.terms for one in found]),
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
    prepare = counting_vectoriser(settings).build_preprocessor()
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
    found = [[book[gram] for gram in analyse(word)] for word in words]
    rows = np.repeat(np.arange(len(words), dtype=np.int32), [len(one) for one in found])
    numbers = np.fromiter((number for one in found for number in one), np.int32, len(rows))
    try:
        return Occurrences(rows, numbers, pa.array(list(book), pa.large_string()))
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"texts must be valid Unicode, got a lone surrogate in {error.object!r}; mend this text"
        ) from None


# ---- what both share


def _counted(found: Occurrences, n_texts: int) -> Counted:
    """Return the counts of occurrences, the terms that occur in ascending order."""
    used = np.bincount(found.numbers, minlength=len(found.terms)) > 0
    order = as_numpy(pc.sort_indices(found.terms), np.uint64).astype(np.int64)
    order = order[used[order]]
    rank = np.zeros(len(found.terms), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    entries = count_entries(found.rows, rank[found.numbers], n_texts, len(order))
    terms = found.terms.take(as_arrow(order, pa.int64()))
    return Counted(entries.indptr.astype(np.int32), entries.indices, entries.counts, terms)


def _buffers(strings: pa.Array) -> tuple[IntArray, AnyArray]:
    """Return where each string of a fresh array begins, and all letters."""
    _, starts, letters = strings.buffers()
    found = np.frombuffer(letters, np.uint8) if letters is not None else np.empty(0, np.uint8)
    return np.frombuffer(starts, np.int64, len(strings) + 1), found


def _strings(letters: AnyArray, bounds: IntArray) -> pa.Array:
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(letters)]
    return pa.Array.from_buffers(pa.large_string(), len(bounds) - 1, buffers)
