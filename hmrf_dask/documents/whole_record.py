"""One record of a file with all of its columns, as a person asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hmrf_dask.documents.delimited import CsvTable, any_object, read_objects
from hmrf_dask.documents.files import DocumentFile, SegmentLines
from hmrf_dask.documents.records import BadRecord, Row
from hmrf_dask.documents.streams import WatchedFile, open_file
from hmrf_dask.storage.remote import explained

_ROWS = 1_000  # of Parquet that are read at once


def read_record(source: DocumentFile, line: int, longest: int) -> dict[str, Any]:
    """Return a record by the line that `Batch.lines` has for it, empty where it has no columns.

    Parameters
    ----------
    source : DocumentFile
        A file, or the segment that the line was counted in.
    line : int
    longest : int
        Bytes that a record may have.

    Raises
    ------
    SourceError
        The store failed.
    """
    if source.format not in ("jsonl", "csv", "parquet"):
        return {}
    with explained(source.path, "open it"):
        opened = open_file(source.url, dict(source.options))
    with opened:
        if source.format == "parquet":
            return _of_parquet(WatchedFile(opened, source.path), line)
        if source.format == "csv":
            file = WatchedFile(opened, source.path)
            table = CsvTable(file, source.dialect, longest, source.compression, source.encoding)
            values = _at(table, line)
            return {} if values is None else dict(zip(table.names, values, strict=False))
        part = source.span
        lines = (
            SegmentLines(opened, source.path, part) if part else WatchedFile(opened, source.path)
        )
        begins = not (part and part[0])
        rows = read_objects(lines, any_object, longest, source.compression, begins=begins)
        return _at(rows, line) or {}


def _at(rows: Iterable[Row | BadRecord], line: int) -> Any:
    """Return the values at a line, None where there are none."""
    there = (row for row in rows if row.line >= line)
    row = next(there, None)
    return row.values if isinstance(row, Row) and row.line == line else None


def _of_parquet(file: WatchedFile, line: int) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.ParquetFile(pa.PythonFile(file, mode="r"), pre_buffer=False)
    for group, first in _groups(table):
        if first <= line - 1 < first + table.metadata.row_group(group).num_rows:
            return _row_of(table.iter_batches(_ROWS, [group]), line - 1 - first)
    return {}


def _row_of(batches: Iterable[Any], place: int) -> dict[str, Any]:
    """Return the row at a place of some batches."""
    for batch in batches:
        if place < len(batch):
            row: dict[str, Any] = batch.slice(place, 1).to_pylist()[0]
            return row
        place -= len(batch)
    return {}


def _groups(table: Any) -> Iterator[tuple[int, int]]:
    """Yield row groups, each with the number of rows before it."""
    first = 0
    for group in range(table.num_row_groups):
        yield group, first
        first += table.metadata.row_group(group).num_rows
