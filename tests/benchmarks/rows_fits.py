"""Rows about whole fits against peers: scikit-learn, dask-ml, and to convergence on real text."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from tests.benchmarks import corpora
from tests.benchmarks.corpora import Rows, first_centroids
from tests.benchmarks.iterations import warm_up
from tests.benchmarks.measuring import (
    CORES,
    Bench,
    Figure,
    Timed,
    in_turn,
    ratios,
    raw,
    threads,
    timed,
)

ASKED = {20: (4.5, 7.0), 100: (8.0, 13.0), 500: (20.0, 38.0)}
ENOUGH = 1000  # iterations in which real text converges
FIT_BUDGET = 80.0  # seconds for the repeats of one K on synthetic text
BUDGET = 200.0  # seconds for the repeats of one K on real text
FINE = 100  # clusters from which the 172 fine classes are the truth, not the 20
PASSES = 3  # of MiniBatchKMeans over the data


def ours(X: Any, init: Any, max_iter: int, distortion: str = "cosine") -> Any:
    """Fit through the public API: one start, no tolerance, no refinement."""
    from hmrf_dask import HMRFKMeans

    model = HMRFKMeans(
        len(init), init=init, n_init=1, refine=False, max_iter=max_iter, tol=0.0,
        random_state=0, distortion=distortion, learn_weights=False,
    )  # fmt: skip
    return model.fit(X)


def scikit_learn(X: Any, init: Any, max_iter: int) -> Any:
    """Fit scikit-learn's KMeans: Lloyd, no tolerance, no copy of X."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    model = KMeans(
        len(init), init=init.astype(np.float32), n_init=1, max_iter=max_iter, tol=0.0,
        algorithm="lloyd", copy_x=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of fewer distinct clusters
        return model.fit(X)


def mini_batch(X: Any, init: Any, passes: int) -> Any:
    """Fit MiniBatchKMeans for whole passes over the data."""
    from sklearn.cluster import MiniBatchKMeans

    model = MiniBatchKMeans(
        len(init), init=init.astype(np.float32), n_init=1, max_iter=passes, tol=0.0,
        max_no_improvement=None, random_state=0,
    )  # fmt: skip
    return model.fit(X)


def loss(X: Any, labels: NDArray[Any]) -> float:
    """Return the mean cosine distance of unit rows to the best centroids of their labels."""
    n_rows, n_clusters = len(labels), int(labels.max()) + 1
    members = scipy.sparse.csr_matrix(
        (np.ones(n_rows), labels, np.arange(n_rows + 1)), shape=(n_rows, n_clusters)
    )
    sums = (members.T @ X.astype(np.float64)).tocsr()
    lengths = np.sqrt(np.asarray(sums.multiply(sums).sum(axis=1)).ravel())
    return 1.0 - float(lengths.sum()) / n_rows


def agreement(first: Any, second: Any) -> float:
    """Return the NMI of two labellings."""
    from sklearn.metrics import normalized_mutual_info_score

    return round(float(normalized_mutual_info_score(first, second)), 4)


def fit(bench: Bench) -> list[Figure]:
    """Time whole fits against scikit-learn's from the same centroids for the same iterations."""
    return [_fit(bench, K, *sizes) for K, sizes in bench.sizes.fits.items()]


def _fit(bench: Bench, n_clusters: int, n_rows: int, max_iter: int) -> Figure:
    bench.say(f"whole fit, K = {n_clusters}, {n_rows:,} rows, {max_iter} iterations")
    X = bench.rows(n_rows).X
    init = first_centroids(X, n_clusters)
    with threads(CORES):
        warm_up(X, n_clusters)
        scikit_learn(X[: 5 * n_clusters], init, 2)
        works = {
            "ours": lambda: ours(X, init, max_iter),
            "scikit_learn": lambda: scikit_learn(X, init, max_iter),
        }
        runs = in_turn(bench.sizes.repeats, works, budget=FIT_BUDGET)
        passes = timed(lambda: mini_batch(X, init, PASSES))
    must, aim = ASKED.get(n_clusters, (None, None))
    mine, peer = runs["ours"][0].value, runs["scikit_learn"][0].value
    seconds = passes.wall / PASSES
    own_seconds = float(np.median([one.wall for one in runs["ours"]])) / mine.n_iter_
    return Figure(
        f"fit-{n_clusters}",
        f"whole fit, two threads, against scikit-learn KMeans, K = {n_clusters}",
        ratios(runs["scikit_learn"], runs["ours"]), must=must, aim=aim,
        raw=raw(runs) | {"mini_batch": [passes.seconds()]},
        facts={
            "rows": n_rows, "non_zeros": int(X.nnz),
            "n_iter": [int(mine.n_iter_), int(peer.n_iter_)],
            "by_cpu": round(float(np.median(ratios(runs["scikit_learn"], runs["ours"], "cpu"))), 2),
            "loss": [round(loss(X, one.labels_), 6) for one in (mine, peer, passes.value)],
            "nmi_of_both": agreement(mine.labels_, peer.labels_),
            "mini_batch_pass_seconds": round(seconds, 3),
            "mini_batch_pass_over_our_iteration": round(seconds / own_seconds, 2),
        },
    )  # fmt: skip


