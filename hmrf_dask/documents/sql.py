"""Documents in a database: what a query gives, cut by its key into segments of equal rows.

On later nights the rows that changed are read alone, where the manifest names a column that says
when; else the database hashes its rows, and segments whose hash is another are read again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from hmrf_dask.databases.connection import (
    TIMEOUT,
    checked_variable,
    exported_snapshot,
    open_database,
)
from hmrf_dask.databases.statements import select_of
from hmrf_dask.documents.keyed_query import (
    Bound,
    ChangedError,
    Fingerprint,
    KeyedQuery,
    Range,
)
from hmrf_dask.documents.postgres_query import PostgresQuery
from hmrf_dask.documents.sources import BATCH_ROWS, Listing, Segment, Source
from hmrf_dask.documents.sqlite_query import SqliteQuery
from hmrf_dask.documents.yaml_files import validated
from hmrf_dask.errors import ConfigurationError, InvalidInputError, SourceUnavailableError
from hmrf_dask.redaction import shortened

if TYPE_CHECKING:
    from hmrf_dask.documents.manifest import Columns

SEGMENT_BYTES: Final = 64 * 2**20
SEGMENT_ROWS: Final = 100_000
_AS_LISTED = "as listed"
_MOST_IDS = 1_000  # that are asked for by name; of more the whole segment is read
_NO_ROWS: Final = Segment("", 0, "0:", {})
_SMALL = 8  # times smaller than they should be: segments that are then cut again


def _as_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _of_ours(check: Any) -> AfterValidator:
    """Let a check of ours refuse a value of a model."""

    def checked(value: str) -> str:
        try:
            check(value)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return value

    return AfterValidator(checked)


_Name = Annotated[str, Field(min_length=1, max_length=200)]


_Key = Annotated[
    tuple[_Name, ...],
    BeforeValidator(_as_list, json_schema_input_type=str | list[str]),
    Field(min_length=1, max_length=32),
]


class SqlSettings(BaseModel):
    """Rows of a database as documents."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    query: Annotated[str, _of_ours(select_of)] = Field(
        description="One select; its columns are those of documents:."
    )
    url_env: Annotated[str, _of_ours(checked_variable)] = Field(
        description="The environment variable that holds the address of the database."
    )
    key: _Key = Field(
        description="The column that names a row, or several: it becomes the id of the document."
    )
    changed: _Name | None = Field(
        default=None, description="A column that says when a row changed last."
    )
    deleted: _Name | None = Field(
        default=None, description="A column that says of a row that it is gone."
    )
    timeout: Annotated[float, Field(ge=1, le=86_400)] = Field(
        default=TIMEOUT, description="Seconds that a statement may take."
    )


def open_sql(name: str, settings: Mapping[str, Any], columns: Columns) -> SqlSource:
    """Return the source of a resource; nothing is connected to.

    Raises
    ------
    ConfigurationError
        The settings are wrong.
    """
    known = validated(SqlSettings, dict(settings), name)
    if "id" in columns.model_fields_set and known.key != (columns.id,) and len(known.key) == 1:
        raise ConfigurationError(
            f"key must be the column that documents.id names, got {shortened(known.key[0])} and "
            f"{shortened(columns.id)}; name the same column"
        )
    return SqlSource(name, known, columns)


