"""Fits through the public API, their iterations timed between commits."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hmrf_dask.fit.journal import Journal
from tests.benchmarks.corpora import first_centroids
from tests.benchmarks.measuring import Timed, timed


@dataclass(frozen=True)
class Mark:
    """When an iteration was committed."""

    phase: str
    iteration: int
    moved: int
    wall: float
    cpu: float
    step: str  # the last that lowered J, "" where none did


@contextmanager
def watched_commits() -> Iterator[list[Mark]]:
    """Take down when each iteration of the fits inside is committed."""
    marks: list[Mark] = []
    keep = Journal.keep

    def watched(journal: Journal, phase: str, iteration: int, turn: Any) -> None:
        keep(journal, phase, iteration, turn)
        now = time.perf_counter(), time.process_time()
        step = turn.steps[-1][0] if turn.steps else ""
        marks.append(Mark(phase, iteration, turn.moved, *now, step))

    Journal.keep = watched  # type: ignore[method-assign]
    try:
        yield marks
    finally:
        Journal.keep = keep  # type: ignore[method-assign]


@dataclass(frozen=True)
class Watched:
    """A fit and its iterations.

    Attributes
    ----------
    fit : Timed
        All of it; its value is the estimator.
    iterations : list of Timed
        Those that have an E-step and an M-step; the value is how many rows moved.
    marks : list of Mark
        All commits.
    """

    fit: Timed
    iterations: list[Timed]
    marks: list[Mark]

    @property
    def iteration(self) -> Timed:
        """The median iteration."""
        return median_of(self.iterations)


def median_of(found: list[Timed]) -> Timed:
    """Return the medians of the times of some iterations, and of how many rows moved."""
    return Timed(
        statistics.median(one.wall for one in found),
        statistics.median(one.cpu for one in found),
        int(statistics.median(one.value for one in found)),
    )


def watched_fit(
    X: Any,
    n_clusters: int,
    max_iter: int,
    *,
    shape: Any = None,
    pairs: dict[str, Any] | None = None,
    run_dir: str | None = None,
    **parameters: Any,
) -> Watched:
    """Fit from random documents without refinement, and without a tolerance.

    `X` may be a corpus or a path: then `shape` is a matrix to draw first centroids from.
    """
    from hmrf_dask import HMRFKMeans

    init = first_centroids(X if shape is None else shape, n_clusters)
    settings = {"n_init": 1, "tol": 0.0, "refine": False, "random_state": 0} | parameters
    model = HMRFKMeans(n_clusters, init=init, max_iter=max_iter, **settings)
    with watched_commits() as marks:
        fit = timed(lambda: model.fit(X, run_dir=run_dir, **(pairs or {})))
    return Watched(fit, iterations_of(marks), marks)


def iterations_of(marks: list[Mark]) -> list[Timed]:
    """Return the whole iterations between commits.

    The first of a fit has no E-step (`begin` did it), and in the one after it nearly all rows move:
    both are left out, and so is the last one, where nothing moves and there is no M-step. A fit
    that has no others gives what it has.
    """
    between = [
        (after, Timed(after.wall - before.wall, after.cpu - before.cpu, after.moved))
        for before, after in pairwise(marks)
        if before.phase == after.phase == "fit"
    ]
    if not between:
        raise RuntimeError(
            f"a fit whose iterations are timed must have some, got {len(marks)} commits: give it "
            "more rows or another start"
        )
    whole = [found for mark, found in between if mark.iteration > 2 and mark.moved]
    return whole or [between[-1][1]]


def warm_up(X: Any, n_clusters: int, **parameters: Any) -> None:
    """Fit a few rows, so that kernels are compiled or loaded before a clock runs."""
    few = X[: max(5 * n_clusters, 200)]
    pairs = {}
    if parameters.pop("with_pairs", False):
        rows = np.arange(0, 40)
        pairs = {"must_link": rows[:20].reshape(-1, 2), "cannot_link": rows[20:].reshape(-1, 2)}
    watched_fit(few, n_clusters, 4, pairs=pairs, **parameters)
