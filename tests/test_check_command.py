"""`hmrf-dask check`: what it finds in documents and answers, and what it ends with."""

from __future__ import annotations

import gzip
import json
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import pytest
import yaml
from click.testing import CliRunner, Result

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.documents.manifest import SCHEMA
from hmrf_dask.jobs import check as jobs_check
from hmrf_dask.jobs.check import check_manifest


def check(manifest: str, *more: str) -> Result:
    return CliRunner().invoke(hmrf, ["check", manifest, *more])


def lines(first: int, last: int) -> bytes:
    rows = [
        {"id": f"d{n}", "text": f"text {n} {'ä' * (n % 2)}", "label": n % 3} for n in range(last)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows[first:]).encode()


def written(folder: Path, files: dict[str, bytes], **changes: Any) -> str:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    manifest = {
        "$schema": SCHEMA,
        "name": "small",
        "language": "en",
        "resources": [{"name": "documents", "path": "*.jsonl*"}],
        "documents": {"label": "label"},
        **changes,
    }
    (folder / "manifest.yaml").write_text(yaml.safe_dump(manifest))
    return str(folder / "manifest.yaml")


def test_a_table_without_rows_is_a_problem_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)")
    monkeypatch.setenv("NOTES_URL", f"sqlite:///{tmp_path}/a.db")
    sql = {"query": "select id, text from notes", "url_env": "NOTES_URL", "key": "id"}
    manifest = written(tmp_path, {}, resources=[{"name": "notes", "sql": sql}], documents={})
    result = check(manifest)
    assert result.exit_code == 65, result.output
    assert "there must be documents, got none" in result.output
    assert check(manifest, "--all").exit_code == 65


def test_it_says_what_is_there(tmp_path: Path) -> None:
    files = {
        "a.jsonl": lines(0, 20),
        "b.jsonl.gz": gzip.compress(lines(20, 40)),
        "pairs.csv": b"a,b,kind\nd1,d2,must\nd3,d39,cannot\n",
    }
    manifest = written(tmp_path, files, answers={"path": "pairs.csv"})
    result = check(manifest, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["formats"] == {"jsonl": 1, "jsonl.gz": 1}
    assert found["bytes"] == len(files["a.jsonl"]) + len(files["b.jsonl.gz"])
    assert (found["documents"], found["files_read"], found["complete"]) == (40, 2, True)
    assert found["first_documents"][1] == {"id": "d1", "text": "text 1 ä", "file": "a.jsonl"}
    assert found["lengths"] == {"shortest": 7, "median": 8.0, "mean": 8.25, "longest": 9}
    assert (found["ascii_share"], found["labels"]) == (0.5, 3)
    assert found["answers"] == {
        "files": 1,
        "must_links": 1,
        "cannot_links": 1,
        "documents": 4,
        "documents_found": 4,
        "not_found": [],
        "bad_lines": 0,
    }
    assert (found["problems"], found["remarks"], found["warnings"]) == ([], [], [])
    shown = check(manifest)
    assert shown.exit_code == 0
    for words in ("2 files (1 jsonl, 1 jsonl.gz)", "40 documents (all read)", "language en"):
        assert words in shown.stdout
    assert "nothing found that would stop a run" in shown.stdout
    assert check(manifest, "--quiet").stderr == ""


def test_it_ends_with_65_where_a_run_would(tmp_path: Path) -> None:
    files = {
        "a.jsonl": lines(0, 3) + b"oops\n" + b'{"id": "d9"}\n',
        "b.jsonl": lines(2, 5) + lines(4, 5),
        "pairs.csv": b"a,b,kind\nd1,d77,must\nd78,../79,cannot\n",
    }
    manifest = written(tmp_path, files, answers={"path": "pairs.csv"})
    result = check(manifest)
    assert result.exit_code == 65
    for words in (
        "3 bad records",
        "  a.jsonl, line 4: not JSON: invalid character (byte 0)",
        "  a.jsonl, line 5: the text ('text') is missing",
        "  b.jsonl, line 4: the id is that of an earlier document of this file",
        "1 id that comes twice",
        "  'd2' again in b.jsonl, line 1",
        "answers must name documents that are there, got 3 others: '../79', 'd77', 'd78'",
        "a run stops; correct them, or raise max_rejected of quarantine",
    ):
        assert words in result.stdout
    found = json.loads(check(manifest, "--json").stdout)
    assert len(found["problems"]) == 3
    quiet = check(manifest, "--quiet")
    assert (quiet.stdout, quiet.stderr.count("error: ")) == ("", 3)
    assert found["first_bad_records"][0]["line"] == 4


def test_more_clusters_than_documents_would_stop_a_run(tmp_path: Path) -> None:
    written(tmp_path, {"a.jsonl": lines(0, 1)})
    job = {"$schema": "hmrf-dask/job/v1", "manifest": "manifest.yaml", "output": "out"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**job, "method": {"n_clusters": 3}}))
    result = check(str(tmp_path / "job.yaml"))
    assert result.exit_code == 65
    assert "n_clusters must be at most the number of documents, got 3 for 1" in result.stdout
    assert "texts have 7 characters; " in result.stdout


