"""Rounds of questions: which of a batch comes next, and whether more of them are worth asking.

Functions of questions and entries alone: a page calls them after each answer.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from hmrf_dask.answers.records import (
    CHOICE,
    DIFFERENT,
    NEW,
    NONE,
    PAIR,
    SAME,
    UNKNOWN,
    Entry,
    Question,
)

CONTROL = 0.1  # of all questions: their answers are known, or were given before
FORGOTTEN = 10  # answers after which a person may be asked the same again
ALL_SHOWN = 20  # groups: of more, some are shown at a time
SOME_SHOWN = 5
LAST = 20  # answers whose effect is told


@dataclass(frozen=True)
class Person:
    """Who is asked, and how.

    Attributes
    ----------
    name : str
        As in the entries; "" where nobody is named.
    kind : {"choice", "pair"}
        What the person is asked: which of the groups, or one group after the other.
    skipped : frozenset of str
        Documents that the person left for later.
    elsewhere : frozenset of str
        Documents that other people are asked about just now.
    """

    name: str = ""
    kind: str = CHOICE
    skipped: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()

    def may_see(self, document: str) -> bool:
        """Return whether nothing keeps a document from this person for now."""
        return document not in self.skipped and document not in self.elsewhere


def next_question(
    batch: Sequence[Question],
    entries: Sequence[Entry],
    person: Person = Person(),
    *,
    people: int = 1,
    control: float = CONTROL,
) -> Question | None:
    """Return what a person is to be asked next, None where nothing of the batch is left to ask.

    A document goes on with the next group as soon as it is told apart from one. A document is left
    alone once it is settled, or once this person does not know it. A share of the questions has
    been answered before: how somebody answers these shows how far answers can be trusted.

    Parameters
    ----------
    batch : sequence of Question
        Choices whose `shown` are all groups a document may belong to, the likeliest first.
    entries : sequence of Entry
        Those that stand (`hmrf_dask.answers.standing`), in the order in which they were written.
    person : Person
    people : int
        How many people are to answer each question.
    control : float
        Share of questions that are asked again.

    Examples
    --------
    >>> batch = [Question("choice", ("x",), ("r", "s"), (0.7, 0.3))]
    >>> next_question(batch, [], Person(kind="pair")).documents
    ('x', 'r')
    >>> entry = Entry("1", "pair", ("x", "r"), answer="different")
    >>> next_question(batch, [entry], Person(kind="pair")).documents
    ('x', 's')
    >>> next_question(batch, [entry, Entry("2", "pair", ("x", "s"), answer="same")]) is None
    True
    """
    known = Known(entries)
    own = [entry for entry in known.answers if entry.annotator == person.name]
    unsure = {entry.documents[0] for entry in own if entry.answer == UNKNOWN}
    left = [
        question for question in batch
        if question.documents[0] not in unsure and person.may_see(question.documents[0])
    ]  # fmt: skip
    last = own[-1].documents[0] if own else None
    begun = [question for question in left if question.documents[0] == last]
    asked = _first(known.asks(question, person.kind) for question in begun)
    if asked is None:
        asked = _control(known, own, person, control)
    if asked is None:
        asked = _first(known.asks(question, person.kind) for question in left)
    if asked is None and people > 1:
        asked = _second_opinion(known, left, person, people)
    return asked


def _first(questions: Iterator[Question | None]) -> Question | None:
    return next((question for question in questions if question is not None), None)


def subject_of(entry: Entry | Question) -> tuple[str, frozenset[str]]:
    """Return what a question or its answer is about, whichever way it was put.

    Examples
    --------
    >>> subject_of(Entry("1", "pair", ("x", "r"), answer="same"))[1] == frozenset("xr")
    True
    """
    if entry.kind == PAIR:
        return PAIR, frozenset(entry.documents)
    return f"{CHOICE} {entry.documents[0]}", frozenset(entry.shown)


class Known:
    """What entries say together: documents known to be the same, and groups known apart."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.answers = [entry for entry in entries if entry.kind in (PAIR, CHOICE)]
        self._above: dict[str, str] = {}
        self.opened: set[str] = set()  # documents that are in no group of those before
        for entry in self.answers:
            if entry.answer == SAME:
                self._join(*entry.documents)
            elif entry.answer == NEW:
                self.opened.add(entry.documents[0])

    def group(self, document: str) -> str:
        """Return the document that stands for all that are known to be the same as this one."""
        above = self._above.setdefault(document, document)
        while above != self._above[above]:
            above = self._above[above] = self._above[self._above[above]]
        return above

    def _join(self, first: str, second: str) -> None:
        low, high = sorted((self.group(first), self.group(second)))
        self._above[high] = low

    @cached_property
    def rivals(self) -> dict[str, set[str]]:
        """The groups that are known apart from each group."""
        found: dict[str, set[str]] = defaultdict(set)
        for entry in self.answers:
            others: tuple[str, ...] = ()
            if entry.kind == PAIR and entry.answer == DIFFERENT:
                others = entry.documents[1:]
            elif entry.answer in (NONE, NEW):
                others = entry.shown
            own = self.group(entry.documents[0])
            for other in map(self.group, others):
                found[own].add(other)
                found[other].add(own)
        return found

    @cached_property
    def sizes(self) -> Counter[str]:
        """How many documents each group has."""
        return Counter(self.group(document) for document in list(self._above))

    def left(self, question: Question) -> list[tuple[str, float]]:
        """Return the groups that a document may still belong to, with their shares.

        None are left once it is settled: it has its group, opens one, or one alone is left.
        """
        own = self.group(question.documents[0])
        groups = [self.group(document) for document in question.shown]
        if own in groups or self.opened & set(question.documents):
            return []
        rivals = self.rivals.get(own, set())
        likely = question.likely or (1.0 / len(groups),) * len(groups)
        left = [
            (document, share)
            for document, group, share in zip(question.shown, groups, likely, strict=True)
            if group not in rivals
        ]
        if len(left) == 1 < len(groups) and self._all_apart(groups):
            return []
        total = sum(share for _, share in left)
        return [(document, share / total if total else 1 / len(left)) for document, share in left]

    def _all_apart(self, groups: list[str]) -> bool:
        return all(
            second in self.rivals.get(first, ()) for first, second in combinations(set(groups), 2)
        )

    def asks(self, question: Question, kind: str) -> Question | None:
        """Return what is to be asked of a document next, None where it is settled."""
        left = self.left(question)
        if not left:
            return None
        if kind == CHOICE:
            shown = left[: ALL_SHOWN if len(left) <= ALL_SHOWN else SOME_SHOWN]
            documents, groups = question.documents, tuple(document for document, _ in shown)
        else:
            shown = left[:1]
            documents, groups = (question.documents[0], left[0][0]), ()
        likely = tuple(round(share, 4) for _, share in shown)
        settles = self.settles(question.documents[0], dict(shown))
        return replace(
            question, kind=kind, documents=documents, shown=groups, likely=likely, settles=settles
        )

    def settles(self, document: str, likely: dict[str, float]) -> float:
        """Return how many pairs of documents an answer is expected to settle.

        `likely` says for each group that is asked about how likely it is that of the document.
        """
        own, nowhere = self.group(document), 1.0 - sum(likely.values())
        groups = {self.group(other): share for other, share in likely.items()}
        n_own = self.sizes[own]
        total = nowhere * n_own * sum(self.sizes[group] for group in groups)
        for group, share in groups.items():
            ours, theirs = self.rivals.get(own, set()), self.rivals.get(group, set())
            news = n_own * sum(self.sizes[rival] for rival in theirs - ours)
            news += self.sizes[group] * sum(self.sizes[rival] for rival in ours - theirs)
            total += share * (n_own * self.sizes[group] + news)
        return round(max(total, 0.0), 2)


