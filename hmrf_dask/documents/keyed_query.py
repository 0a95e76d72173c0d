"""A query whose rows have a key, as its database is asked for it: ranges, counts, fingerprints.

Bounds of ranges are found by the server, and compared there: by what orders the key, with its own
collation. Which range a row is in follows from its key alone, so no row is in two of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from hmrf_dask.databases.connection import Database
from hmrf_dask.databases.statements import literal, quoted, select_of
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.records import MOST_CHARACTERS, missing_columns
from hmrf_dask.documents.sources import GONE
from hmrf_dask.errors import ConfigurationError, meant

# A value of each part of a key: texts of PostgreSQL, of SQLite what they are there.
Bound = tuple[str | int, ...]
_ROW_BYTES: Final = 16  # of a row next to its texts
_VECTOR_BYTES: Final = 2048  # of one without texts
_MOST_MARKS: Final = 1_000
_MARKS_CHARACTERS: Final = 2**16
NO_KEY: Final = -1  # the bucket of rows without a key


@dataclass(frozen=True)
class Range:
    """Which rows of a query: those with keys after a bound and up to another, or without a key.

    With `since` they are those that changed, and those that are gone are among them; `but` are the
    marks of those that were seen before.

    Examples
    --------
    >>> Range.of(Range((7,), (9,)).to_json()) == Range((7,), (9,))
    True
    """

    after: Bound | None = None
    to: Bound | None = None
    nulls: bool = False
    since: str | int | None = None
    but: tuple[str, ...] = ()

    @staticmethod
    def of(where: Mapping[str, Any]) -> Range:
        """Return what `to_json` wrote."""
        after, to = (where.get(key) for key in ("after", "to"))
        return Range(
            after=None if after is None else tuple(after),
            to=None if to is None else tuple(to),
            nulls=bool(where.get("nulls")),
            since=where.get("since"),
            but=tuple(where.get("but", ())),
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, without what it does not say."""
        where: dict[str, Any] = {} if self.after is None else {"after": list(self.after)}
        where |= {} if self.to is None else {"to": list(self.to)}
        where |= {"nulls": True} if self.nulls else {}
        where |= {"but": list(self.but)} if self.but else {}
        return where if self.since is None else {**where, "since": self.since}


class Fingerprint(NamedTuple):
    """What is in a range: rows, about how many bytes, and a hash of what they hold."""

    rows: int
    size: int
    hash: str = ""


