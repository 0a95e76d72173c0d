"""Connections to databases: addresses, transactions that only read, and errors in words."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from hmrf_dask.databases.connection import exported_snapshot, open_database
from hmrf_dask.databases.statements import literal, quoted, select_of
from hmrf_dask.errors import (
    ConfigurationError,
    HmrfError,
    InvalidInputError,
    SourceUnavailableError,
)
from tests.support.postgres import Postgres, run

NAME = "TICKETS_URL"


@pytest.fixture
def tickets(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the address of a database with a table, which the environment holds."""
    run(database, "CREATE TABLE t AS SELECT g AS id, 'x' || g AS body FROM generate_series(1, 9) g")
    monkeypatch.setenv(NAME, database)
    return database


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an SQLite database with a table, whose address the environment holds."""
    path = tmp_path / "my tickets.db"
    path.touch()
    monkeypatch.setenv(NAME, f"sqlite:///{path}")
    with open_database(NAME, writes=True) as opened:
        opened.run("CREATE TABLE t (id INTEGER PRIMARY KEY, body TEXT)")
        opened.run("INSERT INTO t VALUES (1, 'x1'), (2, 'x2')")
        opened.connection.commit()
    return path


def read(statement: str) -> None:
    with open_database(NAME) as opened:
        list(opened.batches(statement))


def refused(statement: str, error: type[HmrfError] = ConfigurationError) -> str:
    with pytest.raises(error) as caught:
        read(statement)
    return str(caught.value)


@pytest.mark.parametrize(
    "address",
    ["postgresql://me:hunter2@host/t", "host=a password=hunter2", "a b", "", "1A", "A" * 300],
)
def test_an_address_in_the_place_of_a_name_is_refused_unshown(address: str) -> None:
    with pytest.raises(ConfigurationError, match="name of an environment variable") as caught:
        open_database(address).__enter__()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["", "mysql://me:hunter2@host/t", "/data/tickets.db", "hunter2", "hunter2:a"]
)
def test_what_is_no_address_is_refused_unshown(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, address)
    with pytest.raises(ConfigurationError, match="TICKETS_URL must hold the address") as caught:
        open_database(NAME).__enter__()
    assert "hunter2" not in str(caught.value)


def test_who_reads_cannot_write(tickets: str) -> None:
    for statement in (
        "DELETE FROM t",
        "INSERT INTO t VALUES (0, '')",
        "SELECT set_config('transaction_read_only', 'off', true)",
        "SELECT * FROM t FOR UPDATE",
    ):
        refused(statement, HmrfError)
    assert run(tickets, "SELECT count(*) FROM t") == [(9,)]
    with open_database(NAME, writes=True) as opened:
        opened.run("DELETE FROM t WHERE id = 1")  # and nobody says that it counts
    assert run(tickets, "SELECT count(*) FROM t") == [(9,)]


def test_who_reads_sqlite_cannot_write_nor_make_a_file(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_database(NAME) as opened:
        assert opened.rows("SELECT count(*) FROM t") == [(2,)]
        with pytest.raises(ConfigurationError, match=r"(?i)attempt to write a readonly"):
            opened.run("DELETE FROM t")
    monkeypatch.setenv(NAME, f"sqlite:///{small.parent}/other.db")
    assert "there is no database" in refused("SELECT 1")
    assert not (small.parent / "other.db").exists()


def test_a_snapshot_is_seen_by_others_until_its_owner_ends(tickets: str) -> None:
    with open_database(NAME) as owner:
        snapshot = exported_snapshot(owner)
        run(tickets, "DELETE FROM t WHERE id > 3")
        with open_database(NAME, snapshot=snapshot) as other:
            assert other.rows("SELECT count(*) FROM t") == [(9,)]
    with pytest.raises(SourceUnavailableError, match=r"invalid snapshot.*run again later"):
        open_database(NAME, snapshot=snapshot).__enter__()


@pytest.mark.parametrize(
    ("statement", "error", "words"),
    [
        ("SELECT nope FROM t", ConfigurationError, 'column "nope" does not exist; correct the'),
        ("SELECT * FROM nope", ConfigurationError, 'relation "nope" does not exist; correct the'),
        ("SELEC 1", ConfigurationError, 'syntax error at or near "SELEC"; correct the query'),
        ("SELECT 1 / (id - 5) FROM t", InvalidInputError, "division by zero; correct the row"),
        ("SELECT pg_read_file('/etc/passwd')", ConfigurationError, "permission denied"),
        ("SELECT pg_sleep(9)", SourceUnavailableError, "statement timeout; run again when less"),
        (
            "SELECT * FROM (WITH a AS (DELETE FROM t RETURNING *) SELECT * FROM a) AS q",
            ConfigurationError,
            "data-modifying statement must be at the top level; correct the query",
        ),
        (
            "SELECT set_config('transaction_read_only', 'off', true)",
            ConfigurationError,
            "must be set before any query; correct the query",
        ),
    ],
)
def test_what_a_server_says_becomes_words(
    tickets: str,
    statement: str,
    error: type[HmrfError],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = ["DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN", "GRANT SELECT ON t TO reader"]
    run(tickets, *made)
    monkeypatch.setenv(NAME, tickets.replace("tests@", "reader@"))
    monkeypatch.setattr("hmrf_dask.databases.connection.TIMEOUT", 0.2)
    said = refused(statement, error)
    assert said.startswith("the database of TICKETS_URL: ")
    assert words in said
    assert "Query was" not in said


@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        ("postgresql:///t?host=/nowhere", SourceUnavailableError, "No such file.*run again later"),
        ("postgresql://127.0.0.1:1/t", SourceUnavailableError, "Connection refused; run again"),
        ("postgresql:///t?colour=red", ConfigurationError, "invalid URI query parameter"),
        ("postgresql://host:bad/t", ConfigurationError, "invalid integer value.*correct the addr"),
        ("postgresql://[::1/t", ConfigurationError, "IPv6 host address.*correct the address"),
        ("postgresql://a b@host/t", ConfigurationError, "unexpected spaces.*correct the address"),
        ("postgresql://host/t?sslmode=x", ConfigurationError, "invalid sslmode.*correct the addr"),
    ],
)
def test_who_cannot_connect_is_told_why(
    address: str, error: type[HmrfError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, address)
    with pytest.raises(error, match=words):
        open_database(NAME).__enter__()


@pytest.mark.parametrize(
    "password", ["hunter2%zz", "hunter2@x", "hunter2/x", "hunter2#x", "[hunter2", "hunter2:x"]
)
def test_a_password_that_cannot_be_read_is_not_shown(
    password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, f"postgresql://me:{password}@127.0.0.1:1/t?connect_timeout=2")
    with pytest.raises(HmrfError) as caught:
        open_database(NAME).__enter__()
    assert "hunter2" not in str(caught.value)


def test_a_missing_database_or_role_is_a_mistake_of_the_address(
    tickets: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in (postgres.url("nope"), postgres.url(user="nobody")):
        monkeypatch.setenv(NAME, address)
        assert "does not exist; correct the address" in refused("SELECT 1")


def test_a_server_that_ends_may_come_back(tickets: str, postgres: Postgres) -> None:
    many = "SELECT g, repeat('x', 1000) FROM generate_series(1, 200000) g"
    with open_database(NAME) as opened:
        batches = opened.batches(many)
        next(batches)
        postgres.stop(signal.SIGINT)
        with pytest.raises(SourceUnavailableError, match="run again"):
            list(batches)
    assert "run again later" in refused("SELECT 1", SourceUnavailableError)
    postgres.start()
    with open_database(NAME) as opened:
        assert opened.rows("SELECT count(*) FROM t") == [(9,)]


@pytest.mark.parametrize(
    "query",
    [
        "delete from t",
        "select 1; drop table t",
        "select 1) as q; drop table t; select (1",
        "select 1) as q, (select 2",
        "explain select 1",
        "select 'open",
        "select /* open",
        "",
        "select '\0'",
        "select 1 -- a comment ends here\r; drop table t",
        "select 1 /* of PostgreSQL /* a comment in it */ ' */ ; drop table t -- '",
    ],
)
def test_a_query_that_is_no_single_select_is_refused(query: str) -> None:
    with pytest.raises(ConfigurationError, match="query must be one select, got"):
        select_of(query)


def test_a_select_is_taken_as_it_is(tickets: str) -> None:
    queries = [
        "select id from t -- ; the end",
        "with a as (select id from t) select * from a; -- done",
        "/* all */ SELECT id FROM t WHERE body <> ';)' ;",
        "select id, $a$ ; ' $a$ from t",
        "(select id from t)",
    ]
    with open_database(NAME) as opened:
        for query in queries:
            assert opened.rows(f"SELECT count(*) FROM {select_of(query)} AS q") == [(9,)]


def test_names_and_texts_inject_nothing(tickets: str) -> None:
    names = ["it's", 'say "hi"', "a;b--", "a\\b", "é ü", "$1", "%s", "?"]
    columns = ", ".join(f"{literal(name)} AS {quoted(name)}" for name in names)
    with open_database(NAME) as opened:
        (batch,) = opened.batches(f"SELECT {columns}")
    assert batch.to_pydict() == {name: [name] for name in names}
    for wrong in ("", "a\0b", "a" * 64):
        with pytest.raises(ConfigurationError, match="a name in a database must"):
            quoted(wrong)
