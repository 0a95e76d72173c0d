"""A job from its inputs to a release: rows, fit, assignments, lineage, one commit.

Everything below the output is named by what it depends on, and the fit commits every iteration. So
a run that was killed anywhere is resumed by running it again, to the same bits.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from hmrf_dask.errors import ConfigurationError, HmrfError, HmrfWarning, InvalidInputError
from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.job_release import release
from hmrf_dask.jobs.job_results import write_fit, write_prediction
from hmrf_dask.jobs.job_steps import (
    Run,
    check_parent,
    find_answers,
    fit_all,
    fit_told,
    look_at_answers,
    prepare,
    unused_answers,
)
from hmrf_dask.jobs.parent import Parent, damage_explained, find_parent
from hmrf_dask.jobs.private_output import make_private
from hmrf_dask.jobs.rejected import TooManyRejectedError
from hmrf_dask.jobs.remake import remake_of
from hmrf_dask.jobs.repair import repaired
from hmrf_dask.jobs.report import Report
from hmrf_dask.jobs.shrunk import refuse_shrunk
from hmrf_dask.jobs.telling import Tell, nothing
from hmrf_dask.jobs.up_to_date import report_of
from hmrf_dask.jobs.watch import Watch
from hmrf_dask.releases import Hold, Release, clean, held, owner, publish
from hmrf_dask.releases.output import open_output
from hmrf_dask.releases.own_files import remove_own
from hmrf_dask.releases.release import LATEST, pointer_damage, read_if_whole
from hmrf_dask.runs import RunUnavailableError
from hmrf_dask.runs.storage import Storage, open_storage

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
    storage = open_output(inputs.output, None)
    owner.refuse_other(storage, inputs.owner, hand_over=inputs.take_over)
    _drop_damaged_pointer(storage)
    with damage_explained(inputs.output):
        again = remake_of(inputs)
    if again is not None:
        warnings.warn(
            f"{again.damage}; release {again.parent.number - 1} is made again from what it was "
            "made of",
            HmrfWarning,
            stacklevel=2,
        )
        _run(again.inputs, lambda _: again.parent, tell)
    return _run(inputs, find_parent, tell)


def _drop_damaged_pointer(storage: Storage) -> None:
    """Remove LATEST where it is damaged: the newest release is found without it."""
    if damage := pointer_damage(storage):
        warnings.warn(f"{damage}; it is written again", HmrfWarning, stacklevel=3)
        storage.delete([LATEST])


def _run(inputs: Inputs, find: Callable[[Inputs], Parent], tell: Tell) -> Report:
    """Do one run, from where it is to begin, as the only one that holds the output."""
    storage = open_storage(inputs.output, {}, durable=True)
    while True:
        with damage_explained(inputs.output):
            parent = find(inputs)
        if inputs.job.private:
            make_private(inputs.output)
        owner.claim(storage, inputs.owner, hand_over=inputs.take_over)
        with held(inputs.output, parent.run_id) as hold:
            owner.confirm(storage, inputs.owner, hand_over=inputs.take_over)
            with damage_explained(inputs.output):
                if find(inputs) != parent:
                    continue
            if parent.release is not None and parent.done:
                _point_at(inputs.output, hold, parent.release)
                return report_of(parent.release, inputs)
            run = Run(inputs, parent, hold, Watch(storage, parent.run_id, tell))
            run.record_made([run.name])
            with _left_tidy(run), _space_explained(inputs.output):
                return repaired(partial(_work, run), run.place.storage, run.record_of)


def _point_at(output: str, hold: Hold, release: Release) -> None:
    """Finish what a run did not that was killed after its commit."""
    publish(
        output, hold, run_id=release.run, previous=release, files=release.files,
        ledger=release.ledger, counts=release.counts, model=release.model,
    )  # fmt: skip


def _work(run: Run) -> Report:
    with damage_explained(run.inputs.output, run.previous):
        check_parent(run)
        given = look_at_answers(run)
        material = prepare(run)
        refuse_shrunk(run, material)
        if run.inputs.job.mode == "predict":
            results = write_prediction(run, material)
            answers = unused_answers(run, material, given)
            return release(run, material, answers, results, None, {})
        answers = find_answers(run, material, given)
        model, start = fit_all(run, material, answers)
        results = write_fit(run, material, answers, model)
        return release(run, material, answers, results, start, fit_told(model))


@contextmanager
def _left_tidy(run: Run) -> Iterator[None]:
    """Leave no folder of a run that nothing can resume: with these inputs it ends the same way.

    Other errors, and kills, leave it: the same run again goes on there. So do not those of runs
    that ended before, as soon as another one begins.
    """
    if run.inputs.from_release is None:  # else ids of what is passed over are looked up yet
        also = None if run.previous is None else run.previous.number
        clean(run.inputs.output, run.hold, keep=run.inputs.job.keep, also=also)
    try:
        yield
    except TooManyRejectedError:
        raise  # its folder lists what was rejected, until the next run begins
    except (InvalidInputError, ConfigurationError):
        last = read_if_whole(run.place.storage, run.parent.number - 1)
        if last is None or last.run != run.run_id:
            remove_own(run.place.storage, run.name)
        raise


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
