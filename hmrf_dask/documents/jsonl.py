"""JSON Lines: one object a line, documents or anything else."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

import msgspec

from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.records import (
    RAISE_LIMIT,
    BadRecord,
    Nothing,
    Record,
    Row,
    damage,
    excerpt,
    record_of,
    too_long,
)
from hmrf_dask.documents.sources import Source
from hmrf_dask.documents.streams import WatchedFile, decompressed
from hmrf_dask.errors import ConfigurationError
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
    file: WatchedFile, source: Source, columns: Columns, rows: int, size: int
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
