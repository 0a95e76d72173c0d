"""COP-KMeans: no pair is ever broken, infeasible pairs are named, and J still never rises."""

from __future__ import annotations

import pickle
from typing import Any

import dask
import numpy as np
import pytest

from hmrf_dask import Constraints, COPKMeans, Corpus, KMeans, load
from hmrf_dask.errors import (
    ConfigurationError,
    ConflictError,
    InfeasibleError,
    InvalidInputError,
    MemoryPlanError,
)
from hmrf_dask.kernels.problem import adjacency, make_grouping, make_rivalry, place_apart
from tests import naive
from tests.naive_family import best_free_move, broken
from tests.support.family_fits import blobs, digest_of, text_corpus
from tests.support.hard_pairs import fitted, kept_or_not


def test_no_pair_is_broken_where_all_can_be_kept() -> None:
    found = kept_or_not(200)  # `make prove` goes through a thousand
    assert 60 < found.kept < 198  # both kinds were among them
    assert found.broken == found.rises == 0
    assert found.gave_up <= 1


def test_what_is_in_the_way_is_named() -> None:
    seen = 0
    for seed in range(60):
        found, (rows, must, cannot, n_clusters) = fitted(seed)
        if not isinstance(found, InfeasibleError):
            continue
        seen += 1
        given = {frozenset(pair) for pair in cannot}
        assert len(found.blocking) == n_clusters
        assert {frozenset(pair) for pair in found.blocking} <= given
        groups = naive.must_link_components(len(rows), must)
        stuck = next(group for group in groups if found.blocking[0][0] in group)
        assert {pair[0] for pair in found.blocking} <= set(stuck)
    assert seen > 5


def test_the_error_names_ids_and_what_to_do() -> None:
    rows, _ = blobs(6)
    names = [f"d{number}" for number in range(6)]
    corpus = Corpus.from_rows(rows, ids=names, n_partitions=2)
    pairs = [("d0", "d1"), ("d0", "d2"), ("d1", "d2")]
    model = COPKMeans(2, retries=3, random_state=0)
    with pytest.raises(
        InfeasibleError,
        match=r"one of the 2 clusters, got none left for 'd\d' .*in 4 orders; the cannot-links in "
        r"its way: 'd\d' and 'd\d', 'd\d' and 'd\d'. Drop one .*more clusters .*PCKMeans",
    ) as caught:
        model.fit(corpus, cannot_link=pairs)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.blocking == caught.value.blocking
    assert len(again.blocking) == 2
    assert isinstance(again, ValueError)


def test_another_order_is_tried() -> None:
    # A crown: whoever places both ends of a missing edge first needs more than two colours.
    n = 8
    cannot = [(i, n + j) for i in range(n) for j in range(n) if i != j]
    rows = np.random.default_rng(0).uniform(0.1, 1.0, (2 * n, 3))
    failed = 0
    for seed in range(12):
        model = COPKMeans(2, n_init=1, retries=0, random_state=seed)
        try:
            model.fit(rows, cannot_link=cannot)
        except InfeasibleError:
            failed += 1
        labels = COPKMeans(2, n_init=1, random_state=seed).fit_predict(rows, cannot_link=cannot)
        assert broken(labels, [], cannot) == 0
    assert failed > 0


@pytest.mark.parametrize("distortion", ["cosine", "euclidean", "pearson"])
def test_no_group_could_move_for_less(distortion: str) -> None:
    for seed in range(20):
        settings = {"refine": False, "max_iter": 100, "distortion": distortion}
        found, (rows, must, cannot, _) = fitted(seed, **settings)
        if isinstance(found, InfeasibleError):
            continue
        assert found.converged_
        plain = naive.Model(rows.astype(np.float64), distortion)
        left = best_free_move(plain, found.labels_, found.cluster_centers_, must, cannot)
        assert left < 1e-4  # the integers' quantum


