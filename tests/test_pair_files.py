"""Files of pairs: what is read from them, and lines and files that are bad."""

from __future__ import annotations

import csv
import errno
import io
import itertools
import json
import os
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given

from hmrf_dask.constraints.answer_files import parse_lines, parse_pairs
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.errors import HmrfWarning, InvalidInputError

IDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@st.composite
def constraints(draw: st.DrawFn) -> Constraints:
    ids = draw(st.one_of(st.just(st.integers(-(2**62), 2**62)), st.just(IDS)))
    documents = draw(st.lists(ids, min_size=2, max_size=6, unique=True))
    pairs = list(itertools.combinations(documents, 2))
    lists = [draw(st.lists(st.sampled_from(pairs), unique=True, max_size=5)) for _ in range(2)]
    values = {
        f"{kind}_link_{name}": [draw(st.sampled_from([*some, float("nan")])) for _ in pairs]
        for kind, pairs in zip(("must", "cannot"), lists, strict=True)
        for name, some in (("costs", [0.0, 0.1, 2.5]), ("trust", [0.0, 0.1, 1.0]))
    }
    return Constraints(*lists, **values, ids=True)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@given(pairs=constraints())
def test_files_give_back_what_was_written(
    pairs: Constraints, ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assume(len(pairs) or ending != "jsonl")  # a file without a byte is one that has none yet
    path = tmp_path_factory.mktemp("pairs") / f"pairs.{ending}"
    pairs.to_file(path)
    again = Constraints.from_file(path)
    # CSV has no types: text that is all digits comes back as integers, `as_text` undoes it
    assert again.as_text().fingerprint == pairs.as_text().fingerprint
    if ending == "parquet" and len(pairs):
        assert again.fingerprint == pairs.fingerprint
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pairs.csv"
    Constraints([(0, 1)]).to_file(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="cannot write it: no space left"):
        Constraints([(0, 2)]).to_file(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_csv_numbers_stay_text_unless_written_as_python_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("kind, a,b\nmust,007,8\n\ncannot,8,9\n", encoding="utf-8-sig")
    assert Constraints.from_file(path).must_link.tolist() == [["007", "8"]]
    path.write_text("a,b,kind,weight\n7,8,must,\n8,-9,cannot,.5\n")
    pairs = Constraints.from_file(path)
    assert pairs.by_id
    assert pairs.must_link.tolist() == [[7, 8]]
    assert pairs.cannot_link_costs.tolist() == [0.5]
    assert not Constraints.from_file(path, ids=False).by_id


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_trust_is_read_and_annotators_that_agree_add_up(ending: str, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"a": "x", "b": "y", "kind": "must", "trust": 0.75, "annotator": "anna"},
        {"a": "y", "b": "x", "kind": "must", "trust": 0.75, "annotator": "bob"},
        {"a": "x", "b": "y", "kind": "must", "trust": 0.75, "annotator": "bob"},
        {"a": "x", "b": "z", "kind": "cannot", "trust": 0.6, "annotator": None},
        {"a": "y", "b": "z", "kind": "cannot", "trust": None, "annotator": None},
    ]
    path = tmp_path / f"pairs.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(lines), path)
    elif ending == "jsonl":
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)
    pairs = Constraints.from_file(path)
    assert pairs.must_link_trust.tolist() == pytest.approx([0.9])  # odds of 3, twice
    assert pairs.cannot_link_trust.tolist() == pytest.approx([0.6, float("nan")], nan_ok=True)


