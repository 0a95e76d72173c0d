"""A run kept in the memory of one process: starts inside a task, fits on threads without files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hmrf_dask.checkpoints import records
from hmrf_dask.checkpoints.records import Arrays, Commit, Labels, LabelsFile, Piece
from hmrf_dask.errors import RunDirectoryError
from hmrf_dask.storage import sealed


@dataclass(frozen=True)
class HeldLabels(LabelsFile):
    """Labels that are their own file."""

    labels: Labels = field(default_factory=lambda: np.empty(0, np.int32), repr=False, compare=False)


class MemoryRun:
    """The same surface as RunDirectory without files; only the last commit is kept."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._last: Commit | None = None
        self._state: dict[str, npt.NDArray[Any]] = {}
        self._final: dict[str, Any] | None = None

    def write_labels(self, number: int, part: str, first_row: int, labels: Labels) -> LabelsFile:
        """Return a reference that holds a copy of the labels (its sha256 is empty)."""
        records.check_labels(part, first_row, labels)
        held = labels.copy()
        held.setflags(write=False)
        name = f"labels/{number:05d}/{part}"
        return HeldLabels(name, "", first_row, len(labels), part, labels=held)

    def write_group(self, number: int, pieces: Sequence[Piece]) -> tuple[LabelsFile, ...]:
        """Return a reference for every part."""
        return tuple(self.write_labels(number, *piece) for piece in pieces)

    def read_labels(self, file: LabelsFile) -> Labels:
        """Return the labels that `file` holds, read-only."""
        if not isinstance(file, HeldLabels):
            raise RunDirectoryError(
                f"a MemoryRun must be given labels that it wrote, got {file.name}; read it with "
                "the RunDirectory that wrote it"
            )
        return file.labels

    def read_group(self, files: Sequence[LabelsFile]) -> list[Labels]:
        """Return the labels that the files hold, read-only."""
        return [self.read_labels(file) for file in files]

    def read_label_range(
        self, files: Sequence[LabelsFile], first_row: int, last_row: int, prefix: str = "rows-"
    ) -> Labels:
        """Return the labels of rows `first_row` to `last_row` (exclusive), read-only."""
        return records.read_range(self.read_group, files, first_row, last_row, prefix)

    def discard(self, files: Sequence[LabelsFile]) -> None:
        """Nothing: what nobody holds is gone."""

    def commit(
        self, number: int, record: dict[str, Any], state: Arrays, files: Sequence[LabelsFile]
    ) -> Commit:
        """Keep this iteration instead of the one before; arrays that are read-only as they are."""
        if self._last is not None and number <= self._last.number:
            raise RunDirectoryError(
                f"commit numbers must rise, got {number} after {self._last.number}; "
                "begin a new MemoryRun for another start"
            )
        self._last = Commit(number, sealed.round_trip(record), "", "", tuple(files))
        self._state = {
            name: np.array(values) if values.flags.writeable else values
            for name, values in state.items()
        }
        return self._last

    def latest(self) -> Commit | None:
        """Return the last commit."""
        return self._last

    def load_state(self, commit: Commit) -> dict[str, npt.NDArray[Any]]:
        """Return copies of the arrays of the last commit; older ones are gone."""
        if commit is not self._last:
            raise RunDirectoryError(
                f"a MemoryRun must be asked for its last commit, got number {commit.number}; "
                "use latest()"
            )
        return {name: values.copy() for name, values in self._state.items()}

    def clean(self, keep: int | None = None) -> None:
        """Nothing: only the last commit is kept."""

    def remove(self) -> None:
        """Nothing: no file was made."""

    def flush_events(self) -> None:
        """Nothing: events never wait."""

    def event(self, record: dict[str, Any]) -> None:
        """Add to `events`."""
        self.events.append(sealed.round_trip(record))

    def finalise(self, record: dict[str, Any]) -> None:
        """Keep the record that says the run is done."""
        self._final = sealed.round_trip(record)

    def final(self) -> dict[str, Any] | None:
        """Return the record of `finalise`, None before."""
        return self._final
