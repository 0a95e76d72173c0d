"""Folds of the answers, and what labels keep of those that were withheld."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hmrf_dask import Constraints, HMRFKMeans
from hmrf_dask.rows.canonical import hash_ids
from hmrf_dask.tasks.answers import FOLDS, Agreement, agreement, fold_numbers
from hmrf_dask.tasks.first_centroids import completed
from hmrf_dask.tasks.start_sample import restrict
from tests import naive
from tests.support.cases import FITS
from tests.support.long_cases import long
from tests.support.problems import pairs_of_classes, planted_text, string_ids
from tests.support.start_samples import graph_of, random_rows, sample_of

Rows = NDArray[np.int64]


def random_graph(seed: int, n: int = 40, n_pairs: int = 30, *, closure: bool = True) -> Any:
    """Return random pairs and their graph, in which every node has a pair."""
    rng = np.random.default_rng(seed)
    drawn = np.sort(rng.integers(0, n, (n_pairs, 2)), axis=1)
    drawn = np.unique(drawn[drawn[:, 0] < drawn[:, 1]], axis=0)
    nodes, pairs = np.unique(drawn, return_inverse=True)
    pairs = pairs.reshape(-1, 2)
    kind = rng.random(len(pairs)) < 0.5
    must, cannot = pairs[kind], pairs[~kind]
    return graph_of(len(nodes), must, cannot, closure=closure), must, cannot


# --- folds


def test_a_small_component_is_in_one_fold_and_documents_of_a_large_one_are_in_all() -> None:
    labels = np.arange(200) % 4  # four classes: one component
    must, cannot = pairs_of_classes(labels)
    small = np.stack([np.arange(200, 240, 2), np.arange(201, 240, 2)], axis=1)
    graph = graph_of(240, np.concatenate([must, small]).tolist(), cannot.tolist())
    folds = fold_numbers(graph, hash_ids(string_ids(240, 0)), seed=3)
    assert (folds[200::2] == folds[201::2]).all()
    assert set(folds[200:].tolist()) == set(range(FOLDS))
    assert np.bincount(folds[:200], minlength=FOLDS).min() > 20
    assert not (fold_numbers(graph, hash_ids(string_ids(240, 0)), seed=4) == folds).all()


def test_a_fold_is_that_of_the_lowest_id_whatever_else_is_known() -> None:
    keys = hash_ids(string_ids(40, 1))
    pairs = np.stack([np.arange(0, 40, 2), np.arange(1, 40, 2)], axis=1)
    folds = fold_numbers(graph_of(40, pairs.tolist(), []), keys, seed=0)
    fewer = fold_numbers(graph_of(20, [], pairs[:10].tolist()), keys[:20], seed=0)
    assert fewer.tolist() == folds[:20].tolist()


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_what_labels_keep_is_what_the_oracle_counts(
    seed: int, tables: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tables:
        monkeypatch.setattr("hmrf_dask.constraints.closure.EXPLICIT_PAIRS", 4)
        monkeypatch.setattr("hmrf_dask.constraints.closure.EXPLICIT_RATIO", 0)
    graph, must, cannot = random_graph(seed, closure=seed % 3 > 0)
    rng = np.random.default_rng(seed)
    for n_clusters in (1, 3, 6):
        labels = rng.integers(0, n_clusters, graph.n_nodes).astype(np.int32)
        nodes = rng.random(graph.n_nodes) < 0.3
        found = agreement(graph, labels, nodes)
        assert found == naive.kept_relations(must, cannot, labels, np.flatnonzero(nodes))
    assert agreement(graph, labels, np.zeros(graph.n_nodes, np.bool_)) == (0, 0)


def test_the_truth_keeps_everything() -> None:
    labels = np.random.default_rng(0).integers(0, 4, 60)
    graph = graph_of(60, *(pairs.tolist() for pairs in pairs_of_classes(labels)))
    every = np.ones(60, np.bool_)
    kept, withheld = agreement(graph, labels.astype(np.int32), every)
    assert kept == withheld == 60 * 4
    merged = np.where(labels == 3, 2, labels).astype(np.int32)  # two classes swallowed by one
    assert agreement(graph, merged, every).kept == 60 * 4 - int((labels >= 2).sum())


@pytest.mark.parametrize("closure", [False, True])
def test_without_some_nodes_a_graph_has_the_pairs_of_the_others(closure: bool) -> None:
    for seed in range(20):
        graph = random_graph(seed, closure=closure)[0]
        keep = np.random.default_rng(seed).random(graph.n_nodes) < 0.7
        part, place = restrict(graph, keep), np.cumsum(keep) - 1
        for kind in ("must", "cannot"):
            pairs = getattr(graph, f"{kind}_pairs")
            inside = keep[pairs].all(axis=1)
            assert getattr(part, f"{kind}_pairs").tolist() == place[pairs[inside]].tolist()
            costs = getattr(graph, f"{kind}_pair_costs")[inside]
            assert getattr(part, f"{kind}_pair_costs").tolist() == costs.tolist()
        together = graph.groups[keep]
        same = together[:, None] == together[None, :]
        assert ((part.groups[:, None] == part.groups[None, :]) == same).all()
        assert part.n_groups == len(np.unique(together))
        assert part.n_components == len(np.unique(graph.components[keep]))
        assert (part.group_components[part.groups] == part.components).all()


def test_groups_are_completed_by_the_clusters_that_none_of_them_claims() -> None:
    labels = np.random.default_rng(1).integers(0, 4, 60)
    sample = sample_of(random_rows(1, 60, 12))
    nodes = np.flatnonzero(np.isin(labels, [0, 3]))[:20]
    graph = graph_of(20, *(pairs.tolist() for pairs in pairs_of_classes(labels[nodes])))
    turned = np.array([2, 0, 3, 1])[labels]  # clusters have other numbers than classes
    made = completed(sample, graph, nodes, turned, 4)
    wanted = sample.centroids(*sample.sums(turned, 4))
    groups = np.full(60, -1)
    groups[nodes] = graph.groups
    np.testing.assert_array_equal(made[:2], sample.centroids(*sample.sums(groups, 2)))
    np.testing.assert_array_equal(made[2:], wanted[[0, 3]])  # those of classes 1 and 2


# --- who wins


OVERRULED = "starts by held-out answers"


def test_more_of_few_relations_may_be_chance() -> None:
    for kept, least, n, exceeds in [(1, 0, 1, 0), (2, 1, 2, 0), (3, 1, 3, 1), (9, 9, 9, 0)]:
        assert Agreement(kept, n).exceeds(Agreement(least, n)) == exceeds
        assert not Agreement(least, n).exceeds(Agreement(kept, n))


def test_answers_overrule_the_lowest_j_and_the_fit_says_so(tmp_path: Path) -> None:
    model = FITS[OVERRULED].fitted(3, run_dir=str(tmp_path / "run"))
    assert ", made of the answers, keeps " in model.start_reason_
    assert "whose J is lower" in model.start_reason_
    history = model.objective_history_
    assert all(after <= before for before, after in pairwise(history))
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    (chosen,) = (one for one in events if one["event"] == "chosen start")
    folds = [one for one in events if "withheld" in one]
    assert len(folds) == 2 * FOLDS
    for place, name in enumerate(("lowest", "challenger")):
        for count in ("kept", "withheld"):
            assert chosen[name][count] == sum(one[count] for one in folds[place::2])
    assert chosen["J"] > chosen["lowest"]["J"]
    assert chosen["reason"] == model.start_reason_


def test_two_folds_that_show_nothing_end_a_match() -> None:
    model = FITS["cosine potts open"].fitted(1)
    assert "no more than chance explains" in model.start_reason_


def test_a_class_that_nobody_labelled_is_found() -> None:
    rows, topics = planted_text(400, 400, 5, 3)
    known = np.full(400, -1)
    known[:80] = np.where(topics[:80] == 2, -1, topics[:80])
    must, cannot = pairs_of_classes(known)
    labels = HMRFKMeans(5, random_state=0).fit(rows, must_link=must, cannot_link=cannot).labels_
    own = np.bincount(labels[topics == 2], minlength=5)
    assert own.max() > 0.8 * own.sum()
    assert own.max() > 0.8 * (labels == own.argmax()).sum()


CHAIN = [(row, row + 1) for row in range(30)]


@pytest.mark.parametrize(
    ("must", "cannot"), [(CHAIN, []), ([], CHAIN), ([(0, 1)], []), ([], [(0, 1)])]
)
@pytest.mark.parametrize("whole", [False, *long(True)])
def test_answers_of_one_class_or_one_kind_are_folded_too(
    must: Any, cannot: Any, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmrf_dask.fit.candidates.WHOLE_ROWS", 5000 if whole else 0)
    monkeypatch.setattr("hmrf_dask.fit.starts.WHOLE_WORK", 0)
    monkeypatch.setattr("hmrf_dask.fit.candidates.begins_without_answers", lambda name: True)
    rows = planted_text(120, 200, 4, 2)[0]
    pairs = Constraints(*(np.array(one, np.int64).reshape(-1, 2) for one in (must, cannot)))
    model = HMRFKMeans(4, random_state=0, n_init=3).fit(rows, must_link=pairs)
    assert "withheld relations" in model.start_reason_
