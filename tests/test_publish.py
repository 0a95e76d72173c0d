"""Releases in databases: readers see a whole one, whatever happens, and nothing else is touched."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.databases import connection as opened
from hmrf_dask.databases.connection import open_database
from hmrf_dask.databases.publication import (
    CHANGES,
    JOURNAL,
    RELEASES,
    Contents,
    Publication,
    Rows,
)
from hmrf_dask.databases.relations import Mark, Relations
from hmrf_dask.errors import (
    ConfigurationError,
    HeldError,
    HmrfError,
    InvalidInputError,
    SourceUnavailableError,
)
from hmrf_dask.jobs.inputs import load_job
from tests.support.job_runs import assigned, run
from tests.support.long_cases import long

HOSTILE = 'Clusters; DROP TABLE "x" -- it\'s é'
SCHEMA = pa.schema([("doc_id", pa.string()), ("cluster", pa.int32()), ("of", pa.string())])


SQLITE_FIRST = pytest.mark.parametrize("place", ["sqlite", *long("postgresql")], indirect=True)


class Database:
    """A database and what its readers see."""

    def __init__(self, url_env: str) -> None:
        self.url_env = url_env
        self._opened = open_database(url_env, writes=True)
        self._database = self._opened.__enter__()

    @property
    def dialect(self) -> str:
        return self._database.dialect

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement in a transaction of its own."""
        try:
            found = []
            if query.startswith("SELECT"):
                found = self._database.rows(query)
            else:
                self._database.run(query)
            self._database.connection.commit()
        except BaseException:
            self._database.connection.rollback()
            raise
        return found

    def close(self) -> None:
        self._opened.__exit__(None, None, None)

    def publish(self, number: int, **how: Any) -> bool:
        """Publish a release of `4 * number` documents."""
        table, contents = how.pop("table", "clusters"), how.pop("contents", None)
        keep, owner = how.pop("keep", 2), how.pop("owner", "tickets")
        mark = Mark(owner, "m", "2026", number, f"{number:016x}", how.pop("names", ""))
        id_type = how.pop("id_type", "text")
        how = {"patience": 20.0, "confirm": lambda: None} | how
        with open_database(self.url_env, writes=True) as database:
            publication = Publication(database, table, mark, id_type)
            done = publication.publish(contents or contents_of(number, publication), **how)
            publication.remove_old(keep, how["patience"])
        return done


