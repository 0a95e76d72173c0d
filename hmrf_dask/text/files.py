"""Files of vectorising: counted sources and vocabularies, each whole or not there at all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from hmrf_dask.errors import HmrfWarning, UnreadableFileError
from hmrf_dask.rows.encoding import as_arrow, as_numpy, differs
from hmrf_dask.storage.addresses import absolute_url, refuse_credentials
from hmrf_dask.storage.sealed import RESTORE, DamagedFileError, Form, seal_for_people, unseal_as
from hmrf_dask.storage.stores import Storage, open_storage
from hmrf_dask.storage.whole_files import decode_parquet
from hmrf_dask.text.counts import (
    Counted,
    TextSettings,
    decode_rows,
    decode_table,
    decode_terms,
    encode_rows,
    encode_table,
    encode_terms,
    refuse_file,
)
from hmrf_dask.text.tfidf import Dense, Vocabulary
from hmrf_dask.types import IntArray

Value = TypeVar("Value")
VERSION = 2
COUNTS, VOCABULARIES, ROWS = "counts", "vocabularies", "rows"
COUNTED, _STATE = "counts.json", "vocabulary.json"
_LEFT_OUT = pa.schema([pa.field("row", pa.int32(), False)])
_TERMS = pa.schema([pa.field("term", pa.large_string()), pa.field("idf", pa.float32(), False)])


@dataclass(frozen=True)
class Place:
    """An output folder: a local path or the URL of an object store; what tasks get."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)  # for fsspec, without credentials

    def __post_init__(self) -> None:
        """Refuse secrets: it travels with every task."""
        refuse_credentials(self.options)

    @property
    def storage(self) -> Storage:
        """The folder, opened."""
        return open_storage(absolute_url(self.url), self.options, durable=True)


@dataclass(frozen=True)
class File:
    """A file below the output folder, and what its bytes must be."""

    name: str
    n_bytes: int
    sha256: str


@dataclass(frozen=True)
class CountedBatch:
    """The files of one batch: what each text has of which term, and the terms."""

    rows: File
    terms: File
    n_texts: int
    n_entries: int
    n_terms: int
    without: File | None = None  # the numbers of texts in `rows` that are left out


@dataclass(frozen=True)
class CountedSource:
    """The counted texts of one source."""

    key: str  # names its folder: a hash of what the source is, and of how its texts were counted
    batches: tuple[CountedBatch, ...]
    record: dict[str, Any]  # what reading the source reported
    # What was wrong with the file that recorded it before; it was counted again.
    damage: str = field(default="", compare=False)

    @property
    def n_texts(self) -> int:
        """Number of texts."""
        return sum(batch.n_texts for batch in self.batches)


def write_file(storage: Storage, folder: str, stem: str, content: bytes) -> File:
    """Write a Parquet file under a name made of its content, so that a retry adds none."""
    digest = sha256(content).hexdigest()
    name = f"{folder}/{stem}-{digest[:16]}.parquet"
    storage.write(name, content)
    return File(name, len(content), digest)


def read_file(storage: Storage, file: File) -> bytes:
    """Return the bytes of a file, which are those written."""
    path = f"{storage.url}/{file.name}"
    try:
        content = storage.read(file.name)
    except FileNotFoundError:
        refuse_file(path, "it is missing")
    if sha256(content).hexdigest() != file.sha256:
        refuse_file(path, differs(len(content), file.n_bytes))
    return content


# ---- counts


def write_counted(
    storage: Storage, key: str, number: int, counted: Counted, ids: Sequence[str]
) -> CountedBatch:
    """Write one batch of a source."""
    folder = f"{COUNTS}/{key}"
    return CountedBatch(
        write_file(storage, folder, f"rows-{number:05d}", encode_rows(counted, ids)),
        write_file(storage, folder, f"terms-{number:05d}", encode_terms(counted)),
        counted.n_texts,
        len(counted.indices),
        len(counted.terms),
    )


def read_counted(storage: Storage, batch: CountedBatch) -> tuple[Counted, list[str]]:
    """Return the counts of a batch, and the ids of its texts."""
    terms, content = read_terms(storage, batch)[0], read_file(storage, batch.rows)
    counted, ids = decode_rows(content, terms, f"{storage.url}/{batch.rows.name}")
    if batch.without is None:
        return counted, ids
    rows = read_left_out(storage, batch)
    return counted.without(rows), np.delete(np.asarray(ids, object), rows).tolist()


def read_ids(storage: Storage, batch: CountedBatch) -> pa.Array:
    """Return the ids of all texts that a batch was counted of."""
    content = read_file(storage, batch.rows)
    return decode_parquet(content, ["id"])["id"].combine_chunks()


def leave_out(
    storage: Storage, key: str, number: int, batch: CountedBatch, rows: IntArray
) -> CountedBatch:
    """Return a whole batch of a source without some of the texts that it was counted of."""
    table = pa.Table.from_arrays([as_arrow(rows.astype(np.int32), pa.int32())], schema=_LEFT_OUT)
    file = write_file(storage, f"{COUNTS}/{key}", f"without-{number:05d}", encode_table(table))
    return replace(batch, n_texts=batch.n_texts - len(rows), without=file)


def read_left_out(storage: Storage, batch: CountedBatch) -> IntArray:
    """Return which of the texts that a batch was counted of are left out, in ascending order."""
    if batch.without is None:
        return np.zeros(0, np.int64)
    path = f"{storage.url}/{batch.without.name}"
    (rows,) = decode_table(read_file(storage, batch.without), _LEFT_OUT, path)
    return as_numpy(rows, np.int32).astype(np.int64)


def read_terms(storage: Storage, batch: CountedBatch) -> tuple[pa.Array, IntArray, IntArray]:
    """Return the terms of a batch, how many of its texts have each, and how often."""
    return decode_terms(read_file(storage, batch.terms), f"{storage.url}/{batch.terms.name}")


