"""`hmrf-dask init`: a manifest and a job for documents that have none, and what to type next."""

from __future__ import annotations

from typing import Any

import click

from hmrf_dask.cli.group import HmrfCommand, Place, Whole, examples, how_to_print, print_result
from hmrf_dask.parameters import PARAMETERS, Range

N_CLUSTERS = PARAMETERS["n_clusters"].values
assert isinstance(N_CLUSTERS, Range)


class Columns(click.ParamType[Any]):
    """Names of columns with commas between.

    Examples
    --------
    >>> Columns().convert("subject, body", None, None)
    ('subject', 'body')
    """

    name = "column,column"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the names."""
        if isinstance(value, tuple):
            return value
        names = tuple(name.strip() for name in value.split(","))
        if not all(names):
            self.fail(f"must be names of columns with commas between, got {value!r}", param, ctx)
        return names


@click.command(
    cls=HmrfCommand,
    short_help="Make a job for a file or folder of documents.",
    epilog=examples(
        "hmrf-dask init tickets.csv",
        "hmrf-dask init tickets.csv --id ticket --text subject,body -k 20",
    ),
)
@click.argument("documents", type=Place())
@click.option("--id", "id_column", help="Column of ids.  [default: seen from the file]")
@click.option("--text", type=Columns(), default=(), help="Columns of text, which are joined.  "
              "[default: seen from the file]")  # fmt: skip
@click.option("--keep", type=Columns(), default=(), help="Columns to have next to the clusters.  "
              "[default: none]")  # fmt: skip
@click.option(
    "-k",
    "--n-clusters",
    type=Whole(N_CLUSTERS),
    help="How many clusters.  [default: chosen on a sample]",
)
@how_to_print
def init(
    documents: str,
    id_column: str | None,
    text: tuple[str, ...],
    keep: tuple[str, ...],
    n_clusters: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Look at DOCUMENTS, a file or folder, and write a manifest and a job for them.

    CSV, JSON Lines and Parquet have a document in each row; of a folder of text files each one is a
    document. Both files are made in a new folder next to the documents, with comments on what may
    be changed; nothing is clustered yet.
    """
    from hmrf_dask.jobs.new_job import Wanted, job_for

    wanted = Wanted(id_column, text, keep, n_clusters)
    print_result(job_for(documents, wanted), as_json=as_json, quiet=quiet)
