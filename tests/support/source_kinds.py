"""Kinds of sources, each over documents that a test puts and removes: for the contract tests.

A new kind is a class with the members of `Shelf` and a line of `KINDS`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import fsspec
import pytest
import yaml

from hmrf_dask.documents import keyed_records, sql
from hmrf_dask.documents.manifest import SCHEMA, Columns, Manifest, SourceResource
from hmrf_dask.documents.segments import Files
from hmrf_dask.documents.sources import Segment, Source, open_source, register
from tests.support.documentation import ROOT, blocks
from tests.support.job_corpus import JobCorpus
from tests.support.search_server import search_server
from tests.support.tables import NAME, Tickets, opened_duckdb

COLUMNS: Final = Columns()  # id and text


class Shelf(ABC):
    """Documents of one kind of source, by their ids."""

    # Whether it says what changed; else it lists all segments, and reads those that changed.
    says_changes = False

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self.folder = folder
        self.request = request
        self.begin()

    def begin(self) -> None:  # noqa: B027 - most need nothing
        """Make ready what documents lie in."""

    @property
    @abstractmethod
    def resource(self) -> dict[str, Any]:
        """The resource of a manifest, but its name."""

    @abstractmethod
    def put(self, documents: Mapping[str, str]) -> None:
        """Add documents, texts by id, or give those that are there other texts."""

    @abstractmethod
    def remove(self, names: list[str]) -> None:
        """Take documents out."""

    def source(self) -> Source:
        """Return the source as a run opens it."""
        named = {"name": "all", **self.resource}
        return open_source(SourceResource.model_validate(named), COLUMNS)


class FileShelf(Shelf):
    """A file for each document, in a folder."""

    @property
    def resource(self) -> dict[str, Any]:
        return {"path": f"{self.folder}/documents/*.jsonl"}

    def put(self, documents: Mapping[str, str]) -> None:
        for name, text in documents.items():
            path = self._path(name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(json.dumps({"id": name, "text": text}).encode())

    def remove(self, names: list[str]) -> None:
        for name in names:
            self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self.folder / "documents" / f"{name.replace('/', '-')}.jsonl"

    def source(self) -> Source:
        resources = [{"name": "all", **self.resource}]
        content = {"$schema": SCHEMA, "name": "files", "resources": resources}
        return Files(COLUMNS, Manifest.model_validate(content), str(self.folder))


class BucketShelf(FileShelf):
    """A file for each document, in a bucket of moto's server."""

    def begin(self) -> None:
        options = self.request.getfixturevalue("s3_options")
        patch = self.request.getfixturevalue("monkeypatch")
        patch.setenv("AWS_ENDPOINT_URL", options["endpoint_url"])
        self.files = fsspec.filesystem("s3", **options, use_listings_cache=False)
        self.bucket = f"shelf-{uuid.uuid4().hex[:8]}"
        self.files.makedirs(self.bucket)

    @property
    def resource(self) -> dict[str, Any]:
        return {"path": f"s3://{self.bucket}/*.jsonl"}

    def put(self, documents: Mapping[str, str]) -> None:
        for name, text in documents.items():
            data = json.dumps({"id": name, "text": text}).encode()
            self.files.pipe_file(self._key(name), data)

    def remove(self, names: list[str]) -> None:
        self.files.rm([self._key(name) for name in names])

    def _key(self, name: str) -> str:
        return f"{self.bucket}/{name.replace('/', '-')}.jsonl"


class SqliteShelf(Shelf):
    """A table with columns that say when a row changed, and when it was closed."""

    says_changes = True
    dialect = "sqlite"

    def begin(self) -> None:
        patch = self.request.getfixturevalue("monkeypatch")
        patch.setenv(NAME, self.address())
        patch.setattr(sql, "SEGMENT_ROWS", 8)
        self.tickets = Tickets(self.dialect)
        self.tickets.make()
        self.n_changes = 0

    def address(self) -> str:
        """Return where an empty database is."""
        path = self.folder / "tickets.db"
        path.touch()
        return f"sqlite:///{path}"

    @property
    def resource(self) -> dict[str, Any]:
        known = {"query": "SELECT * FROM tickets", "url_env": NAME, "key": "id"}
        return {"sql": {**known, "changed": "updated", "deleted": "closed"}}

    def put(self, documents: Mapping[str, str]) -> None:
        rows = [
            {"id": name, "text": text, "updated": self._now()} for name, text in documents.items()
        ]
        self.tickets.put(rows)

    def remove(self, names: list[str]) -> None:
        now, some = self._now(), ", ".join(f"'{name}'" for name in names)
        change = f"UPDATE tickets SET closed = '{now}', updated = '{now}' WHERE id IN ({some})"
        self.tickets.run(change)

    def _now(self) -> str:
        self.n_changes += 1
        return f"2026-01-01T{self.n_changes // 60:02}:{self.n_changes % 60:02}:00+00:00"


class PostgresShelf(SqliteShelf):
    """The same in a PostgreSQL of the tests."""

    dialect = "postgresql"

    def address(self) -> str:
        return str(self.request.getfixturevalue("database"))


class DuckdbShelf(SqliteShelf):
    """The same in a file of DuckDB."""

    dialect = "duckdb"

    def begin(self) -> None:
        pytest.importorskip("duckdb", reason="no DuckDB: make setup")
        super().begin()

    def address(self) -> str:
        path = self.folder / "tickets.duckdb"
        opened_duckdb(path).close()
        return f"duckdb:///{path}"


