"""The estimators, each the one loop under other settings, and `load` of what they save."""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import Any, Self

from hmrf_dask.distortions import Distortion
from hmrf_dask.errors import HmrfError, InvalidInputError
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.estimators.files import load_model, not_as_saved

# Pairs that cost nothing, whatever was given with them, and are neither closed nor thinned out.
FREE_PAIRS = {"penalty": "potts", "must_link_cost": 0.0, "cannot_link_cost": 0.0}
GIVEN_PAIRS = {"closure": False, "on_conflict": "raise"}


class HMRFKMeans(HMRFEstimator):
    """K-Means with must-links and cannot-links: HMRF-KMeans (Basu, Bilenko, Mooney, KDD 2004).

    Parameters
    ----------
    n_clusters : int or "auto", default=8
        K, the number of clusters; "auto": chosen by what speaks for each K on a sample. From 2 to
        100 are tried, on 4,000 rows; `choice_of_k_` says why it is what it is.
    distortion : str or OwnDistortion, default="cosine"
        How far a row is from a centroid. "cosine", "i-divergence", "kl", "euclidean" or "pearson";
        or an object of your own class.
    learn_weights : bool or "auto" or "full", default="auto"
        Whether feature weights are learned; "full": a full metric of dense rows, euclidean; "auto":
        where the distortion gains by it, and of dense rows what keeps most withheld answers; in a
        job, whose dense rows are components or embeddings, never full. That is what was shown to
        help: on for euclidean, i-divergence and kl, off for cosine, pearson and own distortions. A
        full metric is learned from the rows that answers name, then of all rows by cluster while J
        falls; it takes at most 256 features. Where answers name three rows or more for each
        feature, "auto" takes a full metric, weights, or neither.
    penalty : {"auto", "trust", "distance", "potts"}, default="auto"
        What a violated pair costs: by how likely it is right (trust), by its distance (HMRF), or
        the same whatever it is (potts: PCKMeans); auto: trust for cosine or where trust is given,
        else distance. By trust it is κ ln(p / (1 - p)) for a pair that is right with probability p,
        κ the standard deviation of the distance between two rows.
    trust : float, array or None, default=None
        The probability that an answer is right; 1 is certain, below 1/2 it is turned round; None:
        as answers that contradict each other show. An array has one for each pair, the must-links
        first; a pair's own, in a `Constraints` or a file, goes before.
    must_link_cost : float, default=1.0
        What a violated must-link costs, times its penalty. A pair's own cost goes before.
    cannot_link_cost : float, default=1.0
        What a violated cannot-link costs, times its penalty. A pair's own cost goes before.
    init : str or array of shape (n_clusters, n_features), default="auto"
        Where centroids begin: "auto" runs a pool of starts and keeps the lowest J, or one made of
        the pairs that keeps more of those withheld from it; "neighborhoods" is the paper's start;
        "k-means++" and "random" run `n_init` starts that see no pairs.
    fill : {"k-means++", "perturb", "random"}, default="k-means++"
        Where the missing centroids of "neighborhoods", or of classes without seeds, come from;
        "perturb" is the paper's.
    inference : {"icm", "belief-propagation"}, default="icm"
        How an E-step labels rows with pairs: by moves alone, or after min-sum messages. "icm" makes
        single moves and moves of whole must-link groups; "belief-propagation" passes messages
        first, continues from what they say, and takes it where J falls. Pairs whose messages do not
        fit `hmrf.task-memory` stay with "icm".
    refine : bool or "auto", default="auto"
        First-variation moves: single rows move where J falls with the centroids re-optimised.
        "auto" refines every start that runs to its end up to 200 rows a cluster, else the best one
        up to 2,000 a cluster, none beyond, where they bring nothing.
    weight_update : {"normalized", "paper"}, default="normalized"
        How weights of cosine and pearson are learned.
    closure : bool, default=True
        Whether pairs are closed: same and same is same, same and different is different; of pairs
        that cost by trust only those that are certain.
    on_conflict : {"warn", "raise", "keep", "drop"}, default="warn"
        What to do with pairs that contradict each other: warn, and keep them without the closure of
        their documents; refuse them; keep them without a word; drop the cannot-links among them.
    n_init : int, default=10
        Number of unconstrained starts; of many rows most run a few iterations only. Up to 50,000
        rows × clusters every start runs to its end. Beyond, all run 3 iterations; up to 5,000 rows
        and 200 a cluster the best four go on to their ends. Of more rows a start sample (20,000, or
        100 a cluster) is run, the best four for 10 iterations, the best two for 30.
    max_iter : int, default=100
        Most iterations of each fit before refinement.
    tol : float, default=2e-5
        A fit, and its refinement, ends where five iterations together lower J by less than this
        share of it; 0: only where nothing moves. Fits that learn weights go on to their ends.
    outliers : float, "auto" or None, default=None
        Which rows are marked as of no cluster after the fit, in `outliers_` and as cluster -1 in
        files; "auto": those farther from every centroid than most of their cluster; a share of all
        rows; None: none. Rows with pairs, and those whose label is fixed, never are; rows of zeros,
        which have no direction, always are under the cosine. `labels_` and J stay as they are.
    trim_outliers : bool, default=False
        Whether outliers are kept out of centroids: the fit ends with phases in which a row counts
        at most a limit in J. The limit is that of its cluster, found as `outliers` says, and held
        for a phase; there are four at most. A row is out, and an outlier, where it is farther.
        Weights that are learned stay those of the phases before.
    random_state : int, RandomState or None, default=None
        The seed. None draws one; with a `run_dir` that has a run, it is the run's.
    verbose : {0, 1, False, True}, default=0
        Whether to show how far a fit is: lines on stderr, in a notebook a bar. It is no part of
        what is fitted, resumed or saved.

    Attributes
    ----------
    labels_ : ndarray of int32, shape (n_samples,)
        For a dask array, a Corpus or a path a dask array of the same row chunks, which reads files.
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Of a cluster that is empty, its last centroid. Under a full metric 0 where a feature is the
        same in all rows: it has no part in the metric.
    outliers_ : ndarray of bool, shape (n_samples,), or None
        Which rows are outliers, as `labels_` are given; None where `outliers` is None.
    n_clusters_ : int
    choice_of_k_ : Choice or None
        What speaks for each K, where `n_clusters` is "auto": `tried` has a row for each, with how
        `likely` it is; the range from `least` to `largest`; whether it `is_recommended`; `doubt`.
    cluster_ids_ : ndarray of int32, shape (n_clusters,)
        What `predict` calls each cluster: its position, 0 to n_clusters - 1, after a fit. The model
        of a job's release has the ids that stay from run to run.
    feature_weights_ : ndarray of shape (n_features,), or None
        None where the metric is a full one.
    metric_ : ndarray of shape (n_features, n_features), or None
        A of a full metric, (x - y)ᵀ A (x - y). J and `transform` are in its terms.
    objective_ : float
        J, recomputed from rows and pairs.
    objective_terms_ : dict of str to float
        J and its parts.
    objective_history_ : ndarray
        J after every step of fit and refinement: it never rises, unless `trim_outliers` sets new
        limits, whose J is another one.
    iterations_ : list of dict
        Each iteration: `phase`, `iteration`, the rows that `moved`, J and its terms after it.
    violations_ : dict of str to int
        How many of the given pairs `labels_` break, by kind.
    suspect_answers_ : list of SuspectAnswer
        Pairs that are more likely wrong than right, each judged as if it had not been given, the
        least likely first: both documents `a` and `b`, the `kind` ("must", "cannot") and the
        `probability` that it is right.
    n_iter_ : int
        Iterations of the winner, those of its start included.
    converged_ : bool
        Whether it ended before `max_iter`.
    stop_reason_ : str
    start_reason_ : str
        Why the start that won did: by its J, or by answers withheld from it. Empty where there
        was no choice.
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

    _method = "HMRFKMeans"

    def __init__(
        self,
        n_clusters: int | str = 8,
        *,
        distortion: str | Distortion = "cosine",
        learn_weights: str | bool = "auto",
        penalty: str = "auto",
        trust: Any = None,
        must_link_cost: float = 1.0,
        cannot_link_cost: float = 1.0,
        init: Any = "auto",
        fill: str = "k-means++",
        inference: str = "icm",
        refine: str | bool = "auto",
        weight_update: str = "normalized",
        closure: bool = True,
        on_conflict: str = "warn",
        n_init: int = 10,
        max_iter: int = 100,
        tol: float = 2e-5,
        outliers: float | str | None = None,
        trim_outliers: bool = False,
        random_state: Any = None,
        verbose: int | bool = 0,
    ) -> None:
        self._keep(locals())


class PCKMeans(HMRFEstimator):
    """Pairwise constrained K-Means: every violated pair costs the same (SDM 2004).

    `HMRFKMeans` with ``penalty="potts"`` and without weights, starting from the K largest must-link
    groups; where they are fewer, from a document that is cannot-linked to all of them, too. Costs
    near 0 make it like `SeededKMeans`, very large ones keep all pairs. The paper halves squared
    Euclidean distances: with ``distortion="euclidean"`` its cost w is 2 w here. Other parameters
    and the attributes are those of `HMRFKMeans`.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
    init : {"auto", "neighborhoods", "k-means++", "random"} or array, default="neighborhoods"
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

    _method = "PCKMeans"
    _fixed = MappingProxyType({"penalty": "potts", "neighborhoods": "largest"})

    def __init__(
        self,
        n_clusters: int | str = 8,
        *,
        distortion: str | Distortion = "cosine",
        must_link_cost: float = 1.0,
        cannot_link_cost: float = 1.0,
        init: Any = "neighborhoods",
        fill: str = "k-means++",
        inference: str = "icm",
        refine: str | bool = "auto",
        closure: bool = True,
        on_conflict: str = "warn",
        n_init: int = 10,
        max_iter: int = 100,
        tol: float = 2e-5,
        outliers: float | str | None = None,
        trim_outliers: bool = False,
        random_state: Any = None,
        verbose: int | bool = 0,
    ) -> None:
        self._keep(locals())


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
    _method = "MPCKMeans"

    def __init__(
        self,
        n_clusters: int | str = 8,
        *,
        learn_weights: str | bool = "auto",
        penalty: str = "auto",
        trust: Any = None,
        must_link_cost: float = 1.0,
        cannot_link_cost: float = 1.0,
        init: Any = "auto",
        fill: str = "k-means++",
        inference: str = "icm",
        refine: str | bool = "auto",
        closure: bool = True,
        on_conflict: str = "warn",
        n_init: int = 10,
        max_iter: int = 100,
        tol: float = 2e-5,
        outliers: float | str | None = None,
        trim_outliers: bool = False,
        random_state: Any = None,
        verbose: int | bool = 0,
    ) -> None:
        self._keep(locals())


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

    _method = "KMeans"

    def __init__(
        self,
        n_clusters: int | str = 8,
        *,
        distortion: str | Distortion = "cosine",
        init: Any = "k-means++",
        refine: str | bool = "auto",
        n_init: int = 10,
        max_iter: int = 100,
        tol: float = 2e-5,
        outliers: float | str | None = None,
        trim_outliers: bool = False,
        random_state: Any = None,
        verbose: int | bool = 0,
    ) -> None:
        self._keep(locals())

    def fit(  # type: ignore[override]  # without pairs, so that nobody routes any to it
        self, X: Any, y: Any = None, *, run_dir: str | os.PathLike[str] | None = None
    ) -> Self:
        """Cluster the rows of X; see `HMRFKMeans.fit`.

        Examples
        --------
        >>> from hmrf_dask import KMeans
        >>> rows = [[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]]
        >>> KMeans(2, random_state=0).fit(rows).converged_
        True
        """
        return super().fit(X, y, run_dir=run_dir)


