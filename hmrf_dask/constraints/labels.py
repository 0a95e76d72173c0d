"""Known classes of documents, columns id and label of a file, as the pairs that tell them."""

from __future__ import annotations

from typing import Any, Protocol

LABELS = ("id", "label")


class Rows(Protocol):
    """What takes the rows of a pair file."""

    def add(self, row: list[Any], place: int) -> None:
        """Append one row: a, b, kind, weight."""

    def refuse(self, place: int, reason: object, raw: object = "") -> None:
        """Note a line that is no pair."""


class LabelRows:
    """Turns documents and their classes into pairs, as few as tell all of them.

    A class is a chain of must-links; its first document is cannot-linked to that of each other.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._seen: set[Any] = set()
        self._last: dict[Any, Any] = {}  # document of each class
        self._first: list[Any] = []

    def add(self, row: list[Any], place: int) -> None:
        """Add a document and its class; one without a class tells nothing."""
        document, label = row
        if label in ("", None):
            return
        reason = self._problem(document, label)
        if reason:
            self._rows.refuse(place, reason, f"{document},{label}")
            return
        self._seen.add(document)
        if label in self._last:
            self._rows.add([self._last[label], document, "must", None], place)
        else:
            for other in self._first:
                self._rows.add([other, document, "cannot", None], place)
            self._first.append(document)
        self._last[label] = document

    def _problem(self, document: Any, label: Any) -> str:
        if not isinstance(label, str | int | float):
            return f"label must be a text or a number, got {label!r}"
        if isinstance(document, bool) or not isinstance(document, str | int) or document == "":
            return f"id must be a text or a whole number, got {document!r}"
        if document in self._seen:
            return f"id must be that of a document without a class yet, got {document!r} again"
        return ""
