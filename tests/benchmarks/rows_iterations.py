"""Rows about one iteration: Dask's share, weights, commits, pairs, processes, ten times the rows.

An iteration is the time between two commits of a fit through the public API, the median of those
after the second; the fits of a row run in turn.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.kernels.sums import Accumulator, fixed_point_exponent, joined
from hmrf_dask.kernels.threads import threads_allowed
from tests.benchmarks.corpora import random_pairs
from tests.benchmarks.iterations import Watched, warm_up, watched_fit
from tests.benchmarks.measuring import (
    CORES,
    Bench,
    Figure,
    Timed,
    in_turn,
    more_than,
    ratios,
    raw,
    threads,
)
from tests.benchmarks.rows_kernels import fifth_step
from tests.benchmarks.scheduling import watched_tasks

PARTITIONS = 16


def iterations(runs: dict[str, list[Timed]]) -> dict[str, list[Timed]]:
    """Return the median iteration of every fit."""
    return {name: [one.value.iteration for one in found] for name, found in runs.items()}


def _fits(bench: Bench, **works: Callable[[], Watched]) -> dict[str, list[Timed]]:
    return iterations(in_turn(bench.sizes.repeats, works))


# ---- Dask's share


def dask_share(bench: Bench) -> list[Figure]:
    """Measure what a scheduler that costs nothing would save; see `scheduling`."""
    K = bench.sizes.n_clusters
    return [_dask_share(bench, n_clusters) for n_clusters in sorted({min(K, 20), K})]


def _dask_share(bench: Bench, n_clusters: int) -> Figure:
    n_rows, found = bench.sizes.middle, []
    bench.say(f"Dask's share, K = {n_clusters}, {n_rows:,} rows, {PARTITIONS} partitions")
    X = bench.rows(n_rows).X
    with threads(CORES):
        warm_up(X, n_clusters)
        for _ in range(bench.sizes.repeats):
            with watched_tasks() as watch:
                corpus = Corpus.from_rows(X, n_partitions=PARTITIONS)
                watched = watched_fit(corpus, n_clusters, bench.sizes.iterations, shape=X)
            marks = [one for one in watched.marks if one.phase == "fit"]
            first = marks[min(2, len(marks) - 2)]
            found.append(watch.share(first.wall, marks[-1].wall, CORES))
    parts = {
        f"{name}_percent": round(100 * float(np.median([one[name] for one in found])), 2)
        for name in ("dask", "tasks", "driver")
    }
    return Figure(
        f"dask-share-{n_clusters}",
        f"Dask's share of an iteration, threads, {PARTITIONS} partitions, K = {n_clusters}",
        tuple(100 * one["dask"] for one in found), "%", "less", must=10.0, aim=4.0,
        facts={"rows": n_rows, "n_tasks": [one["n_tasks"] for one in found], **parts},
    )  # fmt: skip


# ---- learned weights


def weights(bench: Bench) -> list[Figure]:
    """Time iterations that learn weights against iterations with a full M-step.

    Sums are incremental where weights are fixed, so an iteration with a full M-step is one without
    weights, its sums from nothing in the place of those of the rows that moved.
    """
    sizes, K = bench.sizes, bench.sizes.n_clusters
    bench.say(f"learned weights, K = {K}, {sizes.middle:,} rows")
    X = bench.rows(sizes.middle).X
    with threads(CORES):
        warm_up(X, K)
        warm_up(X, K, learn_weights=True)
        sums = full_sums(X, K)
        sums()
        runs = in_turn(
            sizes.repeats,
            {
                "learned": lambda: watched_fit(X, K, sizes.iterations, learn_weights=True),
                "fixed": lambda: watched_fit(X, K, sizes.iterations),
                "full_sums": sums,
            },
        )
    moved = [one.value.iteration.value for one in runs["fixed"]]
    runs |= iterations({name: runs[name] for name in ("learned", "fixed")})
    full = [
        Timed(fixed.wall + part * whole.wall, fixed.cpu + part * whole.cpu)
        for fixed, whole, part in zip(
            runs["fixed"],
            runs["full_sums"],
            [max(0.0, 1.0 - 2.0 * count / sizes.middle) for count in moved],
            strict=True,
        )
    ]
    facts = {"rows": sizes.middle, "rows_moved": moved}
    title = f"learned weights on top of an iteration with {{}}, cosine, K = {K}"
    values = more_than(runs["learned"], full), more_than(runs["learned"], runs["fixed"])
    return [
        Figure(
            "weights", title.format("a full M-step"), values[0], "%", "less", 60.0, 30.0,
            raw(runs | {"full": full}), facts,
        ),
        Figure("weights-incremental", title.format("incremental sums"), values[1], "%", "less",
               facts=facts),
    ]  # fmt: skip


def full_sums(X: Any, n_clusters: int) -> Callable[[], Any]:
    """Return a pass that makes all sums from nothing, as a fit on threads does."""
    step = fifth_step(X, n_clusters)
    bound, ones = step.distortion, np.ones(X.shape[1])
    exponent = fixed_point_exponent(X.shape[0], 1.0)
    slices = np.array_split(np.arange(X.shape[0]), PARTITIONS)
    parts = []
    for rows in slices:
        block = step.block.take(rows)
        nowhere = np.full(len(rows), -1, np.int32)
        parts.append((block, bound.terms(block, ones), ones, nowhere, step.labels[rows]))

    def note(part: Any) -> Accumulator:
        noted = Accumulator(n_clusters, X.shape[1] + 1)
        bound.add_moves(noted, *part, exponent)
        return noted

    def run() -> None:
        with ThreadPoolExecutor(CORES) as pool, threads_allowed(CORES):
            joined(list(pool.map(note, parts))).finish()

    return run


# ---- durable commits


def commits(bench: Bench) -> list[Figure]:
    """Time iterations that are kept in a run directory on disk against those that are not."""
    sizes, K = bench.sizes, bench.sizes.n_clusters
    bench.say(f"durable commits, K = {K}, {sizes.large:,} rows")
    X = bench.rows(sizes.large).X
    with threads(CORES), folders(bench) as new:
        warm_up(X, K)
        runs = _fits(
            bench,
            run_dir=lambda: watched_fit(X, K, sizes.iterations, run_dir=new()),
            none=lambda: watched_fit(X, K, sizes.iterations),
        )
    return [
        Figure(
            "commits", f"durable commits, {sizes.large:,} documents, K = {K}, on top of none",
            more_than(runs["run_dir"], runs["none"]), "%", "less", 10.0, 3.0, raw(runs),
            {"rows": sizes.large, "folder": str(bench.cache)},
        )
    ]  # fmt: skip


@contextmanager
def folders(bench: Bench) -> Iterator[Callable[[], str]]:
    """Give names of new folders next to the cache, which is on a disk; remove them all."""
    bench.cache.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="runs-", dir=bench.cache))
    try:
        yield lambda: tempfile.mkdtemp(dir=root)
    finally:
        shutil.rmtree(root)


# ---- pairs


def pairs(bench: Bench) -> list[Figure]:
    """Time iterations with random pairs, which ICM settles, against those of a fit without."""
    sizes, K = bench.sizes, bench.sizes.n_clusters
    bench.say(f"{sizes.pairs:,} pairs, K = {K}, {sizes.middle:,} rows")
    rows = bench.rows(sizes.middle)
    given = random_pairs(rows.topics, sizes.pairs)
    with threads(CORES):
        warm_up(rows.X, K, with_pairs=True)
        runs = _fits(
            bench,
            pairs=lambda: watched_fit(rows.X, K, sizes.iterations, pairs=given),
            none=lambda: watched_fit(rows.X, K, sizes.iterations),
        )
    facts = {"rows": sizes.middle} | {name: len(found) for name, found in given.items()}
    return [
        Figure(
            "pairs", f"{sizes.pairs:,} random pairs on {sizes.middle:,} documents, K = {K}",
            more_than(runs["pairs"], runs["none"]), "%", "less", 30.0, 12.0, raw(runs), facts,
        )
    ]  # fmt: skip


# ---- more rows, more processes


def tenfold(bench: Bench) -> list[Figure]:
    """Time iterations of ten times the documents, by non-zero."""
    sizes, K = bench.sizes, bench.sizes.n_clusters
    bench.say(f"{sizes.tenth:,} and {sizes.large:,} rows, K = {K}")
    large, small = bench.rows(sizes.large).X, bench.rows(sizes.tenth).X
    with threads(CORES):
        warm_up(small, K)
        runs = _fits(
            bench,
            large=lambda: watched_fit(large, K, sizes.iterations),
            small=lambda: watched_fit(small, K, sizes.iterations),
        )
    longer = large.nnz / small.nnz
    values = tuple(ratio / longer for ratio in ratios(runs["large"], runs["small"]))
    facts = {
        "rows": [sizes.tenth, sizes.large], "non_zeros": [int(small.nnz), int(large.nnz)],
        "ns_per_non_zero": [
            round(1e9 * float(np.median([one.wall for one in runs[name]])) / X.nnz, 3)
            for name, X in (("small", small), ("large", large))
        ],
    }  # fmt: skip
    return [
        Figure(
            "tenfold", f"ten times the documents: time per non-zero, K = {K}", values, "x", "less",
            1.1, 1.0, raw(runs), facts,
        )
    ]  # fmt: skip


def processes(bench: Bench) -> list[Figure]:
    """Time iterations on one worker process of one thread and on two, rows read from Parquet."""
    pairs = bench.sizes.process_pairs
    return [
        _one_and_two(bench, n_clusters, n_rows, pairs)
        for n_clusters, n_rows in bench.sizes.processes.items()
    ]


def _one_and_two(bench: Bench, n_clusters: int, n_rows: int, pairs: int) -> Figure:
    X = bench.rows(n_rows).X
    with folders(bench) as new, threads(1):
        path = new()
        Corpus.from_rows(X, n_partitions=PARTITIONS).to_parquet(path)
        works = {
            name: partial(_on_workers, bench, path, X, n_clusters, number)
            for name, number in (("one", 1), ("two", 2))
        }
        runs = iterations(in_turn(pairs, works))
    return Figure(
        f"processes-{n_clusters}",
        f"one worker process to two, {n_rows:,} documents, K = {n_clusters}",
        ratios(runs["one"], runs["two"]), "x", "more", 1.7, 1.85,
        {name: [{"wall": round(one.wall, 6)} for one in found] for name, found in runs.items()},
        {
            "rows": n_rows, "partitions": PARTITIONS, "threads_of_a_worker": 1,
            "threads_of_the_driver": "1, and 1 of the scheduler in its process",
        },
    )  # fmt: skip


def _on_workers(bench: Bench, path: str, X: Any, n_clusters: int, number: int) -> Watched:
    """Fit on a new cluster; iterations that count are the later ones: kernels are loaded."""
    bench.say(f"{number} worker processes, K = {n_clusters}, {X.shape[0]:,} rows")
    with workers(number):
        return watched_fit(path, n_clusters, bench.sizes.iterations, shape=X)


@contextmanager
def workers(number: int, **options: Any) -> Iterator[Any]:
    """Give Dask worker processes of one thread each; yield the client that uses them."""
    import dask
    from distributed import Client, LocalCluster

    with (
        dask.config.set(scheduler=None, num_workers=None),
        LocalCluster(
            n_workers=number,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            **options,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client