def test_a_sample_is_spread_over_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"{n:02}.jsonl": lines(10 * n, 10 * n + 10) for n in range(40)}
    manifest = written(
        tmp_path,
        {**files, "pairs.csv": b"a,b,kind\nd0,d399,must\n"},
        answers={"path": "pairs.csv"},
    )
    monkeypatch.setattr(jobs_check, "SMALLEST_SHARE", 5)
    found = check_manifest(manifest, sample=20)
    assert (found.files, found.files_read, found.documents, found.complete) == (40, 4, 20, False)
    assert found.problems == []
    assert found.remarks == [
        "a sample was read; --all reads every document",
        "answers name 1 document that the sample does not have",
    ]
    everything = check_manifest(manifest, everything=True, sample=20)
    assert (everything.documents, everything.complete, everything.problems) == (400, True, [])


def test_large_files_that_cannot_be_cut_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a.jsonl": lines(0, 40), "b.jsonl.gz": gzip.compress(lines(40, 80))}
    manifest = written(tmp_path, files)
    assert not any("one task" in one for one in check_manifest(manifest, everything=True).remarks)
    monkeypatch.setattr(jobs_check, "SEGMENT_BYTES", 50)
    (remark,) = check_manifest(manifest, everything=True).remarks
    assert "1 large file can be read by one task each, from front to end: b.jsonl.gz" in remark


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (b"a,b,kind\nd1,d2,maybe\n", "pairs.csv, line 2: kind must be"),
        (b"a;b\n", "pairs.csv"),
        (b"\xff", "pairs.csv, line 1: must be UTF-8 text"),
    ],
)
def test_answers_that_cannot_be_read_are_problems(
    tmp_path: Path, pairs: bytes, message: str
) -> None:
    manifest = written(
        tmp_path, {"a.jsonl": lines(0, 3), "pairs.csv": pairs}, answers={"path": "pairs.csv"}
    )
    found = check_manifest(manifest)
    assert message in found.problems[0]
    assert check(manifest).exit_code == 65


def test_contradictions_are_found_with_their_lines(tmp_path: Path) -> None:
    pairs = b"a,b,kind\nd1,d2,same\nd3,d2,1\nd1,d3,different\n"
    manifest = written(
        tmp_path, {"a.jsonl": lines(0, 9), "pairs.csv": pairs}, answers={"path": "pairs.csv"}
    )
    found = check_manifest(manifest)
    assert not found.problems
    chain = "pairs.csv, lines 2, 3, 4: 'd1' = 'd2' = 'd3' but 'd1' ≠ 'd3'"
    (remark,) = found.remarks
    assert remark.startswith("must-links contradict 1 cannot-link, kept as pairs")
    assert remark.endswith(chain)
    result = check(manifest)
    assert result.exit_code == 0
    assert "3 answers (2 must-links, 1 cannot-link)" in result.stdout


def test_answers_of_all_files_are_put_together(tmp_path: Path) -> None:
    files = {
        "a.jsonl": lines(0, 9),
        "pairs-1.csv": b"id,label\nd1,x\nd2,y\n",
        "pairs-2.csv": b"id,label\nd3,x\nd1,y\n",
        "pairs-3.csv": b"a,b,kind,weight\nd1,d2,0,2\nd2,d1,0,3\nd1,d5,huh,\n",
    }
    found = check_manifest(written(tmp_path, files, answers={"path": "pairs-*.csv"}))
    (problem,) = found.problems
    for words in (
        "pairs-2.csv, line 3: a document must have one class, got 'y' here and 'x' in pairs-1.csv",
        "pairs-3.csv, line 3: a pair must have one weight, got 3 here and 2 in pairs-3.csv, line 2",
        "pairs-3.csv, line 4: kind must be must (",
    ):
        assert words in problem
    assert found.answers is not None
    assert (found.answers.bad_lines, found.answers.must_links, found.answers.files) == (3, 1, 3)


