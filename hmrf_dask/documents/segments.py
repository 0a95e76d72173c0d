"""What a run reads: the segments of all sources of a manifest, held still from listing to reading.

All files of a manifest are one source; every resource of another kind is a source of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from hmrf_dask.documents.batches import Batch, batches_of, read_batches
from hmrf_dask.documents.files import DocumentFile, lines_before, list_files, segments_of
from hmrf_dask.documents.manifest import Columns, Manifest, SourceResource
from hmrf_dask.documents.sources import BATCH_ROWS, Listing, Segment, Source, open_source
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.storage.sealed import digest

LISTINGS = "listings"  # of sources other than files, in the ledger of a release
UNPACKED = 8  # times its bytes a compressed file counts: it is its text that takes memory
# Deltas are read into base segments, by listing all again, as soon as they are as many, or have as
# large a share of the bytes.
MOST_DELTAS, DELTA_SHARE = 32, 0.2


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
    ) -> Generator[Batch]:
        """Yield the documents of a file or of a part of one; a text file is one document."""
        file = segment.where
        if ids and file.format == "text" and file.document_id not in ids:
            return
        yield from read_batches(file, self.columns, batch_rows=rows)

    def parts(self, segment: Segment) -> list[Segment]:
        """Return the parts that a large file is read in, with the memory that each takes."""
        return [
            replace(
                segment,
                size=one.n_bytes * (1 if one.compression == "none" else UNPACKED),
                where=one,
                is_alone=bool(one.span) or one.format == "builtin",
            )
            for one in segments_of(segment.where)
        ]

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
    compares_keys: bool = False  # what `keys` do not have any more is gone

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

    @property
    def is_alone(self) -> bool:
        """Whether it is counted by itself: other sources than files say what is read at once."""
        return self.segment.is_alone or bool(self.resource)

    @cached_property
    def key(self) -> str:
        """What the documents depend on: the content, and how it is read."""
        own = [self.resource] if self.resource else []
        parts = [*own, *self.source.described(self.segment), self.columns.described()]
        return digest(json.dumps(parts).encode())[:24]

    @property
    def seen(self) -> list[Any]:
        """What says that it is as it was: its name, size and stamp, and how it is read."""
        own = [self.resource] if self.resource else []
        parts = [*own, *self.source.described(self.segment)]
        return [*parts[:3], parts[3:]]

    def by_itself(self) -> DocumentSegment:
        """Return a file as one that shares no pack, however small it is."""
        assert self.file is not None
        span = replace(self.file, span=(0, self.file.size))
        return replace(self, segment=replace(self.segment, where=span))

    def as_it_is(self) -> DocumentSegment:
        """Return it to be read as it is then, not as it was listed: for people."""
        return replace(self, snapshot="")

    def parts(self) -> list[DocumentSegment]:
        """Return what is read by a task each."""
        return [replace(self, segment=one) for one in self.source.parts(self.segment)]

    def read(self, ids: Sequence[str] = (), rows: int = BATCH_ROWS) -> Generator[Batch]:
        """Yield the documents, and what is none; with `ids` others may be missing."""
        names = list(dict.fromkeys(name for name in self.columns.in_order if name is not None))
        read = self.source.read(self.segment, self.snapshot, names, ids=ids, rows=rows)
        return batches_of(read, self.name, self.columns)

    def keys(self) -> Iterator[pa.Array]:
        """Yield the ids of the rows that are there now, in parts."""
        for rows in self.source.read(self.segment, self.snapshot, [self.columns.id]):
            ids = rows.ids if isinstance(rows, Batch) else rows.column(0)
            yield pa.array(ids).cast(pa.string())

    @property
    def file(self) -> DocumentFile | None:
        """The file that it is, or is a part of; None of other sources."""
        return self.segment.where if isinstance(self.segment.where, DocumentFile) else None

    def lines_before(self) -> int:
        """Return how many lines of its file come before it."""
        return 0 if self.file is None else lines_before(self.file)

    def lines_of(self, ids: Container[str]) -> dict[str, int]:
        """Return the lines of documents with some ids, counted as `read` counts them."""
        if self.file is None:
            return {}  # rows have no numbers
        return {
            one: line
            for batch in self.read()
            for one, line in zip(batch.ids, batch.lines, strict=True)
            if one in ids
        }


@dataclass(frozen=True)
class KnownListing:
    """A listing of a release, as its ledger has it: what it was made of, by what source."""

    identity: str
    listing: Listing

    @staticmethod
    def of(ledger: Mapping[str, Any]) -> dict[str, KnownListing]:
        """Return the listings of a ledger by resource; files have none."""
        return {
            name: KnownListing(
                known["identity"],
                Listing(
                    tuple(Segment(**one) for one in known["segments"]),
                    known["stamp"],
                    known["compares_keys"],
                ),
            )
            for name, known in ledger.get(LISTINGS, {}).items()
        }

    @property
    def as_json(self) -> dict[str, Any]:
        """What a ledger has of it."""
        return {"identity": self.identity, **asdict(self.listing)}


class Documents:
    """The documents of a manifest as one moment has them: all segments, and what holds them still.

    Parameters
    ----------
    segments : sequence of DocumentSegment
    listings : mapping of str to KnownListing
        Of sources other than files, by resource.
    hold : ExitStack, optional
        What is left when all is read. It does not travel to other processes.
    """

    def __init__(
        self,
        segments: Sequence[DocumentSegment],
        listings: Mapping[str, KnownListing],
        hold: ExitStack | None = None,
    ) -> None:
        self.segments = tuple(segments)
        self.listings = listings
        self._hold = hold

    @property
    def is_held(self) -> bool:
        """Whether it can be read as it was listed: files say by themselves whether they changed."""
        return self._hold is not None or not self.listings

    def close(self) -> None:
        """Let go of what was held still."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what holds documents still."""
        return {**vars(self), "_hold": None}


