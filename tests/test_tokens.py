"""Counts of terms in texts: scikit-learn's matrix, whatever the characters and the settings."""

from __future__ import annotations

import unicodedata
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.feature_extraction.text import CountVectorizer

from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.text.counts import Counted, TextSettings, count_texts, stray_stop_words

# Letters that lowercase, compose or separate in ways of their own; few, so that words repeat.
ODD = "éÉßİıΣςσﬁǅ中文हिन्दी\u0301\u0308\u0345\u00a0\u2003\u0660²Ⅷ🙂\ud800"
ASCII = "abAB _0'-.\n\t\0\x1c\x7f"
TEXTS = st.lists(
    st.one_of(
        st.text(st.sampled_from(ASCII), max_size=40),
        st.text(st.sampled_from(ASCII + ODD), max_size=40),
        st.text(max_size=20),
    ),
    max_size=8,
)
RANGES = st.sampled_from([(1, 1), (1, 2), (2, 2), (1, 3), (2, 4)])
STOP_WORDS = st.sampled_from([None, "english", ("ab", "éé", "aa", "ba")])
WORDS = st.fixed_dictionaries(
    {
        "lowercase": st.booleans(),
        "strip_accents": st.sampled_from([None, "ascii", "unicode"]),
        "stop_words": STOP_WORDS,
        "ngram_range": RANGES,
    }
)


def theirs(texts: list[str], options: dict[str, Any]) -> tuple[Any, list[str]]:
    """Return scikit-learn's matrix of composed texts, entries in order, and its terms."""
    stop_words = options.pop("stop_words", None)
    vectoriser = CountVectorizer(
        stop_words=list(stop_words) if isinstance(stop_words, tuple) else stop_words, **options
    )
    composed = [unicodedata.normalize("NFC", text) for text in texts]
    if not any(map(vectoriser.build_analyzer(), composed)):
        return None, []
    matrix = vectoriser.fit_transform(composed).tocsr()
    matrix.sort_indices()
    return matrix, vectoriser.get_feature_names_out().tolist()


def assert_same(found: Counted, matrix: Any, terms: list[str]) -> None:
    assert found.terms.to_pylist() == terms
    if matrix is None:
        assert not found.indices.size
        return
    assert found.indptr.tolist() == matrix.indptr.tolist()
    assert found.indices.tolist() == matrix.indices.tolist()
    assert found.counts.tolist() == matrix.data.tolist()
    assert found.indptr.dtype == found.indices.dtype == found.counts.dtype == np.int32


@given(TEXTS, WORDS)
@with_settings(max_examples=120)
def test_words_are_counted_as_by_scikit_learn(texts: list[str], options: dict[str, Any]) -> None:
    found = count_texts(texts, TextSettings(**options))
    assert_same(found, *theirs(texts, options))


@given(TEXTS, RANGES, st.booleans(), st.sampled_from([None, "ascii", "unicode"]))
def test_characters_are_counted_as_by_scikit_learn(
    texts: list[str], ngram_range: tuple[int, int], lowercase: bool, strip_accents: Any
) -> None:
    texts = [text.replace("\ud800", "") for text in texts]
    options = {"ngram_range": ngram_range, "lowercase": lowercase, "strip_accents": strip_accents}
    found = count_texts(texts, TextSettings(kind="characters", **options))
    assert_same(found, *theirs(texts, options | {"analyzer": "char_wb"}))


def many_words(n_words: int) -> list[str]:
    """Return texts of more distinct words than the first tables hold, one of them very long.

    The text in which a table is full is read again, a word of most of its characters with it.
    """
    words = [f"w{number * 2654435761 % 2**32:x}" for number in range(n_words)]
    longest = "x" * (20 * n_words)
    first = " ".join([longest, *words[: n_words // 2]])
    return ["of the", first, *words, "naïve " + " ".join(words)]


def test_the_table_of_words_grows() -> None:
    texts = many_words(20_000)
    assert_same(count_texts(texts, TextSettings()), *theirs(texts, {}))


@pytest.mark.parametrize("kind", ["words", "characters"])
@pytest.mark.parametrize("texts", [[], [""], ["", " . "], ["a b c", "é"]])
def test_texts_without_words(kind: Any, texts: list[str]) -> None:
    found = count_texts(texts, TextSettings(kind=kind, ngram_range=(2, 2)))
    assert found.n_texts == len(texts)
    if kind == "words":
        assert (found.indptr.tolist(), found.terms.to_pylist()) == ([0] * (len(texts) + 1), [])


def test_accents_are_composed_before_words_are_found() -> None:
    found = count_texts(["cafe\u0301 café"], TextSettings())
    assert (found.terms.to_pylist(), found.counts.tolist()) == (["café"], [2])


def test_totals_are_those_of_the_matrix() -> None:
    found = count_texts(["to be or not to be", "be", ""], TextSettings())
    assert dict(zip(found.terms.to_pylist(), found.documents.tolist(), strict=True)) == {
        "be": 2, "not": 1, "or": 1, "to": 1,
    }  # fmt: skip
    words = Counter(["to", "be", "or", "not", "to", "be", "be"])
    assert dict(zip(found.terms.to_pylist(), found.occurrences.tolist(), strict=True)) == words


def test_lone_surrogates_are_refused_where_they_would_be_terms() -> None:
    texts = ["fine", "not \ud800 fine"]
    assert count_texts(texts, TextSettings()).terms.to_pylist() == ["fine", "not"]
    with pytest.raises(InvalidInputError, match="lone surrogate"):
        count_texts(texts, TextSettings(kind="characters"))


def test_embeddings_are_not_counted() -> None:
    with pytest.raises(ConfigurationError, match="embeddings"):
        count_texts(["text"], TextSettings(kind="embeddings"))


# ---- kernels


# ---- settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_words": "german"}, "there is: english.*'german'; give the words themselves"),
        ({"ngram_range": (2, 1)}, r"must not fall, got \[2, 1\]"),
        ({"ngram_range": (0, 1)}, "greater than or equal to 1"),
        ({"min_df": 1.5}, "less than or equal to 1"),
        ({"min_df": True}, "min_df"),
        ({"kind": "characters", "stop_words": "english"}, "left out for characters"),
        ({"kind": "hashing", "min_df": 2}, "left out where words are hashed"),
        ({"max_feature": 3}, "max_feature"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TextSettings(**options)


def test_counts_can_be_used_again_where_only_the_vocabulary_differs() -> None:
    one = TextSettings().counting_identity
    for same in ({"min_df": 2}, {"kind": "hashing"}, {"norm": None}, {"lsa": 5}):
        assert TextSettings(**same).counting_identity == one
    for other in ({"lowercase": False}, {"kind": "characters"}, {"stop_words": ["of"]}):
        assert TextSettings(**other).counting_identity != one
    words = (
        TextSettings(stop_words=some).counting_identity for some in (["a", "b"], ["b", "a", "a"])
    )
    assert len(set(words)) == 1


def test_stop_words_that_are_no_words_are_reported() -> None:
    assert stray_stop_words(TextSettings(stop_words=["don't", "of"])) == ["don"]
    assert stray_stop_words(TextSettings(stop_words="english")) == []
    assert stray_stop_words(TextSettings()) == []
