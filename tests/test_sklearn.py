"""The estimators among scikit-learn's own: its checks, pipelines, metadata routing, searches."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from hmrf_dask import (
    ConstrainedKMeans,
    Constraints,
    COPKMeans,
    Corpus,
    HMRFKMeans,
    KMeans,
    MPCKMeans,
    PCKMeans,
    SeededKMeans,
)

FEW = {"n_init": 2}  # starts: a check fits often, and the pool is HMRFKMeans's own
ESTIMATORS = (HMRFKMeans, MPCKMeans, KMeans, COPKMeans, PCKMeans)
TEXTS = [
    "apples and pears and plums",
    "pears and apples",
    "plums and sweet apples",
    "ships at sea",
    "the sea and the ships",
    "ships cross the sea",
]
MUST, CANNOT = [(0, 1), (3, 4)], [(1, 3)]


# No check is expected to fail but of estimators that need seeds. Only the array API check is
# skipped, by scikit-learn itself: it wants SCIPY_ARRAY_API to be set before anything is imported.
# The sparse checks use rows of zeros, of which the cosine must warn.
@pytest.mark.filterwarnings("ignore:.*rows are zero:hmrf_dask.errors.HmrfWarning")
@parametrize_with_checks([HMRFKMeans()])
def test_scikit_learn_finds_nothing_wrong(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*rows are zero:hmrf_dask.errors.HmrfWarning")
@parametrize_with_checks([kind(**FEW) for kind in (MPCKMeans, KMeans, PCKMeans, COPKMeans)])
def test_scikit_learn_finds_nothing_wrong_with_settings_of_the_same(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)


BEYOND = "its y has more classes than the n_clusters that it sets"
NO_SEEDS = "it fits without y, which names the seeds"


def seeds_it_does_not_give(estimator: BaseEstimator) -> dict[str, str]:
    """Return the checks that cannot be passed: they are of estimators that ignore y."""
    return {
        "check_clustering": NO_SEEDS,
        "check_dont_overwrite_parameters": BEYOND,
        "check_methods_sample_order_invariance": BEYOND,
        "check_methods_subset_invariance": BEYOND,
        "check_fit2d_1sample": BEYOND,
        "check_fit2d_1feature": BEYOND,
        "check_fit2d_predict1d": BEYOND,
    }


@pytest.mark.filterwarnings("ignore:.*rows are zero:hmrf_dask.errors.HmrfWarning")
@parametrize_with_checks([SeededKMeans()], expected_failed_checks=seeds_it_does_not_give)
def test_scikit_learn_finds_nothing_else_wrong_with_seeds(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*rows are zero:hmrf_dask.errors.HmrfWarning")
@parametrize_with_checks([ConstrainedKMeans()], expected_failed_checks=seeds_it_does_not_give)
def test_scikit_learn_finds_nothing_else_wrong_with_seeds_that_stay(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)


@pytest.fixture
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def blobs(seed: int = 0, n: int = 60) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    hidden = np.arange(n) % 3
    return rng.normal(size=(n, 4)) + 6.0 * np.eye(4)[hidden] + 6.0, hidden


def test_a_pipeline_takes_pairs_by_prefix() -> None:
    pipeline = Pipeline([("words", TfidfVectorizer()), ("groups", HMRFKMeans(2, random_state=0))])
    pipeline.fit(TEXTS, groups__must_link=MUST, groups__cannot_link=CANNOT)
    labels = pipeline["groups"].labels_
    assert labels[0] == labels[1] != labels[3] == labels[4]
    assert pipeline["groups"].violations_ == {"must_link": 0, "cannot_link": 0}
    np.testing.assert_array_equal(pipeline.predict(TEXTS), labels)
    assert pipeline.transform(TEXTS).shape == (6, 2)


@pytest.mark.usefixtures("routing")
def test_a_pipeline_routes_pairs_that_were_asked_for() -> None:
    groups = HMRFKMeans(2, random_state=0)
    groups.set_fit_request(must_link=True, cannot_link=True, run_dir=True)
    pipeline = make_pipeline(TfidfVectorizer(), groups)
    pipeline.fit(TEXTS, must_link=MUST, cannot_link=CANNOT)
    labels = pipeline[-1].labels_
    assert labels[0] == labels[1] != labels[3] == labels[4]
    again = clone(pipeline).fit_predict(TEXTS, must_link=Constraints(MUST, CANNOT))
    np.testing.assert_array_equal(again, labels)


@pytest.mark.usefixtures("routing")
def test_pairs_that_were_not_asked_for_are_refused() -> None:
    pipeline = make_pipeline(TfidfVectorizer(), HMRFKMeans(2, random_state=0))
    with pytest.raises(ValueError, match="must_link"):
        pipeline.fit(TEXTS, must_link=MUST)


@pytest.mark.usefixtures("routing")
def test_k_means_has_no_pairs_to_route() -> None:
    with pytest.raises(TypeError, match="must_link"):
        KMeans(2).set_fit_request(must_link=True)


def test_fit_predict_and_fit_transform_take_pairs() -> None:
    rows, _ = blobs()
    model = HMRFKMeans(3, random_state=0)
    labels = model.fit_predict(rows, must_link=[(0, 1)])
    np.testing.assert_array_equal(labels, model.labels_)
    distances = model.fit_transform(rows, must_link=[(0, 1)])
    np.testing.assert_array_equal(distances, model.transform(rows))


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_clone_and_set_params_know_every_parameter(kind: type[HMRFKMeans]) -> None:
    changed = kind().set_params(n_clusters=5, max_iter=7, random_state=3)
    assert clone(changed).get_params() == changed.get_params()
    assert ("distortion" in changed.get_params()) == (kind is not MPCKMeans)
    with pytest.raises(ValueError, match="Invalid parameter"):
        changed.set_params(n_cluster=2)
    with pytest.raises(TypeError):
        kind(3, n_clusterz=4)


def test_mpck_means_is_euclidean_whatever_it_is_asked() -> None:
    rows, _ = blobs()
    with pytest.raises(TypeError, match="distortion"):
        MPCKMeans(3, distortion="cosine")  # type: ignore[call-arg]  # what is tested
    model = MPCKMeans(3, random_state=0).fit(rows)
    other = HMRFKMeans(3, distortion="euclidean", random_state=0).fit(rows)
    np.testing.assert_array_equal(model.labels_, other.labels_)
    np.testing.assert_array_equal(model.feature_weights_, other.feature_weights_)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
)
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_copy_of_a_fitted_estimator_is_as_good(
    kind: type[HMRFKMeans], copied: Callable[[HMRFKMeans], HMRFKMeans]
) -> None:
    rows, _ = blobs()
    model = kind(3, random_state=0).fit(rows)
    other = copied(model)
    np.testing.assert_array_equal(other.labels_, model.labels_)
    np.testing.assert_array_equal(other.transform(rows), model.transform(rows))
    assert other.objective_ == model.objective_


def test_lazy_labels_of_a_temporary_run_are_not_pickled() -> None:
    rows, _ = blobs()
    model = HMRFKMeans(3, random_state=0).fit(Corpus.from_rows(rows, n_partitions=2))
    other = pickle.loads(pickle.dumps(model))
    assert not hasattr(other, "labels_")
    np.testing.assert_array_equal(other.predict(rows), model.labels_.compute())


def test_names_of_columns_are_checked_and_given() -> None:
    pandas = pytest.importorskip("pandas", reason="only tables with names need it")
    rows, _ = blobs()
    table = pandas.DataFrame(rows, columns=["a", "b", "c", "d"])
    model = HMRFKMeans(3, random_state=0).fit(table)
    assert model.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[["b", "a", "c", "d"]])
    assert not hasattr(model.fit(Corpus.from_rows(rows)), "feature_names_in_")


def test_output_columns_have_names() -> None:
    rows, _ = blobs()
    model = KMeans(3, random_state=0).fit(rows)
    assert model.get_feature_names_out().tolist() == ["kmeans0", "kmeans1", "kmeans2"]


def test_a_search_can_go_by_the_score() -> None:
    rows, _ = blobs(n=90)
    model = KMeans(distortion="euclidean", random_state=0, n_init=2)
    search = GridSearchCV(model, {"n_clusters": [1, 2, 3]}, cv=3, error_score="raise").fit(rows)
    scores = search.cv_results_["mean_test_score"]
    assert scores[0] < scores[1] < scores[2]
    assert search.best_params_ == {"n_clusters": 3}


def test_score_is_minus_the_distances_to_the_nearest_cluster() -> None:
    rows, _ = blobs()
    model = HMRFKMeans(3, distortion="euclidean", random_state=0).fit(rows)
    nearest = model.transform(rows).min(axis=1)
    assert model.score(rows) == pytest.approx(-nearest.sum(), rel=1e-12)
    assert model.score(rows) == pytest.approx(-model.objective_, rel=1e-12)


@pytest.mark.parametrize("method", ["predict", "transform", "score", "save"])
def test_what_is_not_fitted_says_so(method: str) -> None:
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(HMRFKMeans(2), method)(sp.csr_array((2, 2)))
