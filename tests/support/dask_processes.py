"""A scheduler and workers as processes of their own, with TLS: what `dask scheduler` starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

from tests.support.hosts import HERE, Host

ROOT = Path(__file__).parents[2]
CERTIFICATES = ROOT / "deploy" / "tls" / "certificates.sh"
SECONDS = 120


def make_certificates(folder: Path) -> dict[str, str]:
    """Make certificates as deploy/tls does; return the environment that names them."""
    subprocess.run(["bash", str(CERTIFICATES), str(folder)], check=True, capture_output=True)
    named = {"DASK_DISTRIBUTED__COMM__TLS__CA_FILE": str(folder / "authority.pem")}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        for kind, name in (("CERT", "certificate.pem"), ("KEY", "key.pem")):
            named[f"DASK_DISTRIBUTED__COMM__TLS__{role}__{kind}"] = str(folder / name)
    return named


@dataclass
class DaskProcesses:
    """What runs; files of the scheduler's address and of output lie in a folder."""

    folder: Path
    protocol: str
    environment: dict[str, str]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def scheduler_file(self) -> str:
        return str(self.folder / "scheduler.json")

    @property
    def address(self) -> str:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                return str(json.loads(Path(self.scheduler_file).read_text())["address"])
            except (OSError, ValueError):
                time.sleep(0.05)
        raise AssertionError("no scheduler came")

    def start(
        self,
        what: str,
        *options: str,
        host: Host = HERE,
        python: str = sys.executable,
        **environment: str,
    ) -> subprocess.Popen[bytes]:
        """Start `dask scheduler` or `dask worker` on a host, maybe with another Python."""
        arguments = ["--host", host.address, "--dashboard-address", f"{host.address}:0"]
        arguments += ["--protocol", self.protocol, "--scheduler-file", self.scheduler_file]
        with (self.folder / f"{what}-{len(self.started)}.log").open("wb") as log:
            process = subprocess.Popen(
                host.command(python, "-m", "dask", what, *arguments, *options),
                env=self.environment | environment,
                stdout=log,
                stderr=log,
            )
        self.started.append(process)
        return process

    def end(self, seconds: float = 20.0) -> None:
        """End workers, then the scheduler; kill what has not ended after some seconds."""
        deadline = time.monotonic() + seconds
        for process in reversed(self.started):
            process.terminate()  # nothing, where it has ended
        for process in self.started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()

    def worker(self, *options: str, host: Host = HERE, **how: str) -> subprocess.Popen[bytes]:
        return self.start("worker", "--nthreads", "1", "--no-nanny", *options, host=host, **how)


@contextmanager
def dask_processes(
    folder: Path, n_workers: int, *, secured: Sequence[str] = (), places: Sequence[Host] = (HERE,)
) -> Iterator[DaskProcesses]:
    """Start a scheduler and workers, and end them; with TLS unless `secured` says another way.

    The scheduler runs on the first of the `places`, workers in turn on those after it.
    """
    protocol = secured[0] if secured else "tls"
    environment = dict(os.environ) | (make_certificates(folder / "tls") if not secured else {})
    environment["PYTHONPATH"] = str(ROOT)
    processes = DaskProcesses(folder, protocol, environment)
    try:
        processes.start("scheduler", "--port", "0", host=places[0])
        for host in islice(cycle(places[1:] or places), n_workers):
            processes.worker(host=host)
        yield processes
    finally:
        processes.end()
