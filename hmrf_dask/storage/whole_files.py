"""Files that are written and read whole: of a bounded size, Parquet among them."""

from __future__ import annotations

import io
import math
import os
import stat
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.errors import SourceError
from hmrf_dask.parameters import UNPACKED_BYTES, WHOLE_FILE_BYTES
from hmrf_dask.storage.addresses import is_local, local_path
from hmrf_dask.storage.remote import open_files
from hmrf_dask.storage.sealed import DamagedFileError
from hmrf_dask.types import AnyArray

CHUNK_BYTES: Final = 4 * 2**20


def read_bounded(
    url: str,
    options: Mapping[str, Any] | None = None,
    most: int = WHOLE_FILE_BYTES,
    *,
    listed: bool = False,
) -> bytes:
    """Return the bytes of a file of at most `most` bytes, at a path or URL.

    `listed` is as in `remote.open_files`; what a store raises is for `remote.explained`.
    """
    if is_local(url):
        with open_regular(local_path(url)) as file:
            return _read_all(file, url, most)
    files, path = open_files(url, options, listed=listed)
    size = files.info(path).get("size")
    if size is not None:
        _refuse_more(size, url, most)
        return bytes(files.cat_file(path))
    with files.open(path, "rb") as file:
        return _read_all(file, url, most)


def _read_all(file: BinaryIO, url: str, most: int) -> bytes:
    """Return the bytes of a file, read no further than one beyond those it may have."""
    chunks, size = list[bytes](), 0
    while chunk := file.read(min(most + 1 - size, CHUNK_BYTES)):
        chunks.append(chunk)
        size += len(chunk)
        _refuse_more(size, url, most)
    return b"".join(chunks)


def _refuse_more(size: int, url: str, most: int) -> None:
    if size > most:
        raise SourceError(f"{url}: must have at most {most:,} bytes, got more; check the path")


def open_regular(path: str) -> BinaryIO:
    """Open a local file for reading; a pipe or a device, which may never end, is refused."""
    opened: BinaryIO = open(  # noqa: SIM115
        path,
        "rb",
        buffering=0,
        opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK),  # a pipe would wait
    )
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise ValueError("it must be a file, not a pipe, a socket or a device")
    return opened


_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def encode_npy(array: AnyArray) -> bytes:
    """Return the bytes of an .npy file.

    Examples
    --------
    >>> decode_npy(encode_npy(np.arange(3)), "labels.npy")
    array([0, 1, 2])
    """
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def decode_npy(data: bytes, name: str) -> AnyArray:
    """Return the array of an .npy file, or raise DamagedFileError naming the file."""
    try:
        return parse_npy(data).copy()
    except ValueError as error:
        raise _damaged(name, str(error)) from error


def parse_npy(data: bytes) -> AnyArray:
    """Return the array in the bytes of an .npy file, ValueError unless it is all of them.

    Examples
    --------
    >>> parse_npy(encode_npy(np.eye(2))).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    stream = io.BytesIO(data)
    shape, by_column, dtype = read_header(stream, len(data))
    array = np.empty(0, dtype)
    if stream.tell() < len(data):
        array = np.frombuffer(data, dtype, offset=stream.tell())
    return array.reshape(shape, order="F" if by_column else "C")


def read_header(stream: BinaryIO, n_bytes: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether columns come first, and type of an .npy file of so many bytes.

    Raise ValueError if it has no such header, is of objects, or has not the bytes that it claims.

    Examples
    --------
    >>> data = encode_npy(np.eye(2))
    >>> read_header(io.BytesIO(data), len(data))
    ((2, 2), False, dtype('float64'))
    """
    try:
        shape, by_column, dtype = _HEADERS[np.lib.format.read_magic(stream)](stream)
    except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"no .npy header that can be read ({type(error).__name__})") from error
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"values of the type {dtype!r:.80}")
    claimed, there = math.prod(shape) * dtype.itemsize, n_bytes - stream.tell()
    if any(isinstance(size, bool) or size < 0 for size in shape) or claimed != there:
        raise ValueError(f"{there:,} bytes for an array of {dtype} of shape {shape}"[:200])
    return shape, by_column, dtype


