"""Answers of a job: what is wrong with them is said before documents are read, with its line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hmrf_dask.errors import ConflictError, HmrfWarning, InvalidInputError
from hmrf_dask.jobs.check import check_file
from hmrf_dask.jobs.places import Report
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import run

HEADER = b"a,b,kind,weight\n"
REFUSING = {"n_clusters": 3, "n_init": 1, "on_conflict": "raise"}
ONE = "space/0000", "space/0003", "space/0006", "motor/0001"


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    return JobCorpus(tmp_path)


def rows(*pairs: str) -> bytes:
    return HEADER + "".join(f"{pair}\n" for pair in pairs).encode()


def rejects(report: Report) -> list[dict[str, Any]]:
    path = Path(report.output) / report.places["rejects"] / "answers.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


FILES: dict[str, tuple[bytes, str]] = {
    "another header": (b"x,y\n1,2\n", "answers.csv, line 1: the columns must be a, b, kind"),
    "no header": (b"a\n", "answers.csv, line 1: the columns must be .* got a; give the file"),
    "one document": (rows("a,b,must,", "5,5,must,"), "answers.csv, line 3: a and b must be two"),
    "other bytes": (HEADER
                    + b"\xff\xfe,b,must,\n", "answers.csv, line 2: must be UTF-8 text"),
    "another kind": (rows("a,b,sane,"), "answers.csv, line 2: kind must be .*got 'sane'"),
    "a document twice": (rows("a,a,must,"), "line 2: a and b must be two different documents"),
    "too few fields": (rows("a,b"), "line 2: must have 4 fields .* got 2"),
    "a weight below 0": (rows("a,b,must,-1"), "line 2: weight must be 0, or from 1e-12 to 1e"),
    "two weights": (
        rows("a,b,must,1", "c,d,must,", "b,a,must,2"),
        "line 4: a pair must have one weight, got 2 here and 1 in answers.csv, line 2",
    ),
    "several": (
        rows("a,b,sane,", "c,d,must,1", "e,,must,"),
        "answers.csv, line 2: kind must .*; answers.csv, line 4: a and b must name two",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("what", FILES)
def test_bad_answers_stop_before_a_document_is_read(what: str, corpus: JobCorpus) -> None:
    job = corpus.write_all(20, 0)
    data, words = FILES[what]
    corpus.write({"answers.csv": data})
    with pytest.raises(InvalidInputError, match=words) as caught:
        run(job)
    assert caught.value.exit_code == 65
    assert list((corpus.folder / "out" / "runs").iterdir()) == []


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("name", ["answers.parquet", "answers.jsonl"])
def test_files_that_cannot_be_read_stop_too(name: str, corpus: JobCorpus) -> None:
    job = corpus.write_all(20, 0, answers=[name], on_bad_record="quarantine")
    if name == "answers.parquet":
        corpus.write({name: b"PAR1 and so on"})
        with pytest.raises(InvalidInputError, match=r"answers\.parquet: is not a whole Parquet"):
            run(job)
    else:
        corpus.write({name: b'{"a": [1], "b": "x", "kind": "must"}\n{"a": \n'})
        with pytest.raises(
            InvalidInputError,
            match=r"line 1: a and b must be ids.*line 2: not JSON: .* \(column 7\)",
        ):
            run(job, on_bad_record="stop")


@pytest.mark.usefixtures("unread")
def test_contradictions_are_reported_with_their_lines(corpus: JobCorpus) -> None:
    job = corpus.write_all(20, 0, method=REFUSING)
    a, b, c, d = ONE
    corpus.write({"answers.csv": rows(f"{a},{b},must,", f"{a},{d},cannot,", f"{c},{b},must,")})
    corpus.write({"more.csv": rows(f"{c},{a},cannot,")})
    words = re.escape("answers.csv, lines 2, 4; more.csv, lines 2: must-links and cannot-links")
    with pytest.raises(ConflictError, match=words):
        run(job, answers=["more.csv"])
    with (
        pytest.warns(HmrfWarning, match="the fit will stop unless .*answers.csv, lines 2"),
        pytest.raises(AssertionError, match="a document was read"),
    ):
        run(job, answers=["more.csv"], on_bad_record="quarantine")


@pytest.mark.usefixtures("unread")
def test_contradictions_are_warned_of_with_their_lines(corpus: JobCorpus) -> None:
    job = corpus.write_all(20, 0, method={"n_clusters": 3, "n_init": 1})
    a, b, c, _ = ONE
    corpus.write({"answers.csv": rows(f"{a},{b},must,", f"{c},{b},must,")})
    corpus.write({"more.csv": rows(f"{c},{a},cannot,")})
    words = "contradict 1 cannot-link, kept as pairs that may be broken: answers.csv, lines 2, 3; "
    chain = f"more.csv, lines 2: {a!r} = {b!r} = {c!r} but {a!r} ≠ {c!r}"
    with (
        pytest.warns(HmrfWarning, match=re.escape(words + chain)),
        pytest.raises(AssertionError, match="a document was read"),
    ):
        run(job, answers=["more.csv"])


def test_contradictions_are_warned_of_once(corpus: JobCorpus) -> None:
    job = corpus.write_all(20, 0, method={"n_clusters": 3, "n_init": 1})
    a, b, *_ = ONE
    corpus.write({"answers.csv": rows(f"{a},{b},must,", f"{b},{a},cannot,")})
    with pytest.warns(HmrfWarning, match="contradict") as warned:
        report = run(job)
    assert report.status == "done"
    assert sum("contradict" in str(one.message) for one in warned) == 1


def test_annotators_have_the_trust_that_the_job_gives_them(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 0, annotators={"anna": 0.9, "eve": 0.1})
    a, b, c, d = ONE
    header = b"a,b,kind,annotator,trust\n"
    lines = f"{a},{b},same,anna,\n{a},{c},different,eve,\n{b},{d},different,anna,0.7\n"
    corpus.write({"answers.csv": header + lines.encode()})
    report = run(job)
    (path,) = (Path(report.output) / "runs").glob("*/answers.parquet")
    used = {(one["a"], one["b"]): one["trust"] for one in pq.read_table(path).to_pylist()}
    assert used == {(a, b): 0.9, (a, c): 0.1, (d, b): 0.7}
    assert sum(report.answers["violated"].values()) == 1  # eve's, which is turned round


VOTES = f"a,b,kind,annotator\n{ONE[0]},{ONE[1]},same,anna\n{ONE[0]},{ONE[1]},same,bob\n".encode()


@pytest.mark.parametrize("penalty", ["potts", "distance"])
def test_votes_stop_no_job_whose_pairs_are_equally_likely(penalty: str, corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 0, method={"n_clusters": 3, "n_init": 1, "penalty": penalty})
    corpus.write({"answers.csv": VOTES})
    words = f"penalty '{penalty}' takes all pairs as equally likely: their trust changes nothing"
    with pytest.warns(HmrfWarning, match=words):
        assert run(job).status == "done"


def test_annotators_whom_no_answer_names_are_warned_of(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 0, annotators={"anna": 0.9, "bobb": 0.7})
    corpus.write({"answers.csv": VOTES})
    words = re.escape("annotators must be names in the column annotator, got 'bobb', which no ")
    with pytest.warns(HmrfWarning, match=words + r"answer has \(did you mean 'bob'\?\)"):
        assert run(job).status == "done"
    (found,) = [text for text in check_file(str(job)).remarks if "annotators" in text]
    assert "'bobb'" in found


def test_annotators_that_only_contradict_each_other_end_in_a_release(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 0)
    ids = [document["id"] for document in corpus.documents]
    both = [
        f"{a},{b},{kind},{who}\n"
        for a, b in zip(ids[::2], ids[1::2], strict=True)
        for kind, who in (("same", "anna"), ("different", "bob"))
    ]
    corpus.write({"answers.csv": b"a,b,kind,annotator\n" + "".join(both).encode()})
    with pytest.warns(HmrfWarning, match=r"must-links contradict 30 cannot-links, kept .* in all"):
        assert run(job).status == "done"


def test_suspect_answers_are_listed_with_their_lines(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 30)
    wrong = f"{ONE[0]},{ONE[3]},must"
    corpus.write({"more.csv": f"a,b,kind\n{wrong}\n".encode()})
    report = run(job, answers=["more.csv"])
    path = Path(report.output) / report.places["suspects"]
    (suspect,) = map(json.loads, path.read_text().splitlines())
    a, b = sorted((ONE[0], ONE[3]))
    assert suspect.pop("probability") < 0.5
    assert suspect == {"a": a, "b": b, "kind": "must", "source": "more.csv", "line": 2}
    assert report.answers["suspect"] == 1
    corpus.write(corpus.files(corpus.draw(20), first=3))
    predicted = run(job, answers=["more.csv"], mode="predict")
    assert predicted.places["suspects"] == report.places["suspects"]
    assert predicted.answers["suspect"] == 1


def test_contradictions_that_may_be_lived_with_stop_nothing(corpus: JobCorpus) -> None:
    job = corpus.write_all(20, 0, method={"n_clusters": 3, "n_init": 1, "on_conflict": "drop"})
    a, b, *_ = ONE
    corpus.write({"answers.csv": rows(f"{a},{b},must,", f"{b},{a},cannot,")})
    with pytest.warns(HmrfWarning, match="contradict"):
        assert run(job).status == "done"


def test_bad_lines_are_quarantined_with_file_and_line(corpus: JobCorpus) -> None:
    job = corpus.write_all(40, 0, on_bad_record="quarantine", max_rejected=0.8)
    a, b, _, d = ONE
    lines = [f"{a},{b},must,", f"{a},{d},differs,", "nobody,noone,must,", f'"{a}" x,b,must,', "a,b"]
    again = [f"{b},{a},must,3", f"{a},{d},cannot,2"]
    corpus.write({"answers.csv": rows(*lines, *again)})
    with pytest.warns(HmrfWarning, match=r"^quarantined: 5 answers, listed .*/rejects$"):
        report = run(job)
    answers = report.answers
    assert sum(answers["pairs"].values()) == 2
    assert (answers["unknown"], answers["quarantined"]) == (1, 5)
    rejected = rejects(report)
    assert [(one["source"], one["line"]) for one in rejected] == [
        ("answers.csv", line) for line in (3, 5, 6, 7, 4)
    ]
    assert "unknown 'nobody', 'noone'" in rejected[-1]["reason"]
    assert rejected[-1]["raw"] == "noone,nobody,must" or rejected[-1]["raw"] == "nobody,noone,must"
    assert "one weight, got 3 here and none in answers.csv, line 2" in rejected[3]["reason"]
    assert report.documents["quarantined"] == 0


@pytest.mark.parametrize("on_bad_record", ["stop", "quarantine"])
def test_files_without_answers_yet_stop_nothing(on_bad_record: str, corpus: JobCorpus) -> None:
    job = corpus.write_all(
        20, 0, on_bad_record=on_bad_record, method={"n_clusters": 3, "n_init": 1}
    )
    assert run(job).answers["pairs"] == {"must": 0, "cannot": 0}
    corpus.write({"answers.csv": b""})
    with pytest.warns(HmrfWarning, match=r"answers\.csv is empty: it has no answers yet"):
        assert run(job).status == "done"


def labelled(*rows: str) -> bytes:
    return "".join(f"{row}\n" for row in ("id,label", *rows)).encode()


def pairs_of(report: Report) -> list[tuple[Any, ...]]:
    (name,) = (Path(report.output) / "runs").glob(f"{report.run}/**/answers*.parquet")
    rows = pq.read_table(name).to_pydict()
    return sorted(zip(rows["a"], rows["b"], rows["kind"], strict=True))


def test_classes_hold_where_documents_are_gone(corpus: JobCorpus) -> None:
    job = corpus.write_all(40, 0, on_bad_record="quarantine", max_rejected=0.5)
    a, b, c, d = ONE
    rows = ["gone/1,space", f"{a},space", "gone/2,space", f"{b},space", "gone/3,motor"]
    corpus.write({"answers.csv": labelled(*rows, f"{d},motor", f"{c},space")})
    with pytest.warns(HmrfWarning, match="quarantined: 3 answers"):
        report = run(job)
    assert pairs_of(report) == [(d, a, "cannot"), (a, b, "must"), (b, c, "must")]
    assert (report.answers["unknown"], report.answers["quarantined"]) == (3, 3)

    rejected = [(one["line"], one["reason"].split()[-1], one["raw"]) for one in rejects(report)]
    assert rejected == [
        (2, "'gone/1'", "gone/1,space"),
        (4, "'gone/2'", "gone/2,space"),
        (6, "'gone/3'", "gone/3,motor"),
    ]
    words = r"answers\.csv, line 2: .* unknown 'gone/1'; answers\.csv, line 4: .*'gone/2'; .*line 6"
    with pytest.raises(InvalidInputError, match=words) as caught:
        run(job, on_bad_record="stop")
    assert "line 3" not in str(caught.value)


def test_a_class_is_one_in_all_files(corpus: JobCorpus) -> None:
    job = corpus.write_all(
        40, 0, on_bad_record="quarantine", max_rejected=0.5, answers=["more.csv", "pairs.csv"]
    )

    a, b, c, d = ONE
    corpus.write({"answers.csv": labelled(f"{a},1", f"{d},2")})
    corpus.write({"more.csv": labelled(f"{a},2", f"{b},1.0", f"{d},2", f"{c},")})
    corpus.write({"pairs.csv": HEADER + f"{b},{a},must,2\n".encode()})
    with pytest.warns(HmrfWarning, match="quarantined: 1 answer, "):
        report = run(job)
    assert pairs_of(report) == [(d, a, "cannot"), (a, b, "must")]
    (rejected,) = rejects(report)
    assert (rejected["source"].split("/")[-1], rejected["line"]) == ("more.csv", 2)
    assert rejected["reason"] == (
        "a document must have one class, got '2' here and '1' in answers.csv, line 2"
    )
    with pytest.raises(InvalidInputError, match=r"more\.csv, line 2: .* in answers\.csv, line 2"):
        run(job, on_bad_record="stop")
    half = [[f"{number},c{number + first}" for number in range(300)] for first in (0, 300)]
    corpus.write({"answers.csv": labelled(*half[0]), "more.csv": labelled(*half[1])})
    with pytest.raises(InvalidInputError, match=r"answers\.csv, .*more\.csv: .* got 600 different"):
        run(job)


def test_contradicted_classes_are_reported_with_their_lines(corpus: JobCorpus) -> None:
    job = corpus.write_all(20, 0, answers=["more.csv"], method=REFUSING)
    a, b, *_ = ONE
    corpus.write({"answers.csv": labelled(f"{a},space", f"{b},space")})
    corpus.write({"more.csv": rows(f"{b},{a},cannot,")})
    with pytest.raises(ConflictError, match=r"answers\.csv, lines 3; .*more\.csv, lines 2: must"):
        run(job)


def test_ids_that_are_numbers_are_those_of_documents(corpus: JobCorpus) -> None:
    corpus.draw(20)
    for number, one in enumerate(corpus.documents):
        one["id"] = str(number)
    corpus.write(corpus.files(corpus.documents))
    corpus.write({"answers.csv": rows("0,3,must,")})
    mixed = '{"a": 1, "b": "2", "kind": "cannot"}\n'
    corpus.write({"more.jsonl": mixed.encode()})
    table = pa.table({"a": [4], "b": [5], "kind": ["cannot"]})
    pq.write_table(table, corpus.folder / "more.parquet")
    job = corpus.write_job(answers=["more.jsonl", "more.parquet"])
    assert sum(run(job).answers["pairs"].values()) == 3


@pytest.mark.parametrize("text", [None, {"kind": "embeddings"}])
def test_more_clusters_than_documents_stops_before_rows(
    text: Any, corpus: JobCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weighed(*_: Any) -> None:
        raise AssertionError("rows were made")

    monkeypatch.setattr("hmrf_dask.jobs.prepare.weigh_documents", weighed)
    columns = None
    if text:
        columns = {"text": None, "embedding": "vector"}
        for number, one in enumerate(corpus.draw(20)):
            one["vector"] = [1.0, float(number)]
        corpus.write(corpus.files(corpus.documents))
        corpus.write({"answers.csv": rows()})
        job = corpus.write_job(text=text, columns=columns, method={"n_clusters": 21})
    else:
        job = corpus.write_all(20, 0, method={"n_clusters": 21})
    with pytest.raises(InvalidInputError, match=r"n_clusters must .* got 21 for 20 documents"):
        run(job)


def test_the_hash_of_answers_is_checked(corpus: JobCorpus) -> None:
    job = corpus.write_all(20, 3)
    manifest = corpus.folder / "manifest.yaml"
    text = manifest.read_text()
    manifest.write_text(
        text.replace("path: answers.csv", f"path: answers.csv\n  hash: md5:{'0' * 32}")
    )
    with pytest.raises(InvalidInputError, match=r"answers\.csv: must have the hash that"):
        run(job)


def test_prediction_reports_answers_that_wait(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 10)
    before = (corpus.folder / "answers.csv").read_bytes()
    run(job)
    corpus.write(corpus.files(corpus.draw(20), first=50))
    assert run(job, mode="predict").answers["unused"] == 0
    corpus.write({"answers.csv": before + b"space/0000,motor/0001,cannot\nbad line\n"})
    with (
        pytest.warns(HmrfWarning, match="predict uses no answers: 1 answer that the last fit"),
        pytest.warns(HmrfWarning, match=r"the next fit will stop: answers\.csv, line 13: must"),
        pytest.warns(HmrfWarning, match="quarantined: 1 answer, "),
    ):
        report = run(job, mode="predict")
    assert (report.answers["unused"], report.answers["quarantined"]) == (1, 1)
    assert report.answers["pairs"] == {"must": 0, "cannot": 0}
    assert [one["line"] for one in rejects(report)] == [13]
    corpus.write({"answers.csv": b"x\n"})
    with pytest.warns(HmrfWarning, match="the next fit will stop: answers.csv, line 1"):
        assert run(job, mode="predict").status == "done"


def test_classes_wait_for_the_next_fit_by_document(corpus: JobCorpus) -> None:
    job = corpus.write_all(60, 0)
    a, b, c, d = ONE
    corpus.write({"answers.csv": labelled(f"{a},space", f"{b},space", f"{d},motor")})
    run(job)
    corpus.write(corpus.files(corpus.draw(20), first=50))
    assert run(job, mode="predict").answers["unused"] == 0
    more = labelled(f"{a},space", f"{c},space", f"{b},space", f"{d},motor")
    corpus.write({"answers.csv": more})
    with pytest.warns(HmrfWarning, match="predict uses no answers: 1 answer that the last fit"):
        assert run(job, mode="predict").answers["unused"] == 1
