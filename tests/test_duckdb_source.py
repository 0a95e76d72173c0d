"""Documents in a file of DuckDB: what differs from other databases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hmrf_dask.databases.connection import open_database
from hmrf_dask.databases.tables import tables_of
from hmrf_dask.documents import sql
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.errors import ConfigurationError, InvalidInputError, SourceUnavailableError
from tests.support.tables import NAME, Tickets, documents_of, opened_duckdb, taken

pytest.importorskip("duckdb", reason="no DuckDB: make setup")
TEXT = "words of a ticket"


@pytest.fixture
def tickets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tickets:
    path = tmp_path / "tickets.duckdb"
    opened_duckdb(path).close()
    monkeypatch.setenv(NAME, f"duckdb:///{path}")
    monkeypatch.setattr(sql, "SEGMENT_ROWS", 3)
    return Tickets("duckdb")


def written_elsewhere(path: str, statement: str) -> str:
    """Run a statement in a process of its own; return what it says of an error."""
    script = f"import duckdb; duckdb.connect({path!r}).execute({statement!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    return done.stderr


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint", [9, -4, 100, 20, 3]),
        ("hugeint", [9, -4, 2**100, 20, 3]),
        ("varchar", ["9", "it's", "a b", 'q"', "10; drop table tickets", "é"]),
        ("decimal(20, 4)", ["9.0000", "-1.5000", "10.2500", "99999.0000"]),
        ("date", ["2026-01-09", "2026-01-10", "1999-12-31", "2030-01-01"]),
        ("uuid", [f"00000000-0000-0000-0000-00000000000{n}" for n in range(7)]),
    ],
)
def test_keys_of_many_types(tickets: Tickets, kind: str, values: list[Any]) -> None:
    tickets.make(kind)
    tickets.put([{"id": one, "text": TEXT} for one in values])
    good, bad = taken(tickets.source())
    assert good == {str(one): TEXT for one in values}
    assert not bad
    source = tickets.source()
    with source.snapshot() as snapshot:
        first = source.segments(snapshot, None)
        assert source.segments(snapshot, first) == first
    assert len(first.segments) >= 2


def test_a_key_of_several_columns_and_rows_without_a_part_of_it(tickets: Tickets) -> None:
    tickets.run(
        "CREATE TABLE t (team text, number bigint, text text)",
        f"INSERT INTO t SELECT 'a/' || (n % 2), n, '{TEXT}' FROM range(9) r (n)",
        f"INSERT INTO t VALUES (NULL, 1, '{TEXT}'), ('a/0', NULL, '{TEXT}')",
    )
    source = tickets.source("SELECT * FROM t", key=["team", "number"])
    good, bad = taken(source)
    assert set(good) == {f"a%2F{n % 2}/{n}" for n in range(9)}
    assert set(bad) == {None}


def test_hostile_names(tickets: Tickets) -> None:
    name, key = 'text"; DROP TABLE t; --', "key'); --"
    shown = name.replace('"', '""')
    tickets.run(
        f'CREATE TABLE t ("{key}" text, "{shown}" text)',
        f"INSERT INTO t VALUES ('a', '{TEXT}'), ('b' || chr(0), 'x' || chr(0) || 'y')",
    )
    columns = Columns(id=key, text=[name])
    rows = documents_of(tickets.source("SELECT * FROM t", key=key, columns=columns))
    assert rows == [{key: "a", name: TEXT}, {key: "b\0", name: "x\0y"}]


def test_a_query_sees_no_other_file(tickets: Tickets, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("id,text\n1,secret\n")
    source = tickets.source(f"SELECT * FROM read_csv('{tmp_path}/secret.csv')")
    with pytest.raises(ConfigurationError, match="Permission Error"):
        documents_of(source)


@pytest.mark.parametrize(
    ("query", "kind", "said"),
    [
        ("SELECT * FROM nothing", ConfigurationError, "nothing does not exist"),
        ("SELECT id, nocolumn AS text FROM tickets", ConfigurationError, "nocolumn"),
        ("SELECT id, text::int AS text FROM tickets", InvalidInputError, "Could not convert"),
    ],
)
def test_what_goes_wrong_is_said(tickets: Tickets, query: str, kind: Any, said: str) -> None:
    tickets.make()
    tickets.put([{"id": "a", "text": TEXT}])
    with pytest.raises(kind, match=said):
        documents_of(tickets.source(query))


def test_rows_that_change_after_their_listing_end_the_run(tickets: Tickets) -> None:
    tickets.make()
    tickets.put([{"id": str(n), "text": TEXT} for n in range(5)])
    source = tickets.source()
    with source.snapshot() as snapshot:
        listing = source.segments(snapshot, None)
    tickets.put([{"id": "3", "text": "another"}])
    with pytest.raises(SourceUnavailableError, match="rows must not change"):
        documents_of(source, listing)


def test_nobody_writes_while_a_transaction_of_several_is_open(tickets: Tickets) -> None:
    tickets.make()
    with open_database(NAME) as first:
        with open_database(NAME) as second:
            assert second.rows("SELECT count(*) FROM tickets") == [(0,)]
        path = first.rows("SELECT path FROM duckdb_databases() WHERE NOT internal")[0][0]
        insert = "INSERT INTO tickets (id) VALUES ('x')"
        assert "Could not set lock" in written_elsewhere(path, insert)
    assert not written_elsewhere(path, insert)
    with open_database(NAME) as again:
        assert again.rows("SELECT count(*) FROM tickets") == [(1,)]


def test_who_writes_is_waited_for_by_running_again(tickets: Tickets, tmp_path: Path) -> None:
    script = (
        "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); "
        "sys.stdin.read()"
    )
    call = [sys.executable, "-c", script, str(tmp_path / "tickets.duckdb")]
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with (
            pytest.raises(SourceUnavailableError, match=r"Could not set lock.*run again later"),
            open_database(NAME),
        ):
            pass
        writer.communicate(b"")


def test_it_is_a_source_only(tickets: Tickets) -> None:
    with (
        pytest.raises(ConfigurationError, match="can only be read"),
        open_database(NAME, writes=True),
    ):
        pass


def test_its_tables_are_seen(tickets: Tickets) -> None:
    tickets.make()
    tickets.put([{"id": "a", "text": TEXT}])
    tickets.run("CREATE VIEW seen AS SELECT id FROM tickets")
    with open_database(NAME) as database:
        seen, table = tables_of(database)
    assert (seen.name, seen.key, seen.n_rows) == ("seen", (), None)
    assert (table.shown, table.key, table.n_rows) == ("tickets", ("id",), 1)
    assert table.changed == "updated"
