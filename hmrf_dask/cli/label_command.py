"""`hmrf-dask label`: a page in the browser that asks a person about documents of an output."""

from __future__ import annotations

import click

from hmrf_dask.cli.answers_command import journal_option
from hmrf_dask.cli.group import (
    EndedBySignal,
    HmrfCommand,
    Place,
    PlaceOfOutput,
    Whole,
    examples,
    one_line,
    seen_from_here,
)
from hmrf_dask.parameters import RANGES


@click.command(
    cls=HmrfCommand,
    short_help="Answer questions about an output in a browser.",
    epilog=examples(
        "hmrf-dask label tickets-clusters/out",
        "hmrf-dask label texts --people 3 --port 8000",
    ),
)
@click.argument("output", type=PlaceOfOutput())
@click.option("-n", "questions", type=Whole(RANGES["batch"]), default=25, show_default=True,
              help="Questions of a round, where the release has none.")  # fmt: skip
@click.option("--people", type=click.IntRange(1, 10), default=1, show_default=True,
              help="How many people answer each question.")  # fmt: skip
@journal_option
@click.option("--job", type=Place(), help="The job file, where the release does not say it.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8642, show_default=True,
              help="Port to listen at; 0: any that is free.")  # fmt: skip
@click.option("--no-browser", is_flag=True, help="Print the address only.")
@click.option("--quiet", "-q", is_flag=True, help="Print the address, errors and warnings only.")
def label(
    output: str,
    questions: int,
    people: int,
    journal: str | None,
    job: str | None,
    host: str,
    port: int,
    no_browser: bool,
    quiet: bool,
) -> None:
    """Ask which documents of an OUTPUT belong together, one key an answer, until Ctrl-C.

    OUTPUT is that of a job, or a folder of texts, for which a job is made and run first. Each
    answer is saved in its journal before the next question comes; the next run takes it, and the
    page can start that run. Questions are those of the last release, or chosen now. Several people
    may answer at once, each under a name.

    The page listens at this machine alone; from another one use `ssh -L 8642:127.0.0.1:8642`. With
    another --host whoever reads the network reads the documents.
    """
    from hmrf_dask.page.launch import Wanted, label_output
    from hmrf_dask.page.security import LOOPBACK

    def say(words: str) -> None:
        if not quiet:
            click.echo(seen_from_here(one_line(words)), err=True)

    if host not in LOOPBACK:
        click.echo(
            f"warning: {one_line(host)} is reached from other machines, and what is sent there can "
            "be read on its way: prefer ssh -L to a page at 127.0.0.1",
            err=True,
        )
    wanted = Wanted(
        output, questions=questions, people=people, journal=journal, job=job or "", host=host,
        port=port, browser=not no_browser,
    )  # fmt: skip
    try:
        label_output(wanted, say=say, address=click.echo)
    except EndedBySignal:
        raise
    except KeyboardInterrupt:
        say("the page is closed")
