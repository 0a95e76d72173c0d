"""What deploy/ has systemd, cron, CI and Compose start is run as they would start it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
import yaml

from hmrf_dask.releases.release import latest
from tests.support.dask_processes import SECONDS, make_certificates
from tests.support.job_corpus import JobCorpus, lines
from tests.support.names import named_hosts

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PLACE = "/srv/clusters"
N_DOCUMENTS = 60


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give what stands for /srv/clusters: a job, and an environment in .venv."""
    folder = tmp_path / "clusters"
    folder.mkdir()
    JobCorpus(folder).write_all(N_DOCUMENTS, 5)
    program = folder / ".venv" / "bin" / "hmrf-dask"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m hmrf_dask "$@"\n')
    program.chmod(0o755)
    return folder


def run_as(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Run a line of a shell with nothing but this environment; return what it prints."""
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_released(printed: str, folder: Path) -> None:
    assert json.loads(printed)["documents"]["all"] == N_DOCUMENTS
    assert latest(str(folder / "out")) is not None


def lines_of_unit(place: Path) -> dict[str, str]:
    text = (DEPLOY / "systemd" / "hmrf-nightly.service").read_text().replace(PLACE, str(place))
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


@pytest.mark.long
def test_the_service_runs_as_its_unit_says_and_writes_in_its_folder_alone(place: Path) -> None:
    unit = lines_of_unit(place)
    own, environment = unit["ReadWritePaths"], "PATH=/usr/bin:/bin HOME=/nonexistent"
    assert (unit["ProtectSystem"], unit["WorkingDirectory"]) == ("strict", own)
    run = f"cd {own} && env -i {unit['Environment']} {environment} {unit['ExecStart']}"
    if os.geteuid() == 0 and shutil.which("unshare"):  # as root: nothing else can be written to
        seal = f"mount --bind {own} {own} && mount -o remount,bind,ro / && ! touch {own}.x"
        run = f"unshare --mount sh -c {shlex.quote(f'{seal} 2> /dev/null && {run}')}"
    check_released(run_as(run, place, {"PATH": os.environ["PATH"]}), place)
    assert list((place / ".numba").rglob("*.nbc"))


@pytest.mark.long
def test_the_line_of_cron_runs(place: Path) -> None:
    text = (DEPLOY / "schedules" / "crontab").read_text().replace(PLACE, str(place))
    (line,) = [one for one in text.splitlines() if not one.startswith("#")]
    *_, command = line.split(maxsplit=5)
    assert "%" not in command  # cron reads it as an end of line
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(place.parent), "SHELL": "/bin/sh"}
    for _ in range(2):
        assert run_as(command, place.parent, environment) == ""  # else cron sends a mail
    first, second = (place / "nightly.jsonl").read_text().splitlines()
    check_released(first, place)
    assert json.loads(second)["status"] == "up to date"


@pytest.mark.long
def test_the_step_of_ci_runs(place: Path) -> None:
    workflow = yaml.safe_load((DEPLOY / "schedules" / "github.yaml").read_text())
    *_, step = workflow["jobs"]["nightly"]["steps"]
    path = f"{place / '.venv' / 'bin'}:/usr/bin:/bin"
    check_released(run_as(step["run"], place, {"PATH": path, **step["env"]}), place)


# ---- Compose, each service as a process of this machine


Service = dict[str, Any]


def filled(value: Any, variables: Mapping[str, str]) -> Any:
    """Return a value of the file with its variables, as Compose fills them in."""
    if isinstance(value, dict):
        return {key: filled(one, variables) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(one, variables) for one in value]
    if not isinstance(value, str):
        return value
    return re.sub(
        r"\$\{(\w+)(?::[-?]([^}]*))?\}", lambda found: variables.get(found[1], found[2]), value
    )


@contextmanager
def started(
    service: Service, folder: Path, hosts: Mapping[str, str], *options: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a service's command, in what stands for its container."""
    command = [word.replace("/work", str(folder)) for word in service["command"]]
    environment = {
        name: str(one).replace("/work", str(folder)) for name, one in service["environment"].items()
    }
    programs = folder / "programs"
    process = subprocess.Popen(
        [*command, *options],
        cwd=folder,
        env={"PATH": f"{programs}:/usr/bin:/bin", "HOME": "/tmp", **environment, **hosts},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.communicate()  # closes what it wrote to


def compose(folder: Path) -> dict[str, Service]:
    """Copy the files of deploy/compose; return its services, with certificates and programs."""
    shutil.copytree(DEPLOY / "compose", folder)
    make_certificates(folder / "tls")
    for name in ("dask.yaml", "job.yaml"):
        text = (folder / name).read_text().replace("/work", str(folder))
        (folder / name).write_text(text)
    (folder / "programs").mkdir()
    for name in ("dask", "hmrf-dask"):
        program = folder / "programs" / name
        module = name.replace("-", "_")
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        program.chmod(0o755)
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    filled_in: dict[str, Service] = filled(services, {"STORE_PASSWORD": "a-password"})
    return filled_in


@pytest.mark.long
def test_the_services_of_compose_run(tmp_path: Path) -> None:
    moto = pytest.importorskip("moto.server", reason="moto[server] is not installed: no S3 to test")
    services = compose(tmp_path / "compose")
    folder, addresses = tmp_path / "compose", {"scheduler": "127.78.0.1", "store": "127.78.0.2"}
    hosts = named_hosts(tmp_path, addresses)
    store = moto.ThreadedMotoServer(ip_address=addresses["store"], port=9000)  # stands for MinIO
    store.start()
    try:
        keys = services["job"]["environment"]
        own = services["store"]["environment"]
        assert keys["AWS_ACCESS_KEY_ID"] == own["MINIO_ROOT_USER"]
        assert keys["AWS_SECRET_ACCESS_KEY"] == own["MINIO_ROOT_PASSWORD"]
        fill_bucket(f"http://{addresses['store']}:9000", keys)
        here = ("--host", addresses["scheduler"])
        with started(services["scheduler"], folder, hosts, *here) as scheduler:
            wait_for_health(services["scheduler"], addresses["scheduler"], scheduler)
            with (
                started(services["worker"], folder, hosts, "--host", "127.78.0.3"),
                started(services["worker"], folder, hosts, "--host", "127.78.0.4"),
                started(services["job"], folder, hosts) as job,
            ):
                printed, said = job.communicate(timeout=SECONDS)
        assert job.returncode == 0, said
        assert "no TLS" not in said
        assert json.loads(printed)["documents"]["all"] == 900
    finally:
        store.stop()


def fill_bucket(url: str, keys: Mapping[str, str]) -> None:
    """Make the bucket and put documents and answers into it, with columns as nightly.yaml says."""
    corpus = JobCorpus(Path())
    drawn = [
        {"message_id": one["id"], "body": one["text"], "sent": "2026-01-01T00:00:00Z"}
        for one in corpus.draw(900)
    ]
    files = fsspec.filesystem(
        "s3",
        endpoint_url=url,
        key=keys["AWS_ACCESS_KEY_ID"],
        secret=keys["AWS_SECRET_ACCESS_KEY"],
    )
    files.makedirs("my-bucket", exist_ok=True)
    files.pipe_file("my-bucket/messages/part-0.jsonl.gz", lines(drawn))
    files.pipe_file("my-bucket/answers/all.csv", corpus.answers(100))


def wait_for_health(service: Service, address: str, process: subprocess.Popen[str]) -> None:
    """Ask as Compose does, on the service's own address, until it is well."""
    kind, _, *test = service["healthcheck"]["test"]
    assert kind == "CMD"
    command = [sys.executable, *(word.replace("localhost", address) for word in test)]
    for _ in range(service["healthcheck"]["retries"] * 5):
        assert process.poll() is None
        if subprocess.run(command, capture_output=True).returncode == 0:
            return
        time.sleep(1)
    raise AssertionError("the scheduler does not become healthy")
