"""Which run a directory belongs to: run.json, made once and held against every later opening."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hmrf_dask.errors import RunDirectoryError
from hmrf_dask.runs import records
from hmrf_dask.runs.files import read_sealed
from hmrf_dask.runs.storage import Storage, temporary_target

FORMAT = 1
NAME = "run.json"


def begin_or_join(
    storage: Storage, config: Mapping[str, Any], fingerprint: str, resume: bool
) -> None:
    """Write run.json into a new directory, or refuse one that is not this very run."""
    asked = {"format": FORMAT, "fingerprint": fingerprint, "config": config}
    found = read_sealed(storage, NAME)
    if found is None:
        _refuse_strangers(storage)
        if _begin(storage, records.seal(asked)):
            return
        found = read_sealed(storage, NAME)
    if not resume:
        raise RunDirectoryError(
            f"a run directory must be new or empty to begin afresh, got {storage.url} with a run "
            "in it; give another one, or resume"
        )
    lines = records.differences(found, records.round_trip(asked))
    if lines:
        raise RunDirectoryError(
            f"a run directory must hold the same run, got {storage.url} with another one "
            f"({'; '.join(lines)}); ask for what its run.json has, or start again without this "
            "folder (remove it, or give another one; with hmrf-dask fit: --fresh)"
        )


def _refuse_strangers(storage: Storage) -> None:
    # A probe is what a client leaves that is killed while it asks its workers.
    found = [name for name in storage.names("") if name != "probe"]
    names = [name for name in found if temporary_target(name) is None]
    # run.json: another process has made it since we looked, and may have gone further.
    if names and NAME not in names:
        raise RunDirectoryError(
            f"a run directory must be new, empty or hold a run, got {storage.url} with other files "
            f"and no run.json ({', '.join(sorted(names)[:5])}); give another one"
        )


def _begin(storage: Storage, data: bytes) -> bool:
    """Create run.json; False if another process was faster."""
    try:
        storage.create(NAME, data)
    except FileExistsError:
        return False
    # Some S3 look-alikes ignore the condition: better found out now than by two writers.
    try:
        storage.create(NAME, data)
    except FileExistsError:
        return True
    raise RunDirectoryError(
        f"a run directory must be on a store that can create a file exclusively, got "
        f"{storage.url}, which replaced one; use a newer server or a shared folder"
    )
