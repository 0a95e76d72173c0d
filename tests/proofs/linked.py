"""Rows of the proof about linked documents: giant components, long chains, whole classes.

Each function takes sizes and returns figures. Memory is the growth of this process, so a row runs
in a fresh one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np

from hmrf_dask import HMRFKMeans
from hmrf_dask.checkpoints.records import MemoryRun
from hmrf_dask.constraints.closure import ClosureRules, CostedPairs, build_graph
from hmrf_dask.constraints.pairs import AnyArray, Constraints
from hmrf_dask.errors import ConflictError
from hmrf_dask.fit import loop
from hmrf_dask.fit.e_step import expectation
from hmrf_dask.fit.passes import Engine, Pricing
from hmrf_dask.fit.problem import undecided_labels
from hmrf_dask.fit.rounds import Rounds, settle_in_rounds
from hmrf_dask.flow.dataflow import DaskFlow, Inline
from hmrf_dask.tasks import icm as tasks_icm
from hmrf_dask.tasks.model import Model, State
from hmrf_dask.tasks.partitions import StoredLabels
from tests.proofs.measuring import MEBIBYTE, Resident, left_to_gain, seconds, threads
from tests.support.icm_problems import blobs, engine_over, labels_by_node
from tests.support.problems import label_pairs, planted_text

Figures = dict[str, Any]


def _model(engine: Engine, centroids: AnyArray) -> Model:
    distortion = engine.problem.distortion
    return Model(distortion, np.ones(centroids.shape[1]), centroids, 0.0, 30)


def _icm_problem(
    engine: Engine, pricing: Pricing, shared: Any, number: int
) -> tuple[Any, Any, list[Any]]:
    one = engine.problem.icm_problems[number]
    costs = [
        tasks_icm.exact_costs(engine.problem.linked[part].block, shared, pricing.scale)
        for part in one.partitions
    ]
    return one.problem, pricing.problems[number], costs


def giant_component(
    n: int = 1_000_000, m: int = 3_000_000, k: int = 20, small_memory: int = 128 * MEBIBYTE
) -> Figures:
    """Random pairs on n rows: ICM of one E-step in one task, and in pieces with less memory."""
    rows, classes = blobs(n, 8, k, 0)
    must, cannot = label_pairs(classes, m, 1, must_share=0.3)
    centroids = np.stack([rows[classes == h].mean(axis=0) for h in range(k)]).astype(np.float64)
    kernels = engine_over(rows[:500], *_within(must, cannot, 500), k, Inline(), closure=False)
    _settle_first(kernels, centroids)
    whole = engine_over(rows, must, cannot, k, Inline(), closure=False)
    found = _settle_first(whole, centroids)
    largest = found.pop("largest")
    found |= _in_pieces(rows, must, cannot, k, centroids, small_memory, largest)
    return {"rows": n, "pairs": m, "n_clusters": k} | found


def _within(must: AnyArray, cannot: AnyArray, n: int) -> tuple[AnyArray, AnyArray]:
    return must[(must < n).all(axis=1)], cannot[(cannot < n).all(axis=1)]


def _settle_first(engine: Engine, centroids: AnyArray) -> Figures:
    """Settle the largest component in one task: as a fit begins, from nearest, random labels."""
    problem = engine.problem
    assert {one.mode for one in problem.icm_problems} == {"heap"}
    model = _model(engine, centroids)
    pricing, shared = engine.price(model), engine.flow.share(model)
    sizes = [
        sum(problem.linked[part].n_rows for part in one.partitions) for one in problem.icm_problems
    ]
    number = int(np.argmax(sizes))
    icm, pairs, costs = _icm_problem(engine, pricing, shared, number)
    found: Figures = {"component": sizes[number]}
    rng = np.random.default_rng(2)
    starts: dict[str, Callable[[AnyArray], AnyArray]] = {
        "undecided": lambda rows: np.full(len(rows), -2),
        "nearest": lambda rows: rows.argmin(axis=1),
        "random": lambda rows: rng.integers(0, len(centroids), len(rows)),
    }
    for name, start in starts.items():
        files = []
        for part, rows in zip(problem.icm_problems[number].partitions, costs, strict=True):
            of = problem.linked[part]
            labels = start(rows).astype(np.int32)
            files.append(engine.run.write_labels(0, of.name, of.first_row, labels))
        resident, known = Resident(), [tasks_icm.LinkedCosts(one) for one in costs]
        priced = tasks_icm.PricedProblem(icm, pairs, StoredLabels(engine.run, files))
        before = priced.labels.read()
        took, after = seconds(
            lambda known=known, priced=priced: tasks_icm.settle(
                priced, known, [], model, pricing.scale
            )
        )
        left = left_to_gain(after, np.concatenate(costs), pricing.scale.shift, icm, pairs)
        found |= {
            f"one_task_{name}_seconds": took,
            f"one_task_{name}_growth_mib": resident.growth // MEBIBYTE,
            f"one_task_{name}_moves": int((before != after).sum()),
            f"one_task_{name}_left": left,
        }
    held = sum(one.nbytes for one in [*costs, pairs.start, pairs.neighbour, pairs.signed])
    held += sum(one.nbytes for one in (icm.groups, icm.group_members))
    found["one_task_inputs_mib"] = held // MEBIBYTE
    nodes = icm.nodes
    found["largest"] = (nodes, np.concatenate(costs), pricing.scale, icm, pairs)
    return found


def _in_pieces(
    rows: AnyArray,
    must: AnyArray,
    cannot: AnyArray,
    k: int,
    centroids: AnyArray,
    task_memory: int,
    largest: tuple[Any, ...],
) -> Figures:
    nodes, costs, scale, icm, pairs = largest
    with threads(task_memory), watched() as seen:
        laying, engine = seconds(
            lambda: engine_over(
                rows, must, cannot, k, DaskFlow(), task_memory=task_memory, closure=False
            )
        )
        resident = Resident()
        took, turn = seconds(lambda: loop.begin(engine, centroids))
        labels = labels_by_node(engine, turn.state.linked)[nodes]
        left = left_to_gain(labels, costs, scale.shift, icm, pairs)
        begun = turn
        turn = loop.fit_iteration(engine, turn.state, 0)
        after, turn = seconds(lambda: loop.fit_iteration(engine, turn.state, 1))
    return {
        "pieces": seen[0].pieces and len(seen[0].pieces),
        "small_task_memory_mib": task_memory // MEBIBYTE,
        "pieces_lay_out_seconds": laying,
        "pieces_begin_seconds": took,
        "pieces_next_turn_seconds": after,
        "pieces_steps": [_steps(one) for one in seen],
        "pieces_growth_mib": resident.growth // MEBIBYTE,
        "pieces_left": left,
        "j": [begun.state.energy.value, *(value for _, value in turn.steps)],
    }


def _steps(rounds: Rounds) -> dict[str, int]:
    return {phase.name: rounds.steps.count(phase) for phase in dict.fromkeys(rounds.steps)}


@contextmanager
def watched() -> Iterator[list[Rounds]]:
    """Collect the rounds that are run."""
    seen: list[Rounds] = []
    run = Rounds.run

    def noted(self: Rounds) -> None:
        seen.append(self)
        run(self)

    with mock.patch.object(Rounds, "run", noted):
        yield seen


def long_chain(n: int = 200_000, task_memory: int = MEBIBYTE) -> Figures:
    """A must-link chain, ids shuffled, far above the task memory: a fit, and a domino along it."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, 8)).astype(np.float32)
    ids = rng.permutation(n)
    must = np.stack([ids[:-1], ids[1:]], axis=1)
    init = rng.normal(size=(5, 8))
    with threads(task_memory), watched() as seen:
        model = HMRFKMeans(
            5,
            init=init,
            penalty="distance",
            closure=False,
            refine=False,
            max_iter=3,
            must_link_cost=0.3,
            random_state=0,
        )
        took, _ = seconds(lambda: model.fit(rows, must_link=must))
    found = {
        "rows": n,
        "fit_seconds": took,
        "e_steps": len(seen),
        "pieces": len(seen[0].pieces),
        "steps": [_steps(one) for one in seen],
    }
    return found | domino(n, task_memory)


