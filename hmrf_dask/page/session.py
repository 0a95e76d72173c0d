"""Questions to several people at once: which is open, what an answer settled, what was taken back.

All that lasts is in the journal; a session made again of the same journal goes on where it was.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

from hmrf_dask.answers.beliefs import Beliefs, believe
from hmrf_dask.answers.journal import Journal
from hmrf_dask.answers.records import (
    ANSWERS,
    CHOICE,
    COMMENT,
    NAME,
    NEW,
    SAME,
    UNDO,
    Entry,
    Question,
)
from hmrf_dask.answers.standing import standing
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.page.chains import Chains
from hmrf_dask.page.material import Group, Library, Material
from hmrf_dask.questions.known import Known
from hmrf_dask.questions.rounds import ALL_SHOWN, Person, next_question, outlook

OPEN_SECONDS: Final = 600.0  # for which nobody else is asked about an open question's document
NEWS_SECONDS: Final = 2.0  # after which the journal is read again: others may write it, too
REMEMBERED: Final = 500  # answers whose documents are read at the start
REPEATED: Final = ("control", "second opinion")  # asked as they were
NAMED_BY: Final = 4  # words of a group that nobody named
LONGEST_PAUSE: Final = 3600.0  # of an answer; more says nothing


@dataclass(frozen=True)
class Asker:
    """Who asks for a question: a person's name, and the tab of a browser.

    Examples
    --------
    >>> Asker("Ada", "7").name
    'Ada'
    """

    name: str
    tab: str
    kind: str = CHOICE


@dataclass(frozen=True)
class Open:
    """A question that somebody sees now; its ticket becomes the id of the answer."""

    ticket: str
    question: Question
    tab: str
    since: float


class Notes:
    """What the standing entries of a journal say, worked out when it is asked for."""

    def __init__(self, entries: Iterable[Entry], trust: Mapping[str, float] | None = None) -> None:
        self._trust = trust
        self.entries = standing(entries)
        self.answers = [entry for entry in self.entries if entry.kind in ANSWERS]
        self.by_id = {entry.id: entry for entry in self.entries}

    @cached_property
    def known(self) -> Known:
        """Groups of documents, and which differ."""
        return Known.of(self.answers)

    @cached_property
    def n_known_pairs(self) -> int:
        """How many pairs of documents are known, by answers or by what follows from them."""
        known = self.known
        sizes = {group: len(members) for group, members in known.members.items()}
        within = sum(size * (size - 1) // 2 for size in sizes.values())
        across = sum(
            sizes[group] * sizes[rival]
            for group, rivals in known.rivals.items()
            for rival in rivals
            if group < rival
        )
        return within + across

    @cached_property
    def beliefs(self) -> Beliefs:
        """What the answers say together, as the next fit will take them."""
        return believe(self.answers, trust=self._trust)

    @cached_property
    def chains(self) -> Chains:
        """The answers as links between documents."""
        return Chains(self.answers)

    def is_torn(self, entry: Entry) -> bool:
        """Return whether other answers say, or lead to, the opposite of what an answer says."""
        return any(self.known.is_apart(one, one) for one in entry.documents)

    @cached_property
    def comments(self) -> dict[str, list[Entry]]:
        """Of every answer what was written next to it, the oldest first."""
        found: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            if entry.kind == COMMENT:
                found[entry.about].append(entry)
        return found

    def name_of(self, group: Group) -> str:
        """Return what people call a group, "" where nobody named it: the last name counts."""
        own = self.known.group(group.document)
        names = [
            entry.answer
            for entry in self.entries
            if entry.kind == NAME
            and not entry.made_of
            and (entry.documents[0] in group.near or self.known.group(entry.documents[0]) == own)
        ]
        return names[-1] if names else ""


@dataclass(frozen=True)
class Saved:
    """What came of an answer.

    Attributes
    ----------
    entry : Entry
    settled : int
        Other pairs of documents that are known through it.
    chain : list of Entry
        Answers that cannot all be right together with it.
    """

    entry: Entry
    settled: int
    chain: list[Entry]


class Session:
    """The people who answer, the journal they write, and what they are asked.

    Parameters
    ----------
    material : Material
    journal : Journal
    people : int
        How many people are to answer each question.
    before : iterable of Entry
        What was answered elsewhere, in a journal that these people do not write.
    trust : mapping of str to float, optional
        The probability that an answer is right, by annotator; of all others answers show it.
    clock : callable
        Seconds that only grow.
    later : callable
        Does something soon: what beliefs take is nothing that an answer waits for.
    """

    def __init__(
        self,
        material: Material,
        journal: Journal,
        *,
        people: int = 1,
        before: Iterable[Entry] = (),
        trust: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[Callable[[], None]], object] = lambda work: work(),
    ) -> None:
        self.journal, self.people, self._clock, self._later = journal, people, clock, later
        self._entries, self._trust = {entry.id: entry for entry in before}, trust
        self._end, self._read_at = 0, -NEWS_SECONDS
        self._open: dict[str, Open] = {}
        self._skipped: dict[str, set[str]] = defaultdict(set)
        self._notes = self._believed = Notes(self._entries.values(), trust)
        self.refresh(now=True)
        self.take(material)

    def take(self, material: Material) -> None:
        """Ask about this from now on: after a refit there are new questions and groups."""
        self.material, self._gone = material, set[str]()
        self._skipped.clear()
        lately = (one for entry in self._notes.answers[-REMEMBERED:] for one in entry.documents)
        self.library = Library(material, lately)  # what was answered may be asked again
        self.weigh = material.weigh or self.library.weights()
        self.groups = {group.document: group for group in material.groups}

    # ---- the journal

    @property
    def notes(self) -> Notes:
        """What the journal says now."""
        return self._notes

    def refresh(self, *, now: bool = False) -> None:
        """Read what others wrote since."""
        if not now and self._clock() - self._read_at < NEWS_SECONDS:
            return
        lines = self.journal.entries(since=self._end)
        self._end, self._read_at = lines.end, self._clock()
        self._take_in(lines.entries)

    def _take_in(self, entries: Sequence[Entry]) -> None:
        news = [entry for entry in entries if entry.id not in self._entries]
        if news:
            self._entries |= {entry.id: entry for entry in news}
            self._notes = Notes(self._entries.values(), self._trust)
            self._later(self._believe)

    def _believe(self) -> None:
        """Work out what the answers say together, as the next fit will take them."""
        notes = self._notes
        if notes is not self._believed:
            notes.beliefs  # noqa: B018 - worked out here, not when somebody asks
            self._believed = notes

    def _save(self, *entries: Entry) -> None:
        """Write entries, which last when this returns, and only then count them."""
        self.journal.append(*entries)
        self._take_in(entries)

    # ---- questions

    def next(self, asker: Asker) -> Open | None:
        """Return the question that a person is to see now, None where none is left."""
        self.refresh()
        while True:
            question = self._chosen(asker)
            if question is None and self._skipped[asker.tab]:
                self._skipped[asker.tab].clear()  # what was left for later comes now
                question = self._chosen(asker)
            if question is None:
                return None
            missing = set(question.documents) - self.library.get(question.documents).keys()
            if not missing:
                return self.open(question, asker)
            self._gone.add(question.documents[0])  # since the question was made

    def _chosen(self, asker: Asker) -> Question | None:
        believed = self._believed
        left = self._skipped[asker.tab] | self._gone | self._just_answered(believed)
        elsewhere = frozenset(self._elsewhere(asker.tab))
        question = next_question(
            self.material.batch,
            self._notes.answers,
            Person(asker.name, asker.kind, skipped=frozenset(left), elsewhere=elsewhere),
            people=self.people,
            beliefs=believed.beliefs,
        )
        return None if question is None else self._with_opened(question)

    def _with_opened(self, question: Question) -> Question:
        """Return a choice with the groups, too, that answers opened since the batch was made."""
        if question.kind != CHOICE or question.why in REPEATED or not self.material.all_shown:
            return question
        known, document = self._notes.known, question.documents[0]
        shown = {known.group(one) for one in (document, *question.shown, *self.groups)}
        new: dict[str, str] = {}
        for entry in self._notes.answers:
            group = known.group(entry.documents[0])
            if entry.answer == NEW and group not in shown:
                new.setdefault(group, entry.documents[0])
        some = [one for one in new.values() if not known.is_apart(document, one)]
        some = some[: max(0, ALL_SHOWN - len(self.groups))]
        likely = question.likely and (*question.likely, *(0.0 for _ in some))
        return replace(question, shown=(*question.shown, *some), likely=likely)

    def _just_answered(self, believed: Notes) -> set[str]:
        """Return the documents that answers seem to settle which beliefs do not count yet."""
        new = [one for one in self._notes.answers if one.id not in believed.by_id]
        placed = {one.documents[0] for one in new if one.answer in (SAME, NEW)}
        about, known = {one.documents[0] for one in new}, self._notes.known
        return placed | {
            question.documents[0]
            for question in self.material.batch
            if question.documents[0] in about and not known.left(question)
        }

    def _elsewhere(self, tab: str) -> set[str]:
        """Return the documents that others are asked about now."""
        late = self._clock() - OPEN_SECONDS
        self._open = {key: one for key, one in self._open.items() if one.since > late}
        return {one.question.documents[0] for one in self._open.values() if one.tab != tab}

    def open(self, question: Question, asker: Asker) -> Open:
        """Return a question with the ticket by which it is answered."""
        for ticket, one in list(self._open.items()):
            if one.tab == asker.tab:
                if one.question == question:
                    return one  # the page was loaded again
                del self._open[ticket]
        ticket = secrets.token_hex(12)
        self._open[ticket] = Open(ticket, question, asker.tab, self._clock())
        return self._open[ticket]

    def opened(self, ticket: str) -> Open:
        """Return the question of a ticket, or raise InvalidInputError."""
        if ticket not in self._open:
            raise InvalidInputError(
                "the question must be one that is open, got one that was answered or left; load "
                "the page again"
            )
        return self._open[ticket]

    def skip(self, ticket: str, asker: Asker) -> None:
        """Leave a question for later."""
        self._skipped[asker.tab].add(self.opened(ticket).question.documents[0])
        del self._open[ticket]

    # ---- answers

    def answer(self, ticket: str, asker: Asker, word: str, chosen: str | None) -> Saved:
        """Save an answer; one that is sent twice counts once.

        Parameters
        ----------
        ticket : str
        asker : Asker
        word : str
            Of a pair or a choice, as in `Entry`.
        chosen : str or None
            Of a choice, the document that stands for the group.
        """
        if ticket in self._entries:
            return Saved(self._entries[ticket], 0, [])
        opened = self.opened(ticket)
        seconds = min(self._clock() - opened.since, LONGEST_PAUSE)
        entry = entry_of(opened.question, ticket, word, chosen)
        entry = replace(entry, annotator=asker.name, time=now(), seconds=round(seconds, 2))
        before = self._notes
        self._save(entry)
        self._open.pop(ticket, None)
        return self._saved(entry, before)

    def _saved(self, entry: Entry, before: Notes) -> Saved:
        settled = max(self._notes.n_known_pairs - before.n_known_pairs - 1, 0)
        chain = self._notes.chains.contradicting(entry) if self._notes.is_torn(entry) else []
        return Saved(entry, settled, [*chain, entry] if chain else [])

    def undo(self, about: str | None, asker: Asker) -> Entry:
        """Take an entry back, by default the last answer of this person; return what it was."""
        self.refresh(now=True)
        if about is None:
            own = [entry for entry in self._notes.answers if entry.annotator == asker.name]
            if not own:
                raise InvalidInputError("there is no answer of yours to take back")
            about = own[-1].id
        entry = self.entry(about)
        self._save(self._written(UNDO, asker, about=about))
        return entry

    def reopen(self, entry: Entry, asker: Asker) -> Open | None:
        """Ask again what an entry answered, None where it answered nothing."""
        if entry.kind not in ANSWERS:
            return None
        question = question_of(entry)
        there = self.library.get(question.documents)
        return self.open(question, asker) if len(there) == len(question.documents) else None

    def change(self, about: str, asker: Asker, word: str, chosen: str | None) -> Saved:
        """Put another answer in the place of one; both stay in the journal."""
        former, before = self.entry(about), self._notes
        if former.kind not in ANSWERS:
            raise InvalidInputError(f"an answer must be a pair or a choice, got a {former.kind}")
        question = question_of(former)
        entry = entry_of(question, secrets.token_hex(12), word, chosen)
        undo = self._written(UNDO, asker, about=about)
        entry = replace(entry, annotator=former.annotator, time=now(), seconds=former.seconds)
        self._save(undo, entry)
        return self._saved(entry, before)

    def comment(self, about: str, asker: Asker, text: str, *, review: bool) -> Entry:
        """Write something next to an answer, and mark it for review, or not."""
        self.entry(about)
        entry = self._written(COMMENT, asker, about=about, answer=text, review=review)
        self._save(entry)
        return entry

    def name(self, document: str, asker: Asker, text: str) -> Entry:
        """Give the group of a document a name; an empty one takes it away."""
        if document not in self.groups:
            raise InvalidInputError("a name must be of a group that is shown")
        entry = self._written(NAME, asker, documents=(document,), answer=text)
        self._save(entry)
        return entry

    def entry(self, entry_id: str) -> Entry:
        """Return an entry that stands, or raise InvalidInputError."""
        if entry_id not in self._notes.by_id:
            self.refresh(now=True)
        if entry_id not in self._notes.by_id:
            raise InvalidInputError(
                "the answer must be one that stands, got one that was taken back, or none"
            )
        return self._notes.by_id[entry_id]

    def _written(self, kind: str, asker: Asker, **content: Any) -> Entry:
        return Entry(secrets.token_hex(12), kind, annotator=asker.name, time=now(), **content)

    # ---- words

    def called(self, document: str) -> str:
        """Return what the group is called that a document stands for."""
        group = self.groups.get(document) or Group(document)
        name = self._notes.name_of(group) or ", ".join(group.words[:NAMED_BY])
        if name:
            return name
        texts = self.library.get([document])
        return " ".join(texts[document].text.split()[:6]) if document in texts else document

    def outlook(self) -> str:
        """Return whether more questions are worth asking, as far as one can tell."""
        ahead = outlook(self.material.batch, self._notes.answers)
        words = str(ahead)
        return words[:1].upper() + words[1:] + "."


def entry_of(question: Question, entry_id: str, word: str, chosen: str | None) -> Entry:
    """Return an answer to a question, or raise InvalidInputError where it is none.

    Examples
    --------
    >>> question = Question("choice", ("x",), ("r", "s"))
    >>> entry_of(question, "1", "same", "s").documents
    ('x', 's')
    """
    if word not in ANSWERS[question.kind]:
        allowed = ", ".join(ANSWERS[question.kind])
        raise InvalidInputError(f"an answer must be one of {allowed}, got {word!r:.40}")
    documents = question.documents
    if question.kind == CHOICE and word == SAME:
        if chosen not in question.shown:
            raise InvalidInputError(f"a group must be one of those shown, got {chosen!r:.80}")
        documents = (*documents, chosen)
    return Entry(
        entry_id,
        question.kind,
        documents,
        question.shown,
        word,
        likely=question.likely,
        why=question.why,
    )


def question_of(entry: Entry) -> Question:
    """Return the question that an entry answered.

    Examples
    --------
    >>> question_of(Entry("1", "choice", ("x", "r"), ("r", "s"), "same")).documents
    ('x',)
    """
    documents = entry.documents[:1] if entry.kind == CHOICE else entry.documents
    why = entry.why or "asked for"
    return Question(entry.kind, documents, entry.shown, entry.likely, why)


def now() -> str:
    """Return the time as entries have it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
