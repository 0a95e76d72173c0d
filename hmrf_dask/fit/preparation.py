"""Before the loop: one survey of all rows, pairs resolved to rows, the largest tasks planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hmrf_dask.constraints.cliques import refuse_clique
from hmrf_dask.constraints.closure import ClosureRules, CostedPairs, build_graph
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.distortions.base import Distortion, Extent
from hmrf_dask.distortions.own import OwnDistortion
from hmrf_dask.errors import ConfigurationError, InvalidInputError, MemoryPlanError
from hmrf_dask.fit.answers import GivenPairs, given_pairs, graph_of_answers, weigh_answers
from hmrf_dask.fit.problem import Pairs
from hmrf_dask.fit.refinement import SHARE
from hmrf_dask.flow.cluster import memory_of_a_task
from hmrf_dask.flow.dataflow import FAN, Dataflow, share_array, tree
from hmrf_dask.flow.messages import AT_ONCE
from hmrf_dask.kernels.exact import exact_value
from hmrf_dask.kernels.products import LANES
from hmrf_dask.linked.plan import cost_unit, heap_bytes, message_bytes, rounded_costs
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.files import BlockSource
from hmrf_dask.tasks.model import Settings
from hmrf_dask.tasks.partitions import (
    Facts,
    add_facts,
    describe_rows,
    find_ids,
    survey_slice,
)
from hmrf_dask.tasks.start_sample import start_sample_size
from hmrf_dask.types import AnyArray, IntArray

SLICE_ROWS = 2**22  # whose labels a task may hold, 4 bytes each, before and after


def survey_corpus(
    flow: Dataflow,
    corpus: Corpus,
    distortion: Distortion,
    *,
    fingerprinted: bool = True,
    slices: Sequence[Sequence[int]] | None = None,
) -> Facts:
    """Return the facts of a corpus from one pass; raise InvalidInputError for what is wrong.

    Only a run directory asks for the hash of the content. `slices` are numbers of partitions that
    one task surveys; without them each has a task of its own.
    """
    shared = flow.share(distortion)
    blocks, offsets = corpus.blocks, corpus.offsets
    surveys = [
        flow.lazy(
            survey_slice,
            [blocks[number] for number in numbers],
            [offsets[number] for number in numbers],
            shared,
            corpus.has_ids,
            fingerprinted,
        )
        for numbers in slices or [[number] for number in range(len(blocks))]
    ]
    facts: Facts = flow.compute([tree(flow, add_facts, surveys)])[0]
    for _, trouble in facts.troubles:
        raise InvalidInputError(trouble)
    return facts


def cut_slices(slices: Sequence[Sequence[int]], row_counts: Sequence[int]) -> list[list[int]]:
    """Return slices of partitions cut so that none has above `SLICE_ROWS` rows, if it has two.

    Examples
    --------
    >>> cut_slices([[0, 1, 2], [3]], [SLICE_ROWS, 1, 1, 5])
    [[0], [1, 2], [3]]
    """
    cut: list[list[int]] = []
    for numbers in slices:
        n_rows = SLICE_ROWS + 1
        for number in numbers:
            n_rows += row_counts[number]
            if n_rows > SLICE_ROWS:
                cut.append([])
                n_rows = row_counts[number]
            cut[-1].append(number)
    return cut


def extent_of(facts: Facts, n_features: int) -> Extent:
    """Return the facts distortions are bound to."""
    finite = np.isfinite(facts.minimum)  # not so where there are no rows
    return Extent(
        facts.n_rows,
        n_features,
        np.where(finite, facts.minimum, 0.0).astype(np.float64),
        np.where(finite, facts.maximum, 0.0).astype(np.float64),
        exact_value(facts.mass) / max(facts.n_rows, 1),
        facts.largest_mass,
    )


def resolve(
    flow: Dataflow,
    corpus: Corpus,
    constraints: Constraints,
    settings: Settings,
    distortion: Distortion,
) -> Pairs:
    """Return the constraints as pairs of nodes, nodes sorted by the id of their document."""
    rows = rows_of(flow, corpus, constraints)
    ids, values = describe_nodes(flow, corpus, rows)
    order = np.argsort(ids, kind="stable")
    node = np.empty(len(order), np.int64)
    node[order] = np.arange(len(order))
    given, sorted_ids = given_pairs(constraints, node), ids[order]
    rules = ClosureRules(settings.closure, distortion.closure_form, settings.on_conflict)

    def name(number: int) -> object:
        """Return the id of a node."""
        return sorted_ids[number].item()

    odds = None
    if not settings.hard and _largest_cost(given, settings) > 0:
        odds = weigh_answers(flow, corpus, distortion, given, settings)
    if settings.penalty == "trust" and odds is not None:
        unit, graph = graph_of_answers(len(order), given, odds, settings, rules, name)
    else:
        unit, costed = _costed(given, settings)
        graph = build_graph(len(order), *costed, rules, name)
    if settings.hard:
        refuse_clique(graph, settings.n_clusters, name)
    pairs = (given[0].pairs, given[1].pairs, odds, constraints.documents[order])
    return Pairs(graph, rows[order], values[order], unit, *pairs)


def _largest_cost(given: tuple[GivenPairs, GivenPairs], settings: Settings) -> float:
    own = (float(np.nanmax(kind.costs, initial=0.0)) for kind in given)
    return max(settings.must_link_cost, settings.cannot_link_cost, *own)


def _costed(
    given: tuple[GivenPairs, GivenPairs], settings: Settings
) -> tuple[float, tuple[CostedPairs, CostedPairs]]:
    """Return the unit of costs, and the pairs with their costs rounded to it."""
    defaults = np.asarray([settings.must_link_cost, settings.cannot_link_cost])
    unit = cost_unit(_largest_cost(given, settings))
    must, cannot = (
        CostedPairs(kind.pairs, rounded_costs(kind.costs, unit), float(default))
        for kind, default in zip(given, rounded_costs(defaults, unit), strict=True)
    )
    return unit, (must, cannot)


def rows_of(flow: Dataflow, corpus: Corpus, constraints: Constraints) -> IntArray:
    """Return the row number of every document the constraints name."""
    documents = constraints.documents
    if not constraints.by_id:
        wrong = documents[(documents < 0) | (documents >= corpus.n_rows)]
        if len(wrong):
            raise InvalidInputError(
                f"pairs must name rows 0 to {corpus.n_rows - 1}, got {_few(wrong)}; check the "
                "pairs, or pass Constraints(..., ids=True) "
                "when they are document ids"
            )
        return np.asarray(documents, np.int64)
    if not corpus.has_ids and documents.dtype.kind == "U":
        raise InvalidInputError(
            f"pairs name documents by id, got {_few(documents)}, but the corpus has no ids; pass "
            "row numbers or give it ids"
        )
    shared = flow.share(documents)
    matches = flow.compute([flow.lazy(find_ids, block, shared) for block in corpus.named])
    rows = np.full(len(documents), -1, np.int64)
    for (places, local), first in zip(matches, corpus.offsets, strict=False):
        rows[places] = local + first
    missing = documents[rows < 0]
    if len(missing):
        raise InvalidInputError(
            f"pairs must name documents of the corpus, got {len(missing)} unknown ids: "
            f"{_few(missing)}; check the ids of the pairs"
        )
    return rows


def _few(values: AnyArray, most: int = 5) -> str:
    shown = ", ".join(repr(value) for value in values[:most].tolist())
    return shown + (f" and {len(values) - most} more" if len(values) > most else "")


def describe_nodes(flow: Dataflow, corpus: Corpus, rows: IntArray) -> tuple[AnyArray, IntArray]:
    """Return ids and numbers of entries of rows of the corpus, as many as the pairs name."""
    offsets = np.asarray(corpus.offsets)
    homes = np.searchsorted(offsets, rows, side="right") - 1
    order = np.argsort(homes, kind="stable")
    used = np.unique(homes)
    lists = [order[homes[order] == home] for home in used]
    described = flow.compute(
        [
            flow.lazy(
                describe_rows,
                corpus.blocks[home],
                share_array(flow, rows[chosen] - offsets[home]),
            )
            for home, chosen in zip(used, lists, strict=True)
        ]
    )
    if not described:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    back = np.argsort(np.concatenate(lists), kind="stable")
    ids, values = (np.concatenate(parts)[back] for parts in zip(*described, strict=True))
    return ids, values


def check_settings(settings: Settings, n_rows: int) -> None:
    """Raise where parameters do not go with the corpus."""
    if n_rows < settings.n_clusters:
        raise InvalidInputError(
            f"n_samples={n_rows} should be >= n_clusters={settings.n_clusters}; give more "
            "documents or ask for fewer clusters"
        )
    if settings.hard and settings.inference != "icm":
        raise ConfigurationError(
            f"inference must be 'icm' where pairs are hard, got {settings.inference!r}: messages "
            "weigh what a broken pair costs; use PCKMeans"
        )


def examine_own(flow: Dataflow, corpus: Corpus, distortion: Distortion, n_clusters: int) -> None:
    """Try a user's distortion on a few rows before any work depends on it."""
    if not isinstance(distortion, OwnDistortion):
        return
    filled = next((place for place, count in enumerate(corpus.row_counts) if count), 0)
    few = flow.lazy(RowBlock.rows, corpus.blocks[filled], 0, min(8, corpus.row_counts[filled]))
    distortion.examine(flow.compute([few])[0], n_clusters)


