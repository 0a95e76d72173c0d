"""The rows of pair files as they stand there: CSV, JSONL or Parquet, with their lines."""

from __future__ import annotations

import codecs
import csv
import io
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from hmrf_dask.constraints.columns import EITHER, Columns, Notes, columns_of
from hmrf_dask.constraints.labels import LabelRows
from hmrf_dask.errors import HmrfWarning, InvalidInputError
from hmrf_dask.limits import ANSWER_LINES, BAD_ANSWERS

_HEADER_BYTES = 2**16
RAW = 200  # characters of a bad line that are kept
SUGGESTED = 20  # bad lines whose names are compared with those known
NO_TEXT = "must be UTF-8 text, got other bytes (spreadsheets: save as CSV UTF-8)"
_DELIMITERS = ",;\t"  # which of them a spreadsheet writes depends on its language


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line (of Parquet a row) of a pair file that is no pair, and why."""

    line: int
    reason: str
    raw: str


@dataclass(slots=True)
class Table:
    """The columns of a pair file, with the place of each row in the file for errors."""

    path: str
    unit: str
    first: list[Any] = field(default_factory=list)
    second: list[Any] = field(default_factory=list)
    kinds: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    notes: list[Notes | None] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)
    labels: LabelRows = field(init=False)

    def __post_init__(self) -> None:
        self.labels = LabelRows(self.refuse)

    def refuse(self, place: int, reason: object, raw: object = "") -> None:
        """Note a line that is no pair; so many of them are another kind of file."""
        if len(self.bad) >= BAD_ANSWERS:
            raise InvalidInputError(
                f"{self.path}: must have at most {BAD_ANSWERS:,} {self.unit}s that are no answers, "
                f"got more up to {self.unit} {place}; is it an answers file?"
            )
        self.bad.append(BadLine(place, str(reason), str(raw)[:RAW]))

    def add(self, row: Sequence[Any], place: int, notes: Notes | None = None) -> None:
        """Append one row: a, b, kind, weight."""
        columns = (self.first, self.second, self.kinds, self.weights)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        self.places.append(place)
        self.notes.append(notes)

    def read(self, row: Sequence[Any], columns: Columns, place: int, raw: object = "") -> None:
        """Take a row of the file in: a pair, or a document and its class."""
        notes, reason = columns.notes_of(row) if columns.notes else (None, "")
        if reason:
            self.refuse(place, reason, raw or ",".join(map(_as_text, row)))
        elif columns.labelled:
            self.labels.add(columns.values(row), place, notes)
        else:
            self.add(columns.values(row), place, notes)


def _as_text(value: Any) -> str:
    return "" if value is None else str(value)


def pair_ending(address: str) -> str:
    """Return the ending of a name, which says what a pair file is."""
    ending = PurePosixPath(address).suffix.lower()
    if ending not in _READERS:
        raise InvalidInputError(
            f"a pair file must be named {', '.join(_READERS)}, got {address!r}: rename it"
        )
    return ending


def read_rows(data: bytes, address: str) -> Table:
    """Return all rows of a pair file; one without a byte is that of a project that begins."""
    read = _READERS[pair_ending(address)]
    if data.removeprefix(codecs.BOM_UTF8).strip():
        n_lines = 0 if read is _read_parquet else data.count(b"\n")
        _refuse_many(n_lines, "lines", address)
        return read(data, address)
    warnings.warn(f"{address} is empty: it has no answers yet", HmrfWarning, stacklevel=2)
    return Table(address, "line")


def _refuse_many(number: int, what: str, address: str) -> None:
    if number > ANSWER_LINES:
        raise InvalidInputError(
            f"{address}: must have at most {ANSWER_LINES:,} {what}, got {number:,}; cut it into "
            "several files"
        )


def _text(data: bytes) -> str:
    """Return bytes as text; what is no UTF-8 stays to be seen, as surrogates."""
    return data.decode("utf-8-sig", "surrogateescape")


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\udc80" <= one <= "\udcff" for one in text)


def _read_jsonl(data: bytes, address: str) -> Table:
    table = Table(address, "line")
    for place, line in enumerate(_text(data).split("\n"), 1):
        if not line.strip():
            continue
        raw = line.strip()
        if not _is_text(line):
            table.refuse(place, NO_TEXT, raw)
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            table.refuse(place, f"must be JSON, {error}", raw)
            continue
        if not isinstance(found, dict):
            table.refuse(place, f"must be an object with {EITHER}, got {raw:.80}", raw)
            continue
        columns = columns_of(tuple(found), suggest=len(table.bad) < SUGGESTED)
        if isinstance(columns, str):
            table.refuse(place, columns, raw)
        else:
            table.read(list(found.values()), columns, place, raw)
    return table


def delimiter_of(data: bytes) -> str:
    r"""Return what separates the cells of a CSV file: the commonest in its first line.

    Examples
    --------
    >>> delimiter_of(b"a;b;kind;what, if anything\n1;2;must;")
    ';'
    """
    header = data[:_HEADER_BYTES].replace(b"\r", b"\n").partition(b"\n")[0].decode("latin-1")
    return max(_DELIMITERS, key=header.count)


def _read_csv(data: bytes, address: str) -> Table:
    table = Table(address, "line")
    lines = io.StringIO(_text(data), newline="")
    reader = csv.reader(lines, delimiter=delimiter_of(data), strict=True)
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise InvalidInputError(f"{address}, line 1: {error}") from error
    if not _is_text("".join(header)):
        raise InvalidInputError(f"{address}, line 1: {NO_TEXT}")
    columns = _columns(header, f"{address}, line 1")
    while True:
        began = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return table
        except csv.Error as error:  # the reader goes on with the next line
            lost = f", and so all lines to {reader.line_num}" if reader.line_num > began else ""
            table.refuse(began, f"{error}{lost}")
            continue
        place, raw = reader.line_num, ",".join(fields)
        if not any(fields):  # spreadsheets write rows that were emptied as ",,,"
            continue
        if not _is_text(raw):
            table.refuse(place, NO_TEXT, raw)
        elif len(fields) != len(header):
            wanted = f"{len(header)} fields ({', '.join(header)[:RAW]})"
            table.refuse(place, f"must have {wanted}, got {len(fields)}", raw)
        else:
            table.read(fields, columns, place, raw)


def _columns(header: Sequence[str], where: str) -> Columns:
    columns = columns_of(tuple(header))
    if isinstance(columns, str):
        raise InvalidInputError(f"{where}: {columns}; give the file such a header")
    return columns


def _read_parquet(data: bytes, address: str) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from hmrf_dask.plain_parquet import read_plain_table  # it imports these too

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        _refuse_many(file.metadata.num_rows, "rows", address)
        found = read_plain_table(data)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(f"{address}: is not a whole Parquet file, {error}") from error
    columns = _columns(found.column_names, address)
    try:
        values = [_values(column) for column in found.columns]
    except (pa.ArrowException, ValueError, OverflowError) as error:  # times out of every range
        raise InvalidInputError(f"{address}: its values must be plain ones, {error}") from error
    table = Table(address, "row")
    for place, row in enumerate(zip(*values, strict=True), 1):
        table.read(row, columns, place)
    return table


def _values(column: Any) -> list[Any]:
    """Return a column's values; timestamps as text, which Python's own may be too coarse for."""
    import pyarrow as pa

    if pa.types.is_temporal(column.type):
        column = column.cast(pa.string())
    return list(column.to_pylist())


_READERS = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
