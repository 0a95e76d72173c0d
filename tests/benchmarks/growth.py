"""How the time of an iteration grows with documents, clusters, features and pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.benchmarks.corpora import Rows, random_pairs
from tests.benchmarks.iterations import Watched, warm_up, watched_fit
from tests.benchmarks.measuring import CORES, Bench, Figure, threads

TITLES = {"n": "documents", "K": "clusters", "d": "features", "pairs": "pairs"}


def growth(bench: Bench) -> list[Figure]:
    """Time the iterations of fits that differ in one size; the others are those of the base.

    A figure is the exponent: 1 when twice the size takes twice the time. It is of the last two
    points, where what does not grow counts least.
    """
    n_rows, K = bench.sizes.growth_base
    fits: dict[str, Callable[[int], Watched]] = {
        "n": lambda size: _fit(bench.rows(size), K, bench),
        "K": lambda size: _fit(bench.rows(n_rows), size, bench),
        "d": lambda size: _fit(bench.rows(n_rows, size), K, bench),
        "pairs": lambda size: _fit(bench.rows(n_rows), K, bench, size),
    }
    figures = []
    for name, fit in fits.items():
        sizes = bench.sizes.growth[name]
        bench.say(f"growth with {TITLES[name]}: {', '.join(f'{size:,}' for size in sizes)}")
        with threads(CORES):
            found = [fit(size).iteration for size in sizes]
        seconds = [one.wall for one in found]
        figures.append(
            Figure(
                f"growth-{name}", f"growth with {TITLES[name]}: exponent of the time per iteration",
                (_exponent(sizes, seconds),), "", "less",
                raw={str(size): [one.seconds()] for size, one in zip(sizes, found, strict=True)},
                facts={
                    "sizes": list(sizes), "seconds": [round(one, 5) for one in seconds],
                    "base": {"n": n_rows, "K": K, "d": bench.sizes.n_features, "pairs": 0},
                },
            )
        )  # fmt: skip
    return figures


def _fit(rows: Rows, n_clusters: int, bench: Bench, n_pairs: int = 0) -> Watched:
    given: dict[str, Any] | None = random_pairs(rows.topics, n_pairs) if n_pairs else None
    warm_up(rows.X, n_clusters, with_pairs=bool(n_pairs))
    return watched_fit(rows.X, n_clusters, bench.sizes.iterations, pairs=given)


def _exponent(sizes: tuple[int, ...], seconds: list[float]) -> float:
    return float(np.log(seconds[-1] / seconds[-2]) / np.log(sizes[-1] / sizes[-2]))
