"""Rows of databases as documents: whatever keys and values they have, and whatever happens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hmrf_dask.documents import sql
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.segments import DocumentSegment
from hmrf_dask.documents.sources import GONE, Listing, Segment
from hmrf_dask.documents.sql import SqlSource, open_sql
from hmrf_dask.errors import ConfigurationError, InvalidInputError, SourceUnavailableError
from tests.support.long_cases import long_but
from tests.support.postgres import Postgres, run
from tests.support.tables import BOTH, NAME, Tickets, documents_of, taken

FEW = [{"id": f"t {n:03}", "text": f"text of {n}"} for n in range(100)]
PLAIN = {"query": "SELECT * FROM tickets", "url_env": NAME, "key": "id"}


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few rows be several segments."""
    monkeypatch.setattr(sql, "SEGMENT_ROWS", 25)


@pytest.fixture
def made(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give an empty database of PostgreSQL, whose address the environment holds."""
    monkeypatch.setenv(NAME, database)
    return database


def listed(source: SqlSource, before: Listing | None = None) -> Listing:
    """Return a listing as the ledger gives it back."""
    with source.snapshot() as snapshot:
        found = source.segments(snapshot, before)
    where = [json.loads(json.dumps(one.where)) for one in found.segments]
    segments = (replace(a, where=b) for a, b in zip(found.segments, where, strict=True))
    return replace(found, segments=tuple(segments))


def changed_since(source: SqlSource, since: Listing) -> Listing:
    with source.snapshot() as snapshot:
        found = source.changes(snapshot, since)
    assert found is not None
    return found


# ---- segments


def test_segments_are_of_equal_rows_and_hold_all_of_them_once(tickets: Tickets) -> None:
    tickets.make()
    tickets.put(FEW)
    source = tickets.source()
    listing = listed(source)
    assert [one.stamp.partition(":")[0] for one in listing.segments] == ["25"] * 4
    assert [one["id"] for one in documents_of(source)] == [one["id"] for one in FEW]
    assert listed(source, listing) == listing == listed(source)


def test_what_grew_is_listed_by_itself(tickets: Tickets) -> None:
    tickets.make()
    tickets.put(FEW)
    source = tickets.source()
    before = listed(source)
    tickets.put([{"id": f"t {n:03}", "text": "more"} for n in range(100, 180)])
    tickets.put([{"id": "t 030", "text": "other"}])
    after = listed(source, before)
    same = [one for one in before.segments if one in after.segments]
    assert [one.name for one in same] == ["to t 024", "to t 074"]
    assert len(documents_of(source, after)) == 180
    tickets.run("DELETE FROM tickets WHERE id > 't 010'")
    assert [one.stamp.partition(":")[0] for one in listed(source, after).segments] == ["11"]


def test_a_range_that_grew_is_cut(tickets: Tickets) -> None:
    tickets.make()
    tickets.put(FEW)
    source = tickets.source()
    before = listed(source)
    tickets.put([{"id": f"t 030 {n:03}", "text": "more"} for n in range(120)])
    after = listed(source, before)
    assert len([one for one in before.segments if one in after.segments]) == 3
    assert max(int(one.stamp.partition(":")[0]) for one in after.segments) <= 30
    assert len(documents_of(source, after)) == 220


@pytest.mark.long
def test_bounds_of_another_type_are_not_kept(made: str) -> None:
    run(
        made,
        "CREATE TABLE tickets AS SELECT 'a' || g AS id, 't' AS text FROM generate_series(1, 60) g",
    )
    source = open_sql("tickets", PLAIN, Columns())
    before = listed(source)
    run(made, "ALTER TABLE tickets ALTER id TYPE bigint USING substr(id, 2)::bigint")
    after = listed(source, before)
    assert [one.where.get("to") for one in after.segments] == [["20"], ["40"], ["60"]]


# ---- keys


KEYS = {
    "bigint": ("-9223372036854775808", "-1", "0", "7", "9223372036854775807"),
    "uuid": ("00000000-0000-0000-0000-000000000001", "ffffffff-0000-0000-0000-000000000001"),
    "numeric": (
        "-1e20",
        "0.000000000000000000001",
        "1.50",
        "123456789012345678901234567890",
        "NaN",
    ),
    "text": ("a b", "it's", 'say "hi"', "x'); DROP TABLE tickets; --", "\\", "%s $1 ?", "é ü 日本"),
    "varchar(20)": ("Z", "a", "ä", "z"),
    "char(5)": ("a", "b b"),
    "timestamptz": ("2026-01-01 00:00:00.000001+00", "infinity"),
    "float8": ("0.1", "1e300", "NaN"),
    "int2": ("1", "2"),
}


@pytest.mark.parametrize("kind", long_but(["text"], KEYS))
def test_keys_of_all_types_are_ids(made: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "SEGMENT_ROWS", 2)
    values = (key.replace("'", "''") for key in KEYS[kind])
    rows = ", ".join(f"('{one}', 'about ' || '{one}')" for one in values)
    table = f"CREATE TABLE tickets (id {kind} PRIMARY KEY, text text)"
    run(made, table, f"INSERT INTO tickets VALUES {rows}")
    texts = dict(run(made, "SELECT id::text, text FROM tickets"))
    source = open_sql("tickets", PLAIN, Columns())
    listing = listed(source)
    assert len(listing.segments) == -(-len(KEYS[kind]) // 2)
    assert listed(source, listing) == listing
    assert taken(source) == (texts, {})


def test_parts_of_a_key_make_one_id(tickets: Tickets) -> None:
    tickets.run("CREATE TABLE tickets (team text, number bigint, text text)")
    rows = [("a/1", 2), ("a", 12), ("a", 2), ("a%2F1", 2), ("it''s", 3)]
    for team, number in rows:
        tickets.run(f"INSERT INTO tickets VALUES ('{team}', {number}, 'of {team} {number}')")
    source = tickets.source(key=["team", "number"])
    good, bad = taken(source)
    assert sorted(good) == ["a%252F1/2", "a%2F1/2", "a/12", "a/2", "it's/3"]
    assert not bad
    listing = listed(source)
    assert listed(source, listing) == listing


def test_a_key_that_comes_twice_is_refused_by_its_name(tickets: Tickets) -> None:
    tickets.make()
    tickets.put(FEW)
    source = tickets.source(
        "SELECT * FROM tickets UNION ALL SELECT * FROM tickets WHERE id = 't 042'"
    )
    with pytest.raises(InvalidInputError, match="a key must name one row, got 't 042' twice"):
        documents_of(source)


def test_a_row_without_a_key_is_quarantined_not_lost(tickets: Tickets) -> None:
    tickets.run("CREATE TABLE tickets (id text, text text)")
    tickets.run("INSERT INTO tickets VALUES ('a', 'good'), (NULL, 'no key'), (NULL, 'none')")
    good, bad = taken(tickets.source())
    assert (good, bad) == ({"a": "good"}, {None: "the id ('id') is missing"})


def test_a_row_with_half_a_key_is_read_once(tickets: Tickets) -> None:
    tickets.run("CREATE TABLE tickets (a text, b text, text text)")
    tickets.run("INSERT INTO tickets VALUES ('a', 'x', 'good'), ('a', NULL, 'half')")
    tickets.run("INSERT INTO tickets VALUES ('b', 'y', 'good too')")
    source = tickets.source(key=["a", "b"])
    assert read_by(source, listed(source).segments) == ["good", "good too", "half"]


def test_a_changed_row_without_a_key_is_read_once(tickets: Tickets) -> None:
    tickets.run("CREATE TABLE tickets (id text, text text, updated integer)")
    tickets.run("INSERT INTO tickets VALUES ('a', 'good', 1)")
    source = tickets.source(changed="updated")
    before = listed(source)
    tickets.run("INSERT INTO tickets VALUES (NULL, 'no key', 2), ('b', 'new', 3)")
    after = changed_since(source, before)
    deltas = after.segments[len(before.segments) :]
    assert read_by(source, deltas) == ["new", "no key"]


def read_by(source: SqlSource, segments: Sequence[Segment]) -> list[str]:
    """Return the texts of all segments, sorted."""
    with source.snapshot() as snapshot:
        return sorted(
            text
            for one in segments
            for batch in source.read(one, snapshot, ["id", "text"])
            for text in batch.column(1).to_pylist()
        )


# ---- values


def test_bad_values_are_refused_under_their_key(tickets: Tickets) -> None:
    tickets.make()
    tickets.put([*FEW[:3], {"id": "long", "text": "x" * 3000}, {"id": "none", "text": None}])
    tickets.put([{"id": "blank", "text": " \n"}, {"id": "k" * 5000, "text": "of a long key"}])
    good, bad = taken(tickets.source(columns=Columns(max_bytes=2000)))
    assert sorted(good) == ["t 000", "t 001", "t 002"]
    assert bad.pop("k" * 200).startswith("the id must have at most 4096 characters, got")
    assert bad.keys() == {"long", "none", "blank"}
    assert bad["long"].startswith("longer than 2000 bytes")


def test_columns_may_be_called_anything(tickets: Tickets) -> None:
    name = 'it\'s "x"; DROP TABLE tickets; --'
    quoted = name.replace('"', '""')
    tickets.run(f'CREATE TABLE tickets (id text, "{quoted}" text, "select" text)')
    tickets.run("INSERT INTO tickets VALUES ('a', 'of a', 'x')")
    source = tickets.source(columns=Columns(text=(name, "select")), changed="select")
    assert taken(source)[0] == {"a": "of a\n\nx"}


def test_bytes_that_are_no_text_are_refused_under_their_key(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.run("CREATE DATABASE ascii TEMPLATE template0 ENCODING 'SQL_ASCII'")
    try:
        url = postgres.url("ascii")
        monkeypatch.setenv(NAME, url)
        run(url, "CREATE TABLE tickets (id text, text text)")
        run(
            url,
            "INSERT INTO tickets VALUES ('a', 'good'), ('b', E'caf\\xe9'), (E'\\xff', 'bad key')",
        )
        good, bad = taken(open_sql("tickets", PLAIN, Columns()))
    finally:
        postgres.run("DROP DATABASE ascii WITH (FORCE)")
    assert good == {"a": "good"}
    assert bad == {"b": "bytes that are not UTF-8", None: "bytes that are not UTF-8"}


def test_nul_characters_are_read_or_refused_under_their_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "SEGMENT_ROWS", 1)
    monkeypatch.setattr("hmrf_dask.documents.sqlite_query._OVERLAP_ROWS", 2)
    (tmp_path / "tickets.db").touch()
    monkeypatch.setenv(NAME, f"sqlite:///{tmp_path}/tickets.db")
    tickets = Tickets("sqlite")
    tickets.make()
    keys = ["a", "b' || char(0) || 'b", "b' || char(0) || 'c", "d' || char(0) || '"]
    for key in keys:
        tickets.run(
            f"INSERT INTO tickets VALUES ('{key}', 'x' || char(0) || 'y', NULL, '2026', NULL)"
        )
    source = tickets.source(changed="updated")
    good, bad = taken(source)
    assert good == {"a": "x\0y", "b\0b": "x\0y", "b\0c": "x\0y"}
    assert bad == {"d\0": "the id must not end in a NUL character"}
    before = listed(source)
    assert listed(source, before) == before
    tickets.run("UPDATE tickets SET updated = '2027' WHERE id = 'b' || char(0) || 'c'")
    after = changed_since(source, before)
    with source.snapshot() as snapshot:
        (batch,) = source.read(after.segments[-1], snapshot, ["id", "text"])
    assert batch.column(0).to_pylist() == ["b\0c"]


@pytest.mark.long
def test_types_of_postgres_are_read_as_texts(made: str) -> None:
    run(made, "CREATE TYPE mood AS ENUM ('glad', 'sad')")
    run(
        made,
        "CREATE TABLE tickets AS SELECT 1 AS id, '<a>x</a>'::xml AS text, 'sad'::mood AS feeling, "
        "'{\"a\": 1}'::jsonb AS more, 1.50 AS price, true AS open, now()::date AS day, "
        "'ab'::char(4) AS c",
    )
    columns = Columns(keep=("feeling", "more", "price", "open", "c"), time="day")
    source = open_sql("tickets", PLAIN, columns)
    (row,) = documents_of(source)
    assert (row["id"], row["text"], row["feeling"]) == (1, "<a>x</a>", "sad")
    assert (row["more"], row["price"], row["open"], row["c"]) == ('{"a": 1}', "1.50", True, "ab")
    assert len(row["day"]) == 10


def test_embeddings_are_arrays_or_bytes(tickets: Tickets) -> None:
    if tickets.dialect == "postgresql":
        tickets.run("CREATE TABLE tickets AS SELECT 1 AS id, ARRAY[0.5, 1.5] AS v")
    else:
        tickets.run("CREATE TABLE tickets (id integer, v blob)")
        tickets.run("INSERT INTO tickets VALUES (1, x'0000003f0000c03f')")
    source = tickets.source(columns=Columns(text=None, embedding="v"))
    with source.snapshot() as snapshot:
        (segment,) = source.segments(snapshot, None).segments
        one = DocumentSegment(source, segment, source.columns, snapshot, "tickets")
        (batch,) = one.read()
    assert batch.embeddings is not None
    assert batch.embeddings.tolist() == [[0.5, 1.5]]


# ---- what changed


def spread(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**one, "updated": f"2026-01-01T{n:02}:00:00+00:00"} for n, one in enumerate(documents)]


@pytest.mark.parametrize("tickets", BOTH, indirect=True)
def test_only_what_changed_is_in_a_delta(tickets: Tickets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmrf_dask.documents.sqlite_query._OVERLAP_ROWS", 2)
    tickets.make()
    tickets.put(spread(FEW[:20]))
    source = tickets.source(changed="updated", deleted="closed")
    before = listed(source)
    assert changed_since(source, before) == before
    tickets.put(
        [{"id": "t 003", "text": "other"}, {"id": "new", "text": "new"}],
        "2026-01-02T00:00:00+00:00",
    )
    tickets.run(
        "UPDATE tickets SET closed = updated, updated = '2026-01-03T00:00:00+00:00' "
        "WHERE id = 't 005'"
    )
    after = changed_since(source, before)
    (delta,) = after.segments[len(before.segments) :]
    assert delta.is_delta
    assert after.segments[: len(before.segments)] == before.segments
    with source.snapshot() as snapshot:
        rows = [r for b in source.read(delta, snapshot, ["id", "text"]) for r in b.to_pylist()]
    told = {row["id"]: row for row in rows}
    assert told["t 003"] == {"id": "t 003", "text": "other", GONE: False}
    assert told["t 005"][GONE] is True
    assert {*told} == {"t 003", "new", "t 005"}
    assert changed_since(source, after) == after
    assert after.compares_keys is False
    assert "t 005" not in {one["id"] for one in documents_of(source)}


def test_a_row_that_changes_twice_on_one_day_is_read_again(tickets: Tickets) -> None:
    tickets.make()
    if tickets.dialect == "postgresql":
        tickets.run("ALTER TABLE tickets ALTER updated TYPE date USING updated::date")
    tickets.put(FEW[:20], "2026-01-01")
    source = tickets.source(changed="updated")
    before = listed(source)
    tickets.run("UPDATE tickets SET text = 'other' WHERE id = 't 003'")
    after = changed_since(source, before)
    (delta,) = after.segments[len(before.segments) :]
    assert {"id": "t 003", "text": "other"} in documents_of(
        source, replace(after, segments=(delta,))
    )
    # A listing of all, into which deltas go, tells it from what it was, too.
    assert listed(source, after).segments[0].stamp != before.segments[0].stamp
    assert changed_since(source, after) == after


def test_a_night_on_which_rows_are_only_deleted_has_something_to_do(tickets: Tickets) -> None:
    tickets.make()
    tickets.put(FEW[:20])
    source = tickets.source(changed="updated")
    before = listed(source)
    assert changed_since(source, before) == before
    tickets.run("DELETE FROM tickets WHERE id = 't 003'")
    after = changed_since(source, before)
    (delta,) = after.segments[len(before.segments) :]
    assert (delta.size, delta.is_delta, after.compares_keys) == (0, True, True)
    assert documents_of(source, replace(after, segments=(delta,))) == []
    assert changed_since(source, after) == after


def test_a_transaction_that_ends_late_is_not_missed(made: str) -> None:
    from adbc_driver_postgresql import dbapi

    run(made, "CREATE TABLE tickets (id text PRIMARY KEY, text text, updated timestamptz)")
    run(made, "INSERT INTO tickets VALUES ('a', 'first', now() - interval '1 day')")
    source = open_sql("tickets", {**PLAIN, "changed": "updated"}, Columns())
    with dbapi.connect(made) as late, late.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tickets VALUES ('late', 'began before', now() - interval '50 minutes')"
        )
        run(made, "INSERT INTO tickets VALUES ('b', 'ends before', now())")
        before = listed(source)
        late.commit()
    after = changed_since(source, before)
    with source.snapshot() as snapshot:
        delta = after.segments[-1]
        rows = [one for b in source.read(delta, snapshot, ["id", "text"]) for one in b.to_pylist()]
    assert [one["id"] for one in rows] == ["late"]


def test_times_to_come_and_no_times_hide_nothing(tickets: Tickets) -> None:
    tickets.make()
    odd = [{"id": "odd", "text": "x", "updated": "2999-01-01T00:00:00+00:00"}]
    tickets.put([*spread(FEW[:20]), *odd, {"id": "never", "text": "y", "updated": None}])
    source = tickets.source(changed="updated")
    before = listed(source)
    tickets.put([{"id": "t 003", "text": "other"}], datetime.now(UTC).isoformat())
    tickets.run("INSERT INTO tickets (id, text) VALUES ('unmarked', 'z')")
    after = changed_since(source, before)
    with source.snapshot() as snapshot:
        found = {
            one["id"]
            for segment in after.segments
            if segment.is_delta
            for batch in source.read(segment, snapshot, ["id", "text"])
            for one in batch.to_pylist()
        }
    assert found == {"t 003", "unmarked"}
    assert before.compares_keys


# ---- while it is read


@pytest.mark.parametrize("tickets", BOTH, indirect=True)
def test_rows_that_change_while_they_are_read_are_as_they_were_or_refused(tickets: Tickets) -> None:
    tickets.make()
    tickets.put(FEW)
    source = tickets.source()
    with source.snapshot() as snapshot:
        segments = source.segments(snapshot, None).segments
        tickets.put([{"id": "t 030", "text": "other"}])
        tickets.run("DELETE FROM tickets WHERE id = 't 031'")

        def texts() -> list[str]:
            names = ["id", "text"]
            return [
                row["text"]
                for one in segments
                for batch in source.read(one, snapshot, names)
                for row in batch.to_pylist()
            ]

        if tickets.dialect == "postgresql":
            assert texts() == [one["text"] for one in FEW]
        else:
            with pytest.raises(SourceUnavailableError, match="to t 049: rows must not change"):
                texts()


def test_a_connection_that_is_cut_may_be_made_again(
    made: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "SEGMENT_ROWS", 100_000)
    run(
        made,
        "CREATE TABLE tickets AS SELECT g AS id, repeat('x', 900) AS text "
        "FROM generate_series(1, 30000) g",
    )
    source = open_sql("tickets", PLAIN, Columns())
    with source.snapshot() as snapshot:
        (segment,) = source.segments(snapshot, None).segments
        batches = source.read(segment, snapshot, ["id", "text"])
        next(batches)
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'active'"
        assert postgres.run(f"{cut} AND pid <> pg_backend_pid()")
        with pytest.raises(SourceUnavailableError, match="run again later"):
            list(batches)
        assert sum(len(one) for one in source.read(segment, snapshot, ["id", "text"])) == 30000


def test_only_the_documents_that_are_named_are_read(tickets: Tickets) -> None:
    tickets.make()
    tickets.put(FEW)
    source = tickets.source()
    with source.snapshot() as snapshot:
        segment = source.segments(snapshot, None).segments[1]
        (batch,) = source.read(segment, snapshot, ["id", "text"], ids=["t 030", "t 099", "it's"])
    assert batch.to_pylist() == [{"id": "t 030", "text": "text of 30"}]


# ---- settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"query": "DELETE FROM tickets"}, "query: query must be one select, got 'DELETE'"),
        ({"url_env": "postgresql://me:hunter2@host/t"}, "must be the name of an environment"),
        ({"key": []}, "key: "),
        ({"kee": "id"}, "did you mean 'key'"),
        ({"timeout": 0}, "timeout: "),
        ({"key": "number"}, "key must be the column that documents.id names"),
    ],
)
def test_wrong_settings_are_refused_in_words(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_sql("tickets", {**PLAIN, **settings}, Columns(id="id"))
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"query": "SELECT id FROM tickets"}, "no column 'text', got id"),
        ({"query": "SELECT * FROM nope"}, "nope"),
        ({"key": "ide"}, "the query must give the column 'ide' once, got id, text"),
        ({"changed": "update"}, "did you mean 'updated'"),
    ],
)
def test_a_query_without_what_is_read_is_refused_in_words(
    tickets: Tickets, settings: dict[str, Any], words: str
) -> None:
    tickets.make()
    with pytest.raises(ConfigurationError) as caught:
        documents_of(tickets.source(**settings))
    assert words in str(caught.value)


def test_a_source_holds_no_address(made: str) -> None:
    source = open_sql("tickets", PLAIN, Columns())
    assert made not in repr(source) + source.identity
    assert source.identity == open_sql("b", {**PLAIN, "url_env": "OTHER"}, Columns()).identity
    assert Segment("a", 1, "b") == Segment("a", 1, "b")
