"""`hmrf-dask init --url-env`: a manifest and a job for a table of a database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.databases.connection import open_database
from hmrf_dask.documents.manifest import load_manifest
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.jobs.inputs import load_job
from hmrf_dask.jobs.new_job import NewJob
from hmrf_dask.jobs.new_sql_job import job_for_table
from tests.support.long_cases import long

NAME = "TICKETS_URL"
SQLITE_FIRST = pytest.mark.parametrize("dialect", ["sqlite", *long("postgresql")], indirect=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/a.db"
    (tmp_path / "a.db").touch()
    if request.param == "postgresql":
        url = request.getfixturevalue("database")
    monkeypatch.setenv(NAME, url)
    monkeypatch.chdir(tmp_path)
    return str(request.param)


def make(*statements: str) -> None:
    with open_database(NAME, writes=True) as database:
        for statement in statements:
            database.run(statement)
        database.connection.commit()


def tickets(name: str = "tickets") -> list[str]:
    rows = [f"({row}, 'a subject', 'the body of a letter to all {row}', 'x')" for row in range(60)]
    return [
        f"CREATE TABLE {name} (id bigint PRIMARY KEY, subject text, body text, team text, "
        "last_updated timestamp, is_deleted boolean)",
        f"INSERT INTO {name} (id, subject, body, team) VALUES {', '.join(rows)}",
    ]


def command(*words: str) -> Any:
    return CliRunner().invoke(hmrf, ["init", *words])


def manifest_of(made: NewJob) -> dict[str, Any]:
    load_job(made.job)
    return dict(yaml.safe_load(Path(made.manifest).read_text()))


def test_the_only_table_that_looks_like_documents_is_taken(dialect: str) -> None:
    make(*tickets(), "CREATE TABLE people (id bigint PRIMARY KEY, mail text)")
    make("INSERT INTO people VALUES (1, 'a@x'), (2, 'b@x')")
    done = command("--url-env", NAME)
    assert done.exit_code == 0, done.output
    assert "subject, body" in done.output
    assert "hmrf-dask run tickets-clusters/job.yaml" in done.output
    content = yaml.safe_load(Path("tickets-clusters/manifest.yaml").read_text())
    (resource,) = content["resources"]
    assert resource["sql"] == {
        "query": "select id, subject, body, last_updated, is_deleted from tickets",
        "url_env": NAME,
        "key": "id",
        "changed": "last_updated",
        "deleted": "is_deleted",
    }
    assert content["documents"] == {"id": "id", "text": ["subject", "body"]}
    assert "id_type: bigint" in Path("tickets-clusters/job.yaml").read_text()
    assert "made before" in command("--url-env", NAME).output


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_columns_without_a_type(dialect: str) -> None:
    make("CREATE TABLE notes (id INTEGER PRIMARY KEY, body, updated)")
    make("INSERT INTO notes VALUES (1, 'a note of a few words', '2026-11-20')")
    content = manifest_of(job_for_table(NAME))
    assert content["resources"][0]["sql"]["changed"] == "updated"
    assert content["documents"]["text"] == "body"


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_times_of_sqlite_are_texts(dialect: str) -> None:
    make(
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, body TEXT, updated_by TEXT, updated_at TEXT, "
        "removed TEXT, deleted_at TEXT)"
    )
    make("INSERT INTO notes VALUES (1, 'a note of a few words', 'ana', '2026-11-20', 'no', NULL)")
    sql = manifest_of(job_for_table(NAME))["resources"][0]["sql"]
    assert (sql["changed"], sql["deleted"]) == ("updated_at", "deleted_at")


@SQLITE_FIRST
def test_several_tables_are_listed(dialect: str) -> None:
    make(*tickets(), *tickets("letters"))
    with pytest.raises(ConfigurationError, match=r"got several; name one by --table: .*letters"):
        job_for_table(NAME)
    with pytest.raises(ConfigurationError, match=r"got 'leters' \(did you mean 'letters'\?\)"):
        job_for_table(NAME, "leters")
    assert manifest_of(job_for_table(NAME, "letters"))["name"] == "letters"


def test_odd_names_are_quoted(dialect: str) -> None:
    make(
        'CREATE TABLE "Order; --" ("Key" varchar(9) PRIMARY KEY, "the ""end""" text)',
        """INSERT INTO "Order; --" VALUES ('a', 'it''s some text of a few words')""",
    )
    made = job_for_table(NAME, "Order; --")
    (resource,) = manifest_of(made)["resources"]
    assert resource["sql"]["query"] == 'select "Key", "the ""end""" from "Order; --"'
    assert load_manifest(made.manifest).documents.id == "Key"


@SQLITE_FIRST
def test_several_columns_may_be_the_key(dialect: str) -> None:
    make(
        "CREATE TABLE mails (box text, number bigint, body text, PRIMARY KEY (box, number))",
        "INSERT INTO mails VALUES ('in', 1, 'a letter of a few words')",
    )
    made = job_for_table(NAME)
    content = manifest_of(made)
    assert content["resources"][0]["sql"]["key"] == ["box", "number"]
    assert content["documents"] == {"text": "body"}
    assert made.columns["id"] == "box, number"


@SQLITE_FIRST
def test_what_this_program_made_is_no_candidate(dialect: str) -> None:
    mark = "hmrf-dask {}"
    if dialect == "sqlite":
        make(*tickets(), f"CREATE TABLE made (/* {mark} */ id text, text text)")
    else:
        make(*tickets(), "CREATE TABLE made (id text, text text)")
        make(f"COMMENT ON TABLE made IS '{mark}'")
    assert manifest_of(job_for_table(NAME))["name"] == "tickets"


@SQLITE_FIRST
def test_no_table_of_documents(dialect: str) -> None:
    with pytest.raises(ConfigurationError, match=r"none that looks so.*there are no tables"):
        job_for_table(NAME)


@pytest.mark.parametrize(
    "words",
    [
        ["postgresql://me:hunter2@host/t"],
        ["sqlite:///hunter2.db"],
        ["--url-env", "postgresql://me:hunter2@host/t"],
        ["--url-env", "host=a password=hunter2"],
    ],
)
def test_an_address_on_the_command_line_is_refused_unshown(words: list[str]) -> None:
    done = command(*words)
    assert done.exit_code == 78
    assert "must be in an environment variable, not on the command line" in done.stderr
    assert "hunter2" not in done.output + done.stderr


@pytest.mark.parametrize("words", [[], ["a.csv", "--url-env", NAME], ["a.csv", "--table", "t"]])
def test_one_place_is_named(words: list[str]) -> None:
    assert command(*words).exit_code == 2
