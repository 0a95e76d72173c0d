"""`hmrf-dask run`: what a job file says, from the documents to a release; only what is new."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

from hmrf_dask.cli.group import given_way, how_to_tell, print_json, where_to_run
from hmrf_dask.cli.progress import shown_progress

if TYPE_CHECKING:
    from hmrf_dask.jobs.inputs import Inputs
    from hmrf_dask.jobs.report import Report


@click.command()
@click.argument("job_file", metavar="JOB")
@click.option("--output", help="Write there, not where the job file says.")
@click.option("--predict", is_flag=True, help="Only give new documents clusters of the last model.")
@click.option(
    "--detach", is_flag=True, help="Let a task of the cluster drive the run, and go away."
)
@how_to_tell
@where_to_run
def run(
    job_file: str,
    output: str | None,
    predict: bool,
    detach: bool,
    as_json: bool,
    quiet: bool,
    **where: Any,
) -> None:
    """Do what a JOB file says; new and changed documents only, clusters keep their ids.

    The same command again is up to date at once, or goes on where a killed run stopped. One run at
    a time writes an output; another one ends with exit code 75 and says who that is.
    """
    from hmrf_dask.jobs.inputs import gather, load_job
    from hmrf_dask.jobs.up_to_date import report_if_done

    changes: dict[str, Any] = {"output": _from_here(output)} if output else {}
    if predict:
        changes["mode"] = "predict"
    job = load_job(job_file, changes)
    way = given_way(where)
    inputs = gather(job, job_file)
    report = report_if_done(inputs)
    if report is None and detach:
        _detach(inputs, way)
        return
    if report is None:
        from hmrf_dask.jobs.run_job import run_job

        with shown_progress(quiet=quiet) as tell, _connected(inputs, way):
            report = run_job(inputs, tell=tell)
    _show(report, as_json)


def _connected(inputs: Inputs, way: dict[str, Any]) -> AbstractContextManager[None]:
    """Return a context in which Dask runs where the options say, or else the job file."""
    from hmrf_dask.cli.connect import connected

    return connected(**way) if way else connected(cluster=inputs.job.cluster)


def _detach(inputs: Inputs, way: dict[str, Any]) -> None:
    cluster = inputs.job.cluster
    if not (cluster.stays and not way) and not way.keys() & {"scheduler", "scheduler_file"}:
        raise click.UsageError(
            "--detach needs a scheduler that stays when this command ends; give --scheduler or "
            "--scheduler-file, or cluster.address or cluster.scheduler_file in the job file"
        )
    from hmrf_dask.cli.detach import submit

    with _connected(inputs, way):
        key = submit(inputs)
    click.echo(f"detached as task {key}; look with: hmrf-dask inspect {inputs.output}", err=True)


def _from_here(output: str) -> str:
    """Return an output as an absolute one: on the command line it is seen from the folder."""
    from hmrf_dask.runs.storage import absolute_url

    return absolute_url(output)


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        print_json(report)
    else:
        from hmrf_dask.cli.show_report import show_report

        show_report(report)