class COPKMeans(HMRFEstimator):
    """K-Means that never breaks a pair: COP-KMeans (Wagstaff et al., ICML 2001).

    Free rows go to the nearest cluster. Must-link groups move as one, each to the cheapest cluster
    that holds no group it is cannot-linked to: the group for which the choice matters most is next,
    and chains of groups swap two clusters while that lowers J. Where a group is left without a
    cluster, labels that keep all pairs are searched for, or a proof that there are none. Other than
    in the paper J never rises. Other parameters and the attributes are those of `HMRFKMeans`;
    `violations_` are none.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
    init : {"k-means++", "random", "neighborhoods"} or array, default="k-means++"
    retries : int, default=20
        How many more searches, each longer than the last, for labels that keep all pairs. A search
        of few documents is exhaustive. `fit` raises `InfeasibleError`, which says whether it is
        `proved` that there are no such labels, and the cannot-links in their way.

    Examples
    --------
    >>> import numpy as np
    >>> from hmrf_dask import COPKMeans
    >>> rows = np.array([[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]])
    >>> labels = COPKMeans(2, random_state=0).fit_predict(rows, cannot_link=[(0, 1)])
    >>> bool(labels[0] != labels[1])
    True
    """

    _method = "COPKMeans"
    _fixed = MappingProxyType({"hard": True, **FREE_PAIRS, **GIVEN_PAIRS})

    def __init__(
        self,
        n_clusters: int | str = 8,
        *,
        distortion: str | Distortion = "cosine",
        init: Any = "k-means++",
        fill: str = "k-means++",
        refine: str | bool = "auto",
        retries: int = 20,
        n_init: int = 10,
        max_iter: int = 100,
        tol: float = 2e-5,
        outliers: float | str | None = None,
        trim_outliers: bool = False,
        random_state: Any = None,
        verbose: int | bool = 0,
    ) -> None:
        self._keep(locals())


