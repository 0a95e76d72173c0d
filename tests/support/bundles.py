"""Small files as a job gathers them."""

from __future__ import annotations

from typing import Any

from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.sources import Source
from hmrf_dask.jobs.bundles import Bundle
from hmrf_dask.jobs.inputs import DocumentSource
from hmrf_dask.jobs.ledger import Keys, entries


def of_size(path: str, size: int, kind: str = "jsonl") -> DocumentSource:
    return DocumentSource(Source(path, path, size, "1", kind), Columns())


def paths(found: list[Bundle]) -> list[list[str]]:
    return [[one.source.path for one in bundle.files] for bundle in found]


def by_path(file: DocumentSource) -> str:
    return file.source.path


def ledger(found: list[Bundle]) -> dict[str, Any]:
    keys = {f.source.path: [Keys("counts", one.key, f.key)] for one in found for f in one.files}
    return entries([f.source for one in found for f in one.files], keys)
