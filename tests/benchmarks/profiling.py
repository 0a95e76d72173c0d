"""Where the CPU time of a whole fit goes, by phase: a profile of all its threads.

Python reports every call and return in every thread; the thread's CPU time between two of them
belongs to the innermost function of hmrf_dask that is running: what it calls elsewhere (compiled
kernels, numpy, Parquet) is its own. Time of Dask's threads outside our functions is Dask's.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import dask

import hmrf_dask
from tests.benchmarks.corpora import first_centroids
from tests.benchmarks.iterations import warm_up
from tests.benchmarks.measuring import CORES, Bench, Figure, threads, timed
from tests.benchmarks.rows_fits import ours

PACKAGE = str(Path(hmrf_dask.__file__).parent) + "/"
OUTSIDE = "dask"  # of a thread in which none of our functions runs
# The first that a function's name holds says its phase; names are module.function.
PHASES = (
    ("survey of the input", ("fit.preparation", "tasks.survey", "rows.", "corpus.", "estimators.",
                             "fit.problem", "fit.fitting", "check_workers")),
    ("E-step: nearest centroids", ("nearest", "kernels.products", "kernels.hamerly",
                                   "partitions.assign")),
    ("terms of rows", (".terms", "moments")),
    ("table of centroids", (".table", "kernels.low_precision")),
    ("weights", ("fit.m_step.learn", "tasks.gradients", "kernels.gradients", "pair_gradient",
                 "weighted_squares")),
    ("sums of rows that moved", (".sum_moves", ".add_moves", "kernels.sums", "kernels.by_cluster",
                                 "add_sums", "add_dense")),
    ("J", ("distances", "kernels.linear_energy", "kernels.exact", "tasks.model",
           "measure", "energy")),
    ("centroids", ("centroids", "kernels.means", "real_sums", "filled")),
    ("the loop", ("kernels.arrays", "kernels.threads", "kernels.memory")),
    ("pairs and ICM", ("tasks.icm", "tasks.rounds", "tasks.hard_pairs", "tasks.linked_costs",
                       "fit.rounds", "linked.", "constraints.", "kernels.")),
    ("labels and commits", ("checkpoints.", "storage.", "fit.journal")),
    ("Dask", (OUTSIDE, "flow.")),
    ("the loop", ("",)),
)  # fmt: skip


class Profile:
    """CPU seconds of all threads, by function of hmrf_dask."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._names: dict[CodeType, str | None] = {}
        self._lock = threading.Lock()
        self._local = threading.local()

    def phases(self) -> dict[str, float]:
        """Return seconds by phase, in the order of `PHASES`."""
        found = dict.fromkeys((name for name, _ in PHASES), 0.0)
        for name, seconds in self.seconds.items():
            found[phase_of(name)] += seconds
        return found

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take a call or a return down."""
        if event not in ("call", "return"):
            return
        now, local = time.thread_time(), self._local
        if not hasattr(local, "stack"):
            local.stack, local.since = [], now
        stack = local.stack
        with self._lock:
            self.seconds[stack[-1] if stack else OUTSIDE] += now - local.since
        local.since = now
        if event == "call":
            stack.append(self._name(frame.f_code) or (stack[-1] if stack else OUTSIDE))
        elif stack:  # else the frame was there before the profile
            stack.pop()

    def _name(self, code: CodeType) -> str | None:
        if code not in self._names:
            path = code.co_filename
            module = path.removeprefix(PACKAGE).removesuffix(".py").replace("/", ".")
            ours = path.startswith(PACKAGE)
            self._names[code] = f"{module}.{code.co_qualname}" if ours else None
        return self._names[code]


def phase_of(name: str) -> str:
    """Return the phase of a function."""
    return next(phase for phase, parts in PHASES if any(part in name for part in parts))


@contextmanager
def profiled() -> Iterator[Profile]:
    """Profile this thread and a new pool of threads that Dask is given."""
    profile = Profile()
    threading.setprofile(profile)
    with ThreadPoolExecutor(CORES) as pool, dask.config.set(pool=pool):
        sys.setprofile(profile)
        try:
            yield profile
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]  # typeshed wants a function


def profile(bench: Bench) -> list[Figure]:
    """Profile whole fits of the sizes of the row `fit`, without the peer."""
    return [_profile(bench, K, *sizes) for K, sizes in bench.sizes.fits.items()]


def _profile(bench: Bench, n_clusters: int, n_rows: int, max_iter: int) -> Figure:
    bench.say(f"profile, K = {n_clusters}, {n_rows:,} rows, {max_iter} iterations")
    X = bench.rows(n_rows).X
    init = first_centroids(X, n_clusters)
    with threads(CORES):
        warm_up(X, n_clusters)
        plain = timed(lambda: ours(X, init, max_iter))
        with profiled() as found:
            run = timed(lambda: ours(X, init, max_iter))
    total = sum(found.seconds.values())
    largest = sorted(found.seconds.items(), key=lambda one: -one[1])[:12]
    return Figure(
        f"profile-{n_clusters}", f"where the CPU time of a whole fit goes, K = {n_clusters}",
        (total,), "s", "less", raw={"profiled": [run.seconds()], "plain": [plain.seconds()]},
        facts={
            "rows": n_rows, "n_iter": int(run.value.n_iter_), "cores": CORES,
            "phases_percent": {
                name: round(100 * seconds / total, 1) for name, seconds in found.phases().items()
            },
            "functions_percent": {
                name: round(100 * seconds / total, 1) for name, seconds in largest
            },
        },
    )  # fmt: skip
