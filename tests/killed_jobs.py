"""Runs of a job that die: ``python -m tests.killed_jobs JOB N SEED`` prints what each left behind.

A child is forked for every run, before this process has any threads, so that none pays for imports.
It is killed by SIGKILL at one of the writes a run makes, or in the middle of it, and run again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from hmrf_dask.jobs.inputs import gather, load_job
from hmrf_dask.jobs.run_job import run_job
from hmrf_dask.releases import damages, latest
from hmrf_dask.runs.storage import LocalStorage
from hmrf_dask.store import blocks

ROOT = Path(__file__).parents[1]
WRITERS: tuple[tuple[Any, str], ...] = (
    (LocalStorage, "write"),
    (LocalStorage, "create"),
    (LocalStorage, "append"),
    (LocalStorage, "delete"),
    (LocalStorage, "settle"),
    (LocalFileSystem, "pipe_file"),
    (blocks, "_put"),
)


def killed_jobs(job: Path, n_kills: int, seed: int) -> dict[str, Any]:
    """Kill and resume runs of a job in a process of its own; return what it printed."""
    command = [sys.executable, "-m", "tests.killed_jobs", str(job), str(n_kills), str(seed)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _count_writes(at: int) -> list[str]:
    """Make every write count, and the one with number `at` the last thing this process does."""
    names: list[str] = []

    def counting(name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            told = next((one for one in arguments if isinstance(one, str)), name)
            names.append(told)
            if len(names) == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return write(*arguments, **named)

        return counted

    for owner, name in WRITERS:
        setattr(owner, name, counting(name, getattr(owner, name)))
    return names


def _run(job: Path, output: str, at: int) -> list[str]:
    import dask

    names = _count_writes(at)
    with dask.config.set(scheduler="threads", num_workers=2):
        run_job(gather(load_job(str(job), {"output": output}), str(job)))
    return names


def _forked(function: Callable[[], Any]) -> tuple[int, Any]:
    """Call a function in a child; return its exit status and what it returned, if anything."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        status = 1
        try:
            with os.fdopen(writing, "w") as pipe:
                json.dump(function(), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return status, json.loads(text) if text else None


def _seen(output: str) -> dict[str, Any] | None:
    """Return what a reader sees: the files of the last release, none of them damaged."""
    release = latest(output)
    if release is None:
        return None
    assert damages(output, release) == []
    run = f"runs/{release.run}/run.json"  # its times differ
    files = {name: sha256 for name, sha256 in release.files.items() if name != run}
    return {"files": files, "counts": release.counts, "model": release.model}


def main(job: Path, n_kills: int, seed: int) -> None:
    """Run once to the end, then die `n_kills` times and run again each time."""
    chosen = random.Random(seed)
    status, names = _forked(lambda: _run(job, "whole", 0))
    assert status == 0
    expected = _forked(lambda: _seen(str(job.parent / "whole")))[1]
    step = len(names) / n_kills
    told = []
    for number in range(n_kills):
        # One in each part of the run, at a random place.
        at = 1 + int(number * step + chosen.random() * step)
        output = f"killed-{number}"
        place = str(job.parent / output)
        status, _ = _forked(lambda output=output, at=at: _run(job, output, at))
        seen = _forked(lambda place=place: _seen(place))[1]
        again, _ = _forked(lambda output=output: _run(job, output, 0))
        ended = _forked(lambda place=place: _seen(place))[1]
        told.append(
            {
                "at": f"{names[at - 1]} ({at} of {len(names)})",
                "killed": status == signal.SIGKILL,
                "half": seen is not None and seen != expected,
                "resumed": again == 0,
                "same": ended == expected,
            }
        )
    sys.stdout.write(json.dumps({"n_writes": len(names), "kills": told}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
