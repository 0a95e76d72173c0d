"""Tables and views that we make in a database: each carries a mark that says whose it is.

The mark is the comment of a relation in PostgreSQL, and in SQLite a comment inside the statement
that made it: so it stays with what it marks, through a dump too, and nothing that is somebody
else's can seem to be ours.
"""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa

from hmrf_dask.databases.connection import TIMEOUT, Database
from hmrf_dask.databases.problems import explained
from hmrf_dask.databases.statements import literal, quoted
from hmrf_dask.errors import ConfigurationError, HeldError, InvalidInputError

_MARK: Final = "hmrf-dask "
_MARKED: Final = re.compile(rf"{_MARK}(\{{[^{{}}]*\}})")
TABLE, VIEW = "r", "v"
_LOCK_SECONDS: Final = 2  # that a switch waits at a time: whoever reads next waits behind it
_PAUSE: Final = 1.0  # seconds in which readers go first
_LOCKED: Final = ("55P03", "40P01")  # a lock was not free in time, or two wait for each other
_OTHER_COLUMNS: Final = "42P16"  # a view cannot be replaced by one that lacks some of its columns
_DEPENDENT: Final = "2BP01"


@dataclass(frozen=True)
class Mark:
    """What is written on each relation: whose it is, and of which release.

    Attributes
    ----------
    job, manifest, since : str
        Names, and when the output began, as it has them of its owner.
    release : int
    run : str
    names : str
        Of what clusters are called, in short: names change without a new release.

    Examples
    --------
    >>> Mark.of(f"/* {Mark('tickets', 'tickets', '2026-11-20', 3, '9f3c').text} */").release
    3
    >>> Mark.of("of somebody else") is None
    True
    """

    job: str
    manifest: str
    since: str = ""
    release: int = 0
    run: str = ""
    names: str = ""

    @property
    def text(self) -> str:
        """The mark as it is written: without a quote of SQL or the end of a comment."""
        return f"{_MARK}{json.dumps(asdict(self))}"

    @staticmethod
    def of(text: str | None) -> Mark | None:
        """Return the mark in a text, None where it has none."""
        if found := _MARKED.search(text or ""):
            with suppress(ValueError, TypeError):
                return Mark(**json.loads(found[1]))
        return None

    def is_same_owner(self, other: Mark) -> bool:
        """Return whether another mark is of the same job and output."""
        own = (self.job, self.manifest, self.since)
        return own == (other.job, other.manifest, other.since)

    def is_same_release(self, other: Mark) -> bool:
        """Return whether another mark is of the same release."""
        return (self.release, self.run) == (other.release, other.run)


class Relation(NamedTuple):
    """What there is under a name: its kind, and our mark if it has one."""

    name: str
    kind: str
    mark: Mark | None


class View(NamedTuple):
    """A view that is to be made, or to show something else than before."""

    name: str
    query: str
    mark: Mark


