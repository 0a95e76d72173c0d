"""Which question of a batch is next: nothing twice, a document at a time, people in turn."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from hmrf_dask.answers.beliefs import believe
from hmrf_dask.answers.records import Entry, Question
from hmrf_dask.questions.known import Known
from hmrf_dask.questions.rounds import Outlook, Person, next_question, outlook

TOPICS = {f"r{topic}": topic for topic in range(4)} | {f"x{n}": n % 4 for n in range(12)}
ANCHORS = ("r0", "r1", "r2", "r3")
BATCH = [
    Question("choice", (f"x{n}",), (*ANCHORS[n % 3 :], *ANCHORS[: n % 3]), (0.4, 0.3, 0.2, 0.1))
    for n in range(12)
]


def answered(question: Question, number: int, annotator: str = "", *, knows: bool = True) -> Entry:
    """Return what somebody who knows the topics answers."""
    base = Entry(
        str(number), question.kind, question.documents, question.shown,
        annotator=annotator, likely=question.likely, why=question.why,
    )  # fmt: skip
    if not knows:
        return replace(base, answer="unknown")
    topics = [TOPICS[one] for one in question.documents]
    if question.kind == "pair":
        return replace(base, answer="same" if topics[0] == topics[1] else "different")
    own = [one for one in question.shown if TOPICS[one] == topics[0]]
    return replace(base, answer="same" if own else "none", documents=(*base.documents, *own[:1]))


def asked_of(person: Person, entries: list[Entry], most: int = 999, **how: float) -> list[Entry]:
    """Ask a person until nothing is left, or enough."""
    found: list[Entry] = []
    while len(found) < most and (question := next_question(BATCH, entries, person, **how)):  # type: ignore[arg-type]
        found.append(answered(question, len(entries), person.name))
        entries.append(found[-1])
    return found


def test_a_document_goes_on_until_it_is_settled() -> None:
    entries = asked_of(Person(kind="pair"), [], control=0.0)
    documents = [entry.documents[0] for entry in entries]
    assert [
        one for one, before in zip(documents, [None, *documents], strict=False) if one != before
    ] == [f"x{n}" for n in range(12)]
    known = Known.of(entries)
    assert all(known.group(f"x{n}") == known.group(f"r{n % 4}") for n in range(12))
    assert len({entry.documents for entry in entries}) == len(entries)


def test_the_last_group_is_inferred_where_all_are_apart() -> None:
    entries = [
        Entry(f"a{one}{two}", "pair", (one, two), answer="different")
        for one in ANCHORS for two in ANCHORS if one < two
    ]  # fmt: skip
    batch = [Question("choice", ("x3",), ANCHORS, (0.4, 0.3, 0.2, 0.1))]
    asked: list[str] = []
    while question := next_question(batch, entries, Person(kind="pair"), control=0.0):
        asked.append(question.documents[1])
        entries.append(answered(question, len(asked)))
    assert asked == ["r0", "r1", "r2"]


def test_a_choice_shows_all_that_are_left() -> None:
    entries = [Entry("1", "pair", ("x1", "r1"), answer="different")]
    question = next_question(BATCH[1:], entries, Person())
    assert question is not None
    assert (question.kind, question.documents, question.shown) == (
        "choice",
        ("x1",),
        ("r2", "r3", "r0"),
    )
    assert sum(question.likely) == pytest.approx(1.0)


def test_of_many_groups_five_are_shown_and_then_the_next_five() -> None:
    shown = tuple(f"g{n:02}" for n in range(30))
    batch = [Question("choice", ("x",), shown, tuple((30.0 - n) / 465 for n in range(30)))]
    first = next_question(batch, [])
    assert first is not None
    assert first.shown == shown[:5]
    second = next_question(batch, [Entry("1", "choice", ("x",), first.shown, "none")])
    assert second is not None
    assert second.shown == shown[5:10]
    assert next_question(batch, [Entry("1", "choice", ("x",), first.shown, "new")]) is None


def test_what_one_person_does_not_know_another_one_is_asked() -> None:
    question = next_question(BATCH, [], Person("bo"))
    assert question is not None
    entries = [answered(question, 0, "bo", knows=False)]
    assert next_question(BATCH, entries, Person("bo")) != question
    assert next_question(BATCH, entries, Person("al")) == question


def test_what_was_skipped_or_is_asked_elsewhere_is_left_out() -> None:
    person = Person(skipped=frozenset({"x0", "x1"}), elsewhere=frozenset({"x2"}))
    question = next_question(BATCH, [], person)
    assert question is not None
    assert question.documents == ("x3",)


def test_people_at_once_never_get_the_same_question() -> None:
    entries: list[Entry] = []
    shown: dict[str, Question] = {}
    rng, seen = random.Random(0), Counter[tuple[str, ...]]()
    names = ["al", "bo", "cy"]
    for number in range(200):
        name = rng.choice(names)
        if name in shown:
            entries.append(answered(shown.pop(name), number, name))
        others = frozenset(question.documents[0] for question in shown.values())
        question = next_question(
            BATCH, entries, Person(name, "pair", elsewhere=others), control=0.0
        )
        if question is not None:
            assert question.documents[0] not in others
            shown[name] = question
            seen[question.documents] += 1
    assert seen.most_common(1)[0][1] == 1
    assert not shown or len(entries) == 200


def test_each_question_is_asked_of_two_people() -> None:
    entries: list[Entry] = []
    asked_of(Person("al", "pair"), entries, people=2, control=0.0)
    alone = len(entries)
    seconds = asked_of(Person("bo", "pair"), entries, people=2, control=0.0)
    assert {entry.documents for entry in seconds} == {entry.documents for entry in entries[:alone]}
    assert {entry.why for entry in seconds} == {"second opinion"}
    assert not asked_of(Person("cy", "pair"), entries, people=2, control=0.0)


def test_a_tenth_of_the_questions_was_answered_before() -> None:
    entries = asked_of(Person("al", "pair"), [])
    controls = [number for number, entry in enumerate(entries) if entry.why == "control"]
    assert len(controls) == (len(entries)) // 10
    for number in controls:
        before = [entry.documents for entry in entries[: number - 9]]
        assert entries[number].documents in before


def test_an_answer_taken_back_is_asked_again() -> None:
    entries = asked_of(Person(kind="pair"), [], control=0.0)
    again = next_question(BATCH, entries[1:], Person(kind="pair"), control=0.0)
    assert again is not None
    assert again.documents == entries[0].documents


def test_what_an_answer_settles_is_expected_of_both_answers() -> None:
    entries = [
        Entry("1", "pair", ("r0", "s0"), answer="same"),
        Entry("2", "pair", ("r1", "s1"), answer="same"),
        Entry("3", "pair", ("r0", "r1"), answer="different"),
    ]
    batch = [Question("choice", ("x",), ("r0", "r1"), (0.75, 0.25))]
    pair, choice = (next_question(batch, entries, Person(kind=kind)) for kind in ("pair", "choice"))
    assert pair is not None
    assert choice is not None
    assert choice.settles == 4.0  # two the same, two different, whichever it is
    assert pair.settles == 0.75 * 4 + 0.25 * 2


def test_the_outlook_counts_documents() -> None:
    entries: list[Entry] = []
    before = outlook(BATCH, entries)
    assert before == Outlook(0, 0, 12, round(12 * 0.6, 2))
    asked_of(Person(kind="pair"), entries, control=0.0)
    moved = sum(TOPICS[question.documents[0]] != TOPICS[question.shown[0]] for question in BATCH)
    assert outlook(BATCH, entries, last=99) == Outlook(len(entries), moved, 0, 0.0)


def test_a_document_that_one_answer_does_not_settle_is_compared_again() -> None:
    entries = [
        Entry("1", "pair", ("s0", "r0"), answer="same", likely=(0.9,)),
        Entry("2", "pair", ("x0", "r0"), answer="same", likely=(0.2,)),
    ]
    batch = [Question("choice", ("x0",), ("r0", "r1"), (0.2, 0.8))]
    beliefs = believe(entries)
    assert "x0" in beliefs.open
    assert "s0" in beliefs.anchor_of
    asked = next_question(batch, entries, Person(kind="pair"), beliefs=beliefs)
    assert asked is not None
    assert asked.documents == ("x0", "s0")
    entries.append(Entry("3", "pair", ("x0", "s0"), answer="same", likely=asked.likely))
    assert next_question(batch, entries, Person(kind="pair"), beliefs=believe(entries)) is None
