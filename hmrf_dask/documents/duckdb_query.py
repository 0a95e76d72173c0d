"""A query of DuckDB: it hashes rows itself, again before it reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Final

import pyarrow as pa

from hmrf_dask.databases.statements import literal, quoted
from hmrf_dask.documents.keyed_query import (
    NO_KEY,
    Bound,
    ChangedError,
    HashingQuery,
    Range,
)
from hmrf_dask.errors import ConfigurationError

_WHOLE: Final = frozenset(("TINYINT", "SMALLINT", "INTEGER", "BIGINT"))
_PLAIN: Final = frozenset((*_WHOLE, "BOOLEAN", "FLOAT", "DOUBLE"))
_GROWS: Final = (*_WHOLE, "HUGEINT", "DECIMAL", "VARCHAR", "TIMESTAMP", "DATE")
_OVERLAP_ROWS: Final = 100


class DuckdbQuery(HashingQuery):
    """A query of DuckDB; nobody writes while a process has the file open."""

    @cached_property
    def _types(self) -> Mapping[str, str]:
        found = self._database.rows(f"DESCRIBE SELECT * {self._from}")
        return {str(name): str(kind) for name, kind, *_ in found}

    def _is_gone(self, deleted: str) -> str:
        column, kind = f"q.{quoted(deleted)}", self._types[deleted]
        if kind == "BOOLEAN":
            return f"coalesce({column}, false)"
        return f"coalesce({column}, 0) <> 0" if kind in _WHOLE else f"{column} IS NOT NULL"

    def _text(self, expression: str) -> str:
        return f"CAST({expression} AS VARCHAR)"

    def _literal(self, value: str | int) -> str:
        return self._as(value, self._types[self._changed_name or self._key_names[0]])

    def _as(self, value: str | int, kind: str) -> str:
        return f"CAST({literal(str(value))} AS {kind})"

    def _literals(self, bound: Bound) -> str:
        kinds = [self._types[name] for name in self._key_names]
        parts = ", ".join(map(self._as, bound, kinds))
        return parts if len(bound) == 1 else f"ROW({parts})"

    def _is_after(self, bound: Bound) -> str:
        return self._compared(">", bound)

    def _is_up_to(self, bound: Bound) -> str:
        return self._compared("<=", bound)

    def _compared(self, sign: str, bound: Bound) -> str:
        """Return a condition of the parts of the key, of which none is null.

        DuckDB takes a null in a row as the greatest value, and has no ranges of rows.
        """
        kinds = [self._types[name] for name in self._key_names]
        *parts, last = zip(self._keys, map(self._as, bound, kinds), strict=True)
        condition = f"{last[0]} {sign} {last[1]}"
        for key, value in reversed(parts):
            condition = f"({key} {sign[0]} {value} OR ({key} = {value} AND {condition}))"
        return condition

    def _n_bytes(self, expression: str) -> str:
        return f"strlen({expression})"

    def _bound(self, texts: Sequence[str]) -> Bound:
        return tuple(texts)

    def _value(self, name: str) -> str:
        column, kind = f"q.{quoted(name)}", self._types[name]
        if name == self._columns.embedding:
            is_double = kind.startswith("DOUBLE")
            return column if is_double or "[" not in kind else f"CAST({column} AS FLOAT[])"
        text = self._text(column)
        if name in self._columns.texts:
            limit = self._columns.max_bytes
            return (
                f"CASE WHEN strlen({text}) > {limit} THEN left({text}, {limit + 1}) ELSE {text} END"
            )
        plain = _WHOLE if name in self._key_names else _PLAIN
        return column if kind in plain else self._cut(text)

    def _joined(self, values: Sequence[str]) -> str:
        """Return values as one text, of which others have another."""
        texts = [self._text(one) for one in values]
        return " || ".join(f"coalesce(strlen({one}) || ':' || {one}, '-')" for one in texts)

    def _mark(self) -> str:
        return f"md5({self._joined(list(self._held().values()))})"

    def _hash(self) -> str:
        """Return a hash of what a row holds: MD5, as that of DuckDB may change."""
        return f"md5_number_lower({self._joined(list(self._held().values()))})"

    def keys(self) -> str:
        """Return how many keys there are, and the sum of their hashes."""
        hashed = f"md5_number_lower({self._joined([self.document_id()])})"
        found = self._database.rows(f"SELECT count(*), CAST(sum({hashed}) AS VARCHAR) {self._from}")
        return " ".join(map(str, found[0]))

    def takes(self, bounds: Sequence[Bound]) -> bool:
        """Return whether bounds are of the types of the key, and in their order."""
        if {len(one) for one in bounds} - {len(self._keys)}:
            return False
        named = list(map(self._literals, bounds))
        rows = [f"({a}, {b})" for a, b in pairwise(named)] or [f"(0, {len(named)})"]
        select = f"SELECT bool_and(a < b) FROM (VALUES {', '.join(rows)}) AS v (a, b)"
        return bool(self._database.rows(select)[0][0])

    def moment(self) -> str | int | None:
        """Return the last change but some: a process that writes is done before one may read."""
        assert self._changed_name is not None
        kind = self._types[self._changed_name]
        if not kind.startswith(_GROWS):
            raise ConfigurationError(
                f"changed must be a time or a number that grows, got a column of type {kind}; name "
                "another, or leave changed out: hashes tell what changed"
            )
        newest = (
            f"SELECT {self._changed} AS c {self._from} WHERE {self._changed} IS NOT NULL "
            f"ORDER BY c DESC LIMIT {_OVERLAP_ROWS}"
        )
        low = self._database.rows(f"SELECT {self._text('min(c)')} FROM ({newest}) AS s")[0][0]
        return None if low is None else str(low)

    def read(
        self, rows: Range, names: Sequence[str], ids: Sequence[str], n_rows: int, stamp: str
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows; `ChangedError`, before the first, where their hash is another one."""
        is_whole = not ids and set(names) == {one for one in self._columns.in_order if one}
        if stamp and is_whole:
            there = self.fingerprints([], [rows]).get(NO_KEY if rows.nulls else 0)
            if there is None or there.hash != stamp:
                raise ChangedError
        yield from super().read(rows, names, ids, n_rows, stamp)

    def _stream(
        self, wanted: Mapping[str, str], condition: str, n_rows: int
    ) -> Iterator[pa.RecordBatch]:
        yield from self._database.batches(self._ordered(wanted, condition), rows=n_rows)