class SeededKMeans(HMRFEstimator):
    """K-Means that starts from rows whose class is known (Basu, Banerjee, Mooney, ICML 2002).

    Seeds give the first centroids and are free from then on. `distortion`, `refine`, `max_iter`,
    `random_state` and the attributes are those of `HMRFKMeans`.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
        K; classes are 0 to K - 1, and cluster h begins with the seeds of class h. "auto" goes with
        must_link alone.
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
    _method = "SeededKMeans"
    _fixed = MappingProxyType({"init": "seeds", **FREE_PAIRS, **GIVEN_PAIRS})
    _fixed_seeds = False

    def __init__(
        self,
        n_clusters: int | str = 8,
        *,
        distortion: str | Distortion = "cosine",
        fill: str = "k-means++",
        refine: str | bool = "auto",
        max_iter: int = 100,
        tol: float = 2e-5,
        outliers: float | str | None = None,
        trim_outliers: bool = False,
        random_state: Any = None,
        verbose: int | bool = 0,
    ) -> None:
        self._keep(locals())

    def fit_predict(self, X: Any, y: Any = None, **parameters: Any) -> Any:
        """Return `labels_` of `fit` with the same arguments; scikit-learn's own leaves out `y`.

        Examples
        --------
        >>> from hmrf_dask import SeededKMeans
        >>> rows = [[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]]
        >>> SeededKMeans(2, random_state=0).fit_predict(rows, [1, -1, -1, 0]).tolist()
        [1, 1, 0, 0]
        """
        return self.fit(X, y, **parameters).labels_

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

    _method = "ConstrainedKMeans"
    _fixed_seeds = True


FAMILY = (HMRFKMeans, MPCKMeans, KMeans, PCKMeans, COPKMeans, SeededKMeans, ConstrainedKMeans)
ESTIMATORS: dict[str, type[HMRFEstimator]] = {kind.__name__: kind for kind in FAMILY}


def load(path: str | os.PathLike[str]) -> HMRFEstimator:
    """Return the fitted model that `save` wrote: it predicts, transforms and scores.

    It is of the class that was saved, without `labels_`, which belong to the rows it was fitted on.
    The model of a job's release calls clusters by their ids (`cluster_ids_`).

    Parameters
    ----------
    path : str or path
        The folder, local or an fsspec URL.

    Examples
    --------
    >>> import tempfile
    >>> from hmrf_dask import KMeans, load
    >>> model = KMeans(2, random_state=0).fit([[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/model")
    ...     again = load(f"{folder}/model")
    >>> (again.predict([[1, 0.1]]) == model.labels_[:1]).all()
    np.True_
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
