"""A sample of a job's documents, at places spread over their bytes, and how many there are in all.

Files that are all small enough are read whole; then the number is known. Else documents are counted
at up to `PLACES` places, and what these differ by says how uncertain the number is.
"""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.documents.batches import Batch, read_batches
from hmrf_dask.documents.delimited import encode_lines
from hmrf_dask.documents.files import DocumentFile
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.segments import DocumentSegment
from hmrf_dask.documents.streams import WatchedFile, decompressed, open_file, state_of
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.storage.remote import explained

PLACES = 32
BYTES = 128 * 2**20  # of a sample, at most
PROBE = 2**18  # bytes that show how long documents are
FILES = 2_000  # of one document each
SEGMENTS = 8  # of other sources than files
UNPACKED = 8  # times its bytes the text of a compressed file has, as a rule
READ_AT_ONCE = 512  # bytes: what breaks off is lost from there
MODEST_ROWS = 500  # in a batch, so that a sample ends near where it should


@dataclass(frozen=True)
class Place:
    """A stretch of a file that is read: `source` is what readers open."""

    source: DocumentFile
    n_bytes: int  # of the store that it stands for; 0: the whole file is one document
    whole: bool  # all of the file


@dataclass
class DocumentSample:
    """What was read of the documents."""

    n_files: int
    n_bytes: int  # of all files
    n_documents: int = 0  # in all: known, or estimated
    error: float = 0.0  # half of what 95 % of such estimates differ by; 0 where it is known
    n_read: int = 0
    bytes_read: int = 0
    seconds: float = 0.0  # of reading, on one thread
    characters: int = 0
    n_rejects: int = 0
    ids: list[str] = field(default_factory=list, repr=False)  # of those that are kept
    records: list[bytes] = field(default_factory=list, repr=False)  # these, as JSON

    @property
    def complete(self) -> bool:
        """Whether every document is in it."""
        return len(self.records) == self.n_documents

    @property
    def kept_bytes(self) -> int:
        """Bytes of memory of the documents that are kept."""
        return sum(map(len, self.records))

    def count(self, batch: Batch) -> None:
        """Note that documents were read."""
        self.n_read += len(batch.ids)
        self.n_rejects += len(batch.rejects)
        self.characters += sum(map(len, batch.texts))

    def keep(self, batch: Batch, columns: Columns) -> None:
        """Keep documents that were read, as they were written."""
        self.ids += batch.ids
        self.records += (encode_lines([record]) for record in _records(batch, columns))

    def lines(self, first: int, stop: int) -> bytes:
        """Return some of the documents as JSON Lines."""
        return b"".join(self.records[first:stop])

    def shuffle(self) -> None:
        """Bring the documents into an order of chance: files may be in that of their subjects."""
        order = list(range(len(self.records)))
        Random(0).shuffle(order)
        self.ids = [self.ids[place] for place in order]
        self.records = [self.records[place] for place in order]


def sample_of(
    segments: Sequence[DocumentSegment], columns: Columns, most: int, folder: str
) -> DocumentSample:
    """Return at most `most` documents of segments, which may be files or of other sources."""
    files = [one.file for one in segments if one.file is not None]
    if len(files) == len(segments):
        return read_sample(files, columns, most, folder)
    return _of_segments(segments, most)