# Measured, as are the numbers of dense arrays below; tests/test_memory_plan.py holds tasks to it.
ROW_TERMS = 96  # bytes a row: its eight terms; labels before and after, distance, moved
LIMITED = 128  # the same under limits: distances, limits and labels in two clusters, factors
LABEL = 4
ADDING = "a task that adds up sums"
HELD = 4  # arrays of all its clusters that an owner holds next to what workers send it
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
    linked: TaskMemory | None,
    refining: bool,
    refining_starts: bool,
    reading: int = 0,
) -> list[TaskMemory]:
    """Return what each kind of task will need at most.

    `linked` is what ICM needs, where there are pairs. A task that is `reading` so many rows,
    partition by partition, holds two and all labels.
    """
    n_clusters = settings.n_clusters
    dense = 8 * n_clusters * (n_features + 1)
    held, name = (2, "its partition and the next") if reading else (1, "its partition")
    labels = 2 * LABEL * reading
    partition = (name, held * facts.largest_block + ROW_TERMS * facts.longest_block + labels)
    (table,) = table_task(n_clusters, n_features).parts
    step = [partition, table, ("its sums", dense)]
    if settings.trim_outliers:
        step.append(("limits of its rows", LIMITED * facts.longest_block))
    tasks = [
        TaskMemory("an E-step task", tuple(step)),
        TaskMemory(ADDING, ((f"{FAN + 1} of them", (FAN + 1) * dense),)),
    ]
    sample = start_sample_size(facts.n_rows, settings)
    rows = (f"{sample} rows, three times while they are put together", 3 * _share(facts, sample))
    start = [rows, table, ("its sums", 7 * dense)]
    if refining:
        summands = ("its summands", _summands(facts, facts.longest_block))
        frozen = ("centroids, their table and sums", 6 * dense)
        tasks.append(TaskMemory("a task of first variation", (partition, summands, frozen)))
        fetched = min(settings.task_memory // SHARE, _share(facts, facts.n_rows))
        moved = ("rows that move", 3 * fetched)
        frozen = ("centroids and sums", 4 * dense)
        tasks.append(TaskMemory("a round of first variation", (moved, frozen)))
    if refining_starts:
        start.append(("its summands", _summands(facts, sample)))
    if linked is not None:
        tasks.append(linked)
        start.extend(linked.parts)
    return [*tasks, TaskMemory("a start", tuple(start))]


def with_owners(tasks: Sequence[TaskMemory], n_owners: int, n_workers: int) -> list[TaskMemory]:
    """Return the tasks where owners add up sums: each has its share, and what workers answer."""

    def of_owner(task: TaskMemory) -> TaskMemory:
        """Return the task of an owner in the place of one that adds up sums."""
        if task.name != ADDING:
            return task
        ((_, size),) = task.parts
        held = (min(n_workers, AT_ONCE) + HELD) * size // (n_owners * (FAN + 1))
        return TaskMemory("an owner of clusters", (("its sums and those of workers", held),))

    return [of_owner(task) for task in tasks]


def _share(facts: Facts, n_rows: int) -> int:
    """Return the bytes of so many average rows with their terms."""
    return -(-facts.nbytes * n_rows // max(facts.n_rows, 1)) + ROW_TERMS * n_rows


def _summands(facts: Facts, n_rows: int) -> int:
    """Return the bytes of so many average rows as first variation reads them."""
    return SUMMAND * (-(-facts.n_values * n_rows // max(facts.n_rows, 1)) + n_rows)


def table_task(n_clusters: int, n_features: int) -> TaskMemory:
    """Return what a table of centroids alone will need, before any row is read."""
    padded = -(-n_clusters // LANES) * LANES
    size = 4 * 8 * n_clusters * (n_features + 1) + 4 * padded * n_features
    part = f"{n_clusters} centroids of {n_features} features and their table"
    return TaskMemory("an E-step task", ((part, size),))


def reading_task(sources: Sequence[BlockSource]) -> TaskMemory:
    """Return what the largest file of blocks needs while it is read."""
    sizes = [(source.file.n_bytes, source.nbytes) for source in sources]
    file, rows = max(sizes, key=sum, default=(0, 0))
    return TaskMemory("a task that reads a block", (("its file", file), ("its rows", rows)))


def hashing_task(n_features: int, n_components: int) -> TaskMemory:
    """Return what a vocabulary of hashed words needs, whose columns are known before any text."""
    parts = [(f"{FAN + 1} counts of {n_features} columns, twice", 16 * (FAN + 1) * n_features)]
    if n_components:
        size = 3 * 8 * n_components * n_features
        parts.append((f"{n_components} components of them, three times", size))
    return TaskMemory("a task that adds up hashed words", tuple(parts))


def linked_task(pairs: Pairs, settings: Settings) -> TaskMemory:
    """Return what ICM needs for these pairs."""
    graph = pairs.graph
    return icm_task(graph.n_nodes, len(graph.must_pairs) + len(graph.cannot_pairs), settings)


def icm_task(n_rows: int, n_pairs: int, settings: Settings) -> TaskMemory:
    """Return what ICM needs; `hmrf.task-memory` cuts what would need more into pieces."""
    sizes = n_rows, n_pairs, settings.n_clusters
    needed, words = heap_bytes(*sizes), "pairs"
    if settings.inference == "belief-propagation":
        needed, words = needed + message_bytes(*sizes), "pairs with their messages"
    part = (f"{n_rows} constrained documents and {n_pairs} {words}", needed)
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
