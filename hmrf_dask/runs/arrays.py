"""Arrays as .npy bytes: what their header claims is held against the bytes before any is believed.

numpy makes an array of the size that a header claims and then looks for its bytes: 80 bytes can ask
for terabytes. Objects, which are pickles, are refused.
"""

from __future__ import annotations

import io
import math
import zipfile

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
    stream = io.BytesIO(data)
    try:
        shape, by_column, dtype = _HEADERS[np.lib.format.read_magic(stream)](stream)
    except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise _damaged(name, f"no header that can be read ({type(error).__name__})") from error
    if dtype.hasobject or not dtype.itemsize:
        raise _damaged(name, f"values of the type {dtype!r:.80}")
    claimed, there = math.prod(shape) * dtype.itemsize, len(data) - stream.tell()
    if min(shape, default=0) < 0 or claimed != there:
        raise _damaged(name, f"{there} bytes for an array of {dtype} of shape {shape}"[:200])
    array = np.empty(0, dtype)
    if there:
        array = np.frombuffer(data, dtype, offset=stream.tell()).copy()
    return array.reshape(shape, order="F" if by_column else "C")


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
