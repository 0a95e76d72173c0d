"""Rows over planted topics in any number: sparse ones like TF-IDF, and dense ones of few features.

Rows come in blocks, each from its own random numbers: the first rows of a larger set are those of a
smaller one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

from pipelines.papers.sets import Rows

N_TOPICS = 20
N_WORDS, TOPIC_WORDS = 20_000, 500
LENGTH = 80  # words of a document, repeated ones included
SHARE = 0.35  # of words that are of the topic
N_FEATURES = 20  # of dense rows
BLOCK = 2000

Block = tuple[Any, NDArray[np.int64]]


def sparse_rows(n_rows: int, seed: int = 0) -> Rows:
    """Return documents of unit length: a third of the words are of the topic, all are Zipf's."""
    topics = np.random.default_rng(2004)
    own = np.stack([topics.choice(N_WORDS, TOPIC_WORDS, replace=False) for _ in range(N_TOPICS)])
    common, preferred = _zipf(N_WORDS), _zipf(TOPIC_WORDS)
    rare = 1.0 + np.log(1.0 / np.diff(common, prepend=0.0))

    def block(chance: np.random.Generator, n_rows: int) -> Block:
        classes = chance.integers(0, N_TOPICS, n_rows)
        words = np.searchsorted(common, chance.random((n_rows, LENGTH)))
        chosen = own[classes[:, None], np.searchsorted(preferred, chance.random((n_rows, LENGTH)))]
        words = np.where(chance.random((n_rows, LENGTH)) < SHARE, chosen, words)
        places = (np.repeat(np.arange(n_rows), LENGTH), words.ravel())
        counts = sp.csr_matrix((np.ones(words.size), places), shape=(n_rows, N_WORDS))
        counts.data = (1.0 + np.log(counts.data)) * rare[counts.indices]
        return sp.csr_matrix(normalize(counts), dtype=np.float32), classes

    return _stacked(block, n_rows, seed, lambda parts: sp.vstack(parts, format="csr"))


def dense_rows(n_rows: int, seed: int = 0) -> Rows:
    """Return points around the centres of topics, which overlap a little."""
    centres = np.random.default_rng(2004).normal(0.0, 2.0, (N_TOPICS, N_FEATURES))

    def block(chance: np.random.Generator, n_rows: int) -> Block:
        classes = chance.integers(0, N_TOPICS, n_rows)
        return centres[classes] + chance.normal(0.0, 1.5, (n_rows, N_FEATURES)), classes

    return _stacked(block, n_rows, seed, np.concatenate)


def _zipf(n_words: int) -> NDArray[np.float64]:
    """Return the distribution of Zipf's words, summed up; the last is 1."""
    frequency = 1.0 / (np.arange(n_words) + 10.0)
    summed = np.cumsum(frequency / frequency.sum())
    summed[-1] = 1.0
    return summed


def _stacked(
    block: Callable[[np.random.Generator, int], Block],
    n_rows: int,
    seed: int,
    stack: Callable[[list[Any]], Any],
) -> Rows:
    """Return `n_rows` rows; the last block is made whole too, so that it does not depend on it."""
    parts = [
        block(np.random.default_rng([seed, number]), BLOCK) for number in range(-(-n_rows // BLOCK))
    ]
    values = stack([values for values, _ in parts])[:n_rows]
    return Rows(values, np.concatenate([classes for _, classes in parts])[:n_rows])
