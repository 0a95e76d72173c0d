"""Numba's compiler, and its code on disk: all that stands on private parts of numba.

A file holds the code of one kernel for one signature and one machine. Its name says for which
sources: of its module and of all modules of the package that one imports, directly or not, for
numba itself hashes only the file a function is in. Numba's own cache also loses or mixes up code
that several processes save at a time, and a full disk or a damaged file stops it.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import os
import pickle
import re
import stat
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.compiler import Compiler, CompileResult, Flags
from numba.core.serialize import dumps

PACKAGE = Path(__file__).resolve().parent.parent
_DIGEST = hashlib.sha256().digest_size
_IMPORT = re.compile(
    rf"^\s*(?:from|import)\s+{PACKAGE.name}\b([.\w]*)(?:\s+import\s+(\([^)]*\)|[^\n]*))?",
    re.MULTILINE,
)
_SETTLED: dict[str, SettledFlags] = {}
_MINE: dict[str, int] = {}  # files of turns this process has, by the name of the code
_COMPILING: dict[str, float] = {}  # when it began, by the name of the code
_LONGEST = 60.0  # seconds that a kernel takes; the compiler has failed at what takes longer
WAIT, WAITS = 0.02, 500  # seconds, and how often


# ---- the compiler


class SettledFlags(Flags):  # type: ignore[misc]
    """Options that no longer change: one object for all that are equal.

    While numba infers types it searches for every operator in tables whose keys hold the options of
    the function, thousands of times for a kernel. One object is compared sooner than forty values.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def copy(self) -> Flags:
        """Return options that may be changed."""
        return Flags(self)


class OpenFlags(Flags):  # type: ignore[misc]
    """Options that may still change; their copies, which numba compiles under, are settled."""

    __slots__ = ()

    def copy(self) -> SettledFlags:
        """Return the one object for options as they are now."""
        # what numba makes the names of symbols of
        return _SETTLED.setdefault(self.summary(), SettledFlags(self))


class KernelCompiler(Compiler):  # type: ignore[misc]
    """Numba's compiler, its steps unchanged, with options that are cheap to look up."""

    def __init__(
        self, typing: Any, target: Any, library: Any, args: Any, result: Any, flags: Flags,
        local: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            typing, target, library, args, result, flags=OpenFlags(flags), locals=local
        )


# ---- code on disk


class KernelCache:
    """The code of one kernel on disk, with the methods that numba's dispatchers call."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._source = Path(inspect.getfile(function)).absolute()
        self._name = f"{self._source.stem}.{re.sub('[<>]', '', function.__qualname__)}"
        self._stamp = source_stamp(self._source)  # before anybody edits the file

    @property
    def cache_path(self) -> str:
        """The folder that is read first."""
        return str(self._folders()[0])

    def flush(self) -> None:
        """Remove what is saved."""
        self._remove_all_but(None)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return compiled code for a signature, None when there is none or it cannot be read."""
        target.refresh()
        if self._stamp is None:
            return None
        name = self._file_name(signature, target.codegen())
        payload = self._read(name)
        if payload is None and _wait_for_turn(self._folders()[0], name):
            payload = self._read(name)  # by now, if another process has compiled it
            if payload is not None:
                _end_turn(name)
        if payload is None:
            _COMPILING[name] = time.monotonic()
        return None if payload is None else CompileResult._rebuild(target, *payload)

    def _read(self, name: str) -> Any:
        found = (_read(folder / name) for folder in self._folders())
        return next((payload for payload in found if payload is not None), None)

    def save_overload(self, signature: Any, result: Any) -> None:
        """Save compiled code in the first folder that takes it."""
        if self._stamp is None:
            return
        name = self._file_name(signature, result.codegen)
        _COMPILING.pop(name, None)
        if result.lifted or result.library.has_dynamic_globals:
            return
        data = dumps(result._reduce())
        if any(_write(folder / name, data) for folder in self._folders()):
            self._remove_all_but(self._stamp)
        _end_turn(name)

    def _folders(self) -> list[Path]:
        return folders(self._source.parent)

    def _file_name(self, signature: Any, codegen: Any) -> str:
        """Return the name of the file for a signature on this machine."""
        cells = tuple(cell.cell_contents for cell in self._function.__closure__ or ())
        releases = (sys.version, numba.__version__, llvmlite.__version__)
        code = self._function.__code__.co_code
        key = repr((signature, codegen.magic_tuple(), releases, code)).encode() + dumps(cells)
        return f"{self._name}.{self._stamp}.{hashlib.sha256(key).hexdigest()[:20]}.nbc"

    def _remove_all_but(self, stamp: str | None) -> None:
        """Remove the code of other sources than `stamp` names."""
        for folder in self._folders():
            with suppress(OSError):
                for file in folder.glob(f"{self._name}.*.*.nbc"):
                    kernel, old, *_ = file.name.rsplit(".", 3)
                    if kernel == self._name and old != stamp:
                        file.unlink(missing_ok=True)  # another process may be faster


