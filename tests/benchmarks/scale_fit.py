"""What runs in the processes of the row `scale`: the fit, its workers' stand-in, the kernel's time.

`python -m tests.benchmarks.scale_fit fit …` is the driver, `… kernel …` times the E-step's kernel;
workers are started with `--preload tests.benchmarks.scale_fit`. Then an E-step takes the time that
the kernel would take for all documents that its rows stand for, asleep, and moves the rows that are
due. All else is what a fit does: tables, sums, messages, owners, J.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOPICS = 1000  # the first columns: each row has one of them
SECONDS = "HMRF_SCALE_SECONDS"  # that a worker sleeps for a row of its own
REST = 3.0  # seconds in which nothing is asked of driver and scheduler, after the fit
FROM_START, EACH = 0.3, 0.14  # of rows: in their cluster from the start, and due in an iteration
TURN = 0.6180339887498949  # multiples of it are spread evenly over [0, 1)


def moved(topics: NDArray[Any], labels: NDArray[Any], n_clusters: int) -> NDArray[np.int32]:
    """Return the next labels of rows: some more of them in their own clusters.

    Examples
    --------
    >>> topics = np.arange(1000) % 4
    >>> first = moved(topics, np.full(1000, -2), 4)
    >>> second = moved(topics, first, 4)
    >>> int((first == topics).sum()), int((second != first).sum())
    (300, 140)
    """
    numbers = np.arange(len(topics))
    due = numbers * TURN % 1.0
    own = topics % n_clusters
    if (labels < 0).any():
        strange = (own + 1 + numbers * 7919 % (n_clusters - 1)) % n_clusters
        return np.where(due < FROM_START, own, strange).astype(np.int32)
    share = float((labels == own).mean()) + EACH
    return np.where(due < share, own, labels).astype(np.int32)


def dask_setup(_worker: Any) -> None:
    """Put the stand-in in the kernel's place, on a worker."""
    from hmrf_dask.kernels import nearest
    from hmrf_dask.kernels.exact import exact_zero

    seconds = float(os.environ[SECONDS])
    Path("/proc/self/oom_score_adj").write_text("1000")  # of all processes here the first to go

    def asleep(rows: Any, _terms: Any, table: Any, labels: Any, **_known: Any) -> tuple[Any, Any]:
        nearest.approximate_table(table, dense=rows.dense)
        time.sleep(seconds * len(labels))
        topics = rows.indices[rows.indptr[:-1]]
        return moved(topics, labels, len(table.bias)), exact_zero()

    nearest.nearest = asleep


def fit(scheduler: str, rows: str, n_clusters: int, max_iter: int) -> dict[str, Any]:
    """Fit on a cluster; return commits, when tasks were named, the most memory of this process."""
    from distributed import Client

    from hmrf_dask import HMRFKMeans
    from hmrf_dask.flow.dataflow import DaskFlow
    from tests.benchmarks.iterations import watched_commits

    settings = {"n_init": 1, "tol": 0.0, "refine": False, "random_state": 0}
    named, key = [], DaskFlow._key

    def watched(flow: Any, name: str) -> str:
        named.append(time.perf_counter())
        return key(flow, name)

    DaskFlow._key = watched  # type: ignore[method-assign]
    with Client(scheduler, set_as_default=True), watched_commits() as marks:
        HMRFKMeans(n_clusters, init="random", max_iter=max_iter, **settings).fit(rows)
        ended = time.perf_counter()
        time.sleep(REST)
        rest = [ended, time.perf_counter()]
    done = [asdict(mark) for mark in marks]
    return {"marks": done, "peak": peak(), "tasks": named, "rest": rest}


def peak() -> int:
    """Return the most bytes that this process had in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def kernel(folder: str, n_clusters: int, n_rows: int) -> dict[str, float]:
    """Return the seconds of an E-step's kernels for one row, on one thread.

    "compare" is what a row takes that is compared with all clusters, "add" the sums of one that
    moves, "words" how many entries rows have.
    """
    import scipy.sparse

    from hmrf_dask.distortions import make_distortion
    from tests.benchmarks.corpora import load_matrix
    from tests.benchmarks.measuring import timed
    from tests.benchmarks.rows_kernels import block_of, extent_of

    X = load_matrix(Path(folder))[: 10 * n_rows]
    topics = X.indices[X.indptr[:-1]] % n_clusters
    members = scipy.sparse.csr_matrix((np.ones(len(topics)), (topics, np.arange(len(topics)))))
    block, ones = block_of(X[:n_rows]), np.ones(X.shape[1])
    distortion = make_distortion("cosine").bind(extent_of(block))
    table = distortion.table((members @ X).toarray(), ones)
    terms, labels = distortion.terms(block, ones), np.full(n_rows, -2, np.int32)
    distortion.make_ready(table, dense=False)
    own = distortion.nearest(block, terms, table, labels)[0]
    rows = (block, terms, ones, np.roll(own, 1), own, n_clusters)
    works = {
        "compare": lambda: distortion.nearest(block, terms, table, labels),
        "add": lambda: distortion.sum_moves(*rows, exponent=43),
    }
    took = {name: min(timed(work).wall for _ in range(3)) for name, work in works.items()}
    found = {name: seconds / n_rows for name, seconds in took.items()}
    return found | {"words": X.nnz / X.shape[0]}


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    numbers = [int(one) if one.isdecimal() else one for one in arguments]
    sys.stdout.write("\n" + json.dumps({"fit": fit, "kernel": kernel}[what](*numbers)) + "\n")
