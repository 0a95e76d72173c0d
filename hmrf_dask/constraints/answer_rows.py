"""Rows of answers: two documents, a kind and maybe a weight, or a document and its class.

Names of columns are compared without regard to case and to spaces around them; a column without
one is called by its number. All other columns are notes: what somebody wrote next to an answer. Of
these `trust` says how likely the answer is right, or `annotator` whose trust it is; no result
depends on others. `annotator`, `trust`, `time` and `comment` are reserved: their values must be of
a sensible kind.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from typing import Any, Final, NamedTuple

from hmrf_dask.documents.delimited import TableRow
from hmrf_dask.documents.records import MOST_CHARACTERS, BadRecord, is_text
from hmrf_dask.errors import InvalidInputError, meant
from hmrf_dask.parameters import ANSWER_COLUMNS, BAD_ANSWERS, problem_of_cost

PAIR = ("a", "b", "kind", "weight")
LABELS = ("id", "label")
RESERVED = ("annotator", "trust", "time", "comment")
EITHER = "a, b, kind and, if wanted, weight, or id and label"
SHOWN = 400  # characters of a header
MOST_COMPARED = 20  # names of a header that may be meant for known ones
SUGGESTED = 20  # bad lines whose names are compared with those known
ALIKE = 0.8  # as much as a name is like weight when that was meant: costs would be lost
Notes = dict[str, Any]  # plain values by the name of their column


class Columns(NamedTuple):
    """Where the values of a row are."""

    places: tuple[int, ...]  # of a, b, kind and weight (-1: there is none), or of id and label
    notes: tuple[tuple[str, int], ...]  # name and place of each other column

    def notes_of(self, row: Sequence[Any]) -> tuple[Notes | None, str]:
        """Return the notes of a row, None if it has none, and what is wrong with them, or "".

        Examples
        --------
        >>> columns_of(("a", "b", "kind", "trust")).notes_of(["1", "2", "same", "0.9"])
        ({'trust': 0.9}, '')
        >>> columns_of(("a", "b", "kind", "trust")).notes_of(["1", "2", "same", "sure"])
        (None, "trust must be a number from 0 to 1, got 'sure'")
        """
        notes: Notes = {}
        for name, place in self.notes:
            value = row[place]
            if value is None or value == "" or value != value:
                continue
            if problem := _problem_of_note(name, value):
                return None, problem
            try:
                notes[name] = float(value) if name == "trust" else _plain(value)
            except RecursionError:
                return None, f"{name} must be a plain value, got one that is nested too deeply"
        return notes or None, ""


@lru_cache(maxsize=64)  # JSON Lines have names in each line, the same ones as a rule
def columns_of(header: tuple[str, ...], *, suggest: bool = True) -> Columns | str:
    """Return where the values are by the names of the columns, or what is wrong with these.

    To `suggest` what a wrong name may mean takes a while.

    Examples
    --------
    >>> columns_of(("b", "a", "Kind "))
    Columns(places=(1, 0, 2, -1), notes=())
    >>> columns_of(("id", "a", "b", "note"))
    'the columns must be a, b, kind and, if wanted, weight, or id and label, got id, a, b, note'
    """
    if len(header) > ANSWER_COLUMNS:
        return f"there must be at most {ANSWER_COLUMNS} columns, got {len(header)}"
    names = [name.strip().casefold() or f"column {n}" for n, name in enumerate(header, 1)]
    shown = ", ".join(name.strip()[:80] for name in header)[:SHOWN] or "nothing"
    is_pair = set(PAIR[:3]) <= set(names)
    wanted: tuple[str, ...] = PAIR if is_pair else LABELS
    rest = [name for name in names if name not in wanted]
    if not is_pair and not set(LABELS) <= set(names):
        near = _near(rest if suggest else [], sorted({*PAIR[:3], *LABELS} - set(names)))
        return f"the columns must be {EITHER}, got {shown}{near}"
    if is_pair and "weight" not in names and (near := _near(rest, ["weight"], ALIKE)):
        return f"the columns must be {EITHER}, got {shown}{near}"
    if len(set(names)) != len(names):
        return f"each column must have a name of its own, got {shown}"
    notes = [
        (name if name in RESERVED else header[place].strip() or name, place)
        for place, name in enumerate(names)
        if name not in wanted
    ]
    return Columns(
        tuple(names.index(name) if name in names else -1 for name in wanted), tuple(notes)
    )


def _near(names: Sequence[str], missing: Sequence[str], cutoff: float = 0.6) -> str:
    """Return a question after the first missing column that a name is like, or ""."""
    return next(filter(None, (meant(name, missing, cutoff) for name in names[:MOST_COMPARED])), "")


def _problem_of_note(name: str, value: Any) -> str:
    """Return what is wrong with a note, "" if nothing is."""
    if name == "trust" and not 0 <= _number(value) <= 1:
        return f"trust must be a number from 0 to 1, got {value!r:.80}"
    is_finite = isinstance(value, float) and math.isfinite(value)
    if name == "time" and not (_is_plain(value, str | int | date) or is_finite):
        return f"time must be a text, a number or a timestamp, got {value!r:.80}"
    if name in ("annotator", "comment") and not _is_plain(value, str | int):
        return f"{name} must be a text or a whole number, got {value!r:.80}"
    return ""


def _is_plain(value: Any, kinds: Any) -> bool:
    """Return whether a value is of one of these kinds, and neither true nor false."""
    return isinstance(value, kinds) and not isinstance(value, bool)


def _number(value: Any) -> float:
    """Return a number, NaN for what is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _plain(value: Any) -> Any:
    """Return a note as JSON has it; a number that is not finite becomes its name."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str | int):
        return value
    return json.loads(json.dumps(value, default=str), parse_constant=str)


MUST: Final = "must"
CANNOT: Final = "cannot"
KNOWN: Final = {
    MUST: ("must", "must-link", "same", "1", "true", "yes"),
    CANNOT: ("cannot", "cannot-link", "different", "0", "false", "no"),
}
LONGEST_KIND: Final = 40  # characters, spaces among them
_BETWEEN_WORDS = re.compile(r"[\s_-]+")
_BY_SPELLING: Final = {
    word.replace("-", ""): kind for kind, words in KNOWN.items() for word in words
}
_BY_SPELLING.update({"1.0": MUST, "0.0": CANNOT})  # a column of numbers that had gaps
_KINDS: Final = " or ".join(f"{words[0]} ({', '.join(words[1:])})" for words in KNOWN.values())


def kind_of(value: Any) -> str | None:
    """Return the kind that a text, a number or a truth value means; None if it means none.

    Examples
    --------
    >>> [kind_of(value) for value in (" Must_Link ", True, 1.0, "NO", 0, "maybe")]
    ['must', 'must', 'must', 'cannot', 'cannot', None]
    """
    if isinstance(value, str) and len(value) <= LONGEST_KIND:
        return _BY_SPELLING.get(value) or _BY_SPELLING.get(
            _BETWEEN_WORDS.sub("", value.strip().casefold())
        )
    if isinstance(value, bool | int | float) and value in (0, 1):
        return MUST if value else CANNOT
    return None


MOST_CLASSES = 500  # each two of them are a cannot-link
Said = tuple[bool, str, str]  # whether it is a must-link, and its documents, sorted


def take_vote(votes: dict[str, float], notes: Notes | None, trust: float) -> None:
    """Add what a line says again to votes: of each annotator the lowest trust, NaN where none is.

    Examples
    --------
    >>> votes = {"anna": 0.9}
    >>> take_vote(votes, {"annotator": "anna"}, 0.8)
    >>> take_vote(votes, None, math.nan)
    >>> votes
    {'anna': 0.8, '': nan}
    """
    name = str((notes or {}).get("annotator", ""))
    before = votes.get(name, math.nan)
    votes[name] = trust if math.isnan(before) else min(before, trust)


@dataclass(slots=True)
class Labelled:
    """A document, its class, the first line that says so, and what is noted there.

    Lines that say so are `votes`: the trust of each annotator, NaN where none is given.
    """

    document: Any
    label: str
    line: int
    notes: Notes | None = None
    votes: dict[str, float] = field(default_factory=dict)


def _label_problem(document: Any, label: Any) -> str:
    if not _is_plain(label, str | int | float):
        return f"label must be a text or a number, got {label!r:.80}"
    if not _is_plain(document, str | int) or document == "":
        return f"id must be a text or a whole number, got {document!r:.80}"
    if len(str(label)) > MOST_CHARACTERS:
        return f"label must have at most {MOST_CHARACTERS:,} characters, got {len(str(label)):,}"
    return problem_of_id(document)


def two_classes(here: str, there: str, place: str) -> str:
    """Return what is wrong with a second class of a document.

    Examples
    --------
    >>> two_classes("sport", "politics", "line 3")
    "a document must have one class, got 'sport' here and 'politics' in line 3"
    """
    return f"a document must have one class, got {here!r:.80} here and {there!r:.80} in {place}"


def refuse_many(n_classes: int, where: str) -> None:
    """Refuse more classes than anybody has: each two of them would be a cannot-link.

    Examples
    --------
    >>> refuse_many(501, "labels.csv")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hmrf_dask.errors.InvalidInputError: labels.csv: documents must be of at most 500 known ...
    """
    if n_classes > MOST_CLASSES:
        raise InvalidInputError(
            f"{where}: documents must be of at most {MOST_CLASSES} known classes, got "
            f"{n_classes:,} different labels; are the columns id and label swapped?"
        )


def problem_of_id(document: str | int) -> str:
    r"""Return why arrays of text cannot hold an id as it is, "" if they can.

    Examples
    --------
    >>> problem_of_id("ticket 7"), problem_of_id(7)
    ('', '')
    >>> problem_of_id("a\0b")
    "an id must have no NUL character, got 'a\\x00b'"
    """
    text = str(document)
    if len(text) > MOST_CHARACTERS:
        return f"an id must have at most {MOST_CHARACTERS:,} characters, got {len(text):,}"
    if "\0" in text:
        return f"an id must have no NUL character, got {text!r:.80}"
    if not is_text(text):
        return f"an id must be text that UTF-8 can write, got {text!r:.80}"
    return ""


def said(first: object, second: object, *, must: bool) -> Said:
    """Return what a pair says, whichever of its documents comes first.

    Examples
    --------
    >>> said("b", "a", must=True) == said("a", "b", must=True)
    True
    """
    lower, higher = sorted((str(first), str(second)))
    return must, lower, higher


def class_links(
    rows: Sequence[Labelled], before: Collection[Said]
) -> Iterator[tuple[bool, int, int]]:
    """Yield pairs that say what classes say, as few as say all of it: kind, and both rows.

    A class is a chain of must-links; its first document is cannot-linked to that of each other.
    `rows` have each document once; pairs that are said `before`, maybe with a weight of their own,
    are left out. A pair is of the documents of two rows, by their numbers, the earlier one first.

    Examples
    --------
    >>> rows = [Labelled("a", "x", 1), Labelled("b", "y", 2), Labelled("c", "x", 3)]
    >>> list(class_links(rows, before=set()))
    [(False, 0, 1), (True, 0, 2)]
    """
    last: dict[str, int] = {}
    first: list[int] = []
    for row, labelled in enumerate(rows):
        document, label = labelled.document, labelled.label
        must = label in last
        for partner in [last[label]] if must else first:
            if said(rows[partner].document, document, must=must) not in before:
                yield must, partner, row
        if not must:
            first.append(row)
        last[label] = row


def _pair_problem(first: Any, second: Any, weight: Any) -> str:
    """Return what is wrong with a row of a known kind, "" if it is a pair."""
    if first in ("", None) or second in ("", None):
        return "a and b must name two documents, got an empty one"
    for document in (first, second):
        if not _is_plain(document, str | int):
            return f"a and b must be ids, text or whole numbers, got {document!r:.80}"
    if problem := problem_of_id(first) or problem_of_id(second):
        return problem
    if str(first) == str(second):
        return f"a and b must be two different documents, got {first!r:.80} twice"
    if weight in ("", None):
        return ""
    if isinstance(weight, bool):
        return f"weight must be a number, got {weight!r}"
    try:
        number = float(weight)
    except (TypeError, ValueError, OverflowError):
        return f"weight must be a number, got {weight!r:.80}"
    problem = problem_of_cost(number)
    return f"weight {problem}, got {weight!r:.80}" if problem else ""


class Answer(NamedTuple):
    """A pair as it stands in a file, and the line that says so."""

    first: Any
    second: Any
    must: bool
    line: int
    weight: float = math.nan  # where none is given
    notes: Notes | None = None


@dataclass(slots=True)
class AnswerTable:
    """The answers of a file, and the lines that are none.

    Examples
    --------
    >>> table = AnswerTable("pairs.csv")
    >>> table.take(TableRow(2, ("a", "b", "kind"), ("1", "2", "same")))
    >>> table.take(TableRow(3, ("a", "b", "kind"), ("1", "1", "same")))
    >>> table.pairs[0].must, table.bad[0].reason
    (True, "a and b must be two different documents, got '1' twice")
    """

    path: str
    unit: str = "line"
    pairs: list[Answer] = field(default_factory=list)
    bad: list[BadRecord] = field(default_factory=list)
    classes: set[str] = field(default_factory=set)
    # Documents and their classes by the id as text, in the order of lines.
    labels: dict[str, Labelled] = field(default_factory=dict)

    def take(self, row: TableRow | BadRecord) -> None:
        """Take a row of the file in: a pair, a document and its class, or neither."""
        if isinstance(row, BadRecord):
            self._refuse(row)
            return
        columns = columns_of(row.names, suggest=len(self.bad) < SUGGESTED)
        if problem := columns if isinstance(columns, str) else self._take(row, columns):
            self._refuse(row.refused(problem))

    def _take(self, row: TableRow, columns: Columns) -> str:
        """Take the values of a row in; return what is wrong with them, "" if nothing is."""
        notes, problem = columns.notes_of(row.values) if columns.notes else (None, "")
        if problem:
            return problem
        values = [row.values[place] if place >= 0 else None for place in columns.places]
        if len(values) == len(LABELS):
            document, label = values
            return self._take_label(document, label, row.line, notes)
        first, second, written_kind, weight = values
        kind = kind_of(written_kind)
        if kind is None:
            return f"kind must be {_KINDS}, got {written_kind!r:.80}"
        problem = _pair_problem(first, second, weight)
        if not problem:
            cost = math.nan if weight in ("", None) else float(weight)
            self.pairs.append(Answer(first, second, kind == MUST, row.line, cost, notes))
        return problem

    def _take_label(self, document: Any, label: Any, line: int, notes: Notes | None) -> str:
        if label in ("", None) or label != label:  # a document without a class says nothing
            return ""
        if problem := _label_problem(document, label):
            return problem
        # 1, 1.0 and their texts are one class in all files, as tables with gaps write it.
        name = re.sub(r"^(-?\d+)\.0+$", r"\1", str(label))
        self.classes.add(name)
        before = self.labels.setdefault(str(document), Labelled(document, name, line, notes))
        if before.label == name:
            take_vote(before.votes, notes, (notes or {}).get("trust", math.nan))
            return ""
        return two_classes(name, before.label, f"line {before.line}")

    def _refuse(self, bad: BadRecord) -> None:
        """Note a line that is no answer; so many of them are another kind of file."""
        if len(self.bad) >= BAD_ANSWERS:
            raise InvalidInputError(
                f"{self.path}: must have at most {BAD_ANSWERS:,} {self.unit}s that are no answers, "
                f"got more up to {self.unit} {bad.line}; is it an answers file?"
            )
        self.bad.append(bad)
