"""What a run records: label files, commits, their bytes; and a run kept in memory."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.errors import InvalidInputError, RunDirectoryError
from hmrf_dask.storage import sealed
from hmrf_dask.storage.sealed import DamagedFileError, unseal_as
from hmrf_dask.storage.whole_files import encode_parquet
from hmrf_dask.types import AnyArray, FloatArray, LabelArray, Sized

Arrays = Mapping[str, AnyArray]
PartLabels = tuple[str, int, LabelArray]  # a part, its first row, its labels


@dataclass(frozen=True)
class LabelsFile(Sized):
    """One file of labels: rows `first_row` to `first_row + n_rows` (exclusive) of its part.

    Attributes
    ----------
    name : str
        Path inside the run directory; it holds a hash of the content.
    first_row, n_rows : int
        For parts ``rows-…`` row numbers of the corpus, so any partitioning can read them.
    part : str
        Such as ``rows-00007``, labels by row of the corpus, or ``linked-00002``, of linked rows.
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

    def write_group(self, number: int, labelled: Sequence[PartLabels]) -> tuple[LabelsFile, ...]:
        """Keep the labels of several parts, which one task has; what is equal is kept once."""

    def write_labels(
        self, number: int, part: str, first_row: int, labels: LabelArray
    ) -> LabelsFile:
        """Keep the labels of one part of iteration `number`; called by tasks.

        Examples
        --------
        >>> run = MemoryRun()
        >>> file = run.write_labels(1, "rows-00000", 0, np.arange(3, dtype=np.int32))
        >>> run.read_labels(file).tolist()
        [0, 1, 2]
        """
        return self.write_group(number, [(part, first_row, labels)])[0]

    def read_labels(self, file: LabelsFile) -> LabelArray:
        """Return the labels of one part, read-only."""

    def read_group(self, files: Sequence[LabelsFile]) -> list[LabelArray]:
        """Return the labels of several parts, read-only; what they share is read once."""
        return [self.read_labels(file) for file in files]

    def read_label_range(
        self, files: Sequence[LabelsFile], first_row: int, last_row: int, prefix: str = "rows-"
    ) -> LabelArray:
        """Return the labels of rows `first_row` to `last_row` (exclusive), read-only.

        Only `files` of one commit that overlap the range and whose part begins with `prefix` are
        read, under whatever partitioning they were written.

        Examples
        --------
        >>> run = MemoryRun()
        >>> parts = [("rows-0", 0, np.zeros(3, np.int32)), ("rows-1", 3, np.ones(2, np.int32))]
        >>> run.read_label_range(run.write_group(1, parts), 1, 5).tolist()
        [0, 0, 1, 1]
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
                whole = self.read_group([file for file, _ in chosen])
                pieces = zip(whole, chosen, strict=True)
                return _joined([labels[place] for labels, (_, place) in pieces])
        raise DamagedFileError(
            f"the {prefix}… files of a commit must hold every row from {first_row} to "
            f"{last_row - 1} once, got none or two for row {reached}; resume with the same corpus"
        )

    def commit(
        self, number: int, record: dict[str, Any], state: Arrays, files: Sequence[LabelsFile]
    ) -> Commit:
        """Make iteration `number` visible in one step, whole or not at all.

        Parameters
        ----------
        number : int
            One more than the last commit's, through all phases.
        record : dict
            JSON values (phase, start, iteration, α, J, …), finite; floats come back bit for bit.
        """

    def latest(self) -> Commit | None:
        """Return the highest valid commit."""

    def load_state(self, commit: Commit) -> dict[str, AnyArray]:
        """Return the arrays of a commit."""

    def write_rows(self, number: int, part: str, first_row: int, rows: FloatArray) -> LabelsFile:
        """Keep centroids of iteration `number` that lie with their owner; called by tasks."""

    def read_rows(self, file: LabelsFile) -> FloatArray:
        """Return what `write_rows` kept."""

    def clean(self, keep: int | None = None) -> None:
        """Remove what no kept commit needs."""

    def event(self, record: dict[str, Any]) -> None:
        """Note something that happened."""

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened so far, in its order."""

    def finalise(self, record: dict[str, Any]) -> None:
        """Say that the run is done."""

    def final(self) -> dict[str, Any] | None:
        """Return what `finalise` was given, None while the run is not done."""


