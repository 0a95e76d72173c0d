"""Small problems with pairs that must never be broken, and how COP-KMeans fares on many of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask
import numpy as np

from hmrf_dask import COPKMeans
from hmrf_dask.errors import InfeasibleError
from tests import naive
from tests.naive_family import broken, can_be_kept
from tests.support.family_fits import falls


def problem(seed: int) -> tuple[Any, list[Any], list[Any], int]:
    """Return rows and pairs drawn without a look at any classes: often they cannot be kept."""
    rng = np.random.default_rng(seed)
    n_rows, n_clusters = int(rng.integers(6, 25)), int(rng.integers(2, 5))
    rows = rng.uniform(0.05, 1.0, (n_rows, 4)).astype(np.float32)
    n_must, n_cannot = int(rng.integers(0, n_rows // 3)), int(rng.integers(0, 3 * n_rows // 2))
    must = [tuple(rng.choice(n_rows, 2, replace=False).tolist()) for _ in range(n_must)]
    groups = naive.must_link_components(n_rows, must)
    of = {row: number for number, rows_of in enumerate(groups) for row in rows_of}
    drawn = [tuple(rng.choice(n_rows, 2, replace=False).tolist()) for _ in range(n_cannot)]
    return rows, must, [(i, j) for i, j in drawn if of[i] != of[j]], n_clusters


def fitted(seed: int, **settings: Any) -> tuple[COPKMeans | InfeasibleError, Any]:
    """Return the fit of a problem, or the error that it ends with, and the problem."""
    rows, must, cannot, n_clusters = made = problem(seed)
    chosen = {"n_init": 1, "max_iter": 5, "random_state": seed, **settings}
    model = COPKMeans(n_clusters, **chosen)
    try:
        return model.fit(rows, must_link=must, cannot_link=cannot), made
    except InfeasibleError as error:
        return error, made


@dataclass
class Kept:
    """How many problems were solved, and what was wrong with that.

    Attributes
    ----------
    kept : problems whose pairs were all kept
    gave_up : problems that were given up and can be solved
    unproved : problems that were given up without a proof that they cannot be solved
    broken : pairs broken all the same
    rises : fits in which J rose
    """

    kept: int = 0
    gave_up: int = 0
    unproved: int = 0
    broken: int = 0
    rises: int = 0


def kept_or_not(n_problems: int) -> Kept:
    """Fit that many problems."""
    seen = Kept()
    with dask.config.set(scheduler="synchronous"):
        for seed in range(n_problems):
            found, (rows, must, cannot, n_clusters) = fitted(seed)
            if isinstance(found, InfeasibleError):
                seen.gave_up += int(can_be_kept(len(rows), must, cannot, n_clusters))
                seen.unproved += not found.proved
                continue
            seen.kept += 1
            seen.broken += int(broken(found.labels_, must, cannot))
            seen.broken += sum(found.violations_.values())
            seen.rises += not falls(found.objective_history_)
    return seen
