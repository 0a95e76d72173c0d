"""Documents of Elasticsearch and OpenSearch beyond what every source must do, on a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hmrf_dask.documents import keyed_records, search
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.search import open_search
from hmrf_dask.documents.sources import GONE, Source
from hmrf_dask.errors import (
    ConfigurationError,
    HmrfError,
    InvalidInputError,
    SourceUnavailableError,
)
from tests.support.search_server import SearchServer, search_server

NAME = "DESK_URL"
TYPES = {"id": "keyword", "number": "long", "text": "text", "updated": "date", "closed": "date"}


@pytest.fixture(params=[False, True], ids=["elasticsearch", "opensearch"])
def server(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[SearchServer]:
    """Answer with pages of five documents and segments of about four."""
    monkeypatch.setattr(keyed_records, "SEGMENT_ROWS", 4)
    monkeypatch.setattr(search, "_PAGE", 5)
    with search_server("tickets", types=TYPES, is_opensearch=request.param) as one:
        monkeypatch.setenv(NAME, one.address)
        for number in range(23):
            one.documents[f"doc {number}"] = {
                "id": f"ticket {number} é",
                "number": number,
                "text": f"text {number}",
                "updated": f"2026-01-01T{number:02d}:00:00+00:00",
            }
        yield one


def source(key: str = "id", **settings: Any) -> Source:
    known = {"url_env": NAME, "index": "tickets", "key": key, **settings}
    return open_search("tickets", known, Columns(id=key, text="body" if key == "text" else "text"))


def texts(some: Source, key: str = "id") -> dict[str, Any]:
    with some.snapshot() as snapshot:
        segments = some.segments(snapshot, None).segments
        assert len(segments) > 1
        return {
            row[key]: row["text"]
            for one in segments
            for batch in some.read(one, snapshot, [key, "text"])
            for row in batch.to_pylist()
        }


@pytest.mark.parametrize("key", ["id", "number"])
def test_all_documents_are_read_by_keywords_or_numbers(server: SearchServer, key: str) -> None:
    expected = {str(one[key]): one["text"] for one in server.documents.values()}
    assert texts(source(key), key) == expected
    assert not server.points  # what was opened is closed


def test_all_that_is_read_is_of_one_moment(server: SearchServer) -> None:
    some = source()
    with some.snapshot() as snapshot:
        segments = some.segments(snapshot, None).segments
        server.documents["doc 3"]["text"] = "another"
        read = [
            row["text"]
            for one in segments
            for batch in some.read(one, snapshot, ["id", "text"])
            for row in batch.to_pylist()
        ]
        server.points.clear()  # it took too long
        with pytest.raises(SourceUnavailableError, match=r"No search context.*run again"):
            list(some.read(segments[0], snapshot, ["id", "text"]))
    assert "another" not in read
    assert len(read) == len(server.documents)


def test_later_nights_read_what_changed(
    server: SearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "OVERLAP_ROWS", 2)
    some = source(changed="updated", deleted="closed")
    before = some.segments("", None)
    assert some.changes("", before) == before
    later = "2026-01-02T00:00:00+00:00"
    server.documents["doc 1"] |= {"text": "another", "updated": later}
    server.documents["doc 2"] |= {"closed": later, "updated": later}
    server.documents["new"] = {"id": "new", "number": 99, "text": "new"}  # says no time
    after = some.changes("", before)
    assert after is not None
    (delta,) = after.segments[len(before.segments) :]
    rows = [
        tuple(row.values())
        for batch in some.read(delta, "", ["id", "text"])
        for row in batch.to_pylist()
    ]
    assert list(batch_names(some, delta)) == ["id", "text", GONE]
    assert rows == [
        ("new", "new", False),
        ("ticket 1 é", "another", False),
        ("ticket 2 é", "text 2", True),
    ]
    assert some.changes("", after) == after


def batch_names(some: Source, segment: Any) -> list[str]:
    return list(next(iter(some.read(segment, "", ["id", "text"]))).schema.names)


@pytest.mark.parametrize("n_copies", [1, 8])
def test_a_key_that_comes_twice_is_refused(server: SearchServer, n_copies: int) -> None:
    for number in range(n_copies):  # also where a page ends between them
        server.documents[f"copy {number}"] = dict(server.documents["doc 4"])
    with pytest.raises(InvalidInputError, match=r"key must name one document.*correct"):
        source().segments("", None)


def test_what_cannot_be_read_is_refused_in_words(server: SearchServer) -> None:
    wrong: list[tuple[dict[str, Any], type[HmrfError], str]] = [
        ({"key": "text"}, ConfigurationError, r"must be a field of keywords .*got text"),
        ({"key": "nothing"}, ConfigurationError, "got none in tickets"),
        ({"changed": "text"}, ConfigurationError, r"must be a field of dates"),
        ({"index": "others"}, ConfigurationError, "no index others; correct the manifest"),
    ]
    for settings, kind, words in wrong:
        with pytest.raises(kind, match=words) as error:
            source(**settings).segments("", None)
        assert "hunter2" not in str(error.value)
    server.documents["without"] = {"text": "no key"}
    with pytest.raises(InvalidInputError, match="must be in all documents"):
        source().segments("", None)
    for code, kind in ((401, ConfigurationError), (503, SourceUnavailableError)):
        server.failing = lambda code=code: (code, {"error": "no"})  # type: ignore[misc]
        with pytest.raises(kind, match=f"search server of {NAME}: {code}") as error:
            source().segments("", None)
        assert "hunter2" not in str(error.value)


def test_a_server_that_is_not_there_is_tried_again_later(
    server: SearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, "http://127.0.0.1:9")
    with pytest.raises(SourceUnavailableError, match=r"no answer.*run again later"):
        source().segments("", None)
    monkeypatch.setenv(NAME, "ftp://host")
    with pytest.raises(ConfigurationError):
        source().segments("", None)


def test_a_login_goes_to_no_other_server(
    server: SearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with search_server("tickets", types=TYPES) as other:
        asked: list[int] = []
        other.failing = lambda: asked.append(1)
        elsewhere = other.address.partition("@")[2]
        server.failing = lambda: (302, {"elsewhere": f"http://{elsewhere}/"})
        with pytest.raises(ConfigurationError, match="302, it sends elsewhere; give the address"):
            source().segments("", None)
    assert not asked
