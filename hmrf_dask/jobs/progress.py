"""The progress of a job: one call for every step and commit, timed and kept for `inspect`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

from hmrf_dask.progress import Tell
from hmrf_dask.storage.stores import Storage

PROGRESS = "progress.json"
EVERY = 2.0  # seconds between two writes of how far a step is


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
