"""The pages a person reads after `run`, `check` and `inspect`: what they say, and how."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hmrf_dask.cli.show import MOST, show
from hmrf_dask.errors import RunDirectoryError
from hmrf_dask.jobs.check import AnswerFindings, Findings
from hmrf_dask.jobs.places import Report

VOCABULARY = {"terms": 30, "refit": False, "unknown_share": 0.014, "unknown_share_then": 0.0}


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Return what a later run of four clusters reports, with its clusters in a file."""
    rows = [
        {"cluster": cluster, "size": 7 - cluster, "top_words": [f"word{cluster}", "more"]}
        for cluster in range(4)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "clusters.parquet")
    return _report(str(tmp_path))


def _report(output: str) -> Report:
    content: dict[str, Any] = {
        "status": "done", "run": "abc", "output": output, "parent": "ab", "release": 2,
        "mode": "fit", "start": "warm",
        "files": {"all": 3, "new": 1, "changed": 0, "gone": 2},
        "documents": {
            "all": 22, "new": 2, "changed": 3, "gone": 1300, "moved": 1, "moved_share": 0.05,
            "vectorised": 1, "quarantined": 1,
        },
        "vocabulary": VOCABULARY,
        "answers": {
            "pairs": {"must": 1, "cannot": 2}, "violated": {"must": 1, "cannot": 0},
            "quarantined": 0, "unknown": 0, "waiting": 0, "unused": 0,
        },
        "fit": {"J": 7.0, "iterations": 1, "stop_reason": "settled"},
        "clusters": {"number": 4, "kept": 4},
        "nmi": None, "unit": "file", "seconds": {}, "places": {"clusters": "clusters.parquet"},
    }  # fmt: skip
    known = Report.__dataclass_fields__
    return Report(**{name: content.get(name) for name in known})


def test_a_run_is_explained_in_words(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    show(report)
    page = capsys.readouterr().out
    for line in (
        "22 documents: 2 new, 3 changed, 1,300 gone; 1 vectorised, 1 record quarantined\n3",
        "1 of the 20 documents that the last release had are in another cluster (5.00%)",
        "30 terms, unchanged; 1.4% of the words in new files are not among them (0.0% where",
        "violated: 1 of 1 must-link, 0 of 2 cannot-links",
        "J = 7 after 1 iteration from a warm start (settled)",
        "4 clusters: 4 kept\n",
    ):
        assert line in page
    words = [line.split() for line in page.splitlines() if "word" in line and "more" in line]
    assert words[0] == ["0", "7", "word0", "more"]
    assert len(words) == 4


@pytest.mark.parametrize(
    ("vocabulary", "asked"),
    [
        (VOCABULARY, True),
        ({}, False),  # of embeddings alone there is no way from a text to a row
        ({**VOCABULARY, "embeddings": {"model": "", "width": 3, "without_token": 0}}, False),
        (
            {
                **VOCABULARY,
                "embeddings": {"model": "m", "width": 3, "without_token": 0, "embedded": 1},
            },
            True,
        ),
    ],
)
def test_what_comes_next_is_what_can_be_done(
    vocabulary: dict[str, Any], asked: bool, report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {**report.places, "page": "runs/abc/report.html"}
    show(replace(report, vocabulary=vocabulary, places=places))
    page = capsys.readouterr().out
    assert ("hmrf-dask classify " in page) == asked
    assert page.splitlines()[-1].endswith(f"not written; hmrf-dask report {report.output} makes it")
    written = Path(report.output, "runs/abc/report.html")
    written.parent.mkdir(parents=True)
    written.touch()
    show(replace(report, vocabulary=vocabulary, places=places))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"Report: open {written} in a browser"


def test_a_store_that_fails_at_the_end_ends_no_command(
    report: Report, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RunDirectoryError("the store does not answer")

    monkeypatch.setattr("hmrf_dask.storage.stores.open_storage", fail)
    show(replace(report, places={**report.places, "page": "runs/abc/report.html"}))
    assert capsys.readouterr().out.splitlines()[-1].endswith("report.html in a browser")


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"all": 3, "new": 0, "changed": 0, "gone": 1}},
        {"vocabulary": {**VOCABULARY, "refit": True}},
    ],
)
def test_no_share_of_new_words_where_none_are_new(
    changes: dict[str, Any], report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    show(replace(report, **changes))
    page = capsys.readouterr().out
    assert "30 terms, " in page
    assert "of the words in new files" not in page


def test_a_first_run_reports_no_changes(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    show(replace(report, parent=None, clusters={"number": 4, "new": 4}))
    page = capsys.readouterr().out
    assert "4 clusters\n" in page
    assert "the last release" not in page


def test_of_many_clusters_the_largest_are_shown(
    report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"cluster": n, "size": n, "top_words": None} for n in range(MOST + 3)]
    pq.write_table(pa.Table.from_pylist(rows), Path(report.output) / "clusters.parquet")
    show(report)
    page = capsys.readouterr().out
    assert "… 3 more in the clusters file" in page
    assert page.index(f"     {MOST + 2}  ") < page.index(f"     {MOST + 1}  ")


def test_every_folder_of_assignments_is_a_whole_path(
    report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    show(replace(report, places={**report.places, "assignments": "runs/a, runs/b"}))
    output = report.output
    assert f"assignments  {output}/runs/a, {output}/runs/b\n" in capsys.readouterr().out


def test_one_of_each_is_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    record = {"file": "a.csv", "line": 3, "id": None, "reason": "no text", "raw": ""}
    show(
        Findings(
            "one", None, 1, 10, {"csv": 1}, files_read=1, documents=1, bad_records=1,
            first_bad_records=[record], duplicate_ids=1, first_duplicate_ids=["'a' again"],
            labels=1, answers=AnswerFindings(1, 1, 0, 2, 1, ["b"]),
        )
    )  # fmt: skip
    page = capsys.readouterr().out
    for line in (
        "1 file (1 csv), 10 bytes",
        "1 document (a sample, 1 file opened)",
        "1 bad record\n  a.csv, line 3: no text",
        "1 id that comes twice",
        "1 known class\n",
        "1 answer (1 must-link, 0 cannot-links) about 2 documents, 1 of them read",
    ):
        assert line in page


def test_an_output_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"documents": 30, "clusters": 3}
    release = {"number": 2, "run": "abc", "when": "today", "files": 2}
    release |= {"hashed": 1, "counts": counts}
    show(
        {"kind": "output", "place": "/out", "running": False, "release": release, "holder": None,
         "progress": None, "releases": []}
    )  # fmt: skip
    page = capsys.readouterr().out
    assert "release 2 of run abc, today, 2 files (1 hashed): 30 documents, 3 clusters" in page
