"""`hmrf-dask fit`: from rows in a file to assignments, with every parameter of the method."""

from __future__ import annotations

from typing import Any

import click

from hmrf_dask.cli.group import (
    Cost,
    HmrfCommand,
    Place,
    Whole,
    connected_to,
    how_to_tell,
    print_json,
    where_to_run,
    with_options,
)
from hmrf_dask.cli.progress import shown_progress

SWITCH = click.Choice(["auto", "on", "off"])
ON_OFF: dict[str, str | bool] = {"auto": "auto", "on": True, "off": False}

parameters = with_options(
    click.option("--n-clusters", "-k", type=Whole("n_clusters"), required=True),
    click.option(
        "--distortion",
        type=click.Choice(["cosine", "i-divergence", "kl", "euclidean", "pearson"]),
        default="cosine",
        show_default=True,
    ),
    click.option(
        "--penalty",
        type=click.Choice(["distance", "potts"]),
        default="distance",
        show_default=True,
        help="A violated pair costs by its distance, or the same whatever it is.",
    ),
    click.option("--must-link-cost", type=Cost(), default=1.0, show_default=True),
    click.option("--cannot-link-cost", type=Cost(), default=1.0, show_default=True),
    click.option(
        "--learn-weights",
        type=SWITCH,
        default="auto",
        show_default=True,
        help="Weights of features; auto: where the distortion gains by it.",
    ),
    click.option(
        "--init",
        type=Place(),
        default="auto",
        show_default=True,
        help="auto, neighborhoods, k-means++, random, or an .npy file of centroids.",
    ),
    click.option("--n-init", type=Whole("n_init"), default=10, show_default=True),
    click.option("--refine", type=SWITCH, default="auto", show_default=True),
    click.option("--max-iter", type=Whole("max_iter"), default=100, show_default=True),
    click.option(
        "--closure/--no-closure",
        default=True,
        show_default=True,
        help="Same and same is same, same and different is different.",
    ),
    click.option(
        "--on-conflict",
        type=click.Choice(["raise", "keep", "drop"]),
        default="raise",
        show_default=True,
        help="What to do with pairs that contradict each other.",
    ),
    click.option(
        "--inference",
        type=click.Choice(["icm", "belief-propagation"]),
        default="icm",
        show_default=True,
        help="Messages between linked documents before the E-step's moves, or moves alone.",
    ),
    click.option("--random-state", type=Whole("random_state"), default=0, show_default=True),
)


@click.command(cls=HmrfCommand, short_help="Cluster rows (.npz, .npy, Parquet blocks).")
@click.argument("rows", type=Place())
@click.option(
    "--pairs", type=Place(), help="CSV, JSONL or Parquet, path or URL: a, b, kind, maybe weight."
)
@click.option(
    "--run-dir", type=Place(), required=True, help="Where every iteration and the result are kept."
)
@parameters
@click.option("--fresh/--resume", default=False, show_default=True, help="Start again, or go on.")
@how_to_tell
@where_to_run
def fit(
    rows: str,
    pairs: str | None,
    run_dir: str,
    fresh: bool,
    as_json: bool,
    quiet: bool,
    threads: int | None,
    processes: int | None,
    scheduler: str | None,
    scheduler_file: str | None,
    **given: Any,
) -> None:
    """Fit HMRF-KMeans on ROWS and write a cluster for every document.

    ROWS is a scipy sparse matrix (.npz), a dense array (.npy) or a folder of Parquet blocks. The
    pairs name document ids or, for .npz and .npy, row numbers; their kind is must (same, 1, true,
    yes) or cannot (different, 0, false, no). The same command again goes on where a killed run
    stopped.
    """
    from hmrf_dask.jobs import fit_files
    from hmrf_dask.storage.addresses import refuse_memory

    refuse_memory(run_dir, "--run-dir")
    for name in ("learn_weights", "refine"):
        given[name] = ON_OFF[given[name]]
    where = {
        "threads": threads,
        "processes": processes,
        "scheduler": scheduler,
        "scheduler_file": scheduler_file,
    }
    with shown_progress(quiet=quiet) as tell, connected_to(where):
        result = fit_files.fit_files(rows, pairs, run_dir, fresh=fresh, tell=tell, **given)
    if as_json:
        print_json(result)
    elif not quiet:
        from hmrf_dask.cli.show import show_fit

        show_fit(result)