_TERMS = ("J", "distortion", "must_link", "cannot_link", "prior")


def iterations_in(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the iterations that events tell of: phase, number, rows that moved, J by its terms.

    Of one that was done again it is the last.

    Examples
    --------
    >>> event = {"event": "iteration", "phase": "fit", "iteration": 0, "moved": 9, "J": 3.0}
    >>> iterations_in([event])
    [{'phase': 'fit', 'iteration': 0, 'moved': 9, 'J': 3.0}]
    """
    found = {}
    for event in events:
        if event.get("event") == "iteration":
            names = ("phase", "iteration", "moved", *_TERMS)
            known = {name: event[name] for name in names if event.get(name) is not None}
            # Refinement that follows a step of the metric begins again from 1.
            found[event.get("commit"), event["phase"], event["iteration"]] = known
    return list(found.values())


def commit_content(commit: Commit, writer: str) -> dict[str, Any]:
    """Return what the JSON of a commit holds; `writer` distinguishes this write from any other.

    Examples
    --------
    >>> commit_content(Commit(3, {"J": 0.5}, "state/00003.npz", "9f", ()), "me")["state"]
    ['state/00003.npz', '9f']
    """
    return {
        "number": commit.number,
        "record": commit.record,
        "state": [commit.state_name, commit.state_sha256],
        "files": [astuple(file) for file in commit.files],
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
    written = unseal_as(_Written, data, name)
    files = tuple(LabelsFile(*entry) for entry in written.files)
    return Commit(written.number, written.record, *written.state, files)


_PART = re.compile(r"[a-z0-9][a-z0-9_-]*")
LABEL = "label"


def check_labels(part: str, first_row: int, labels: LabelArray) -> None:
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


def encode_labels(labelled: Sequence[PartLabels]) -> bytes:
    """Return a Parquet file with the column `label`, pages with checksums.

    The rows of several parts stand one after the other.

    Examples
    --------
    >>> data = encode_labels([("rows-00000", 0, np.arange(3, dtype=np.int32))])
    >>> decode_labels(data).tolist()
    [0, 1, 2]
    """
    parts, rows, labels = zip(*labelled, strict=True)
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


def decode_labels(data: bytes) -> LabelArray:
    """Return the labels of a file, read-only."""
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    chunks = file.read(columns=[LABEL], use_threads=False).column(0).chunks
    # Arrow's own way imports pandas, 0.7 s and 35 MiB of every worker.
    return _joined(
        [
            np.frombuffer(chunk.buffers()[1], np.int32, len(chunk), 4 * chunk.offset)
            for chunk in chunks
            if len(chunk)
        ]
    )


def encode_state(state: Arrays) -> bytes:
    """Return an uncompressed npz of `state`: numpy.savez, but with any key and never a pickle."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(state):
            values = np.asarray(state[name], order="C")
            if values.dtype.hasobject:
                raise InvalidInputError(
                    f"state must hold plain arrays, got {name!r} of {values.dtype}; "
                    "put text and nested values in the record"
                )
            # A ZipInfo without a date keeps the clock out of the bytes.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)
    return sink.getvalue()


def _joined(pieces: list[LabelArray]) -> LabelArray:
    rows = pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, np.int32), *pieces])
    rows.setflags(write=False)
    return rows


@dataclass(frozen=True)
class HeldLabels(LabelsFile):
    """A label file whose labels stay in memory."""

    labels: LabelArray = field(
        default_factory=lambda: np.empty(0, np.int32), repr=False, compare=False
    )