def domino(n: int, task_memory: int) -> Figures:
    """A chain whose points follow one at a time: 40 rounds move 40, the rest is handed over."""
    rows = np.tile(
        np.float32([1.0, 0.9]), (n, 1)
    )  # each would rather go, by less than a link costs
    ids = np.random.default_rng(1).permutation(n)
    rows[ids[0]] = [1.0, 0.0]
    must = np.stack([ids[:-1], ids[1:]], axis=1)
    with threads(task_memory):
        engine = engine_over(
            rows, must, must[:0], 2, DaskFlow(), task_memory=task_memory, must_link_cost=0.25,
            closure=False, penalty="potts",
        )  # fmt: skip
        model = _model(engine, np.eye(2))
        pricing, shared = engine.price(model), engine.flow.share(model)
        costs_of = [
            engine.flow.lazy(tasks_icm.exact_costs, part.block, shared, pricing.scale)
            for part in engine.problem.linked
        ]
        files = [
            engine.run.write_labels(0, part.name, part.first_row, np.ones(part.n_rows, np.int32))
            for part in engine.problem.linked
        ]
        with watched() as seen:
            took, ends = seconds(
                lambda: engine.flow.compute(settle_in_rounds(engine, 0, pricing, costs_of, files))
            )
    fallen = int(sum((one == 0).sum() for one in ends))
    return {
        "domino_seconds": took,
        "domino_steps": _steps(seen[0]),
        "domino_pieces": len(seen[0].pieces),
        "domino_fallen": fallen,
    }


