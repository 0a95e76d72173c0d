"""Jobs over tables: the release is that of the same documents in files, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hmrf_dask.cli.show import _reported, _since
from hmrf_dask.documents import sql
from tests.proofs.reading import night
from tests.support.faulty_databases import FAULTS, Faults
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import assigned, run
from tests.support.long_cases import long, long_but
from tests.support.postgres import Postgres
from tests.support.tables import BOTH, NAME, Tickets, write_sql_job

DELETED = {"changed": "updated", "deleted": "closed"}


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few rows be several segments."""
    monkeypatch.setattr(sql, "SEGMENT_ROWS", 25)
    monkeypatch.setattr("hmrf_dask.documents.sqlite_query._OVERLAP_ROWS", 2)


def of_files(folder: Path, documents: list[dict[str, Any]], job: dict[str, Any]) -> Any:
    """Return the report of a run over files in a folder of its own."""
    corpus = JobCorpus(folder, documents=documents)
    corpus.write(corpus.files(documents))
    corpus.write({"answers.csv": corpus.answers(20)})
    return run(corpus.write_job(**job))


def same(one: Any, other: Any) -> None:
    """Require the same assignments, J and vocabulary."""
    assert assigned(one) == assigned(other)
    assert (one.fit, one.vocabulary["terms"]) == (other.fit, other.vocabulary["terms"])


@pytest.mark.parametrize("tickets", BOTH, indirect=True)
def test_a_table_gives_the_release_of_files_bit_for_bit(tickets: Tickets, tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path / "tables")
    documents = corpus.draw(90)
    tickets.make()
    tickets.put(documents)
    corpus.write({"answers.csv": corpus.answers(20)})
    report = run(write_sql_job(corpus))
    assert report.files["all"] == 4
    same(report, of_files(tmp_path / "files", documents, {}))


@pytest.mark.parametrize(
    "settings",
    [*long({}), {"changed": "updated"}, *long(DELETED)],
    ids=["hashes", "changed", "deleted"],
)
def test_a_second_night_tells_new_changed_and_gone(
    tickets: Tickets, tmp_path: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The newest rows are read again on the next night, and are no other ones.
    monkeypatch.setattr("hmrf_dask.documents.keyed_query._MARKS_CHARACTERS", 0)
    corpus = JobCorpus(tmp_path / "tables")
    documents = corpus.draw(300)
    tickets.make()
    tickets.put([{**one, "updated": f"2026-01-{1 + n % 28:02}"} for n, one in enumerate(documents)])
    corpus.write({"answers.csv": corpus.answers(20)})
    job = write_sql_job(corpus, settings)
    before = assigned(run(job))
    changed = [{**one, "text": f"{one['text']} again"} for one in documents[:3]]
    tickets.put([*changed, *corpus.draw(3)], updated="2026-02-01T00:00:00+00:00")
    gone = documents[10]["id"]
    if "deleted" in settings:
        tickets.run(
            f"UPDATE tickets SET closed = '2026-02-01', updated = '2026-02-01' WHERE id = '{gone}'"
        )
    else:
        tickets.run(f"DELETE FROM tickets WHERE id = '{gone}'")
    second = run(job)
    told = {key: second.documents[key] for key in ("all", "new", "changed", "gone")}
    assert told == {"all": 302, "new": 3, "changed": 3, "gone": 1}
    assert _since(second.files, "segment") in list(_reported(second))
    assert gone in before
    assert gone not in assigned(second)
    assert run(job).status == "up to date"
    if settings.keys() == {"changed"}:
        tickets.run(f"DELETE FROM tickets WHERE id = '{documents[11]['id']}'")
        assert run(job).documents["gone"] == 1
        assert run(job).status == "up to date"


@pytest.mark.parametrize(
    "kind",
    long_but(["connection cut"], FAULTS),
)
def test_a_fault_while_rows_are_read_ends_with_75_and_the_next_run_with_the_same_bits(
    database: str, postgres: Postgres, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, database)
    monkeypatch.setattr(sql, "SEGMENT_ROWS", 1000)
    faults = Faults(postgres, tmp_path, 300 if kind == "disk full" else 60)
    after = 0.0 if kind in ("disk full", "rows change") else 0.05
    assert faults.outcome(kind, 1, after) == ("done" if kind == "rows change" else "exit 75")


@pytest.mark.long
def test_a_night_reads_what_changed_alone(
    database: str, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, database)
    monkeypatch.setattr(sql, "SEGMENT_ROWS", 1000)
    told = night(postgres, tmp_path, 1500)
    assert [told[key] for key in ("all", "new", "changed", "gone")] == [1500, 15, 15, 15]
    assert told["rows read by scans of the table"] == 0
    assert told["rows read by the index of changes"] <= 0.1 * 1500
