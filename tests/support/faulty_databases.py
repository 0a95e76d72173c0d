"""Jobs over a PostgreSQL that fails while it is read: cut, cancelled, started again, full."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hmrf_dask.errors import HmrfError
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import assigned, run
from tests.support.postgres import Postgres
from tests.support.tables import Tickets, write_sql_job

# Each row takes a while, so that a fault meets a run that reads; and it is sorted without an index.
SLOW = (
    "SELECT id || '' AS id, text || substr(pg_sleep(0.0005)::text, 1, 0) AS text, label, version "
    "FROM tickets"
)
BUSY = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
COLUMNS = {"label": "label", "keep": ["version"]}


class Faults:
    """Faults of a server, by name: each is begun some time after a run, and ended before the next.

    Parameters
    ----------
    server : Postgres
    folder : Path
        Where jobs and outputs go.
    n_documents : int
        Of the table.
    """

    def __init__(self, server: Postgres, folder: Path, n_documents: int) -> None:
        self.server = server
        self.corpus = JobCorpus(folder)
        tickets = Tickets("postgresql")
        tickets.make()
        tickets.put(self.corpus.draw(n_documents))
        server.run("ALTER TABLE tickets ADD version int DEFAULT 0")
        self.corpus.write({"answers.csv": self.corpus.answers(20)})
        self.reference = self._bits(self._job(0))

    def outcome(self, kind: str, number: int, after: float) -> str:
        """Return how a run with a fault ended, or what is wrong about it.

        It must end with the release that there is without a fault, or with words and exit code 75;
        then the next run must end with that release.
        """
        job, told = self._job(number), ""
        with self._fault(kind, after):
            try:
                first = self._bits(job)
            except HmrfError as error:
                first, told = None, f"{error.exit_code}: {error}"
        if told and not told.startswith("75: "):
            return f"{kind}: must end with 75, got {told}"
        if first not in (None, self.reference):
            return f"{kind}: must be the same bits or none, got others"
        if self._bits(job) != self.reference:
            return f"{kind}: must resume to the same bits, got others"
        return f"exit {told[:2]}" if told else "done"

    def _job(self, number: int) -> Path:
        method = {"n_clusters": 3, "n_init": 1, "max_iter": 5}
        return write_sql_job(
            self.corpus, {"query": SLOW}, columns=COLUMNS, method=method, output=f"out-{number}"
        )

    def _bits(self, job: Path) -> dict[str, Any]:
        """Return the assignments of a run; those of rows at several moments are none."""
        found = assigned(run(job))
        assert len({row.pop("version") for row in found.values()}) == 1
        return found

    @contextmanager
    def _fault(self, kind: str, after: float) -> Iterator[None]:
        begin, end = FAULTS[kind]
        ended = threading.Event()

        def wait_and_begin() -> None:
            ended.wait(after)
            while not ended.is_set() and begin(self.server) is False:
                time.sleep(0.01)

        thread = threading.Thread(target=wait_and_begin)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            end(self.server)


def _cut(server: Postgres) -> bool:
    return bool(server.run(f"SELECT pg_terminate_backend(pid) {BUSY} AND state = 'active'"))


def _cancel(server: Postgres) -> bool:
    """Cancel a statement, which to its client is what a timeout is."""
    return bool(server.run(f"SELECT pg_cancel_backend(pid) {BUSY} AND state = 'active'"))


def _restart(server: Postgres) -> bool:
    server.stop(signal.SIGINT)
    server.start()
    return True


def _stop(server: Postgres) -> bool:
    server.stop(signal.SIGQUIT)
    return True


def _fill(server: Postgres) -> bool:
    """Leave no room to sort in, neither in memory nor on the disk."""
    full = ["ALTER SYSTEM SET temp_file_limit = '1kB'", "ALTER SYSTEM SET work_mem = '64kB'"]
    server.run(*full, "SELECT pg_reload_conf()")
    return True


def _empty(server: Postgres) -> None:
    server.run("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")


def _change(server: Postgres) -> bool:
    """Change all rows at once, again and again."""
    server.run("UPDATE tickets SET version = version + 1")
    return False


def _nothing(server: Postgres) -> None:
    del server


def _start_again(server: Postgres) -> None:
    with suppress(OSError):
        server.start()


Begin, End = Callable[[Postgres], bool], Callable[[Postgres], None]
FAULTS: dict[str, tuple[Begin, End]] = {
    "connection cut": (_cut, _nothing),
    "statement cancelled": (_cancel, _nothing),
    "server restarted": (_restart, _nothing),
    "server gone": (_stop, _start_again),
    "disk full": (_fill, _empty),
    "rows change": (_change, _nothing),
}


def play(server: Postgres, folder: Path, n_documents: int, times: int, seed: int) -> dict[str, Any]:
    """Play every fault some times at moments by chance; return how the runs ended, by fault."""
    chance = random.Random(seed)
    began = time.perf_counter()
    faults = Faults(server, folder, n_documents)
    whole = time.perf_counter() - began
    ended: dict[str, Any] = {"seconds without a fault": round(whole, 2)}
    for number in range(times):
        for kind in FAULTS:
            after = chance.uniform(0.02, 0.8) * whole if kind != "disk full" else 0.0
            name = number * len(FAULTS) + list(FAULTS).index(kind) + 1
            ended.setdefault(kind, []).append(faults.outcome(kind, name, after))
    return ended