@pytest.fixture(params=["sqlite", "postgresql"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database]:
    (tmp_path / "tickets.db").touch()
    url = f"sqlite:///{tmp_path}/tickets.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("database")
    monkeypatch.setenv("TICKETS_URL", url)
    made = Database("TICKETS_URL")
    yield made
    made.close()


@pytest.fixture
def server(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setenv("TICKETS_URL", database)
    made = Database("TICKETS_URL")
    yield made
    made.close()


def contents_of(number: int, publication: Publication | None = None, **columns: Any) -> Contents:
    """Return a release whose documents all say its number."""
    ids = columns.pop("ids", [str(one) for one in range(4 * number)])
    table = pa.table(
        {
            "doc_id": pa.array(ids, pa.string()),
            "cluster": pa.array([place % 2 for place in range(len(ids))], pa.int32()),
            "of": pa.array([str(number)] * len(ids), pa.string()),
            **columns,
        }
    )
    clusters = pa.table(
        {"cluster": pa.array([0, 1], pa.int32()), "name": [f"zero {number}", f"one {number}"]}
    )
    run = {"release": [number], "run": [f"{number:016x}"]}
    named = "" if publication is None else publication.table
    releases = pa.table(
        {
            **run,
            "published": pa.array([number], pa.timestamp("us", "UTC")),
            "assignments": [named],
            "shown": [True],
        }
    )
    entries = pa.table({"id": [str(one) for one in range(number)], "answer": ["same"] * number})
    appended = {
        RELEASES: Rows(releases),
        CHANGES: Rows(pa.table({**run, "kind": ["kept"]})),
        JOURNAL: Rows(entries, ("id",)),
    }
    return Contents(table.schema, lambda: iter([table]), clusters, appended)


def test_the_view_shows_the_last_release(place: Database) -> None:
    assert [place.publish(number) for number in (1, 2, 2, 3)] == [True, True, False, True]
    seen = "SELECT count(*), min(of), max(of), min(name) FROM clusters"
    assert place.rows(seen) == [(12, "3", "3", "one 3")]
    assert place.rows("SELECT count(*) FROM clusters_clusters") == [(2,)]
    listed = place.rows("SELECT release, assignments FROM clusters_releases ORDER BY release")
    assert listed == [(1, None), (2, "clusters_r2_000000"), (3, "clusters_r3_000000")]
    assert place.rows("SELECT count(*) FROM clusters_r2_000000") == [(8,)]
    with pytest.raises(ConfigurationError):
        place.rows("SELECT * FROM clusters_r1_000000")
    assert place.rows("SELECT count(*) FROM clusters_changes") == [(3,)]
    assert place.rows("SELECT id FROM clusters_journal ORDER BY id") == [("0",), ("1",), ("2",)]


@SQLITE_FIRST
def test_names_change_without_a_new_release(place: Database) -> None:
    place.publish(1)
    contents = contents_of(1)
    named = contents._replace(
        clusters=contents.clusters.set_column(1, "name", pa.array(["Billing", "Login"]))
    )
    assert place.publish(1, contents=named, names="9f3c")
    assert place.rows("SELECT DISTINCT name FROM clusters ORDER BY name") == [
        ("Billing",),
        ("Login",),
    ]
    assert place.rows("SELECT count(*) FROM clusters_releases") == [(1,)]


def test_hostile_names_are_names(place: Database) -> None:
    schema = 'odd "schema"; --'
    quoted = HOSTILE.replace('"', '""')
    where = ""
    if place.dialect == "postgresql":
        place.rows(f"""CREATE SCHEMA "{schema.replace('"', '""')}" """)
        where = f"""\"{schema.replace('"', '""')}"."""
    column = 'k"; DROP TABLE x; --'
    table = f"{schema}.{HOSTILE}" if where else HOSTILE
    for number in (1, 2, 3):
        contents = contents_of(number, **{column: pa.array(["'; --"] * 4 * number)})
        place.publish(number, table=table, contents=contents, keep=1)
    seen = place.rows(f'SELECT * FROM {where}"{quoted}" ORDER BY 1 LIMIT 1')
    assert seen == [("0", 0, "zero 3", "3", "'; --")]
    if where:
        place.rows(f"DROP SCHEMA {where.rstrip('.')} CASCADE")


@SQLITE_FIRST
@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE clusters (a integer)",
        "CREATE VIEW clusters AS SELECT 1 AS a",
        "CREATE TABLE clusters_releases (a integer)",
        "CREATE TABLE clusters_r1_000000 (a integer)",
    ],
)
def test_what_is_of_others_is_refused(place: Database, made: str) -> None:
    place.rows(made)
    with pytest.raises(ConfigurationError, match="which no run of this program made"):
        place.publish(1)
    name = made.split()[2]
    assert len(place.rows(f"SELECT * FROM {name}")) == ("VIEW" in made)


@SQLITE_FIRST
def test_another_job_takes_over_only_when_told(place: Database) -> None:
    place.publish(1)
    with pytest.raises(ConfigurationError, match=r"of job 'tickets'.*--take-over"):
        place.publish(2, owner="other")
    assert place.publish(2, owner="other", take_over=True)
    assert place.publish(3, owner="other", keep=1)
    assert place.rows("SELECT count(*) FROM clusters") == [(12,)]


def test_another_output_of_a_job_is_another_owner() -> None:
    one = Mark("tickets", "m", "2026-11-20", 3, "9f3c")
    assert one.is_same_owner(replace(one, release=4, run="a", names="b"))
    assert not one.is_same_owner(replace(one, since="2026-11-21"))


