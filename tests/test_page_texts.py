"""Texts of the page are cut without a loss, and chains of answers really contradict themselves."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from hmrf_dask.answers.records import Entry
from hmrf_dask.page.chains import Chains
from hmrf_dask.page.marks import (
    PASSAGE,
    WHOLE,
    frequencies,
    marks_of_pair,
    passages,
)
from hmrf_dask.page.session import Notes
from hmrf_dask.text.marked import segments, words_of

TEXTS = st.text() | st.text("ab .\n\u4f60\u597d\u05d0", max_size=60).map(lambda text: text * 40)


@given(TEXTS, TEXTS)
def test_marks_cut_a_text_into_parts_that_are_the_text(first, second):
    marks = marks_of_pair((first, second), frequencies([first, second, "a b"]))
    for text, own in zip((first, second), marks, strict=True):
        cut = segments(text, own)
        assert "".join(part for part, _ in cut) == text
        assert all(own[part.lower()] == kind for part, kind in cut if kind)
    both = {word for word, kind in marks[0].items() if kind == "together"}
    assert both <= set(words_of(first)) & set(words_of(second))


@given(TEXTS)
def test_passages_are_parts_of_a_text_its_beginning_first(text):
    shown = passages(text, dict.fromkeys(words_of(text)[::7], "alone"))
    if len(text) <= WHOLE:
        assert shown == [text]
    else:
        assert all(one in text for one in shown)
        assert text.startswith(shown[0]) or text.strip().startswith(shown[0])
        assert max(map(len, shown)) <= PASSAGE


PAIRS = st.sampled_from(list(combinations("pqrst", 2)))
ANSWERS = st.lists(st.tuples(PAIRS, st.sampled_from(["same", "different"])), max_size=9)


def is_contradictory(entries: list[Entry]) -> bool:
    """Return whether joining what is the same joins what is different, step by step."""
    groups = {document: {document} for document in "pqrst"}
    for _ in entries:
        for first, second, is_same in (said for entry in entries for said in entry.pairs()):
            if is_same:
                together = groups[first] | groups[second]
                groups |= dict.fromkeys(together, together)
    said = (one for entry in entries for one in entry.pairs())
    return any(not is_same and second in groups[first] for first, second, is_same in said)


@given(ANSWERS)
def test_a_chain_and_its_answer_contradict_each_other(drawn):
    entries = [
        Entry(str(at), "pair", pair, answer=word, time=f"2026-01-01T00:00:{at:02}+00:00")
        for at, (pair, word) in enumerate(drawn)
    ]
    notes, chains = Notes(entries), Chains(entries)
    found = [chains.contradicting(entry) for entry in entries]
    for entry, chain in zip(entries, found, strict=True):
        if chain:
            assert notes.is_torn(entry)  # else it would not be searched for
            assert entry not in chain
            assert is_contradictory([*chain, entry])
            assert not is_contradictory(chain)
    assert any(found) == is_contradictory(entries)
