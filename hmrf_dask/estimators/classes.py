"""Estimators with scikit-learn's interface over the one loop: HMRF-KMeans, MPCK-Means, K-Means."""

from __future__ import annotations

import os
from typing import Any, Self

from hmrf_dask.distortions import Distortion
from hmrf_dask.errors import HmrfError, InvalidInputError
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.estimators.family import ConstrainedKMeans, COPKMeans, PCKMeans, SeededKMeans
from hmrf_dask.estimators.files import load_model, not_as_saved


class HMRFKMeans(HMRFEstimator):
    """K-Means with must-links and cannot-links: HMRF-KMeans (Basu, Bilenko, Mooney, KDD 2004).

    Parameters
    ----------
    n_clusters : int, default=8
    distortion : str or OwnDistortion, default="cosine"
        "cosine", "i-divergence", "kl", "euclidean" or "pearson"; or an object of your own class.
    learn_weights : bool or "auto", default="auto"
        Whether feature weights are learned. "auto" is what was shown to help: on for euclidean,
        i-divergence and kl, off for cosine, pearson and own distortions.
    penalty : {"distance", "potts"}, default="distance"
        Whether a violated pair costs by its distance (HMRF), or the same whatever it is (PCKMeans).
    must_link_cost, cannot_link_cost : float, default=1.0
        What a violated pair costs, times its penalty; a cost given with a pair goes before.
    init : str or array of shape (n_clusters, n_features), default="auto"
        "auto" runs a pool of starts and keeps the lowest J; "neighborhoods" is the paper's start;
        "k-means++" and "random" run `n_init` starts that see no pairs.
    fill : {"k-means++", "perturb", "random"}, default="k-means++"
        Where the missing centroids of "neighborhoods" come from; "perturb" is the paper's.
    inference : {"icm", "belief-propagation"}, default="icm"
        How an E-step labels rows with pairs: "icm" makes single moves and moves of whole must-link
        groups; "belief-propagation" passes min-sum messages first, goes on from what they say, and
        takes it where J falls. Pairs whose messages do not fit `hmrf.task-memory` stay with "icm".
    refine : bool or "auto", default="auto"
        First-variation moves: single rows move where J falls with the centroids re-optimised.
        "auto" refines every start up to 200 rows a cluster, the best one up to 2,000, none beyond:
        there they bring nothing and take as long as all else.
    weight_update : {"normalized", "paper"}, default="normalized"
        How weights of cosine and pearson are learned.
    closure : bool, default=True
        Whether pairs are closed: same and same is same, same and different is different.
    on_conflict : {"raise", "keep", "drop"}, default="raise"
        What to do with pairs that contradict each other: refuse them; keep them without the closure
        of their documents; drop the cannot-links among them.
    n_init : int, default=10
        Number of unconstrained starts.
    max_iter : int, default=100
        Most iterations of each fit before refinement.
    random_state : int, RandomState or None, default=None
        The seed. None draws one; with a `run_dir` that holds a run, it is the run's.

    Attributes
    ----------
    labels_ : ndarray of int32, shape (n_samples,)
        For a dask array, a Corpus or a path a dask array of the same row chunks, which reads files.
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Of a cluster that is empty, its last centroid.
    cluster_ids_ : ndarray of int32, shape (n_clusters,)
        What `predict` calls each cluster: its position, 0 to n_clusters - 1, after a fit. The model
        of a job's release has the ids that stay from run to run.
    feature_weights_ : ndarray of shape (n_features,)
    objective_ : float
        J, recomputed from rows and pairs.
    objective_terms_ : dict of str to float
        J and its parts.
    objective_history_ : ndarray
        J after every step of fit and refinement: it never rises.
    violations_ : dict of str to int
        How many of the given pairs `labels_` break, by kind.
    n_iter_ : int
        Iterations of the winner, those of its start included.
    converged_ : bool
        Whether it ended before `max_iter`.
    stop_reason_ : str
    seed_ : int
        What `random_state` came to: the same seed gives the same fit.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Only for input with names of columns.

    Notes
    -----
    Rows are kept in float32. Pairs are row numbers of the X that `fit` gets: cross-validation
    renumbers rows, so pairs cannot go through it.

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
        inference: str = "icm",
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
        self.inference = inference
        self.refine = refine
        self.weight_update = weight_update
        self.closure = closure
        self.on_conflict = on_conflict
        self.n_init = n_init
        self.max_iter = max_iter
        self.random_state = random_state


class MPCKMeans(HMRFEstimator):
    """Squared Euclidean distances, learned diagonal metric (Bilenko, Basu, Mooney, ICML 2004).

    `HMRFKMeans` with ``distortion="euclidean"``, which is why it has no such parameter; all others
    and the attributes are those of `HMRFKMeans`.

    Examples
    --------
    >>> import numpy as np
    >>> from hmrf_dask import MPCKMeans
    >>> rows = np.array([[0.0, 0.1], [0.1, 0.9], [5.0, 0.2], [5.1, 0.8]])
    >>> model = MPCKMeans(2, random_state=0).fit(rows, must_link=[(0, 1)], cannot_link=[(1, 2)])
    >>> bool(model.feature_weights_[0] > model.feature_weights_[1])
    True
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
        fill: str = "k-means++",
        inference: str = "icm",
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
        self.fill = fill
        self.inference = inference
        self.refine = refine
        self.closure = closure
        self.on_conflict = on_conflict
        self.n_init = n_init
        self.max_iter = max_iter
        self.random_state = random_state