def test_one_file_may_not_give_a_pair_two_weights(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("a,b,kind,weight\nx,y,must,1\ny,x,must,2\n")
    with pytest.raises(InvalidInputError, match=r"pairs.csv: .*'x', 'y' \(1 and 2\)"):
        Constraints.from_file(path)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a\n", "line 1: the columns must be a, b, kind .* got a;"),
        ("a,b,kind\nx,d\0,must\n", r"line 2: an id must have no NUL character, got 'd\\x00'"),
        (f"a,b,kind\nx,{'y' * 4097},must\n", "line 2: an id must have at most 4,096 .* got 4,097"),
        ("a,b,kind,wieght\n", "line 1: the columns must be .* wieght"),
        ("a,b,knd\n", r"line 1: the columns must be .* got a, b, knd \(did you mean 'kind'\?\)"),
        ("A,b,kind,a\n", "line 1: each column must have a name of its own, got A, b, kind, a"),
        ("a,b,kind\nx,y\n", "line 2: must have 3 fields"),
        (
            "a,b,kind\nx,y,must\nx,z,maybe\n",
            r"line 3: kind must be must .* got 'maybe'",
        ),
        ("a,b,kind,trust\nx,y,must,2\n", "line 2: trust must be a number from 0 to 1, got '2'"),
        ("a,b,kind\n,y,must\n", "line 2: a and b must name two documents"),
        ('a,b,kind\n"x\ny",z,must\nq,q,must\n', "line 4: .* two different documents, got 'q'"),
        ('a,b,kind\n"x\ny","x\ny",must\n', "line 2: .* two different documents, got 'x"),
        ("a,b,kind,weight\nx,y,must,heavy\n", "line 2: weight must be a number, got 'heavy'"),
        ("a,b,kind,weight\nx,y,must,-1\n", "line 2: weight must be 0, or from 1e-12 to 1e.12"),
        ("a,b,kind,weight\nx,y,must,inf\n", "line 2: weight must be 0, or from"),
        ("a,b,kind,weight\nx,y,must,nan\n", "line 2: weight must be 0, or from"),
        ('a,b,kind\n"x,y,must\n', "line 2: not CSV: unexpected end of data, in lines 2 to 2"),
        ("a,b,kind\n" + "x,x,must\n" * 7, r"line 6: .*; … \(7 in all\)"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=rf"pairs\.csv, .*{error}"):
        Constraints.from_file(path)


MUST = ["must", "MUST", "must-link", "Must_Link", "mustlink", "same", "1", "1.0", "true", "Yes"]
CANNOT = ["cannot", " Cannot ", "cannot link", "different", "0", "0.0", "FALSE", "No"]


def kinds_file(folder: Path, ending: str, kinds: list[Any]) -> Path:
    """Write a pair for each kind, with notes, and return the path."""
    path = folder / f"pairs.{ending}"
    rows = [
        {"A": f"x{n}", " b": f"y{n}", "Kind": kind, "trust": 1, "page": "p"}
        for n, kind in enumerate(kinds)
    ]
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif ending == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        table = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(table))
    return path


@pytest.mark.parametrize(
    ("ending", "kinds"),
    [
        ("csv", [*MUST, *CANNOT]),
        ("jsonl", [True, 1, 1.0, *MUST, False, 0, 0.0, *CANNOT]),
        ("parquet", [*MUST, *CANNOT]),
        ("parquet", [True, False]),
        ("parquet", [1, 0]),
        ("parquet", [1.0, 0.0]),
    ],
)
def test_kinds_are_read_as_people_write_them(ending: str, kinds: list[Any], tmp_path: Path) -> None:
    pairs = Constraints.from_file(kinds_file(tmp_path, ending, kinds))
    first = next(n for n, kind in enumerate(kinds) if str(kind)[0].lower() in "c0f")
    assert sorted(pairs.must_link[:, 0]) == sorted(f"x{n}" for n in range(first))
    assert sorted(pairs.cannot_link[:, 0]) == sorted(f"x{n}" for n in range(first, len(kinds)))


@pytest.mark.parametrize("kind", [None, 2, -1, 0.5, float("nan"), "", "si", [1], {}])
def test_other_kinds_are_bad_lines(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"line 2: kind must be must \(must-link, same, 1"):
        Constraints.from_file(kinds_file(tmp_path, "jsonl", [1, kind]))


def test_other_columns_are_notes() -> None:
    head = "B,a,kind,Annotator,TRUST,time,comment,Sheet no\n"
    lines = [
        'y,x,same,anna,0.5,2024-05-01T10:00,"sure, yes",7',
        "y,z,1,,,,,",
        "y,v,0,bob,high,,,",
    ]
    found = parse_lines((head + "\n".join(lines)).encode(), "pairs.csv")
    notes = {"annotator": "anna", "trust": 0.5, "time": "2024-05-01T10:00", "comment": "sure, yes"}
    assert found.notes.tolist() == [{**notes, "Sheet no": "7"}, None]
    assert [(one.line, one.reason) for one in found.bad] == [
        (4, "trust must be a number from 0 to 1, got 'high'")
    ]
    rows = [
        {"id": "x", "label": "1", "trust": 1, "boxes": [1, float("nan")]},
        {"id": "y", "label": "1", "time": True},
        {"id": "z", "label": "1", "annotator": ["anna"]},
        {"a": "x", "b": "y", "kind": 1, "id": 17, "wieght": 3},
    ]
    found = parse_lines("\n".join(map(json.dumps, rows)).encode(), "pairs.jsonl")
    assert [one.notes for one in found.labels] == [{"trust": 1.0, "boxes": [1, "NaN"]}]
    assert [one.reason.split(",")[0] for one in found.bad[:2]] == [
        "time must be a text",
        "annotator must be a text or a whole number",
    ]
    assert "did you mean 'weight'?" in found.bad[2].reason
    found = parse_lines(b",a,b,kind,\n0,x,y,1,\n1,x,z,1,seen\n", "index.csv")
    assert found.notes.tolist() == [{"column 1": "0"}, {"column 1": "1", "column 5": "seen"}]


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_answers_of_any_spreadsheet(between: str) -> None:
    rows = [["a", "b", "kind", "comment"], ["007", "8", "TRUE", "1,5; yes"], [""] * 4]
    rows += [["8", "9", "0", ""]]
    sheet = io.StringIO(newline="")
    csv.writer(sheet, delimiter=between).writerows(rows)
    found = parse_lines(sheet.getvalue().encode("utf-8-sig"), "sheet.csv")
    assert (found.pairs.tolist(), found.bad) == ([["007", "8"], ["8", "9"]], [])
    assert (found.lines.tolist(), found.must.tolist()) == ([2, 4], [True, False])


