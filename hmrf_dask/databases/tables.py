"""What a database holds: tables with their columns, keys and about how many rows, as it counts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hmrf_dask.databases.connection import Database
from hmrf_dask.databases.statements import quoted

MOST_CHARACTERS: Final = 5_000  # of a value that is sampled
_CHANGED: Final = re.compile(
    r"(last_?)?(updated?|modified|modification|changed?|edited)(_?(at|on|date|time|ts))?|mtime"
)
_DELETED: Final = re.compile(r"(is_?)?(deleted|removed|deletion)(_?(at|on|date|time|ts))?")
_TIMES: Final = re.compile(r"timestamp|datetime|^date$", re.IGNORECASE)
_MARKS: Final = re.compile(r"timestamp|datetime|^date$|bool", re.IGNORECASE)
_OF_TIMES: Final = re.compile(r"mtime|.*_?(at|on|date|time|ts)")
_TEXTS: Final = re.compile(r"text|char|clob|^name$", re.IGNORECASE)
_OF_POSTGRES: Final = """
    SELECT n.nspname::text, c.relname::text, c.relkind::text, c.reltuples::bigint,
      a.attname::text, format_type(a.atttypid, a.atttypmod), coalesce(i.indisprimary, false),
      n.nspname = current_schema()
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary AND a.attnum = ANY (i.indkey)
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
      AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
      AND has_table_privilege(c.oid, 'SELECT')
      AND coalesce(obj_description(c.oid, 'pg_class'), '') NOT LIKE 'hmrf-dask {%'
    ORDER BY 1, 2, a.attnum
"""
_OF_SQLITE: Final = """
    SELECT m.name, m.type, p.name, p.type, p.pk FROM sqlite_master m, pragma_table_info(m.name) p
    WHERE m.type IN ('table', 'view') AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
      AND m.sql NOT LIKE '%/* hmrf-dask {%'
    ORDER BY m.name, p.cid
"""


@dataclass(frozen=True)
class Column:
    """A column of a table, and its type as the database calls it."""

    name: str
    type: str

    @property
    def is_text(self) -> bool:
        """Whether it may hold texts; SQLite has columns that say nothing."""
        return not self.type or bool(_TEXTS.search(self.type))


@dataclass(frozen=True)
class Table:
    """A table or view that may be read.

    Attributes
    ----------
    schema : str or None
        None where names need none.
    name : str
    n_rows : int or None
        About, as the database counts; None where it did not.
    columns : tuple of Column
    key : tuple of str
        Columns of the primary key.
    times_are_texts : bool
        Whether the database has no type of times, as SQLite: its times are mostly texts.

    Examples
    --------
    >>> columns = (Column("id", "bigint"), Column("last_updated", "timestamp"))
    >>> table = Table(None, "tickets", 120_000, columns, ("id",))
    >>> table.changed, table.deleted, table.shown
    ('last_updated', None, 'tickets')
    """

    schema: str | None
    name: str
    n_rows: int | None
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    times_are_texts: bool = False

    @property
    def shown(self) -> str:
        """Its name as somebody would type it."""
        return self.name if self.schema is None else f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> str:
        """Its name as statements have it, whatever is in it."""
        return quoted(self.name) if self.schema is None else quoted(self.schema, self.name)

    @property
    def changed(self) -> str | None:
        """The column that says when a row changed, by its name and type."""
        return self._found(_CHANGED, _TIMES)

    @property
    def deleted(self) -> str | None:
        """The column that says that a row is gone, by its name and type."""
        return self._found(_DELETED, _MARKS)

    def type_of(self, name: str) -> str:
        """Return the type of a column, "" where there is none."""
        return next((one.type for one in self.columns if one.name == name), "")

    def _found(self, names: re.Pattern[str], types: re.Pattern[str]) -> str | None:
        likely = (one for one in self.columns if names.fullmatch(one.name.lower()))
        return next((one.name for one in likely if self._fits(one, types)), None)

    def _fits(self, column: Column, types: re.Pattern[str]) -> bool:
        if not column.type or types.search(column.type):
            return True
        is_time = self.times_are_texts and _OF_TIMES.fullmatch(column.name.lower())
        return bool(is_time) and column.is_text


def tables_of(database: Database) -> list[Table]:
    """Return the tables and views that may be read, but for those that this program made."""
    is_sqlite = database.dialect == "sqlite"
    rows = _sqlite_rows(database) if is_sqlite else database.rows(_OF_POSTGRES)
    found: dict[tuple[str | None, str], list[tuple[Any, ...]]] = defaultdict(list)
    for schema, name, *rest, unqualified in rows:
        found[None if unqualified else schema, name].append(tuple(rest))
    return [
        Table(
            schema,
            name,
            None if columns[0][1] is None or columns[0][1] < 0 else columns[0][1],
            tuple(Column(column, type_) for _, _, column, type_, _ in columns),
            tuple(column for _, _, column, _, is_key in columns if is_key),
            is_sqlite,
        )
        for (schema, name), columns in found.items()
    ]


def _sqlite_rows(database: Database) -> Iterator[tuple[Any, ...]]:
    """Yield what the catalog of PostgreSQL would say; the last row number counts the rows."""
    counts: dict[str, int | None] = {}
    for name, kind, column, type_, key in database.rows(_OF_SQLITE):
        if name not in counts:
            counts[name] = _last_row(database, name) if kind == "table" else None
        yield None, name, kind, counts[name], column, type_, bool(key), True


def _last_row(database: Database, name: str) -> int | None:
    """Return the last number of a row; None where rows have none (WITHOUT ROWID)."""
    ((sql,),) = database.rows("SELECT sql FROM sqlite_master WHERE name = ?", [name])
    if re.search(r"WITHOUT\s+ROWID\s*$", sql or "", re.IGNORECASE):
        return None
    ((last,),) = database.rows(f"SELECT max(rowid) FROM {quoted(name)}")
    return int(last or 0)


def first_rows(database: Database, table: Table, most: int) -> list[dict[str, Any]]:
    """Return some rows of a table, of long texts the beginning."""
    columns = [
        f"substr({quoted(one.name)}, 1, {MOST_CHARACTERS}) AS {quoted(one.name)}"
        if one.is_text
        else quoted(one.name)
        for one in table.columns
    ]
    names: Sequence[str] = [one.name for one in table.columns]
    rows = database.rows(f"SELECT {', '.join(columns)} FROM {table.quoted} LIMIT {most}")
    return [dict(zip(names, row, strict=True)) for row in rows]
