"""Whether a run has anything to do: known from the last release alone."""

from __future__ import annotations

from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.ledger import last_release
from hmrf_dask.jobs.parent import INPUTS, damage_explained
from hmrf_dask.jobs.private_output import make_private
from hmrf_dask.jobs.remake import damage_of
from hmrf_dask.jobs.report import NAME, Report
from hmrf_dask.releases import DamagedReleaseError, Release, is_pointed_at, owner, read_published
from hmrf_dask.releases.output import open_output
from hmrf_dask.releases.release import pointer_damage


def report_if_done(inputs: Inputs) -> Report | None:
    """Return the report of the last release if nothing is left to do for these inputs.

    Nor is a damaged release done: the run that follows makes it again, or says how to go on.
    """
    storage = open_output(inputs.output, None)
    owner.refuse_other(storage, inputs.owner, hand_over=inputs.take_over)
    if inputs.from_release is not None or inputs.take_over or pointer_damage(storage):
        return None
    with damage_explained(inputs.output):
        release = last_release(inputs.output)
    if release is None or release.ledger.get(INPUTS) != inputs.identity:
        return None
    if damage_of(inputs.output, release) is not None:
        return None
    return report_of(release, inputs) if is_pointed_at(inputs.output, release) else None


def report_of(release: Release, inputs: Inputs) -> Report:
    """Return the report of a release that is up to date, and whole as far as one night looks."""
    if inputs.job.private:  # it may be new in the job
        make_private(inputs.output)
    with damage_explained(inputs.output, release):
        if damage := damage_of(inputs.output, release):
            raise DamagedReleaseError(damage)
        data = read_published(inputs.output, release, f"runs/{release.run}/{NAME}")
    return Report.from_json(data, inputs.output).up_to_date()
