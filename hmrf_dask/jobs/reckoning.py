"""From what rehearsals took to what all of a job takes: sizes, seconds by step, bytes.

What tasks of a fit need at most is what a fit itself plans with (`fit.preparation`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

from hmrf_dask.distortions import make_distortion
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.documents.batches import BATCH_BYTES
from hmrf_dask.documents.sources import BATCH_ROWS
from hmrf_dask.estimators.classes import ESTIMATORS
from hmrf_dask.fit.candidates import refines_all
from hmrf_dask.fit.owners import AT_A_TIME, n_owners
from hmrf_dask.fit.preparation import (
    HELD,
    ROW_TERMS,
    SLICE_ROWS,
    TaskMemory,
    icm_task,
    plan_tasks,
    table_task,
    with_owners,
)
from hmrf_dask.fit.starts import IN_PARALLEL, pool_work
from hmrf_dask.fit.suggestion import SAMPLE_ROWS as CHOICE_ROWS
from hmrf_dask.flow.dataflow import Dataflow
from hmrf_dask.flow.places import TASKS
from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.packs import packed
from hmrf_dask.jobs.plan_sample import DocumentSample
from hmrf_dask.jobs.rehearsal import BEGINNING, ENDING, STARTS, SURVEY, Rehearsal
from hmrf_dask.kernels.exact import exact_zero
from hmrf_dask.report.survey import MOST_SAMPLED
from hmrf_dask.tasks.model import Settings
from hmrf_dask.tasks.owners import Process
from hmrf_dask.tasks.partitions import Facts
from hmrf_dask.tasks.start_sample import start_sample_size
from hmrf_dask.text.files import Place

ITERATION, ROUND = "iterations", "refinement"
CHOOSE, PAGE = "choose K", "write the report page"  # steps that work on a sample
READING = ("count words", "read embeddings", "embed texts")  # steps of a task a pack
ANY = 10**6  # more workers than there are
ONCE = "what a process does once"


@dataclass(frozen=True)
class StepTime:
    """The seconds of a step: a part that one process does, and one that is shared."""

    name: str
    alone: float
    shared: float = 0.0  # under as many workers as the rehearsal had
    most: int = ANY  # workers that can share it

    def seconds(self, workers: int, rehearsed: int) -> float:
        """Return its seconds under so many workers.

        Examples
        --------
        >>> StepTime("count words", 1.0, 8.0).seconds(4, rehearsed=2)
        5.0
        """
        return self.alone + self.shared * min(rehearsed, self.most) / min(workers, self.most)


class Runs(NamedTuple):
    """The rehearsals: a few documents, the whole sample, a part of it, the same with answers."""

    few: Rehearsal
    whole: Rehearsal
    part: Rehearsal
    answered: Rehearsal
    n_iterations: int  # of a fit that does not begin where a pool ended on the same rows


# ---- sizes of the whole


@dataclass(frozen=True)
class Sizes:
    """What there is of everything."""

    sample: DocumentSample
    settings: Settings
    n_documents: int
    n_features: int
    n_pairs: int
    n_linked: int  # documents that answers name
    facts: Facts
    distortion: Distortion
    n_packs: int  # of documents, each read by one task
    together: bool = True  # whether worker processes are on one machine

    @staticmethod
    def of(
        inputs: Inputs, sample: DocumentSample, runs: Runs, given: tuple[int, int], *,
        together: bool,
    ) -> Sizes:  # fmt: skip
        """Return the sizes, features as more documents bring more of them.

        `given` are the numbers of pairs, and of the documents that these name.
        """
        few, whole, part = runs[:3]
        n_pairs, n_linked = given
        n_all = max(sample.n_documents, whole.n_documents)
        settings, distortion = method_of(inputs, whole.n_clusters)
        facts = _facts_of(sample, whole, n_all)
        seen = [(run.n_documents, run.n_features) for run in (few, part, whole)]
        width = features_of(seen, n_all)
        return Sizes(
            sample, settings, n_all, width, n_pairs=n_pairs, n_linked=n_linked, facts=facts,
            distortion=distortion, n_packs=_n_packs(inputs), together=together,
        )  # fmt: skip

    @property
    def dense(self) -> int:
        """K × d."""
        return self.settings.n_clusters * self.n_features

    def owners(self, n_workers: int, n_features: int | None = None) -> int:
        """Return how many owners centroids have on so many worker processes, as a fit decides."""
        width = self.n_features if n_features is None else n_features
        workplaces = Workplaces(n_workers, together=self.together)
        return n_owners(workplaces, self.settings, self.distortion, width)


def _n_packs(inputs: Inputs) -> int:
    """Return in how many packs a first run reads documents."""
    files = [part for segment in inputs.segments for part in segment.parts()]
    return len(packed(files, {}, Place(inputs.output), stop=False))


class Workplaces(Dataflow):
    """So many worker processes, on one machine or each on its own, for what a fit decides by."""

    def __init__(self, number: int, *, together: bool) -> None:
        self._number, self._together = number, together

    def workers(self) -> list[str]:
        """Return their names."""
        return [str(number) for number in range(self._number)]

    def lazy_at(
        self,
        place: str,
        function: Callable[..., Any],  # noqa: ARG002
        *arguments: Any,  # noqa: ARG002
    ) -> Process:
        """Return where a process is: nothing else is asked of it."""
        return Process("here" if self._together else place, int(place), 1)

    @property
    def n_workers(self) -> int:
        """How many there are."""
        return self._number


def method_of(inputs: Inputs, n_clusters: int) -> tuple[Settings, Distortion]:
    """Return the settings and the distortion of a job with so many clusters."""
    method = inputs.job.method
    model = ESTIMATORS[method.name](**{**method.parameters, "n_clusters": n_clusters})
    distortion = make_distortion(method.value_of("distortion") or "cosine")
    return model._settings(None, None)[0], distortion


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
    growth = power * far if fall < 1e-6 else power * (1.0 - math.exp(-fall * far)) / fall
    return round(last[1] * math.exp(growth))


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


def grown(part: float, whole: float, sizes: tuple[int, int]) -> tuple[float, float]:
    """Return the fixed seconds of a step, and those of a document, from two rehearsals.

    Examples
    --------
    >>> grown(1.5, 2.0, (1000, 2000))
    (1.0, 0.0005)
    """
    small, large = sizes
    if large <= small:
        return 0.0, whole / large
    slope = min(max((whole - part) / (large - small), 0.0), whole / large)
    return whole - slope * large, slope


@dataclass(frozen=True)
class Times:
    """From three rehearsals to the steps of the whole."""

    runs: Runs
    sizes: Sizes
    once: float  # seconds before the first step
    kept: bool  # whether rows stay in memory
    rehearsed: int  # threads or worker processes of the rehearsals
    alone: bool  # whether they are threads

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
        return grown(part.steps.get(name, 0.0), self.whole.steps[name], sizes)

    def _linear(self) -> Iterator[StepTime]:
        if CHOOSE in self.runs.few.steps:
            yield StepTime(CHOOSE, 0.0, self._choosing(), most=IN_PARALLEL)
        for name in self.whole.steps:
            if name in (STARTS, BEGINNING, ENDING):
                continue
            alone, slope = self._line(name)
            n_documents = self.sizes.n_documents
            if name == PAGE and self.runs.part.n_documents < MOST_SAMPLED:
                n_documents = min(n_documents, max(self.whole.n_documents, MOST_SAMPLED))
            shared, most = slope * n_documents, ANY
            if name in READING:  # rehearsals have a file for every worker
                most = self.sizes.n_packs
                shared *= self.rehearsed / min(self.rehearsed, most)
            yield StepTime(name, alone, shared, most)

    def _choosing(self) -> float:
        """Return the seconds in which K is chosen, on a sample that has more rows than `few`."""
        few = self.runs.few
        n_rows = min(self.sizes.n_documents, CHOICE_ROWS)
        took = max(0.0, few.steps[CHOOSE] - few.compiling)  # it is the first step with kernels
        return took * n_rows / min(few.n_documents, CHOICE_ROWS)

    @property
    def _labelling(self) -> float:
        """Seconds to give one row more its nearest cluster, of all workers together."""
        part, whole = self.runs.part, self.whole
        return grown(part.labelling, whole.labelling, (part.n_documents, whole.n_documents))[1]

    def _fit(self) -> Iterator[StepTime]:
        n_all, n_whole, steps = self.sizes.n_documents, self.whole.n_documents, self.whole.steps
        more = n_all - n_whole
        sample = self._start_rows(n_all) / self._start_rows(n_whole)
        begun = min(self._labelling * n_whole, steps[BEGINNING])
        labelled = begun + self._labelling * more + self._read_again()
        if steps[STARTS]:
            yield StepTime(STARTS, 0.0, self._starts(), most=IN_PARALLEL)
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

    def _start_rows(self, n_documents: int) -> int:
        return start_sample_size(n_documents, self.sizes.settings)

    def _starts(self) -> float:
        """Return the seconds of all starts: each iteration passes over rows, and K × d numbers.

        Which of the two takes how much was not measured: the middle is between both.
        """
        sizes, whole = self.sizes, self.whole
        rows = self._start_rows(sizes.n_documents) / self._start_rows(whole.n_documents)
        known = sizes.n_linked if whole.n_answered else 0
        work = self._pool_work(sizes.n_documents, sizes.n_linked)
        work /= self._pool_work(whole.n_documents, known)
        return whole.steps[STARTS] * work * (rows + sizes.n_features / whole.n_features) / 2

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
        runs = [run for run in self._alike() if getattr(run, which) > 0]
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

    def _alike(self) -> list[Rehearsal]:
        """Return the rehearsals whose centroids had owners if those of all documents have.

        An iteration of the whole sample is that of its repetition, which has them, if it was run.
        """
        few, whole, part = self.runs[:3]
        n_workers = 0 if self.alone else self.rehearsed
        owned = [self.sizes.owners(n_workers, n) for n in (few.n_features, None)]
        return [few, whole, part] if bool(owned[0]) == bool(owned[1]) else [whole, part]

    def _read_again(self) -> float:
        """Return the seconds in which rows are read that do not stay in memory."""
        return 0.0 if self.kept else self._line(SURVEY)[1] * self.sizes.n_documents

    def _first_time(self) -> float:
        """Return by how much the first rehearsal took longer than one that follows would.

        Kernels that it compiled are there for a run.
        """
        few, seconds = self.runs.few, 0.0
        for name, took in few.steps.items():
            if name not in self.whole.steps or name == STARTS:
                continue
            alone, slope = self._line(name)
            seconds += max(0.0, took - alone - slope * few.n_documents)
        return max(0.0, seconds - max(0.0, few.compiling - few.steps.get(CHOOSE, 0.0)))


# ---- memory


@dataclass(frozen=True)
class Memory:
    """The bytes of processes: as rehearsed, and what more documents and features add."""

    whole: Rehearsal
    sizes: Sizes
    rehearsed: int
    kept: bool

    def _added(self, workers: int) -> int:
        """Return what rows add in a process that has its share of them."""
        sizes, whole = self.sizes, self.whole
        before = whole.n_documents / self.rehearsed
        more = max(0.0, sizes.n_documents / workers - before)
        rows = more * ((whole.row_bytes if self.kept else 0.0) + ROW_TERMS)
        return round(rows)

    def _arrays(self, n_features: int) -> int:
        """Return the bytes of centroids, their table and sums where they are all in one process."""
        return table_task(self.sizes.settings.n_clusters, n_features).total

    def driver(self, workers: int, *, alone: bool) -> int:
        """Return the peak of the driver, which on threads has all rows."""
        whole = self.whole
        if alone:
            own = replace(self, rehearsed=1)._added(1)
            own += max(0, self._arrays(self.sizes.n_features) - self._arrays(whole.n_features))
            threads = max(0, workers - self.rehearsed)
            return whole.driver_peak + own + threads * self.sizes.facts.largest_block
        now = self._of_driver(self.sizes.n_features, workers)
        return whole.driver_peak + max(0, now - self._of_driver(whole.n_features, self.rehearsed))

    def _of_driver(self, n_features: int, workers: int) -> int:
        """Return the bytes of centroids in the driver of workers: with owners a few at a time."""
        if self.sizes.owners(workers, n_features):
            return min(8 * self.sizes.settings.n_clusters * n_features, AT_A_TIME)
        return self._arrays(n_features)

    def worker(self, workers: int) -> int:
        """Return the peak of each worker process."""
        now = self._of_worker(self.sizes.n_features, workers)
        here = replace(self, sizes=replace(self.sizes, together=True))
        before = here._of_worker(self.whole.n_features, self.rehearsed)
        return self.whole.worker_peak + self._added(workers) + max(0, now - before)

    def _of_worker(self, n_features: int, workers: int) -> int:
        """Return the bytes of centroids in a worker: all, and what it holds as an owner of some."""
        owners = self.sizes.owners(workers, n_features)
        held = HELD * 8 * self.sizes.settings.n_clusters * (n_features + 1)
        return self._arrays(n_features) + (held // owners if owners else 0)


def rows_read(sizes: Sizes, workers: int) -> int:
    """Return how many rows a task reads at most where these do not stay in memory."""
    each = math.ceil(sizes.n_documents / (TASKS * workers))
    return max(sizes.facts.longest_block, min(each, SLICE_ROWS))


def tasks_of(sizes: Sizes, n_workers: int, *, refining: bool, reading: int = 0) -> list[TaskMemory]:
    """Return what the tasks of a fit need at most, by the arithmetic that a fit refuses by.

    It runs on so many worker processes, or with 0 on threads; a task is `reading` so many rows.
    """
    settings, owners = sizes.settings, sizes.owners(n_workers)
    linked = icm_task(sizes.n_linked, sizes.n_pairs, settings) if sizes.n_pairs else None
    start_rows = start_sample_size(sizes.n_documents, settings)
    tasks = plan_tasks(
        sizes.facts, settings, sizes.n_features, linked=linked, refining=refining,
        refining_starts=refines_all(settings, sizes.distortion, start_rows), reading=reading,
    )  # fmt: skip
    return with_owners(tasks, owners, n_workers) if owners else tasks


def traffic_of(sizes: Sizes, n_workers: int) -> dict[str, int]:
    """Return the most bytes of centroids that travel in an iteration; only those that changed do.

    Owners send their own to all workers, but for those that share their memory; without owners the
    driver sends all of them.

    Returns
    -------
    dict
        ``owners``, ``to_a_worker`` and ``from_the_driver``.
    """
    owners, every = sizes.owners(n_workers), 8 * sizes.dense if n_workers else 0
    if not owners:
        return {"owners": 0, "to_a_worker": every, "from_the_driver": every * n_workers}
    own = every // owners if owners == n_workers else 0  # a worker without clusters gets all
    if sizes.together:
        own = every
    return {"owners": owners, "to_a_worker": every - own, "from_the_driver": 0}
