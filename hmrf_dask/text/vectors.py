"""Stored vectors of texts: each text is embedded once, and the first vector that is stored counts.

`vectors/<embedder>/log/00001.parquet` and so on hold vectors by the hash of their text. Each is
created exclusively, by a task that has read all before it, so no text is in two of them, whichever
tasks, runs or nights meet. `vectors/<embedder>/<key>/` says for the texts of a source where theirs
lie. From then on vectors are an input: what made them need not give the same bits again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b, sha256
from threading import RLock
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.errors import InvalidInputError, MemoryPlanError
from hmrf_dask.rows.encoding import as_arrow, as_numpy
from hmrf_dask.storage.log import padded
from hmrf_dask.storage.sealed import digest
from hmrf_dask.storage.stores import Storage
from hmrf_dask.storage.whole_files import decode_parquet, encode_parquet
from hmrf_dask.text.counts import refuse_file, texts_of
from hmrf_dask.text.embedders import Embedder, checked_vectors, loaded
from hmrf_dask.text.files import (
    File,
    Place,
    read_file,
    read_record,
    value_or_damage,
    write_file,
    write_record,
)
from hmrf_dask.types import AnyArray, IntArray, RowArray

VECTORS: Final = "vectors"
RECORD: Final = "vectors.json"
LOG: Final = "log"
_HASH_BYTES: Final = 16
_ENTRY_BYTES: Final = _HASH_BYTES + 8  # of the index: hash and place
_ROWS: Final = np.int64(2**32)  # a place is the number of a file, times this, and a row in it
_HASH: Final = pa.binary(_HASH_BYTES)


@dataclass(frozen=True)
class VectorBatch:
    """Where the vectors of the texts of one batch lie; `logs` are the hashes of those files."""

    places: File
    n_texts: int
    logs: dict[str, str]


@dataclass(frozen=True)
class VectorSource:
    """The vectors of the texts of one source."""

    folder: str  # of the embedder, below the output
    width: int
    batches: tuple[VectorBatch, ...]
    n_new: int  # texts that were embedded for it: no source before had them
    n_zero: int  # documents without a token that the model knows
    first_zero: str  # the id of one of them, "" if there is none
    damage: str = field(default="", compare=False)


@dataclass(frozen=True)
class _VectorsRecord:
    """What vectors.json holds."""

    width: int
    batches: tuple[VectorBatch, ...]
    n_new: int
    n_zero: int
    first_zero: str


@dataclass(frozen=True)
class StoredVectors:
    """The vectors of a batch, read where they are needed."""

    folder: str
    width: int
    batch: VectorBatch

    def read(self, storage: Storage) -> RowArray:
        """Return the vectors of the texts, in their order."""
        data = read_file(storage, self.batch.places)
        places = as_numpy(decode_parquet(data)["place"].combine_chunks(), np.int64)
        try:
            return _read_places(storage, self.folder, self.width, places, self.batch.logs)
        except _OtherLogError as error:  # others were stored under the number of one that is gone
            refuse_file(f"{storage.url}/{self.batch.places.name}", str(error))


class _OtherLogError(Exception):
    """A log is sound, but not the one that was named."""


def folder_of(embedder: Embedder, column: str | None = None) -> str:
    """Return the folder of an embedder's vectors, of one column or of whole texts, in an output."""
    return f"{VECTORS}/{key_of(embedder.identity, column)}"


def key_of(identity: str, column: str | None = None) -> str:
    """Return the name of the folder of an embedder's vectors.

    Examples
    --------
    >>> len(key_of("wordllama/4c1a"))
    24
    """
    named = identity if column is None else f"{identity}\n{column}"
    return sha256(named.encode()).hexdigest()[:24]


def hashes_of(texts: Sequence[str]) -> AnyArray:
    """Return the hash of each text, 16 bytes: no two texts share one.

    Examples
    --------
    >>> hashes_of(["a", "b", "a"]).dtype.itemsize
    16
    """
    digests = [blake2b(one.encode(), digest_size=_HASH_BYTES).digest() for one in texts]
    return np.frombuffer(b"".join(digests), dtype=f"S{_HASH_BYTES}")


# ---- a source


def embed_texts(
    source: Any, embedder: Embedder, place: Place, most_bytes: int, column: str | None = None
) -> VectorSource:
    """Return the vectors of the texts of a source; those that are stored are not made again.

    The index of the texts that are stored may take `most_bytes` in a process.
    """
    storage, folder = place.storage, folder_of(embedder, column)
    known, damage = value_or_damage(lambda: _read_source(storage, folder, source.key))
    if known is not None and _are_there(storage, folder, known):
        _refuse_width(embedder, known.width)
        return known
    index = _index_of(storage, folder)
    batches, n_new, n_zero, first_zero = list[VectorBatch](), 0, 0, ""
    for number, batch in enumerate(source.read()):
        named = texts_of(batch, column), batch.ids
        places, new = _places_of(index, named, embedder, most_bytes)
        made = _written(index, f"{folder}/{source.key}", number, places)
        batches.append(made)
        empty = np.flatnonzero(~StoredVectors(folder, embedder.width, made).read(storage).any(1))
        first_zero = first_zero or (batch.ids[empty[0]] if len(empty) else "")
        n_new, n_zero = n_new + new, n_zero + len(empty)
    record = _VectorsRecord(embedder.width, tuple(batches), n_new, n_zero, first_zero)
    write_record(storage, f"{folder}/{source.key}/{RECORD}", asdict(record))
    return _source_of(folder, record, damage)


