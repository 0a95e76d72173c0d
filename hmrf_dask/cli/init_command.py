"""`hmrf-dask init`: a manifest and a job for documents that have none, and what to type next."""

from __future__ import annotations

import re
from typing import Any

import click

from hmrf_dask.cli.group import HmrfCommand, Place, Whole, examples, how_to_print, print_result
from hmrf_dask.errors import ConfigurationError
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


_ADDRESS = re.compile(r"\s*(postgres(ql)?|sqlite|duckdb|mysql|mongodb|mssql|oracle)[\w+]*:", re.I)
_IN_A_VARIABLE = (
    "the address of a database must be in an environment variable, not on the command line, which "
    "others see and shells keep; export it under a name such as TICKETS_URL, then: hmrf-dask init "
    "--url-env TICKETS_URL"
)


class Documents(Place):
    """A file or folder; the address of a database is refused, and never repeated."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it."""
        if _ADDRESS.match(value):
            raise ConfigurationError(_IN_A_VARIABLE)
        return super().convert(value, param, ctx)


class Variable(click.ParamType[str]):
    """The name of an environment variable.

    Examples
    --------
    >>> Variable().convert("TICKETS_URL", None, None)
    'TICKETS_URL'
    """

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's
        """Return it; what may be an address is refused, and never repeated."""
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
            raise ConfigurationError(_IN_A_VARIABLE)
        return str(value)


@click.command(
    cls=HmrfCommand,
    short_help="Make a job for a file, a folder or a table of documents.",
    epilog=examples(
        "hmrf-dask init tickets.csv",
        "hmrf-dask init tickets.csv --id ticket --text subject,body -k 20",
        "hmrf-dask init --url-env TICKETS_URL --table tickets",
    ),
)
@click.argument("documents", type=Documents(), required=False)
@click.option("--url-env", type=Variable(), metavar="NAME", help="Documents in a database instead: "
              "the environment variable with its address.")  # fmt: skip
@click.option("--table", help="Table or view of that database.  [default: the only one that looks "
              "like documents]")  # fmt: skip
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
    documents: str | None,
    url_env: str | None,
    table: str | None,
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
    be changed; nothing is clustered yet. With --url-env documents are the rows of a table, and the
    folder is made here.
    """
    from hmrf_dask.jobs.new_job import Wanted, job_for

    wanted = Wanted(id_column, text, keep, n_clusters)
    if documents is not None and url_env is None and table is None:
        made = job_for(documents, wanted)
    elif documents is None and url_env is not None:
        from hmrf_dask.jobs.new_sql_job import job_for_table

        made = job_for_table(url_env, table, wanted)
    else:
        raise click.UsageError("give a file or a folder, or --url-env NAME and, if wanted, --table")
    print_result(made, as_json=as_json, quiet=quiet)