def test_hostile_notes_and_names_are_bad_lines() -> None:
    nested = "[" * 900 + "]" * 900
    lines = [
        f'{{"a": "x", "b": "y", "kind": 1, "boxes": {nested}}}',
        '{"a": "x", "b": "\\ud800", "kind": 1}',
        '{"a": "x", "b": "y", "kind": 1, "trust": 1e400}',
        '{"a": "x", "b": "y", "kind": "%s"}' % ("yes" * 10**6),
        *(f'{{"name {number}": 1, "knd": 2}}' for number in range(300)),
    ]
    found = parse_lines("\n".join(lines).encode(), "pairs.jsonl")
    assert len(found.bad) + len(found.lines) == 304
    reasons = [one.reason for one in found.bad]
    assert "an id must be text that UTF-8 can write" in reasons[-303]
    assert reasons[-302] == "trust must be a number from 0 to 1, got inf"
    assert reasons[-301].startswith("kind must be must (")
    assert [("did you mean" in reason) for reason in reasons[-300::299]] == [True, False]


def test_timestamps_of_parquet_are_notes() -> None:
    sink = pa.BufferOutputStream()
    when = pa.array([1_700_000_000_000_000_001], pa.timestamp("ns"))
    pq.write_table(pa.table({"a": [1], "b": [2], "kind": [True], "time": when}), sink)
    (notes,) = parse_lines(sink.getvalue().to_pybytes(), "pairs.parquet").notes
    assert notes == {"time": "2023-11-14 22:13:20.000000001"}


@pytest.mark.parametrize("data", ["", "\ufeff", "\r\n"])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_empty_files_have_no_pairs_yet(tmp_path: Path, data: str, ending: str) -> None:
    path = tmp_path / f"pairs.{ending}"
    path.write_text(data)
    with pytest.warns(HmrfWarning, match=rf"pairs\.{ending} is empty: it has no answers yet"):
        assert len(Constraints.from_file(path)) == 0


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="there is no pair file"):
        Constraints.from_file(tmp_path / "none.csv")
    with pytest.raises(InvalidInputError, match=r"must be named \.csv, \.jsonl, \.parquet"):
        Constraints.from_file(tmp_path / "pairs.txt")
    (tmp_path / "latin.csv").write_bytes(b"a,b,kind\nx,y,must\n\xe4,z,must\n")
    with pytest.raises(InvalidInputError, match=r"latin.csv, line 3: must be UTF-8"):
        Constraints.from_file(tmp_path / "latin.csv")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(InvalidInputError, match="is not a whole Parquet file"):
        Constraints.from_file(tmp_path / "bad.parquet")
    (tmp_path / "words.csv").write_text("a,b,kind\n1,2,must\n1,two,must\n")
    with pytest.raises(InvalidInputError, match=r"line 3: .*row numbers, got '1', 'two'"):
        Constraints.from_file(tmp_path / "words.csv", ids=False)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
def test_votes_for_a_class_come_together_in_any_order(order: list[int]) -> None:
    lines = ["x,s,0.9,anna", "x,s,0.6,anna", "x,s,0.7,bob", "y,s,,"]
    text = "\n".join(["id,label,trust,annotator", *(lines[place] for place in order)])
    (trust,) = parse_pairs(text.encode(), "labels.csv").must_link_trust
    odds = 0.6 / 0.4 * 0.7 / 0.3
    assert trust == pytest.approx(odds / (1.0 + odds), rel=1e-5)
