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
from hmrf_dask.kernels import colour_search
from tests import naive
from tests.naive_family import best_free_move, broken, can_be_kept
from tests.support.family_fits import blobs, digest_of, text_corpus
from tests.support.hard_pairs import fitted, kept_or_not


def test_no_pair_is_broken_where_all_can_be_kept() -> None:
    found = kept_or_not(200)  # `make prove` goes through a thousand
    assert 60 < found.kept < 198  # both kinds were among them
    assert found.broken == found.rises == found.gave_up == found.unproved == 0


@pytest.mark.parametrize("density", [1.0, 1.3, 1.6])
def test_pairs_that_are_true_are_kept_however_many(density: float) -> None:
    for seed in range(4):
        rows, topics, must, cannot = text_corpus(n_pairs=round(120 * density), seed=seed)
        labels = COPKMeans(3, n_init=2, random_state=seed).fit_predict(
            rows, must_link=must, cannot_link=cannot
        )
        assert broken(labels, must, cannot) == 0
        assert broken(topics, must, cannot) == 0


def test_what_is_in_the_way_is_named() -> None:
    seen, by_search = 0, 0
    for seed in range(60):
        found, (rows, must, cannot, n_clusters) = fitted(seed)
        if not isinstance(found, InfeasibleError):
            continue
        seen += 1
        given = {frozenset(pair) for pair in cannot}
        assert {frozenset(pair) for pair in found.blocking} <= given
        assert not can_be_kept(len(rows), must, found.blocking, n_clusters)
        by_search += "a search of all labels" in str(found)
    assert seen > 5
    assert 2 <= by_search < seen


TRIANGLE = [("d0", "d1"), ("d0", "d2"), ("d1", "d2")]


def test_documents_that_exclude_one_another_are_named_before_the_fit(tmp_path: Any) -> None:
    rows, _ = blobs(6)
    names = [f"d{number}" for number in range(6)]
    corpus = Corpus.from_rows(rows, ids=names, n_partitions=2)
    pairs = [*TRIANGLE, ("d3", "d0")]
    with pytest.raises(
        InfeasibleError,
        match=r"one of the 2 clusters, got 3 documents that all exclude one another: 'd0' "
        r"\(in a must-link group of 2\), 'd1', 'd2'; ask for 3 clusters or more, drop one of the "
        r"cannot-links between them \('d0' and 'd1', 'd0' and 'd2', 'd1' and 'd2'\), .*PCKMeans",
    ) as caught:
        COPKMeans(2, random_state=0).fit(
            corpus, must_link=[("d5", "d0")], cannot_link=pairs, run_dir=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.blocking == caught.value.blocking == tuple(TRIANGLE)
    assert again.proved
    assert isinstance(again, ValueError)


RING = [(number, (number + 1) % 5) for number in range(5)]  # no three exclude one another


def test_a_search_that_ends_is_a_proof() -> None:
    rows, _ = blobs(9)
    pairs = [*RING, (0, 5), (5, 6), (7, 8)]
    message = (
        r"got 5 documents that a search of all labels rules out: 0, 1, 2, 3, 4; ask for more "
        r"clusters, drop one of the cannot-links between them \(0 and 1, 0 and 4, 1 and 2, "
        r"2 and 3, 3 and 4\), or use PCKMeans"
    )
    with pytest.raises(InfeasibleError, match=message) as caught:
        COPKMeans(2, n_init=1, random_state=0).fit(rows, cannot_link=pairs)
    assert caught.value.proved
    assert sorted(caught.value.blocking) == [(0, 1), (0, 4), (1, 2), (2, 3), (3, 4)]


def test_without_a_proof_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colour_search, "STEPS", 0)
    monkeypatch.setattr(colour_search, "MORE_STEPS", 2)  # for 24 pairs that cannot be kept
    rows, _ = blobs(12)
    wheel = [(0, number) for number in range(1, 6)] + [(i + 1, j + 1) for i, j in RING]
    pairs = [*wheel, *((i + 6, j + 6) for i, j in wheel)]
    message = (
        r"one of the 3 clusters, but for 6 documents that pairs join no such labels were found "
        r"within [\d,]+ steps, nor a proof that there are none; in the way of the first attempt: "
        r"\d+ and \d+, \d+ and \d+, \d+ and \d+\. Ask for more clusters or more retries, .*PCKMeans"
    )
    with pytest.raises(InfeasibleError, match=message) as caught:
        COPKMeans(3, n_init=1, retries=2, random_state=0).fit(rows, cannot_link=pairs)
    assert not caught.value.proved
    stuck, *others = {first for first, _ in caught.value.blocking}
    assert not others
    around = {frozenset((stuck, rival)) for _, rival in caught.value.blocking}
    assert len(around) == 3
    assert around <= {frozenset(pair) for pair in pairs}


def test_a_crown_is_kept_at_once() -> None:
    # Whoever places both ends of a missing edge first needs more than two clusters.
    n = 8
    cannot = [(i, n + j) for i in range(n) for j in range(n) if i != j]
    rows = np.random.default_rng(0).uniform(0.1, 1.0, (2 * n, 3))
    for seed in range(12):
        model = COPKMeans(2, n_init=1, retries=0, random_state=seed)
        assert broken(model.fit_predict(rows, cannot_link=cannot), [], cannot) == 0


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
    with pytest.raises(InfeasibleError) as caught:
        COPKMeans(2, n_init=1, retries=2, random_state=0).fit(text_corpus()[0], cannot_link=RING)
    assert caught.value.proved
    assert len(caught.value.blocking) == 5
