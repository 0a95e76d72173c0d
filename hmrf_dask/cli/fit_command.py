"""`hmrf-dask fit`: from rows in a file to assignments, with every parameter of the method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from hmrf_dask.cli.group import (
    HmrfCommand,
    Number,
    Place,
    Whole,
    connected_to,
    examples,
    how_to_print,
    print_result,
    where_to_run,
    with_options,
)
from hmrf_dask.cli.progress import shown_progress
from hmrf_dask.cli.watching import watch_options, watched, watching
from hmrf_dask.parameters import (
    FLAG,
    PARAMETERS,
    REQUIRED,
    SWITCH,
    Parameter,
    Range,
    in_files_of,
    problem_of_cost,
)

ON_OFF: dict[str, str | bool] = {"auto": "auto", "on": True, "off": False}
ON_OR_OFF: dict[bool | int | str, str] = {value: name for name, value in ON_OFF.items()}
SHORT = {"n_clusters": ("-k",)}


def option_of(parameter: Parameter) -> Callable[[Any], Any]:
    """Return the option of a parameter: its type, default and help are those of the table.

    Examples
    --------
    >>> [option.opts[0] for option in fit.params if option.name == "must_link_cost"]
    ['--must-link-cost']
    """
    name, kind, help_text = parameter.name, _kind_of(parameter), parameter.help
    flag = f"--{name.replace('_', '-')}"
    if kind is None:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    if isinstance(kind, Place):
        help_text += " Or an .npy file of centroids."
    if parameter.in_files is REQUIRED:
        return click.option(flag, *SHORT.get(name, ()), type=kind, required=True, help=help_text)
    default = parameter.default if parameter.in_files is None else parameter.in_files
    return click.option(flag, type=kind, default=default, show_default=True, help=help_text)


def _kind_of(parameter: Parameter) -> click.ParamType[Any] | None:
    """Return what the option of a parameter takes; None: it is on or off."""
    values = parameter.values
    if parameter.is_cost:
        return Number(problem_of_cost)
    if isinstance(values, Range):
        names = parameter.names
        return Whole(values, names) if values.whole else Number(values.problem, names)
    if parameter.name == "init":
        return Place()
    if values == FLAG:
        return None
    return click.Choice([ON_OR_OFF.get(value, str(value)) for value in values])


@click.command(
    cls=HmrfCommand,
    short_help="Cluster rows (.npz, .npy, Parquet blocks).",
    epilog=examples(
        "hmrf-dask fit rows.npz -k 12 --run-dir runs/first",
        "hmrf-dask fit rows.npz -k 12 --pairs pairs.csv --run-dir runs/second --fresh",
    ),
)
@click.argument("rows", type=Place())
@click.option(
    "--pairs",
    type=Place(),
    help="CSV, JSONL or Parquet, path or URL: a, b, kind, maybe weight and trust; or id, label.",
)
@click.option(
    "--run-dir", type=Place(), required=True, help="Where every iteration and the result are kept."
)
@with_options(*map(option_of, in_files_of("HMRFKMeans")))
@click.option("--fresh/--resume", default=False, show_default=True, help="Start again, or resume.")
@how_to_print
@where_to_run
@watch_options
def fit(
    rows: str,
    pairs: str | None,
    run_dir: str,
    fresh: bool,
    as_json: bool,
    quiet: bool,
    **parameters: Any,
) -> None:
    """Fit HMRF-KMeans on ROWS and write a cluster for every document.

    ROWS is a scipy sparse matrix (.npz), a dense array (.npy) or a folder of Parquet blocks. The
    pairs name document ids or, for .npz and .npy, row numbers; their kind is must (same, 1, true,
    yes) or cannot (different, 0, false, no). The same command again resumes where a killed run
    stopped.
    """
    watch = watching(parameters)
    where = {name: parameters.pop(name) for name in [*parameters] if name not in PARAMETERS}
    for name in parameters:
        if PARAMETERS[name].values[: len(SWITCH)] == SWITCH:
            parameters[name] = ON_OFF.get(parameters[name], parameters[name])
    with shown_progress(quiet=quiet) as show, watched(show, watch) as tell, connected_to(where):
        from hmrf_dask.cli.connect import reported_by_dask
        from hmrf_dask.jobs import fit_files
        from hmrf_dask.storage.addresses import refuse_memory

        refuse_memory(run_dir, "--run-dir")
        with reported_by_dask(watch.get("performance_report")):
            result = fit_files.fit_files(rows, pairs, run_dir, fresh=fresh, tell=tell, **parameters)
    print_result(result, as_json=as_json, quiet=quiet)