def rival_classes(n: int = 10_000, cost: float = 5.0) -> Figures:
    """Two closed, cannot-linked classes of signed rows prefer one cluster: one, whole, must go."""
    _rival_classes(100, cost)  # compiles the kernels
    return _rival_classes(n, cost)


def _rival_classes(n: int, cost: float) -> Figures:
    rng = np.random.default_rng(3)
    near = np.array([1.0, 0.3, -0.2, 0.1])
    rows = (near + 0.2 * rng.normal(size=(2 * n, 4))).astype(np.float32)
    rows[:n] += np.float32(0.1) * np.array([0, 0, 1, 0], np.float32)
    both = np.arange(2 * n)
    must = np.concatenate([_chain(both[:n]), _chain(both[n:])])
    cannot = np.array([[0, n]])
    engine = engine_over(
        rows, must, cannot, 3, Inline(), must_link_cost=cost, cannot_link_cost=cost
    )
    assert [one.mode for one in engine.problem.icm_problems] == ["table"]
    centroids = np.array([near, [0.2, 1.0, 0.5, 0.0], [-1.0, 0.2, 0.3, 0.4]])
    problem, run = engine.problem, engine.run
    linked = tuple(
        run.write_labels(0, part.name, part.first_row, np.zeros(part.n_rows, np.int32))
        for part in problem.linked
    )
    free = undecided_labels(engine.flow, problem, run)[0]
    turn = loop.begin(engine, centroids, free=free, linked=linked)
    before = turn.state
    took, (after, moved) = seconds(lambda: expectation(engine, before))
    # Σ D that follows from the sums is measured by the M-step, which is not taken here.
    after = replace(after, energy=engine.energy(after, 0.0))
    labels = labels_by_node(engine, after.linked)
    return {
        "rows": 2 * n,
        "seconds": took,
        "bits": engine.price(before.model).scale.bits,
        "moved": moved,
        "separated": bool(labels[0] != labels[n])
        and len(set(labels[:n])) + len(set(labels[n:])) == 2,
        "j_before": before.energy.value,
        "j_after": after.energy.value,
        "j_before_error": _relative_error(rows, before, np.zeros(2 * n, np.int32), cost, n),
        "j_after_error": _relative_error(rows, after, labels, cost, n),
    }


