"""What an output made: names of folders, recorded before they are made, for their removal.

Each run has a record of its own, and a run that ends brings all records together in its own.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable

from hmrf_dask.errors import HmrfWarning
from hmrf_dask.releases.own_files import FOLDERS
from hmrf_dask.runs import records
from hmrf_dask.runs.files import read_sealed
from hmrf_dask.runs.records import DamagedFileError
from hmrf_dask.runs.storage import Storage

FOLDER = "made"
_RECORD = re.compile(r"([0-9a-f]{16})\.json")
_NAMES = "names"


def record(storage: Storage, run_id: str, names: Iterable[str]) -> None:
    """Add names to what a run makes, before it does; whoever calls it holds the output.

    Parameters
    ----------
    storage : Storage
        Of the output.
    run_id : str
    names : iterable of str
        Folders below the output, such as ``counts/0123…``.
    """
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
    others = (one for one in _runs(storage) if one != run_id)
    storage.delete([f"{FOLDER}/{one}.json" for one in others])


def _runs(storage: Storage) -> list[str]:
    return [found[1] for found in map(_RECORD.fullmatch, storage.names(FOLDER)) if found]


def _write(storage: Storage, run_id: str, names: set[str]) -> None:
    storage.write(f"{FOLDER}/{run_id}.json", records.seal({_NAMES: sorted(names)}))
    storage.settle([FOLDER])


def _read(storage: Storage, run_id: str) -> set[str]:
    name = f"{FOLDER}/{run_id}.json"
    try:
        return set((read_sealed(storage, name) or {_NAMES: []})[_NAMES])
    except DamagedFileError:
        warnings.warn(
            f"{storage.url}/{name} is not as a run wrote it: folders that it named alone stay",
            HmrfWarning,
            stacklevel=2,
        )
        return set()
