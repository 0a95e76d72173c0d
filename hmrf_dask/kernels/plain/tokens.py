"""Words of texts and their counts, as `kernels.tokens` has them."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.sparse

from hmrf_dask.types import AnyArray, IntArray, LabelArray


class Words(NamedTuple):
    """The words of some texts.

    Attributes
    ----------
    numbers : int32 array
        Of every word in turn, text after text.
    ends : int64 array, shape (n_texts + 1,)
        Where the words of each text begin in `numbers`, and at the end their number.
    letters : uint8 array
        Of the distinct words, one after the other.
    bounds : int64 array, shape (n_distinct + 1,)
        Where each begins in `letters`.
    """

    numbers: LabelArray
    ends: IntArray
    letters: AnyArray
    bounds: IntArray


class Entries(NamedTuple):
    """Counts as CSR: the terms of a text ascend."""

    indptr: IntArray
    indices: LabelArray
    counts: LabelArray


def read_words(text: AnyArray, starts: IntArray, table: AnyArray) -> Words:
    """Return the words of texts."""
    letters = text.tobytes().translate(table.tobytes())
    find = re.compile(rb"[^\0]{2,}").findall
    book: defaultdict[bytes, int] = defaultdict()
    book.default_factory = book.__len__
    found = [
        [book[word] for word in find(letters, *bounds)] for bounds in pairwise(starts.tolist())
    ]
    lengths = [len(one) for one in found]
    return Words(
        np.fromiter((number for one in found for number in one), np.int32, sum(lengths)),
        np.cumsum([0, *lengths], dtype=np.int64),
        np.frombuffer(b"".join(book), np.uint8),
        np.cumsum([0, *map(len, book)], dtype=np.int64),
    )


def count_entries(rows: LabelArray, terms: LabelArray, n_rows: int, n_terms: int) -> Entries:
    """Return how often each text has each term."""
    ones = np.ones(len(rows), np.int32)
    counts = scipy.sparse.coo_array((ones, (rows, terms)), shape=(n_rows, n_terms)).tocsr()
    counts.sum_duplicates()
    return Entries(counts.indptr.astype(np.int64), counts.indices.astype(np.int32), counts.data)
