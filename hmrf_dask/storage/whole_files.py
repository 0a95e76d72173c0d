"""Files that are read whole: regular ones, of a bounded size, believed as far as their bytes go."""

from __future__ import annotations

import io
import math
import os
import stat
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

import numpy as np

from hmrf_dask.errors import SourceError
from hmrf_dask.limits import WHOLE_FILE_BYTES
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
