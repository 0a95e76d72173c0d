"""What a run records: label files, commits that name them, and the store that keeps both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hmrf_dask.storage.sealed import unseal_as

Labels = npt.NDArray[np.int32]


Arrays = Mapping[str, npt.NDArray[Any]]


Piece = tuple[str, int, Labels]  # a part, its first row, its labels


@dataclass(frozen=True)
class LabelsFile:
    """One file of labels: rows `first_row` to `first_row + n_rows` (exclusive) of its part.

    Attributes
    ----------
    name : str
        Path inside the run directory; it holds a hash of the content.
    sha256 : str
        Of the whole file, hexadecimal.
    first_row, n_rows : int
        For parts ``rows-…`` row numbers of the corpus, so any partitioning can read them.
    part : str
        Which part of the run wrote it, such as ``rows-00007`` or ``linked-00002``.
    start : int
        Where they begin in the file, which several parts may share.
    """

    name: str
    sha256: str
    first_row: int
    n_rows: int
    part: str
    start: int = 0


@dataclass(frozen=True)
class Commit:
    """One whole iteration: the caller's record and the files it needs."""

    number: int
    record: dict[str, Any]
    state_name: str
    state_sha256: str
    files: tuple[LabelsFile, ...]


class CheckpointStore(Protocol):
    """What the loop needs of a place that keeps its iterations."""

    def write_labels(self, number: int, part: str, first_row: int, labels: Labels) -> LabelsFile:
        """Keep the labels of one part; the same content twice is kept once."""

    def write_group(self, number: int, pieces: Sequence[Piece]) -> tuple[LabelsFile, ...]:
        """Keep the labels of several parts, which one task has."""

    def read_labels(self, file: LabelsFile) -> Labels:
        """Return the labels of one part, read-only."""

    def read_group(self, files: Sequence[LabelsFile]) -> list[Labels]:
        """Return the labels of several parts, read-only; what they share is read once."""

    def read_label_range(
        self, files: Sequence[LabelsFile], first_row: int, last_row: int, prefix: str = "rows-"
    ) -> Labels:
        """Return the labels of rows `first_row` to `last_row` (exclusive), read-only."""

    def discard(self, files: Sequence[LabelsFile]) -> None:
        """Remove what no commit will name."""

    def commit(
        self, number: int, record: dict[str, Any], state: Arrays, files: Sequence[LabelsFile]
    ) -> Commit:
        """Make one iteration visible, whole or not at all."""

    def latest(self) -> Commit | None:
        """Return the highest valid commit."""

    def load_state(self, commit: Commit) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of a commit."""

    def clean(self, keep: int | None = None) -> None:
        """Remove what no kept commit needs."""

    def event(self, record: dict[str, Any]) -> None:
        """Note something that happened."""

    def finalise(self, record: dict[str, Any]) -> None:
        """Say that the run is done."""

    def final(self) -> dict[str, Any] | None:
        """Return what `finalise` was given, None while the run is not done."""


def commit_content(commit: Commit, writer: str) -> dict[str, Any]:
    """Return what the JSON of a commit holds; `writer` tells this very write from any other."""
    files = [[f.name, f.sha256, f.first_row, f.n_rows, f.part, f.start] for f in commit.files]
    return {
        "number": commit.number,
        "record": commit.record,
        "state": [commit.state_name, commit.state_sha256],
        "files": files,
        "writer": writer,
    }


@dataclass(frozen=True)
class _Written:
    """What `commit_content` gives."""

    number: int
    record: dict[str, Any]
    state: tuple[str, str]
    files: list[tuple[str, str, int, int, str, int] | tuple[str, str, int, int, str]]


def read_commit(data: bytes, name: str) -> Commit:
    """Return the commit in sealed JSON, or raise DamagedFileError naming the file."""
    found = unseal_as(_Written, data, name)
    files = tuple(LabelsFile(*entry) for entry in found.files)
    return Commit(found.number, found.record, *found.state, files)
