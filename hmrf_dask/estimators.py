"""Estimators with scikit-learn's interface over the one loop: HMRF-KMeans, MPCK-Means, K-Means."""

from __future__ import annotations

import os

import weakref
from typing import Any, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from hmrf_dask.constraints import Constraints
from hmrf_dask.corpus import Corpus, as_corpus
from hmrf_dask.dataflow import task_memory
from hmrf_dask.distortions import Distortion, make_distortion
from hmrf_dask.em.fitting import Fitted, fit_corpus
from hmrf_dask.em.model import Settings
from hmrf_dask.errors import ConfigurationError, DistortionError, InvalidInputError
from hmrf_dask.model_files import load_model, save_model
from hmrf_dask.prediction import Predictor, labels_array, predict_rows, score_rows, transform_rows
from hmrf_dask.types import FloatArray

INITS = ("auto", "neighborhoods", "k-means++", "random")


class _Estimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """What all estimators share; a subclass gives its parameters and `_settings`."""

    n_clusters: int
    distortion: str | Distortion
    init: Any
    random_state: Any

    def _settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        must_link: Any = None,
        cannot_link: Any = None,
        run_dir: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Cluster the rows of X.

        Parameters
        ----------
        X : scipy sparse matrix, ndarray, dask array, Corpus or path of a corpus, shape (n_samples, n_features)
        y : ignored
        must_link, cannot_link : integer arrays of shape (m, 2), or a Constraints as `must_link`
            Pairs of rows that belong together, or do not.
        run_dir : str or path, optional
            Where every iteration is committed; a fit that was stopped goes on from there to the same bits.
        """
        corpus = self._corpus(X, fitting=True)
        distortion = make_distortion(self.distortion)
        settings = self._make_settings(distortion)
        given = self._given(corpus.n_features)
        fitted = fit_corpus(
            corpus,
            as_constraints(must_link, cannot_link),
            settings,
            distortion,
            given=given,
            run_dir=run_dir,
        )
        self._take(fitted, X, scratch=run_dir is None)
        return self

    def _make_settings(self, distortion: Distortion) -> Settings:
        if not isinstance(self.n_clusters, (int, np.integer)) or self.n_clusters < 1:
            raise ConfigurationError(f"n_clusters must be an integer >= 1, got {self.n_clusters!r}")
        values = self._settings()
        init = self.init
        if isinstance(init, str) and init not in INITS:
            raise ConfigurationError(
                f"init must be one of {INITS} or an array (n_clusters, n_features), got {init!r}"
            )
        learning = values.pop("learn_weights")
        if learning == "auto":
            learning = distortion.default_learning
        if learning and distortion.learning is None:
            raise ConfigurationError(
                f"learn_weights: {distortion.name} has no rule for weights; pass learn_weights=False"
            )
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(2**31)
        _check_values(values)
        return Settings(
            int(self.n_clusters), init=init if isinstance(init, str) else "given", learn_weights=bool(learning), seed=int(seed) % 2**64,
            task_memory=task_memory(), **values,
        )  # fmt: skip

    def _given(self, n_features: int) -> FloatArray | None:
        if isinstance(self.init, str):
            return None
        given = np.asarray(self.init, np.float64)
        if given.shape != (self.n_clusters, n_features) or not np.isfinite(given).all():
            raise ConfigurationError(
                f"init must be a finite array of shape ({self.n_clusters}, {n_features}), got shape {given.shape}"
            )
        return given

    def _corpus(self, X: Any, *, fitting: bool) -> Corpus:
        """Return X as a corpus; matrices go through scikit-learn's validation, so its messages are known."""
        if isinstance(X, (Corpus, str, os.PathLike)) or hasattr(X, "dask"):
            corpus = as_corpus(X)
            if fitting:
                self.n_features_in_ = corpus.n_features
            elif corpus.n_features != self.n_features_in_:
                raise InvalidInputError(
                    f"X has {corpus.n_features} features, but {type(self).__name__} is expecting {self.n_features_in_} features as input"
                )
            return corpus
        checked = validate_data(
            self,
            X,
            reset=fitting,
            accept_sparse=True,
            dtype=[np.float32, np.float64],
            accept_large_sparse=True,
        )
        return as_corpus(checked)

    def _take(self, fitted: Fitted, X: Any, *, scratch: bool) -> None:
        """Set the fitted attributes."""
        state, model = fitted.state, fitted.state.model
        if scratch:
            weakref.finalize(self, fitted.run.remove)
        self.cluster_centers_ = model.centroids
        self.feature_weights_ = model.weights
        self.objective_ = state.energy.value
        self.objective_terms_ = state.energy.terms()
        self.objective_history_ = np.asarray([value for _, _, value in fitted.history])
        self.violations_ = fitted.violations()
        self.n_iter_ = fitted.n_iter
        self.stop_reason_ = fitted.stop
        self.converged_ = "max_iter" not in fitted.stop
        self.smoothing_ = model.smoothing
        self._n_features_out = len(model.centroids)
        self._distortion = model.distortion
        self.labels_ = labels_array(fitted.labels(), fitted.problem, X)

    def _predictor(self) -> Predictor:
        check_is_fitted(self)
        return Predictor(
            self._distortion, self.cluster_centers_, self.feature_weights_, self.smoothing_
        )

    def predict(self, X: Any) -> Any:
        """Return the nearest cluster of each row under the learned metric; lazily for a dask array or a Corpus."""
        check_is_fitted(self)
        return predict_rows(self._predictor(), self._corpus(X, fitting=False), X)

    def transform(self, X: Any) -> Any:
        """Return the distance of each row to each cluster, shape (n_samples, n_clusters)."""
        check_is_fitted(self)
        return transform_rows(self._predictor(), self._corpus(X, fitting=False), X)

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the sum of distances of rows to their nearest cluster."""
        check_is_fitted(self)
        return score_rows(self._predictor(), self._corpus(X, fitting=False))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model into a folder as JSON and .npy files; `hmrf_dask.load` reads it."""
        check_is_fitted(self)
        save_model(
            path, type(self).__name__, self._saved_parameters(), self._predictor(), self._summary()
        )

    def _saved_parameters(self) -> dict[str, Any]:
        parameters = self.get_params(deep=False)
        if not isinstance(parameters["distortion"], str):
            raise DistortionError(
                "save: a model with an own distortion object cannot be written without pickle; keep its code and refit"
            )
        if not isinstance(parameters.get("init", ""), str):
            parameters["init"] = np.asarray(parameters["init"]).tolist()
        if not isinstance(parameters["random_state"], (int, np.integer, type(None))):
            parameters["random_state"] = None
        return {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in parameters.items()
        }

    def _summary(self) -> dict[str, Any]:
        return {
            "objective": self.objective_,
            "violations": self.violations_,
            "n_iter": self.n_iter_,
            "converged": self.converged_,
            "stop_reason": self.stop_reason_,
        }

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process: a lazy `labels_` reads files of the run."""
        return dict(super().__getstate__())

    def __sklearn_tags__(self) -> Any:
        """Say what scikit-learn may expect."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64"]
        return tags


