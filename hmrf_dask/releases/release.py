"""Releases of an output: files first, then one create-only file that names them, then LATEST."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, NamedTuple
from zlib import crc32

from hmrf_dask.errors import HeldError
from hmrf_dask.releases.lock import OutputLock, now, open_output
from hmrf_dask.storage import sealed
from hmrf_dask.storage.log import ExclusiveLog
from hmrf_dask.storage.sealed import DamagedFileError
from hmrf_dask.storage.stores import Storage

FORMAT = "hmrf-dask/release/v2"
LATEST = "LATEST"
RELEASES_FOLDER = "releases"
_READERS = 8
_MOST = 10**9  # numbers of releases; a longer one is damage


class DamagedReleaseError(DamagedFileError):
    """A file that a release is made of is missing, or not as it was published."""


@dataclass(frozen=True)
class Release:
    """What one release holds.

    Attributes
    ----------
    run, parent : str
        Ids of the run that made it, and of the one before it.
    files : dict of str to str
        The sha256 of every file, by its name below the output.
    sizes : dict of str to int
        The bytes of every file.
    ledger : dict
        Which sources it was made of.
    model : str
        What distinguishes its model from any other.
    """

    number: int
    run: str
    parent: str | None
    when: str
    files: dict[str, str]
    sizes: dict[str, int]
    ledger: Any
    counts: dict[str, Any]
    model: str


@dataclass(frozen=True)
class _Written:
    """A release as its file has it; of each of its files the bytes and the sha256."""

    number: int
    run: str
    parent: str | None
    when: str
    files: dict[str, tuple[int, str]]
    ledger: Any
    counts: dict[str, Any]
    model: str


class Contents(NamedTuple):
    """What a run has to publish; see `Release`."""

    files: Mapping[str, str]
    ledger: Any
    counts: Mapping[str, Any]
    model: str


def publish(
    hold: OutputLock,
    *,
    run_id: str,
    previous: Release | None,
    contents: Contents,
    number: int | None = None,
) -> Release:
    """Make the files of a run, which are there, the newest release of the output that is held.

    Done again by a run that was killed in between, it changes nothing that is there.

    Parameters
    ----------
    previous : Release or None
        The release that the run continued.
    number : int, optional
        Of the release, known when the run began; without it the one after `previous`.

    Raises
    ------
    HeldError
        Another run took the output over, or published meanwhile.
    """
    storage = hold.storage
    sizes = _sizes_of_all(storage, contents.files, previous)
    if number is None:
        number = 1 if previous is None else previous.number + 1
    made = Release(
        number=number,
        run=run_id,
        parent=None if previous is None else previous.run,
        when=now(),
        files=dict(sorted(contents.files.items())),
        sizes=sizes,
        ledger=contents.ledger,
        counts=dict(contents.counts),
        model=contents.model,
    )
    hold.check()
    before = read_if_whole(storage, number - 1)
    if before is not None and (before.run, before.files) == (run_id, made.files):
        made = before
    else:
        made = _committed(storage, made)
    pointer = {"release": made.number, "run": made.run}
    storage.write(LATEST, f"{json.dumps(pointer)}\n".encode())
    storage.sync_folders([""])
    return made


def latest(
    output: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    verify: bool = False,
) -> Release | None:
    """Return the newest release of a folder or URL, None where there is none yet.

    Raise DamagedFileError if LATEST is not as it was written, DamagedReleaseError if that is a
    release or, with `verify`, one of its files, which are all read and hashed then.
    """
    storage = open_output(output, storage_options)
    log, named = release_log(storage), pointed(storage)
    number = log.newest() if named is None else named["release"]
    if not number:
        return None
    try:
        release = read_release(storage, number)
    except FileNotFoundError as error:
        raise DamagedReleaseError(
            f"{storage.url}/{log.path(number)} must be there, as LATEST names it, got none"
        ) from error
    if named is not None and release.run != named["run"]:
        raise DamagedFileError(
            f"{storage.url}/{LATEST} must name the run of its release, got {named['run']} and "
            f"{release.run}; remove LATEST: the newest release is found without it"
        )
    while True:  # the writer of the next one may have been killed before it replaced LATEST
        try:
            release = read_release(storage, release.number + 1)
        except FileNotFoundError:
            break
    if not release.files:
        raise DamagedReleaseError(
            f"{storage.url} must have a release after {log.path(release.number)}, whose files were "
            "removed as those of an old one, got none"
        )
    if verify:
        check_files(storage, release)
    return release


def pointer_damage(storage: Storage) -> str | None:
    """Return what is wrong with LATEST if the newest release may be found without it, else None.

    One that names a release that is not there may be right: that is an error.
    """
    try:
        named = pointed(storage)
        release = read_if_whole(storage, named["release"]) if named else None
        if named and release and release.run != named["run"]:
            return f"{storage.url}/{LATEST} names another run than its release"
        return None
    except DamagedFileError as error:
        return str(error).partition(";")[0]


def hashed(storage: Storage, names: Iterable[str]) -> dict[str, str]:
    """Return the sha256 of files that are in place, by their names below the output."""
    names = list(names)
    with ThreadPoolExecutor(_READERS) as pool:
        digests = pool.map(lambda name: sealed.digest(storage.read(name)), names)
        return dict(zip(names, digests, strict=True))


def read_file(storage: Storage, name: str, sha256: str) -> bytes:
    """Return a published file, or raise DamagedReleaseError that says what is wrong with it."""
    problem = "none"
    try:
        data = storage.read(name)
        if sealed.digest(data) == sha256:
            return data
        problem = f"{len(data)} bytes with another checksum"
    except FileNotFoundError:
        pass
    raise DamagedReleaseError(
        f"{storage.url}/{name} must be as it was published (sha256 {sha256[:16]}…), got {problem}"
    )


def damages(
    storage: Storage,
    release: Release,
    hashed: Iterable[str] | None = None,
    names: Iterable[str] | None = None,
) -> list[str]:
    """Return what is wrong with the files of a release, in words; nothing if it is whole.

    The files `names` must be there and as long as they were, the files `hashed` hold the same
    bytes; without them that is asked of all.
    """
    wrong = size_damages(storage, release, release.files if names is None else names)

    def problem_of(name: str) -> str | None:
        """Return what is wrong with a file, None if it is whole."""
        try:
            read_file(storage, name, release.files[name])
        except DamagedReleaseError as error:
            return str(error)
        return None

    hashed = [name for name in (release.files if hashed is None else hashed) if name not in wrong]
    # A few files at a time: never all of them in memory, yet not one slow reply after another.
    with ThreadPoolExecutor(_READERS) as pool:
        return [*wrong.values(), *filter(None, pool.map(problem_of, hashed))]


def size_damages(storage: Storage, release: Release, names: Iterable[str]) -> dict[str, str]:
    """Return which files of a release are missing or of another size, with the words for it."""
    there = _sizes_in(storage, names := sorted(names))
    return {
        name: (
            f"{storage.url}/{name} must be as it was published ({release.sizes[name]} bytes), got "
            f"{f'{there[name]} bytes' if name in there else 'none'}"
        )
        for name in names
        if there.get(name) != release.sizes[name]
    }


def check_files(
    storage: Storage,
    release: Release,
    hashed: Iterable[str] | None = None,
    names: Iterable[str] | None = None,
) -> None:
    """Raise DamagedReleaseError where `damages` finds any."""
    if wrong := damages(storage, release, hashed, names):
        more = f" (and {len(wrong) - 1} more of its files)" if len(wrong) > 1 else ""
        raise DamagedReleaseError(f"{wrong[0]}{more}")


def _sizes_of_all(
    storage: Storage, files: Mapping[str, str], previous: Release | None
) -> dict[str, int]:
    """Return the sizes of files to publish; refuse names of files that are not there, or changed.

    A file of the last release that is not read again must at least be as long as it was.
    """
    there = _sizes_in(storage, files)
    if missing := sorted(files.keys() - there.keys()):
        raise DamagedFileError(
            f"all files of a release must lie in {storage.url} before it is published, got none of "
            f"{', '.join(missing[:5])} ({len(missing)} missing); run again"
        )
    if previous is not None:
        same = [name for name, _ in files.items() & previous.files.items()]
        for problem in size_damages(storage, previous, same).values():
            raise DamagedReleaseError(problem)
    return {name: there[name] for name in sorted(files)}


def _sizes_in(storage: Storage, files: Iterable[str]) -> dict[str, int]:
    """Return the sizes of files that are there, by one listing of each folder."""
    files = set(files)
    folders = sorted({os.path.dirname(name) for name in files})
    with ThreadPoolExecutor(_READERS) as pool:
        listed = list(pool.map(storage.sizes, folders))
    return {
        name: size
        for folder, sizes in zip(folders, listed, strict=True)
        for base, size in sizes.items()
        if (name := f"{folder}/{base}" if folder else base) in files
    }


def _folders(files: Iterable[str]) -> list[str]:
    """Return the folders of files and those above them, innermost first."""
    folders = {""}
    for name in files:
        while name := os.path.dirname(name):
            folders.add(name)
    return sorted(folders, reverse=True)


def _committed(storage: Storage, made: Release) -> Release:
    """Return the release that has this number now: this one, or the same from before a kill."""
    log = release_log(storage)
    if not log.claim(made.number, _encoded(made), after=_folders(made.files)):
        there = read_release(storage, made.number)
        if (there.run, there.parent, there.files) != (made.run, made.parent, made.files):
            raise HeldError(
                "a run must publish after the release it began from, got release "
                f"{made.number} of run {there.run} published in {storage.url} since "
                f"({there.when}); run again to go on from it"
            )
        return there
    later = (number for number in log.numbers() if number > made.number)
    if newest := next((number for number in later if read_if_whole(storage, number)), 0):
        log.delete(made.number)  # of an old number, which was removed meanwhile
        raise HeldError(
            f"a run must publish after the last release, got number {made.number} where there is "
            f"{newest} in {storage.url}; run again to go on from it"
        )
    return made


def pointed(storage: Storage) -> dict[str, Any] | None:
    """Return what LATEST holds, None where there is none; its release must name the same run."""
    try:
        data = storage.read(LATEST)
    except FileNotFoundError:
        return None
    with suppress(ValueError, RecursionError):
        match json.loads(data):
            case {"release": number, "run": str(run)} if type(number) is int:
                if 0 < number < _MOST:
                    return {"release": number, "run": run}
    raise DamagedFileError(
        f"{storage.url}/{LATEST} must name a release and its run, got {data[:80]!r}; remove "
        "it: the newest release is found without it"
    )


def _encoded(release: Release) -> bytes:
    """Return the content of the file of a release."""
    files = {name: [release.sizes[name], sha256] for name, sha256 in release.files.items()}
    content = {"format": FORMAT, **vars(release), "files": files}
    del content["sizes"]
    return sealed.seal(content)


def read_release(storage: Storage, number: int) -> Release:
    """Return a release by its number; FileNotFoundError where there is none."""
    log = release_log(storage)
    path = f"{storage.url}/{log.path(number)}"
    try:
        written = sealed.unseal_as(_Written, log.read(number), path, FORMAT)
        if written.number != number:
            raise DamagedFileError(f"{path} must hold release {number}, got {written.number}")
    except DamagedFileError as error:
        text = str(error).removesuffix(f"; {sealed.RESTORE}")  # not all that can be done
        raise DamagedReleaseError(text) from error
    files = {name: sha256 for name, (_, sha256) in written.files.items()}
    sizes = {name: size for name, (size, _) in written.files.items()}
    return Release(**{**vars(written), "files": files, "sizes": sizes})


def read_if_whole(storage: Storage, number: int) -> Release | None:
    """Return a release by its number, None where there is none that can be read."""
    try:
        return read_release(storage, number)
    except (FileNotFoundError, DamagedReleaseError):
        return None


def retire(storage: Storage, release: Release) -> None:
    """Take the names of its files out of an old release, before they go.

    Its number stays taken, so a run that was overtaken can never publish under it, and what it
    was stays to be read.
    """
    rest = replace(release, files={}, sizes={}, ledger={})
    storage.write(release_log(storage).path(release.number), _encoded(rest))


def release_log(storage: Storage) -> ExclusiveLog:
    """Return the numbered files of the releases of an output."""
    return ExclusiveLog(storage, RELEASES_FOLDER)


SMALL_BYTES, SMALL_FILES = 8 * 2**20, 128  # at most, together: hashed every time
NIGHT_BYTES = 256 * 2**20  # of the rest, about
SHARES = (31, 61, 127, 251, 509, 1021, 2039, 4093)


def tonight() -> int:
    """Return the number of the day, UTC."""
    return datetime.now(UTC).date().toordinal()


def small_of(sizes: Mapping[str, int]) -> list[str]:
    """Return the names of the smallest files, as many as are hashed every time.

    Examples
    --------
    >>> small_of({"a": 3, "b": 2**30, "c": 1})
    ['c', 'a']
    """
    names = sorted(sizes, key=lambda name: (sizes[name], name))[:SMALL_FILES]
    totals = accumulate(sizes[name] for name in names)
    return [name for name, total in zip(names, totals, strict=True) if total <= SMALL_BYTES]


def hashed_in(night: int, sizes: Mapping[str, int]) -> list[str]:
    """Return the names of the files that a night hashes, of all with these sizes.

    Examples
    --------
    >>> sizes = {"model.npy": 2**40, "run.json": 500}
    >>> hashed = [hashed_in(night, sizes) for night in range(SHARES[-1])]
    >>> all("run.json" in names for names in hashed), sum("model.npy" in names for names in hashed)
    (True, 1)
    """
    small = small_of(sizes)
    rest = sorted(sizes.keys() - set(small))
    n_bytes = sum(sizes[name] for name in rest)
    n_shares = next((n for n in SHARES if n_bytes <= n * NIGHT_BYTES), SHARES[-1])
    return small + [name for name in rest if crc32(name.encode()) % n_shares == night % n_shares]