def test_placing_is_greedy_in_the_order_given() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        n, K = 12, 3
        costs = rng.integers(0, 6, (n, K)).astype(np.int32)
        ends = np.array([(i, j) for i in range(n) for j in range(i) if rng.random() < 0.15])
        ends = ends.reshape(-1, 2)
        order, present = rng.permutation(n), np.full(n, -1, np.int32)
        start, rival, pair = adjacency(n, ends[:, 0], ends[:, 1], np.arange(len(ends)))
        alone = make_grouping(np.arange(n), np.arange(n + 1), np.arange(n))
        rivalry = make_rivalry(alone, np.zeros(n), start, rival, pair)
        blocked = place_apart(costs, rivalry, order, present, 1)
        labels: dict[int, int] = {}
        stuck = -1
        for g in order.tolist():
            near = {int(i) for i, j in ends if j == g} | {int(j) for i, j in ends if i == g}
            left = sorted(set(range(K)) - {labels[one] for one in near if one in labels})
            if not left:
                stuck = g
                break
            labels[g] = min(left, key=lambda h, g=g: (costs[g, h], h))
        assert blocked.tolist() == [stuck]
        assert {g: int(label) for g, label in enumerate(present) if label >= 0} == labels


@pytest.mark.parametrize("refine", [False, True])
def test_without_pairs_it_is_k_means(refine: bool) -> None:
    rows, *_ = text_corpus()
    settings = {"refine": refine, "random_state": 0, "n_init": 2}
    wanted = KMeans(3, **settings).fit(rows)
    assert digest_of(COPKMeans(3, **settings).fit(rows)) == digest_of(wanted)


def test_costs_of_pairs_do_not_count() -> None:
    rows, _, must, cannot = text_corpus()
    costly = Constraints(must, cannot, cannot_link_costs=np.full(len(cannot), 9.0))
    plain = COPKMeans(3, n_init=2, random_state=0).fit(rows, must_link=must, cannot_link=cannot)
    model = COPKMeans(3, n_init=2, random_state=0).fit(rows, must_link=costly)
    assert digest_of(model) == digest_of(plain)
    assert model.objective_terms_["J"] == model.objective_terms_["distortion"]


def test_the_packing_of_components_changes_nothing() -> None:
    rows, *_ = text_corpus()
    pairs = [(i, i + 1) for i in range(0, 100, 4)], [(i, i + 2) for i in range(0, 100, 4)]
    found = set()
    for memory in ("1 GiB", "32 KiB"):
        with dask.config.set({"hmrf.task-memory": memory}):
            model = COPKMeans(3, n_init=1, refine=False, random_state=0)
            model.fit(rows, must_link=pairs[0], cannot_link=pairs[1])
            found.add(digest_of(model))
    assert len(found) == 1


def test_a_component_too_large_for_a_task_is_refused() -> None:
    rows, _, must, cannot = text_corpus(n_pairs=110)
    with (
        dask.config.set({"hmrf.task-memory": "8 KiB"}),
        pytest.raises(MemoryPlanError, match=r"hard pairs must fit one task.*PCKMeans"),
    ):
        COPKMeans(3, n_init=1, random_state=0).fit(rows, must_link=must, cannot_link=cannot)


def test_a_saved_model_comes_back(tmp_path: Any) -> None:
    rows, _, must, cannot = text_corpus()
    model = COPKMeans(3, n_init=1, retries=7, random_state=0)
    model.fit(rows, must_link=must, cannot_link=cannot).save(tmp_path)
    other = load(tmp_path)
    assert type(other) is COPKMeans
    assert other.get_params() == model.get_params()
    np.testing.assert_array_equal(other.predict(rows), model.predict(rows))


# ---- bad input


def test_pairs_that_contradict_each_other() -> None:
    assert "on_conflict" not in COPKMeans().get_params()
    message = (
        r"correct the pairs, or, where pairs may be broken \(HMRFKMeans, PCKMeans\), set on_conf"
    )
    with pytest.raises(ConflictError, match=message):
        COPKMeans(2).fit(np.eye(3), must_link=[(0, 1)], cannot_link=[(0, 1)])


@pytest.mark.parametrize("retries", [-1, 256, 1.0, True, "many"])
def test_retries_that_are_none(retries: Any) -> None:
    with pytest.raises(ConfigurationError, match="retries must be an integer from 0 to 255"):
        COPKMeans(2, retries=retries).fit(np.eye(3))


def test_a_pair_of_no_row() -> None:
    with pytest.raises(InvalidInputError, match="pairs must name rows 0 to 2, got 3"):
        COPKMeans(2).fit(np.eye(3), cannot_link=[(0, 3)])


# ---- on other processes


@pytest.mark.cluster
def test_on_workers_it_is_the_same_error(process_client: Any) -> None:
    odd = [(0, 1), (0, 2), (1, 2)]
    with pytest.raises(InfeasibleError) as caught:
        COPKMeans(2, n_init=1, retries=2, random_state=0).fit(text_corpus()[0], cannot_link=odd)
    assert len(caught.value.blocking) == 2
