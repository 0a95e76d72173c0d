"""The lists of the page: all answers, what is disputed, who answered how."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import Any, Final, NamedTuple

from hmrf_dask.answers.records import ANSWERS, CHOICE, IMPORTED, PAIR, SAME, UNKNOWN, Entry
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.page.session import Session
from hmrf_dask.page.views import (
    JSON,
    SAID,
    chain_view,
    excerpt,
    group_view,
    link_view,
    says,
    who,
)
from hmrf_dask.questions.rounds import subject_of

PAGE: Final = 25  # answers of a list that are sent at once
MOST_LISTED: Final = 50  # disputes of a kind
ONLY: Final = ("", "review", "disputed", "unknown", "control")


class Filter(NamedTuple):
    """Which answers are wanted.

    Examples
    --------
    >>> Filter(only="review").start
    0
    """

    search: str = ""
    only: str = ""
    person: str = ""  # "=" and a name; "" for everybody
    start: int = 0


def answers_view(session: Session, wanted: Filter) -> JSON:
    """Return a page of the answers that are wanted, the last ones first."""
    if wanted.only not in ONLY:
        raise InvalidInputError(f"only must be one of {', '.join(ONLY[1:])}, got {wanted.only!r}")
    answers = session.notes.answers
    disputed = disputed_ids(session)
    found = [one for one in reversed(answers) if _is_wanted(session, one, wanted, disputed)]
    shown = found[wanted.start : wanted.start + PAGE]
    session.library.get(document for entry in shown for document in entry.documents)
    return {
        "total": len(found),
        "start": wanted.start,
        "page": PAGE,
        "people": sorted({entry.annotator for entry in answers}),
        "answers": [_answer(session, entry, entry.id in disputed) for entry in shown],
    }


def _is_wanted(session: Session, entry: Entry, wanted: Filter, disputed: set[str]) -> bool:
    if wanted.person and entry.annotator != wanted.person[1:]:
        return False
    if wanted.only == "review" and not _is_to_review(session, entry):
        return False
    if wanted.only == "disputed" and entry.id not in disputed:
        return False
    if wanted.only == "unknown" and entry.answer != UNKNOWN:
        return False
    if wanted.only == "control" and entry.why != "control":
        return False
    return not wanted.search or wanted.search.casefold() in _searched(session, entry)


def _searched(session: Session, entry: Entry) -> str:
    """Return all the words in which an answer is searched."""
    texts = session.library.get(entry.documents)
    comments = [one.answer for one in session.notes.comments.get(entry.id, ())]
    words = [*entry.documents, *(one.text for one in texts.values()), *comments, entry.annotator]
    return "\n".join([*words, says(session, entry)]).casefold()


def _is_to_review(session: Session, entry: Entry) -> bool:
    comments = session.notes.comments.get(entry.id, [])
    return bool(comments) and comments[-1].review


def _answer(session: Session, entry: Entry, disputed: bool) -> JSON:
    comments = session.notes.comments.get(entry.id, ())
    return {
        "id": entry.id,
        "documents": [{"id": one, "text": excerpt(session, one)} for one in _documents(entry)],
        "option": _option(entry),
        "options": _options(session, entry),
        "who": f"{who(entry)}, {entry.seconds:.0f} s",
        "comments": [
            {"annotator": one.annotator, "text": one.answer} for one in comments if one.answer
        ],
        "review": _is_to_review(session, entry),
        "disputed": disputed,
    }


def _documents(entry: Entry) -> tuple[str, ...]:
    return entry.documents if entry.kind == PAIR else entry.documents[:1]


def _option(entry: Entry) -> str:
    """Return an answer as a list of possible ones has it."""
    return (
        f"={entry.documents[1]}" if entry.kind == CHOICE and entry.answer == SAME else entry.answer
    )


def _options(session: Session, entry: Entry) -> list[dict[str, str]]:
    groups = [{"value": f"={one}", "words": session.called(one)} for one in entry.shown]
    words = [one for one in ANSWERS[entry.kind] if entry.kind == PAIR or one != SAME]
    return [*groups, *({"value": one, "words": SAID[one]} for one in words)]


def said_by(option: str) -> tuple[str, str | None]:
    """Return the answer, and the group that was chosen, of what a list of them has.

    Examples
    --------
    >>> said_by("=r"), said_by("different")
    (('same', 'r'), ('different', None))
    """
    return (SAME, option[1:]) if option.startswith("=") else (option, None)


# ---- disputes


def disputed_ids(session: Session) -> set[str]:
    """Return the answers that contradict others, or of which most say something else."""
    beliefs = session.notes.beliefs
    chains = {one for found in beliefs.contradictions for link in found.links for one in link}
    return chains | {one for dispute in beliefs.disputes for one in dispute.entries}


def disputes_view(session: Session) -> JSON:
    """Return what to clear up: contradictions, documents about which answers differ, those left."""
    beliefs, notes = session.notes.beliefs, session.notes
    chains = [
        [notes.by_id[link[0]] for link in found.links]
        for found in beliefs.contradictions[:MOST_LISTED]
    ]
    differ = [
        _about(
            session, one.document, f"Taken for {session.called(one.anchor)}; somebody said else."
        )
        for one in beliefs.disputes[:MOST_LISTED]
    ]
    return {
        "contradictions": [chain_view(session, chain) for chain in chains],
        "disputes": differ,
        "set_aside": [
            _about(session, one, "Several were asked, and it is not settled.")
            for one in beliefs.set_aside[:MOST_LISTED]
        ],
    }


def _about(session: Session, document: str, words: str) -> JSON:
    """Return a document with all that was said of it."""
    entries = [one for one in session.notes.answers if one.documents[0] == document]
    return {
        "text": excerpt(session, document),
        "words": words,
        "links": [link_view(session, entry) for entry in entries],
    }


# ---- groups and people


def groups_view(session: Session) -> JSON:
    """Return all groups in their places."""
    return {"groups": [group_view(session, group) for group in session.material.groups]}


def people_view(session: Session) -> JSON:
    """Return how each person answers, and how far with the others."""
    by_person: dict[str, list[Entry]] = defaultdict(list)
    for entry in session.notes.answers:
        if entry.why != IMPORTED:  # nobody was asked here
            by_person[entry.annotator].append(entry)
    compared = _compared(session.notes.answers)
    return {
        "people": [
            {**_person(session, name, entries), **_agreement(compared[name])}
            for name, entries in sorted(by_person.items())
        ]
    }


def _person(session: Session, name: str, entries: list[Entry]) -> dict[str, Any]:
    known = session.notes.beliefs.annotators[name]
    return {
        "name": name,
        "answers": known.n_answers,
        "unknown": known.n_unknown,
        "seconds": median(entry.seconds for entry in entries),
        "controls": known.n_repeated,
        "control_errors": known.n_changed,
        "error": known.error_rate,
    }


def _agree(first: Entry, second: Entry) -> bool:
    return first.answer == second.answer and (
        first.kind == PAIR or first.documents == second.documents
    )


def _compared(answers: list[Entry]) -> dict[str, list[bool]]:
    """Return of every person whether each answer agrees with those of others to the question."""
    last: dict[Any, dict[str, Entry]] = defaultdict(dict)
    for entry in answers:
        if entry.answer != UNKNOWN:
            last[subject_of(entry)][entry.annotator] = entry
    found: dict[str, list[bool]] = defaultdict(list)
    for said in last.values():
        for name, entry in said.items():
            found[name] += [_agree(entry, other) for who, other in said.items() if who != name]
    return found


def _agreement(compared: list[bool]) -> dict[str, Any]:
    share = sum(compared) / len(compared) if compared else None
    return {"compared": len(compared), "agreement": share}
