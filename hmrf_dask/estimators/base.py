"""What all estimators share: fit, predict, transform, score and save over the one loop."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.utils.validation import check_is_fitted

from hmrf_dask.checkpoints.directory import RunDirectory
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.distortions import DISTORTIONS, Distortion, make_distortion
from hmrf_dask.errors import (
    ConfigurationError,
    DistortionError,
    HmrfWarning,
    InvalidInputError,
)
from hmrf_dask.estimators.files import SavedModel, save_model
from hmrf_dask.estimators.inputs import (
    GivenRows,
    as_constraints,
    draw_seed,
    given_centroids,
    given_seeds,
    is_by_pair,
    is_lazy,
    make_settings,
    without_costs,
)
from hmrf_dask.estimators.prediction import (
    Predictor,
    outlier_rows,
    predict_rows,
    score_rows,
    transform_rows,
    whole,
)
from hmrf_dask.estimators.reporting import Reporting
from hmrf_dask.fit.choice_of_k import Choice
from hmrf_dask.fit.fitting import FitInput, Fitted, fit_corpus
from hmrf_dask.fit.metric import under_metric
from hmrf_dask.fit.preparation import check_memory, table_task
from hmrf_dask.fit.suggestion import Asked, Span, suggest, warn_of_doubt
from hmrf_dask.kernels.metric import metric_of, vectors_before, vectors_under
from hmrf_dask.parameters import PARAMETERS
from hmrf_dask.progress import SoFar, Tell, nothing, verbosely
from hmrf_dask.tasks.model import Settings
from hmrf_dask.types import FloatArray

POSITIVE_ONLY = ("i-divergence", "kl")
SUMMARY = (  # what a saved model keeps of the fit, besides arrays
    "objective",
    "objective_terms",
    "objective_history",
    "violations",
    "n_iter",
    "converged",
    "stop_reason",
    "start_reason",
    "seed",
)


def _tell_tried(tell: Tell, done: int, total: int) -> None:
    """Report how many numbers of clusters were tried."""
    tell({"step": "choose K", "done": done, "of": total, "unit": "numbers"})


class HMRFEstimator(
    Reporting,
    GivenRows,
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]  # sklearn has no types
    TransformerMixin,  # type: ignore[misc]
    ClusterMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Base of the estimators; a subclass gives its parameters and the settings they mean."""

    n_clusters: int | str
    distortion: str | Distortion
    init: Any
    random_state: Any
    verbose: int | bool
    _method: str  # the name of the estimator in the table of parameters
    _fixed: Mapping[str, Any] = {}  # settings that make the method what it is
    _fixed_seeds: bool | None = None  # whether seeds keep their labels; None: `y` is ignored
    _progress: Tell = staticmethod(nothing)  # called with what happens; see `hmrf_dask.progress`
    _last: FloatArray | None = None  # centroids of the fit before, to begin with among others
    _embedded: bool = False  # whether dense rows are components or embeddings, as a job's are

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
        X : sparse matrix or array, array-like, dask array, Corpus, or path of a corpus
            Rows are documents, columns features, shape (n_samples, n_features).
        y : array-like or dask array, shape (n_samples,) or (n_samples, n_clusters), optional
            For `SeededKMeans` and `ConstrainedKMeans` the class of each row, -1 where it is
            unknown; or soft seeds, for `SeededKMeans` only: a probability for each class, all 0
            where nothing is known, dense or sparse. All others ignore it.
        must_link, cannot_link : array-like of int, shape (m, 2), optional
            Pairs of row numbers of X that belong together, or do not; of document ids (str) where
            X is a Corpus that has some. Or one `Constraints`, as `must_link`. Where `y` counts they
            are seeds: rows must-linked to a seed are of its class; other must-link groups, the
            largest first, are the seeds of classes that have none. Later on they are only counted.
        run_dir : str or path, optional
            Folder or URL where every iteration is committed; a fit that was stopped resumes from
            there to the same bits. Without it a temporary one lives as long as `labels_` need it.
            The report of the fit goes there, too, where rows times clusters are at most
            50,000,000; of more rows `report` writes it.

        Examples
        --------
        >>> import numpy as np
        >>> from hmrf_dask import HMRFKMeans
        >>> rows = np.array([[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]])
        >>> model = HMRFKMeans(2, penalty="potts", must_link_cost=9.0, random_state=0)
        >>> model.fit(rows, must_link=[(0, 3)]).violations_
        {'must_link': 0, 'cannot_link': 0}
        """
        if self._fixed_seeds is not None and y is None and must_link is None:
            raise InvalidInputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: give "
                "the classes of some rows, or must_link; without seeds use KMeans"
            )
        given = self.get_params(deep=False).get("trust")
        constraints = as_constraints(must_link, cannot_link, given)
        settings, distortion = self._settings(run_dir, constraints)
        if self._fixed_seeds is not None and y is not None and not settings.n_clusters:
            raise ConfigurationError(
                "n_clusters must be a number where y gives classes, got 'auto'; give how many "
                "classes there are, or say by must_link and cannot_link what y says"
            )
        if "must_link_cost" in self._fixed:
            constraints = without_costs(constraints)
        corpus = self._corpus(X, fitting=True)
        choice = None
        with verbosely(self.verbose, self._progress, step="fit") as tell:
            if not settings.n_clusters:
                so_far = partial(_tell_tried, tell)
                choice = suggest(Asked(corpus, constraints, settings, distortion), so_far)
                warn_of_doubt(choice)
                settings = replace(settings, n_clusters=choice.n_clusters)
                tell({"step": "fit"})
            asked = self._asked(corpus, y, constraints, settings, distortion)
            tell({"phase": "survey"})
            self._factor = None
            if settings.metric:
                asked, self._factor = under_metric(asked)
            fitted = fit_corpus(asked, run_dir=run_dir, progress=tell)
            self._take(fitted)
            self.choice_of_k_ = choice
            self._take_labels(fitted, lazy=is_lazy(X), scratch=run_dir is None)
            if run_dir is not None and self._reports:
                self._report_into(os.fspath(run_dir), corpus, constraints, tell)
        return self

    def _asked(
        self,
        corpus: Corpus,
        y: Any,
        constraints: Constraints | None,
        settings: Settings,
        distortion: Distortion,
    ) -> FitInput:
        """Return what a fit is asked for: with first centroids, seeds and last ones, if any."""
        n_clusters, seeds = settings.n_clusters, None
        check_memory([table_task(n_clusters, corpus.n_features)])
        if self._fixed_seeds is not None:
            fixed = self._fixed_seeds
            seeds = given_seeds(y, corpus.n_rows, n_clusters, distortion, fixed=fixed)
        first = given_centroids(self.init, distortion, n_clusters, corpus.n_features)
        last = self._last
        if last is not None:
            last = given_centroids(last, distortion, n_clusters, corpus.n_features)
        return FitInput(corpus, constraints, settings, distortion, first, seeds=seeds, last=last)

    def _suggest(
        self, corpus: Corpus, constraints: Constraints | None, span: Span, so_far: SoFar
    ) -> Choice:
        """Return what speaks for each K of a span; for jobs, whose rows and pairs are ready."""
        settings, distortion = self._settings(None, constraints)
        return suggest(Asked(corpus, constraints, settings, distortion, span), so_far)

    def _settings(
        self, run_dir: str | os.PathLike[str] | None, constraints: Constraints | None
    ) -> tuple[Settings, Distortion]:
        """Return what the parameters mean; with 0 clusters where K is to be chosen."""
        distortion = make_distortion(self.distortion)
        parameters = self.get_params(deep=False)
        values = {name: parameters[name] for name in parameters if name in PARAMETERS}
        values["random_state"] = self._seed(run_dir)
        trusting = constraints is not None and constraints.is_uncertain
        if trusting and values.get("trust") is None:
            self._warn_of_trust(values.get("penalty"))
        made = make_settings(values, self._fixed, distortion, self._method, trusting=trusting)
        if self._embedded and made.metric == "auto":
            made = replace(made, metric="weights")  # a full one loses there: docs/design/method.md
        return made, distortion

    def _warn_of_trust(self, penalty: str | None) -> None:
        """Warn where pairs come with trust, such as of annotators, that makes no difference."""
        if penalty not in ("auto", "trust"):
            who = type(self).__name__ if penalty is None else f"penalty {penalty!r}"
            advice = "use HMRFKMeans" if penalty is None else "use penalty 'trust'"
            warnings.warn(
                f"{who} takes all pairs as equally likely: their trust changes nothing; {advice}",
                HmrfWarning,
                stacklevel=4,
            )

    def _seed(self, run_dir: str | os.PathLike[str] | None) -> int:
        """Return the seed; without a `random_state` the one that the run there recorded."""
        if self.random_state is None and run_dir is not None:
            config = RunDirectory.at(run_dir).recorded_config()
            if config is not None:
                return int(config["settings"]["seed"])
        return draw_seed(self.random_state)

    def _take(self, fitted: Fitted) -> None:
        """Set the fitted attributes."""
        state, model = fitted.state, fitted.state.model
        centers: FloatArray = model.centroids
        self._centroids = centers
        # A fit that never made new centroids ends with those of the user, which stay theirs.
        own = isinstance(self.init, str) or not np.may_share_memory(centers, self.init)
        self.n_clusters_ = len(centers)
        self.cluster_centers_ = centers if own else centers.copy()
        if self._factor is not None and len(state.factor):
            self._factor = vectors_under(self._factor, state.factor)
        self._take_metric(model.weights)
        self.objective_ = state.energy.value
        self.objective_terms_ = state.energy.terms()
        self.objective_history_ = np.asarray(fitted.objective_history())
        self.iterations_ = fitted.iterations
        self._sizes = state.counts.tolist()
        self.violations_ = fitted.violations()
        self.suspect_answers_ = fitted.suspect_answers()
        self.n_iter_ = fitted.n_iter
        self.stop_reason_ = fitted.stop
        self.start_reason_ = fitted.start_reason
        self.converged_ = "max_iter" not in fitted.stop
        self.smoothing_ = model.smoothing
        self.seed_ = fitted.problem.settings.seed
        self.cluster_ids_ = np.arange(len(model.centroids), dtype=np.int32)
        self._n_features_out = len(model.centroids)
        self._distortion = model.distortion

    def _take_metric(self, weights: FloatArray) -> None:
        """Set what the metric is, and the centroids in the space of the rows."""
        self.feature_weights_: FloatArray | None = weights
        self.metric_: FloatArray | None = None
        if self._factor is not None:
            self.feature_weights_, self.metric_ = None, metric_of(self._factor)
            self.cluster_centers_ = vectors_before(self._centroids, self._factor)

    def _take_labels(self, fitted: Fitted, *, lazy: bool, scratch: bool) -> None:
        """Set `labels_`; a scratch run stays as long as lazy labels, here or elsewhere, read it."""
        run = fitted.run
        if scratch:
            # `run` itself stands in the graph of lazy labels; the copy must not keep it alive.
            weakref.finalize(run, copy(run).remove)
        self._run = run if scratch and lazy else None
        counts = tuple(part.n_rows for part in fitted.problem.free)
        self.labels_ = whole(fitted.labels(), counts, (), np.dtype(np.int32), lazy)
        self._limits, marked = fitted.outliers()
        self.outliers_ = None
        if marked is not None:
            self.outliers_ = whole(marked, counts, (), np.dtype(np.bool_), lazy)
        if scratch and not lazy:
            run.remove()

    def predictor(self) -> Predictor:
        """Return the fitted model as far as new rows need it, for `estimators.prediction`."""
        check_is_fitted(self)
        weights, centroids = self.feature_weights_, self.cluster_centers_
        if weights is None:
            weights, centroids = np.ones(centroids.shape[1]), self._centroids
        rest = (self.smoothing_, self._limits, self._factor)
        return Predictor(self._distortion, centroids, weights, *rest)

    def predict(self, X: Any) -> Any:
        """Return the nearest cluster of each row under the learned metric: int32 of `cluster_ids_`.

        A dask array, not computed yet, for a dask array, a Corpus or a path.

        Examples
        --------
        >>> import numpy as np
        >>> from hmrf_dask import KMeans
        >>> rows = np.array([[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]])
        >>> model = KMeans(2, random_state=0).fit(rows)
        >>> (model.predict([[9, 1], [2, 8]]) == model.labels_[[0, 2]]).tolist()
        [True, True]
        """
        predictor, corpus = self.predictor(), self._corpus(X, fitting=False)
        return predict_rows(predictor, corpus, self.cluster_ids_, lazy=is_lazy(X))

    def is_outlier(self, X: Any) -> Any:
        """Return which rows are of no cluster, as `outliers` has it: bool, shape (n_samples,).

        Pairs play no part, so a row that was fitted with some may be one here alone. Without
        `outliers` none is. A dask array, not computed yet, for a dask array, a Corpus or a path.

        Examples
        --------
        >>> import numpy as np
        >>> from hmrf_dask import KMeans
        >>> rows = np.array([[1.0], [1.1], [1.2], [5.0], [5.1], [5.2], [9.9]])
        >>> model = KMeans(2, distortion="euclidean", outliers=0.2, random_state=0).fit(rows)
        >>> model.is_outlier([[1.1], [40.0]]).tolist()
        [False, True]
        """
        return outlier_rows(self.predictor(), self._corpus(X, fitting=False), lazy=is_lazy(X))

    def transform(self, X: Any) -> Any:
        """Return the distances of rows to clusters, shape (n_samples, n_clusters).

        Columns are positions, as rows of `cluster_centers_` are; `cluster_ids_` names them. A dask
        array, not computed yet, for a dask array, a Corpus or a path.

        Examples
        --------
        >>> import numpy as np
        >>> from hmrf_dask import KMeans
        >>> rows = np.array([[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]])
        >>> model = KMeans(2, random_state=0).fit(rows)
        >>> (model.transform(rows).argmin(axis=1) == model.labels_).all()
        np.True_
        """
        return transform_rows(self.predictor(), self._corpus(X, fitting=False), lazy=is_lazy(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the sum of the distances of rows to their nearest clusters.

        Examples
        --------
        >>> import numpy as np
        >>> from hmrf_dask import KMeans
        >>> rows = np.array([[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]])
        >>> model = KMeans(2, distortion="euclidean", random_state=0).fit(rows)
        >>> round(model.score(rows), 6)
        -0.01
        """
        return score_rows(self.predictor(), self._corpus(X, fitting=False))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model into a folder as JSON and .npy files; `hmrf_dask.load` reads it.

        The folder, local or an fsspec URL, is new or one that `save` wrote. `labels_`,
        `outliers_`, `suspect_answers_` and `iterations_` are not part of it: they belong to rows,
        pairs and the run.

        Examples
        --------
        >>> import tempfile
        >>> from hmrf_dask import KMeans, load
        >>> model = KMeans(2, random_state=0).fit([[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/model")
        ...     again = load(f"{folder}/model")
        >>> again.objective_ == model.objective_
        True
        """
        predictor = self.predictor()
        names = getattr(self, "feature_names_in_", None)
        summary = {name: getattr(self, f"{name}_") for name in SUMMARY}
        summary["objective_history"] = self.objective_history_.tolist()
        if self.choice_of_k_ is not None:
            summary["choice_of_k"] = asdict(self.choice_of_k_)
        model = SavedModel(
            type(self).__name__, self._saved_parameters(), predictor, summary,
            None if names is None else list(names), self.cluster_ids_.tolist(),
        )  # fmt: skip
        save_model(model, path)

    def _saved_parameters(self) -> dict[str, Any]:
        if type(self._distortion) not in DISTORTIONS.values():
            raise DistortionError(
                f"a model to save must have a built-in distortion, got {self._distortion.name!r}: "
                "its code is yours and cannot be written into a file; keep cluster_centers_ and "
                "pass them as init, or pickle the estimator"
            )
        parameters = self.get_params(deep=False)
        if "distortion" in parameters:
            parameters["distortion"] = self._distortion.name
        del parameters["verbose"]  # of who fits, not of the model
        if isinstance(parameters["random_state"], np.random.RandomState):
            parameters["random_state"] = None  # its state has moved on; seed_ is what it drew
        if is_by_pair(parameters.get("trust")):
            parameters["trust"] = None  # it belongs to the pairs, which are no part of the model
        return {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in parameters.items()
        }

    def _restore(self, saved: SavedModel) -> Self:
        """Take the fitted attributes of a saved model."""
        predictor = saved.predictor
        self.cluster_centers_ = self._centroids = predictor.centroids
        self._factor = predictor.factor
        self._take_metric(predictor.weights)
        self.smoothing_ = predictor.smoothing
        self._limits = predictor.limits
        self.n_features_in_ = predictor.centroids.shape[1]
        self.n_clusters_ = len(predictor.centroids)
        self.cluster_ids_ = np.asarray(saved.cluster_ids, np.int32)
        self._n_features_out = len(predictor.centroids)
        self._distortion = predictor.distortion
        for name in SUMMARY:
            setattr(self, f"{name}_", saved.summary[name])
        self.objective_history_ = np.asarray(self.objective_history_)
        choice = saved.summary.get("choice_of_k")
        self.choice_of_k_ = None if choice is None else Choice.of(**choice)
        if saved.feature_names is not None:
            self.feature_names_in_ = np.asarray(saved.feature_names, dtype=object)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave out lazy labels of a temporary run: they could not be read elsewhere."""
        state = dict(super().__getstate__())
        if state.pop("_run", None) is not None:
            state.pop("labels_", None)
            state.pop("outliers_", None)
        return state

    def __sklearn_tags__(self) -> Any:
        """Say what scikit-learn may expect."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = self.distortion in POSITIVE_ONLY
        return tags
