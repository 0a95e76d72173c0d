"""Answers to and from files: CSV, JSON Lines and Label Studio, and none is added twice."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hmrf_dask.answers.beliefs import believe
from hmrf_dask.answers.exchange import decode_answers, encode_answers
from hmrf_dask.answers.journal import open_journal
from hmrf_dask.answers.records import Entry
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.errors import ConfigurationError, HmrfWarning, InvalidInputError
from hmrf_dask.jobs.exchange import export_answers, import_answers
from hmrf_dask.jobs.journal import take
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import run

TIME = "2026-01-02T03:04:05+00:00"
ENTRIES = [
    Entry("1", "pair", ("x", "r"), answer="same", annotator="anna", time=TIME, seconds=2.5),
    Entry("2", "pair", ("y, \"q\"\n", "r"), answer="different", annotator="bo@example.org"),
    Entry("3", "choice", ("z", "r"), ("r", "s"), "same", "anna", TIME),
    Entry("4", "choice", ("u",), ("r", "s"), "none", "anna"),
    Entry("5", "pair", ("v", "r"), answer="unknown"),
    Entry("6", "pair", ("w", "r"), answer="same"),
    Entry("7", "undo", about="6"),
]  # fmt: skip


def content(entries: list[Entry]) -> set[tuple[Any, ...]]:
    return {(e.kind, e.documents, e.shown, e.answer, e.annotator, e.time) for e in entries}


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_what_was_exported_is_imported_as_it_was(ending: str) -> None:
    read = decode_answers(encode_answers(ENTRIES, f"a.{ending}"), f"a.{ending}")
    assert (read.bad, read.n_open) == ([], 0)
    assert content(read.entries) == content(ENTRIES[:5])
    assert read.new({entry.id for entry in ENTRIES}) == []


def test_csv_has_the_pairs_that_answers_say() -> None:
    data = encode_answers(ENTRIES, "a.csv")
    read = decode_answers(data, "a.csv")
    assert content(read.entries) == {
        ("pair", ("x", "r"), (), "same", "anna", TIME),
        ("pair", ('y, "q"\n', "r"), (), "different", "bo@example.org", ""),
        ("pair", ("z", "r"), (), "same", "anna", TIME),
        ("pair", ("u", "r"), (), "different", "anna", ""),
        ("pair", ("u", "s"), (), "different", "anna", ""),
    }
    assert read.new({entry.id for entry in ENTRIES}) == []
    assert len(read.new(set())) == 5


def test_rows_of_a_person(tmp_path: Path) -> None:
    header = b"\xef\xbb\xbfA,B,Kind,text_a,annotator,comment\n"
    rows = header + b"1,2,yes,words,anna,sure\n1,3,?,,,\n3,4,,,,\n"
    read = decode_answers(rows, "filled.csv")
    assert [(one.kind, one.answer, one.annotator) for one in read.entries] == [
        ("pair", "same", "anna"), ("comment", "sure", "anna"), ("pair", "unknown", ""),
    ]  # fmt: skip
    assert read.entries[1].about == read.entries[0].id
    assert (read.n_open, read.bad) == (1, [])
    bad = decode_answers(
        b"a,b,kind,time\n1,1,same,\n1,2,maybe,\n1,2,same,noon\n,2,same,\n", "b.csv"
    )
    assert [one.line for one in bad.bad] == [2, 3, 4, 5]
    assert decode_answers(b'{"a": 1, "b": 2, "kind": true}\n', "b.jsonl").entries[0].documents == (
        "1", "2",
    )  # fmt: skip


def annotated(**changes: Any) -> dict[str, Any]:
    result = {"type": "choices", "value": {"choices": ["Different"]}, "from_name": "x"}
    return {
        "id": 31, "result": [result], "was_cancelled": False, "lead_time": 4.2, "completed_by": 10,
        "created_at": "2021-03-09T22:16:08.728353Z", **changes,
    }  # fmt: skip


def test_tasks_of_label_studio() -> None:
    other = {"type": "textarea", "value": {"text": ["hm"]}}
    tasks = [
        {"id": 1, "data": {"a": 1, "b": "r", "text_a": "…"}, "annotations": [
            annotated(), annotated(completed_by={"id": 3, "email": "bo@example.org"}),
            annotated(was_cancelled=True), annotated(result=[other]),
        ]},
        {"id": 2, "data": {"document": "x", "shown": ["r", "s"]}, "annotations": [
            annotated(result=[other, {"type": "choices", "value": {"choices": ["s"]}}]),
        ]},
        {"id": 3, "data": {"a": "x", "b": "r"}, "annotations": []},
    ]  # fmt: skip
    read = decode_answers(json.dumps(tasks).encode(), "export.json")
    time = "2021-03-09T22:16:08.728353Z"
    assert content(read.entries) == {
        ("pair", ("1", "r"), (), "different", "10", time),
        ("pair", ("1", "r"), (), "different", "bo@example.org", time),
        ("choice", ("x", "s"), ("r", "s"), "same", "10", time),
    }
    assert {one.seconds for one in read.entries} == {4.2}
    assert (read.n_open, read.bad) == (1, [])
    bad = [{"data": {"image": "a.png"}, "annotations": [annotated()]}, 7, {"data": {}}, {}]
    assert [one.line for one in decode_answers(json.dumps(bad).encode(), "b.json").bad] == [1, 2, 4]
    for data in (b"{", b"{}", b"[" * 100_000):
        with pytest.raises(InvalidInputError, match=r"b.json: must be"):
            decode_answers(data, "b.json")


def test_an_output_takes_answers_once(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    output = run(corpus.write_all(60, 5, method={"n_clusters": 3, "n_init": 1})).output
    first, second, third = (one["id"] for one in corpus.documents[:3])
    filled = tmp_path / "filled.csv"
    filled.write_text(f"a,b,kind,annotator\n{first},{second},no,anna\n{first},{third},,anna\n")
    result = import_answers(output, str(filled))
    assert (result.answers, result.added, result.there, result.open) == (1, 1, 0, 1)
    assert result.unsettled == len(believe(open_journal(result.journal).entries().entries).open)
    again = import_answers(output, str(filled))
    assert (again.answers, again.added, again.there) == (1, 0, 1)
    for ending in ("csv", "jsonl", "json"):
        file = str(tmp_path / f"exported.{ending}")
        assert export_answers(output, file).answers == 1
        assert import_answers(output, file).added == 0
        other = import_answers(output, file, journal=str(tmp_path / f"{ending}.jsonl"))
        assert other.added == 1
    filled.write_text(f"a,b,kind\n{first},nobody,same\n{first},else,same\n{first},{third},same\n")
    with pytest.raises(InvalidInputError, match=r"'nobody' in 2 of 3; no answer was imported"):
        import_answers(output, str(filled))
    assert len(open_journal(f"{output}/journal.jsonl").entries().entries) == 1
    filled.write_text(f"a,b,kind\n{first},{third},same\n{first},nobody,same\n")
    with pytest.warns(HmrfWarning, match=r"1 answer left out, about unknown documents: 'nobody'"):
        partly = import_answers(output, str(filled))
    assert (partly.added, partly.unknown) == (1, 1)


def test_imported_answers_are_pairs_with_trust_of_their_own(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    job = corpus.write_all(60, 0, method={"n_clusters": 3, "n_init": 1, "max_iter": 5})
    output = run(job).output
    ids = [one["id"] for one in corpus.documents]
    rows = [f"{a},{b},same,{trust}" for a, b, trust in zip(ids, ids[3:], [0.8, ""] * 9)]  # noqa: B905
    file = tmp_path / "others.csv"
    file.write_text("\n".join(["a,b,kind,trust", *rows]))
    result = import_answers(output, str(file))
    assert (result.added, result.unsettled) == (len(rows), 0)
    taken = take(output).pairs({})
    assert len(taken.pairs) == len(rows)
    assert Counter(noted.get("trust") for noted in taken.notes) == {0.8: 9, None: 9}
    assert run(job).answers["pairs"]["must"] == len(rows)
    again = decode_answers(encode_answers(take(output).read.entries, "a.csv"), "a.csv")
    assert Counter(entry.trust for entry in again.entries) == {0.8: 9, None: 9}
    assert believe(again.entries).annotators == {}  # nobody of them was asked


def test_the_commands(tmp_path: Path) -> None:
    journal, output = tmp_path / "journal.jsonl", str(tmp_path)
    open_journal(journal).append(*(replace(one, why="uncertain") for one in ENTRIES))
    invoke = CliRunner().invoke
    done = invoke(hmrf, ["answers", "export", output, str(tmp_path / "a.csv"), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["answers"]) == (0, 5)
    done = invoke(hmrf, ["answers", "import", output, str(tmp_path / "a.csv")])
    assert (done.exit_code, "0 added of" in done.stdout) == (0, True)
    elsewhere = f"--journal={tmp_path / 'own.jsonl'}"
    done = invoke(hmrf, ["answers", "import", output, str(tmp_path / "a.csv"), elsewhere])
    assert (done.exit_code, "5 added of" in done.stdout) == (0, True)
    assert "documents are not settled yet: a run leaves out what was said of them" in done.stdout
    for bad, said in (
        (b"a,b,kind\n1,1,same\n", "line 2: "),
        (b"x,y\n1,2\n", "line 2: the columns"),
        (b"1,2,same\n", "line 1: the columns must be a, b and kind"),
        (b"", "line 1: the columns must be a, b and kind"),
    ):
        (tmp_path / "b.csv").write_bytes(bad)
        done = invoke(hmrf, ["answers", "import", output, str(tmp_path / "b.csv")])
        assert (done.exit_code, said in done.stderr) == (65, True)
    done = invoke(hmrf, ["answers", "export", output, str(tmp_path / "a.txt")])
    assert (done.exit_code, "must be named .csv, .jsonl, .json" in done.stderr) == (65, True)


def test_an_export_replaces_no_file_of_an_output(tmp_path: Path) -> None:
    output, own = tmp_path / "out", tmp_path / "own.jsonl"
    output.mkdir()
    (tmp_path / "link").symlink_to(output)
    for file in (output / "journal.jsonl", own):
        open_journal(file).append(*ENTRIES)
    before = own.read_bytes()
    for place in (
        "out/journal.jsonl",
        "link/journal.jsonl",
        "out/output.json",
        "out/a/b.csv",
        "own.jsonl",
    ):
        with pytest.raises(ConfigurationError, match="name another file"):
            export_answers(str(output), str(tmp_path / place), journal=str(own))
    assert own.read_bytes() == (output / "journal.jsonl").read_bytes() == before
    with pytest.raises(ConfigurationError, match="a folder that is there"):
        export_answers(str(output), str(tmp_path / "nowhere/a.csv"))


def test_how_likely_an_answer_was_goes_with_it() -> None:
    entries = [
        Entry("1", "pair", ("x", "r"), answer="same", likely=(0.75,)),
        Entry("2", "choice", ("z", "s"), ("r", "s"), "same", likely=(0.5, 0.25)),
    ]
    for ending in ("csv", "jsonl", "json"):
        read = decode_answers(encode_answers(entries, f"a.{ending}"), f"a.{ending}")
        likely = [(0.75,), (0.25,) if ending == "csv" else (0.5, 0.25)]
        assert [one.likely for one in read.entries] == likely
    read = decode_answers(b"a,b,kind,likely\nx,r,same,much\ny,r,same,2\n", "a.csv")
    assert all("likely must be" in bad.reason for bad in read.bad), read.bad
    assert len(read.bad) == 2