# ---- questions that were answered before


def _control(known: Known, own: Sequence[Entry], person: Person, share: float) -> Question | None:
    """Return an answered question where it is time to ask this person one of these."""
    n_controls = sum(entry.why == "control" for entry in own)
    if n_controls + 1 > share * (len(own) + 1):
        return None
    lately = {subject_of(entry) for entry in own[-FORGOTTEN:]}
    often = Counter(subject_of(entry) for entry in own)
    candidates = [
        entry for entry in known.answers
        if entry.answer in (SAME, DIFFERENT)
        and person.may_see(entry.documents[0])
        and subject_of(entry) not in lately
        and often[subject_of(entry)] < 2
    ]  # fmt: skip
    if not candidates:
        return None
    drawn = min(candidates, key=lambda entry: _draw(person.name, len(own), entry.id))
    return _again(drawn, "control")


def _draw(*of: object) -> bytes:
    return hashlib.blake2b(repr(of).encode(), digest_size=8).digest()


def _second_opinion(
    known: Known, left: Sequence[Question], person: Person, people: int
) -> Question | None:
    """Return a question of the batch that somebody else answered, and too few people so far."""
    documents = {question.documents[0] for question in left}
    asked: dict[tuple[str, frozenset[str]], set[str]] = defaultdict(set)
    for entry in known.answers:
        asked[subject_of(entry)].add(entry.annotator)
    for entry in known.answers:
        others = asked[subject_of(entry)]
        if entry.documents[0] not in documents or entry.answer == UNKNOWN:
            continue
        if person.name not in others and len(others) < people:
            return _again(entry, "second opinion")
    return None


