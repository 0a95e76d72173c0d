"""Packs: small files of documents that are read, counted and weighed as if they were one.

A million files are not a million partitions. A large file is a pack of its own. Which files share a
pack follows from the last release and the order of new files alone:

- Files that were in a pack of the last release stay in it. Where some of them changed or are gone,
  a pack of the others takes its place, which is read again: it is small.
- New small files of a night share new packs. So that many nights do not leave many small packs,
  those that are `MANY` times as large as one another at most, a tier, become one as soon as there
  are `MANY` of them: their files are read once more, in all nights a file at most a few times.

`documents/<key>/` below the output holds the known classes of a pack's documents, which no row has,
and the records that are no documents.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b, sha256
from itertools import chain, islice
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from hmrf_dask.documents.batches import BATCH_BYTES, Batch, Reject, encode_rejects
from hmrf_dask.documents.segments import DocumentSegment
from hmrf_dask.documents.sources import BATCH_ROWS
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.jobs.parent import FileEntry
from hmrf_dask.parameters import REJECTS_LISTED
from hmrf_dask.storage.sealed import DamagedFileError, digest, typed
from hmrf_dask.storage.stores import Storage
from hmrf_dask.storage.whole_files import encode_parquet
from hmrf_dask.text.counts import refuse_file
from hmrf_dask.text.files import Place

T = TypeVar("T")
FOLDER = "documents"
SMALL = 2**20  # bytes of a file that shares a pack
PACK_BYTES, PACK_FILES = 4 * 2**20, 256  # at most
MANY = 8  # packs of a tier that are merged, and how many times a tier is the next
TIERS = 3
THREADS = 16  # files read at once: what small ones wait for is the disk or the store
_HASH = 16  # digits of the sha256 in names of the files of `documents/`


# ---- which files share a pack


def packed(
    files: Sequence[DocumentSegment],
    before: Mapping[str, FileEntry],
    place: Place,
    *,
    stop: bool,
    made_of: Collection[str] = (),
) -> list[Pack]:
    """Return files, in the order of their documents, in packs.

    `before` are those of the last release, `made_of` the counts that the last vocabulary was made
    of: files of others are not mixed with theirs, as drift is measured by pack.
    """
    keys = {one.own: one for entry in before.values() for one in entry.keys}
    stayed: dict[str, list[DocumentSegment]] = defaultdict(list)
    new: list[DocumentSegment] = []
    for file in files:
        known = keys.get(file.key)
        (new if known is None else stayed[known.pack]).append(file)
    order = {file.key: number for number, file in enumerate(files)}
    sizes = Counter(one.pack for one in keys.values())
    counts, made = {one.pack: one.counts for one in keys.values()}, set(made_of)
    last = [
        _LastPack(key, group, len(group) == sizes[key], counts[key] in made)
        for key, group in stayed.items()
    ]
    packs = [_pack_of(group, order, place, stop=stop) for group in _merged(last)]
    small = _filled(filter(_is_small, new), lambda file: [file])
    large = [[file] for file in new if not _is_small(file)]
    packs += [Pack(tuple(group), place, stop) for group in (*small, *large)]
    return sorted(packs, key=lambda pack: order[pack.files[0].key])


@dataclass(frozen=True)
class _LastPack:
    """What is there of a pack of the last release."""

    key: str  # of the whole pack
    files: list[DocumentSegment]
    whole: bool  # they are all that it had
    known: bool  # the last vocabulary was made of it

    @property
    def tier(self) -> int | None:
        """Return the number of its tier, those half full are 0; None where it is not merged."""
        # How full it is, 0 to 1, by bytes or by files.
        full = max(sum(file.size for file in self.files) / PACK_BYTES, len(self.files) / PACK_FILES)
        if not self.whole or full > 0.5 or not all(map(_is_small, self.files)):
            return None
        return sum(1 for tier in range(1, TIERS) if full <= 0.5 / MANY**tier)


def _merged(packs: Iterable[_LastPack]) -> list[list[_LastPack]]:
    """Return packs of the last release in groups that become one: those of tiers with many."""
    tiers: dict[tuple[int, bool], list[_LastPack]] = defaultdict(list)
    groups: list[list[_LastPack]] = []
    for pack in packs:
        if pack.tier is None:
            groups.append([pack])
        else:
            tiers[pack.tier, pack.known].append(pack)
    for tier in tiers.values():
        many = len(tier) >= MANY
        groups += _filled(tier, attrgetter("files")) if many else [[pack] for pack in tier]
    return groups


def _filled(
    parts: Iterable[T], files_of: Callable[[T], Sequence[DocumentSegment]]
) -> list[list[T]]:
    """Return neighbours in groups, as many as one pack may hold."""
    groups: list[list[T]] = []
    n_bytes = n_files = 0
    for part in parts:
        files = files_of(part)
        size = sum(file.size for file in files)
        if not groups or n_bytes + size > PACK_BYTES or n_files + len(files) > PACK_FILES:
            groups.append([])
            n_bytes = n_files = 0
        groups[-1].append(part)
        n_bytes, n_files = n_bytes + size, n_files + len(files)
    return groups


def _pack_of(
    packs: Sequence[_LastPack], order: Mapping[str, int], place: Place, *, stop: bool
) -> Pack:
    """Return the pack that takes the place of one or several of the last release."""
    files = sorted((file for pack in packs for file in pack.files), key=lambda one: order[one.key])
    same = len(packs) == 1 and packs[0].whole
    return Pack(tuple(files), place, stop, () if same else tuple(pack.key for pack in packs))


def _is_small(file: DocumentSegment) -> bool:
    return file.size <= SMALL and not file.is_alone


# ---- what reading a pack reports


class FileRecord(NamedTuple):
    """A file of a pack, as it was read."""

    path: str
    key: str
    n_rejects: int  # records that are no documents
    first_reject: Reject | None  # what is wrong with the first, or that the file breaks off
    n_lines: int  # of a segment


class FileDocuments(NamedTuple):
    """How many documents of a batch come from a file, by its number in the pack."""

    file: int
    n_documents: int


@dataclass(frozen=True)
class PackRecord:
    """What reading a pack reports: a part of the counts.json or rows.json that has its rows.

    Examples
    --------
    >>> file = FileRecord("a.jsonl", "9f86", 0, None, 10)
    >>> PackRecord("9f86", (file,), ((FileDocuments(0, 10),),), (), (None,)).n_documents
    10
    """

    key: str
    files: tuple[FileRecord, ...]
    documents: tuple[tuple[FileDocuments, ...], ...]  # of each batch
    rejects: tuple[str, ...]  # files below the output that list records that are no documents
    labels: tuple[str | None, ...]  # of each batch the file with its known classes
    kept: tuple[str | None, ...] = ()  # of each batch the file with the columns that are kept
    gone: tuple[str, ...] = ()  # files with ids of documents that a delta says are no more
    # Of each batch of other sources than files the file with hashes of its documents.
    hashes: tuple[str | None, ...] = ()

    @classmethod
    def of(cls, content: Mapping[str, Any], path: str) -> PackRecord:
        """Return a record from JSON, or raise UnreadableFileError naming the file it is from."""
        try:
            record = typed(cls, content, path)
        except DamagedFileError as error:
            refuse_file(path, f"it holds {str(error).partition(', got ')[2].partition(';')[0]}")
        inside = range(len(record.files))
        if any(one.file not in inside for batch in record.documents for one in batch):
            refuse_file(path, f"it has documents of other files than its {len(record.files)}")
        return record

    @property
    def paths(self) -> list[str]:
        """The files."""
        return [file.path for file in self.files]

    @property
    def n_rejects(self) -> int:
        """How many records are no documents."""
        return sum(file.n_rejects for file in self.files)

    @property
    def n_documents(self) -> int:
        """How many documents there are."""
        return sum(one.n_documents for batch in self.documents for one in batch)

    def unlisted_rejects(self) -> list[Reject]:
        """Return for each file with more bad records than are listed how many more there are."""
        words = "more records are no documents, and are not listed"
        return [
            Reject(file.path, 0, None, f"{more:,} {words}", "")
            for file in self.files
            if (more := file.n_rejects - REJECTS_LISTED) > 0
        ]


def lines_before_of(records: Sequence[PackRecord]) -> list[int]:
    """Return of each pack how many lines are in the segments of its file that come before it.

    Examples
    --------
    >>> files = [FileRecord("a.jsonl", key, 0, None, n) for key, n in (("1", 10), ("2", 7))]
    >>> lines_before_of([PackRecord("", (file,), (), (), ()) for file in files])
    [0, 10]
    """
    so_far: dict[str, int] = defaultdict(int)
    before = []
    for record in records:
        first = record.files[0]
        before.append(so_far[first.path])
        so_far[first.path] += first.n_lines
    return before


def first_rejects(records: Sequence[PackRecord]) -> Iterator[Reject]:
    """Yield what is wrong with each file, where something is: its first bad record, or its end."""
    for record, n_lines in zip(records, lines_before_of(records), strict=True):
        for file in record.files:
            if file.first_reject is not None:
                yield placed(file.first_reject, n_lines)


def refuse_rejects(records: Sequence[PackRecord]) -> None:
    """Raise InvalidInputError for the first record of packs that is no document, if any."""
    for reject in first_rejects(records):
        raise reject.as_error()


# ---- reading a pack


@dataclass
class Pack:
    """Files read one after the other; see `hmrf_dask.text.vectorise.TextSource`.

    `origins` are the packs of the last release that it takes the place of: one that had these files
    and others, or several that are merged. Without them it is as it was, or new.
    """

    files: tuple[DocumentSegment, ...]  # sorted by path
    place: Place
    stop: bool  # a bad record is an error
    origins: tuple[str, ...] = ()
    _writer: _Writer = field(init=False, repr=False)

    @property
    def key(self) -> str:
        """What the documents depend on."""
        return sha256(" ".join(one.key for one in self.files).encode()).hexdigest()[:24]

    def read(self) -> Iterator[Batch]:
        """Yield the documents; a bad record is an error, or goes to a file."""
        self._writer = writer = _Writer(self)
        waiting: list[tuple[int, Batch]] = []
        n_rows = n_bytes = 0
        for number, batch in self._batches():
            if self.stop and batch.rejects:
                raise placed(batch.rejects[0], self.files[number].lines_before()).as_error()
            rows = len(batch.ids) + len(batch.rejects) + len(batch.gone)
            size = sum(map(len, batch.texts))
            if waiting and rows and (n_rows + rows > BATCH_ROWS or n_bytes + size > BATCH_BYTES):
                yield writer.write(waiting)
                waiting, n_rows, n_bytes = [], 0, 0
            waiting.append((number, batch))
            n_rows, n_bytes = n_rows + rows, n_bytes + size
        if waiting:
            yield writer.write(waiting)

    def record(self) -> dict[str, Any]:
        """Return the `PackRecord` of what was read, as JSON."""
        return asdict(self._writer.record())

    def _batches(self) -> Iterator[tuple[int, Batch]]:
        if len(self.files) == 1:  # it may be large
            yield from ((0, batch) for batch in self.files[0].read())
            return
        with ThreadPoolExecutor(THREADS) as pool:
            for first in range(0, len(self.files), THREADS):
                some = self.files[first : first + THREADS]
                for number, batches in enumerate(pool.map(_begun, some), first):
                    yield from ((number, batch) for batch in batches)


def _begun(file: DocumentSegment) -> Iterator[Batch]:
    """Return the batches of a small file, read; of one that holds more than it seems the first."""
    batches = iter(file.read())
    return chain(list(islice(batches, 2)), batches)


class _Writer:
    """Writes what no row of a pack has below `documents/`, and keeps the record of it."""

    def __init__(self, pack: Pack) -> None:
        self._key = pack.key
        self._storage = pack.place.storage
        self._files = {one.name: FileRecord(one.name, one.key, 0, None, 0) for one in pack.files}
        self._paths = list(self._files)
        self._documents: list[tuple[FileDocuments, ...]] = []
        self._rejects: list[str] = []
        self._labels: list[str | None] = []
        self._kept: list[str | None] = []
        self._gone: list[str] = []
        self._hashes: list[str | None] = []
        # A segment of rows may be read again for one of them; a file that changed counts as such.
        self._is_hashed = bool(pack.files[0].resource)

    def record(self) -> PackRecord:
        """Return what was read so far."""
        return PackRecord(
            self._key,
            tuple(self._files.values()),
            tuple(self._documents),
            tuple(self._rejects),
            tuple(self._labels),
            tuple(self._kept),
            gone=tuple(self._gone),
            hashes=tuple(self._hashes),
        )

    def write(self, parts: Sequence[tuple[int, Batch]]) -> Batch:
        """Return batches, each with the number of its file, as one; write what no row has."""
        documents: Counter[int] = Counter()
        for number, batch in parts:
            if batch.ids:
                documents[number] += len(batch.ids)
            file = self._files[self._paths[number]]
            self._files[file.path] = file._replace(n_lines=file.n_lines + batch.n_lines)
        labelled = any("label" in batch.extra for _, batch in parts)
        self._require_one_width(parts)
        whole = _concatenated([batch for _, batch in parts])
        batch_number = len(self._documents)
        self._documents.append(tuple(FileDocuments(*item) for item in documents.items()))
        labels = {"label": whole.extra["label"]} if labelled else {}
        self._labels.append(self._write_columns("labels", batch_number, whole.ids, labels))
        self._kept.append(self._write_columns("kept", batch_number, whole.ids, whole.kept))
        if self._is_hashed:
            table = pa.table({"hash": hashes_of(whole)})
            stem = f"hashes-{batch_number:05d}"
            self._hashes.append(self._write(stem, "parquet", encode_parquet(table)))
        if whole.gone:
            stem = f"gone-{batch_number:05d}"
            table = pa.table({"id": pa.array(whole.gone, pa.string())})
            self._gone.append(self._write(stem, "parquet", encode_parquet(table)))
        if listed := self._note(whole.rejects):
            stem = f"rejects-{batch_number:05d}"
            self._rejects.append(self._write(stem, "jsonl", encode_rejects(listed)))
        return whole

    def _require_one_width(self, parts: Sequence[tuple[int, Batch]]) -> None:
        widths = {
            batch.embeddings.shape[1]: self._paths[number]
            for number, batch in parts
            if batch.embeddings is not None
        }
        refuse_widths(widths)

    def _note(self, rejects: Sequence[Reject]) -> list[Reject]:
        """Count what is no document; return what is listed, of each file the first ones."""
        listed = list[Reject]()
        for reject in rejects:
            file = self._files[reject.source]
            first = file.first_reject
            # That a file breaks off is worse than a bad record.
            if first is None or (reject.whole_rest and not first.whole_rest):
                first = reject
            file = file._replace(n_rejects=file.n_rejects + 1, first_reject=first)
            self._files[reject.source] = file
            if file.n_rejects <= REJECTS_LISTED:
                listed.append(reject)
        return listed

    def _write_columns(
        self, stem: str, number: int, ids: list[str], columns: Mapping[str, list[str | None]]
    ) -> str | None:
        """Write columns next to the ids of their documents, None where there are none."""
        if not columns:
            return None
        arrays = [pa.array(one, pa.string()) for one in (ids, *columns.values())]
        table = pa.Table.from_arrays(arrays, ["id", *columns])
        return self._write(f"{stem}-{number:05d}", "parquet", encode_parquet(table))

    def _write(self, stem: str, ending: str, data: bytes) -> str:
        """Write a file under a name with its hash: who has the name knows the hash."""
        name = f"{FOLDER}/{self._key}/{stem}-{digest(data)[:_HASH]}.{ending}"
        self._storage.write(name, data)
        return name


def hashes_of(batch: Batch) -> pa.Array:
    """Return a hash of each document: of its id, and of all that is read of it.

    Examples
    --------
    >>> first, second = (hashes_of(Batch(["7"], [text])) for text in ("jam", "paper"))
    >>> first == second, first == hashes_of(Batch(["7"], ["jam"]))
    (False, True)
    """
    more = [column[name] for column in (batch.columns, batch.extra, batch.kept) for name in column]
    hashes = [
        blake2b(
            "\0".join((one, text, *map(repr, known))).encode(errors="surrogatepass"), digest_size=8
        )
        for one, text, *known in zip(batch.ids, batch.texts, *more, strict=True)
    ]
    if batch.embeddings is not None:
        for one, vector in zip(hashes, batch.embeddings, strict=True):
            one.update(vector.tobytes())
    joined = b"".join(one.digest() for one in hashes)
    return pa.array(np.frombuffer(joined, "<u8"), pa.uint64())


def _concatenated(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    whole = Batch()
    for batch in batches:
        whole.ids += batch.ids
        whole.texts += batch.texts
        whole.lines += batch.lines
        whole.rejects += batch.rejects
        whole.gone += batch.gone
    for name in dict.fromkeys(name for batch in batches for name in batch.extra):
        whole.extra[name] = [
            value for one in batches for value in one.extra.get(name, [None] * len(one.ids))
        ]
    for name in dict.fromkeys(name for batch in batches for name in batch.kept):
        whole.kept[name] = [
            value for one in batches for value in one.kept.get(name, [None] * len(one.ids))
        ]
    for name in batches[0].columns:
        whole.columns[name] = [text for one in batches for text in one.columns[name]]
    rows = [batch.embeddings for batch in batches if batch.embeddings is not None]
    whole.embeddings = np.concatenate(rows) if rows else None
    return whole


def refuse_widths(widths: Mapping[int, str]) -> None:
    """Refuse embeddings of several lengths, naming a file with each.

    Examples
    --------
    >>> refuse_widths({300: "a.csv", 384: "b.csv"})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hmrf_dask.errors.InvalidInputError: embeddings must have the same length in all files, ...
    """
    if len(widths) < 2:
        return
    shown = ", ".join(f"{width} in {path}" for width, path in sorted(widths.items()))
    raise InvalidInputError(
        f"embeddings must have the same length in all files, got {shown}; make those of other "
        "files with the same model"
    )


# ---- files of `documents/`


def read_hashed(storage: Storage, name: str, decode: Callable[[bytes], T]) -> T:
    """Return what a file of `documents/` holds, or raise UnreadableFileError naming the file.

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


def placed(reject: Reject, n_lines: int) -> Reject:
    """Return a reject of a segment with the line it has in the file.

    Examples
    --------
    >>> placed(Reject("a.jsonl", 3, None, "not JSON", ""), 1000).line
    1003
    """
    return replace(reject, line=reject.line + n_lines) if n_lines and reject.line else reject
