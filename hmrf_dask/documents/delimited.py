"""CSV, as the Table Dialect of the manifest has it; quoted cells may hold line ends."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from itertools import chain

from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.records import (
    BadRecord,
    DamagedFile,
    Nothing,
    Record,
    damage,
    excerpt,
    missing_columns,
)
from hmrf_dask.documents.sources import Source
from hmrf_dask.documents.streams import WatchedFile, decompressed
from hmrf_dask.documents.values import is_text
from hmrf_dask.limits import CSV_COLUMNS

_MOST_CELLS = 2**31 - 1


def read_csv(
    file: WatchedFile, source: Source, columns: Columns, rows: int, size: int
) -> Iterator[Record | BadRecord]:
    """Yield the rows of a CSV file; `line` is the line where a row begins."""
    dialect = source.dialect
    if csv.field_size_limit() < columns.max_bytes:  # it is the process's, so it only ever grows
        csv.field_size_limit(min(columns.max_bytes, _MOST_CELLS))
    lines = _Lines(file, source, columns.max_bytes)
    parsed = csv.reader(
        lines, delimiter=dialect.delimiter, quotechar=dialect.quoteChar, strict=True
    )
    names, first = _header(parsed, lines, dialect.header)
    if len(names) > CSV_COLUMNS:
        raise DamagedFile(1, f"must have at most {CSV_COLUMNS:,} columns, got {len(names):,}")
    problem = missing_columns(columns, names) if names else ""
    if problem:
        raise DamagedFile(1, problem)
    take = _taker(columns, names)
    for line, cells in chain(first, _rows(parsed, lines)):
        if isinstance(cells, str):
            yield BadRecord(line, cells, lines.excerpt)
        elif len(cells) != len(names):
            reason = f"must have {len(names)} cells as the first row has, got {len(cells)}"
            yield BadRecord(line, reason, excerpt(dialect.delimiter.join(cells)))
        else:
            yield take(line, cells)


Row = tuple[int, "list[str] | str"]  # the line it begins in; its cells, or why there are none


def _header(parsed: Iterator[list[str]], lines: _Lines, named: bool) -> tuple[list[str], list[Row]]:
    """Return the names of the columns and the row that was read to know them, if it is data."""
    line, cells = next(_rows(parsed, lines), (1, []))
    if isinstance(cells, str):
        raise DamagedFile(line, cells)
    if named:
        return cells, []
    return [str(number) for number in range(1, len(cells) + 1)], [(line, cells)] if cells else []


def _rows(parsed: Iterator[list[str]], lines: _Lines) -> Iterator[Row]:
    """Yield the rows; one that is quoted wrongly does not touch those after it."""
    while True:
        begins = lines.number + 1
        lines.excerpt = ""
        try:
            cells = next(parsed)
        except StopIteration:
            return
        except csv.Error as error:
            if "field limit" in str(error):
                # What an open quote swallowed cannot be told apart from a long text.
                raise DamagedFile(begins, "a cell that is too long, or a quote left open") from None
            yield begins, f"not CSV: {error}, in lines {begins} to {lines.number}"
        else:
            if cells:
                yield begins, cells


def _taker(columns: Columns, names: list[str]) -> Callable[[int, list[str]], Record | BadRecord]:
    wanted = (columns.id, columns.text, columns.time, columns.label, columns.embedding)
    places = [names.index(name) if name in names else None for name in wanted]

    def take(line: int, cells: list[str]) -> Record | BadRecord:
        values = [None if place is None else cells[place] for place in places]
        if not all(value is None or is_text(value) for value in values):
            return BadRecord(line, "bytes that are not in the encoding", excerpt(" ".join(cells)))
        id_, text, time, label, embedding = values
        # An empty cell is how CSV says that there is nothing.
        numbers = _numbers(embedding) if embedding else None
        return Record(line, id_, text, time or None, label or None, numbers, None)

    return take


def _numbers(cell: str) -> list[float] | str:
    """Return the numbers of a cell such as "[0.1, 0.2]" or "0.1 0.2", the cell if it has others."""
    try:
        return [float(part) for part in cell.strip("[] ").replace(",", " ").split()]
    except ValueError:
        return cell


class _Lines:
    """The lines of a text, as csv.reader takes them; no line is read further than `longest`."""

    def __init__(self, file: WatchedFile, source: Source, longest: int) -> None:
        self._file = file
        self._longest = longest
        self._nothing = Nothing(longest)
        self.number = 0
        self.excerpt = ""
        stream = decompressed(file, source.compression)
        encoding = source.encoding.lower()
        self._text = io.TextIOWrapper(
            io.BufferedReader(stream, 2**18),
            encoding="utf-8-sig" if encoding in ("utf-8", "utf8") else encoding,
            errors="surrogateescape",
            newline="",
        )

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        try:
            line = self._text.readline(self._longest + 1)
        except Exception as error:
            raise damage(self._file, self.number + 1, error) from error
        if not line:
            raise StopIteration
        self.number += 1
        if line.isspace():
            self._nothing.add(len(line), 1, self.number)
        else:
            self._nothing.clear()
        if len(line) > self._longest:
            raise DamagedFile(self.number, f"a line longer than {self._longest} characters")
        self.excerpt = self.excerpt or excerpt(line)
        return line
