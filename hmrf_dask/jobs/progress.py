"""How a run goes: its launches, and one call for every step and commit, kept for `inspect`."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

from hmrf_dask.flow.clients import active_client, local_threads, settings
from hmrf_dask.flow.versions import rows_of, versions_here, versions_of, workers_in_words
from hmrf_dask.progress import Tell
from hmrf_dask.redaction import without_secrets
from hmrf_dask.storage.stores import Storage

if TYPE_CHECKING:
    from hmrf_dask.jobs.inputs import Inputs

LAUNCHES = "launches.jsonl"  # in the folder of a run, a line each time it is begun or resumed
PROGRESS = "progress.json"
EVERY = 2.0  # seconds between two writes of how far a step is
# Of the environment: what changes how the work runs, never what may be a credential.
_VARIABLES = ("NUMBA_", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "DASK_HMRF__", "SLURM_JOB_ID")


class SoFar(Protocol):
    """Takes how much of a step is done, and how many documents that are."""

    def __call__(self, done: int, of: int, documents: int = 0) -> None:
        """Report it."""


class Watch:
    """The steps of a run."""

    def __init__(self, storage: Storage, run: str, tell: Tell) -> None:
        self.seconds: dict[str, float] = {}  # by step that is done
        self.tell = tell
        self._storage = storage
        self._name = f"runs/{run}/{PROGRESS}"
        self._written = 0.0

    def plan(self, steps: Sequence[str]) -> None:
        """Report which steps are to come."""
        self.tell({"plan": list(steps)})

    @contextmanager
    def step(self, words: str, unit: str = "") -> Iterator[SoFar]:
        """Report a step as long as it lasts; what is yielded takes how much of it is done."""
        began, since = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
        self._written = 0.0
        event = {"step": words, "done": 0, "of": 0}
        self._note(event, since)

        def so_far(done: int, of: int, documents: int = 0) -> None:
            """Report how much is done."""
            counts = {"done": done, "of": of, "documents": documents, "unit": unit}
            self._note(event | counts, since)

        yield so_far
        self.seconds[words] = round(time.perf_counter() - began, 3)

    def _note(self, event: dict[str, Any], since: str) -> None:
        self.tell(event)
        if time.monotonic() - self._written > EVERY:
            self._written = time.monotonic()
            self._storage.write(self._name, json.dumps({**event, "since": since}).encode())


# ---- where and how a run was begun


def record_launch(storage: Storage, folder: str, inputs: Inputs) -> None:
    """Add a line that says how a run is launched now."""
    line = json.dumps(_launch(inputs), sort_keys=True)
    storage.append(f"{folder}/{LAUNCHES}", f"{line}\n".encode())


def _launch(inputs: Inputs) -> dict[str, Any]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": without_secrets(inputs.command),
        "host": socket.gethostname(),
        "version": version("hmrf-dask"),
        "job": inputs.job.model_dump(mode="json", by_alias=True),
        "where": _where(),
        "configuration": settings(),
        "environment": {
            name: without_secrets(value)
            for name, value in sorted(os.environ.items())
            if name.startswith(_VARIABLES)
        },
    }


def _where() -> dict[str, Any]:
    """Return the threads of this process, or the scheduler, its workers and all versions."""
    client = active_client()
    if client is None:
        table = {"client": versions_here()}
        return {"threads": local_threads(), "versions": rows_of(table)}
    return {
        "scheduler": client.scheduler.address,
        "workers": workers_in_words(client),
        "versions": rows_of(versions_of(client)),
    }
