"""Reading the files of a run so that nothing missing or changed is taken for good."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

import numpy as np

from hmrf_dask.runs import records
from hmrf_dask.runs.records import DamagedFileError, Labels
from hmrf_dask.runs.storage import Storage


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
    """Return a file that must be there and have this checksum, or raise DamagedFileError."""
    data = read_named(storage, name)
    if records.digest(data) != sha256:
        raise DamagedFileError(
            f"{name} in {storage.url} must be what its commit names (sha256 {sha256[:16]}…), got "
            "other bytes; resume the run: it goes back to the last commit that is whole"
        )
    return data


def read_sealed(storage: Storage, name: str) -> dict[str, Any] | None:
    """Return the content of sealed JSON, None if there is no such file."""
    try:
        data = storage.read(name)
    except FileNotFoundError:
        return None
    return records.unseal(data, f"{storage.url}/{name}")


class LastRead(threading.local):
    """The labels file that a thread read last: parts that share one are asked for one by one.

    Its name holds a hash of its content, so what is kept cannot be another.
    """

    def __init__(self) -> None:
        self._key: Hashable = None
        self._labels = np.empty(0, np.int32)

    def get(self, key: Hashable) -> Labels | None:
        """Return the labels, None where they are not those kept."""
        return self._labels if key == self._key else None

    def put(self, key: Hashable, labels: Labels) -> None:
        """Keep labels in the place of the last ones."""
        self._key, self._labels = key, labels
