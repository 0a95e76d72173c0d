"""Make a small database of tickets, and play three nights: tickets come, change and are closed.

``python -m pipelines.tickets.play [JOB]`` with the address of an empty database in TICKETS_URL: it
makes the tables `tickets` and `answers`, runs the job after each evening, and prints what the
database shows then.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hmrf_dask.databases.connection import open_database
from hmrf_dask.databases.statements import literal
from hmrf_dask.errors import HmrfError

URL_ENV = "TICKETS_URL"
HERE = Path(__file__).parent
DATA = HERE.parents[1] / "docs" / "data"
NIGHTS = 3
SHOWN = "SELECT cluster, name, count(*) FROM clusters_of_tickets GROUP BY 1, 2 ORDER BY 3 DESC, 1"
_TABLES = (
    "CREATE TABLE tickets (id bigint PRIMARY KEY, subject text NOT NULL, body text NOT NULL, "
    "product text, updated_at timestamp NOT NULL, closed_at timestamp)",
    "CREATE TABLE answers (a bigint NOT NULL, b bigint NOT NULL, kind text NOT NULL, "
    "annotator text)",
)


def evening(night: int) -> None:
    """Do what people do on the day before a night, the first of which is 1."""
    statements = {1: _first, 2: _second, 3: _third}[night]()
    with open_database(URL_ENV, writes=True) as database:
        for statement in statements:
            database.run(statement)
        database.connection.commit()


def _first() -> Iterator[str]:
    """Yield the tables, and the first 300 tickets."""
    yield from _TABLES
    yield _new(DATA / "tickets.csv", 0, 300)


def _second() -> Iterator[str]:
    """Yield 20 new tickets, five that change, ten that are closed, and two answers."""
    yield _new(DATA / "tickets-october.csv", 0, 20, "2026-11-01 09:00:00")
    yield (
        "UPDATE tickets SET body = body || ' Any news about my invoice?', "
        "updated_at = '2026-11-01 10:00:00' WHERE id BETWEEN 41 AND 45"
    )
    yield (
        "UPDATE tickets SET closed_at = '2026-11-01 11:00:00', updated_at = '2026-11-01 11:00:00' "
        "WHERE id BETWEEN 1 AND 10"
    )
    yield "INSERT INTO answers VALUES (101, 102, 'different', 'ana'), (103, 104, 'same', 'ben')"


def _third() -> Iterator[str]:
    """Yield 20 tickets more, and one that is opened again."""
    yield _new(DATA / "tickets-october.csv", 20, 40, "2026-11-02 09:00:00")
    yield "UPDATE tickets SET closed_at = NULL, updated_at = '2026-11-02 10:00:00' WHERE id = 7"


def _new(file: Path, first: int, last: int, when: str | None = None) -> str:
    """Return the statement that adds tickets out of a file, as of a time or their own day."""
    with file.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))[first:last]
    values = [
        f"({int(row['id'][1:])}, {literal(row['subject'])}, {literal(row['body'])}, "
        f"{literal(row['product'])}, {literal(when or row['created'] + ' 12:00:00')}, NULL)"
        for row in rows
    ]
    return f"INSERT INTO tickets VALUES {', '.join(values)}"


def main(job: Path) -> int:
    """Play all nights; return the exit code of the one that failed, 0 where none did."""
    for night in range(1, NIGHTS + 1):
        evening(night)
        command = [sys.executable, "-m", "hmrf_dask", "run", str(job), "--quiet"]
        if code := subprocess.run(command, check=False).returncode:
            return code
        with open_database(URL_ENV) as database:
            rows = database.rows(SHOWN)
        click.echo(f"night {night}: {sum(number for *_, number in rows)} open tickets")
        for cluster, name, number in rows:
            click.echo(f"  {cluster:>3}  {number:>4}  {name}")
    return 0


if __name__ == "__main__":
    if not os.environ.get(URL_ENV):
        click.echo(f"error: {URL_ENV} must hold the address of a database to play in", err=True)
        sys.exit(78)
    try:
        sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "job.yaml"))
    except HmrfError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