def _chain(ids: AnyArray) -> AnyArray:
    return np.stack([ids[:-1], ids[1:]], axis=1)


def _relative_error(rows: AnyArray, state: State, labels: AnyArray, cost: float, n: int) -> float:
    """Return how far the reported J is from the paper's formula, added up in float64."""
    unit = rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    centres = state.model.centroids
    centres = centres / np.linalg.norm(centres, axis=1, keepdims=True)
    total = float((1.0 - (unit * centres[labels]).sum(axis=1)).sum())
    k = len(centres)
    sums = np.zeros((2, k, rows.shape[1]))
    counts = np.zeros((2, k))
    for side in (0, 1):
        np.add.at(sums[side], labels[side * n : (side + 1) * n], unit[side * n : (side + 1) * n])
        counts[side] = np.bincount(labels[side * n : (side + 1) * n], minlength=k)
        products = sums[side] @ sums[side].T
        pairs = np.outer(counts[side], counts[side])
        total += cost * float((pairs - products)[np.triu_indices(k, 1)].sum())
    same = counts[0] * counts[1]
    total += cost * float((2.0 * same - (same - (sums[0] * sums[1]).sum(axis=1))).sum())
    return abs(total - state.energy.value) / abs(total)


class _Begun(Exception):  # noqa: N818 - a signal, not an error
    """The fit has come to its first step."""


def whole_classes(n: int = 10_000, d: int = 20_000) -> Figures:
    """Two classes of n documents known to be one each and to differ: pairs nobody writes down."""
    rows, _ = planted_text(2 * n, d, 2, 4)
    both = np.arange(2 * n)
    must, cannot = np.concatenate([_chain(both[:n]), _chain(both[n:])]), np.array([[0, n]])
    few = np.concatenate([both[:200], both[n : n + 200]])
    small = rows[few]
    with threads():
        pairs = np.concatenate([_chain(np.arange(200)), _chain(np.arange(200, 400))])
        _first_commit(small, pairs, np.array([[0, 200]]))  # compiles the kernels
        resident = Resident()
        starts = _first_step(rows, must, cannot)
        to_step = resident.growth
        resident = Resident()
        commits = _first_commit(rows, must, cannot)
    return {
        "rows": 2 * n,
        "closure_pairs": n * (n - 1) + n * n,
        "starts_seconds": starts,
        "starts_growth_mib": to_step // MEBIBYTE,
        "first_commit_seconds": commits,
        "first_commit_growth_mib": resident.growth // MEBIBYTE,
    }


def _first_step(rows: Any, must: AnyArray, cannot: AnyArray) -> float:
    """Return the seconds from the call of fit to its first E-step, in whatever start."""
    came: list[float] = []

    def stop(*arguments: Any, **named: Any) -> None:
        came.append(time.perf_counter())
        raise _Begun

    began = time.perf_counter()
    with mock.patch.object(loop, "expectation", stop), _suppressed():
        _model_of_two().fit(rows, must_link=must, cannot_link=cannot)
    return round(came[0] - began, 2)


def _first_commit(rows: Any, must: AnyArray, cannot: AnyArray) -> float:
    """Return the seconds from the call of fit to its first commit, E-step and M-step included."""
    came: list[float] = []

    def stop(*arguments: Any, **named: Any) -> None:
        came.append(time.perf_counter())
        raise _Begun

    began = time.perf_counter()
    with mock.patch.object(MemoryRun, "commit", stop), _suppressed():  # no run_dir, rows of ours
        _model_of_two().fit(rows, must_link=must, cannot_link=cannot)
    return round(came[0] - began, 2)


@contextmanager
def _suppressed() -> Iterator[None]:
    try:
        yield
    except _Begun:
        return


def _model_of_two() -> HMRFKMeans:
    settings: dict[str, Any] = {"init": "k-means++", "n_init": 1, "refine": False}
    return HMRFKMeans(2, penalty="distance", on_conflict="raise", random_state=0, **settings)