class Relations(ABC):
    """The relations of one schema.

    Parameters
    ----------
    database : Database
        That may be written.
    schema : str or None
        None: the one that unqualified names are in.
    """

    types: ClassVar[dict[pa.DataType, str]]

    def __init__(self, database: Database, schema: str | None) -> None:
        self._database = database
        self._schema = schema

    # ---- transactions

    @abstractmethod
    def begin(self, publication: str, patience: float) -> None:
        """Begin a transaction in which nobody else writes the same publication."""

    @abstractmethod
    def commit(self) -> None:
        """End the transaction: what it did is there for all."""

    @abstractmethod
    def rollback(self) -> None:
        """End the transaction as if it had not begun."""

    # ---- what there is

    @abstractmethod
    def refuse_unwritable(self) -> None:
        """Raise ConfigurationError where no table can be made."""

    @abstractmethod
    def beginning_with(self, name: str) -> dict[str, Relation]:
        """Return the relations whose names begin so, by name, as `key_of` gives it."""

    @abstractmethod
    def key_of(self, name: str) -> str:
        """Return what two names of one relation have in common."""

    def shown(self, name: str) -> str:
        """Return a name as errors show it."""
        return repr(name if self._schema is None else f"{self._schema}.{name}")

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self._database.rows(query, values or None)

    # ---- what is made

    @abstractmethod
    def create(self, name: str, schema: pa.Schema, mark: Mark) -> None:
        """Make an empty table."""

    @abstractmethod
    def switch(self, views: Sequence[View], patience: float) -> None:
        """Let views show what they are to show now, as soon as no reader is in the way."""

    @abstractmethod
    def drop(self, name: str) -> bool:
        """Remove a table that we made; return whether it is gone."""

    @abstractmethod
    def convert(self, name: str, column: str, kind: str) -> None:
        """Give a column of texts another type, where the database has it."""

    @abstractmethod
    def analyse(self, name: str) -> None:
        """Let the database count what a table holds."""

    def run(self, statement: str) -> None:
        """Run a statement that gives no rows."""
        self._database.run(statement)

    def quoted(self, name: str) -> str:
        """Return a name as statements have it."""
        return quoted(name) if self._schema is None else quoted(self._schema, name)

    def index(self, name: str, column: str, *, unique: bool = False) -> None:
        """Make an index of a table that we made; a unique one is of short values."""
        kind = "UNIQUE INDEX" if unique else "INDEX"
        called = f"{name}_{'k' if unique else 'i'}"
        self.run(f"CREATE {kind} {quoted(called)} ON {self.quoted(name)} ({quoted(column)})")

    def index_long(self, name: str, column: str) -> None:
        """Make an index of values that may be very long."""
        self.index(name, column, unique=True)

    def load(self, name: str, schema: pa.Schema, tables: Iterator[pa.Table]) -> None:
        """Append rows to a table, in bulk and a batch at a time."""
        raised: list[BaseException] = []

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                for table in tables:
                    yield from table.select(schema.names).cast(schema).to_batches()
            except BaseException as error:  # the driver would make another of it
                raised.append(error)
                raise

        reader = pa.RecordBatchReader.from_batches(schema, batches())
        database = self._database
        try:
            with explained(database.url_env), database.connection.cursor() as cursor:
                cursor.adbc_ingest(name, reader, mode="append", db_schema_name=self._schema)
        except Exception as error:
            if raised:
                raise raised[0] from None
            raise error

    def _columns(self, schema: pa.Schema) -> str:
        return ", ".join(f"{quoted(one.name)} {self.types[one.type]}" for one in schema)


