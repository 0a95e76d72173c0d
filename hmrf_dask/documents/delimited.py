"""Documents in text files: JSON Lines, and CSV, whose quoted cells may hold line ends; tables.

Answers and known classes are tables in CSV, JSONL or Parquet; errors name the file and the line.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import msgspec

from hmrf_dask.documents.files import DocumentFile
from hmrf_dask.documents.manifest import Columns, Dialect
from hmrf_dask.documents.records import (
    RAISE_LIMIT,
    BadRecord,
    DamagedFile,
    Nothing,
    Record,
    Row,
    damage,
    excerpt,
    is_text,
    missing_columns,
    record_of,
    too_long,
)
from hmrf_dask.documents.streams import WatchedFile, decompressed
from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.parameters import CSV_COLUMNS
from hmrf_dask.redaction import shortened

CHUNK_BYTES = 2**20


def read_objects(
    file: WatchedFile,
    decode: Callable[[bytes], Any],
    longest: int,
    compression: str = "none",
    *,
    begins: bool = True,
    way_out: str = "cut it",
) -> Iterator[Row | BadRecord]:
    r"""Yield what each line holds; empty lines hold nothing, a bad one does not touch the others.

    `decode` returns the object of a line, or raises what `msgspec` or `json` raises; a line has at
    most `longest` bytes, and `way_out` says what to do about a longer one. The first line that
    `begins` a file may have a byte order mark.

    Examples
    --------
    >>> import io
    >>> file = WatchedFile(io.BytesIO(b'{"id": 1}\n{"id": '), "a.jsonl")
    >>> [type(row).__name__ for row in read_objects(file, any_object, 1000)]
    ['Row', 'BadRecord']
    """
    nothing = Nothing(longest)
    for first, lines in _lines(file, compression, longest, nothing):
        if first == 1 and begins:
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        for number, line in enumerate(lines, first):
            if not line or line.isspace():
                nothing.add(len(line) + 1, 1, number)
                continue
            nothing.clear()
            if len(line) > longest:
                yield BadRecord(number, too_long(longest, way_out), excerpt(line))
                continue
            try:
                value = decode(line)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                yield BadRecord(number, _reason(error), excerpt(line))
            else:
                yield Row(number, value, line)


def any_object(line: bytes) -> dict[str, Any]:
    """Return a JSON object with all its keys, as Python reads it: NaN and Infinity are numbers.

    Examples
    --------
    >>> any_object(b'{"id": 1, "x": NaN}')
    {'id': 1, 'x': nan}
    """
    value = json.loads(line.decode())
    if not isinstance(value, dict):
        raise msgspec.ValidationError(f"Expected `object`, got {line.decode().strip():.80}")
    return value


def encode_lines(objects: Iterable[Any], *, ascii_only: bool = True) -> bytes:
    r"""Return objects as JSON Lines; half of a character stays to be seen, as an escape.

    Examples
    --------
    >>> encode_lines([{"id": "a"}, {"id": "b"}])
    b'{"id": "a"}\n{"id": "b"}\n'
    """
    lines = (json.dumps(value, ensure_ascii=ascii_only) for value in objects)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")


def read_jsonl(
    file: WatchedFile, source: DocumentFile, columns: Columns, rows: int, size: int
) -> Iterator[Record | BadRecord]:
    """Yield the documents of a JSON Lines file."""
    begins = not (source.span and source.span[0])
    decoder, values_of = _decoder(columns)
    decode, longest = decoder.decode, columns.max_bytes
    for row in read_objects(
        file, decode, longest, source.compression, begins=begins, way_out=RAISE_LIMIT
    ):
        if isinstance(row, BadRecord):
            yield row
            continue
        line, keys, raw = row
        yield record_of(columns, line, values_of(keys), raw)


def _decoder(columns: Columns) -> tuple[msgspec.json.Decoder[Any], Callable[[Any], Any]]:
    """Return a decoder of objects that keeps the columns, and what takes these out in order."""
    names = [name for name in dict.fromkeys(columns.in_order) if name is not None]
    fields = {name: f"column_{number}" for number, name in enumerate(names)}
    wanted = {field: name for name, field in fields.items()}
    types: list[Any] = [(field, Any, None) for field in wanted]
    in_order = [fields.get(name or "", "absent") for name in columns.in_order]
    try:
        line = msgspec.defstruct("Line", types, namespace={"absent": None}, rename=wanted, gc=False)
    except ValueError as error:  # msgspec compares names as they stand in the file
        raise ConfigurationError(
            "documents: keys of JSON Lines must have no quotes, backslashes and control "
            f"characters, got {shortened([*wanted.values()])}; rename the key"
        ) from error
    return msgspec.json.Decoder(line), attrgetter(*in_order)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"bytes that are not UTF-8: {error.reason} (0x{error.object[error.start]:02x})"
    if isinstance(error, msgspec.ValidationError):
        return f"not a JSON object: {str(error)[0].lower()}{str(error)[1:]}"
    if isinstance(error, RecursionError):
        return "not JSON that can be read: nested too deeply"
    problem = str(error).removeprefix("JSON is malformed: ")
    if isinstance(error, json.JSONDecodeError):  # Python counts lines within the line
        problem = f"{error.msg} (column {error.colno})"
    return f"not JSON: {problem[0].lower()}{problem[1:]}"


def _lines(
    file: WatchedFile, compression: str, longest: int, nothing: Nothing
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield (number of the first line, lines); too long ones are cut one byte above the limit."""
    stream = decompressed(file, compression)
    number, unfinished, size = 1, [b""], 0
    while True:
        try:
            chunk = stream.read(CHUNK_BYTES)
        except Exception as error:
            raise damage(file, number, error) from error
        if not chunk:
            break
        if not size and chunk.isspace():  # a hundred times as fast as line by line
            n_lines = chunk.count(b"\n")
            nothing.add(len(chunk), n_lines, number)
            number += n_lines
            continue
        lines = chunk.split(b"\n")
        if len(lines) == 1 and size > longest:
            nothing.add(len(chunk), 0, number)
        begun = lines[0][: longest + 1 - size]
        unfinished.append(begun)
        size += len(begun)
        if len(lines) > 1:
            lines[0] = b"".join(unfinished)
            unfinished = [lines.pop()[: longest + 1]]
            size = len(unfinished[0])
            yield number, lines
            number += len(lines)
    if size:
        yield number, [b"".join(unfinished)]


