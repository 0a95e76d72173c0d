"""The job of an output run again for the answers since: in a process of its own, one at a time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from hmrf_dask.answers.journal import journal_address, open_journal
from hmrf_dask.errors import (
    ClusterError,
    ConfigurationError,
    HeldError,
    HmrfError,
    InvalidInputError,
)
from hmrf_dask.jobs.inputs import load_job
from hmrf_dask.jobs.journal import KEY
from hmrf_dask.jobs.places import inspect_output
from hmrf_dask.progress import Tell, nothing
from hmrf_dask.releases.lock import Holder, holder_of
from hmrf_dask.storage.addresses import absolute_url

POLL: Final = 1.0  # seconds between two reports of how far it is
_ERRORS: Final = {65: InvalidInputError, 78: ConfigurationError}


def run_again(output: str, job: str, *, tell: Tell = nothing) -> dict[str, Any]:
    """Run a job until the last release of its output has all answers that were given before.

    Where another run holds the output it is waited for. A run that was killed before goes on with
    the answers that it had, and another one takes the answers since.

    Parameters
    ----------
    output : str
    job : str
        The job file; of a release, `hmrf_dask.jobs.texts.Texts.job`.
    tell : callable, optional
        Called about every second with `step`, `done` and `of`.

    Returns
    -------
    dict
        The report of the last run.

    Raises
    ------
    HmrfError
        What the run ended with, in its words.
    """
    if (mode := load_job(job).mode) != "fit":
        raise ConfigurationError(
            f"a refit must have a job of mode fit, got {job} of mode {mode}; change its mode"
        )
    url = absolute_url(output)
    wanted = open_journal(journal_address(url)).end
    while True:
        _wait(url, tell)
        report = _report(url, job, tell)
        taken = {} if report is None else report["answers"].get(KEY, {})
        if report is not None and (
            report["status"] == "up to date" or taken.get("end", 0) >= wanted
        ):
            return report


def _wait(output: str, tell: Tell) -> None:
    """Wait until nobody writes an output, saying who does."""
    while (holder := holder_of(output)) is not None:
        tell({"step": waits_for(holder), "done": 0, "of": 0})
        time.sleep(POLL)


def waits_for(holder: Holder) -> str:
    """Return in words whose run is waited for."""
    process = holder.process
    return (
        f"waiting for run {holder.run} of {process.user} on {process.host}, which writes the "
        f"output since {holder.since}"
    )


def _report(output: str, job: str, tell: Tell) -> dict[str, Any] | None:
    """Run the job once; return its report, None where another run was faster."""
    code, out, err = _ended([job, "--output", output, "--json"], output, tell)
    if code == 0:
        report: dict[str, Any] = json.loads(out)
        return report
    if code == HeldError.exit_code and holder_of(output) is not None:
        return None
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    words = lines[-1].removeprefix("error: ") if lines else f"the run ended with code {code}: {err}"
    raise _ERRORS.get(code, ClusterError)(words)


def _ended(arguments: Sequence[str], output: str, tell: Tell) -> tuple[int, str, str]:
    """Return how a run ended, and what it printed; it ends with this process."""
    command = [sys.executable, "-m", "hmrf_dask", "run", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            return _watched(process, output, tell)
        except BaseException:
            process.terminate()  # it lets go of the output
            raise


def _watched(process: subprocess.Popen[str], output: str, tell: Tell) -> tuple[int, str, str]:
    while True:
        try:
            out, err = process.communicate(timeout=POLL)
        except subprocess.TimeoutExpired:
            tell(_step(output))
        else:
            return process.returncode, out, err


def _step(output: str) -> dict[str, Any]:
    """Return how far the run is that writes an output."""
    try:
        progress = inspect_output(output)["progress"] or {}
    except HmrfError:  # before there is anything, or while the last release is replaced
        progress = {}
    step = progress.get("step") or {"step": "starting", "done": 0, "of": 0}
    return {name: step[name] for name in ("step", "done", "of")}
