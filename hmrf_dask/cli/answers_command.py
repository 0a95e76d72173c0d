"""`hmrf-dask answers`: the journal of an output to files of other programs, and back."""

from __future__ import annotations

import click

from hmrf_dask.cli.group import (
    HELP,
    HmrfCommand,
    Place,
    PlaceOfOutput,
    examples,
    how_to_print,
    print_result,
)

journal_option = click.option(
    "--journal",
    type=Place(),
    help="Another journal, where the output cannot be written.  [default: the output's own]",
)


@click.group(
    short_help="Write the answers of an output to a file, or read them from one.",
    context_settings={"help_option_names": HELP},
    epilog=examples(
        "hmrf-dask answers export tickets-clusters/out answers.csv",
        "hmrf-dask answers import tickets-clusters/out answers.csv",
    ),
)
def answers() -> None:
    """Write the answers in the journal of an output to a file, or read them from one.

    A FILE is named .jsonl (lines of a journal), .csv (pairs: a, b, kind, annotator, time) or .json
    (tasks of Label Studio with Choices, exported as JSON).
    """


@answers.command(
    "export",
    cls=HmrfCommand,
    short_help="Write the answers that stand to a file.",
    epilog=examples(
        "hmrf-dask answers export tickets-clusters/out answers.csv",
        "hmrf-dask answers export tickets-clusters/out tasks.json",
    ),
)
@click.argument("output", type=PlaceOfOutput())
@click.argument("file", type=Place())
@journal_option
@how_to_print
def export_command(output: str, file: str, journal: str | None, as_json: bool, quiet: bool) -> None:
    """Write the answers of OUTPUT that nobody took back to a FILE: .jsonl, .csv or .json.

    CSV has the pairs that answers say, so it is an answers file for other jobs; do not give it to
    the job of OUTPUT itself, which takes its journal anyway.
    """
    from hmrf_dask.jobs.exchange import export_answers

    print_result(export_answers(output, file, journal=journal), as_json=as_json, quiet=quiet)


@answers.command(
    "import",
    cls=HmrfCommand,
    short_help="Add the answers in a file to the journal.",
    epilog=examples(
        "hmrf-dask answers import tickets-clusters/out answers.csv",
        "hmrf-dask answers import tickets-clusters/out labelled.json",
    ),
)
@click.argument("output", type=PlaceOfOutput())
@click.argument("file", type=Place())
@journal_option
@how_to_print
def import_command(output: str, file: str, journal: str | None, as_json: bool, quiet: bool) -> None:
    """Add the answers in a FILE (.jsonl, .csv or .json) to the journal of OUTPUT.

    Annotators and times stay as they are. What was imported before is not added again, and rows
    without an answer, or about documents that no release had, are left out; where one row is wrong,
    nothing is added. A run uses them next:
    answers to questions that were asked here by what all of them say together, others with their
    own trust (column trust), or their annotator's.
    """
    from hmrf_dask.jobs.exchange import import_answers

    print_result(import_answers(output, file, journal=journal), as_json=as_json, quiet=quiet)
