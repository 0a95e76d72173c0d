"""Frequencies, the vocabulary made of them, and its files."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import (
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)

from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.storage.sealed import seal_for_people, unseal
from hmrf_dask.text.counts import TextSettings, count_texts
from hmrf_dask.text.files import Place, load_vocabulary, save_vocabulary
from hmrf_dask.text.tfidf import Frequencies, Vocabulary, make_vocabulary

WORDS = ["be", "not", "or", "question", "that", "the", "to", "é", "être"]
TEXTS = st.lists(
    st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), min_size=1, max_size=12
)


def frequencies(texts: list[str], settings: TextSettings) -> Frequencies:
    return Frequencies.of(count_texts(texts, settings), settings)


def merged(texts: list[str], settings: TextSettings, cuts: list[int]) -> Frequencies:
    """Return the frequencies of texts cut into batches, brought together from the right."""
    bounds = [0, *sorted(cut % (len(texts) + 1) for cut in cuts), len(texts)]
    parts = [frequencies(texts[first:last], settings) for first, last in pairwise(bounds)]
    found = Frequencies.none(settings)
    while parts:
        found = Frequencies.merge([parts.pop(), found])
    return found


@given(TEXTS, st.lists(st.integers(0, 20), max_size=4))
def test_frequencies_are_exact_however_texts_are_cut(texts: list[str], cuts: list[int]) -> None:
    found = merged(texts, TextSettings(), cuts)
    words = [[word for word in text.split() if len(word) > 1] for text in texts]
    occurrences = Counter(word for one in words for word in one)
    documents = Counter(word for one in words for word in set(one))
    assert found.terms.to_pylist() == sorted(occurrences)
    assert found.occurrences.tolist() == [occurrences[term] for term in sorted(occurrences)]
    assert found.documents.tolist() == [documents[term] for term in sorted(documents)]
    assert found.n_documents == len(texts)


LIMITS = st.fixed_dictionaries(
    {
        "min_df": st.sampled_from([1, 2, 3, 0.0, 0.2, 0.5]),
        "max_df": st.sampled_from([1.0, 0.9, 0.5, 3, 5]),
        "max_features": st.sampled_from([None, 1, 3]),
    }
)


@given(TEXTS, LIMITS)
def test_terms_and_idf_are_scikit_learns(texts: list[str], limits: dict[str, Any]) -> None:
    settings = TextSettings(**limits)
    whole = frequencies(texts, settings)
    theirs = TfidfVectorizer(dtype=np.float32, **limits)
    try:
        theirs.fit(texts)
    except ValueError:
        with pytest.raises(InvalidInputError, match="must leave at least one term"):
            make_vocabulary(whole, settings)
        return
    # Which of equals its sort puts first is not scikit-learn's to say.
    unlimited = make_vocabulary(whole, TextSettings(**limits | {"max_features": None}))
    counts = dict(zip(whole.terms.to_pylist(), whole.occurrences.tolist(), strict=True))
    ordered = sorted(-counts[term] for term in unlimited.terms.to_pylist())
    cut = limits["max_features"]
    assume(cut is None or cut >= len(ordered) or ordered[cut - 1] != ordered[cut])
    ours = make_vocabulary(whole, settings)
    assert ours.terms.to_pylist() == theirs.get_feature_names_out().tolist()
    assert ours.idf.dtype == theirs.idf_.dtype == np.float32
    assert ours.idf.tobytes() == theirs.idf_.tobytes()


def test_the_first_of_equals_stays() -> None:
    whole = frequencies(["pear fig apple fig"], TextSettings())
    for n_terms, kept in ((1, ["fig"]), (2, ["apple", "fig"]), (3, ["apple", "fig", "pear"])):
        settings = TextSettings(max_features=n_terms)
        assert make_vocabulary(whole, settings).terms.to_pylist() == kept


def test_what_is_left_out_is_counted() -> None:
    settings = TextSettings(min_df=2)
    vocabulary = make_vocabulary(frequencies(["fig pear", "fig fig", ""], settings), settings)
    assert (vocabulary.n_documents, vocabulary.n_known, vocabulary.n_occurrences) == (3, 3, 4)
    assert vocabulary.unknown_share == 0.25


def test_no_term_left_is_reported_with_the_settings() -> None:
    settings = TextSettings(min_df=3, stop_words="english")
    with pytest.raises(InvalidInputError, match="none of 2 terms in 2 documents with min_df 3"):
        make_vocabulary(frequencies(["fig pear", "fig"], settings), settings)


# ---- hashing


@given(TEXTS, st.lists(st.integers(0, 20), max_size=3), st.sampled_from([1, 3, 16]))
def test_hashed_words_have_scikit_learns_idf(
    texts: list[str], cuts: list[int], n_features: int
) -> None:
    assume(any(len(word) > 1 for text in texts for word in text.split()))
    settings = TextSettings(kind="hashing", n_features=n_features)
    hashed = HashingVectorizer(
        n_features=n_features, alternate_sign=False, norm=None, dtype=np.float32
    ).transform(texts)
    vocabulary = make_vocabulary(merged(texts, settings, cuts), settings)
    assert vocabulary.idf.tobytes() == TfidfTransformer().fit(hashed).idf_.tobytes()


def test_a_bucket_is_named_after_its_commonest_word() -> None:
    settings = TextSettings(kind="hashing", n_features=1)
    texts = ["fig pear pear", "fig apple"]
    assert make_vocabulary(frequencies(texts, settings), settings).terms.to_pylist() == ["fig"]
    settings = TextSettings(kind="hashing", n_features=2**12)
    vocabulary = make_vocabulary(frequencies(texts, settings), settings)
    assert sorted(filter(None, vocabulary.terms.to_pylist())) == ["apple", "fig", "pear"]
    places = vocabulary.places(pa.array(["fig", "unheard of"], pa.large_string()))
    assert vocabulary.terms[int(places[0])].as_py() == "fig"
    assert places[1] == -1


# ---- files


@pytest.fixture(params=["words", "hashing", "components"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    kind = "words" if request.param == "components" else request.param
    settings = TextSettings(kind=kind, n_features=64, stop_words=["of"], ngram_range=(1, 2))
    made = make_vocabulary(frequencies(["fig of pear", "être fig"], settings), settings)
    if request.param == "components":
        made = replace(made, components=np.random.default_rng(0).normal(size=(2, made.n_terms)))
    return made


def test_a_vocabulary_comes_back_from_its_files(vocabulary: Vocabulary, tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    identity = save_vocabulary(vocabulary, place)
    found = load_vocabulary(identity, place)
    assert found.terms.equals(vocabulary.terms)
    assert found.idf.tobytes() == vocabulary.idf.tobytes()
    assert found.components.tobytes() == vocabulary.components.tobytes()
    names = ("settings", "n_documents", "n_known", "n_occurrences", "identity", "n_features")
    for name in names:
        assert getattr(found, name) == getattr(vocabulary, name)
    files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert {name.rpartition(".")[2] for name in files} == {"json", "parquet"}
    assert save_vocabulary(found, place) == identity
    assert sorted(files) == sorted(p.name for p in tmp_path.rglob("*") if p.is_file())


def test_the_identity_is_that_of_all_it_holds(vocabulary: Vocabulary) -> None:
    others = [
        replace(vocabulary, settings=vocabulary.settings.model_copy(update={"norm": None})),
        replace(vocabulary, terms=pa.array(["x"] * vocabulary.n_terms, pa.large_string())),
        replace(vocabulary, idf=vocabulary.idf + np.float32(1)),
        replace(vocabulary, n_documents=9),
        replace(vocabulary, components=np.ones((1, vocabulary.n_terms))),
    ]
    identities = {one.identity for one in (vocabulary, replace(vocabulary), *others)}
    assert len(identities) == 1 + len(others)


def test_damaged_files_are_refused(vocabulary: Vocabulary, tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    identity = save_vocabulary(vocabulary, place)
    folder = tmp_path / "vocabularies" / identity
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for damaged in (content[:-5], content.replace(b"fig", b"gif"), None):
            if damaged == content:
                continue
            path.unlink() if damaged is None else path.write_bytes(damaged)
            with pytest.raises(InvalidInputError, match=r"as vectorising wrote it, but"):
                load_vocabulary(identity, place)
        path.write_bytes(content)
    state = folder / "vocabulary.json"
    content = unseal(state.read_bytes(), "")
    state.write_bytes(state.read_bytes().replace(b'"n_documents": 2', b'"n_documents": 3'))
    with pytest.raises(InvalidInputError, match="does not match its checksum"):
        load_vocabulary(identity, place)
    for other, said in (
        ({"n_documents": 3}, "not what its name says"),
        ({"format": "hmrf-dask/vocabulary/v7"}, "vocabulary/v7', not hmrf-dask/vocabulary/v2"),
        ({"files": {}}, "names no terms"),
        ({"files": {"terms": 3}}, "files.terms"),
        ({"settings": {"kind": "songs"}}, "its settings are none"),
    ):
        state.write_bytes(seal_for_people(content | other))
        with pytest.raises(InvalidInputError, match=said):
            load_vocabulary(identity, place)


def test_a_place_takes_no_credentials() -> None:
    with pytest.raises(ConfigurationError, match="credential"):
        Place("s3://bucket", {"secret": "x"})