@dataclass(frozen=True)
class SqlSource(Source):
    """The rows of a query, by the settings of the manifest."""

    name: str
    settings: SqlSettings
    columns: Columns

    @property
    def identity(self) -> str:
        """The query and its key."""
        known = self.settings.model_dump(mode="json", exclude={"url_env", "timeout"})
        return json.dumps(["sql", known], sort_keys=True)

    @contextmanager
    def snapshot(self) -> Iterator[str]:
        """Hold a moment of the database still, where others can see it too.

        SQLite cannot: what is read there must be what was listed, by its hash.
        """
        with open_database(self.settings.url_env, timeout=self.settings.timeout) as database:
            name = exported_snapshot(database)
            if name:
                yield name
        if not name:  # a transaction that nobody shares would only be in the way of who writes
            yield _AS_LISTED

    @contextmanager
    def _opened(self, snapshot: str = "") -> Iterator[KeyedQuery]:
        known = self.settings
        name = "" if snapshot == _AS_LISTED else snapshot
        with open_database(known.url_env, snapshot=name, timeout=known.timeout) as database:
            kind = SqliteQuery if database.dialect == "sqlite" else PostgresQuery
            yield kind(
                database,
                known.query,
                known.key,
                self.columns,
                changed=known.changed,
                deleted=known.deleted,
            )

    def segments(self, snapshot: str, before: Listing | None) -> Listing:
        """Return all rows in segments, with the bounds of a former listing as far as they do."""
        bounds = self._former(before, snapshot) if before else []
        with self._opened(snapshot) as query:
            segments = _Cut(query, Range()).segments(bounds)
            stamp = self._stamp(query) if self.settings.changed else ""
        return Listing(tuple(segments), stamp, self._compares_keys)

    @property
    def _compares_keys(self) -> bool:
        """Whether nothing but a missing key says that a row is gone."""
        return bool(self.settings.changed and not self.settings.deleted)

    def _stamp(self, query: KeyedQuery) -> str:
        """Return from where on changes are read the next time, and what is there by now."""
        low = query.moment()
        rows = Range(since=low)
        marks = None if low is None else query.marks(rows)
        seen = "" if low is None or marks is not None else _said(_Cut(query, rows).whole())
        keys = query.keys() if self._compares_keys else ""
        return json.dumps({"low": low, "marks": marks, "seen": seen, "keys": keys})

    def _former(self, before: Listing, snapshot: str) -> list[Bound]:
        """Return the bounds of a former listing that are bounds of the key as it is now."""
        bounds = _bounds_of(before.segments)
        try:
            with self._opened(snapshot) as query:  # its transaction ends with a wrong bound
                return bounds if bounds and query.takes(bounds) else []
        except (ConfigurationError, InvalidInputError):
            return []

    def changes(self, snapshot: str, since: Listing) -> Listing | None:
        """Return a listing with the rows that changed since; None where nothing says so."""
        if not self.settings.changed or not since.stamp:
            return None
        before = json.loads(since.stamp)
        if before["low"] is None:
            return None
        with self._opened(snapshot) as query:
            since_then = Range(since=before["low"], but=tuple(before["marks"] or ()))
            changed = _Cut(query, since_then)
            rows = changed.whole()
            is_new = bool(rows) and _said(rows) != before["seen"]
            stamp = self._stamp(query)
            if not is_new and json.loads(stamp)["keys"] == before["keys"]:
                return since
            # Without a row it lets the run see that others are gone.
            some = changed.small(rows) or changed.segments([]) if is_new else [_NO_ROWS]
            night = sha256(f"{since.stamp} {stamp}".encode()).hexdigest()[:12]
            deltas = [
                replace(one, name=f"since-{night}-{number}", is_delta=True)
                for number, one in enumerate(some)
            ]
            return replace(since, segments=(*since.segments, *deltas), stamp=stamp)

    def read(
        self,
        segment: Segment,
        snapshot: str,
        names: Sequence[str],
        *,
        ids: Sequence[str] = (),
        rows: int = BATCH_ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a segment in the order of the key."""
        if not segment.size:
            return
        where, named = Range.of(segment.where), ids if len(ids) <= _MOST_IDS else ()
        if list(names) == [self.columns.id]:  # is a row still there? so it is whatever it says
            where = replace(where, but=())
        place, last = list(names).index(self.columns.id), None
        stamp = segment.stamp.partition(":")[2] if snapshot == _AS_LISTED else ""
        with self._opened(snapshot) as query:
            try:
                for batch in query.read(where, names, named, rows, stamp):
                    keys = batch.column(place)
                    last = None if where.nulls else self._refuse_repeated(keys, last)
                    yield batch
            except ChangedError:
                raise SourceUnavailableError(
                    f"{self.name}:{segment.name}: rows must not change between their listing and "
                    "the end of reading them; run again when nobody writes"
                ) from None

    def _refuse_repeated(self, ids: pa.Array, last: pa.Array | None) -> pa.Array:
        """Refuse a key that comes twice: which row is meant is left to chance."""
        before = pa.nulls(1, ids.type) if last is None else last
        shifted = pa.concat_arrays([before, ids.slice(0, len(ids) - 1)])
        repeated = pc.fill_null(pc.equal(ids, shifted), fill_value=False)
        if pc.any(repeated).as_py():
            key = ids.filter(repeated)[0].as_py()
            raise InvalidInputError(
                f"{self.name}: a key must name one row, got {shortened(key)} twice; correct key, "
                "or the query"
            )
        return ids.slice(len(ids) - 1)


class _Cut:
    """Rows on the way into segments: all, or those that changed."""

    def __init__(self, query: KeyedQuery, rows: Range) -> None:
        self._query = query
        self._rows = rows

    def segments(self, bounds: list[Bound]) -> list[Segment]:
        """Return all rows in segments, with former bounds as far as these will do.

        A range that grew too large gets bounds of its own, and what is behind all of them; nothing
        but those ranges is hashed again.
        """
        known = self._prints(bounds, [self._rows]) if bounds else {}
        sizes = known or self._by_range([], self._query.measured(self._rows))
        refined = self._refined(bounds, sizes)
        ranges = self._ranges(refined)
        fresh = [one for one in ranges if one not in self._ranges(bounds)] if bounds else ranges
        if fresh:
            known |= self._prints(refined, fresh if bounds else [self._rows])
        return [_segment(one, known[one]) for one in ranges if one in known]

    def whole(self) -> dict[Range, Fingerprint]:
        """Return what is in all of the rows, with and without a key."""
        return self._prints([], [self._rows])

    def small(self, rows: Mapping[Range, Fingerprint]) -> list[Segment]:
        """Return `whole` as segments; none where it is too large for one."""
        return [_segment(*one) for one in rows.items() if max(map(_pieces, rows.values())) == 1]

    def _ranges(self, bounds: Sequence[Bound]) -> list[Range]:
        """Return the ranges between bounds, what is behind them, and rows without a key."""
        edges = pairwise([None, *bounds, None])
        keyed = [replace(self._rows, after=after, to=to) for after, to in edges]
        return [*keyed, replace(self._rows, nulls=True)]

    def _by_range(
        self, bounds: Sequence[Bound], prints: Mapping[int, Fingerprint]
    ) -> dict[Range, Fingerprint]:
        ranges = self._ranges(bounds)  # that of rows without a key is the last one, number -1
        return {ranges[bucket]: one for bucket, one in prints.items()}

    def _prints(self, bounds: Sequence[Bound], ranges: Sequence[Range]) -> dict[Range, Fingerprint]:
        return self._by_range(bounds, self._query.fingerprints(bounds, ranges))

    def _refined(self, bounds: Sequence[Bound], sizes: Mapping[Range, Fingerprint]) -> list[Bound]:
        """Return bounds between which there is about as much as a segment should have."""
        refined = list[Bound]()
        before = Fingerprint(0, 0)
        for rows in self._ranges(bounds)[:-1]:
            there = sizes.get(rows, Fingerprint(0, 0))
            if rows.to is None and there.rows and 2 * before.size < SEGMENT_BYTES and refined:
                refined.pop()  # the last segment takes what came after it, as long as it is small
                rows = replace(rows, after=refined[-1] if refined else None)
                there = Fingerprint(there.rows + before.rows, there.size + before.size)
            if there.rows and (rows.to is None or _pieces(there) > 2):
                step = -(-there.rows // _pieces(there))
                refined += self._query.bounds(rows, step, there.rows)
            elif rows.to is not None:
                refined.append(rows.to)
            before = there
        return refined


def _pieces(there: Fingerprint) -> int:
    """Return how many segments rows make."""
    return max(-(-there.size // SEGMENT_BYTES), -(-there.rows // SEGMENT_ROWS), 1)


def _segment(rows: Range, there: Fingerprint) -> Segment:
    where = rows.to_json()
    name = "without a key" if rows.nulls else "all"
    if bound := rows.to or rows.after:  # without the first: the last key is no text
        said = "/".join(map(str, bound))
        is_plain = re.fullmatch(r"[\w./:@+ -]{1,60}", said)
        said = said if is_plain else sha256(json.dumps(where).encode()).hexdigest()[:16]
        name = f"{'to' if rows.to else 'after'} {said}"
    return Segment(name, there.size, _stamp_of(there), where)


def _stamp_of(there: Fingerprint) -> str:
    return f"{there.rows}:{there.hash}"


def _bounds_of(segments: Sequence[Segment]) -> list[Bound]:
    """Return the bounds of former segments; none where these are many and small by now."""
    ranges = [Range.of(one.where) for one in segments if not one.is_delta]
    named = (bound for one in ranges for bound in (one.after, one.to) if bound is not None)
    bounds = list(dict.fromkeys(named))
    size = sum(one.size for one in segments)
    many = len(bounds) > 2 * _SMALL and size * _SMALL < len(bounds) * SEGMENT_BYTES
    return [] if many else bounds


def _said(rows: Mapping[Range, Fingerprint]) -> str:
    """Return what is in ranges as a text."""
    return " ".join(sorted(map(_stamp_of, rows.values())))
