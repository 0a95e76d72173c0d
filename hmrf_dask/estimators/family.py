"""The systems beside HMRF-KMeans: seeds (ICML 2002), hard pairs, Potts penalties (SDM 2004)."""

from __future__ import annotations

import os
from typing import Any, Self

from hmrf_dask.distortions import Distortion
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.estimators.labels import given_seeds
from hmrf_dask.fit.seeds import Seeds

FREE_PAIRS = {"penalty": "potts", "must_link_cost": 0.0, "cannot_link_cost": 0.0}
GIVEN_PAIRS = {"closure": False, "on_conflict": "raise"}


class SeededKMeans(HMRFEstimator):
    """K-Means that starts from rows whose class is known (Basu, Banerjee, Mooney, ICML 2002).

    Seeds give the first centroids and are free from then on. `distortion`, `refine`, `max_iter`,
    `random_state` and the attributes are those of `HMRFKMeans`.

    Parameters
    ----------
    n_clusters : int, default=8
        K; classes are 0 to K - 1, and cluster h begins with the seeds of class h.
    fill : {"k-means++", "perturb", "random"}, default="k-means++"
        Where centroids of classes without seeds come from: rows far from the seeds, perturbations
        of the global centroid (the paper's), random rows.

    Examples
    --------
    >>> import numpy as np
    >>> from hmrf_dask import SeededKMeans
    >>> rows = np.array([[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]])
    >>> SeededKMeans(2, random_state=0).fit(rows, [1, -1, -1, 0]).labels_.tolist()
    [1, 1, 0, 0]
    """

    init = "seeds"
    _inits = ("seeds",)
    _priced = False
    _held = False

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        distortion: str | Distortion = "cosine",
        fill: str = "k-means++",
        refine: str | bool = "auto",
        max_iter: int = 100,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.distortion = distortion
        self.fill = fill
        self.refine = refine
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        must_link: Any = None,
        cannot_link: Any = None,
        run_dir: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Cluster the rows of X, beginning with seeds.

        Parameters
        ----------
        X : as for `HMRFKMeans.fit`
        y : array-like or dask array, shape (n_samples,) or (n_samples, n_clusters), optional
            The class of each row, -1 where it is unknown. Or soft seeds, for `SeededKMeans` only: a
            probability for each class, all 0 where nothing is known; a dense or sparse matrix.
        must_link, cannot_link : as for `HMRFKMeans.fit`, optional
            Seeds as pairs: rows must-linked to a seed are of its class; other must-link groups, the
            largest first, are the seeds of classes that have none. Later on pairs are only counted.
        run_dir : as for `HMRFKMeans.fit`

        Returns
        -------
        self
        """
        if y is None and must_link is None:
            raise InvalidInputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: give "
                "the classes of some rows, or must_link; without seeds use KMeans"
            )
        return super().fit(X, y, must_link=must_link, cannot_link=cannot_link, run_dir=run_dir)

    def fit_predict(self, X: Any, y: Any = None, **parameters: Any) -> Any:
        """Return `labels_` of `fit` with the same arguments; scikit-learn's own leaves out `y`."""
        return self.fit(X, y, **parameters).labels_

    def _seeds(self, y: Any, n_rows: int, n_clusters: int, distortion: Distortion) -> Seeds:
        return given_seeds(y, n_rows, n_clusters, distortion, held=self._held)

    def _settings(self) -> dict[str, Any]:
        fixed = {"init": self.init, "learn_weights": False}
        return {**super()._settings(), **fixed, **FREE_PAIRS, **GIVEN_PAIRS}

    def __sklearn_tags__(self) -> Any:
        """Say that there must be seeds."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


class ConstrainedKMeans(SeededKMeans):
    """`SeededKMeans` whose seeds keep their labels to the end (ICML 2002).

    Neither an E-step nor refinement nor the filling of empty clusters moves a seed. Parameters,
    `fit` and attributes are those of `SeededKMeans`; seeds must be certain.

    Examples
    --------
    >>> import numpy as np
    >>> from hmrf_dask import ConstrainedKMeans
    >>> rows = np.array([[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]])
    >>> ConstrainedKMeans(2, random_state=0).fit(rows, [0, 0, 1, 0]).labels_.tolist()
    [0, 0, 1, 0]
    """

    _held = True


class COPKMeans(HMRFEstimator):
    """K-Means that never breaks a pair: COP-KMeans (Wagstaff et al., ICML 2001).

    Free rows go to the nearest cluster. Must-link groups move as one, each to the nearest cluster
    that holds no group it is cannot-linked to, in an order keyed by document. Other than in the
    paper J never rises: a group that would cost more where a new order puts it stays. Other
    parameters and the attributes are those of `HMRFKMeans`; `violations_` are none.

    Parameters
    ----------
    n_clusters : int, default=8
    init : {"k-means++", "random", "neighborhoods"} or array, default="k-means++"
    retries : int, default=20
        How many other orders are tried where one leaves a group no cluster, those that were stuck
        first. When all of them fail, `fit` raises `InfeasibleError` with the pairs in the way.

    Examples
    --------
    >>> import numpy as np
    >>> from hmrf_dask import COPKMeans
    >>> rows = np.array([[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]])
    >>> labels = COPKMeans(2, random_state=0).fit_predict(rows, cannot_link=[(0, 1)])
    >>> bool(labels[0] != labels[1])
    True
    """

    _inits = ("k-means++", "random", "neighborhoods")
    _priced = False

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        distortion: str | Distortion = "cosine",
        init: Any = "k-means++",
        fill: str = "k-means++",
        refine: str | bool = "auto",
        retries: int = 20,
        n_init: int = 10,
        max_iter: int = 100,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.distortion = distortion
        self.init = init
        self.fill = fill
        self.refine = refine
        self.retries = retries
        self.n_init = n_init
        self.max_iter = max_iter
        self.random_state = random_state

    def _settings(self) -> dict[str, Any]:
        fixed = {"hard": True, "learn_weights": False}
        return {**super()._settings(), **fixed, **FREE_PAIRS, **GIVEN_PAIRS}


class PCKMeans(HMRFEstimator):
    """Pairwise constrained K-Means: every violated pair costs the same (SDM 2004).

    `HMRFKMeans` with ``penalty="potts"`` and without weights, starting from the K largest must-link
    groups; where they are fewer, from a document that is cannot-linked to all of them, too. Costs
    near 0 make it like `SeededKMeans`, very large ones keep all pairs. The paper halves squared
    Euclidean distances: with ``distortion="euclidean"`` its cost w is 2 w here. Other parameters
    and the attributes are those of `HMRFKMeans`.

    Parameters
    ----------
    n_clusters : int, default=8
    init : {"neighborhoods", "auto", "k-means++", "random"} or array, default="neighborhoods"
    fill : {"k-means++", "perturb", "random"}, default="k-means++"
        "perturb" is the paper's.

    Examples
    --------
    >>> import numpy as np
    >>> from hmrf_dask import PCKMeans
    >>> rows = np.array([[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]])
    >>> model = PCKMeans(2, random_state=0).fit(rows, must_link=[(0, 1)], cannot_link=[(1, 2)])
    >>> bool(model.labels_[0] == model.labels_[1] != model.labels_[2])
    True
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        distortion: str | Distortion = "cosine",
        must_link_cost: float = 1.0,
        cannot_link_cost: float = 1.0,
        init: Any = "neighborhoods",
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
        self.distortion = distortion
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

    def _settings(self) -> dict[str, Any]:
        fixed = {"penalty": "potts", "neighborhoods": "largest", "learn_weights": False}
        return {**super()._settings(), **fixed}
