"""Row blocks to Parquet and back: one file per block, and a manifest that makes them a corpus."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, NoReturn
from uuid import uuid4

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import AnyArray

StorageOptions = Mapping[str, Any] | None

MANIFEST_NAME = "blocks.json"
FORMAT = "hmrf-dask-blocks"
VERSION = 1
_INDICES = pa.list_(pa.field("element", pa.int32(), nullable=False))
_VALUES = pa.list_(pa.field("element", pa.float32(), nullable=False))
# Measured against dictionaries, plain values and COO triples: smallest and fastest (facts.md).
_ENCODINGS = {
    "indices.list.element": "DELTA_BINARY_PACKED",
    "values.list.element": "BYTE_STREAM_SPLIT",
}


@dataclass(frozen=True, slots=True)
class BlockFile:
    """One file of a corpus: its name, what is in it and the hash that its bytes must have."""

    name: str
    n_rows: int
    n_values: int
    is_dense: bool
    n_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a corpus, in row order, and what holds for all of them."""

    n_features: int
    has_ids: bool
    files: tuple[BlockFile, ...]

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Number of rows of each file."""
        return tuple(file.n_rows for file in self.files)

    @property
    def is_dense(self) -> bool:
        """Whether the rows are dense."""
        return any(file.is_dense for file in self.files)


def write_blocks(
    blocks: Iterable[RowBlock],
    url: str,
    *,
    has_ids: bool,
    storage_options: StorageOptions = None,
) -> Manifest:
    """Write blocks one after the other and then their manifest.

    Parameters
    ----------
    blocks : iterable of RowBlock
        In row order, at least one.
    url : str
        The folder: a local path or an fsspec address.
    has_ids : bool
        Whether the ids are document ids; False where they are row numbers.
    storage_options : mapping, optional
        For fsspec. Name a profile here; never put a key in, it would travel with every task.

    Returns
    -------
    Manifest
    """
    files, widths = [], set()
    for part, block in enumerate(blocks):
        files.append(write_block(block, url, part, storage_options))
        widths.add(block.n_features)
    if len(widths) != 1:
        raise InvalidInputError(
            "blocks must be at least one and of the same number of features, got "
            f"{sorted(widths)}; give all rows the same columns"
        )
    manifest = Manifest(widths.pop(), has_ids, tuple(files))
    write_manifest(manifest, url, storage_options)
    return manifest


def write_block(
    block: RowBlock, url: str, part: int, storage_options: StorageOptions = None
) -> BlockFile:
    """Write one block under a name made of its place and content, so that a retry adds no file."""
    filesystem, folder = fsspec.core.url_to_fs(url, **(storage_options or {}))
    content = encode_block(block)
    digest = sha256(content).hexdigest()
    name = f"part-{part:05d}-{digest[:16]}.parquet"
    filesystem.makedirs(folder, exist_ok=True)
    _put(filesystem, f"{folder}/{name}", content)
    n_values, n_bytes = len(block.values), len(content)
    return BlockFile(name, block.n_rows, n_values, block.is_dense, n_bytes, digest)


def read_block(
    url: str, file: BlockFile, n_features: int, storage_options: StorageOptions = None
) -> RowBlock:
    """Read one block; its bytes must be those that were written.

    Raises
    ------
    InvalidInputError
        The file is missing, damaged, or not a block of this corpus; the message names it.
    """
    filesystem, folder = fsspec.core.url_to_fs(url, **(storage_options or {}))
    path = f"{folder}/{file.name}"
    try:
        content = filesystem.cat_file(path)
    except FileNotFoundError:
        _refuse(path, "it is missing")
    # Page checksums do not cover headers and footer, where 282 of 1500 flipped bits went unseen.
    if sha256(content).hexdigest() != file.sha256:
        _refuse(path, f"its {len(content)} bytes are not the {file.n_bytes} bytes written")
    block = decode_block(content, path)
    if block.n_features != n_features or block.n_rows != file.n_rows:
        found = f"{block.n_rows} rows of {block.n_features} features"
        _refuse(path, f"it holds {found}, not {file.n_rows} of {n_features}")
    return block


def write_manifest(manifest: Manifest, url: str, storage_options: StorageOptions = None) -> None:
    """Make the files a corpus, in one exclusive create; the same manifest again is no error.

    Raises
    ------
    InvalidInputError
        The folder holds another corpus already, or the files are partly dense, partly sparse.
    """
    if manifest.is_dense and any(f.n_values and not f.is_dense for f in manifest.files):
        raise InvalidInputError("rows must be all sparse or all dense, got both; convert one kind")
    filesystem, folder = fsspec.core.url_to_fs(url, **(storage_options or {}))
    filesystem.makedirs(folder, exist_ok=True)
    described = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    content = json.dumps(described, indent=1).encode()
    path = f"{folder}/{MANIFEST_NAME}"
    try:
        _create(filesystem, path, content)
    except FileExistsError:
        if read_manifest(url, storage_options) != manifest:
            raise InvalidInputError(
                f"the folder to write to must be empty, got {url!r}, which holds another corpus; "
                "name another folder"
            ) from None


def read_manifest(url: str, storage_options: StorageOptions = None) -> Manifest:
    """Read which files make the corpus.

    Raises
    ------
    InvalidInputError
        There is no manifest, or it is not one of this format and version.
    """
    filesystem, folder = fsspec.core.url_to_fs(url, **(storage_options or {}))
    path = f"{folder}/{MANIFEST_NAME}"
    try:
        described = json.loads(filesystem.cat_file(path))
        if (described["format"], described["version"]) != (FORMAT, VERSION):
            raise ValueError(f"format {described['format']!r}, version {described['version']!r}")
        files = tuple(BlockFile(**file) for file in described["files"])
        return Manifest(int(described["n_features"]), bool(described["has_ids"]), files)
    except FileNotFoundError:
        raise InvalidInputError(
            f"a corpus must be a folder with {MANIFEST_NAME}, got {url!r} without one; "
            "write it with Corpus.to_parquet"
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{path!r} must be a manifest of {FORMAT}, version {VERSION}, got {error}; "
            "write the corpus again"
        ) from error


def encode_block(block: RowBlock) -> bytes:
    """Return the bytes of a Parquet file with one row group."""
    schema = _schema(block.is_dense, block.ids.dtype.kind == "U", block.n_features)
    columns = [pa.array(block.ids.tolist(), schema.field("id").type)]
    if block.ids.dtype.kind == "U":
        columns.append(pa.array(block.keys))
    if block.is_dense:
        width = schema.field("values").type
        columns.append(pa.FixedSizeListArray.from_arrays(pa.array(block.values), type=width))
    else:
        offsets = pa.array(block.indptr)
        columns.append(pa.ListArray.from_arrays(offsets, pa.array(block.indices), type=_INDICES))
        columns.append(pa.ListArray.from_arrays(offsets, pa.array(block.values), type=_VALUES))
    table = pa.Table.from_arrays(columns, schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=3,
        use_dictionary=False,
        write_statistics=False,
        column_encoding=_encodings(schema),
        write_page_checksum=True,
        row_group_size=max(1, block.n_rows),
    )
    content: bytes = sink.getvalue().to_pybytes()
    return content


def decode_block(content: bytes, path: str) -> RowBlock:
    """Return the block of a Parquet file's bytes; its arrays share the buffers of the reader."""
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        table = file.read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        _refuse(path, f"it cannot be read as Parquet ({error})")
    described = _description(table.schema, path)
    n_features, has_strings = int(described["n_features"]), described["strings"]
    if not table.schema.equals(_schema(described["dense"], has_strings, n_features)):
        _refuse(path, f"its columns are {table.schema.names} of other types")
    ids = _whole(table, "id").to_numpy(zero_copy_only=False)
    ids = np.array(ids, dtype=np.str_) if has_strings else ids
    keys = _whole(table, "key").to_numpy() if has_strings else ids.view(np.uint64)
    values, indptr = _flattened(_whole(table, "values"), n_features)
    if described["dense"]:
        return RowBlock(values, np.empty(0, np.int32), indptr, ids, keys, n_features)
    indices, same = _flattened(_whole(table, "indices"), n_features)
    inside = not indices.size or (indices.min() >= 0 and indices.max() < n_features)
    if not inside or not np.array_equal(indptr, same):
        _refuse(path, f"its feature numbers do not fit its values or 0..{n_features - 1}")
    return RowBlock(values, indices, indptr, ids, keys, n_features)


