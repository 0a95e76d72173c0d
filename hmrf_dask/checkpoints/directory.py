"""A run directory: one exclusive create makes each iteration visible, whole or not at all."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from hmrf_dask.checkpoints import records
from hmrf_dask.checkpoints.records import Arrays, CheckpointStore, Commit, LabelsFile, PartLabels
from hmrf_dask.errors import RunDirectoryError
from hmrf_dask.storage import sealed
from hmrf_dask.storage.addresses import absolute_url, refuse_credentials
from hmrf_dask.storage.log import Entry, ExclusiveLog, padded
from hmrf_dask.storage.sealed import DamagedFileError, RunUnavailableError
from hmrf_dask.storage.stores import (
    Storage,
    open_storage,
    read_checked,
    read_named,
    read_sealed,
    temporary_target,
)
from hmrf_dask.storage.whole_files import decode_npz
from hmrf_dask.types import AnyArray, FloatArray, LabelArray

# Of labels, state and commits, with their iteration: other files there are not the run's.
_OWN = re.compile(
    r"labels/(?P<labels>\d{5,})/[a-z-]+\d*-[0-9a-f]{16}\.parquet"
    r"|state/(?P<state>\d{5,})-[0-9a-f]{16}\.npz|commits/(?P<commits>\d{5,})(?:\.r\d+)?\.json"
)
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
        number = commit.number
        data = sealed.seal(records.commit_content(commit, uuid.uuid4().hex))
        # Names last once their folders are synced, which is left to here, once for all of them.
        named = (commit.state_name, *(file.name for file in commit.files))
        folders = {os.path.dirname(name) for name in named}
        after = sorted(folders | {os.path.dirname(folder) for folder in folders}, reverse=True)
        for generation in itertools.count():
            if self._log.claim(number, data, generation=generation, after=after):
                self.head = commit
                return
            if not self._is_damaged(Entry(number, generation)):
                raise RunUnavailableError(
                    f"a run must have one writer, got another run writing {self.storage.url} (it "
                    f"made commit {number} first); let it finish, or stop it and resume"
                )

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
        """Return the highest commit that can be read; the files it names are not read."""
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

    def _is_damaged(self, entry: Entry) -> bool:
        if entry.name in self.rejected:
            return True
        try:
            self._read(entry)
        except DamagedFileError:
            return True
        return False

    def _read(self, entry: Entry) -> Commit:
        path = self._log.path(*entry)
        return records.read_commit(read_named(self.storage, path), path)

    def _verify(self, commit: Commit) -> None:
        def check(named: tuple[str, str]) -> None:
            """Raise DamagedFileError unless a file holds what the commit says."""
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
        numbers = filter(re.compile(r"\d{5,}").fullmatch, self.storage.names("labels"))
        labels = [f"labels/{number}" for number in numbers if int(number) < oldest]
        for folder in (*labels, "state", "commits"):
            for base in self.storage.names(folder):
                meant = temporary_target(base)
                own = _OWN.fullmatch(f"{folder}/{meant or base}")
                if own is None or int(own[folder.partition("/")[0]]) >= oldest:
                    continue
                if meant is not None or folder != "commits":
                    yield f"{folder}/{base}"


_last_read = threading.local()  # parts that share a file are asked for one by one
_SCRATCH = "hmrf-"


@dataclass(frozen=True, eq=False)
class RunDirectory(CheckpointStore):
    """The files of one run, below a local folder or a URL; small and picklable.

    Attributes
    ----------
    url : str
        Absolute path or URL.
    durable : bool
        Wait for the disk at every write.
    keep : int
        How many iterations `clean` keeps.

    Notes
    -----
    Names of labels and state hold a hash of their content, so an attempt that was killed and
    one that runs again write the same names; ``commits/00012.json`` is created exclusively.
    Pickling leaves out what the process knows of the run: events that wait, rejected commits.
    """

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    durable: bool = True
    keep: int = 2
    _waiting: list[bytes] = field(default_factory=list, init=False, repr=False)

    def __reduce__(self) -> tuple[type[RunDirectory], tuple[Any, ...]]:
        """Leave connections and all that belongs to this process behind."""
        return type(self), (self.url, self.storage_options, self.durable, self.keep)

    @cached_property
    def _storage(self) -> Storage:
        return open_storage(self.url, self.storage_options, self.durable)

    @cached_property
    def _log(self) -> CommitLog:
        return CommitLog(self._storage)

    @classmethod
    def at(
        cls, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> RunDirectory:
        """Name a run directory; nothing is made or read before `probe` or `begin`.

        Examples
        --------
        >>> RunDirectory.at("s3://bucket/runs/1/").url
        's3://bucket/runs/1'
        """
        options = dict(storage_options or {})
        refuse_credentials(options)
        return cls(absolute_url(url), options)

    def begin(self, *, config: Mapping[str, Any], fingerprint: str, resume: bool = True) -> None:
        """Begin the run in a new or empty directory, or go on with the same run.

        Parameters
        ----------
        config : mapping
            All that decides the result: parameters, seed, versions, kernel path and instruction
            set. JSON values. Any difference to the run found there is refused.
        fingerprint : str
            Of the input.
        resume : bool
            False refuses a directory that already holds a run (nothing is ever deleted here).
        """
        self._storage.make_root()
        asked = {"format": FORMAT, "fingerprint": fingerprint, "config": config}
        there = read_sealed(self._storage, NAME)
        if there is None:
            _refuse_strangers(self._storage)
            if _begin(self._storage, sealed.seal(asked)):
                return
            there = read_sealed(self._storage, NAME)
        if not resume:
            raise RunDirectoryError(
                f"a run directory must be new or empty to begin afresh, got {self.url} with a run "
                "in it; give another one, or resume"
            )
        if lines := sealed.differences(there, sealed.round_trip(asked)):
            raise RunDirectoryError(
                f"a run directory must hold the same run, got {self.url} with another one "
                f"({'; '.join(lines)}); ask for what its run.json has, or start again without this "
                "folder (remove it, or give another one; with hmrf-dask fit: --fresh)"
            )

    def recorded_config(self) -> dict[str, Any] | None:
        """Return the config of the run here, None where there is none."""
        there = read_sealed(self._storage, NAME)
        return None if there is None else dict(there["config"])

    @classmethod
    def scratch(cls, folder: str | None = None) -> RunDirectory:
        """Make a local run in a new temporary directory: no waiting for the disk, keeps one.

        It is made in `folder`, by default in the system's temporary one; its owner calls `remove`.

        Examples
        --------
        >>> run = RunDirectory.scratch()
        >>> run.durable, run.keep
        (False, 1)
        >>> run.remove()
        """
        try:
            path = tempfile.mkdtemp(prefix=_SCRATCH, dir=folder)
        except OSError as error:
            raise RunDirectoryError(
                "hmrf.scratch-directory must be a folder that can be written, got "
                f"{folder or tempfile.gettempdir()} ({error}); set it to another one"
            ) from error
        return cls(os.path.abspath(path), durable=False, keep=1)

    def remove(self) -> None:
        """Delete a scratch run; a run directory of the user's is refused."""
        if self.durable or not os.path.basename(self.url).startswith(_SCRATCH):
            raise RunDirectoryError(
                f"remove() must be called on a scratch run, got {self.url}; delete it by hand"
            )
        shutil.rmtree(self.url, ignore_errors=True)

    def write_group(self, number: int, labelled: Sequence[PartLabels]) -> tuple[LabelsFile, ...]:
        """Write the labels of several parts of iteration `number` into one file; for tasks."""
        for part in labelled:
            records.check_labels(*part)
        data = records.encode_labels(labelled)
        sha256 = sealed.digest(data)
        name = f"labels/{padded(number)}/{labelled[0][0]}-{sha256[:16]}.parquet"
        self._storage.write(name, data)
        starts = itertools.accumulate((len(labels) for *_, labels in labelled), initial=0)
        return tuple(
            LabelsFile(name, sha256, first_row, len(labels), part, start)
            for (part, first_row, labels), start in zip(labelled, starts, strict=False)
        )

    def read_labels(self, file: LabelsFile) -> LabelArray:
        """Return the labels of one part (read-only), or raise DamagedFileError naming the file."""
        key = (self.url, file.name, file.sha256)
        last, whole = getattr(_last_read, "file", (None, None))
        if whole is None or last != key:
            whole = records.decode_labels(read_checked(self._storage, file.name, file.sha256))
            _last_read.file = key, whole
        return whole[file.start : file.start + file.n_rows]

    def commit(
        self, number: int, record: dict[str, Any], state: Arrays, files: Sequence[LabelsFile]
    ) -> Commit:
        """Make iteration `number` visible in one step; RunUnavailableError if another writer did.

        Events that wait are written, too.
        """
        made = Commit(
            number, sealed.round_trip(record), *self._write_state(number, state), tuple(files)
        )
        self._log.append(made)
        self.flush_events()
        return made

    def _write_state(self, number: int, state: Arrays) -> tuple[str, str]:
        """Write arrays; return the name of their file, and its hash."""
        payload = records.encode_state(state)
        sha256 = sealed.digest(payload)
        name = f"state/{padded(number)}-{sha256[:16]}.npz"
        self._storage.write(name, payload)
        return name, sha256

    def write_rows(self, number: int, part: str, first_row: int, rows: FloatArray) -> LabelsFile:
        """Write centroids of an owner next to the state of the commit that will name them."""
        named = self._write_state(number, {"rows": rows})
        return LabelsFile(*named, first_row, len(rows), part)

    def read_rows(self, file: LabelsFile) -> FloatArray:
        """Return what `write_rows` wrote, or raise DamagedFileError naming the file."""
        data = read_checked(self._storage, file.name, file.sha256)
        rows: FloatArray = decode_npz(data, f"{self.url}/{file.name}")["rows"]
        return rows

    def latest(self) -> Commit | None:
        """Return the highest commit whose every file is there and unchanged, or None.

        Damaged commits above it are skipped, each with a ``commit-rejected`` event.
        """
        known = set(self._log.rejected)
        commit = self._log.latest()
        for name, reason in self._log.rejected.items():
            if name not in known:
                self.event({"event": "commit-rejected", "commit": name, "reason": reason})
        return commit

    def load_state(self, commit: Commit) -> dict[str, AnyArray]:
        """Return the arrays of a commit, or raise DamagedFileError naming the file."""
        data = read_checked(self._storage, commit.state_name, commit.state_sha256)
        return decode_npz(data, f"{self.url}/{commit.state_name}")

    def clean(self, keep: int | None = None) -> None:
        """Remove labels and state of old iterations, those of killed attempts included.

        The newest `keep` commits (default: `keep` of the run) keep every file they name,
        and nothing newer than the oldest of them is touched. All ``commits/*.json`` stay: they
        are small and the history of the run.
        """
        self._log.clean(self.keep if keep is None else keep)

    def event(self, record: dict[str, Any]) -> None:
        """Append one line to ``events.jsonl`` with the time; the client's, not for tasks.

        On an object store lines wait for the next commit (or `flush_events`) and become one
        object ``events/<time>-<random>.jsonl``.
        """
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._waiting.append(f"{sealed.to_json({'time': time, **record})}\n".encode())
        if not self._storage.batches_events:
            self.flush_events()

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened so far, in its order, as far as it was written."""
        return list(read_events(self._storage))

    def flush_events(self) -> None:
        """Write events that wait."""
        if self._waiting:
            self._storage.append("events.jsonl", b"".join(self._waiting))
            self._waiting.clear()

    def probe(self) -> str:
        """Write a file for every worker to find, and return its token for `check_probe`.

        Examples
        --------
        >>> run = RunDirectory.scratch()
        >>> run.check_probe(run.probe())
        >>> run.remove()
        """
        token = uuid.uuid4().hex
        self._storage.make_root()
        self._storage.write(f"probe/{token}", token.encode())
        return token

    def check_probe(self, token: str) -> None:
        """Raise RunDirectoryError unless this process sees the client's file and can write."""
        answer = f"probe/{token}-{uuid.uuid4().hex}"
        try:
            if self._storage.read(f"probe/{token}") != token.encode():
                raise RunDirectoryError("the client's file differs here")
            self._storage.write(answer, token.encode())
            self._storage.delete([answer])
        except OSError as error:  # RunDirectoryError is one
            raise RunDirectoryError(
                f"a run must lie where every worker can read and write, got {self.url} "
                f"(host {socket.gethostname()}: {type(error).__name__}: {error}); give a folder "
                "that all machines share, or the URL of an object store"
            ) from error

    def remove_probe(self, token: str) -> None:
        """Remove the file of `probe` once all workers have answered."""
        self._storage.delete([f"probe/{token}"])

    def finalise(self, record: dict[str, Any]) -> None:
        """Write ``FINAL.json``: the run is done. The same record again changes nothing.

        Examples
        --------
        >>> run = RunDirectory.scratch()
        >>> run.finalise({"stop": "converged"})
        >>> run.final()
        {'stop': 'converged'}
        >>> run.remove()
        """
        self.flush_events()
        data = sealed.seal(record)
        try:
            self._storage.create("FINAL.json", data)
        except FileExistsError:
            there = self.final()
            if there is None:  # damaged
                self._storage.write("FINAL.json", data)
                self._storage.sync_folders([""])
            elif there != sealed.round_trip(record):
                raise RunDirectoryError(
                    f"a run must end once, got another end in {self.url}/FINAL.json; "
                    "use the result that is there or give another folder"
                ) from None

    def final(self) -> dict[str, Any] | None:
        """Return the record of `finalise`; None while the run is not done or if it is damaged."""
        try:
            return read_sealed(self._storage, "FINAL.json")
        except DamagedFileError as error:
            self.event({"event": "final-rejected", "reason": str(error)})
            return None


