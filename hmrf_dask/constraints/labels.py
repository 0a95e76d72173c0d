"""Known classes of documents, columns id and label of a file, and the pairs that tell them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from hmrf_dask.constraints.columns import Notes
from hmrf_dask.errors import InvalidInputError

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
