"""`hmrf-dask inspect`: what an output or a run directory holds, and how far a run is."""

from __future__ import annotations

import time

import click

from hmrf_dask.cli.group import print_json


@click.command()
@click.argument("place", metavar="OUTPUT_OR_RUN")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--watch", is_flag=True, help="Look again every two seconds until the run ends.")
def inspect(place: str, as_json: bool, watch: bool) -> None:
    """Tell of the output of a job or a run directory: releases, who writes it, how far it is.

    It reads files alone, so it can be asked of a run on any machine while it works.
    """
    from hmrf_dask.jobs.inspect_output import inspect_output

    while True:
        found = inspect_output(place)
        if as_json:
            print_json(found)
        else:
            from hmrf_dask.cli.show_report import show_inspection

            show_inspection(found)
        if not (watch and found["running"]):
            return
        time.sleep(2)
