"""What the page shows of questions and answers, as it is sent to a browser: texts and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hmrf_dask.answers.records import DIFFERENT, NEW, NONE, PAIR, SAME, UNKNOWN, Entry, Question
from hmrf_dask.errors import InvalidInputError, counted
from hmrf_dask.jobs.texts import Document
from hmrf_dask.page.marks import marks_of_groups, marks_of_pair, passages
from hmrf_dask.page.material import Group
from hmrf_dask.page.session import NAMED_BY, Open, Saved, Session
from hmrf_dask.text.marked import Marks, segments

JSON = dict[str, Any]
GONE: Final = "This document is gone."
N_REPRESENTATIVES: Final = 2
EXCERPT: Final = 400  # characters of a document in a list
SAID: Final[Mapping[str, str]] = {
    SAME: "same",
    DIFFERENT: "different",
    UNKNOWN: "don't know",
    NONE: "none of those shown",
    NEW: "something new",
}
_REASONS: Final[Mapping[str, str]] = {
    "explore": "Asked to find out which groups there are.",
    "uncertain": "Asked because it could be in several groups.",
    "anchors": "Asked to learn whether two groups are one.",
    "control": "",  # a person is not to know that this was asked before
    "second opinion": "",
    "asked for": "Asked again as you wished.",
}


# ---- questions


def question_view(session: Session, opened: Open | None) -> JSON:
    """Return a question as a browser shows it."""
    if opened is None:
        return {"question": None, "nothing": session.outlook()}
    question = opened.question
    texts, marks = _marked(session, question)
    view: JSON = {
        "ticket": opened.ticket,
        "kind": question.kind,
        "reason": _REASONS.get(question.why, ""),
        "settles": question.settles,
        "documents": [document_view(*one) for one in zip(texts, marks, strict=True)],
    }
    if question.kind != PAIR:
        order = sorted(range(len(question.likely)), key=lambda at: -question.likely[at])
        view["likely"] = [question.shown[at] for at in order]
        view["groups"] = [_group(session, one, question) for one in _placed(session, question)]
        view["more"] = _shows_more(session, question)
    return {"question": view}


def _marked(session: Session, question: Question) -> tuple[list[Document], list[Marks]]:
    documents = session.library.get(question.documents)
    texts = [documents[one] for one in question.documents]
    if question.kind == PAIR:
        return texts, list(marks_of_pair((texts[0].text, texts[1].text), session.weigh))
    words = [session.groups[one].words for one in question.shown if one in session.groups]
    return texts, [marks_of_groups(texts[0].text, words)]


def document_view(document: Document, marks: Marks, *, whole: bool = False) -> JSON:
    """Return a document cut at its marks; a long one by its telling passages, or whole."""
    shown = [document.text] if whole else passages(document.text, marks)
    return {
        "id": document.id,
        "passages": [segments(one, marks) for one in shown],
        "folded": not whole and shown != [document.text],
        "characters": len(document.text),
    }


def full_document(session: Session, ticket: str, document: str) -> JSON:
    """Return a whole document of an open question; no other one is served."""
    question = session.opened(ticket).question
    if document not in question.documents:
        raise InvalidInputError("a document must be of the question that is open, got another")
    texts, marks = _marked(session, question)
    at = question.documents.index(document)
    return document_view(texts[at], marks[at], whole=True)


def columns_view(session: Session, ticket: str, document: str) -> JSON:
    """Return the other columns of a document of an open question."""
    if document not in session.opened(ticket).question.documents:
        raise InvalidInputError("a document must be of the question that is open, got another")
    shown = session.library.get([document])[document]
    columns = {**shown.columns, **session.material.texts.columns(document)}
    return {"columns": {"id": document, "file": shown.source, **columns}}


def _placed(session: Session, question: Question) -> list[Group]:
    """Return the groups of a choice: all in their places, or of many those shown, likeliest first.

    Groups that the document is known to differ from keep their places, too.
    """
    shown = [session.groups.get(one, Group(one)) for one in question.shown]
    if not session.material.all_shown:
        return shown
    others = [one for one in shown if one.document not in session.groups]
    return [*session.material.groups, *others]


def _group(session: Session, group: Group, question: Question) -> JSON:
    shown = group_view(session, group, question.documents)
    if session.notes.name_of(group) == "":
        shown["words"] = shown["words"][NAMED_BY:]  # it is called by the first ones
    return {**shown, "state": _state(session, group, question)}


def _state(session: Session, group: Group, question: Question) -> str:
    """Return why a group cannot be chosen, in words; "" where it can."""
    document = question.documents[0]
    if group.document in question.shown:
        return ""
    known = session.notes.known
    if known.group(group.document) == known.group(document):
        return "its own"
    return "said to differ" if known.is_apart(document, group.document) else "not asked"


def group_view(session: Session, group: Group, besides: tuple[str, ...] = ()) -> JSON:
    """Return a group: its name, its words, and two documents of it that are not shown anyhow."""
    near = [one for one in group.representatives if one not in besides]
    return {
        "document": group.document,
        "name": session.called(group.document),
        "own_name": session.notes.name_of(group),
        "words": list(group.words),
        "size": group.size,
        "representatives": [
            {"id": one, "text": excerpt(session, one)} for one in near[:N_REPRESENTATIVES]
        ],
    }


def _shows_more(session: Session, question: Question) -> bool:
    """Return whether a choice has more groups than it shows."""
    left = (
        session.notes.known.left(one)
        for one in session.material.batch
        if one.documents == question.documents
    )
    return not session.material.all_shown and len(next(left, ())) > len(question.shown)


# ---- answers


def says(session: Session, entry: Entry) -> str:
    """Return an answer in words."""
    if entry.kind == PAIR or entry.answer != SAME:
        return SAID.get(entry.answer, entry.answer)
    return f"belongs to: {session.called(entry.documents[1])}"


def saved_view(session: Session, saved: Saved) -> JSON:
    """Return what a person reads after an answer: saved, what it settled, the own opinion."""
    words = [f"Saved: {says(session, saved.entry)}."]
    if saved.settled:
        words.append(f"This settles {counted(saved.settled, 'other pair')}.")
    if opinion := _opinion(session, saved.entry):
        words.append(opinion)
    view: JSON = {"id": saved.entry.id, "words": words, "contradiction": None}
    if saved.chain:
        view["contradiction"] = chain_view(session, saved.chain)
    return view


def _opinion(session: Session, question: Entry) -> str:
    """Return what the program thought, which nobody reads before the answer."""
    if not question.likely:
        return ""
    if question.kind == PAIR:
        likely = question.likely[0]
        word, share = (SAME, likely) if likely >= 0.5 else (DIFFERENT, 1.0 - likely)
        return f"The program had thought: {word} ({share:.0%})."
    best = max(range(len(question.likely)), key=question.likely.__getitem__)
    name, share = session.called(question.shown[best]), question.likely[best]
    return f"The program had thought: {name} ({share:.0%})."


def chain_view(session: Session, chain: list[Entry]) -> JSON:
    """Return answers that cannot all be right."""
    words = f"These {len(chain)} answers cannot all be right. Which link is wrong?"
    return {"words": words, "links": [link_view(session, entry) for entry in chain]}


def link_view(session: Session, entry: Entry) -> JSON:
    """Return one answer of a chain, with the texts of its documents."""
    return {
        "id": entry.id,
        "answer": entry.answer,
        "texts": [excerpt(session, one) for one in entry.documents],
        "says": says(session, entry),
        "who": who(entry),
    }


def who(entry: Entry) -> str:
    """Return who said something, and when."""
    when = entry.time[:16].replace("T", " ")
    return ", ".join(part for part in (entry.annotator or "no name", when) if part)


def excerpt(session: Session, document: str) -> str:
    """Return the beginning of a document on one line."""
    texts = session.library.get([document])
    return " ".join(texts[document].text[:EXCERPT].split()) if document in texts else GONE
