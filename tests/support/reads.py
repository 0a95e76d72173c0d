"""What is read of a corpus of files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from hmrf_dask.fit import fitting
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.files import BlockSource
from hmrf_dask.text import lsa


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every corpus of files one that does not fit."""
    for module in (fitting, lsa):
        monkeypatch.setattr(module, "memory_of_all", lambda: 2**10)


@dataclass
class Reads:
    """How often each file was decoded, and the most bytes of blocks that were there at a time."""

    files: list[str] = field(default_factory=list)
    most: int = 0
    lock: Any = field(default_factory=threading.Lock)


@contextmanager
def watched_reads() -> Iterator[Reads]:
    """Take down what is read inside; blocks of sparse rows without ids lie in Arrow's memory."""
    seen, patch, decode = Reads(), pytest.MonkeyPatch(), BlockSource.decode

    def watched(self: BlockSource, fetched: Any) -> RowBlock:
        block = decode(self, fetched)
        with seen.lock:
            seen.files.append(self.file.name)
            seen.most = max(seen.most, pa.total_allocated_bytes())
        return block

    patch.setattr(BlockSource, "decode", watched)
    patch.setattr(BlockSource, "read", lambda self: self.decode(self.fetch()))
    try:
        yield seen
    finally:
        patch.undo()
