"""The row about tricks: what each of them gains, measured with and without it in turn.

A figure is by how much the iterations of a fit take longer without the trick, at several K, with
pairs and on workers. Labels must be those of the plain way wherever the trick promises that.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hmrf_dask.corpus.partitioned import Corpus
from tests.benchmarks.corpora import random_pairs
from tests.benchmarks.iterations import warm_up, watched_fit
from tests.benchmarks.measuring import CORES, Bench, Figure, Timed, in_turn, threads
from tests.benchmarks.rows_iterations import PARTITIONS, folders, workers
from tests.benchmarks.tricks import TRICKS, Kind, Trick

Gains = dict[str, tuple[float, ...]]  # percent by fit, one of each repeat


@dataclass(frozen=True)
class Fitted:
    """The labels of a fit, and what its iterations took."""

    labels: Any
    iterations: Timed


@dataclass(frozen=True)
class Work:
    """A fit that tricks are taken out of; `warm` has its kernels compiled."""

    name: str
    kind: Kind
    fit: Callable[[], Fitted]
    warm: Callable[[], None]


def ablation(bench: Bench) -> list[Figure]:
    """Measure every trick in every fit where it plays a part."""
    gains: dict[str, Gains] = {trick.name: {} for trick in TRICKS}
    for works in (_on_threads, _on_workers):
        with works(bench) as found:
            for work in found:
                bench.say(f"tricks: {work.name}")
                for trick in TRICKS:
                    if work.kind in trick.kinds:
                        gains[trick.name][work.name] = _gains(trick, work, bench.sizes.repeats)
    return [_figure(trick, gains[trick.name]) for trick in TRICKS]


def _figure(trick: Trick, gains: Gains) -> Figure:
    """Return the figure of a trick: its gain in the fit where it gains most."""
    name = max(gains, key=lambda name: statistics.median(gains[name]))
    facts = {
        fit: [round(statistics.median(values), 1), round(min(values), 1), round(max(values), 1)]
        for fit, values in gains.items()
    }
    return Figure(
        f"ablation-{trick.name}", trick.what, gains[name], "%",
        facts={"most_at": name, "by": trick.by, "gains_percent": facts},
    )  # fmt: skip


def _gains(trick: Trick, work: Work, repeats: int) -> tuple[float, ...]:
    """Return by how many percent the iterations take longer without a trick."""

    def without() -> Fitted:
        with trick.off():
            return work.fit()

    with trick.off():
        work.warm()
    runs = in_turn(repeats, {"with": work.fit, "without": without})
    labels = [runs[side][0].value.labels for side in ("with", "without")]
    if work.kind in trick.same_bits and not np.array_equal(*labels):
        raise RuntimeError(
            f"{trick.what}: labels must be those of the plain way, got others in the fit "
            f"{work.name}; the trick breaks its promise"
        )
    seconds = (
        sorted(getattr(one.value.iterations, trick.by) for one in runs[side])
        for side in ("without", "with")
    )  # the least against the least: a neighbour that is busy for a while shifts no ratio alone
    return tuple(100.0 * (off / max(on, 1e-9) - 1.0) for off, on in zip(*seconds, strict=True))


def _fitted(X: Any, n_clusters: int, max_iter: int, **settings: Any) -> Fitted:
    watched = watched_fit(X, n_clusters, max_iter, **settings)
    first, last = watched.marks[0], watched.marks[-1]
    spent = Timed(last.wall - first.wall, last.cpu - first.cpu)
    return Fitted(np.asarray(watched.fit.value.labels_), spent)


@contextmanager
def _on_threads(bench: Bench) -> Iterator[list[Work]]:
    """Give the fits on threads: at every K, and with half as many pairs as rows."""
    with threads(CORES):
        yield [
            *(_work(bench, K, *sizes, "fit") for K, sizes in bench.sizes.ablation.items()),
            _work(bench, bench.sizes.n_clusters, *bench.sizes.ablation_pairs, "pairs"),
        ]


def _work(bench: Bench, n_clusters: int, n_rows: int, max_iter: int, kind: Kind) -> Work:
    rows, paired = bench.rows(n_rows), kind == "pairs"
    pairs = random_pairs(rows.topics, n_rows // 2) if paired else None
    warm = partial(warm_up, rows.X, n_clusters, with_pairs=paired)
    warm()
    return Work(
        f"K = {n_clusters}, pairs" if paired else f"K = {n_clusters}", kind,
        partial(_fitted, rows.X, n_clusters, max_iter, pairs=pairs), warm,
    )  # fmt: skip


@contextmanager
def _on_workers(bench: Bench) -> Iterator[list[Work]]:
    """Give the fits on two worker processes of one thread, their rows read from Parquet once."""
    works: list[Work] = []
    with threads(1), folders(bench) as new, workers(CORES):
        for n_clusters, (n_rows, max_iter) in bench.sizes.ablation.items():
            X, path = bench.rows(n_rows).X, new()
            Corpus.from_rows(X, n_partitions=PARTITIONS).to_parquet(path)
            fit = partial(_fitted, path, n_clusters, max_iter, shape=X)
            fit()  # workers load their kernels
            works.append(Work(f"K = {n_clusters}, workers", "workers", fit, lambda: None))
        yield works
