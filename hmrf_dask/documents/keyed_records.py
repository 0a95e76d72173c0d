"""Records with a key that an engine streams in its order: segments, hashes and what changed.

What engines differ in is a `Store`. They do not hash what they have, so a listing is a stream of
keys and changes (without `changed`, of all that is read) through the process that lists.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import pyarrow as pa
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from hmrf_dask.databases.connection import TIMEOUT, checked_variable
from hmrf_dask.documents.keyed_query import Range
from hmrf_dask.documents.records import is_text
from hmrf_dask.documents.sources import BATCH_ROWS, GONE, Listing, Segment, Source
from hmrf_dask.errors import ConfigurationError, InvalidInputError, SourceUnavailableError
from hmrf_dask.redaction import shortened

if TYPE_CHECKING:
    from hmrf_dask.documents.manifest import Columns

SEGMENT_ROWS: Final = 20_000  # about; keys whose hash is a multiple of it end a segment
OVERLAP_ROWS: Final = 100  # of the last changes; what came with them or later is read again
_ROW_BYTES: Final = 1024  # taken for a record: no engine says what a range of them has
_BATCH_BYTES: Final = 16 * 2**20
_MOST_IDS: Final = 1_000
_MOST_MARKS: Final = 1_000


def _variable(name: str) -> str:
    try:
        return checked_variable(name)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


Name = Annotated[str, Field(min_length=1, max_length=200)]
# A path of names: `message.body`.
FieldName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^$\x00][^\x00]*$")]


class RecordSettings(BaseModel):
    """What all engines are asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url_env: Annotated[str, AfterValidator(_variable)] = Field(
        description="The environment variable that holds the address of the server."
    )
    changed: FieldName | None = Field(
        default=None, description="A field that says when a document changed last."
    )
    deleted: FieldName | None = Field(
        default=None, description="A field that says of a document that it is gone."
    )
    timeout: Annotated[float, Field(ge=1, le=86_400)] = Field(
        default=TIMEOUT, description="Seconds that a request may take."
    )


def refuse_other_id(key: str, columns: Columns) -> None:
    """Refuse a manifest whose `documents.id` names another field than the key."""
    if "id" in columns.model_fields_set and columns.id != key:
        raise ConfigurationError(
            f"key must be the field that documents.id names, got {shortened(key)} and "
            f"{shortened(columns.id)}; name the same field"
        )


class Found(NamedTuple):
    """A record: its key as the id of a document and as a bound of ranges, and fields by path."""

    id: str
    bound: str
    fields: Mapping[str, Any]


class Store(ABC):
    """An engine that is connected to; bounds and times are texts which it alone reads."""

    @abstractmethod
    def refuse_unfit(self) -> None:
        """Refuse keys and changes that have no order, and a place that is not there."""

    @abstractmethod
    def records(
        self, rows: Range, fields: Sequence[str], ids: Sequence[str] = ()
    ) -> Iterator[Found]:
        """Yield records in the order of the key, that of code points or numbers."""

    @abstractmethod
    def moment(self) -> str | None:
        """Return from where on changes are read the next time; None without any."""


