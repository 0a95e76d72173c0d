"""Row blocks as Parquet bytes and back.

Every pass over a corpus that is larger than memory reads its blocks again, so they are written for
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
pool keeps 60 to 80 MiB with blocks of 14; giving it back after each block halves that and costs a
third more time.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hmrf_dask.errors import UnreadableFileError
from hmrf_dask.limits import LARGEST_INT32
from hmrf_dask.redaction import shortened
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.canonical import hash_ids, is_csr, is_sorted
from hmrf_dask.storage.parquet import encode_parquet
from hmrf_dask.types import AnyArray

FORMAT = "hmrf-dask-blocks"
VERSION = 1
_INDICES = pa.list_(pa.field("element", pa.int32(), nullable=False))
_VALUES = pa.list_(pa.field("element", pa.float32(), nullable=False))
_ENCODINGS = {
    "indices.list.element": "BYTE_STREAM_SPLIT",
    "values.list.element": "BYTE_STREAM_SPLIT",
}

_KEYS_TRIED: Final = 500  # of a block: hashing all takes a third of the time of reading it
_IDS_FREE_BYTES: Final = 2**28  # in memory; more must stand in the manifest, and is planned for


def encode_block(block: RowBlock) -> bytes:
    """Return the bytes of a Parquet file with one row group.

    Examples
    --------
    >>> block = RowBlock.from_array(np.eye(2), ids=["a", "b"])
    >>> decode_block(encode_block(block), "part.parquet").ids.tolist()
    ['a', 'b']
    """
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
    return encode_parquet(
        table,
        compression="lz4",
        use_dictionary=False,
        write_statistics=False,
        column_encoding=_encodings(schema),
        row_group_size=max(1, block.n_rows),
    )


class StatedBlock(NamedTuple):
    """What a manifest says of the block in a file."""

    n_rows: int
    n_values: int
    n_features: int
    is_dense: bool
    id_bytes: int


def decode_block(
    content: bytes,
    path: str,
    stated: StatedBlock | None = None,
    *,
    known: bool = False,
    ids_only: bool = False,
) -> RowBlock:
    """Return the block of a Parquet file; its arrays share the buffers of the reader.

    Parameters
    ----------
    content : bytes
        Those of the file.
    path : str
        What to call it in errors.
    stated : StatedBlock, optional
        What it must hold.
    known : bool
        Whether this process has read it before and found it sound: then pages are checked by their
        checksums alone. Else the whole file was hashed just now, and what only a writer can have
        got wrong is looked for; 5 % of the time.
    ids_only : bool
        Whether to leave all rows empty, which takes a twentieth of the time.
    """
    try:
        checked = known or stated is None
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=checked)
        described = _description(file.schema_arrow, path)
        if stated is not None:
            _refuse_other(file.metadata, described, stated, path)
        names = file.schema_arrow.names
        wanted = [name for name in names if not ids_only or name in ("id", "key")]
        table = file.read(wanted, use_threads=False)
        columns = {name: table.column(name).combine_chunks() for name in wanted}
        ids, keys = _ids(columns, described, stated, path, known=known)
        if any(column.null_count for column in columns.values()):
            refuse_block(path, "some of its rows are missing")
        return _block(columns, ids, keys, described, path, stated, known=known)
    except UnreadableFileError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError) as error:
        refuse_block(path, f"it cannot be read as Parquet ({error!s:.300})")


def _refuse_other(metadata: Any, described: dict[str, Any], stated: StatedBlock, path: str) -> None:
    """Refuse a file of other sizes than those planned for, before anything is unpacked.

    Of a dictionary a few bytes can come to any number of values: blocks are written without.
    """
    found = f"{metadata.num_rows} rows of {described['n_features']} features"
    if metadata.num_rows != stated.n_rows or described["n_features"] != stated.n_features:
        refuse_block(path, f"it holds {found}, not {stated.n_rows} of {stated.n_features}")
    if described["dense"] != stated.is_dense and stated.n_values:
        refuse_block(path, f"its rows are {'' if described['dense'] else 'not '}dense")
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
    if any("DICTIONARY" in code for chunk in chunks for code in chunk.encodings):
        refuse_block(path, "it has a dictionary, which blocks are written without")
    n_values = sum(one.num_values for one in chunks if one.path_in_schema.startswith("values."))
    if n_values > stated.n_values + stated.n_rows:  # an empty list counts as one
        refuse_block(path, f"it holds {n_values} values, not {stated.n_values}")


def _ids(
    columns: dict[str, Any],
    described: dict[str, Any],
    stated: StatedBlock | None,
    path: str,
    *,
    known: bool,
) -> tuple[AnyArray, AnyArray]:
    """Return ids and keys; texts as long as one array can hold, with the keys that are theirs."""
    if not described["strings"]:
        ids = as_numpy(columns["id"], np.int64)
        return ids, ids.view(np.uint64)
    texts = columns["id"]
    longest = pc.max(pc.utf8_length(texts)).as_py() or 0
    allowed = max(_IDS_FREE_BYTES, 0 if stated is None else stated.id_bytes + 8 * stated.n_rows)
    if 4 * longest * len(texts) > allowed:
        refuse_block(path, f"its ids have up to {longest} characters")
    if not known and pc.any(pc.match_substring(texts, "\0")).as_py():
        refuse_block(path, "an id has a NUL character")
    ids, keys = np.array(texts.to_pylist(), dtype=np.str_), as_numpy(columns["key"], np.uint64)
    some = slice(None, None, max(1, len(ids) // _KEYS_TRIED))
    if not known and not np.array_equal(hash_ids(ids[some]), keys[some]):
        refuse_block(path, "its keys are not those of its ids")
    return ids, keys


def _block(
    columns: dict[str, Any],
    ids: AnyArray,
    keys: AnyArray,
    described: dict[str, Any],
    path: str,
    stated: StatedBlock | None,
    *,
    known: bool,
) -> RowBlock:
    """Return the rows, whose numbers all lie within them: kernels trust what they are given."""
    n_features = described["n_features"]
    if "values" not in columns:
        nothing, indptr = np.empty(0, np.int32), np.zeros(len(ids) + 1, np.int32)
        return RowBlock(nothing.view(np.float32), nothing, indptr, ids, keys, n_features)
    values, indptr = _flattened(columns["values"], n_features)
    if len(values) != (len(ids) * n_features if described["dense"] else indptr[-1]) or (
        stated is not None and len(values) != stated.n_values
    ):
        refuse_block(path, f"it holds {len(values)} values, not {stated and stated.n_values}")
    if described["dense"]:
        return RowBlock(values, np.empty(0, np.int32), indptr, ids, keys, n_features)
    indices, same = _flattened(columns["indices"], n_features)
    if not np.array_equal(indptr, same) or not is_csr(indices, indptr, n_features):
        refuse_block(path, f"its feature numbers do not fit its values or 0..{n_features - 1}")
    if not known and not is_sorted(indices, indptr):
        refuse_block(path, "the feature numbers of a row do not ascend")
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
    try:
        described = json.loads((schema.metadata or {}).get(FORMAT.encode(), b"{}"))
    except (ValueError, RecursionError):
        described = {}
    kinds = {"version": int, "n_features": int, "dense": bool, "strings": bool}
    found: list[Any] = [described.get(one) for one in kinds] if isinstance(described, dict) else []
    if [type(one) for one in found] != [*kinds.values()] or found[0] != VERSION:
        refuse_block(path, f"it is not a file of {FORMAT}, version {VERSION}")
    _, n_features, dense, strings = found
    if not 0 <= n_features <= LARGEST_INT32:
        refuse_block(path, f"it has {n_features:.9g} features")
    if not schema.equals(_schema(dense, strings, n_features)):
        refuse_block(path, f"its columns are {shortened(schema.names)} of other types")
    return dict(zip(kinds, found, strict=True))


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

    Examples
    --------
    >>> as_numpy(pa.array([1, 2, 3])[1:], np.int64)
    array([2, 3])
    """
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.empty(0, dtype)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(data, dtype, len(array), array.offset * size)


def as_arrow(array: AnyArray, kind: pa.DataType) -> pa.Array:
    """Return an Arrow array of the same memory; see `as_numpy`.

    Examples
    --------
    >>> as_arrow(np.array([1, 2]), pa.int64()).to_pylist()
    [1, 2]
    """
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
    """Raise UnreadableFileError that names the file and what is wrong with it.

    Examples
    --------
    >>> refuse_block("part-0.parquet", "it is missing")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    hmrf_dask.errors.UnreadableFileError: the file 'part-0.parquet' must be a block of the ...
    """
    raise UnreadableFileError(
        f"the file {path!r} must be a block of the corpus as it was written, but {what}; "
        "restore it or write the corpus again; below the output of a job remove its folder, and "
        "the next run makes it again",
        path,
        what,
    )
