"""`hmrf-dask inspect`: what an output or a run directory holds, and how far a run is."""

from __future__ import annotations

import time

import click

from hmrf_dask.cli.group import HmrfCommand, Place, how_to_tell, print_json


@click.command(cls=HmrfCommand, short_help="Tell of an output: releases, how far a run is.")
@click.argument("place", metavar="OUTPUT_OR_RUN", type=Place())
@click.option("--verify", is_flag=True, help="Hash every file of the release, not only small ones.")
@click.option("--watch", is_flag=True, help="Look every two seconds until the run ends.")
@how_to_tell
def inspect(place: str, verify: bool, watch: bool, as_json: bool, quiet: bool) -> None:
    """Tell of the output of a job or a run directory: releases, who writes it, how far it is.

    A damaged release ends it with 78: the sizes of all its files are looked at, and those that are
    small (8 MiB together) are hashed; all of them with --verify.

    It reads files alone, so it can be asked of a run on any machine while it works. With --json or
    --quiet, --watch waits for the end, and only that is told.
    """
    from hmrf_dask.jobs.places import inspect_output

    while True:
        found = inspect_output(place, verify=verify)
        ended = not (watch and found["running"])
        if as_json and ended:
            print_json(found)
        elif not (as_json or quiet):
            from hmrf_dask.cli.show_report import show_inspection

            show_inspection(found)
        if ended:
            return
        time.sleep(2)
