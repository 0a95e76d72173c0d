"""Pairs, what follows from them, and contradictions: against plain Python."""

from __future__ import annotations

import itertools
import pickle
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from hmrf_dask.constraints import closure as closure_module
from hmrf_dask.constraints.closure import ClosureRules, ConstraintGraph, CostedPairs, build_graph
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.errors import ConflictError, InvalidInputError

# --- the pairs ----------------------------------------------------------------------------------


def test_pairs_are_ordered_sorted_and_folded() -> None:
    pairs = Constraints([(3, 1), (1, 3), (2, 0)], [(9, 2)], must_link_costs=[2.0, 2.0, np.nan])
    assert pairs.must_link.tolist() == [[0, 2], [1, 3]]
    assert pairs.documents.tolist() == [0, 1, 2, 3, 9]
    assert pairs.cannot_nodes.tolist() == [[2, 4]]
    np.testing.assert_array_equal(pairs.must_link_costs, [np.nan, 2.0])
    assert len(pairs) == 3
    assert not pairs.by_id
    assert repr(pairs) == "Constraints(2 must-link, 1 cannot-link, 5 documents by row number)"


def test_strings_name_documents_and_integers_only_when_said() -> None:
    assert Constraints([("b", "a")]).by_id
    assert Constraints([(1, 2)], ids=True).by_id
    assert not Constraints(np.array([[1, 2]], np.uint8)).by_id
    empty = Constraints()
    assert len(empty) == 0
    assert len(Constraints([], np.empty((0, 2)))) == 0
    assert empty.must_link.shape == (0, 2)