def _of_segments(segments: Sequence[DocumentSegment], most: int) -> DocumentSample:
    """Return the first documents of some segments, whose ids are counted for the number of all."""
    found = DocumentSample(len(segments), sum(one.size for one in segments))
    n_chosen = min(len(segments), SEGMENTS)
    chosen = [segments[number * len(segments) // n_chosen] for number in range(n_chosen)]
    rates, places = list[tuple[int, int]](), list[Place]()
    for number, segment in enumerate(chosen):
        share = math.ceil((most - len(found.records)) / (n_chosen - number))
        n_there = sum(map(len, segment.keys()))
        began = time.perf_counter()
        n_read = _read_first(found, segment, share)
        found.seconds += time.perf_counter() - began
        found.bytes_read += round(segment.size * n_read / max(n_there, 1))
        rates.append((n_there, segment.size))
        places.append(Place(DocumentFile(segment.name, "", segment.size, ""), segment.size, True))
    if not found.n_read:
        raise InvalidInputError(
            f"there must be documents to plan for, got none in {n_chosen} of "
            f"{len(segments)} segments; see what hmrf-dask check says"
        )
    _estimate(found, places, rates)
    found.shuffle()
    return found


def _read_first(found: DocumentSample, segment: DocumentSegment, share: int) -> int:
    """Keep about `share` documents of a segment; return how many were read."""
    n_read = 0
    with closing(segment.read(rows=max(1, min(share, MODEST_ROWS)))) as batches:
        for batch in batches:
            n_read += len(batch.ids)
            found.count(batch)
            found.keep(batch, segment.columns)
            if n_read >= share:
                break
    return n_read


def read_sample(
    sources: Sequence[DocumentFile], columns: Columns, most: int, folder: str
) -> DocumentSample:
    """Return at most `most` documents; beginnings of some files are copied to a temporary folder.

    Raises what a run would raise where a file cannot be read; bad records are counted.
    """
    found = DocumentSample(len(sources), sum(source.size for source in sources))
    places = list(_places(sources, columns, most, folder))
    began = time.perf_counter()
    rates = []  # documents and bytes of each place
    for number, place in enumerate(places):
        share = math.ceil((most - len(found.records)) / (len(places) - number))
        rates.append((_read(found, place, columns, share), place.n_bytes))
    found.seconds = time.perf_counter() - began
    if not found.n_read:
        raise InvalidInputError(
            f"there must be documents to plan for, got none in {len(places)} places of "
            f"{len(sources)} files; see what hmrf-dask check says"
        )
    _estimate(found, places, rates)
    found.shuffle()
    return found


def _estimate(
    found: DocumentSample, places: Sequence[Place], rates: Sequence[tuple[int, int]]
) -> None:
    """Say how many documents there are, and how sure that is."""
    counts, sizes = np.array(rates, np.float64).T
    if all(place.whole for place in places) and len(places) == found.n_files:
        found.n_documents = int(counts.sum())
        return
    if not sizes.any():  # files of one document each
        found.n_documents = found.n_files
        return
    rate = counts.sum() / sizes.sum()
    found.n_documents = max(found.n_read, round(rate * found.n_bytes))
    if len(rates) > 1:
        residuals = counts - rate * sizes
        spread = math.sqrt(float((residuals**2).sum()) / (len(rates) - 1) * len(rates))
        found.error = float(1.96 * spread / sizes.sum() * found.n_bytes)


def _read(found: DocumentSample, place: Place, columns: Columns, share: int) -> int:
    """Read a place, and keep about `share` documents; return how many there are in it.

    Rows of Parquet are known without reading them all.
    """
    is_counted, n_read = place.source.format == "parquet", 0
    rows = max(1, min(share, MODEST_ROWS))
    with closing(read_batches(place.source, columns, batch_rows=rows)) as batches:
        for batch in batches:
            is_kept = n_read < share
            n_read += len(batch.ids)
            found.count(batch)
            if is_kept:
                found.keep(batch, columns)
            if is_counted and n_read >= share:
                break
    n_there = _rows_of(place.source) if is_counted else n_read
    found.bytes_read += round((place.n_bytes or place.source.size) * n_read / max(n_there, 1))
    return n_there


def _rows_of(source: DocumentFile) -> int:
    """Return the rows of a Parquet file, which its last bytes say."""
    with explained(source.path, "open it"), open_file(source.url, dict(source.options)) as file:
        return int(pq.ParquetFile(pa.PythonFile(file, mode="r")).metadata.num_rows)


def _records(batch: Batch, columns: Columns) -> Iterator[dict[str, Any]]:
    """Yield documents by the columns of the manifest."""
    own: dict[str, Iterable[Any]] = {columns.id: batch.ids}
    if len(columns.texts) > 1:
        own |= batch.columns
    elif columns.texts:
        own[columns.texts[0]] = batch.texts
    for name in ("time", "label"):
        column = getattr(columns, name)
        if column is not None and name in batch.extra:
            own[column] = batch.extra[name]
    own |= batch.kept
    if columns.embedding is not None and batch.embeddings is not None:
        own[columns.embedding] = batch.embeddings.tolist()
    names = list(own)
    for values in zip(*own.values(), strict=True):
        yield dict(zip(names, values, strict=True))


# ---- where to read


def _places(
    sources: Sequence[DocumentFile], columns: Columns, most: int, folder: str
) -> Iterator[Place]:
    """Yield stretches of files, spread evenly over the bytes of all."""
    if sources and all(source.format == "text" for source in sources):
        n_chosen = min(len(sources), most, FILES)
        for number in range(n_chosen):
            source = sources[number * len(sources) // n_chosen]
            whole = n_chosen == len(sources)
            yield Place(source, source.size if whole else 0, True)
        return
    total = sum(source.size for source in sources)
    if sum(map(_characters, sources)) <= BYTES:
        yield from (Place(source, source.size, True) for source in sources)
        return
    probe = DocumentSample(1, PROBE)
    n_probed = _read(probe, _stretch(sources[0], 0, PROBE, folder), columns, 1)
    size = min(BYTES, round(most * probe.bytes_read / max(n_probed, 1)))
    n_places = min(PLACES, max(len(sources), 8))
    ends = np.cumsum([source.size for source in sources])
    read_to = dict[int, int]()  # of files by number
    for number in range(n_places):
        first = number * total // n_places
        at = int(np.searchsorted(ends, first, side="right"))
        source, inside = sources[at], first - int(ends[at] - sources[at].size)
        is_cut = _is_cut(source) and source.size > size // n_places
        share = size // (n_places if is_cut else min(n_places, len(sources)))
        if is_cut or at not in read_to:  # a stretch ends with its file at the latest
            inside = max(read_to.get(at, 0), min(inside, source.size - share))
            yield _stretch(source, inside, share, folder)
            read_to[at] = inside + share


def _characters(source: DocumentFile) -> int:
    return source.size * (1 if source.compression == "none" else UNPACKED)


def _is_cut(source: DocumentFile) -> bool:
    return (source.format, source.compression) == ("jsonl", "none")


def _stretch(source: DocumentFile, inside: int, size: int, folder: str) -> Place:
    """Return about `size` bytes of a file; only of JSON Lines they need not be its first."""
    if source.size <= size or source.format in ("parquet", "builtin"):
        return Place(replace(source, hash=None), source.size, True)
    if _is_cut(source):
        stop = min(inside + size, source.size)
        return Place(replace(source, hash=None, span=(inside, stop)), stop - inside, False)
    packed = UNPACKED if source.compression != "none" else 1
    return _beginning(source, size // packed, folder)


def _beginning(source: DocumentFile, size: int, folder: str) -> Place:
    """Return the first lines of a file that is read from its front, copied."""
    with explained(source.path, "read it"), open_file(source.url, dict(source.options)) as file:
        data = file.read(size)
    text = io.BytesIO()
    stream = decompressed(WatchedFile(io.BytesIO(data), source.path), source.compression)
    with suppress(OSError, ValueError, EOFError, pa.ArrowException):  # it breaks off
        while text.tell() < 2 * BYTES and (part := stream.read(READ_AT_ONCE)):
            text.write(part)
    content = text.getvalue()
    content = content[: content.rfind(b"\n") + 1] or content
    path = os.path.join(folder, f"beginning-{len(os.listdir(folder))}")
    with open(path, "wb") as copy:
        copy.write(content)
    length, etag = state_of(path, {})
    copied = replace(
        source, url=path, size=length, etag=etag, compression="none", hash=None, options=()
    )
    return Place(copied, size, False)
