"""One K tried on a sample: fits of all its rows, of two halves and of shuffled rows, compared.

It runs inside one task. No fit sees an answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from hmrf_dask.distortions.base import Distortion, Extent
from hmrf_dask.distortions.cosine import Cosine
from hmrf_dask.fit.candidates import StepsTaken, engine_over
from hmrf_dask.fit.loop import Fit, Position, begin
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.refinement import refines
from hmrf_dask.measures.scores import adjusted_rand
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.criteria import (
    AnsweredGroups,
    Criteria,
    SampledPairs,
    first_half,
    mean_silhouette,
    own_and_next,
    shuffled,
)
from hmrf_dask.tasks.first_centroids import CandidateRows
from hmrf_dask.tasks.model import State
from hmrf_dask.tasks.start_sample import StartSample, start_centroids
from hmrf_dask.types import BoolArray, FloatArray, LabelArray, Sized

STARTS = 3  # of each fit
TOL = 1e-3  # where fits end at the latest: criteria tell K by more than what comes then


class Clustering(NamedTuple):
    """A fit without pairs."""

    labels: LabelArray
    centroids: FloatArray
    objective: float


@dataclass(frozen=True)
class Trials(Sized):
    """What every K is tried on, the same for all of them."""

    whole: StartSample
    shuffled: StartSample
    first: BoolArray  # rows of the first half
    latent: StartSample | None  # the rows in few dimensions, for silhouettes; None: as they are
    answered: AnsweredGroups | None
    objective: float  # J of one cluster


def count_answers(trials: Trials) -> int:
    """Return how many answers there are about rows of the sample."""
    return 0 if trials.answered is None else trials.answered.n_pairs


def prepare_trials(sample: StartSample, latent: RowBlock | None, pairs: SampledPairs) -> Trials:
    """Return what every K is tried on; `pairs` are answers about nodes of the sample."""
    answered = pairs.groups(sample.node_rows)
    block, seed = sample.block, sample.settings.seed
    return Trials(
        sample,
        replace(sample, block=shuffled(block, seed)),
        first_half(block, seed),
        None if latent is None else _latent_sample(sample, latent),
        answered,
        cluster(sample, 1).objective,
    )


def _latent_sample(sample: StartSample, latent: RowBlock) -> StartSample:
    n_features = latent.n_features
    ends = np.full(n_features, -1.0), np.ones(n_features)
    extent = Extent(latent.n_rows, n_features, *ends, 0.0, float(n_features))
    return replace(sample, block=latent, distortion=Cosine().bind(extent), extent=extent)


def try_out(trials: Trials, n_clusters: int) -> Criteria:
    """Return what so many clusters bring."""
    sample, sides = trials.whole, (trials.first, ~trials.first)
    whole = cluster(sample, n_clusters)
    halves = [cluster(_rows_of(sample, side), n_clusters) for side in sides]
    labels = [_labels_of_all(sample, side, half) for side, half in zip(sides, halves, strict=True)]
    of_halves = [
        _share_of_own(_rows_of(sample, side), half)
        for side, half in zip(sides, halves, strict=True)
    ]
    chance = cluster(trials.shuffled, n_clusters, n_starts=1).objective  # all starts end alike
    split, joined = _contradicted(trials.answered, [whole.labels, *labels], n_clusters)
    return Criteria(
        n_clusters,
        fall=(chance - whole.objective) / trials.objective if trials.objective else 0.0,
        own=_share_of_own(sample, whole) / 2 + sum(of_halves) / 4,
        silhouette=_silhouette(trials, whole, n_clusters),
        stability=adjusted_rand(*labels),
        split=split,
        joined=joined,
    )


def cluster(sample: StartSample, n_clusters: int, n_starts: int = STARTS) -> Clustering:
    """Return the best of a few fits, each refined where rows are few enough.

    Refining only the one that is lowest before loses a tenth of the sets of known K.
    """
    tol = max(sample.settings.tol, TOL)
    settings = replace(sample.settings, n_clusters=n_clusters, tol=tol)
    sample = replace(sample, settings=settings)
    engine = engine_over(sample, constrained=False)
    states = [_run(engine, start_centroids(sample, f"unconstrained {n}")) for n in range(n_starts)]
    best = min(states, key=lambda state: state.energy.total)
    labels = engine.run.read_labels(best.free[0])
    return Clustering(labels, best.model.centroids, best.energy.value)


def _run(engine: Engine, centroids: FloatArray) -> State:
    problem = engine.problem
    settings, sizes = problem.settings, (problem.extent.n_rows, problem.settings.n_clusters)
    refining = refines(settings.refine, problem.distortion, *sizes)
    fit = Fit(engine, StepsTaken(), settings.max_iter, refining)
    return fit.run(partial(_begun, engine, centroids))[0]


def _begun(engine: Engine, centroids: FloatArray) -> Position:
    """Label all rows by first centroids."""
    distortion = engine.problem.distortion
    warm = bool(distortion.warm_smoothings)
    smoothing = 0.0 if warm else distortion.final_smoothing
    state = begin(engine, centroids, smoothing=smoothing).state
    return Position("warm-up" if warm else "fit", 0, None, state)


def _rows_of(sample: StartSample, chosen: BoolArray) -> StartSample:
    return replace(sample, block=sample.block.take(np.flatnonzero(chosen)))


def _distances(sample: StartSample, centroids: FloatArray) -> FloatArray:
    """Return the distances of all rows, shape (n_rows, n_clusters)."""
    distortion, weights = sample.distortion, np.ones(sample.extent.n_features)
    table = distortion.table(centroids, weights, distortion.final_smoothing)
    return distortion.distances(sample.block, distortion.terms(sample.block, weights), table)


def _labels_of_all(sample: StartSample, side: BoolArray, half: Clustering) -> LabelArray:
    """Return the labels of one half, and the nearest clusters of the rows of the other."""
    labels = np.empty(len(side), np.int32)
    labels[side] = half.labels
    labels[~side] = _distances(_rows_of(sample, ~side), half.centroids).argmin(axis=1)
    return labels


def _share_of_own(sample: StartSample, fit: Clustering) -> float:
    """Return the share of rows that are nearest to their own cluster, left out of it."""
    own, other = _own_and_next(sample.distortion, _distances(sample, fit.centroids), fit.labels)
    return float((own < other).mean())


def _own_and_next(
    distortion: Distortion, distances: FloatArray, labels: LabelArray
) -> tuple[FloatArray, FloatArray]:
    return own_and_next(distances, labels, distortion.refinement)


def _silhouette(trials: Trials, fit: Clustering, n_clusters: int) -> float:
    """Return the mean silhouette, by centroids, in few dimensions where rows are sparse."""
    sample, centroids = trials.whole, fit.centroids
    if trials.latent is not None:
        sample = trials.latent
        rows: CandidateRows = sample.candidate_rows(0.0)
        centroids = rows.centroids(*rows.sums(fit.labels.astype(np.int64), n_clusters))
    distances = _distances(sample, centroids)
    return mean_silhouette(*_own_and_next(sample.distortion, distances, fit.labels))


def _contradicted(
    answered: AnsweredGroups | None, labelled: list[LabelArray], n_clusters: int
) -> tuple[float, float]:
    """Return how many answers of each kind labels contradict, in the mean of fits."""
    if answered is None:
        return 0.0, 0.0
    counts = np.asarray([answered.contradicted(labels, n_clusters) for labels in labelled])
    split, joined = counts.mean(axis=0).tolist()
    return split, joined
