"""The row about dense rows: whole fits next to faiss's spherical k-means and scikit-learn's KMeans.

All three begin with the same rows as centroids, do the same number of iterations, and end with a
label for every row, which faiss needs a search for. The better peer of each repeat counts.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.measuring import CORES, Bench, Figure, in_turn, raw, threads
from tests.benchmarks.rows_fits import ours, scikit_learn

BUDGET = 15.0  # seconds within which all three are done again
N_THEMES, N_TOPICS = 60, 900  # topics lie around themes, rows around topics
SPREAD, NOISE = 0.8, 1.2  # of topics around themes, of rows around topics, over a theme's length
BATCH = 20_000


def unit_rows(n_rows: int, n_features: int) -> NDArray[np.float32]:
    """Return rows like embeddings of texts: topics of unequal size around themes, unit length.

    No number of clusters is theirs, so all sides still move rows after ten iterations.
    """
    chance = np.random.default_rng(11)
    themes = chance.standard_normal((N_THEMES, n_features), np.float32)
    topics = themes[chance.integers(0, N_THEMES, N_TOPICS)]
    topics += SPREAD * chance.standard_normal(topics.shape, np.float32)
    sizes = 1.0 / (np.arange(N_TOPICS) + 10.0)
    rows = np.empty((n_rows, n_features), np.float32)
    for first in range(0, n_rows, BATCH):
        some = rows[first : first + BATCH]
        some[:] = topics[chance.choice(N_TOPICS, len(some), p=sizes / sizes.sum())]
        some += NOISE * chance.standard_normal(some.shape, np.float32)
        some /= np.linalg.norm(some, axis=1, keepdims=True)
    return rows


def imported(folder: str) -> Any:
    """Return the module faiss, of `folder` where one is named; None where there is none."""
    if folder and folder not in sys.path:
        sys.path.append(folder)  # behind all others: it may hold another numpy
    try:
        import faiss
    except ImportError:
        return None
    return faiss


def faiss_labels(faiss: Any, X: NDArray[np.float32], init: Any, max_iter: int) -> NDArray[Any]:
    """Return the labels of faiss's spherical k-means over all rows, BLAS on both cores too."""
    from threadpoolctl import threadpool_limits

    faiss.omp_set_num_threads(CORES)
    model = faiss.Kmeans(
        X.shape[1], len(init), niter=max_iter, spherical=True, nredo=1,
        min_points_per_centroid=1, max_points_per_centroid=X.shape[0],
    )  # fmt: skip
    with threadpool_limits({"openmp": CORES, "blas": CORES}):
        model.train(X, init_centroids=np.ascontiguousarray(init, np.float32))
        return np.asarray(model.index.search(X, 1)[1][:, 0])


def loss(X: NDArray[np.float32], labels: NDArray[Any]) -> float:
    """Return the mean cosine distance of unit rows to the best centroids of their labels."""
    sums = np.zeros((int(labels.max()) + 1, X.shape[1]))
    for first in range(0, len(X), BATCH):
        np.add.at(sums, labels[first : first + BATCH], X[first : first + BATCH])
    return 1.0 - float(np.linalg.norm(sums, axis=1).sum()) / len(X)


def dense(bench: Bench) -> list[Figure]:
    """Time whole fits of dense rows against the better of faiss and scikit-learn."""
    faiss, figures = imported(bench.faiss), []
    why_not = "" if faiss else "no faiss; name a folder that holds faiss-cpu as --faiss"
    for n_features in bench.sizes.dense_features:
        X = None if why_not else unit_rows(bench.sizes.dense_rows, n_features)
        for n_clusters in bench.sizes.dense_clusters:
            if X is None:
                figures.append(_figure(bench, n_clusters, n_features, skipped=why_not))
            else:
                figures.append(_dense(bench, faiss, X, n_clusters))
    return figures


def _figure(bench: Bench, n_clusters: int, n_features: int, **more: Any) -> Figure:
    return Figure(
        f"dense-{n_clusters}-{n_features}",
        f"whole fit of {bench.sizes.dense_rows:,} dense rows, two threads, against the better of "
        f"faiss and scikit-learn, K = {n_clusters:,}, d = {n_features}",
        must=1.0, aim=1.3, **more,
    )  # fmt: skip


def _dense(bench: Bench, faiss: Any, X: NDArray[np.float32], n_clusters: int) -> Figure:
    n_rows, n_features = X.shape
    max_iter = bench.sizes.dense_iterations
    bench.say(f"dense rows, K = {n_clusters:,}, d = {n_features}")
    chosen = np.random.default_rng(0).choice(n_rows, n_clusters, replace=False)
    init = X[np.sort(chosen)].astype(np.float64)
    works = {
        "ours": lambda: ours(X, init, max_iter),
        "faiss": lambda: faiss_labels(faiss, X, init, max_iter),
        "scikit_learn": lambda: scikit_learn(X, init, max_iter),
    }
    with threads(CORES):
        few = X[: 5 * n_clusters]
        first = few[:n_clusters].astype(np.float64)
        ours(few, first, 2)
        faiss_labels(faiss, few, first, 2)
        scikit_learn(few, first, 2)
        runs = in_turn(bench.sizes.repeats, works, budget=BUDGET)
    each = zip(runs["ours"], runs["faiss"], runs["scikit_learn"], strict=True)
    ratios = [(one.wall / mine.wall, two.wall / mine.wall) for mine, one, two in each]
    mine, peer = runs["ours"][0].value, runs["scikit_learn"][0].value
    labels = mine.labels_, runs["faiss"][0].value, peer.labels_
    return _figure(
        bench, n_clusters, n_features,
        values=tuple(min(one) for one in ratios), raw=raw(runs),
        facts={
            "rows": n_rows, "iterations": max_iter,
            "seconds": round(statistics.median(one.wall for one in runs["ours"]), 3),
            "against_faiss": round(statistics.median(one for one, _ in ratios), 2),
            "against_scikit_learn": round(statistics.median(one for _, one in ratios), 2),
            "n_iter": [int(mine.n_iter_), max_iter, int(peer.n_iter_)],
            "loss": [round(loss(X, one), 6) for one in labels],
        },
    )  # fmt: skip
