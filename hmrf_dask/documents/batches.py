"""Batches of documents out of one file, with every record that is no document."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.documents.delimited import encode_lines, read_csv, read_jsonl
from hmrf_dask.documents.files import DocumentFile, SegmentLines
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.parquet import read_parquet, rows_of
from hmrf_dask.documents.records import (
    BadRecord,
    DamagedFile,
    Reader,
    Record,
    as_kept,
    as_row,
    excerpt,
    problem_of_document,
    problem_of_word,
    read_installed,
    read_text,
    record_of,
)
from hmrf_dask.documents.sources import BATCH_ROWS, GONE
from hmrf_dask.documents.streams import WatchedFile, open_file, state_of
from hmrf_dask.errors import InvalidInputError, SourceUnavailableError
from hmrf_dask.storage.remote import explained

BATCH_BYTES = 16 * 2**20
_READERS: dict[str, Reader] = {
    "jsonl": read_jsonl,
    "csv": read_csv,
    "parquet": read_parquet,
    "text": read_text,
}


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that is no document, or a file that cannot be read from a line on.

    Examples
    --------
    >>> str(Reject("a.jsonl", 3, None, "not JSON", "{").as_error()).partition(";")[0]
    'a.jsonl, line 3: not JSON'
    """

    source: str  # `DocumentFile.path`
    line: int  # of JSONL and CSV the line, of Parquet the row, from 1 on; 0: the file as a whole
    id: str | None  # where it is known
    reason: str
    raw: str  # the first 200 characters of the record
    whole_rest: bool = False  # whether everything from `line` on is lost, not only this record

    def as_error(self) -> InvalidInputError:
        """Return the error that `on_bad_record: stop` ends with."""
        place = f", line {self.line}" if self.line else f", id {self.id!r}" * bool(self.id)
        if self.whole_rest:
            rest = "the rest of the file cannot be read; correct or replace the file"
            return InvalidInputError(f"{self.source}{place}: {self.reason} ({rest})")
        missing = self.reason.endswith(" is missing")
        named = " (the columns are those that the manifest's documents: names)" if missing else ""
        return InvalidInputError(
            f"{self.source}{place}: {self.reason}{named}; correct it, or leave such records "
            "out by on_bad_record: quarantine"
        )


def encode_rejects(rejects: Iterable[Reject]) -> bytes:
    """Return rejects as JSON Lines.

    Examples
    --------
    >>> rejects = [Reject("a.jsonl", 3, None, "not JSON", "{")]
    >>> decode_rejects(encode_rejects(rejects)) == rejects
    True
    """
    return encode_lines(map(asdict, rejects), ascii_only=False)


def decode_rejects(data: bytes) -> list[Reject]:
    """Return what `encode_rejects` was given."""
    return [Reject(**json.loads(line)) for line in data.splitlines()]


@dataclass(slots=True)
class Batch:
    """Documents of one file, in its order, and the bad records that lie between them.

    Lines of a segment of JSON Lines are counted from its beginning; see `sources.lines_before`.
    """

    ids: list[str] = field(default_factory=list)  # integers are their decimal digits
    texts: list[str] = field(default_factory=list)  # "" if there is no text column
    lines: list[int] = field(default_factory=list)  # where each begins, rows of Parquet; from 1 on
    rejects: list[Reject] = field(default_factory=list)
    # "time" and "label", if the manifest names such columns.
    extra: dict[str, list[str | None]] = field(default_factory=dict)
    # By name the columns that the manifest keeps, as texts.
    kept: dict[str, list[str | None]] = field(default_factory=dict)
    # By name the columns of text, where there are several: what `texts` are joined of.
    columns: dict[str, list[str]] = field(default_factory=dict)
    embeddings: npt.NDArray[np.float32] | None = None
    gone: list[str] = field(default_factory=list)  # ids that a delta says are no more
    n_lines: int = 0  # of a segment of JSON Lines, in its last batch: how many lines it has


def read_batches(
    source: DocumentFile,
    columns: Columns,
    *,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
) -> Generator[Batch, None, None]:
    """Yield the documents of one file, in bounded memory; what is bad is in `Batch.rejects`.

    Which documents share a batch depends on the file and on the two limits alone. An empty file
    gives no batch. Ids that come twice in the file: the first stays, the others are rejects.
    A batch ends with the record that reaches one of the limits (bytes: characters of the texts).

    Raises
    ------
    SourceUnavailableError
        The store failed, or the file is not what was listed, or changed while it was read: batches
        that were given out must be thrown away. (SourceError if trying again does not help.)
    InvalidInputError
        The content has not the hash that the manifest says.
    """
    builder = _Builder(source.path, columns, labelled=source.format == "builtin")
    with _records(source, columns, batch_rows, batch_bytes) as (records, file):
        for _ in builder.take(records):
            if builder.rows >= batch_rows or builder.bytes >= batch_bytes:
                yield builder.finish()
    # Only now is it known that the file stayed the same: a damaged one may just be being written.
    n_lines = file.n_lines if isinstance(file, SegmentLines) else 0
    if builder.rows or n_lines:
        batch = builder.finish()
        batch.n_lines = n_lines
        yield batch


