"""From what rehearsals took to what all of a job takes: sizes, seconds by step, bytes.

What tasks of a fit need at most is what a fit itself plans with (`fit.preparation`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

from hmrf_dask.documents.batches import BATCH_BYTES
from hmrf_dask.documents.sources import BATCH_ROWS
from hmrf_dask.estimators.classes import ESTIMATORS
from hmrf_dask.fit.preparation import ROW_TERMS, TaskMemory, icm_task, plan_tasks, table_task
from hmrf_dask.fit.starts import IN_PARALLEL, pool_work
from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.plan_sample import DocumentSample
from hmrf_dask.jobs.rehearsal import BEGINNING, ENDING, STARTS, SURVEY, Rehearsal
from hmrf_dask.kernels.exact import exact_zero
from hmrf_dask.tasks.model import Settings
from hmrf_dask.tasks.partitions import Facts
from hmrf_dask.tasks.start_sample import start_sample_size

ITERATION, ROUND = "iterations", "refinement"
ONCE = "what a process does once"


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

    @staticmethod
    def of(inputs: Inputs, sample: DocumentSample, runs: Runs, n_pairs: int, named: int) -> Sizes:
        """Return the sizes, features as more documents bring more of them."""
        few, whole, part = runs[:3]
        n_all = max(sample.n_documents, whole.n_documents)
        settings = _settings_of(inputs, whole.n_clusters)
        facts = _facts_of(sample, whole, n_all)
        seen = [(run.n_documents, run.n_features) for run in (few, part, whole)]
        width = features_of(seen, n_all)
        return Sizes(sample, settings, n_all, width, n_pairs=n_pairs, n_linked=named, facts=facts)

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
        return grown(part.labelling, whole.labelling, (part.n_documents, whole.n_documents))[1]

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
class Memory:
    """The bytes of processes: as rehearsed, and what more documents and features add."""

    whole: Rehearsal
    sizes: Sizes
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


def tasks_of(sizes: Sizes, *, refining: bool) -> list[TaskMemory]:
    """Return what the tasks of a fit need at most, by the arithmetic that a fit refuses by."""
    settings = sizes.settings
    tasks = plan_tasks(
        sizes.facts, settings, sizes.n_features, pairs=None, refining=refining,
        refining_starts=False,
    )  # fmt: skip
    if sizes.n_pairs:
        tasks.append(icm_task(sizes.n_linked, sizes.n_pairs, settings))
    return tasks