class PostgresRelations(Relations):
    """Relations of PostgreSQL."""

    types: ClassVar[dict[pa.DataType, str]] = {
        pa.string(): "text",
        pa.int32(): "integer",
        pa.int64(): "bigint",
        pa.float64(): "double precision",
        pa.bool_(): "boolean",
        pa.timestamp("us", "UTC"): "timestamp with time zone",
    }

    def begin(self, publication: str, patience: float) -> None:
        """Begin a transaction in which nobody else writes the same publication."""
        self.rollback()
        settings = {  # those of the transaction before went with it
            "statement_timeout": f"{int(TIMEOUT * 1000)}",
            "idle_in_transaction_session_timeout": "0",  # it waits for readers, too
            "standard_conforming_strings": "on",
        }
        calls = [f"set_config('{key}', '{value}', true)" for key, value in settings.items()]
        self.rows(f"SELECT {', '.join(calls)}")
        self._wait(patience)
        key = f"{_MARK}{self._schema or ''}.{publication}"
        self.rows("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))::text", key)

    def refuse_unwritable(self) -> None:
        """Raise ConfigurationError where no table can be made."""
        found = self.rows(
            "SELECT nspname::text, has_schema_privilege(oid, 'CREATE') FROM pg_namespace "
            "WHERE nspname = coalesce($1, current_schema()::text)",
            self._schema,
        )
        if not found:
            raise ConfigurationError(
                "publish.sql.table must be in a schema that is there, got "
                f"{self._schema or 'none in the search path'!r}; make it, or name another one as "
                "SCHEMA.TABLE"
            )
        ((schema, may_create),) = found
        if not may_create:
            raise ConfigurationError(
                "publish.sql.table must be in a schema where this user may make tables, got "
                f"{schema!r}; let somebody GRANT CREATE ON SCHEMA, or name another one as "
                "SCHEMA.TABLE"
            )

    def commit(self) -> None:
        """End the transaction: what it did is there for all."""
        with explained(self._database.url_env):
            self._database.connection.commit()

    def rollback(self) -> None:
        """End the transaction as if it had not begun."""
        with explained(self._database.url_env):
            self._database.connection.rollback()

    def _wait(self, seconds: float) -> None:
        self.run(f"SET LOCAL lock_timeout = '{int(seconds * 1000)}ms'")

    def beginning_with(self, name: str) -> dict[str, Relation]:
        """Return the relations whose names begin so, by name."""
        rows = self.rows(
            "SELECT relname::text, relkind::text, obj_description(oid, 'pg_class') FROM pg_class "
            "WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE "
            "nspname = coalesce($1, current_schema()::text)) AND starts_with(relname::text, $2)",
            self._schema,
            name,
        )
        return {one: Relation(one, kind, Mark.of(text)) for one, kind, text in rows}

    def key_of(self, name: str) -> str:
        """Return the name, whose capitals count."""
        return name

    def create(self, name: str, schema: pa.Schema, mark: Mark) -> None:
        """Make an empty table."""
        self.run(f"CREATE TABLE {self.quoted(name)} ({self._columns(schema)})")
        self.run(f"COMMENT ON TABLE {self.quoted(name)} IS {literal(mark.text)}")

    def convert(self, name: str, column: str, kind: str) -> None:
        """Give a column of texts another type."""
        one = quoted(column)
        change = f"ALTER COLUMN {one} TYPE {kind} USING {one}::{kind}"
        try:
            self.run(f"ALTER TABLE {self.quoted(name)} {change}")
        except InvalidInputError as error:
            raise InvalidInputError(
                f"publish.sql.id_type {kind} must go with ids that are such, got other ones "
                f"({str(error).rpartition(';')[0]}); let it be text"
            ) from None

    def index_long(self, name: str, column: str) -> None:
        """Make an index of values of any length: only hashes of them are in it."""
        called = quoted(f"{name}_k")
        made = f"ON {self.quoted(name)} USING hash ({quoted(column)})"
        self.run(f"CREATE INDEX {called} {made}")

    def analyse(self, name: str) -> None:
        """Let the database count what a table holds: until then it plans without knowing it."""
        self.run(f"ANALYZE {self.quoted(name)}")

    def drop(self, name: str) -> bool:
        """Remove a table that we made, unless somebody reads it now: it goes another time."""
        self._wait(_LOCK_SECONDS)
        return not self._refused([f"DROP TABLE {self.quoted(name)}"], (*_LOCKED, _DEPENDENT))

    def switch(self, views: Sequence[View], patience: float) -> None:
        """Let views show what they are to show now, as soon as no reader is in the way.

        A statement that waits for a lock makes all later readers wait behind it, so it is given up
        and tried again.
        """
        deadline = time.monotonic() + patience
        self._wait(_LOCK_SECONDS)
        while self._are_locked(views):
            if time.monotonic() > deadline:
                raise HeldError(
                    "a view must be free for a moment to show another release, got "
                    f"{self.shown(views[0].name)} locked by others for {patience:g} s; run again: "
                    "the release is there, and is published then"
                )
            time.sleep(_PAUSE)

    def _are_locked(self, views: Sequence[View]) -> bool:
        """Make views, or give them other queries; return whether a reader was in the way of one."""
        names = [self.quoted(view.name) for view in views]
        queries = dict(zip(names, (view.query for view in views), strict=True))
        comments = [
            f"COMMENT ON VIEW {name} IS {literal(view.mark.text)}"
            for name, view in zip(names, views, strict=True)
        ]
        replaced = [f"CREATE OR REPLACE VIEW {name} AS {query}" for name, query in queries.items()]
        refused = self._refused([*replaced, *comments], (*_LOCKED, _OTHER_COLUMNS))
        if refused == _OTHER_COLUMNS:
            dropped = [f"DROP VIEW {name}" for name in names]
            created = [f"CREATE VIEW {name} AS {query}" for name, query in queries.items()]
            granted = [one for name in names for one in self._grants(name)]
            again = [*dropped, *created, *comments, *granted]
            refused = self._refused(again, (*_LOCKED, _DEPENDENT))
        if refused == _DEPENDENT:
            raise ConfigurationError(
                "a view must have no others made of it where its columns change, got "
                f"{self.shown(views[0].name)} with some; drop these, run again, and make them again"
            )
        return bool(refused)

    def _grants(self, name: str) -> list[str]:
        """Return the statements that let those read a view who may read it now."""
        granted = self.rows(
            "SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) "
            "END, privilege_type FROM pg_class, aclexplode(relacl) WHERE pg_class.oid = "
            "$1::text::regclass",
            name,
        )
        return [f"GRANT {privilege} ON {name} TO {role}" for role, privilege in granted]

    def _refused(self, statements: Sequence[str], expected: Sequence[str]) -> str:
        """Run statements, or none of them; return which expected error it was, "" where none.

        The transaction goes on after it: the driver takes no ROLLBACK TO SAVEPOINT.
        """
        kinds = " OR ".join(f"SQLSTATE '{one}'" for one in expected)
        body = f"""BEGIN
            PERFORM set_config('hmrf_dask.refused', '', true);
            {"; ".join(statements)};
            EXCEPTION WHEN {kinds} THEN PERFORM set_config('hmrf_dask.refused', SQLSTATE, true);
            END"""
        self.run(f"DO {literal(body)}")
        ((refused,),) = self.rows("SELECT current_setting('hmrf_dask.refused')")
        return str(refused)


