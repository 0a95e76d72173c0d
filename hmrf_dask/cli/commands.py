"""The commands `hmrf-dask …` and `dask hmrf …`: thin layers over the library.

Results go to stdout, progress and warnings to stderr. Everything heavy is imported inside the
command that needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import click

from hmrf_dask.cli.check_command import check
from hmrf_dask.cli.completion_command import completion
from hmrf_dask.cli.demo_command import demo
from hmrf_dask.cli.endings import leave
from hmrf_dask.cli.evaluate_command import evaluate
from hmrf_dask.cli.fit_command import fit
from hmrf_dask.cli.group import EXIT_CODES, HmrfGroup
from hmrf_dask.cli.inspect_command import inspect
from hmrf_dask.cli.predict_command import predict
from hmrf_dask.cli.run_command import run


@click.group(
    cls=HmrfGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
@click.version_option(package_name="hmrf-dask", prog_name="hmrf-dask")
def hmrf() -> None:
    """Group documents, told of some pairs that they belong together or do not.

    `demo` shows what comes of it. For documents of yours write a manifest and a job file, as the
    README shows them, then `check` and `run` the job.
    """


for command in (run, check, inspect, fit, predict, evaluate, demo, completion):
    hmrf.add_command(command)


def main() -> None:
    """Run the command line."""
    try:
        hmrf(prog_name="hmrf-dask")
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > 128:
            leave(end.code)
        raise
