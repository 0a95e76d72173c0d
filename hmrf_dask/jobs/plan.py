"""What a job will take: documents, memory, time and cost, from a sample of it that is rehearsed.

The job runs three times over parts of the sample: once over a few documents, which shows what a
process does once; then over all of the sample and over a part of it, which shows what grows with
documents. What tasks need at most is what a fit itself plans with (`fit.preparation`).
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

from hmrf_dask.constraints.answer_rows import CANNOT, MUST
from hmrf_dask.distortions import make_distortion
from hmrf_dask.documents.batches import BATCH_BYTES
from hmrf_dask.documents.sources import BATCH_ROWS
from hmrf_dask.errors import InvalidInputError, MemoryPlanError
from hmrf_dask.estimators.classes import ESTIMATORS
from hmrf_dask.fit.preparation import (
    ROW_TERMS,
    TaskMemory,
    check_memory,
    icm_task,
    plan_tasks,
    table_task,
)
from hmrf_dask.fit.refinement import refines
from hmrf_dask.fit.starts import IN_PARALLEL, pool_work
from hmrf_dask.flow.clients import active_client, local_threads
from hmrf_dask.flow.cluster import memory_of_all
from hmrf_dask.jobs.answers import Given, read_answers
from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.job_file import Method
from hmrf_dask.jobs.plan_sample import DocumentSample, sample_of
from hmrf_dask.jobs.rehearsal import (
    BEGINNING,
    ENDING,
    STARTS,
    SURVEY,
    Rehearsal,
    Rehearsed,
    rehearse,
)
from hmrf_dask.kernels.exact import exact_zero
from hmrf_dask.parameters import AUTO, SEEDED
from hmrf_dask.progress import Tell, nothing
from hmrf_dask.tasks.model import Settings
from hmrf_dask.tasks.partitions import Facts
from hmrf_dask.tasks.start_sample import start_sample_size

SAMPLE = 20_000  # documents
SMALL = 5_000  # documents: up to so many are all rehearsed, of more at most half
FEW, PART = 500, 4  # documents of the first rehearsal; later ones have this part of the sample
LONGEST = 12.0  # seconds of rehearsals after which none is repeated
UNKNOWN_K = 20  # where K is chosen by the job, of rehearsals that come before
SOME_ITERATIONS = 6
WORKERS = (1, 2, 4, 8)
ITERATION, ROUND = "iterations", "refinement"
ONCE = "what a process does once"
# Which steps of a run belong together for who reads a plan.
GROUPS: Mapping[str, Sequence[str]] = {
    "begin": ("begin", ONCE),
    "read and count": ("read answers", "count words", "read embeddings", "embed texts"),
    "make rows": ("weigh words", "look for ids that come twice", "look up answers"),
    "choose K": ("choose K",),
    "fit": (SURVEY, STARTS, BEGINNING, ITERATION, ROUND, ENDING),
}
LAST_GROUP = "write results and report"


@dataclass(frozen=True)
class StepTime:
    """The seconds of a step: a part that one process does, and one that is shared."""

    name: str
    alone: float
    shared: float = 0.0  # under as many workers as the rehearsal had
    most: int = 10**6  # workers that can share it

    def seconds(self, workers: int, rehearsed: int) -> float:
        """Return its seconds under so many workers.

        Examples
        --------
        >>> StepTime("count words", 1.0, 8.0).seconds(4, rehearsed=2)
        5.0
        """
        return self.alone + self.shared * min(rehearsed, self.most) / min(workers, self.most)


@dataclass(frozen=True)
class Workers:
    """What a job takes under so many threads or worker processes."""

    workers: int
    seconds: float
    driver_bytes: int  # at most in memory
    worker_bytes: int  # of each worker process; 0 on threads, which share the driver's
    hours: float  # of this machine, or of all workers
    price: float | None  # of these hours


@dataclass(frozen=True)
class Plan:
    """What a job will take."""

    way: str  # "threads" or "processes"
    workers: int
    rehearsed_workers: int
    documents: dict[str, Any]
    features: int
    clusters: dict[str, Any]
    answers: dict[str, int]
    memory: dict[str, Any]
    store: dict[str, int]
    seconds: dict[str, float]  # by group of steps
    total: float
    range: tuple[float, float]  # of the total: with half and with twice the iterations
    fit: dict[str, Any]
    by_workers: list[Workers]
    bound_by: str
    assumed: list[str]
    problems: list[str] = field(default_factory=list)  # that would stop a run
    rehearsal_seconds: float = 0.0
    exit_code: int = 0


@dataclass(frozen=True)
class Where:
    """Where a job is to run, and what an hour of it costs."""

    way: str  # "threads" or "processes"
    workers: int
    price: float | None = None
    began: float = 0.0  # when the process of the plan began, as `time.time` has it


def plan_job(inputs: Inputs, where: Where, *, sample: int = SAMPLE, tell: Tell = nothing) -> Plan:
    """Return what a first run of a job takes; nothing but a temporary folder is written.

    It is called where the rehearsals may run: on threads, or with worker processes as the client's.
    """
    once = time.time() - where.began
    given = read_answers(inputs.answers, inputs.job.annotators, inputs.journal)
    with tempfile.TemporaryDirectory(prefix="hmrf-plan-") as folder:
        tell({"step": "read a sample"})
        documents = sample_of(inputs.segments, inputs.manifest.documents, sample, folder)
        began = time.perf_counter()
        pairs = given.with_classes()
        asked = Rehearsed(inputs, documents, folder, tuple(_in_places(pairs, documents)))
        runs = _rehearsed(asked, tell)
        spent = time.perf_counter() - began
    sizes = _Sizes.of(inputs, documents, runs, len(pairs.pairs), len(set(pairs.named())))
    return _planned(inputs, where, sizes, runs, (once, spent))


def _in_places(given: Given, sample: DocumentSample) -> Iterator[tuple[int, int, str]]:
    """Yield pairs of numbers of documents: of those that they name where all are in the sample.

    Else of others, in the order in which documents are named.
    """
    places: dict[str, int] = {}
    if _is_small(sample):
        places = {name: number for number, name in enumerate(sample.ids)}
    for (one, two), must in zip(given.pairs.tolist(), given.must.tolist(), strict=True):
        first, second = (places.setdefault(name, len(places)) for name in (one, two))
        yield first, second, MUST if must else CANNOT


def _is_small(sample: DocumentSample) -> bool:
    """Return whether all documents are rehearsed, with their answers."""
    return sample.complete and sample.n_documents <= SMALL


class Runs(NamedTuple):
    """The rehearsals: a few documents, the whole sample, a part of it, the same with answers."""

    few: Rehearsal
    whole: Rehearsal
    part: Rehearsal
    answered: Rehearsal
    n_iterations: int  # of a fit that does not begin where a pool ended on the same rows


def _rehearsed(asked: Rehearsed, tell: Tell) -> Runs:
    """Return the rehearsals; of those that could be repeated the least time of each step."""
    method, sample = asked.inputs.job.method, asked.sample
    there, small = len(sample.records), _is_small(sample)
    if not small:
        there = min(there, max(SMALL, sample.n_documents // 2))
    known = method.n_clusters if isinstance(method.n_clusters, int) else UNKNOWN_K
    if there < known:
        raise InvalidInputError(
            f"a plan must have more documents than clusters, got {there} for {known}; read more "
            "by --sample"
        )
    began = time.perf_counter()
    n_few = min(there, max(FEW, 2 * known))
    n_part = max(there // PART, n_few)
    single = _single_start(method)
    steps = iter(range(5))

    def run(name: str, n_documents: int, **how: Any) -> Rehearsal:
        """Rehearse, and say so."""
        tell({"step": "rehearse", "done": next(steps), "of": 5})
        return rehearse(asked, name, n_documents, **how)

    few = run("few", n_few, **single, n_clusters=known, refine=False)
    whole = run("whole", there, answered=small, **_as_with_all(asked))
    same = {**single, "n_clusters": whole.n_clusters, "refine": whole.n_rounds > 0}
    part = run("part", n_part, **same)
    answered = run("answered", n_part, answered=True, **same)
    part = part.least(answered)
    n_iterations = whole.n_iterations
    if time.perf_counter() - began < LONGEST:
        again = run(
            "again", there, **same | {"refine": False, "max_iter": method.value_of("max_iter")}
        )
        whole, n_iterations = whole.least(again), max(n_iterations, again.n_iterations)
    return Runs(few, whole, part, answered, n_iterations)


def _single_start(method: Method) -> dict[str, Any]:
    """Return parameters of a method with one start and a few iterations."""
    seeded = method.name in SEEDED  # without answers there are no seeds
    single = {"name": "KMeans"} if seeded else {}
    return {**single, "n_init": 1, "init": "k-means++", "max_iter": SOME_ITERATIONS}


def _as_with_all(asked: Rehearsed) -> dict[str, Any]:
    """Return the parameters under which a sample is refined where all documents would be."""
    method = asked.inputs.job.method
    if method.name in SEEDED:
        return {"name": "KMeans"}
    distortion = make_distortion(method.value_of("distortion") or "cosine")
    known = method.n_clusters if isinstance(method.n_clusters, int) else UNKNOWN_K
    n_documents = asked.sample.n_documents
    return {"refine": refines(method.value_of("refine"), distortion, n_documents, known)}


# ---- sizes of the whole


@dataclass(frozen=True)
class _Sizes:
    """What there is of everything."""

    sample: DocumentSample
    settings: Settings
    n_documents: int
    n_features: int
    n_pairs: int
    n_linked: int  # documents that answers name
    facts: Facts

    @staticmethod
    def of(inputs: Inputs, sample: DocumentSample, runs: Runs, n_pairs: int, named: int) -> _Sizes:
        """Return the sizes, features as more documents bring more of them."""
        few, whole, part = runs[:3]
        n_all = max(sample.n_documents, whole.n_documents)
        settings = _settings_of(inputs, whole.n_clusters)
        facts = _facts_of(sample, whole, n_all)
        seen = [(run.n_documents, run.n_features) for run in (few, part, whole)]
        width = features_of(seen, n_all)
        return _Sizes(sample, settings, n_all, width, n_pairs, named, facts)

    @property
    def dense(self) -> int:
        """K × d."""
        return self.settings.n_clusters * self.n_features


def _settings_of(inputs: Inputs, n_clusters: int) -> Settings:
    method = inputs.job.method
    model = ESTIMATORS[method.name](**{**method.parameters, "n_clusters": n_clusters})
    return model._settings(None, None)[0]


def features_of(seen: Sequence[tuple[int, int]], n_documents: int) -> int:
    """Return the features of so many documents, from those of some numbers of them, ascending.

    Words grow by a power of the documents (Heaps), which falls itself, as fast as it was seen to
    where there are three numbers.

    Examples
    --------
    >>> features_of([(100, 1000), (400, 2000), (1600, 4000)], 6400)
    8000
    >>> features_of([(100, 1000), (400, 1000), (1600, 1000)], 6400)
    1000
    """
    logs = [(math.log(documents), math.log(features)) for documents, features in seen]
    last = seen[-1]
    powers = [  # and where, in the middle
        (max(0.0, (high - low) / (end - begin)), (begin + end) / 2)
        for (begin, low), (end, high) in pairwise(logs)
        if end > begin
    ]
    if not powers or n_documents <= last[0] or powers[-1][0] < 1e-6:
        return last[1]
    (power, place), fall = powers[-1], 0.0
    if len(powers) > 1 and powers[0][0] > power:
        fall = math.log(powers[0][0] / power) / (place - powers[0][1])
    far = math.log(n_documents / last[0])
    power *= math.exp(-fall * (logs[-1][0] - place))
    grown = power * far if fall < 1e-6 else power * (1.0 - math.exp(-fall * far)) / fall
    return round(last[1] * math.exp(grown))


def _facts_of(sample: DocumentSample, whole: Rehearsal, n_documents: int) -> Facts:
    """Return what a survey of all documents would find of their sizes."""
    characters = sample.characters / max(sample.n_read, 1)
    longest = min(n_documents, BATCH_ROWS, max(1, int(BATCH_BYTES / max(characters, 1.0))))
    nothing_there = np.zeros(0, np.float32)
    return Facts(
        n_rows=n_documents, minimum=nothing_there, maximum=nothing_there, mass=exact_zero(),
        largest_mass=0.0, n_zero=0, zero_rows=(), content=0, order=0,
        n_values=round(whole.row_values * n_documents),
        nbytes=round(whole.row_bytes * n_documents),
        largest_block=round(whole.row_bytes * longest), longest_block=longest, troubles=(),
    )  # fmt: skip


# ---- time


def _grown(part: float, whole: float, sizes: tuple[int, int]) -> tuple[float, float]:
    """Return the fixed seconds of a step, and those of a document, from two rehearsals.

    Examples
    --------
    >>> _grown(1.5, 2.0, (1000, 2000))
    (1.0, 0.0005)
    """
    small, large = sizes
    if large <= small:
        return 0.0, whole / large
    slope = min(max((whole - part) / (large - small), 0.0), whole / large)
    return whole - slope * large, slope


@dataclass(frozen=True)
class _Times:
    """From three rehearsals to the steps of the whole."""

    runs: Runs
    sizes: _Sizes
    once: float  # seconds before the first step
    kept: bool  # whether rows stay in memory

    @property
    def whole(self) -> Rehearsal:
        """The rehearsal over the sample."""
        return self.runs.whole

    def steps(self) -> list[StepTime]:
        """Return all steps of a run, the fit by its parts."""
        steps = [StepTime("begin", self.once), *self._linear(), *self._fit()]
        return [*steps, StepTime(ONCE, self._first_time())]

    def _line(self, name: str) -> tuple[float, float]:
        part = self.runs.part
        sizes = part.n_documents, self.whole.n_documents
        return _grown(part.steps.get(name, 0.0), self.whole.steps[name], sizes)

    def _linear(self) -> Iterator[StepTime]:
        for name in self.whole.steps:
            if name in (STARTS, BEGINNING, ENDING):
                continue
            if name == "choose K":  # on a sample of its own
                yield StepTime(name, 0.0, self.whole.steps[name], most=IN_PARALLEL)
                continue
            alone, slope = self._line(name)
            yield StepTime(name, alone, slope * self.sizes.n_documents)

    @property
    def _labelling(self) -> float:
        """Seconds to give one row more its nearest cluster, of all workers together."""
        part, whole = self.runs.part, self.whole
        return _grown(part.labelling, whole.labelling, (part.n_documents, whole.n_documents))[1]

    def _fit(self) -> Iterator[StepTime]:
        n_all, n_whole, steps = self.sizes.n_documents, self.whole.n_documents, self.whole.steps
        more = n_all - n_whole
        sample = start_sample_size(n_all, self.sizes.settings) / min(
            n_whole, start_sample_size(n_whole, self.sizes.settings)
        )
        begun = min(self._labelling * n_whole, steps[BEGINNING])
        labelled = begun + self._labelling * more + self._read_again()
        if steps[STARTS]:
            known = self.sizes.n_linked if self.whole.n_answered else 0
            work = self._pool_work(n_all, self.sizes.n_linked) / self._pool_work(n_whole, known)
            yield StepTime(STARTS, 0.0, steps[STARTS] * sample * work, most=IN_PARALLEL)
            yield StepTime(BEGINNING, steps[BEGINNING] - begun, labelled)
        else:  # it has the one start, on the start sample
            yield StepTime(BEGINNING, (steps[BEGINNING] - begun) * sample, labelled)
        for name, number, which in (
            (ITERATION, self.n_iterations, "iteration"),
            (ROUND, self.n_rounds, "round"),
        ):
            alone, shared = self._iteration(which)
            yield StepTime(name, number * (alone + self._of_answers(which)), number * shared)
        yield StepTime(ENDING, steps[ENDING])

    def _pool_work(self, n_rows: int, known: int) -> float:
        return pool_work(self.sizes.settings, n_rows, known)

    def _of_answers(self, which: str) -> float:
        """Return what answers add to an iteration, or to a round."""
        answered, part = self.runs.answered, self.runs.part
        if not answered.n_answered or self.whole.n_answered:
            return 0.0
        more = float(getattr(answered, which) - getattr(part, which))
        return max(0.0, more) * self.sizes.n_linked / answered.n_answered

    @property
    def n_iterations(self) -> int:
        """Iterations of the whole fit."""
        same_rows = self.sizes.n_documents == self.whole.n_documents
        return self.whole.n_iterations if same_rows else self.runs.n_iterations

    @property
    def n_rounds(self) -> int:
        """Rounds of refinement."""
        return self.whole.n_rounds

    def _iteration(self, which: str) -> tuple[float, float]:
        """Return the seconds of an iteration, or of a round, that one process and that all do.

        They are made of something fixed, of K × d numbers, and of rows, which take at most what
        it takes to label them all.
        """
        runs = [run for run in self.runs[:3] if getattr(run, which) > 0]
        if not runs or not getattr(self.whole, which):
            return 0.0, 0.0
        seconds = np.array([getattr(run, which) for run in runs])
        dense = np.array([run.n_clusters * run.n_features for run in runs]) / self.sizes.dense
        rows = np.array([run.n_documents for run in runs]) / self.sizes.n_documents
        parts = np.column_stack([np.ones(len(runs)), dense, rows]) / seconds[:, None]
        labelled = max(self._labelling * self.sizes.n_documents, 1e-9)
        bounds = np.array([np.inf, np.inf, labelled])
        alone, of_dense, of_rows = lsq_linear(parts, np.ones(len(runs)), (0.0, bounds)).x
        return float(alone + of_dense), float(of_rows) + self._read_again()

    def _read_again(self) -> float:
        """Return the seconds in which rows are read that do not stay in memory."""
        return 0.0 if self.kept else self._line(SURVEY)[1] * self.sizes.n_documents

    def _first_time(self) -> float:
        """Return by how much the first rehearsal took longer than one that follows would."""
        few, seconds = self.runs.few, 0.0
        for name, took in few.steps.items():
            if name not in self.whole.steps or name in (STARTS, "choose K"):
                continue
            alone, slope = self._line(name)
            seconds += max(0.0, took - alone - slope * few.n_documents)
        return seconds


# ---- memory


@dataclass(frozen=True)
class _Memory:
    """The bytes of processes: as rehearsed, and what more documents and features add."""

    whole: Rehearsal
    sizes: _Sizes
    rehearsed: int
    kept: bool

    def _added(self, workers: int) -> int:
        """Return what rows and centroids add in a process that has its share of the rows."""
        sizes, whole = self.sizes, self.whole
        before = whole.n_documents / self.rehearsed
        more = max(0.0, sizes.n_documents / workers - before)
        rows = more * ((whole.row_bytes if self.kept else 0.0) + ROW_TERMS)
        return round(rows) + self._dense()

    def _dense(self) -> int:
        """Return what more features add to arrays of centroids."""
        n_clusters = self.sizes.settings.n_clusters
        now = table_task(n_clusters, self.sizes.n_features).total
        return max(0, now - table_task(n_clusters, self.whole.n_features).total)

    def driver(self, workers: int, *, alone: bool) -> int:
        """Return the peak of the driver, which on threads has all rows."""
        own = replace(self, rehearsed=1)._added(1) if alone else self._dense()
        threads = max(0, workers - self.rehearsed) if alone else 0
        return self.whole.driver_peak + own + threads * self.sizes.facts.largest_block

    def worker(self, workers: int) -> int:
        """Return the peak of each worker process."""
        return self.whole.worker_peak + self._added(workers)


def tasks_of(sizes: _Sizes, *, refining: bool) -> list[TaskMemory]:
    """Return what the tasks of a fit need at most, by the arithmetic that a fit refuses by."""
    settings = sizes.settings
    tasks = plan_tasks(
        sizes.facts, settings, sizes.n_features, pairs=None, refining=refining,
        refining_starts=False,
    )  # fmt: skip
    if sizes.n_pairs:
        tasks.append(icm_task(sizes.n_linked, sizes.n_pairs, settings))
    return tasks


# ---- the plan


def _planned(
    inputs: Inputs,
    where: Where,
    sizes: _Sizes,
    runs: Runs,
    spent: tuple[float, float],
) -> Plan:
    _, whole, part = runs[:3]
    alone = where.way == "threads"
    rehearsed = local_threads() if alone else _n_workers()
    memory_there = memory_of_all() * (1 if alone else where.workers / rehearsed)
    kept = sizes.facts.nbytes <= memory_there // 2
    times = _Times(runs, sizes, spent[0], kept)
    steps = times.steps()
    memory = _Memory(whole, sizes, rehearsed, kept)
    by_workers = [
        _under(n, steps, memory, where, rehearsed) for n in sorted({*WORKERS, where.workers})
    ]
    asked = next(one for one in by_workers if one.workers == where.workers)
    groups = grouped(steps, where.workers, rehearsed)
    tasks = tasks_of(sizes, refining=whole.n_rounds > 0)
    worst = max(tasks, key=lambda task: task.total)
    problems = problems_of(tasks)
    per_iteration = (times.n_iterations + times.n_rounds) * sum(
        sum(times._iteration(which)) for which in ("iteration",)
    )
    written = _grown(part.written, whole.written, (part.n_documents, whole.n_documents))
    return Plan(
        way=where.way,
        workers=where.workers,
        rehearsed_workers=rehearsed,
        documents={
            "estimated": sizes.n_documents,
            "plus_or_minus": round(sizes.sample.error),
            "files": sizes.sample.n_files,
            "bytes": sizes.sample.n_bytes,
            "read": sizes.sample.n_read,
            "bytes_read": sizes.sample.bytes_read,
            "rehearsed": whole.n_documents,
            "bad_records": sizes.sample.n_rejects,
            "characters": round(sizes.sample.characters / max(sizes.sample.n_read, 1)),
            "entries": round(whole.row_values, 1),  # of a row: different words, as a rule
        },
        features=sizes.n_features,
        clusters={"n_clusters": whole.n_clusters, "asked": inputs.job.method.n_clusters},
        answers={"pairs": sizes.n_pairs, "documents": sizes.n_linked},
        memory={
            "rows": sizes.facts.nbytes,
            "rows_stay": bool(kept),
            "centroids": 8 * sizes.dense,
            "largest_task": worst.total,
            "largest_task_is": str(worst),
            "driver": asked.driver_bytes,
            "worker": asked.worker_bytes,
        },
        store={
            "read": sizes.sample.n_bytes,
            "written": round(written[0] + written[1] * sizes.n_documents) + 8 * sizes.dense,
            "to_a_worker_each_iteration": 0 if alone else 8 * sizes.dense,
        },
        seconds={name: round(value, 2) for name, value in groups.items()},
        total=round(asked.seconds, 2),
        range=(
            round(asked.seconds - per_iteration / 2, 2), round(asked.seconds + per_iteration, 2)
        ),
        fit={
            "iterations": times.n_iterations,
            "iterations_rehearsed": whole.n_iterations,
            "rounds": times.n_rounds,
            "parts": {
                step.name: round(step.seconds(where.workers, rehearsed), 2)
                for step in steps if step.name in GROUPS["fit"]
            },
        },
        by_workers=by_workers,
        bound_by=max(groups, key=lambda name: groups[name]),
        assumed=list(_assumed(inputs, where, sizes, rehearsed)),
        problems=problems,
        rehearsal_seconds=round(spent[1], 2),
        exit_code=MemoryPlanError.exit_code if problems else 0,
    )  # fmt: skip


def _n_workers() -> int:
    client = active_client()
    assert client is not None
    return len(client.nthreads())


def grouped(steps: Sequence[StepTime], workers: int, rehearsed: int) -> dict[str, float]:
    """Return the seconds of groups of steps, in the order of a run."""
    of = {name: group for group, names in GROUPS.items() for name in names}
    seconds = dict.fromkeys([*GROUPS, LAST_GROUP], 0.0)
    for step in steps:
        seconds[of.get(step.name, LAST_GROUP)] += step.seconds(workers, rehearsed)
    return {name: took for name, took in seconds.items() if took > 0}


def _under(
    workers: int, steps: Sequence[StepTime], memory: _Memory, where: Where, rehearsed: int
) -> Workers:
    """Return what a job takes under so many workers."""
    alone = where.way == "threads"
    seconds = sum(step.seconds(workers, rehearsed) for step in steps)
    hours = seconds / 3600 * (1 if alone else workers)
    return Workers(
        workers,
        round(seconds, 2),
        memory.driver(workers, alone=alone),
        0 if alone else memory.worker(workers),
        round(hours, 6),
        None if where.price is None else round(hours * where.price, 4),
    )


def problems_of(tasks: list[TaskMemory]) -> list[str]:
    """Return why a fit would be refused here."""
    try:
        check_memory(tasks)
    except MemoryPlanError as error:
        return [str(error)]
    return []


def _assumed(inputs: Inputs, where: Where, sizes: _Sizes, rehearsed: int) -> Iterator[str]:
    """Say what was not measured."""
    if inputs.job.method.n_clusters == AUTO:
        yield f"K is chosen on a sample: {sizes.settings.n_clusters} here, and may differ"
    if where.workers != rehearsed:
        yield (
            f"{where.workers} {where.way} are reckoned from {rehearsed} on this machine; what "
            "travels between machines is not in the time"
        )
    if sizes.n_documents > sizes.sample.n_documents:
        yield "the sample has more documents than were counted"
    yield "a first run: later ones read new files alone and begin with the last centroids"
    if any(one.file is None or "://" in one.file.url for one in inputs.segments):
        yield "reading of the store was measured on the sample; writing to it was not"
