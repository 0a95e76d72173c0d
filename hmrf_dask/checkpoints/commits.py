"""The commits of a run: created exclusively, read back only when whole, old files removed."""

from __future__ import annotations

import itertools
import math
import os
import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from hmrf_dask.checkpoints import records
from hmrf_dask.checkpoints.records import Commit
from hmrf_dask.storage import sealed
from hmrf_dask.storage.log import Entry, ExclusiveLog
from hmrf_dask.storage.sealed import DamagedFileError, RunUnavailableError
from hmrf_dask.storage.stores import Storage, read_checked, read_named, temporary_target

_NUMBER = re.compile(r"\.?(\d{5,})\b")
# Of labels and state below their folders: other files there are not the run's.
_OWN = re.compile(r"[a-z-]+\d*-[0-9a-f]{16}\.parquet|\d{5,}-[0-9a-f]{16}\.npz")
_READERS = 8


class CommitLog:
    """What one process knows of the commits of its run.

    Commits are never overwritten or removed. One that was found damaged stays, and the iteration
    that runs again becomes ``00012.r1.json``: two resuming processes still have one winner.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._log = ExclusiveLog(storage, "commits")
        self.rejected: dict[str, str] = {}
        self.head: Commit | None = None

    def append(self, commit: Commit) -> None:
        """Make `commit` visible in one step, or raise RunUnavailableError if another writer did.

        Every file that it names is on the disk before.
        """
        data = sealed.seal(records.commit_content(commit, uuid.uuid4().hex))
        # Names last once their folders are settled, which is left to here, once for all of them.
        named = (commit.state_name, *(file.name for file in commit.files))
        folders = {os.path.dirname(name) for name in named}
        above = {os.path.dirname(folder) for folder in folders}
        self._create(commit.number, data, sorted(folders | above, reverse=True))
        self.head = commit

    def latest(self) -> Commit | None:
        """Return the highest commit whose every file is there and unchanged.

        What is wrong with the ones above it is in `rejected`.
        """
        for entry in self._log.entries():
            try:
                commit = self._read(entry)
                self._verify(commit)
            except DamagedFileError as error:
                self.rejected[entry.name] = str(error)
                continue
            self.head = commit
            return commit
        return None

    def newest(self) -> Commit | None:
        """Return the highest commit that can be read; the files it names are not looked at."""
        return next(self._readable(sys.maxsize), None)

    def clean(self, keep: int) -> None:
        """Remove labels and state older than the newest `keep` commits and not named by them."""
        head = self.head or self.latest()
        if head is None:
            return
        kept = list(itertools.islice(self._readable(head.number), max(keep, 1)))
        if not kept:
            return
        named = {file.name for commit in kept for file in commit.files}
        named |= {commit.state_name for commit in kept}
        oldest = min(commit.number for commit in kept)
        self.storage.delete(name for name in self._older(oldest) if name not in named)

    def _create(self, number: int, data: bytes, after: Sequence[str]) -> None:
        for generation in itertools.count():
            if self._log.claim(number, data, generation=generation, after=after):
                return
            if self._is_damaged(Entry(number, generation)):
                continue
            raise RunUnavailableError(
                f"a run must have one writer, got another run writing {self.storage.url} (it made "
                f"commit {number} first); let it finish, or stop it and resume"
            )

    def _is_damaged(self, entry: Entry) -> bool:
        if entry.name in self.rejected:
            return True
        try:
            sealed.unseal(read_named(self.storage, self._log.path(*entry)), entry.name)
        except DamagedFileError:
            return True
        return False

    def _read(self, entry: Entry) -> Commit:
        path = self._log.path(*entry)
        return records.read_commit(read_named(self.storage, path), path)

    def _verify(self, commit: Commit) -> None:
        def check(named: tuple[str, str]) -> None:
            read_checked(self.storage, *named)

        named = {commit.state_name: commit.state_sha256}
        named |= {file.name: file.sha256 for file in commit.files}  # one for many parts
        # A few files at a time: never all labels in memory, yet not one slow reply after another.
        with ThreadPoolExecutor(_READERS) as pool:
            list(pool.map(check, named.items()))

    def _readable(self, last: int) -> Iterator[Commit]:
        """Give commits up to number `last`, newest first, one for each number."""
        seen = None
        for entry in self._log.entries():
            if entry.number > last or entry.number == seen:
                continue
            try:
                yield self._read(entry)
            except DamagedFileError:
                continue
            seen = entry.number

    def _older(self, oldest: int) -> Iterator[str]:
        """Give labels, state and killed writers' temporaries of iterations before `oldest`."""
        for folder in self.storage.names("labels"):
            if _number(folder) < oldest:
                for name in filter(_is_own, self.storage.names(f"labels/{folder}")):
                    yield f"labels/{folder}/{name}"
        for name in filter(_is_own, self.storage.names("state")):
            if _number(name) < oldest:
                yield f"state/{name}"
        for name in self.storage.names("commits"):
            if temporary_target(name) is not None and _number(name) < oldest:
                yield f"commits/{name}"


def _is_own(name: str) -> bool:
    return _OWN.fullmatch(temporary_target(name) or name) is not None


def _number(name: str) -> float:
    """Return the iteration a file belongs to; infinity if the file is not of a run."""
    match = _NUMBER.match(name)
    return int(match[1]) if match else math.inf
