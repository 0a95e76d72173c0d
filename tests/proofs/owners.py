"""The proof rows about owners of clusters: workers that die, what passes through the driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask

from tests.proofs.loop import Figures, Row

SIZES = {"n_rows": 3000, "n_features": 40_000, "n_clusters": 30, "n_pairs": 300}
TASKS = ("add_changes", "remake")  # during sums, during centroids
EACH = 5  # kills of one worker, and of all, in each
WIDE = {"n_rows": 4000, "n_features": 60_000, "n_clusters": 250, "n_pairs": 0}


@contextmanager
def _workers(number: int) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=number,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            env={"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s"},
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def killed() -> Figures:
    """Kill owners in a fit with pairs and first variation, at twenty of their tasks."""
    from tests.support.fits import scheduled, text_case
    from tests.support.owners import dies_at

    case = text_case(**SIZES, init="random", n_init=1, refine=True, max_iter=10)
    with scheduled("threads"):
        wanted = case.answer(3)
    same, kills = 0, []
    with _workers(2) as client, dask.config.set({"hmrf.owners": 2}):
        for name in TASKS:
            for n_dying in (1, 2):
                for number in range(1, EACH + 1):
                    client.wait_for_workers(2, timeout=180)
                    addresses = sorted(client.scheduler_info()["workers"])[:n_dying]
                    client.run(dies_at, name, number, workers=addresses)
                    same += case.answer(8) == wanted
                    left = set(client.scheduler_info()["workers"]) & set(addresses)
                    kills.append([name, n_dying, number, n_dying - len(left)])
    return {**SIZES, "kills": len(kills), "died": sum(kill[-1] for kill in kills), "same": same}


def passed() -> Figures:
    """Count what a driver sends and gets in an iteration over owners, K x d = 15 million."""
    from tests.support.fits import text_case
    from tests.support.owners import watched_driver

    case = text_case(**WIDE, init="random", n_init=1, refine=False, max_iter=6, closure=False)
    figures: Figures = {**WIDE, "centroids_mb": round(8e-6 * 250 * 60_000, 1)}
    with _workers(2):
        for iterations in (3, 6):
            case.parameters["max_iter"] = iterations
            with watched_driver() as seen:
                model = case.fitted(8)
            figures[f"{iterations} iterations"] = {
                "done": model.n_iter_, "sent": sum(seen.sent), "got": seen.all_got,
            }  # fmt: skip
    few, many = figures["3 iterations"], figures["6 iterations"]
    done = max(1, many["done"] - few["done"])
    more = many["sent"] + many["got"] - few["sent"] - few["got"]
    return figures | {"bytes_an_iteration_and_worker": round(more / done / 2)}


OWNER_ROWS = (
    Row(
        "owners-killed",
        "workers killed as owners of clusters, one and all, in sums and centroids: 20 of 20",
        killed,
        lambda f: f["kills"] == f["same"] == 20 and f["died"] >= 20,
    ),
    Row(
        "owners-driver",
        "less than 1 MB an iteration and worker to and from the driver, K x d = 15 million",
        passed,
        lambda f: 0 < f["bytes_an_iteration_and_worker"] < 1e6,
    ),
)
