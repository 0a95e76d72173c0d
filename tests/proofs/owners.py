"""The proof rows about owners of clusters: their bits, workers that die, what the driver has."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import psutil

from tests.proofs.loop import Figures, Row

SIZES = {"n_rows": 3000, "n_features": 40_000, "n_clusters": 30, "n_pairs": 300}
TASKS = ("add_changes", "remake")  # during sums, during centroids
EACH = 5  # kills of one worker, and of all, in each
PROCESSES, OWNERS = (1, 2, 3), (0, 1, 2, 3)
# So many features that each cluster is a block of its own, which any owner may have.
MATRIX = {"n_rows": 400, "n_features": 70_000, "n_clusters": 5}
KINDS: dict[str, dict[str, Any]] = {
    "cosine, pairs": {},
    "euclidean, pairs": {"distortion": "euclidean"},
    "kl, pairs": {"distortion": "kl"},
    "i-divergence": {"distortion": "i-divergence", "n_pairs": 0},
    "cosine, weights": {"learn_weights": True},
    "euclidean, weights": {"distortion": "euclidean", "learn_weights": True},
    "first variation": {"refine": True},
}
LARGE = {"n_rows": 3000, "n_features": 200_000, "n_clusters": 1000, "n_pairs": 0}
HELD = 60  # bytes of the one worker for each number of centroids, with what others need
WIDE = {"n_rows": 4000, "n_features": 60_000, "n_clusters": 250, "n_pairs": 0}


@contextmanager
def _workers(number: int, **how: Any) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        # Dask's own place has one lock: whoever starts a worker there waits for all who do. And a
        # worker that dies again 15 s after it died is one that Dask gives up.
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1000 days"}),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        LocalCluster(
            n_workers=number,
            threads_per_worker=1,
            local_directory=folder,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            env={"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s"},
            **how,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def of_processes() -> Figures:
    """Fit each kind on 1 to 3 processes over 0 to 3 owners; count digests, and owners there were.

    Each is held to what threads of one process give.
    """
    from hmrf_dask import COPKMeans
    from tests.support.fits import NO_PAIRS, scheduled, text_case

    usual = {**MATRIX, "n_pairs": 150, "init": "random", "n_init": 2, "max_iter": 6}
    cases = {name: text_case(**{**usual, "refine": False, **kind}) for name, kind in KINDS.items()}
    hard = text_case(**{**MATRIX, "n_pairs": 150}, max_iter=6)
    cases["hard pairs"] = replace(hard, kind=COPKMeans)
    cases["no pairs"] = replace(cases["cosine, pairs"], must=NO_PAIRS, cannot=NO_PAIRS)
    digests: dict[str, set[str]] = defaultdict(set)
    with scheduled("threads"):
        for name, case in cases.items():
            digests[name].add(case.answer(3))
    wrong = []
    for n_processes in PROCESSES:
        with _workers(n_processes):
            for n_owners in OWNERS:
                for name, case in cases.items():
                    with dask.config.set({"hmrf.owners": n_owners}), _numbers_of_owners() as seen:
                        digests[name].add(case.answer(3))
                    if set(seen) != ({n_owners} if n_owners else set()):
                        wrong.append([name, n_processes, n_owners, seen])
    fits = len(PROCESSES) * len(OWNERS) * len(cases)
    return {"fits": fits, "digests": {n: len(d) for n, d in digests.items()}, "owners_off": wrong}


@contextmanager
def _numbers_of_owners() -> Iterator[list[int]]:
    """Give how many owners fits get, one after the other."""
    from hmrf_dask.fit.owners import Owners

    seen: list[int] = []
    made = Owners.move

    def move(self: Owners) -> None:
        made(self)
        seen.append(len(self.places))

    with mock.patch.object(Owners, "move", move):
        yield seen


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
                    with tempfile.TemporaryDirectory() as folder:
                        client.run(dies_at, name, number, folder, n_dying)
                        same += case.answer(8) == wanted
                        died = len(list(Path(folder).iterdir()))
                    kills.append([name, n_dying, number, died])
    died, missed = sum(kill[-1] for kill in kills), sum(not kill[-1] for kill in kills)
    return {**SIZES, "kills": len(kills), "died": died, "missed": missed, "same": same}


def passed() -> Figures:
    """Count what a driver sends and gets in an iteration over owners, K x d = 15 million."""
    from tests.support.fits import text_case
    from tests.support.owners import watched_driver

    case = text_case(**WIDE, init="random", n_init=1, refine=False, max_iter=6, closure=False)
    figures: Figures = {**WIDE, "centroids_mb": round(8e-6 * 250 * 60_000, 1)}
    with _workers(2):
        for iterations in (1, 6):
            case.parameters["max_iter"] = iterations
            with watched_driver() as seen:
                model = case.fitted(8)
            figures[f"{iterations} iterations"] = {
                "done": model.n_iter_, "sent": sum(seen.sent), "got": seen.all_got,
            }  # fmt: skip
    few, many = figures["1 iterations"], figures["6 iterations"]
    done = max(1, many["done"] - few["done"])
    more = many["sent"] + many["got"] - few["sent"] - few["got"]
    return figures | {"bytes_an_iteration_and_worker": round(more / done / 2)}


def peak() -> Figures:
    """Return the most memory of a driver, in a process that has imported nothing else."""
    needed = HELD * LARGE["n_features"] * LARGE["n_clusters"]
    if (there := psutil.virtual_memory().available) < needed:
        return {"skipped": f"{needed / 1e9:.0f} GB are needed, {there / 1e9:.0f} are free"}
    code = "import json; from tests.proofs import owners; print(json.dumps(owners.peak_here()))"
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def peak_here() -> Figures:
    """Fit K x d = 200 million over an owner; return the most memory that this process ever had."""
    from tests.support.fits import text_case

    numbers = LARGE["n_features"] * LARGE["n_clusters"]
    how = {"init": "random", "n_init": 1, "refine": False, "max_iter": 3}
    with ProcessPoolExecutor(1, get_context("spawn")) as elsewhere:  # rows take memory to be drawn
        case = elsewhere.submit(text_case, **LARGE, **how).result()
    with _workers(1, memory_limit="1TB") as client, _numbers_of_owners() as owners:
        before = _most_memory()
        model = case.fitted(8)
        own = _most_memory()
        (worker,) = client.run(_most_memory).values()
    return {
        **LARGE,
        "iterations": model.n_iter_,
        "owners": owners,
        "MB_of_centroids": 8e-6 * numbers,
        "MB_before": before >> 10,
        "MB_of_the_driver": own >> 10,  # and of the scheduler, which is in this process
        "MB_of_the_worker": worker >> 10,
    }


def _most_memory() -> int:
    """Return the most KiB that this process ever had; `ru_maxrss` begins with its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


OWNER_ROWS = (
    Row(
        "owners-memory",
        "the driver's process, with the scheduler, below 500 MB at K x d = 200 million",
        peak,
        lambda f: f["MB_of_the_driver"] < 500 and set(f["owners"]) == {1},
    ),
    Row(
        "owners-processes",
        "1, 2, 3 worker processes x 0 to 3 owners, nine kinds of fits: one digest each",
        of_processes,
        lambda f: set(f["digests"].values()) == {1} and not f["owners_off"],
    ),
    Row(
        "owners-killed",
        "workers killed as owners of clusters, one and all, in sums and centroids: 20 of 20",
        killed,
        lambda f: f["kills"] == f["same"] == 20 and not f["missed"],
    ),
    Row(
        "owners-driver",
        "less than 1 MB an iteration and worker to and from the driver, K x d = 15 million",
        passed,
        lambda f: 0 < f["bytes_an_iteration_and_worker"] < 1e6,
    ),
)
