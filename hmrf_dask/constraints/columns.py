"""The columns of pair files: a, b, kind, weight, or id, label; all others are notes.

Names are compared without regard to case and to spaces around them; a column without one is called
by its number. A note is what somebody wrote
beside an answer; no result depends on it. `annotator`, `trust`, `time` and `comment` are reserved:
their values must be of a sensible kind.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import date, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from hmrf_dask.errors import meant
from hmrf_dask.limits import ANSWER_COLUMNS

PAIR = ("a", "b", "kind", "weight")
LABELS = ("id", "label")
RESERVED = ("annotator", "trust", "time", "comment")
EITHER = "a, b, kind and, if wanted, weight, or id and label"
SHOWN = 400  # characters of a header
MOST_COMPARED = 20  # names of a header that may be meant for known ones
ALIKE = 0.8  # as much as a name is like weight when that was meant: costs would be lost
Notes = dict[str, Any]  # plain values by the name of their column


class Columns(NamedTuple):
    """Where the values of a row are.

    Attributes
    ----------
    places : tuple of int
        Of a, b, kind and weight (-1: there is no weight), or of id and label.
    notes : tuple of (str, int)
        Name and place of each other column.
    """

    places: tuple[int, ...]
    notes: tuple[tuple[str, int], ...]

    @property
    def labelled(self) -> bool:
        """Whether rows are documents and their classes."""
        return len(self.places) == len(LABELS)

    def values(self, row: Sequence[Any]) -> list[Any]:
        """Return a, b, kind and weight (None where there is none), or id and label."""
        return [row[place] if place >= 0 else None for place in self.places]

    def notes_of(self, row: Sequence[Any]) -> tuple[Notes | None, str]:
        """Return the notes of a row, None if it has none, and what is wrong with them, or ""."""
        found: Notes = {}
        for name, place in self.notes:
            value = row[place]
            if value is None or value == "" or value != value:
                continue
            reason = _problem(name, value)
            if reason:
                return None, reason
            try:
                found[name] = _plain(name, value)
            except RecursionError:
                return None, f"{name} must be a plain value, got one that is nested too deeply"
        return found or None, ""


@lru_cache(maxsize=64)  # JSON Lines have names in each line, the same ones as a rule
def columns_of(header: tuple[str, ...], *, suggest: bool = True) -> Columns | str:
    """Return where the values are by the names of the columns, or what is wrong with these.

    Parameters
    ----------
    header : tuple of str
    suggest : bool
        Whether a wrong name is compared with those known, which takes a while.
    """
    if len(header) > ANSWER_COLUMNS:
        return f"there must be at most {ANSWER_COLUMNS} columns, got {len(header)}"
    names = [name.strip().casefold() or f"column {n}" for n, name in enumerate(header, 1)]
    shown = ", ".join(name.strip()[:80] for name in header)[:SHOWN] or "nothing"
    is_pair = set(PAIR[:3]) <= set(names)
    wanted: tuple[str, ...] = PAIR if is_pair else LABELS
    others = [name for name in names if name not in wanted]
    if not is_pair and not set(LABELS) <= set(names):
        near = _near(others if suggest else [], sorted({*PAIR[:3], *LABELS} - set(names)))
        return f"the columns must be {EITHER}, got {shown}{near}"
    if is_pair and "weight" not in names and (near := _near(others, ["weight"], ALIKE)):
        return f"the columns must be {EITHER}, got {shown}{near}"
    if len(set(names)) != len(names):
        return f"each column must have a name of its own, got {shown}"
    notes = [
        (name if name in RESERVED else header[place].strip() or name, place)
        for place, name in enumerate(names)
        if name not in wanted
    ]
    return Columns(tuple(names.index(one) if one in names else -1 for one in wanted), tuple(notes))


def _near(names: Sequence[str], missing: Sequence[str], cutoff: float = 0.6) -> str:
    """Return a question after the first missing column that a name is like, or ""."""
    return next(filter(None, (meant(name, missing, cutoff) for name in names[:MOST_COMPARED])), "")


def _problem(name: str, value: Any) -> str:
    """Return what is wrong with a note, nothing if it may be there."""
    if name == "trust" and not 0 <= _number(value) <= 1:
        return f"trust must be a number from 0 to 1, got {value!r:.80}"
    if name == "time" and not _is_time(value):
        return f"time must be a text, a number or a timestamp, got {value!r:.80}"
    if name in ("annotator", "comment") and (
        isinstance(value, bool) or not isinstance(value, str | int)
    ):
        return f"{name} must be a text or a whole number, got {value!r:.80}"
    return ""


def _is_time(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, str | int | date) or (
        isinstance(value, float) and math.isfinite(value)
    )


def _number(value: Any) -> float:
    """Return a number, NaN for what is none."""
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _plain(name: str, value: Any) -> Any:
    """Return a note as JSON has it."""
    if name == "trust":
        return float(value)
    if isinstance(value, date | datetime):
        return value.isoformat()
    return value if isinstance(value, str | int) else _as_json(value)


def _as_json(value: Any) -> Any:
    """Return what JSON knows of a value; a number that is not finite becomes its name."""
    return json.loads(json.dumps(value, default=str), parse_constant=str)
