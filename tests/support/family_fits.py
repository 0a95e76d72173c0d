"""Fits of any estimator of the family, to be compared bit by bit."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmrf_dask import Constraints, Corpus
from tests.support.problems import label_pairs, planted_text


def blobs(
    n_rows: int = 60, width: int = 6, n_classes: int = 3, seed: int = 0, spread: float = 0.25
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return positive rows around one centre a class, no two alike, and their classes."""
    rng = np.random.default_rng(seed)
    hidden = np.arange(n_rows) % n_classes
    centres = rng.uniform(0.1, 1.0, (n_classes, width)) + np.eye(n_classes, width)
    rows = centres[hidden] * rng.uniform(1.0 - spread, 1.0 + spread, (n_rows, width))
    return rows.astype(np.float32), hidden


def some_labels(hidden: NDArray[Any], share: float, seed: int = 0) -> NDArray[np.int64]:
    """Return the classes of a share of all rows, -1 for the others."""
    known = np.random.default_rng(seed).random(len(hidden)) < share
    return np.where(known, hidden, -1)


def text_corpus(n_rows: int = 120, n_classes: int = 3, n_pairs: int = 30, seed: int = 0) -> Any:
    """Return planted text, its classes, and pairs that agree with them."""
    rows, topics = planted_text(n_rows, 150, n_classes, seed, words=12)
    must, cannot = label_pairs(topics, n_pairs, seed + 1)
    return rows, topics, must, cannot


def digest_of(model: Any) -> str:
    """Return a hash of all that is promised to be the same."""
    labels = model.labels_
    labels = labels.compute() if hasattr(labels, "compute") else labels
    total = hashlib.sha256(model.stop_reason_.encode())
    history = np.asarray(model.objective_history_, np.float64)
    total.update(str(sorted(model.violations_.items())).encode())
    for part in (
        np.asarray(labels, np.int32),
        model.cluster_centers_,
        np.float64(model.objective_),
        history,
        np.int64(model.n_iter_),
    ):
        total.update(np.ascontiguousarray(part).tobytes())
    return total.hexdigest()[:16]


def corpus_of(rows: Any, bounds: Any) -> Corpus:
    """Return rows in so many partitions, or cut at bounds."""
    if isinstance(bounds, int):
        return Corpus.from_rows(rows, n_partitions=bounds)
    return Corpus.from_rows(rows, n_partitions=1).with_partitions(bounds)


def falls(history: Any) -> bool:
    """Whether no number is above the one before it."""
    return bool((np.diff(history) <= 0).all())


def counts(seed: int = 0, n: int = 90, width: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Return integer rows of three groups, none of them zero, and the groups."""
    rng = np.random.default_rng(seed)
    hidden = rng.integers(0, 3, n)
    profiles = rng.dirichlet(np.full(width, 0.3), 3)
    return rng.multinomial(25, profiles[hidden]), hidden


def pairs_of(hidden: np.ndarray, n_pairs: int, seed: int = 0) -> Constraints:
    ends = np.random.default_rng(seed).integers(0, len(hidden), (n_pairs, 2))
    ends = ends[ends[:, 0] != ends[:, 1]]
    same = hidden[ends[:, 0]] == hidden[ends[:, 1]]
    return Constraints(ends[same], ends[~same])
