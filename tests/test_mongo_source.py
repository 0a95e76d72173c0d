"""Documents of MongoDB beyond what every source must do; mongomock answers in its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from hmrf_dask.documents import keyed_records
from hmrf_dask.documents.keyed_records import KeyedRecords
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.mongo import open_mongo
from hmrf_dask.documents.sources import GONE, Segment
from hmrf_dask.errors import ConfigurationError, InvalidInputError, SourceUnavailableError

NAME = "DESK_URL"
PLACE = {"url_env": NAME, "database": "desk", "collection": "tickets"}
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def tickets(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a collection."""
    mongomock = pytest.importorskip("mongomock", reason="no mongomock: make setup")
    store = mongomock.store.ServerStore()
    monkeypatch.setattr("pymongo.MongoClient", partial(mongomock.MongoClient, _store=store))
    monkeypatch.setenv(NAME, "mongodb://reader:hunter2@localhost")
    monkeypatch.setattr(keyed_records, "SEGMENT_ROWS", 3)
    return mongomock.MongoClient(_store=store).desk.tickets


def source(columns: Columns | None = None, **settings: Any) -> KeyedRecords:
    return open_mongo("tickets", {**PLACE, **settings}, columns or Columns())


def rows(some: KeyedRecords, segment: Segment, names: tuple[str, ...] = ("id", "text")) -> Any:
    return [
        row
        for batch in some.read(segment, "as listed", names)
        for row in zip(*batch.to_pydict().values(), strict=True)
    ]


def documents(some: KeyedRecords) -> dict[str, Any]:
    segments = some.segments("", None).segments
    assert len(segments) > 1
    return dict(row for one in segments for row in rows(some, one))


def test_keys_are_object_ids_whole_numbers_or_texts(tickets: Any) -> None:
    from bson import ObjectId

    kinds: list[Callable[[int], Any]] = [
        lambda number: ObjectId(f"{number:024x}"),
        float,
        lambda number: f"ticket {number} $ne é",
    ]
    for kind in kinds:
        tickets.delete_many({})
        tickets.insert_many([{"_id": kind(n), "text": f"text {n}"} for n in range(40)])
        expected = {str(n) if kind is float else str(kind(n)): f"text {n}" for n in range(40)}
        assert documents(source()) == expected
        one = sorted(expected)[7]
        found = [
            row
            for part in source().segments("", None).segments
            for batch in source().read(part, "", ["id", "text"], ids=[one])
            for row in batch.to_pylist()
        ]
        assert found == [{"id": one, "text": expected[one]}]


def test_fields_inside_others_and_values_that_are_no_texts(tickets: Any) -> None:
    columns = Columns(text="mail.body", embedding="mail.row", keep=("mail.size",))
    tickets.insert_one({"_id": 1, "mail": {"body": "hello", "row": [0.5, 1], "size": 7}})
    tickets.insert_one({"_id": 2, "mail": {"body": ["a", "list"], "row": "none", "size": True}})
    some = source(columns)
    found = [
        row
        for one in some.segments("", None).segments
        for row in rows(some, one, ("id", "mail.row", "mail.body", "mail.size"))
    ]
    assert found == [("1", [0.5, 1], "hello", "7"), ("2", None, None, "true")]


def test_without_changed_a_segment_is_known_by_its_content(tickets: Any) -> None:
    tickets.insert_many([{"_id": n, "text": f"text {n}"} for n in range(40)])
    before = source().segments("", None)
    assert before.stamp == ""
    tickets.update_one({"_id": 20}, {"$set": {"text": "another"}})
    after = source().segments("", before)
    changed = {(one.name, one.stamp) for one in after.segments} - {
        (one.name, one.stamp) for one in before.segments
    }
    assert len(changed) == 1
    assert [one.name for one in after.segments] == [one.name for one in before.segments]


def test_what_changes_after_it_is_listed_is_not_read_as_listed(tickets: Any) -> None:
    tickets.insert_many([{"_id": n, "text": "text", "updated": NOON} for n in range(4)])
    some = source(changed="updated")
    segments = some.segments("", None).segments
    later = {"text": "another", "updated": NOON.replace(hour=13)}
    tickets.update_many({}, {"$set": later})
    with pytest.raises(SourceUnavailableError, match=r"tickets:.*must not change.*run again"):
        rows(some, segments[0])
    assert list(some.read(segments[0], "", ["id", "text"]))  # for people: what is there now


