"""Answers out of a table: a query in the manifest gives the lines of a file of answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hmrf_dask.constraints.answer_files import parse_lines
from hmrf_dask.constraints.answer_query import named_after, query_answers
from hmrf_dask.databases.connection import open_database
from hmrf_dask.documents.manifest import load_manifest
from hmrf_dask.errors import ConfigurationError

NAME = "TICKETS_URL"
UUID = "0b2f4a66-8c1a-4b6e-9f0e-1d2c3b4a5f60"
QUERY = "select a, b, kind, trust, said as time from judged order by a"


@pytest.fixture(params=["sqlite", "postgresql"])
def judged(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a table of two answers, whose ids have the types of a database."""
    (tmp_path / "a.db").touch()
    url, kinds = f"sqlite:///{tmp_path}/a.db", "text, b text"
    if request.param == "postgresql":
        url, kinds = request.getfixturevalue("database"), "numeric, b uuid"
    monkeypatch.setenv(NAME, url)
    with open_database(NAME, writes=True) as database:
        database.run(f"CREATE TABLE judged (a {kinds}, kind boolean, trust real, said timestamp)")
        for row in (
            "'7', '{0}', true, 0.5, '2026-11-20 10:00:00'",
            "'12', '{0}', false, null, null",
        ):
            database.run(f"INSERT INTO judged VALUES ({row.format(UUID)})")
        database.connection.commit()


@pytest.mark.usefixtures("judged")
def test_answers_in_any_type_and_order() -> None:
    """Ids are text as those of documents are, and no order of rows makes other bytes."""
    data = query_answers(NAME, QUERY)
    assert data == query_answers(NAME, f"{QUERY} desc")
    found = parse_lines(data, named_after(NAME))
    assert sorted(found.pairs.tolist()) == [["12", UUID], ["7", UUID]]
    assert not found.bad
    with pytest.raises(ConfigurationError, match=r"the columns must be a, b, kind .*\(select x AS"):
        query_answers(NAME, "select a as first, b as second from judged")


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ({"query": "delete from judged", "url_env": NAME}, "must be one select"),
        ({"query": "select 1", "url_env": "sqlite:///x:hunter2@y"}, "url_env"),
    ],
)
def test_mistakes_of_the_manifest(tmp_path: Path, sql: dict[str, str], words: str) -> None:
    content = {
        "$schema": "hmrf-dask/manifest/v1",
        "name": "tickets",
        "resources": [{"name": "t", "path": "*.jsonl"}],
        "answers": {"sql": sql},
    }
    (tmp_path / "manifest.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigurationError, match=words) as caught:
        load_manifest(tmp_path / "manifest.yaml")
    assert "hunter2" not in str(caught.value)