def decode_npz(data: bytes, name: str) -> dict[str, AnyArray]:
    """Return the arrays of an uncompressed npz, or raise DamagedFileError naming the file.

    Examples
    --------
    >>> buffer = io.BytesIO()
    >>> np.savez(buffer, labels=np.arange(3))
    >>> decode_npz(buffer.getvalue(), "state.npz")
    {'labels': array([0, 1, 2])}
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if any(member.file_size > len(data) for member in members):  # compressed, or it lies
                raise _damaged(name, "members that are larger than the file")
            return {
                member.filename.removesuffix(".npy"): decode_npy(archive.read(member), name)
                for member in members
            }
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        raise _damaged(name, f"no archive that can be read ({error})") from error


def _damaged(name: str, got: str) -> DamagedFileError:
    return DamagedFileError(f"{name} must hold plain arrays as they were saved, got {got}")


def encode_parquet(table: pa.Table, **options: Any) -> bytes:
    """Return a table as the bytes of a Parquet file, whose pages have checksums.

    `options` are those of `pyarrow.parquet.write_table`; the compression is zstd by default.

    Examples
    --------
    >>> table = decode_parquet(encode_parquet(pa.table({"id": ["a", "b"]})))
    >>> table.to_pydict()
    {'id': ['a', 'b']}
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True, **{"compression": "zstd", **options})
    return bytes(sink.getvalue().to_pybytes())


def decode_parquet(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Return columns of a file of our own, all without names; its page checksums are verified."""
    source = pa.BufferReader(data)
    return pq.read_table(source, columns=columns, page_checksum_verification=True)


def names_in_parquet(data: bytes) -> list[str]:
    """Return the names of the columns of a file.

    Examples
    --------
    >>> names_in_parquet(encode_parquet(pa.table({"id": ["a", "b"], "label": [0, 1]})))
    ['id', 'label']
    """
    return list(pq.read_schema(pa.BufferReader(data)).names)


def read_plain_table(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Return columns of a Parquet file, all without names; page checksums are verified.

    Raise ValueError if it would unpack to more than `UNPACKED_BYTES`, lacks a column, or if one
    holds lists or more.

    Examples
    --------
    >>> data = encode_parquet(pa.table({"id": ["a", "b"], "label": [0, 1]}))
    >>> read_plain_table(data, ["label"]).to_pydict()
    {'label': [0, 1]}
    """
    schema = pq.ParquetFile(pa.BufferReader(data)).schema_arrow
    wanted = [schema.field(name) for name in (columns or schema.names) if name in schema.names]
    missing = set(columns or ()) - set(schema.names)
    if missing:
        raise ValueError(f"it has no column {min(missing)!r}")
    nested = [field.name for field in wanted if pa.types.is_nested(field.type)]
    if nested:
        raise ValueError(f"the column {nested[0]!r:.80} must hold plain values, not lists or more")
    file = pq.ParquetFile(
        pa.BufferReader(data),
        page_checksum_verification=True,
        read_dictionary=[field.name for field in wanted if _is_text(field.type)],
    )
    names = {field.name for field in wanted}
    widths = [_width(field.type) for field in file.schema_arrow if field.name in names]
    _refuse_many(file.metadata.num_rows * sum(widths))
    table = file.read(columns)
    _refuse_many(sum(map(_unpacked, table.columns)))
    # Words are written out as texts again, whatever the file had them as.
    return pa.table([_plain(column) for column in table.columns], table.column_names)


def _is_text(kind: pa.DataType) -> bool:
    return "string" in str(kind) or "binary" in str(kind)  # large ones and views, too


def _width(kind: pa.DataType) -> int:
    """Return bytes of a value, of a text those of its number."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 8


def _unpacked(column: pa.ChunkedArray) -> int:
    """Return the bytes of all texts of a column written out."""
    if not pa.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
        return int(column.nbytes)
    import pyarrow.compute as pc  # here, because those who write need not wait for it

    return sum(
        pc.sum(pc.binary_length(chunk.dictionary).cast(pa.int64()).take(chunk.indices)).as_py() or 0
        for chunk in column.chunks
    )


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind: Any = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def _refuse_many(n_bytes: int) -> None:
    if not 0 <= n_bytes <= UNPACKED_BYTES:
        raise ValueError(
            f"it must unpack to at most {UNPACKED_BYTES:,} bytes, got {n_bytes:,}; cut it into "
            "several files"
        )
