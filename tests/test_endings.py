"""Commands that get a signal to end, whose reader goes away, or whose store fails: one line."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from hmrf_dask.cli.group import (
    EndedBySignal,
    HmrfCommand,
    HmrfGroup,
    ended_by_signals,
    finished_first,
)
from tests.support.job_corpus import JobCorpus
from tests.support.long_cases import long

ROOT = Path(__file__).parents[1]
AGAIN = "run it again: it resumes where it stopped\n"


def started(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hmrf_dask", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, text=True, stderr=subprocess.PIPE, start_new_session=True, **more
    )


@pytest.mark.parametrize(
    ("where", "number", "group"),
    [("--threads=1", signal.SIGTERM, False), *long(("--processes=1", signal.SIGHUP, True))],
)
def test_a_signal_ends_a_run_in_one_line_and_gives_the_output_up(
    tmp_path: Path, where: str, number: signal.Signals, group: bool
) -> None:
    endless = {"n_clusters": 3, "n_init": 200}  # the signal comes before the end
    job = JobCorpus(tmp_path).write_all(200, 20, method=endless)
    arguments = ("run", str(job), where, "--quiet", "--output", str(tmp_path / "out"))
    process = started(*arguments, stdout=subprocess.DEVNULL)
    holders = tmp_path / "out" / "holders"
    while process.poll() is None and not (holders / "00001.beat").exists():
        time.sleep(0.01)
    (os.killpg if group else os.kill)(process.pid, number)
    _, error = process.communicate()
    assert (process.returncode, error) == (128 + number, f"ended by {number.name}; {AGAIN}")
    assert (holders / "00001.done").exists()


def test_what_a_command_leaves_is_removed_without_a_word() -> None:
    code = (
        "import os, multiprocessing; {}; lock = multiprocessing.get_context('spawn').Lock(); "
        "os._exit(130)"
    )
    said = []
    for first in ("import hmrf_dask.cli.group as group; group.start_silent_tracker()", "pass"):
        done = subprocess.run(
            [sys.executable, "-c", code.format(first)], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        said.append(done.stderr)
    assert said[0] == ""
    assert "leaked semaphore" in said[1]  # or Python has changed, and nothing is to be silenced


def test_a_pipe_that_nobody_reads_is_no_fault() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as unread:
        process = started("completion", "bash", stdout=unread)
    _, error = process.communicate()
    assert (process.returncode, error) == (141, "")


def test_a_signal_is_raised_once_and_the_former_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def come_twice() -> None:
        with ended_by_signals():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)  # as `timeout` sends it

    with pytest.raises(EndedBySignal) as ended:
        come_twice()
    assert (ended.value.name, ended.value.exit_code) == ("SIGTERM", 143)
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_ignores_a_signal_continues_to_ignore_it() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        with ended_by_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("error", [None, RuntimeError("the child is gone")])
def test_a_signal_waits_for_what_must_be_finished(error: Exception | None) -> None:
    done = []

    def come_early() -> None:
        with ended_by_signals(), finished_first():
            signal.raise_signal(signal.SIGTERM)
            done.append(1)
            if error is not None:
                raise error

    with pytest.raises(EndedBySignal):
        come_early()
    assert done


class BotocoreError(Exception):
    """An error of a library that talks to stores."""

    __module__ = "botocore.exceptions"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.EIO, "Input/output error"), 75),
        (OSError(errno.ESTALE, "Stale file handle"), 75),
        (OSError(errno.ENOSPC, "No space left on device"), 75),
        (OSError(errno.EROFS, "Read-only file system"), 78),
        (OSError(errno.ENAMETOOLONG, "File name too long"), 78),
        (OSError(errno.ELOOP, "Too many levels of symbolic links"), 78),
        (PermissionError(errno.EACCES, "Permission denied"), 78),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), 75),
        (TimeoutError(), 75),
        (BotocoreError("no answer"), 75),
        (KeyError("a fault of ours"), 1),
    ],
)
def test_a_store_that_fails_where_nobody_expected_it_is_one_line(
    error: Exception, code: int
) -> None:
    @click.group(cls=HmrfGroup)
    def group() -> None: ...

    @group.command(cls=HmrfCommand)
    def fail() -> None:
        raise error

    result = CliRunner().invoke(group, ["fail"])
    assert result.exit_code == code
    assert ("Traceback" in result.stderr) == (code == 1)
    assert code == 1 or result.stderr.count("\n") == 1
