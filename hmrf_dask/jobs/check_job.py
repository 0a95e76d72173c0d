"""What a job will read and where it will write, before it runs; nothing is written."""

from __future__ import annotations

from hmrf_dask.documents.manifest import base_of, load_manifest
from hmrf_dask.documents.sources import list_sources
from hmrf_dask.documents.streams import read_whole
from hmrf_dask.documents.yaml_files import is_kind, parse_yaml
from hmrf_dask.errors import ConfigurationError, HmrfError, InvalidInputError
from hmrf_dask.jobs.apart import ADVICE, listed_inside, overlaps, refuse_in_run
from hmrf_dask.jobs.check_answers import NextRun
from hmrf_dask.jobs.check_documents import Findings, check_manifest
from hmrf_dask.jobs.inputs import beside, load_job, output_of, read_by
from hmrf_dask.jobs.job_file import Job
from hmrf_dask.jobs.ledger import last_release
from hmrf_dask.jobs.telling import Tell, nothing
from hmrf_dask.limits import YAML_BYTES
from hmrf_dask.releases.output import open_output
from hmrf_dask.releases.owner import Owner, refuse_other
from hmrf_dask.releases.release import Release
from hmrf_dask.runs.locations import refuse_memory


def check_file(address: str, *, everything: bool = False, tell: Tell = nothing) -> Findings:
    """Return what is found in a manifest, or in a job and in its manifest.

    Parameters
    ----------
    address : str
        Path or URL.
    everything, tell
        As `check_manifest` takes them.

    Raises
    ------
    ConfigurationError
        The file has mistakes, or the job cannot write to its output and nothing can be read.
    """
    if not is_kind(parse_yaml(read_whole(address, {}, YAML_BYTES), address), "job"):
        return check_manifest(address, everything=everything, tell=tell)
    job, base = load_job(address), base_of(address)
    problems, output = check_output(job, address), output_of(job, address)
    last, damage = (None, None) if problems else _last(output)
    try:
        found = check_manifest(
            beside(base, job.manifest), everything=everything, tell=tell,
            more_answers=[beside(base, one) for one in job.answers],
            run=NextRun(job, output, last),
        )  # fmt: skip
    except HmrfError as error:
        if not problems:
            raise
        raise ConfigurationError("; ".join(problems)) from error
    found.output = output
    found.problems[:0] = problems
    if problems:
        found.exit_code = ConfigurationError.exit_code
    elif damage is not None:
        found.problems.append(str(damage))
        found.exit_code = damage.exit_code
    elif last is not None:
        _compare(found, int(last.counts.get("documents", 0)))
    return found


def check_output(job: Job, address: str) -> list[str]:
    """Return in words why a job cannot write to its output; nothing if it can."""
    base = base_of(address)
    manifest_url = beside(base, job.manifest)
    manifest, output = load_manifest(manifest_url), output_of(job, address)
    found = overlaps(output, read_by(job, address, manifest))
    if not found:
        found = listed_inside(output, list_sources(manifest, base_of(manifest_url)))
    if found:
        return [f"{'; '.join(found)}; {ADVICE}"]
    try:
        refuse_memory(job.output, "output")
        refuse_in_run(output, "output")
        refuse_other(open_output(output, None), Owner(job.name, manifest.name))
    except HmrfError as error:
        if error.exit_code != ConfigurationError.exit_code:
            raise
        return [str(error)]
    return []


def _last(output: str) -> tuple[Release | None, HmrfError | None]:
    """Return the release that a run goes on from, or what is wrong with it."""
    try:
        return last_release(output), None
    except HmrfError as error:
        return None, error


def _compare(found: Findings, n_before: int) -> None:
    """Say whether a run would stop because documents of the last release are gone."""
    if found.complete and 2 * found.documents < n_before:
        found.problems.append(
            f"at least half of the last release's documents must be there, got {found.documents} "
            f"where it had {n_before}: a run stops, unless it is given --allow-shrink"
        )
        found.exit_code = InvalidInputError.exit_code