def _again(entry: Entry, why: str) -> Question:
    """Return the question that an entry answered."""
    documents = entry.documents[:1] if entry.kind == CHOICE else entry.documents
    return Question(entry.kind, documents, entry.shown, entry.likely, why)


# ---- what answers bring


class Outlook(NamedTuple):
    """What the last answers moved, and what those to come are expected to move.

    Examples
    --------
    >>> str(Outlook(answers=20, moved=3, left=5, expected=0.6))
    'the last 20 answers moved 3 documents; the 5 that are left are expected to move 0.6'
    """

    answers: int  # the last ones
    moved: int  # documents of theirs that turned out not to be where they were likeliest
    left: int  # documents of the batch that are not settled
    expected: float  # of them that are not where they are likeliest

    def __str__(self) -> str:
        """Say it in a sentence."""
        return (
            f"the last {self.answers} answers moved {self.moved} documents; the {self.left} that "
            f"are left are expected to move {self.expected:.1f}"
        )


def outlook(batch: Sequence[Question], entries: Sequence[Entry], last: int = LAST) -> Outlook:
    """Return what the last answers moved, and what the remainder of a batch is expected to move.

    Only documents that are asked about count: how many others follow, the next fit shows.

    Examples
    --------
    >>> batch = [Question("choice", ("x",), ("r", "s"), (0.7, 0.3))]
    >>> outlook(batch, [])
    Outlook(answers=0, moved=0, left=1, expected=0.3)
    """
    known = Known(entries)
    told = [entry for entry in known.answers if entry.why not in ("control", "second opinion")]
    first: dict[str, Entry] = {}
    for entry in told:
        if entry.answer != UNKNOWN:
            first.setdefault(entry.documents[0], entry)
    recent = told[-last:]
    moved = {entry.documents[0] for entry in recent if entry.documents[0] in first}
    n_moved = sum(not _stays(first[document]) for document in moved)
    open_ones = [(question, left) for question in batch if (left := known.left(question))]
    expected = sum(
        1.0 - left[0][1] if left[0][0] == question.shown[0] else 1.0 for question, left in open_ones
    )
    return Outlook(len(recent), n_moved, len(open_ones), round(expected, 2))


def _stays(entry: Entry) -> bool:
    """Return whether the first answer about a document says the group that was the likeliest."""
    if entry.answer != SAME or entry.kind == PAIR:
        return entry.answer == SAME
    likely = entry.likely or (1.0,) + (0.0,) * (len(entry.shown) - 1)
    shares = dict(zip(entry.shown, likely, strict=False))
    return shares.get(entry.documents[1], 0.0) >= max(likely)
