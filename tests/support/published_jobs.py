"""Nights of a job that dies while it publishes: ``-m tests.support.published_jobs JOB N SEED``.

The job publishes into the database of PUBLISHED_URL. Two readers ask it all the time. N times three
nights are run by children that are forked before this process has any threads: in each night one is
killed by SIGKILL, at a statement or at some moment, and another one ends.
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

from hmrf_dask.databases.connection import Database, open_database
from hmrf_dask.databases.relations import PostgresRelations
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.jobs.inputs import gather, load_job
from hmrf_dask.jobs.run_job import report_if_done, run_job

ROOT = Path(__file__).parents[2]
URL_ENV = "PUBLISHED_URL"
NIGHTS = 3
STATE = (
    "SELECT count(*), min(c.k), count(name), "
    "sum(hashtextextended(doc_id || ':' || cluster || ':' || name, 0)::numeric)::text "
    "FROM {0} CROSS JOIN (SELECT count(*) AS k FROM {0}_clusters) c"
)


def published_jobs(job: Path, n_times: int, seed: int) -> dict[str, Any]:
    """Kill and resume the nights of a job in a process of its own; return what it printed."""
    command = [sys.executable, "-m", "tests.support.published_jobs", str(job), str(n_times)]
    done = subprocess.run([*command, str(seed)], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _run(job: Path, output: str, at: int = 0) -> int:
    """Run a night, killed at its statement `at`; return how many statements there are."""
    import dask

    n_statements = 0

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal n_statements
            n_statements += 1
            if n_statements == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return counted

    for owner, name in (
        (Database, "run"), (Database, "rows"), (PostgresRelations, "load"),
        (PostgresRelations, "commit"),
    ):  # fmt: skip
        setattr(owner, name, counting(getattr(owner, name)))
    publish = {"sql": {"table": output, "url_env": URL_ENV}}
    inputs = gather(load_job(str(job), {"output": output, "publish": publish}), str(job))
    with dask.config.set(scheduler="threads", num_workers=2):
        if report_if_done(inputs) is None:
            run_job(inputs)
    return n_statements


def _forked(function: Callable[[], Any], kill_after: float | None = None) -> Any:
    """Call a function in a child; return what it returned, None where it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            with os.fdopen(writing, "w") as pipe:
                json.dump(function(), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError(f"a run ended with {os.WEXITSTATUS(status)}")
    return json.loads(text) if text else None


def _state(table: str) -> list[Any] | None:
    """Return what a reader sees, None before the first release."""
    try:
        with open_database(URL_ENV) as database:
            return list(database.rows(STATE.format(table))[0])
    except ConfigurationError:  # there is no such view yet
        return None


def _read(path: Path, table: Path, stop: Path) -> None:
    """Write down each state that is seen until a file is there, and how often was read.

    Whose snapshot is older than the first release may find the view, and nothing in it: that is
    as if there were none, but only until a release was seen.
    """
    seen: dict[str, int] = {}
    with_release: set[str] = set()
    while not stop.exists():
        name = table.read_text()
        found = _state(name)
        if found is not None and found[0]:
            with_release.add(name)
        elif name not in with_release:
            found = None
        state = json.dumps(found)
        seen[state] = seen.get(state, 0) + 1
    path.write_text(json.dumps(seen))


def _put(job: Path, night: int) -> None:
    """Let the documents of all nights so far be there, and no others."""
    for number in range(2, NIGHTS + 1):
        for path in job.parent.glob(f"night-{number}/*"):
            there = job.parent / "documents" / path.name
            there.unlink(missing_ok=True)
            if number <= night:
                there.write_bytes(path.read_bytes())


def _undisturbed(job: Path) -> list[tuple[int, float, Any]]:
    """Return of each night how many statements it has, its seconds, and what readers see then."""
    nights = []
    for night in range(1, NIGHTS + 1):
        _put(job, night)
        began = time.monotonic()
        n_statements = _forked(lambda: _run(job, "expected"))
        seconds = time.monotonic() - began
        nights.append((n_statements, seconds, _forked(lambda: _state("expected"))))
    return nights


def main(job: Path, n_times: int, seed: int) -> None:
    """Play the nights undisturbed, then with kills."""
    chosen, expected = random.Random(seed), _undisturbed(job)
    stop, table = job.parent / "stop", job.parent / "table"
    table.write_text("killed_0")
    files = [job.parent / f"reader-{one}" for one in (1, 2)]
    readers = [_beside(lambda file=file: _read(file, table, stop)) for file in files]
    killed, same = 0, 0
    try:
        for number in range(n_times):
            name = f"killed_{number}"
            temporary = job.parent / "table.new"
            temporary.write_text(name)
            temporary.replace(table)
            for night, (n_statements, seconds, state) in enumerate(expected, 1):
                _put(job, night)
                at = chosen.randint(1, n_statements) if (number + night) % 2 else 0
                moment = None if at else chosen.uniform(0.1, 0.95) * seconds
                killed += _forked(lambda at=at, name=name: _run(job, name, at), moment) is None
                _forked(lambda name=name: _run(job, name))
                same += _forked(lambda name=name: _state(name)) == state
    finally:
        stop.touch()
        for reader in readers:
            os.waitpid(reader, 0)
    seen: dict[str, int] = {}
    for file in files:
        for state, reads in json.loads(file.read_text()).items():
            seen[state] = seen.get(state, 0) + reads
    whole = {json.dumps(state) for state in (None, *(state for *_, state in expected))}
    found = {
        "killed": killed,
        "reads": sum(seen.values()),
        "states": len(seen),
        "not whole": [state for state in seen if state not in whole],
        "same": same,
    }
    sys.stdout.write(json.dumps(found) + "\n")


def _beside(function: Callable[[], None]) -> int:
    """Call a function in a child that goes on meanwhile; return its number."""
    child = os.fork()
    if not child:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    return child


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
