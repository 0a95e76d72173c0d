"""Hard pairs as a colouring, against plain loops: cliques, placing, chains, searches and proofs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmrf_dask.constraints.cliques import find_clique
from hmrf_dask.constraints.closure import ClosureRules, CostedPairs, build_graph
from hmrf_dask.kernels import colour_search
from hmrf_dask.kernels.colour_search import critical_part, search, search_once, walk
from hmrf_dask.kernels.colouring import Rivalry, make_rivalry, place_apart, swap_chains
from hmrf_dask.kernels.graphs import Graph, graph_of, largest_clique, smallest_last, subgraph
from hmrf_dask.kernels.problem import make_grouping
from tests.naive_family import best_swap, can_be_kept, placed_apart

Edges = list[tuple[int, int]]


@st.composite
def graphs(draw: Any, most: int = 9) -> tuple[int, Edges]:
    """Return a number of nodes, and edges, some of them twice."""
    n = draw(st.integers(1, most))
    node = st.integers(0, n - 1)
    edges = draw(st.lists(st.tuples(node, node).filter(lambda ends: ends[0] != ends[1])))
    return n, edges


def rivals_of(n: int, edges: Edges) -> dict[int, set[int]]:
    return {
        node: {j for i, j in edges if i == node} | {i for i, j in edges if j == node}
        for node in range(n)
    }


def rivalry_of(n: int, edges: Edges) -> Rivalry:
    """Return groups of one point each."""
    alone = make_grouping(np.arange(n), np.arange(n + 1), np.arange(n))
    return make_rivalry(alone, graph_of(n, np.array(edges)))


def costs_of(n: int, n_clusters: int, seed: int, most: int = 9) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, most, (n, n_clusters)).astype(np.int32)


def neighbours(graph: Graph) -> list[list[int]]:
    bounds = itertools.pairwise(graph.start.tolist())
    return [graph.neighbour[begin:end].tolist() for begin, end in bounds]


def colourable(edges: Edges, nodes: list[int], n_clusters: int) -> bool:
    inside = [(i, j) for i, j in edges if i in nodes and j in nodes]
    return can_be_kept(max(nodes, default=0) + 1, [], inside, n_clusters)


@given(graphs())
def test_a_graph_has_each_neighbour_once(problem: tuple[int, Edges]) -> None:
    n, edges = problem
    rivals = rivals_of(n, edges)
    assert neighbours(graph_of(n, np.array(edges))) == [sorted(rivals[i]) for i in range(n)]
    some = list(range(0, n, 2))
    local = [[some.index(j) for j in sorted(rivals[i]) if j in some] for i in some]
    assert neighbours(subgraph(graph_of(n, np.array(edges)), np.array(some))) == local


@given(graphs())
def test_nodes_are_peeled_by_their_core_numbers(problem: tuple[int, Edges]) -> None:
    n, edges = problem
    rivals = rivals_of(n, edges)
    order, core = smallest_last(graph_of(n, np.array(edges)))
    assert sorted(order.tolist()) == list(range(n))
    for k in range(1, n + 1):
        left = set(range(n))
        while few := {node for node in left if len(rivals[node] & left) < k}:
            left -= few
        assert set(np.flatnonzero(core >= k).tolist()) == left
    for place, node in enumerate(order.tolist()):
        assert len(rivals[node] & set(order[place:].tolist())) <= core[node]


@given(graphs())
def test_the_largest_clique_of_a_small_graph_is_found(problem: tuple[int, Edges]) -> None:
    n, edges = problem
    rivals = rivals_of(n, edges)

    def exclude_one_another(nodes: tuple[int, ...]) -> bool:
        return all(j in rivals[i] for i, j in itertools.combinations(nodes, 2))

    found = largest_clique(graph_of(n, np.array(edges))).tolist()
    assert exclude_one_another(tuple(found))
    assert found == sorted(found)
    larger = itertools.combinations(range(n), len(found) + 1)
    assert not any(exclude_one_another(nodes) for nodes in larger)


def test_a_clique_in_a_large_graph_is_found() -> None:
    rng, hidden = np.random.default_rng(0), np.arange(7, 2000, 250)
    edges = [*rng.integers(0, 2000, (8000, 2)).tolist(), *itertools.combinations(hidden, 2)]
    edges = [(i, j) for i, j in edges if i != j]
    assert largest_clique(graph_of(2000, np.array(edges))).tolist() == hidden.tolist()


@pytest.mark.parametrize("closure", [True, False])
def test_a_clique_is_one_of_groups(closure: bool) -> None:
    must = CostedPairs(np.array([[0, 1], [1, 2], [4, 5], [7, 8]]))
    cannot = CostedPairs(np.array([[0, 4], [5, 6], [2, 6], [6, 9], [7, 8]]))
    rules = ClosureRules(closure, on_conflict="keep")
    assert find_clique(build_graph(10, must, cannot, rules)).tolist() == [0, 4, 6]


def test_a_clique_is_found_where_closures_are_tables() -> None:
    chains = [np.arange(80) + 80 * number for number in range(3)]
    must = np.concatenate([np.stack([chain[:-1], chain[1:]], axis=1) for chain in chains])
    cannot = np.array([[3, 90], [100, 170], [200, 7]])
    graph = build_graph(240, CostedPairs(must), CostedPairs(cannot), ClosureRules())
    assert graph.table_components.all()
    assert find_clique(graph).tolist() == [0, 80, 160]


@given(graphs(), st.integers(1, 4), st.integers(0, 2**32))
def test_groups_are_placed_by_what_the_choice_matters(
    problem: tuple[int, Edges], n_clusters: int, seed: int
) -> None:
    n, edges = problem
    costs = costs_of(n, n_clusters, seed)
    wanted = placed_apart(costs.tolist(), rivals_of(n, edges))
    assert place_apart(costs, rivalry_of(n, edges)).tolist() == wanted


def test_a_group_costs_what_its_points_cost() -> None:
    costs = np.array([[0, 5, 9], [8, 0, 9], [0, 4, 9]], np.int32)  # 8, 5, 18 together; 0, 4, 9
    groups = make_grouping(np.array([0, 0, 1]), np.array([0, 2, 3]), np.array([0, 1, 2]))
    rivalry = make_rivalry(groups, graph_of(2, np.array([[0, 1]])))
    assert place_apart(costs, rivalry).tolist() == [1, 0]
    labels = np.array([0, 1], np.int32)
    swap_chains(costs, rivalry, labels)
    assert labels.tolist() == [1, 0]


@given(graphs(), st.integers(2, 4), st.integers(0, 2**32))
def test_chains_swap_until_none_gains(
    problem: tuple[int, Edges], n_clusters: int, seed: int
) -> None:
    n, edges = problem
    costs = costs_of(n, n_clusters, seed)
    found = search(graph_of(n, np.array(edges)), np.zeros((n, n_clusters), np.int64), 0)
    if found.labels is None:
        return
    labels, rows = found.labels.copy(), np.arange(n)
    swap_chains(costs, rivalry_of(n, edges), labels)
    assert all(labels[i] != labels[j] for i, j in edges)
    assert costs[rows, labels].sum() <= costs[rows, found.labels].sum()
    assert best_swap(costs.tolist(), rivals_of(n, edges), labels.tolist()) == 0


def test_empty_clusters_take_part_in_swaps() -> None:
    costs = np.array([[9, 9, 0, 9, 1], [9, 9, 1, 9, 0]], np.int32)
    labels = np.array([3, 1], np.int32)
    swap_chains(costs, rivalry_of(2, [(0, 1)]), labels)
    assert labels.tolist() == [2, 4]


@settings(max_examples=100)
@given(graphs(), st.integers(1, 4), st.integers(0, 2**32))
def test_a_search_of_a_small_graph_ends_with_labels_or_a_proof(
    problem: tuple[int, Edges], n_clusters: int, seed: int
) -> None:
    n, edges = problem
    graph, sums = graph_of(n, np.array(edges)), costs_of(n, n_clusters, seed).astype(np.int64)
    found = search(graph, sums, 0)
    assert (found.labels is not None) == colourable(edges, list(range(n)), n_clusters)
    if found.labels is not None:
        assert all(found.labels[i] != found.labels[j] for i, j in edges)
        return
    assert found.proof is not None
    part = critical_part(graph, n_clusters, found.proof).tolist()
    assert not colourable(edges, part, n_clusters)
    for node in part:
        assert colourable(edges, [other for other in part if other != node], n_clusters)


def test_where_nothing_else_decides_the_cheapest_is_tried_first() -> None:
    sums = np.array([[3, 0, 1], [0, 2, 1], [5, 5, 0]], np.int64)
    found = search(graph_of(3, np.zeros((0, 2))), sums, 0)
    assert found.labels is not None
    assert found.labels.tolist() == [1, 0, 2]


def planted(n: int, degree: float, seed: int) -> tuple[Graph, Edges]:
    """Return a graph with three colours in it, and its edges."""
    rng = np.random.default_rng(seed)
    colours, ends = rng.integers(0, 3, n), rng.integers(0, n, (int(0.75 * degree * n), 2))
    edges = ends[colours[ends[:, 0]] != colours[ends[:, 1]]]
    return graph_of(n, edges), edges.tolist()


def test_what_was_in_the_way_comes_first_in_the_next_search() -> None:
    solved = np.zeros(2, np.int64)
    for seed in range(20):
        graph, edges = planted(200, 4.4, seed)
        order, weight = np.tile(np.arange(3), (200, 1)), np.zeros(200, np.int64)
        tries = [search_once(graph, order, weight, 4000).labels for _ in range(40)]
        found = [labels for labels in tries if labels is not None]
        solved += tries[0] is not None, len(found) > 0
        assert all(labels[i] != labels[j] for labels in found for i, j in edges)
    assert solved[0] < 10 < 18 <= solved[1]


@settings(max_examples=80)
@given(graphs(), st.integers(1, 4), st.integers(0, 20))
def test_a_walk_ends_without_conflicts_where_it_can(
    problem: tuple[int, Edges], n_clusters: int, number: int
) -> None:
    n, edges = problem
    found = walk(graph_of(n, np.array(edges)), n_clusters, number, 20_000)
    assert found.proof is None
    if n_clusters > 1:
        assert (found.labels is not None) == colourable(edges, list(range(n)), n_clusters)
    if found.labels is not None:
        assert all(found.labels[i] != found.labels[j] for i, j in edges)
        assert 0 <= found.labels.min() <= found.labels.max() < n_clusters


def test_a_walk_finds_what_a_search_does_not() -> None:
    graph, edges = planted(3000, 4.3, 0)
    order, weight = np.tile(np.arange(3), (3000, 1)), np.zeros(3000, np.int64)
    assert search_once(graph, order, weight, 4_000_000).labels is None
    labels = walk(graph, 3, 0, 16_000_000).labels
    assert labels is not None
    assert all(labels[i] != labels[j] for i, j in edges)
    again = walk(graph, 3, 0, 16_000_000).labels
    assert again is not None
    assert again.tobytes() == labels.tobytes()
    other = walk(graph, 3, 2, 16_000_000).labels
    assert other is None or other.tobytes() != labels.tobytes()


def test_steps_are_counted_and_end_a_search() -> None:
    graph, _ = planted(300, 4.6, 0)
    core = np.flatnonzero(smallest_last(graph)[1] >= 3)
    inside = subgraph(graph, core)
    order = np.tile(np.arange(3), (len(core), 1))
    most = len(core) // 2  # fewer than it has nodes
    found = search_once(inside, order, np.zeros(len(core), np.int64), most)
    assert found.labels is None
    assert found.proof is None
    assert most <= found.steps < most + len(core)


def test_attempts_after_the_first_search_do_not_depend_on_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, _ = planted(200, 4.2, 3)
    core = np.flatnonzero(smallest_last(graph)[1] >= 3)
    sums = [costs_of(200, 3, seed).astype(np.int64) for seed in range(3)]
    cheapest = [search(graph, one, 0).labels for one in sums]
    once, n_tried = colour_search.search_once, 0

    def first_fails(*arguments: Any) -> Any:
        nonlocal n_tried
        n_tried += 1
        return colour_search.Search(1) if n_tried % 2 else once(*arguments)

    monkeypatch.setattr(colour_search, "search_once", first_fails)
    monkeypatch.setattr(colour_search, "walk", lambda *_: colour_search.Search(1))
    later = [search(graph, one, 1).labels for one in sums]
    numbers = [
        len({labels[core].tobytes() for labels in found if labels is not None})
        for found in (cheapest, later)
    ]
    assert numbers == [3, 1]
    assert n_tried == 6
