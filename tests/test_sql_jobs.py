"""Jobs over tables: the release is that of the same documents in files, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hmrf_dask.documents import sql
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import assigned, run
from tests.support.tables import Tickets, write_sql_job


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
    [{}, {"changed": "updated"}, {"changed": "updated", "deleted": "closed"}],
    ids=["hashes", "changed", "deleted"],
)
def test_a_second_night_tells_new_changed_and_gone(
    tickets: Tickets, tmp_path: Path, settings: dict[str, str]
) -> None:
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
    told = {key: second.documents[key] for key in ("all", "new", "gone")}
    assert told == {"all": 302, "new": 3, "gone": 1}
    assert gone in before
    assert gone not in assigned(second)
    assert run(job).status == "up to date"
