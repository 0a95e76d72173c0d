"""Arrays as .npy bytes: what their header claims is held against the bytes before any is believed.

numpy makes an array of the size that a header claims and then looks for its bytes: 80 bytes can ask
for terabytes. Objects, which are pickles, are refused.
"""

from __future__ import annotations

import io
import math
import zipfile
from typing import Any, BinaryIO

import numpy as np

from hmrf_dask.runs.records import DamagedFileError
from hmrf_dask.types import AnyArray

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def encode_npy(array: AnyArray) -> bytes:
    """Return the bytes of an .npy file."""
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
    """Return the array in the bytes of an .npy file, ValueError unless it is all of them."""
    stream = io.BytesIO(data)
    shape, by_column, dtype = read_header(stream, len(data))
    array = np.empty(0, dtype)
    if stream.tell() < len(data):
        array = np.frombuffer(data, dtype, offset=stream.tell())
    return array.reshape(shape, order="F" if by_column else "C")


def read_header(stream: BinaryIO, n_bytes: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether columns come first, and type of an .npy file of so many bytes.

    Raises
    ------
    ValueError
        It has no such header, is of objects, or has not the bytes that it claims.
    """
    try:
        shape, by_column, dtype = _HEADERS[np.lib.format.read_magic(stream)](stream)
    except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"no .npy header that can be read ({type(error).__name__})") from error
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"values of the type {dtype!r:.80}")
    claimed, there = math.prod(shape) * dtype.itemsize, n_bytes - stream.tell()
    if any(isinstance(one, bool) or one < 0 for one in shape) or claimed != there:
        raise ValueError(f"{there:,} bytes for an array of {dtype} of shape {shape}"[:200])
    return shape, by_column, dtype


def decode_npz(data: bytes, name: str) -> dict[str, AnyArray]:
    """Return the arrays of an uncompressed npz, or raise DamagedFileError naming the file."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if any(one.file_size > len(data) for one in members):  # compressed, or it lies
                raise _damaged(name, "members that are larger than the file")
            return {
                one.filename.removesuffix(".npy"): decode_npy(archive.read(one), name)
                for one in members
            }
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        raise _damaged(name, f"no archive that can be read ({error})") from error


def _damaged(name: str, got: str) -> DamagedFileError:
    return DamagedFileError(f"{name} must hold plain arrays as they were saved, got {got}")
