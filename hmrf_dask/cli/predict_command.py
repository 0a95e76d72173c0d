"""`hmrf-dask predict`: clusters of new rows under a saved model."""

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


@click.command(cls=HmrfCommand, short_help="Give new rows the clusters of a model.")
@click.argument("model", type=Place())
@click.argument("rows", type=Place())
@click.option("--out", type=Place(), required=True, help="Folder or URL for assignments/*.parquet.")
@how_to_tell
@where_to_run
def predict(model: str, rows: str, out: str, as_json: bool, quiet: bool, **where: Any) -> None:
    """Give every document of ROWS the nearest cluster of MODEL.

    MODEL is a folder that `save` wrote, the run directory of a fit, or the output of a job, whose
    last release counts: clusters are called by its ids, which stay from run to run. ROWS is what
    `fit` takes. New texts of a job: `run --predict`.
    """
    from hmrf_dask.jobs.fit_files import predict_files
    from hmrf_dask.storage.addresses import refuse_memory

    refuse_memory(out, "--out")
    with shown_progress(quiet=quiet), connected_to(where):
        result = predict_files(model, rows, out)
    if as_json:
        print_json(result)
    elif not quiet:
        from hmrf_dask.cli.show import show_prediction

        show_prediction(result)
