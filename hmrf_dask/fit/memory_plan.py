"""What the largest tasks of a fit will need, worked out before it runs, against what is there.

The sizes of linked partitions follow from `hmrf.task-memory`; everything else follows from the
partitions of the corpus, K and the number of features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hmrf_dask.errors import MemoryPlanError
from hmrf_dask.fit.preparation import Pairs
from hmrf_dask.fit.refinement import SHARE
from hmrf_dask.fit.starts import start_sample_size
from hmrf_dask.flow.dataflow import FAN
from hmrf_dask.flow.workers import memory_of_a_task
from hmrf_dask.kernels.products import LANES
from hmrf_dask.linked.sizes import heap_bytes, message_bytes
from hmrf_dask.rows.files import BlockSource
from hmrf_dask.tasks.model import Settings
from hmrf_dask.tasks.survey import Facts

# Measured, as are the numbers of dense arrays below; tests/test_memory_plan.py holds tasks to it.
ROW_TERMS = 96  # bytes a row: its eight terms; labels before and after, distance, moved
LABEL = 4
SUMMAND = 16  # bytes an entry as first variation reads it, and while it is made


@dataclass(frozen=True)
class TaskMemory:
    """What one kind of task needs: names and bytes of its parts."""

    name: str
    parts: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """Bytes."""
        return sum(size for _, size in self.parts)

    def __str__(self) -> str:
        """Return the arithmetic in words."""
        terms = " + ".join(f"{name} {_mib(size)}" for name, size in self.parts)
        return f"{self.name} needs {terms} = {_mib(self.total)}"


def plan_tasks(
    facts: Facts,
    settings: Settings,
    n_features: int,
    *,
    pairs: Pairs | None,
    refining: bool,
    refining_starts: bool,
    reading: int = 0,
) -> list[TaskMemory]:
    """Return what each kind of task will need at most.

    A task that is `reading` so many rows, partition by partition, holds two and all labels.
    """
    n_clusters = settings.n_clusters
    dense = 8 * n_clusters * (n_features + 1)
    held, name = (2, "its partition and the next") if reading else (1, "its partition")
    labels = 2 * LABEL * reading
    partition = (name, held * facts.largest_block + ROW_TERMS * facts.longest_block + labels)
    (table,) = table_task(n_clusters, n_features).parts
    tasks = [
        TaskMemory("an E-step task", (partition, table, ("its sums", dense))),
        TaskMemory("a task that adds up sums", ((f"{FAN + 1} of them", (FAN + 1) * dense),)),
    ]
    sample = start_sample_size(facts.n_rows, settings)
    rows = (f"{sample} rows, thrice while they are put together", 3 * _share(facts, sample))
    start = [rows, table, ("its sums", 7 * dense)]
    if refining:
        summands = ("its summands", _summands(facts, facts.longest_block))
        frozen = ("centroids and sums", 4 * dense)
        tasks.append(TaskMemory("a task of first variation", (partition, summands, frozen)))
        moved = ("rows that move", 3 * settings.task_memory // SHARE)
        tasks.append(TaskMemory("the moves of first variation", (moved, frozen)))
    if refining_starts:
        start.append(("its summands", _summands(facts, sample)))
    if pairs is not None:
        linked = _linked_task(pairs, settings)
        tasks.append(linked)
        start.extend(linked.parts)
    return [*tasks, TaskMemory("a start", tuple(start))]


def _share(facts: Facts, n_rows: int) -> int:
    """Return the bytes of so many average rows with their terms."""
    return -(-facts.nbytes * n_rows // max(facts.n_rows, 1)) + ROW_TERMS * n_rows


def _summands(facts: Facts, n_rows: int) -> int:
    """Return the bytes of so many average rows as first variation reads them."""
    return SUMMAND * (-(-facts.n_values * n_rows // max(facts.n_rows, 1)) + n_rows)


def table_task(n_clusters: int, n_features: int) -> TaskMemory:
    """Return what a table of centroids alone will need, before any row was looked at."""
    padded = -(-n_clusters // LANES) * LANES
    size = 4 * 8 * n_clusters * (n_features + 1) + 4 * padded * n_features
    part = f"{n_clusters} centroids of {n_features} features and their table"
    return TaskMemory("an E-step task", ((part, size),))


def reading_task(sources: Sequence[BlockSource]) -> TaskMemory:
    """Return what the largest file of blocks needs while it is read."""
    sizes = [(one.file.n_bytes, one.nbytes) for one in sources]
    file, rows = max(sizes, key=sum, default=(0, 0))
    return TaskMemory("a task that reads a block", (("its file", file), ("its rows", rows)))


def hashing_task(n_features: int, n_components: int) -> TaskMemory:
    """Return what a vocabulary of hashed words needs, whose columns are known before any text."""
    parts = [(f"{FAN + 1} counts of {n_features} columns, twice", 16 * (FAN + 1) * n_features)]
    if n_components:
        size = 3 * 8 * n_components * n_features
        parts.append((f"{n_components} components of them, thrice", size))
    return TaskMemory("a task that adds up hashed words", tuple(parts))


def _linked_task(pairs: Pairs, settings: Settings) -> TaskMemory:
    """Return what ICM needs; `hmrf.task-memory` cuts what would need more into pieces."""
    graph = pairs.graph
    n_pairs = len(graph.must_pairs) + len(graph.cannot_pairs)
    sizes = graph.n_nodes, n_pairs, settings.n_clusters
    needed, told = heap_bytes(*sizes), "pairs"
    if settings.inference == "belief-propagation":
        needed, told = needed + message_bytes(*sizes), "pairs with their messages"
    part = (f"{graph.n_nodes} constrained documents and {n_pairs} {told}", needed)
    if needed > settings.task_memory:
        part = ("what hmrf.task-memory allows it", settings.task_memory)
    return TaskMemory("an ICM task", (part,))


def check_memory(tasks: list[TaskMemory]) -> None:
    """Refuse a plan whose largest task needs more memory than one may have; show the arithmetic."""
    worst = max(tasks, key=lambda task: task.total)
    allowed, source = memory_of_a_task()
    if worst.total > allowed:
        raise MemoryPlanError(
            f"a task must fit the memory there is, {_mib(allowed)} ({source}), but {worst}; use "
            "smaller partitions, fewer features or clusters, a smaller hmrf.task-memory, fewer "
            "threads or more memory"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