def list_documents(
    manifest: Manifest, base: str, before: Mapping[str, KnownListing] | None = None
) -> Documents:
    """Return what there is to read; `base` is the folder of the manifest.

    `before` are the listings of the release that a run continues, if it does.
    """
    columns, listings = manifest.documents, dict[str, KnownListing]()
    segments = _files(manifest, base)
    with ExitStack() as stack:
        for resource in manifest.resources:
            if isinstance(resource, SourceResource):
                source = open_source(resource, columns)
                snapshot = stack.enter_context(source.snapshot())
                known = (before or {}).get(resource.name)
                listing = _listed(source, snapshot, known, deltas=bool(columns.texts))
                listings[resource.name] = KnownListing(source.identity, listing)
                segments += [
                    DocumentSegment(
                        source, one, columns, snapshot, resource.name, listing.compares_keys
                    )
                    for one in listing.segments
                ]
        _refuse_twice(segments)
        return Documents(segments, listings, stack.pop_all() if listings else None)


def _files(manifest: Manifest, base: str) -> list[DocumentSegment]:
    reading = Files(manifest.documents)
    files = replace(reading, manifest=manifest, base=base).segments("", None).segments
    return [DocumentSegment(reading, one, manifest.documents) for one in files]


def _listed(source: Source, snapshot: str, known: KnownListing | None, *, deltas: bool) -> Listing:
    """Return the segments of a source: those of before with what changed, or all listed again."""
    if known is None or known.identity != source.identity:
        return source.segments(snapshot, None)
    since = known.listing
    if deltas and since.stamp and not _is_due(since):
        listing = source.changes(snapshot, since)
        if listing is not None:
            return listing
    return source.segments(snapshot, since)


def _is_due(listing: Listing) -> bool:
    """Return whether deltas are to be read into base segments."""
    sizes = [one.size for one in listing.segments if one.is_delta]
    share = DELTA_SHARE * sum(one.size for one in listing.segments)
    return len(sizes) >= MOST_DELTAS or sum(sizes) > share


def _refuse_twice(segments: Sequence[DocumentSegment]) -> None:
    """Refuse segments of one name: ledgers go by names."""
    twice = [name for name, n in Counter(one.name for one in segments).items() if n > 1]
    if twice:
        raise ConfigurationError(
            f"segments must have names of their own, got {twice[0]} twice; correct the source"
        )


def documents_of(
    manifest: Manifest, base: str, listings: Mapping[str, KnownListing]
) -> list[DocumentSegment]:
    """Return the files as they are now, and of other sources the segments of a release.

    They are read as they are when they are read: for people, who ask for a few texts.
    """
    segments = _files(manifest, base)
    for resource in manifest.resources:
        if isinstance(resource, SourceResource) and resource.name in listings:
            source = open_source(resource, manifest.documents)
            segments += [
                DocumentSegment(source, one, manifest.documents, resource=resource.name)
                for one in listings[resource.name].listing.segments
            ]
    return segments
