"""What is asked: the rows of the algorithms as written, whatever the partitions and the order."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

from hmrf_dask import Corpus, HMRFKMeans, KMeans
from hmrf_dask.active import LabelOracle, explore_consolidate
from hmrf_dask.constraints.closure import connected_numbers
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.kernels.uncertainty import gap_counts, median_gap, uncertainties
from hmrf_dask.questions import farthest_first
from hmrf_dask.questions.farthest_first import FarthestFirst
from hmrf_dask.questions.pool import Pool
from hmrf_dask.questions.selection import STRATEGIES
from tests.naive_active import Naive
from tests.support.fits import scheduled
from tests.support.long_cases import long
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


def test_a_pass_finds_several_points_in_small_partitions() -> None:
    pool = Pool(Corpus.from_rows(signed_rows(400, 1), n_partitions=100), None)
    farthest = FarthestFirst(pool, None)
    farthest.add(pool.rows([0]))
    for _ in range(40):
        assert farthest.next() is not None
    assert farthest.passes < 10


def test_rows_that_lie_on_points_are_no_points() -> None:
    X = np.repeat(np.eye(3), 4, axis=0)
    assert sorted(farthest_points(X, 2, 9, by_density=False)) == [4, 8]


@pytest.mark.parametrize("by_density", [False, True])
def test_no_row_is_a_point_twice_however_it_is_rounded(by_density: bool) -> None:
    rows = signed_rows(30, 2)
    X = np.vstack([rows, 3.0 * rows, 0.7 * rows])
    points = farthest_points(X, 4, 90, by_density=by_density)
    assert sorted(point % 30 for point in [3, *points]) == list(range(30))


def test_rows_on_the_far_side_of_the_mean_come_last() -> None:
    X = np.array([[1.0, 0.1], [1.0, -0.1], [1.0, 0.0], [1.0, 0.2], [-1.0, 0.1], [-1.0, -0.1]])
    points = farthest_points(X, 3, 9, by_density=True)
    assert sorted(points[:3]) == [0, 1, 2]
    assert sorted(points[3:]) == [4, 5]


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
@pytest.mark.parametrize(
    "n_clusters", [3, *(pytest.param(one, marks=pytest.mark.long) for one in (8, None))]
)
def test_the_same_questions_where_many_rows_are_the_same(
    strategy: str, n_clusters: int | None
) -> None:
    kinds, ids = np.arange(96) % 12, string_ids(96, 1)
    rows = np.abs(signed_rows(12, 5))[kinds]
    kind_of = dict(zip(ids.tolist(), kinds.tolist(), strict=True))
    found = []
    for seed, n_partitions in ((0, 1), (1, 7), (2, 96)):
        order, asked = np.random.default_rng(seed).permutation(96), list[tuple[str, str]]()
        corpus = Corpus.from_rows(rows[order], ids=ids[order], n_partitions=n_partitions)

        def oracle(first: str, second: str, asked: list[Any] = asked) -> bool:
            asked.append((first, second))
            return bool(kind_of[first] % 8 == kind_of[second] % 8)

        with scheduled("synchronous"):
            explore_consolidate(corpus, oracle, n_clusters, 60, strategy=strategy, random_state=3)
        found.append(asked)
    assert found[0]
    assert all(asked == found[0] for asked in found)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("n_clusters", [3, *long(6, None)])
def test_answers_become_pairs_that_hold(strategy: str, n_clusters: int | None) -> None:
    topics = TOPICS % (n_clusters or 6)
    asked: list[tuple[int, int]] = []
    pairs = explore_consolidate(
        X, answers(topics, asked), n_clusters, 50, strategy=strategy, random_state=1
    )
    assert len(asked) == 50
    assert (topics[pairs.must_link[:, 0]] == topics[pairs.must_link[:, 1]]).all()
    assert (topics[pairs.cannot_link[:, 0]] != topics[pairs.cannot_link[:, 1]]).all()
    if strategy not in ("default", "random"):  # what is inferred comes on top
        assert len(pairs) >= 50
    HMRFKMeans(6, random_state=0).fit(X, must_link=pairs)


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


def test_rows_that_are_opposite_are_all_asked_about() -> None:
    rows, asked = np.vstack([np.eye(3), -np.eye(3)] * 4), list[tuple[int, int]]()
    explore_consolidate(rows, answers(np.arange(24) % 6, asked), None, 60, random_state=0)
    assert set(np.ravel(asked).tolist()) == set(range(24))  # their mean has no direction


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("n_clusters", [6, *long(9)])
def test_the_default_asks_as_written(n_clusters: int, sparse: bool) -> None:
    rows, topics = signed_rows(120, 3), np.arange(120) % n_clusters
    asked: list[tuple[int, int]] = []

    def oracle(first: int, second: int) -> bool | None:
        if (7 * first + second) % 17 == 0:
            return None
        return bool(topics[first] == topics[second])

    def noted(first: int, second: int) -> bool | None:
        asked.append((first, second))
        return oracle(first, second)

    def fits(n: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        model = KMeans(n, n_init=3, random_state=0).fit(rows)
        return model.labels_, model.cluster_centers_

    naive = Naive(rows.astype(np.float64), n_clusters, oracle, None if sparse else fits)
    wanted = list(itertools.islice(naive.questions(), 301))[:300]  # the last one is answered, too
    given = scipy.sparse.csr_array(rows) if sparse else rows
    pairs = explore_consolidate(given, noted, n_clusters, 300, trust=1.0, random_state=0)
    assert asked == wanted
    assert len(naive.aside) > 1
    assert len(naive.inferred) > 1
    known = connected_numbers(120, pairs.must_nodes)
    node = {row: place for place, row in enumerate(pairs.documents.tolist())}
    found = {frozenset(pairs.documents[known[: len(node)] == one].tolist()) for one in set(known)}
    assert {group for group in found if len(group) > 1} == {
        frozenset(group) for group in naive.groups if len(group) > 1
    }


@pytest.mark.parametrize("n_clusters", [5, 8])
def test_fewer_groups_than_clusters_are_settled_too(n_clusters: int) -> None:
    classes = np.arange(120) % 3
    rows = np.abs(np.random.default_rng(0).normal(size=(120, 8))) + 3.0 * np.eye(8)[classes]
    asked = LabelOracle(classes.tolist())
    pairs = explore_consolidate(rows, asked, n_clusters, 120, random_state=0)
    assert len(pairs.must_link) > 40
    assert (classes[pairs.must_link[:, 0]] == classes[pairs.must_link[:, 1]]).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("n_clusters", [4, None])
def test_no_pair_is_asked_twice_until_nothing_is_left(
    strategy: str, n_clusters: int | None
) -> None:
    rows, asked = signed_rows(40, 4), list[tuple[int, int]]()
    rows[::5] = 0.0
    oracle = answers(np.arange(40) % 4, asked)
    for X in (rows, scipy.sparse.csr_matrix(rows)):
        asked.clear()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "8 rows are zero")
            explore_consolidate(X, oracle, n_clusters, 900, strategy=strategy, random_state=0)
        assert len({frozenset(pair) for pair in asked}) == len(asked)
        assert all(first != second for first, second in asked)
        assert set(np.ravel(asked).tolist()) == set(np.flatnonzero(rows.any(axis=1)).tolist())


@pytest.mark.parametrize("strategy", ["default", *long("explore-consolidate", "min-max")])
def test_an_oracle_that_contradicts_itself_makes_no_contradiction(strategy: str) -> None:
    rng = np.random.default_rng(0)
    pairs = explore_consolidate(
        X, lambda first, second: rng.random() < 0.5, 6, 80, strategy=strategy, random_state=0
    )
    HMRFKMeans(6, on_conflict="raise", random_state=0).fit(X, must_link=pairs)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_on_processes_the_same_questions(strategy: str, process_cluster: Any) -> None:
    with scheduled("synchronous"):
        wanted = questions_of(strategy, np.arange(150), 3)
    with scheduled("processes", process_cluster):
        assert questions_of(strategy, np.arange(150), 3) == wanted


def test_labels_of_the_first_fit_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, compute = list[int](), dask.array.Array.__array__

    def noted(array: Any, *arguments: Any, **options: Any) -> Any:
        sizes.append(array.size)
        return compute(array, *arguments, **options)

    monkeypatch.setattr(dask.array.Array, "__array__", noted)
    explore_consolidate(Corpus.from_rows(X, n_partitions=3), lambda a, b: None, 3, 3)
    assert max(sizes, default=0) < 150


def test_pairs_of_documents_with_ids_are_by_id(tmp_path: Path) -> None:
    topic = dict(zip(IDS.tolist(), TOPICS.tolist(), strict=True))
    Corpus.from_rows(X, ids=IDS, n_partitions=3).to_parquet(tmp_path / "rows")
    pairs = explore_consolidate(
        str(tmp_path / "rows"), lambda a, b: np.bool_(topic[a] == topic[b]), 6, 40
    )
    assert pairs.by_id
    assert set(pairs.documents.tolist()) <= set(topic)
    HMRFKMeans(6, random_state=0).fit(tmp_path / "rows", must_link=pairs)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("n_rows", "n_queries"), [(1, 0), (1, 5), (2, 0), (2, 1), (2, 5), (3, 2)])
def test_very_few_rows(strategy: str, n_rows: int, n_queries: int) -> None:
    asked: list[tuple[int, int]] = []
    oracle = answers(np.arange(3), asked)
    explore_consolidate(np.eye(3)[:n_rows], oracle, None, n_queries, strategy=strategy)
    assert len(asked) == min(n_queries, math.comb(n_rows, 2))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_without_a_direction_cannot_be_asked_about(strategy: str) -> None:
    for rows in (np.zeros((3, 2)), np.zeros((0, 2))):
        with pytest.raises(InvalidInputError, match="rows with a direction to ask about, got none"):
            explore_consolidate(rows, lambda a, b: True, None, 5, strategy=strategy)


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
        ({"n_clusters": 1}, "n_clusters must be an integer from 2, or None, got 1"),
        ({"n_clusters": "auto"}, "n_clusters must be an integer from 2, or None, got 'auto'"),
        ({"n_clusters": 2.5}, "n_clusters must be an integer from 2, or None, got 2.5"),
        ({"n_clusters": 151}, "must be at most the 150 rows that may be asked about, got 151"),
        ({"pool": [3, 4]}, "must be at most the 2 rows that may be asked about, got 6"),
        ({"n_queries": -1}, "n_queries must be an integer from 0, got -1"),
        ({"n_queries": 2.5}, "n_queries must be an integer from 0, got 2.5"),
        ({"trust": 1.5}, "trust must be a probability from 0 to 1, or None, got 1.5"),
        ({"trust": True}, "trust must be a probability from 0 to 1, or None, got True"),
        ({"oracle": "me"}, "oracle must be a function of two documents, got 'me'"),
        ({"pool": [0, 150]}, "pool must be row numbers from 0 to 149, at least one, got 0 to 150"),
        ({"pool": []}, "at least one, got none"),
        ({"oracle": lambda first, second: "yes"}, "must return True .* got 'yes' for"),
        ({"oracle": lambda first, second: np.ones(2)}, "must return True .* got array"),
        ({"oracle": lambda first, second: 0.9}, "must return True .* got 0.9 for"),
    ],
)
def test_what_cannot_be_is_refused_in_words(how: dict[str, Any], words: str) -> None:
    arguments = {"X": X, "oracle": answers(TOPICS, []), "n_clusters": 6, "n_queries": 5, **how}
    with pytest.raises(InvalidInputError, match=words):
        explore_consolidate(**arguments)