def _schema(dense: bool, strings: bool, n_features: int) -> pa.Schema:
    columns = [pa.field("id", pa.string() if strings else pa.int64(), nullable=False)]
    if strings:
        # Hashing the ids again takes as long as reading the rows.
        columns.append(pa.field("key", pa.uint64(), nullable=False))
    if dense:
        element = pa.field("element", pa.float32(), nullable=False)
        columns.append(pa.field("values", pa.list_(element, n_features), nullable=False))
    else:
        columns.append(pa.field("indices", _INDICES, nullable=False))
        columns.append(pa.field("values", _VALUES, nullable=False))
    described = {"version": VERSION, "n_features": n_features, "dense": dense, "strings": strings}
    return pa.schema(columns, metadata={FORMAT: json.dumps(described)})


def _encodings(schema: pa.Schema) -> dict[str, str]:
    present = {
        path: code for path, code in _ENCODINGS.items() if path.split(".")[0] in schema.names
    }
    if schema.field("id").type == pa.int64():
        present["id"] = "DELTA_BINARY_PACKED"
    return present


def _description(schema: pa.Schema, path: str) -> dict[str, Any]:
    described: dict[str, Any] = json.loads((schema.metadata or {}).get(FORMAT.encode(), b"{}"))
    if described.get("version") != VERSION:
        _refuse(path, f"it is not a file of {FORMAT}, version {VERSION}")
    return described


