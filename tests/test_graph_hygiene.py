"""What a fit asks of Dask: few graphs, small arguments, shallow sums, keys used once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import dask
import numpy as np
import pytest

from hmrf_dask.fit import loop
from hmrf_dask.fit.journal import Journal
from hmrf_dask.flow.dataflow import DaskFlow, share_array, tree
from hmrf_dask.flow.graphs import Planned
from tests.support.fits import Case, fit, text_case
from tests.support.long_cases import long
from tests.support.watched_graphs import Graphs, watched_graphs


@pytest.fixture
def graphs() -> Iterator[Graphs]:
    with watched_graphs() as seen:
        yield seen


def check_fit(case: Case, partitions: int, graphs: Graphs, memory: str = "1 GiB") -> Graphs:
    """Fit a case and assert what must hold of its graphs whatever the sizes."""
    with dask.config.set({"hmrf.task-memory": memory}):
        fit(case, partitions)
    parts = max(partitions, 1)
    deep = {n: d for n, d in graphs.depths.items() if d > math.log(parts, 8) + 2}
    assert not deep
    return graphs


@pytest.mark.parametrize(
    ("parameters", "memory"),
    [
        ({}, "1 GiB"),
        ({"learn_weights": True}, "1 GiB"),
        pytest.param({"distortion": "euclidean"}, "1 GiB", marks=pytest.mark.long),
        *long(({"distortion": "kl", "init": "neighborhoods"}, "1 GiB")),
        pytest.param(  # linked rows in many parts
            {"closure": False, "init": "neighborhoods"}, "256 KiB", marks=pytest.mark.long
        ),
    ],
)
def test_no_argument_grows_with_rows_features_or_pairs(
    parameters: dict[str, Any], memory: str, graphs: Graphs
) -> None:
    # A float64 a feature would be 40 kB, a number a row 16 kB, two a pair 24 kB.
    case = text_case(2000, 5_000, 4, 1500, n_init=1, max_iter=3, **parameters)
    check_fit(case, 2, graphs, memory)
    large = {name: size for name, size in graphs.sizes.items() if size > 15_000}
    assert not large


def test_no_argument_grows_with_partitions(graphs: Graphs, tmp_path: Any) -> None:
    case = text_case(80, 50, 3, 20, init="random", n_init=1, max_iter=1, refine=False)
    run_dir = str(tmp_path / "run")
    fit(case, 70, run_dir=run_dir)  # a label file each
    fit(case, 69, run_dir=run_dir)  # cut again
    # A slice of partitions is a task, which gets the label file of each, its path among that.
    assert not {name: size for name, size in graphs.sizes.items() if size > 70 * 100}
    assert max(graphs.depths.values()) <= math.log(70, 8) + 2


@pytest.mark.parametrize("n_parts", [1, 2, 8, 9, 64, 65, 513])
def test_trees_are_shallow_and_take_every_part_once(n_parts: int, graphs: Graphs) -> None:
    flow = DaskFlow()
    parts = [flow.lazy(int, number) for number in range(n_parts)]
    assert flow.compute([tree(flow, sum, parts)]) == [n_parts * (n_parts - 1) // 2]
    assert graphs.depths.get("sum", 0) == math.ceil(round(math.log(n_parts, 8), 9))


def test_large_arrays_travel_once(graphs: Graphs) -> None:
    flow = DaskFlow()
    small, large = np.zeros(4), np.zeros(4000)
    assert share_array(flow, small) is small
    shared = share_array(flow, large)
    found = flow.compute([flow.lazy(np.add, shared, number) for number in range(9)])
    assert found[8][0] == 8.0
    assert graphs.sizes["add"] < 300


@pytest.mark.parametrize(
    ("parameters", "phase", "most"),
    [
        # E-step and sums in one graph, Σ D under new centroids in another.
        ({"init": "random", "n_init": 1, "refine": False}, "fit", 2),
        # Proposals, moves, Σ D; when nothing moves also an E-step.
        ({"init": "random", "n_init": 1, "refine": True}, "refine", 4),
        # and the weights: statistics of rows and of pairs, then sums, prices and J of each try.
        ({"init": "random", "n_init": 1, "refine": False, "learn_weights": True}, "fit", 22),
    ],
)
def test_graphs_of_one_iteration(
    parameters: dict[str, Any], phase: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows: list[DaskFlow] = []
    counts: list[tuple[str, int]] = []
    begin = loop.Fit.run

    def run(self: loop.Fit, initialise: Any) -> Any:
        assert isinstance(self.engine.flow, DaskFlow)
        flows.append(self.engine.flow)
        journal = self.record
        assert isinstance(journal, Journal)
        progress = journal.progress

        def count(record: dict[str, Any]) -> None:
            counts.append((record["phase"], flows[-1].computes))
            progress(record)

        journal.progress = count
        return begin(self, initialise)

    monkeypatch.setattr(loop.Fit, "run", run)
    for partitions in (1, 9):
        counts.clear()
        with dask.config.set(scheduler="synchronous"):
            fit(text_case(200, 100, 3, 60, **parameters), partitions)
        # The first of a phase also prices the pairs.
        spent = [
            after - before
            for (name, after), (left, before) in zip(counts[1:], counts, strict=False)
            if name == left == phase
        ]
        assert spent
        assert max(spent) <= most


def test_keys_are_never_used_twice(graphs: Graphs) -> None:
    one, other = DaskFlow(), DaskFlow()
    planned = [flow.lazy(int, 1) for flow in (one, one, other)]
    planned += [flow.share(1) for flow in (one, one, other)]
    assert len({one.key for one in planned if isinstance(one, Planned)}) == 6


class Operands(NamedTuple):
    """Two lists of numbers."""

    plus: list[Any]
    minus: list[Any]


def difference(operands: Operands) -> int:
    return sum(operands.plus) - sum(operands.minus)


def test_named_tuples_may_hold_lazy_values() -> None:
    flow = DaskFlow()
    seven, two = (flow.lazy(int, number) for number in (7, 2))
    task = flow.lazy(difference, Operands([seven, 1], [two]))
    assert flow.compute([task]) == [6]


def test_values_of_this_process_are_no_tasks_on_threads() -> None:
    flow = DaskFlow()
    kept, shared = flow.persist([flow.lazy(int, 1)])[0], flow.share(2)
    task = flow.lazy(max, kept, [shared, 1][0])
    assert isinstance(task, Planned)
    assert len(task.__dask_graph__()) == 1
    assert flow.compute([task, shared]) == [2, 2]