def test_many_changes_at_one_time_are_read_once_more_and_then_known(
    tickets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_records, "_MOST_MARKS", 5)
    tickets.insert_many([{"_id": n, "text": "text", "updated": NOON} for n in range(20)])
    some = source(changed="updated", deleted="closed")
    listing = some.segments("", None)
    assert json.loads(listing.stamp)["seen"]
    assert some.changes("", listing) == listing
    tickets.update_one({"_id": 3}, {"$set": {"closed": True}})  # at the same time
    after = some.changes("", listing)
    assert after is not None
    deltas = [one for one in after.segments if one.is_delta]
    gone = {
        row["id"]
        for one in deltas
        for batch in some.read(one, "as listed", ["id", "text"])
        for row in batch.to_pylist()
        if row[GONE]
    }
    assert gone == {"3"}


def test_without_deleted_keys_are_compared(tickets: Any) -> None:
    tickets.insert_many([{"_id": n, "text": "text", "updated": NOON} for n in range(4)])
    some = source(changed="updated")
    listing = some.segments("", None)
    tickets.delete_one({"_id": 2})
    assert listing.compares_keys
    there = [name for one in listing.segments for (name,) in rows(some, one, ("id",))]
    assert there == ["0", "1", "3"]


@pytest.mark.parametrize(
    ("documents", "settings", "words"),
    [
        ([{"_id": 1}, {"_id": "1"}], {}, "_id must be .* of the same type"),
        ([{"_id": 1.5}], {}, "_id must be a text, a whole number"),
        ([{"number": 1}, {"other": 1}], {"key": "number"}, "number must be .* missing"),
        ([{"number": 1}, {"number": 1}], {"key": "number"}, "one document, got '1' twice"),
        ([{"at": NOON}, {"at": "noon"}], {"changed": "at"}, "at must be .* a text and a date"),
    ],
)
def test_keys_and_times_without_an_order_are_refused(
    tickets: Any, documents: list[Any], settings: dict[str, Any], words: str
) -> None:
    tickets.insert_many(documents)
    with pytest.raises(InvalidInputError, match=words):
        source(**settings).segments("", None)


def test_a_collection_that_is_not_there_is_not_an_empty_one(tickets: Any) -> None:
    with pytest.raises(ConfigurationError, match="there is no collection 'tickets'"):
        source().segments("", None)


@pytest.mark.parametrize(
    "settings",
    [
        {"url_env": "mongodb://me:hunter2@host"},
        {"key": "$where"},
        {"collection": ""},
        {"query": {}},
    ],
)
def test_wrong_settings_are_refused_without_secrets(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        source(**settings)
    assert "hunter2" not in str(caught.value)


def test_a_key_that_is_not_the_id_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"documents\.id names"):
        source(Columns(id="number"))


def failing(error: Exception) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("code", "kind"),
    [(18, ConfigurationError), (13, ConfigurationError), (292, ConfigurationError),
     (50, SourceUnavailableError), (11600, SourceUnavailableError)],
)  # fmt: skip
def test_what_a_server_refuses_is_said_in_words(
    tickets: Any, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    from pymongo.errors import OperationFailure

    error = OperationFailure("no", code, {"errmsg": "it said so"})
    monkeypatch.setattr(type(tickets), "find", failing(error))
    tickets.insert_one({"_id": 1})
    with pytest.raises(kind, match="the MongoDB of DESK_URL: it said so; "):
        source().segments("", None)


def test_no_answer_and_no_address_are_said_without_the_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pymongo", reason="no pymongo: make setup")
    from hmrf_dask.documents import mongo

    monkeypatch.setattr(mongo, "_WAIT_MS", 50)
    for url, kind in {
        "mongodb://me:hunter2@127.0.0.1:9/": SourceUnavailableError,
        "mongodb://me:hun@ter2@127.0.0.1/": ConfigurationError,
        "postgresql://me:hunter2@127.0.0.1/": ConfigurationError,
        "": ConfigurationError,
    }.items():
        monkeypatch.setenv(NAME, url)
        with pytest.raises(kind) as caught:
            source().segments("", None)
        assert "ter2" not in str(caught.value)