@SQLITE_FIRST
def test_what_raises_before_the_commit_undoes_all(place: Database) -> None:
    place.publish(1)

    def lost() -> None:
        raise HeldError("taken over")

    with pytest.raises(HeldError):
        place.publish(2, confirm=lost)
    assert place.rows("SELECT count(*), max(of) FROM clusters") == [(4, "1")]
    assert place.rows("SELECT count(*) FROM clusters_releases") == [(1,)]
    assert place.publish(2)


def test_columns_that_sqlite_takes_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.db").touch()
    monkeypatch.setenv("TICKETS_URL", f"sqlite:///{tmp_path}/a.db")
    with pytest.raises(ConfigurationError, match="differ in more than capitals in SQLite"):
        Database("TICKETS_URL").publish(1, contents=contents_of(1, OF=pa.array(["x"] * 4)))


@SQLITE_FIRST
def test_errors_of_documents_come_through(place: Database) -> None:
    def broken() -> Iterator[pa.Table]:
        yield next(contents_of(1).assignments())
        raise InvalidInputError("a file is damaged")

    with pytest.raises(InvalidInputError, match="a file is damaged"):
        place.publish(1, contents=contents_of(1)._replace(assignments=broken))
    nul = contents_of(1, k=pa.array(["a", "b\0", "c", "d"]))
    with pytest.raises(InvalidInputError, match="NUL character, got one in 'k' of document '1'"):
        place.publish(1, contents=nul)


def test_ids_in_the_type_they_had(place: Database) -> None:
    place.publish(1, id_type="bigint")
    assert place.rows("SELECT max(doc_id) FROM clusters") == [(3,)]
    for bad in ("007", "x", "1.5", str(2**63)):
        contents = contents_of(2, ids=["1", bad])
        with pytest.raises(InvalidInputError, match=f"bigint must .* got '{bad}'"):
            place.publish(2, id_type="bigint", contents=contents)
    long_ids = contents_of(2, ids=["x" * 4096, "y" * 4096])
    place.publish(2, table="long", contents=long_ids)
    assert place.rows("SELECT length(doc_id) FROM long") == [(4096,), (4096,)]
    if place.dialect == "postgresql":
        one = "0b2f4a66-8c1a-4b6e-9f0e-1d2c3b4a5f60"
        place.publish(2, table="u", id_type="uuid", contents=contents_of(2, ids=[one]))
        assert place.rows("SELECT pg_typeof(doc_id)::text, doc_id::text FROM u") == [("uuid", one)]
        with pytest.raises(InvalidInputError, match="uuid"):
            place.publish(3, table="u", id_type="uuid", contents=contents_of(3))


