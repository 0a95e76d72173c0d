"""A row of the proof table: workers of other environments, refused soon and in words."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from tests.proofs.loop import Figures, Row
from tests.support.dask_processes import SECONDS, dask_processes
from tests.support.job_corpus import JobCorpus

WITHIN = 30.0  # seconds from the command to its end
OURS = "hmrf_dask"
LONGEST = 800  # characters that are still a paragraph


class Odd(NamedTuple):
    """A worker that does not fit."""

    what: str
    words: Sequence[str]  # of the refusal
    code: int = 78
    package: str = ""  # another release of it, as pip names them
    without: str = ""  # a module that its environment has not
    options: Sequence[str] = ()
    environment: Mapping[str, str] = MappingProxyType({})
    fits: bool = False  # rows with many clusters; else it runs a small job


ODD = (
    Odd("another numpy", ["with numpy 2.3.5, not"], package="numpy==2.3.5"),
    Odd("another numba", ["with numba 0.68.0, not"], package="numba==0.68.0"),
    Odd(
        "another instruction set",
        ["with instruction set nehalem/"],
        environment={"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "+sse3,+ssse3,+popcnt"},
    ),
    Odd("without the package", ["with hmrf-dask missing, not"], without=OURS),
    Odd("less memory than the program", ["with 400 MiB"], options=("--memory-limit", "400MiB")),
    Odd("less memory than planned", ["memory"], options=("--memory-limit", "600MiB"), fits=True),
)
N_WORDS, N_CLUSTERS = 200_000, 1000  # centroids take 800 MB


def environment_of(folder: Path, odd: Odd) -> str:
    """Make a virtual environment like this one, but for one package; return its Python."""
    if not (odd.package or odd.without):
        return sys.executable
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    found = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    own = Path(found.stdout.strip())
    left_out = odd.without or odd.package.partition("==")[0]
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        # neither it, nor what says where it is: this package is installed as a link to its source
        named = entry.name.lower().lstrip("_").removeprefix("editable_impl_")
        if not named.startswith((left_out, f"{left_out}-", f"{left_out}.")):
            (own / entry.name).symlink_to(entry)
    if odd.package:
        pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(own), odd.package]
        subprocess.run([sys.executable, *pip], check=True, stderr=subprocess.DEVNULL)
    return str(python)


def job(folder: Path, scheduler_file: str) -> list[str]:
    """Return the command of a small job that waits for both workers."""
    where = {"scheduler_file": scheduler_file, "wait_for": 2}
    return ["run", str(JobCorpus(folder).write_all(60, 5, cluster=where))]


def fit(folder: Path, scheduler_file: str) -> list[str]:
    """Return the command of a fit whose centroids are large, once both workers are there."""
    rows = scipy.sparse.random(2000, N_WORDS, 1e-4, "csr", np.float32, np.random.default_rng(0))
    scipy.sparse.save_npz(folder / "rows.npz", rows)
    logs = [folder / f"worker-{number}.log" for number in (1, 2)]
    while not all("Registered to" in log.read_text() for log in logs):
        time.sleep(0.1)
    options = [f"--n-clusters={N_CLUSTERS}", f"--run-dir={folder / 'run'}"]
    return ["fit", str(folder / "rows.npz"), *options, f"--scheduler-file={scheduler_file}"]


def refused(folder: Path, odd: Odd) -> dict[str, Any]:
    """Run a job on a worker as it should be and one that is not; tell how it ended, and when."""
    python = environment_of(folder / "venv", odd)
    with dask_processes(folder, 1) as processes:
        elsewhere = {"PYTHONPATH": ""} if odd.without else {}
        processes.worker(*odd.options, python=python, **odd.environment, **elsewhere)
        command = (fit if odd.fits else job)(folder, processes.scheduler_file)
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", OURS, *command, "--json", "--quiet"],
            env=processes.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        seconds = time.perf_counter() - began
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    return {
        "code": done.returncode,
        "seconds": round(seconds, 1),
        "lines": len(done.stderr.splitlines()),
        "error": errors[0] if errors else done.stderr[-LONGEST:],
    }


def refusals() -> Figures:
    """Let each kind of worker be refused."""
    figures: Figures = {}
    for odd in ODD:
        with tempfile.TemporaryDirectory() as folder:
            try:
                figures[odd.what] = refused(Path(folder), odd)
            except subprocess.CalledProcessError:
                return {"skipped": f"{odd.package} cannot be installed here: no index of packages"}
    return figures


def _all_refused(figures: Figures) -> bool:
    return all(
        found["code"] == odd.code
        and found["seconds"] <= WITHIN
        and len(found["error"]) < LONGEST
        and all(words in found["error"] for words in odd.words)
        for odd, found in ((odd, figures[odd.what]) for odd in ODD)
    )


REFUSAL_ROWS = (
    Row(
        "refusals",
        f"a worker of another kind is refused in one paragraph within {WITHIN:g} s",
        refusals,
        _all_refused,
    ),
)
