"""Numbered files of a folder, each created once: commits, releases and locks are such logs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.storage.stores import Storage

# As numbers are written, so that a number has one name: 000007.json is none.
_NAME = re.compile(r"([0-9]{5}|[1-9][0-9]{5,8})(?:\.r([1-9][0-9]*))?\.json")


def padded(number: int) -> str:
    """Return a number as file names show it, or raise InvalidInputError where it is negative.

    Examples
    --------
    >>> padded(7), padded(1234567)
    ('00007', '1234567')
    """
    if number < 0:
        raise InvalidInputError(f"a number in file names must be 0 or more, got {number}")
    return f"{number:05d}"


class Entry(NamedTuple):
    """A number of a log; a later generation replaces one that is damaged.

    Examples
    --------
    >>> Entry(12) < Entry(12, 1) < Entry(13)
    True
    """

    number: int
    generation: int = 0

    @property
    def name(self) -> str:
        """The name of its file: ``00012.json``, or ``00012.r1.json`` of a later generation.

        Examples
        --------
        >>> Entry(12).name, Entry(12, generation=1).name
        ('00012.json', '00012.r1.json')
        """
        suffix = f".r{self.generation}" if self.generation else ""
        return f"{padded(self.number)}{suffix}.json"


class ExclusiveLog:
    """The numbered files of a folder: of several writers of one number exactly one has it.

    Examples
    --------
    >>> from hmrf_dask.storage.stores import open_storage
    >>> log = ExclusiveLog(open_storage("memory://example-log", {}, durable=False), "commits")
    >>> log.claim(1, b"mine"), log.claim(1, b"theirs"), log.newest()
    (True, False, 1)
    >>> log.delete(1)
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        self.storage = storage
        self.folder = folder

    def entries(self) -> list[Entry]:
        """Return all entries, newest first."""
        matches = map(_NAME.fullmatch, self.storage.names(self.folder))
        return sorted((Entry(int(m[1]), int(m[2] or 0)) for m in matches if m), reverse=True)

    def numbers(self) -> list[int]:
        """Return the numbers of first generations, highest first."""
        return [entry.number for entry in self.entries() if not entry.generation]

    def newest(self) -> int:
        """Return the highest number, 0 where there is none."""
        return next(iter(self.numbers()), 0)

    def path(self, number: int, generation: int = 0) -> str:
        """Return the name of an entry below the root of the storage."""
        return f"{self.folder}/{Entry(number, generation).name}"

    def read(self, number: int, generation: int = 0) -> bytes:
        """Return an entry as it is, or raise FileNotFoundError."""
        return self.storage.read(self.path(number, generation))

    def claim(
        self, number: int, data: bytes, *, generation: int = 0, after: Iterable[str] = ()
    ) -> bool:
        """Make an entry once the folders in `after` are synced; return False where it is another's.

        A store may try a request again whose first reply was lost, and find the entry it made: that
        is one's own, if nobody else writes such data.
        """
        try:
            self.storage.create(self.path(number, generation), data, after)
        except FileExistsError:
            with suppress(FileNotFoundError):
                return self.read(number, generation) == data
            return False
        return True

    def delete(self, number: int) -> None:
        """Remove an entry, so that the number is free again."""
        self.storage.delete([self.path(number)])
