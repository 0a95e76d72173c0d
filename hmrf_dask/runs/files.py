"""Reading the files of a run so that nothing missing or changed is taken for good."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

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


class LastRead:
    """The labels files that this process read last: parts that share one are asked for one by one.

    Their names hold a hash of their content, so what is kept cannot be another.
    """

    KEPT = 4

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[Hashable, Labels] = OrderedDict()

    def get(self, key: Hashable) -> Labels | None:
        """Return the labels, None where they are not kept."""
        with self._lock:
            if key in self._files:
                self._files.move_to_end(key)
            return self._files.get(key)

    def put(self, key: Hashable, labels: Labels) -> None:
        """Keep labels, and forget those not asked for longest."""
        with self._lock:
            self._files[key] = labels
            while len(self._files) > self.KEPT:
                self._files.popitem(last=False)
