"""What is asked: the rows of the algorithms as written, whatever the partitions and the order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hmrf_dask import Corpus, PCKMeans
from hmrf_dask.active import explore_consolidate, farthest_first
from hmrf_dask.active.farthest_first import FarthestFirst
from hmrf_dask.active.pool import Pool
from hmrf_dask.active.selection import STRATEGIES
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.kernels.uncertainty import gap_counts, median_gap, uncertainties
from tests.support.fits import scheduled
from tests.support.problems import planted_text, string_ids


def signed_rows(n_rows: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(n_rows, 6)).astype(np.float32)


def cosines(X: NDArray[np.float32]) -> NDArray[np.float64]:
    rows = X.astype(np.float64)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(units @ units.T)


def answers(topics: NDArray[np.int64], asked: list[tuple[Any, Any]]) -> Callable[..., bool]:
    """Return an oracle that knows the classes of rows, and notes what it was asked."""

    def oracle(first: int, second: int) -> bool:
        asked.append((first, second))
        return bool(topics[first] == topics[second])

    return oracle


# ---- farthest-first


def farthest_points(X: Any, n_partitions: int, n_points: int, *, by_density: bool) -> list[int]:
    pool = Pool(Corpus.from_rows(X, n_partitions=n_partitions), None)
    farthest = FarthestFirst(pool, pool.mean() if by_density else None)
    farthest.add(pool.rows([3]))
    found = [farthest.next() for _ in range(n_points)]
    return [int(point.rows[0]) for point in found if point is not None]


@pytest.mark.parametrize("by_density", [False, True])
def test_farthest_first_is_that_of_one_pass_a_point(
    by_density: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(farthest_first, "REPORTED", 4)
    X = signed_rows(90, 0)
    X[40] = 2.0 * X[3]  # lies on the first point
    near, units = cosines(X), X / np.linalg.norm(X, axis=1, keepdims=True)
    mean = units.sum(axis=0) / np.linalg.norm(units.sum(axis=0))
    density = np.maximum(units @ mean, 0.0) if by_density else np.ones(90)
    chosen = [3]
    for _ in range(30):
        worth = (1.0 - near[:, chosen].max(axis=1)) * density
        chosen.append(int(worth.argmax()))
    with scheduled("synchronous"):
        for n_partitions in (1, 7, 90):
            found = farthest_points(X, n_partitions, 30, by_density=by_density)
            assert found == chosen[1:]


def test_a_pass_finds_several_points() -> None:
    pool = Pool(Corpus.from_rows(signed_rows(2000, 1), n_partitions=3), None)
    farthest = FarthestFirst(pool, None)
    farthest.add(pool.rows([0]))
    for _ in range(40):
        assert farthest.next() is not None
    assert farthest.passes < 10


def test_rows_that_lie_on_points_are_no_points() -> None:
    X = np.repeat(np.eye(3), 4, axis=0)
    assert sorted(farthest_points(X, 2, 9, by_density=False)) == [4, 8]


# ---- uncertainty


def test_uncertainty_is_entropy_by_expected_questions() -> None:
    distances = np.random.default_rng(0).random((20, 4))
    for row, found in zip(distances, uncertainties(distances, 3.0), strict=True):
        odds = [math.exp(-3.0 * distance) for distance in row]
        shares = sorted((each / sum(odds) for each in odds), reverse=True)
        entropy = -sum(share * math.log(share) for share in shares)
        questions = sum(min(rank, 3) * share for rank, share in enumerate(shares, 1))
        assert found == pytest.approx(entropy / questions)


def test_the_median_gap_is_that_of_all_rows() -> None:
    distances = np.random.default_rng(1).random((101, 5))
    least = np.sort(distances, axis=1)
    assert median_gap(gap_counts(distances)) == pytest.approx(
        np.median(least[:, 1] - least[:, 0]), abs=1 / 4096
    )


# ---- strategies

X, TOPICS = planted_text(150, 120, 6, 0, words=12)
IDS = string_ids(150, 0)


def questions_of(strategy: str, order: NDArray[np.int64], n_partitions: int) -> list[Any]:
    """Return what is asked about documents with ids, in some order and cut somehow."""
    topic = dict(zip(IDS.tolist(), TOPICS.tolist(), strict=True))
    corpus = Corpus.from_rows(X[order], ids=IDS[order], n_partitions=n_partitions)
    asked: list[Any] = []

    def oracle(first: str, second: str) -> bool | None:
        asked.append((first, second))
        if len(asked) % 7 == 0:
            return None
        return topic[first] == topic[second]

    explore_consolidate(corpus, oracle, 6, 60, strategy=strategy, random_state=0)
    return asked


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_questions_for_any_partitioning_and_order(strategy: str) -> None:
    order = np.random.default_rng(0).permutation(150)
    with scheduled("synchronous"):
        wanted = questions_of(strategy, np.arange(150), 1)
        assert questions_of(strategy, order, 5) == wanted
    with scheduled("threads"):
        assert questions_of(strategy, np.arange(150), 40) == wanted
    assert len(wanted) == 60
    assert len({frozenset(pair) for pair in wanted}) == 60


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("n_clusters", [3, 6, None])
def test_answers_become_pairs_that_hold(strategy: str, n_clusters: int | None) -> None:
    topics = TOPICS % (n_clusters or 6)
    asked: list[tuple[int, int]] = []
    pairs = explore_consolidate(
        X, answers(topics, asked), n_clusters, 50, strategy=strategy, random_state=1
    )
    assert len(asked) == 50
    assert (topics[pairs.must_link[:, 0]] == topics[pairs.must_link[:, 1]]).all()
    assert (topics[pairs.cannot_link[:, 0]] != topics[pairs.cannot_link[:, 1]]).all()
    if strategy != "random":  # what is inferred comes on top
        assert len(pairs) >= 50
    PCKMeans(6, random_state=0).fit(X, must_link=pairs)


@pytest.mark.parametrize("strategy", ["default", "explore-consolidate", "min-max"])
def test_every_cluster_is_found_first(strategy: str) -> None:
    asked: list[tuple[int, int]] = []
    pairs = explore_consolidate(X, answers(TOPICS, asked), 6, 60, strategy=strategy, random_state=0)
    named = np.unique(np.concatenate([pairs.must_link.ravel(), pairs.cannot_link.ravel()]))
    assert len(np.unique(TOPICS[named])) == 6


def test_only_rows_of_the_pool_are_asked_about() -> None:
    asked: list[tuple[int, int]] = []
    rows = np.arange(0, 150, 3)
    for strategy in STRATEGIES:
        explore_consolidate(
            X, answers(TOPICS, asked), 6, 20, strategy=strategy, pool=rows, random_state=0
        )
    assert set(np.ravel(asked).tolist()) <= set(rows.tolist())


def test_a_document_that_nobody_knows_is_set_aside() -> None:
    asked: list[tuple[int, int]] = []

    def oracle(first: int, second: int) -> bool | None:
        asked.append((first, second))
        return None

    pairs = explore_consolidate(X, oracle, 6, 25, random_state=0)
    assert len(pairs) == 0
    assert len({first for first, _ in asked}) == 25  # each against the one that is known


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("n_queries", [0, 1, 2])
def test_few_questions(strategy: str, n_queries: int) -> None:
    asked: list[tuple[int, int]] = []
    explore_consolidate(X, answers(TOPICS, asked), 6, n_queries, strategy=strategy)
    assert len(asked) == n_queries


def test_there_may_be_fewer_questions_than_are_allowed() -> None:
    for strategy in STRATEGIES:
        asked: list[tuple[int, int]] = []
        explore_consolidate(
            np.eye(4)[[0, 0, 1, 1, 2]],
            answers(np.array([0, 0, 1, 1, 2]), asked),
            3,
            100,
            strategy=strategy,
            random_state=0,
        )
        assert len(asked) <= 10


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"strategy": "best"}, "strategy must be one of default, explore-consolidate"),
        ({"n_clusters": 0}, "n_clusters must be at least 1, or None, got 0"),
        ({"n_queries": -1}, "n_queries must be at least 0, got -1"),
        ({"pool": [0, 150]}, "pool must be row numbers from 0 to 149, at least one, got 0 to 150"),
        ({"pool": []}, "at least one, got none"),
        ({"oracle": lambda first, second: "yes"}, "must return True .* got 'yes' for"),
        ({"X": np.zeros((3, 2))}, "rows with a direction to ask about, got none"),
    ],
)
def test_what_cannot_be_is_refused_in_words(how: dict[str, Any], words: str) -> None:
    arguments = {"X": X, "oracle": answers(TOPICS, []), "n_clusters": 6, "n_queries": 5, **how}
    with pytest.raises(InvalidInputError, match=words):
        explore_consolidate(**arguments)