def batches_of(
    read: Iterable[pa.RecordBatch | Batch], name: str, columns: Columns
) -> Generator[Batch]:
    """Yield what a source reads of a segment as documents, and what is none.

    Arrow batches have rows without a number: what is wrong with one is said under its id.
    """
    builder = _Builder(name, columns)
    for rows in read:
        if isinstance(rows, Batch):
            yield rows
            continue
        there, gone = _parted(rows, columns)
        for place, row in enumerate(rows_of(there, columns.in_order, 0)):
            if isinstance(row, BadRecord):
                builder.reject(0, _id_at(there, columns, place), row.reason, row.raw)
            else:
                builder.add(record_of(columns, 0, row.values, None))
        batch = builder.finish()
        batch.gone = gone
        yield batch


def _id_at(rows: pa.RecordBatch, columns: Columns, place: int) -> str | None:
    """Return the id of a row of which something cannot be read, None where that is the id."""
    try:
        known = rows.column(columns.id)[place].as_py()
    except UnicodeDecodeError:
        return None
    return None if known is None else excerpt(str(known))


def _parted(rows: pa.RecordBatch, columns: Columns) -> tuple[pa.RecordBatch, list[str]]:
    """Return the rows that are documents, and the ids of those that are gone."""
    if GONE not in rows.schema.names:
        return rows, []
    marked = pc.fill_null(rows.column(GONE), fill_value=False)
    gone = rows.filter(marked).column(columns.id).cast(pa.string()).to_pylist()
    return rows.filter(pc.invert(marked)), gone


@contextmanager
def _records(
    source: DocumentFile, columns: Columns, rows: int, size: int
) -> Iterator[tuple[Iterator[Record | BadRecord], WatchedFile | None]]:
    """Open a file, and see before and after that it is the one that was listed."""
    if source.format == "builtin":
        yield read_installed(source), None
        return
    _same_as_listed(source, "since it was listed")
    algorithm, _, digest = (source.hash or "").partition(":")
    with explained(source.path, "open it"):
        opened = open_file(source.url, dict(source.options))
    with opened:
        if digest and (source.format == "parquet" or source.span):  # not read from front to end
            if not source.span or not source.span[0]:  # the first segment checks it for all
                _check_digest(source, WatchedFile(opened, source.path, algorithm), digest)
            opened.seek(0)
            digest = ""
        if source.span and source.format == "jsonl":
            file: WatchedFile = SegmentLines(opened, source.path, source.span)
        else:
            file = WatchedFile(opened, source.path, algorithm if digest else None)
        yield _READERS[source.format](file, source, columns, rows, size), file
        _same_as_listed(source, "while it was read")
        if digest:
            _check_digest(source, file, digest)


def _same_as_listed(source: DocumentFile, when: str) -> None:
    size, etag = state_of(source.url, dict(source.options))
    if (size, etag) != (source.size, source.etag):
        raise SourceUnavailableError(
            f"{source.path}: must not change {when}, got {size} bytes with etag {etag} in the "
            f"place of {source.size} with {source.etag}; run again when nobody writes it"
        )


def _check_digest(source: DocumentFile, file: WatchedFile, digest: str) -> None:
    actual = file.digest_to_the_end()
    if actual != digest:
        raise InvalidInputError(
            f"{source.path}: must have the hash {source.hash} (so the manifest says), got "
            f"{actual}; fetch the file again or correct the manifest"
        )


