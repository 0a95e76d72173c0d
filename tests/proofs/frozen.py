"""Rows of the proof table about frozen processes, and about what Dask says to a terminal."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client

from hmrf_dask.errors import ClusterError
from hmrf_dask.flow.clients import closed_in_time
from tests.proofs.loop import Figures, Row
from tests.support.fits import fit, text_case

CASE = text_case(400, 300, 4, 60, distortion="euclidean")
DEADLINE, LATE = 10.0, 25.0  # seconds without progress, and until a fit must have ended
MOMENTS = (0.0, 0.5, 1.5, 3.0)  # seconds after the start; 0: before it
WHO = ("scheduler", "one worker", "all workers")
FITS = 8  # of 84 commits each
NOISE = ("distributed", "Traceback", "KeyError", "Key lost", "tornado", "sent-")


@contextmanager
def processes() -> Iterator[tuple[str, dict[str, list[int]]]]:
    """Give the address of a scheduler with two workers, and who has which process ids."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    port = address.rpartition(":")[2]
    started = [_start("dask_scheduler", "--host", "127.0.0.1", "--port", port)]
    worker = ("dask_worker", address, "--no-nanny", "--nthreads", "1")
    started += [_start(*worker) for _ in range(2)]
    scheduler, *workers = [process.pid for process in started]
    ids = {"scheduler": [scheduler], "one worker": workers[:1], "all workers": workers}
    try:
        yield address, ids
    finally:
        for process in started:
            process.kill()
            process.wait()


def _start(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"distributed.cli.{module}", *arguments, "--no-dashboard"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def frozen() -> Figures:
    """Freeze each kind of process at each moment; thaw it, and fit again."""
    with dask.config.set(scheduler="synchronous"):
        wanted = fit(CASE, 5).digest
    cases = [(who, moment) for who in WHO for moment in MOMENTS]
    found = [_freeze(who, moment, wanted) for who, moment in cases]
    return {
        "cases": len(found),
        "ended with 75": sum(one["code"] == ClusterError.exit_code for one in found),
        "longest, s": round(max(one["seconds"] for one in found), 1),
        "closed within, s": round(max(one["closing"] for one in found), 1),
        "same bits after a thaw": sum(one["same"] for one in found),
    }


def _freeze(who: str, moment: float, wanted: str) -> dict[str, Any]:
    """Return how fits end, one after the other, once some process is frozen, and after a thaw."""
    with processes() as (address, ids):
        client = Client(address, timeout=60)
        client.wait_for_workers(2, timeout=60)
        freezing = threading.Timer(moment, _signal, (ids[who], signal.SIGSTOP))
        freezing.start()
        freezing.join(0 if moment else None)
        ended = _fits_until_one_fails(moment)
        _signal(ids[who], signal.SIGCONT)
        same = fit(CASE, 5).digest == wanted
        _signal(ids[who], signal.SIGSTOP)
        began = time.monotonic()
        with closed_in_time("a client", lambda: client):
            pass
        return {**ended, "same": same, "closing": time.monotonic() - began}


def _fits_until_one_fails(moment: float) -> dict[str, Any]:
    began = time.monotonic()
    code = 0
    with dask.config.set({"hmrf.no-progress-timeout": DEADLINE}):
        try:
            while time.monotonic() - began < moment + LATE:
                fit(CASE, 5)
        except ClusterError as error:
            code = error.exit_code
    return {"code": code, "seconds": time.monotonic() - began - moment}


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


def silent() -> Figures:
    """Run fits on worker processes by the command, and read what they write to the terminal."""
    written, codes = [], []
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.npy"
        np.save(rows, np.random.default_rng(0).random((2000, 100), np.float32))
        pairs = Path(folder) / "pairs.csv"
        pairs.write_text("a,b,kind\n" + "".join(f"{i},{i + 7},must\n" for i in range(0, 90, 3)))
        for seed in range(FITS):
            command = [sys.executable, "-m", "hmrf_dask", "fit", str(rows), "-k", "8"]
            command += ["--pairs", str(pairs), "--run-dir", f"{folder}/run-{seed}"]
            command += ["--random-state", str(seed), "--processes", "2"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            written.append(done.stderr)
            codes.append(done.returncode)
    errors = [text.splitlines()[-1] for text, code in zip(written, codes, strict=True) if code]
    lines = [line for text in written for line in text.splitlines()]
    noise = [line for line in lines if any(word in line for word in NOISE)]
    return {
        "fits": FITS,
        "errors": errors,
        "lines": len(lines),
        "of Dask": len(noise),
        "first": noise[:1],
    }


FROZEN_ROWS = (
    Row(
        "frozen",
        "a frozen scheduler or worker ends a fit with 75 in time; thawed, it gives the same bits",
        frozen,
        lambda found: (
            found["ended with 75"] == found["same bits after a thaw"] == found["cases"]
            and found["longest, s"] < LATE
        ),
    ),
    Row(
        "silent",
        f"{FITS} fits on worker processes end, and write no line of Dask's to the terminal",
        silent,
        lambda found: not found["errors"] and found["of Dask"] == 0,
    ),
)
