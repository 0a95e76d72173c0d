"""Rows as users give them to an estimator: a corpus, checked as scikit-learn does."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.utils.validation import validate_data

from hmrf_dask.corpus.partitioned import Corpus, as_corpus
from hmrf_dask.errors import InvalidInputError, InvalidTypeError
from hmrf_dask.rows.canonical import require_matrix, require_numbers, sound_csr


def is_lazy(X: Any) -> bool:
    """Whether rows come partition by partition, so that results do too."""
    return isinstance(X, Corpus | str | os.PathLike) or hasattr(X, "dask")


class GivenRows:
    """What estimators share: X as a corpus, and the number of its features."""

    n_features_in_: int

    def _corpus(self, X: Any, *, fitting: bool) -> Corpus:
        """Return X as a corpus; matrices go through scikit-learn's own validation first.

        All but the look at NaN and infinity, which is ours: it names the rows.
        """
        if is_lazy(X):
            corpus = as_corpus(X)
            self._check_width(corpus.n_features, fitting=fitting)
            return corpus
        if isinstance(X, np.ma.MaskedArray):
            raise InvalidInputError("rows must not be masked, got a masked array; fill it")
        if isinstance(X, np.ndarray) and X.dtype.kind != "O":
            require_numbers(X.dtype)
        if scipy.sparse.issparse(X):
            require_matrix(X)
            X = sound_csr(X)
        try:
            checked = validate_data(
                self, X, reset=fitting, accept_sparse="csr", dtype=[np.float64, np.float32],
                accept_large_sparse=True, ensure_all_finite=False,
            )  # fmt: skip
        except TypeError as error:  # scikit-learn's own checks ask for this class
            raise InvalidTypeError(str(error)) from error
        except (ValueError, OverflowError) as error:
            raise InvalidInputError(str(error)) from error
        return as_corpus(checked)

    def _check_width(self, n_features: int, *, fitting: bool) -> None:
        """Do what scikit-learn's validation does to other input: columns must be those of fit."""
        if fitting:
            self.n_features_in_ = n_features
            self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        elif n_features != self.n_features_in_:
            raise InvalidInputError(
                f"X has {n_features} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