_MOST_CELLS = 2**31 - 1
_UTF_8 = ("utf-8", "utf8")
_SHOWN = 20  # names of columns
_HEADER_BYTES = 2**16
_DELIMITERS = ",;\t"  # which of them a spreadsheet writes depends on its language


@dataclass
class _Position:
    """Where a reader of lines is: the number of the last one, and the first one of a row."""

    line: int = 0
    first: str = ""


def _csv_lines(
    text: io.TextIOWrapper, file: WatchedFile, longest: int, at: _Position
) -> Iterator[str]:
    """Yield lines as csv.reader takes them; no line is read further than `longest`."""
    nothing = Nothing(longest)
    while True:
        try:
            line = text.readline(longest + 1)
        except Exception as error:
            raise damage(file, at.line + 1, error) from error
        if not line:
            return
        at.line += 1
        if line.isspace():
            nothing.add(len(line), 1, at.line)
        else:
            nothing.clear()
        if len(line) > longest:
            raise DamagedFile(at.line, f"a line longer than {longest} characters")
        at.first = at.first or line
        yield line


class CsvTable:
    r"""Rows of a CSV file, as lists of cells; one that is quoted wrongly does not touch the others.

    A line and a cell have at most `longest` characters. `names` of columns are those of the header,
    or 1, 2, 3 … DamagedFile says that there is no header that can be read; the iterator raises it
    where the rows break off.

    Examples
    --------
    >>> file = WatchedFile(io.BytesIO(b"id,text\na,one\n"), "a.csv")
    >>> table = CsvTable(file, Dialect(), longest=1000)
    >>> table.names, list(table)
    (['id', 'text'], [Row(line=2, values=['a', 'one'], raw=None)])
    """

    def __init__(
        self,
        file: WatchedFile,
        dialect: Dialect,
        longest: int,
        compression: str = "none",
        encoding: str = "utf-8",
    ) -> None:
        if csv.field_size_limit() < longest:  # it is the process's, so it only ever grows
            csv.field_size_limit(min(longest, _MOST_CELLS))
        text = io.TextIOWrapper(
            io.BufferedReader(decompressed(file, compression), 2**18),
            encoding="utf-8-sig" if encoding.lower() in _UTF_8 else encoding,
            errors="surrogateescape",
            newline="",
        )
        self._at = _Position()
        self._between = dialect.delimiter
        self._parsed = csv.reader(
            _csv_lines(text, file, longest, self._at),
            delimiter=dialect.delimiter,
            quotechar=dialect.quoteChar,
            strict=True,
        )
        self._first: list[Row | BadRecord] = []
        header = next(self._rows(), None)
        if isinstance(header, BadRecord):
            raise DamagedFile(header.line, header.reason)
        self.names: list[str] = [] if header is None else header.values
        if header is not None and not dialect.header:
            self.names = [str(number) for number in range(1, len(self.names) + 1)]
            self._first = [header]
        if len(self.names) > CSV_COLUMNS:
            n_columns = f"{len(self.names):,}"
            raise DamagedFile(1, f"must have at most {CSV_COLUMNS:,} columns, got {n_columns}")

    def __iter__(self) -> Iterator[Row | BadRecord]:
        """Yield the rows after the header; `line` is the line where a row begins."""
        return chain(self._first, self._rows())

    def _rows(self) -> Iterator[Row | BadRecord]:
        while True:
            begins, self._at.first = self._at.line + 1, ""
            try:
                cells = next(self._parsed)
            except StopIteration:
                return
            except csv.Error as error:
                if "field limit" in str(error):
                    # What an open quote swallowed cannot be distinguished from a long text.
                    problem = "a cell that is too long, or a quote left open"
                    raise DamagedFile(begins, problem) from None
                reason = f"not CSV: {error}, in lines {begins} to {self._at.line}"
                yield BadRecord(begins, reason, excerpt(self._at.first))
            else:
                if cells:
                    yield Row(begins, cells)

    def bad(self, row: Row) -> BadRecord | None:
        """Return why a row does not fit the columns, None if it does."""
        if len(row.values) == len(self.names):
            return None
        names = excerpt(", ".join(self.names[:_SHOWN]))
        wanted = f"{len(self.names)} fields ({names}) as the first row has"
        return self.refused(row, f"must have {wanted}, got {len(row.values)}")

    def refused(self, row: Row, reason: str) -> BadRecord:
        """Return a row as a bad record."""
        return BadRecord(row.line, reason, excerpt(self._between.join(row.values)))


