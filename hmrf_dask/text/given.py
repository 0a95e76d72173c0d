"""Texts that somebody gave in memory: a list, a column, an array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from hmrf_dask.documents.records import is_text
from hmrf_dask.errors import InvalidInputError


def as_texts(values: Any) -> list[str]:
    """Return texts that somebody gave as a list, a column or an array, or say what is wrong.

    Examples
    --------
    >>> as_texts(("a tree", "no tree"))
    ['a tree', 'no tree']
    >>> as_texts("a tree")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hmrf_dask.errors.InvalidInputError: texts must be a list of texts, got one text; give [text]
    """
    if isinstance(values, str | bytes):
        raise InvalidInputError("texts must be a list of texts, got one text; give [text]")
    if hasattr(values, "columns") or isinstance(values, Mapping):
        raise InvalidInputError(
            f"texts must be a list or one column of texts, got a {type(values).__name__}; give "
            "frame['text'], or list(texts.values())"
        )
    for method in ("to_pylist", "to_list", "tolist"):  # of pyarrow, pandas and polars, numpy
        if hasattr(values, method):
            values = getattr(values, method)()
            break
    try:
        texts = list(values)
    except TypeError:
        raise InvalidInputError(
            f"texts must be a list or a column of texts, got a {type(values).__name__}"
        ) from None
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            _refuse_text(number, f"{type(text).__name__} ({text!r:.60})")
        if not is_text(text):
            _refuse_text(number, "half of a character, which UTF-8 cannot write")
    return texts


def _refuse_text(number: int, what: str) -> NoReturn:
    raise InvalidInputError(
        f"texts must all be texts, got {what} at position {number}; fill or drop what is missing"
    )
