"""How a figure is measured: works in turn, wall and CPU time, ratios by pair, the machine."""

from __future__ import annotations

import gc
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from tests.benchmarks import corpora
from tests.benchmarks.sizes import Sizes

CORES = 2
PACKAGES = (
    "hmrf-dask",
    "dask",
    "distributed",
    "numpy",
    "scipy",
    "numba",
    "llvmlite",
    "scikit-learn",
    "dask-ml",
    "pyarrow",
    "matplotlib",
)
Raw = dict[str, list[dict[str, float]]]


@dataclass(frozen=True)
class Timed:
    """One run of a work: seconds on the clock, seconds of all threads, and what it returned."""

    wall: float
    cpu: float
    value: Any = None

    def seconds(self) -> dict[str, float]:
        """Return the times as bench.json keeps them."""
        return {"wall": round(self.wall, 6), "cpu": round(self.cpu, 6)}


@dataclass(frozen=True)
class Figure:
    """One figure of the table, or of what is only reported.

    Attributes
    ----------
    name : str
        "estep-20": the row, then which of its figures.
    what : str
        In words, for a reader who does not know the issue.
    values : tuple of float
        One of each repeat; the figure is their median. Empty when skipped.
    unit : {"x", "%", "s", ""}
    better : {"more", "less"}
    must, aim : float, optional
        Without them the figure is reported only.
    raw : dict of str to list of {"wall", "cpu"}
        Every time that was taken.
    facts : dict of str to JSON values
        Sizes, checks, and figures that explain the main one.
    skipped : str
        Why there is none.
    """

    name: str
    what: str
    values: tuple[float, ...] = ()
    unit: Literal["x", "%", "s", ""] = "x"
    better: Literal["more", "less"] = "more"
    must: float | None = None
    aim: float | None = None
    raw: Raw = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""

    @property
    def median(self) -> float:
        """The figure."""
        return statistics.median(self.values)

    @property
    def reached(self) -> str:
        """Which of the two figures it reaches: "aim", "must", "no", or "" when none is asked."""
        if self.skipped or self.must is None or self.aim is None:
            return "skipped" if self.skipped else ""
        sign = 1 if self.better == "more" else -1
        if sign * self.median >= sign * self.aim:
            return "aim"
        return "must" if sign * self.median >= sign * self.must else "no"

    def encoded(self) -> dict[str, Any]:
        """Return the figure for bench.json."""
        found = asdict(self) | {"values": [round(value, 6) for value in self.values]}
        if not self.skipped:
            found |= {
                "median": round(self.median, 6),
                "least": round(min(self.values), 6),
                "most": round(max(self.values), 6),
            }
        return found | {"reached": self.reached}

    @staticmethod
    def decoded(found: dict[str, Any]) -> Figure:
        """Return a figure of bench.json."""
        names = Figure.__dataclass_fields__
        known = {name: value for name, value in found.items() if name in names}
        return Figure(**known | {"values": tuple(known["values"])})


@dataclass(frozen=True)
class Bench:
    """What rows are given: sizes, data, where peers are, and a way to say how far they are."""

    sizes: Sizes
    cache: Path = corpora.CACHE
    arxiv: Path = corpora.ARXIV
    spark_python: str = sys.executable
    faiss: str = ""  # the folder that holds it, where it is not installed
    say: Callable[[str], None] = lambda text: None

    def rows(self, n_rows: int, n_features: int | None = None) -> corpora.Rows:
        """Return a synthetic corpus; the last few are held, as rows often ask for the same."""
        return _held(n_rows, n_features or self.sizes.n_features, self.cache)


@lru_cache(maxsize=2)
def _held(n_rows: int, n_features: int, cache: Path) -> corpora.Rows:
    return corpora.synthetic(n_rows, n_features, cache=cache)


def timed(work: Callable[[], Any], at_least: float = 0.0) -> Timed:
    """Run a work, again until `at_least` seconds are over; return the time of one run.

    A work of a few milliseconds would else be measured with its neighbour's data in the caches.
    """
    gc.collect()
    runs, wall, cpu = 0, time.perf_counter(), time.process_time()
    while runs == 0 or time.perf_counter() - wall < at_least:
        value = work()
        runs += 1
    return Timed((time.perf_counter() - wall) / runs, (time.process_time() - cpu) / runs, value)


def in_turn(
    repeats: int,
    works: dict[str, Callable[[], Any]],
    at_least: float = 0.0,
    budget: float = math.inf,
) -> dict[str, list[Timed]]:
    """Run works one after the other, then all again: what disturbs one disturbs its neighbours.

    No round begins that would probably end after `budget` seconds; one there always is.
    """
    runs: dict[str, list[Timed]] = {name: [] for name in works}
    began = time.perf_counter()
    for done in range(repeats):
        spent = time.perf_counter() - began
        if done and spent * (done + 1) / done > budget:
            break
        for name, work in works.items():
            runs[name].append(timed(work, at_least))
    return runs


def raw(runs: dict[str, list[Timed]]) -> Raw:
    """Return all times for bench.json."""
    return {name: [one.seconds() for one in found] for name, found in runs.items()}


def ratios(
    above: Sequence[Timed], below: Sequence[Timed], by: Literal["wall", "cpu"] = "wall"
) -> tuple[float, ...]:
    """Return the ratio of every pair of neighbours."""
    return tuple(
        getattr(one, by) / max(getattr(other, by), 1e-9)
        for one, other in zip(above, below, strict=True)
    )


def more_than(above: Sequence[Timed], below: Sequence[Timed]) -> tuple[float, ...]:
    """Return by how many percent of wall time each is more than its neighbour."""
    return tuple(100.0 * (ratio - 1.0) for ratio in ratios(above, below))


# ---- fair threads


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Give Dask, OpenMP and numba `number` threads and BLAS one; on the cores of `keep_cores`."""
    import dask
    import numba
    from threadpoolctl import threadpool_limits

    before = numba.get_num_threads()
    numba.set_num_threads(min(number, numba.config.NUMBA_NUM_THREADS))
    try:
        with (
            threadpool_limits({"openmp": number, "blas": 1}),
            dask.config.set(scheduler="threads", num_workers=number),
        ):
            yield
    finally:
        numba.set_num_threads(before)


def keep_cores(number: int = CORES) -> list[int]:
    """Keep this process and its children on the first cores it may use; return those."""
    chosen = sorted(os.sched_getaffinity(0))[:number]
    os.sched_setaffinity(0, chosen)
    return chosen


def machine() -> dict[str, Any]:
    """Return what the figures were taken on."""
    from sklearn.utils._openmp_helpers import _openmp_effective_n_threads
    from threadpoolctl import threadpool_info

    from hmrf_dask.kernels.compiled import kernel_path

    facts = ("user_api", "internal_api", "version", "num_threads", "threading_layer")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with threads(CORES):
        pools = [{key: one.get(key) for key in facts} for one in threadpool_info()]
        peer_threads = _openmp_effective_n_threads()
    return {
        "processor": _processor(),
        "kernels": kernel_path(),
        "cores": sorted(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "GiB": round(memory / 2**30, 1),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "pools": pools,
        "scikit_learn_threads": peer_threads,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the release of every package that takes part; of a missing one ""."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found
