"""What a run reads: the segments of all sources of a manifest, held still from listing to reading.

All files of a manifest are one source; every resource of another kind is a source of its own.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from hmrf_dask.documents.batches import Batch, batches_of, read_batches
from hmrf_dask.documents.files import list_files, segments_of
from hmrf_dask.documents.manifest import Columns, Manifest
from hmrf_dask.documents.sources import BATCH_ROWS, Listing, Segment, Source
from hmrf_dask.storage.sealed import digest


@dataclass(frozen=True)
class Files(Source):
    """Files in stores. What lists them has the manifest, in the folder `base`; readers need none.

    The file is what a segment says of `where`, so nothing of it is kept for the next listing.
    """

    columns: Columns
    manifest: Manifest | None = field(default=None, repr=False)
    base: str = ""

    @property
    def identity(self) -> str:
        """Files say what their documents depend on one by one; see `described`."""
        return "files"

    def segments(self, snapshot: str, before: Listing | None) -> Listing:  # noqa: ARG002 - no use
        """Return the files as their stores list them, sorted by path."""
        assert self.manifest is not None
        files = list_files(self.manifest, self.base)
        return Listing(tuple(Segment(one.path, one.size, one.etag, one) for one in files))

    def read(
        self,
        segment: Segment,
        snapshot: str,  # noqa: ARG002 - stores have none, and files are read by columns
        names: Sequence[str],  # noqa: ARG002
        *,
        ids: Sequence[str] = (),
        rows: int = BATCH_ROWS,
    ) -> Iterator[Batch]:
        """Yield the documents of a file or of a part of one; a text file is one document."""
        file = segment.where
        if ids and file.format == "text" and file.document_id not in ids:
            return iter(())
        return read_batches(file, self.columns, batch_rows=rows)

    def parts(self, segment: Segment) -> list[Segment]:
        """Return the parts that a large file is read in."""
        return [replace(segment, size=one.n_bytes, where=one) for one in segments_of(segment.where)]

    def described(self, segment: Segment) -> list[Any]:
        """Return what the documents of a file depend on: its content, and how it is read."""
        file = segment.where
        parts: list[Any] = [file.path, file.size, file.etag]
        parts += [file.format, file.compression, file.encoding]
        parts += [] if file.span is None else [file.span]
        return [*parts, file.dialect.model_dump(mode="json")]


@dataclass(frozen=True)
class DocumentSegment:
    """A segment as a run has it: with its source, and all that a task needs to read it."""

    source: Source
    segment: Segment
    columns: Columns
    snapshot: str = ""
    resource: str = ""  # of other sources than files, whose paths say enough

    @property
    def name(self) -> str:
        """What ledgers, errors and quarantines call it: of a file its path."""
        return f"{self.resource}:{self.segment.name}" if self.resource else self.segment.name

    @property
    def size(self) -> int:
        """About how many bytes it has."""
        return self.segment.size

    @property
    def stamp(self) -> str:
        """What changes with the content."""
        return self.segment.stamp

    @cached_property
    def key(self) -> str:
        """What the documents depend on: the content, and how it is read."""
        parts = [*self.source.described(self.segment), self.columns.described()]
        return digest(json.dumps(parts).encode())[:24]

    def parts(self) -> list[DocumentSegment]:
        """Return what is read by a task each."""
        return [replace(self, segment=one) for one in self.source.parts(self.segment)]

    def read(self, ids: Sequence[str] = (), rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """Yield the documents, and what is none; with `ids` others may be missing."""
        names = list(dict.fromkeys(name for name in self.columns.in_order if name is not None))
        read = self.source.read(self.segment, self.snapshot, names, ids=ids, rows=rows)
        return batches_of(read, self.name, self.columns)

    def keys(self) -> Iterator[pa.Array]:
        """Yield the ids of the rows that are there now, in parts."""
        for rows in self.source.read(self.segment, self.snapshot, [self.columns.id]):
            ids = rows.ids if isinstance(rows, Batch) else rows.column(0)
            yield pa.array(ids).cast(pa.string())

    def lines_of(self, ids: Container[str]) -> dict[str, int]:
        """Return the lines of documents with some ids, counted as `read` counts them."""
        return {
            one: line
            for batch in self.read()
            for one, line in zip(batch.ids, batch.lines, strict=True)
            if one in ids
        }
