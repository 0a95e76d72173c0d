"""`hmrf-dask check`: what a job's documents, answers and output look like, before any work."""

from __future__ import annotations

import click

from hmrf_dask.cli.group import HmrfCommand, Place, how_to_tell, one_line, print_json
from hmrf_dask.cli.progress import shown_progress


@click.command(cls=HmrfCommand, short_help="Look at what a job or a manifest names.")
@click.argument("file", metavar="JOB|MANIFEST", type=Place())
@click.option("--all", "everything", is_flag=True, help="Read every document, not a sample.")
@how_to_tell
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
    output lies apart from what it reads, is this job's, and can be begun. It ends with the exit
    code that a run would have: 78 where it could not write to its output, 65 if it would stop at
    what was read.
    """
    from hmrf_dask.jobs.check import check_file

    with shown_progress(quiet=quiet) as tell:
        found = check_file(file, everything=everything, tell=tell)
    if as_json:
        print_json(found)
    elif not quiet:
        from hmrf_dask.cli.show_findings import show_findings

        show_findings(found)
    if quiet:
        for problem in found.problems:
            click.echo(f"error: {one_line(problem)}", err=True)
    context.exit(found.exit_code)
