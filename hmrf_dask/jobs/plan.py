"""What a job will take: documents, memory, time and cost, from a sample of it that is rehearsed.

The job runs up to five times: over a few documents, which shows what a process does once, and K
where the job chooses it; over all of the sample and over a part of it, which shows what grows with
documents; over that part with answers and starts; and where there is time over all of the sample
again. What tasks need at most is what a fit itself plans with (`fit.preparation`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hmrf_dask.constraints.answer_rows import CANNOT, MUST
from hmrf_dask.distortions import make_distortion
from hmrf_dask.errors import InvalidInputError, MemoryPlanError, counted
from hmrf_dask.fit.owners import n_owners
from hmrf_dask.fit.preparation import TaskMemory, check_memory
from hmrf_dask.fit.refinement import refines
from hmrf_dask.fit.suggestion import SAMPLE_ROWS as CHOICE_ROWS
from hmrf_dask.flow.clients import active_client, having_owners, local_threads
from hmrf_dask.flow.cluster import memory_of_all
from hmrf_dask.jobs.answers import Given, read_answers
from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.job_file import Method
from hmrf_dask.jobs.plan_sample import DocumentSample, sample_of
from hmrf_dask.jobs.reckoning import (
    ITERATION,
    ONCE,
    ROUND,
    Memory,
    Runs,
    Sizes,
    StepTime,
    Times,
    Workplaces,
    features_of,
    grown,
    method_of,
    rows_read,
    tasks_of,
    traffic_of,
)
from hmrf_dask.jobs.rehearsal import (
    BEGINNING,
    ENDING,
    READY,
    STARTS,
    SURVEY,
    Rehearsal,
    Rehearsed,
    rehearse,
)
from hmrf_dask.parameters import AUTO, SEEDED
from hmrf_dask.progress import Tell, nothing
from hmrf_dask.report.survey import MOST_SAMPLED

SAMPLE = 50_000  # documents
SMALL = 5_000  # documents: up to so many are all rehearsed, of more at most half
FEW, PART = 500, 4  # documents of the first rehearsal; later ones have this part of the sample
CHOOSING = 1_000  # documents of the first one where the job chooses K: a run takes four times these
LONGEST = 15.0  # seconds of rehearsals, after the first one, after which none is repeated
SOME_ITERATIONS = 6  # of the first one
COMPILED = 0.5  # seconds: rehearsals that compiled kernels for so long say little of a run
FAR = 10  # times the documents that were rehearsed: of so many more the time is uncertain
WORKERS = (1, 2, 4, 8)
# Which steps of a run belong together for who reads a plan.
GROUPS: Mapping[str, Sequence[str]] = {
    "begin": ("begin", READY, ONCE),
    "read and count": ("read answers", "count words", "read embeddings", "embed texts"),
    "make rows": ("weigh words", "look for ids that come twice", "look up answers"),
    "choose K": ("choose K",),
    "fit": (SURVEY, STARTS, BEGINNING, ITERATION, ROUND, ENDING),
}
LAST_GROUP = "write results and report"


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
    traffic: dict[str, int]  # owners of centroids, and bytes of these in an iteration
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
    together: bool = True  # whether worker processes are on one machine
    asked: bool = False  # whether an option says how many workers


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
        runs = _rehearsed(asked, where, tell)
        spent = time.perf_counter() - began
    given_sizes = len(pairs.pairs), len(set(pairs.named()))
    sizes = Sizes.of(inputs, documents, runs, given_sizes, together=where.together)
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


def _rehearsed(asked: Rehearsed, where: Where, tell: Tell) -> Runs:
    """Return the rehearsals; of those that could be repeated the least time of each step."""
    method, sample = asked.inputs.job.method, asked.sample
    there, small = len(sample.records), _is_small(sample)
    if not small:
        there = min(there, max(SMALL, sample.n_documents // 2))
    n_few = min(there, _n_few(method, there))
    steps = iter([0, 1, 2, 3, 4, 4])

    def run(name: str, n_documents: int, **how: Any) -> Rehearsal:
        """Rehearse, and say so."""
        tell({"step": "rehearse", "done": next(steps), "of": 5})
        return rehearse(asked, name, n_documents, **how)

    single = _single_start(method)
    few = run("few", n_few, answered=small, **single, refine=False, max_iter=SOME_ITERATIONS)
    began = time.perf_counter()
    pool = _as_with_all(asked, few.n_clusters)
    whole = run("whole", there, answered=small, **pool)
    if whole.compiling >= COMPILED:
        whole = run("compiled", there, answered=small, **pool)
    n_part = max(there // PART, min(there // 2, MOST_SAMPLED), n_few)
    same = {"n_clusters": few.n_clusters, "refine": whole.n_rounds > 0}
    same |= single
    owners = _n_owners(asked, where, (few, whole))
    with having_owners(owners):
        part = run("part", n_part, **same)
        answered = run("answered", n_part, answered=True, **same)
        part = part.least(answered)
        n_iterations = whole.n_iterations
        if time.perf_counter() - began < LONGEST:
            again = run("again", there, **same | {"refine": False})
            whole = whole.least(again)
            # Of more iterations most are like most of a large fit; its centroids have owners.
            if again.n_iterations > n_iterations or owners:
                whole = replace(whole, iteration=again.iteration)
            n_iterations = (n_iterations + again.n_iterations + 1) // 2
    return Runs(few, whole, part, answered, n_iterations)


def _n_owners(asked: Rehearsed, where: Where, runs: Sequence[Rehearsal]) -> int:
    """Return how many owners centroids would have here if these were of all documents."""
    seen = [(run.n_documents, run.n_features) for run in runs]
    width = features_of(seen, asked.sample.n_documents)
    settings, distortion = method_of(asked.inputs, runs[-1].n_clusters)
    number = 0 if where.way == "threads" else _n_workers()
    return n_owners(Workplaces(number, together=where.together), settings, distortion, width)


def _n_few(method: Method, there: int) -> int:
    """Return the documents of the first rehearsal, more than clusters."""
    if method.n_clusters == AUTO:
        return CHOOSING
    if there < method.n_clusters:
        raise InvalidInputError(
            f"a plan must have more documents than clusters, got {there} for {method.n_clusters}; "
            "read more by --sample"
        )
    return max(FEW, 2 * method.n_clusters)


def _single_start(method: Method) -> dict[str, Any]:
    """Return parameters of a method with one start."""
    seeded = method.name in SEEDED  # without answers there are no seeds
    single = {"name": "KMeans"} if seeded else {}
    return {**single, "n_init": 1, "init": "k-means++"}


def _as_with_all(asked: Rehearsed, n_clusters: int) -> dict[str, Any]:
    """Return the parameters under which a sample is refined where all documents would be."""
    method, known = asked.inputs.job.method, {"n_clusters": n_clusters}
    if method.name in SEEDED:
        return {"name": "KMeans", **known}
    distortion = make_distortion(method.value_of("distortion") or "cosine")
    n_documents = asked.sample.n_documents
    refined = refines(method.value_of("refine"), distortion, n_documents, n_clusters)
    return {"refine": refined, **known}


# ---- the plan


def _planned(
    inputs: Inputs, where: Where, sizes: Sizes, runs: Runs, spent: tuple[float, float]
) -> Plan:
    whole, alone = runs.whole, where.way == "threads"
    rehearsed = local_threads() if alone else _n_workers()
    memory_there = memory_of_all() * (1 if alone else where.workers / rehearsed)
    kept = sizes.facts.nbytes <= memory_there // 2
    times = Times(runs, sizes, spent[0], kept=kept, rehearsed=rehearsed, alone=alone)
    memory = Memory(whole, sizes, rehearsed, kept)
    steps = times.steps()
    by_workers = [
        _under(n, steps, memory, where, rehearsed) for n in sorted({*WORKERS, where.workers})
    ]
    asked = next(one for one in by_workers if one.workers == where.workers)
    groups = grouped(steps, where.workers, rehearsed)
    n_workers = 0 if alone else where.workers
    reading = 0 if kept else rows_read(sizes, where.workers)
    tasks = tasks_of(sizes, n_workers, refining=whole.n_rounds > 0, reading=reading)
    problems = problems_of(tasks)
    looped = sum(
        step.seconds(where.workers, rehearsed) for step in steps if step.name in (ITERATION, ROUND)
    )
    return Plan(
        way=where.way,
        workers=where.workers,
        rehearsed_workers=rehearsed,
        documents=_documents(sizes, whole),
        features=sizes.n_features,
        clusters={
            "n_clusters": whole.n_clusters,
            "asked": inputs.job.method.n_clusters,
            "chosen_on": runs.few.n_documents,  # where they are not a number
        },
        answers={"pairs": sizes.n_pairs, "documents": sizes.n_linked},
        memory=_memory(sizes, tasks, asked, kept=kept),
        store=_store(sizes, runs),
        traffic=traffic_of(sizes, n_workers),
        seconds={name: round(value, 2) for name, value in groups.items()},
        total=asked.seconds,
        range=(round(asked.seconds - looped / 2, 2), round(asked.seconds + looped, 2)),
        fit={
            "iterations": times.n_iterations,
            "iterations_rehearsed": whole.n_iterations,
            "rounds": times.n_rounds,
            "parts": {
                step.name: round(step.seconds(where.workers, rehearsed), 2)
                for step in steps
                if step.name in GROUPS["fit"]
            },
        },
        by_workers=by_workers,
        bound_by=max(groups, key=lambda name: groups[name]),
        assumed=[*_assumed(inputs, where, sizes, runs, rehearsed), *_doubts(runs, sizes)],
        problems=problems,
        rehearsal_seconds=round(spent[1], 2),
        exit_code=MemoryPlanError.exit_code if problems else 0,
    )


def _documents(sizes: Sizes, whole: Rehearsal) -> dict[str, Any]:
    sample = sizes.sample
    return {
        "estimated": sizes.n_documents,
        "plus_or_minus": round(sample.error),
        "files": sample.n_files,
        "bytes": sample.n_bytes,
        "read": sample.n_read,
        "bytes_read": sample.bytes_read,
        "rehearsed": whole.n_documents,
        "bad_records": sample.n_rejects,
        "characters": round(sample.characters / max(sample.n_read, 1)),
        "entries": round(whole.row_values, 1),  # of a row: different words, as a rule
    }


def _memory(
    sizes: Sizes, tasks: Sequence[TaskMemory], asked: Workers, *, kept: bool
) -> dict[str, Any]:
    worst = max(tasks, key=lambda task: task.total)
    return {
        "rows": sizes.facts.nbytes,
        "rows_stay": bool(kept),
        "centroids": 8 * sizes.dense,
        "largest_task": worst.total,
        "largest_task_is": str(worst),
        "driver": asked.driver_bytes,
        "worker": asked.worker_bytes,
    }


def _store(sizes: Sizes, runs: Runs) -> dict[str, int]:
    part, whole = runs.part, runs.whole
    fixed, each = grown(part.written, whole.written, (part.n_documents, whole.n_documents))
    return {
        "read": sizes.sample.n_bytes,
        "written": round(fixed + each * sizes.n_documents) + 8 * sizes.dense,
    }


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
    workers: int, steps: Sequence[StepTime], memory: Memory, where: Where, rehearsed: int
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


def _doubts(runs: Runs, sizes: Sizes) -> Iterator[str]:
    """Say what makes the measured times uncertain."""
    first, times = runs.few, sizes.n_documents / runs.whole.n_documents
    if times > FAR:
        yield (
            f"the time of {runs.whole.n_documents:,} documents was measured, all are {times:.0f} "
            "times as many, and so are its errors: a larger --sample is surer, and takes longer"
        )
    if first.compiling >= COMPILED:
        yield (
            f"kernels were compiled for {first.compiling:.0f} s, once on a machine: a run here "
            "finds them, one elsewhere may not"
        )


def _assumed(
    inputs: Inputs, where: Where, sizes: Sizes, runs: Runs, rehearsed: int
) -> Iterator[str]:
    """Say what was not measured."""
    chosen_on = runs.few.n_documents
    if inputs.job.method.n_clusters == AUTO and sizes.n_documents > chosen_on:
        yield (
            f"K was chosen on {chosen_on:,} documents: "
            f"{sizes.settings.n_clusters}; a run chooses on {min(CHOICE_ROWS, sizes.n_documents):,}"
            ", may take another, and longer; `hmrf-dask suggest-k` says what it takes"
        )
    unit = {"threads": "threads", "processes": "workers"}[where.way]
    if where.workers != rehearsed:
        yield (
            f"{where.workers} {unit} are reckoned from {rehearsed} on this machine; what "
            "travels between machines is not in the time"
        )
    if where.workers > sizes.n_packs and sizes.n_documents > SMALL:
        yield (
            f"documents are read in {counted(sizes.n_packs, 'task')}, one a file, or a pack of "
            "small ones (of Parquet and plain JSON Lines one for 64 MiB or more), so more workers "
            "do not read them sooner"
        )
    cluster = inputs.job.cluster
    if not where.asked and (cluster.stays or cluster.cluster_class):
        are = "is" if where.workers == 1 else "each are"
        yield (
            f"the job's cluster was not asked: {counted(where.workers, 'worker')} of one thread "
            f"{are} planned for (--workers says another number; count the threads of all)"
        )
    if sizes.n_documents > sizes.sample.n_documents:
        yield "the sample has more documents than were counted"
    yield "a first run: later ones read new files alone and begin with the last centroids"
    if any(one.file is None or "://" in one.file.url for one in inputs.segments):
        yield "reading of the store was measured on the sample; writing to it was not"
