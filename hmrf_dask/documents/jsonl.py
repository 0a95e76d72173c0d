"""JSON Lines: one object a line, taken apart by msgspec; a bad line does not touch the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.records import BadRecord, Nothing, Record, damage, excerpt
from hmrf_dask.documents.sources import Source
from hmrf_dask.documents.streams import WatchedFile, decompressed
from hmrf_dask.documents.values import too_long
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.redaction import shortened

CHUNK_BYTES = 2**20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_jsonl(
    file: WatchedFile, source: Source, columns: Columns, rows: int, size: int
) -> Iterator[Record | BadRecord]:
    """Yield the objects of a JSON Lines file; empty lines are none."""
    decode = _decoder(columns).decode
    longest = columns.max_bytes
    nothing = Nothing(longest)
    for first, lines in _lines(file, source.compression, longest, nothing):
        if first == 1 and not (source.span and source.span[0]):
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        for number, line in enumerate(lines, first):
            if not line or line.isspace():
                nothing.add(len(line) + 1, 1, number)
                continue
            nothing.clear()
            if len(line) > longest:
                yield BadRecord(number, too_long(longest), excerpt(line))
                continue
            try:
                found = decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                yield BadRecord(number, _reason(error), excerpt(line))
                continue
            yield Record(
                number, found.id, found.text, found.time, found.label, found.embedding, line
            )


def _decoder(columns: Columns) -> msgspec.json.Decoder[Any]:
    """Return a decoder of objects that keeps the columns and skips everything else."""
    names = {
        "id": columns.id,
        "text": columns.text,
        "time": columns.time,
        "label": columns.label,
        "embedding": columns.embedding,
    }
    wanted = {field: name for field, name in names.items() if name is not None}
    fields: list[Any] = [(field, Any, None) for field in wanted]
    others = dict.fromkeys(names.keys() - wanted.keys())
    try:
        line = msgspec.defstruct("Line", fields, namespace=others, rename=wanted, gc=False)
    except ValueError as error:  # msgspec compares names as they stand in the file
        raise ConfigurationError(
            "documents: keys of JSON Lines must have no quotes, backslashes and control "
            f"characters, got {shortened([*wanted.values()])}; rename the key"
        ) from error
    return msgspec.json.Decoder(line)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"bytes that are not UTF-8: {error.reason} (0x{error.object[error.start]:02x})"
    if isinstance(error, msgspec.ValidationError):
        return f"not a JSON object: {str(error)[0].lower()}{str(error)[1:]}"
    if isinstance(error, RecursionError):
        return "not JSON that can be read: nested too deeply"
    problem = str(error).removeprefix("JSON is malformed: ")
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