def _not_text(encoding: str) -> str:
    """Return what is wrong with a row of bytes that are not in the encoding."""
    if encoding.lower() in _UTF_8:
        return "must be UTF-8 text, got other bytes (spreadsheets: save as CSV UTF-8)"
    return f"must be text in {encoding}, got other bytes"


def read_csv(
    file: WatchedFile, source: DocumentFile, columns: Columns, rows: int, size: int
) -> Iterator[Record | BadRecord]:
    """Yield the documents of a CSV file, as the Table Dialect of the manifest has it."""
    table = CsvTable(file, source.dialect, columns.max_bytes, source.compression, source.encoding)
    names = table.names
    problem = missing_columns(columns, names) if names else ""
    if problem:
        raise DamagedFile(1, problem)
    places = [names.index(name) if name in names else None for name in columns.in_order]
    for row in table:
        if isinstance(row, BadRecord):
            yield row
        elif bad := table.bad(row):
            yield bad
        else:
            values = [None if place is None else row.values[place] for place in places]
            readable = all(value is None or is_text(value) for value in values)
            refused = None if readable else table.refused(row, _not_text(source.encoding))
            yield refused or _record(columns, row.line, values)


def _record(columns: Columns, line: int, values: list[str | None]) -> Record:
    """Return a document; an empty cell is how CSV says that there is nothing."""
    id_, time, label, embedding, *others = values
    n_texts = len(columns.texts)
    numbers = _numbers(embedding) if embedding else None
    texts, kept = others[:n_texts], [value or None for value in others[n_texts:]]
    cells = [id_, time or None, label or None, numbers, *texts, *kept]
    return record_of(columns, line, cells, None)


def _numbers(cell: str) -> list[float] | str:
    """Return the numbers of a cell such as "[0.1, 0.2]" or "0.1 0.2", the cell if it has others."""
    try:
        return [float(part) for part in cell.strip("[] ").replace(",", " ").split()]
    except ValueError:
        return cell


