"""The names of all that a run makes, recorded and matched, and the removal of such files alone."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import warnings
from collections.abc import Iterable
from typing import NamedTuple

from hmrf_dask.errors import HmrfWarning
from hmrf_dask.storage import sealed
from hmrf_dask.storage.sealed import DamagedFileError
from hmrf_dask.storage.stores import (
    LocalStorage,
    Storage,
    read_sealed,
    refuse_if_lost,
    temporary_target,
)

RUNS = "runs"
_KEY = "[0-9a-f]{24}"
_HASH = "[0-9a-f]{16}"
_BLOCK = rf"part-\d{{5,}}-{_HASH}\.parquet"
# Folders of an output that a run names by what they depend on.
FOLDERS = re.compile(
    rf"(?:documents|counts|vocabularies)/{_KEY}|rows/(?:{_KEY}|embeddings)(?:/{_KEY})?"
    rf"|vectors/{_KEY}(?:/{_KEY})?"
    rf"|{RUNS}/{_HASH}"
)
ASSIGNMENTS = re.compile(rf"part-\d{{5,}}-of-\d{{5,}}\.parquet|{_KEY}-\d{{5,}}\.parquet")
HASHES = "_files.json"  # next to assignments of a fit: their checksums, sealed
_ASSIGNED = rf"assignments/(?:{ASSIGNMENTS.pattern}|{re.escape(HASHES)})"
_ARRAYS = "centroids|weights|minimum|maximum|init|limits|reach|middle|factor"
_MODEL = rf"model/(?:model\.json|(?:{_ARRAYS})\.npy)"
_ITERATIONS = (
    r"(?:FINAL|run)\.json|events\.jsonl|events/\d{20}-[0-9a-f]{8}\.jsonl"
    r"|commits/\d{5,}(?:\.r\d+)?\.json|probe/[0-9a-f]{32}(?:-[0-9a-f]{32})?"
    rf"|labels/\d{{5,}}/[a-z-]+\d*-{_HASH}\.parquet|state/\d{{5,}}-{_HASH}\.npz"
)
# What `hmrf-dask fit` writes into its run directory.
_REPORT = r"report(?:-\d+)?\.(?:html|json)"
RUN_DIRECTORY = re.compile(rf"{_ITERATIONS}|{_MODEL}|{_ASSIGNED}|{_REPORT}")
_RUN = (
    r"(?:run|progress|lineage|journal)\.json|(?:clusters|answers|classes|edits|gone|moved|questions)\.parquet"
    r"|(?:notes|suspects|launches)\.jsonl|launches/\d{20}-[0-9a-f]{8}\.jsonl"
    rf"|rejects/(?:{_KEY}|repeated-ids|answers|waiting)\.jsonl|rows/{_BLOCK}|fit/(?:{_ITERATIONS})"
    rf"|{_MODEL}|{_ASSIGNED}|{_REPORT}"
)
# What a run writes below an output, but for what is never removed: releases, LATEST, output.json.
OUTPUT = re.compile(
    rf"documents/{_KEY}/(?:rejects-\d{{5,}}(?:-{_HASH})?\.jsonl|(?:labels|kept)-\d{{5,}}(?:-{_HASH})?\.parquet)"
    rf"|counts/{_KEY}/(?:counts\.json|(?:rows|terms)-\d{{5,}}-{_HASH}\.parquet)"
    rf"|vocabularies/{_KEY}/(?:vocabulary\.json|(?:terms|components)-{_HASH}\.parquet)"
    rf"|rows/(?:{_KEY}|embeddings)/{_KEY}/(?:rows\.json|{_BLOCK})"
    rf"|vectors/{_KEY}/log/\d{{5,}}\.parquet"
    rf"|vectors/{_KEY}/{_KEY}/(?:vectors\.json|places-\d{{5,}}-{_HASH}\.parquet)"
    rf"|{RUNS}/{_HASH}/(?:{_RUN})"
)
_PART = re.compile(r"(.+)\.[0-9a-f]{32}\.part")  # of a block that was not finished
log = logging.getLogger("hmrf_dask")


def is_own(name: str, forms: re.Pattern[str]) -> bool:
    """Return whether a name has one of some forms, or is what a killed writer left of such a file.

    Examples
    --------
    >>> is_own("labels/00003/rows-00000-0123456789abcdef.parquet", RUN_DIRECTORY)
    True
    >>> is_own("labels/mine.txt", RUN_DIRECTORY)
    False
    """
    folder, slash, base = name.rpartition("/")
    part = _PART.fullmatch(base)
    meant = temporary_target(base) or (part[1] if part else base)
    return forms.fullmatch(f"{folder}{slash}{meant}") is not None


class Removal(NamedTuple):
    """How many files were removed, and the names of those that stay: of another form, and links."""

    n_files: int
    left: list[str]


def remove_own(storage: Storage, folder: str) -> bool:
    """Remove what a run wrote into a folder of an output; return whether nothing is left of it.

    What has another form stays, and one warning names it. A store that refuses is no reason to
    fail when all else is done: that is a warning, too.
    """
    refuse_if_lost(storage.url)
    try:
        removed = remove_files(storage, folder, OUTPUT)
    except Exception as error:  # noqa: BLE001 - stores raise what they like
        log.warning("%s/%s could not be removed (%s); try again later", storage.url, folder, error)
        return False
    if removed.left and removed.n_files:
        shown = ", ".join(removed.left[:3]) + (", …" if len(removed.left) > 3 else "")
        warnings.warn(
            f"{storage.url}/{folder} stays, as it holds what no run wrote: {shown}",
            HmrfWarning,
            stacklevel=2,
        )
    return not removed.left


def is_within(storage: Storage, folder: str) -> bool:
    """Return whether a folder lies in an output; one warning says where a link leads out of it."""
    if not (isinstance(storage, LocalStorage) and os.path.islink(f"{storage.url}/{folder}")):
        return True
    warnings.warn(
        f"{storage.url}/{folder} is a link: what runs wrote behind it is never removed",
        HmrfWarning,
        stacklevel=2,
    )
    return False


def remove_files(storage: Storage, folder: str, forms: re.Pattern[str]) -> Removal:
    """Remove the files below a folder whose whole names have some forms, and folders left empty.

    The folder "" is the root of the storage, which stays.

    Examples
    --------
    >>> from hmrf_dask.storage.stores import open_storage
    >>> store = open_storage("memory://example-remove", {}, durable=False)
    >>> for name in ("run.json", "mine.txt"):
    ...     store.write(name, b"")
    >>> remove_files(store, "", RUN_DIRECTORY)
    Removal(n_files=1, left=['mine.txt'])
    >>> store.delete(["mine.txt"])
    """
    if isinstance(storage, LocalStorage):
        return _remove_local(storage.url, folder, forms)
    names = list(storage.names_below(folder))
    own = [name for name in names if is_own(name, forms)]
    storage.delete(own)
    return Removal(len(own), sorted(set(names) - set(own)))


def _remove_local(root: str, folder: str, forms: re.Pattern[str]) -> Removal:
    """Remove files by open folders: nobody can put a link in the place of one meanwhile."""
    parts = folder.split("/") if folder else []
    flags = os.O_RDONLY | os.O_DIRECTORY
    with contextlib.ExitStack() as stack:
        opened = [os.open(root, flags)]
        stack.callback(os.close, opened[0])
        for number, part in enumerate(parts):
            try:
                opened.append(os.open(part, flags | os.O_NOFOLLOW, dir_fd=opened[-1]))
            except FileNotFoundError:
                return Removal(0, [])
            except OSError:  # a link, or a file
                return Removal(0, ["/".join(parts[: number + 1])])
            stack.callback(os.close, opened[-1])
        removed = _remove_in(opened[-1], f"{folder}/" if folder else "", forms)
        if parts and not removed.left:
            os.rmdir(parts[-1], dir_fd=opened[-2])
        if len(parts) > 2 and not removed.left:  # rows of a vocabulary, perhaps the last of it
            with contextlib.suppress(OSError):
                os.rmdir(parts[-2], dir_fd=opened[-3])
        return removed


def _remove_in(top: int, prefix: str, forms: re.Pattern[str]) -> Removal:
    n_files, left = 0, list[str]()
    for inside, folders, names, descriptor in os.fwalk(".", topdown=False, dir_fd=top):
        below = prefix if inside == "." else f"{prefix}{inside[2:]}/"
        own = [n for n in names if is_own(below + n, forms) and not _is_link(n, descriptor)]
        links = [name for name in folders if _is_link(name, descriptor)]
        for name in own:
            os.unlink(name, dir_fd=descriptor)
        n_files += len(own)
        left += [below + name for name in (*(set(names) - set(own)), *links)]
        for name in set(folders) - set(links):
            if not any(path.startswith(f"{below}{name}/") for path in left):
                os.rmdir(name, dir_fd=descriptor)
    return Removal(n_files, sorted(left))


def _is_link(name: str, descriptor: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)


MADE_FOLDER = "made"
_RECORD = re.compile(r"([0-9a-f]{16})\.json")
_NAMES = "names"


def record(storage: Storage, run_id: str, names: Iterable[str]) -> None:
    """Add folders to what a run makes, before it does; whoever calls it holds the output."""
    known = _read(storage, run_id)
    if new := set(names) - known:
        _write(storage, run_id, known | new)


def recorded(storage: Storage) -> set[str]:
    """Return the names that runs of this output made; those of another form are none."""
    names = set().union(*(_read(storage, run_id) for run_id in _runs(storage)))
    return {name for name in names if FOLDERS.fullmatch(name)}


def bring_together(storage: Storage, run_id: str, names: Iterable[str]) -> None:
    """Let one record name what is there, in the place of all; its caller holds the output."""
    _write(storage, run_id, set(names))
    storage.delete(_record_of(other) for other in _runs(storage) if other != run_id)


def _runs(storage: Storage) -> list[str]:
    return [own[1] for own in map(_RECORD.fullmatch, storage.names(MADE_FOLDER)) if own]


def _record_of(run_id: str) -> str:
    return f"{MADE_FOLDER}/{run_id}.json"


def _write(storage: Storage, run_id: str, names: set[str]) -> None:
    storage.write(_record_of(run_id), sealed.seal({_NAMES: sorted(names)}))
    storage.sync_folders([MADE_FOLDER])


def _read(storage: Storage, run_id: str) -> set[str]:
    try:
        return set((read_sealed(storage, _record_of(run_id)) or {_NAMES: []})[_NAMES])
    except DamagedFileError:
        warnings.warn(
            f"{storage.url}/{_record_of(run_id)} is not as a run wrote it: folders that it named "
            "alone stay",
            HmrfWarning,
            stacklevel=2,
        )
        return set()