def read_events(storage: Storage, folder: str = "") -> Iterator[dict[str, Any]]:
    """Yield the events of a run in a folder: of one file, or of the objects of a store in order.

    A line that a kill has cut is none.
    """
    if "events.jsonl" in storage.names(folder):
        names = ["events.jsonl"]
    else:
        inside = f"{folder}/events" if folder else "events"
        names = [f"events/{name}" for name in sorted(storage.names(inside))]
    for name in names:
        for line in storage.read(f"{folder}/{name}" if folder else name).splitlines():
            with suppress(ValueError):
                yield json.loads(line)


FORMAT = 2  # since commits say why their start won
NAME = "run.json"


def _refuse_strangers(storage: Storage) -> None:
    # A probe is what a client leaves that is killed while it asks its workers.
    names = {name for name in storage.names("") if temporary_target(name) is None} - {"probe"}
    # run.json: another process has made it since it was read, and may have gone further.
    if names and NAME not in names:
        raise RunDirectoryError(
            f"a run directory must be new, empty or hold a run, got {storage.url} with other files "
            f"and no run.json ({', '.join(sorted(names)[:5])}); give another one"
        )


def _begin(storage: Storage, data: bytes) -> bool:
    """Create run.json; False if another process was faster."""
    # Some S3 look-alikes ignore the condition: better found out now than by two writers.
    for attempt in (1, 2):
        try:
            storage.create(NAME, data)
        except FileExistsError:
            return attempt == 2
    raise RunDirectoryError(
        f"a run directory must be on a store that can create a file exclusively, got "
        f"{storage.url}, which replaced one; use a newer server or a shared folder"
    )
