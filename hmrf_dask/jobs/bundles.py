"""Small files of documents in bundles: a million files are not a million partitions.

A bundle is read, counted and weighed as if it were one file. Which files share one:
`hmrf_dask.jobs.bundling`. A large file is a bundle of its own.

`documents/<key>/` below the output holds the known classes of a bundle's documents, which no row
has, and the records that are no documents.
"""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from itertools import chain, islice
from typing import Any, NoReturn, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.documents.batches import BATCH_BYTES, BATCH_ROWS, Batch, Reject
from hmrf_dask.documents.segments import lines_before
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.jobs.inputs import DocumentSource
from hmrf_dask.limits import REJECTS_LISTED
from hmrf_dask.storage.records import DamagedFileError, digest, typed
from hmrf_dask.storage.stores import Storage
from hmrf_dask.text.counts import refuse_file
from hmrf_dask.text.files import Place

T = TypeVar("T")
FOLDER = "documents"
_HASH = 16  # digits of the sha256 in names of what lies beside rows
ABREAST = 16  # files read at once: what small ones wait for is the disk or the store


@dataclass
class Bundle:
    """Files read one after the other; see `hmrf_dask.text.vectorise.TextSource`.

    Attributes
    ----------
    files : tuple of DocumentSource
        Sorted by path.
    place : Place
        The output.
    stop : bool
        Whether a bad record is an error.
    origins : tuple of str
        The keys of bundles of the last release that it takes the place of: of one that had these
        files and others, or of several that are brought together. None: it is as it was, or new.
    """

    files: tuple[DocumentSource, ...]
    place: Place
    stop: bool
    origins: tuple[str, ...] = ()
    _told: Told = field(init=False, repr=False)

    @property
    def key(self) -> str:
        """What the documents depend on."""
        return sha256(" ".join(one.key for one in self.files).encode()).hexdigest()[:24]

    def read(self) -> Iterator[Batch]:
        """Yield the documents; a bad record is an error, or goes to a file."""
        self._told = told = Told(self)
        waiting: list[tuple[int, Batch]] = []
        n_rows = n_bytes = 0
        for number, batch in self._batches():
            if self.stop and batch.rejects:
                raise placed(batch.rejects[0], lines_before(self.files[number].source)).as_error()
            rows, size = len(batch.ids) + len(batch.rejects), sum(map(len, batch.texts))
            if waiting and rows and (n_rows + rows > BATCH_ROWS or n_bytes + size > BATCH_BYTES):
                yield told.write(waiting)
                waiting, n_rows, n_bytes = [], 0, 0
            waiting.append((number, batch))
            n_rows, n_bytes = n_rows + rows, n_bytes + size
        if waiting:
            yield told.write(waiting)

    def told(self) -> dict[str, Any]:
        """Return the names of the files beside, and which documents are of which file."""
        return self._told.as_json()

    def _batches(self) -> Iterator[tuple[int, Batch]]:
        if len(self.files) == 1:  # it may be large
            yield from ((0, batch) for batch in self.files[0].read())
            return
        with ThreadPoolExecutor(ABREAST) as pool:
            for first in range(0, len(self.files), ABREAST):
                some = self.files[first : first + ABREAST]
                for number, batches in enumerate(pool.map(_begun, some), first):
                    yield from ((number, batch) for batch in batches)


def _begun(file: DocumentSource) -> Iterator[Batch]:
    """Return the batches of a small file, read; of one that holds more than it seems the first."""
    batches = iter(file.read())
    return chain(list(islice(batches, 2)), batches)