@dataclass(frozen=True)
class _CountsRecord:
    """What counts.json holds; `told` is the `record` of the source."""

    key: str
    batches: tuple[CountedBatch, ...]
    told: dict[str, Any]


def write_source(storage: Storage, source: CountedSource) -> None:
    """Say that a source is counted: what makes its files count."""
    content = asdict(_CountsRecord(source.key, source.batches, source.record))
    write_record(storage, f"{COUNTS}/{source.key}/{COUNTED}", content)


def read_source(storage: Storage, key: str) -> CountedSource | None:
    """Return what is known of a counted source, None where it is not counted yet."""
    record = read_record(storage, f"{COUNTS}/{key}/{COUNTED}", _CountsRecord)
    return None if record is None else CountedSource(record.key, record.batches, record.told)


# ---- vocabularies


@dataclass(frozen=True)
class _VocabularyRecord:
    """What vocabulary.json holds; `files` has "terms", and "components" where there are any."""

    identity: str
    settings: dict[str, Any]
    n_documents: int
    n_known: int
    n_occurrences: int
    files: dict[str, File]
    dense: Dense | None = None


def save_vocabulary(vocabulary: Vocabulary, place: Place) -> str:
    """Write a vocabulary below `vocabularies/`, in JSON and Parquet; return its identity."""
    storage, identity = place.storage, vocabulary.identity
    folder = f"{VOCABULARIES}/{identity}"
    idf = as_arrow(vocabulary.idf, pa.float32())
    table = pa.Table.from_arrays([vocabulary.terms, idf], schema=_TERMS)
    files = {"terms": write_file(storage, folder, "terms", encode_table(table))}
    if len(vocabulary.components):
        schema = _schema_of_components(vocabulary.n_terms)
        values = as_arrow(vocabulary.components.ravel(), pa.float64())
        column = pa.FixedSizeListArray.from_arrays(values, type=schema.field(0).type)
        table = pa.Table.from_arrays([column], schema=schema)
        files["components"] = write_file(storage, folder, "components", encode_table(table))
    record = _VocabularyRecord(
        identity,
        vocabulary.settings.model_dump(mode="json"),
        vocabulary.n_documents,
        vocabulary.n_known,
        vocabulary.n_occurrences,
        files,
        dense=vocabulary.dense,
    )
    write_record(storage, f"{folder}/{_STATE}", asdict(record))
    return identity


def load_vocabulary(identity: str, place: Place) -> Vocabulary:
    """Return the vocabulary of this identity; UnreadableFileError if it is missing or damaged."""
    storage, name = place.storage, f"{VOCABULARIES}/{identity}/{_STATE}"
    path = f"{storage.url}/{name}"
    record = read_record(storage, name, _VocabularyRecord)
    if record is None:
        refuse_file(path, "it is missing")
    if "terms" not in record.files:
        refuse_file(path, "it names no terms")
    terms, idf = decode_table(read_file(storage, record.files["terms"]), _TERMS, path)
    components = np.empty((0, len(idf)))
    if "components" in record.files:
        schema = _schema_of_components(len(idf))
        (column,) = decode_table(read_file(storage, record.files["components"]), schema, path)
        components = as_numpy(column.flatten(), np.float64).reshape(-1, len(idf))
    try:
        settings = TextSettings.model_validate(record.settings)
    except ValueError as error:
        refuse_file(path, f"its settings are none ({error})")
    vocabulary = Vocabulary(
        settings=settings,
        terms=terms,
        idf=as_numpy(idf, np.float32),
        n_documents=record.n_documents,
        n_known=record.n_known,
        n_occurrences=record.n_occurrences,
        components=components,
        dense=record.dense,
    )
    if vocabulary.identity != identity:
        refuse_file(path, "what it holds is not what its name says")
    return vocabulary


def _schema_of_components(n_terms: int) -> pa.Schema:
    numbers = pa.list_(pa.field("element", pa.float64(), nullable=False), n_terms)
    return pa.schema([pa.field("component", numbers, nullable=False)])


# ---- records


def write_record(storage: Storage, name: str, content: Mapping[str, Any]) -> None:
    """Write a small sealed file that makes the files it names count."""
    folder = name.rpartition("/")[0]
    if storage.names(folder):
        storage.sync_folders([folder])  # what it names lasts before it does: the power may fail
    storage.write(name, seal_for_people({"format": _format_of(name), **content}))
    storage.sync_folders([folder])


def read_record(storage: Storage, name: str, form: type[Form]) -> Form | None:
    """Return what was written as a dataclass, None where nothing was.

    UnreadableFileError says that it is damaged, or of a former version.
    """
    try:
        return unseal_as(form, storage.read(name), name, _format_of(name))
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        content = str(error).removesuffix(f"; {RESTORE}").partition(", got ")[2]
        refuse_file(f"{storage.url}/{name}", f"it holds {content}")


def value_or_damage(read: Callable[[], Value]) -> tuple[Value | None, str]:
    """Return what is read, and what is wrong with the file where that is damaged."""
    try:
        return read(), ""
    except UnreadableFileError as error:
        return None, f"{error.path} {error.what}"


def tell_remade(damages: Sequence[str]) -> None:
    """Warn of damaged files that are made again of the documents."""
    if damages:
        more = f" (and {len(damages) - 1} more like it)" if len(damages) > 1 else ""
        warnings.warn(f"{damages[0]}{more}: made again of the documents", HmrfWarning, stacklevel=2)


def _format_of(name: str) -> str:
    """Return the format of counts.json, rows.json and vocabulary.json."""
    return f"hmrf-dask/{PurePosixPath(name).stem}/v{VERSION}"