class SqliteRelations(Relations):
    """Relations of SQLite, where one transaction at a time writes."""

    types: ClassVar[dict[pa.DataType, str]] = {
        pa.string(): "TEXT",
        pa.int32(): "INTEGER",
        pa.int64(): "INTEGER",
        pa.float64(): "REAL",
        pa.bool_(): "INTEGER",
        pa.timestamp("us", "UTC"): "TEXT",
    }

    def __init__(self, database: Database, schema: str | None) -> None:
        if schema is not None:
            raise ConfigurationError(
                f"publish.sql.table must have no schema in SQLite, got {schema!r} before the dot; "
                "leave it out"
            )
        super().__init__(database, None)
        database.connection.adbc_connection.set_autocommit(True)  # else it begins without the lock

    def begin(self, publication: str, patience: float) -> None:  # noqa: ARG002 (one lock for all)
        """Begin a transaction in which nobody else writes."""
        self.run(f"PRAGMA busy_timeout = {int(patience * 1000)}")
        self.run("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """End the transaction: what it did is there for all."""
        self.run("COMMIT")

    def rollback(self) -> None:
        """End the transaction as if it had not begun."""
        self.run("ROLLBACK")

    def beginning_with(self, name: str) -> dict[str, Relation]:
        """Return the relations whose names begin so, by name in small letters."""
        kinds = f"CASE type WHEN 'table' THEN '{TABLE}' WHEN 'view' THEN '{VIEW}' ELSE type END"
        rows = self.rows(
            f"SELECT name, {kinds}, sql FROM sqlite_master "
            "WHERE lower(substr(name, 1, length(?1))) = lower(?1)",
            name,
        )
        return {self.key_of(one): Relation(one, kind, Mark.of(text)) for one, kind, text in rows}

    def key_of(self, name: str) -> str:
        """Return the name in small letters: capitals do not count."""
        return name.lower()

    def refuse_unwritable(self) -> None:
        """Do nothing: who may write the file may make tables."""

    def convert(self, name: str, column: str, kind: str) -> None:
        """Do nothing: there are no such types."""

    def analyse(self, name: str) -> None:
        """Do nothing: a few tables want no plan."""

    def create(self, name: str, schema: pa.Schema, mark: Mark) -> None:
        """Make an empty table."""
        if len({one.lower() for one in schema.names}) < len(schema.names):
            raise ConfigurationError(
                "names of columns must differ in more than capitals in SQLite, got "
                f"{', '.join(schema.names)}; leave one out of documents.keep"
            )
        columns = self._columns(schema)
        self.run(f"CREATE TABLE {self.quoted(name)} (/* {mark.text} */ {columns})")

    def drop(self, name: str) -> bool:
        """Remove a table that we made; return whether it is gone."""
        self.run(f"DROP TABLE {self.quoted(name)}")
        return True

    def switch(self, views: Sequence[View], patience: float) -> None:  # noqa: ARG002 (it is ours)
        """Let views show what they are to show now."""
        for view in views:
            name = self.quoted(view.name)
            self.run(f"DROP VIEW IF EXISTS {name}")
            self.run(f"CREATE VIEW {name} AS /* {view.mark.text} */ {view.query}")


KINDS: Final[dict[str, type[Relations]]] = {
    "postgresql": PostgresRelations,
    "sqlite": SqliteRelations,
}
