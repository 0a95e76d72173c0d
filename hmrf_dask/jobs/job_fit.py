"""The fit of a job: cold, or warm from the centroids of the last model."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.errors import HmrfWarning, InvalidInputError
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.estimators.classes import ESTIMATORS
from hmrf_dask.jobs.job_file import PARAMETERS, SEEDED, Method
from hmrf_dask.jobs.telling import Tell
from hmrf_dask.modes import make_folders
from hmrf_dask.text.vocabulary import Vocabulary
from hmrf_dask.types import FloatArray

log = logging.getLogger("hmrf_dask")


def fit_job(
    method: Method,
    corpus: Corpus,
    answers: Constraints | None,
    run_dir: str,
    *,
    first: FloatArray | None,
    tell: Tell,
) -> HMRFEstimator:
    """Fit the method of a job.

    Parameters
    ----------
    method : Method
    corpus : Corpus
    answers : Constraints, optional
    run_dir : str
        A fit that was killed goes on from there.
    first : array of shape (n_clusters, n_features), optional
        Centroids to begin with; without them it is a cold start.
    tell : callable
        Called with the record of every commit.
    """
    parameters = dict(method.parameters)
    if first is not None:
        parameters["init"] = first
    model = ESTIMATORS[method.name](**parameters)
    model._progress = tell
    if method.name in SEEDED and (answers is None or not len(answers.must_nodes)):
        raise InvalidInputError(
            f"{method.name} must have answers that say which documents belong together, its seeds, "
            "got none; give some, or use KMeans"
        )
    given: dict[str, Any] = {"must_link": answers}
    if method.name == "KMeans":
        given = {}
        if answers is not None:
            warnings.warn(
                f"KMeans takes no pairs: the {len(answers)} answers change nothing; give "
                "method.name HMRFKMeans",
                HmrfWarning,
                stacklevel=2,
            )
    if "://" not in run_dir:
        make_folders(run_dir)  # private where the output is, which a fit by itself asks nobody
    return model.fit(corpus, run_dir=run_dir, **given)


def warm_centroids(
    method: Method,
    last: HMRFEstimator,
    before: Vocabulary | None,
    now: Vocabulary | None,
) -> FloatArray | None:
    """Return the centroids of the last model as columns are now; None where they are of no use.

    Parameters
    ----------
    method : Method
        Of the fit to come.
    last : HMRFEstimator
    before, now : Vocabulary, optional
        Of the rows of the last fit and of the fit to come; None where rows are ready embeddings.
    """
    centroids = last.cluster_centers_
    distortion = method.distortion or "cosine"
    if "init" not in PARAMETERS[method.name]:
        log.info("seeds give the first centroids: a cold start")
        return None
    same = type(last).__name__ == method.name and len(centroids) == method.n_clusters
    if not same or last._distortion.name not in (distortion, "euclidean"):
        log.info("the method is another one than that of the last model: a cold start")
        return None
    if before is None or now is None or before.identity == now.identity:
        return centroids
    if len(before.components) or len(now.components):
        log.info("components of the vocabulary were made anew: a cold start")
        return None
    moved = _mapped(centroids, before, now)
    if not moved.any(axis=1).all():
        log.info("a centroid has no word of the new vocabulary: a cold start")
        return None
    return moved


def _mapped(centroids: FloatArray, before: Vocabulary, now: Vocabulary) -> FloatArray:
    """Return centroids with the columns of another vocabulary; new words begin at nought."""
    if now.settings.kind == "hashing":
        return centroids  # a bucket is a bucket
    places = now.places(before.terms)
    known = np.flatnonzero(places >= 0)
    moved = np.zeros((len(centroids), now.n_terms))
    moved[:, places[known]] = centroids[:, known]
    return moved
