"""What answers look like before any run: read as a run reads them, nothing stops at the first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hmrf_dask.constraints.files import PairLines, parse_lines
from hmrf_dask.documents.sources import Source
from hmrf_dask.errors import ConflictError, InvalidInputError, counted
from hmrf_dask.jobs.inputs import read_answer_file
from hmrf_dask.jobs.job_answers import (
    NOTHING_GIVEN,
    Given,
    put_together,
    refuse_contradictions,
    refused,
)

SHOWN = 5


@dataclass
class AnswerFindings:
    """The answers: how many, about how many documents, and how many of these were found."""

    files: int
    must_links: int
    cannot_links: int
    documents: int
    documents_found: int
    not_found: list[str]
    bad_lines: int = 0


def survey_answers(
    sources: Iterable[Source], problems: list[str], *, contradictions: bool = True
) -> tuple[Given, int]:
    """Return the answers of files and how many files could be read.

    Parameters
    ----------
    sources : iterable of Source
    problems : list of str
        Takes what would stop a run: files that cannot be read, bad lines, contradictions.
    contradictions : bool
        Whether the method stops at contradictions.
    """
    read: list[tuple[str, PairLines]] = []
    given = NOTHING_GIVEN
    for source in sources:
        try:
            file = read_answer_file(source)
            read.append((file.path, parse_lines(file.data, file.path)))
        except InvalidInputError as error:
            problems.append(str(error))
    try:
        given = put_together(read)
        if given.rejects:
            problems.append(str(refused(given.rejects)))
        if contradictions:
            refuse_contradictions(given, certain=True)
    except ConflictError as error:
        problems.append(str(error))
    except InvalidInputError as error:  # more classes than anybody has
        problems.append(str(error))
    return given, len(read)


def answer_findings(given: Given, n_files: int, missing: list[str]) -> AnswerFindings:
    """Return what is reported of answers; `missing` are the documents that were not found."""
    pairs = given.with_classes().constraints()
    n_documents = len(set(given.named()))
    return AnswerFindings(
        n_files,
        0 if pairs is None else len(pairs.must_nodes),
        0 if pairs is None else len(pairs.cannot_nodes),
        n_documents,
        n_documents - len(missing),
        missing[:SHOWN],
        len(given.rejects),
    )


def problem_of_missing(missing: list[str]) -> str:
    """Return what a run says of documents that are not there."""
    shown = ", ".join(map(repr, missing[:SHOWN])) + (", …" if len(missing) > SHOWN else "")
    return (
        f"answers must name documents that are there, got {counted(len(missing), 'other')}: "
        f"{shown}; a run lets answers about documents of its former releases wait, others stop it"
    )
