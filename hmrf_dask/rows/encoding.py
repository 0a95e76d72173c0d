"""Row blocks as Parquet bytes and back.

Every pass over a corpus that is larger than memory reads its blocks again, so they are written for
reading. Measured on TF-IDF rows of 116 entries, one core, with checksums: BYTE_STREAM_SPLIT under
lz4 writes 736 and reads 1060 MB of CSR a second, at 0.67 of the size. Plain values under lz4 read
as fast at 0.92; zstd saves 0.03 and reads a tenth slower, with delta encoding of indices 0.06 and a
fifth.

Rows as lists bound all of them: their lengths are kept entry by entry. Checksums of pages cost 8 %,
the hash of a whole file 30 %: it is taken once in a process. Mapping files into memory gains
nothing over their bytes, as pages are decoded anyway, nor does reading column by column. Arrow's
pool keeps 60 to 80 MiB with blocks of 14; giving it back after each block halves that and costs a
third more time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Final, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hmrf_dask.errors import UnreadableFileError
from hmrf_dask.parameters import LARGEST_INT32
from hmrf_dask.redaction import shortened
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.canonical import hash_ids, is_csr, is_sorted
from hmrf_dask.storage.whole_files import encode_parquet
from hmrf_dask.types import AnyArray

FORMAT = "hmrf-dask-blocks"
VERSION = 1
_INDICES = pa.list_(pa.field("element", pa.int32(), nullable=False))
_VALUES = pa.list_(pa.field("element", pa.float32(), nullable=False))
_ENCODINGS = {
    "indices.list.element": "BYTE_STREAM_SPLIT",
    "values.list.element": "BYTE_STREAM_SPLIT",
}

Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_INT32)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**50)]
_KEYS_TRIED: Final = 500  # of a block: hashing all takes a third of the time of reading it
_IDS_FREE_BYTES: Final = 2**28  # in memory; more must stand in the manifest, and is planned for


@dataclass(frozen=True, slots=True)
class BlockFile:
    """One file of a corpus: its name, what is in it and the hash that its bytes must have."""

    # In the folder of the corpus: no way out of it.
    name: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}\Z")]
    n_rows: Count
    n_values: Count
    is_dense: bool
    n_bytes: Bytes
    sha256: str
    id_bytes: Bytes = 0  # in memory, beyond those of a number
    n_dense: Count = 0  # of mixed rows: features at their end that have no index

    @property
    def n_indices(self) -> int:
        """Number of values that have an index."""
        return 0 if self.is_dense else self.n_values - self.n_rows * self.n_dense


def encode_block(block: RowBlock) -> bytes:
    """Return the bytes of a Parquet file with one row group.

    Examples
    --------
    >>> data = encode_block(RowBlock.from_array(np.eye(2), ids=["a", "b"]))
    >>> file = BlockFile("part.parquet", 2, 4, is_dense=True, n_bytes=len(data), sha256="")
    >>> decode_block(data, "part.parquet", file, n_features=2).ids.tolist()
    ['a', 'b']
    """
    has_texts = block.ids.dtype.kind == "U"
    form = (block.is_dense, has_texts, block.n_features, block.n_dense)
    schema, encodings = _schema(*form), dict(_ENCODINGS)
    if has_texts:
        columns = [pa.array(block.ids.tolist(), pa.string()), as_arrow(block.keys, pa.uint64())]
    else:
        columns, encodings["id"] = [as_arrow(block.ids, pa.int64())], "DELTA_BINARY_PACKED"
    values = as_arrow(block.values, pa.float32())
    if block.is_dense:
        del encodings["indices.list.element"]
        width = schema.field("values").type
        columns.append(pa.FixedSizeListArray.from_arrays(values, type=width))
    else:
        for ends, entries, kind in (
            (block.index_ends, as_arrow(block.indices, pa.int32()), _INDICES),
            (block.indptr, values, _VALUES),
        ):
            offsets = as_arrow(ends, pa.int32())
            columns.append(pa.ListArray.from_arrays(offsets, entries, type=kind))
    return encode_parquet(
        pa.Table.from_arrays(columns, schema=schema),
        compression="lz4",
        use_dictionary=False,
        write_statistics=False,
        column_encoding=encodings,
        row_group_size=max(1, block.n_rows),
    )


def decode_block(
    content: bytes,
    path: str,
    stated: BlockFile,
    n_features: int,
    *,
    known: bool = False,
    ids_only: bool = False,
) -> RowBlock:
    """Return the block of a Parquet file; its arrays share the buffers of the reader.

    Parameters
    ----------
    content : bytes
    path : str
        What to call the file in errors.
    stated : BlockFile
        What the manifest says that it holds.
    n_features : int
    known : bool
        Whether this process has read it before and found it sound: then pages are checked by their
        checksums alone. Else the whole file was hashed just now, and what only a writer can have
        got wrong is searched for; 5 % of the time.
    ids_only : bool
        Whether to leave all rows empty, which takes a twentieth of the time.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=known)
        described = _description(file.schema_arrow, path)
        _refuse_other(file.metadata, described, stated, n_features, path)
        names = [n for n in file.schema_arrow.names if not ids_only or n in ("id", "key")]
        table = file.read(names, use_threads=False)
        columns = {name: table.column(name).combine_chunks() for name in names}
        ids = _ids(columns, stated, path, known=known)
        if any(column.null_count for column in columns.values()):
            refuse_block(path, "some of its rows are missing")
        return _block(columns, ids, n_features, stated, path, known=known)
    except UnreadableFileError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError) as error:
        refuse_block(path, f"it cannot be read as Parquet ({error!s:.300})")


