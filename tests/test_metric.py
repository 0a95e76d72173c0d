"""A full metric: its matrices against numpy's, the same for any partitioning, and what it gains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import normalized_mutual_info_score as nmi

from hmrf_dask import Constraints, HMRFKMeans, MPCKMeans, load, load_release
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.fit.fitting import FitInput
from hmrf_dask.fit.metric import _covariance, _drawn, under_metric
from hmrf_dask.flow.dataflow import DaskFlow, tree
from hmrf_dask.kernels.metric import factor_of, metric_of
from hmrf_dask.tasks.metric import farthest_reach, reach_of
from tests import naive
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import assigned, run

Pairs = NDArray[np.int64]


@pytest.fixture(scope="module")
def case() -> tuple[NDArray[np.float32], NDArray[np.int64], Pairs, Pairs]:
    """Give two clusters that differ where two loud features cancel, and pairs of one half."""
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 2, 160)
    loud, small = rng.normal(0, 30, 160), rng.normal(0, 0.5, (160, 2))
    rows = np.column_stack([loud + 3 * classes, loud, np.full(160, 7.0)])
    rows[:, :2] += small
    pairs = np.unique(np.sort(rng.permutation(80)[rng.integers(0, 80, (90, 2))]), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    same = classes[pairs[:, 0]] == classes[pairs[:, 1]]
    return rows.astype(np.float32), classes, pairs[same], pairs[~same]


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_the_factor_is_that_of_the_inverse(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(3 * size, size)) * 10.0 ** rng.integers(-3, 4, size)
    covariance = rows.T @ rows
    factor = factor_of(covariance)
    sizes = np.sqrt(np.diag(covariance))
    found = metric_of(factor) * sizes * sizes[:, None]
    expected = np.linalg.inv(covariance / sizes / sizes[:, None])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("n_partitions", [1, 3])
def test_the_covariance_is_exact_for_any_partitioning(n_partitions: int) -> None:
    rng = np.random.default_rng(1)
    units = np.array([1e-4, 1.0, 3e5, 0.0])
    rows = (rng.normal([5, 0, 2, 0], 1, (90, 4)) * units).astype(np.float32)
    found = []
    for cut in (n_partitions, 7):
        corpus, flow = Corpus.from_rows(rows, n_partitions=cut), DaskFlow()
        parts = [flow.lazy(reach_of, block) for block in corpus.blocks]
        reach = flow.compute([tree(flow, farthest_reach, parts)])[0]
        found.append(_covariance(flow, corpus, reach))
    assert np.array_equal(*found)
    expected = np.cov(rows.astype(np.float64), rowvar=False, bias=True)
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected))) + 1e-300
    assert np.abs((found[0] - expected) / scale).max() < 1e-6


def test_a_full_metric_sees_what_loud_features_hide(case: Any, tmp_path: Path) -> None:
    rows, classes, must, cannot = case
    ids = np.array([f"d{number:03}" for number in range(len(rows))])
    pairs = Constraints(ids[must], ids[cannot])
    plain = MPCKMeans(2, learn_weights=False, n_init=3, random_state=0)
    weighted = MPCKMeans(2, learn_weights=True, n_init=3, random_state=0)
    for model in (plain, weighted):
        model.fit(rows, must_link=must, cannot_link=cannot)
        assert nmi(classes[80:], model.labels_[80:]) < 0.5
    found = []
    with dask.config.set(scheduler="synchronous"):
        for cut, order in ((1, np.arange(160)), (4, np.arange(160)[::-1])):
            model = MPCKMeans(2, learn_weights="full", n_init=3, random_state=0)
            corpus = Corpus.from_rows(rows[order], ids[order], n_partitions=cut)
            model.fit(corpus, must_link=pairs)
            labels = np.empty(160, np.int64)
            labels[order] = np.asarray(model.labels_)
            found.append((labels.tolist(), model.objective_, model.metric_.tolist()))
    assert found[0] == found[1]
    assert nmi(classes, found[0][0]) > 0.9
    assert (np.diff(model.objective_history_) <= 0).all()
    assert model.feature_weights_ is None
    predicted = model.predict(rows)
    assert (predicted == found[0][0]).mean() > 0.95  # but for what pairs say
    gap = rows[0, :2] - model.cluster_centers_[:, :2]  # the third is the same of all rows
    expected = np.einsum("kd,de,ke->k", gap, model.metric_[:2, :2], gap)
    np.testing.assert_allclose(model.transform(rows[:1])[0], expected, rtol=1e-3, atol=1e-2)
    assert not model.metric_[2].any()
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.predict(rows).tolist() == predicted.tolist()
    assert again.cluster_centers_.tolist() == model.cluster_centers_.tolist()
    assert again.metric_.tolist() == model.metric_.tolist()
    warm = MPCKMeans(2, learn_weights="full", init=model.cluster_centers_, random_state=0)
    warm.fit(rows, must_link=must, cannot_link=cannot)
    assert nmi(warm.labels_, found[0][0]) > 0.9


def correlated(seed: int) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Return rows of three classes that noise draws out, and must-links; of odd seeds some err."""
    rng = np.random.default_rng(seed)
    classes = np.arange(60) % 3
    noise = rng.normal(size=(60, 3)) @ np.array([[3.0, 2.9, 0.0], [0.0, 0.4, 0.3], [0.0, 0.0, 0.5]])
    rows = (1.5 * rng.normal(size=(3, 3))[classes] + noise).astype(np.float32)
    pairs = [(i, i + 3) for i in range(0, 24)]
    return rows, {"must_link": pairs + [(i, i + 1) for i in range(30, 40)] * (seed % 2)}


