"""Rows to measure with: synthetic documents with planted topics, and abstracts of arXiv.

Document i of a synthetic corpus is a function of (seed, i) alone: its words come from its own
random numbers, so a corpus of 100,000 documents has the words of the first tenth of one of a
million, and the work can be cut over threads anywhere.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import scipy.sparse
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
ARXIV = ROOT.parent / "shared" / "data" / "arxiv_120k.parquet"
CACHE = Path(tempfile.gettempdir()) / "hmrf-benchmarks"
VERSION = 1  # of the generator, in the names of cached files

N_TOPICS = 120
TOPIC_WORDS = 1500  # words a topic prefers
BATCH = 20_000  # documents a thread writes at once
LONGEST = 2000  # words of a document


@dataclass(frozen=True)
class Rows:
    """A corpus: tf-idf rows of unit length, and what each document is about."""

    X: Any  # csr_matrix of float32, int32
    topics: NDArray[Any]
    fine_topics: NDArray[Any] | None = None


# ---- words by chance: SplitMix64 numbers and Vose's alias tables


@numba.njit(nogil=True, cache=True)
def _number(state):  # type: ignore[no-untyped-def]
    """Return the next state and a number of 64 random bits."""
    state += np.uint64(0x9E3779B97F4A7C15)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state, z ^ (z >> np.uint64(31))


@numba.njit(nogil=True, cache=True)
def _unit(bits):  # type: ignore[no-untyped-def]
    return np.float64(bits >> np.uint64(11)) * 2.0**-53


@numba.njit(nogil=True, cache=True)
def _draw(bits, keep, other):  # type: ignore[no-untyped-def]
    """Return a column of an alias table."""
    place = _unit(bits) * keep.shape[0]
    column = int(place)
    return column if place - column < keep[column] else other[column]


@numba.njit(nogil=True, cache=True)
def _length(state, typical):  # type: ignore[no-untyped-def]
    """Return the next state and how many words a document has: about log-normal, sigma 0.45."""
    total = 0.0
    for _ in range(6):
        state, bits = _number(state)
        total += _unit(bits)
    length = int(typical * np.exp(0.45 * np.sqrt(2.0) * (total - 3.0)))
    return state, max(12, min(LONGEST, length))


@numba.njit(nogil=True, cache=True)
def _write_documents(first, seed, typical, background, topic, likely, lengths, columns, counts):  # type: ignore[no-untyped-def]
    """Write the distinct words of documents from `first` on; return the topics and the entries."""
    keep, other = background
    topic_columns, topic_keep, topic_other = topic
    topics = np.empty(lengths.shape[0], np.int32)
    words = np.empty(LONGEST, np.int32)
    filled = 0
    for row in range(lengths.shape[0]):
        state = np.uint64(seed) * np.uint64(0xD1342543DE82EF95) + np.uint64(first + row)
        state, n_words = _length(state, typical)
        state, bits = _number(state)
        own = _draw(bits, likely[0], likely[1])
        state, bits = _number(state)
        besides = _draw(bits, likely[0], likely[1])
        state, bits = _number(state)
        plain = 0.35 + 0.2 * _unit(bits)  # share of words that any document might have
        state, bits = _number(state)
        mainly = plain + (1.0 - plain) * (0.6 + 0.4 * _unit(bits))
        topics[row] = own
        for w in range(n_words):
            state, bits = _number(state)
            kind = _unit(bits)
            state, bits = _number(state)
            if kind < plain:
                words[w] = _draw(bits, keep, other)
            else:
                words[w] = topic_columns[
                    own if kind < mainly else besides, _draw(bits, topic_keep, topic_other)
                ]
        before = filled
        ordered = np.sort(words[:n_words])
        for w in range(n_words):
            if filled > before and columns[filled - 1] == ordered[w]:
                counts[filled - 1] += 1.0
            else:
                columns[filled] = ordered[w]
                counts[filled] = 1.0
                filled += 1
        lengths[row] = filled - before
    return topics, filled


@numba.njit(nogil=True, cache=True)
def _lengths(first, n_rows, seed, typical):  # type: ignore[no-untyped-def]
    lengths = np.empty(n_rows, np.int64)
    for row in range(n_rows):
        state = np.uint64(seed) * np.uint64(0xD1342543DE82EF95) + np.uint64(first + row)
        _, lengths[row] = _length(state, typical)
    return lengths


@numba.njit(nogil=True, cache=True)
def _weigh(indptr, columns, values, idf):  # type: ignore[no-untyped-def]
    """Turn counts into tf-idf rows of unit length: (1 + ln count) · idf."""
    for row in range(indptr.shape[0] - 1):
        squares = 0.0
        for p in range(indptr[row], indptr[row + 1]):
            values[p] = (1.0 + np.log(values[p])) * idf[columns[p]]
            squares += values[p] * values[p]
        scale = 1.0 / np.sqrt(squares)
        for p in range(indptr[row], indptr[row + 1]):
            values[p] *= scale


def _alias(weights: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return Vose's table: column c is itself with probability keep[c], else other[c]."""
    keep = weights * (len(weights) / weights.sum())
    other = np.arange(len(weights), dtype=np.int32)
    small = [int(c) for c in np.flatnonzero(keep < 1.0)]
    large = [int(c) for c in np.flatnonzero(keep >= 1.0)]
    while small and large:
        poor, rich = small.pop(), large[-1]
        other[poor] = rich
        keep[rich] -= 1.0 - keep[poor]
        if keep[rich] < 1.0:
            small.append(large.pop())
    keep[small + large] = 1.0  # what is left differs from 1 by rounding
    return keep, other


