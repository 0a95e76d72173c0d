"""Runs of a job that die: ``-m tests.support.killed_jobs JOB N SEED`` prints what each left.

A child is forked for every run, before this process has any threads, so that none pays for imports.
It is killed by SIGKILL at one of the writes a run makes, or in the middle of it, and run again.
With ``stopped`` as a fourth argument it is stopped there, another run takes over, and it wakes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from hmrf_dask.errors import HmrfError
from hmrf_dask.jobs.inputs import gather, load_job
from hmrf_dask.jobs.run_job import run_job
from hmrf_dask.releases.lock import open_output
from hmrf_dask.releases.release import damages, latest
from hmrf_dask.rows import files as rows_files
from hmrf_dask.storage.stores import LocalStorage

ROOT = Path(__file__).parents[2]
LEASE = "1 s"
WRITERS: tuple[tuple[Any, str], ...] = (
    (LocalStorage, "write"),
    (LocalStorage, "create"),
    (LocalStorage, "append"),
    (LocalStorage, "delete"),
    (LocalStorage, "sync_folders"),
    (LocalFileSystem, "pipe_file"),
    (rows_files, "_put"),
)
HALVES = (".temporary", ".part")


def killed_jobs(job: Path, n_kills: int, seed: int, how: str = "killed") -> dict[str, Any]:
    """Kill and resume runs of a job in a process of its own; return what it printed."""
    arguments = [str(job), str(n_kills), str(seed), how]
    command = [sys.executable, "-m", "tests.support.killed_jobs", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _count_writes(at: int, kind: signal.Signals = signal.SIGKILL) -> list[str]:
    """Make every write count, and the one with number `at` the last thing this process does."""
    names: list[str] = []

    def counting(name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            kills = next((one for one in arguments if isinstance(one, str)), name)
            names.append(kills)
            if len(names) == at:
                os.kill(os.getpid(), kind)
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


def _ended_late(job: Path, output: str, at: int) -> dict[str, Any]:
    """Run a job that is stopped at a write; return how it ended when it was woken."""
    import dask

    _count_writes(at, signal.SIGSTOP)
    with dask.config.set({"scheduler": "threads", "num_workers": 2, "hmrf.lease": LEASE}):
        try:
            run_job(gather(load_job(str(job), {"output": output}), str(job)))
        except HmrfError as error:
            return {"code": error.exit_code, "words": str(error)}
    return {"code": 0, "words": ""}


def _stopped(job: Path, output: str, at: int) -> dict[str, Any]:
    """Stop a run at a write, let another one take over and end, and wake the first."""
    place = str(job.parent / output)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            json.dump(_ended_late(job, output, at), pipe)
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, os.WUNTRACED)
    until = time.monotonic() + 60.0
    while (over := _forked(lambda: _run(job, output, 0))[0]) and time.monotonic() < until:
        time.sleep(0.1)  # refused until the lease is over
    ended = _forked(lambda: _seen(place))[1]
    files = _below(place)
    os.kill(child, signal.SIGCONT)
    with os.fdopen(reading) as pipe:
        late = json.load(pipe)
    os.waitpid(child, 0)
    return {
        "stopped": os.WIFSTOPPED(status),
        "taken": over == 0,
        "ended": ended,
        **late,
        "changed": sorted(name for name, _ in files.items() ^ _below(place).items()),
        "same": _forked(lambda: _seen(place))[1] == ended,
    }


def _below(place: str) -> dict[str, bytes]:
    """Return the files of an output, but for halves of files and what says how far a run is."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in Path(place).rglob("*")
        if path.is_file() and "holders" not in path.parts and path.suffix not in HALVES
    }


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
    assert damages(open_output(output), release) == []
    run = f"runs/{release.run}/run.json"  # its times differ
    files = {name: sha256 for name, sha256 in release.files.items() if name != run}
    return {"files": files, "counts": release.counts, "model": release.model}


def main(job: Path, n_kills: int, seed: int, how: str = "killed") -> None:
    """Run once to the end, then die `n_kills` times and run again each time."""
    chosen = random.Random(seed)
    status, names = _forked(lambda: _run(job, "whole", 0))
    assert status == 0
    expected = _forked(lambda: _seen(str(job.parent / "whole")))[1]
    step = len(names) / n_kills
    kills = []
    for number in range(n_kills):
        # One in each part of the run, at a random place.
        at = 1 + int(number * step + chosen.random() * step)
        output = f"killed-{number}"
        if how == "stopped":
            found = _stopped(job, output, at)
            found["as_undisturbed"] = found.pop("ended") == expected
            kills.append({"at": f"{names[at - 1]} ({at} of {len(names)})", **found})
            continue
        place = str(job.parent / output)
        status, _ = _forked(lambda output=output, at=at: _run(job, output, at))
        seen = _forked(lambda place=place: _seen(place))[1]
        again, _ = _forked(lambda output=output: _run(job, output, 0))
        ended = _forked(lambda place=place: _seen(place))[1]
        kills.append(
            {
                "at": f"{names[at - 1]} ({at} of {len(names)})",
                "killed": status == signal.SIGKILL,
                "half": seen is not None and seen != expected,
                "resumed": again == 0,
                "same": ended == expected,
            }
        )
    sys.stdout.write(json.dumps({"n_writes": len(names), "kills": kills}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