class KMeans(HMRFEstimator):
    """K-Means on sparse or dense rows, exact and the same bits everywhere; it takes no pairs.

    Parameters and attributes are those of `HMRFKMeans`; `init` is "k-means++", "random" or an
    array.

    Examples
    --------
    >>> import numpy as np
    >>> from hmrf_dask import KMeans
    >>> rows = np.array([[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]])
    >>> labels = KMeans(2, random_state=0).fit_predict(rows)
    >>> bool(labels[0] == labels[1] != labels[2] == labels[3])
    True
    """

    _inits = ("k-means++", "random")

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

    def fit(  # type: ignore[override]  # without pairs, so that nobody routes any to it
        self, X: Any, y: Any = None, *, run_dir: str | os.PathLike[str] | None = None
    ) -> Self:
        """Cluster the rows of X; see `HMRFKMeans.fit`."""
        return super().fit(X, y, run_dir=run_dir)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "learn_weights": False}


FAMILY = (HMRFKMeans, MPCKMeans, KMeans, PCKMeans, COPKMeans, SeededKMeans, ConstrainedKMeans)
ESTIMATORS: dict[str, type[HMRFEstimator]] = {one.__name__: one for one in FAMILY}


def load(path: str | os.PathLike[str]) -> HMRFEstimator:
    """Return the fitted model that `save` wrote: it predicts, transforms and scores.

    Parameters
    ----------
    path : str or path
        The folder, local or an fsspec URL.

    Returns
    -------
    estimator
        Of the class that was saved, without `labels_`, which belong to the rows it was fitted on.
        The model of a job's release calls clusters by their ids (`cluster_ids_`).
    """
    saved = load_model(path)
    if saved.kind not in ESTIMATORS:
        raise InvalidInputError(
            f"a saved model must be one of {', '.join(ESTIMATORS)}, got {saved.kind!r} in {path}; "
            "read it with the version of hmrf-dask that wrote it"
        )
    try:
        return ESTIMATORS[saved.kind](**saved.parameters)._restore(saved)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, HmrfError):
            raise
        raise not_as_saved(path, error) from error


__all__ = [
    "COPKMeans",
    "ConstrainedKMeans",
    "HMRFKMeans",
    "KMeans",
    "MPCKMeans",
    "PCKMeans",
    "SeededKMeans",
    "load",
]
