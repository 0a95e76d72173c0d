"""`hmrf-dask demo`: the whole way on documents that are installed with the package."""

from __future__ import annotations

from contextlib import nullcontext
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


@click.command(cls=HmrfCommand, short_help="Cluster docstrings that are installed.")
@click.option(
    "--folder",
    type=Place(),
    default="hmrf-demo",
    show_default=True,
    help="Where rows, answers and the run go.",
)
@click.option("--fresh/--resume", default=True, show_default=True, help="Start again, or go on.")
@how_to_tell
@where_to_run
def demo(folder: str, fresh: bool, as_json: bool, quiet: bool, **where: Any) -> None:
    """Cluster the docstrings of numpy, scipy and scikit-learn, with 300 simulated answers."""
    from hmrf_dask.jobs.demo import run_demo

    def say(step: str) -> None:
        if not quiet:
            click.echo(f"{step} ...", err=True)

    with connected_to(where), shown_progress(quiet=True) if quiet else nullcontext():
        result = run_demo(folder, fresh=fresh, progress=say)
    if as_json:
        print_json(result)
    elif not quiet:
        from hmrf_dask.cli.show import show_demo

        show_demo(result)