def delimiter_of(data: bytes) -> str:
    r"""Return what separates the cells of a CSV file: the commonest in its first line.

    Examples
    --------
    >>> delimiter_of(b"id;title;text\n7;Cats, dogs, and more;...\n")
    ';'
    """
    header = data[:_HEADER_BYTES].replace(b"\r", b"\n").partition(b"\n")[0].decode("latin-1")
    return max(_DELIMITERS, key=header.count)


ENDINGS = (".csv", ".jsonl", ".parquet")
LONGEST = 16 * 2**20  # bytes of a line
_BATCH_ROWS = 10_000


class TableRow(NamedTuple):
    """The values of a line or row, with the names of their columns.

    Examples
    --------
    >>> TableRow(2, ("a", "b"), ("x", None)).refused("no kind")
    BadRecord(line=2, reason='no kind', raw='x,')
    """

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
    """The rows of a file."""

    unit: str  # what is counted: "line" or "row"
    names: tuple[str, ...] | None  # of the columns; None where each row has its own (JSONL)
    rows: Iterator[TableRow | BadRecord]


def ending_of(address: str, what: str) -> str:
    """Return the ending of a name, which says the format; `what` names the file in an error.

    Examples
    --------
    >>> ending_of("s3://bucket/Pairs.CSV", "a pair file")
    '.csv'
    """
    ending = PurePosixPath(address).suffix.lower()
    if ending not in ENDINGS:
        raise InvalidInputError(
            f"{what} must be named {', '.join(ENDINGS)}, got {address!r}: rename it"
        )
    return ending


def read_table(data: bytes, address: str, most: int | None = None) -> TableFile:
    """Return the rows in the bytes of a file, at `most` so many; its name has one of `ENDINGS`.

    InvalidInputError says that it cannot be read; the rows raise it where they break off.

    Examples
    --------
    >>> table = read_table(b'{"id": "a", "label": 1}', "labels.jsonl")
    >>> table.unit, next(table.rows)[:3]
    ('line', (1, ('id', 'label'), ['a', 1]))
    """
    ending = PurePosixPath(address).suffix.lower()
    if ending == ".parquet":
        return _read_parquet(data, address, most)
    _refuse_many(data.count(b"\n"), "lines", most, address)
    file = WatchedFile(io.BytesIO(data), address)
    if ending == ".jsonl":
        return TableFile("line", None, _named(_jsonl_rows(file), address))
    with _located(address):
        table = CsvTable(file, Dialect(delimiter=delimiter_of(data)), LONGEST)
        if not is_text("".join(table.names)):
            raise DamagedFile(1, _not_text("utf-8"))
    return TableFile("line", tuple(table.names), _named(_csv_rows(table), address))


def _refuse_many(number: int, what: str, most: int | None, address: str) -> None:
    if most is not None and number > most:
        raise InvalidInputError(
            f"{address}: must have at most {most:,} {what}, got {number:,}; cut it into several "
            "files"
        )


@contextmanager
def _located(address: str) -> Iterator[None]:
    """Let the error name the file where it breaks off."""
    try:
        yield
    except DamagedFile as error:
        raise InvalidInputError(f"{address}, line {error.line}: {error.reason}") from error


def _named(rows: Iterator[TableRow | BadRecord], address: str) -> Iterator[TableRow | BadRecord]:
    with _located(address):
        yield from rows


def _jsonl_rows(file: WatchedFile) -> Iterator[TableRow | BadRecord]:
    for row in read_objects(file, any_object, LONGEST):
        if isinstance(row, BadRecord):
            yield row
        else:
            yield TableRow(row.line, tuple(row.values), [*row.values.values()], row.raw)


def _csv_rows(table: CsvTable) -> Iterator[TableRow | BadRecord]:
    names = tuple(table.names)
    for row in table:
        if isinstance(row, BadRecord):
            yield row
        elif any(row.values):  # spreadsheets write rows that were emptied as ",,,"
            readable = is_text("".join(row.values))
            bad = table.bad(row) if readable else table.refused(row, _not_text("utf-8"))
            yield bad or TableRow(row.line, names, row.values)


def _read_parquet(data: bytes, address: str, most: int | None) -> TableFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from hmrf_dask.storage.whole_files import read_plain_table  # it imports these too

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
