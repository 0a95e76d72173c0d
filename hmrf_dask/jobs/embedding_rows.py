"""A column of ready embeddings as rows: no text is counted, files are only brought into form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from hmrf_dask.dataflow import DaskFlow
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.jobs.document_source import DocumentSource
from hmrf_dask.jobs.job_rows import AT_ONCE, JobRows, SoFar
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.store.blocks import BlockFile, write_block
from hmrf_dask.text.files import ROWS, Place, read_json, write_json
from hmrf_dask.text.rows import Coverage
from hmrf_dask.text.vectorise import SourceRows

FOLDER = f"{ROWS}/embeddings"
_WRITTEN = "rows.json"


def embed_documents(sources: Sequence[DocumentSource], place: Place, so_far: SoFar) -> JobRows:
    """Return the embeddings of all files as rows; files that are done already are left.

    Raises
    ------
    InvalidInputError
        Files have embeddings of different lengths.
    """
    flow, found = DaskFlow(), list[tuple[SourceRows, dict[str, Any]]]()
    place.storage.make_root()
    for first in range(0, len(sources), AT_ONCE):
        so_far(first, len(sources))
        some = sources[first : first + AT_ONCE]
        found += flow.compute([flow.lazy(embed_source, one, place) for one in some])
    widths = {one.n_features: told["path"] for one, told in found if one.files}
    if len(widths) > 1:
        shown = ", ".join(f"{width} in {path}" for width, path in sorted(widths.items()))
        raise InvalidInputError(
            f"embeddings must have the same length in all files, got {shown}; make those of other "
            "files with the same model"
        )
    width = max(widths, default=1)
    rows = tuple(replace(one, n_features=width) for one, _ in found)  # an empty file has none
    told = tuple(one for _, one in found)
    keys = tuple(one["key"] for one in told)
    return JobRows(rows, told, keys, None, (), False, Coverage())


def embed_source(source: DocumentSource, place: Place) -> tuple[SourceRows, dict[str, Any]]:
    """Return the rows of a file, written now if they are not there yet, and what it told."""
    storage, folder = place.storage, f"{FOLDER}/{source.key}"
    url = f"{storage.url}/{folder}"
    known = read_json(storage, f"{folder}/{_WRITTEN}")
    if known is None:
        files: list[BlockFile] = []
        width = 0
        for batch in source.read():
            if batch.embeddings is not None:
                block = RowBlock.from_array(batch.embeddings, batch.ids)
                width = block.n_features
                files.append(write_block(block, url, len(files), place.options))
        written = [asdict(file) for file in files]
        known = {"files": written, "n_features": width, "told": source.told()}
        write_json(storage, f"{folder}/{_WRITTEN}", known)
    if source.stop and known["told"]["n_rejects"]:
        raise InvalidInputError(known["told"]["first_reject"])
    named = tuple(BlockFile(**file) for file in known["files"])
    return SourceRows(url, named, known["n_features"], Coverage()), known["told"]