def compiling() -> bool:
    """Return whether code is compiled in this process now, which a person waits for."""
    now = time.monotonic()
    return any(now - began < _LONGEST for began in [*_COMPILING.values()])


def folders(source: Path) -> list[Path]:
    """Return where the code of a source folder may be, the first choice first.

    In `NUMBA_CACHE_DIR` alone where that is set and there can be such a folder.
    """
    name = f"{source.name}_{hashlib.sha256(str(source).encode()).hexdigest()[:40]}"
    if numba.config.CACHE_DIR:
        shared = Path(numba.config.CACHE_DIR) / name
        with suppress(OSError):
            shared.mkdir(parents=True, exist_ok=True)
            return [shared]
    choices = [source / "__pycache__"]
    with suppress(RuntimeError):  # a user without a home
        home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        choices.append(Path(home, "hmrf-dask", name))
    return choices + _temporary(name)


def _temporary(name: str) -> list[Path]:
    """Return the user's folder among the temporary ones, made if need be; none if not its own.

    Code is run: a folder that somebody else could have filled is left alone.
    """
    user = os.getuid()
    try:
        folder = Path(tempfile.gettempdir()) / f"hmrf-dask-{user}"
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
    except OSError:  # no temporary folder at all, or none of ours
        return []
    private = state.st_uid == user and not stat.S_IMODE(state.st_mode) & 0o077
    return [folder / name] if private and stat.S_ISDIR(state.st_mode) else []


def _read(path: Path) -> Any:
    """Return what a file holds, None when it is missing, cut off or cannot be read."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
        return None
    return pickle.loads(data[_DIGEST:])  # as numba does; the folder is the user's own


def _write(path: Path, data: bytes) -> bool:
    """Write a file whole or not at all; return whether it could be written."""
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(hashlib.sha256(data).digest() + data)
        unfinished.replace(path)
    except OSError:  # read-only, not ours, full
        with suppress(OSError):
            unfinished.unlink()
        return False
    return True


# ---- one process compiles a kernel, others that want it wait


@cache
def _turns(folder: Path) -> int | None:
    """Return the open file whose bytes are the turns of kernels; None: it cannot be had."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / "compiling.nbt", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None


def _wait_for_turn(folder: Path, name: str) -> bool:
    """Wait while another process compiles a kernel, but not for long; return whether it is ours.

    A process that ends, however it ends, gives its turns back. One that failed to compile keeps
    its turn, so the wait has an end: then two compile the same, which does no harm.
    """
    file, place = _turns(folder), _place(name)
    if file is None:
        return False
    for _ in range(WAITS):
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except BlockingIOError:
            time.sleep(WAIT)
        except OSError:  # a file system without locks
            return False
        else:
            _MINE[name] = file
            return True
    return False


def _end_turn(name: str) -> None:
    file = _MINE.pop(name, None)
    if file is not None:
        with suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_UN, 1, _place(name))


def _place(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest()[:15], 16)


@cache
def source_stamp(source: Path) -> str | None:
    """Return a hash of a file and of all modules of the package it imports; None: not readable."""
    hashed: dict[Path, str] = {}
    waiting = {source}
    while waiting:
        path = waiting.pop()
        try:
            hashed[path], imported = _hash_and_imports(path)
        except OSError:  # in an archive, or compiled without its source
            return None
        waiting |= imported - hashed.keys()
    # names relative to the package: a copy elsewhere has the same stamp
    named = sorted((os.path.relpath(path, PACKAGE), digest) for path, digest in hashed.items())
    return hashlib.sha256(repr(named).encode()).hexdigest()[:20]


@cache
def _hash_and_imports(path: Path) -> tuple[str, frozenset[Path]]:
    """Return the hash of a source and the files of the package that it imports."""
    text = path.read_text("utf-8")
    places = [
        PACKAGE.joinpath(*module.split("."), name)
        for module, names in _IMPORT.findall(text)
        for name in ["", *re.findall(r"\w+", names)]
    ]
    files = [file for at in places for file in (at.with_suffix(".py"), at / "__init__.py")]
    return hashlib.sha256(text.encode()).hexdigest(), frozenset(filter(Path.is_file, files))
