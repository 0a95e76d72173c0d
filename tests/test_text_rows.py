"""From texts to TF-IDF rows: scikit-learn's bits, however texts are cut, in files that last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask
import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import (
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)

from hmrf_dask.errors import HmrfWarning, InvalidInputError
from hmrf_dask.flow.dataflow import DaskFlow, Dataflow, Inline
from hmrf_dask.text.counts import (
    TextSettings,
    count_texts,
    decode_rows,
    decode_terms,
    encode_rows,
    encode_terms,
)
from hmrf_dask.text.files import CountedSource, Place, load_vocabulary
from hmrf_dask.text.tfidf import (
    Coverage,
    Frequencies,
    Vocabulary,
    make_vocabulary,
    to_rows,
)
from hmrf_dask.text.vectorise import (
    SourceRows,
    corpus_of,
    count_sources,
    fit_vocabulary,
    rows_of,
)

WORDS = ["be", "not", "or", "question", "that", "the", "to", "é", "être"]
TEXTS = st.lists(
    st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join), min_size=1, max_size=12
)


def vocabulary_of(texts: list[str], settings: TextSettings) -> Any:
    return make_vocabulary(Frequencies.of(count_texts(texts, settings), settings), settings)


def rows_of_texts(texts: list[str], vocabulary: Any) -> tuple[Any, Coverage]:
    """Return the rows as a matrix, and the coverage."""
    ids = [str(number) for number in range(len(texts))]
    block, coverage = to_rows(count_texts(texts, vocabulary.settings), vocabulary, ids)
    assert block.ids.tolist() == ids
    return block.to_scipy(), coverage


def assert_same_bits(ours: Any, theirs: Any) -> None:
    theirs = theirs.tocsr()
    theirs.sort_indices()
    assert ours.shape == theirs.shape
    assert ours.data.dtype == theirs.data.dtype == np.float32
    for name in ("indptr", "indices", "data"):
        assert (
            getattr(ours, name).tobytes()
            == getattr(theirs, name).astype(getattr(ours, name).dtype).tobytes()
        )


@given(
    TEXTS,
    TEXTS,
    st.fixed_dictionaries(
        {
            "sublinear_tf": st.booleans(),
            "norm": st.sampled_from([None, "l1", "l2"]),
            "min_df": st.sampled_from([1, 2]),
            "ngram_range": st.sampled_from([(1, 1), (1, 2)]),
        }
    ),
)
def test_rows_have_the_bits_of_scikit_learns(
    texts: list[str], later: list[str], options: dict[str, Any]
) -> None:
    theirs = TfidfVectorizer(dtype=np.float32, **options)
    settings = TextSettings(**options)
    try:
        theirs.fit(texts)
    except ValueError:
        assume(False)
    vocabulary = vocabulary_of(texts, settings)
    for some in (texts, later):
        assert_same_bits(rows_of_texts(some, vocabulary)[0], theirs.transform(some))


@given(TEXTS, st.booleans(), st.sampled_from([2, 16, 2**10]))
def test_hashed_rows_have_the_bits_of_scikit_learns(
    texts: list[str], sublinear_tf: bool, n_features: int
) -> None:
    assume(any(len(word) > 1 for text in texts for word in text.split()))
    settings = TextSettings(kind="hashing", n_features=n_features, sublinear_tf=sublinear_tf)
    hashed = HashingVectorizer(
        n_features=n_features, alternate_sign=False, norm=None, dtype=np.float32
    ).transform(texts)
    theirs = TfidfTransformer(sublinear_tf=sublinear_tf).fit_transform(hashed)
    assert_same_bits(rows_of_texts(texts, vocabulary_of(texts, settings))[0], theirs)


@pytest.mark.parametrize("kind", ["words", "hashing"])
def test_what_a_vocabulary_does_not_know_is_counted(kind: Any) -> None:
    vocabulary = vocabulary_of(["fig pear", "fig"], TextSettings(kind=kind))
    rows, coverage = rows_of_texts(["fig kiwi kiwi", "kiwi", ""], vocabulary)
    assert rows.nnz == 1
    assert coverage == Coverage(n_texts=3, n_empty=2, n_known=1, n_occurrences=4)
    assert coverage.unknown_share == 0.75
    assert Coverage.total([coverage, coverage]) == Coverage(6, 4, 2, 8)
    assert Coverage().unknown_share == 0.0


# ---- counted batches in Parquet


def test_counts_come_back_from_parquet() -> None:
    found = count_texts(["to be or not", "", "be"], TextSettings())
    encoded = encode_rows(found, ["a", "b", "ç"]), encode_terms(found)
    terms, documents, occurrences = decode_terms(encoded[1], "terms")
    counted, ids = decode_rows(encoded[0], terms, "rows")
    assert ids == ["a", "b", "ç"]
    assert counted.terms.equals(found.terms)
    for name in ("indptr", "indices", "counts"):
        assert getattr(counted, name).tolist() == getattr(found, name).tolist()
    assert (documents.tolist(), occurrences.tolist()) == ([2, 1, 1, 1], [2, 1, 1, 1])
    file = pq.ParquetFile(BytesIO(encoded[0])).metadata
    assert file.num_row_groups == 1
    for column in (1, 2):
        stored = file.row_group(0).column(column)
        assert "DELTA_BINARY_PACKED" in stored.encodings
        assert stored.compression == "ZSTD"


def test_flipped_bits_are_seen() -> None:
    found = count_texts([" ".join(f"w{n}" for n in range(300))], TextSettings())
    content = encode_rows(found, ["a"])
    place = content.index(b"PAR1") + 40  # in a page, beyond its header
    damaged = content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
    with pytest.raises(InvalidInputError, match="cannot be read as Parquet"):
        decode_rows(damaged, found.terms, "file")
    with pytest.raises(InvalidInputError, match="do not fit"):
        decode_rows(content, found.terms[:5], "file")
    with pytest.raises(InvalidInputError, match="its columns are"):
        decode_terms(content, "file")


# ---- vectorising


@dataclass
class Batch:
    ids: list[str]
    texts: list[str]


@dataclass
class Source:
    """Texts in memory, cut into batches; one that is `sealed` must not be read."""

    texts: list[str]
    first: int
    batch: int = 3
    sealed: bool = False
    key: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.key = f"{self.first} {self.batch} {self.texts}"

    def read(self) -> Iterator[Batch]:
        assert not self.sealed
        for start in range(0, len(self.texts), self.batch):
            texts = self.texts[start : start + self.batch]
            yield Batch([f"d{self.first + start + i}" for i in range(len(texts))], texts)

    def record(self) -> dict[str, Any]:
        return {"texts": len(self.texts)}


def corpus_texts() -> list[str]:
    rng = np.random.default_rng(3)
    words = [f"word{number}" for number in range(30)] + ["naïve", "über"]
    return [" ".join(rng.choice(words, rng.integers(0, 25))) for _ in range(40)]


def cut(texts: list[str], size: int, batch: int = 3) -> list[Source]:
    return [Source(texts[i : i + size], i, batch) for i in range(0, len(texts), size)]


@dataclass
class Vectorised:
    vocabulary: Vocabulary
    counted: list[CountedSource]
    rows: list[SourceRows]


def vectorise(
    flow: Dataflow,
    sources: list[Source],
    settings: TextSettings,
    place: Place,
    vocabulary: Vocabulary | None = None,
) -> Vectorised:
    """Count sources, make their vocabulary unless there is one, and write their rows."""
    counting = settings if vocabulary is None else vocabulary.settings
    counted = count_sources(flow, sources, counting, place)
    vocabulary = vocabulary or fit_vocabulary(flow, counted, settings, place)
    return Vectorised(vocabulary, counted, rows_of(flow, counted, vocabulary, place))


def matrix_of(found: Vectorised) -> tuple[Any, list[str]]:
    blocks = dask.compute(*corpus_of(found.rows, {}).partitions, scheduler="synchronous")
    ids = [one for block in blocks for one in block.ids.tolist()]
    return scipy.sparse.vstack([block.to_scipy() for block in blocks]).tocsr(), ids


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("flow", [Inline, DaskFlow])
@pytest.mark.parametrize("kind", ["words", "hashing"])
def test_rows_do_not_depend_on_how_texts_are_cut(tmp_path: Path, flow: Any, kind: Any) -> None:
    texts = corpus_texts()
    settings = TextSettings(kind=kind, n_features=32)
    found = [
        vectorise(flow(), cut(texts, size, batch), settings, Place(str(tmp_path / str(size))))
        for size, batch in ((40, 40), (15, 6), (8, 8))
    ]
    assert len({one.vocabulary.identity for one in found}) == 1
    matrices = [matrix_of(one) for one in found]
    assert matrices[0][1] == [f"d{number}" for number in range(40)]
    for matrix, ids in matrices[1:]:
        assert ids == matrices[0][1]
        assert_same_bits(matrix, matrices[0][0])
    assert len({Coverage.total([one.coverage for one in some.rows]) for some in found}) == 1
    if kind == "words":
        assert_same_bits(
            matrices[0][0], TfidfVectorizer(dtype=np.float32).fit(texts).transform(texts)
        )


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    texts, place = corpus_texts(), Place(str(tmp_path))
    first = vectorise(Inline(), cut(texts, 10, 5), TextSettings(), place)
    assert [one.record for one in first.counted] == [{"texts": 10}] * 4
    files = bytes_below(tmp_path)
    sealed = cut(texts, 10, 5)
    for one in sealed:
        one.sealed = True
    again = vectorise(Inline(), sealed, TextSettings(), place)
    assert again.rows == first.rows
    assert again.counted == first.counted
    assert bytes_below(tmp_path) == files
    # A vocabulary with other limits needs no text either; nor do later sources change the rest.
    vectorise(Inline(), sealed, TextSettings(min_df=5, sublinear_tf=True), place)
    more = vectorise(
        Inline(), [*sealed, Source(["word1 unheard"], 40)], TextSettings(), place,
        vocabulary=load_vocabulary(first.vocabulary.identity, place),
    )  # fmt: skip
    assert more.rows[:4] == first.rows
    assert more.rows[4].coverage == Coverage(1, 0, 1, 2)


@pytest.mark.parametrize("lost", ["counts.json", "rows.json", "vocabulary.json"])
def test_a_run_that_was_killed_is_made_whole(tmp_path: Path, lost: str) -> None:
    texts, place = corpus_texts(), Place(str(tmp_path))
    vectorise(Inline(), cut(texts, 10, 5), TextSettings(), place)
    files = bytes_below(tmp_path)
    for path in tmp_path.rglob(lost):
        path.unlink()
    vectorise(Inline(), cut(texts, 10, 5), TextSettings(), place)
    assert bytes_below(tmp_path) == files


def test_damaged_counts_are_refused(tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    vectorise(Inline(), cut(corpus_texts(), 40, 40), TextSettings(), place)
    (rows,) = (tmp_path / "counts").rglob("rows-*.parquet")
    rows.write_bytes(rows.read_bytes()[:-1])
    with pytest.raises(InvalidInputError, match=r"it has \d+ bytes, not the \d+ that were written"):
        vectorise(Inline(), cut(corpus_texts(), 40, 40), TextSettings(norm=None), place)


def test_components_lead_to_dense_rows(tmp_path: Path) -> None:
    texts, place, settings = corpus_texts(), Place(str(tmp_path)), TextSettings(lsa=4)
    found = vectorise(DaskFlow(), cut(texts, 20), settings, place)
    other = vectorise(DaskFlow(), cut(texts, 15), settings, Place(str(tmp_path / "other")))
    assert found.vocabulary.identity == other.vocabulary.identity
    (ours, ids), (theirs, _) = matrix_of(found), matrix_of(other)
    assert ours.toarray().tobytes() == theirs.toarray().tobytes()
    assert (ours.shape, len(ids)) == ((40, 4), 40)
    kept = load_vocabulary(found.vocabulary.identity, place)
    later = vectorise(Inline(), cut(texts, 20), TextSettings(), place, vocabulary=kept)
    assert later.rows == found.rows


def test_an_object_store_does_as_well() -> None:
    place, texts = Place(f"memory://{uuid4().hex}"), corpus_texts()
    found = vectorise(Inline(), cut(texts, 10, 5), TextSettings(), place)
    theirs = TfidfVectorizer(dtype=np.float32).fit(texts).transform(texts)
    assert_same_bits(matrix_of(found)[0], theirs)


def test_sources_may_be_empty_but_not_all(tmp_path: Path) -> None:
    texts, place = corpus_texts(), Place(str(tmp_path))
    found = vectorise(Inline(), [Source([], 0), *cut(texts, 40, 20)], TextSettings(), place)
    assert [len(one.files) for one in found.rows] == [0, 2]
    assert matrix_of(found)[0].shape[0] == 40
    with pytest.raises(InvalidInputError, match="at least one source"):
        vectorise(Inline(), [], TextSettings(), place)
    with pytest.raises(InvalidInputError, match="must leave at least one term"):
        vectorise(Inline(), [Source([], 0)], TextSettings(), place)
    with pytest.raises(InvalidInputError, match="at least one document"):
        corpus_of(found.rows[:1], {})


class EmptyBatch(Source):
    """A source whose only batch has nothing but bad records, which are elsewhere."""

    def read(self) -> Iterator[Batch]:
        yield Batch([], [])


def test_batches_may_be_empty(tmp_path: Path) -> None:
    sources = [EmptyBatch([], 0), *cut(corpus_texts(), 40, 40)]
    found = vectorise(Inline(), sources, TextSettings(), Place(str(tmp_path)))
    assert matrix_of(found)[0].shape[0] == 40


def test_stop_words_that_stop_nothing_are_reported(tmp_path: Path) -> None:
    settings = TextSettings(stop_words=["don't"])
    with pytest.warns(HmrfWarning, match="'don'; add these"):
        vectorise(Inline(), cut(corpus_texts(), 40), settings, Place(str(tmp_path)))


@pytest.mark.cluster
def test_processes_give_the_same_files(process_client: Any, tmp_path: Path) -> None:
    texts = corpus_texts()
    for name, flow in (("here", Inline()), ("there", DaskFlow())):
        vectorise(flow, cut(texts, 20, 20), TextSettings(), Place(str(tmp_path / name)))
    assert bytes_below(tmp_path / "here") == bytes_below(tmp_path / "there")
