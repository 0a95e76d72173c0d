"""Counts, rows and vocabularies that neither this release nor the one before it was made of."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from hmrf_dask.jobs.ledger import VOCABULARY, files_of
from hmrf_dask.jobs.packs import FOLDER as DOCUMENTS
from hmrf_dask.releases import own_files
from hmrf_dask.releases.lock import numbers_in
from hmrf_dask.releases.own_files import FOLDERS, RUNS, is_within, remove_own
from hmrf_dask.releases.release import RELEASES_FOLDER as RELEASES
from hmrf_dask.releases.release import read_if_whole
from hmrf_dask.storage.stores import Storage, open_storage
from hmrf_dask.text.files import COUNTS, ROWS, VOCABULARIES

EMBEDDINGS = "embeddings"
_KEYED = (DOCUMENTS, COUNTS, VOCABULARIES)


def names_of(ledger: dict[str, Any]) -> set[str]:
    """Return the folders of an output that the files of a ledger are counted and weighed in."""
    keys = [key for entry in files_of(ledger).values() for key in entry.keys]
    vocabularies = (ledger[VOCABULARY],) if VOCABULARY in ledger else ()
    return names_made({key.pack for key in keys}, {key.counts for key in keys}, vocabularies)


def names_made(
    packs: Iterable[str], counts: Iterable[str], vocabularies: Iterable[str | None]
) -> set[str]:
    """Return the folders of packs, of their counts, and of rows in vocabularies.

    Where there are no words the vocabulary is None, and the rows are the embeddings themselves.
    """
    named = list(vocabularies)
    return {
        *(f"{DOCUMENTS}/{pack}" for pack in packs),
        *(f"{COUNTS}/{key}" for key in counts),
        *(f"{VOCABULARIES}/{one}" for one in named if one is not None),
        *(f"{ROWS}/{EMBEDDINGS if one is None else one}" for one in named),
    }


def sweep(output: str, run_id: str, ledgers: Iterable[dict[str, Any]]) -> None:
    """Remove what the output made and these ledgers do not name; whoever calls it holds the output.

    Releases that are older need none of it: their assignments and models lie in their runs.
    """
    storage = open_storage(output, {}, durable=True)
    kept = set().union(*map(names_of, ledgers))
    own = own_files.recorded(storage) | _once_named(storage)
    for folder in filter(partial(is_within, storage), _KEYED):
        for name in sorted(_there(storage, folder) & own - kept):
            remove_own(storage, name)
    for rows in sorted(_there(storage, ROWS) & (own | kept)) if is_within(storage, ROWS) else ():
        # Rows are called as the counts that they are made of; embeddings as their pack.
        of = DOCUMENTS if rows.endswith(f"/{EMBEDDINGS}") else COUNTS
        for name in _there(storage, rows):
            key = name.rpartition("/")[2]
            if FOLDERS.fullmatch(name) and not (rows in kept and f"{of}/{key}" in kept):
                remove_own(storage, name)
    left = {name for one in (*_KEYED, ROWS, RUNS) for name in _there(storage, one)} & own
    own_files.bring_together(storage, run_id, kept | left)


def _there(storage: Storage, folder: str) -> set[str]:
    return {f"{folder}/{name}" for name in storage.names(folder)}


def _once_named(storage: Storage) -> set[str]:
    """Return the names of releases that have files: a former version recorded no others."""
    found = set[str]()
    for number in sorted(numbers_in(storage, RELEASES), reverse=True):
        release = read_if_whole(storage, number)
        if release is not None and not release.files:
            break
        found |= set() if release is None else names_of(release.ledger)
    return found