class MemoryRun(CheckpointStore):
    """The same surface as RunDirectory without files; only the last commit is kept.

    Records become JSON when they are read, as a reader of files would see them: a fit in memory
    writes one in every iteration, and each holds the whole history.
    """

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._last: Commit | None = None
        self._state: Arrays = {}
        self._final: dict[str, Any] | None = None

    def write_group(self, number: int, labelled: Sequence[PartLabels]) -> tuple[LabelsFile, ...]:
        """Return a reference to every part that holds a copy of its labels, and no sha256."""
        files = []
        for part, first_row, labels in labelled:
            check_labels(part, first_row, labels)
            held = labels.copy()
            held.setflags(write=False)
            name = f"labels/{number:05d}/{part}"
            files.append(HeldLabels(name, "", first_row, len(labels), part, labels=held))
        return tuple(files)

    def read_labels(self, file: LabelsFile) -> LabelArray:
        """Return the labels that `file` holds, read-only."""
        if not isinstance(file, HeldLabels):
            raise RunDirectoryError(
                f"a MemoryRun must be given labels that it wrote, got {file.name}; read it with "
                "the RunDirectory that wrote it"
            )
        return file.labels

    def write_rows(self, number: int, part: str, first_row: int, rows: FloatArray) -> LabelsFile:
        """Refuse: where labels lie in this process, so do all centroids."""
        raise RunDirectoryError(
            f"a MemoryRun must not be given centroids of owners, got {part} of iteration {number}, "
            f"{len(rows)} from {first_row} on; use a RunDirectory"
        )

    def read_rows(self, file: LabelsFile) -> FloatArray:
        """Refuse: none were written."""
        raise RunDirectoryError(f"a MemoryRun has no centroids of owners, got {file.name}")

    def commit(
        self, number: int, record: dict[str, Any], state: Arrays, files: Sequence[LabelsFile]
    ) -> Commit:
        """Keep this iteration instead of the one before; arrays that are read-only as they are.

        Examples
        --------
        >>> run = MemoryRun()
        >>> run.commit(1, {"J": np.float32(0.5)}, {"centroids": np.eye(2)}, []).number
        1
        >>> run.latest().record
        {'J': 0.5}
        >>> run.load_state(run.latest())["centroids"].tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        if self._last is not None and number <= self._last.number:
            raise RunDirectoryError(
                f"commit numbers must rise, got {number} after {self._last.number}; "
                "begin a new MemoryRun for another start"
            )
        self._last = Commit(number, record, "", "", tuple(files))
        self._state = {
            name: np.array(values) if values.flags.writeable else values
            for name, values in state.items()
        }
        return self._last

    def latest(self) -> Commit | None:
        """Return the last commit."""
        if self._last is not None:
            self._last = replace(self._last, record=sealed.round_trip(self._last.record))
        return self._last

    def load_state(self, commit: Commit) -> dict[str, AnyArray]:
        """Return copies of the arrays of the last commit; older ones are gone."""
        if self._last is None or commit.number != self._last.number:
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

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened, in its order."""
        return [sealed.round_trip(record) for record in self._events]

    def event(self, record: dict[str, Any]) -> None:
        """Add to `events`.

        Examples
        --------
        >>> run = MemoryRun()
        >>> run.event({"event": "resumed"})
        >>> run.events
        [{'event': 'resumed'}]
        """
        self._events.append(record)

    def finalise(self, record: dict[str, Any]) -> None:
        """Keep the record that says the run is done.

        Examples
        --------
        >>> run = MemoryRun()
        >>> run.finalise({"stop": "converged"})
        >>> run.final()
        {'stop': 'converged'}
        """
        self._final = record

    def final(self) -> dict[str, Any] | None:
        """Return the record of `finalise`, None before."""
        return None if self._final is None else sealed.round_trip(self._final)
