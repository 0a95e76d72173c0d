"""The answers of a report: the worst that are broken, those in doubt, those left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.jobs.places import REJECTS, SUSPECTS
from hmrf_dask.jobs.report_subject import Subject, counts_of
from hmrf_dask.report.content import AnswerPart, Broken, Doubtful, Text
from hmrf_dask.report.survey import Survey
from hmrf_dask.storage.whole_files import decode_parquet

MOST_BROKEN: Final = 20
MOST_DOUBTFUL: Final = 50


class BrokenPair(NamedTuple):
    """A broken answer, by the places of its documents in the survey's table of such."""

    kind: str
    first: int
    second: int
    firmness: float


def broken_pairs(subject: Subject, whole: Survey) -> list[BrokenPair]:
    """Return the worst broken answers: whose documents lie most firmly where they are."""
    data = subject.pairs()
    if not data or not whole.breaking.num_rows:
        return []
    ids = whole.breaking["doc_id"].combine_chunks()
    clusters = whole.breaking["cluster"].to_numpy()
    margins = np.nan_to_num(whole.breaking["margin"].cast(pa.float64()).fill_null(0).to_numpy())
    pairs = decode_parquet(data, ["a", "b", "kind"])
    first, second = (pc.index_in(pairs[end].cast(pa.string()), value_set=ids) for end in "ab")
    there = pc.and_(pc.is_valid(first), pc.is_valid(second))
    ends = [end.filter(there).to_numpy() for end in (first, second)]
    must = pc.equal(pairs["kind"].filter(there), "must").to_numpy(zero_copy_only=False)
    broken = np.flatnonzero((clusters[ends[0]] != clusters[ends[1]]) == must)
    firmness = margins[ends[0]] + margins[ends[1]]
    order = broken[np.lexsort((broken, -firmness[broken]))][:MOST_BROKEN]
    return [
        BrokenPair(
            "must" if must[at] else "cannot",
            int(ends[0][at]),
            int(ends[1][at]),
            float(firmness[at]),
        )
        for at in order.tolist()
    ]


def answers_of(subject: Subject, pairs: list[BrokenPair], documents: list[Text]) -> AnswerPart:
    """Return the part about answers; `documents` are those of the survey with broken ones."""
    broken = tuple(
        Broken(kind, documents[first], documents[second], firmness)
        for kind, first, second, firmness in pairs
    )
    return AnswerPart(
        counts=counts_of(subject, "answers"),
        broken=broken,
        doubtful=(subject.attempt("Answers in doubt", lambda: tuple(_suspects(subject))) or ()),
        left_out=(subject.attempt("Answers left out", lambda: tuple(_left_out(subject))) or ()),
    )


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
