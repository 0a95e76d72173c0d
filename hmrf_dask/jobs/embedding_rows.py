"""A column of ready embeddings as rows: no text is counted, files are only brought into form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from hmrf_dask.dataflow import DaskFlow
from hmrf_dask.errors import UnreadableFileError
from hmrf_dask.jobs.bundles import Bundle, check_told, paths_of, refuse_rejects, refuse_widths
from hmrf_dask.jobs.job_rows import AT_ONCE, JobRows, SoFar
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.runs.storage import Storage
from hmrf_dask.store.blocks import BlockFile, write_block
from hmrf_dask.text.files import ROWS, Place, read_record, tell_remade, write_record
from hmrf_dask.text.rows import Coverage
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


@dataclass(frozen=True)
class _EmbeddingsRecord:
    """What rows.json holds of a bundle of embeddings."""

    files: tuple[BlockFile, ...]
    n_features: int
    told: dict[str, Any]


class Embedded(NamedTuple):
    """The rows of a bundle, what it told, and what was wrong with the file that told of it."""

    rows: SourceRows
    told: dict[str, Any]
    damage: str


def embed_source(source: Bundle, place: Place) -> Embedded:
    """Return the rows of a bundle, written now if they are not there yet."""
    storage, folder = place.storage, f"{FOLDER}/{source.key}"
    url = f"{storage.url}/{folder}"
    known, damage = _record_or_damage(storage, folder)
    if known is None:
        files: list[BlockFile] = []
        width = 0
        for batch in source.read():
            if batch.embeddings is not None:
                block = RowBlock.from_array(batch.embeddings, batch.ids)
                width = block.n_features
                files.append(write_block(block, url, len(files), place.options))
        known = _EmbeddingsRecord(tuple(files), width, source.told())
        write_record(storage, f"{folder}/{WRITTEN}", asdict(known))
    return Embedded(SourceRows(url, known.files, known.n_features, Coverage()), known.told, damage)


def _record_or_damage(storage: Storage, folder: str) -> tuple[_EmbeddingsRecord | None, str]:
    """Return what is known of embeddings, and what is wrong with the file that tells it."""
    try:
        found = read_record(storage, f"{folder}/{WRITTEN}", _EmbeddingsRecord)
        if found is not None:
            check_told(found.told, f"{storage.url}/{folder}/{WRITTEN}")
        return found, ""
    except UnreadableFileError as error:
        return None, f"{error.path} {error.what}"
