"""Processes that want an output: ``python -m tests.support.output_processes COMMAND OUTPUT …``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hmrf_dask.errors import HeldError
from hmrf_dask.releases import own_files
from hmrf_dask.releases.lock import held
from hmrf_dask.releases.ownership import clean
from hmrf_dask.releases.release import Contents, latest, publish
from hmrf_dask.storage.stores import LocalStorage

ROOT = Path(__file__).parents[2]


def started(*arguments: str) -> subprocess.Popen[str]:
    """Return a process of its own that runs a command of this module."""
    command = [sys.executable, "-m", "tests.support.output_processes", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def say(answer: object) -> None:
    """Tell the test."""
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


def hold(output: str) -> None:
    """Hold an output, say so, and wait to be killed."""
    with held(output, "sleeper"):
        say("held")
        time.sleep(600)


def race(output: str) -> None:
    """Let eight processes begin at once; each holds the output until all of them have tried."""
    children = []
    for number in range(8):
        if not (child := os.fork()):
            os._exit(compete(Path(output), str(number)))
        children.append(child)
    while len(list(Path(output).glob("ready-*"))) < 8:
        time.sleep(0.01)
    Path(output, "go").touch()
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    say(json.dumps([codes, children]))


def compete(folder: Path, name: str) -> int:
    """Try to hold a folder and write down how that went."""
    (folder / f"ready-{name}").touch()
    while not (folder / "go").exists():
        time.sleep(0.001)
    tried = folder / f"tried-{name}"
    try:
        with held(str(folder), name):
            tried.write_text("won")
            while len(list(folder.glob("tried-*"))) < 8:
                time.sleep(0.01)
    except HeldError as error:
        tried.write_text(str(error))
        return error.exit_code
    return 0


def release(output: str, run_id: str, calls: str) -> None:
    """Publish a run and clean, but die at the nth change of the output."""
    left = int(calls)

    def dying(name: str) -> None:
        method = getattr(LocalStorage, name)

        def mortal(self: LocalStorage, *arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return method(self, *arguments)

        setattr(LocalStorage, name, mortal)

    for name in ("create", "write", "sync_folders", "delete"):
        dying(name)
    publish_run(output, run_id)


def called(name: str) -> str:
    """Return the id of a run, in the form that runs have."""
    return name * 16


def publish_run(output: str, run_id: str) -> None:
    """Write two files, publish them, and keep the last two releases."""
    from hmrf_dask.storage.stores import open_storage

    with held(output, run_id, beat=600) as own:
        storage = open_storage(output, {}, durable=True)
        files, folder = {}, f"runs/{run_id}"
        own_files.record(storage, run_id, [folder])
        for name in (f"{folder}/assignments/part-00000-of-00001.parquet", f"{folder}/run.json"):
            storage.write(name, content_of(name))
            files[name] = sha256_of(name)
        publish(
            own,
            run_id=run_id,
            previous=latest(output),
            contents=Contents(files, [run_id], {"documents": 3}, "m"),
        )
        clean(own, keep=2)


def content_of(name: str) -> bytes:
    """Return what a file of a run holds."""
    return f"{name}\n".encode() * 100


def sha256_of(name: str) -> str:
    """Return its checksum."""
    import hashlib

    return hashlib.sha256(content_of(name)).hexdigest()


if __name__ == "__main__":
    {"hold": hold, "race": race, "release": release}[sys.argv[1]](*sys.argv[2:])
