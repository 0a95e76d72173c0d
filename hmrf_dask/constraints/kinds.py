"""The kinds of answers as people write them: "must" (the same) and "cannot" (different)."""

from __future__ import annotations

import re
from typing import Any, Final

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
