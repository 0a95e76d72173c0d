"""Bytes out of stores: files watched while they are read, and what compressed ones hold."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping
from typing import Any, BinaryIO

from hmrf_dask.errors import SourceError
from hmrf_dask.parameters import MOST_RATIO, RATIO_FREE_BYTES, WHOLE_FILE_BYTES
from hmrf_dask.storage.addresses import is_local, local_path
from hmrf_dask.storage.remote import alive, explained, open_files
from hmrf_dask.storage.whole_files import open_regular, read_bounded

BLOCK_BYTES = 4 * 2**20
# Options that a store's file system knows, by protocol; others have none.
_S3 = {"profile", "endpoint_url", "anon", "requester_pays"}
_GOOGLE = {"project", "endpoint_url", "anon", "requester_pays"}
_KNOWN_OPTIONS = {"s3": _S3, "s3a": _S3, "gs": _GOOGLE, "gcs": _GOOGLE}


def filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, with the options it knows, and the path in it."""
    return open_files(url, _known_options(url, options), listed=True)


def _known_options(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the store of a URL knows; of Google's in the words of gcsfs."""
    protocol = url.partition("://")[0] if "://" in url else ""
    known = _KNOWN_OPTIONS.get(protocol, set())
    chosen = {key: value for key, value in options.items() if key in known and value is not None}
    if known is _GOOGLE and chosen.pop("anon", False):
        chosen["token"] = "anon"
    return chosen


def etag_of(files: Any, path: str, info: Mapping[str, Any]) -> str:
    """Return what shows whether an object changed: its etag, else a hash of all that is known.

    Examples
    --------
    >>> etag_of(None, "a.csv", {"ETag": '"9f86d0"', "size": 4})
    '9f86d0'
    """
    for listed in (info, None):
        known = files.info(path) if listed is None else listed
        for key in ("ETag", "etag", "generation"):
            if known.get(key):
                return str(known[key]).strip('"')
    return hashlib.sha256(repr(sorted(known.items())).encode()).hexdigest()[:32]


def state_of(url: str, options: Mapping[str, Any]) -> tuple[int, str]:
    """Return size and etag as they are now."""
    with explained(url, "read its state"):
        if is_local(url):
            state = os.stat(local_path(url))
            return state.st_size, f"{state.st_mtime_ns:x}"
        files, path = filesystem(url, options)
        info = files.info(path)
        return int(info["size"] or 0), etag_of(files, path, info)


def read_whole(url: str, options: Mapping[str, Any], most: int = WHOLE_FILE_BYTES) -> bytes:
    """Return the bytes of a small file; see `read_bounded`."""
    with explained(url, "read it"):
        return read_bounded(url, _known_options(url, options), most, listed=True)


class _Stream(io.RawIOBase):
    """Bytes that come from `read`, whoever asks for them and how."""

    def readable(self) -> bool:
        """Say yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, as far as there is something."""
        data = self.read(len(buffer)) or b""
        buffer[: len(data)] = data
        return len(data)


class WatchedFile(_Stream):
    """An open file that remembers the store's failure and adds up a digest as it is read.

    Arrow and the decoders say of a failing store only that bytes are missing; `failure` says
    which it was. Decoders close what they read from; the file below is closed by who opened it.

    Examples
    --------
    >>> file = WatchedFile(io.BytesIO(b"rows"), "a.csv", "md5")
    >>> file.read(2), file.n_read, file.digest_to_the_end()[:8]
    (b'ro', 2, 'df347a37')
    """

    def __init__(self, file: BinaryIO, name: str, algorithm: str | None = None) -> None:
        self._file = file
        self._name = name
        self._digest = hashlib.new(algorithm, usedforsecurity=False) if algorithm else None
        self.failure: SourceError | None = None
        self.n_read = 0

    def seekable(self) -> bool:
        """Say yes: Parquet begins at the end."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        try:
            with explained(self._name, "read it"):
                data = self._file.read(size)
        except SourceError as error:
            self.failure = error
            raise
        alive()  # a slow store is no store that hangs
        self.n_read += len(data)
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
    if is_local(url):
        return open_regular(local_path(url))
    files, path = filesystem(url, options)
    opened: BinaryIO = files.open(path, "rb", block_size=BLOCK_BYTES)
    return opened


def decompressed(file: WatchedFile, compression: str) -> Any:
    """Return a stream of what a file holds; Arrow sees every damage, at the end too.

    Examples
    --------
    >>> import gzip
    >>> file = WatchedFile(io.BytesIO(gzip.compress(b"rows", mtime=0)), "a.csv.gz")
    >>> decompressed(file, "gz").read(10)
    b'rows'
    """
    if compression == "none":
        return file
    import pyarrow as pa  # here, because listing files need not wait for it

    codec = {"gz": "gzip", "zst": "zstd"}[compression]
    return _Unpacked(pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec), file)


class _Unpacked(_Stream):
    """What a compressed file holds, as long as that is in proportion to its size."""

    def __init__(self, stream: Any, file: WatchedFile) -> None:
        self._stream = stream
        self._file = file
        self._n_read = 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        data: bytes = self._stream.read(size)
        self._n_read += len(data)
        if self._n_read > max(RATIO_FREE_BYTES, MOST_RATIO * self._file.n_read):
            raise ValueError(
                f"it unpacks to more than {MOST_RATIO:,} times its size; that is no text"
            )
        return data
