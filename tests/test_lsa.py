"""LSA: against scikit-learn and dense linear algebra; the same bits however rows are cut."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.decomposition import TruncatedSVD
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_info, threadpool_limits

from hmrf_dask import LSA, Corpus, HMRFKMeans
from hmrf_dask.errors import ConfigurationError, HmrfError, InvalidInputError, MemoryPlanError
from hmrf_dask.kernels.sketches import Basis, add_sketch, project, sketch_exponent
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.text.lsa import blas_on_one_thread, orthonormal, scaling_of, strips, survey_rows
from tests.proofs.news import SETS, missing, news
from tests.support.long_cases import long_but
from tests.support.problems import planted_text, string_ids

TEXT = planted_text(240, 300, 6, 0, words=25)[0]
DENSE = np.random.default_rng(0).normal(size=(150, 40)) * np.linspace(1.0, 5.0, 40)

BASIS = orthonormal(np.random.default_rng(0).normal(size=(2000, 60)))


def blas() -> list[dict[str, Any]]:
    return [pool for pool in threadpool_info() if pool["user_api"] == "blas"]


def fitted(X: Any, n_components: int = 8, **parameters: Any) -> LSA:
    return LSA(n_components, **{"random_state": 0, **parameters}).fit(X)


def digest(model: LSA) -> bytes:
    found = model.components_, model.singular_values_, model.explained_variance_ratio_
    return b"".join(np.ascontiguousarray(one).tobytes() for one in found)


def angle(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the largest angle between two spaces, given by rows."""
    return float(scipy.linalg.subspace_angles(one.T, other.T).max())


def as_dense(X: Any) -> NDArray[np.float64]:
    whole = X.toarray() if sp.issparse(X) else X
    return np.asarray(whole, np.float32).astype(np.float64)


# --- the oracle ----------------------------------------------------------------------------------


@pytest.mark.parametrize("X", [TEXT, DENSE], ids=["sparse", "dense"])
def test_it_is_the_singular_value_decomposition(X: Any) -> None:
    model, whole = fitted(X, 8, n_iter=40), as_dense(X)
    _, values, right = np.linalg.svd(whole, full_matrices=False)
    np.testing.assert_allclose(model.singular_values_, values[:8], rtol=1e-8)
    np.testing.assert_allclose(np.abs(model.components_ @ right[:8].T), np.eye(8), atol=1e-5)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(8), atol=1e-12)
    largest = np.abs(model.components_).argmax(axis=1)
    assert (model.components_[np.arange(8), largest] > 0).all()
    rows = model.transform(X)
    np.testing.assert_allclose(rows, whole @ model.components_.T, atol=1e-5)
    variance = (whole @ model.components_.T).var(axis=0)
    np.testing.assert_allclose(model.explained_variance_, variance, rtol=1e-8)
    share = variance / whole.var(axis=0).sum()
    np.testing.assert_allclose(model.explained_variance_ratio_, share, rtol=1e-8)


def compare(X: Any, n_components: int) -> None:
    """Hold a fit against scikit-learn's exact decomposition, and against its randomised one."""
    exact = TruncatedSVD(n_components, algorithm="arpack", random_state=0).fit(X)
    ours = [fitted(X, n_components, random_state=seed) for seed in range(5)]
    theirs = [TruncatedSVD(n_components, n_iter=7, random_state=seed).fit(X) for seed in range(5)]
    mine, peers = (
        np.mean([np.abs(one.singular_values_ / exact.singular_values_ - 1.0).max() for one in some])
        for some in (ours, theirs)
    )
    assert mine <= max(2.0 * peers, 1e-5)
    model = ours[0]
    few = n_components // 2
    assert angle(model.components_[:few], exact.components_) < 0.15
    np.testing.assert_allclose(
        model.explained_variance_ratio_.sum(), exact.explained_variance_ratio_.sum(), rtol=0.01
    )


@pytest.mark.parametrize("X", [TEXT, DENSE], ids=["sparse", "dense"])
def test_it_is_as_near_as_scikit_learn(X: Any) -> None:
    compare(X, 8)


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
@pytest.mark.parametrize("name", long_but(SETS[:1], SETS))
def test_it_is_as_near_as_scikit_learn_on_news(name: str) -> None:
    compare(news(name)[0], 50)


def test_values_far_from_each_other_are_all_found() -> None:
    rng = np.random.default_rng(1)
    left, right = (np.linalg.qr(rng.normal(size=(n, 12)))[0] for n in (90, 30))
    values = 10.0 ** -np.arange(0, 6, 0.5)
    X = (left * values) @ right.T
    model = fitted(X, 8, n_iter=4)
    expected = np.linalg.svd(as_dense(X), compute_uv=False)[:8]
    np.testing.assert_allclose(model.singular_values_, expected, rtol=1e-5)


