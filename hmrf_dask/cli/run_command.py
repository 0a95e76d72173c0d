"""`hmrf-dask run`: what a job file says, from the documents to a release; only what is new."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from hmrf_dask.cli.group import (
    HmrfCommand,
    Place,
    Whole,
    connected_to,
    examples,
    how_to_print,
    print_result,
    scheduler_option,
    where_to_run,
)
from hmrf_dask.cli.progress import shown_progress
from hmrf_dask.cli.watching import reported_by_dask, watch_options, watched, watching
from hmrf_dask.limits import RANGES

if TYPE_CHECKING:
    from hmrf_dask.jobs.inputs import Inputs
    from hmrf_dask.jobs.job_file import Job


@click.command(
    cls=HmrfCommand,
    short_help="Do what a job file says: documents to clusters.",
    epilog=examples(
        "hmrf-dask run job.yaml",
        "hmrf-dask run job.yaml --predict --output s3://bucket/clusters",
    ),
)
@click.argument("job_file", metavar="JOB", type=Place())
@click.option("--output", type=Place(), help="Write there, not where the job file says.")
@click.option("--predict", is_flag=True, help="Only give new documents clusters of the last model.")
@click.option(
    "--from-release",
    type=Whole(RANGES["release"]),
    metavar="N",
    help="Continue from release N, where the last is damaged or wrong; 0: start over.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Make the output this job's, though it is another's (or this one had another name).",
)
@click.option(
    "--allow-shrink",
    is_flag=True,
    help="Continue though more than half of the documents of the last release are gone.",
)
@click.option(
    "--choose-k",
    is_flag=True,
    help="Choose K again, which n_clusters: auto chooses once and keeps.",
)
@click.option(
    "--detach", is_flag=True, help="Let a task of the cluster drive the run, and go away."
)
@how_to_print
@where_to_run
@watch_options
def run(
    job_file: str,
    output: str | None,
    predict: bool,
    from_release: int | None,
    take_over: bool,
    allow_shrink: bool,
    choose_k: bool,
    detach: bool,
    as_json: bool,
    quiet: bool,
    **where: Any,
) -> None:
    """Do what a JOB file says; new and changed documents only, clusters keep their ids.

    The same command again is up to date at once, or resumes where a killed run stopped. One run at
    a time writes an output; another one ends with exit code 75 and says who that is.
    """
    from hmrf_dask.jobs.inputs import gather, load_job
    from hmrf_dask.jobs.progress import nothing
    from hmrf_dask.jobs.run_job import report_if_done, run_job
    from hmrf_dask.storage.addresses import absolute_url, refuse_memory

    watch = watching(where)
    way = scheduler_option(where)
    changes: dict[str, Any] = {} if output is None else {"output": absolute_url(output)}
    if predict:
        changes["mode"] = "predict"
    job = load_job(job_file, changes)
    refuse_memory(job.output, "output")
    inputs = gather(
        _with_scheduler_file(job, job_file),
        job_file,
        from_release,
        take_over=take_over,
        allow_shrink=allow_shrink,
        choose_k=choose_k,
    )
    inputs = replace(inputs, command=shlex.join(["hmrf-dask", *sys.argv[1:]]))
    report = report_if_done(inputs)
    if report is None and detach:
        detached = _detach(inputs, way)
        if as_json:
            print_result(detached, as_json=True, quiet=quiet)
        elif not quiet:
            command = f"hmrf-dask inspect {detached['output']}"
            click.echo(f"detached as task {detached['task']}; follow it: {command}", err=True)
        return
    if report is None:
        with (
            shown_progress(quiet=quiet) as tell,
            watched(tell, watch) as tell_all,
            connected_to(way, inputs.job.cluster),
            reported_by_dask(watch.get("performance_report")),
        ):
            report = run_job(inputs, tell=tell_all)
    elif watch:
        with watched(nothing, watch):  # a night with nothing new has gone well, too
            pass
    print_result(report, as_json=as_json, quiet=quiet)


def _with_scheduler_file(job: Job, job_file: str) -> Job:
    """Return a job whose scheduler file, if it names one, is seen from everywhere."""
    from hmrf_dask.documents.manifest import base_of
    from hmrf_dask.jobs.inputs import resolved

    named = job.cluster.scheduler_file
    if named is None:
        return job
    cluster = job.cluster.model_copy(update={"scheduler_file": resolved(base_of(job_file), named)})
    return job.model_copy(update={"cluster": cluster})


def _detach(inputs: Inputs, way: dict[str, Any]) -> dict[str, str]:
    cluster = inputs.job.cluster
    if not (cluster.stays and not way) and not way.keys() & {"scheduler", "scheduler_file"}:
        raise click.UsageError(
            "--detach needs a scheduler that stays when this command ends; give --scheduler or "
            "--scheduler-file, or cluster.address or cluster.scheduler_file in the job file"
        )
    from hmrf_dask.cli.connect import submit

    with connected_to(way, cluster):
        key = submit(inputs)
    return {"status": "detached", "task": key, "output": inputs.output}
