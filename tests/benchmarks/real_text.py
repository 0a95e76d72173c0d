"""Rows about fits on abstracts of arXiv from given centroids, and about parts of such fits."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from hmrf_dask.distortions.base import TableDistortion
from hmrf_dask.fit import loop
from tests.benchmarks import corpora
from tests.benchmarks.corpora import first_centroids
from tests.benchmarks.iterations import Watched, median_of, warm_up, watched_commits, watched_fit
from tests.benchmarks.measuring import CORES, Bench, Figure, Timed, in_turn, ratios, raw, threads
from tests.benchmarks.rows_fits import loss, ours, scikit_learn

ASKED = {20: (4.0, 6.0), 100: (10.0, 14.0), 500: (30.0, 45.0)}
BUDGET = 12.0  # seconds within which a fit and its peer's are done again
ROUNDS = 20  # of refinement, after which a fit that is timed ends


def abstracts(bench: Bench) -> Any:
    """Return the rows that these sizes ask for, None where the file is missing."""
    rows = corpora.arxiv(bench.arxiv, bench.cache)
    return None if rows is None else rows.X[: bench.sizes.arxiv_rows]


def real_text(bench: Bench) -> list[Figure]:
    """Time fits of some sizes against scikit-learn's; the figure of each K is its worst size."""
    X = abstracts(bench)
    return [_real_text(bench, X, K, cases) for K, cases in bench.sizes.real_text.items()]


def _real_text(bench: Bench, X: Any, n_clusters: int, cases: Any) -> Figure:
    must, aim = ASKED.get(n_clusters, (None, None))
    title = (
        "whole fit from given centroids, abstracts of arXiv, two threads, against scikit-learn "
        f"KMeans, K = {n_clusters}, the worst size"
    )
    name = f"real-text-{n_clusters}"
    if X is None:
        return Figure(name, title, must=must, aim=aim, skipped=f"no file {bench.arxiv}")
    by_case: dict[str, tuple[float, ...]] = {}
    times, facts = {}, {}
    with threads(CORES):
        warm_up(X, n_clusters)
        for n_rows, max_iter in cases:
            bench.say(f"real text, K = {n_clusters}, {n_rows:,} rows, {max_iter} iterations")
            case, some = f"{n_rows:,} rows, {max_iter} iterations", X[:n_rows]
            init = first_centroids(some, n_clusters)
            works = {
                "ours": lambda some=some, init=init, most=max_iter: ours(some, init, most),
                "scikit_learn": lambda some=some, init=init, most=max_iter: scikit_learn(
                    some, init, most
                ),
            }
            runs = in_turn(bench.sizes.repeats, works, budget=BUDGET)
            by_case[case] = ratios(runs["scikit_learn"], runs["ours"])
            times |= {f"{case}: {side}": found for side, found in raw(runs).items()}
            both = [runs[side][0].value for side in works]
            facts[case] = {
                "ratio": round(statistics.median(by_case[case]), 2),
                "n_iter": [int(one.n_iter_) for one in both],
                "loss": [round(loss(some, one.labels_), 6) for one in both],
            }
    worst = min(by_case, key=lambda case: statistics.median(by_case[case]))
    return Figure(
        name, title, by_case[worst], must=must, aim=aim, raw=times, facts={"worst": worst} | facts
    )


# ---- before the first iteration


@contextmanager
def first_compared() -> Iterator[list[float]]:
    """Take down when rows are compared with centroids: the beginning of every such task."""
    times: list[float] = []
    nearest = TableDistortion.nearest

    def watched(*arguments: Any, **options: Any) -> Any:
        times.append(time.perf_counter())
        return nearest(*arguments, **options)

    TableDistortion.nearest = watched  # type: ignore[method-assign]
    try:
        yield times
    finally:
        TableDistortion.nearest = nearest  # type: ignore[method-assign]


def before_first_iteration(bench: Bench) -> list[Figure]:
    """Time fits until the first row is compared with a centroid, and until the first commit."""
    X, K = abstracts(bench), bench.sizes.n_clusters
    return [one for n_rows in bench.sizes.before for one in _before(bench, X, K, n_rows)]


def _before(bench: Bench, X: Any, n_clusters: int, n_rows: int) -> list[Figure]:
    name, title = (
        f"before-first-iteration-{n_rows}",
        f"a fit of {n_rows:,} abstracts before its first row is compared, K = {n_clusters}",
    )
    if X is None:
        return [Figure(name, title, unit="s", better="less", must=0.06, aim=0.03,
                       skipped=f"no file {bench.arxiv}")]  # fmt: skip
    bench.say(title)
    some = X[:n_rows]
    init = first_centroids(some, n_clusters)
    found: list[float] = []
    committed: list[float] = []
    with threads(CORES):
        warm_up(some, n_clusters)
        for _ in range(bench.sizes.starts):
            with watched_commits() as marks, first_compared() as compared:
                began = time.perf_counter()
                ours(some, init, 2)
            found.append(min(compared) - began)
            committed.append(marks[0].wall - began)
    facts = {"rows": n_rows, "non_zeros": int(some.nnz)}
    until = f"the same until its first commit: every row has a label, J is known, K = {n_clusters}"
    return [
        Figure(name, title, tuple(found), "s", "less", 0.06, 0.03, facts=facts),
        Figure(f"before-first-commit-{n_rows}", f"{until}, {n_rows:,} abstracts",
               tuple(committed), "s", "less", facts=facts),
    ]  # fmt: skip


# ---- a round of refinement


def refinement_round(bench: Bench) -> list[Figure]:
    """Time rounds of first variation against the iterations of the same fit before them."""
    X, K = abstracts(bench), bench.sizes.n_clusters
    asked = {"better": "less", "must": 3.0, "aim": 1.5}
    name, title = "refinement-round", f"a round of first variation over an iteration, K = {K}"
    if X is None:
        return [Figure(name, title, skipped=f"no file {bench.arxiv}", **asked)]
    bench.say(title)
    max_iter = bench.sizes.before_rounds
    with threads(CORES):
        warm_up(X, K, refine=True)
        works = {"fit": lambda: watched_fit(X, K, max_iter, refine=True)}
        with mock.patch.object(loop, "MOST_ROUNDS", ROUNDS):
            fits = in_turn(bench.sizes.repeats, works)["fit"]
    rounds = [rounds_of(one.value) for one in fits]
    runs = {
        "round": [median_of(found) for found in rounds],
        "iteration": [one.value.iteration for one in fits],
    }
    facts = {
        "rows": X.shape[0], "iterations": max_iter, "rounds": [len(found) for found in rounds],
        "rows_moved_a_round": [one.value for one in runs["round"]],
    }  # fmt: skip
    values = ratios(runs["round"], runs["iteration"])
    return [Figure(name, title, values, raw=raw(runs), facts=facts, **asked)]


def rounds_of(watched: Watched) -> list[Timed]:
    """Return the rounds of a fit in which first variation moved rows."""
    pairs = zip(watched.marks[:-1], watched.marks[1:], strict=True)
    return [
        Timed(after.wall - before.wall, after.cpu - before.cpu, after.moved)
        for before, after in pairs
        if after.step == "variation"
    ]
