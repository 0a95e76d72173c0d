"""A job from its inputs to a release: rows, fit, assignments, lineage, one commit.

Everything below the output is named by what it depends on, and the fit commits every iteration. So
a run that was killed anywhere is resumed by running it again, to the same bits.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from hmrf_dask.errors import ConfigurationError, HmrfError
from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.job_answers import Answers
from hmrf_dask.jobs.job_release import release
from hmrf_dask.jobs.job_results import write_fit, write_prediction
from hmrf_dask.jobs.job_steps import Run, find_answers, fit_all, fit_told, prepare
from hmrf_dask.jobs.report import Report
from hmrf_dask.jobs.telling import Tell, nothing
from hmrf_dask.jobs.up_to_date import is_made_of, report_of
from hmrf_dask.jobs.watch import Watch
from hmrf_dask.releases import Hold, Release, held, latest, publish
from hmrf_dask.runs import RunUnavailableError
from hmrf_dask.runs.storage import open_storage

FULL = (errno.ENOSPC, errno.EDQUOT)


def run_job(inputs: Inputs, *, tell: Tell = nothing) -> Report:
    """Do what a job says, under Dask's scheduler; nothing if the last release is of these inputs.

    Parameters
    ----------
    inputs : Inputs
    tell : callable
        Called with what happens; see `hmrf_dask.jobs.telling`.

    Raises
    ------
    HeldError
        Another run holds the output.
    """
    with _space_explained(inputs.output):
        while True:
            previous = latest(inputs.output)
            if previous is None and inputs.job.mode == "predict":
                raise ConfigurationError(
                    f"mode predict must have a model, got {inputs.output} without a release; run "
                    "with mode fit first"
                )
            done = previous is not None and is_made_of(previous, inputs)
            run_id = previous.run if previous and done else inputs.run_id(_told(previous))
            with held(inputs.output, run_id) as hold:
                if _told(latest(inputs.output)) != _told(previous):
                    continue
                if previous is not None and done:
                    _point_at(inputs.output, hold, previous)
                    return report_of(previous, inputs)
                watch = Watch(open_storage(inputs.output, {}, durable=True), run_id, tell)
                return _work(Run(inputs, run_id, previous, hold, watch))


def _point_at(output: str, hold: Hold, release: Release) -> None:
    """Finish what a run did not that was killed after its commit."""
    publish(
        output, hold, run_id=release.run, previous=release, files=release.files,
        ledger=release.ledger, counts=release.counts, model=release.model,
    )  # fmt: skip


def _told(release: Release | None) -> str | None:
    """Return what tells a release from any other, and its model."""
    return None if release is None else f"{release.number} {release.run} {release.model}"


def _work(run: Run) -> Report:
    material = prepare(run)
    if run.inputs.job.mode == "predict":
        results = write_prediction(run, material)
        return release(run, material, Answers(None, None), results, None, {})
    answers = find_answers(run, material)
    model, start = fit_all(run, material, answers)
    results = write_fit(run, material, answers, model)
    return release(run, material, answers, results, start, fit_told(model))


@contextmanager
def _space_explained(output: str) -> Iterator[None]:
    """Say it in words when a disk is full, wherever in the work that was."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or isinstance(error, HmrfError):
            raise
        raise RunUnavailableError(
            f"there must be space to write, got none left while writing for {output} ({error}); "
            "make some, then run again: it goes on where it stopped"
        ) from error
