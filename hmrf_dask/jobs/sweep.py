"""Counts, rows and vocabularies that neither this release nor the one before it was made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hmrf_dask.jobs.bundles import FOLDER as DOCUMENTS
from hmrf_dask.jobs.ledger import SOURCES, VOCABULARY, keys_of
from hmrf_dask.releases.folders import remove_folder
from hmrf_dask.runs.storage import Storage, open_storage
from hmrf_dask.text.files import COUNTS, ROWS, VOCABULARIES

EMBEDDINGS = "embeddings"


def sweep(output: str, ledgers: Iterable[dict[str, Any]]) -> None:
    """Remove what no ledger names; whoever calls it holds the output.

    Releases that are older need none of it: their assignments and models lie in their runs.
    """
    storage = open_storage(output, {}, durable=True)
    for folder in list(_unnamed(storage, list(ledgers))):
        remove_folder(storage, folder)


def _unnamed(storage: Storage, ledgers: list[dict[str, Any]]) -> Iterator[str]:
    entries = [entry for ledger in ledgers for entry in ledger[SOURCES].values()]
    keys = [one for entry in entries for one in keys_of(entry)]
    documents, counted = {one.bundle for one in keys}, {one.counts for one in keys}
    vocabularies = {ledger[VOCABULARY] or EMBEDDINGS for ledger in ledgers}
    for folder, named in (
        (DOCUMENTS, documents),
        (COUNTS, counted),
        (VOCABULARIES, vocabularies),
        (ROWS, vocabularies),
    ):
        yield from (f"{folder}/{one}" for one in storage.names(folder) if one not in named)
    for vocabulary in vocabularies & set(storage.names(ROWS)):
        folder = f"{ROWS}/{vocabulary}"
        yield from (f"{folder}/{one}" for one in storage.names(folder) if one not in counted)
