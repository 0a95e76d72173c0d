"""Asks the Python peer, which lives under a Python of its own, for the time of a fit."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hmrf_dask.errors import ConfigurationError
from pipelines.papers.sets import Rows
from pipelines.papers.supervision import Given

SCRIPT = Path(__file__).with_name("python_peer.py")
PACKAGE = "active-semi-supervised-clustering"
OTHER_SEEDS = 5  # it gives up where a random start leaves a cluster empty


def fit_peer(
    python: str, name: str, max_iter: int, rows: Rows, given: Given, seed: int
) -> tuple[float, float, int]:
    """Return wall and CPU seconds and iterations of the peer's fit.

    Parameters
    ----------
    python : str
        A Python that has the peer.
    name : str
        Of its estimator.
    max_iter : int
    rows : Rows
        Dense ones.
    given : Given
    seed : int
        Of its first try; where it gives up another one is tried.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "given.npz")
        np.savez(
            path, rows=rows.values, must_link=given.must_link, cannot_link=given.cannot_link,
            n_clusters=rows.n_clusters, max_iter=max_iter,
        )  # fmt: skip
        for other in range(OTHER_SEEDS):
            told = _asked(python, path, name, seed + 1000 * other)
            if not told["error"]:
                return told["seconds"], told["cpu_seconds"], told["iterations"]
    raise ConfigurationError(
        f"{PACKAGE} must fit {len(rows.classes):,} rows, got {told['error']} with each of "
        f"{OTHER_SEEDS} seeds; leave --peer-python out"
    )


def _asked(python: str, path: Path, name: str, seed: int) -> dict[str, Any]:
    """Return what the script of the peer prints."""
    command = [python, str(SCRIPT), str(path), name, str(seed)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise ConfigurationError(
            f"--peer-python must be a Python that has {PACKAGE} 0.0.1, got {python} "
            f"({lines[-1] if lines else error}); install it there: pip install {PACKAGE}"
        ) from error
    found: dict[str, Any] = json.loads(done.stdout)
    return found
