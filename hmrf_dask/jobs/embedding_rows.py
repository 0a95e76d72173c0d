"""A column of ready embeddings as rows: no text is counted, files are only brought into form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from hmrf_dask.dataflow import DaskFlow
from hmrf_dask.jobs.bundles import Bundle, paths_of, refuse_rejects, refuse_widths
from hmrf_dask.jobs.job_rows import AT_ONCE, JobRows, SoFar
from hmrf_dask.jobs.rests import embed_rest
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.store.blocks import BlockFile, write_block
from hmrf_dask.text.files import ROWS, Place, read_json, write_json
from hmrf_dask.text.rows import Coverage
from hmrf_dask.text.together import of_each
from hmrf_dask.text.vectorise import SourceRows

FOLDER = f"{ROWS}/embeddings"
_WRITTEN = "rows.json"


def embed_documents(bundles: Sequence[Bundle], place: Place, so_far: SoFar) -> JobRows:
    """Return the embeddings of all bundles as rows; files that are done already are left.

    Raises
    ------
    InvalidInputError
        Files have embeddings of different lengths.
    """
    flow, found = DaskFlow(), list[tuple[SourceRows, dict[str, Any]]]()
    place.storage.make_root()
    rests = [one for one in bundles if one.origin is not None]
    of_each(flow, embed_rest, rests, [one.n_bytes for one in rests], place, FOLDER, _WRITTEN)
    for first in range(0, len(bundles), AT_ONCE):
        so_far(first, len(bundles))
        some = bundles[first : first + AT_ONCE]
        found += flow.compute([flow.lazy(embed_source, one, place) for one in some])
    if any(one.stop for one in bundles):  # it was read by a run that put them aside
        refuse_rejects([told for _, told in found])
    widths = {one.n_features: paths_of(told)[0] for one, told in found if one.files}
    if len(widths) > 1:
        refuse_widths(widths)
    width = max(widths, default=1)
    rows = tuple(replace(one, n_features=width) for one, _ in found)  # an empty file has none
    told = tuple(one for _, one in found)
    keys = tuple(one["key"] for one in told)
    return JobRows(rows, told, keys, None, (), False, Coverage())


def embed_source(source: Bundle, place: Place) -> tuple[SourceRows, dict[str, Any]]:
    """Return the rows of a bundle, written now if they are not there yet, and what it told."""
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
    named = tuple(BlockFile(**file) for file in known["files"])
    return SourceRows(url, named, known["n_features"], Coverage()), known["told"]
