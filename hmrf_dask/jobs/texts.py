"""Texts of a few documents by their ids, for people: read where the last release found them."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, repeat
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.documents.batches import Batch
from hmrf_dask.documents.manifest import Manifest, base_of, load_manifest
from hmrf_dask.documents.records import DamagedFile
from hmrf_dask.documents.segments import DocumentSegment, KnownListing, documents_of
from hmrf_dask.documents.whole_record import read_record
from hmrf_dask.errors import ConfigurationError, InvalidInputError, SourceError
from hmrf_dask.jobs.assignments import key_of
from hmrf_dask.jobs.inputs import load_job, resolved
from hmrf_dask.jobs.parent import JOB, FileEntry, files_of
from hmrf_dask.jobs.places import assignments_of, explained_to_readers, last_release
from hmrf_dask.releases.lock import open_output
from hmrf_dask.releases.release import Release, read_file
from hmrf_dask.storage.addresses import absolute_url
from hmrf_dask.storage.whole_files import decode_parquet

LONGEST: Final = 1_000  # characters of a value of another column
CACHED: Final = 64 * 2**20  # characters of texts that are kept
_THREADS = 4
_READERS = 16  # small files that are read at a time
_GONE = "it was not in the last release"
_NO_RECORD = "its file could not be read, or has it no longer"


@dataclass(frozen=True)
class Document:
    """A document as a person is shown it.

    Attributes
    ----------
    id : str
    text : str
        "" where it is missing.
    columns : mapping of str to str
        Its time, by the name of the column, where the manifest names one. Known classes are for
        measuring: who answers is not shown them.
    cluster : int or None
        Its cluster in the last release; None where that has it not.
    source : str
        The file that it is in, as the manifest finds it.
    missing : str
        Why there is no text, in words; "" where there is one.
    changed : bool
        Whether its file is another than the last release was made of.
    """

    id: str
    text: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    cluster: int | None = None
    source: str = ""
    missing: str = ""
    changed: bool = False


class Home(NamedTuple):
    """Where the last release has a document."""

    key: str  # of the counts of its files
    cluster: int


def homes_of(output: str, release: Release, wanted: Sequence[str]) -> dict[str, Home]:
    """Return where a release has documents, by their ids; nothing of those that it has not."""
    values, homes = pa.array(wanted, pa.string()), dict[str, Home]()
    files = assignments_of(release.files).items()
    with ThreadPoolExecutor(_THREADS) as pool:
        for found in pool.map(homes_in, repeat(output), files, repeat(values)):
            homes |= found
    return homes


def homes_in(output: str, file: tuple[str, str], wanted: pa.Array) -> dict[str, Home]:
    """Return where documents are that a file of assignments, of this sha256, has."""
    name, sha256 = file
    with explained_to_readers():
        data = read_file(open_output(output), name, sha256)
    table = decode_parquet(data, ["doc_id", "cluster"])
    ids = table["doc_id"].cast(pa.string())
    there = pc.is_in(ids, value_set=wanted)
    found = zip(
        ids.filter(there).to_pylist(), table["cluster"].filter(there).to_pylist(), strict=True
    )
    return {one: Home(key_of(name), cluster) for one, cluster in found}


class Texts:
    """Texts of the documents of an output; threads may share it.

    Parameters
    ----------
    output : str
        The output of a job, with a release.
    job : str, default ""
        The job file, where a release of a former version, or one whose job was moved since, does
        not say where it is.
    """

    def __init__(self, output: str, job: str = "") -> None:
        self.output = absolute_url(output)
        release = last_release(output)
        if release is None:
            raise ConfigurationError(
                f"texts must be those of the output of a job that has run, got {output} without a "
                "release; run the job first"
            )
        self.release: Release = release
        self.job = job or str(release.ledger.get(JOB) or "")
        if not self.job:
            raise ConfigurationError(
                f"the last release of {output} must say where its job file is, got one of a "
                "version that did not; name the job by --job JOB, or run it again"
            )
        self._lock = threading.Lock()
        self._homes: dict[str, Home] = {}
        self._lines: dict[str, tuple[DocumentSegment, int]] = {}
        self._cached: OrderedDict[str, Document] = OrderedDict()
        self._n_cached = 0  # characters

    def read(self, ids: Iterable[str]) -> dict[str, Document]:
        """Return documents by their ids, each file of theirs read once at most.

        A document that is gone, or that cannot be read, says why. Many ids at once are read as fast
        as one: ask for all that a page will show.

        Parameters
        ----------
        ids : iterable of str

        Returns
        -------
        dict of str to Document
        """
        wanted = list(dict.fromkeys(ids))
        with self._lock:
            missing = [one for one in wanted if one not in self._cached]
            read = self._read(missing) if missing else {}
            documents = {one: read[one] if one in read else self._cached[one] for one in wanted}
            self._cache(documents)
        return documents

    def columns(self, name: str) -> dict[str, str]:
        """Return all columns of a document but id, text, known class and embedding.

        Its file is read again up to it, for a person who wants to know more of this one.

        Parameters
        ----------
        name : str
            The id of a document.

        Returns
        -------
        dict of str to str
            Values as texts, long ones cut; nothing where the document cannot be read.
        """
        document = self.read([name])[name]
        with self._lock:
            if document.missing or name not in self._lines:
                return {}
            segment, line = self._lines[name]
            known = segment.columns
            if segment.file is None:
                return dict(document.columns)
            try:
                values = read_record(segment.file, line, known.max_bytes)
            except (SourceError, InvalidInputError, DamagedFile, ValueError, OSError):
                return dict(document.columns)  # changed since it was read
        left_out = {known.id, *known.texts, known.label, known.embedding}
        return {key: _as_text(value) for key, value in values.items() if key not in left_out}

    def _cache(self, documents: Mapping[str, Document]) -> None:
        """Keep the documents that were asked for last."""
        for name, document in documents.items():
            if name in self._cached:
                self._cached.move_to_end(name)
            elif not document.missing:
                self._cached[name] = document
                self._n_cached += len(document.text)
        while self._n_cached > CACHED:
            _, oldest = self._cached.popitem(last=False)
            self._n_cached -= len(oldest.text)

    def _read(self, wanted: list[str]) -> dict[str, Document]:
        """Return documents that are not cached."""
        homes = self._homes_of(wanted)
        by_key = defaultdict[str, set[str]](set)
        for name, home in homes.items():
            by_key[home.key].add(name)
        documents = {name: Document(name, missing=_GONE) for name in wanted}
        documents |= {name: Document(name, cluster=h.cluster) for name, h in homes.items()}
        with ThreadPoolExecutor(_READERS) as pool:
            for key, names in by_key.items():
                for found in self._found(key, names, pool):
                    documents[found.id] = replace(found, cluster=homes[found.id].cluster)
                    names.discard(found.id)
                for name in names:
                    documents[name] = self._lost(documents[name], key)
        return documents

    def _found(self, key: str, names: set[str], pool: ThreadPoolExecutor) -> Iterator[Document]:
        """Yield the documents of small files that share a key, or of one that has it alone.

        Which file has which document nobody recorded: some are read at a time, until `names`, from
        which the caller takes what it got, is empty.
        """
        files = self._files.get(key, [])
        for first in range(0, len(files), _READERS):
            if names:
                some = files[first : first + _READERS]
                yield from chain.from_iterable(pool.map(self._in_file, some, repeat({*names})))

    def _lost(self, document: Document, key: str) -> Document:
        """Return a document that none of its files has now, with the reason."""
        files = {path for path, _ in self._files.get(key, ())}  # small ones share a key
        gone = files - self._segments.keys()
        changed = any(map(self._is_changed, files - gone))
        how = " or ".join(["gone"] * bool(gone) + ["changed"] * changed)
        words = f"its file is {how} since the last release" if how else _NO_RECORD
        return replace(document, missing=words, changed=bool(how))

    def _in_file(self, file: tuple[str, int], names: set[str]) -> list[Document]:
        """Return the documents with some names in a segment of a file, as far as it can be read."""
        path, number = file
        segment = self._segments.get(path)
        parts = [] if segment is None else segment.parts()
        if number >= len(parts):
            return []
        documents: dict[str, Document] = {}
        try:
            with closing(parts[number].read(sorted(names))) as batches:
                for batch in batches:
                    left = names - documents.keys()
                    documents |= self._in_batch(batch, left, parts[number])
                    if len(documents) == len(names):
                        break
        except (SourceError, InvalidInputError):  # gone, replaced, or damaged meanwhile
            self.__dict__.pop("_segments", None)
        return list(documents.values())

    def _in_batch(
        self, batch: Batch, names: set[str], segment: DocumentSegment
    ) -> dict[str, Document]:
        """Return the documents with some names in a batch; the first of those with one name."""
        documents: dict[str, Document] = {}
        for place, name in enumerate(batch.ids):
            if name in names and name not in documents:
                self._lines[name] = segment, batch.lines[place]
                documents[name] = self._document(batch, place, segment)
        return documents

    def _document(self, batch: Batch, place: int, segment: DocumentSegment) -> Document:
        times, column = batch.extra.get("time"), segment.columns.time
        return Document(
            batch.ids[place],
            batch.texts[place],
            _times(times[place] if times else None, column),
            source=segment.name,
            changed=self._is_changed(segment.name),
        )

    def _homes_of(self, wanted: list[str]) -> dict[str, Home]:
        """Return where the last release has documents; it is asked about each once."""
        if new := [one for one in wanted if one not in self._homes]:
            self._homes |= homes_of(self.output, self.release, new)
        return {one: self._homes[one] for one in wanted if one in self._homes}

    @cached_property
    def _entries(self) -> dict[str, FileEntry]:
        """The files of the last release, by path."""
        return files_of(self.release.ledger)

    @cached_property
    def _files(self) -> dict[str, list[tuple[str, int]]]:
        """The files with the rows of each key, and which segments of theirs."""
        files = defaultdict[str, list[tuple[str, int]]](list)
        for path, entry in self._entries.items():
            for number, keys in enumerate(entry.keys):
                files[keys.counts].append((path, number))
        return dict(files)

    def _is_changed(self, path: str) -> bool:
        segment = self._segments.get(path)
        return segment is None or self._entries[path][:2] != (segment.size, segment.stamp)

    @cached_property
    def _manifest(self) -> tuple[Manifest, str]:
        try:
            address = resolved(base_of(self.job), load_job(self.job).manifest)
        except SourceError as error:
            raise ConfigurationError(
                f"the texts of {self.output} must be found by the job of its last release, got "
                f"{error}; name the job where it is now by --job JOB"
            ) from error
        return load_manifest(address), base_of(address)

    @cached_property
    def _segments(self) -> dict[str, DocumentSegment]:
        """The files with documents as they are now, and segments of other sources as they were."""
        listings = KnownListing.of(self.release.ledger)
        return {one.name: one for one in documents_of(*self._manifest, listings)}


def _times(value: str | None, column: str | None) -> dict[str, str]:
    return {} if value is None or column is None else {column: value}


def _as_text(value: object) -> str:
    """Return a value of a column as a person reads it.

    Examples
    --------
    >>> _as_text(None), _as_text(["a", 1])
    ('', "['a', 1]")
    """
    text = "" if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
