"""Records of files, whatever the format: what readers give back, and what a document must be.

A reader of a format (`jsonl`, `delimited`, `parquet`) gives rows, bad records, and the place where
a file breaks off. Documents, answers and known classes are made from the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hmrf_dask.documents.builtin import read_builtin
from hmrf_dask.documents.files import DocumentFile
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.streams import WatchedFile, decompressed
from hmrf_dask.errors import meant
from hmrf_dask.parameters import BYTES_WITHOUT_RECORD, LINES_WITHOUT_RECORD

MOST_CHARACTERS = 4096  # of an id: a block keeps all of its ids as long as the longest
RAISE_LIMIT = "raise documents.max_bytes or cut it"
_NO_ROW = np.zeros(0, np.float32)
_NUMBER = 4  # bytes of a number in a column of bytes


def problem_of_document(id_: Any, text: Any, columns: Columns) -> str:
    """Return what is wrong with an id and a text, "" if nothing is.

    Examples
    --------
    >>> problem_of_document("a", "some text", Columns())
    ''
    >>> problem_of_document("a", None, Columns())
    "the text ('text') is missing"
    """
    if type(id_) is not str:
        if id_ is None:
            return f"the id ({columns.id!r}) is missing"
        return f"the id ({columns.id!r}) must be a text or an integer, got {_json_type(id_)}"
    if not id_ or id_.isspace():
        return f"the id ({columns.id!r}) is missing"
    if len(id_) > MOST_CHARACTERS:
        return f"the id must have at most {MOST_CHARACTERS} characters, got {len(id_)}"
    if not is_text(id_):  # of a file whose name is of other bytes
        return "the id must be UTF-8 text, got other bytes; rename the file"
    if id_[-1] == "\0":
        return "the id must not end in a NUL character"
    if type(text) is not str:
        if text is None:
            return f"the text ({_called(columns)}) is missing"
        return f"the text ({_called(columns)}) must be a text, got {_json_type(text)}"
    limit = columns.max_bytes
    # A character has at most four bytes: most records need not be encoded to be known as short.
    if 4 * (len(id_) + len(text)) > limit and len(id_.encode()) + len(text.encode()) > limit:
        return too_long(limit)
    if (not text or text.isspace()) and columns.text and columns.empty_text == "reject":
        return "the text is empty (documents.empty_text: keep takes such documents)"
    return ""


def _called(columns: Columns) -> str:
    return " and ".join(map(repr, columns.texts))


def is_text(value: str) -> bool:
    r"""Return whether no byte was undecodable: those become lone surrogates.

    Examples
    --------
    >>> is_text("caf\xe9"), is_text("caf\udce9")
    (True, False)
    """
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def too_long(limit: int, way_out: str = RAISE_LIMIT) -> str:
    """Return what is wrong with a record above a limit, `Columns.max_bytes` for documents.

    Examples
    --------
    >>> too_long(1000)
    'longer than 1000 bytes; raise documents.max_bytes or cut it'
    """
    return f"longer than {limit} bytes; {way_out}"


def problem_of_word(name: str, value: Any) -> str:
    """Return what is wrong with a time or a label: those are shown, never computed with.

    Examples
    --------
    >>> problem_of_word("label", "sport"), problem_of_word("label", ["sport"])
    ('', 'the label must be a text or a number, got a list with other things')
    """
    if isinstance(value, bool | bytes | list | dict | np.ndarray):
        return f"the {name} must be a text or a number, got {_json_type(value)}"
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        return f"the {name} must have at most {MOST_CHARACTERS} characters, got {len(value)}"
    return ""


def as_kept(name: str, value: Any) -> tuple[str | None, str]:
    """Return the value of a column that is kept, as text, and what is wrong with it, or "".

    Examples
    --------
    >>> as_kept("open", True), as_kept("price", 2.5), as_kept("price", float("nan"))
    (('true', ''), ('2.5', ''), (None, ''))
    >>> as_kept("tags", ["a"])[1]
    'the kept column tags must be a text or a number, got a list with other things'
    """
    if value is None or value != value:
        return None, ""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower(), ""
    if problem := problem_of_word(f"kept column {name}", value):
        return None, problem
    return str(value), ""


def as_row(value: Any, width: int | None) -> tuple[npt.NDArray[np.float32], str]:
    """Return an embedding as float32, and what is wrong with it, "" if nothing is.

    It is a list of numbers, or the bytes of float32 numbers, the lowest byte first.

    Examples
    --------
    >>> as_row([0.5, 1], None)
    (array([0.5, 1. ], dtype=float32), '')
    >>> as_row([0.5, 1], 3)[1]
    'the embedding must have 3 numbers, as the first of this file has, got 2'
    """
    if value is None:
        return _NO_ROW, "the embedding is missing"
    if isinstance(value, bytes):
        if len(value) % _NUMBER:
            return _NO_ROW, f"the embedding must be float32 numbers, got {len(value)} bytes"
        value = np.frombuffer(value, "<f4")
    if not _are_numbers(value):
        return _NO_ROW, f"the embedding must be a list of numbers, got {_json_type(value)}"
    try:
        with np.errstate(over="ignore"):
            row = np.asarray(value, np.float64).astype(np.float32)
    except OverflowError:  # a whole number of hundreds of digits
        row = np.full(len(value), np.inf, np.float32)
    if not np.isfinite(row).all():
        return _NO_ROW, "the embedding must be finite numbers in the range of float32"
    if not len(row) or (width and len(row) != width):
        wanted = f"{width} numbers, as the first of this file has" if width else "some numbers"
        return _NO_ROW, f"the embedding must have {wanted}, got {len(row)}"
    return row, ""


def _are_numbers(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "iuf"
    return isinstance(value, list) and all(type(number) in (int, float) for number in value)


def _json_type(value: Any) -> str:
    """Return the type of a value in the words of JSON."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, list):
        return "a list with other things" if value else "an empty list"
    kinds = {float: "a fraction", int: "a number", str: "a text", dict: "an object"}
    return kinds.get(type(value), f"a value of type {type(value).__name__}")


