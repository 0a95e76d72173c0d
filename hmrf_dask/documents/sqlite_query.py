"""A query of SQLite, which runs here: rows are hashed here, and known again when they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.databases.statements import literal, quoted
from hmrf_dask.documents.keyed_query import (
    NO_KEY,
    Bound,
    ChangedError,
    Fingerprint,
    KeyedQuery,
    Range,
)
from hmrf_dask.documents.records import MOST_CHARACTERS
from hmrf_dask.documents.sources import GONE
from hmrf_dask.errors import ConfigurationError

_OVERLAP_ROWS = 100


class SqliteQuery(KeyedQuery):
    """A query of SQLite: all values are read as texts, whatever a row has in a column."""

    @cached_property
    def _types(self) -> list[str]:
        return [self._type_of(key) for key in self._keys]

    def _type_of(self, key: str) -> str:
        found = self._database.rows(
            f"SELECT DISTINCT typeof({key}) {self._from} WHERE {key} IS NOT NULL"
        )
        kinds = sorted(str(row[0]) for row in found) or ["text"]
        if kinds not in (["integer"], ["text"]):
            raise ConfigurationError(
                f"a key must be a column of texts or of integers, got {' and '.join(kinds)} in "
                f"{key.removeprefix('q.')}; cast it in the query"
            )
        return kinds[0]

    def takes(self, bounds: Sequence[Bound]) -> bool:
        """Return whether bounds are of the types of the key; nothing changes SQLite's order."""
        kinds = [{"integer": int, "text": str}[kind] for kind in self._types]
        return all([type(part) for part in bound] == kinds for bound in bounds)

    def _is_gone(self, deleted: str) -> str:
        column = f"q.{quoted(deleted)}"
        return f"({column} IS NOT NULL AND {column} NOT IN (0, ''))"

    def _text(self, expression: str) -> str:
        return f"CAST({expression} AS TEXT)"

    def _literal(self, value: str | int) -> str:
        return str(value) if isinstance(value, int) else literal(value)

    def _n_bytes(self, expression: str) -> str:
        return f"length(CAST({expression} AS BLOB))"

    def _bound(self, texts: Sequence[str]) -> Bound:
        kinds = zip(texts, self._types, strict=True)
        return tuple(int(text) if kind == "integer" else text for text, kind in kinds)

    def _value(self, name: str) -> str:
        column = f"q.{quoted(name)}"
        if name == self._columns.embedding:
            return column
        if name in self._columns.texts:
            return self._at_most(self._text(column), self._columns.max_bytes + 1)
        return self._cut(self._text(column))

    def _cut(self, text: str) -> str:
        """Return a text that is as long as one may be that is shown, or longer."""
        return self._at_most(text, 4 * (MOST_CHARACTERS + 1))

    def _at_most(self, text: str, limit: int) -> str:
        """Return a text, or its first bytes: functions of texts end at a NUL character."""
        data = f"CAST({text} AS BLOB)"
        cut = f"CAST(substr({data}, 1, {limit}) AS TEXT)"
        return f"CASE WHEN length({data}) > {limit} THEN {cut} ELSE {text} END"

    def moment(self) -> str | int | None:
        """Return the last change but some: writers take turns, so none comes late.

        A time to come, of which there are less, hides nothing.
        """
        newest = f"SELECT {self._changed} AS c {self._from} ORDER BY c DESC LIMIT {_OVERLAP_ROWS}"
        kind, text = self._database.rows(
            f"SELECT typeof(min(c)), CAST(min(c) AS TEXT) FROM ({newest}) AS s"
        )[0]
        if kind not in ("integer", "text", "null"):
            raise ConfigurationError(
                f"changed must be a column of texts or of integers, got {kind}; cast it in the "
                "query, or leave changed out: hashes tell what changed"
            )
        return None if kind == "null" else int(text) if kind == "integer" else str(text)

    def _mark(self) -> str:
        held = self._held().values()
        return " || ' ' || ".join(f"quote(CAST({one} AS BLOB))" for one in held)

    def keys(self) -> str:
        """Return a hash of all keys."""
        hashed = _Hash()
        for batch in self._stream({'"h0"': self.document_id()}, self._within(Range()), 10_000):
            hashed.update(batch)
        return hashed.digest()

    def fingerprints(
        self, bounds: Sequence[Bound], ranges: Sequence[Range]
    ) -> dict[int, Fingerprint]:
        """Return what is in each bucket; SQLite runs here, so rows are hashed here."""
        sized = f"SELECT {self._bucket(bounds)} AS b, {self._size()} AS size {self._from}"
        found = self._database.rows(
            f"SELECT b, count(*), sum(size) FROM ({sized} WHERE {self._any_of(ranges)}) AS s "
            "GROUP BY b ORDER BY b"
        )
        edges: list[Bound | None] = [None, *bounds, None]
        everywhere = replace(ranges[0], after=None, to=None, nulls=False)
        prints = {}
        for bucket, rows, size in found:
            where = replace(everywhere, after=edges[bucket], to=edges[bucket + 1])
            if bucket == NO_KEY:
                where = replace(everywhere, nulls=True)
            hashed = _Hash()
            for batch in self._stream(self._held(), self._segment(where), 10_000):
                hashed.update(batch)
            prints[int(bucket)] = Fingerprint(int(rows), int(size), hashed.digest())
        return prints

    def read(
        self, rows: Range, names: Sequence[str], ids: Sequence[str], n_rows: int, stamp: str
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows; `ChangedError`, at the end, where they have not the hash that they must."""
        wanted = {quoted(name): self._expression(name) for name in names}
        if rows.since is not None and self._gone:
            wanted[quoted(GONE)] = self._gone
        n_wanted, held = len(wanted), self._held()
        checks = stamp and not ids and set(names) == {one for one in self._columns.in_order if one}
        wanted |= held if checks else {}
        places = [list(wanted).index(name) for name in held] if checks else []
        hashed = _Hash()
        for batch in self._stream(wanted, self._segment(rows, ids), n_rows):
            hashed.update(
                pa.RecordBatch.from_arrays(
                    [batch.column(place) for place in places], [str(place) for place in places]
                )
            )
            yield batch.select(range(n_wanted))
        if checks and hashed.digest() != stamp:
            raise ChangedError

    def _stream(
        self, wanted: Mapping[str, str], condition: str, n_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield values; SQLite's columns have no types, so a first row says them: texts."""
        empty, typed = (
            "''",
            {quoted(GONE): "0", quoted(self._columns.embedding or "no vector"): "x''"},
        )
        first = ", ".join(f"{typed.get(name, empty)} AS {name}" for name in wanted)
        ordered = self._ordered(wanted, condition)
        statement = f"SELECT {first} UNION ALL SELECT * FROM ({ordered})"
        skipped = 1
        for batch in self._database.batches(statement, rows=n_rows):
            there, skipped = batch.slice(skipped), 0
            if len(there):
                yield _typed(there)


def _typed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose column `GONE` is true or false."""
    name = GONE
    if name not in batch.schema.names:
        return batch
    place = batch.schema.get_field_index(name)
    return batch.set_column(place, name, pc.cast(batch.column(place), pa.bool_()))


class _Hash:
    """A hash of columns, whichever batches they come in."""

    def __init__(self) -> None:
        self._hashes: list[Any] = []

    def update(self, batch: pa.RecordBatch) -> None:
        """Take rows in."""
        n_hashes = 2 * batch.num_columns  # lengths and bytes lie in separate batches
        self._hashes = self._hashes or [hashlib.blake2b(digest_size=16) for _ in range(n_hashes)]
        for number, column in enumerate(batch.columns):
            lengths = pc.fill_null(pc.binary_length(column.cast(pa.large_binary())), -1)
            whole = lengths.cast(pa.int64()).to_numpy(zero_copy_only=False).tobytes()
            self._hashes[2 * number].update(whole)
            self._hashes[2 * number + 1].update(_bytes_of(column))

    def digest(self) -> str:
        """Return the hash of all rows so far."""
        return hashlib.blake2b(
            json.dumps([one.hexdigest() for one in self._hashes]).encode(), digest_size=12
        ).hexdigest()


def _bytes_of(column: pa.Array) -> memoryview | bytes:
    """Return the bytes of texts, one after the other."""
    filled = pc.fill_null(column.cast(pa.large_binary()), b"")
    offsets, data = filled.buffers()[1:]
    if data is None or not len(filled):
        return b""
    places = memoryview(offsets).cast("q")
    return memoryview(data)[places[filled.offset] : places[filled.offset + len(filled)]]