@pytest.mark.parametrize("seed", range(4))
def test_the_metric_is_a_step_of_j(seed: int) -> None:
    rows, pairs = correlated(seed)
    cost = 0.125 if seed % 2 else 1.0  # some are broken, or none
    chosen: dict[str, Any] = {"n_init": 1, "tol": 0, "must_link_cost": cost, "random_state": seed}
    model = MPCKMeans(3, learn_weights="full", closure=False, **chosen)
    constraints = Constraints(**pairs)
    settings, distortion = model._settings(None, constraints)
    corpus = Corpus.from_rows(rows, n_partitions=1)
    factor = under_metric(FitInput(corpus, constraints, settings, distortion))[1]
    assert factor is not None
    phases: list[str] = []
    model._progress = lambda record: phases.append(record["phase"])
    model.fit(corpus, must_link=constraints)
    assert "metric" in phases
    labels = np.asarray(model.labels_).tolist()
    assert (np.diff(model.objective_history_) <= 0).all()

    def energy(metric: Any) -> list[float]:
        found = (rows.tolist(), labels, model.cluster_centers_.tolist())
        terms = naive.full_metric_energy(*found, (metric, metric_of(factor)), constraints.must_link)
        return [terms[0], cost * terms[1], terms[2]]

    terms, reached = model.objective_terms_, energy(model.metric_)
    names = ("distortion", "must_link", "prior")
    np.testing.assert_allclose([terms[name] for name in names], reached, rtol=1e-4, atol=1e-3)
    assert bool(terms["must_link"]) == seed % 2
    if not seed % 2:  # then no metric has a lower J
        root = np.linalg.cholesky(model.metric_)
        for other in np.random.default_rng(seed).normal(size=(20, 3, 3)):
            turned = root @ (np.eye(3) + 0.02 * (other + other.T)) @ root.T
            assert sum(energy(turned)) > sum(reached)


def test_a_metric_is_learned_from_as_many_answers_as_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    must = np.stack([np.arange(0, 90, 2), np.arange(1, 90, 2)], axis=1)
    cannot = np.stack([np.arange(0, 40), np.arange(50, 90)], axis=1)
    monkeypatch.setattr("hmrf_dask.fit.metric.MOST_ANSWERS", 10)
    drawn = _drawn(Constraints(must, cannot), 0)
    turned = _drawn(Constraints(must[::-1, ::-1], cannot[::-1]), 0)
    assert (len(drawn.must_nodes), len(drawn.cannot_nodes)) == (10, 10)
    assert np.isin(drawn.must_link[:, 0], must).all()
    assert drawn.must_link.tolist() == turned.must_link.tolist()
    assert drawn.cannot_link.tolist() == turned.cannot_link.tolist()
    assert drawn.must_link.tolist() != _drawn(Constraints(must, cannot), 1).must_link.tolist()