class KeyedRecords(Source):
    """Documents of an engine; a kind says how it is connected to."""

    name: str
    settings: RecordSettings
    columns: Columns

    @property
    @abstractmethod
    def kind(self) -> str:
        """The name of the kind, as in a manifest."""

    @abstractmethod
    def _opened(self, snapshot: str) -> AbstractContextManager[Store]:
        """Connect."""

    @property
    def identity(self) -> str:
        """What is read, and by which fields."""
        known = self.settings.model_dump(mode="json", exclude={"url_env", "timeout"})
        return json.dumps([self.kind, known], sort_keys=True)

    def segments(self, snapshot: str, before: Listing | None) -> Listing:  # noqa: ARG002 - bounds do without
        """Return all records in segments; their bounds follow from the keys alone."""
        with self._opened(snapshot) as store:
            store.refuse_unfit()
            found = self._cut(store, Range())
            stamp = self._stamp(store) if self.settings.changed else ""
        compares = bool(self.settings.changed and not self.settings.deleted)
        return Listing(tuple(found), stamp, compares)

    def changes(self, snapshot: str, since: Listing) -> Listing | None:
        """Return a listing with what changed since; None where nothing says so."""
        before = json.loads(since.stamp or '{"low": null}')
        if not self.settings.changed or before["low"] is None:
            return None
        with self._opened(snapshot) as store:
            store.refuse_unfit()
            found = self._cut(store, Range(since=before["low"], but=tuple(before["marks"])))
            if not found or [one.stamp for one in found] == before["seen"]:
                return since
            night = _hash_of(since.stamp)
            deltas = [
                replace(one, name=f"since-{night}-{number}", is_delta=True)
                for number, one in enumerate(found)
            ]
            stamp = self._stamp(store)
        return replace(since, segments=(*since.segments, *deltas), stamp=stamp)

    def _stamp(self, store: Store) -> str:
        """Return from where on changes are read the next time, and what is there by now."""
        low = store.moment()
        marks, seen = list[str](), list[str]()
        for number, one in enumerate(self._rows(store, Range(since=low), ()) if low else ()):
            marks.append(self._mark(one))
            if number == _MOST_MARKS:
                marks, seen = [], [part.stamp for part in self._cut(store, Range(since=low))]
                break
        return json.dumps({"low": low, "marks": sorted(marks), "seen": seen})

    # ---- rows

    @property
    def _held(self) -> list[str]:
        """What a segment is known by: when its documents changed, or all that they are."""
        known = self.settings
        if known.changed:
            return [one for one in (known.changed, known.deleted) if one]
        more = [known.deleted] if known.deleted else []
        return [one for one in (*self.columns.in_order, *more) if one and one != self.columns.id]

    def _mark(self, record: Found) -> str:
        return _hash_of([record.id, *(plain(record.fields.get(name)) for name in self._held)])

    def _is_gone(self, record: Found) -> bool:
        deleted = self.settings.deleted
        return deleted is not None and record.fields.get(deleted) not in (None, False, 0, "")

    def _rows(
        self, store: Store, rows: Range, names: Sequence[str], ids: Sequence[str] = ()
    ) -> Iterator[Found]:
        """Yield the records of a range with what they are held by; of a base, those not gone."""
        fields, but, last = list(dict.fromkeys([*names, *self._held])), {*rows.but}, None
        for record in store.records(rows, fields, ids):
            if record.id == last:
                raise InvalidInputError(
                    f"{self.name}: a key must name one document, got {shortened(record.id)} twice; "
                    "correct key, or the documents"
                )
            last = record.id
            if not is_text(record.id):
                raise InvalidInputError(
                    f"{self.name}: a key must be UTF-8 text, got {record.id!a}; correct the "
                    "document"
                )
            if rows.since is None and self._is_gone(record):
                continue
            if not but or self._mark(record) not in but:
                yield record

    def _cut(self, store: Store, rows: Range) -> list[Segment]:
        """Return a range in segments; a small one of changes is one."""
        found, here = list[Segment](), _Piece(rows.after)
        whole = _Piece(rows.after)
        for record in self._rows(store, rows, ()):
            for piece in (here, whole):
                piece.add(self._mark(record))
            if _ends(record.id):
                found.append(here.segment(rows, record))
                here = _Piece((record.bound,))
        if here.rows:
            found.append(here.segment(rows, None))
        is_small = rows.since is not None and whole.rows <= SEGMENT_ROWS
        return [whole.segment(rows, None)] if is_small and found else found

    def read(
        self,
        segment: Segment,
        snapshot: str,
        names: Sequence[str],
        *,
        ids: Sequence[str] = (),
        rows: int = BATCH_ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the documents of a segment in the order of the key."""
        where, named = Range.of(segment.where), ids if len(ids) <= _MOST_IDS else ()
        only_ids = list(names) == [self.columns.id]
        if only_ids:  # is a document still there? so it is whatever it says
            where = replace(where, but=())
        wanted = [name for name in names if name != self.columns.id]
        checks = bool(snapshot) and not only_ids and not named
        piece, batch = _Piece(None), _Rows(self.columns, names, is_delta=segment.is_delta)
        with self._opened(snapshot) as store:
            for record in self._rows(store, where, wanted, named):
                piece.add(self._mark(record) if checks else "")
                batch.add(record, is_gone=self._is_gone(record))
                if batch.n_rows >= rows or batch.n_bytes >= _BATCH_BYTES:
                    yield batch.taken()
        if batch.n_rows:
            yield batch.taken()
        if checks and piece.stamp != segment.stamp:
            raise SourceUnavailableError(
                f"{self.name}:{segment.name}: documents must not change between their listing and "
                "the end of reading them; run again, what did not change is not read again"
            )


class _Piece:
    """Records on the way into a segment."""

    def __init__(self, after: Any) -> None:
        self.after = after
        self.rows = 0
        self._hash = blake2b(digest_size=12)

    def add(self, mark: str) -> None:
        """Take a record in."""
        self.rows += 1
        self._hash.update(mark.encode())

    @property
    def stamp(self) -> str:
        """How many they are, and their hash."""
        return f"{self.rows}:{self._hash.hexdigest()}"

    def segment(self, rows: Range, last: Found | None) -> Segment:
        """Return them as a segment that ends with a record, or has no end."""
        where = replace(rows, after=self.after, to=(last.bound,) if last else None)
        said = last.id if last else f"after {_hash_of(list(self.after))}" if self.after else "all"
        if last:
            is_plain = re.fullmatch(r"[\w./:@+ -]{1,60}", said, re.ASCII)
            said = f"to {said if is_plain else _hash_of(said)}"
        return Segment(said, self.rows * _ROW_BYTES, self.stamp, where.to_json())


class _Rows:
    """Documents on the way into a batch of Arrow."""

    def __init__(self, columns: Columns, names: Sequence[str], *, is_delta: bool) -> None:
        self._id = columns.id
        self._types = {
            name: pa.list_(pa.float64()) if name == columns.embedding else pa.string()
            for name in names
        }
        if is_delta:
            self._types[GONE] = pa.bool_()
        self._clear()

    def _clear(self) -> None:
        self.n_rows = self.n_bytes = 0
        self._values: dict[str, list[Any]] = {name: [] for name in self._types}

    def add(self, record: Found, *, is_gone: bool) -> None:
        """Take a document in; what is neither a value nor an embedding is missing."""
        self.n_rows += 1
        for name, values in self._values.items():
            value: Any = record.id if name == self._id else plain(record.fields.get(name))
            value = is_gone if name == GONE else value
            is_list = pa.types.is_list(self._types[name])
            values.append(value if isinstance(value, list) == is_list else None)
            self.n_bytes += len(value) if isinstance(value, str) else 0
            self.n_bytes += 8 * len(value) if isinstance(value, list) else 0

    def taken(self) -> pa.RecordBatch:
        """Return them, and begin the next batch."""
        arrays = [pa.array(self._values[name], kind) for name, kind in self._types.items()]
        batch = pa.RecordBatch.from_arrays(arrays, list(self._types))
        self._clear()
        return batch


def _ends(id_: str) -> bool:
    """Return whether a key ends a segment, whatever is next to it: a new one moves one bound."""
    hashed = blake2b(id_.encode(), digest_size=8).digest()
    return int.from_bytes(hashed, "little") % SEGMENT_ROWS == 0


def _hash_of(value: Any) -> str:
    return blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()


def plain(value: Any) -> str | list[float] | None:
    """Return a value of a field as a text, or an embedding; None for lists and objects.

    Examples
    --------
    >>> plain("a"), plain(True), plain(2.0), plain([0.5, 1]), plain(["a"]), plain({"a": 1})
    ('a', 'true', '2.0', [0.5, 1], None, None)
    """
    if value is None or isinstance(value, str):
        return value if value is None or is_text(value) else None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and value and all(type(one) in (int, float) for one in value):
        return value
    return None if isinstance(value, list | dict | bytes) else str(value)


def at(record: Any, path: str) -> Any:
    """Return the value at a path of names, None where there is none.

    Examples
    --------
    >>> at({"message": {"body": "hello"}}, "message.body"), at({"a.b": 1}, "a.b"), at({}, "a.b")
    ('hello', 1, None)
    """
    if not isinstance(record, dict) or path in record:
        return record.get(path) if isinstance(record, dict) else None
    first, dot, more = path.partition(".")
    return at(record.get(first), more) if dot else None
