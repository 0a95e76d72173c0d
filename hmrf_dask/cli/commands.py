"""The commands `hmrf-dask …` and `dask hmrf …`: thin layers over the library.

Results go to stdout, progress and warnings to stderr. Everything heavy is imported inside the
command that needs it, so that `--help` answers at once. `run` and small commands are here, other
large ones in modules of their own.
"""

from __future__ import annotations

import atexit
import shlex
import sys
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from hmrf_dask.cli.answers_command import answers
from hmrf_dask.cli.ask_command import ask
from hmrf_dask.cli.fit_command import fit
from hmrf_dask.cli.group import (
    EXIT_CODES,
    HELP,
    HmrfCommand,
    HmrfGroup,
    Place,
    PlaceOfFile,
    PlaceOfOutput,
    Whole,
    connected_to,
    examples,
    how_to_print,
    leave,
    one_line,
    print_result,
    scheduler_option,
    where_to_run,
)
from hmrf_dask.cli.init_command import init
from hmrf_dask.cli.label_command import label
from hmrf_dask.cli.plan_command import plan
from hmrf_dask.cli.progress import shown_progress
from hmrf_dask.cli.release_commands import classify, diff, edit, export
from hmrf_dask.cli.report_command import report
from hmrf_dask.cli.watching import watch_options, watched, watching
from hmrf_dask.parameters import RANGES
from hmrf_dask.progress import START

if TYPE_CHECKING:
    from hmrf_dask.jobs.inputs import Inputs
    from hmrf_dask.jobs.job_file import Job
    from hmrf_dask.jobs.places import Report
    from hmrf_dask.progress import Tell

SUGGESTED = Whole(RANGES["suggested"])


