"""Parquet: only the columns that are asked for, a few rows at a time, page checksums verified."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hmrf_dask.documents.files import DocumentFile
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.records import (
    BadRecord,
    DamagedFile,
    Record,
    Row,
    damage,
    missing_columns,
    record_of,
)
from hmrf_dask.documents.streams import WatchedFile
from hmrf_dask.parameters import CELLS_BYTES

_UNDECODABLE = object()
_PAGE_HEADER = 32  # bytes of it that are read


def read_parquet(
    file: WatchedFile, source: DocumentFile, columns: Columns, rows: int, size: int
) -> Iterator[Record | BadRecord]:
    """Yield the rows of a Parquet file; `line` is the number of the row, from 1 on."""
    line, opened = 1, False
    try:
        table = pq.ParquetFile(
            pa.PythonFile(file, mode="r"),
            page_checksum_verification=True,
            pre_buffer=False,
            buffer_size=2**20,
        )
        problem = missing_columns(columns, table.schema_arrow.names)
        if problem:
            raise DamagedFile(0, problem)
        names = list(dict.fromkeys(name for name in columns.in_order if name is not None))
        groups, line = _row_groups(table, source.span)
        opened, at_once = True, _rows_at_once(file, table, names, rows, size)
        for batch in table.iter_batches(at_once, groups, columns=names) if groups else ():
            yield from _records(rows_of(batch, columns.in_order, line), columns)
            line += len(batch)
    except (pa.ArrowException, OSError, EOFError, DamagedFile) as error:
        if not opened and source.span and source.span[0] and not file.failure:
            return  # the first segment reports it, once
        raise error if isinstance(error, DamagedFile) else damage(file, line, error) from error


def _records(rows: Iterable[Row | BadRecord], columns: Columns) -> Iterator[Record | BadRecord]:
    for row in rows:
        if isinstance(row, BadRecord):
            yield row
        else:
            yield record_of(columns, row.line, row.values, None)


def rows_of(
    batch: pa.RecordBatch, wanted: Sequence[str | None], line: int
) -> Iterator[Row | BadRecord]:
    """Yield the values of rows in the order of the wanted columns; `line` is that of the first."""
    values = {name: _values(batch.column(name)) for name in wanted if name is not None}
    nothing = [None] * len(batch)
    taken = [nothing if name is None else values[name] for name in wanted]
    for place, row in enumerate(zip(*taken, strict=True), line):
        if any(value is _UNDECODABLE for value in row):
            yield BadRecord(place, "bytes that are not UTF-8", "")
        else:
            yield Row(place, row)


def _row_groups(table: pq.ParquetFile, span: tuple[int, int] | None) -> tuple[list[int], int]:
    """Return the row groups that begin in a span of the file, and the first one's first row."""
    groups, line = list[int](), 1
    for number in range(table.num_row_groups):
        group = table.metadata.row_group(number)
        first = group.column(0)
        place = first.dictionary_page_offset or first.data_page_offset
        if span is None or span[0] <= place < span[1]:
            groups.append(number)
        elif not groups:
            line += group.num_rows
    return groups, line


def _rows_at_once(
    file: WatchedFile, table: pq.ParquetFile, names: list[str], rows: int, size: int
) -> int:
    """Return how many rows of the heaviest row group make `size` bytes, at most `rows`.

    Any number of rows can share one word of a dictionary, which may have that many bytes.
    """
    heaviest, largest_cell = 1.0, 1
    for number in range(table.num_row_groups):
        group = table.metadata.row_group(number)
        columns = map(group.column, range(group.num_columns))
        read = [column for column in columns if column.path_in_schema.split(".")[0] in names]
        total = sum(column.total_uncompressed_size for column in read)
        heaviest = max(heaviest, total / max(group.num_rows, 1))
        for column in read:
            if column.has_dictionary_page:
                file.seek(column.dictionary_page_offset)
                largest_cell = max(largest_cell, _page_bytes(file.read(_PAGE_HEADER)))
    return max(1, min(rows, int(size / heaviest), CELLS_BYTES // largest_cell))


def _page_bytes(header: bytes) -> int:
    """Return what a page unpacks to: field 2 of its header, in Thrift's compact form.

    Each of the fields 1 and 2 is 0x15 and a number in groups of seven bits, times two.
    """
    place, number = 0, 0
    for _ in range(2):
        if header[place : place + 1] != b"\x15":
            return 0  # Arrow says what is wrong with it
        place, shift, number = place + 1, 0, 0
        while place < len(header):
            number |= (header[place] & 0x7F) << shift
            place, shift = place + 1, shift + 7
            if header[place - 1] < 0x80:
                break
    return number // 2


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        # Arrays, not lists of Python numbers: an embedding has hundreds.
        return [
            row.values.to_numpy(zero_copy_only=False) if row.is_valid else None for row in column
        ]
    if pa.types.is_temporal(kind):  # Python's own dates end in 9999 and at microseconds
        column = column.cast(pa.string())
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [_decoded(value) for value in column]


def _decoded(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return _UNDECODABLE
