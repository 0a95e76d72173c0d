"""The journal of an output: every answer lasts as soon as it is given, whoever writes next to it.

On a disk it is a file of lines, appended under a lock of its own; in an object store a numbered log
of an object an answer. It belongs to the people who answer: no run writes it, and none removes it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from hmrf_dask.answers.records import Entry
from hmrf_dask.documents.records import BadRecord
from hmrf_dask.errors import (
    ConfigurationError,
    HmrfError,
    InvalidInputError,
    RunDirectoryError,
    in_words,
    may_pass,
)
from hmrf_dask.parameters import ANSWER_BYTES
from hmrf_dask.storage.addresses import absolute_url, refuse_credentials
from hmrf_dask.storage.log import ExclusiveLog
from hmrf_dask.storage.sealed import RunUnavailableError
from hmrf_dask.storage.stores import open_file, open_storage

FILE, FOLDER = "journal.jsonl", "journal"  # in an output on a disk, in an object store
LINE_BYTES: Final = 2**20  # of one line
PATIENCE: Final = 30.0  # seconds to wait for another process that writes
_PAUSE = 0.001
_RAW = 200  # characters of a bad line that are shown
_READERS = 16  # objects read at a time
_TRIES = 4  # numbers tried one after the other before the store is asked which is free


@dataclass(frozen=True)
class Lines:
    """What was read of a journal.

    Attributes
    ----------
    entries : tuple of Entry
        In the order of lines; what two lines have is there once.
    lines : tuple of int
        The line of each; in an object store its number.
    bad : tuple of BadRecord
    end : int
        How far it was read: bytes, in an object store the number of the last object.
    """

    entries: tuple[Entry, ...]
    lines: tuple[int, ...]
    bad: tuple[BadRecord, ...]
    end: int


class Journal(ABC):
    """Answers one after the other; several threads and processes may write and read it at once."""

    def __init__(self, address: str) -> None:
        self.address = address

    def append(self, *entries: Entry) -> None:
        """Add entries, all of which last when this returns.

        Parameters
        ----------
        *entries : Entry
            Each with an id of its own: what is appended again counts once.

        Raises
        ------
        RunDirectoryError
            They could not be saved: nothing half-written counts, and what was there is whole.
        """
        lines = [_line_of(entry) for entry in entries]
        if lines:
            with _explained(self.address, "save an answer"):
                self._write(lines)

    def entries(self, until: int | None = None, *, since: int = 0) -> Lines:
        """Return what can be read between two ends that were reported before.

        Parameters
        ----------
        until : int, optional
            Read no further; without it, as far as there are whole lines.
        since : int, default 0
            Read from here on.

        Returns
        -------
        Lines
        """
        with _explained(self.address, "read the journal"):
            numbered, end = self._read(since, until)
        return _parsed(numbered, end)

    @property
    @abstractmethod
    def end(self) -> int:
        """How far there are whole lines now."""

    @abstractmethod
    def _write(self, lines: list[bytes]) -> None: ...

    @abstractmethod
    def _read(self, since: int, until: int | None) -> tuple[list[tuple[int, bytes]], int]: ...


def open_journal(
    address: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Journal:
    """Return the journal at a path of a file or a URL of a folder; nothing need be there yet.

    Parameters
    ----------
    address : str or path
    storage_options : mapping, optional
        What fsspec needs to reach a store; it must hold no secrets.

    Returns
    -------
    Journal

    Examples
    --------
    >>> journal = open_journal("memory://example-journal/journal")
    >>> journal.append(Entry("1", "pair", ("x", "r"), answer="same"))
    >>> journal.entries().entries[0].answer, journal.end
    ('same', 1)
    """
    url, options = absolute_url(address, "a journal"), dict(storage_options or {})
    refuse_credentials(options)
    return _StoredJournal(url, options) if "://" in url else _FileJournal(url)


def journal_address(output: str) -> str:
    """Return where the journal of an output is, an absolute path or a URL.

    Examples
    --------
    >>> journal_address("/data/out"), journal_address("s3://bucket/out")
    ('/data/out/journal.jsonl', 's3://bucket/out/journal')
    """
    return f"{output}/{FOLDER if '://' in output else FILE}"


class _FileJournal(Journal):
    """A file of lines, which its writers lock while they append."""

    @property
    def end(self) -> int:
        return self._read(0, None)[1]

    def _write(self, lines: list[bytes]) -> None:
        with self._locked() as file:
            size = os.fstat(file).st_size
            data = b"".join(lines)
            if size and os.pread(file, 1, size - 1) != b"\n":
                data = b"\n" + data  # after the line of a writer that was killed
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(file, rest) :]
                os.fsync(file)
            except BaseException:  # such as of a full disk
                with suppress(OSError):
                    os.ftruncate(file, size)
                    os.fsync(file)
                raise
        if not size:
            _sync_folder(os.path.dirname(self.address))

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for one writer alone, as the file that the path names."""
        deadline = time.monotonic() + PATIENCE
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
            file = open_file(self.address, flags)
            try:
                _refuse_device(file, self.address)
                _wait_for_lock(file, self.address, deadline)
                if _is_named(file, self.address):  # else an editor put another one in its place
                    yield file
                    return
            finally:
                os.close(file)  # and its lock with it

    def _read(self, since: int, until: int | None) -> tuple[list[tuple[int, bytes]], int]:
        data = _content(self.address)
        end = _end_of(data) if until is None else min(until, len(data))
        first = data.count(b"\n", 0, since) + 1
        lines = enumerate(data[since : len(data) if until is None else end].split(b"\n"), first)
        return [(number, line) for number, line in lines if line.strip()], max(end, since)