EXCERPT = 200  # characters of a bad record that are kept


class Row(NamedTuple):
    """What a line or row holds; `raw` is what it was read from, if kept."""

    line: int
    values: Any
    raw: bytes | None = None


class Record(NamedTuple):
    """The values of a document, not yet checked; `raw` is what they were read from, if kept."""

    line: int
    id: Any
    text: Any
    time: Any = None
    label: Any = None
    embedding: Any = None
    raw: bytes | None = None
    kept: tuple[Any, ...] = ()  # values of the columns to keep
    parts: tuple[Any, ...] = ()  # texts of the columns that `text` is joined of, if several


def record_of(columns: Columns, line: int, values: Sequence[Any], raw: bytes | None) -> Record:
    r"""Return the document that some values are, in the order of `Columns.in_order`.

    Examples
    --------
    >>> columns = Columns(text=("subject", "body"), keep=("product",))
    >>> record_of(columns, 1, ["a", None, None, None, "Hello", "World", "x"], None)[2:]
    ('Hello\n\nWorld', None, None, None, None, ('x',), ('Hello', 'World'))
    """
    id_, time, label, embedding = values[:4]
    n_texts = len(columns.texts)
    parts, kept = tuple(values[4 : 4 + n_texts]), tuple(values[4 + n_texts :])
    text, parts = (parts[0], ()) if n_texts == 1 else (_joined(parts), parts)
    return Record(line, id_, text, time, label, embedding, raw=raw, kept=kept, parts=parts)


def _joined(texts: Sequence[Any]) -> Any:
    """Return texts with an empty line between; None of none, and the first that is no text."""
    there = [text for text in texts if text is not None]
    other = next((text for text in there if not isinstance(text, str)), None)
    if other is not None or not there:
        return other
    return "\n\n".join(text for text in there if text and not text.isspace())


