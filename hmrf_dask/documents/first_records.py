"""The first records of a file, to see which of its columns are ids and texts."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from hmrf_dask.documents.delimited import CsvTable, any_object, delimiter_of, read_objects
from hmrf_dask.documents.manifest import Dialect
from hmrf_dask.documents.records import BadRecord, DamagedFile, Row, is_text
from hmrf_dask.documents.streams import WatchedFile, decompressed
from hmrf_dask.errors import HmrfError, InvalidInputError, in_words

MOST: Final = 200  # records
HEAD_BYTES: Final = 2**20
_LONGEST: Final = 2**17  # characters of a cell
_ALIKE: Final = 10  # records without which it is not known that values are unlike
_WORDY: Final = 15.0  # characters that texts have in the mean
_IDS: Final = ("id", "doc_id", "document_id", "_id", "uuid", "key", "name", "url")
_USUAL: Final = Dialect()
_TITLES: Final = ("title", "subject", "headline", "summary")
_TEXTS: Final = ("text", "body", "content", "document", "message", "abstract", "description")
ENGLISH: Final = (" the ", " and ", " of ", " to ", " is ")


@dataclass(frozen=True)
class FirstRecords:
    """What a file begins with.

    Attributes
    ----------
    names : tuple of str
        Of its columns.
    rows : list of dict
        At most `MOST`.
    complete : bool
        Whether these are all.
    dialect : Dialect
        Of CSV.
    encoding : str
    """

    names: tuple[str, ...]
    rows: list[dict[str, Any]]
    complete: bool
    dialect: Dialect = _USUAL
    encoding: str = "utf-8"

    def values(self, name: str) -> list[str]:
        """Return the values of a column that are there, as texts."""
        values = (row.get(name) for row in self.rows)
        return [str(value) for value in values if value not in (None, "")]


def first_records(kind: str, file: str, compression: str = "none") -> FirstRecords:
    """Return what a file of this machine begins with.

    Parameters
    ----------
    kind : {"csv", "jsonl", "parquet"}
    file : str
    compression : {"none", "gz", "zst"}
    """
    import pyarrow as pa

    try:
        if kind == "parquet":
            return _of_parquet(file)
        with open(file, "rb") as opened:
            stream = decompressed(WatchedFile(opened, file), compression)
            head = _read(stream, HEAD_BYTES + 1)
        return (_of_csv if kind == "csv" else _of_jsonl)(file, head)
    except (OSError, ValueError, RecursionError, DamagedFile, pa.ArrowException) as error:
        if isinstance(error, HmrfError):
            raise
        words = error.reason if isinstance(error, DamagedFile) else in_words(error)
        raise InvalidInputError(f"{file}: cannot be read, {words}; correct it") from None


def _read(stream: Any, most: int) -> bytes:
    chunks, size = [], 0
    while size < most and (chunk := stream.read(most - size)):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def _of_csv(file: str, head: bytes) -> FirstRecords:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DamagedFile(1, "it is UTF-16, not UTF-8")
    encoding, separator = "utf-8", "\t" if ".tsv" in os.path.basename(file).lower() else ""
    if not is_text(head[: head.rfind(b"\n") + 1].decode("utf-8", "surrogateescape")):
        encoding = "cp1252"  # as spreadsheets write it
    dialect = Dialect(delimiter=separator or delimiter_of(head))
    watched = WatchedFile(io.BytesIO(head), file)
    table = CsvTable(watched, dialect, _LONGEST, encoding=encoding)
    rows = [
        dict(zip(table.names, row.values, strict=True))
        for row in _until_damage(table)
        if isinstance(row, Row) and table.bad(row) is None
    ]
    return _cut(table.names, rows, len(head) <= HEAD_BYTES, dialect, encoding)


def _of_jsonl(file: str, head: bytes) -> FirstRecords:
    objects = read_objects(WatchedFile(io.BytesIO(head), file), any_object, HEAD_BYTES)
    rows = [row.values for row in _until_damage(objects) if isinstance(row, Row)]
    if not rows:
        raise DamagedFile(1, "none of its first lines is a JSON object")
    return _cut(list(dict.fromkeys(name for row in rows for name in row)), rows,
                len(head) <= HEAD_BYTES)  # fmt: skip


def _of_parquet(file: str) -> FirstRecords:
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file)
    batches = table.iter_batches(MOST + 1)
    rows = [row for batch in islice(batches, 1) for row in batch.to_pylist()]
    return _cut(table.schema_arrow.names, rows, table.metadata.num_rows <= MOST)


def _until_damage(rows: Iterable[Row | BadRecord]) -> Iterator[Row | BadRecord]:
    """Yield the first records; the beginning of a file may end within one."""
    try:
        yield from islice(rows, MOST + 1)
    except DamagedFile:
        return


def _cut(
    names: Sequence[str],
    rows: list[dict[str, Any]],
    whole: bool,
    dialect: Dialect = _USUAL,
    encoding: str = "utf-8",
) -> FirstRecords:
    complete = whole and len(rows) <= MOST
    return FirstRecords(tuple(names), rows[:MOST], complete, dialect, encoding)


# ---- which columns are what


def id_column(records: FirstRecords) -> str | None:
    """Return the column of ids: by its name, or the first whose values are short and all unlike.

    Examples
    --------
    >>> rows = [{"ticket": str(number), "state": "open"} for number in range(20)]
    >>> id_column(FirstRecords(("state", "ticket"), rows, True))
    'ticket'
    """
    if (named := _named(records, _IDS)) is not None:
        return named
    ends = ("id", "_no", "number")
    likely = sorted(records.names, key=lambda name: not name.strip().casefold().endswith(ends))
    return next((name for name in likely if _tells_apart(records, name)), None)


def _tells_apart(records: FirstRecords, name: str) -> bool:
    values = records.values(name)
    enough = len(values) == len(records.rows) >= _ALIKE
    return enough and len(set(values)) == len(values) and max(map(len, values)) <= 100


def names_it(id_: str, records: FirstRecords) -> bool:
    """Return whether the name of the column of ids is a name, not an id: then there is a header.

    Examples
    --------
    >>> rows = [{"T0001": "T0002"}, {"T0001": "T0003"}]
    >>> names_it("T0001", FirstRecords(("T0001",), rows, True))
    False
    """
    name = _pattern(id_)
    return "0" not in name or name not in map(_pattern, records.values(id_))


def _pattern(value: str) -> str:
    """Return a value with "a" for its words and "0" for its numbers."""
    return re.sub(r"\d+", "0", re.sub(r"[^\W\d]+", "a", value))


def text_columns(records: FirstRecords, but: str | None) -> tuple[str, ...]:
    """Return the columns of text: by their names, a title first, or the wordiest one.

    Examples
    --------
    >>> text_columns(FirstRecords(("id", "Subject", "Body"), [], True), "id")
    ('Subject', 'Body')
    """
    title, body = _named(records, _TITLES, but), _named(records, _TEXTS, but)
    named = tuple(name for name in (title, body) if name is not None)
    if body is not None or not records.rows:
        return named
    lengths = {name: _mean_length(records, name) for name in records.names if name != but}
    wordiest = max(lengths, key=lambda name: lengths[name], default="")
    if not wordiest or lengths[wordiest] < _WORDY:
        return named
    return tuple(dict.fromkeys((*named, wordiest)))


def _mean_length(records: FirstRecords, name: str) -> float:
    """Return how long texts of a column are; no words are none, nor are lists of numbers."""
    cells = (row.get(name) for row in records.rows)
    values = [cell for cell in cells if isinstance(cell, str) and " " in cell.strip()]
    return sum(map(len, values)) / max(len(records.rows), 1)


def _named(records: FirstRecords, usual: Sequence[str], but: str | None = None) -> str | None:
    known = {name.strip().casefold(): name for name in reversed(records.names) if name != but}
    return next((known[name] for name in usual if name in known), None)


def is_english(texts: Sequence[str]) -> bool:
    """Return whether most texts have common English words.

    Examples
    --------
    >>> is_english(["all of the men and the king"]), is_english(["une phrase"])
    (True, False)
    """
    longer = [f" {text[:5_000].lower()} " for text in texts if len(text) >= 20]
    found = sum(sum(word in text for word in ENGLISH) >= 2 for text in longer)
    return bool(longer) and 2 * found >= len(longer)