class KeyedQuery(ABC):
    """A query of a person in a database, seen as documents with a key."""

    def __init__(
        self,
        database: Database,
        query: str,
        key: Sequence[str],
        columns: Columns,
        *,
        changed: str | None = None,
        deleted: str | None = None,
    ) -> None:
        self._database = database
        self._columns = columns
        self._from = f"FROM {select_of(query)} AS q"
        self._key_names = tuple(key)
        self._fields = self._checked(database.schema(select_of(query)), changed, deleted)
        self._keys = [f"q.{quoted(name)}" for name in key]
        self._key = self._keys[0] if len(key) == 1 else f"({', '.join(self._keys)})"
        self._changed_name = changed
        self._changed = changed and f"q.{quoted(changed)}"
        self._gone = deleted and self._is_gone(deleted)

    def _checked(self, schema: pa.Schema, *more: str | None) -> Mapping[str, pa.Field]:
        """Return the columns of the query; refuse it without those that are named."""
        made = [self._columns.id] if self._columns.id not in schema.names else []
        if problem := missing_columns(self._columns, [*schema.names, *made]):
            raise ConfigurationError(f"the query must give the columns that are read: {problem}")
        for name in filter(None, (*self._key_names, *more)):
            if schema.names.count(name) != 1:
                raise ConfigurationError(
                    f"the query must give the column {name!r} once, got "
                    f"{', '.join(schema.names[:20])}{meant(name, schema.names)}; correct the query"
                )
        return {field.name: field for field in schema}

    # ---- what databases differ in

    @abstractmethod
    def takes(self, bounds: Sequence[Bound]) -> bool:
        """Return whether former bounds are values of the key, and in its order as it is now."""

    @abstractmethod
    def _is_gone(self, deleted: str) -> str:
        """Return the condition that a row is gone."""

    @abstractmethod
    def _value(self, name: str) -> str:
        """Return a column as documents have it, cut where it is longer than they may be."""

    @abstractmethod
    def _text(self, expression: str) -> str:
        """Return a value as a text."""

    @abstractmethod
    def _literal(self, value: str | int) -> str:
        """Return a part of a bound."""

    @abstractmethod
    def _n_bytes(self, expression: str) -> str:
        """Return how many bytes a text has."""

    @abstractmethod
    def _bound(self, texts: Sequence[str]) -> Bound:
        """Return a bound by the texts of its parts."""

    @abstractmethod
    def _mark(self) -> str:
        """Return a text of a row that changes when it does: two changes may be of one moment."""

    @abstractmethod
    def fingerprints(
        self, bounds: Sequence[Bound], ranges: Sequence[Range]
    ) -> dict[int, Fingerprint]:
        """Return what is in each bucket: up to the first bound, up to the second, after all.

        Buckets without rows are left out; that of rows without a key is `NO_KEY`. Only rows of
        `ranges` count.
        """

    @abstractmethod
    def moment(self) -> str | int | None:
        """Return the value of `changed` from which on rows are read the next time."""

    @abstractmethod
    def keys(self) -> str:
        """Return a text that is another one where other rows are there, whatever they hold."""

    # ---- conditions and columns

    def document_id(self) -> str:
        """Return the id of a document: its key; parts of a key are joined by slashes."""
        if len(self._keys) == 1:
            return self._value(self._key_names[0])
        escaped = [
            f"replace(replace({self._text(key)}, '%', '%25'), '/', '%2F')" for key in self._keys
        ]
        return self._cut(" || '/' || ".join(escaped))

    def _cut(self, text: str) -> str:
        """Return a text that is as long as one may be that is shown, or one character longer."""
        return f"substr({text}, 1, {MOST_CHARACTERS + 1})"

    def _expression(self, name: str) -> str:
        return self.document_id() if name == self._columns.id else self._value(name)

    def _held(self) -> dict[str, str]:
        """Return all that is read of a row, by the names of columns, and when it changed."""
        names = [one for one in dict.fromkeys(self._columns.in_order) if one is not None]
        held = {quoted(name): self._expression(name) for name in names}
        if self._changed:
            held |= {'"h1"': self._text(self._changed)}
            held |= {'"h2"': self._text(self._gone)} if self._gone else {}
        return held

    def _literals(self, bound: Bound) -> str:
        values = ", ".join(map(self._literal, bound))
        return values if len(bound) == 1 else f"({values})"

    def _is_after(self, bound: Bound) -> str:
        return f"{self._key} > {self._literals(bound)}"

    def _is_up_to(self, bound: Bound) -> str:
        return f"{self._key} <= {self._literals(bound)}"

    @property
    def _no_key(self) -> str:
        return " OR ".join(f"{key} IS NULL" for key in self._keys)

    @property
    def _whole_key(self) -> str:
        return " AND ".join(f"{key} IS NOT NULL" for key in self._keys)

    def _within(self, rows: Range, ids: Sequence[str] = ()) -> str:
        """Return the condition of a range; one without bounds has rows without a key, too."""
        parts = [f"({self._no_key})"] if rows.nulls else []
        if len(self._keys) > 1 and (rows.after is not None or rows.to is not None):
            parts.append(self._whole_key)  # a part alone may decide a comparison
        if rows.after is not None:
            parts.append(self._is_after(rows.after))
        if rows.to is not None:
            parts.append(self._is_up_to(rows.to))
        if rows.since is not None:
            newer = f"{self._changed} >= {self._literal(rows.since)}"
            parts.append(f"({newer} OR {self._changed} IS NULL)")
            if rows.but:
                parts.append(f"{self._mark()} NOT IN ({', '.join(map(literal, rows.but))})")
        elif self._gone:
            parts.append(f"NOT ({self._gone})")
        if ids:
            named = ", ".join(literal(one) for one in ids if "\0" not in one)
            parts.append(f"{self._text(self.document_id())} IN ({named or 'NULL'})")
        return " AND ".join(parts) or "1 = 1"

    def _segment(self, rows: Range, ids: Sequence[str] = ()) -> str:
        """Return the condition of the rows of a segment: those without a key are in their own."""
        within = self._within(rows, ids)
        return within if rows.nulls else f"{within} AND {self._whole_key}"

    def _any_of(self, ranges: Sequence[Range]) -> str:
        return " OR ".join(f"({self._within(one)})" for one in ranges)

    def _bucket(self, bounds: Sequence[Bound]) -> str:
        """Return the number of the first bound that a key does not exceed, as a tree of CASE."""

        def tree(first: int, last: int) -> str:
            if first == last:
                return str(first)
            middle = (first + last) // 2
            below, above = tree(first, middle), tree(middle + 1, last)
            return f"CASE WHEN {self._is_up_to(bounds[middle])} THEN {below} ELSE {above} END"

        return f"CASE WHEN {self._no_key} THEN {NO_KEY} ELSE {tree(0, len(bounds))} END"

    def _size(self) -> str:
        """Return about how many bytes a row has, the same for the same texts."""
        sizes = [f"coalesce({self._n_bytes(self._value(one))}, 0)" for one in self._columns.texts]
        return " + ".join([str(_ROW_BYTES), *(sizes or [str(_VECTOR_BYTES)])])

    # ---- what is asked

    def measured(self, rows: Range) -> dict[int, Fingerprint]:
        """Return how much there is in a range, with and without a key, unhashed."""
        select = f"SELECT {self._bucket(())} AS b, {self._size()} AS size {self._from}"
        grouped = f"{select} WHERE {self._within(rows)}"
        found = self._database.rows(
            f"SELECT b, count(*), CAST(sum(size) AS BIGINT) FROM ({grouped}) AS s GROUP BY b"
        )
        return {int(b): Fingerprint(int(rows), int(size)) for b, rows, size in found}

    def marks(self, rows: Range) -> list[str] | None:
        """Return the marks of the rows of a range; None where they are many or long."""
        mark = f"substr({self._mark()}, 1, {_MARKS_CHARACTERS + 1})"
        select = f"SELECT {mark} AS m {self._from} WHERE {self._within(rows)}"
        found = self._database.texts(f"{select} LIMIT {_MOST_MARKS + 1}")
        marks = sorted(mark for (mark,) in found)
        is_short = len(marks) <= _MOST_MARKS and sum(map(len, marks)) <= _MARKS_CHARACTERS
        return marks if is_short else None

    def bounds(self, rows: Range, step: int, total: int) -> list[Bound]:
        """Return every `step`-th key of a range and the last one of `total`, each once."""
        names = [f"k{number}" for number in range(len(self._keys))]
        keys = [f"{self._text(key)} AS {name}" for key, name in zip(self._keys, names, strict=True)]
        place = f"row_number() OVER (ORDER BY {', '.join(self._keys)}) AS n"
        numbered = f"SELECT {', '.join(keys)}, {place} {self._from} WHERE {self._segment(rows)}"
        found = self._database.texts(
            f"SELECT {', '.join(names)} FROM ({numbered}) AS s "
            f"WHERE n % {step} = 0 OR n = {total} ORDER BY n"
        )
        named = (row for row in found if not any("\0" in part for part in row))
        return list(dict.fromkeys(map(self._bound, named)))

    def read(
        self, rows: Range, names: Sequence[str], ids: Sequence[str], n_rows: int, stamp: str
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns of the rows of a range in the order of the key, and `GONE` since a change.

        `stamp` is the hash that they must have, for databases that cannot show the same moment to
        several; "" for any.
        """
        wanted = {quoted(name): self._expression(name) for name in names}
        if rows.since is not None and self._gone:
            wanted[quoted(GONE)] = self._gone
        del stamp
        yield from self._stream(wanted, self._segment(rows, ids), n_rows)

    @abstractmethod
    def _stream(
        self, wanted: Mapping[str, str], condition: str, n_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the values of expressions, by their names, in the order of the key."""

    def _ordered(self, wanted: Mapping[str, str], condition: str) -> str:
        shown = ", ".join(f"{expression} AS {name}" for name, expression in wanted.items())
        return f"SELECT {shown} {self._from} WHERE {condition} ORDER BY {', '.join(self._keys)}"


class HashingQuery(KeyedQuery):
    """A query in a database that hashes rows itself."""

    @abstractmethod
    def _hash(self) -> str:
        """Return a hash of what a row holds, a number: those of rows are added, in any order."""

    def fingerprints(
        self, bounds: Sequence[Bound], ranges: Sequence[Range]
    ) -> dict[int, Fingerprint]:
        """See `KeyedQuery.fingerprints`."""
        columns = f"{self._bucket(bounds)} AS b, {self._size()} AS size, {self._hash()} AS h"
        rows = f"SELECT {columns} {self._from} WHERE {self._any_of(ranges)}"
        found = self._database.rows(
            "SELECT b, count(*), CAST(sum(size) AS BIGINT), CAST(sum(h) AS VARCHAR) "
            f"FROM ({rows}) AS s GROUP BY b"
        )
        return {
            int(b): Fingerprint(int(rows), int(size), str(hashed))
            for b, rows, size, hashed in found
        }


class ChangedError(Exception):
    """Rows changed between their listing and the end of reading them."""
