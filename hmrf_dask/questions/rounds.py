"""Rounds of questions: which of a batch comes next, and whether more of them are worth asking.

Functions of questions and entries alone: a page calls them after each answer.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hmrf_dask.answers.beliefs import PATIENCE, Beliefs
from hmrf_dask.answers.records import (
    CHOICE,
    DIFFERENT,
    PAIR,
    SAME,
    UNKNOWN,
    Entry,
    Question,
)
from hmrf_dask.questions.known import Known

CONTROL = 0.1  # of all questions: their answers are known, or were given before
FORGOTTEN = 10  # answers after which a person may be asked the same again
ALL_SHOWN = 20  # groups: of more, some are shown at a time
SOME_SHOWN = 5
LAST = 20  # answers whose effect is reported


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
    beliefs: Beliefs | None = None,
) -> Question | None:
    """Return what a person is to be asked next, None where nothing of the batch is left to ask.

    A document goes on with the next group as soon as it is said to differ from one. It is left
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
    beliefs : Beliefs, optional
        What the entries say where some may be wrong: they decide which documents are settled, and
        one that a single answer does not settle is compared with another member of its group.

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
    known = Known.of(entries)
    own = [entry for entry in known.answers if entry.annotator == person.name]
    unsure = {entry.documents[0] for entry in own if entry.answer == UNKNOWN}
    left = [
        question for question in batch
        if question.documents[0] not in unsure and person.may_see(question.documents[0])
    ]  # fmt: skip
    last = own[-1].documents[0] if own else None
    begun = [question for question in left if question.documents[0] == last]
    asked = _first(_asks(known, question, person.kind, beliefs) for question in begun)
    if asked is None:
        asked = _control(known, own, person, control)
    if asked is None:
        asked = _first(_asks(known, question, person.kind, beliefs) for question in left)
    if asked is None and people > 1:
        asked = _second_opinion(known, left, person, people)
    return asked


def _asks(known: Known, question: Question, kind: str, beliefs: Beliefs | None) -> Question | None:
    """Return what is to be asked of a document next, whatever it is that settles documents."""
    document = question.documents[0]
    if beliefs is None:
        return asks(known, question, kind)
    # a document that stands for a group may yet turn out to be of another one
    if document in beliefs.set_aside or beliefs.anchor_of.get(document, document) != document:
        return None
    asked = asks(known, question, kind)
    if asked is not None or document not in beliefs.open:
        return asked
    return _compared_again(question, beliefs)


def _compared_again(question: Question, beliefs: Beliefs) -> Question | None:
    """Return the question that says more of a document whose answers settle nothing yet.

    It is compared with another member of its likeliest group, or else with the next group.
    """
    opinion = beliefs.opinion(question.documents[0])
    if opinion.n_asked >= PATIENCE:
        return None
    likely = dict(opinion.likely)
    for name in question.shown:
        likely.setdefault(beliefs.anchor_of.get(name, name), 0.0)
    order = sorted(likely, key=lambda anchor: (-likely[anchor], anchor))
    members = {one.anchor: one.members for one in beliefs.groups}
    for place, anchor in enumerate(order):
        if place and not opinion.asked.isdisjoint(members.get(anchor, (anchor,))):
            continue  # it was said to differ from that group
        for name in (anchor, *members.get(anchor, ())):
            if name not in opinion.asked and name != question.documents[0]:
                documents, share = (question.documents[0], name), round(likely[anchor], 4)
                return Question(PAIR, documents, (), (share,), question.why)
    return None


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


def asks(known: Known, question: Question, kind: str) -> Question | None:
    """Return what is to be asked of a document next, None where it is settled.

    Examples
    --------
    >>> question = Question("choice", ("x",), ("r", "s"), (0.7, 0.3))
    >>> asks(Known([], [("x", "r")]), question, "pair").documents
    ('x', 's')
    """
    left = known.left(question)
    if not left:
        return None
    subject, groups = question.documents[0], tuple[str, ...]()
    documents: tuple[str, ...] = (subject,)
    if kind == CHOICE:
        shown = left[: ALL_SHOWN if len(left) <= ALL_SHOWN else SOME_SHOWN]
        groups = tuple(document for document, _ in shown)
    else:
        shown = left[:1]
        documents = (subject, left[0][0])
    likely = tuple(round(share, 4) for _, share in shown)
    settles = known.settles(subject, dict(shown))
    return Question(kind, documents, groups, likely, question.why, settles)


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
    known = Known.of(entries)
    asked = [entry for entry in known.answers if entry.why not in ("control", "second opinion")]
    first: dict[str, Entry] = {}
    for entry in asked:
        if entry.answer != UNKNOWN:
            first.setdefault(entry.documents[0], entry)
    recent = asked[-last:]
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
