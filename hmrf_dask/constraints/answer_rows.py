"""Rows of answers: two documents, a kind and maybe a weight, or a document and its class.

Names of columns are compared without regard to case and to spaces around them; a column without
one is called by its number. All other columns are notes: what somebody wrote beside an answer; no
result depends on it. `annotator`, `trust`, `time` and `comment` are reserved: their values must be
of a sensible kind.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from hmrf_dask.errors import HmrfWarning, InvalidInputError, meant
from hmrf_dask.limits import ANSWER_COLUMNS, ANSWER_LINES, BAD_ANSWERS

PAIR = ("a", "b", "kind", "weight")
LABELS = ("id", "label")
RESERVED = ("annotator", "trust", "time", "comment")
EITHER = "a, b, kind and, if wanted, weight, or id and label"
SHOWN = 400  # characters of a header
MOST_COMPARED = 20  # names of a header that may be meant for known ones
ALIKE = 0.8  # as much as a name is like weight when that was meant: costs would be lost
Notes = dict[str, Any]  # plain values by the name of their column


class Columns(NamedTuple):
    """Where the values of a row are.

    Attributes
    ----------
    places : tuple of int
        Of a, b, kind and weight (-1: there is no weight), or of id and label.
    notes : tuple of (str, int)
        Name and place of each other column.
    """

    places: tuple[int, ...]
    notes: tuple[tuple[str, int], ...]

    @property
    def labelled(self) -> bool:
        """Whether rows are documents and their classes."""
        return len(self.places) == len(LABELS)

    def values(self, row: Sequence[Any]) -> list[Any]:
        """Return a, b, kind and weight (None where there is none), or id and label."""
        return [row[place] if place >= 0 else None for place in self.places]

    def notes_of(self, row: Sequence[Any]) -> tuple[Notes | None, str]:
        """Return the notes of a row, None if it has none, and what is wrong with them, or ""."""
        found: Notes = {}
        for name, place in self.notes:
            value = row[place]
            if value is None or value == "" or value != value:
                continue
            reason = _problem(name, value)
            if reason:
                return None, reason
            try:
                found[name] = _plain(name, value)
            except RecursionError:
                return None, f"{name} must be a plain value, got one that is nested too deeply"
        return found or None, ""


@lru_cache(maxsize=64)  # JSON Lines have names in each line, the same ones as a rule
def columns_of(header: tuple[str, ...], *, suggest: bool = True) -> Columns | str:
    """Return where the values are by the names of the columns, or what is wrong with these.

    Parameters
    ----------
    header : tuple of str
    suggest : bool
        Whether a wrong name is compared with those known, which takes a while.
    """
    if len(header) > ANSWER_COLUMNS:
        return f"there must be at most {ANSWER_COLUMNS} columns, got {len(header)}"
    names = [name.strip().casefold() or f"column {n}" for n, name in enumerate(header, 1)]
    shown = ", ".join(name.strip()[:80] for name in header)[:SHOWN] or "nothing"
    is_pair = set(PAIR[:3]) <= set(names)
    wanted: tuple[str, ...] = PAIR if is_pair else LABELS
    others = [name for name in names if name not in wanted]
    if not is_pair and not set(LABELS) <= set(names):
        near = _near(others if suggest else [], sorted({*PAIR[:3], *LABELS} - set(names)))
        return f"the columns must be {EITHER}, got {shown}{near}"
    if is_pair and "weight" not in names and (near := _near(others, ["weight"], ALIKE)):
        return f"the columns must be {EITHER}, got {shown}{near}"
    if len(set(names)) != len(names):
        return f"each column must have a name of its own, got {shown}"
    notes = [
        (name if name in RESERVED else header[place].strip() or name, place)
        for place, name in enumerate(names)
        if name not in wanted
    ]
    return Columns(tuple(names.index(one) if one in names else -1 for one in wanted), tuple(notes))


def _near(names: Sequence[str], missing: Sequence[str], cutoff: float = 0.6) -> str:
    """Return a question after the first missing column that a name is like, or ""."""
    return next(filter(None, (meant(name, missing, cutoff) for name in names[:MOST_COMPARED])), "")


def _problem(name: str, value: Any) -> str:
    """Return what is wrong with a note, nothing if it may be there."""
    if name == "trust" and not 0 <= _number(value) <= 1:
        return f"trust must be a number from 0 to 1, got {value!r:.80}"
    if name == "time" and not _is_time(value):
        return f"time must be a text, a number or a timestamp, got {value!r:.80}"
    if name in ("annotator", "comment") and (
        isinstance(value, bool) or not isinstance(value, str | int)
    ):
        return f"{name} must be a text or a whole number, got {value!r:.80}"
    return ""


def _is_time(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, str | int | date) or (
        isinstance(value, float) and math.isfinite(value)
    )


def _number(value: Any) -> float:
    """Return a number, NaN for what is none."""
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _plain(name: str, value: Any) -> Any:
    """Return a note as JSON has it."""
    if name == "trust":
        return float(value)
    if isinstance(value, date | datetime):
        return value.isoformat()
    return value if isinstance(value, str | int) else _as_json(value)


def _as_json(value: Any) -> Any:
    """Return what JSON knows of a value; a number that is not finite becomes its name."""
    return json.loads(json.dumps(value, default=str), parse_constant=str)


MUST: Final = "must"
CANNOT: Final = "cannot"
KNOWN: Final = {
    MUST: ("must", "must-link", "same", "1", "true", "yes"),
    CANNOT: ("cannot", "cannot-link", "different", "0", "false", "no"),
}
LONGEST: Final = 40  # characters of a kind, spaces among them
_BETWEEN_WORDS = re.compile(r"[\s_-]+")
_BY_SPELLING: Final = {
    word.replace("-", ""): kind for kind, words in KNOWN.items() for word in words
}
_BY_SPELLING.update({"1.0": MUST, "0.0": CANNOT})  # a column of numbers that had gaps


def kind_of(value: Any) -> str | None:
    """Return the kind that a text, a number or a truth value means; None if it means none.

    Examples
    --------
    >>> [kind_of(value) for value in (" Must_Link ", True, 1.0, "NO", 0, "maybe")]
    ['must', 'must', 'must', 'cannot', 'cannot', None]
    """
    if isinstance(value, str) and len(value) <= LONGEST:
        return _BY_SPELLING.get(value) or _BY_SPELLING.get(
            _BETWEEN_WORDS.sub("", value.strip().casefold())
        )
    if isinstance(value, bool | int | float) and value in (0, 1):
        return MUST if value else CANNOT
    return None


def unknown_kind(value: Any) -> str:
    """Return what is wrong with a kind that is none of those known."""
    known = " or ".join(f"{words[0]} ({', '.join(words[1:])})" for words in KNOWN.values())
    return f"kind must be {known}, got {value!r:.80}"


LONGEST_ID = 4096  # characters: in arrays of text every id takes the room of the longest
MOST_CLASSES = 500  # each two of them are a cannot-link
Said = tuple[bool, str, str]  # whether it is a must-link, and its documents, sorted


class Labelled(NamedTuple):
    """A document, its class, the line that says so, and what is noted there."""

    document: Any
    label: str
    line: int
    notes: Notes | None = None


class LabelRows:
    """Reads documents and their classes; a class has the same name in all files.

    Attributes
    ----------
    found : dict of str to Labelled
        By the id as text, in the order of lines.
    """

    def __init__(self, refuse: Callable[[int, object, object], None]) -> None:
        self._refuse = refuse
        self._labels: set[str] = set()
        self.found: dict[str, Labelled] = {}

    def add(self, row: list[Any], place: int, notes: Notes | None = None) -> None:
        """Add a document and its class; one without a class tells nothing."""
        document, label = row
        if label in ("", None) or label != label:
            return
        reason = self._problem(document, label)
        if reason:
            self._refuse(place, reason, f"{document},{label}")
            return
        name = _name_of(label)
        self._labels.add(name)
        before = self.found.setdefault(str(document), Labelled(document, name, place, notes))
        if before.label != name:
            reason = two_classes(name, before.label, f"line {before.line}")
            self._refuse(place, reason, f"{document},{label}")

    def refuse_many(self, where: str) -> None:
        """Refuse more classes than anybody has; see `refuse_many`."""
        refuse_many(len(self._labels), where)

    def _problem(self, document: Any, label: Any) -> str:
        if isinstance(label, bool) or not isinstance(label, str | int | float):
            return f"label must be a text or a number, got {label!r:.80}"
        if isinstance(document, bool) or not isinstance(document, str | int) or document == "":
            return f"id must be a text or a whole number, got {document!r:.80}"
        if len(str(label)) > LONGEST_ID:
            return f"label must have at most {LONGEST_ID:,} characters, got {len(str(label)):,}"
        return id_problem(document)


def _name_of(label: str | int | float) -> str:
    """Return a class as text: 1, 1.0 and their texts are one, as tables with gaps write it."""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", str(label))


def two_classes(here: str, there: str, place: str) -> str:
    """Return what is wrong with a second class of a document."""
    return f"a document must have one class, got {here!r:.80} here and {there!r:.80} in {place}"


def refuse_many(n_classes: int, where: str) -> None:
    """Refuse more classes than anybody has: each two of them would be a cannot-link."""
    if n_classes > MOST_CLASSES:
        raise InvalidInputError(
            f"{where}: documents must be of at most {MOST_CLASSES} known classes, got "
            f"{n_classes:,} different labels; are the columns id and label swapped?"
        )


def id_problem(document: str | int) -> str:
    """Return why arrays of text cannot hold an id as it is, nothing if they can."""
    text = str(document)
    if len(text) > LONGEST_ID:
        return f"an id must have at most {LONGEST_ID:,} characters, got {len(text):,}"
    if "\0" in text:
        return f"an id must have no NUL character, got {text!r:.80}"
    if not text.isascii() and any("\ud800" <= one <= "\udfff" for one in text):
        return f"an id must be text that UTF-8 can write, got {text!r:.80}"
    return ""


def said(first: object, second: object, *, must: bool) -> Said:
    """Return what a pair says, whichever of its documents comes first."""
    one, other = sorted((str(first), str(second)))
    return must, one, other


def class_links(
    rows: Sequence[Labelled], before: Collection[Said]
) -> Iterator[tuple[bool, Any, int]]:
    """Yield pairs that tell classes, as few as tell all of them.

    A class is a chain of must-links; its first document is cannot-linked to that of each other.

    Parameters
    ----------
    rows : sequence of Labelled
        Each document once.
    before : set
        Pairs that are said already, maybe with a weight of their own: these are left out.

    Yields
    ------
    must : bool
    other : str or int
        The document that it goes with.
    row : int
        Which row told it.
    """
    last: dict[str, Any] = {}
    first: list[Any] = []
    for row, (document, label, *_) in enumerate(rows):
        must = label in last
        for other in [last[label]] if must else first:
            if said(other, document, must=must) not in before:
                yield must, other, row
        if not must:
            first.append(document)
        last[label] = document


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

    from hmrf_dask.storage.whole_files import read_plain_table  # it imports these too

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
