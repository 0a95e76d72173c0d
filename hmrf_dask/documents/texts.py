"""Text files, one document each, and the corpora that packages bring."""

from __future__ import annotations

from collections.abc import Iterator

from hmrf_dask.documents.builtin import read_builtin
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.records import BadRecord, Record, damage, excerpt
from hmrf_dask.documents.sources import Source
from hmrf_dask.documents.streams import WatchedFile, decompressed
from hmrf_dask.documents.values import too_long


def read_text(
    file: WatchedFile, source: Source, columns: Columns, rows: int, size: int
) -> Iterator[Record | BadRecord]:
    """Yield the one document that a text file is."""
    try:
        stream = decompressed(file, source.compression)
        parts, length = [], 0
        while length <= columns.max_bytes and (part := stream.read(2**20)):
            parts.append(part)
            length += len(part)
    except Exception as error:
        raise damage(file, 1, error) from error
    data = b"".join(parts)
    if length > columns.max_bytes:
        yield BadRecord(1, too_long(columns.max_bytes), excerpt(data))
        return
    encoding = "utf-8-sig" if source.encoding.lower() in ("utf-8", "utf8") else source.encoding
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        byte = data[error.start]
        reason = f"bytes that are not {source.encoding}: {error.reason} (0x{byte:02x})"
        yield BadRecord(1, reason, excerpt(data))
    else:
        yield Record(1, source.document_id, text, None, None, None, None)


def read_installed(source: Source) -> Iterator[Record | BadRecord]:
    """Yield the documents of a builtin corpus; `line` counts them."""
    for line, document in enumerate(read_builtin(source.url), 1):
        yield Record(line, document.id, document.text, None, document.label, None, None)