def test_warnings_are_lines_and_listed(tmp_path: Path) -> None:
    files = {"a.jsonl": lines(0, 3), "pairs.csv": b""}
    manifest = written(tmp_path, files, answers={"path": "pairs.csv"})
    result = check(manifest, "--quiet", "--json")
    assert result.stderr == "warning: pairs.csv is empty: it has no answers yet\n"
    assert json.loads(result.stdout)["warnings"] == ["pairs.csv is empty: it has no answers yet"]


def test_the_hash_of_answers_is_checked(tmp_path: Path) -> None:
    files = {"a.jsonl": lines(0, 3), "pairs.csv": b"a,b,kind\n"}
    answers = {"path": "pairs.csv", "hash": f"md5:{'0' * 32}"}
    (problem,) = check_manifest(written(tmp_path, files, answers=answers)).problems
    assert "pairs.csv: must have the hash that the manifest says" in problem


def test_integers_in_answers_are_the_ids_of_documents(tmp_path: Path) -> None:
    files = {"a.jsonl": b'{"id": 1, "text": "x"}\n{"id": "2", "text": "y"}\n'}
    manifest = written(
        tmp_path, {**files, "pairs.csv": b"a,b,kind\n1,2,must\n"}, answers={"path": "pairs.csv"}
    )
    found = check_manifest(manifest)
    assert found.answers is not None
    assert (found.answers.documents_found, found.problems) == (2, [])


def test_nothing_to_cluster_is_a_problem(tmp_path: Path) -> None:
    found = check_manifest(written(tmp_path, {"a.jsonl": b"\n\n"}))
    assert found.problems == ["there must be documents, got none of 1 file"]
    result = check(written(tmp_path, {}, resources=[{"name": "d", "path": "*.csv"}]))
    assert result.exit_code == 65
    assert result.stderr.startswith("error: 'd': there must be at least one file, got none for")


def test_embeddings_of_two_lengths_are_a_problem(tmp_path: Path) -> None:
    files = {
        "a.jsonl": b'{"id": 1, "row": [1, 2]}\n',
        "b.jsonl": b'{"id": 2, "row": [1, 2, 3]}\n',
    }
    columns = {"text": None, "embedding": "row"}
    found = check_manifest(written(tmp_path, files, documents=columns))
    assert found.embedding_length == 2
    assert found.problems == [
        "embeddings must be of one length, got 3 numbers in b.jsonl and 2 in files before it"
    ]


def test_mistakes_end_with_their_exit_codes_and_no_traceback(tmp_path: Path) -> None:
    for name, content, code, message in (
        ("none.yaml", None, 78, "there is no such file or folder"),
        ("bad.yaml", "nme: a\n", 78, "nme: must not be there (did you mean 'name'?)"),
    ):
        if content is not None:
            (tmp_path / name).write_text(content)
        result = check(str(tmp_path / name))
        assert result.exit_code == code
        assert message in result.stderr
        assert result.stdout == ""
        assert "Traceback" not in result.output
    assert CliRunner().invoke(hmrf, ["check"]).exit_code == 2


def test_documents_and_answers_in_a_bucket(tmp_path: Path, s3_options: dict[str, Any]) -> None:
    root = f"runs/{uuid.uuid4().hex}"
    files = fsspec.filesystem("s3", **s3_options)
    files.pipe_file(f"{root}/messages/2026/a.jsonl.gz", gzip.compress(lines(0, 30)))
    files.pipe_file(f"{root}/answers/one.csv", b"a,b,kind\nd1,d2,must\n")
    manifest = written(
        tmp_path,
        {},
        resources=[{"name": "messages", "path": f"s3://{root}/messages/**/*.jsonl.gz"}],
        answers={"path": f"s3://{root}/answers/*.csv"},
        storage_options=s3_options,
    )
    found = check_manifest(manifest)
    assert (found.documents, found.problems) == (30, [])
    assert found.answers is not None
    assert found.answers.documents_found == 2
