"""Documents in a collection of MongoDB, by pymongo's cursors over ranges of the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from hmrf_dask.databases.connection import address_of
from hmrf_dask.documents.keyed_query import Range
from hmrf_dask.documents.keyed_records import (
    OVERLAP_ROWS,
    FieldName,
    Found,
    KeyedRecords,
    Name,
    RecordSettings,
    Store,
    at,
    refuse_other_id,
)
from hmrf_dask.documents.yaml_files import validated
from hmrf_dask.errors import (
    ConfigurationError,
    HmrfError,
    InvalidInputError,
    SourceUnavailableError,
)
from hmrf_dask.redaction import shortened

if TYPE_CHECKING:
    from hmrf_dask.documents.manifest import Columns

_AS_LISTED: Final = "as listed"
_OVERLAP: Final = timedelta(hours=1)  # a program names the time before others see what it wrote
_SIMPLE: Final = {"locale": "simple"}  # keys are compared as they are, whatever the collection says
_WAIT_MS: Final = 20_000
_BATCH: Final = 1_000
# By the code of a server: what a person can do.
_LOGIN: Final = (13, 18)
_NO_INDEX: Final = (96, 292)
_TOO_SLOW: Final = (50, 262)


class MongoSettings(RecordSettings):
    """Documents of a collection of MongoDB."""

    database: Name = Field(description="The database.")
    collection: Name = Field(description="The collection.")
    key: FieldName = Field(
        default="_id",
        description="The field that names a document, and has an index: it becomes its id.",
    )


def open_mongo(name: str, settings: Mapping[str, Any], columns: Columns) -> MongoSource:
    """Return the source of a resource; nothing is connected to.

    Raises
    ------
    ConfigurationError
        The settings are wrong.
    """
    known = validated(MongoSettings, dict(settings), name)
    refuse_other_id(known.key, columns)
    return MongoSource(name, known, columns)


@dataclass(frozen=True)
class MongoSource(KeyedRecords):
    """The documents of a collection, by the settings of the manifest."""

    name: str
    settings: MongoSettings
    columns: Columns

    @property
    def kind(self) -> str:
        """The name of the kind."""
        return "mongo"

    @contextmanager
    def snapshot(self) -> Iterator[str]:
        """Let what is read be what was listed, by its hash: moments are not shared by clients."""
        yield _AS_LISTED

    @contextmanager
    def _opened(self, snapshot: str) -> Iterator[Store]:  # noqa: ARG002 - `read` checks hashes
        known = self.settings
        url = address_of(known.url_env, ("mongodb", "mongodb+srv"), "mongodb://host")
        with _explained(known.url_env):
            try:
                import pymongo
            except ImportError as error:
                raise ConfigurationError(
                    f"MongoDB needs its driver ({error}); install hmrf-dask[mongo]"
                ) from None
            with pymongo.MongoClient(
                url,
                tz_aware=True,
                appname="hmrf-dask",
                connectTimeoutMS=_WAIT_MS,
                serverSelectionTimeoutMS=_WAIT_MS,
            ) as client:
                yield _Collection(client[known.database], known)


class _Collection(Store):
    """A collection that is connected to."""

    def __init__(self, database: Any, settings: MongoSettings) -> None:
        self._database = database
        self._settings = settings
        self._limit = int(settings.timeout * 1000)

    def _find(self, condition: Mapping[str, Any], fields: Sequence[str], **more: Any) -> Any:
        shown = {"_id": 0, **dict.fromkeys(_without_inner(fields), 1)}
        return self._database[self._settings.collection].find(
            condition, shown, collation=_SIMPLE, max_time_ms=self._limit, **more
        )

    def refuse_unfit(self) -> None:
        """Refuse keys, or times of changes, of several types: MongoDB compares within one."""
        known, names = self._settings, {"name": self._settings.collection}
        if not self._database.list_collection_names(filter=names):
            raise ConfigurationError(
                f"there is no collection {known.collection!r} in the database {known.database!r}; "
                "correct the manifest"
            )
        self._refuse_mixed(known.key, {}, "a text, a whole number or an ObjectId")
        if known.changed:
            self._refuse_mixed(known.changed, {known.changed: {"$ne": None}}, "a date or a number")

    def _refuse_mixed(self, field: str, condition: Mapping[str, Any], must: str) -> None:
        """Refuse a field whose first and last value, in an order by types, are of two types."""
        kinds = [
            _kind_of(at(one, field))
            for way in (1, -1)
            for one in self._find(condition, [field], sort=[(field, way)], limit=1)
        ]
        if len({*kinds}) > 1 or any(kind.startswith("a value") for kind in kinds):
            raise InvalidInputError(
                f"{field} must be {must}, and of the same type in all documents, got "
                f"{' and '.join(dict.fromkeys(kinds))}; correct them, or name another field"
            )

    def records(
        self, rows: Range, fields: Sequence[str], ids: Sequence[str] = ()
    ) -> Iterator[Found]:
        """Yield documents in the order of the key."""
        from bson.json_util import dumps

        key = self._settings.key
        cursor = self._find(
            self._within(rows, ids),
            [key, *fields],
            sort=[(key, 1)],
            allow_disk_use=True,
            batch_size=_BATCH,
        )
        with cursor:
            for one in cursor:
                value = at(one, key)
                yield Found(
                    _id_of(value, key), dumps(value), {name: at(one, name) for name in fields}
                )

    def _within(self, rows: Range, ids: Sequence[str]) -> dict[str, Any]:
        """Return the condition of a range."""
        from bson.json_util import loads

        known = self._settings
        parts: list[dict[str, Any]] = [{}]
        for sign, bound in (("$gt", rows.after), ("$lte", rows.to)):
            if bound is not None:
                parts.append({known.key: {sign: loads(str(bound[0]))}})
        if rows.since is not None and known.changed:
            newer = {known.changed: {"$gte": loads(str(rows.since))}}
            parts.append({"$or": [newer, {known.changed: None}]})
        elif known.deleted:
            parts.append({known.deleted: {"$in": [None, False, 0, ""]}})
        if ids:
            parts.append({known.key: {"$in": [value for one in ids for value in _keys_of(one)]}})
        return {"$and": parts}

    def moment(self) -> str | None:
        """Return the last change but some, and an hour before where it is a time.

        A time to come, of which there are less, hides nothing.
        """
        from bson.json_util import dumps

        field = self._settings.changed
        assert field is not None
        newest = self._find({field: {"$ne": None}}, [field], sort=[(field, -1)], limit=OVERLAP_ROWS)
        values = [at(one, field) for one in newest]
        if not values:
            return None
        low = values[-1]
        return str(dumps(low - _OVERLAP if isinstance(low, datetime) else low))


def _without_inner(fields: Sequence[str]) -> list[str]:
    """Return paths of which none is inside another: MongoDB refuses to show both."""
    return [
        one for one in fields if not any(one.startswith(f"{outer}.") for outer in {*fields} - {one})
    ]


def _kind_of(value: Any) -> str:
    """Return the type of a key or a time, in words; other types begin with "a value"."""
    from bson import ObjectId

    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        return f"a value such as {value}"
    kinds = {str: "a text", int: "a number", float: "a number", datetime: "a date"}
    kinds[ObjectId] = "an ObjectId"
    found = next((words for kind, words in kinds.items() if isinstance(value, kind)), "")
    return found or ("a value that is missing" if value is None else f"a value {type(value)}")


def _id_of(value: Any, key: str) -> str:
    """Return a key as the id of a document."""
    kind = _kind_of(value)
    if kind not in ("a text", "a number", "an ObjectId"):
        raise InvalidInputError(
            f"{key} must be a text, a whole number or an ObjectId, got {shortened(str(value))}; "
            "correct the document"
        )
    return str(int(value)) if kind == "a number" else str(value)


def _keys_of(id_: str) -> list[Any]:
    """Return all keys that make an id."""
    from bson import ObjectId

    keys: list[Any] = [id_]
    if ObjectId.is_valid(id_):
        keys.append(ObjectId(id_))
    if id_.removeprefix("-").isascii() and id_.removeprefix("-").isdigit() and len(id_) < 19:
        keys.append(int(id_))
    return keys


@contextmanager
def _explained(url_env: str) -> Iterator[None]:
    """Turn what the driver raises into an error of ours, without the address."""
    try:
        yield
    except HmrfError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pymongo", "bson", "gridfs"):
            raise
        raise _in_words(error, f"the MongoDB of {url_env}") from None


def _in_words(error: Exception, place: str) -> HmrfError:
    from bson.errors import BSONError
    from pymongo import errors

    if isinstance(error, BSONError):
        return InvalidInputError(f"{place}: a document cannot be read ({error}); correct it")
    if isinstance(error, errors.OperationFailure):
        said = " ".join(str((error.details or {}).get("errmsg", error)).split())[:300]
        if error.code in _LOGIN:
            return ConfigurationError(f"{place}: {said}; correct the user, password or rights")
        if error.code in _NO_INDEX:
            return ConfigurationError(f"{place}: {said}; give the key and changed an index")
        advice = "run again later"
        if error.code in _TOO_SLOW:
            advice = "give the key and changed an index, or raise timeout"
        return SourceUnavailableError(f"{place}: {said}; {advice}")
    if isinstance(error, errors.ConfigurationError | errors.InvalidURI):
        return ConfigurationError(f"{place}: the address cannot be used; correct it")
    return SourceUnavailableError(
        f"{place}: no answer, or the connection broke off ({type(error).__name__}); run again later"
    )
