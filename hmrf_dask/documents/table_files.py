"""Rows of a small CSV, JSONL or Parquet file that is read whole, by the names of its columns.

Answers and known classes are read this way; errors name the file and the line.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from hmrf_dask.documents.delimited import CsvTable, delimiter_of, not_text
from hmrf_dask.documents.jsonl import any_object, read_objects
from hmrf_dask.documents.manifest import Dialect
from hmrf_dask.documents.records import BadRecord, DamagedFile, Row, excerpt
from hmrf_dask.documents.streams import WatchedFile
from hmrf_dask.documents.values import is_text
from hmrf_dask.errors import InvalidInputError

ENDINGS = (".csv", ".jsonl", ".parquet")
LONGEST = 16 * 2**20  # bytes of a line
_BATCH_ROWS = 10_000


class TableRow(NamedTuple):
    """The values of a line or row, with the names of their columns."""

    line: int
    names: tuple[str, ...]
    values: Sequence[Any]
    raw: bytes | None = None

    def refused(self, reason: str) -> BadRecord:
        """Return the row as a bad record."""
        if self.raw is not None:
            return BadRecord(self.line, reason, excerpt(self.raw))
        values = ("" if value is None else str(value) for value in self.values)
        return BadRecord(self.line, reason, excerpt(",".join(values)))


class TableFile(NamedTuple):
    """The rows of a file.

    Attributes
    ----------
    unit : {"line", "row"}
        What is counted.
    names : tuple of str or None
        Of the columns; None where each row has its own (JSONL).
    rows : iterator
    """

    unit: str
    names: tuple[str, ...] | None
    rows: Iterator[TableRow | BadRecord]


def ending_of(address: str, what: str) -> str:
    """Return the ending of a name, which says the format; `what` names the file in an error."""
    ending = PurePosixPath(address).suffix.lower()
    if ending not in ENDINGS:
        raise InvalidInputError(
            f"{what} must be named {', '.join(ENDINGS)}, got {address!r}: rename it"
        )
    return ending


def read_table(data: bytes, address: str, most: int | None = None) -> TableFile:
    """Return the rows in the bytes of a file.

    Parameters
    ----------
    data : bytes
    address : str
        Its name, which has one of `ENDINGS`.
    most : int, optional
        How many rows it may have.

    Raises
    ------
    InvalidInputError
        It cannot be read; the rows raise it where they break off.
    """
    ending = PurePosixPath(address).suffix.lower()
    if ending == ".parquet":
        return _read_parquet(data, address, most)
    _refuse_many(data.count(b"\n"), "lines", most, address)
    file = WatchedFile(io.BytesIO(data), address)
    if ending == ".jsonl":
        return TableFile("line", None, _named(_jsonl_rows(file), address))
    try:
        table = CsvTable(file, Dialect(delimiter=delimiter_of(data)), LONGEST)
        if not is_text("".join(table.names)):
            raise DamagedFile(1, not_text("utf-8"))
    except DamagedFile as error:
        raise InvalidInputError(f"{address}, line {error.line}: {error.reason}") from error
    names = tuple(table.names)
    return TableFile("line", names, _named(_csv_rows(table, names), address))


def _refuse_many(number: int, what: str, most: int | None, address: str) -> None:
    if most is not None and number > most:
        raise InvalidInputError(
            f"{address}: must have at most {most:,} {what}, got {number:,}; cut it into several "
            "files"
        )


def _named(rows: Iterator[TableRow | BadRecord], address: str) -> Iterator[TableRow | BadRecord]:
    """Yield rows; where they break off, the error names the file."""
    try:
        yield from rows
    except DamagedFile as error:
        raise InvalidInputError(f"{address}, line {error.line}: {error.reason}") from error


def _jsonl_rows(file: WatchedFile) -> Iterator[TableRow | BadRecord]:
    for row in read_objects(file, any_object, LONGEST):
        if isinstance(row, BadRecord):
            yield row
        else:
            yield TableRow(row.line, tuple(row.values), [*row.values.values()], row.raw)


def _csv_rows(table: CsvTable, names: tuple[str, ...]) -> Iterator[TableRow | BadRecord]:
    for row in table:
        if isinstance(row, BadRecord):
            yield row
        elif any(row.values):  # spreadsheets write rows that were emptied as ",,,"
            yield _checked(row, table, names)


def _checked(row: Row, table: CsvTable, names: tuple[str, ...]) -> TableRow | BadRecord:
    if not is_text("".join(row.values)):
        return table.refused(row, not_text("utf-8"))
    return table.bad(row) or TableRow(row.line, names, row.values)


def _read_parquet(data: bytes, address: str, most: int | None) -> TableFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from hmrf_dask.storage.parquet import read_plain_table  # it imports these too

    try:
        n_rows = pq.read_metadata(pa.BufferReader(data)).num_rows
        _refuse_many(n_rows, "rows", most, address)
        table = read_plain_table(data)
    except InvalidInputError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise InvalidInputError(f"{address}: is not a whole Parquet file, {error}") from error
    names = tuple(table.column_names)
    return TableFile("row", names, _parquet_rows(table, names, address))


def _parquet_rows(
    table: Any, names: tuple[str, ...], address: str
) -> Iterator[TableRow | BadRecord]:
    import pyarrow as pa

    from hmrf_dask.documents.parquet import rows_of

    line = 1
    try:
        for batch in table.to_batches(_BATCH_ROWS):
            for row in rows_of(batch, names, line):
                yield row if isinstance(row, BadRecord) else TableRow(row.line, names, row.values)
            line += len(batch)
    except (pa.ArrowException, OverflowError) as error:  # times out of every range
        raise InvalidInputError(f"{address}: its values must be plain ones, {error}") from error
