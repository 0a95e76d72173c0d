"""Rows of several kinds side by side: their scale, what finds their centroids, what is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from hmrf_dask import Blocks, HMRFKMeans, KMeans
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.errors import (
    ConfigurationError,
    HmrfWarning,
    InvalidInputError,
    UnreadableFileError,
)
from hmrf_dask.rows.block import RowBlock, fingerprint, survey
from hmrf_dask.rows.encoding import BlockFile, decode_block, encode_block
from tests.support.distortion_rows import bound, check_nearest, text_like, used

N_WORDS, WIDTH = 60, 24


def kinds(n_rows: int = 90, seed: int = 0) -> tuple[Any, Any]:
    """Return words and vectors of documents of three classes; some lack one kind, one both."""
    rng = np.random.default_rng(seed)
    classes = np.arange(n_rows) % 3
    words = text_like(n_rows, N_WORDS, seed).astype(np.float64)
    words[np.arange(n_rows), classes] += 2.0
    vectors = rng.standard_normal((n_rows, WIDTH)) + 3.0 * np.eye(WIDTH)[classes]
    words[[4, 9]] = 0.0
    vectors[[5, 9]] = 0.0
    return sp.csr_array(words), vectors


def test_a_row_is_unit_kinds_at_the_roots_of_their_shares() -> None:
    words, vectors = kinds()
    rows = Blocks([words, vectors], weights=[3, 1])
    dense = rows.matrix.toarray().astype(np.float64)
    lengths = np.linalg.norm(dense, axis=1)
    np.testing.assert_allclose(np.delete(lengths, 9), 1.0, rtol=1e-6)
    assert lengths[9] == 0.0
    both = np.delete(np.arange(90), [4, 5, 9])
    of_words = np.linalg.norm(dense[:, :N_WORDS], axis=1)
    np.testing.assert_allclose(of_words[both], np.sqrt(0.75), rtol=1e-6)
    assert of_words[4] == 0.0
    assert of_words[5] == pytest.approx(1.0)
    assert rows.n_partial == 2
    expected = words.toarray() / np.linalg.norm(words.toarray(), axis=1, keepdims=True).clip(1e-9)
    np.testing.assert_allclose(dense[both, :N_WORDS], np.sqrt(0.75) * expected[both], rtol=1e-6)


def test_kinds_that_are_dense_make_dense_rows() -> None:
    _, vectors = kinds()
    rows = Blocks([vectors, vectors[:, :3]])
    assert isinstance(rows.matrix, np.ndarray)
    assert rows.shape == (90, WIDTH + 3)


ENDS = np.array([2, 5, 7, *range(N_WORDS, N_WORDS + WIDTH)])


@pytest.mark.parametrize(
    "change",
    [
        lambda block: block,
        lambda block: block.rows(3, 11),
        lambda block: block.rows(4, 4),
        lambda block: block.take([8, 4, 4, 89]),
        lambda block: block.with_features(ENDS),
        lambda block: RowBlock.concatenate([block.rows(0, 5), block.rows(5, 5), block.rows(7, 9)]),
        lambda block: pickle.loads(pickle.dumps(block)),
    ],
    ids=["whole", "some", "none", "taken", "narrowed", "put together", "sent"],
)
def test_mixed_rows_are_the_rows_they_stand_for(change: Any) -> None:
    words, vectors = kinds()
    vectors[11, 3] = 0.0
    mixed = Blocks([words, vectors]).rows
    plain = RowBlock.from_scipy(mixed.to_scipy())
    assert len(mixed.values) == len(mixed.indices) + 90 * WIDTH > len(plain.values)
    mixed, plain = change(mixed), change(plain)
    assert np.array_equal(mixed.to_dense(), plain.to_dense())
    assert mixed.ids.tolist() == plain.ids.tolist()
    assert len(mixed.values) == len(mixed.indices) + mixed.n_rows * WIDTH
    assert fingerprint(mixed, 7) == fingerprint(plain, 7)
    for ours, theirs in zip(survey(mixed), survey(plain), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    data = encode_block(mixed)
    facts = (mixed.n_rows, len(mixed.values), False, len(data), "")
    file = BlockFile("a.parquet", *facts, n_dense=WIDTH)
    again = decode_block(data, "a.parquet", file, mixed.n_features)
    assert np.array_equal(again.to_dense(), mixed.to_dense())
    assert (again.n_dense, again.indices.tolist()) == (WIDTH, mixed.indices.tolist())
    for wrong in (0, WIDTH - 1):
        with pytest.raises(UnreadableFileError, match=f"with {WIDTH} dense features, not {wrong}"):
            decode_block(data, "a.parquet", replace(file, n_dense=wrong), mixed.n_features)


def test_rows_of_different_ends_are_not_put_together() -> None:
    words, vectors = kinds()
    mixed = Blocks([words, vectors]).rows
    with pytest.raises(InvalidInputError, match="must be all sparse or all dense, got both"):
        RowBlock.concatenate([mixed, RowBlock.from_scipy(mixed.to_scipy())])


def test_kinds_may_be_many_and_documents_may_have_ids() -> None:
    words, vectors = kinds()
    rows = Blocks([vectors, words, vectors[:, :3], words[:, :5]], weights=[1, 1, 2, 2])
    assert rows.shape == (90, N_WORDS + 5 + WIDTH + 3)
    assert rows.rows.n_dense == WIDTH + 3
    found = np.linalg.norm(rows.rows.to_dense()[0, [N_WORDS + 5 + WIDTH + i for i in range(3)]])
    assert found == pytest.approx(np.sqrt(1 / 3))
    ids = [f"d{number}" for number in range(90)]
    corpus = Corpus.from_rows(rows, ids, n_partitions=4)
    parts = [one.compute() for one in corpus.partitions]
    assert [one for part in parts for one in part.ids.tolist()] == ids
    assert np.array_equal(np.concatenate([one.to_dense() for one in parts]), rows.rows.to_dense())


@pytest.mark.filterwarnings("ignore:1 rows? (is|are) zero:hmrf_dask.errors.HmrfWarning")
def test_a_fit_finds_and_predicts_what_both_kinds_show() -> None:
    words, vectors = kinds()
    rows = Blocks([words, vectors], weights=[1, 0.5])
    model = HMRFKMeans(3, random_state=0).fit(rows, must_link=[(0, 3)], cannot_link=[(0, 1)])
    labels = np.delete(model.labels_, 9)
    table = np.zeros((3, 3), int)
    np.add.at(table, (np.delete(np.arange(90) % 3, 9), labels), 1)
    assert table.max(axis=1).sum() >= 87
    some = Blocks([words[:6], vectors[:6]], weights=[1, 0.5])
    assert model.predict(some).tolist() == model.labels_[:6].tolist()


@pytest.mark.parametrize("K", [3, 40])
@pytest.mark.parametrize("name", ["cosine", "euclidean"])
def test_rows_with_a_dense_end_find_the_nearest(name: str, K: int) -> None:
    words, vectors = kinds(97, seed=K)
    vectors[11, 3] = 0.0
    block = Blocks([words, vectors]).rows
    assert (block.n_dense, len(block.indices)) == (WIDTH, len(block.values) - 97 * WIDTH)
    centroids = np.random.default_rng(K).standard_normal((K, block.n_features))
    centroids[-1] = centroids[0]
    distortion = bound(name, block.to_dense())
    check_nearest(distortion, block, *used(distortion, block, centroids, np.ones(block.n_features)))


@pytest.mark.parametrize("n_rows", [1, 2, 5])
def test_few_rows_with_a_dense_end(n_rows: int) -> None:
    words, vectors = kinds(30)
    block = Blocks([words, vectors]).rows.rows(3, 3 + n_rows)
    distortion = bound("cosine", block.to_dense())
    centroids = np.random.default_rng(1).standard_normal((20, block.n_features))
    check_nearest(distortion, block, *used(distortion, block, centroids, np.ones(block.n_features)))


def test_what_is_no_kind_of_rows_is_refused() -> None:
    words, vectors = kinds()
    with pytest.raises(InvalidInputError, match="must be of the same documents, got 90, 89 rows"):
        Blocks([words, vectors[1:]])
    with pytest.raises(ConfigurationError, match="must be one for each kind of rows, got 1 for 2"):
        Blocks([words, vectors], weights=[1])
    with pytest.raises(ConfigurationError, match="weights must be numbers above 0"):
        Blocks([words, vectors], weights=[1, 0])
    with pytest.raises(InvalidInputError, match="must be a scipy sparse matrix or an ndarray"):
        Blocks([words, vectors.tolist()])
    wrong: list[Any] = [vectors, words, "words", 3]
    for rows in wrong:
        with pytest.raises(ConfigurationError, match="kinds of rows must be a list, one for each"):
            Blocks(rows)
        with pytest.raises(ConfigurationError, match="weights must be a list, one for each kind"):
            Blocks([words, vectors], weights=rows)
    vectors[7, 1] = np.nan
    with pytest.raises(InvalidInputError, match="every value must be finite"):
        Blocks([words, vectors])


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64])
def test_weights_may_be_an_array(dtype: Any) -> None:
    expected = Blocks(list(kinds()), weights=[1, 3]).rows.values
    rows = Blocks(list(kinds()), weights=np.array([1, 3], dtype))  # type: ignore[arg-type]
    assert (rows.rows.values == expected).all()


def test_other_distortions_are_refused() -> None:
    rows = Blocks(list(kinds()))
    for name in ("pearson", "kl", "i-divergence"):
        with pytest.raises(ConfigurationError, match="must go with distortion cosine or euclidean"):
            HMRFKMeans(3, distortion=name).fit(rows)
    with pytest.warns(HmrfWarning, match="zero"):
        KMeans(3, random_state=0).fit(rows)
