"""The PostgreSQL that tests start: it is one, each test has a database of its own."""

from __future__ import annotations

import signal

from tests.support.postgres import Postgres, run


def test_a_database_is_new_and_empty_and_takes_rows(database: str) -> None:
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert run(database, tables) == [(0,)]
    made = ["CREATE TABLE t (a int)", "INSERT INTO t VALUES (1), (2)"]
    assert run(database, *made, "SELECT a FROM t ORDER BY a") == [(1,), (2,)]


def test_a_server_that_was_killed_starts_again_with_its_rows(
    database: str, postgres: Postgres
) -> None:
    run(database, "CREATE TABLE t AS SELECT 7 AS a")
    postgres.stop(signal.SIGINT)
    postgres.start()
    assert run(database, "SELECT a FROM t") == [(7,)]
