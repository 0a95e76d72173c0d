"""One file of documents, or a segment of a large one, and how it is read."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from hmrf_dask.documents.batches import Batch, read_batches
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.sources import Source


@dataclass(frozen=True)
class DocumentSource:
    """A file with documents.

    Attributes
    ----------
    source : Source
    columns : Columns
    """

    source: Source
    columns: Columns

    @cached_property
    def key(self) -> str:
        """What the documents depend on: the file, and how it is read."""
        one = self.source
        file: list[Any] = [one.path, one.size, one.etag, one.format, one.compression, one.encoding]
        file += [] if one.span is None else [one.span]
        how = [one.dialect.model_dump(mode="json"), self.columns.model_dump(mode="json")]
        return sha256(json.dumps([*file, *how]).encode()).hexdigest()[:24]

    def read(self) -> Iterator[Batch]:
        """Yield the documents, and what is none."""
        return read_batches(self.source, self.columns)

    def lines_of(self, ids: Container[str]) -> dict[str, int]:
        """Return the lines of documents with some ids, counted as `read` counts them."""
        return {
            one: line
            for batch in self.read()
            for one, line in zip(batch.ids, batch.lines, strict=True)
            if one in ids
        }
