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
    refuses_contradictions,
)
from hmrf_dask.jobs.job_file import Job
from hmrf_dask.jobs.rejected import is_too_much

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
    sources: Iterable[Source], problems: list[str], job: Job | None = None
) -> tuple[Given, int]:
    """Return the answers of files and how many files could be read.

    Parameters
    ----------
    sources : iterable of Source
    problems : list of str
        Takes what would stop a run: files that cannot be read, bad lines, contradictions.
    job : Job, optional
        What stops it; without one, what stops a job that does not say.
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
        if given.rejects and not leaves_out(job, len(given.rejects), given.n_answers):
            problems.append(str(refused(given.rejects)))
        if job is None or refuses_contradictions(job.method):
            refuse_contradictions(given, certain=True)
    except ConflictError as error:
        problems.append(str(error))
    except InvalidInputError as error:  # more classes than anybody has
        problems.append(str(error))
    return given, len(read)


def leaves_out(job: Job | None, n_bad: int, n_all: int) -> bool:
    """Return whether a job quarantines what is bad, as it is no more than it allows."""
    return (
        job is not None and job.on_bad_record == "quarantine" and not is_too_much(job, n_bad, n_all)
    )


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
