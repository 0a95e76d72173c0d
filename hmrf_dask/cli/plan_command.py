"""`hmrf-dask plan`: how large a machine, or how many workers, a job needs, and for how long."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any

import click

from hmrf_dask.cli.group import (
    HmrfCommand,
    Number,
    Place,
    Whole,
    connected_to,
    examples,
    how_to_print,
    print_result,
    scheduler_option,
    with_options,
)
from hmrf_dask.cli.progress import shown_progress
from hmrf_dask.parameters import RANGES

if TYPE_CHECKING:
    from hmrf_dask.jobs.clusters import Cluster

where_to_plan = with_options(
    click.option("--threads", type=Whole(RANGES["threads"]), help="Threads of one process."),
    click.option("--processes", type=Whole(RANGES["processes"]), help="Worker processes here."),
    click.option(
        "--workers", type=Whole(RANGES["workers"]), help="Workers elsewhere, of a thread each."
    ),
)


@click.command(
    cls=HmrfCommand,
    short_help="Say what a job will need: memory, time, cost.",
    epilog=examples(
        "hmrf-dask plan job.yaml",
        "hmrf-dask plan job.yaml --workers 16 --price 0.12 --json",
    ),
)
@click.argument("job_file", metavar="JOB", type=Place())
@where_to_plan
@click.option(
    "--sample",
    type=Whole(RANGES["sampled"]),
    default=50_000,
    show_default=True,
    help="Documents to read, and to rehearse the job on.",
)
@click.option(
    "--price", type=Number(RANGES["price"].problem), help="Of an hour of the machine or a worker."
)
@how_to_print
def plan(
    job_file: str,
    sample: int,
    price: float | None,
    as_json: bool,
    quiet: bool,
    **where: Any,
) -> None:
    """Read a sample of what a JOB reads, rehearse the JOB on it, and say what all of it takes.

    Documents, features, answers; memory of the driver and of each worker; seconds of each step,
    and under more threads or workers; bytes and hours. The rehearsals are the JOB itself, run on
    this machine in a temporary folder that is gone afterwards, for 5 to 20 seconds, longer where
    the JOB chooses K; nothing else is written. It ends with 78 where a run would be refused for
    want of memory here.
    """
    scheduler_option(where)
    with shown_progress(quiet=quiet) as tell:
        import psutil

        from hmrf_dask.jobs.inputs import gather, load_job
        from hmrf_dask.jobs.plan import Where, plan_job

        inputs = gather(load_job(job_file), job_file, 0)  # as a first run lists documents
        cluster = inputs.job.cluster
        way, workers = _way(where, cluster)
        together = way == "threads" or _are_here(where, cluster)
        here = _rehearsed_on(way, min(workers, psutil.cpu_count() or 1), together=together)
        asked = any(where.values())
        with closing(inputs.documents), here:
            began = psutil.Process().create_time()
            place = Where(way, workers, price, began, together, asked)
            planned = plan_job(inputs, place, sample=sample, tell=tell)
    print_result(planned, as_json=as_json, quiet=quiet)
    if quiet:
        for problem in planned.problems:
            click.echo(f"error: {problem}", err=True)
    click.get_current_context().exit(planned.exit_code)


def _are_here(where: dict[str, Any], cluster: Cluster) -> bool:
    """Return whether worker processes are to run on this machine, and share its threads."""
    return bool(where["processes"] or (cluster.processes and not where["workers"]))


def _rehearsed_on(way: str, number: int, *, together: bool) -> AbstractContextManager[None]:
    """Return a context with threads or worker processes of this machine, as a run has them.

    Workers that are to be elsewhere have a thread each.
    """
    if together:
        return connected_to({way: number})
    from hmrf_dask.jobs.clusters import Cluster

    kwargs = {"n_workers": number, "threads_per_worker": 1}
    cluster = {"class": "distributed.LocalCluster", "kwargs": kwargs}
    return connected_to({}, Cluster.model_validate(cluster))


def _way(where: dict[str, Any], cluster: Cluster) -> tuple[str, int]:
    """Return whether a job is to run on threads or processes, and on how many of them."""
    if where["threads"]:
        return "threads", where["threads"]
    asked = where["processes"] or where["workers"] or cluster.processes or cluster.most_workers
    if not asked and (cluster.stays or cluster.cluster_class):  # it does not say how many it has
        asked = cluster.least_workers
    if asked:
        return "processes", asked
    from hmrf_dask.flow.clients import local_threads

    return "threads", cluster.local or local_threads()
