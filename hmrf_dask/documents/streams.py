"""Bytes out of stores: files watched while they are read, and what the stores' errors mean."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Mapping
from typing import Any, BinaryIO

from hmrf_dask.errors import SourceError
from hmrf_dask.limits import WHOLE_FILE_BYTES
from hmrf_dask.remote import explained, open_files

BLOCK_BYTES = 4 * 2**20
# Options that a store's file system knows, by protocol; others have none.
_KNOWN_OPTIONS = {
    "s3": {"profile", "endpoint_url", "anon", "requester_pays"},
    "gs": {"project", "endpoint_url", "anon", "requester_pays"},
}
_SAME_PROTOCOL = {"s3a": "s3", "gcs": "gs"}
_LOCAL = ("", "file", "local")


def is_local(url: str) -> bool:
    """Tell whether a path or URL means a file of this machine."""
    protocol, separator, _ = url.partition("://")
    return not separator or protocol in _LOCAL


def local_path(url: str) -> str:
    """Return the absolute path of a local path or a file:// URL."""
    return os.path.abspath(os.path.expanduser(url.partition("://")[2] or url))


def filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, with the options it knows, and the path in it."""
    protocol = url.partition("://")[0] if "://" in url else ""
    known = _KNOWN_OPTIONS.get(_SAME_PROTOCOL.get(protocol, protocol), set())
    given = {key: value for key, value in options.items() if key in known and value is not None}
    if protocol in ("gs", "gcs") and given.pop("anon", False):
        given["token"] = "anon"
    return open_files(url, given)


def etag_of(files: Any, path: str, info: Mapping[str, Any]) -> str:
    """Return what tells whether an object changed: its etag, else a hash of all that is known."""
    for listed in (info, None):
        known = files.info(path) if listed is None else listed
        for key in ("ETag", "etag", "generation"):
            if known.get(key):
                return str(known[key]).strip('"')
    return hashlib.sha256(repr(sorted(known.items())).encode()).hexdigest()[:32]


def state_of(url: str, options: Mapping[str, Any]) -> tuple[int, str]:
    """Return size and etag as they are now."""
    with explained(url, "look at it"):
        if is_local(url):
            found = os.stat(local_path(url))
            return found.st_size, f"{found.st_mtime_ns:x}"
        files, path = filesystem(url, options)
        info = files.info(path)
        return int(info["size"] or 0), etag_of(files, path, info)


def read_whole(url: str, options: Mapping[str, Any], most: int = WHOLE_FILE_BYTES) -> bytes:
    """Return the bytes of a small file.

    Raises
    ------
    SourceError
        It has more than `most` bytes, or is no file: a pipe or a device may never end.
    """
    with explained(url, "read it"):
        if is_local(url):
            with open_regular(local_path(url)) as file:
                return _read_all(file, url, most)
        files, path = filesystem(url, options)
        size = files.info(path).get("size")
        if size is not None:
            _refuse_more(size, url, most)
            return bytes(files.cat_file(path))
        with files.open(path, "rb") as file:
            return _read_all(file, url, most)


def _read_all(file: BinaryIO, url: str, most: int) -> bytes:
    """Return the bytes of a file, read no further than one beyond those it may have."""
    chunks, size = list[bytes](), 0
    while chunk := file.read(min(most + 1 - size, BLOCK_BYTES)):
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


class WatchedFile(io.RawIOBase):
    """An open file that remembers the store's failure and adds up a digest as it is read.

    Arrow and the decoders say of a failing store only that bytes are missing; `failure` keeps the
    two apart. Decoders close what they read from; the file below is closed by who opened it.
    """

    def __init__(self, file: BinaryIO, name: str, algorithm: str | None) -> None:
        self._file = file
        self._name = name
        self._digest = hashlib.new(algorithm, usedforsecurity=False) if algorithm else None
        self.failure: SourceError | None = None

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes: Parquet begins at the end."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, as far as the file goes."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        try:
            with explained(self._name, "read it"):
                data = self._file.read(size)
        except SourceError as error:
            self.failure = error
            raise
        if self._digest:
            self._digest.update(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place; a digest needs files read from front to end."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the place."""
        return self._file.tell()

    def digest_to_the_end(self) -> str:
        """Read what is left and return the digest of the whole file."""
        while self.read(BLOCK_BYTES):
            pass
        assert self._digest is not None
        return self._digest.hexdigest()


def open_file(url: str, options: Mapping[str, Any]) -> BinaryIO:
    """Open a file of any store for reading."""
    opened: BinaryIO
    if is_local(url):
        opened = open_regular(local_path(url))
    else:
        files, path = filesystem(url, options)
        opened = files.open(path, "rb", block_size=BLOCK_BYTES)
    return opened


def decompressed(file: WatchedFile, compression: str) -> Any:
    """Return a stream of what a file holds; Arrow sees every damage, at the end too."""
    if compression == "none":
        return file
    import pyarrow as pa  # here, because listing files need not wait for it

    codec = {"gz": "gzip", "zst": "zstd"}[compression]
    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)