# ---- the synthetic corpus


def synthetic(
    n_rows: int, n_features: int = 50_000, seed: int = 0, cache: Path | None = None
) -> Rows:
    """Return documents of planted topics: about 116 distinct words each, tf-idf, unit length.

    Word frequencies are Zipf's (Mandelbrot's form); columns carry no order of frequency, as a
    sorted vocabulary carries none.
    """
    name = f"synthetic-{VERSION}-{n_rows}-{n_features}-{seed}"
    found = _cached(cache, name)
    if found is not None:
        return found
    n_own = min(TOPIC_WORDS, max(n_features // 20, 5))
    chance = np.random.default_rng(2004)  # the topics are the same for every seed and size
    zipf = 1.0 / (np.arange(n_features) + 30.0) ** 1.07
    zipf = zipf[chance.permutation(n_features)]
    common = zipf**0.75 / (zipf**0.75).sum()
    own = np.stack([chance.choice(n_features, n_own, False, common) for _ in range(N_TOPICS)])
    model = (
        _alias(zipf),
        (own.astype(np.int32), *_alias(1.0 / (np.arange(n_own) + 6.0))),
        _alias(1.0 / (np.arange(N_TOPICS) + 6.0) ** 0.6),
    )
    starts = range(0, n_rows, BATCH)
    with ThreadPoolExecutor(2) as pool:
        batches = list(
            pool.map(lambda at: _documents(at, min(BATCH, n_rows - at), seed, model), starts)
        )
    lengths, columns, values, topics = (
        np.concatenate([batch[part] for batch in batches]) for part in range(4)
    )
    indptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    frequency = np.bincount(columns, minlength=n_features)
    _weigh(indptr, columns, values, np.log((1.0 + n_rows) / (1.0 + frequency)) + 1.0)
    X = scipy.sparse.csr_matrix((values, columns, indptr), shape=(n_rows, n_features))
    rows = Rows(X, topics)
    keep(cache, name, rows)
    return rows


def _documents(first: int, n_rows: int, seed: int, model: Any) -> tuple[Any, ...]:
    typical = 115.0  # words, repeated ones included; leaves about 116 distinct ones on average
    lengths = _lengths(first, n_rows, seed, typical)
    columns, counts = np.empty(lengths.sum(), np.int32), np.empty(lengths.sum(), np.float32)
    topics, filled = _write_documents(first, seed, typical, *model, lengths, columns, counts)
    return lengths, columns[:filled], counts[:filled], topics


# ---- arXiv


def arxiv(path: Path = ARXIV, cache: Path | None = None) -> Rows | None:
    """Return tf-idf rows of the abstracts with both truths, None where the file is missing."""
    if not path.exists():
        return None
    name = f"{path.stem}-{VERSION}-{path.stat().st_size}"
    found = _cached(cache, name)
    if found is not None:
        return found
    from pyarrow import parquet
    from sklearn.feature_extraction.text import TfidfVectorizer

    table = parquet.read_table(path, columns=["text", "label", "label_fine"])
    vectorizer = TfidfVectorizer(
        min_df=5, max_df=0.5, sublinear_tf=True, stop_words="english", dtype=np.float32
    )
    X = vectorizer.fit_transform(table["text"].to_pylist())
    X = scipy.sparse.csr_matrix(
        (X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), shape=X.shape
    )
    X.sort_indices()
    truths = [_coded(table[column].to_pylist()) for column in ("label", "label_fine")]
    rows = Rows(X, *truths)
    keep(cache, name, rows)
    return rows


def _coded(names: list[str]) -> NDArray[Any]:
    return np.unique(np.asarray(names, dtype=np.str_), return_inverse=True)[1].astype(np.int32)


# ---- kept from run to run


def folder_of(cache: Path, n_rows: int, n_features: int, seed: int = 0) -> Path:
    """Return the folder where `synthetic` keeps such a corpus: one .npy file for each array."""
    return cache / f"synthetic-{VERSION}-{n_rows}-{n_features}-{seed}"


def load_matrix(folder: Path) -> Any:
    """Return the matrix of a kept corpus, its arrays read whole into memory."""
    data, indices, indptr, shape = (
        np.load(folder / f"{name}.npy") for name in ("data", "indices", "indptr", "shape")
    )
    X = scipy.sparse.csr_matrix((data, indices, indptr), shape=tuple(shape))
    X.has_sorted_indices = X.has_canonical_format = True
    return X


def _cached(cache: Path | None, name: str) -> Rows | None:
    if cache is None or not (cache / name).is_dir():
        return None
    folder = cache / name
    fine = folder / "fine_topics.npy"
    return Rows(
        load_matrix(folder),
        np.load(folder / "topics.npy"),
        np.load(fine) if fine.exists() else None,
    )


def keep(cache: Path | None, name: str, rows: Rows) -> None:
    """Write a corpus into a folder that gets its name when all of it is there."""
    if cache is None:
        return
    cache.mkdir(parents=True, exist_ok=True)
    arrays = {
        "data": rows.X.data,
        "indices": rows.X.indices,
        "indptr": rows.X.indptr,
        "shape": np.asarray(rows.X.shape),
        "topics": rows.topics,
    }
    if rows.fine_topics is not None:
        arrays["fine_topics"] = rows.fine_topics
    folder = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", array, allow_pickle=False)
    folder.replace(cache / name)


# ---- pairs and first centroids


def random_pairs(topics: NDArray[Any], n_pairs: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Return random pairs of documents as the truth answers them, for `fit`."""
    chance = np.random.default_rng(seed)
    pairs = chance.integers(0, len(topics), (n_pairs + n_pairs // 50 + 10, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]][:n_pairs]
    same = topics[pairs[:, 0]] == topics[pairs[:, 1]]
    return {"must_link": pairs[same], "cannot_link": pairs[~same]}


def first_centroids(X: Any, n_clusters: int, seed: int = 0) -> NDArray[np.float64]:
    """Return random documents, the same for ours and the peers."""
    chosen = np.random.default_rng(seed).choice(X.shape[0], n_clusters, replace=False)
    return np.asarray(X[np.sort(chosen)].toarray(), np.float64)