def test_auto_takes_what_withheld_answers_speak_for(case: Any) -> None:
    rows, classes, must, cannot = case
    model = MPCKMeans(2, n_init=3, random_state=0).fit(rows, must_link=must, cannot_link=cannot)
    assert model.metric_ is not None
    assert nmi(classes, model.labels_) > 0.9
    few = {"must_link": must[:2], "cannot_link": cannot[:2]}  # name too few rows: as without
    for given_pairs in ({}, few):
        auto = MPCKMeans(2, n_init=3, random_state=0).fit(rows, **given_pairs)
        learned = MPCKMeans(2, n_init=3, random_state=0, learn_weights=True)
        learned.fit(rows, **given_pairs)
        assert auto.labels_.tolist() == learned.labels_.tolist()
        assert auto.feature_weights_.tolist() == learned.feature_weights_.tolist()


def test_what_cannot_have_a_full_metric_is_refused_in_words(case: Any) -> None:
    rows, _, must, cannot = case
    full = MPCKMeans(2, learn_weights="full", random_state=0)
    with pytest.raises(InvalidInputError, match="must go with dense rows, got sparse ones"):
        full.fit(sp.csr_matrix(rows), must_link=must)
    with pytest.raises(ConfigurationError, match="at most 256 features, got 257"):
        full.fit(np.ones((4, 257)), must_link=[(0, 1)])
    with pytest.raises(ConfigurationError, match="must have must-links"):
        full.fit(rows, cannot_link=cannot)
    with pytest.raises(ConfigurationError, match="must go with the distortion 'euclidean'"):
        HMRFKMeans(2, learn_weights="full").fit(rows, must_link=must)


def test_fewer_named_rows_than_features_are_shrunk_to_the_whole() -> None:
    rows = np.random.default_rng(3).normal(size=(60, 30))
    rows = np.column_stack([rows, rows[:, 0] + rows[:, 1]])  # so their covariance is singular
    pairs: dict[str, Any] = {"must_link": [(0, 2), (1, 3)], "cannot_link": [(0, 1)]}
    model = MPCKMeans(2, learn_weights="full", n_init=2, random_state=0).fit(rows, **pairs)
    # Two degrees of freedom against 31 of the whole: (2 + 31) / 31 where the two say nothing.
    # A step of the metric goes to twice of that at most, and no farther down than by half.
    ratios = np.linalg.eigvals(np.cov(rows, rowvar=False, bias=True) @ model.metric_).real
    ratios = np.sort(ratios)[1:]  # less the direction in which no row differs
    assert ratios.min() > 0.15
    assert ratios.max() < 2.2


@pytest.mark.parametrize("learn_weights", ["full", "auto"])
def test_answers_may_name_fewer_rows_than_clusters(learn_weights: str) -> None:
    rows = np.random.default_rng(4).normal(size=(40, 1))
    model = MPCKMeans(8, learn_weights=learn_weights, n_init=1, random_state=0)
    model.fit(rows, must_link=[(0, 2), (4, 6)], cannot_link=[(0, 4)])
    assert model.violations_ == {"must_link": 0, "cannot_link": 0}


@pytest.mark.parametrize("learn_weights", ["full", "auto"])
def test_a_job_takes_the_metric_that_it_is_asked_for(
    case: Any, tmp_path: Path, learn_weights: str
) -> None:
    rows, _, must, cannot = case
    corpus = JobCorpus(tmp_path)
    corpus.documents = [
        {"id": f"d{number:03}", "text": f"word {number % 7}", "vector": row}
        for number, row in enumerate(rows.tolist())
    ]
    corpus.write(corpus.files(corpus.documents))
    kinds = ("must", must), ("cannot", cannot)
    answers = [f"d{a:03},d{b:03},{kind}" for kind, pairs in kinds for a, b in pairs.tolist()]
    corpus.write({"answers.csv": "\n".join(["a,b,kind", *answers, ""]).encode()})
    method = {"n_clusters": 2, "distortion": "euclidean", "learn_weights": learn_weights}
    columns = {"embedding": "vector"}
    report = run(corpus.write_job(columns=columns, method=method, text={"kind": "embeddings"}))
    model = load_release(report.output)
    written = [row["cluster"] for _, row in sorted(assigned(report).items())]
    assert model.predict(rows[80:]).tolist() == written[80:]
    # Rows of a job are components or embeddings, where a full metric by itself loses.
    assert (model.model.metric_ is not None) == (learn_weights == "full")
    assert (nmi(case[1], written) > 0.9) == (learn_weights == "full")
