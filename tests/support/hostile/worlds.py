"""Hostile inputs, each one line: files laid over a small healthy world, a command, what must come.

`check` runs one: no traceback, an exit code of the documented ones, one line that names the place,
no file of the user's changed, in bounded time and, in a process of its own, in bounded memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp
from click.testing import CliRunner

from hmrf_dask.cli.commands import hmrf
from tests.support.job_corpus import JobCorpus

REFUSED = (2, 65, 75, 78)
SECONDS = 60
MEMORY = 4 * 2**30  # bytes of address space of a case in a process of its own
LONGEST_ERROR = 1500  # characters
Content = bytes | Callable[[Path], None]
RUN, CHECK = ("run", "job.yaml", "-q"), ("check", "manifest.yaml", "--all", "-q")
FIT = ("fit", "rows.npz", "-k3", "--n-init=1", "--run-dir=run", "-q")


@dataclass(frozen=True)
class Case:
    """One hostile input.

    Attributes
    ----------
    name : str
    command : tuple of str
        In the world's folder.
    files : dict
        By name: bytes, or a function that makes the file at a path.
    place : str
        What the error must name.
    fine : bool
        Whether the command must do its work all the same.
    alone : bool
        Whether it runs in a process of its own, whose memory is capped.
    """

    name: str
    command: tuple[str, ...]
    files: dict[str, Content] = field(default_factory=dict)
    place: str = ""
    fine: bool = False
    alone: bool = False


def make_world(folder: Path) -> None:
    """Write documents, answers, manifest and job, rows with pairs, classes and assignments."""
    JobCorpus(folder).write_all(n_documents=45, n_pairs=6)
    groups = np.repeat(np.arange(3), 20)
    dense = np.random.default_rng(0).random((60, 30)) * (groups[:, None] == np.arange(30) // 10)
    sp.save_npz(folder / "rows.npz", sp.csr_array(dense.astype(np.float32)))
    np.save(folder / "init.npy", dense[[0, 20, 40]])
    (folder / "pairs.csv").write_text("a,b,kind\n0,1,must\n0,20,cannot\n")
    lines = [f"{row},c{group}" for row, group in enumerate(groups)]
    (folder / "truth.csv").write_text("\n".join(["id,label", *lines]))
    (folder / "assigned").mkdir()
    table = pa.table({"doc_id": [str(row) for row in range(60)], "cluster": groups})
    pq.write_table(table, folder / "assigned" / "part.parquet")


def check(case: Case, world: Path, folder: Path) -> str:
    """Return what is wrong with how the program takes a case, "" if nothing is."""
    shutil.copytree(world, folder)
    for name, content in case.files.items():
        _lay(folder / name, content)
    before = _digests(folder)
    code, said = (_alone if case.alone else _inside)(case.command, folder)
    errors = [line for line in said.splitlines() if line.lower().startswith("error: ")]
    wrong = {
        "a traceback": "Traceback" in said,
        "another exit code": code not in ((0,) if case.fine else REFUSED),
        "not one line of error": len(errors) != (0 if case.fine else 1),
        "a secret is shown": "CANARY" in said,
        "a long line": any(len(line) > LONGEST_ERROR for line in said.splitlines()),
        "the place is not named": not case.fine and case.place not in said,
        "files of the user changed": before.items() - _digests(folder).items(),
    }
    problems = [words for words, found in wrong.items() if found]
    return (
        f"{case.name}: {', '.join(problems)}; exit code {code}: {said[-1500:]}" if problems else ""
    )


def _lay(path: Path, content: Content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(content):
        if path.is_file():
            path.unlink()
        content(path)
    else:
        path.write_bytes(content)


def _digests(folder: Path) -> dict[str, str]:
    """Return the hash of every small file of the user's."""
    found: dict[str, str] = {}
    for one in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a task of a command that ended, at work yet
            if one.is_file() and one.stat().st_size < 2**26:
                found[str(one)] = hashlib.sha256(one.read_bytes()).hexdigest()
    return found


def _inside(command: tuple[str, ...], folder: Path) -> tuple[int, str]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        result = CliRunner().invoke(hmrf, list(command))
    finally:
        os.chdir(before)
    error = result.exception
    raised = "" if error is None or isinstance(error, SystemExit) else f"Traceback: {error!r:.500}"
    return result.exit_code, result.output + raised


def _alone(command: tuple[str, ...], folder: Path) -> tuple[int, str]:
    code = (
        "import resource, sys; "
        f"resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY})); "
        "from hmrf_dask.cli.commands import hmrf; hmrf(sys.argv[1:])"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *command], cwd=folder, capture_output=True, text=True,
            timeout=SECONDS, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"not done in {SECONDS} s"
    return done.returncode, done.stdout + done.stderr
