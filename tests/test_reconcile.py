"""A component in pieces ends as well as a whole one: no move left that gains, energy never up."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmrf_dask.fit.rounds import ROUNDS, Phase, Progress, Rounds, advance, next_pieces
from hmrf_dask.kernels.icm import move_points
from hmrf_dask.kernels.problem import make_grouping, make_problem
from hmrf_dask.kernels.reconcile import (
    GroupMoves,
    beaten_groups,
    group_gain_parts,
    make_half_edges,
    merge_parts,
    winners,
)
from hmrf_dask.tasks.rounds import PricedPiece, heap_moves, take_moves
from tests.support.icm_oracle import Component, join_limbs
from tests.support.icm_problems import problem_of, random_component, starting_labels
from tests.support.reconciliation import cut, reconcile, reconciliation


def random_bounds(rng: np.random.Generator, n: int) -> list[int]:
    """Cut 0 .. n into 1 to 6 pieces; empty ones occur."""
    inner = rng.integers(0, n + 1, int(rng.integers(0, 6)))
    return [0, *sorted(inner.tolist()), n]


def rounds_over(component: Component, bounds: list[int], **settings: object) -> Rounds:
    groups = component.group_arrays()[0]
    parts = component.costs(), component.shift, component.signed_pairs(), groups, bounds
    return reconciliation(*parts, **settings)


@pytest.mark.parametrize("budget", [1, 2**20])
@pytest.mark.parametrize("rounds", [0, 1, ROUNDS])
def test_energy_never_rises_and_no_move_is_left(rounds: int, budget: int) -> None:
    rng = np.random.default_rng(100 + rounds)
    phases: Counter[Phase] = Counter()
    for _ in range(60):
        component = random_component(rng)
        labels = starting_labels(rng, component)
        history = [component.energy(labels.tolist())]

        def watch(now: np.ndarray, component=component, history=history) -> None:
            history.append(component.energy(now.tolist()))

        bounds = random_bounds(rng, component.n)
        run = rounds_over(component, bounds, rounds=rounds, budget=budget, watch=watch)
        final = reconcile(run, labels).tolist()
        assert all(after < before for before, after in pairwise(history))
        assert component.best_single_gain(final) == 0
        assert component.best_group_gain(final) == 0
        phases.update(run.steps)
    if rounds < ROUNDS:
        assert min(phases[Phase.POINT_HANDOVER], phases[Phase.GROUP_HANDOVER]) > 10
    if rounds > 0:
        assert min(phases[Phase.POINTS], phases[Phase.GROUPS]) > 10


def test_rounds_do_not_depend_on_the_cut() -> None:
    rng = np.random.default_rng(7)
    for _ in range(60):
        component = random_component(rng)
        labels = starting_labels(rng, component)
        ends = [
            reconcile(rounds_over(component, bounds), labels)
            for bounds in ([0, component.n], random_bounds(rng, component.n))
        ]
        np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("budget", [1, 2**20])
def test_groups_without_labels_go_whole_where_their_distortion_is_least(budget: int) -> None:
    rng = np.random.default_rng(11)
    for _ in range(60):
        component = random_component(rng)
        run = rounds_over(component, random_bounds(rng, component.n), budget=budget)
        nowhere = np.full(component.n, -2, np.int32)
        pieces = [priced.piece for priced in run.pieces]
        run.open([nowhere[piece.offset : piece.offset + piece.size] for piece in pieces])
        ends = zip(run.labels, pieces, strict=True)
        labels = np.concatenate([one[piece.own] for one, piece in ends])
        for group in set(component.groups):
            members = [i for i, g in enumerate(component.groups) if g == group]
            totals = [
                sum(component.distortion[i][h] for i in members)
                for h in range(component.n_clusters)
            ]
            assert set(labels[members].tolist()) == {totals.index(min(totals))}
        for one, piece in zip(run.labels, pieces, strict=True):
            assert (
                one.tolist()
                == labels[
                    [
                        *piece.far[: piece.first],
                        *range(piece.offset, piece.offset + piece.size),
                        *piece.far[piece.first :],
                    ]
                ].tolist()
            )


def test_parts_of_group_energies_add_up_to_the_oracle() -> None:
    rng = np.random.default_rng(8)
    for _ in range(100):
        component = random_component(rng, most=15)
        labels = starting_labels(rng, component)
        groups, pairs, costs = (
            component.group_arrays()[0],
            component.signed_pairs(),
            component.costs(),
        )
        parts = []
        for piece in cut(pairs, groups, random_bounds(rng, component.n)):
            own = costs[piece.offset : piece.offset + piece.size]
            problem = make_problem(
                piece.first,
                own,
                component.shift,
                piece.start,
                piece.neighbour,
                pairs[2][piece.edge],
            )
            index = [
                *piece.far[: piece.first],
                *range(piece.offset, piece.offset + piece.size),
                *piece.far[piece.first :],
            ]
            for few in (piece.inside, piece.cut):
                grouping = make_grouping(piece.groups, few.start, few.member)
                found = group_gain_parts(labels[index], problem, grouping)
                parts.append((few.number, *found))
        number, high, low = merge_parts(parts)
        assert number.tolist() == np.flatnonzero(np.bincount(groups) > 1).tolist()
        now = component.energy(labels.tolist())
        for at, group in enumerate(number):
            before = join_limbs(high[at, -1], low[at, -1])
            for h in range(component.n_clusters):
                moved = component.energy(np.where(groups == group, h, labels).tolist())
                assert join_limbs(high[at, h], low[at, h]) - before == moved - now


def domino(n: int) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """A must-link chain that falls over one point at a time, from point 0 on."""
    first = np.arange(n - 1, dtype=np.int32)
    costs = np.zeros((n, 2), np.int32)
    costs[0, 1] = 10**9
    return costs, (first, first + 1, -(1000 + np.arange(n, 1, -1)))


@pytest.mark.parametrize("backwards", [False, True])
def test_a_domino_chain_is_handed_from_piece_to_piece(backwards: bool) -> None:
    n = 20_000
    costs, (first, second, cost) = domino(n)
    if backwards:
        costs, first, second = costs[::-1].copy(), n - 1 - first, n - 1 - second
    alone = np.arange(n, dtype=np.int32)  # no groups: the chain itself is tested
    bounds = list(range(0, n + 1, n // 8))
    run = reconciliation(costs, 0, (first, second, cost), alone, bounds)
    assert not reconcile(run, np.ones(n, np.int32)).any()
    assert run.steps == [Phase.POINTS] * ROUNDS + [Phase.POINT_HANDOVER] * 8


def test_one_piece_handed_over_is_the_whole_heap() -> None:
    rng = np.random.default_rng(9)
    for _ in range(50):
        component = random_component(rng)
        labels = starting_labels(rng, component)
        pairs = component.signed_pairs()
        [piece] = cut(pairs, component.group_arrays()[0], [0, component.n])
        costs = component.costs(), pairs[2][piece.edge], component.shift
        moves = heap_moves(PricedPiece(piece, *costs), labels)
        whole = labels.copy()
        move_points(whole, problem_of(component))
        np.testing.assert_array_equal(take_moves(piece, labels, [moves]), whole)


def test_a_frozen_neighbour_outside_stays() -> None:
    labels = np.array([0, 0, 1], np.int32)
    pairs = np.array([0, 2]), np.array([0, 2]), np.array([-1, -1])
    assert move_points(labels, make_problem(1, np.array([[5, 0]]), 0, *pairs)) == 1
    assert labels.tolist() == [0, 1, 1]


def test_pieces_hand_over_at_once_only_where_they_are_not_linked() -> None:
    chain = [[1], [0, 2], [1, 3], [2]]
    assert next_pieces([(5, -1), (9, -20), (7, -30), (7, -40)], chain) == [1]
    assert next_pieces([(5, -1), (4, -20), (7, -30), (0, 0)], chain) == [0, 2]
    assert next_pieces([(5, -1), (5, -20), (0, 0), (5, -40)], chain) == [0, 3]


def test_equal_gains_go_to_the_lower_index_across_pieces() -> None:
    above = make_half_edges(0, np.array([0, 1]), np.array([1]))
    assert winners(above, np.array([5]), np.array([1]), np.array([5])).tolist() == [0]
    below = make_half_edges(1, np.array([0, 1]), np.array([0]))
    assert winners(below, np.array([5]), np.array([0]), np.array([5])).tolist() == []
    assert winners(below, np.array([6]), np.array([0]), np.array([5])).tolist() == [0]


def test_equal_group_gains_go_to_the_lower_group() -> None:
    groups = np.array([0, 0, 1, 1], np.int32)
    edges = make_half_edges(0, np.array([0, 0, 1, 2, 2]), np.array([2, 1]))  # 1 - 2
    both = np.array([0, 1], np.int32)

    def beaten(high: list[int], low: list[int]) -> list[bool]:
        proposals = GroupMoves(both, both, np.array(high), np.array(low))
        return beaten_groups(groups, edges, proposals).tolist()

    assert beaten([3, 3], [5, 5]) == [False, True]
    assert beaten([3, 3], [5, 6]) == [True, False]
    assert beaten([4, 3], [5, 6]) == [False, True]


@given(st.lists(st.booleans(), max_size=200))
@settings(max_examples=100)
def test_progress_is_done_only_when_points_and_groups_are_quiet(answers: list[bool]) -> None:
    progress = Progress()
    quiet: list[Phase] = []
    for unsettled in answers:
        quiet = [] if unsettled else [*quiet, progress.phase]
        progress = advance(progress, unsettled, 3)
        if progress.phase is Phase.DONE:
            points = {Phase.POINTS, Phase.POINT_HANDOVER}
            assert len(quiet) >= 2
            assert quiet[-1] is Phase.GROUPS
            assert quiet[-2] in points
            return
        assert progress.rounds <= 200


def test_rounds_end_in_a_handover() -> None:
    progress = Progress()
    seen = []
    for _ in range(5):
        progress = advance(progress, True, 3)
        seen.append(progress.phase)
    assert seen == [Phase.POINTS] * 3 + [Phase.POINT_HANDOVER] * 2
