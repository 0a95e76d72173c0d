"""Whether a run has anything to do: known from the last release alone."""

from __future__ import annotations

from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.parent import INPUTS, damage_explained
from hmrf_dask.jobs.report import NAME, Report
from hmrf_dask.releases import Release, is_pointed_at, latest, read_published


def report_if_done(inputs: Inputs) -> Report | None:
    """Return the report of the last release if nothing is left to do for these inputs."""
    if inputs.from_release is not None:
        return None
    with damage_explained(inputs.output):
        release = latest(inputs.output)
    if release is None or release.ledger.get(INPUTS) != inputs.identity:
        return None
    return report_of(release, inputs) if is_pointed_at(inputs.output, release) else None


def report_of(release: Release, inputs: Inputs) -> Report:
    """Return the report of a release that is up to date."""
    with damage_explained(inputs.output, release):
        data = read_published(inputs.output, release, f"runs/{release.run}/{NAME}")
    return Report.from_json(data, inputs.output).up_to_date()
