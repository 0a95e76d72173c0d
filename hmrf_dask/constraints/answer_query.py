"""Answers that people write into a table: the rows of a query as the lines of a file of answers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from hmrf_dask.constraints.answer_rows import columns_of
from hmrf_dask.databases.connection import open_database
from hmrf_dask.databases.statements import select_of
from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.parameters import ANSWER_BYTES, ANSWER_LINES


def named_after(url_env: str) -> str:
    """Return what a file with the answers of a query would be called.

    Examples
    --------
    >>> named_after("TICKETS_URL")
    'answers of TICKETS_URL.jsonl'
    """
    return f"answers of {url_env}.jsonl"


def query_answers(url_env: str, query: str) -> bytes:
    """Return the rows of a query as JSON Lines, in the order of the lines.

    A table has no order of its own, so equal rows are equal bytes whatever the server does. What is
    no number, text or true and false is written as text, as ids of documents are.
    """
    lines, n_bytes = list[bytes](), 0
    for row in _rows(url_env, query):
        line = json.dumps(row, ensure_ascii=False, default=_as_text).encode()
        n_bytes += len(line) + 1
        if n_bytes > ANSWER_BYTES or len(lines) == ANSWER_LINES:
            raise InvalidInputError(
                f"answers.sql.query must give at most {ANSWER_LINES:,} rows and {ANSWER_BYTES:,} "
                "bytes, got more; leave out what is no answer"
            )
        lines.append(line)
    return b"".join(line + b"\n" for line in sorted(lines))


def _rows(url_env: str, query: str) -> Iterator[dict[str, Any]]:
    statement = select_of(query)
    with open_database(url_env) as database:
        _refuse_columns(tuple(database.schema(statement).names))
        for batch in database.batches(f"SELECT * FROM {statement} AS q"):
            for row in batch.to_pylist():
                yield {name: value for name, value in row.items() if _says_something(value)}


def _refuse_columns(names: tuple[str, ...]) -> None:
    columns = columns_of(names)
    if isinstance(columns, str):
        raise ConfigurationError(
            f"answers.sql.query: {columns}; name them so in the query (select x AS a, …)"
        )


def _says_something(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _as_text(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
