"""Times `active-semi-supervised-clustering` 0.0.1 where it is installed; knows nothing of us.

`PEER_PYTHON python_peer.py FILE NAME SEED` prints seconds, CPU seconds and iterations as JSON. FILE
is an .npz of `rows`, `must_link`, `cannot_link`, `n_clusters` and `max_iter`.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

import numpy as np

PACKAGE = "active_semi_clustering.semi_supervised.pairwise_constraints"


def timed(path: str, name: str, seed: int) -> dict[str, Any]:
    """Fit one of its estimators; `error` names what it could not do."""
    pairwise_constraints = importlib.import_module(PACKAGE)

    given = np.load(path, allow_pickle=False)
    model = getattr(pairwise_constraints, name)(
        n_clusters=int(given["n_clusters"]), max_iter=int(given["max_iter"])
    )
    passes, assign = [0], model._get_cluster_centers  # centroids are made once an iteration

    def counted(*arguments: Any) -> Any:
        passes[0] += 1
        return assign(*arguments)

    model._get_cluster_centers = counted
    np.random.seed(seed)  # noqa: NPY002  its only source of random numbers
    pairs = {"ml": given["must_link"].tolist(), "cl": given["cannot_link"].tolist()}
    wall, processor = time.perf_counter(), time.process_time()
    error = ""
    try:
        model.fit(given["rows"], **pairs)
    except Exception as stopped:  # noqa: BLE001 - it gives up on an empty cluster, among others
        error = type(stopped).__name__
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - processor,
        "iterations": passes[0],
        "error": error,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(timed(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
