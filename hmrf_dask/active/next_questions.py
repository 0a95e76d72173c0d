"""The next questions about a finished model, a fitted estimator or the last release of a job."""

from __future__ import annotations

import os
from typing import Any

from hmrf_dask.answers.records import PAIR, Question
from hmrf_dask.corpus.partitioned import as_corpus
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.jobs.questions import batch_of
from hmrf_dask.parameters import RANGES
from hmrf_dask.questions.batches import N_QUESTIONS, Clusters, choose, known_from
from hmrf_dask.questions.known import Known
from hmrf_dask.questions.pool import Pool
from hmrf_dask.questions.rounds import asks


def next_choices(
    finished: Any, n: int = N_QUESTIONS, *, X: Any = None, answers: Any = None
) -> list[Question]:
    """Return which groups to ask about next, given a finished model.

    Parameters
    ----------
    finished : fitted estimator, str or path
        Or the address of a job's output, whose last release it is about.
    n : int
        How many; there are fewer where nothing is left to ask.
    X : sparse matrix or array, ndarray, dask array, Corpus or path of one
        The rows that the estimator was fitted on; an output knows its own.
    answers : Constraints, Answers, or sequence of Entry, optional
        What was answered so far; without it, of an output, what its journal and its last fit have.

    Returns
    -------
    list of Question
        Choices; `shown` are all groups that the document may belong to, the likeliest first.

    Examples
    --------
    >>> import numpy as np
    >>> from hmrf_dask import KMeans
    >>> rows = np.array([[1.0, 0.1], [1.0, 0.2], [1.0, 0.9], [0.1, 1.0], [0.2, 1.0]])
    >>> model = KMeans(2, random_state=0).fit(rows)
    >>> [question.documents for question in next_choices(model, 2, X=rows)][1]
    ('2',)
    """
    return _next(finished, n, X, answers)[1]


def next_pairs(
    finished: Any, n: int = N_QUESTIONS, *, X: Any = None, answers: Any = None
) -> list[Question]:
    """Return which pairs to ask about next, given a finished model.

    Parameters and order are those of `next_choices`; each document is asked about against the
    group that is the likeliest for it.

    Examples
    --------
    >>> import numpy as np
    >>> from hmrf_dask import KMeans
    >>> rows = np.array([[1.0, 0.1], [1.0, 0.2], [1.0, 0.9], [0.1, 1.0], [0.2, 1.0]])
    >>> model = KMeans(2, random_state=0).fit(rows)
    >>> next_pairs(model, 2, X=rows)[1].documents
    ('2', '1')
    """
    known, choices = _next(finished, n, X, answers)
    return [pair for question in choices if (pair := asks(known, question, PAIR)) is not None]


def _next(finished: Any, n: int, X: Any, answers: Any) -> tuple[Known, list[Question]]:
    """Return what is known, and the next choices."""
    if problem := RANGES["batch"].problem(n):
        raise InvalidInputError(f"n {problem}, got {n!r:.60}; say how many questions to ask")
    if isinstance(finished, str | os.PathLike):
        if X is not None:
            raise InvalidInputError("X must be left out with an output, which knows its own rows")
        return batch_of(os.fspath(finished), n, answers)
    if not isinstance(finished, HMRFEstimator):
        raise InvalidInputError(
            f"a finished model must be a fitted estimator or the address of an output, got "
            f"{finished!r:.60}; give one of them"
        )
    finished.predictor()  # refuses one that is not fitted
    centroids = finished.cluster_centers_
    if X is None:
        raise InvalidInputError(
            "X must be the rows that the model was fitted on, got none; give them"
        )
    corpus = as_corpus(X)
    if corpus.n_features != centroids.shape[1]:
        raise InvalidInputError(
            f"X must have the {centroids.shape[1]} columns that the model was fitted on, got "
            f"{corpus.n_features}; give the same rows"
        )
    known = known_from(answers, corpus)
    pool = Pool(corpus.persist(), None, in_memory=corpus.in_client)
    return known, choose(pool, Clusters.of(pool, centroids), known, n)
