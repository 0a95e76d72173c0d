"""What the largest tasks of a fit will need, worked out before it runs, against what is there.

The sizes of linked partitions follow from `hmrf.task-memory`; everything else follows from the
partitions of the corpus, K and the number of features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.dataflow import FAN, NARROW
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.distortions.own import OwnDistortion
from hmrf_dask.em.ground import ground_size
from hmrf_dask.em.model import Settings
from hmrf_dask.em.prepare import Facts, Pairs
from hmrf_dask.em.refine import SHARE, wanted
from hmrf_dask.em.starts import candidate_names
from hmrf_dask.errors import MemoryPlanError
from hmrf_dask.kernels.products import LANES
from hmrf_dask.linked.sizes import heap_bytes, message_bytes
from hmrf_dask.workers import memory_of_a_task

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
    shards: Sequence[range] = (),
) -> list[TaskMemory]:
    """Return what each kind of task will need at most.

    A task that is `reading` so many rows, partition by partition, holds two and all labels.
    """
    n_clusters = widest(shards) or settings.n_clusters
    dense, fan = 8 * n_clusters * (n_features + 1), NARROW if shards else FAN
    held, name = (2, "its partition and the next") if reading else (1, "its partition")
    labels = 2 * LABEL * reading
    partition = (name, held * facts.largest_block + ROW_TERMS * facts.longest_block + labels)
    (table,) = table_task(n_clusters, n_features).parts
    tasks = [
        TaskMemory("an E-step task", (partition, table, ("its sums", dense))),
        TaskMemory("a task that adds up sums", ((f"{fan + 1} of them", (fan + 1) * dense),)),
    ]
    sample = ground_size(facts.n_rows, settings)
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
        linked = _linked_task(pairs, settings, in_shards=bool(shards))
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


def shards_of(n_clusters: int, n_features: int, allowed: int) -> tuple[range, ...]:
    """Return ranges of clusters whose tables need no more than `allowed`; none: all fit at once.

    What they are decides no bit of a result (`em.sharding`).
    """
    if table_task(n_clusters, n_features).total <= allowed:
        return ()
    most = max(1, _fitting(n_features, allowed))
    n_shards = -(-n_clusters // most)
    step = LANES if most >= LANES else 1  # whole vectors, where there are any
    each = min(most, -(-n_clusters // (n_shards * step)) * step)
    return tuple(
        range(first, min(first + each, n_clusters)) for first in range(0, n_clusters, each)
    )


def _fitting(n_features: int, allowed: int) -> int:
    """Return how many clusters have a table of that size, in whole vectors if there is one."""
    vectors = allowed // table_task(LANES, n_features).total
    if vectors:
        return vectors * LANES
    return next((n for n in range(LANES, 0, -1) if table_task(n, n_features).total <= allowed), 0)


def plan_shards(
    corpus: Corpus,
    settings: Settings,
    distortion: Distortion,
    *,
    constrained: bool,
    seeded: bool,
) -> tuple[tuple[range, ...], str | None]:
    """Return the shards of a fit, and what keeps all clusters together in place of some."""
    shards = shards_of(settings.n_clusters, corpus.n_features, settings.task_memory)
    if not shards:
        return (), None
    whole = _kept_whole(corpus.n_rows, settings, distortion, constrained=constrained, seeded=seeded)
    return (shards, None) if whole is None else ((), whole)


def _kept_whole(
    n_rows: int, settings: Settings, distortion: Distortion, *, constrained: bool, seeded: bool
) -> str | None:
    """Return what of a fit needs all clusters in one task, in words; None: they go in shards."""
    names = candidate_names(settings, constrained)
    reasons = (
        (isinstance(distortion, OwnDistortion), "a distortion of one's own"),
        (settings.learn_weights, "learned weights (learn_weights=False)"),
        (settings.hard, "pairs that are never broken (PCKMeans)"),
        (
            constrained and settings.inference == "belief-propagation",
            "belief propagation (inference='icm')",
        ),
        (seeded, "seeds (init=an array of their means)"),
        (
            wanted(settings.refine, distortion, n_rows, settings.n_clusters),
            "first variation (refine=False)",
        ),
        (
            settings.init != "given" and len(names) > 1,
            "a pool of starts (n_init=1 and init='k-means++', 'random' or 'neighborhoods')",
        ),
    )
    return next((words for holds, words in reasons if holds), None)


def widest(shards: Sequence[range]) -> int:
    """Return how many clusters the largest shard has."""
    return max(map(len, shards), default=0)


def _linked_task(pairs: Pairs, settings: Settings, *, in_shards: bool) -> TaskMemory:
    graph = pairs.graph
    n_pairs = len(graph.must_pairs) + len(graph.cannot_pairs)
    sizes = graph.n_nodes, n_pairs, settings.n_clusters
    needed, told = heap_bytes(*sizes), "pairs"
    if settings.inference == "belief-propagation":
        needed, told = needed + message_bytes(*sizes), "pairs with their messages"
    part = (f"{graph.n_nodes} constrained documents and {n_pairs} {told}", needed)
    if needed > settings.task_memory:
        part = ("what hmrf.task-memory allows it", settings.task_memory)
    if not in_shards:
        return TaskMemory("an ICM task", (part,))
    scores = min(4 * graph.n_nodes * settings.n_clusters, settings.task_memory)
    return TaskMemory("an ICM task", (part, ("scores of all shards", scores)))


def check_memory(tasks: list[TaskMemory], whole: str | None = None) -> None:
    """Refuse a plan whose largest task needs more memory than one may have; show the arithmetic.

    `whole` says what keeps all clusters together where they would be taken in shards.
    """
    worst = max(tasks, key=lambda task: task.total)
    allowed, source = memory_of_a_task()
    if worst.total > allowed:
        in_shards = "" if whole is None else f"; clusters are taken in shards only without {whole}"
        raise MemoryPlanError(
            f"a task must fit the memory there is, {_mib(allowed)} ({source}), but {worst}; use "
            "smaller partitions, fewer features or clusters, a smaller hmrf.task-memory, fewer "
            f"threads or more memory{in_shards}"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
