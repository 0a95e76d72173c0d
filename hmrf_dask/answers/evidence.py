"""What the answers of a journal say about documents, whatever the order of its lines.

An answer is a vote of a person: for a group, by a document that stands for it, or against those of
all documents shown. What a person says again counts once; what a person says one way and then the
other counts for nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from hmrf_dask.answers.records import CHOICE, IMPORTED, NEW, PAIR, SAME, UNKNOWN, Entry
from hmrf_dask.answers.standing import standing

STEPS = 2**16  # log odds and probabilities are summed as whole numbers of such parts
AGAIN = ("anchors", "control", "second opinion")  # why a document is asked about that has a group


class Vote(NamedTuple):
    """What a person says of a document: it belongs with one of those shown, or with none."""

    document: int
    shown: tuple[int, ...]  # documents that stand for groups
    chosen: int | None
    is_new: bool  # it is of no group that was known before
    annotator: str
    entries: tuple[str, ...]

    @property
    def against(self) -> tuple[int, ...]:
        """The documents that it is said to be different from."""
        return self.shown if self.chosen is None else ()

    def steps(self, error_rate: float) -> int:
        """Return its log odds: an answer is wrong with this rate, then any other is as likely.

        Examples
        --------
        >>> pair, choice = (Vote(0, shown, 1, False, "", ()) for shown in ((1,), (1, 2, 3)))
        >>> [round(math.exp(vote.steps(0.1) / STEPS)) for vote in (pair, choice)]
        [9, 27]
        """
        odds = (1.0 - error_rate) * max(len(self.shown), 1) / error_rate
        return round(math.log(odds) * STEPS)


@dataclass
class Evidence:
    """What was asked and said of documents; these are numbered by their ids in order."""

    names: list[str]
    votes: list[Vote] = field(default_factory=list)
    likely: list[tuple[int, int, int]] = field(default_factory=list)  # document, of whose group, p
    asked: dict[int, set[int]] = field(default_factory=dict)  # against which documents
    first: dict[int, set[int]] = field(default_factory=dict)  # before it was asked about again
    unsure: set[int] = field(default_factory=set)  # of which somebody did not know
    n_asked: Counter[int] = field(default_factory=Counter)  # questions about a document
    stands: Counter[int] = field(default_factory=Counter)  # questions where it stood for a group
    n_answers: Counter[str] = field(default_factory=Counter)  # of an annotator
    n_unknown: Counter[str] = field(default_factory=Counter)
    n_repeated: Counter[str] = field(default_factory=Counter)  # asked again
    n_changed: Counter[str] = field(default_factory=Counter)  # and answered otherwise


def evidence_of(entries: Iterable[Entry]) -> Evidence:
    """Return what the standing answers to questions say.

    Examples
    --------
    >>> answer = Entry("1", "pair", ("x", "r"), answer="same")
    >>> evidence_of([answer, answer]).votes
    [Vote(document=1, shown=(0,), chosen=0, is_new=False, annotator='', entries=('1',))]
    """
    answers = [
        entry for entry in standing(entries)
        if entry.kind in (PAIR, CHOICE) and entry.why != IMPORTED  # those have trust of their own
    ]  # fmt: skip
    names = sorted({name for entry in answers for name in (*entry.documents, *entry.shown)})
    number = {name: place for place, name in enumerate(names)}
    evidence = Evidence(names)
    questions: dict[tuple[object, ...], list[Entry]] = defaultdict(list)
    for entry in answers:
        document, shown = number[entry.documents[0]], [number[name] for name in _shown(entry)]
        evidence.asked.setdefault(document, set()).update(shown)
        if entry.why not in AGAIN:
            evidence.first.setdefault(document, set()).update(shown)
        evidence.n_asked[document] += 1
        evidence.stands.update(shown)
        evidence.n_answers[entry.annotator] += 1
        shares = zip(shown, entry.likely, strict=False)
        evidence.likely += [(document, other, round(p * STEPS)) for other, p in shares]
        if entry.answer == UNKNOWN:
            evidence.n_unknown[entry.annotator] += 1
            evidence.unsure.add(document)
        else:
            questions[_question(entry)].append(entry)
    for same in questions.values():
        _count(evidence, same, number)
    evidence.votes.sort(key=lambda vote: (vote.document, vote.shown, vote.entries))
    return evidence


def _shown(entry: Entry) -> tuple[str, ...]:
    return entry.documents[1:] if entry.kind == PAIR else entry.shown


def _question(entry: Entry) -> tuple[object, ...]:
    """Return what is the same where a person is asked the same again."""
    if entry.kind == PAIR:
        return (entry.annotator, frozenset(entry.documents))
    return (entry.annotator, entry.documents[0], frozenset(entry.shown))


def _count(evidence: Evidence, answers: list[Entry], number: dict[str, int]) -> None:
    """Take what one person said to the same question, maybe several times."""
    first = min(answers, key=lambda entry: entry.documents)  # it may be asked either way
    said = {(entry.answer, frozenset(_chosen(entry))) for entry in answers}
    evidence.n_repeated[first.annotator] += len(answers) - 1
    if len(said) > 1:
        evidence.n_changed[first.annotator] += len(said) - 1
        return
    shown = tuple(sorted({number[name] for name in _shown(first)}))
    chosen = number[first.documents[1]] if first.answer == SAME else None
    ids = tuple(sorted(entry.id for entry in answers))
    document = number[first.documents[0]]
    evidence.votes.append(Vote(document, shown, chosen, first.answer == NEW, first.annotator, ids))


def _chosen(entry: Entry) -> tuple[str, ...]:
    return entry.documents[1:] if entry.kind == CHOICE else ()