def many_pairs(n: int = 500_000, m: int = 1_000_000, k: int = 20) -> Figures:
    """Prepare m random pairs on n documents; find a contradiction among them and its witness."""
    classes = np.random.default_rng(5).integers(0, k, n).astype(np.int32)
    must, cannot = label_pairs(classes, m, 6)
    rows = np.ones((n, 2), np.float32)

    def prepare(closure: bool, task_memory: int) -> Engine:
        named = Constraints(must, cannot)
        assert len(named) == m
        return engine_over(
            rows, must, cannot, k, Inline(), closure=closure, task_memory=task_memory
        )

    prepare_small = engine_over(rows[:1000], *_within(must, cannot, 1000), k, Inline())
    assert prepare_small.problem.layout is not None
    resident = Resident()
    given, _ = seconds(lambda: prepare(False, 2**30))
    closed, engine = seconds(lambda: prepare(True, 2**40))
    found = {"rows": n, "pairs": m, "given_only_seconds": given, "closure_seconds": closed}
    found["growth_mib"] = resident.growth // MEBIBYTE
    assert engine.problem.constraints is not None
    return found | _contradiction(engine.problem.constraints.graph.groups, must, cannot, n)


def _contradiction(groups: AnyArray, must: AnyArray, cannot: AnyArray, n: int) -> Figures:
    """Add a cannot-link inside a must-link group and look for its witness."""
    group = int(np.bincount(groups).argmax())
    members = np.flatnonzero(groups == group)
    wrong = np.array([[members[0], members[-1]]])

    def refused() -> tuple[object, ...]:
        try:
            engine_over_graph(n, must, np.concatenate([cannot, wrong]))
        except ConflictError as error:
            return error.witness
        return ()

    took, witness = seconds(refused)
    linked = {tuple(sorted(pair)) for pair in must.tolist()}
    steps = [tuple(sorted(pair)) for pair in pairwise(witness)]
    return {
        "contradiction_seconds": took,
        "witness_length": len(witness),
        "witness_holds": bool(steps)
        and set(steps) <= linked
        and {witness[0], witness[-1]} == set(wrong[0].tolist()),
    }


def engine_over_graph(n: int, must: AnyArray, cannot: AnyArray) -> None:
    """Build the graph of pairs and refuse contradictions."""
    build_graph(n, CostedPairs(must), CostedPairs(cannot), ClosureRules())


def closed_pairs(
    n: int = 500_000, m: int = 1_000_000, k: int = 20, d: int = 20_000, must_share: float = 0.3
) -> Figures:
    """Close m random pairs on n documents, nearly all of them one component, within 1 GiB."""
    rows, classes = planted_text(n, d, k, 4)
    must, cannot = label_pairs(classes, m, 6, must_share)
    init = np.stack([rows[np.flatnonzero(classes == h)[:50]].mean(axis=0).A1 for h in range(k)])
    few = min(n, 3000)
    settles: list[float] = []
    settle = tasks_icm.settle

    def timed(*arguments: Any) -> Any:
        took, settled = seconds(lambda: settle(*arguments))
        settles.append(took)
        return settled

    def fitted(rows: Any, must: AnyArray, cannot: AnyArray) -> HMRFKMeans:
        settings: dict[str, Any] = {"refine": False, "max_iter": 2, "random_state": 0}
        model = HMRFKMeans(k, penalty="distance", init=init, **settings)
        return model.fit(rows, must_link=must, cannot_link=cannot)

    with threads():
        fitted(rows[:few], *_within(must, cannot, few))  # compiles the kernels
        resident = Resident()
        with mock.patch.object(tasks_icm, "settle", timed):
            took, model = seconds(lambda: fitted(rows, must, cannot))
    return {
        "rows": n,
        "pairs": m,
        "fit_seconds": took,
        "largest_icm_seconds": max(settles),
        "growth_mib": resident.growth // MEBIBYTE,
        "violations": model.violations_,
        "j": [float(value) for value in model.objective_history_],
    }
