"""Files that are read whole: regular ones only, out of any store, and never more than allowed."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

from hmrf_dask.errors import SourceError
from hmrf_dask.limits import WHOLE_FILE_BYTES
from hmrf_dask.remote import open_files

CHUNK_BYTES: Final = 4 * 2**20
_LOCAL: Final = ("", "file", "local")


def is_local(url: str) -> bool:
    """Tell whether a path or URL means a file of this machine."""
    protocol, separator, _ = url.partition("://")
    return not separator or protocol in _LOCAL


def local_path(url: str) -> str:
    """Return the absolute path of a local path or a file:// URL."""
    return os.path.abspath(os.path.expanduser(url.partition("://")[2] or url))


def read_bounded(
    url: str,
    options: Mapping[str, Any] | None = None,
    most: int = WHOLE_FILE_BYTES,
    *,
    listed: bool = False,
) -> bytes:
    """Return the bytes of a small file; what a store raises is for `remote.explained`.

    Parameters
    ----------
    url : str
        A path or a URL.
    options : mapping, optional
        For fsspec.
    most : int
        How many bytes it may have.
    listed : bool
        See `remote.open_files`.

    Raises
    ------
    SourceError
        It has more, or is no file: a pipe or a device may never end.
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
    opened: BinaryIO = open(path, "rb", buffering=0, opener=_without_waiting)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise ValueError("it must be a file, not a pipe, a socket or a device")
    return opened


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for a writer
