"""Known classes of documents as answers, and the methods whose seeds answers are."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.constraints.answer_files import parse_lines, parse_pairs
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.jobs.places import assignment_files
from tests.support.job_corpus import JobCorpus

LABELLED = [("d1", "x"), ("d2", "y"), ("d3", "x"), ("d4", ""), ("d5", "z"), ("d6", "x")]
TOGETHER = [["d1", "d3"], ["d3", "d6"]]
APART = [["d1", "d2"], ["d1", "d5"], ["d2", "d5"]]


def encoded(ending: str) -> bytes:
    if ending == "csv":
        return "".join(f"{one},{label}\n" for one, label in [("id", "label"), *LABELLED]).encode()
    rows = [{"id": one, "label": label or None} for one, label in LABELLED]
    if ending == "jsonl":
        return "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_classes_are_as_few_pairs_as_determine_them(ending: str) -> None:
    pairs = parse_pairs(encoded(ending), f"classes.{ending}")
    certain = {"must_link_trust": [1.0] * len(TOGETHER), "cannot_link_trust": [1.0] * len(APART)}
    assert pairs.fingerprint == Constraints(TOGETHER, APART, **certain, ids=True).fingerprint


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("d1,y", "line 8: a document must have one class, got 'y' here and 'x' in line 2"),
        (",y", "line 8: id must be a text or a whole number, got ''"),
    ],
)
def test_lines_that_name_no_class(line: str, message: str) -> None:
    data = encoded("csv") + f"{line}\n".encode()
    with pytest.raises(InvalidInputError, match=rf"^classes\.csv, {message}"):
        parse_pairs(data, "classes.csv")
    lines = parse_lines(data, "classes.csv")
    assert ([bad.line for bad in lines.bad], len(lines.labels)) == ([8], 5)


def test_classes_that_are_no_labels() -> None:
    with pytest.raises(InvalidInputError, match=r"line 1: label must be a text .* got \[1\]"):
        parse_pairs(b'{"id": "a", "label": [1]}\n', "classes.jsonl")


def classes_of(*rows: object) -> list[tuple[str, str]]:
    data = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    lines = parse_lines(data, "classes.jsonl")
    assert lines.bad == []
    return [(one.document, one.label) for one in lines.labels]


def test_classes_are_what_people_mean() -> None:
    labels = [1, 1.0, "1", "1.0", -2.0, 1.5, "1.50", float("nan"), None, "", "v1.0"]
    rows = [{"id": number, "label": label} for number, label in enumerate(labels)]
    message = ["1", "1", "1", "1", "-2", "1.5", "1.50", "v1.0"]
    numbers = [*map(str, range(7)), "10"]
    assert classes_of(*rows) == list(zip(numbers, message, strict=True))
    assert classes_of({"id": 5, "label": "x"}, {"id": "5", "label": "x"}) == [("5", "x")]
    with pytest.raises(InvalidInputError, match="line 1: label must be a text or a number, got T"):
        parse_pairs(b'{"id": "a", "label": true}\n', "classes.jsonl")


def test_gaps_of_parquet_columns_are_no_class() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": ["a", "b", "c"], "label": [1.0, float("nan"), 2.0]}), sink)
    pairs = parse_pairs(bytes(sink.getvalue().to_pybytes()), "classes.parquet")
    assert (pairs.cannot_link.tolist(), len(pairs)) == ([["a", "c"]], 1)


@pytest.mark.parametrize("swapped", [False, True])
def test_more_classes_than_anybody_has_are_refused(swapped: bool) -> None:
    rows = [(f"x{number % 3}" if swapped else number, f"d{number}") for number in range(501)]
    data = "".join(f"{one},{label}\n" for one, label in [("id", "label"), *rows]).encode()
    words = r"^classes\.csv: .* at most 500 .* got 501 different .* id and label swapped\?"
    for parse in (parse_lines, parse_pairs):
        with pytest.raises(InvalidInputError, match=words):
            parse(data, "classes.csv")


def test_ids_are_read_as_they_stand() -> None:
    big = 2**63
    row = {"a": big, "b": 5, "kind": "must"}
    data = f"{json.dumps(row)}\n{json.dumps(row | {'a': big + 1})}\n".encode()
    lines = parse_lines(data, "pairs.jsonl")
    assert lines.pairs.tolist() == [[str(big), "5"], [str(big + 1), "5"]]
    bad = [{"a": 5, "b": "5"}, {"a": "d\0", "b": "d"}, {"a": "x" * 5000, "b": "y"}]
    data = "".join(f"{json.dumps(one | {'kind': 'must'})}\n" for one in bad).encode()
    reasons = [one.reason for one in parse_lines(data, "pairs.jsonl").bad]
    assert [reason[:20] for reason in reasons] == [
        "a and b must be two ",
        "an id must have no N",
        "an id must have at m",
    ]
    assert all(len(reason) < 100 for reason in reasons)


def run(job: Path) -> Result:
    return CliRunner().invoke(hmrf, ["run", str(job), "--json", "--quiet"])


@pytest.mark.parametrize("name", ["SeededKMeans", "ConstrainedKMeans"])
def test_answers_are_the_seeds(name: str, tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    corpus.write_all()
    # One class on purpose is not that of the texts: held seeds keep it, others do not.
    seeds = {one["id"]: one["label"] for one in corpus.documents[:30]}
    odd = corpus.documents[30]["id"]
    seeds[odd] = next(label for label in seeds.values() if label != corpus.documents[30]["label"])
    lines = [f"{one},{label}" for one, label in seeds.items()]
    corpus.write({"answers.csv": "\n".join(["id,label", *lines]).encode()})
    job = corpus.write_job(method={"name": name, "n_clusters": 3, "refine": False})
    result = run(job)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["answers"]["pairs"] == {"must": 28, "cannot": 3}
    tables = [pq.read_table(file.path) for file in assignment_files(report["output"])]
    found = pa.concat_tables(tables).to_pydict()
    clusters = dict(zip(found["doc_id"], found["cluster"], strict=True))
    of_class = {label: clusters[one] for one, label in seeds.items() if one != odd}
    assert len(set(of_class.values())) == 3
    assert all(clusters[one] == of_class[label] for one, label in seeds.items() if one != odd)
    assert (clusters[odd] == of_class[seeds[odd]]) == (name == "ConstrainedKMeans")

    corpus.write(corpus.files(corpus.draw(20), first=50))
    again = json.loads(run(job).stdout)
    assert (again["start"], again["documents"]["vectorised"]) == ("cold", 20)
    assert again["clusters"]["kept"] == 3


def test_seeds_must_be_there(tmp_path: Path) -> None:
    job = JobCorpus(tmp_path).write_all(30, 0, method={"name": "SeededKMeans", "n_clusters": 3})
    result = run(job)
    assert result.exit_code == 65
    assert "SeededKMeans must have answers" in result.stderr


def test_answers_of_a_method_that_takes_none_are_warned_of(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    corpus.write_all()
    first, second = (document["id"] for document in corpus.documents[:2])
    corpus.write({"answers.csv": f"a,b,kind\n{first},{second},cannot\n".encode()})
    job = corpus.write_job(method={"name": "KMeans", "n_clusters": 3})
    result = run(job)
    assert result.exit_code == 0, result.output
    (warning,) = json.loads(result.stdout)["warnings"]
    assert warning.startswith("KMeans takes no pairs: the 1 answers change nothing")
