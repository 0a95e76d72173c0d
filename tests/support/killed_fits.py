"""A fit that kills itself: ``python -m tests.support.killed_fits CASE RUN_DIR COMMIT WHEN``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np

from hmrf_dask.checkpoints.directory import RunDirectory
from hmrf_dask.checkpoints.records import Commit
from tests.support.fits import Case, Result, fit, text_case

ROOT = Path(__file__).parents[2]
WHENS = ("after", "while cleaning", "before")
SIZES = {"n_rows": 120, "n_features": 150, "n_clusters": 3, "n_pairs": 60}


def make_case(name: str, scale: int = 1) -> Case:
    """Return a case by name, its corpus `scale` times as large."""
    sizes = {**SIZES, "n_rows": scale * 120, "n_features": scale * 150, "n_pairs": scale * 60}
    parameters: dict[str, dict[str, Any]] = {
        "cosine": {"n_init": 1},
        "kl": {"distortion": "kl", "init": "neighborhoods"},
        "euclidean": {"distortion": "euclidean", "init": "k-means++"},
    }
    return text_case(**{**sizes, **parameters[name]})


def phases_of(run_dir: str) -> list[str]:
    """Return the phase of every commit of a finished run."""
    from hmrf_dask.checkpoints.directory import CommitLog
    from hmrf_dask.storage.stores import open_storage

    log = CommitLog(open_storage(run_dir, {}, True))
    return [commit.record["phase"] for commit in log._readable(10**9)][::-1]


def killed_fit(name: str, run_dir: str, commit: int, when: str, scale: int = 1) -> int:
    """Run a fit in a process of its own that dies at a commit; return how it ended."""
    arguments = [name, run_dir, str(commit), when, str(scale)]
    command = [sys.executable, "-m", "tests.support.killed_fits", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def die(*_: Any) -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def main(name: str, run_dir: str, commit: str, when: str, scale: str) -> None:
    """Fit and die."""
    keep = RunDirectory.commit

    def mortal_commit(self: RunDirectory, number: int, *arguments: Any) -> Commit:
        if when == "before" and number == int(commit):
            die()
        made = keep(self, number, *arguments)
        if when == "after" and number == int(commit):
            die()
        if when == "while cleaning" and number >= int(commit):
            self._log.storage.delete = die  # type: ignore[method-assign]
        return made

    RunDirectory.commit = mortal_commit  # type: ignore[method-assign]
    with dask.config.set(scheduler="threads", num_workers=2):
        fit(make_case(name, int(scale)), 3, run_dir=run_dir)


if __name__ == "__main__":
    main(*sys.argv[1:])


def spread_kills(phases: Sequence[str], n_kills: int) -> list[int]:
    """Return commits to be killed at: the last of every phase first, then evenly spread ones."""
    last = {phase: number + 1 for number, phase in enumerate(phases)}
    evenly = np.linspace(1, len(phases), n_kills).astype(int).tolist()
    return list(dict.fromkeys([*last.values(), *evenly]))[:n_kills]


def resumes_to(
    name: str, root: Path, kills: Sequence[tuple[int, str]], bounds: Any, scale: int = 1
) -> Result:
    """Kill one run at several commits, one after the other, and return what it ends with."""
    run_dir = str(root / "run")
    for commit, when in kills:
        assert killed_fit(name, run_dir, commit, when, scale) == -signal.SIGKILL
    return fit(make_case(name, scale), bounds, run_dir=run_dir)
