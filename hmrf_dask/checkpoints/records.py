"""What a run records: label files, commits, their bytes; and a run kept in memory."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.errors import InvalidInputError, RunDirectoryError
from hmrf_dask.storage import sealed
from hmrf_dask.storage.parquet import encode_parquet
from hmrf_dask.storage.sealed import DamagedFileError, unseal_as
from hmrf_dask.storage.whole_files import decode_npz
from hmrf_dask.types import Sized

Labels = npt.NDArray[np.int32]


Arrays = Mapping[str, npt.NDArray[Any]]


Piece = tuple[str, int, Labels]  # a part, its first row, its labels


@dataclass(frozen=True)
class LabelsFile(Sized):
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
    """Return what the JSON of a commit holds; `writer` distinguishes this write from any other.

    Examples
    --------
    >>> commit_content(Commit(3, {"J": 0.5}, "state/00003.npz", "9f", ()), "me")["state"]
    ['state/00003.npz', '9f']
    """
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
    """Return the commit in sealed JSON, or raise DamagedFileError naming the file.

    Examples
    --------
    >>> commit = Commit(3, {"J": 0.5}, "state/00003.npz", "9f", ())
    >>> read_commit(sealed.seal(commit_content(commit, "me")), "commits/00003.json") == commit
    True
    """
    found = unseal_as(_Written, data, name)
    files = tuple(LabelsFile(*entry) for entry in found.files)
    return Commit(found.number, found.record, *found.state, files)


_PART = re.compile(r"[a-z0-9][a-z0-9_-]*")
LABEL = "label"


def check_labels(part: str, first_row: int, labels: Labels) -> None:
    """Refuse what cannot be kept as the labels of a part.

    Examples
    --------
    >>> check_labels("rows-00007", 0, np.zeros(3, np.int32))
    >>> check_labels("Rows", 0, np.zeros(3, np.int32))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hmrf_dask.errors.InvalidInputError: part must be lower-case letters, digits, - and _, ...
    """
    if not _PART.fullmatch(part):
        raise InvalidInputError(
            f"part must be lower-case letters, digits, - and _, got {part!r}; name it rows-00007"
        )
    if first_row < 0:
        raise InvalidInputError(f"first_row of {part} must be 0 or more, got {first_row}")
    if labels.dtype != np.int32 or labels.ndim != 1:
        raise InvalidInputError(
            f"labels of {part} must be a 1-D int32 array, got {labels.dtype} of shape "
            f"{labels.shape}; convert them with labels.astype(np.int32)"
        )


def encode_labels(pieces: Sequence[Piece]) -> bytes:
    """Return a Parquet file with the column `label`, pages with checksums.

    The rows of several parts stand one after the other.

    Examples
    --------
    >>> data = encode_labels([("rows-00000", 0, np.arange(3, dtype=np.int32))])
    >>> decode_labels(data).tolist()
    [0, 1, 2]
    """
    parts, rows, labels = zip(*pieces, strict=True)
    whole = np.ascontiguousarray(labels[0] if len(labels) == 1 else np.concatenate(labels))
    column = pa.Array.from_buffers(pa.int32(), len(whole), [None, pa.py_buffer(whole)])
    places = {"part": ",".join(parts), "first_row": ",".join(map(str, rows))}
    table = pa.table({LABEL: column}).replace_schema_metadata(places)
    # Bytes of equal weight together: all but the lowest are zero. Half the time of a dictionary.
    return encode_parquet(
        table,
        use_dictionary=False,
        use_byte_stream_split=[LABEL],
        compression_level=1,
        write_statistics=False,
    )


def decode_labels(data: bytes) -> Labels:
    """Return the labels of a file, read-only."""
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    chunks = file.read(columns=[LABEL], use_threads=False).column(0).chunks
    # Arrow's own way imports pandas, 0.7 s and 35 MiB of every worker
    return _joined([_labels(chunk) for chunk in chunks])


def _labels(chunk: pa.Array) -> Labels:
    """Return the labels of an Arrow array, sharing its memory."""
    if not len(chunk):
        return np.empty(0, np.int32)
    return np.frombuffer(chunk.buffers()[1], np.int32, len(chunk), 4 * chunk.offset)


def encode_state(state: Arrays) -> bytes:
    """Return an uncompressed npz of `state`: numpy.savez, but with any key and never a pickle.

    Examples
    --------
    >>> decode_state(encode_state({"centroids": np.eye(2)}), "00003.npz")["centroids"].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(state):
            # A ZipInfo without a date keeps the clock out of the bytes.
            entry = zipfile.ZipInfo(f"{name}.npy")
            with archive.open(entry, "w", force_zip64=True) as member:
                _write_array(member, name, np.asarray(state[name], order="C"))
    return sink.getvalue()


