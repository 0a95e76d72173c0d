"""Belief propagation: against brute force, against ICM, and whole fits with it."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from hmrf_dask import COPKMeans, HMRFKMeans, MPCKMeans, PCKMeans, load
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.fit.preparation import check_settings
from hmrf_dask.kernels import messages
from hmrf_dask.kernels.icm import icm
from hmrf_dask.kernels.problem import adjacency, make_grouping, make_problem
from hmrf_dask.linked.plan import heap_bytes, message_bytes
from hmrf_dask.tasks.model import Settings
from tests.support.fits import Case, digests, fit, text_case
from tests.support.icm_oracle import Component, add_messages, exchange_messages, settle_labels
from tests.support.icm_problems import (
    grouping_of,
    problem_of,
    random_component,
    starting_labels,
    two_components,
)
from tests.support.loop import check_energy, kept_iterations, make_bench
from tests.support.problems import DISTORTIONS, random_problem

BELIEFS = "belief-propagation"
SIZES = {"n_rows": 120, "n_features": 150, "n_clusters": 3, "n_pairs": 60}


def believed(component: Component, labels: Any) -> list[int]:
    problem = problem_of(component)
    edges = messages.make_edges(problem.start, problem.neighbour, problem.cost)
    found = messages.believed(labels, problem, edges)
    return [int(label) for label in found]


def propagated(component: Component, labels: Any, of: Any = None) -> tuple[list[int], int]:
    """Return labels, and in how many components (`of` the points) messages were taken."""
    after = labels.copy()
    if of is None:
        of = np.zeros(component.n, np.int32)
    taken = messages.propagate(after, problem_of(component), grouping_of(component), of)
    return after.tolist(), taken


def tree(rng: np.random.Generator) -> Component:
    """Return points whose pairs form a tree; in half of them some are given twice."""
    n, n_clusters = int(rng.integers(1, 8)), int(rng.integers(1, 5))
    largest = int(rng.choice([5, 1000, 2**30]))
    shift = int(rng.choice([0, 1, 20]))
    distortion = rng.integers(0, largest + 1, (n, n_clusters)).tolist()
    ends = [(int(rng.integers(0, i)), i) for i in range(1, n)]
    if rng.random() < 0.5:
        ends += ends[: n // 2]
    pairs = [
        (i, j, str(rng.choice(["must", "cannot"])), int(rng.integers(0, largest + 1)) << shift)
        for i, j in ends
    ]
    return Component(distortion, pairs, list(range(n)), shift)


# ---- the kernel


def test_a_tree_ends_at_its_exact_minimum() -> None:
    rng = np.random.default_rng(1)
    unique = 0
    for _ in range(200):
        component = tree(rng)
        every = itertools.product(range(component.n_clusters), repeat=component.n)
        energies = sorted((component.energy(list(labels)), labels) for labels in every)
        found = believed(component, starting_labels(rng, component))
        if len(energies) == 1 or energies[0][0] < energies[1][0]:
            assert tuple(found) == energies[0][1]
            unique += 1
    assert unique > 120


def test_a_chain_that_single_moves_cannot_turn_is_turned() -> None:
    n = 20
    distortion = [[0, 100]] + [[10, 0]] * 2 + [[0, 0]] * (n - 3)
    pairs = [(i, i + 1, "must", 60) for i in range(n - 1)]
    component = Component(distortion, pairs, list(range(n)), 0)  # no groups: as with closure=False
    ones = np.ones(n, np.int32)
    ones[0] = 0
    stuck = ones.copy()
    icm(stuck, problem_of(component), grouping_of(component))
    assert component.energy(stuck.tolist()) == 60
    assert propagated(component, ones) == ([0] * n, 1)
    assert component.energy([0] * n) == 20


def test_loopy_graphs_end_where_nothing_gains_and_never_higher() -> None:
    rng = np.random.default_rng(2)
    lower = higher = 0
    for _ in range(300):
        component = random_component(rng)
        labels = starting_labels(rng, component)
        before, alone = component.energy(labels.tolist()), labels.copy()
        icm(alone, problem_of(component), grouping_of(component))
        polished = np.array(believed(component, labels), np.int32)
        icm(polished, problem_of(component), grouping_of(component))
        after, taken = propagated(component, labels)
        assert after == (polished if taken else alone).tolist()
        assert bool(taken) == (component.energy(polished.tolist()) < before)
        assert component.energy(after) <= before
        assert component.best_single_gain(after) == component.best_group_gain(after) == 0
        lower += component.energy(after) < component.energy(alone.tolist())
        higher += component.energy(after) > component.energy(alone.tolist())
    assert lower > 5 * higher > 0  # usually lower than ICM, but it is not the lower of both


def test_small_loopy_graphs_are_never_below_the_minimum_and_mostly_there() -> None:
    rng = np.random.default_rng(3)
    reached = 0
    for _ in range(60):
        component = random_component(rng, most=6)
        every = itertools.product(range(component.n_clusters), repeat=component.n)
        least = min(component.energy(list(labels)) for labels in every)
        found = component.energy(propagated(component, starting_labels(rng, component))[0])
        assert found >= least
        reached += found == least
    assert reached > 48


def test_packing_components_together_changes_nothing() -> None:
    rng = np.random.default_rng(4)
    counts = set()
    for _ in range(60):
        one, other, both = two_components(rng)
        labels = starting_labels(rng, both)
        together = propagated(both, labels, np.repeat([0, 1], [one.n, other.n]).astype(np.int32))
        alone = [propagated(one, labels[: one.n]), propagated(other, labels[one.n :])]
        assert together == (alone[0][0] + alone[1][0], alone[0][1] + alone[1][1])
        counts.add((alone[0][1], alone[1][1]))
    assert len(counts) > 2  # it was taken in one and not in the other


def test_pairs_in_any_order_and_direction_change_nothing() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        component = random_component(rng)
        labels = starting_labels(rng, component)
        wanted = propagated(component, labels)
        turned = [component.pairs[place] for place in rng.permutation(len(component.pairs))]
        component.pairs = [(j, i, kind, penalty) for i, j, kind, penalty in turned]
        assert propagated(component, labels) == wanted


def test_numpy_sends_the_same_messages() -> None:
    rng = np.random.default_rng(6)
    for _ in range(60):
        component = random_component(rng)
        _, costs, shift, *pairs = problem_of(component)
        edges = messages.make_edges(*pairs)
        if component.n_clusters == 1:
            continue
        labels, found = starting_labels(rng, component), []
        for believe, exchange, settle in (
            (messages.believe, messages.exchange, messages.settle),
            (
                add_messages,
                exchange_messages,
                settle_labels,
            ),
        ):
            sent = np.zeros((len(edges.first), 2, component.n_clusters), np.int64)
            beliefs, after, counts = np.empty(costs.shape, np.int64), labels.copy(), []
            for damped in (False, False, True, True):
                believe(edges, costs, shift, sent, beliefs)
                counts.append(exchange(edges, beliefs, sent, damped))
            settle(beliefs, after)
            found.append([np.array(counts), sent, beliefs, after])
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)


def test_ties_stay_then_go_to_the_lowest_cluster() -> None:
    component = Component([[0, 0, 0], [5, 0, 0]], [], [0, 1], 0)
    assert believed(component, np.array([2, 0], np.int32)) == [2, 1]


def test_a_damped_message_goes_half_of_the_way_and_arrives() -> None:
    edges = messages.make_edges(*adjacency(2, np.array([0]), np.array([1]), np.array([-100])))
    beliefs = np.array([[0, 9], [0, 0]])
    sent = np.zeros((1, 2, 2), np.int64)
    steps = []
    while messages.exchange(edges, beliefs, sent, True):
        steps.append(int(sent[0, 0, 1]))
        beliefs = np.array([[0, 9], sent[0, 0]])
        beliefs[0] += sent[0, 1]
    assert steps == [5, 7, 8, 9]


def test_large_sums_are_compared_exactly() -> None:
    huge = 2**60
    pairs = adjacency(9, np.arange(8), np.arange(1, 9), np.full(8, huge))
    edges = messages.make_edges(*pairs)
    before, after = np.zeros(9, np.int32), np.zeros(9, np.int32)
    problem, of = make_problem(0, np.array([[0, 1]] * 9), 0, *pairs), np.zeros(9, np.int32)
    assert not messages.lowered(before, after, problem, edges, of)[0]
    after[0] = 1  # breaks one pair less of eight
    assert messages.lowered(before, after, problem, edges, of)[0]
    assert not messages.lowered(after, before, problem, edges, of)[0]


def test_the_task_takes_what_the_plan_says() -> None:
    rng = np.random.default_rng(7)
    n, n_pairs, n_clusters = 4000, 16000, 12
    first, second = rng.integers(0, n, (2, n_pairs))
    second = np.where(first == second, (second + 1) % n, second)
    signed = rng.integers(-1000, 1000, n_pairs)
    costs = rng.integers(0, 1000, (n, n_clusters)).astype(np.int32)
    labels = np.zeros(n, np.int32)
    grouping = make_grouping(np.arange(n), np.arange(n + 1), np.arange(n))
    pairs = adjacency(n, first, second, signed)
    problem = make_problem(0, costs, 0, *pairs), grouping, np.zeros(n, np.int32)
    messages.propagate(labels.copy(), *problem)  # compiled before anything is measured
    tracemalloc.start()
    try:
        messages.propagate(labels, *problem)
        grown = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    sizes = n, n_pairs, n_clusters
    assert message_bytes(*sizes) / 2 < grown < message_bytes(*sizes) + heap_bytes(*sizes)


# ---- the loop


def case_of(**parameters: Any) -> Case:
    return text_case(**SIZES, **{"inference": BELIEFS, **parameters})


CASES = {
    "cosine": case_of(),
    "cosine learned": case_of(learn_weights=True, closure=False),
    "potts": case_of(penalty="potts", closure=False),
    "euclidean": case_of(distortion="euclidean"),
    "kl": case_of(distortion="kl"),
}


def modes(run_dir: Path) -> list[Any]:
    recorded = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    begun = next(event for event in recorded if event["event"] == "start")
    modes = sorted(set(begun["icm_problems"]))
    return [begun["inference"], modes, begun["icm_problems_with_icm_alone"]]


@pytest.mark.filterwarnings("ignore::hmrf_dask.errors.HmrfWarning")
@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_j_never_rises_and_is_the_oracles(distortion: str) -> None:
    n_passing = 0
    for seed in range(4):
        problem = random_problem(seed, distortion=distortion, n=25, ids=None)
        for learn in (False, True):
            bench = make_bench(problem, learn=learn, inference=BELIEFS)
            n_passing += sum(one.mode == "messages" for one in bench.engine.problem.icm_problems)
            refining = distortion in ("cosine", "pearson", "euclidean")
            last = None
            for turn in kept_iterations(bench, refining=refining, most=6):
                check_energy(bench, turn.state)
                total = turn.state.energy.total
                assert last is None or total <= last or turn.steps[0][0] in ("begin", "settled")
                last = total
    assert n_passing > 3


@pytest.fixture
def synchronous() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.mark.usefixtures("synchronous")
@pytest.mark.long
def test_messages_beyond_the_task_memory_are_not_passed(tmp_path: Path) -> None:
    case, recorded = case_of(closure=False), {}
    for memory in ("1 GiB", "12 KiB", "6 KiB"):
        found = digests(case, (1, 8), ("synchronous",), memory)
        assert len(set(found.values())) == 1, found
        with dask.config.set({"hmrf.task-memory": memory}):
            fit(case, 3, run_dir=str(tmp_path / memory))
        recorded[memory] = modes(tmp_path / memory)
    assert recorded["1 GiB"] == [BELIEFS, ["messages"], 0]
    assert recorded["12 KiB"] == [BELIEFS, ["heap", "messages"], 1]
    assert recorded["6 KiB"][1][-1] == "rounds"


@pytest.mark.usefixtures("synchronous")
def test_a_long_chain_is_kept_in_a_table_and_settled_by_icm(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((200, 6))
    chain = np.column_stack([np.arange(139), np.arange(1, 140)])
    shared: dict[str, Any] = {"trust": 1.0, "random_state": 0, "n_init": 1, "max_iter": 3}
    model = HMRFKMeans(3, inference=BELIEFS, **shared)
    model.fit(rows, must_link=chain, run_dir=tmp_path / "run")
    assert modes(tmp_path / "run") == [BELIEFS, ["table"], 1]
    other = HMRFKMeans(3, **shared).fit(rows, must_link=chain)
    np.testing.assert_array_equal(model.labels_, other.labels_)


# ---- the estimators


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("estimator", [HMRFKMeans, MPCKMeans, PCKMeans])
def test_the_systems_with_costs_take_it(estimator: Any, tmp_path: Path) -> None:
    case = CASES["cosine"]
    model = estimator(3, inference=BELIEFS, random_state=0).fit(
        case.X.toarray(), must_link=case.must, cannot_link=case.cannot
    )
    assert (np.diff(model.objective_history_) <= 0).all()
    model.save(tmp_path)
    assert load(tmp_path).inference == BELIEFS
    with pytest.raises(
        ConfigurationError,
        match=r"inference must be one of 'icm', 'belief-propagation', got 'messages'",
    ):
        estimator(3, inference="messages").fit(case.X)


def test_hard_pairs_have_no_costs_to_pass_on() -> None:
    with pytest.raises(TypeError, match="inference"):
        COPKMeans(3, inference=BELIEFS)  # type: ignore[call-arg]  # what is tested
    with pytest.raises(ConfigurationError, match="inference must be 'icm' where pairs are hard"):
        check_settings(Settings(3, hard=True, inference="belief-propagation"), 10)