def test_constraints_cannot_be_changed_even_after_pickling() -> None:
    pairs = pickle.loads(pickle.dumps(Constraints([("a", "b")], must_link_costs=[3.0])))
    with pytest.raises(ValueError, match="read-only"):
        pairs.must_nodes[0, 0] = 1
    with pytest.raises(AttributeError, match="immutable"):
        pairs.by_id = False
    assert pairs.must_link_costs.tolist() == [3.0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"must_link": [(1, 2, 3)]}, r"must_link must be .* \(m, 2\), got shape \(1, 3\)"),
        ({"must_link": [(1, 2), (3,)]}, r"got shape \(2,\)"),
        ({"must_link": [1, 2]}, r"got shape \(2,\)"),
        ({"cannot_link": [(1.0, 2.0)]}, "integers only or with strings only, got float"),
        ({"cannot_link": np.ones((2, 2))}, "got dtype float64"),
        ({"cannot_link": np.ones((2, 2), bool)}, "got dtype bool"),
        ({"must_link": [("a", 1)]}, "integers only or with strings only, got int, str"),
        ({"must_link": [(True, 2)]}, "got bool, int"),
        ({"must_link": [(2**63, 2)]}, r"below 2\*\*63"),
        ({"must_link": [("a", "b")], "cannot_link": [(1, 2)]}, "the same way"),
        ({"must_link": [("a", "b"), ("c", "c")]}, "itself: 'c': remove"),
        ({"cannot_link": [(i, i) for i in range(7)]}, r"0, 1, 2, 3, 4, … \(7 in all\)"),
        (
            {"must_link": [(1, 2)], "must_link_costs": [-1.0]},
            "must be 0, or from 1e-12 .* got -1 for pair 0",
        ),
        ({"must_link": [(1, 2)], "must_link_costs": [np.inf]}, "got inf for pair 0"),
        ({"must_link": [(1, 2)], "must_link_costs": ["x"]}, "must be numbers"),
        ({"must_link": [(1, 2)], "must_link_costs": [1, 2]}, r"shape \(1,\).*got shape \(2,\)"),
        (
            {"must_link": [("b", "a"), ("a", "b")], "must_link_costs": [1.0, np.nan]},
            r"one cost, got two different ones for 'a', 'b' \(the estimator's and 1\)",
        ),
    ],
)
def test_bad_pairs_are_refused_by_name(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        Constraints(**arguments)  # type: ignore[arg-type]


def test_fingerprint_is_of_the_content_alone() -> None:
    one = Constraints([("a", "b"), ("c", "d")], [("a", "c")], must_link_costs=[1.0, 2.0])
    other = Constraints(
        np.array([("d", "c"), ("b", "a"), ("a", "b")], dtype="<U30"),
        [("c", "a")],
        must_link_costs=[2.0, 1.0, 1.0],
    )
    assert one.fingerprint == other.fingerprint
    different = [
        Constraints([("a", "b"), ("c", "d")], [("a", "c")], must_link_costs=[1.0, 3.0]),
        Constraints([("a", "b"), ("c", "d")], [("a", "c")]),
        Constraints([("a", "b"), ("c", "d"), ("a", "c")]),
        Constraints([("a", "b"), ("c", "e")], [("a", "c")], must_link_costs=[1.0, 2.0]),
        Constraints([(1, 2)]),
        Constraints([(1, 2)], ids=True),
        Constraints([("1", "2")]),
    ]
    assert len({pairs.fingerprint for pairs in [one, *different]}) == len(different) + 1


def test_as_text_writes_integers_in_decimal() -> None:
    pairs = Constraints([(10, 9)], [(9, -1)], cannot_link_costs=[4.0], ids=True)
    assert pairs.as_text().must_link.tolist() == [["10", "9"]]
    assert pairs.as_text().cannot_link.tolist() == [["-1", "9"]]
    assert pairs.as_text().cannot_link_costs.tolist() == [4.0]


# --- closure: against plain Python --------------------------------------------------------------


def brute_groups(n: int, must: list[tuple[int, int]]) -> list[int]:
    """Lowest node each node is tied to, by repeated merging."""
    lowest = list(range(n))
    for _ in range(n):
        for i, j in must:
            lowest[i] = lowest[j] = min(lowest[i], lowest[j])
    return lowest


def brute_energy(
    n: int,
    must: dict[tuple[int, int], float],
    cannot: dict[tuple[int, int], float],
    labels: list[int],
    phi: np.ndarray,
    phi_max: float,
    costs: tuple[float, float],
    closure: bool,
    on_conflict: str,
    doubted: frozenset[tuple[int, int]] = frozenset(),
) -> float:
    """Energy of the closure, pair by pair, after the words of `algorithms.md` 3.

    Pairs that are doubted are not closed, and count only where the closure does not say what is.
    """
    reached = brute_groups(n, list(must))
    if on_conflict == "drop":
        cannot = {(i, j): cost for (i, j), cost in cannot.items() if reached[i] != reached[j]}
    group = brute_groups(n, [pair for pair in must if pair not in doubted])
    certain = [pair for pair in cannot if pair not in doubted]
    open_groups = {group[i] for i, j in certain if group[i] == group[j]}
    rivals = {frozenset((group[i], group[j])) for i, j in certain}
    energy = 0.0
    for i, j in itertools.combinations(range(n), 2):
        both_closed = closure and not {group[i], group[j]} & open_groups
        together = both_closed and group[i] == group[j]
        separated = both_closed and not together and frozenset((group[i], group[j])) in rivals
        for given_pairs, implied, cost in (
            (must, together, costs[0]),
            (cannot, separated, costs[1]),
        ):
            given_cost = given_pairs.get((i, j), cost if implied else 0.0)
            given_cost = cost if np.isnan(given_cost) else given_cost
            if (i, j) in doubted and (together or separated):
                given_cost = cost if implied else 0.0
            if given_pairs is must and labels[i] != labels[j]:
                energy += given_cost * phi[i, j]
            if given_pairs is cannot and labels[i] == labels[j]:
                energy += given_cost * (phi_max - phi[i, j])
    return energy


def graph_energy(
    graph: ConstraintGraph, labels: list[int], phi: np.ndarray, phi_max: float
) -> float:
    """Energy as the tasks see it: explicit pairs, tables of groups, tables of rivals."""
    energy = 0.0
    for (i, j), cost in zip(graph.must_pairs, graph.must_pair_costs, strict=True):
        energy += cost * phi[i, j] * (labels[i] != labels[j])
    for (i, j), cost in zip(graph.cannot_pairs, graph.cannot_pair_costs, strict=True):
        energy += cost * (phi_max - phi[i, j]) * (labels[i] == labels[j])
    rivals = {tuple(pair) for pair in graph.rivals.tolist()}
    for i, j in itertools.combinations(range(graph.n_nodes), 2):
        g, r = sorted((int(graph.groups[i]), int(graph.groups[j])))
        if g == r and graph.table_groups[g]:
            energy += graph.must_link_cost * phi[i, j] * (labels[i] != labels[j])
        if (g, r) in rivals:
            energy += graph.cannot_link_cost * (phi_max - phi[i, j]) * (labels[i] == labels[j])
    return energy


@st.composite
def problems(draw: st.DrawFn) -> dict[str, object]:
    n = draw(st.integers(2, 10))
    pairs = st.sampled_from(list(itertools.combinations(range(n), 2)))
    costs = st.sampled_from([float("nan"), 0.0, 0.5, 1.0, 3.0])
    return {
        "n": n,
        "must": draw(st.dictionaries(pairs, costs, max_size=n)),
        "cannot": draw(st.dictionaries(pairs, costs, max_size=n)),
        "closure": draw(st.booleans()),
        "on_conflict": draw(st.sampled_from(["keep", "drop"])),
        "tables": draw(st.booleans()),
        "doubted": draw(st.frozensets(pairs) if draw(st.booleans()) else st.just(frozenset())),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


def built(
    n: int,
    must: dict[tuple[int, int], float],
    cannot: dict[tuple[int, int], float],
    *,
    shuffle: np.random.Generator | None = None,
    doubted: frozenset[tuple[int, int]] = frozenset(),
    **options: Any,
) -> ConstraintGraph:
    """Build a graph of few nodes, its pairs in any order and orientation."""
    lists, joined = [], None
    for pairs in (must, cannot):
        nodes = np.array(list(pairs), np.int64).reshape(-1, 2)
        costs = np.array(list(pairs.values()), np.float64)
        certain = np.array([pair not in doubted for pair in pairs], np.bool_)
        if shuffle is not None and len(nodes):
            order = shuffle.permutation(len(nodes))
            nodes, costs = shuffle.permuted(nodes[order], axis=1), costs[order]
            certain = certain[order]
        own = certain if doubted else None
        lists.append(CostedPairs(nodes, costs, 1.0 if pairs is must else 0.5, own))
    if doubted:
        joined = np.array(numbered(brute_groups(n, list(must))), np.int32)
    rules = ClosureRules(**options)
    return build_graph(n, *lists, rules, lambda node: f"d{node}", joined)


def numbered(lowest: list[int]) -> list[int]:
    """Return groups by their lowest nodes, numbered in the order of these."""
    return [sorted(set(lowest)).index(one) for one in lowest]


def arrays_of(graph: ConstraintGraph) -> list[object]:
    return [
        value.tolist() if isinstance(value, np.ndarray) else value
        for value in (getattr(graph, name) for name in graph.__dataclass_fields__)
    ]


@settings(max_examples=150)
@given(problem=problems())
def test_energy_of_any_labelling_is_that_of_the_closure(problem: dict[str, object]) -> None:
    n, must, cannot = problem["n"], problem["must"], problem["cannot"]
    random = np.random.default_rng(problem["seed"])
    options = {name: problem[name] for name in ("closure", "on_conflict", "doubted")}
    # so small a ratio puts every component with more closure than pairs into tables
    ratio = 1 if problem["tables"] else 64
    with (
        mock.patch.object(closure_module, "EXPLICIT_RATIO", ratio),
        mock.patch.object(closure_module, "EXPLICIT_PAIRS", 2048 * (ratio // 64)),
    ):
        graph = built(n, must, cannot, **options)
        again = built(n, must, cannot, shuffle=random, **options)
    assert arrays_of(again) == arrays_of(graph)
    random_phi = random.random((n, n))
    for phi, phi_max in ((np.ones((n, n)), 2.0), (random_phi + random_phi.T, 2.0)):
        for _ in range(3):
            labels = random.integers(0, 3, n).tolist()
            wanted = brute_energy(n, must, cannot, labels, phi, phi_max, (1.0, 0.5), **options)
            assert graph_energy(graph, labels, phi, phi_max) == pytest.approx(wanted, abs=1e-9)
    for pairs in (graph.must_pairs, graph.cannot_pairs):
        assert np.all(pairs[:, 0] < pairs[:, 1])
        assert len({tuple(pair) for pair in pairs.tolist()}) == len(pairs)
    if not problem["tables"] or not problem["closure"]:
        assert not graph.table_components.any()


@given(problem=problems())
def test_groups_and_components_are_numbered_by_lowest_member(problem: dict[str, object]) -> None:
    n, must, cannot = problem["n"], problem["must"], problem["cannot"]
    graph = built(n, must, cannot, on_conflict="keep")
    for numbers, pairs in ((graph.groups, list(must)), (graph.components, [*must, *cannot])):
        assert numbers.tolist() == numbered(brute_groups(n, pairs))
    assert graph.group_components[graph.groups].tolist() == graph.components.tolist()


def brute_path(n: int, must: list[tuple[int, int]], source: int, target: int) -> list[int]:
    """Shortest path, lowest node by node, by trying all paths in order of length."""
    linked = {*must, *((j, i) for i, j in must)}
    paths = [[source]]
    while True:
        for path in paths:
            if path[-1] == target:
                return path
        paths = sorted(
            [*path, node] for path in paths for node in range(n) if (path[-1], node) in linked
        )


@given(problem=problems())
def test_every_contradiction_is_found_with_its_shortest_path(problem: dict[str, object]) -> None:
    n, must, cannot = problem["n"], problem["must"], problem["cannot"]
    group = brute_groups(n, list(must))
    bad = sorted(pair for pair in cannot if group[pair[0]] == group[pair[1]])
    wanted = tuple(tuple(f"d{node}" for node in brute_path(n, list(must), *pair)) for pair in bad)
    kept = built(n, must, cannot, on_conflict="keep")
    dropped = built(n, must, cannot, on_conflict="drop")
    for graph in (kept, dropped):
        assert graph.conflicts == wanted
        assert graph.n_conflicts == len(bad)
    assert len(dropped.dropped_pairs) == dropped.n_conflicts
    assert len(kept.dropped_pairs) == 0
    if kept.n_conflicts:
        with pytest.raises(ConflictError) as error:
            built(n, must, cannot)
        assert error.value.witness == kept.conflicts[0]
    else:
        assert arrays_of(built(n, must, cannot)) == arrays_of(kept)


def test_a_contradiction_is_explained_in_words() -> None:
    nan = float("nan")
    must = {(0, 1): nan, (1, 2): nan, (3, 4): nan}
    with pytest.raises(ConflictError, match="'d0' = 'd1' = 'd2' but 'd0' ≠ 'd2': correct"):
        built(5, must, {(0, 2): nan})
    with pytest.raises(ConflictError, match="'d0' ≠ 'd2', and 1 more contradiction: correct"):
        built(5, must, {(0, 2): nan, (3, 4): nan})
    same = built(5, must, {(3, 4): nan}, on_conflict="keep")
    assert same.conflicts == (("d3", "d4"),)
    assert same.contradictory_groups.tolist() == [1]
    chain = {(i, i + 1): nan for i in range(30)}
    with pytest.raises(ConflictError, match=r"'d3' = … \(23 more documents\) … = 'd27'") as error:
        built(31, chain, {(0, 30): nan})
    assert len(error.value.witness) == 31


def test_form_follows_from_sizes() -> None:
    nan = float("nan")
    for length, table in ((3, False), (65, False), (128, False), (129, True), (400, True)):
        chain = {(i, i + 1): nan for i in range(length - 1)}
        graph = built(length, chain, {})
        closure = length * (length - 1) // 2
        assert graph.table_components.tolist() == [closure > max(2048, 64 * (length - 1))]
        assert graph.table_components.tolist() == [table]
        assert len(graph.must_pairs) == (0 if table else closure)


def test_rivals_share_the_form_of_their_component() -> None:
    nan = float("nan")
    chain = {(i, i + 1): nan for i in range(399)}
    graph = built(403, {**chain, (401, 402): 7.0}, {(5, 400): nan, (6, 401): 2.0})
    assert graph.table_components.tolist() == [True]
    assert graph.table_groups.tolist() == [True, True, True]
    assert graph.rivals.tolist() == [[0, 1], [0, 2]]
    assert graph.must_pairs.tolist() == [[401, 402]]
    assert graph.must_pair_costs.tolist() == [6.0]
    assert graph.cannot_pairs.tolist() == [[6, 401]]
    assert graph.cannot_pair_costs.tolist() == [1.5]


def test_a_distortion_without_tables_is_written_out_within_a_budget() -> None:
    nan = float("nan")
    chain = {(i, i + 1): nan for i in range(399)}
    graph = built(400, chain, {}, closure_form=False)
    assert len(graph.must_pairs) == 400 * 399 // 2
    with pytest.raises(InvalidInputError, match=r"79,000 pairs .* 79,800 from 399 .*closure to fa"):
        built(400, chain, {}, closure_form=False, pair_budget=79_000)
    assert len(built(400, chain, {}, closure_form=False, closure=False).must_pairs) == 399


def test_two_components_of_ten_thousand_stay_small() -> None:
    chain = np.stack([np.arange(9_999), np.arange(1, 10_000)], axis=1)
    must = np.concatenate([chain, chain + 10_000])
    cannot = CostedPairs(np.array([[3, 15_000]]))
    graph = build_graph(20_000, CostedPairs(must), cannot, ClosureRules())
    arrays = (getattr(graph, name) for name in graph.__dataclass_fields__)
    assert sum(array.nbytes for array in arrays if isinstance(array, np.ndarray)) < 1_000_000
    assert graph.table_groups.tolist() == [True, True]
    assert graph.rivals.tolist() == [[0, 1]]


def test_an_empty_graph_is_a_graph() -> None:
    graph = built(0, {}, {})
    assert (graph.n_nodes, graph.n_groups, graph.n_components) == (0, 0, 0)
    alone = built(2, {}, {(0, 1): float("nan")})
    assert alone.groups.tolist() == [0, 1]
    assert alone.cannot_pairs.tolist() == [[0, 1]]
