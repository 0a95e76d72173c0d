"""A column of ready embeddings as rows: no text is counted, files are only brought into form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from hmrf_dask.dataflow import DaskFlow
from hmrf_dask.jobs.bundles import Bundle, paths_of, refuse_rejects, refuse_widths
from hmrf_dask.jobs.job_rows import AT_ONCE, JobRows, SoFar
from hmrf_dask.jobs.rests import EmbeddingsRecord, embed_rest, embeddings_or_damage
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.store.blocks import BlockFile, write_block
from hmrf_dask.text.files import ROWS, Place, tell_remade, write_record
from hmrf_dask.text.rows import Coverage
from hmrf_dask.text.together import of_each
from hmrf_dask.text.vectorise import WRITTEN, SourceRows

FOLDER = f"{ROWS}/embeddings"


def embed_documents(bundles: Sequence[Bundle], place: Place, so_far: SoFar) -> JobRows:
    """Return the embeddings of all bundles as rows; files that are done already are left.

    Raises
    ------
    InvalidInputError
        Files have embeddings of different lengths.
    """
    flow, found = DaskFlow(), list[Embedded]()
    place.storage.make_root()
    rests = [one for one in bundles if len(one.origins) == 1]
    of_each(flow, embed_rest, rests, [one.n_bytes for one in rests], place, FOLDER)
    for first in range(0, len(bundles), AT_ONCE):
        so_far(first, len(bundles))
        some = bundles[first : first + AT_ONCE]
        made = flow.compute([flow.lazy(embed_source, one, place) for one in some])
        tell_remade([one.damage for one in made if one.damage])
        found += made
    told = tuple(one.told for one in found)
    if any(one.stop for one in bundles):  # it was read by a run that put them aside
        refuse_rejects(told)
    widths = {one.rows.n_features: paths_of(one.told)[0] for one in found if one.rows.files}
    if len(widths) > 1:
        refuse_widths(widths)
    width = max(widths, default=1)
    rows = tuple(replace(one.rows, n_features=width) for one in found)  # an empty file has none
    keys = tuple(one["key"] for one in told)
    return JobRows(rows, told, keys, None, (), False, Coverage())


class Embedded(NamedTuple):
    """The rows of a bundle, what it told, and what was wrong with the file that told of it."""

    rows: SourceRows
    told: dict[str, Any]
    damage: str


def embed_source(source: Bundle, place: Place) -> Embedded:
    """Return the rows of a bundle, written now if they are not there yet."""
    storage, folder = place.storage, f"{FOLDER}/{source.key}"
    url = f"{storage.url}/{folder}"
    known, damage = embeddings_or_damage(storage, folder)
    if known is None:
        files: list[BlockFile] = []
        width = 0
        for batch in source.read():
            if batch.embeddings is not None:
                block = RowBlock.from_array(batch.embeddings, batch.ids)
                width = block.n_features
                files.append(write_block(block, url, len(files), place.options))
        known = EmbeddingsRecord(tuple(files), width, source.told())
        write_record(storage, f"{folder}/{WRITTEN}", asdict(known))
    return Embedded(SourceRows(url, known.files, known.n_features, Coverage()), known.told, damage)