@SQLITE_FIRST
def test_interrupted_at_any_statement(place: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever statement is the last one of a process: all of the old release, then of the new."""
    place.publish(1)
    seen = "SELECT count(*), max(of), max(name) FROM clusters"
    monkeypatch.setattr(opened.Database, "run", interrupted(opened.Database.run, left := []))
    monkeypatch.setattr(Relations, "load", interrupted(Relations.load, left))
    n_statements = 0
    while True:
        left[:] = [n_statements]
        with suppress(KeyboardInterrupt):
            place.publish(2)
            break
        left[:] = []
        assert place.rows(seen) in ([(4, "1", "zero 1")], [(8, "2", "zero 2")])
        n_statements += 1
    assert n_statements > 10
    left[:] = []
    assert place.rows(seen) == [(8, "2", "zero 2")]
    assert place.rows("SELECT count(*) FROM clusters_releases") == [(2,)]


def interrupted(function: Any, left: list[int]) -> Any:
    """Return a function that is interrupted when so many calls are made as a list says."""

    def counted(*arguments: Any, **named: Any) -> Any:
        if left:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        return function(*arguments, **named)

    return counted


# ---- PostgreSQL


def test_columns_change_and_grants_stay(server: Database) -> None:
    server.rows("DROP ROLE IF EXISTS reader")
    server.publish(1, contents=contents_of(1, k=pa.array(["x"] * 4)))
    server.rows("CREATE ROLE reader")
    server.rows("GRANT SELECT ON clusters TO reader, PUBLIC")
    granted = (
        "SELECT grantee::text FROM information_schema.role_table_grants WHERE "
        "table_name = 'clusters' AND privilege_type = 'SELECT' ORDER BY 1"
    )
    before = server.rows(granted)
    server.publish(2)  # a column less
    assert server.rows(granted) == before
    server.rows("CREATE VIEW own AS SELECT doc_id, cluster FROM clusters")
    server.publish(3, contents=contents_of(3, k=pa.array(["x"] * 12)))  # one more: at the end
    assert server.rows("SELECT count(*) FROM own") == [(12,)]
    with pytest.raises(ConfigurationError, match="must have no others made of it"):
        server.publish(4)
    server.rows("DROP OWNED BY reader")
    server.rows("DROP ROLE reader")


def test_a_schema_must_be_there_and_allowed(
    server: Database, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="a schema that is there, got 'none'"):
        server.publish(1, table="none.clusters")
    server.rows("DROP ROLE IF EXISTS weak")
    server.rows("CREATE ROLE weak LOGIN")
    server.rows("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    monkeypatch.setenv("TICKETS_URL", database.replace("tests@", "weak@"))
    with pytest.raises(ConfigurationError, match="this user may make tables, got 'public'"):
        server.publish(1)


def reading(stop: threading.Event, seen: set[Any]) -> Callable[[], None]:
    def read() -> None:
        place = Database("TICKETS_URL")
        while not stop.is_set():
            try:
                rows = place.rows("SELECT count(*), min(of), max(of), min(name) FROM clusters")
            except SourceUnavailableError:  # SQLite's readers wait for its writer
                continue
            seen.add(rows[0])
        place.close()

    return read


def test_readers_see_whole_releases(place: Database) -> None:
    """Who reads all the time sees each time all of one release."""
    place.publish(1)
    stop, seen = threading.Event(), set[Any]()
    threads = [threading.Thread(target=reading(stop, seen)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in (2, 3, 4):
        place.publish(number, keep=1)
    stop.set()
    for thread in threads:
        thread.join()
    assert seen <= {(4 * n, str(n), str(n), f"one {n}") for n in (1, 2, 3, 4)}
    assert place.rows("SELECT count(*) FROM clusters") == [(16,)]


def test_who_locks_the_view_is_waited_for_until_a_deadline(
    server: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmrf_dask.databases.relations._LOCK_SECONDS", 0.05)
    monkeypatch.setattr("hmrf_dask.databases.relations._PAUSE", 0.05)
    server.publish(1)
    with open_database(server.url_env) as reader:
        reader.rows("SELECT count(*) FROM clusters")  # and its transaction goes on
        with pytest.raises(HeldError, match=r"locked by others for 0.2 s; run again"):
            server.publish(2, patience=0.2)
        assert server.rows("SELECT max(of) FROM clusters") == [("1",)]
        threading.Timer(0.1, reader.connection.rollback).start()
        assert server.publish(2)
    assert server.rows("SELECT max(of) FROM clusters") == [("2",)]


def test_who_began_before_a_switch_sees_the_release_of_then(server: Database) -> None:
    """A transaction that repeats its reads finds the new view, and the rows of its snapshot."""
    seen = "SELECT count(*), min(of), max(of), min(name), max(name) FROM clusters"
    server.publish(1)
    for number in (2, 3):
        with open_database(server.url_env) as reader:
            reader.rows("SELECT 1 FROM pg_class LIMIT 1")  # its snapshot is taken
            server.publish(number)
            before = str(number - 1)
            whole = [(4 * number - 4, before, before, f"one {before}", f"zero {before}")]
            assert reader.rows(seen) == whole
            assert reader.rows("SELECT max(name) FROM clusters_clusters") == [(f"zero {before}",)]
            assert server.rows(seen)[0][1] == str(number)
    contents = contents_of(3)
    named = contents.clusters.set_column(1, "name", pa.array(["A", "B"]))
    with open_database(server.url_env) as reader:
        reader.rows("SELECT 1 FROM pg_class LIMIT 1")
        server.publish(3, contents=contents._replace(clusters=named), names="9f3c")
        assert reader.rows("SELECT min(name) FROM clusters") == [("one 3",)]
        assert server.rows("SELECT min(name) FROM clusters") == [("A",)]


def test_settings_of_a_role_end_no_publishing(server: Database) -> None:
    server.rows("ALTER ROLE tests SET idle_in_transaction_session_timeout = '50ms'")
    server.rows("ALTER ROLE tests SET standard_conforming_strings = off")
    try:
        assert server.publish(1, confirm=lambda: time.sleep(0.2))
    finally:
        server.rows("ALTER ROLE tests RESET ALL")


def test_a_connection_that_is_cut_leaves_what_was(server: Database) -> None:
    server.publish(1)

    def cut() -> None:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> "
        server.rows(f"{others} pg_backend_pid() AND datname = current_database()")

    with pytest.raises(SourceUnavailableError, match="run again later"):
        server.publish(2, confirm=cut)
    assert server.rows("SELECT max(of) FROM clusters") == [("1",)]
    assert server.publish(2)


# ---- jobs


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a job over a file of documents that publishes into an SQLite database."""
    (tmp_path / "tickets.db").touch()
    monkeypatch.setenv("TICKETS_URL", f"sqlite:///{tmp_path}/tickets.db")
    add_documents(tmp_path, 0, 60)
    (tmp_path / "manifest.yaml").write_text(
        "$schema: hmrf-dask/manifest/v1\nname: tickets\nresources: [{name: t, path: '*.jsonl'}]\n"
        "documents: {keep: [of]}\n"
        "answers: {sql: {query: 'select a, b, kind from judged', url_env: TICKETS_URL}}\n"
    )
    path = tmp_path / "job.yaml"
    path.write_text(
        "$schema: hmrf-dask/job/v1\nmanifest: manifest.yaml\nmethod: {n_clusters: 3}\n"
        "output: out\nkeep: 2\npublish: {sql: {table: clusters, url_env: TICKETS_URL, "
        "id_type: bigint, journal: true}}\nquestions: 4\n"
    )
    Database("TICKETS_URL").rows("CREATE TABLE judged (a integer, b text, kind text)")
    return path


def add_documents(folder: Path, first: int, number: int) -> None:
    subjects = ("invoice card paid twice refund", "login password reset locked", "parcel late van")
    lines = [
        json.dumps({"id": one, "text": f"{subjects[one % 3]} {one % 7}", "of": str(one)})
        for one in range(first, first + number)
    ]
    (folder / f"from-{first}.jsonl").write_text("\n".join(lines))


def command(*words: str) -> Any:
    return CliRunner().invoke(hmrf, list(words))


def run_by_command(job: Path, *options: str) -> dict[str, Any]:
    done = command("run", str(job), "--json", "--quiet", "--threads=2", *options)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_nights_in_a_database(job: Path) -> None:
    """Documents and answers come, clusters are named, and nothing is new: the table follows."""
    shown = Database("TICKETS_URL")
    assert run(job).answers["pairs"] == {"must": 0, "cannot": 0}
    add_documents(job.parent, 60, 3)
    shown.rows("INSERT INTO judged VALUES (0, '3', 'same'), (0, '1', 'different'), (1, 2, 'nope')")
    with pytest.raises(InvalidInputError, match=r"answers of TICKETS_URL.jsonl, line 3: kind must"):
        run(job)
    assert shown.rows("SELECT count(*) FROM clusters") == [(60,)]
    shown.rows("DELETE FROM judged WHERE kind = 'nope'")
    report = run(job)
    assert report.answers["pairs"] == {"must": 1, "cannot": 1}
    published = shown.rows("SELECT doc_id, cluster, name, of FROM clusters")
    assert {(str(id_), cluster) for id_, cluster, *_ in published} == {
        (id_, row["cluster"]) for id_, row in assigned(report).items()
    }
    assert all(str(id_) == of for id_, *_, of in published)
    names = (
        "SELECT DISTINCT a.name = c.name FROM clusters a JOIN clusters_clusters c USING (cluster)"
    )
    assert shown.rows(names) == [(1,)]
    assert shown.rows('SELECT release, documents, "new" FROM clusters_releases') == [
        (1, 60, 60),
        (2, 63, 3),
    ]
    kinds = "SELECT release, kind, count(*) FROM clusters_changes GROUP BY 1, 2 ORDER BY 1"
    assert shown.rows(kinds) == [(1, "new", 3), (2, "kept", 3)]
    asked = "SELECT release, count(DISTINCT question) FROM clusters_questions GROUP BY release"
    assert shown.rows(asked) == [(1, 4), (2, 4)]
    cluster = published[0][1]
    assert command("edit", f"{job.parent}/out", "--rename", str(cluster), "Post").exit_code == 0
    assert run_by_command(job)["status"] == "up to date"
    named = f"SELECT DISTINCT name FROM clusters WHERE cluster = {cluster}"
    assert shown.rows(named) == [("Post",)]
    assert shown.rows("SELECT kind, answer FROM clusters_journal") == [("name", "Post")]


def test_a_release_that_was_not_published_is_by_the_next_start(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Database("TICKETS_URL")
    with monkeypatch.context() as patch:
        patch.setattr("hmrf_dask.jobs.run_job._publish", killed)
        with pytest.raises(KeyboardInterrupt):
            run(job)
    with pytest.raises(ConfigurationError, match="no such table"):
        shown.rows("SELECT * FROM clusters")
    assert run_by_command(job)["status"] == "up to date"
    assert shown.rows("SELECT count(*) FROM clusters") == [(60,)]


@pytest.mark.parametrize("error", [SourceUnavailableError, ConfigurationError, InvalidInputError])
def test_what_a_database_refuses_costs_no_work(
    job: Path, error: type[HmrfError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise error("the database of TICKETS_URL: permission denied; run again later")

    with monkeypatch.context() as patch:
        patch.setattr(Relations, "load", refused)
        with pytest.raises(error, match=r"release 1 is there and not published"):
            run(job)
    done = run_by_command(job)
    assert (done["status"], done["release"]) == ("up to date", 1)
    assert Database("TICKETS_URL").rows("SELECT count(*) FROM clusters") == [(60,)]


def killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_name_that_is_taken_is_said_before_the_work(job: Path) -> None:
    Database("TICKETS_URL").rows("CREATE TABLE Clusters_Changes (a)")
    checked = command("check", str(job), "--quiet")
    assert checked.exit_code == 78
    assert "'Clusters_Changes', which no run of this program made" in checked.stderr
    with pytest.raises(ConfigurationError, match="Clusters_Changes"):
        run(job)
    assert not list((job.parent / "out").glob("runs/*/assignments"))


@pytest.mark.long
def test_a_trial_elsewhere_does_not_replace_what_is_shown(job: Path) -> None:
    """Clusters of another output have other ids: whoever reads the table would not see it."""
    shown = Database("TICKETS_URL")
    run(job)
    add_documents(job.parent, 60, 3)
    with pytest.raises(ConfigurationError, match=r"one output of one job, got 'clusters'"):
        run(job, output="trial")
    assert shown.rows("SELECT count(*) FROM clusters") == [(60,)]
    assert run_by_command(job, "--output", str(job.parent / "trial"), "--take-over")["release"] == 1
    assert shown.rows("SELECT count(*) FROM clusters") == [(63,)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"table": "a.b.c"}, "must be a name, or a schema, a dot and a name"),
        ({"table": "x" * 46}, "at most 45 bytes"),
        ({"url_env": "postgresql://me:hunter2@host/t"}, "name of an environment variable"),
        ({"id_type": "varchar"}, "text, bigint, uuid or numeric"),
    ],
)
def test_mistakes_of_the_job_file(job: Path, change: dict[str, str], words: str) -> None:
    sql = {"table": "clusters", "url_env": "TICKETS_URL"} | change
    with pytest.raises(ConfigurationError, match=words) as caught:
        load_job(str(job), {"publish": {"sql": sql}})
    assert "hunter2" not in str(caught.value)
