"""Matrices in .npy and .npz files, believed only as far as their bytes go.

What a header says is held against the size of the file before anything is reserved
(`runs.arrays`), what a directory of a .npz says against its ratio, and feature numbers and row
pointers are checked before a compiled loop follows them.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from functools import partial
from typing import Any, BinaryIO, Final

import numpy as np
import scipy.sparse as sp

from hmrf_dask.errors import (
    ConfigurationError,
    HmrfError,
    InvalidInputError,
    MemoryPlanError,
    in_words,
)
from hmrf_dask.limits import LARGEST_INT32, NPZ_FREE_BYTES, NPZ_RATIO
from hmrf_dask.rows.canonical import sound_csr
from hmrf_dask.runs.arrays import parse_npy, read_header
from hmrf_dask.types import AnyArray
from hmrf_dask.whole_files import open_regular
from hmrf_dask.workers import machine_memory

_HEADER_BYTES: Final = 2**16
_INDICES: Final = {
    "csr": ("indices", "indptr"),
    "csc": ("indices", "indptr"),
    "bsr": ("indices", "indptr"),
    "coo": ("row", "col"),
    "dia": ("offsets",),
}
_MOST_MEMBERS: Final = 100
_PLAIN: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def read_matrix(path: str, shape: tuple[int, int] | None = None) -> Any:
    """Return the sparse matrix of a .npz file, or the array of a .npy file.

    Parameters
    ----------
    path : str
    shape : tuple of int, optional
        What the array of a .npy file must have; another one is not read.

    Raises
    ------
    InvalidInputError
        There is no such file, or it is not what its name says.
    MemoryPlanError
        It would not fit into the memory of this machine.
    """
    read = _read_npz if path.endswith(".npz") else partial(_read_npy, wanted=shape)
    try:
        with open_regular(path) as file:
            return read(file)
    except FileNotFoundError as error:
        raise InvalidInputError(f"there is no file {path!r}: check the path") from error
    except HmrfError as error:
        raise type(error)(f"{path!r}: {error}") from error
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, EOFError, zipfile.BadZipFile,
            MemoryError, OverflowError, SyntaxError) as error:  # fmt: skip
        raise InvalidInputError(
            f"{path!r} cannot be read as a {os.path.splitext(path)[1]} file "
            f"({in_words(error):.300}); write it with scipy.sparse.save_npz or numpy.save"
        ) from error


def _read_npy(file: BinaryIO, wanted: tuple[int, int] | None) -> AnyArray:
    size = os.fstat(file.fileno()).st_size
    begin = io.BytesIO(file.read(_HEADER_BYTES))
    shape, by_columns, dtype = read_header(begin, size)
    _refuse_other_values(dtype)
    if wanted is not None and shape != wanted:
        raise ConfigurationError(f"init must be an array of shape {wanted}, got shape {shape}")
    if size > machine_memory():
        raise _too_large(size)
    file.seek(begin.tell())
    values = np.fromfile(file, dtype, math.prod(shape))
    return values.reshape(shape, order="F" if by_columns else "C")


def _refuse_other_values(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "biufSU":
        raise ValueError(f"its values must be numbers, got the type {dtype!s:.80}")


def _too_large(n_bytes: int) -> MemoryPlanError:
    return MemoryPlanError(
        f"it must fit into memory, got {n_bytes:,} bytes for {machine_memory():,} of this machine; "
        "write Parquet blocks with Corpus.to_parquet"
    )


# ---- .npz


def _read_npz(file: BinaryIO) -> Any:
    with io.BufferedReader(file) as whole, zipfile.ZipFile(whole) as archive:  # type: ignore[type-var]
        members = _members(archive, os.fstat(file.fileno()).st_size)
        kind = _kind(_array(archive, members, "format"))
        shape = _shape(_array(archive, members, "shape"))
        numbers = [_array(archive, members, name) for name in _INDICES[kind]]
        for name, array in zip(_INDICES[kind], numbers, strict=True):
            if array.dtype.kind not in "iu":
                raise ValueError(f"{name} must be whole numbers, got the type {array.dtype}")
        values = _array(archive, members, "data")
    if kind in ("coo", "dia", "csc") and 8 * shape[0] > machine_memory():
        raise _too_large(8 * shape[0])  # row pointers of the rows it becomes
    return _matrix(kind, values, numbers, shape)


def _members(archive: zipfile.ZipFile, file_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members by name, refused where they would unpack to more than matrices do."""
    members = archive.infolist()
    names = [one.filename.removesuffix(".npy") for one in members]
    if len(members) > _MOST_MEMBERS or len(set(names)) < len(names):
        raise ValueError(f"its members must be a few different ones, got {len(members)}")
    if any(one.flag_bits & 1 or one.compress_type not in _PLAIN for one in members):
        raise ValueError("its members must be stored or deflated, without a password")
    total = sum(one.file_size for one in members)
    if total > max(NPZ_FREE_BYTES, NPZ_RATIO * file_bytes):
        raise ValueError(
            f"it must unpack to at most {NPZ_RATIO} times its {file_bytes:,} bytes, got {total:,}"
        )
    if total > machine_memory():
        raise _too_large(total)
    return dict(zip(names, members, strict=True))


def _array(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str) -> AnyArray:
    if name not in members:
        raise ValueError(f"it must have an array {name!r}, got {sorted(members)!s:.80}")
    with archive.open(members[name]) as member:
        array = parse_npy(member.read())  # no more than the directory says
    _refuse_other_values(array.dtype)
    return array


def _kind(array: AnyArray) -> str:
    given = array.item() if array.shape == () else None
    kind = given.decode("ascii", "replace") if isinstance(given, bytes) else given
    if not isinstance(kind, str) or kind not in _INDICES:
        raise ValueError(f"its format must be {', '.join(_INDICES)}, got {kind!r:.80}")
    return kind


def _shape(array: AnyArray) -> tuple[int, int]:
    plain = array.tolist() if array.shape == (2,) and array.dtype.kind in "iu" else []
    if len(plain) != 2 or min(plain) < 0 or plain[1] > LARGEST_INT32:
        found = f"{array.tolist()!s:.80}"
        raise ValueError(f"its shape must be rows and at most {LARGEST_INT32} columns, got {found}")
    return plain[0], plain[1]


def _matrix(kind: str, values: AnyArray, numbers: list[AnyArray], shape: tuple[int, int]) -> Any:
    """Return the rows of a matrix, whose numbers all lie in its shape."""
    make = getattr(sp, f"{kind}_array")
    parts = (values, tuple(numbers)) if kind == "coo" else (values, *numbers)
    return sound_csr(make(parts, shape=shape))
