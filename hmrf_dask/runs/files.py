"""Reading the files of a run so that nothing missing or changed is taken for good."""

from __future__ import annotations

from typing import Any

from hmrf_dask.runs import records
from hmrf_dask.runs.records import DamagedFileError
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
