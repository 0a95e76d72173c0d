"""Rows of Arrow of which all are documents: seen column by column, not value by value."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.records import MOST_CHARACTERS

_SEEN = r"[!-~\p{L}\p{N}]"  # a character that is seen: a text with one is not blank


def is_plain(rows: pa.RecordBatch, columns: Columns) -> bool:
    """Return whether rows have only an id and a text, and nothing is wrong with any of them.

    It says yes only where `problem_of_document` finds nothing: what is doubtful is read row by
    row.

    Examples
    --------
    >>> from hmrf_dask.documents.manifest import Columns
    >>> rows = pa.record_batch({"id": ["a", "b"], "text": ["some text", "more"]})
    >>> is_plain(rows, Columns()), is_plain(rows, Columns(label="id2"))
    (True, False)
    """
    if len(columns.texts) != 1 or {*columns.in_order} - {None} != {columns.id, columns.texts[0]}:
        return False
    ids, texts = rows.column(columns.id), rows.column(columns.texts[0])
    if ids.null_count or texts.null_count or not pa.types.is_string(texts.type) or not len(rows):
        return False
    if not (pa.types.is_integer(ids.type) or pa.types.is_string(ids.type)):
        return False
    names = ids.cast(pa.string())
    try:
        names.validate(full=True)
        texts.validate(full=True)
    except pa.ArrowInvalid:  # bytes that are no UTF-8
        return False
    sizes = pc.add(pc.binary_length(names), pc.binary_length(texts))
    short = pc.max(sizes).as_py() <= columns.max_bytes
    return bool(
        short
        and pc.max(pc.binary_length(names)).as_py() <= MOST_CHARACTERS
        and _shown(names, texts)
    )


def _shown(names: pa.Array, texts: pa.Array) -> bool:
    """Return whether all have a character that is seen, and no id ends in a NUL."""
    seen = (pc.all(pc.match_substring_regex(one, _SEEN)).as_py() for one in (names, texts))
    return all(seen) and not pc.any(pc.ends_with(names, "\0")).as_py()
