"""Where files are kept: a folder or an object store, with atomic writes and fenced folders."""

from __future__ import annotations

import errno
import inspect
import os
import re
import socket
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Protocol

from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from hmrf_dask.errors import HmrfError, RunDirectoryError, in_words, may_pass
from hmrf_dask.storage import sealed
from hmrf_dask.storage.remote import open_files
from hmrf_dask.storage.sealed import DamagedFileError, RunUnavailableError
from hmrf_dask.storage.whole_files import open_regular

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{32}\.temporary")
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_memory_lock = threading.Lock()


class Storage(Protocol):
    """What can be done with names such as ``commits/00012.json`` below one root."""

    url: str
    batches_events: bool

    def make_root(self) -> None:
        """Create the root; object stores have no folders."""
        return

    def read(self, name: str) -> bytes:
        """Return a whole file; FileNotFoundError when there is none."""

    def write(self, name: str, data: bytes) -> None:
        """Make `name` hold `data`, whole; the name lasts once its folder is synced."""

    def create(self, name: str, data: bytes, after: Iterable[str] = ()) -> None:
        """Make a new file once the folders in `after` are synced; FileExistsError if there."""

    def append(self, name: str, data: bytes) -> None:
        """Add lines to a log; an object store gets one more object in a folder instead."""

    def names(self, folder: str) -> list[str]:
        """Return the names directly inside `folder` (without it), none if it does not exist."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of each file directly inside `folder`, by name; one listing."""

    def names_below(self, folder: str = "") -> Iterator[str]:
        """Yield the names of all files below a folder, and of links: none is followed."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove files, those already gone included, and folders that became empty."""

    def sync_folders(self, folders: Iterable[str]) -> None:
        """Return when everything written into `folders` would survive a power cut."""


def open_storage(url: str, options: Mapping[str, Any], durable: bool) -> Storage:
    """Return the storage of an absolute path or a URL as `addresses.absolute_url` gives it.

    Examples
    --------
    >>> store = open_storage("memory://example-store", {}, durable=False)
    >>> store.write("rows/a.csv", b"1,2")
    >>> store.names("rows"), store.read("rows/a.csv")
    (['a.csv'], b'1,2')
    >>> store.delete(["rows/a.csv"])
    """
    return ObjectStorage(url, options) if "://" in url else LocalStorage(url, durable)


def temporary_target(name: str) -> str | None:
    """Return the file a killed writer's temporary `name` was meant to become, else None.

    Examples
    --------
    >>> temporary_target(f".run.json.{'0' * 32}.temporary"), temporary_target("run.json")
    ('run.json', None)
    """
    match = _TEMPORARY.fullmatch(name)
    return match[1] if match else None


@contextmanager
def _changing(url: str, action: str, passing: type[OSError] = RunDirectoryError) -> Iterator[None]:
    """Do as `_explained` does, unless the folder is another's now."""
    refuse_if_lost(url)
    with _explained(url, action, passing):
        yield


@contextmanager
def _explained(url: str, action: str, passing: type[OSError] = RunDirectoryError) -> Iterator[None]:
    """Turn what a file system raises into words, but for `passing`, which the caller expects."""
    try:
        yield
    except (HmrfError, passing):
        raise
    except Exception as error:  # botocore, aiohttp and others share no base but this one
        kind = RunUnavailableError if may_pass(error) else RunDirectoryError
        raise kind(
            f"{url} must be a place that can be read and written, got {in_words(error)} "
            f"(cannot {action} on host {socket.gethostname()}); give another place, or repair this "
            "one and run again"
        ) from error