def test_fewer_directions_than_asked_for() -> None:
    rows = np.outer([1.0, 2.0, -3.0], np.arange(20.0))
    model = fitted(rows, 4)
    assert model.singular_values_[0] == pytest.approx(np.linalg.norm(rows))
    assert model.singular_values_[1:] == pytest.approx(0.0, abs=1e-5)
    assert np.isfinite(model.components_).all()
    zero = fitted(np.zeros((5, 20)), 4)
    assert not zero.singular_values_.any()
    assert not zero.explained_variance_ratio_.any()
    assert not zero.transform(np.ones((2, 20)) * 0).any()


# --- the same bits -------------------------------------------------------------------------------


def test_strips_of_columns_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    from hmrf_dask.text import lsa

    whole, asked = fitted(TEXT), []

    def counted(*sizes: int) -> list[tuple[int, int]]:
        asked.append(strips(*sizes))
        return asked[-1]

    monkeypatch.setattr(lsa, "strips", counted)
    with dask.config.set({"hmrf.task-memory": "120 kiB"}):
        assert digest(fitted(TEXT)) == digest(whole)
    assert {len(one) for one in asked} == {5}


def test_what_does_not_fit_is_refused_with_the_arithmetic() -> None:
    with (
        dask.config.set({"hmrf.task-memory": "40 kiB"}),
        pytest.raises(MemoryPlanError, match="300 features must fit the memory of a task, 40960"),
    ):
        fitted(TEXT)


def test_a_basis_that_no_machine_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmrf_dask.text.lsa.machine_memory", lambda: 2**16)
    with pytest.raises(MemoryPlanError, match=r"LSA must fit the memory of this machine.* of 300"):
        fitted(TEXT)


# --- kernels -------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 40))
@settings(max_examples=25)
def test_sketches_are_those_of_python_integers(seed: int, n_columns: int) -> None:
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(9, 7)) * (rng.random((9, 7)) < 0.6) * 10.0 ** rng.integers(-3, 4)
    vectors = orthonormal(rng.normal(size=(7, min(n_columns, 7))))
    for block in (RowBlock.from_array(dense), RowBlock.from_scipy(sp.csr_array(dense))):
        scaling = scaling_of(survey_rows(block), 9)
        out = np.zeros((7, vectors.shape[1] + 1), np.int64)
        basis = Basis(vectors)
        add_sketch(block.arrays, basis, scaling.exponent, scaling.constant, out)
        x = block.to_dense().astype(np.float64)
        y = np.zeros((9, out.shape[1]))
        for m in range(7):  # in the order of the entries
            y[:, :-1] += x[:, m, None] * vectors[m]
        y[:, -1] = scaling.constant
        expected = np.zeros_like(out)
        for i in range(9):
            for m in range(7):
                expected[m] += [round(x[i, m] * (v * 2.0**scaling.exponent)) for v in y[i]]
        assert np.array_equal(out, expected)
        again = np.zeros_like(out)
        for start, stop in ((4, 9), (0, 0), (0, 4)):
            rows = block.rows(start, stop)
            add_sketch(rows.arrays, basis, scaling.exponent, scaling.constant, again)
        assert np.array_equal(out, again)


def test_sums_as_large_as_the_scale_allows_do_not_overflow() -> None:
    for n in (3, 5000):
        block = RowBlock.from_array(np.full((n, 1), 3e7))
        scaling = scaling_of(survey_rows(block), n)
        out = np.zeros((1, 2), np.int64)
        add_sketch(block.arrays, Basis(np.ones((1, 1))), scaling.exponent, scaling.constant, out)
        assert out[0, 0] * 2.0**-scaling.exponent == pytest.approx(n * 9e14, rel=1e-9)
        assert scaling.exponent == sketch_exponent(n, 9e14)


@pytest.mark.parametrize("spread", [0.0, 4.0, 12.0])
def test_bases_are_orthonormal_however_far_from_each_other_lengths_are(spread: float) -> None:
    rng = np.random.default_rng(0)
    lengths = 10.0 ** -np.linspace(0.0, spread, 9)
    turn = np.linalg.qr(rng.normal(size=(9, 9)))[0]
    vectors = (np.linalg.qr(rng.normal(size=(50, 9)))[0] * lengths) @ turn
    found = orthonormal(vectors)
    np.testing.assert_allclose(found.T @ found, np.eye(9), atol=1e-11)
    assert angle(found.T, vectors.T) < 1e-15 * 10.0 ** (spread + 1) + 1e-12


@pytest.mark.parametrize("n_threads", [1, 3])  # three share out rows in another way
def test_bases_are_the_same_with_any_number_of_blas_threads(n_threads: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(2000, 60))
    shifted = np.empty(vectors.size + 1)[1:].reshape(vectors.shape)  # in other places of a line
    shifted[:] = vectors
    with threadpool_limits(n_threads, user_api="blas"):
        assert orthonormal(shifted).tobytes() == orthonormal(vectors).tobytes() == BASIS.tobytes()
        assert {pool["num_threads"] for pool in blas()} == {n_threads}