def vectors_of(
    texts: Sequence[str], embedder: Embedder, place: Place | None, column: str | None = None
) -> RowArray:
    """Return the vectors of a few texts: those that are stored in an output, others made now.

    Nothing is written: whoever asks may only read there.
    """
    vectors = np.zeros((len(texts), embedder.width), np.float32)
    places = np.full(len(texts), -1, np.int64)
    if place is not None and len(texts):
        folder = folder_of(embedder, column)
        index = _index_of(place.storage, folder)
        with index.lock:
            index.refresh(task_bytes=0)
            _refuse_width(embedder, index.width)
            places = index.find(hashes_of(texts))
        stored = np.flatnonzero(places >= 0)
        vectors[stored] = _read_places(
            place.storage, folder, embedder.width, places[stored], index.logs
        )
    missing = np.flatnonzero(places < 0)
    if len(missing):
        chosen = [texts[one] for one in missing.tolist()]
        vectors[missing] = checked_vectors(loaded(embedder), chosen)
    return vectors


def _read_source(storage: Storage, folder: str, key: str) -> VectorSource | None:
    record = read_record(storage, f"{folder}/{key}/{RECORD}", _VectorsRecord)
    return None if record is None else _source_of(folder, record, "")


def _source_of(folder: str, record: _VectorsRecord, damage: str) -> VectorSource:
    return VectorSource(folder, **vars(record), damage=damage)


def _are_there(storage: Storage, folder: str, known: VectorSource) -> bool:
    """Return whether all files with vectors of a source are there: damaged ones are removed."""
    named = {f"{padded(int(one))}.parquet" for batch in known.batches for one in batch.logs}
    return not named or named <= set(storage.names(f"{folder}/{LOG}"))


def _refuse_width(embedder: Embedder, stored: int | None) -> None:
    """Refuse an embedder whose vectors are not those that are stored under its identity."""
    if stored not in (None, embedder.width):
        raise InvalidInputError(
            f"the embedder {embedder.identity} must have the width of its stored vectors, "
            f"{stored}, got {embedder.width}; give it another identity, as its vectors are others"
        )


def _places_of(
    index: VectorIndex,
    named: tuple[Sequence[str], Sequence[str]],
    embedder: Embedder,
    most_bytes: int,
) -> tuple[IntArray, int]:
    """Return where the vector of each text lies, stored now where it was not, and how many were.

    Texts come with the ids of their documents.
    """
    texts, ids = named
    if not texts:
        return np.zeros(0, np.int64), 0
    hashes, first, which = np.unique(hashes_of(texts), return_index=True, return_inverse=True)
    with index.lock:
        index.refresh(most_bytes)
        _refuse_width(embedder, index.width)
        missing = np.flatnonzero(index.find(hashes) < 0)
    if len(missing):  # in the order of their hashes, whatever the order of the texts
        new = first[missing].tolist()
        vectors = checked_vectors(
            loaded(embedder), [texts[one] for one in new], [ids[one] for one in new]
        )
        index.store(hashes[missing], vectors, most_bytes)
    with index.lock:
        return index.find(hashes)[which], len(missing)


