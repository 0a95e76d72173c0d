"""The commands `hmrf-dask …` and `dask hmrf …`: thin layers over the library.

Results go to stdout, progress and warnings to stderr. Everything heavy is imported inside the
command that needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TextIO, TypeVar

import click

from hmrf_dask.errors import HmrfError, HmrfWarning

if TYPE_CHECKING:
    from hmrf_dask.jobs.demo import DemoResult
    from hmrf_dask.jobs.fit_files import FitResult

P = ParamSpec("P")
R = TypeVar("R")

INTERRUPTED = 130  # what shells give a command that Ctrl-C ended
EXIT_CODES = "Exit codes: 0 done, 2 usage, 65 bad data, 75 try again, 78 bad configuration."


class HmrfGroup(click.Group):
    """A group whose errors and warnings are one clear line on stderr, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; end with the exit code of the error's class."""
        with _warnings_as_lines():
            try:
                return super().invoke(ctx)
            except HmrfError as error:
                click.echo(f"error: {_one_line(error)}", err=True)
                ctx.exit(error.exit_code)
            except KeyboardInterrupt:
                click.echo("interrupted; what is committed stays in the run directory", err=True)
                ctx.exit(INTERRUPTED)


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    with warnings.catch_warnings():
        show_as_python_does = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, HmrfWarning):
                click.echo(f"warning: {_one_line(message)}", err=True)
            else:
                show_as_python_does(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        warnings.simplefilter("always", HmrfWarning)
        yield


def where_to_run(command: Callable[P, R]) -> Callable[P, R]:
    """Add the options that say which Dask scheduler does the work."""
    for option in (
        click.option("--scheduler-file", type=click.Path(exists=True), help="File with it."),
        click.option("--scheduler", metavar="ADDRESS", help="A running dask scheduler."),
        click.option("--processes", type=click.IntRange(1), help="Worker processes here."),
        click.option("--threads", type=click.IntRange(1), help="Threads here (the default: all)."),
    ):
        command = option(command)
    return command


@click.group(
    cls=HmrfGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
@click.version_option(package_name="hmrf-dask", prog_name="hmrf-dask")
def hmrf() -> None:
    """Group documents, told of some pairs that they belong together or do not."""


@hmrf.command()
@click.option(
    "--folder", default="hmrf-demo", show_default=True, help="Where rows, answers and the run go."
)
@click.option("--fresh/--resume", default=True, show_default=True, help="Start again, or go on.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@where_to_run
def demo(folder: str, fresh: bool, as_json: bool, **where: Any) -> None:
    """Cluster the docstrings of numpy, scipy and scikit-learn, with 300 simulated answers."""
    from hmrf_dask.jobs.demo import run_demo

    with _connected(where):
        result = run_demo(folder, fresh=fresh, progress=_say)
    if as_json:
        _print_json(result)
    else:
        from hmrf_dask.cli.show import show_demo

        show_demo(result)


@hmrf.command()
@click.argument("rows")
@click.option("--pairs", type=click.Path(exists=True), help="CSV or Parquet: a,b,kind[,weight].")
@click.option("--n-clusters", type=click.IntRange(1), required=True)
@click.option("--run-dir", required=True, help="Where every iteration and the result are kept.")
@click.option("--distortion", default="cosine", show_default=True)
@click.option(
    "--on-conflict",
    type=click.Choice(["raise", "keep", "drop"]),
    default="raise",
    show_default=True,
    help="What to do with pairs that contradict each other.",
)
@click.option("--random-state", type=click.IntRange(0), default=0, show_default=True)
@click.option("--fresh/--resume", default=False, show_default=True, help="Start again, or go on.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@where_to_run
def fit(
    rows: str,
    pairs: str | None,
    n_clusters: int,
    run_dir: str,
    distortion: str,
    on_conflict: str,
    random_state: int,
    fresh: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Fit HMRF-KMeans on ROWS and write a cluster for every document.

    ROWS is a scipy sparse matrix (.npz), a dense array (.npy) or a folder of Parquet blocks. The
    pairs name document ids or, for .npz and .npy, row numbers; their kind is must or cannot. The
    same command again goes on where a killed run stopped.
    """
    from hmrf_dask.jobs.fit_files import fit_files

    with _log_on_stderr(), _connected(where):
        result = fit_files(
            rows,
            pairs,
            run_dir,
            fresh=fresh,
            n_clusters=n_clusters,
            distortion=distortion,
            on_conflict=on_conflict,
            random_state=random_state,
        )
    if as_json:
        _print_json(result)
    else:
        from hmrf_dask.cli.show import show_fit

        show_fit(result)


def _connected(where: dict[str, Any]) -> AbstractContextManager[None]:
    given = [f"--{name.replace('_', '-')}" for name, value in where.items() if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other; give one of them")
    from hmrf_dask.cli.connect import connected

    return connected(**where)


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Show what the loop logs, one line for every start and every iteration."""
    log = logging.getLogger("hmrf_dask")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate


def _say(step: str) -> None:
    click.echo(f"{step} ...", err=True)


def _print_json(result: DemoResult | FitResult) -> None:
    from dataclasses import asdict

    click.echo(json.dumps(asdict(result)))


def main() -> None:
    """Run the command line."""
    hmrf(prog_name="hmrf-dask")
