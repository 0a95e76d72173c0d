"""Files of documents in every format, and a folder to put them in and read them from."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.documents.batches import Batch, read_batches
from hmrf_dask.documents.files import DocumentFile, list_files
from hmrf_dask.documents.manifest import SCHEMA, Manifest

ROWS = [
    {"id": "a", "text": "cats and dogs", "time": "2026-01-01", "label": "pets", "more": [1]},
    {"id": "b/../c", "text": "Größe, naïve 日本\nsecond line", "time": None, "label": "x"},
    {"id": "/etc/passwd", "text": 'he said "stop"', "time": "2026-01-03", "label": None},
    {"id": "4", "text": "stars, planets", "time": "", "label": "space"},
]
COLUMNS = {"time": "time", "label": "label"}


def as_jsonl(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_parquet(rows: list[dict[str, Any]], **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink, write_page_checksum=True, **options)
    return bytes(sink.getvalue())


def as_zst(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


FORMS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "d.jsonl": as_jsonl,
    "d.jsonl.gz": lambda rows: gzip.compress(as_jsonl(rows)),
    "d.jsonl.zst": lambda rows: as_zst(as_jsonl(rows)),
    "d.csv": as_csv,
    "d.csv.gz": lambda rows: gzip.compress(as_csv(rows)),
    "d.parquet": as_parquet,
}


def manifest_of(path: str, columns: Any = None, **resource: Any) -> Manifest:
    resources = [{"name": "r", "path": path, **resource}]
    found = {"$schema": SCHEMA, "name": "m", "resources": resources, "documents": columns or {}}
    return Manifest.model_validate(found)


class Folder:
    """A folder to put files in and read them from."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def put(self, name: str, data: bytes) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(data)

    def source(self, name: str, **resource: Any) -> DocumentFile:
        (found,) = list_files(manifest_of(name, **resource), str(self.path))
        return found

    def read(
        self, name: str, data: bytes, columns: Any = None, limits: Any = None, **resource: Any
    ) -> list[Batch]:
        self.put(name, data)
        manifest = manifest_of(name, columns, **resource)
        (source,) = list_files(manifest, str(self.path))
        return list(read_batches(source, manifest.documents, **(limits or {})))

    def one(self, name: str, data: bytes, columns: Any = None, **resource: Any) -> Batch:
        (batch,) = self.read(name, data, columns, **resource)
        return batch


def rejects_of(batch: Batch) -> list[tuple[int, str | None, str]]:
    return [(reject.line, reject.id, reject.reason) for reject in batch.rejects]
