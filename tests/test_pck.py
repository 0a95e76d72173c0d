"""PCK-Means: Potts penalties, the K largest neighbourhoods, the document that is far from all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hmrf_dask import HMRFKMeans, PCKMeans, load
from hmrf_dask.tasks.first_centroids import largest_first
from tests import naive
from tests.support.family_fits import blobs, digest_of, falls, text_corpus
from tests.support.start_samples import graph_of, random_rows, sample_of


def centroids_of(rows: Any, groups: list[list[int]]) -> Any:
    """Return the means of groups of rows, by plain loops."""
    labels = [h for h, group in enumerate(groups) for _ in group]
    taken = np.asarray(rows, np.float64)[np.concatenate(groups)]
    plain = naive.Model(taken, "euclidean")
    return naive.optimal_centroids(plain, labels, len(groups), [1.0] * rows.shape[1])


def start(rows: Any, must: list[Any], cannot: list[Any], K: int, *, tables: bool = True) -> Any:
    nodes = np.arange(len(rows))
    graph = graph_of(len(rows), must, cannot, tables=tables)
    return largest_first(sample_of(rows, "euclidean"), graph, nodes, K)


MUST = [(0, 1), (2, 3), (3, 4), (5, 6), (6, 7), (7, 8), (9, 10)]  # sizes 2, 3, 4, 2


def test_the_largest_neighbourhoods_are_taken() -> None:
    rows = random_rows(0, name="euclidean")
    wanted = [[5, 6, 7, 8], [2, 3, 4], [0, 1], [9, 10]]  # ties: the lowest id
    for K in (1, 2, 3, 4):
        found = start(rows, MUST, [], K)
        np.testing.assert_allclose(found, centroids_of(rows, wanted[:K]), rtol=1e-6)
    assert len(start(rows, MUST, [], 6)) == 4  # the others are filled up
    assert len(start(rows, [], [(0, 1)], 2)) == 0


def test_a_document_cannot_linked_to_all_comes_next() -> None:
    rows = random_rows(1, name="euclidean")
    groups = [[2, 3, 4], [0, 1]]
    must = [(0, 1), (2, 3), (3, 4)]
    near = [(20, 0), (22, 1), (22, 2), (21, 4), (21, 0)]  # 20 sees one of them, 21 and 22 both
    found = start(rows, must, near, 4)
    np.testing.assert_allclose(found, centroids_of(rows, [*groups, [21]]), rtol=1e-6)
    assert len(start(rows, must, near, 2)) == 2
    assert len(start(rows, must, near[:1], 4)) == 2


def test_nor_does_the_form_of_the_closure_matter() -> None:
    rows = random_rows(2, 120, name="euclidean")
    must = [(i, i + 1) for i in range(99)] + [(101, 102)]
    cannot = [(110, 0), (110, 101), (0, 101)]
    found = [start(rows, must, cannot, 4, tables=tables) for tables in (True, False)]
    np.testing.assert_array_equal(*found)
    assert len(found[0]) == 3


@pytest.mark.parametrize("fill", ["k-means++", "perturb", "random"])
def test_it_is_hmrf_k_means_with_potts_penalties(fill: str) -> None:
    rows, hidden = blobs()
    must = [tuple(np.flatnonzero(hidden == h)[:2]) for h in range(2)]
    cannot = [(0, 1), (3, 4)]
    settings = {"fill": fill, "must_link_cost": 0.5, "random_state": 0}
    model = PCKMeans(3, **settings).fit(rows, must_link=must, cannot_link=cannot)
    other = HMRFKMeans(
        3, penalty="potts", learn_weights=False, init="neighborhoods", **settings
    ).fit(rows, must_link=must, cannot_link=cannot)
    assert digest_of(model) == digest_of(other)


@pytest.mark.parametrize("distortion", ["cosine", "euclidean"])
def test_a_violated_pair_costs_its_cost(distortion: str) -> None:
    rows, _, must, cannot = text_corpus(n_pairs=80)
    rows = rows.toarray()
    model = PCKMeans(
        3, distortion=distortion, must_link_cost=0.25, cannot_link_cost=0.125, closure=False,
        random_state=0,
    ).fit(rows, must_link=must, cannot_link=cannot)  # fmt: skip
    terms, count = model.objective_terms_, model.violations_
    assert terms["must_link"] == 0.25 * count["must_link"]
    assert terms["cannot_link"] == 0.125 * count["cannot_link"]
    assert falls(model.objective_history_)
    np.testing.assert_array_equal(model.feature_weights_, 1.0)


def test_costs_lead_from_free_to_kept_pairs() -> None:
    rows, _, must, cannot = text_corpus(n_pairs=80)
    rng = np.random.default_rng(0)
    must = rng.permutation(must)[:15]
    broken = []
    for cost in (0.0, 0.1, 100.0):
        model = PCKMeans(3, must_link_cost=cost, cannot_link_cost=cost, random_state=0)
        model.fit(rows, must_link=must, cannot_link=cannot)
        broken.append(sum(model.violations_.values()))
    assert broken[0] >= broken[1] >= broken[2] == 0


def test_a_saved_model_comes_back(tmp_path: Any) -> None:
    rows, _, must, cannot = text_corpus()
    model = PCKMeans(3, random_state=0).fit(rows, must_link=must, cannot_link=cannot)
    model.save(tmp_path)
    other = load(tmp_path)
    assert type(other) is PCKMeans
    assert other.get_params() == model.get_params()
    np.testing.assert_array_equal(other.predict(rows), model.predict(rows))
