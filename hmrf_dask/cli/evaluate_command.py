"""`hmrf-dask evaluate`: how well assignments fit known classes."""

from __future__ import annotations

from typing import Any

import click

from hmrf_dask.cli.group import (
    HmrfCommand,
    Place,
    connected_to,
    how_to_tell,
    print_json,
    where_to_run,
)
from hmrf_dask.cli.progress import shown_progress


@click.command(cls=HmrfCommand, short_help="Compare assignments with known classes.")
@click.argument("assignments", type=Place())
@click.argument("truth", type=Place())
@click.option("--id-column", help="Of the known classes.  [default: doc_id, or else id]")
@click.option("--label-column", default="label", show_default=True, help="Of the known classes.")
@click.option(
    "--pairs", type=Place(), help="Pair file: tell of the documents that no pair names, too."
)
@how_to_tell
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
    from hmrf_dask.jobs.evaluate_files import evaluate_files

    with shown_progress(quiet=quiet), connected_to(where):
        result = evaluate_files(
            assignments, truth, id_column=id_column, label_column=label_column, pairs=pairs
        )
    if as_json:
        print_json(result)
    elif not quiet:
        from hmrf_dask.cli.show import show_agreement

        show_agreement(result)