def arxiv(bench: Bench) -> list[Figure]:
    """Time fits to convergence on real text, and hold both against the truth."""
    rows = corpora.arxiv(bench.arxiv, bench.cache)
    if rows is None:
        return [
            Figure(f"arxiv-{K}", _arxiv_title(K), must=5.0, aim=12.0,
                   skipped=f"no file {bench.arxiv}")
            for K in bench.sizes.arxiv
        ]  # fmt: skip
    some = bench.sizes.arxiv_rows
    X = rows.X if some is None else rows.X[:some]
    found = [_arxiv(bench, rows, X, K, repeats) for K, repeats in bench.sizes.arxiv.items()]
    return [*found, *(_truth(one) for one in found)]


def _truth(figure: Figure) -> Figure:
    """Return how much better than the peer's our labels fit the truth of about as many classes."""
    n_clusters = int(figure.name.removeprefix("arxiv-"))
    name = "nmi_label" if n_clusters < FINE else "nmi_label_fine"
    mine, theirs = figure.facts[name]
    return Figure(
        f"arxiv-nmi-{n_clusters}",
        f"arXiv, K = {n_clusters}: NMI with the truth, ours less scikit-learn's",
        (mine - theirs,), "", "more", 0.0, 0.0, facts={name: [mine, theirs]},
    )  # fmt: skip


def _arxiv_title(n_clusters: int) -> str:
    return f"arXiv abstracts to convergence against scikit-learn KMeans, K = {n_clusters}"


def _arxiv(bench: Bench, rows: Rows, X: Any, n_clusters: int, repeats: int) -> Figure:
    bench.say(f"arXiv to convergence, K = {n_clusters}, {X.shape[0]:,} rows")
    init = first_centroids(X, n_clusters)
    with threads(CORES):
        warm_up(X, n_clusters)
        works = {
            "ours": lambda: ours(X, init, ENOUGH),
            "scikit_learn": lambda: scikit_learn(X, init, ENOUGH),
        }
        runs = in_turn(repeats, works, budget=BUDGET)
    mine, peer = runs["ours"][0].value, runs["scikit_learn"][0].value
    return Figure(
        f"arxiv-{n_clusters}", _arxiv_title(n_clusters),
        ratios(runs["scikit_learn"], runs["ours"]), must=5.0, aim=12.0, raw=raw(runs),
        facts={
            "rows": X.shape[0], "non_zeros": int(X.nnz), "features": X.shape[1],
            "n_iter": [int(mine.n_iter_), int(peer.n_iter_)],
            "per_iteration": _per_iteration(runs, mine.n_iter_, peer.n_iter_),
            "loss": [round(loss(X, one.labels_), 6) for one in (mine, peer)],
            **_truths(rows, mine.labels_, peer.labels_),
        },
    )  # fmt: skip


def _per_iteration(runs: dict[str, list[Timed]], n_ours: int, n_theirs: int) -> float:
    """Return the ratio of the times of one iteration: both converge in their own number."""
    fair = [
        (theirs.wall / n_theirs) / (ours.wall / n_ours)
        for ours, theirs in zip(runs["ours"], runs["scikit_learn"], strict=True)
    ]
    return round(float(np.median(fair)), 2)


def _truths(rows: Rows, mine: NDArray[Any], peer: NDArray[Any]) -> dict[str, Any]:
    """Return NMI of ours and the peer's labels against both truths."""
    found = {}
    for name, truth in (("nmi_label", rows.topics), ("nmi_label_fine", rows.fine_topics)):
        if truth is not None:
            found[name] = [agreement(truth[: len(one)], one) for one in (mine, peer)]
    return found


def dask_ml(bench: Bench) -> list[Figure]:
    """Time a small dense fit against dask-ml's: it takes no sparse rows."""
    n_rows, n_features = bench.sizes.dask_ml
    name, n_clusters = "dask-ml", 20 if n_rows > 1000 else 4
    what = f"whole fit of {n_rows:,} dense rows × {n_features} against dask-ml KMeans"
    try:
        import dask_ml.cluster
    except ImportError as error:
        return [Figure(name, what, skipped=f"dask-ml cannot be imported: {error}")]
    import dask.array

    bench.say(what)
    X = dense_rows(n_rows, n_features)
    init, chunks = first_centroids(scipy.sparse.csr_matrix(X), n_clusters), n_rows // 8
    array = dask.array.from_array(X, chunks=(chunks, n_features))

    def theirs() -> Any:
        model = dask_ml.cluster.KMeans(
            n_clusters, init=init.astype(np.float32), max_iter=10, tol=0.0
        ).fit(array)
        return np.asarray(model.labels_), int(model.n_iter_)

    with threads(CORES):
        ours(X[: 5 * n_clusters], init, 2, "euclidean")
        works = {"ours": lambda: ours(X, init, 10, "euclidean"), "dask_ml": theirs}
        runs = in_turn(bench.sizes.repeats, works)
    labels, n_iter = runs["dask_ml"][0].value
    mine = runs["ours"][0].value
    return [
        Figure(
            name, what, ratios(runs["dask_ml"], runs["ours"]), raw=raw(runs),
            facts={
                "n_iter": [int(mine.n_iter_), n_iter],
                "nmi_of_both": agreement(mine.labels_, labels),
            },
        )
    ]  # fmt: skip


def dense_rows(n_rows: int, n_features: int) -> NDArray[np.float32]:
    """Return rows like embeddings: forty directions, much noise, unit length."""
    chance = np.random.default_rng(7)
    middles = chance.normal(size=(40, n_features))
    rows = middles[chance.integers(0, 40, n_rows)] + 1.5 * chance.normal(size=(n_rows, n_features))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)
