"""What stands in a journal: any order of its lines, and undos of undos to any depth."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hmrf_dask.answers.records import Entry
from hmrf_dask.answers.standing import standing

ANSWER = Entry("a0", "pair", ("x", "r"), answer="same")


def stands(entry: Entry, undos: list[Entry]) -> bool:
    """Tell it as it is defined; undos are about what was written before."""
    return not any(undo.about == entry.id and stands(undo, undos) for undo in undos)


@given(st.lists(st.integers(0, 30), max_size=30), st.randoms())
def test_what_no_standing_undo_is_about_stands_in_any_order(
    targets: list[int], shuffled: random.Random
) -> None:
    answers = [replace(ANSWER, id=f"a{n}") for n in range(3)]
    entries = list(answers)
    for n, target in enumerate(targets):
        entries.append(Entry(f"u{n}", "undo", about=entries[target % len(entries)].id))
    wanted = [entry for entry in answers if stands(entry, entries[3:])]
    shuffled.shuffle(entries)
    assert standing(entries) == wanted


def test_entries_come_by_time_in_any_zone_and_by_id_once_each() -> None:
    entries = [
        replace(ANSWER, id="d", time="2026-01-01T12:00:00+02:00"),
        replace(ANSWER, id="c", time="2026-01-01T11:00:00Z"),
        replace(ANSWER, id="b", time="2026-01-01T10:30:00"),
        replace(ANSWER, id="a", time="2026-01-01T11:00:00+00:00"),
        replace(ANSWER, id="e"),
        Entry("f", "comment", answer="perhaps", about="a"),
    ]
    assert [entry.id for entry in standing(entries * 2)] == ["e", "f", "d", "b", "a", "c"]


def test_long_chains_of_undos_are_no_recursion() -> None:
    undos = [Entry(f"u{n}", "undo", about=f"u{n - 1}" if n else "a0") for n in range(5001)]
    assert standing([ANSWER, *undos]) == []
    assert standing([ANSWER, *undos[:-1]]) == [ANSWER]


def test_undos_in_a_circle_and_about_nothing_change_nothing() -> None:
    circle = [Entry("u1", "undo", about="u2"), Entry("u2", "undo", about="u1")]
    itself = Entry("u3", "undo", about="u3")
    assert standing([*circle, itself, Entry("u4", "undo", about="gone"), ANSWER]) == [ANSWER]


def test_an_undo_takes_back_every_line_of_its_id() -> None:
    twice = [ANSWER, replace(ANSWER, answer="different")]
    assert standing([*twice, Entry("u", "undo", about="a0")]) == []
    assert standing(twice) == twice[::-1]