def _end_of(data: bytes) -> int:
    """Return where the last whole line ends; whoever writes next ends one that is cut.

    Examples
    --------
    >>> line = Entry("1", "undo", about="0").to_line()
    >>> _end_of(line + b'{"id":"2","ki') == len(line)
    True
    """
    end = data.rfind(b"\n") + 1
    if end == len(data):
        return end
    with suppress(InvalidInputError):
        Entry.from_line(data[end:])  # whole but for the line end, which an editor left out
        return len(data)
    return end


def _content(path: str) -> bytes:
    """Return the bytes of a journal, none where no answer was given yet."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    with os.fdopen(file, "rb") as opened:
        _refuse_device(file, path)
        data = opened.read(ANSWER_BYTES + 1)
    if len(data) > ANSWER_BYTES:
        raise InvalidInputError(
            f"{path}: a journal must have at most {ANSWER_BYTES:,} bytes, got more; is it one?"
        )
    return data


def _refuse_device(file: int, path: str) -> None:
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise ConfigurationError(
            f"a journal must be a file, got a pipe or a device: {path}; name a file"
        )


def _wait_for_lock(file: int, path: str, deadline: float) -> None:
    """Lock a file that others lock for moments, or say that a process was stopped meanwhile."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RunUnavailableError(
                    f"{path} must be free to write, got another process that locks it for "
                    f"{PATIENCE:g} s; answer again, or end that process"
                ) from None
            time.sleep(_PAUSE)
        else:
            return


def _is_named(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _StoredJournal(Journal):
    """An object an answer, each created exclusively under the next free number."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        super().__init__(url)
        root, _, folder = url.rpartition("/")
        if "://" not in root:
            raise ConfigurationError(
                f"a journal must be a folder in a bucket, got {url}; name one in it"
            )
        self._log = ExclusiveLog(open_storage(root, options, durable=True), folder)
        self._newest = 0  # number that is known to be taken

    @property
    def end(self) -> int:
        return self._log.newest()

    def _write(self, lines: list[bytes]) -> None:
        for line in lines:
            self._newest = self._claimed(line)

    def _claimed(self, line: bytes) -> int:
        """Return the number under which a line was created."""
        number = self._newest + 1
        if number == 1:
            number = self._log.newest() + 1
        for tried in range(1, 10_000):
            if self._log.claim(number, line):
                return number
            number = number + 1 if tried % _TRIES else max(number, self._log.newest()) + 1
        raise RunUnavailableError(
            f"{self.address} must have a free number, got none that other writers did not take "
            "first; answer again"
        )

    def _read(self, since: int, until: int | None) -> tuple[list[tuple[int, bytes]], int]:
        numbers = sorted(
            n for n in self._log.numbers() if since < n and (until is None or n <= until)
        )
        with ThreadPoolExecutor(_READERS) as pool:
            lines = list(pool.map(self._log.read, numbers))
        return list(zip(numbers, lines, strict=True)), max([since, *numbers[-1:]])


@contextmanager
def _explained(address: str, action: str) -> Iterator[None]:
    """Say in words what a file system raises."""
    try:
        yield
    except HmrfError:
        raise
    except OSError as error:
        kind = RunUnavailableError if may_pass(error) else RunDirectoryError
        raise kind(
            f"{address} must be a journal that can be read and written, got {in_words(error)} "
            f"(cannot {action}); what was there is as it was: repair that, or "
            "let those who answer name another file by --journal"
        ) from error


def _line_of(entry: Entry) -> bytes:
    """Return the line of an entry, or raise InvalidInputError where nobody could read it."""
    try:
        line = entry.to_line()
    except (UnicodeEncodeError, TypeError, ValueError) as error:
        raise InvalidInputError(f"an answer must be plain text, got {error}") from None
    if len(line) > LINE_BYTES:
        raise InvalidInputError(
            f"an answer must have at most {LINE_BYTES:,} bytes, got {len(line):,}"
        )
    Entry.from_line(line)
    return line


def _parsed(numbered: list[tuple[int, bytes]], end: int) -> Lines:
    """Return the entries in lines; a line that says what an earlier one does is left out."""
    known: dict[str, tuple[int, Entry]] = {}
    bad: list[BadRecord] = []
    for number, line in numbered:
        try:
            entry = Entry.from_line(line)
        except InvalidInputError as error:
            bad.append(BadRecord(number, str(error), line[:_RAW].decode(errors="replace")))
            continue
        before, earlier = known.setdefault(entry.id, (number, entry))
        if earlier != entry:
            reason = f"an id must be of one answer, got {entry.id!r:.80}, that of line {before}"
            bad.append(BadRecord(number, reason, line[:_RAW].decode(errors="replace")))
    read = known.values()
    return Lines(
        tuple(entry for _, entry in read), tuple(number for number, _ in read), tuple(bad), end
    )
