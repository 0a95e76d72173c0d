"""K of sets whose classes are known: how often the range that is recommended has it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer

from hmrf_dask import Constraints, Corpus
from hmrf_dask.distortions import make_distortion
from hmrf_dask.fit.choice_of_k import Choice
from hmrf_dask.fit.suggestion import Asked, suggest
from hmrf_dask.tasks.model import Settings
from tests.proofs.news import data_folder, missing

SEED = 14
TRUE_K = (3, 5, 10, 20)
SETS = range(10)  # of each K: half with 100 messages a group, half with 200
ANSWERS = (0, 100)
WITHIN = 0.25  # of the true K
NAMES = ("true K in the range", "point estimate within 25 %", "recommended")
WANTED = {0: (0.70, 0.60, 0.9), 100: (0.85, 0.75, 0.9)}  # shares of all sets, by answers


@cache
def messages() -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Return all texts of 20 Newsgroups, their groups, and their numbers within these."""
    table = pq.read_table(data_folder() / "newsgroups20.parquet", columns=["text", "label"])
    groups = np.unique(table["label"].to_pylist(), return_inverse=True)[1]
    numbers = np.empty(len(groups), np.int64)
    for group in range(20):
        members = np.flatnonzero(groups == group)
        numbers[members] = np.arange(len(members))
    return np.array(table["text"].to_pylist(), object), groups, numbers


def drawn(n_groups: int, number: int) -> tuple[Any, NDArray[np.int64]]:
    """Return the TF-IDF rows of messages of some groups, and the groups.

    Messages of even numbers within their groups were used to find the rule; these are the others.
    """
    texts, groups, numbers = messages()
    rng, size = np.random.default_rng([SEED, n_groups, number]), 100 + 100 * (number % 2)
    chosen = [
        rng.choice(np.flatnonzero((groups == group) & (numbers % 2 == 1)), size, replace=False)
        for group in sorted(rng.choice(20, n_groups, replace=False))
    ]
    rows = np.sort(np.concatenate(chosen))
    vectoriser = TfidfVectorizer(stop_words="english", min_df=2, max_df=0.5, dtype=np.float32)
    return vectoriser.fit_transform(texts[rows]), groups[rows]


def choice_of(rows: Any, classes: NDArray[np.int64], n_answers: int, seed: list[int]) -> Choice:
    """Return the choice of K, with right answers about random pairs."""
    rng, pairs = np.random.default_rng(seed), set[tuple[int, int]]()
    while len(pairs) < n_answers:
        first, second = sorted(rng.integers(0, len(classes), 2).tolist())
        if first != second:
            pairs.add((first, second))
    ends = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    same = classes[ends[:, 0]] == classes[ends[:, 1]]
    constraints = Constraints(ends[same], ends[~same]) if n_answers else None
    settings, distortion = Settings(0, seed=0), make_distortion("cosine")
    return suggest(Asked(Corpus.from_rows(rows), constraints, settings, distortion))


def found() -> dict[str, Any]:
    """Return the shares of sets whose true K is in the range, and near the point estimate."""
    if absent := missing(["newsgroups20"]):
        return {"skipped": absent}
    counts = {n_answers: np.zeros(3) for n_answers in ANSWERS}
    sets = [(n_groups, number) for n_groups in TRUE_K for number in SETS]
    for n_groups, number in sets:
        rows, classes = drawn(n_groups, number)
        for n_answers in ANSWERS:
            choice = choice_of(rows, classes, n_answers, [SEED, n_groups, number])
            near = abs(choice.n_clusters / n_groups - 1) <= WITHIN
            inside = choice.least <= n_groups <= choice.largest
            counts[n_answers] += choice.is_recommended * np.array([inside, near, True])
    return {
        f"{name}, {n_answers} answers": float(count / len(sets))
        for n_answers in ANSWERS
        for name, count in zip(NAMES, counts[n_answers], strict=True)
    }


def holds(figures: dict[str, Any]) -> bool:
    """Return whether the shares are as wanted."""
    least = [share for n_answers in ANSWERS for share in WANTED[n_answers]]
    return all(share >= wanted for share, wanted in zip(figures.values(), least, strict=True))
