"""Folds of the answers, and what labels keep of those that were withheld."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hmrf_dask.rows.canonical import hash_ids
from hmrf_dask.tasks.folds import FOLDS, agreement, fold_numbers
from hmrf_dask.tasks.start_sample import restrict
from tests import naive
from tests.support.problems import string_ids
from tests.support.start_samples import graph_of

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


def classes_of(labels: Rows) -> tuple[Rows, Rows]:
    """Return pairs that say what classes say, -1 being none."""
    groups = [np.flatnonzero(labels == name) for name in np.unique(labels[labels >= 0])]
    must = np.concatenate([np.stack([rows[:-1], rows[1:]], axis=1) for rows in groups])
    first = [rows[0] for rows in groups]
    cannot = [(a, b) for place, a in enumerate(first) for b in first[place + 1 :]]
    return must, np.array(cannot, np.int64).reshape(-1, 2)


# --- folds


def test_a_small_component_is_in_one_fold_and_documents_of_a_large_one_are_in_all() -> None:
    labels = np.arange(200) % 4  # four classes: one component
    must, cannot = classes_of(labels)
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
    graph = graph_of(60, *(pairs.tolist() for pairs in classes_of(labels)))
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
