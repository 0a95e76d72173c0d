"""Folders of an output that nobody needs any more, such as those of runs of old releases."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

from hmrf_dask.releases import made
from hmrf_dask.releases.holder import Hold
from hmrf_dask.releases.output import numbers_in, open_output
from hmrf_dask.releases.own_files import FOLDERS, RUNS, is_within, remove_own
from hmrf_dask.releases.release import FOLDER, LATEST, name_of, pointed, read_if_whole, retire
from hmrf_dask.runs.records import DamagedFileError
from hmrf_dask.runs.storage import Storage, temporary_target

_HELD = {
    "": re.compile(LATEST),
    FOLDER: re.compile("[0-9]{5,}[.]json"),
    made.FOLDER: re.compile("[0-9a-f]{16}[.]json"),
}
HISTORY = 100  # numbers; more files of releases would be listed at every start for ever


def clean(
    output: str | os.PathLike[str],
    hold: Hold,
    keep: int = 2,
    storage_options: Mapping[str, Any] | None = None,
    *,
    also: int | None = None,
) -> list[str]:
    """Remove the folders of runs that none of the newest `keep` releases names.

    What LATEST names stays, and so does the run that holds the output. Runs that were killed and
    given up go, if this output recorded them; no folder that another program made does. Older
    release files stay without the names of files that are gone: they are the history of the
    output, the last `HISTORY` numbers of it.

    Parameters
    ----------
    also : int, optional
        Another release that stays as it is: the one that a run goes on from.

    Returns
    -------
    list of str
        The runs whose folders are gone.
    """
    storage = open_output(output, storage_options)
    hold.check()
    _drop_halves(storage)
    numbers = sorted(numbers_in(storage, FOLDER), reverse=True)
    readable = (found for one in numbers if (found := read_if_whole(storage, one)) is not None)
    newest = list(islice(readable, max(keep, 1)))
    older = [] if len(newest) < keep else [one for one in numbers if one < newest[-1].number]
    others = {also, _pointed_at(storage)} & set(older)
    newest += filter(None, (read_if_whole(storage, one) for one in others if one is not None))
    kept = {hold.holder.run}
    for release in newest:
        # A release may name files of the runs before it.
        kept |= {release.run, *(_run_of(name) for name in release.files)}
    own = {_run_of(name) for name in made.recorded(storage)}
    retired = [one for one in older if one not in others]
    # A version that recorded nothing made the runs of its releases.
    own |= set(_retire(storage, retired))
    if newest:
        _forget(storage, [one for one in retired if one <= newest[0].number - HISTORY])
    if not is_within(storage, RUNS):
        return []
    old = sorted(set(storage.names(RUNS)) & own - kept)
    return [run for run in old if remove_own(storage, f"{RUNS}/{run}")]


def _drop_halves(storage: Storage) -> None:
    """Remove halves of files that nobody else writes while this process holds the output."""
    for folder, forms in _HELD.items():
        meant = {name: temporary_target(name) for name in storage.names(folder)}
        halves = [name for name, one in meant.items() if one and forms.fullmatch(one)]
        storage.delete(f"{folder}/{name}".lstrip("/") for name in halves)


def _pointed_at(storage: Storage) -> int | None:
    try:
        named = pointed(storage)
    except DamagedFileError:  # who reads it is told; what is newest is found without it
        return None
    return None if named is None else int(named["release"])


def _retire(storage: Storage, older: list[int]) -> list[str]:
    """Retire releases, newest first, as far as that was not done before; return their runs."""
    runs = []
    for number in older:
        release = read_if_whole(storage, number)
        if release is not None and not release.files:
            break
        if release is not None:
            retire(storage, release)
            runs.append(release.run)
    return [run for run in runs if FOLDERS.fullmatch(f"{RUNS}/{run}")]


def _forget(storage: Storage, older: list[int]) -> None:
    """Remove the files of releases that were retired long ago."""
    for number in older:
        release = read_if_whole(storage, number)
        if release is not None and not release.files:
            storage.delete([name_of(number)])


def _run_of(name: str) -> str:
    folder, _, rest = name.partition("/")
    return rest.partition("/")[0] if folder == RUNS else ""