class HMRFKMeans(_Estimator):
    """K-Means with must-links and cannot-links: HMRF-KMeans (Basu, Bilenko, Mooney, KDD 2004).

    Parameters
    ----------
    n_clusters : int
    distortion : {"cosine", "i-divergence", "kl", "euclidean", "pearson"} or a Distortion
    learn_weights : {"auto", True, False}
        Whether feature weights are learned; "auto" is the distortion's proven default (off for cosine and Pearson).
    penalty : {"distance", "potts"}
        Whether a violated pair costs by its distance, or the same whatever it is.
    must_link_cost, cannot_link_cost : float
        Cost of a violated pair; those given with a pair go before.
    init : {"auto", "neighborhoods", "k-means++", "random"} or array of shape (n_clusters, n_features)
        "auto" runs a pool of starts and keeps the lowest J; "neighborhoods" is the paper's.
    fill : {"k-means++", "perturb"}
        How "neighborhoods" fills up clusters.
    refine : {"auto", True, False}
        First-variation moves; "auto" while clusters are small.
    weight_update : {"normalized", "paper"}
    closure : bool
        Whether pairs are closed: same and same is same, same and different is different.
    on_conflict : {"raise", "keep", "drop"}
        What to do with pairs that contradict each other.
    n_init : int
        Number of unconstrained starts in the pool.
    max_iter : int
    random_state : int, RandomState or None

    Attributes
    ----------
    labels_ : ndarray of int32, shape (n_samples,); a dask array for a dask array or a Corpus
    cluster_centers_ : ndarray, shape (n_clusters, n_features)
    feature_weights_ : ndarray, shape (n_features,)
    objective_ : float, J
    objective_terms_ : dict, J and its parts
    objective_history_ : ndarray, J after every step of fit and refinement
    violations_ : dict, how many of the given pairs the labels break, by kind
    n_iter_ : int
    converged_ : bool
    stop_reason_ : str

    Examples
    --------
    >>> import numpy as np
    >>> from hmrf_dask import HMRFKMeans
    >>> rows = np.array([[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]])
    >>> model = HMRFKMeans(2, random_state=0).fit(rows, must_link=[(0, 1)], cannot_link=[(1, 2)])
    >>> bool(model.labels_[0] == model.labels_[1] != model.labels_[2])
    True
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        distortion: str | Distortion = "cosine",
        learn_weights: str | bool = "auto",
        penalty: str = "distance",
        must_link_cost: float = 1.0,
        cannot_link_cost: float = 1.0,
        init: Any = "auto",
        fill: str = "k-means++",
        refine: str | bool = "auto",
        weight_update: str = "normalized",
        closure: bool = True,
        on_conflict: str = "raise",
        n_init: int = 10,
        max_iter: int = 100,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.distortion = distortion
        self.learn_weights = learn_weights
        self.penalty = penalty
        self.must_link_cost = must_link_cost
        self.cannot_link_cost = cannot_link_cost
        self.init = init
        self.fill = fill
        self.refine = refine
        self.weight_update = weight_update
        self.closure = closure
        self.on_conflict = on_conflict
        self.n_init = n_init
        self.max_iter = max_iter
        self.random_state = random_state

    def _settings(self) -> dict[str, Any]:
        names = (
            "learn_weights", "penalty", "must_link_cost", "cannot_link_cost", "fill", "refine", "weight_update", "closure",
            "on_conflict", "n_init", "max_iter",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


class MPCKMeans(_Estimator):
    """HMRF-KMeans with squared Euclidean distances and a learned diagonal metric (Bilenko, Basu, Mooney, ICML 2004).

    Parameters and attributes are those of `HMRFKMeans`.
    """

    distortion = "euclidean"

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        learn_weights: str | bool = "auto",
        penalty: str = "distance",
        must_link_cost: float = 1.0,
        cannot_link_cost: float = 1.0,
        init: Any = "auto",
        refine: str | bool = "auto",
        closure: bool = True,
        on_conflict: str = "raise",
        n_init: int = 10,
        max_iter: int = 100,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.learn_weights = learn_weights
        self.penalty = penalty
        self.must_link_cost = must_link_cost
        self.cannot_link_cost = cannot_link_cost
        self.init = init
        self.refine = refine
        self.closure = closure
        self.on_conflict = on_conflict
        self.n_init = n_init
        self.max_iter = max_iter
        self.random_state = random_state

    def _settings(self) -> dict[str, Any]:
        names = (
            "learn_weights", "penalty", "must_link_cost", "cannot_link_cost", "refine", "closure", "on_conflict", "n_init", "max_iter",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


class KMeans(_Estimator):
    """K-Means on sparse or dense rows, exact and the same bits everywhere; constraints take no part.

    Parameters and attributes are those of `HMRFKMeans`.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        distortion: str | Distortion = "cosine",
        init: Any = "k-means++",
        refine: str | bool = "auto",
        n_init: int = 10,
        max_iter: int = 100,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.distortion = distortion
        self.init = init
        self.refine = refine
        self.n_init = n_init
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, run_dir: str | os.PathLike[str] | None = None) -> Self:
        """Cluster the rows of X; see `HMRFKMeans.fit`."""
        return super().fit(X, y, run_dir=run_dir)

    def _settings(self) -> dict[str, Any]:
        return {
            "learn_weights": False,
            "refine": self.refine,
            "n_init": self.n_init,
            "max_iter": self.max_iter,
        }


