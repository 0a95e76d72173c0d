"""Tables of documents in PostgreSQL, SQLite and DuckDB, with jobs over them, for tests."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hmrf_dask.databases.connection import open_database
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.segments import DocumentSegment
from hmrf_dask.documents.sources import Listing
from hmrf_dask.documents.sql import SqlSource, open_sql
from tests.support.job_corpus import JobCorpus

NAME = "TICKETS_URL"
COLUMNS = Columns()
MADE = (
    "CREATE TABLE tickets (id {key} PRIMARY KEY, text text, label text, updated {time}, "
    "closed {time})",
    "CREATE INDEX changes ON tickets (updated)",
)
FIRST = "2026-01-01T00:00:00+00:00"


@dataclass
class Tickets:
    """A table `tickets` in a database whose address the environment holds."""

    dialect: str

    def run(self, *statements: str) -> None:
        """Change the database; one of DuckDB is written by its own module."""
        if self.dialect == "duckdb":
            with opened_duckdb() as connection:
                for statement in statements:
                    connection.execute(statement)
            return
        with open_database(NAME, writes=True) as opened:
            for statement in statements:
                opened.run(statement)
            opened.connection.commit()

    def make(self, key: str = "text") -> None:
        """Make the table, with a key of some type."""
        time = "text" if self.dialect == "sqlite" else "timestamptz"
        made = MADE[:1] if self.dialect == "duckdb" else MADE  # it cannot update what has an index
        self.run(*(one.format(key=key, time=time) for one in made))

    def put(self, documents: list[dict[str, Any]], updated: str = FIRST) -> None:
        """Put documents in, or other texts in their places."""
        values = [
            (one["id"], one["text"], one.get("label"), one.get("updated", updated))
            for one in documents
        ]
        numbered = self.dialect == "postgresql"
        holes = "$1, $2, $3, $4::timestamptz" if numbered else "?, ?, ?, ?"
        statement = (
            f"INSERT INTO tickets (id, text, label, updated) VALUES ({holes}) ON CONFLICT (id) "
            "DO UPDATE SET text = excluded.text, updated = excluded.updated"
        )
        if self.dialect == "duckdb":
            with opened_duckdb() as connection:
                connection.executemany(statement, values)
            return
        with open_database(NAME, writes=True) as opened:
            with opened.connection.cursor() as cursor:
                cursor.executemany(statement, values)
            opened.connection.commit()

    def source(self, query: str = "SELECT * FROM tickets", **settings: Any) -> SqlSource:
        """Return the source of a query over it."""
        columns = settings.pop("columns", COLUMNS)
        known = {"query": query, "url_env": NAME, "key": "id", **settings}
        return open_sql("tickets", known, columns)


def opened_duckdb(path: str | Path = "") -> Any:
    """Return a connection that writes a file of DuckDB: that of `NAME`, or another."""
    duckdb: Any = pytest.importorskip("duckdb", reason="no DuckDB: make setup")
    return duckdb.connect(str(path) or os.environ[NAME].removeprefix("duckdb:///"))


def documents_of(source: SqlSource, listing: Listing | None = None) -> list[dict[str, Any]]:
    """Return the rows of all segments, as they are listed now where no listing is given."""
    names = [one for one in source.columns.in_order if one is not None]
    with source.snapshot() as snapshot:
        listed = listing or source.segments(snapshot, None)
        return [
            row
            for segment in listed.segments
            for batch in source.read(segment, snapshot, names)
            for row in batch.to_pylist()
        ]


def taken(source: SqlSource) -> tuple[dict[str, str], dict[str | None, str]]:
    """Return texts by id as a job has them, and by id what is wrong with others."""
    good: dict[str, str] = {}
    bad: dict[str | None, str] = {}
    with source.snapshot() as snapshot:
        for segment in source.segments(snapshot, None).segments:
            one = DocumentSegment(source, segment, source.columns, snapshot, "tickets")
            for batch in one.read():
                assert not {*batch.ids} & {*good}
                good |= dict(zip(batch.ids, batch.texts, strict=True))
                bad |= {reject.id: reject.reason for reject in batch.rejects}
    return good, bad


def write_sql_job(corpus: JobCorpus, settings: dict[str, Any] | None = None, **job: Any) -> Path:
    """Write answers, a manifest of the table `tickets`, and a job; return the path of the job."""
    path = corpus.write_job(**job)
    manifest = corpus.folder / "manifest.yaml"
    known = {"query": "SELECT * FROM tickets", "url_env": NAME, "key": "id", **(settings or {})}
    content = yaml.safe_load(manifest.read_text())
    content["resources"] = [{"name": "tickets", "sql": known}]
    manifest.write_text(json.dumps(content))
    return path


_GROUP = pytest.mark.xdist_group("postgres")
# A connection to PostgreSQL takes a twentieth of a second of CPU: most tests make do with SQLite.
BOTH = [pytest.param("postgresql", marks=_GROUP), "sqlite"]


@pytest.fixture(params=[pytest.param("postgresql", marks=[_GROUP, pytest.mark.long]), "sqlite"])
def tickets(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Tickets:
    """Give a database without tables, of each kind."""
    if request.param == "postgresql":
        monkeypatch.setenv(NAME, request.getfixturevalue("database"))
    else:
        path = tmp_path / "tickets.db"
        path.touch()
        monkeypatch.setenv(NAME, f"sqlite:///{path}")
    return Tickets(request.param)
