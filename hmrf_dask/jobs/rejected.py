"""Records and answers that are quarantined: the files that list them, and the share that stops.

A run quarantines a few bad lines. Where they are more than `max_rejected` of all, something else is
wrong: a column of another meaning, a store half copied, answers to another collection.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any

from hmrf_dask.dataflow import DaskFlow
from hmrf_dask.documents.batches import Reject
from hmrf_dask.errors import HmrfWarning, InvalidInputError, counted
from hmrf_dask.jobs.bundles import (
    encode_rejects,
    first_rejects,
    lines_before_of,
    n_documents_of,
    n_rejects_of,
    not_listed,
    placed,
    read_beside,
    read_rejects,
)
from hmrf_dask.jobs.job_file import MAX_REJECTED, Job
from hmrf_dask.jobs.places import REJECTS, REPEATED
from hmrf_dask.runs.records import digest
from hmrf_dask.text.files import Place

if TYPE_CHECKING:
    from hmrf_dask.jobs.job_answers import Answers, Given
    from hmrf_dask.jobs.job_steps import Run

Told = Sequence[Mapping[str, Any]]
Files = dict[str, str]
ANSWERS = "answers.jsonl"
WAITING = "waiting.jsonl"
SHOWN = 3


class TooManyRejectedError(InvalidInputError):
    """More than the share that a job allows is rejected; the folder of the run lists it all."""


# ---- the share that stops a run


def check_records(run: Run, told: Told, repeated: Sequence[Reject] = ()) -> None:
    """Stop where too many records are no documents, or too much lies in files that break off."""
    n_rejected = sum(map(n_rejects_of, told)) + len(repeated)
    n_documents = sum(map(n_documents_of, told)) - len(repeated)
    broken = {one.source for one in first_rejects(told) if one.whole_rest}
    sizes = {one.path: one.size for one in run.inputs.sources}
    n_lost = sum(sizes.get(path, 0) for path in broken)
    shown = [*islice(first_rejects(told), SHOWN + 1), *repeated[: SHOWN + 1]]
    for n_bad, n_all, what in (
        (n_rejected, n_rejected + n_documents, "records may be rejected"),
        (
            n_lost,
            sum(sizes.values()),
            "the bytes may lie in files that cannot be read to their end",
        ),
    ):
        if is_too_much(run.inputs.job, n_bad, n_all):
            write_records(run, told, repeated)
            raise _too_many(run, what, n_bad, n_all, shown)


def check_answers(run: Run, given: Given, rejects: Sequence[Reject]) -> None:
    """Stop where too many answers are rejected."""
    if is_too_much(run.inputs.job, len(rejects), given.n_answers):
        write_answers(run, rejects, ())
        raise _too_many(run, "answers may be rejected", len(rejects), given.n_answers, rejects)


def is_too_much(job: Job | None, n_bad: int, n_all: int) -> bool:
    """Return whether a part is strictly more than the share that a job allows, or all there is."""
    allowed = MAX_REJECTED if job is None else job.max_rejected
    share = Fraction(str(allowed))  # exact: 29 of 100 is not more than 0.29
    return n_bad > share * n_all or 0 < n_bad == n_all


def _too_many(
    run: Run, what: str, n_bad: int, n_all: int, rejects: Sequence[Reject]
) -> TooManyRejectedError:
    shown = "; ".join(f"{_place(one)}: {one.reason}" for one in rejects[:SHOWN])
    more = "; …" if len(rejects) > SHOWN else ""
    raised = "" if n_bad == n_all else ", or raise max_rejected if so much is to be left out"
    share = f"{100 * run.inputs.job.max_rejected:.4g} %"
    return TooManyRejectedError(
        f"at most {share} of {what} (max_rejected: {run.inputs.job.max_rejected:g}), got {n_bad:,} "
        f"of {n_all:,}: {shown}{more}; {run.folder}/{REJECTS} lists them: correct them{raised}"
    )


def _place(reject: Reject) -> str:
    return f"{reject.source}, line {reject.line}" if reject.line else reject.source


def warn_of_rejects(run: Run, n_records: int, answers: Answers) -> None:
    """Say in one line that something was quarantined, how much, and where it is listed."""
    some = [
        counted(n, what)
        for n, what in ((n_records, "record"), (len(answers.rejects), "answer"))
        if n
    ]
    if some:
        warnings.warn(
            f"quarantined: {' and '.join(some)}, listed with the reasons in {run.folder}/{REJECTS}",
            HmrfWarning,
            stacklevel=2,
        )


# ---- the files that list them


def write_records(run: Run, told: Told, repeated: Sequence[Reject]) -> Files:
    """List the records that are no documents, a file for each bundle, and those with a used id."""
    flow = DaskFlow()
    tasks = [
        flow.lazy(_copy, run.place, one, n_lines, f"{run.name}/{REJECTS}/{one['key']}.jsonl")
        for one, n_lines in zip(told, lines_before_of(told), strict=True)
        if one["rejects"]
    ]
    files = Files()
    for found in flow.compute(tasks) if tasks else []:
        files |= found
    return files | _listed(run, REPEATED, repeated)


def write_answers(run: Run, rejects: Sequence[Reject], waiting: Sequence[Reject]) -> Files:
    """List the answers that are rejected, and those that wait for a document that is gone."""
    return _listed(run, ANSWERS, rejects) | _listed(run, WAITING, waiting)


def _listed(run: Run, name: str, rejects: Sequence[Reject]) -> Files:
    if not rejects:
        return {}
    path, data = f"{run.name}/{REJECTS}/{name}", encode_rejects(rejects)
    run.place.storage.write(path, data)
    return {path: digest(data)}


def _copy(place: Place, told: Mapping[str, Any], n_lines: int, target: str) -> Files:
    """Bring the rejects of a bundle together, with the lines they have in their whole file."""
    names = told["rejects"]
    listed = [one for name in names for one in read_beside(place.storage, name, read_rejects)]
    data = encode_rejects(placed(one, n_lines) for one in [*listed, *not_listed(told)])
    place.storage.write(target, data)
    return {target: digest(data)}
