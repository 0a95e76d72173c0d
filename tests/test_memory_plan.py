"""The memory plan: its arithmetic against what tasks really take, and the words that refuse."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
import pytest

from hmrf_dask import HMRFKMeans
from hmrf_dask.checkpoints.records import MemoryRun
from hmrf_dask.distortions import make_distortion
from hmrf_dask.errors import MemoryPlanError
from hmrf_dask.fit import preparation
from hmrf_dask.fit import preparation as fit_preparation
from hmrf_dask.fit.candidates import Turn, run_candidate
from hmrf_dask.fit.preparation import TaskMemory, check_memory, linked_task, plan_tasks
from hmrf_dask.flow.cluster import peak_memory
from hmrf_dask.flow.dataflow import FAN
from hmrf_dask.kernels.sums import Sums, add_sums
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks import partitions
from hmrf_dask.tasks import partitions as tasks_partitions
from hmrf_dask.tasks.first_variation import Sources, propose_rows
from hmrf_dask.tasks.model import Model, Settings
from hmrf_dask.tasks.partitions import StoredLabels
from hmrf_dask.tasks.start_sample import StartSample, make_start_sample
from tests.support.problems import planted_text

K, WIDTH, ROWS = 40, 6000, 4000


class Bench:
    """One large partition, and a model for it."""

    def __init__(self) -> None:
        X, topics = planted_text(ROWS, WIDTH, K, 0)
        self.block = RowBlock.from_scipy(X)
        distortion = make_distortion("cosine")
        self.facts = tasks_partitions.survey_block(self.block, 0, distortion, has_ids=False)
        self.extent = preparation.extent_of(self.facts, WIDTH)
        self.distortion = distortion.bind(self.extent)
        self.centroids = np.random.default_rng(0).random((K, WIDTH))
        self.run = MemoryRun()
        self.file = self.run.write_labels(0, "rows-00000", 0, topics)
        self.settings = Settings(K, n_init=1, max_iter=2)

    def model(self) -> Model:
        """Return a model whose arrays are its own."""
        return Model(self.distortion, np.ones(WIDTH), self.centroids.copy())

    def task(self, name: str) -> TaskMemory:
        """Return what the plan says of a task."""
        tasks = plan_tasks(
            self.facts, self.settings, WIDTH, linked=None, refining=True, refining_starts=True
        )
        return next(task for task in tasks if name in task.name)

    def rows(self) -> RowBlock:
        """Return the rows in memory of their own."""
        return self.block.take(np.arange(ROWS))


@pytest.fixture(scope="module")
def bench() -> Bench:
    made = Bench()
    for work in (
        assign,
        vary,
        screen,
        add,
        start,
    ):  # compiled and imported before anything is measured
        work(made)
    return made


def peak(work: Callable[[], Any]) -> int:
    """Return the most bytes that were held at a time while `work` ran.

    It is the least of three runs: threads that other tests left may take some meanwhile.
    """
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        try:
            work()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)


def assign(bench: Bench) -> None:
    labels = bench.run.write_labels(0, "rows-00000", 0, np.full(ROWS, -2, np.int32))
    rows = partitions.TaskSlice([bench.rows()], [None], [labels])
    partitions.assign(rows, bench.model(), partitions.LabelStore(bench.run, 1, in_process=False))


def vary(bench: Bench, *, optimal: bool = False) -> None:
    model, counts = bench.model(), np.full(K, ROWS // K)
    sources = Sources(model, np.ones((K, WIDTH + 1), np.int64), counts, np.ones(K), optimal)
    propose_rows(bench.rows(), None, sources, StoredLabels(bench.run, [bench.file]), 1000)


def screen(bench: Bench) -> None:
    vary(bench, optimal=True)


def add(bench: Bench) -> None:
    nothing = np.zeros(0, np.int64)
    dense = [np.ones((K, WIDTH + 1), np.int64) for _ in range(FAN)]
    add_sums([Sums(one, nothing, nothing, np.zeros(K, np.int64), WIDTH + 1) for one in dense])


def start(bench: Bench, last: Any = None) -> None:
    empty = bench.block.take(np.arange(0))
    plan = StartSample(
        empty, np.arange(ROWS), None, np.zeros(0, np.int64), bench.settings, bench.distortion,
        bench.extent, 2.0**-8, 400, last,
    )  # fmt: skip
    block = RowBlock.concatenate([bench.rows()])
    run_candidate(make_start_sample(block, plan), MemoryRun(), 1, Turn("random 0"))


def warm_start(bench: Bench) -> None:
    start(bench, bench.centroids.copy())


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("E-step", assign),
        ("first variation", vary),
        ("first variation", screen),
        ("adds up", add),
        ("start", start),
        ("start", warm_start),
    ],
)
def test_tasks_take_what_the_plan_says(
    name: str, work: Callable[[Bench], None], bench: Bench
) -> None:
    planned, taken = bench.task(name).total, peak(lambda: work(bench))
    assert taken <= planned + 2**16
    assert taken >= planned / 3  # or the plan refuses what would fit


def test_dense_rows_are_taken_without_a_list_of_their_entries() -> None:
    block = RowBlock.from_array(np.ones((2000, 100), np.float32))
    assert peak(lambda: block.take(np.arange(2000))) <= 1.5 * block.nbytes


def test_the_arithmetic_adds_up_and_is_shown() -> None:
    task = TaskMemory("a task", (("its rows", 3 * 2**20), ("its sums", 2**19)))
    assert str(task) == "a task needs its rows 3.0 MiB + its sums 0.5 MiB = 3.5 MiB"


def test_the_worst_task_is_the_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (TaskMemory(name, (("rows", size),)) for name, size in [("a", 9), ("b", 2**31)])
    monkeypatch.setattr(fit_preparation, "memory_of_a_task", lambda: (2**30, "this machine"))
    check_memory([small])
    with pytest.raises(MemoryPlanError, match=r"1,024.0 MiB \(this machine\), but b needs rows"):
        check_memory([small, large, small])


def test_only_real_memory_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    X, _ = planted_text(200, 50, 3, 0)
    with dask.config.set({"hmrf.task-memory": "16 KiB", "scheduler": "synchronous"}):
        HMRFKMeans(3, random_state=0, n_init=1).fit(X)  # any plan goes below what is there
    monkeypatch.setattr(fit_preparation, "memory_of_a_task", lambda: (2**14, "this machine"))
    with pytest.raises(MemoryPlanError, match="use smaller partitions, fewer features"):
        HMRFKMeans(3, random_state=0, n_init=1).fit(X)


def test_linked_rows_are_planned_within_the_budget(bench: Bench) -> None:
    from hmrf_dask.constraints.closure import ClosureRules, CostedPairs, build_graph
    from hmrf_dask.fit.problem import Pairs

    chain = np.stack([np.arange(999), np.arange(1, 1000)], axis=1)
    none = np.zeros((0, 2), np.int64)
    rules = ClosureRules(closure=False)
    graph = build_graph(1000, CostedPairs(chain), CostedPairs(none), rules)
    pairs = Pairs(graph, np.arange(1000), np.full(1000, 9), 2.0**-8, chain, none)
    for memory, words in ((2**30, "1000 constrained documents and 999 pairs"), (2**16, "hmrf.")):
        settings = Settings(K, task_memory=memory)
        task = plan_tasks(
            bench.facts, settings, WIDTH, linked=linked_task(pairs, settings),
            refining=False, refining_starts=False,
        )[-2]  # fmt: skip
        assert task.name == "an ICM task"
        assert words in str(task)
        assert task.total <= memory


@pytest.mark.parametrize("refining_starts", [False, True])
def test_a_start_that_is_not_refined_is_planned_without_summands(
    bench: Bench, refining_starts: bool
) -> None:
    plan = plan_tasks(
        bench.facts, bench.settings, WIDTH, linked=None,
        refining=True, refining_starts=refining_starts,
    )  # fmt: skip
    counted = {task.name: {name for name, _ in task.parts} for task in plan}
    assert ("its summands" in counted["a start"]) == refining_starts
    assert "its summands" in counted["a task of first variation"]


def test_the_peak_of_a_process_is_its_own() -> None:
    large = np.ones(2**25)  # 256 MiB, of the process that starts the other one
    code = "from hmrf_dask.flow.cluster import peak_memory; print(peak_memory())"
    printed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert 2**24 < int(printed.stdout) < large.nbytes <= peak_memory()
