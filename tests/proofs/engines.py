"""A row of the proof table: Airflow, Prefect and Dagster run the job as deploy/schedules says.

Each is installed into an environment of its own below .venv-engines, which stays for the next time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.proofs.loop import Figures, Row
from tests.support.job_corpus import JobCorpus

ROOT = Path(__file__).parents[2]
PLACE = "/srv/clusters"
SECONDS = 600
CODES = (0, 65)  # what the command ends with: done, and what needs a person


class Engine(NamedTuple):
    """A tool that starts the job, and how to have it run a night now."""

    name: str
    packages: Sequence[str]
    file: str
    commands: Sequence[Sequence[str]]  # the last runs a night


ENGINES = (
    Engine(
        "airflow",
        ["apache-airflow"],
        "airflow_dag.py",
        [["airflow", "db", "migrate"], ["airflow", "dags", "test", "clusters", "2026-01-02"]],
    ),
    Engine(
        "prefect",
        ["prefect", "fastapi<0.140"],  # its own bound admits releases that it cannot work with
        "prefect_flow.py",
        [["python", "-c", "from prefect_flow import clusters; clusters()"]],
    ),
    Engine(
        "dagster",
        ["dagster"],
        "dagster_job.py",
        [["dagster", "job", "execute", "-f", "dagster_job.py", "-j", "clusters"]],
    ),
)


def programs_of(engine: Engine) -> Path:
    """Return the folder of an engine's programs; install it where it is not there."""
    folder = ROOT / ".venv-engines" / engine.name
    if not (folder / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(folder / "bin" / "pip"), "install", "--quiet", *engine.packages]
        subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
        (folder / "installed").touch()
    return folder / "bin"


def place_of(folder: Path, code: int) -> Path:
    """Make what stands for /srv/clusters: a job that ends with a code, the command, the script."""
    JobCorpus(folder).write_all(60 if code == 0 else 2, 0)
    program = folder / ".venv" / "bin" / "hmrf-dask"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m hmrf_dask "$@"\n')
    program.chmod(0o755)
    shutil.copy(ROOT / "deploy" / "schedules" / "nightly.sh", folder)
    return folder


def night(engine: Engine, programs: Path, folder: Path, code: int) -> dict[str, Any]:
    """Have an engine run a night; tell what it and the job made of it."""
    place = place_of(folder / "clusters", code)
    own = folder / "engine"
    (own / "dags").mkdir(parents=True)
    text = (ROOT / "deploy" / "schedules" / engine.file).read_text().replace(PLACE, str(place))
    for path in (own / engine.file, own / "dags" / engine.file):
        path.write_text(text)
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": "",
        "AIRFLOW_HOME": str(own),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PREFECT_HOME": str(own),
        "DAGSTER_HOME": str(own),
    }
    for command in engine.commands:
        done = subprocess.run(
            command, cwd=own, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    released = [*(place / "out").glob("releases/*")] if (place / "out").exists() else []
    said = done.stdout + done.stderr
    failed = done.returncode != 0 or "state=failed" in said
    return {"failed": failed, "releases": len(released)}


def engines() -> Figures:
    """Have each engine run a night that ends well, and one that does not."""
    figures: Figures = {}
    for engine in ENGINES:
        try:
            programs = programs_of(engine)
        except subprocess.CalledProcessError:
            figures[engine.name] = "cannot be installed here"
            continue
        for code in CODES:
            with tempfile.TemporaryDirectory() as folder:
                figures[f"{engine.name}, {code}"] = night(engine, programs, Path(folder), code)
    return figures


def _as_the_job_ended(figures: Figures) -> bool:
    nights = {name: found for name, found in figures.items() if isinstance(found, dict)}
    return bool(nights) and all(
        found["failed"] == (not name.endswith(", 0")) and (found["releases"] > 0) != found["failed"]
        for name, found in nights.items()
    )


ENGINE_ROWS = (
    Row(
        "engines",
        "Airflow, Prefect and Dagster run a night, and tell one that fails",
        engines,
        _as_the_job_ended,
    ),
)