class LocalStorage(Storage):
    """A folder. `durable` waits for the disk; without it files are whole, but may be lost."""

    batches_events = False

    def __init__(self, url: str, durable: bool) -> None:
        self.url = url
        self.durable = durable

    def make_root(self) -> None:
        """Make the folder, the ones above it too."""
        if os.path.exists(self.url) and not os.path.isdir(self.url):
            raise RunDirectoryError(f"{self.url} must be a folder, got a file; give another place")
        with _explained(self.url, "make the folder"):
            if not os.path.isdir(self.url):
                os.makedirs(self.url, exist_ok=True)
                self.sync_folders([".."])

    def read(self, name: str) -> bytes:
        """Return a whole file; FileNotFoundError when there is none."""
        explained = _explained(self.url, f"read {name}", FileNotFoundError)
        with explained, open_regular(self._path(name)) as file:
            return file.read()

    def write(self, name: str, data: bytes) -> None:
        """Put a finished file in place, unless an equal one is there."""
        # Not rewritten when equal (on NFS a replaced file breaks its readers), but read:
        # a file that was damaged is healed by the iteration that runs again.
        with suppress(FileNotFoundError):
            if self.read(name) == data:
                return
        with _changing(self.url, f"write {name}"), self._temporary(name, data) as temporary:
            refuse_if_lost(self.url)  # the disk may have taken long, or this process stopped
            os.replace(temporary, self._path(name))

    def create(self, name: str, data: bytes, after: Iterable[str] = ()) -> None:
        """Link a finished file to a name that must be new."""
        changing = _changing(self.url, f"create {name}", FileExistsError)
        with changing, self._temporary(name, data, after) as temporary:
            refuse_if_lost(self.url)
            try:
                # A link appears whole and never replaces; O_EXCL would show a file being written.
                os.link(temporary, self._path(name))
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                raise RunDirectoryError(
                    f"{self.url} must be on a file system with hard links (a commit is one), got "
                    "one without; give another folder or the URL of an object store"
                ) from error
            os.unlink(temporary)
        folder = os.path.dirname(name)
        self.sync_folders([folder, os.path.dirname(folder)])

    def append(self, name: str, data: bytes) -> None:
        """Add lines to the end of a file."""
        changing, path = _changing(self.url, f"write {name}"), self._path(name)
        with changing, open(path, "ab+", opener=open_file) as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # the last line of a writer that was killed
                    data = b"\n" + data
            file.write(data)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        with _explained(self.url, f"list {folder}"), suppress(FileNotFoundError):
            return os.listdir(self._path(folder))
        return []

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of the files in a folder."""
        statuses = {}
        with _explained(self.url, f"list {folder}"):
            for name in self.names(folder):
                with suppress(FileNotFoundError):  # a link to nothing, or what just went
                    statuses[name] = os.stat(f"{self._path(folder)}/{name}")
        return {name: s.st_size for name, s in statuses.items() if stat.S_ISREG(s.st_mode)}

    def names_below(self, folder: str = "") -> Iterator[str]:
        """Yield the names of all files and links below a folder."""
        for inside, folders, names in os.walk(os.path.join(self.url, folder)):
            links = [name for name in folders if os.path.islink(os.path.join(inside, name))]
            for name in (*links, *names):
                yield os.path.relpath(os.path.join(inside, name), self.url)

    def delete(self, names: Iterable[str]) -> None:
        """Remove files and the folders that became empty; nothing that lies behind a link."""
        behind_link: dict[str, bool] = {}  # by folder
        with _changing(self.url, "remove old files"):
            for name in names:
                folder = os.path.dirname(name)
                if folder not in behind_link:
                    behind_link[folder] = self._is_behind_link(folder)
                if behind_link[folder]:
                    continue
                with suppress(FileNotFoundError):
                    os.unlink(self._path(name))
            for folder in behind_link:
                with suppress(OSError):  # still holds something, or gone
                    os.rmdir(self._path(folder))

    def sync_folders(self, folders: Iterable[str]) -> None:
        """Sync folders, so that the names in them last."""
        if not self.durable:
            return
        with _explained(self.url, "write to disk"):
            for folder in folders:
                descriptor = os.open(self._path(folder), os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def _path(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def _is_behind_link(self, folder: str) -> bool:
        parts = folder.split("/") if folder else []
        above = (self._path("/".join(parts[:n])) for n in range(1, len(parts) + 1))
        return any(map(os.path.islink, above))

    @contextmanager
    def _temporary(self, name: str, data: bytes, after: Iterable[str] = ()) -> Iterator[str]:
        """Give a whole file without a name of its own, once the folders `after` are synced."""
        folder, base = os.path.split(name)
        path = f"{self._path(folder)}/.{base}.{uuid.uuid4().hex}.temporary"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            descriptor = open_file(path, flags)
        except FileNotFoundError:
            # Never the root: a scratch folder that was removed must not come back half.
            if not os.path.isdir(self.url):
                raise RunDirectoryError(
                    f"{self.url} must be there while the run lasts, got none on host "
                    f"{socket.gethostname()}; use a folder that every worker shares"
                ) from None
            parts = folder.split("/")
            for depth in range(1, len(parts) + 1):
                make_folder(self._path("/".join(parts[:depth])))
            descriptor = open_file(path, flags)
        try:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                self._sync(descriptor, after)
            finally:
                os.close(descriptor)
            yield path
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(path)  # a full disk must not be filled further
            raise

    def _sync(self, descriptor: int, folders: Iterable[str]) -> None:
        """Sync a file and folders in parallel: a disk waits as long for one as for several."""
        if not self.durable:
            return
        if not (folders := list(folders)):
            os.fsync(descriptor)
            return
        with ThreadPoolExecutor(1) as pool:
            synced = pool.submit(self.sync_folders, folders)
            os.fsync(descriptor)
            synced.result()


class ObjectStorage(Storage):
    """An object store behind fsspec: puts are atomic, `mode="create"` is exclusive."""

    batches_events = True

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.url = url
        with _explained(url, "open it"):
            self.files, self.root = open_files(url, options)
        if not _creates_exclusively(self.files):
            raise RunDirectoryError(
                f"{url} must be a folder or an object store that can create a file exclusively, "
                f"got {type(self.files).__name__}, which cannot; use s3:// or gs://"
            )

    def read(self, name: str) -> bytes:
        """Return a whole object; FileNotFoundError when there is none."""
        with _explained(self.url, f"read {name}", FileNotFoundError):
            data: bytes = self.files.cat_file(self._path(name))
            return data

    def write(self, name: str, data: bytes) -> None:
        """Put an object."""
        with _changing(self.url, f"write {name}"):
            self.files.pipe_file(self._path(name), data)

    def create(self, name: str, data: bytes, after: Iterable[str] = ()) -> None:  # noqa: ARG002
        """Put an object whose name must be new."""
        # In memory fsspec checks and then writes; the lock makes that one step.
        lock = _memory_lock if isinstance(self.files, MemoryFileSystem) else None
        changing = _changing(self.url, f"create {name}", FileExistsError)
        with changing, lock or nullcontext():
            self.files.pipe_file(self._path(name), data, mode="create")

    def append(self, name: str, data: bytes) -> None:
        """Put one more object into the folder named as the log without its extension."""
        stem, extension = os.path.splitext(name)
        self.write(f"{stem}/{time.time_ns():020d}-{uuid.uuid4().hex[:8]}{extension}", data)

    def names(self, folder: str) -> list[str]:
        """Return the last parts of the names below a prefix."""
        return [name for name, _ in self._listed(folder)]

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of the objects below a prefix."""
        return {
            name: int(info["size"] or 0)
            for name, info in self._listed(folder)
            if info["type"] == "file"
        }

    def names_below(self, folder: str = "") -> Iterator[str]:
        """Yield the names of all objects below a prefix."""
        for path in self.files.find(self._path(folder)):
            yield str(path).removeprefix(str(self.root)).lstrip("/")

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects."""
        paths = [self._path(name) for name in names]
        with _changing(self.url, "remove old files"), suppress(FileNotFoundError):
            if paths:
                self.files.rm(paths)

    def sync_folders(self, folders: Iterable[str]) -> None:
        """Nothing: a put that returned is kept."""

    def _listed(self, folder: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the last part of each name below a prefix, and what the store says of it."""
        with _explained(self.url, f"list {folder}"), suppress(FileNotFoundError):
            listed = self.files.ls(self._path(folder), detail=True)
            return [(str(info["name"]).rstrip("/").rpartition("/")[2], info) for info in listed]
        return []

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else str(self.root)