def test_fits_at_a_time_do_not_lift_the_limit_of_blas_threads() -> None:
    entered = threading.Event()

    def enter() -> None:
        with blas_on_one_thread():
            entered.set()

    second = threading.Thread(target=enter)
    with blas_on_one_thread():
        second.start()
        assert not entered.wait(0.1)
        assert {pool["num_threads"] for pool in blas()} == {1}
    second.join()
    assert entered.is_set()


def test_projected_rows_depend_on_the_row_alone() -> None:
    vectors = orthonormal(np.random.default_rng(0).normal(size=(300, 20)))
    block, basis = RowBlock.from_scipy(TEXT), Basis(vectors)
    whole = project(block.arrays, basis, normalised=True)
    for start, stop in ((0, 1), (5, 60)):
        alone = project(
            block.rows(start, stop).arrays, pickle.loads(pickle.dumps(basis)), normalised=True
        )
        assert alone.tobytes() == whole[start:stop].tobytes()
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1.0, rtol=1e-6)


# --- the transformer -----------------------------------------------------------------------------


@parametrize_with_checks([LSA(n_components=1)])
def test_scikit_learn_finds_nothing_wrong(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)


def test_rows_come_back_as_they_came(tmp_path: Path) -> None:
    ids = string_ids(240, 0)
    corpus = Corpus.from_rows(TEXT, ids, n_partitions=3)
    model = fitted(corpus, normalize=True)
    wanted = model.transform(TEXT)
    assert isinstance(wanted, np.ndarray)
    assert wanted.dtype == np.float32
    found = model.transform(corpus)
    assert isinstance(found, Corpus)
    assert found.has_ids
    assert found.shape == (240, 8)
    assert found.row_counts == corpus.row_counts
    blocks = dask.compute(*found.partitions)
    assert np.concatenate([block.ids for block in blocks]).tolist() == ids.tolist()
    assert np.concatenate([block.to_dense() for block in blocks]).tobytes() == wanted.tobytes()
    corpus.to_parquet(str(tmp_path / "rows"))
    stored = model.transform(str(tmp_path / "rows"))
    assert isinstance(stored, Corpus)
    lazy = model.transform(corpus.to_dask_array())
    assert lazy.chunks == ((80, 80, 80), (8,))
    assert lazy.compute().tobytes() == wanted.tobytes()
    assert stored.to_dask_array(dense=True).compute().tobytes() == wanted.tobytes()
    assert model.fit_transform(TEXT).tobytes() == wanted.tobytes()
    assert digest(fitted(str(tmp_path / "rows"))) == digest(model)


def test_clusters_of_a_lazy_corpus() -> None:
    corpus = Corpus.from_rows(TEXT, n_partitions=3)
    model = fitted(corpus)
    groups = HMRFKMeans(6, random_state=0, n_init=2)
    found = groups.fit(model.transform(corpus), must_link=[(0, 1)]).labels_.compute()
    np.testing.assert_array_equal(
        found, groups.fit(model.transform(TEXT), must_link=[(0, 1)]).labels_
    )


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"]
)
def test_a_copy_is_as_good(copied: Callable[[LSA], LSA]) -> None:
    model = fitted(TEXT)
    other = copied(model)
    assert digest(other) == digest(model)
    assert other.transform(TEXT).tobytes() == model.transform(TEXT).tobytes()
    assert clone(model).get_params() == model.get_params()
    assert model.get_feature_names_out().tolist() == [f"lsa{number}" for number in range(8)]


@pytest.mark.parametrize(
    ("parameters", "X", "error", "text"),
    [
        ({"n_components": 0}, TEXT, ConfigurationError, "n_components must be an integer from 1"),
        ({"n_components": 301}, TEXT, ConfigurationError, "at most the number of features, 300"),
        (
            {"n_iter": -1},
            TEXT,
            ConfigurationError,
            "n_iter must be an integer from 0 to 1000, got -1",
        ),
        (
            {"n_iter": 2.0},
            TEXT,
            ConfigurationError,
            "n_iter must be an integer from 0 to 1000, got 2.0",
        ),
        ({"normalize": 1}, TEXT, ConfigurationError, "normalize must be one of True, False"),
        ({"random_state": -1}, TEXT, ConfigurationError, "random_state must be an integer"),
        ({}, np.array([[1.0, np.nan]] * 9), InvalidInputError, "every value must be finite"),
        ({}, Corpus.from_rows(np.zeros((0, 9))), InvalidInputError, "0 sample"),
    ],
)
def test_bad_input_is_refused_in_words(
    parameters: dict[str, Any], X: Any, error: type[HmrfError], text: str
) -> None:
    with pytest.raises(error, match=text):
        LSA(**{"n_components": 1, **parameters}).fit(X)


def test_other_columns_are_refused() -> None:
    model = fitted(TEXT)
    with pytest.raises(InvalidInputError, match="9 features, but LSA is expecting 300"):
        model.transform(Corpus.from_rows(np.ones((3, 9))))
    with pytest.raises(NotFittedError):
        LSA(2).transform(TEXT)
    nan = np.full((1, 300), np.nan)
    with pytest.raises(InvalidInputError, match="every value must be finite"):
        model.transform(nan)