def _whole(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks()


def _flattened(lists: pa.Array, n_features: int) -> tuple[AnyArray, AnyArray]:
    """Return the elements of a list column and where each row begins, both without a copy."""
    values = lists.flatten().to_numpy()
    if pa.types.is_fixed_size_list(lists.type):
        return values, np.arange(len(lists) + 1, dtype=np.int32) * np.int32(n_features)
    offsets = lists.offsets.to_numpy()
    # A sliced column keeps its parent's offsets; flatten() has cut the elements already.
    return values, offsets if offsets[0] == 0 else offsets - offsets[0]


def _refuse(path: str, what: str) -> NoReturn:
    raise InvalidInputError(
        f"the file {path!r} must be a block of the corpus as it was written, but {what}; "
        "restore it or write the corpus again"
    )


def _put(filesystem: Any, path: str, content: bytes) -> None:
    """Write whole bytes, so that a reader sees all of them or none."""
    if not isinstance(filesystem, LocalFileSystem):
        filesystem.pipe_file(path, content)
        return
    part = _local_part(path, content)
    os.replace(part, path)


def _create(filesystem: Any, path: str, content: bytes) -> None:
    """Write whole bytes where nothing is yet; FileExistsError if another was first."""
    if not isinstance(filesystem, LocalFileSystem):
        filesystem.pipe_file(path, content, mode="create")
        return
    part = _local_part(path, content)
    try:
        # Exclusive like open(path, "xb"), but a writer killed here leaves no half manifest.
        os.link(part, path)
    finally:
        os.unlink(part)


def _local_part(path: str, content: bytes) -> str:
    part = f"{path}.{uuid4().hex}.part"
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return part
