r"""Words of a batch of texts, numbered as they first occur, and their counts by text.

A word is two or more characters, digits, underscores, or bytes beyond ASCII: scikit-learn's
`\w\w+` for texts that are ASCII, and for those in which its own pattern has found the words and put
one space between them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hmrf_dask.kernels.compiled import frozen, inner, njit
from hmrf_dask.types import AnyArray, IntArray, KeyArray, LabelArray

_LEAST_SLOTS = 1 << 12
_BEGIN, _FACTOR = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
_HALF = np.uint64(32)


class Words(NamedTuple):
    """The words of some texts."""

    numbers: LabelArray  # of every word in turn, text after text
    # (n_texts + 1,): where the words of each text begin in `numbers`, and at the end their number
    ends: IntArray
    characters: AnyArray  # of the distinct words, one after the other
    bounds: IntArray  # (n_distinct + 1,): where each begins in `characters`


class Entries(NamedTuple):
    """Counts as CSR: the terms of a text ascend."""

    indptr: IntArray
    indices: LabelArray
    counts: LabelArray


class Texts(NamedTuple):
    """Texts one after the other, where each begins, and what each byte is as part of a word."""

    text: AnyArray
    starts: IntArray
    table: AnyArray


class Book(NamedTuple):
    """Distinct words: a table of their hashes, -1 where it is empty; hashes; bounds; characters."""

    slots: LabelArray
    hashes: AnyArray
    bounds: IntArray
    characters: AnyArray


def character_table(*, lowercase: bool) -> AnyArray:
    """Return what each byte is as part of a word, 0 where it is none.

    Examples
    --------
    >>> table = character_table(lowercase=True)
    >>> chr(table[ord("A")]), int(table[ord(" ")])
    ('a', 0)
    """
    table = np.zeros(256, np.uint8)
    for byte in range(256):
        if byte >= 128 or chr(byte).isalnum() or byte == ord("_"):
            table[byte] = ord(chr(byte).lower()) if lowercase and byte < 128 else byte
    return table


@inner(inline="always")
def _slot(book: Any, code: Any, first: Any, last: Any) -> Any:
    """Return where a word is in the table or, if it is not there, where it belongs."""
    mask = np.uint64(book.slots.shape[0] - 1)
    slot = code & mask
    while book.slots[slot] >= 0:
        held = book.slots[slot]
        begin = book.bounds[held]
        if book.hashes[held] == code and book.bounds[held + 1] - begin == last - first:
            p = 0
            while p < last - first and book.characters[begin + p] == book.characters[first + p]:
                p += 1
            if p == last - first:
                return slot
        slot = (slot + np.uint64(1)) & mask
    return slot


@inner(inline="always")
def _copy_word(texts: Any, at: Any, stop: Any, book: Any, begin: Any) -> Any:
    """Copy a word from `at` on to `begin`; return its end there, its hash, and what comes next."""
    text, table = texts.text, texts.table
    last = begin
    code = _BEGIN
    while at < stop and table[text[at]] != 0:
        character = table[text[at]]
        book.characters[last] = character
        last += 1
        code = (code ^ np.uint64(character)) * _FACTOR
        at += 1
    return last, code ^ (code >> _HALF), at + 1


@inner(inline="always")
def _number_of(book: Any, code: Any, begin: Any, last: Any, n_words: int) -> Any:
    """Return the number of a word, -1 where there is no place for it, and how many are known."""
    slot = _slot(book, code, begin, last)
    number = np.int64(book.slots[slot])
    if number >= 0 or n_words == book.hashes.shape[0]:
        return number, n_words
    book.slots[slot] = n_words
    book.hashes[n_words] = code
    book.bounds[n_words + 1] = last
    return n_words, n_words + 1


@njit(nogil=True, cache=True, makes_arrays=False)
def _read(
    texts: Any, book: Any, first: Any, n_words: int, numbers: Any, ends: Any
) -> tuple[Any, ...]:
    """Give words of texts from `first` on their numbers, while the table has place for new ones.

    Returns how many texts are read, and how many words are known: some may be of the next text.
    """
    n_read = ends[first]
    starts = texts.starts
    for row in range(first, starts.shape[0] - 1):
        at, stop = starts[row], starts[row + 1]
        while at < stop:
            begin = book.bounds[n_words]
            last, code, at = _copy_word(texts, at, stop, book, begin)
            if last - begin < 2:
                continue
            number, n_words = _number_of(book, code, begin, last, n_words)
            if number < 0:
                return row, n_words
            numbers[n_read] = number
            n_read += 1
        ends[row + 1] = n_read
    return starts.shape[0] - 1, n_words


@njit(nogil=True, cache=True, makes_arrays=False)
def _enter(hashes: KeyArray, n_words: int, slots: LabelArray) -> None:
    """Put words, all distinct, into a larger table that is empty."""
    mask = np.uint64(slots.shape[0] - 1)
    for number in range(n_words):
        slot = hashes[number] & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = number


def _empty_book(n_slots: int, characters: AnyArray) -> Book:
    """Return a book for half as many words as it has slots."""
    hashes, bounds = np.empty(n_slots // 2, np.uint64), np.zeros(n_slots // 2 + 1, np.int64)
    return Book(np.full(n_slots, -1, np.int32), hashes, bounds, characters)


def _enlarged(book: Book, n_words: int) -> Book:
    """Return a larger book of the same words."""
    larger = _empty_book(4 * len(book.slots), book.characters)
    larger.hashes[:n_words] = book.hashes[:n_words]
    larger.bounds[: n_words + 1] = book.bounds[: n_words + 1]
    _enter(larger.hashes, np.int64(n_words), larger.slots)
    return larger


def read_words(text: AnyArray, starts: IntArray, table: AnyArray) -> Words:
    """Return the words of texts, one after the other, that begin and end at `starts`."""
    texts = Texts(frozen(text, np.uint8), frozen(starts, np.int64), frozen(table, np.uint8))
    n_texts, n_bytes = len(starts) - 1, int(starts[-1] - starts[0])
    numbers = np.empty((n_bytes + n_texts) // 3 + 1, np.int32)
    ends = np.zeros(n_texts + 1, np.int64)
    # all distinct words, and one that is read again
    book = _empty_book(_LEAST_SLOTS, np.empty(2 * n_bytes + 1, np.uint8))
    row, n_words = 0, 0
    while True:
        row, n_words = _read(texts, book, np.int64(row), np.int64(n_words), numbers, ends)
        if row == n_texts:
            break
        book = _enlarged(book, n_words)
    bounds = book.bounds[: n_words + 1]
    return Words(numbers[: ends[-1]], ends, book.characters[: bounds[-1]], bounds)


@njit(nogil=True, cache=True, makes_arrays=False)
def _count(
    rows: LabelArray,
    terms: LabelArray,
    start: IntArray,
    places: LabelArray,
    fill: IntArray,
    indices: LabelArray,
    counts: LabelArray,
) -> None:
    """Sort by term, then deal out to texts: both in one pass, without comparing."""
    for p in range(rows.shape[0]):
        places[start[terms[p]]] = rows[p]
        start[terms[p]] += 1
    first = 0
    for term in range(start.shape[0]):
        before = -1
        for p in range(first, start[term]):
            row = places[p]
            if row == before:
                counts[fill[row] - 1] += 1
            else:
                indices[fill[row]] = term
                counts[fill[row]] = 1
                fill[row] += 1
                before = row
        first = start[term]


def count_entries(rows: LabelArray, terms: LabelArray, n_rows: int, n_terms: int) -> Entries:
    """Return how often each text has each term, from the text and the term of every occurrence.

    Those of one term are in ascending order of texts.
    """
    begin, start = _ends(np.bincount(rows, minlength=n_rows)), np.bincount(terms, minlength=n_terms)
    fill, start = begin[:-1].copy(), _ends(start)[:-1].copy()
    indices, counts = np.empty(len(rows), np.int32), np.empty(len(rows), np.int32)
    arrays = frozen(rows, np.int32), frozen(terms, np.int32)
    _count(*arrays, start, np.empty(len(rows), np.int32), fill, indices, counts)
    lengths = fill - begin[:-1]
    kept = np.arange(lengths.sum()) + np.repeat(begin[:-1] - _ends(lengths)[:-1], lengths)
    return Entries(_ends(lengths), indices[kept], counts[kept])


def _ends(lengths: AnyArray) -> IntArray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
