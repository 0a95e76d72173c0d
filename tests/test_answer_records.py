"""Lines of a journal: what is written is read back, and what is wrong is said in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hmrf_dask.answers.records import Entry, Question
from hmrf_dask.errors import InvalidInputError

GOOD: dict[str, Any] = {"id": "1", "kind": "pair", "documents": ["x", "r"], "answer": "same"}


def line(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


@pytest.mark.parametrize(
    "entry",
    [
        Entry(
            "1", "pair", ("x", "r"), answer="unknown", annotator="bo", seconds=1.5, likely=(0.5,)
        ),
        Entry("2", "choice", ("x", "r"), ("q", "r"), "same", time="2026-01-02T03:04:05+00:00"),
        Entry("3", "choice", ("x",), ("q", "r"), "new", why="explore"),
        Entry("4", "undo", about="3"),
        Entry("5", "comment", answer="x\n\u2028 \u05d0", about="1", review=True),
        Entry("6", "name", ("r",), answer="sport"),
        Entry("7", "pair", ("x", "r"), (), "same", why="imported", trust=0.0),
    ],
)
def test_a_line_is_read_back_as_it_was_written(entry: Entry) -> None:
    written = entry.to_line()
    assert written.index(b"\n") == len(written) - 1
    assert Entry.from_line(written) == entry


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b'{"id": "1", "kind": "pair", "docum', "a line must be JSON"),
        (b"[1]", "a line must be a JSON object"),
        (b"[" * 100_000, "a line must be JSON"),
        (line(id=""), "id must be a text"),
        (line(kind="guess"), "kind must be one of"),
        (line(kind=3), "kind must be a text"),
        (line(documents=["x", "x"]), "two different documents"),
        (line(documents="xy"), "documents must be a list"),
        (line(documents=["x", 3]), "an id must be text"),
        (line(documents=["x", "a\0"]), "no NUL"),
        (line(answer="perhaps"), "the answer must be one of"),
        (line(answer=True), "answer must be a text"),
        (line(kind="choice", shown=["q"]), "must be one of those shown"),
        (line(kind="choice", shown=["x", "r"]), "must be about one document"),
        (line(kind="choice", answer="new", shown=["r"]), "must be about one document"),
        (line(kind="undo"), "must be about a line"),
        (line(kind="name"), "must be of one document"),
        (line(seconds=-1), "seconds must be"),
        (line(seconds=True), "seconds must be"),
        (line(likely=[2]), "likely must be"),
        (line(likely=["a"]), "likely must be"),
        (line(time="noon"), "time must be"),
        (line(review="yes"), "review must be"),
        (line(trust=2), "trust must be"),
    ],
)
def test_a_wrong_line_is_explained(bad: bytes, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        Entry.from_line(bad)


def test_columns_of_later_versions_are_left_out() -> None:
    assert Entry.from_line(line(mood="good")).answer == "same"


def test_a_question_is_called_the_same_whatever_is_believed() -> None:
    one = Question("choice", ("x",), ("q", "r"), (0.5, 0.25))
    assert one.id == Question("choice", ("x",), ("r", "q"), (0.9, 0.05), why="control").id
    assert one.id != Question("choice", ("y",), ("q", "r")).id
    assert Question("pair", ("x", "y")).id != Question("pair", ("y", "x")).id
