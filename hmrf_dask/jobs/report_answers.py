"""The answers of a report: the worst that are broken, those in doubt, those left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from hmrf_dask.constraints.answer_files import parse_pairs
from hmrf_dask.jobs.places import ANSWERS, REJECTS, SUSPECTS
from hmrf_dask.jobs.report_subject import Subject, counts_of
from hmrf_dask.report.broken import BrokenPair, broken_shown, chains_in
from hmrf_dask.report.content import AnswerPart, Doubtful, Text

MOST_DOUBTFUL: Final = 50


def answers_of(subject: Subject, pairs: list[BrokenPair], documents: list[Text]) -> AnswerPart:
    """Return the part about answers; `documents` are those of the survey with broken ones."""
    found = subject.attempt("Contradictions", lambda: _chains(subject))
    n_contradictions, chains = found or (0, ())
    return AnswerPart(
        counts=counts_of(subject, "answers"),
        broken=broken_shown(pairs, documents),
        doubtful=(subject.attempt("Answers in doubt", lambda: tuple(_suspects(subject))) or ()),
        left_out=(subject.attempt("Answers left out", lambda: tuple(_left_out(subject))) or ()),
        n_contradictions=n_contradictions,
        chains=chains,
    )


def _chains(subject: Subject) -> tuple[int, tuple[tuple[str, ...], ...]]:
    data = subject.pairs()
    return chains_in(parse_pairs(data, ANSWERS)) if data else (0, ())


def _suspects(subject: Subject) -> Iterator[Doubtful]:
    for row in _lines(subject.file_of_release(SUSPECTS)):
        kind = "same" if row.get("kind") == "must" else "different"
        likely = row.get("trust", row.get("likely"))
        line = f"line {row['line']} of {str(row['source']).rpartition('/')[2]}"
        right = "" if likely is None else f"right with {float(likely):.0%}; "
        yield Doubtful(f"{row['a']} and {row['b']}: {kind}", f"{right}{line}")


def _left_out(subject: Subject) -> Iterator[Doubtful]:
    for row in _lines(subject.file_of_release(f"{REJECTS}/answers.jsonl")):
        line = f"line {row['line']} of {str(row['source']).rpartition('/')[2]}"
        yield Doubtful(str(row.get("raw") or row.get("id") or line), f"{row['reason']} ({line})")


def _lines(data: bytes) -> Iterator[Mapping[str, Any]]:
    for line in data.splitlines()[:MOST_DOUBTFUL]:
        yield json.loads(line)