def _creates_exclusively(files: AbstractFileSystem) -> bool:
    """Return whether the file system has a `pipe_file` of its own that knows `mode`."""
    if isinstance(files, AsyncFileSystem):
        return "mode" in inspect.signature(files._pipe_file).parameters
    # The inherited one asks whether the file exists and then writes: two writers both win.
    own = type(files).pipe_file is not AbstractFileSystem.pipe_file
    return own and "mode" in inspect.signature(files.pipe_file).parameters


PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
OTHERS = 0o077  # what all but the owner may do


def is_private(folder: str) -> bool:
    """Return whether only its owner may enter a folder.

    One that is not there is an error: another thread may make it before a file is opened in it.
    """
    return not stat.S_IMODE(os.stat(folder or ".").st_mode) & OTHERS


def open_file(path: str, flags: int) -> int:
    """Open a file, made as its folder says where it is new; an opener for `open`, too."""
    return os.open(path, flags, PRIVATE_FILE if is_private(os.path.dirname(path)) else 0o666)


def make_folders(path: str) -> None:
    """Make a folder and those above it, each as the one above it says, unless they are there."""
    if path and not os.path.isdir(path):
        make_folders(os.path.dirname(path))
        make_folder(path)


def make_folder(path: str) -> None:
    """Make a folder, as the one above says, unless it is there."""
    with suppress(FileExistsError):
        os.mkdir(path, PRIVATE_FOLDER if is_private(os.path.dirname(path)) else 0o777)


