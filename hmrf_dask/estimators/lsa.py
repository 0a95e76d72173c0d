"""Latent semantic analysis with scikit-learn's interface, over rows in partitions."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from hmrf_dask.corpus.partitioned import Corpus, is_dask_array
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.estimators.inputs import GivenRows, draw_seed, is_lazy
from hmrf_dask.estimators.prediction import whole
from hmrf_dask.flow.dataflow import DaskFlow
from hmrf_dask.parameters import check_count, check_parameter
from hmrf_dask.progress import Tell, verbosely
from hmrf_dask.redaction import shortened
from hmrf_dask.text.lsa import decompose, projected

STEP = "find components"


def _tell_passes(tell: Tell, done: int, total: int) -> None:
    """Report how many passes over the rows are done."""
    tell({"step": STEP, "done": done, "of": total, "unit": "passes over the rows"})


class LSA(GivenRows, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """Latent semantic analysis: rows in the space of their first right singular vectors.

    A truncated SVD, of TF-IDF rows as a rule, without centring. It is scikit-learn's `TruncatedSVD`
    for rows in partitions: passes over them keep nothing that grows with their number, and the same
    seed gives the same bits whatever the partitions, threads, workers or order of rows.

    Parameters
    ----------
    n_components : int, default=50
        At most the number of features.
    n_iter : int, default=7
        Power iterations. Fitting reads the rows `n_iter` + 2 times.
    normalize : bool, default=False
        Whether transformed rows have length 1. Cosine and pearson are the same either way.
    random_state : int, RandomState or None, default=None
        The seed of the first vectors. None draws one.
    verbose : {0, 1, False, True}, default=0
        Whether to show how far fitting is: lines on stderr, in a notebook a bar.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Orthonormal, but for those beyond the rank of the rows, which are zero. The entry of each
        that is largest in size is positive.
    singular_values_ : ndarray of shape (n_components,)
    explained_variance_, explained_variance_ratio_ : ndarrays of shape (n_components,)
        The variance of the rows along each component, and its share of all.
    seed_ : int
        What `random_state` came to.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Only for input with names of columns.

    Notes
    -----
    Rows are taken, and given back, in float32. Memory is O((rows of a partition + features) ·
    n_components); beyond `hmrf.task-memory` a pass takes some of the columns at a time.

    Examples
    --------
    >>> import numpy as np
    >>> from hmrf_dask import LSA
    >>> rows = np.array([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    >>> model = LSA(2, random_state=0).fit(rows)
    >>> model.singular_values_.round(6).tolist()
    [3.0, 2.0]
    >>> np.abs(model.transform(rows)).round(6).tolist()
    [[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]]
    """

    def __init__(
        self,
        n_components: int = 50,
        *,
        n_iter: int = 7,
        normalize: bool = False,
        random_state: Any = None,
        verbose: int | bool = 0,
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the components of the rows of X, shape (n_samples, n_features).

        X is a sparse matrix or array, array-like, a dask array, a Corpus, or the path of a corpus.

        Examples
        --------
        >>> from hmrf_dask import LSA
        >>> LSA(1, random_state=0).fit([[3.0, 0.0], [0.0, 2.0]]).components_.round(6).tolist()
        [[1.0, 0.0]]
        """
        check_count("n_components", self.n_components)
        check_count("n_iter", self.n_iter)
        if not isinstance(self.normalize, bool):
            raise ConfigurationError(
                f"normalize must be one of True, False, got {shortened(self.normalize)}"
            )
        check_parameter("verbose", self.verbose)
        seed = draw_seed(self.random_state)
        corpus = self._corpus(X, fitting=True)
        sizes = int(self.n_components), int(self.n_iter)
        with verbosely(self.verbose, step=STEP) as tell:
            so_far = partial(_tell_passes, tell)
            factors = decompose(DaskFlow(), corpus, *sizes, seed, so_far=so_far)
        self.components_ = factors.components
        self.singular_values_ = factors.singular_values
        self.explained_variance_ = factors.variances
        total = factors.total_variance
        self.explained_variance_ratio_ = factors.variances / (total if total > 0.0 else 1.0)
        self.seed_ = seed
        self._n_features_out = len(factors.components)
        return self

    def transform(self, X: Any) -> Any:
        """Return the rows of X in the space of the components: float32, (n_samples, n_components).

        For a dask array a dask array of the same row chunks, for a Corpus or a path a Corpus of the
        same ids and partitions; neither is computed yet.

        Examples
        --------
        >>> from hmrf_dask import LSA
        >>> rows = [[3.0, 0.0], [0.0, 2.0]]
        >>> LSA(1, random_state=0).fit(rows).transform(rows).round(6).tolist()
        [[3.0], [0.0]]
        """
        check_is_fitted(self)
        corpus = self._corpus(X, fitting=False)
        as_blocks = is_lazy(X) and not is_dask_array(X)
        parts = projected(
            DaskFlow(), corpus, self.components_, normalised=self.normalize, as_blocks=as_blocks
        )
        n_components = len(self.components_)
        if as_blocks:
            counts, has_ids = corpus.row_counts, corpus.has_ids
            return Corpus.from_delayed(parts, n_components, counts, has_ids=has_ids)
        dtype = np.dtype(np.float32)
        return whole(parts, corpus.row_counts, (n_components,), dtype, is_lazy(X))

    def __sklearn_tags__(self) -> Any:
        """Say what scikit-learn may expect."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = []  # always float32
        return tags