class _Builder:
    """A batch in the making: every value is checked here, whatever the format."""

    def __init__(self, name: str, columns: Columns, *, labelled: bool = False) -> None:
        self._name = name
        self._columns = columns
        self._seen = SeenIds()
        self._width: int | None = None
        self._optional = [name for name in ("time", "label") if getattr(columns, name) is not None]
        if labelled:
            self._optional = ["label"]
        self._start()

    def _start(self) -> None:
        self.bytes = 0
        self._batch = Batch(
            extra={name: [] for name in self._optional},
            kept={name: [] for name in self._columns.keep},
            columns={name: [] for name in texts} if len(texts := self._columns.texts) > 1 else {},
        )
        self._embeddings: list[Any] = []

    @property
    def rows(self) -> int:
        """How many records there are in the batch, good and bad."""
        return len(self._batch.ids) + len(self._batch.rejects)

    def take(self, records: Iterator[Record | BadRecord]) -> Iterator[None]:
        """Take records in, one a step, up to where the file breaks off."""
        try:
            for record in records:
                self.add(record)
                yield
        except DamagedFile as error:
            self.reject(error.line, None, error.reason, "", whole_rest=True)

    def add(self, record: Record | BadRecord) -> None:
        """Take one record in, as a document or as a reject."""
        if isinstance(record, BadRecord):
            self.reject(record.line, None, record.reason, record.raw)
            return
        line, id_, text, time, label, embedding, raw, values, parts = record
        if type(id_) is int:
            id_ = str(id_)
        if self._columns.text is None:
            text = ""
        problem = problem_of_document(id_, text, self._columns)
        if not problem and self._optional:
            problem = problem_of_word("time", time) or problem_of_word("label", label)
        kept = [
            as_kept(name, value) for name, value in zip(self._columns.keep, values, strict=False)
        ]
        problem = problem or next((wrong for _, wrong in kept if wrong), "")
        if not problem and self._columns.embedding is not None:
            embedding, problem = as_row(embedding, self._width)
            self._width = self._width or len(embedding)
        if problem:
            known = id_ if isinstance(id_, str) and id_ else None
            shown = excerpt(raw if raw is not None else f"{id_!r} {text!r:.{200}}")
            self.reject(line, known and excerpt(known), problem, shown)
            return
        batch = self._batch
        batch.ids.append(id_)
        batch.texts.append(text)
        batch.lines.append(line)
        self.bytes += len(text)
        for name in self._optional:
            value = time if name == "time" else label
            batch.extra[name].append(None if value is None else str(value))
        for number, column in enumerate(batch.kept.values()):
            column.append(kept[number][0] if kept else None)
        for number, texts in enumerate(batch.columns.values()):
            texts.append(parts[number] or "" if parts else text)
        if self._columns.embedding is not None:
            self._embeddings.append(embedding)

    def reject(
        self, line: int, id_: str | None, reason: str, raw: str, *, whole_rest: bool = False
    ) -> None:
        """Note that a record is no document."""
        reject = Reject(self._name, line, id_, reason, raw, whole_rest)
        self._batch.rejects.append(reject)

    def finish(self) -> Batch:
        """Return the batch without ids that were there before, and begin the next."""
        batch = self._batch
        repeated = self._seen.add(batch.ids)
        if self._embeddings:
            batch.embeddings = np.stack(self._embeddings)
        if repeated:
            self._take_out(batch, repeated)
        self._start()
        return batch

    def _take_out(self, batch: Batch, repeated: list[int]) -> None:
        reason = "the id is that of an earlier document of this file"
        for position in repeated:
            id_, text = batch.ids[position], batch.texts[position]
            self.reject(batch.lines[position], excerpt(id_), reason, excerpt(text))
        batch.rejects.sort(key=lambda reject: reject.line)
        kept = np.ones(len(batch.ids), np.bool_)
        kept[repeated] = False
        columns: list[list[Any]] = [batch.ids, batch.texts, batch.lines, *batch.extra.values()]
        columns += [*batch.kept.values(), *batch.columns.values()]
        for column in columns:
            column[:] = compress(column, kept)
        if batch.embeddings is not None:
            batch.embeddings = batch.embeddings[kept]


class SeenIds:
    """Hashes of ids (128 bits: no two ids share one) in sorted runs that double in size.

    Examples
    --------
    >>> seen = SeenIds()
    >>> seen.add(["a", "b"]), seen.add(["c", "b", "c"])
    ([], [1, 2])
    """

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.bytes_]] = []

    def add(self, ids: list[str]) -> list[int]:
        """Take ids in and return the positions of those that were there before."""
        if not ids:
            return []
        digests = b"".join([blake2b(id_.encode(), digest_size=16).digest() for id_ in ids])
        hashes = np.frombuffer(digests, dtype="S16")
        last, first = np.unique(hashes, return_index=True)
        repeated = np.ones(len(ids), np.bool_)
        repeated[first] = False
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, hashes), len(run) - 1)
            repeated |= run[places] == hashes
        while self._runs and len(self._runs[-1]) <= 2 * len(last):
            last = np.sort(np.concatenate([self._runs.pop(), last]), kind="stable")
        self._runs.append(last)
        return np.flatnonzero(repeated).tolist()