def _write_array(member: IO[bytes], name: str, values: npt.NDArray[Any]) -> None:
    try:
        np.lib.format.write_array(member, values, allow_pickle=False)
    except ValueError as error:
        raise InvalidInputError(
            f"state must hold plain arrays, got {name!r} of {values.dtype}; "
            "put text and nested values in the record"
        ) from error


def decode_state(data: bytes, name: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an npz, or raise DamagedFileError naming the file."""
    return decode_npz(data, name)


def read_range(
    read: Callable[[Sequence[LabelsFile]], Sequence[Labels]],
    files: Sequence[LabelsFile],
    first_row: int,
    last_row: int,
    prefix: str,
) -> Labels:
    """Return rows `first_row` to `last_row` (exclusive) from the files that overlap them.

    Examples
    --------
    >>> run = MemoryRun()
    >>> pieces = [("rows-0", 0, np.zeros(3, np.int32)), ("rows-1", 3, np.ones(2, np.int32))]
    >>> read_range(run.read_group, run.write_group(1, pieces), 2, 4, "rows-").tolist()
    [0, 1]
    """
    chosen: list[tuple[LabelsFile, slice]] = []
    reached = first_row
    parts = (f for f in files if f.part.startswith(prefix) and f.n_rows)
    for file in sorted(parts, key=lambda file: file.first_row):
        if file.first_row + file.n_rows <= first_row or file.first_row >= last_row:
            continue
        if max(file.first_row, first_row) != reached:
            break
        chosen.append((file, slice(reached - file.first_row, last_row - file.first_row)))
        reached = min(file.first_row + file.n_rows, last_row)
    else:
        if reached >= last_row:
            found = read([file for file, _ in chosen])
            return _joined([one[place] for one, (_, place) in zip(found, chosen, strict=True)])
    raise DamagedFileError(
        f"the {prefix}… files of a commit must hold every row from {first_row} to "
        f"{last_row - 1} once, got none or two for row {reached}; resume with the same corpus"
    )


def _joined(pieces: list[Labels]) -> Labels:
    rows = pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, np.int32), *pieces])
    rows.setflags(write=False)
    return rows


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
        """Return a reference that holds a copy of the labels (its sha256 is empty).

        Examples
        --------
        >>> run = MemoryRun()
        >>> file = run.write_labels(1, "rows-00000", 0, np.arange(3, dtype=np.int32))
        >>> run.read_labels(file).tolist()
        [0, 1, 2]
        """
        check_labels(part, first_row, labels)
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
        """Return the labels of rows `first_row` to `last_row` (exclusive), read-only.

        Examples
        --------
        >>> run = MemoryRun()
        >>> pieces = [("rows-0", 0, np.zeros(3, np.int32)), ("rows-1", 3, np.ones(2, np.int32))]
        >>> run.read_label_range(run.write_group(1, pieces), 1, 5).tolist()
        [0, 0, 1, 1]
        """
        return read_range(self.read_group, files, first_row, last_row, prefix)

    def commit(
        self, number: int, record: dict[str, Any], state: Arrays, files: Sequence[LabelsFile]
    ) -> Commit:
        """Keep this iteration instead of the one before; arrays that are read-only as they are.

        Examples
        --------
        >>> run = MemoryRun()
        >>> run.commit(1, {"J": 0.5}, {"centroids": np.eye(2)}, []).record
        {'J': 0.5}
        >>> run.load_state(run.latest())["centroids"].tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
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
        """Add to `events`.

        Examples
        --------
        >>> run = MemoryRun()
        >>> run.event({"event": "resumed"})
        >>> run.events
        [{'event': 'resumed'}]
        """
        self.events.append(sealed.round_trip(record))

    def finalise(self, record: dict[str, Any]) -> None:
        """Keep the record that says the run is done.

        Examples
        --------
        >>> run = MemoryRun()
        >>> run.finalise({"stop": "converged"})
        >>> run.final()
        {'stop': 'converged'}
        """
        self._final = sealed.round_trip(record)

    def final(self) -> dict[str, Any] | None:
        """Return the record of `finalise`, None before."""
        return self._final