class MongoShelf(Shelf):
    """A collection of mongomock, which answers as MongoDB does."""

    says_changes = True

    def begin(self) -> None:
        mongomock = pytest.importorskip("mongomock", reason="no mongomock: make setup")
        patch = self.request.getfixturevalue("monkeypatch")
        store = mongomock.store.ServerStore()
        patch.setattr("pymongo.MongoClient", partial(mongomock.MongoClient, _store=store))
        patch.setenv(NAME, "mongodb://reader:hunter2@localhost")
        patch.setattr(keyed_records, "SEGMENT_ROWS", 8)
        self.tickets = mongomock.MongoClient(_store=store).desk.tickets
        self.n_changes = 0

    @property
    def resource(self) -> dict[str, Any]:
        known = {"url_env": NAME, "database": "desk", "collection": "tickets", "key": "id"}
        return {"mongo": {**known, "changed": "updated", "deleted": "closed"}}

    def put(self, documents: Mapping[str, str]) -> None:
        for name, text in documents.items():
            values = {"text": text, "updated": self._now()}
            self.tickets.update_one({"id": name}, {"$set": values}, upsert=True)

    def remove(self, names: list[str]) -> None:
        now = self._now()
        self.tickets.update_many({"id": {"$in": names}}, {"$set": {"closed": now, "updated": now}})

    def _now(self) -> datetime:
        self.n_changes += 1
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=self.n_changes)


class SearchShelf(Shelf):
    """An index of a stand-in, which answers what is asked of Elasticsearch."""

    says_changes = True
    types: ClassVar = {"id": "keyword", "text": "text", "updated": "long", "closed": "long"}

    def begin(self) -> None:
        patch = self.request.getfixturevalue("monkeypatch")
        opened = search_server("tickets", types=self.types)
        self.server = opened.__enter__()
        self.request.addfinalizer(lambda: opened.__exit__(None, None, None))
        patch.setenv(NAME, self.server.address)
        patch.setattr(keyed_records, "SEGMENT_ROWS", 8)
        self.n_changes = 0

    @property
    def resource(self) -> dict[str, Any]:
        known = {"url_env": NAME, "index": "tickets", "key": "id"}
        return {"search": {**known, "changed": "updated", "deleted": "closed"}}

    def put(self, documents: Mapping[str, str]) -> None:
        for name, text in documents.items():
            self.n_changes += 1
            row = self.server.documents.setdefault(name, {})
            row.update(id=name, text=text, updated=self.n_changes)

    def remove(self, names: list[str]) -> None:
        self.n_changes += 1
        for name in names:
            self.server.documents[name].update(closed=1, updated=self.n_changes)


class NoteShelf(Shelf):
    """The source that a page of the docs makes."""

    says_changes = True

    def begin(self) -> None:
        self.notes = notes_of_the_docs()
        self.notes.TEXTS.clear()
        self.notes.LOG.clear()
        register("notes", lambda _name, settings, _columns: self.notes.Notes(**settings))

    @property
    def resource(self) -> dict[str, Any]:
        return {"notes": {}}

    def put(self, documents: Mapping[str, str]) -> None:
        self.notes.TEXTS.update(documents)
        self.notes.LOG.extend(documents)

    def remove(self, names: list[str]) -> None:
        for name in names:
            del self.notes.TEXTS[name]
        self.notes.LOG.extend(names)


def notes_of_the_docs() -> Any:
    """Return the module `notes` of docs/how-to/own-source.md, imported once."""
    name = "notes_of_the_docs"
    if name not in sys.modules:
        page = ROOT / "docs" / "how-to" / "own-source.md"
        text = next(one.text for one in blocks(page) if one.notes.get("file") == "notes.py")
        spec = importlib.util.spec_from_loader(name, None)
        assert spec is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        exec(compile(text, str(page), "exec"), vars(module))
    return sys.modules[name]


KINDS: Final[dict[str, Callable[[Path, pytest.FixtureRequest], Shelf]]] = {
    "files": FileShelf,
    "s3": BucketShelf,
    "in memory": NoteShelf,
    "mongo": MongoShelf,
    "search": SearchShelf,
    "sqlite": SqliteShelf,
    "postgresql": PostgresShelf,
    "duckdb": DuckdbShelf,
}
GROUPS: Final = {
    "postgresql": [pytest.mark.xdist_group("postgres")],
    "duckdb": [pytest.mark.long],
}
CASES: Final = [pytest.param(name, marks=GROUPS.get(name, [])) for name in KINDS]


def job_of(shelf: Shelf, corpus: JobCorpus, **job: Any) -> Path:
    """Write a job over the documents of a shelf."""
    path = corpus.write_job(columns={"id": "id", "text": "text"}, **job)
    manifest = yaml.safe_load((corpus.folder / "manifest.yaml").read_text())
    manifest["resources"] = [{"name": "all", **shelf.resource}]
    manifest.pop("answers")
    (corpus.folder / "manifest.yaml").write_text(yaml.safe_dump(manifest))
    return path


def watched_reads(source: Source, patch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by the name of every segment of which documents are read."""
    seen: list[str] = []
    whole = type(source).read

    def watched(self: Any, segment: Segment, snapshot: str, names: Any, **more: Any) -> Any:
        if len(names) > 1:
            seen.append(segment.name)
        yield from whole(self, segment, snapshot, names, **more)

    patch.setattr(type(source), "read", watched)
    return seen