def _refuse_other(
    metadata: Any, described: dict[str, Any], stated: BlockFile, n_features: int, path: str
) -> None:
    """Refuse a file of other sizes than those planned for, before anything is unpacked.

    Of a dictionary a few bytes can come to any number of values: blocks are written without.
    """
    n_rows, width = metadata.num_rows, described["n_features"]
    if (n_rows, width) != (stated.n_rows, n_features):
        got = f"{n_rows} rows of {width} features"
        refuse_block(path, f"it holds {got}, not {stated.n_rows} of {n_features}")
    if described["dense"] != stated.is_dense and stated.n_values:
        refuse_block(path, f"its rows are {'' if described['dense'] else 'not '}dense")
    if described["n_dense"] != stated.n_dense or not 0 <= stated.n_dense <= n_features:
        end = described["n_dense"]
        refuse_block(path, f"its rows end with {end} dense features, not {stated.n_dense}")
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
    if any("DICTIONARY" in code for chunk in chunks for code in chunk.encodings):
        refuse_block(path, "it has a dictionary, which blocks are written without")
    values = [chunk for chunk in chunks if chunk.path_in_schema.startswith("values.")]
    n_values = sum(chunk.num_values for chunk in values)
    if n_values > stated.n_values + stated.n_rows:  # an empty list counts as one
        refuse_block(path, f"it holds {n_values} values, not {stated.n_values}")


def _ids(
    columns: dict[str, Any], stated: BlockFile, path: str, *, known: bool
) -> tuple[AnyArray, AnyArray]:
    """Return ids and keys; texts as long as one array can hold, with the keys that are theirs."""
    if "key" not in columns:
        ids = as_numpy(columns["id"], np.int64)
        return ids, ids.view(np.uint64)
    texts = columns["id"]
    longest = pc.max(pc.utf8_length(texts)).as_py() or 0
    if 4 * longest * len(texts) > max(_IDS_FREE_BYTES, stated.id_bytes + 8 * stated.n_rows):
        refuse_block(path, f"its ids have up to {longest} characters")
    if not known and pc.any(pc.match_substring(texts, "\0")).as_py():
        refuse_block(path, "an id has a NUL character")
    ids, keys = np.array(texts.to_pylist(), dtype=np.str_), as_numpy(columns["key"], np.uint64)
    tried = slice(None, None, max(1, len(ids) // _KEYS_TRIED))
    if not known and not np.array_equal(hash_ids(ids[tried]), keys[tried]):
        refuse_block(path, "its keys are not those of its ids")
    return ids, keys


def _block(
    columns: dict[str, Any],
    ids: tuple[AnyArray, AnyArray],
    n_features: int,
    stated: BlockFile,
    path: str,
    *,
    known: bool,
) -> RowBlock:
    """Return the rows, whose numbers all lie within them: kernels trust what they are given."""
    n_rows, indices = len(ids[0]), np.empty(0, np.int32)
    if "values" not in columns:
        indptr = np.zeros(n_rows + 1, np.int32)
        return RowBlock(indices.view(np.float32), indices, indptr, *ids, n_features)
    values, indptr = _flattened(columns["values"], n_features)
    dense = "indices" not in columns
    expected = n_rows * n_features if dense else int(indptr[-1])
    if len(values) != expected or len(values) != stated.n_values:
        refuse_block(path, f"it holds {len(values)} values, not {stated.n_values}")
    if not dense:
        indices, same = _flattened(columns["indices"], n_features)
        ends = indptr - np.arange(n_rows + 1, dtype=np.int32) * np.int32(stated.n_dense)
        most = n_features - stated.n_dense
        if not np.array_equal(ends, same) or not is_csr(indices, ends, most):
            refuse_block(path, f"its feature numbers do not fit its values or 0..{most - 1}")
        if not known and not is_sorted(indices, ends):
            refuse_block(path, "the feature numbers of a row do not ascend")
    return RowBlock(values, indices, indptr, *ids, n_features, stated.n_dense)


def _schema(dense: bool, strings: bool, n_features: int, n_dense: int) -> pa.Schema:
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
    if n_dense:
        described["n_dense"] = n_dense
    return pa.schema(columns, metadata={FORMAT: json.dumps(described)})


def _description(schema: pa.Schema, path: str) -> dict[str, Any]:
    try:
        described = {"n_dense": 0} | json.loads((schema.metadata or {}).get(FORMAT.encode(), b"{}"))
    except (ValueError, TypeError, RecursionError):
        described = {}
    kinds = {"version": int, "n_features": int, "dense": bool, "strings": bool, "n_dense": int}
    values = [described.get(key) for key in kinds] if isinstance(described, dict) else []
    if [type(value) for value in values] != [*kinds.values()] or values[0] != VERSION:
        refuse_block(path, f"it is not a file of {FORMAT}, version {VERSION}")
    n_features = described["n_features"]
    if not 0 <= n_features <= LARGEST_INT32:
        refuse_block(path, f"it has {n_features:.9g} features")
    form = (described["dense"], described["strings"], n_features, described["n_dense"])
    if not schema.equals(_schema(*form)):
        refuse_block(path, f"its columns are {shortened(schema.names)} of other types")
    return {key: described[key] for key in kinds}


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
    """Return an Arrow array of the same memory, booleans as bits; see `as_numpy`.

    Arrow's own way imports pandas, 0.7 s of every worker.

    Examples
    --------
    >>> as_arrow(np.array([1, 2]), pa.int64()).to_pylist()
    [1, 2]
    >>> as_arrow(np.array([True, False]), pa.bool_()).to_pylist()
    [True, False]
    """
    values = np.packbits(array, bitorder="little") if array.dtype == np.bool_ else array
    data = pa.py_buffer(np.require(values, requirements=["C", "A"]))  # frames are often not aligned
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
