"""Compiled kernels kept on disk: never stale, never in the way, safe for many processes at once.

A file holds the code of one kernel for one signature and one machine. Its name says for which
sources: of its module and of all modules of the package that one imports, directly or not, for
numba itself looks only at the file a function stands in. Files are written aside and renamed; what
cannot be read is compiled anew, what cannot be written is not kept.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import re
import stat
import sys
import tempfile
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps
from numba.misc.appdirs import AppDirs

PACKAGE = Path(__file__).resolve().parent.parent
_DIGEST = hashlib.sha256().digest_size
_IMPORT = re.compile(
    rf"^\s*(?:from|import)\s+{PACKAGE.name}\b([.\w]*)(?:\s+import\s+(\([^)]*\)|[^\n]*))?",
    re.MULTILINE,
)


def keep(dispatcher: Any) -> None:
    """Let a numba dispatcher load its code from disk, and save what it compiles."""
    dispatcher._cache = KernelCache(dispatcher.py_func)


class KernelCache(_Cache):  # type: ignore[misc]
    """The code of one kernel on disk, in the interface that numba's dispatchers call.

    Parameters
    ----------
    function : function
        The kernel before compilation.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._source = Path(inspect.getfile(function)).absolute()
        plain = re.sub("[<>]", "", function.__qualname__)
        self._name = f"{self._source.stem}.{plain}"
        self._stamp = source_stamp(self._source)  # before anybody edits the file
        self._enabled = True

    @property
    def cache_path(self) -> str:
        """The folder where code is looked for first."""
        return str(folders(self._source.parent)[0])

    def enable(self) -> None:
        """Load and save from now on."""
        self._enabled = True

    def disable(self) -> None:
        """Neither load nor save from now on."""
        self._enabled = False

    def flush(self) -> None:
        """Forget what is saved."""
        self._remove_old("")

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return compiled code for a signature, None when there is none or it cannot be read."""
        target.refresh()
        if self._stamp is None or not self._enabled:
            return None
        name = self._file_name(signature, target.codegen())
        for folder in folders(self._source.parent):
            payload = _read(folder / name)
            if payload is not None:
                return CompileResult._rebuild(target, *payload)
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Save compiled code in the first folder that takes it."""
        if self._stamp is None or not self._enabled:
            return
        if result.lifted or result.library.has_dynamic_globals:
            return
        name = self._file_name(signature, result.codegen)
        data = dumps(result._reduce())
        if any(_write(folder / name, data) for folder in folders(self._source.parent)):
            self._remove_old(self._stamp)

    def _file_name(self, signature: Any, codegen: Any) -> str:
        """Return the name of the file for a signature on this machine."""
        cells = tuple(cell.cell_contents for cell in self._function.__closure__ or ())
        releases = (sys.version, numba.__version__, llvmlite.__version__)
        code = self._function.__code__.co_code
        key = repr((signature, codegen.magic_tuple(), releases, code)).encode() + dumps(cells)
        return f"{self._name}.{self._stamp}.{hashlib.sha256(key).hexdigest()[:20]}.nbc"

    def _remove_old(self, stamp: str) -> None:
        """Remove the code of other sources than `stamp` names."""
        old = re.compile(rf"{re.escape(self._name)}\.(?!{stamp or '-'}\.)[0-9a-f]+\.[0-9a-f]+\.nbc")
        for folder in folders(self._source.parent):
            with suppress(OSError), os.scandir(folder) as entries:
                for name in [entry.name for entry in entries if old.fullmatch(entry.name)]:
                    with suppress(OSError):  # another process was faster
                        (folder / name).unlink()


def folders(beside: Path) -> list[Path]:
    """Return where the code of a source folder may lie, the first choice first.

    In `NUMBA_CACHE_DIR` alone where that is set and there can be such a folder.
    """
    below = f"{beside.name}_{hashlib.sha256(str(beside).encode()).hexdigest()[:40]}"
    if numba.config.CACHE_DIR:
        given = Path(numba.config.CACHE_DIR) / below
        with suppress(OSError):
            given.mkdir(parents=True, exist_ok=True)
            return [given]
    home = Path(AppDirs("numba", False).user_cache_dir)
    return [beside / "__pycache__", home / below, *_temporary(below)]


def _temporary(below: str) -> list[Path]:
    """Return the user's folder among the temporary ones, made if need be; none if not its own.

    Code is run: a folder that somebody else could have filled is left alone.
    """
    user = os.getuid() if hasattr(os, "getuid") else None
    try:
        folder = Path(tempfile.gettempdir()) / f"hmrf-dask-{'kernels' if user is None else user}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:  # no temporary folder at all, or none of ours
        return []
    private = user is None or (found.st_uid == user and not stat.S_IMODE(found.st_mode) & 0o077)
    return [folder / below] if stat.S_ISDIR(found.st_mode) and private else []


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
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(hashlib.sha256(data).digest() + data)
        aside.replace(path)
    except OSError:  # read-only, not ours, full
        with suppress(OSError):
            aside.unlink()
        return False
    return True


@cache
def source_stamp(source: Path) -> str | None:
    """Return a hash of a file and of all modules of the package it imports; None: not readable."""
    hashed: dict[str, str] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if str(path) in hashed:
            continue
        found = _imports(path)
        if found is None:
            return None
        hashed[str(path)], imported = found
        waiting += imported
    # names relative to the package: a copy elsewhere has the same stamp
    names = sorted((os.path.relpath(path, PACKAGE), digest) for path, digest in hashed.items())
    return hashlib.sha256(repr(names).encode()).hexdigest()[:20]


@cache
def _imports(path: Path) -> tuple[str, list[Path]] | None:
    """Return the hash of a source and the files of the package that it imports."""
    try:
        text = path.read_text("utf-8")
    except OSError:  # in an archive, or compiled without its source
        return None
    found: dict[Path, None] = {}
    for module, names in _IMPORT.findall(text):
        place = PACKAGE.joinpath(*module.split("."))
        inside = [place / name for name in re.findall(r"\w+", names)]
        for at in (place, *inside):
            for file in (at.with_suffix(".py"), at / "__init__.py"):
                if file.is_file():
                    found[file] = None
    return hashlib.sha256(text.encode()).hexdigest(), list(found)
