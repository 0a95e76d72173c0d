"""Row blocks as Parquet bytes and back.

Every pass over a corpus that is larger than memory reads its blocks anew, so they are written for
reading. Measured on TF-IDF rows of 116 entries, one core, MB of CSR a second, with checksums:

====================================  =====  ====  ====
indices, values, compression          write  read  size
====================================  =====  ====  ====
BYTE_STREAM_SPLIT both, lz4             736  1060  0.67
BYTE_STREAM_SPLIT both, zstd 1          595   945  0.64
DELTA_BINARY_PACKED, split, lz4         638   976  0.68
DELTA_BINARY_PACKED, split, zstd 1      547   845  0.61
DELTA_BINARY_PACKED, split, zstd 3      380   826  0.61
plain both, lz4                         547  1055  0.92
plain both, uncompressed                922  1183  1.02
====================================  =====  ====  ====

Rows as lists bound all of them: their lengths are kept entry by entry. Checksums of pages cost 8 %,
the hash of a whole file 30 %: it is taken once in a process. Mapping files into memory gains
nothing over their bytes, as pages are decoded anyway, nor does reading column by column. Arrow's
pool keeps 60 to 80 MiB beside blocks of 14; giving it back after each block halves that and costs a
third more time.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.errors import UnreadableFileError
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import AnyArray

FORMAT = "hmrf-dask-blocks"
VERSION = 1
_INDICES = pa.list_(pa.field("element", pa.int32(), nullable=False))
_VALUES = pa.list_(pa.field("element", pa.float32(), nullable=False))
_ENCODINGS = {
    "indices.list.element": "BYTE_STREAM_SPLIT",
    "values.list.element": "BYTE_STREAM_SPLIT",
}


def encode_block(block: RowBlock) -> bytes:
    """Return the bytes of a Parquet file with one row group."""
    schema = _schema(block.is_dense, block.ids.dtype.kind == "U", block.n_features)
    if block.ids.dtype.kind == "U":
        columns = [pa.array(block.ids.tolist(), pa.string()), as_arrow(block.keys, pa.uint64())]
    else:
        columns = [as_arrow(block.ids, pa.int64())]
    values = as_arrow(block.values, pa.float32())
    if block.is_dense:
        width = schema.field("values").type
        columns.append(pa.FixedSizeListArray.from_arrays(values, type=width))
    else:
        offsets, indices = as_arrow(block.indptr, pa.int32()), as_arrow(block.indices, pa.int32())
        columns.append(pa.ListArray.from_arrays(offsets, indices, type=_INDICES))
        columns.append(pa.ListArray.from_arrays(offsets, values, type=_VALUES))
    table = pa.Table.from_arrays(columns, schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="lz4",
        use_dictionary=False,
        write_statistics=False,
        column_encoding=_encodings(schema),
        write_page_checksum=True,
        row_group_size=max(1, block.n_rows),
    )
    content: bytes = sink.getvalue().to_pybytes()
    return content


def decode_block(
    content: bytes, path: str, *, page_checksums: bool = True, ids_only: bool = False
) -> RowBlock:
    """Return the block of a Parquet file; its arrays share the buffers of the reader.

    Parameters
    ----------
    content : bytes
        Those of the file.
    path : str
        What to call it in errors.
    page_checksums : bool
        Whether pages are checked; they need not be where the whole file was hashed just now.
    ids_only : bool
        Whether to leave all rows empty, which takes a twentieth of the time.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=page_checksums)
        schema = file.schema_arrow
        described = _description(schema, path)
        n_features, has_strings = int(described["n_features"]), described["strings"]
        if not schema.equals(_schema(described["dense"], has_strings, n_features)):
            refuse_block(path, f"its columns are {schema.names} of other types")
        wanted = [name for name in schema.names if not ids_only or name in ("id", "key")]
        table = file.read(wanted, use_threads=False)
        columns = {name: table.column(name).combine_chunks() for name in wanted}
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, UnreadableFileError):
            raise
        refuse_block(path, f"it cannot be read as Parquet ({error})")
    if has_strings:
        ids = np.array(columns["id"].to_pylist(), dtype=np.str_)
        keys = as_numpy(columns["key"], np.uint64)
    else:
        ids = as_numpy(columns["id"], np.int64)
        keys = ids.view(np.uint64)
    if ids_only:
        nothing, indptr = np.empty(0, np.int32), np.zeros(len(ids) + 1, np.int32)
        return RowBlock(nothing.view(np.float32), nothing, indptr, ids, keys, n_features)
    values, indptr = _flattened(columns["values"], n_features)
    if described["dense"]:
        return RowBlock(values, np.empty(0, np.int32), indptr, ids, keys, n_features)
    indices, same = _flattened(columns["indices"], n_features)
    inside = not indices.size or (indices.min() >= 0 and indices.max() < n_features)
    if not inside or not np.array_equal(indptr, same):
        refuse_block(path, f"its feature numbers do not fit its values or 0..{n_features - 1}")
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
        refuse_block(path, f"it is not a file of {FORMAT}, version {VERSION}")
    return described


def _flattened(lists: pa.Array, n_features: int) -> tuple[AnyArray, AnyArray]:
    """Return the elements of a list column and where each row begins, both without a copy."""
    elements = lists.flatten()
    values = as_numpy(elements, np.int32 if elements.type == pa.int32() else np.float32)
    if pa.types.is_fixed_size_list(lists.type):
        return values, np.arange(len(lists) + 1, dtype=np.int32) * np.int32(n_features)
    offsets = as_numpy(lists.offsets, np.int32)
    # A sliced column keeps its parent's offsets; flatten() has cut the elements already.
    return values, offsets if offsets[0] == 0 else offsets - offsets[0]


def as_numpy(array: pa.Array, dtype: type[np.generic]) -> AnyArray:
    """Return the numbers of an array without nulls, sharing its memory.

    Arrow's own way imports pandas, 0.7 s and 35 MiB of every worker.
    """
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.empty(0, dtype)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(data, dtype, len(array), array.offset * size)


def as_arrow(array: AnyArray, kind: pa.DataType) -> pa.Array:
    """Return an Arrow array of the same memory; see `as_numpy`."""
    data = pa.py_buffer(np.ascontiguousarray(array))
    return pa.Array.from_buffers(kind, len(array), [None, data])


def differs(n_bytes: int, n_written: int) -> str:
    """Return how the bytes of a file differ from those written.

    Examples
    --------
    >>> differs(3, 3)
    'its hash differs, though it has the 3 bytes that were written'
    >>> differs(3, 4)
    'it has 3 bytes, not the 4 that were written'
    """
    if n_bytes == n_written:
        return f"its hash differs, though it has the {n_bytes} bytes that were written"
    return f"it has {n_bytes} bytes, not the {n_written} that were written"


def refuse_block(path: str, what: str) -> NoReturn:
    """Raise UnreadableFileError that names the file and what is wrong with it."""
    raise UnreadableFileError(
        f"the file {path!r} must be a block of the corpus as it was written, but {what}; "
        "restore it or write the corpus again; below the output of a job remove its folder, and "
        "the next run makes it anew",
        path,
        what,
    )
