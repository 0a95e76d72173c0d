"""K suggested for a job: its documents and answers read as a run reads them, and nothing kept."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.errors import HmrfWarning, counted
from hmrf_dask.fit.choice_of_k import Choice
from hmrf_dask.fit.suggestion import Span
from hmrf_dask.jobs.answers import Given, split_answers
from hmrf_dask.jobs.former import Documents, find_in
from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.parent import Parent
from hmrf_dask.jobs.prepare import prepare
from hmrf_dask.jobs.progress import Watch
from hmrf_dask.jobs.steps import JobRun, Material, choose_k, given_answers, planned_steps
from hmrf_dask.progress import Tell, nothing
from hmrf_dask.releases.lock import held, open_output

TRY = "try numbers of clusters"


@dataclass(frozen=True)
class Suggestion:
    """Which K is suggested for a job, and why.

    `n_clusters` is the likeliest K, in the range from `least` to `largest`, which is right as
    `likely` as that, 0 to 1. `tried` has what every K brings (`tasks.criteria.Criteria`), and how
    `likely` it is.
    """

    n_documents: int
    n_sample: int  # documents that K were tried on
    n_answers: int  # about these
    recommended: bool
    n_clusters: int
    least: int
    largest: int
    likely: float
    doubt: str
    tried: list[dict[str, Any]]


def suggest_for(
    inputs: Inputs, span: Span, *, scratch: str | None = None, tell: Tell = nothing
) -> Suggestion:
    """Return which K is suggested for a job: what a first run with `n_clusters: auto` would choose.

    Rows lie in a temporary folder, in `scratch` if that is given; the output is left alone.
    """
    with TemporaryDirectory(prefix="hmrf-suggest-k-", dir=scratch) as folder:
        job = inputs.job.model_copy(update={"mode": "fit"})
        inputs = replace(inputs, job=job, output=folder)
        parent = Parent(None, 1, inputs.run_id(None))
        with held(folder, parent.run_id) as hold:
            watch = Watch(open_output(folder), parent.run_id, tell)
            return _suggested(JobRun(inputs, parent, hold, watch), span)


def _suggested(run: JobRun, span: Span) -> Suggestion:
    steps = planned_steps(run)
    run.watch.plan([*steps[: steps.index("look up answers")], TRY])
    given = given_answers(run)
    material = prepare(run)
    answers = _known(given, material)
    with run.watch.step(TRY, "numbers") as so_far:
        choice = choose_k(run.inputs.job.method, material.corpus, answers, span, so_far)
    if answers is not None and not choice.n_answers:
        warnings.warn(
            f"the {counted(len(answers), 'answer')} tell nothing of K: there must be some of both "
            "kinds, same and different, about documents that are not empty",
            HmrfWarning,
            stacklevel=2,
        )
    return _described(choice, material.corpus.n_rows)


def _known(given: Given, material: Material) -> Constraints | None:
    """Return the answers about documents that are there; of the others it is warned."""
    ids = np.unique(np.array(given.named(), np.str_))
    documents = Documents(ids, find_in(material.corpus, ids), np.zeros(len(ids), np.bool_))
    answers = split_answers(given, documents)
    if answers.unknown:
        warnings.warn(
            f"{counted(len(answers.unknown), 'answer')} of {given.n_answers} name documents that "
            "are not there, and are left out",
            HmrfWarning,
            stacklevel=2,
        )
    return answers.known.with_classes().constraints()


def _described(choice: Choice, n_documents: int) -> Suggestion:
    tried = [
        {**one._asdict(), "likely": round(likely, 4)}
        for one, likely in zip(choice.tried, choice.likely.tolist(), strict=True)
    ]
    return Suggestion(
        n_documents=n_documents,
        n_sample=choice.n_rows,
        n_answers=choice.n_answers,
        recommended=choice.is_recommended,
        n_clusters=choice.n_clusters,
        least=choice.least,
        largest=choice.largest,
        likely=round(choice.share, 4),
        doubt=choice.doubt,
        tried=tried,
    )