class Told:
    """What reading a bundle tells, and the files that are written beside its rows.

    As JSON: `key`; `files`, of each its path and key, how many records are no documents, what is
    wrong with the first, and how many lines a segment has; `documents`, for
    each batch how many documents each file has in it; `rejects`, names of files of records;
    `labels`, for each batch the name of a file or None.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._key = bundle.key
        self._storage = bundle.place.storage
        self._files: list[list[Any]] = [
            [one.source.path, one.key, 0, None, 0] for one in bundle.files
        ]
        self._documents: list[list[list[int]]] = []
        self._rejects: list[str] = []
        self._labels: list[str | None] = []

    def as_json(self) -> dict[str, Any]:
        """Return it all."""
        return {
            "key": self._key,
            "files": self._files,
            "documents": self._documents,
            "rejects": self._rejects,
            "labels": self._labels,
        }

    def write(self, parts: Sequence[tuple[int, Batch]]) -> Batch:
        """Return batches, each with the number of its file, as one; what lies beside is written."""
        documents: dict[int, int] = defaultdict(int)
        for number, batch in parts:
            if batch.ids:
                documents[number] += len(batch.ids)
            self._files[number][4] += batch.n_lines
        labelled = any("label" in batch.extra for _, batch in parts)
        self._require_one_width(parts)
        whole = _joined([batch for _, batch in parts])
        labels = whole.extra["label"] if labelled else None
        number = len(self._documents)
        self._documents.append([list(one) for one in documents.items()])
        self._labels.append(
            None if labels is None else self._write_labels(number, whole.ids, labels)
        )
        if listed := self._note(whole.rejects):
            data = encode_rejects(listed)
            self._rejects.append(self._write(f"rejects-{number:05d}", "jsonl", data))
        return whole

    def _require_one_width(self, parts: Sequence[tuple[int, Batch]]) -> None:
        widths = {
            batch.embeddings.shape[1]: self._files[number][0]
            for number, batch in parts
            if batch.embeddings is not None
        }
        if len(widths) > 1:
            refuse_widths(widths)

    def _note(self, rejects: Sequence[Reject]) -> list[Reject]:
        """Count what is no document; return what is listed, of each file the first ones."""
        files, listed = {one[0]: one for one in self._files}, list[Reject]()
        for reject in rejects:
            file = files[reject.source]
            file[2] += 1
            if file[3] is None or (reject.whole_rest and not file[3]["whole_rest"]):
                file[3] = asdict(reject)  # that a file breaks off is worse than a bad record
            if file[2] <= REJECTS_LISTED:
                listed.append(reject)
        return listed

    def _write_labels(self, number: int, ids: Sequence[str], labels: Sequence[str | None]) -> str:
        columns = {"id": ids, "label": labels}
        table = pa.table({name: pa.array(one, pa.string()) for name, one in columns.items()})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
        return self._write(f"labels-{number:05d}", "parquet", sink.getvalue().to_pybytes())

    def _write(self, stem: str, ending: str, data: bytes) -> str:
        """Write what lies beside the rows under a name with its hash: who names it knows it."""
        name = f"{FOLDER}/{self._key}/{stem}-{digest(data)[:_HASH]}.{ending}"
        self._storage.write(name, data)
        return name


def read_beside(storage: Storage, name: str, decode: Callable[[bytes], T]) -> T:
    """Return what lies beside the rows of a bundle, or raise UnreadableFileError naming the file.

    Its documents may have been read long ago; its name holds the hash that it must have.
    """
    path = f"{storage.url}/{name}"
    try:
        data = storage.read(name)
    except FileNotFoundError:
        refuse_file(path, "it is missing")
    if digest(data)[:_HASH] != name.rpartition("-")[2].partition(".")[0]:
        refuse_file(path, f"the hash of its {len(data)} bytes is not the one in its name")
    try:
        return decode(data)
    except (OSError, pa.ArrowException, ValueError, TypeError) as error:
        refuse_file(path, f"it cannot be read ({error})")


def read_rejects(data: bytes) -> list[Reject]:
    """Return what `encode_rejects` was given."""
    return [Reject(**json.loads(line)) for line in data.splitlines()]


def read_table(data: bytes) -> pa.Table:
    """Return the table of a Parquet file."""
    return pq.read_table(io.BytesIO(data), page_checksum_verification=True)


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    whole = Batch()
    for batch in batches:
        whole.ids += batch.ids
        whole.texts += batch.texts
        whole.lines += batch.lines
        whole.rejects += batch.rejects
    for name in dict.fromkeys(name for batch in batches for name in batch.extra):
        whole.extra[name] = [
            value for one in batches for value in one.extra.get(name, [None] * len(one.ids))
        ]
    rows = [batch.embeddings for batch in batches if batch.embeddings is not None]
    whole.embeddings = np.concatenate(rows) if rows else None
    return whole


def placed(reject: Reject, n_lines: int) -> Reject:
    """Return a reject of a segment with the line it has in the file."""
    return replace(reject, line=reject.line + n_lines) if n_lines and reject.line else reject


def encode_rejects(rejects: Iterable[Reject]) -> bytes:
    """Return rejects as JSON lines."""
    lines = (json.dumps(asdict(one), ensure_ascii=False) for one in rejects)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")


def refuse_widths(widths: Mapping[int, str]) -> NoReturn:
    """Raise InvalidInputError that names a file with embeddings of each length."""
    shown = ", ".join(f"{width} in {path}" for width, path in sorted(widths.items()))
    raise InvalidInputError(
        f"embeddings must have the same length in all files, got {shown}; make those of other "
        "files with the same model"
    )


# ---- what was told


@dataclass(frozen=True)
class _ToldForm:
    """What `Told.as_json` gives."""

    key: str
    files: list[tuple[str, str, int, dict[str, Any] | None, int]]
    documents: list[list[tuple[int, int]]]
    rejects: list[str]
    labels: list[str | None]


def check_told(told: Mapping[str, Any], path: str) -> None:
    """Raise UnreadableFileError naming the record that was sealed with something else."""
    try:
        found = typed(_ToldForm, told, path)
    except DamagedFileError as error:
        refuse_file(path, f"it holds {str(error).partition(', got ')[2].partition(';')[0]}")
    inside = range(len(found.files))
    if any(file not in inside for batch in found.documents for file, _ in batch):
        refuse_file(path, f"it has documents of other files than its {len(found.files)}")


def paths_of(told: Mapping[str, Any]) -> list[str]:
    """Return the files of a bundle."""
    return [file[0] for file in told["files"]]


def n_rejects_of(told: Mapping[str, Any]) -> int:
    """Return how many records of a bundle are no documents."""
    return sum(file[2] for file in told["files"])


def lines_before_of(told: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return of each bundle how many lines are in the segments of its file that come before it."""
    so_far: dict[str, int] = defaultdict(int)
    found = []
    for one in told:
        path, *_, n_lines = one["files"][0]
        found.append(so_far[path])
        so_far[path] += n_lines
    return found


def not_listed(told: Mapping[str, Any]) -> list[Reject]:
    """Return for each file with more bad records than are listed how many more there are."""
    return [
        Reject(path, 0, None, f"{more:,} more records are no documents, and are not listed", "")
        for path, _, n_rejects, *_ in told["files"]
        if (more := n_rejects - REJECTS_LISTED) > 0
    ]


def n_documents_of(told: Mapping[str, Any]) -> int:
    """Return how many documents a bundle has."""
    return sum(n for batch in told["documents"] for _, n in batch)


def first_rejects(told: Sequence[Mapping[str, Any]]) -> Iterator[Reject]:
    """Yield what is wrong with each file, where something is: its first bad record, or its end."""
    for one, n_lines in zip(told, lines_before_of(told), strict=True):
        for *_, reject, _ in one["files"]:
            if reject is not None:
                yield placed(Reject(**reject), n_lines)


def refuse_rejects(told: Sequence[Mapping[str, Any]]) -> None:
    """Raise InvalidInputError for the first record of bundles that is no document, if any."""
    for reject in first_rejects(told):
        raise reject.as_error()
