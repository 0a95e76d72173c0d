"""Whether a run has anything to do: known from the last release alone."""

from __future__ import annotations

from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.report import NAME, Report
from hmrf_dask.releases import Release, is_pointed_at, latest, read_published

INPUTS = "inputs"


def report_if_done(inputs: Inputs) -> Report | None:
    """Return the report of the last release if nothing is left to do for these inputs."""
    release = latest(inputs.output)
    if release is None or not is_made_of(release, inputs):
        return None
    return report_of(release, inputs) if is_pointed_at(inputs.output, release) else None


def is_made_of(release: Release, inputs: Inputs) -> bool:
    """Return whether a release was made of the same configuration, files and answers."""
    return bool(release.ledger.get(INPUTS) == inputs.identity)


def report_of(release: Release, inputs: Inputs) -> Report:
    """Return the report of a release that is up to date."""
    data = read_published(inputs.output, release, f"runs/{release.run}/{NAME}")
    return Report.from_json(data, inputs.output).up_to_date()
