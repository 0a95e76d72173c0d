"""A row about a corpus that does not fit: an iteration against a bare pass over the same blocks.

Worker processes get a fifth of the corpus as memory. They need some 500 MiB for themselves, so
smaller corpora run on threads that are given a limit of as much.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.fit import fitting
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.files import Blocks, Manifest, write_block, write_manifest
from tests.benchmarks.iterations import warm_up, watched_fit
from tests.benchmarks.measuring import CORES, Bench, Figure, Timed, in_turn, ratios, raw, threads
from tests.benchmarks.rows_iterations import iterations, workers

LARGER = 5  # times the memory
BLOCK_ROWS = 16_000
LEAST_LIMIT = 700 * 2**20  # bytes of a worker that has memory for more than itself
POLL = 0.2  # seconds


@dataclass
class Watch:
    """What workers reported of themselves: most MiB of one, most MiB spilled, how often paused."""

    peak: int = 0
    spilled: int = 0
    paused: int = 0
    restarted: int = 0
    over: threading.Event = field(default_factory=threading.Event, repr=False)

    def follow(self, client: Any) -> None:
        """Take down what workers tell until the end."""
        while not self.over.wait(POLL):
            for one in client.scheduler_info(n_workers=-1)["workers"].values():
                metrics = one["metrics"]
                spilled = metrics.get("spilled_bytes", {}).get("disk", 0)
                self.peak = max(self.peak, metrics["memory"] >> 20)
                self.spilled = max(self.spilled, spilled >> 20)
                self.paused += one["status"] == "paused"

    def facts(self) -> dict[str, int]:
        """Return the figures for bench.json."""
        numbers = {"peak_MiB": self.peak, "spilled_MiB": self.spilled}
        return numbers | {"paused": self.paused, "restarted": self.restarted}


def out_of_core(bench: Bench) -> list[Figure]:
    """Time iterations on blocks read in every pass, and a pass that does nothing but read them."""
    sizes, K = bench.sizes, min(bench.sizes.n_clusters, 20)
    X = bench.rows(sizes.large).X
    bench.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="blocks-", dir=bench.cache) as folder:
        corpus = repeated(X, folder, sizes.copies)
        size = sum(source.nbytes for source in corpus.sources)
        bench.say(f"out of core: {corpus.n_rows:,} rows, {size >> 20:,} MiB, K = {K}")
        works: dict[str, Callable[[], Any]] = {
            "fit": lambda: watched_fit(corpus, K, sizes.iterations, shape=X),
            "bare": lambda: bare_pass(corpus),
        }
        with memory(size // LARGER) as facts:
            warm_up(X, K)
            bare_pass(corpus)  # which takes every file's hash
            runs = in_turn(min(2, sizes.repeats), works)
    times: dict[str, list[Timed]] = {**iterations({"fit": runs["fit"]}), "bare": runs["bare"]}
    return [
        Figure(
            "out-of-core",
            f"an iteration of {LARGER} times the memory over a bare pass that reads it, K = {K}",
            ratios(times["fit"], times["bare"]), "x", "less", raw=raw(times),
            facts={"rows": corpus.n_rows, "MiB": size >> 20, **facts},
        )
    ]  # fmt: skip


def repeated(X: Any, folder: str, copies: int) -> Corpus:
    """Return a corpus that holds the rows several times, by naming their files so often."""
    blocks = [
        RowBlock.from_scipy(X[first : first + BLOCK_ROWS], first_row=first)
        for first in range(0, X.shape[0], BLOCK_ROWS)
    ]
    files = [write_block(block, folder, number) for number, block in enumerate(blocks)]
    write_manifest(Manifest(X.shape[1], False, tuple(files) * copies), folder)
    return Corpus.from_parquet(folder)


def bare_pass(corpus: Corpus) -> int:
    """Read every block as a pass of a fit does; return the number of rows."""
    flow = DaskFlow()
    tasks = [
        flow.lazy(count_rows, [corpus.sources[number] for number in group])
        for group in flow.co_located(corpus.sources)
    ]
    return sum(flow.compute(tasks))


def count_rows(blocks: Blocks) -> int:
    """Return the number of rows of some blocks."""
    return sum(block.n_rows for block in blocks)


@contextmanager
def memory(limit: int) -> Iterator[dict[str, Any]]:
    """Give Dask workers that have so much memory together; yield what they report."""
    facts: dict[str, Any] = {"memory_MiB": limit >> 20}
    if limit < CORES * LEAST_LIMIT:
        facts["workers"] = "threads, with this memory as their limit"
        with threads(CORES), mock.patch.object(fitting, "memory_of_all", return_value=limit):
            yield facts
        return
    with workers(CORES, memory_limit=limit // CORES) as client:
        watch, before = Watch(), client.run(os.getpid)
        thread = threading.Thread(target=watch.follow, args=(client,))
        thread.start()
        try:
            yield facts
        finally:
            watch.over.set()
            thread.join()
        watch.restarted = len(before.items() ^ client.run(os.getpid).items())
        facts |= watch.facts()
