"""The words of a text as a person sees them, and a text cut where some of them are marked."""

from __future__ import annotations

import re
from collections.abc import Mapping

Marks = Mapping[str, str]  # the kind of each word that is marked
Segment = tuple[str, str]  # a stretch of text, and its kind, "" of most
# Two signs at a time where words have no spaces between them.
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]{2}|[^\\W_]{2,}")


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, in order.

    Examples
    --------
    >>> words_of("Cats & dogs")
    ['cats', 'dogs']
    """
    return [found[0].lower() for found in _WORD.finditer(text)]


def segments(text: str, marks: Marks) -> list[Segment]:
    """Return a text cut where marks begin and end; together they are the text.

    Examples
    --------
    >>> segments("cats purr", {"purr": "alone"})
    [('cats ', ''), ('purr', 'alone')]
    """
    cut, end = list[Segment](), 0
    for found in _WORD.finditer(text):
        if kind := marks.get(found[0].lower()):
            if found.start() > end:
                cut.append((text[end : found.start()], ""))
            cut.append((found[0], kind))
            end = found.end()
    return [*cut, (text[end:], "")] if end < len(text) or not cut else cut
