"""What changed from release to release: documents that moved, why, and those that came or went."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.jobs import changes, former
from hmrf_dask.jobs.changes import difference
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import assigned, run

METHOD = {"n_clusters": 3, "n_init": 1, "trust": 1.0}


def command(*arguments: str) -> Result:
    return CliRunner().invoke(hmrf, list(arguments))


def test_documents_that_moved_came_and_went_are_said_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = JobCorpus(tmp_path)
    report = run(corpus.write_all(60, 3, method=METHOD))
    before = assigned(report)
    moves = next(one for one, row in before.items() if not row["constrained"])
    other = next(one for one, row in before.items() if row["cluster"] != before[moves]["cluster"])
    answers = corpus.answers(3).decode() + f"{moves},{other},same\n"
    corpus.write({"answers.csv": answers.encode()})
    corpus.write(corpus.files(corpus.draw(10), first=60))
    (tmp_path / "documents/part-000.jsonl.gz").unlink()
    monkeypatch.setattr(former, "BUCKET", 7)  # several buckets
    monkeypatch.setattr(changes, "BUCKET", 7)
    run(tmp_path / "job.yaml", on_bad_record="quarantine", max_rejected=1.0)
    after = assigned(report)
    wanted = {
        one: (before[one]["cluster"], after[one]["cluster"])
        for one in before.keys() & after.keys()
        if before[one]["cluster"] != after[one]["cluster"]
    }
    found = difference(report.output)
    assert found.documents == {
        "both": len(before.keys() & after.keys()), "moved": len(wanted),
        "new": len(after.keys() - before.keys()), "gone": len(before.keys() - after.keys()),
    }  # fmt: skip
    assert found.files == {"new": 1, "changed": 0, "gone": 1}
    assert {row["doc_id"]: (row["from"], row["to"]) for row in found.moved} == wanted
    assert sum(flow["documents"] for flow in found.flows) == len(wanted)
    texts = {one["id"]: one["text"] for one in corpus.documents}
    assert all(row["text"].removesuffix("…") in texts[row["doc_id"]] for row in found.moved)
    (file,) = (tmp_path / "out").glob("runs/*/moved.parquet")
    rows = {row["doc_id"]: row for row in pq.read_table(file).to_pylist()}
    assert {one: (row["from"], row["to"]) for one, row in rows.items()} == wanted
    for row in found.moved:
        assert row["answers"] == rows[row["doc_id"]]["answers"]
    if moves in rows:
        assert rows[moves]["answers"] == [f"same as {other}"]


def test_the_shell_says_what_changed_and_which_releases_there_are(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    output = run(corpus.write_all(45, 3, method=METHOD)).output
    with pytest.raises(ConfigurationError, match="a release before 1 to compare it with"):
        difference(output)
    corpus.write({"answers.csv": corpus.answers(3).replace(b"cannot", b"must")})
    run(tmp_path / "job.yaml")
    shown = command("diff", output)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("release 1 to 2: ")
    assert json.loads(command("diff", output, "2", "1", "--json").stdout)["before"] == 2
    assert command("diff", output, "7").exit_code == 78
    listed = command("inspect", output).stdout
    assert "    2  " in listed
    assert "    1  " in listed
    releases = json.loads(command("inspect", output, "--json").stdout)["releases"]
    assert [one["number"] for one in releases] == [2, 1]
