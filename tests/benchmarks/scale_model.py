"""A model of an iteration on many workers, of measured pieces; its arithmetic can be printed.

Pieces are fitted on runs of hosts that share the cores of one machine (`scale`), where processor
time of all workers is one after the other; on machines of their own it is side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hmrf_dask.tasks.whole_models import PIECE

NUMBER = 8  # bytes
ENTRY = 16  # bytes of a place and a number


class Run(NamedTuple):
    """What an iteration took on some workers: seconds, bytes of the busiest link and way."""

    n_workers: int
    slept: float  # by each worker
    worker_cpu: float  # of all workers together
    driver_cpu: float  # scheduler included
    idle_cpu: float  # of these two, in as much time without a fit: heartbeats
    link_bytes: float
    n_tasks: float
    seconds: float


@dataclass(frozen=True)
class Pieces:
    """What was measured, for any number of workers.

    Examples
    --------
    >>> def run(w):
    ...     took = 8.0 / w + 0.5 + (1 + w) / min(w, 2)
    ...     return Run(w, 8.0 / w, 1.0 + w, 0.5, 0.1, 0.0, 4.0 * w, took)
    >>> runs = [run(w) for w in (1, 2, 4)]
    >>> pieces = Pieces.of(runs, bits=10e9, cores=2)
    >>> round(pieces.each, 6), round(pieces.shared, 6), round(pieces.longer, 6)
    (1.0, 1.0, 1.0)
    >>> round(pieces.seconds(8, slept=1.0), 6)
    6.0
    """

    each: float  # processor seconds that every worker has
    shared: float  # those that workers have together
    driver: tuple[float, float]  # processor seconds of driver and scheduler: at all, by worker
    link: tuple[float, float]  # bytes of the busiest link: at all, by share of others' slices
    tasks: tuple[float, float]  # of the graphs: at all, by worker
    # processor seconds of driver and scheduler that a fit takes: at all, by task
    task_cpu: tuple[float, float]
    longer: float  # than their processor seconds tasks take, as the kernel's share is in no process
    bits: float  # that a link carries in a second
    cores: int

    @staticmethod
    def of(runs: Sequence[Run], bits: float, cores: int) -> Pieces:
        """Return the pieces of some runs of one size."""
        w = np.asarray([run.n_workers for run in runs], float)
        columns = {name: np.asarray([getattr(run, name) for run in runs]) for name in Run._fields}
        each, shared = np.polyfit(w, columns["worker_cpu"], 1)
        by_worker, driver = np.polyfit(w, columns["driver_cpu"], 1)
        by_share, link = np.polyfit((w - 1) / w, columns["link_bytes"], 1)
        by_worker_tasks, tasks = np.polyfit(w, columns["n_tasks"], 1)
        used = columns["driver_cpu"] - columns["idle_cpu"]
        by_task, task_cpu = np.polyfit(columns["n_tasks"], used, 1)
        pieces = Pieces(
            float(each), float(shared), (float(driver), float(by_worker)),
            (float(link), float(by_share)), (float(tasks), float(by_worker_tasks)),
            (float(task_cpu), float(by_task)), 1.0, bits, cores,
        )  # fmt: skip
        modelled = np.asarray([pieces.processors(run.n_workers) for run in runs])
        links = np.asarray([pieces.on_links(run.n_workers) for run in runs])
        rest = columns["seconds"] - columns["slept"] - links
        longer = float((rest * modelled).sum() / (modelled * modelled).sum())
        return Pieces(**vars(pieces) | {"longer": longer})

    def processors(self, n_workers: int) -> float:
        """Return the seconds that the cores need, all workers on them."""
        workers = self.shared + self.each * n_workers
        return self.driver[0] + self.driver[1] * n_workers + workers / min(self.cores, n_workers)

    def on_links(self, n_workers: int) -> float:
        """Return the seconds of the busiest link."""
        return 8 * (self.link[0] + self.link[1] * (1 - 1 / n_workers)) / self.bits

    def seconds(self, n_workers: int, slept: float) -> float:
        """Return what an iteration takes on hosts that share the cores."""
        return slept + self.on_links(n_workers) + self.longer * self.processors(n_workers)


@dataclass(frozen=True)
class Corpus:
    """What is clustered, in an iteration in which every row is compared."""

    documents: float
    n_clusters: int
    n_features: int
    words: float  # of a document
    moving: float  # share of documents that move
    compare: float  # seconds of the kernel for a document, one thread
    add: float  # seconds for the sums of a document that moves
    request: float  # seconds of a request to another worker, with the answer, nothing in it

    @property
    def numbers(self) -> float:
        """K × d."""
        return float(self.n_clusters * self.n_features)


@dataclass(frozen=True)
class Cluster:
    """Machines of their own, one worker process on each."""

    n_workers: int
    n_owners: int
    n_threads: int
    bits: float


def arithmetic(
    corpus: Corpus, cluster: Cluster, pieces: Pieces, measured_numbers: float
) -> dict[str, tuple[float, str]]:
    """Return the seconds of each part of an iteration, nothing at the same time, and how so.

    `pieces` are of runs with K × d `measured_numbers`, to which their processor time grows.
    """
    w, c, t, bits = cluster.n_workers, cluster.n_owners, cluster.n_threads, cluster.bits
    larger, whole = corpus.numbers / measured_numbers, NUMBER * corpus.numbers
    own = corpus.documents / w
    moving = own * corpus.moving
    message = min(whole, 2 * moving * corpus.words * ENTRY)
    out = whole * max(1.0, w / c) * (1 - 1 / w)
    n_tasks = pieces.tasks[0] + pieces.tasks[1] * w
    # Of each worker: for slices of owners, and for parcels, W for each owner.
    n_requests = c * math.ceil(whole / c / PIECE) + c
    share = f"{own:,.0f} documents a worker, {t} threads"
    return {
        "compare": (own * corpus.compare / t, f"{share}, {1e6 * corpus.compare:.2f} µs each"),
        "sums": (
            moving * corpus.add / t,
            f"{moving:,.0f} of these move, {1e6 * corpus.add:.2f} µs each",
        ),
        "tables": (
            pieces.longer * pieces.each * larger,
            f"{pieces.each:.3g} s measured, K·d {larger:.3g} times that, × {pieces.longer:.3g}",
        ),
        "owners": (
            pieces.longer * max(pieces.shared, 0.0) * larger / c,
            f"{pieces.shared:.3g} s measured, K·d {larger:.3g} times that, on {c} owners",
        ),
        "messages": (
            8 * message * max(1.0, w / c) * (1 - 1 / w) / bits,
            f"{message / 1e6:,.0f} MB of each worker, {w / c:.3g} to an owner's link",
        ),
        "slices": (8 * out / bits, f"{out / 1e9:,.2f} GB on an owner's link"),
        "requests": (
            pieces.longer * n_requests * corpus.request,
            f"{n_requests:,} of each worker, {1e6 * corpus.request:,.0f} µs each, with answers",
        ),
        "driver": (
            pieces.longer * (pieces.task_cpu[0] + pieces.task_cpu[1] * n_tasks),
            f"{n_tasks:,.0f} tasks, {1e3 * pieces.task_cpu[1]:.2f} ms each",
        ),
    }


def total(parts: dict[str, tuple[float, str]]) -> float:
    """Return the seconds of an iteration."""
    return sum(seconds for seconds, _ in parts.values())


def lines(parts: dict[str, tuple[float, str]]) -> list[str]:
    """Return the arithmetic as a person reads it."""
    shown = [f"{name:9} {seconds:8.3f} s  {why}" for name, (seconds, why) in parts.items()]
    return [*shown, f"{'together':9} {total(parts):8.3f} s"]
