"""Folders of an output that nobody needs any more, such as those of runs of old releases."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import fsspec

from hmrf_dask.releases.holder import Hold
from hmrf_dask.releases.output import numbers_in, open_output
from hmrf_dask.releases.release import FOLDER, pointed, read_release
from hmrf_dask.runs.storage import Storage

RUNS = "runs"
log = logging.getLogger("hmrf_dask")


def remove_folder(
    storage: Storage, folder: str, storage_options: Mapping[str, Any] | None = None
) -> bool:
    """Remove a folder; one that stays is no reason to fail when all else is done."""
    try:
        files, root = fsspec.url_to_fs(
            storage.url, **{"use_listings_cache": False, **(storage_options or {})}
        )
        files.rm(f"{root}/{folder}", recursive=True)
    except FileNotFoundError:
        pass
    except Exception as error:  # stores raise what they like
        log.warning("%s/%s could not be removed (%s); try again later", storage.url, folder, error)
        return False
    return True


def clean(
    output: str | os.PathLike[str],
    hold: Hold,
    keep: int = 2,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Remove the folders of runs that none of the newest `keep` releases names.

    What LATEST names stays, and so does the run that holds the output. Runs that were killed and
    given up go. Release files stay: they are small, and the history of the output.

    Returns
    -------
    list of str
        The runs whose folders are gone.
    """
    storage = open_output(output, storage_options)
    hold.check()
    newest = sorted(numbers_in(storage, FOLDER), reverse=True)[: max(keep, 1)]
    named = pointed(storage)
    if named is not None:
        newest.append(int(named["release"]))
    kept = {hold.holder.run}
    for number in newest:
        release = read_release(storage, number)
        # A release may name files of the runs before it.
        kept |= {release.run, *(_run_of(name) for name in release.files)}
    old = sorted(set(storage.names(RUNS)) - kept)
    return [run for run in old if remove_folder(storage, f"{RUNS}/{run}", storage_options)]


def _run_of(name: str) -> str:
    folder, _, rest = name.partition("/")
    return rest.partition("/")[0] if folder == RUNS else ""
