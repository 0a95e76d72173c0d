"""What the values of a document must be, whatever the format they come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hmrf_dask.documents.manifest import Columns

MOST_CHARACTERS = 4096  # of an id: a block keeps all of its ids as long as the longest
RAISE_LIMIT = "raise documents.max_bytes or cut it"
_NO_ROW = np.zeros(0, np.float32)


def problem_of_document(id_: Any, text: Any, columns: Columns) -> str:
    """Return what is wrong with an id and a text, "" if nothing is."""
    if type(id_) is not str:
        if id_ is None:
            return f"the id ({columns.id!r}) is missing"
        return f"the id ({columns.id!r}) must be a text or an integer, got {json_type(id_)}"
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
            return f"the text ({columns.text!r}) is missing"
        return f"the text ({columns.text!r}) must be a text, got {json_type(text)}"
    limit = columns.max_bytes
    # A character has at most four bytes: most records need not be encoded to be known as short.
    if 4 * (len(id_) + len(text)) > limit and len(id_.encode()) + len(text.encode()) > limit:
        return too_long(limit)
    if (not text or text.isspace()) and columns.text and columns.empty_text == "reject":
        return "the text is empty (documents.empty_text: keep takes such documents)"
    return ""


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
    """Return what is wrong with a record above a limit, `Columns.max_bytes` for documents."""
    return f"longer than {limit} bytes; {way_out}"


def problem_of_word(name: str, value: Any) -> str:
    """Return what is wrong with a time or a label: those are shown, never computed with."""
    if isinstance(value, bool | bytes | list | dict | np.ndarray):
        return f"the {name} must be a text or a number, got {json_type(value)}"
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        return f"the {name} must have at most {MOST_CHARACTERS} characters, got {len(value)}"
    return ""


def as_row(value: Any, width: int | None) -> tuple[npt.NDArray[np.float32], str]:
    """Return an embedding as float32, and what is wrong with it, "" if nothing is."""
    if value is None:
        return _NO_ROW, "the embedding is missing"
    if not _are_numbers(value):
        return _NO_ROW, f"the embedding must be a list of numbers, got {json_type(value)}"
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


def json_type(value: Any) -> str:
    """Return the type of a value in the words of JSON."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, list):
        return "a list with other things" if value else "an empty list"
    kinds = {float: "a fraction", int: "a number", str: "a text", dict: "an object"}
    return kinds.get(type(value), f"a value of type {type(value).__name__}")