_CHECKS: dict[str, Callable[[], None]] = {}


@contextmanager
def fenced(url: str, check: Callable[[], None]) -> Iterator[None]:
    """Have `check` called before every change below a folder; it raises where that is refused."""
    _CHECKS[url] = check
    try:
        yield
    finally:
        if _CHECKS.get(url) is check:
            del _CHECKS[url]


def refuse_if_lost(url: str) -> None:
    """Raise what the check of a folder raises, if this one is that folder or lies below it."""
    for root, check in list(_CHECKS.items()):
        if url == root or url.startswith(f"{root}/"):
            check()


def read_named(storage: Storage, name: str) -> bytes:
    """Return a file that must be there, or raise DamagedFileError."""
    try:
        return storage.read(name)
    except FileNotFoundError as error:
        raise DamagedFileError(
            f"{name} must be in the run directory, got none in {storage.url}; "
            "resume the run: it goes back to the last commit that is whole"
        ) from error


def read_checked(storage: Storage, name: str, sha256: str) -> bytes:
    """Return a file that must be there and have this checksum, or raise DamagedFileError.

    Examples
    --------
    >>> store = open_storage("memory://example-checked", {}, durable=False)
    >>> store.write("a.npz", b"rows")
    >>> read_checked(store, "a.npz", sealed.digest(b"rows"))
    b'rows'
    >>> store.delete(["a.npz"])
    """
    data = read_named(storage, name)
    if sealed.digest(data) != sha256:
        raise DamagedFileError(
            f"{name} in {storage.url} must be what its commit names (sha256 {sha256[:16]}…), got "
            "other bytes; resume the run: it goes back to the last commit that is whole"
        )
    return data


def read_sealed(storage: Storage, name: str) -> dict[str, Any] | None:
    """Return the content of sealed JSON, None if there is no such file.

    Examples
    --------
    >>> store = open_storage("memory://example-sealed", {}, durable=False)
    >>> store.write("run.json", sealed.seal({"K": 3}))
    >>> read_sealed(store, "run.json"), read_sealed(store, "FINAL.json")
    ({'K': 3}, None)
    >>> store.delete(["run.json"])
    """
    try:
        data = storage.read(name)
    except FileNotFoundError:
        return None
    return sealed.unseal(data, f"{storage.url}/{name}")