@click.command(
    cls=HmrfCommand,
    short_help="Check what a job or a manifest names.",
    epilog=examples(
        "hmrf-dask check job.yaml",
        "hmrf-dask check manifest.yaml --all",
    ),
)
@click.argument("file", metavar="JOB|MANIFEST", type=Place())
@click.option("--all", "everything", is_flag=True, help="Read every document, not a sample.")
@how_to_print
@click.pass_context
def check(
    context: click.Context,
    file: str,
    everything: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Read a sample of what a JOB or a MANIFEST names and say what was found; nothing is written.

    Files, bytes, lengths, bad records with file and line, ids that come twice; bad lines and
    contradictions of answers, and whether they name documents that are there. Of a job, whether its
    output is separate from what it reads, is this job's, and can be begun. It ends with the exit
    code that a run would have: 78 where it could not write to its output, 65 if it would stop at
    what was read.
    """
    with shown_progress(quiet=quiet) as tell:
        from hmrf_dask.jobs.check import check_file

        findings = check_file(file, everything=everything, tell=tell)
    print_result(findings, as_json=as_json, quiet=quiet)
    if quiet:
        for problem in findings.problems:
            click.echo(f"error: {one_line(problem)}", err=True)
    context.exit(findings.exit_code)


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
    watch = watching(where)
    if detach and watch:
        named = " and ".join(f"--{name.replace('_', '-')}" for name in watch)
        raise click.UsageError(
            f"{named} must go without --detach: this command ends before there is anything to "
            "write; follow the run by inspect --watch"
        )
    way = scheduler_option(where)
    how = {"take_over": take_over, "allow_shrink": allow_shrink, "choose_k": choose_k}
    with (
        shown_progress(quiet=quiet) as show,
        watched(show, watch) as tell,
    ):
        from hmrf_dask.jobs.run_job import report_if_done

        inputs = _inputs(job_file, output, from_release, predict=predict, how=how)
        with closing(inputs.documents):
            report = report_if_done(inputs)
            if report is None and not detach:
                report = _run_here(inputs, way, watch, tell)
    if report is not None:
        print_result(report, as_json=as_json, quiet=quiet)
        return
    detached = _detach(inputs, way)
    if as_json:
        print_result(detached, as_json=True, quiet=quiet)
    elif not quiet:
        from hmrf_dask.cli.terminal import relative

        command = f"hmrf-dask inspect {relative(detached['output'])} --watch"
        click.echo(f"detached as task {detached['task']}; follow it: {command}", err=True)


def _run_here(inputs: Inputs, way: dict[str, Any], watch: dict[str, Any], tell: Tell) -> Report:
    """Do what a job says where the options of the command say."""
    from hmrf_dask.cli.connect import reported_by_dask
    from hmrf_dask.jobs.run_job import run_job

    with (
        connected_to(way, inputs.job.cluster),
        reported_by_dask(watch.get("performance_report")),
    ):
        return run_job(inputs, tell=tell)


def _inputs(
    job_file: str,
    output: str | None,
    from_release: int | None,
    *,
    predict: bool,
    how: dict[str, bool],
) -> Inputs:
    """Return what a job is made of, under the options of the command."""
    from hmrf_dask.jobs.inputs import gather, load_job
    from hmrf_dask.storage.addresses import absolute_url, refuse_memory

    changes: dict[str, Any] = {} if output is None else {"output": absolute_url(output)}
    if predict:
        changes["mode"] = "predict"
    job = load_job(job_file, changes)
    refuse_memory(job.output, "output")
    inputs = gather(_with_scheduler_file(job, job_file), job_file, from_release, **how)
    return replace(inputs, command=shlex.join(["hmrf-dask", *sys.argv[1:]]))


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
    named = way.keys() - {"insecure"}
    if not (cluster.stays and not named) and not way.keys() & {"scheduler", "scheduler_file"}:
        raise click.UsageError(
            "--detach needs a scheduler that stays when this command ends; give --scheduler or "
            "--scheduler-file, or cluster.address or cluster.scheduler_file in the job file"
        )
    from hmrf_dask.cli.connect import submit

    with connected_to(way, cluster):
        key = submit(inputs)
    return {"status": "detached", "task": key, "output": inputs.output}


@click.command(
    "suggest-k",
    cls=HmrfCommand,
    short_help="Suggest how many clusters a job needs.",
    epilog=examples(
        "hmrf-dask suggest-k job.yaml",
        "hmrf-dask suggest-k job.yaml --least 5 --most 50 --json",
    ),
)
@click.argument("job_file", metavar="JOB", type=Place())
@click.option("--least", type=SUGGESTED, default=2, show_default=True, help="K to begin with.")
@click.option("--most", type=SUGGESTED, default=100, show_default=True, help="K to end with.")
@click.option(
    "--scratch",
    type=PlaceOfFile(exists=True, file_okay=False),
    help="A folder that all workers see, for rows meanwhile.  [default: one of this machine]",
)
@how_to_print
@where_to_run
def suggest_k(
    job_file: str,
    least: int,
    most: int,
    scratch: str | None,
    as_json: bool,
    quiet: bool,
    **where: Any,
) -> None:
    """Try numbers of clusters on a sample of what a JOB reads, and say which are likely.

    A row for each K: how far J lies below that of shuffled documents, the share of documents that
    are nearest to their own cluster without them, the silhouette, how alike fits of two halves are,
    and the answers that a fit without answers contradicts, by kind. The JOB's n_clusters does not
    count; of its output the journal of answers alone is read. A star stands where the range is that
    is likely.
    """
    if least > most:
        raise click.UsageError(f"--least must be at most --most, got {least} and {most}")
    way = scheduler_option(where)
    with shown_progress(quiet=quiet) as tell:
        from hmrf_dask.fit.suggestion import Span
        from hmrf_dask.jobs.inputs import gather, load_job
        from hmrf_dask.jobs.suggest import suggest_for

        inputs = gather(load_job(job_file), job_file)
        with connected_to(way, inputs.job.cluster):
            result = suggest_for(inputs, Span(least, most), scratch=scratch, tell=tell)
    print_result(result, as_json=as_json, quiet=quiet)


@click.command(
    cls=HmrfCommand,
    short_help="Describe an output: releases, how far a run is.",
    epilog=examples(
        "hmrf-dask inspect tickets-clusters/out",
        "hmrf-dask inspect tickets-clusters/out --watch",
    ),
)
@click.argument("place", metavar="OUTPUT_OR_RUN", type=PlaceOfOutput())
@click.option("--verify", is_flag=True, help="Hash every file of the release, not only small ones.")
@click.option("--watch", is_flag=True, help="Repeat every two seconds until the run ends.")
@how_to_print
def inspect(place: str, verify: bool, watch: bool, as_json: bool, quiet: bool) -> None:
    """Describe the output of a job or a run directory: releases, who writes it, how far it is.

    A damaged release ends it with 78: the sizes of all its files are compared, and small ones (8
    MiB together) are hashed; all of them with --verify.

    It reads files alone, so it can be asked of a run on any machine while it works. With --json or
    --quiet, --watch waits for the end and prints that alone.
    """
    from hmrf_dask.jobs.places import inspect_output

    while True:
        inspection = inspect_output(place, verify=verify)
        ended = not (watch and inspection["running"])
        if ended or not as_json:
            print_result(inspection, as_json=as_json, quiet=quiet)
        if ended:
            return
        time.sleep(2)


@click.command(
    cls=HmrfCommand,
    short_help="Give new rows the clusters of a model.",
    epilog=examples(
        "hmrf-dask predict runs/first more.npz --out more",
        "hmrf-dask predict model more.npy --out s3://bucket/more --threads 4",
    ),
)
@click.argument("model", type=Place())
@click.argument("rows", type=Place())
@click.option("--out", type=Place(), required=True, help="Folder or URL for assignments/*.parquet.")
@how_to_print
@where_to_run
def predict(model: str, rows: str, out: str, as_json: bool, quiet: bool, **where: Any) -> None:
    """Give every document of ROWS the nearest cluster of MODEL.

    MODEL is a folder that `save` wrote, the run directory of a fit, or the output of a job, whose
    last release counts: clusters are called by its ids, which stay from run to run. ROWS is what
    `fit` takes. New texts of a job: `run --predict`.
    """
    with shown_progress(quiet=quiet), connected_to(where):
        from hmrf_dask.jobs.fit_files import predict_files
        from hmrf_dask.storage.addresses import refuse_memory

        refuse_memory(out, "--out")
        result = predict_files(model, rows, out)
    print_result(result, as_json=as_json, quiet=quiet)


@click.command(
    cls=HmrfCommand,
    short_help="Compare assignments with known classes.",
    epilog=examples(
        "hmrf-dask evaluate tickets-clusters/out truth.csv",
        "hmrf-dask evaluate runs/first truth.csv --pairs pairs.csv",
    ),
)
@click.argument("assignments", type=Place())
@click.argument("truth", type=Place())
@click.option("--id-column", help="Of the known classes.  [default: doc_id, or else id]")
@click.option("--label-column", default="label", show_default=True, help="Of the known classes.")
@click.option(
    "--pairs", type=Place(), help="Pair file: also measure the documents that no pair names."
)
@how_to_print
@where_to_run
def evaluate(
    assignments: str,
    truth: str,
    id_column: str | None,
    label_column: str,
    pairs: str | None,
    as_json: bool,
    quiet: bool,
    **where: Any,
) -> None:
    """Compare ASSIGNMENTS with the known classes in TRUTH: NMI, pairwise F, adjusted Rand.

    ASSIGNMENTS is a run directory, the output of a job, or a folder of Parquet files with columns
    doc_id and cluster. TRUTH is CSV, JSONL or Parquet with an id and a class.
    """
    with shown_progress(quiet=quiet), connected_to(where):
        from hmrf_dask.jobs.evaluate_files import evaluate_files

        result = evaluate_files(
            assignments, truth, id_column=id_column, label_column=label_column, pairs=pairs
        )
    print_result(result, as_json=as_json, quiet=quiet)


@click.command(
    cls=HmrfCommand,
    short_help="Cluster docstrings that are installed.",
    epilog=examples(
        "hmrf-dask demo --resume",
        "hmrf-dask demo --folder try --threads 2",
    ),
)
@click.option(
    "--folder",
    type=Place(),
    default="hmrf-demo",
    show_default=True,
    help="Where rows, answers and the run go.",
)
@click.option("--fresh/--resume", default=True, show_default=True, help="Start again, or resume.")
@how_to_print
@where_to_run
def demo(folder: str, fresh: bool, as_json: bool, quiet: bool, **where: Any) -> None:
    """Cluster the docstrings of numpy, scipy and scikit-learn, with 300 simulated answers."""
    with shown_progress(quiet=quiet) as tell:
        tell({"step": START})
        from hmrf_dask.jobs.demo import run_demo

        with connected_to(where):
            result = run_demo(folder, fresh=fresh, tell=tell)
    print_result(result, as_json=as_json, quiet=quiet)


@click.command(
    cls=HmrfCommand,
    short_help="Print what completes commands by the Tab key.",
    epilog=examples(
        "hmrf-dask completion bash >> ~/.bashrc",
        "hmrf-dask completion fish > ~/.config/fish/completions/hmrf-dask.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a SHELL, which then completes commands by the Tab key."""
    kind = get_completion_class(shell)
    assert kind is not None
    group = ctx.find_root().command
    click.echo(kind(group, {}, "hmrf-dask", "_HMRF_DASK_COMPLETE").source())


@click.group(
    cls=HmrfGroup,
    context_settings={"help_option_names": HELP},
    epilog=f"{examples('hmrf-dask demo', 'hmrf-dask init tickets.csv')}\n\n{EXIT_CODES}",
)
@click.version_option(package_name="hmrf-dask", prog_name="hmrf-dask")
def hmrf() -> None:
    """Group documents of which some pairs are known to belong together, or not to.

    `demo` shows what comes of it. For documents of yours, `init` a file or folder of theirs: it
    writes a manifest and a job, and says what to type next.
    """


for command in (
    init, check, plan, run, report, label, classify, export, diff, edit, inspect, ask, answers,
    suggest_k, fit, predict, evaluate, demo, completion,
):  # fmt: skip
    hmrf.add_command(command)


def main() -> None:
    """Run the command line, and end the process before Python is taken down.

    Threads of Arrow give back Python's memory a moment after their work; one that does so while
    Python is taken down aborts the process, whatever the command did.
    """
    code = 1  # of what no command expects
    atexit.register(lambda: leave(code))  # the last of all: what is imported later ends before
    try:
        hmrf(prog_name="hmrf-dask")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code > 128:
            leave(code)
        raise
