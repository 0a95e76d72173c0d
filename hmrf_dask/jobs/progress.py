"""The progress of a job: one call for every step and commit, timed and kept for `inspect`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:  # the command line shows progress before anything heavy is imported
    from hmrf_dask.storage.stores import Storage

# Called with {"step": words, "done": n, "of": n} while a step goes on, and with the record of
# every commit of a fit: {"phase", "iteration", "J", "moved", ...}.
Tell = Callable[[dict[str, Any]], None]


def nothing(event: dict[str, Any]) -> None:
    """Report to nobody."""


PROGRESS = "progress.json"
EVERY = 2.0  # seconds between two writes of how far a step is


class Lines(AbstractContextManager[Tell]):
    """Tells steps as lines on a stream, each when it begins; nothing else is written there."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = time.monotonic()
        self._last = ""

    def __enter__(self) -> Tell:
        """Return what events are reported to."""
        return self._tell

    def __exit__(self, *_: object) -> None:
        """End with how long it took."""
        self._write("done")

    def _tell(self, event: dict[str, Any]) -> None:
        if (step := event.get("step", "")) and step != self._last:
            self._last = step
            self._write(f"{step} ...")

    def _write(self, words: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  {words}", file=self._stream)


class Watch:
    """The steps of a run."""

    def __init__(self, storage: Storage, run: str, tell: Tell) -> None:
        self.seconds: dict[str, float] = {}  # by step that is done
        self.tell = tell
        self._storage = storage
        self._name = f"runs/{run}/{PROGRESS}"
        self._written = 0.0

    @contextmanager
    def step(self, words: str) -> Iterator[Callable[[int, int], None]]:
        """Report a step as long as it lasts; what is yielded takes how much of it is done."""
        began, since = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
        self._written = 0.0
        self._note({"step": words, "done": 0, "of": 0}, since)
        yield lambda done, of: self._note({"step": words, "done": done, "of": of}, since)
        self.seconds[words] = round(time.perf_counter() - began, 3)

    def _note(self, event: dict[str, Any], since: str) -> None:
        self.tell(event)
        if time.monotonic() - self._written > EVERY:
            self._written = time.monotonic()
            self._storage.write(self._name, json.dumps({**event, "since": since}).encode())