ESTIMATORS: dict[str, type[_Estimator]] = {
    "HMRFKMeans": HMRFKMeans,
    "MPCKMeans": MPCKMeans,
    "KMeans": KMeans,
}


def load(path: str | os.PathLike[str]) -> _Estimator:
    """Return the fitted model that `save` wrote: it predicts, transforms and scores; `labels_` stayed with the fit."""
    saved = load_model(path)
    estimator = ESTIMATORS[saved.kind](**saved.parameters)
    predictor = saved.predictor
    estimator.cluster_centers_ = predictor.centroids
    estimator.feature_weights_ = predictor.weights
    estimator.smoothing_ = predictor.smoothing
    estimator.n_features_in_ = predictor.centroids.shape[1]
    estimator._n_features_out = len(predictor.centroids)
    estimator._distortion = predictor.distortion
    for name, value in saved.summary.items():
        setattr(estimator, f"{name}_", value)
    return estimator


def as_constraints(must_link: Any, cannot_link: Any) -> Constraints | None:
    """Return constraints from what `fit` was given."""
    for value in (must_link, cannot_link):
        if isinstance(value, Constraints):
            other = cannot_link if value is must_link else must_link
            if other is not None:
                raise ConfigurationError(
                    "pass a Constraints alone as must_link, it holds both kinds"
                )
            return value
    if must_link is None and cannot_link is None:
        return None
    return Constraints(must_link, cannot_link)


def _check_values(values: dict[str, Any]) -> None:
    """Raise ConfigurationError for a parameter with a value that cannot be used."""
    choices: dict[str, tuple[Any, ...]] = {
        "penalty": ("distance", "potts"),
        "fill": ("k-means++", "perturb"),
        "refine": ("auto", True, False),
        "weight_update": ("normalized", "paper"),
        "on_conflict": ("raise", "keep", "drop"),
        "closure": (True, False),
    }
    for name, allowed in choices.items():
        if name in values and values[name] not in allowed:
            raise ConfigurationError(f"{name} must be one of {allowed}, got {values[name]!r}")
    for name in ("must_link_cost", "cannot_link_cost"):
        if name in values and not (np.isfinite(values[name]) and values[name] >= 0):
            raise ConfigurationError(f"{name} must be finite and >= 0, got {values[name]!r}")
    for name in ("n_init", "max_iter"):
        if not isinstance(values[name], (int, np.integer)) or values[name] < 1:
            raise ConfigurationError(f"{name} must be an integer >= 1, got {values[name]!r}")


__all__ = ["HMRFKMeans", "KMeans", "MPCKMeans", "load"]