def _written(index: VectorIndex, folder: str, number: int, places: IntArray) -> VectorBatch:
    """Write where the vectors of a batch lie."""
    table = pa.table({"place": as_arrow(places, pa.int64())})
    file = write_file(index.storage, folder, f"places-{number:05d}", encode_parquet(table))
    used = np.unique(places // _ROWS).tolist()
    return VectorBatch(file, len(places), {str(one): index.logs[str(one)] for one in used})


def _read_places(
    storage: Storage, folder: str, width: int, places: IntArray, logs: dict[str, str]
) -> RowArray:
    """Return the vectors that lie at some places, from files with these hashes."""
    vectors = np.empty((len(places), width), np.float32)
    numbers = places // _ROWS
    for number in np.unique(numbers).tolist():
        name = f"{folder}/{LOG}/{padded(number)}.parquet"
        stored = _read_log(storage, name, width, logs.get(str(number), ""))
        here = numbers == number
        vectors[here] = stored[places[here] % _ROWS]
    return vectors


def _read_log(storage: Storage, name: str, width: int, sha256_: str) -> RowArray:
    path = f"{storage.url}/{name}"
    try:
        data = storage.read(name)
    except FileNotFoundError:
        refuse_file(path, "it is missing")
    try:
        column = decode_parquet(data, ["vector"])["vector"].combine_chunks()
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        refuse_file(path, f"it cannot be read ({error})")
    if digest(data) != sha256_:
        _forget(storage)
        raise _OtherLogError(f"{path} is not the log of vectors that it names")
    return as_numpy(column.flatten(), np.float32).reshape(-1, width)


# ---- the index


class VectorIndex:
    """Where vectors lie by the hash of their text, as far as this process has read the log.

    Sorted runs that double in size, as ids that come twice are found: 24 bytes a text.
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        self.storage = storage
        self.folder = f"{folder}/{LOG}"
        self.lock = RLock()
        self._clear()

    def _clear(self) -> None:
        self.logs: dict[str, str] = {}  # sha256 by number
        self.width: int | None = None  # of the vectors; None: there are none
        self._runs: list[tuple[AnyArray, IntArray]] = []

    def refresh(self, task_bytes: int) -> None:
        """Read what was stored since; a file that is gone was damaged, and all is read again."""
        there = {
            str(int(stem)): name
            for name in self.storage.names(self.folder)
            if (stem := name.removesuffix(".parquet")).isdigit()
        }
        if not self.logs.keys() <= there.keys():
            self._clear()
        for number in sorted(map(int, there.keys() - self.logs.keys())):
            self._read(number, there[str(number)])
            self._refuse_many(task_bytes)

    def find(self, hashes: AnyArray) -> IntArray:
        """Return the places of hashes, -1 where nothing is stored."""
        places = np.full(len(hashes), -1, np.int64)
        for known, where in self._runs:
            at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            found = known[at] == hashes
            places[found] = where[at[found]]
        return places

    def store(self, hashes: AnyArray, vectors: RowArray, task_bytes: int) -> None:
        """Store vectors under the next number; of texts that were stored meanwhile theirs stay."""
        with self.lock:
            while True:
                self.refresh(task_bytes)
                new = self.find(hashes) < 0
                if not new.any():
                    return
                number = 1 + max(map(int, self.logs), default=0)
                data = _encoded(hashes[new], vectors[new])
                try:
                    self.storage.create(f"{self.folder}/{padded(number)}.parquet", data)
                    self.width = vectors.shape[1]
                    self._add(number, data, hashes[new])
                except FileExistsError:
                    continue  # another task was first, or this one, whose reply was lost

    def _read(self, number: int, name: str) -> None:
        path = f"{self.folder}/{name}"
        data = self.storage.read(path)
        try:
            column = decode_parquet(data, ["hash"])["hash"].combine_chunks()
            if column.type != _HASH or column.null_count:
                raise ValueError(f"hashes of the type {column.type}")
            kind = pq.read_schema(pa.BufferReader(data)).field("vector").type
            if not pa.types.is_fixed_size_list(kind):
                raise ValueError(f"vectors of the type {kind}")
        except (OSError, pa.ArrowException, ValueError, KeyError) as error:
            refuse_file(f"{self.storage.url}/{path}", f"it cannot be read ({error})")
        self.width = kind.list_size
        hashes = np.frombuffer(b"".join(column.to_pylist()), dtype=f"S{_HASH_BYTES}")
        self._add(number, data, hashes)

    def _add(self, number: int, data: bytes, hashes: AnyArray) -> None:
        self.logs[str(number)] = digest(data)
        places = number * _ROWS + np.arange(len(hashes))
        last = (hashes, places)  # sorted: they were stored in the order of their hashes
        while self._runs and len(self._runs[-1][0]) <= 2 * len(last[0]):
            before = self._runs.pop()
            joined = np.concatenate([before[0], last[0]])
            order = np.argsort(joined, kind="stable")
            last = joined[order], np.concatenate([before[1], last[1]])[order]
        self._runs.append(last)

    def _refuse_many(self, task_bytes: int) -> None:
        n_stored = sum(len(known) for known, _ in self._runs)
        if task_bytes and n_stored * _ENTRY_BYTES > task_bytes:
            raise MemoryPlanError(
                f"the index of stored vectors must fit the memory of a task, {task_bytes} bytes "
                f"(hmrf.task-memory), but {n_stored} texts need {n_stored * _ENTRY_BYTES}; use a "
                "larger hmrf.task-memory"
            )


def _encoded(hashes: AnyArray, vectors: RowArray) -> bytes:
    """Return hashes and vectors as Parquet; numbers of vectors do not compress."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(hashes))]
    column = pa.Array.from_buffers(_HASH, len(hashes), buffers)
    kind = pa.list_(pa.field("element", pa.float32(), nullable=False), vectors.shape[1])
    rows = pa.FixedSizeListArray.from_arrays(as_arrow(vectors.ravel(), pa.float32()), type=kind)
    table = pa.Table.from_arrays([column, rows], names=["hash", "vector"])
    return encode_parquet(table, compression="none", use_dictionary=False)


_INDEXES: dict[tuple[str, str], VectorIndex] = {}
_MAKING = RLock()


def _index_of(storage: Storage, folder: str) -> VectorIndex:
    """Return the index of this process: that of another output takes its place."""
    with _MAKING:
        key = (storage.url, folder)
        if key not in _INDEXES:
            _INDEXES.clear()
            _INDEXES[key] = VectorIndex(storage, folder)
        return _INDEXES[key]


def _forget(storage: Storage) -> None:
    """Forget the index of an output whose logs are not those that this process has read."""
    with _MAKING:
        for key in [key for key in _INDEXES if key[0] == storage.url]:
            del _INDEXES[key]
