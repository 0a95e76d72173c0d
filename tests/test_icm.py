"""Heap ICM and group moves against brute force in Python integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmrf_dask.kernels.compiled import njit
from hmrf_dask.kernels.exact import add_limbs, best_limbs
from hmrf_dask.kernels.icm import (
    LARGE_GROUP,
    empty_heap,
    icm,
    move_groups,
    move_points,
    place_item,
)
from hmrf_dask.kernels.problem import adjacency, make_grouping, make_problem
from hmrf_dask.kernels.reconcile import merge_parts
from tests.support.icm_oracle import Component, join_limbs
from tests.support.icm_problems import (
    grouping_of,
    problem_of,
    random_component,
    starting_labels,
    two_components,
)


def largest_gain_first(component: Component, labels: list[int], units: list[list[int]]) -> int:
    """Move the unit with the largest gain until none gains; ties as promised."""
    moves = 0
    while True:
        now = component.energy(labels)
        best, move = 0, None
        for unit in units:
            for h in range(component.n_clusters):
                moved = labels.copy()
                for i in unit:
                    moved[i] = h
                if now - component.energy(moved) > best:
                    best, move = now - component.energy(moved), moved
        if move is None:
            return moves
        labels[:] = move
        moves += 1


def single_units(component: Component) -> list[list[int]]:
    return [[i] for i in range(component.n)]


def group_units(component: Component) -> list[list[int]]:
    groups = range(max(component.groups) + 1)
    units = [[i for i, g in enumerate(component.groups) if g == group] for group in groups]
    return [unit for unit in units if len(unit) > 1]


def test_single_moves_are_those_of_the_oracle_in_its_order() -> None:
    rng = np.random.default_rng(1)
    for _ in range(60):
        component = random_component(rng, most=14)
        labels = starting_labels(rng, component)
        expected = labels.tolist()
        count = largest_gain_first(component, expected, single_units(component))
        assert move_points(labels, problem_of(component)) == count
        assert labels.tolist() == expected


@pytest.mark.parametrize("large", [False, True])
def test_group_moves_are_those_of_the_oracle_in_its_order(large: bool) -> None:
    rng = np.random.default_rng(2)
    total = 0
    for _ in range(60):
        component = random_component(rng, most=14)
        if large:  # enough copies of a pair without cost make every group a large one
            many = [(i, (i + 1) % component.n, "must", 0) for i in range(component.n)]
            component.pairs += many * (LARGE_GROUP // 2) * component.n_clusters
        labels = starting_labels(rng, component)
        expected = labels.tolist()
        count = largest_gain_first(component, expected, group_units(component))
        assert move_groups(labels, problem_of(component), grouping_of(component)) == count
        assert labels.tolist() == expected
        total += count
    assert total > 60


def test_icm_ends_where_nothing_gains() -> None:
    rng = np.random.default_rng(3)
    moved = [0, 0]
    for _ in range(300):
        component = random_component(rng)
        labels = starting_labels(rng, component)
        before = component.energy(labels.tolist())
        counts = icm(labels, problem_of(component), grouping_of(component))
        final = labels.tolist()
        assert component.energy(final) <= before - sum(counts)
        assert component.best_single_gain(final) == 0
        assert component.best_group_gain(final) == 0
        moved = [moved[0] + counts[0], moved[1] + counts[1]]
    assert min(moved) > 100


def test_packing_components_together_changes_nothing() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        one, other, both = two_components(rng)
        together = starting_labels(rng, both)
        alone = together[: one.n].copy(), together[one.n :].copy()
        icm(together, problem_of(both), grouping_of(both))
        for component, labels in zip((one, other), alone, strict=True):
            icm(labels, problem_of(component), grouping_of(component))
        np.testing.assert_array_equal(together, np.concatenate(alone))


def test_ties_stay_then_go_to_the_lowest_cluster() -> None:
    nothing = adjacency(2, *np.zeros((3, 0), np.int64))
    labels = np.array([2, 1], np.int32)
    costs = np.array([[0, 0, 0], [0, 5, 0]], np.int32)
    assert move_points(labels, make_problem(0, costs, 0, *nothing)) == 1
    assert labels.tolist() == [2, 0]
    labels = np.array([1, 2], np.int32)  # split at no cost: a group that is not worse off stays
    grouping = make_grouping(np.zeros(2), np.array([0, 2]), np.array([0, 1]))
    assert move_groups(labels, make_problem(0, 0 * costs, 0, *nothing), grouping) == 0
    assert labels.tolist() == [1, 2]


def test_single_moves_cannot_turn_a_group_and_a_group_move_can() -> None:
    n = 40
    first = np.arange(n - 1)
    pairs = adjacency(n, first, first + 1, np.full(n - 1, -10))
    costs = np.tile(np.array([[1, 0]], np.int32), (n, 1))
    labels = np.zeros(n, np.int32)
    problem = make_problem(0, costs, 0, *pairs)
    assert move_points(labels, problem) == 0
    grouping = make_grouping(np.zeros(n), np.array([0, n]), np.arange(n))
    assert move_groups(labels, problem, grouping) == 1
    assert labels.all()


def test_a_group_gain_beyond_int64_is_exact() -> None:
    n = 64
    nothing = adjacency(n, *np.zeros((3, 0), np.int64))
    costs = np.zeros((n, 3), np.int32)
    costs[:, 0] = 2**30  # 2**60 a member: 64 of them wrap int64 to zero
    costs[:, 1] = 1
    labels = np.zeros(n, np.int32)
    grouping = make_grouping(np.zeros(n), np.array([0, n]), np.arange(n))
    assert move_groups(labels, make_problem(0, costs, 30, *nothing), grouping) == 1
    assert (labels == 2).all()


@pytest.mark.parametrize("seed", range(12))
def test_hubs_end_like_their_definition(seed: int) -> None:
    """Stars with more leaves than a hub needs: rows of hubs are updated, not added up again."""
    rng = np.random.default_rng(seed)
    n, n_clusters, n_hubs = 150, 3, 3
    hubs = np.repeat(np.arange(n_hubs), 120)
    first = np.concatenate((hubs, rng.integers(0, n, 100)))
    second = np.concatenate((rng.integers(0, n, len(hubs)), rng.integers(0, n, 100)))
    differ = first != second
    first, second = first[differ], second[differ]
    cost = rng.integers(-3, 4, len(first))
    costs = rng.integers(0, 12, (n, n_clusters)).astype(np.int32)
    labels = rng.integers(0, n_clusters, n).astype(np.int32)
    expected = labels.tolist()
    moves = move_points(labels, make_problem(0, costs, 0, *adjacency(n, first, second, cost)))

    pairs = [tuple(int(x) for x in pair) for pair in zip(first, second, cost, strict=True)]
    neighbours: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    for i, j, c in pairs:
        neighbours[i].append((j, c))
        neighbours[j].append((i, c))
    count = 0
    while True:
        best = (0, 0, 0)
        for i in range(n):
            row = [int(x) for x in costs[i]]
            for j, c in neighbours[i]:
                row[expected[j]] += c
            best = max(best, (row[expected[i]] - min(row), -i, row.index(min(row))))
        if best[0] == 0:
            break
        expected[-best[1]] = best[2]
        count += 1
    assert moves == count
    assert labels.tolist() == expected


def test_adjacency_lists_every_pair_at_both_ends() -> None:
    rng = np.random.default_rng(7)
    n, m = 20, 60
    first = rng.integers(0, n, m)
    second = (first + rng.integers(1, n, m)) % n
    cost = rng.integers(-9, 9, m)
    start, neighbour, costs = adjacency(n, first, second, cost)
    found = sorted(
        (i, int(neighbour[e]), int(costs[e]))
        for i in range(n)
        for e in range(start[i], start[i + 1])
    )
    both = [*zip(first, second, cost, strict=True), *zip(second, first, cost, strict=True)]
    assert found == sorted((int(i), int(j), int(c)) for i, j, c in both)


# functions that only kernels call have no way in from Python
_place_item = njit()(lambda heap, item: place_item(heap, item))
_add_limbs = njit()(lambda high, low, at, value: add_limbs(high, low, at, value))
_best_limbs = njit()(lambda high, low: best_limbs(high, low, 0, len(high) - 1))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 3)), max_size=60))
def test_heap_always_shows_the_best_item(changes: list[tuple[int, int, int]]) -> None:
    for two_limbs in (False, True):
        heap = empty_heap(10, two_limbs)
        gains = dict.fromkeys(range(10), (0, 0))
        for item, high, low in changes:
            low = low if two_limbs else 0
            heap.high[item] = high
            if two_limbs:
                heap.low[item] = low
            _place_item(heap, item)
            gains[item] = (high, low)
            waiting = [item for item in gains if gains[item] != (0, 0)]
            assert heap.size[0] == len(waiting)
            if waiting:
                best = min(waiting, key=lambda i: (-gains[i][0], -gains[i][1], i))
                assert heap.items[0] == best
        assert sorted(heap.items[: heap.size[0]]) == [i for i in gains if gains[i] != (0, 0)]


INTEGERS = st.integers(-(2**62), 2**62)


@given(st.lists(INTEGERS, min_size=1, max_size=30), st.lists(INTEGERS, max_size=30))
def test_limbs_add_up_exactly(one: list[int], other: list[int]) -> None:
    parts = []
    for values in (one, other):
        high, low = np.zeros(1, np.int64), np.zeros(1, np.int64)
        for value in values:
            _add_limbs(high, low, 0, value)
        assert join_limbs(high[0], low[0]) == sum(values)
        parts.append((np.zeros(1, np.int32), high[:, None], low[:, None]))
    _, (high,), (low,) = merge_parts(parts)
    assert join_limbs(high[0], low[0]) == sum(one) + sum(other)
    assert 0 <= low[0] < 2**32


@given(st.lists(st.integers(-(2**80), 2**80), min_size=2, max_size=6))
def test_best_of_limbs_is_the_lowest_of_the_cheapest(values: list[int]) -> None:
    high = np.array([value >> 32 for value in values])
    low = np.array([value & (2**32 - 1) for value in values])
    target, gain_high, gain_low = _best_limbs(high, low)
    *choices, present = values
    gain = max(Fraction(0), Fraction(present - min(choices)))
    assert join_limbs(gain_high, gain_low) == gain
    assert target == (choices.index(min(choices)) if gain > 0 else -1)
