"""`hmrf-dask report`: the report of a release or a fit, made again or compared with another."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Any

import click

from hmrf_dask.cli.group import (
    HmrfCommand,
    Place,
    PlaceOfOutput,
    Whole,
    connected_to,
    examples,
    how_to_print,
    print_result,
    where_to_run,
)
from hmrf_dask.cli.progress import shown_progress
from hmrf_dask.parameters import RANGES


@click.command(
    cls=HmrfCommand,
    short_help="Write the report of an output, and open it.",
    epilog=examples(
        "hmrf-dask report tickets-clusters/out --open",
        "hmrf-dask report tickets-clusters/out --release 7 --compare 3 --folder .",
    ),
)
@click.argument("output", type=PlaceOfOutput())
@click.option("--release", type=Whole(RANGES["release"]), metavar="N",
              help="The release it is about.  [default: the last]")  # fmt: skip
@click.option("--compare", type=Whole(RANGES["release"]), metavar="M",
              help="Compare it with release M.  [default: the one before]")  # fmt: skip
@click.option("--folder", type=Place(), help="Write it there.  [default: next to the release]")
@click.option("--open", "opened", is_flag=True, help="Open it in the browser.")
@how_to_print
@where_to_run
def report(
    output: str,
    release: int | None,
    compare: int | None,
    folder: str | None,
    opened: bool,
    as_json: bool,
    quiet: bool,
    **where: Any,
) -> None:
    """Write report.html and report.json of an OUTPUT: what its clusters are, and how good.

    OUTPUT is that of a job, or the run directory of a fit. Every run writes its report by itself;
    this makes it again, for another release, or compared with an older one. It is one file that
    needs nothing else: open it in a browser, or send it. It shows texts of documents.
    """
    if opened and "://" in (folder or output):
        raise click.UsageError("--open needs a report on this machine; give --folder FOLDER, too")
    from hmrf_dask.jobs.report import write_report

    with shown_progress(quiet=quiet), connected_to(where):
        written = write_report(output, number=release, compare=compare, folder=folder)
    print_result(written, as_json=as_json, quiet=quiet)
    if opened:
        webbrowser.open(Path(written.html).absolute().as_uri())
