"""A query of PostgreSQL: it hashes rows itself, and shows one moment to many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pyarrow as pa

from hmrf_dask.databases.statements import literal, quoted
from hmrf_dask.documents.keyed_query import Bound, HashingQuery
from hmrf_dask.errors import ConfigurationError

_WHOLE = frozenset(("int2", "int4", "int8"))
_PLAIN = frozenset((*_WHOLE, "bool", "float4", "float8"))
_TEXTS = frozenset(("text", "varchar"))
# The latest that a time can be that is no mistake: without a zone it may be that of any zone.
_NOW = {
    "timestamptz": "now()",
    "timestamp": "now() + interval '14 hours'",
    "date": "now() + interval '14 hours'",
}
_BEGUN = "SELECT min(xact_start) FROM pg_stat_activity WHERE datname = current_database()"
_VECTORS = frozenset(("vector", "halfvec", "_numeric"))
_OVERLAP = "1 hour"
_OVERLAP_ROWS = 1000  # where what changed is no time


class PostgresQuery(HashingQuery):
    """A query of PostgreSQL, which hashes rows itself and shows one moment to many."""

    def _type(self, name: str) -> str:
        known = self._fields[name].metadata or {}
        return str(known.get(b"POSTGRESQL:type", b"").decode())

    def _is_gone(self, deleted: str) -> str:
        column, kind = f"q.{quoted(deleted)}", self._type(deleted)
        if kind == "bool":
            return f"coalesce({column}, false)"
        return f"coalesce({column}, 0) <> 0" if kind in _WHOLE else f"{column} IS NOT NULL"

    def _text(self, expression: str) -> str:
        return f"({expression})::text"

    def _literal(self, value: str | int) -> str:
        return literal(str(value))  # the server reads it as the type that it is compared with

    def _n_bytes(self, expression: str) -> str:
        return f"octet_length({expression})"

    def _bound(self, texts: Sequence[str]) -> Bound:
        return tuple(texts)

    def _value(self, name: str) -> str:
        column, kind = f"q.{quoted(name)}", self._type(name)
        text = column if kind in _TEXTS else self._text(column)
        if name in self._columns.texts:
            limit = self._columns.max_bytes
            is_long = f"octet_length({text}) > {limit}"  # known without reading the text
            return f"CASE WHEN {is_long} THEN left({text}, {limit + 1}) ELSE {text} END"
        if name == self._columns.embedding:
            return f"{column}::real[]" if kind in _VECTORS else column
        if name in self._key_names:
            return column if kind in _WHOLE else self._cut(text)
        return column if kind in _PLAIN else self._cut(text)

    def _hash(self) -> str:
        """Return a hash of what a row holds, or of when it changed where that says enough."""
        held = list(self._held().values())
        if self._changed_name and self._changed and self._type(self._changed_name) != "date":
            held = [self.document_id(), self._changed, self._gone or "NULL"]
        return f"hashtextextended(ROW({', '.join(held)})::text, 0)"

    def _mark(self) -> str:
        return f"md5(ROW({', '.join(self._held().values())})::text)"

    def takes(self, bounds: Sequence[Bound]) -> bool:
        """Return whether bounds are of the types of the key, and in the server's order by now."""
        if {len(one) for one in bounds} - {len(self._keys)}:
            return False
        self._database.rows(f"SELECT {self._bucket(bounds)} {self._from} LIMIT 1")
        return self._are_in_order(bounds)

    def _are_in_order(self, bounds: Sequence[Bound]) -> bool:
        """Return whether the server orders texts as it did when they became bounds."""
        is_text = len(self._keys) == 1 and self._type(self._key_names[0]) in _TEXTS
        if not is_text or len(bounds) < 2:
            return True
        rows = (f"({self._literals(a)}, {self._literals(b)})" for a, b in pairwise(bounds))
        found = self._database.rows(
            f"SELECT bool_and(a < b) FROM (VALUES {', '.join(rows)}) AS v (a, b)"
        )
        return bool(found[0][0])

    def moment(self) -> str | int | None:
        """Return from which on rows are read the next time.

        A transaction may have said when a row changed long before it ended: an hour is allowed for
        that, and all of the time that transactions run which can be seen. A time to come says
        nothing.
        """
        assert self._changed_name is not None
        name, kind = self._changed, self._type(self._changed_name)
        if kind in _NOW:
            newest = f"least(max({name}), ({_NOW[kind]})::{kind})"
            low = f"least({newest}, ({_BEGUN}))" if kind == "timestamptz" else newest
            select = f"SELECT ({low} - interval '{_OVERLAP}')::{kind}::text {self._from}"
        elif kind in _WHOLE or kind in ("numeric", *_TEXTS):
            select = (
                f"SELECT min(c)::text FROM (SELECT {name} AS c {self._from} WHERE {name} IS NOT "
                f"NULL ORDER BY c DESC LIMIT {_OVERLAP_ROWS}) AS s"
            )
        else:
            raise ConfigurationError(
                f"changed must be a time or a number that grows, got a column of type {kind}; name "
                "another, or leave changed out: hashes tell what changed"
            )
        found = self._database.rows(select)[0][0]
        return None if found is None else str(found)

    def keys(self) -> str:
        """Return how many keys there are, and the sum of their hashes."""
        hashed = f"hashtextextended({self._text(self.document_id())}, 0)"
        found = self._database.rows(f"SELECT count(*), sum({hashed})::text {self._from}")
        return " ".join(map(str, found[0]))

    def _stream(
        self, wanted: Mapping[str, str], condition: str, n_rows: int
    ) -> Iterator[pa.RecordBatch]:
        yield from self._database.batches(self._ordered(wanted, condition), rows=n_rows)
