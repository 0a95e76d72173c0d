"""What is left of a bundle some of whose files changed or are gone: no file is read again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from hmrf_dask.documents.batches import Reject
from hmrf_dask.errors import UnreadableFileError
from hmrf_dask.jobs.bundles import (
    FOLDER,
    Bundle,
    Told,
    check_told,
    paths_of,
    read_beside,
    read_rejects,
    read_table,
)
from hmrf_dask.runs.storage import Storage
from hmrf_dask.store.blocks import BlockFile, BlockSource, number_of, write_block
from hmrf_dask.text.files import (
    COUNTED,
    COUNTS,
    CountedBatch,
    CountedSource,
    Place,
    read_counted,
    read_record,
    source_or_damage,
    write_counted,
    write_record,
    write_source,
)
from hmrf_dask.text.settings import TextSettings
from hmrf_dask.text.vectorise import WRITTEN, counts_key
from hmrf_dask.types import BoolArray


def count_rest(bundle: Bundle, settings: TextSettings, place: Place) -> None:
    """Take the counts of a bundle out of those of its origin, unless one or the other is gone."""
    (origin,) = bundle.origins
    storage, key = place.storage, counts_key(bundle.key, settings)
    if source_or_damage(storage, key)[0] is not None:
        return
    whole, _ = source_or_damage(storage, counts_key(origin, settings))
    if whole is not None:
        check_told(whole.told, f"{storage.url}/{COUNTS}/{whole.key}/{COUNTED}")
    if whole is None or not _is_whole(storage, whole.told):  # then its files are read
        return
    rest = _Rest(bundle, whole.told, storage)
    batches: list[CountedBatch] = []
    for number, (batch, kept) in enumerate(zip(whole.batches, rest.kept(), strict=True)):
        counted, ids = read_counted(storage, batch)
        names = np.asarray(ids, object)[kept].tolist()
        rest.add(number, kept, names)
        batches.append(write_counted(storage, key, number, counted.take(kept), names))
    write_source(storage, CountedSource(key, tuple(batches), rest.told.as_json()))


@dataclass(frozen=True)
class EmbeddingsRecord:
    """What rows.json holds of a bundle of embeddings."""

    files: tuple[BlockFile, ...]
    n_features: int
    told: dict[str, Any]


def embeddings_or_damage(storage: Storage, folder: str) -> tuple[EmbeddingsRecord | None, str]:
    """Return what is known of embeddings, and what is wrong with the file that tells it."""
    try:
        found = read_record(storage, f"{folder}/{WRITTEN}", EmbeddingsRecord)
        if found is not None:
            check_told(found.told, f"{storage.url}/{folder}/{WRITTEN}")
        return found, ""
    except UnreadableFileError as error:
        return None, f"{error.path} {error.what}"


def embed_rest(bundle: Bundle, place: Place, folder: str) -> None:
    """Take the embeddings of a bundle out of those of its origin, as `count_rest` does counts."""
    storage = place.storage
    (origin,) = bundle.origins
    mine, whole = f"{folder}/{bundle.key}", f"{folder}/{origin}"
    stored, _ = embeddings_or_damage(storage, whole)
    if stored is None or embeddings_or_damage(storage, mine)[0] is not None:
        return
    if not _is_whole(storage, stored.told):
        return
    rest = _Rest(bundle, stored.told, storage)
    files, left = list[BlockFile](), iter(stored.files)
    for number, kept in enumerate(rest.kept()):
        names: list[str] = []
        if len(kept):  # a batch of records that are no documents has no file
            file, width = next(left), stored.n_features
            source = BlockSource(f"{storage.url}/{whole}", file, width, dict(place.options))
            block = source.read().take(np.flatnonzero(kept))
            names = block.ids.tolist()
            if names:
                url = f"{storage.url}/{mine}"
                files.append(write_block(block, url, number_of(file), place.options))
        rest.add(number, kept, names)
    known = EmbeddingsRecord(tuple(files), stored.n_features, rest.told.as_json())
    write_record(storage, f"{mine}/{WRITTEN}", asdict(known))


def _is_whole(storage: Storage, told: Mapping[str, Any]) -> bool:
    """Return whether all that lies beside a bundle is still there."""
    beside = [*told["rejects"], *filter(None, told["labels"])]
    there = set(storage.names(f"{FOLDER}/{told['key']}")) if beside else set()
    return all(name.rpartition("/")[2] in there for name in beside)


class _Rest:
    """What lies beside the rows of a bundle, taken out of that of its origin."""

    def __init__(self, bundle: Bundle, whole: Mapping[str, Any], storage: Storage) -> None:
        self.told = Told(bundle)
        self._whole, self._storage = whole, storage
        self._paths = {one.source.path for one in bundle.files}
        here = {path: number for number, path in enumerate(one.source.path for one in bundle.files)}
        self._numbers = [here.get(path) for path in paths_of(whole)]

    def kept(self) -> Iterator[BoolArray]:
        """Yield of each batch which of its documents stay."""
        for documents in self._whole["documents"]:
            stays = [self._numbers[file] is not None for file, _ in documents]
            yield np.repeat(np.asarray(stays, np.bool_), [n for _, n in documents])

    def add(self, number: int, kept: BoolArray, ids: list[str]) -> None:
        """Take out what lies beside a batch."""
        documents = [
            [here, n]
            for file, n in self._whole["documents"][number]
            if (here := self._numbers[file]) is not None
        ]
        self.told.add(documents, ids, self._labels(number, kept), self._rejects(number))

    def _labels(self, number: int, kept: BoolArray) -> list[str | None] | None:
        name = self._whole["labels"][number]
        if name is None:
            return None
        table = read_beside(self._storage, name, read_table)
        labels: list[str | None] = table["label"].filter(pa.array(kept)).to_pylist()
        return labels

    def _rejects(self, number: int) -> list[Reject]:
        stem = f"/rejects-{number:05d}-"
        names = [name for name in self._whole["rejects"] if stem in name]
        found = [one for name in names for one in read_beside(self._storage, name, read_rejects)]
        return [one for one in found if one.source in self._paths]
