"""One file of documents as vectorising reads it, with what is kept beside its counts.

`documents/<key>/` below the output holds the known classes of its documents, which no row has, and
the records that are no documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.documents.batches import Batch, Reject, read_batches
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.sources import Source
from hmrf_dask.text.files import Place

FOLDER = "documents"


@dataclass
class DocumentSource:
    """A file with documents; see `hmrf_dask.text.vectorise.TextSource`.

    Attributes
    ----------
    source : Source
    columns : Columns
    place : Place
        The output.
    stop : bool
        Whether a bad record is an error.
    """

    source: Source
    columns: Columns
    place: Place
    stop: bool
    _told: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def key(self) -> str:
        """What the documents depend on: the file, and how it is read."""
        one = self.source
        file = [one.path, one.size, one.etag, one.format, one.compression, one.encoding]
        how = [one.dialect.model_dump(mode="json"), self.columns.model_dump(mode="json")]
        return sha256(json.dumps([*file, *how]).encode()).hexdigest()[:24]

    @property
    def n_bytes(self) -> int:
        """How large the file is."""
        return self.source.size

    def read(self) -> Iterator[Batch]:
        """Yield the documents; a bad record is an error, or goes to a file."""
        self._told = {"key": self.key, "path": self.source.path, "rejects": [], "labels": []}
        n_rejects, first = 0, ""
        for number, batch in enumerate(read_batches(self.source, self.columns)):
            if batch.rejects:
                if self.stop:
                    raise batch.rejects[0].as_error()
                first = first or str(batch.rejects[0].as_error())
                n_rejects += len(batch.rejects)
                self._told["rejects"].append(self._write_rejects(number, batch.rejects))
            if "label" in batch.extra:
                self._told["labels"].append(self._write_labels(number, batch))
            yield batch
        self._told |= {"n_rejects": n_rejects, "first_reject": first}

    def told(self) -> dict[str, Any]:
        """Return the names of the files beside, and how many records are no documents."""
        return self._told

    def _write_rejects(self, number: int, rejects: list[Reject]) -> str:
        name = f"{FOLDER}/{self.key}/rejects-{number:05d}.jsonl"
        self.place.storage.write(name, encode_rejects(rejects))
        return name

    def _write_labels(self, number: int, batch: Batch) -> str:
        columns = {"id": batch.ids, "label": batch.extra["label"]}
        table = pa.table({name: pa.array(one, pa.string()) for name, one in columns.items()})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
        name = f"{FOLDER}/{self.key}/labels-{number:05d}.parquet"
        self.place.storage.write(name, sink.getvalue().to_pybytes())
        return name


def encode_rejects(rejects: list[Reject]) -> bytes:
    """Return rejects as JSON lines."""
    lines = (json.dumps(asdict(one), ensure_ascii=False) for one in rejects)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