class BadRecord(NamedTuple):
    """A record that could not even be parsed."""

    line: int
    reason: str
    raw: str


class DamagedFile(Exception):  # noqa: N818 (no error of the program: it becomes a reject)
    """From `line` on nothing of a file can be read."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


class Nothing:
    """How much of a file was read since its last record: a stream of newlines must end.

    Examples
    --------
    >>> nothing = Nothing(longest=100)
    >>> nothing.add(10**9, 1, line=2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hmrf_dask.documents.records.DamagedFile: 1,000,000,000 bytes and 1 lines without a ...
    """

    def __init__(self, longest: int) -> None:
        self._most = BYTES_WITHOUT_RECORD + longest
        self.clear()

    def clear(self) -> None:
        """Begin again: there was a record."""
        self._bytes = self._lines = 0

    def add(self, n_bytes: int, n_lines: int, line: int) -> None:
        """Count what is no record; `line` is where the next one begins."""
        self._bytes += n_bytes
        self._lines += n_lines
        if self._bytes > self._most or self._lines > LINES_WITHOUT_RECORD:
            raise DamagedFile(
                line,
                f"{self._bytes:,} bytes and {self._lines:,} lines without a record before it; "
                "cut them out",
            )


class Reader(Protocol):
    """A function that reads one format."""

    def __call__(
        self, file: WatchedFile, source: DocumentFile, columns: Columns, rows: int, size: int
    ) -> Iterator[Record | BadRecord]:
        """Yield what is in a file, in its order; `rows` and `size` say how much to hold at once."""


def excerpt(raw: bytes | str) -> str:
    r"""Return the beginning of a bad record, as text that every file can hold.

    Examples
    --------
    >>> excerpt(b"caf\xe9"), len(excerpt("a" * 1000))
    ('caf\\xe9', 200)
    """
    if isinstance(raw, bytes):
        return raw[: 4 * EXCERPT].decode("utf-8", "backslashreplace")[:EXCERPT]
    return raw[:EXCERPT].encode("utf-8", "backslashreplace").decode()[:EXCERPT]


def damage(file: WatchedFile, line: int, error: Exception) -> Exception:
    """Return the store's failure if there was one, else the file's own damage, in words."""
    return file.failure or DamagedFile(line, f"damaged: {error}")


def missing_columns(columns: Columns, names: list[str]) -> str:
    """Return what is wrong with the columns of a table, "" if the wanted ones are there once.

    Examples
    --------
    >>> missing_columns(Columns(), ["id", "text"])
    ''
    >>> missing_columns(Columns(), ["id", "txt"]).partition(";")[0]
    "no column 'text', got id, txt (did you mean 'txt'?)"
    """
    way_out = "correct documents: in the manifest, or the file"
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        way_out = "give the resource in the manifest a dialect with its delimiter"
    for name in filter(None, columns.in_order):
        if names.count(name) != 1:
            count = "two columns" if name in names else "no column"
            shown = excerpt(", ".join(names[:20]))
            return f"{count} {name!r}, got {shown}{meant(name, {*names} - {name})}; {way_out}"
    return ""


def read_text(
    file: WatchedFile, source: DocumentFile, columns: Columns, rows: int, size: int
) -> Iterator[Record | BadRecord]:
    """Yield the one document that a text file is."""
    try:
        stream = decompressed(file, source.compression)
        chunks, length = [], 0
        while length <= columns.max_bytes and (chunk := stream.read(2**20)):
            chunks.append(chunk)
            length += len(chunk)
    except Exception as error:
        raise damage(file, 1, error) from error
    data = b"".join(chunks)
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
        yield Record(1, source.document_id, text)


def read_installed(source: DocumentFile) -> Iterator[Record | BadRecord]:
    """Yield the documents of a builtin corpus; `line` counts them."""
    for line, document in enumerate(read_builtin(source.url), 1):
        yield Record(line, document.id, document.text, label=document.label)
