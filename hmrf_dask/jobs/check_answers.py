"""What answers look like before any run: read as a run reads them, nothing stops at the first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hmrf_dask.constraints.answer_files import PairLines, parse_lines
from hmrf_dask.documents.sources import Source
from hmrf_dask.errors import ConflictError, InvalidInputError, counted
from hmrf_dask.jobs.former import Documents, look_up
from hmrf_dask.jobs.inputs import read_answer_file
from hmrf_dask.jobs.job_answers import (
    NOTHING_GIVEN,
    Given,
    Split,
    put_together,
    refuse_contradictions,
    refused,
    refuses_contradictions,
    shown_unknown,
    split_answers,
    way_out,
)
from hmrf_dask.jobs.job_file import Job
from hmrf_dask.jobs.rejected import is_too_much
from hmrf_dask.releases import Release
from hmrf_dask.text.files import Place
from hmrf_dask.types import AnyArray, BoolArray

SHOWN = 5


@dataclass(frozen=True)
class NextRun:
    """The run that is asked about.

    Attributes
    ----------
    job : Job
    output : str
    last : Release or None
        What it goes on from.
    """

    job: Job
    output: str
    last: Release | None = None


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


def survey_answers(sources: Iterable[Source], problems: list[str]) -> tuple[Given, int]:
    """Return the answers of files and how many files could be read.

    Parameters
    ----------
    sources : iterable of Source
    problems : list of str
        Takes what stops a run: files that cannot be read.
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
    except InvalidInputError as error:  # more classes than anybody has
        problems.append(str(error))
    return given, len(read)


def judge_answers(
    given: Given, there: set[str] | None, run: NextRun | None
) -> tuple[list[str], list[str]]:
    """Return what of the answers would stop a run, and what is good to know of them.

    Parameters
    ----------
    given : Given
    there : set of str or None
        Which of the documents that are named are there, None where not all were read.
    run : NextRun, optional
        Without one, any run of a job that does not say.
    """
    problems, remarks = list[str](), list[str]()
    job = None if run is None else run.job
    split = None if there is None else split_answers(given, _look_up(given, there, run))
    rejects = given.rejects if split is None else split.rejects
    if rejects and not leaves_out(job, len(rejects), given.n_answers):
        problems.append(_refusal(given, split, job))
    elif rejects:
        remarks.append(f"{counted(len(rejects), 'answer')} will be left out (quarantine)")
    if split is not None and split.waiting:
        some = counted(len(split.waiting), "answer")
        remarks.append(f"{some} will wait for documents that only former releases had")
    if run is None or refuses_contradictions(run.job.method):
        # A run leaves answers out for want of their documents, and goes by the others.
        may_wait = run is not None and (run.last is not None or run.job.quarantines)
        used = given if split is None or run is None else split.known
        try:
            refuse_contradictions(used, certain=split is not None or not may_wait)
        except ConflictError as error:
            problems.append(str(error))
    if job is not None and job.mode == "predict":
        return [], [*(f"the next fit will stop: {one}" for one in problems), *remarks]
    return problems, remarks


def _look_up(given: Given, there: set[str], run: NextRun | None) -> Documents:
    """Return what is known of the documents that answers name."""

    def find(ids: AnyArray) -> BoolArray:
        return np.isin(ids, np.array(sorted(there), np.str_))

    if run is not None and run.last is not None and not there.issuperset(given.named()):
        return look_up(Place(run.output), run.last, given.named(), find)
    ids = np.unique(np.array(given.named(), np.str_))
    return Documents(ids, find(ids), np.zeros(len(ids), np.bool_))


def _refusal(given: Given, split: Split | None, job: Job | None) -> str:
    """Return what a run says of lines that are no answers, and of documents that never were."""
    n_bad = len(given.rejects if split is None else split.rejects)
    too_much = is_too_much(job, n_bad, given.n_answers)
    found = [str(refused(given.rejects, too_much=too_much))] if given.rejects else []
    if split is not None and split.unknown:
        documents = split.documents
        missing = documents.ids[~documents.there & ~documents.gone].tolist()
        found.append(_unknown_documents(missing, too_much=too_much))
    said = "; ".join(found)
    if job is None or not job.quarantines:
        return said
    return (
        f"at most {100 * job.max_rejected:.4g} % of answers may be rejected (max_rejected: "
        f"{job.max_rejected:g}), got {n_bad:,} of {given.n_answers:,}: {said}"
    )


def leaves_out(job: Job | None, n_bad: int, n_all: int) -> bool:
    """Return whether a job quarantines what is bad, as it is no more than it allows."""
    return job is not None and job.quarantines and not is_too_much(job, n_bad, n_all)


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


def _unknown_documents(missing: list[str], *, too_much: bool) -> str:
    return (
        f"answers must name documents that are there, got {counted(len(missing), 'other')}: "
        f"{shown_unknown(missing)}; {way_out(too_much=too_much)}"
    )
