"""Rows about kernels alone, on one thread: E-steps against scikit-learn's, and our own.

What a kernel reads is made before the clock runs, on both sides: terms of rows and tables of
centroids here, norms and work arrays there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmrf_dask import Blocks, HMRFKMeans
from hmrf_dask.distortions import Distortion, make_distortion
from hmrf_dask.distortions.base import Extent
from hmrf_dask.rows.block import RowBlock, survey
from tests.benchmarks.corpora import first_centroids
from tests.benchmarks.measuring import Bench, Figure, Timed, in_turn, ratios, raw, threads

ASKED = {20: (6.0, 9.0), 100: (11.0, 15.0), 500: (35.0, 48.0)}
STEPS = 5  # the step that is timed
WIDTH = 256  # of vectors that go with words
MOVED = 0.03  # of their rows: float64 decides these, which takes as long as there are words
TIE = 1e-5  # distances closer than float32 sums of a hundred products can tell


@dataclass(frozen=True)
class Step:
    """An E-step in the course of a fit: rows have labels, centroids are their means."""

    distortion: Distortion
    block: RowBlock
    terms: Any
    table: Any
    centroids: NDArray[np.float64]
    labels: NDArray[np.int32]

    def nearest(self) -> NDArray[np.int32]:
        """Return the labels of our E-step."""
        return np.asarray(
            self.distortion.nearest(self.block, self.terms, self.table, self.labels)[0]
        )

    def distances(self, labels: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return every row's distance to the centroid of its label."""
        return self.distortion.own_distances(self.block, self.terms, self.table, labels)


def extent_of(block: RowBlock) -> Extent:
    """Return the facts of rows that distortions ask for."""
    facts = survey(block)
    return Extent(
        *block.shape,
        *(facts.minimum.astype(np.float64), facts.maximum.astype(np.float64)),
        *(float(facts.mass.mean()), float(facts.mass.max())),
    )


def block_of(X: Any) -> RowBlock:
    """Return the rows of a matrix, or of several kinds, as a block."""
    if isinstance(X, Blocks):
        return X.rows
    return RowBlock.from_array(X) if isinstance(X, np.ndarray) else RowBlock.from_scipy(X)


def fifth_step(X: Any, n_clusters: int, distortion: str = "cosine") -> Step:
    """Return the fifth E-step from random documents: some rows still move, as in most of a fit."""
    block, weights = block_of(X), np.ones(X.shape[1])
    first = first_centroids(block.to_scipy(), n_clusters)
    if distortion != "cosine":
        first += 1.0 / X.shape[1]  # an entry of zero is infinitely far from words it lacks
    model = HMRFKMeans(
        n_clusters, distortion=distortion, init=first, n_init=1, refine=False, max_iter=STEPS - 1,
        learn_weights=False, random_state=0,
    ).fit(X)  # fmt: skip
    bound = make_distortion(distortion).bind(extent_of(block))
    table = bound.table(model.cluster_centers_, weights, model.smoothing_)
    terms = bound.terms(block, weights)
    return Step(bound, block, terms, table, model.cluster_centers_, model.labels_)


class Lloyd:
    """scikit-learn's step on the same rows and centroids, its arrays made before."""

    def __init__(self, X: Any, centroids: NDArray[np.float64]) -> None:
        self.X = X
        self.before = np.ascontiguousarray(centroids, np.float32)
        self.after = np.zeros_like(self.before)
        self.weights = np.ones(X.shape[0], np.float32)
        self.sizes = np.zeros(len(centroids), np.float32)
        self.shifts = np.zeros(len(centroids), np.float32)
        self.labels = np.zeros(X.shape[0], np.int32)

    def __call__(self, *, update_centers: bool) -> NDArray[np.int32]:
        """Return the labels of one step on one thread."""
        from sklearn.cluster._k_means_lloyd import lloyd_iter_chunked_sparse

        lloyd_iter_chunked_sparse(
            self.X, self.weights, self.before, self.after, self.sizes, self.labels, self.shifts,
            1, update_centers=update_centers,
        )  # fmt: skip
        return self.labels.copy()


def differing(step: Step, ours: NDArray[np.int32], theirs: NDArray[np.int32]) -> dict[str, int]:
    """Return how many labels differ, and how many of them are no ties in float32."""
    different = np.flatnonzero(ours != theirs)
    gaps = np.abs(step.distances(ours) - step.distances(theirs))[different]
    return {"labels_apart": len(different), "apart_beyond_ties": int((gaps > TIE).sum())}


def estep(bench: Bench) -> list[Figure]:
    """Time our E-step against the Lloyd step as scikit-learn runs it; and its labels alone."""
    return [_estep(bench, n_clusters, n) for n_clusters, n in bench.sizes.estep_rows.items()]


def _estep(bench: Bench, n_clusters: int, n_rows: int) -> Figure:
    bench.say(f"E-step, K = {n_clusters}, {n_rows:,} rows")
    X = bench.rows(n_rows).X
    step = fifth_step(X, n_clusters)
    lloyd = Lloyd(X, step.centroids)
    with threads(1):
        step.nearest()
        lloyd(update_centers=True)  # both once before: code is loaded, arrays are in memory
        works = {
            "ours": step.nearest,
            "scikit_learn": lambda: lloyd(update_centers=True),
            "scikit_learn_labels_only": lambda: lloyd(update_centers=False),
        }
        runs = in_turn(bench.sizes.repeats, works, bench.sizes.at_least)
    must, aim = ASKED.get(n_clusters, (None, None))
    values = ratios(runs["scikit_learn"], runs["ours"], "cpu")
    labels_only = ratios(runs["scikit_learn_labels_only"], runs["ours"], "cpu")
    found = differing(step, runs["ours"][0].value, runs["scikit_learn"][0].value)
    if found["apart_beyond_ties"]:
        raise RuntimeError(
            f"our E-step must give scikit-learn's labels but for ties, got {found} at K = "
            f"{n_clusters}: a ratio of two different results says nothing"
        )
    each = min(one.cpu for one in runs["ours"]) / X.nnz
    return Figure(
        f"estep-{n_clusters}",
        f"E-step, one thread, against scikit-learn's sparse Lloyd step, K = {n_clusters}",
        values, must=must, aim=aim, raw=raw(runs),
        facts={
            "rows": n_rows, "non_zeros": int(X.nnz), "ns_per_non_zero": round(each * 1e9, 3),
            "without_update_of_centers": round(float(np.median(labels_only)), 2),
            "share_moved": round(float((runs["ours"][0].value != step.labels).mean()), 4), **found,
        },
    )  # fmt: skip


def kinds(bench: Bench) -> list[Figure]:
    """Time E-steps over words with vectors against those over words and over vectors alone."""
    return [_kinds(bench, n_clusters, n) for n_clusters, n in bench.sizes.estep_rows.items()]


def _kinds(bench: Bench, n_clusters: int, n_rows: int) -> Figure:
    bench.say(f"E-steps over words and vectors, K = {n_clusters}, {n_rows:,} rows")
    rows, rng = bench.rows(n_rows), np.random.default_rng(0)
    middles = rng.standard_normal((int(rows.topics.max()) + 1, WIDTH), np.float32)
    vectors = middles[rows.topics]
    vectors += 2.5 * rng.standard_normal(vectors.shape, np.float32)
    works = {"words": rows.X, "vectors": vectors, "both": Blocks([rows.X, vectors], [1, 0.5])}
    fifth = {name: fifth_step(X, n_clusters) for name, X in works.items()}
    with threads(1):
        steps = {name: with_movers(step) for name, step in fifth.items()}
        runs = in_turn(
            bench.sizes.repeats,
            {name: step.nearest for name, step in steps.items()}
            | {f"{name}, fifth step": step.nearest for name, step in fifth.items()},
            bench.sizes.at_least,
        )
    moved = {
        f"moved_in_fifth_step_{name}": round(float((one.nearest() != one.labels).mean()), 4)
        for name, one in fifth.items()
    }
    of_fifth = against_alone(runs, ", fifth step")
    return Figure(
        f"kinds-{n_clusters}",
        f"E-step over words and vectors, against the sum of both alone, K = {n_clusters}",
        against_alone(runs), better="less", must=1.15, aim=1.0, raw=raw(runs),
        facts={
            "rows": n_rows, "non_zeros": int(rows.X.nnz), "vector": WIDTH, "moved": MOVED,
            "fifth_step": round(float(np.median(of_fifth)), 3), **moved,
        },
    )  # fmt: skip


def with_movers(step: Step) -> Step:
    """Return a step before which the same rows have another label, whatever they are made of."""
    labels, rng = step.nearest(), np.random.default_rng(1)
    moving = rng.random(len(labels)) < MOVED
    labels[moving] = (labels[moving] + 1) % len(step.centroids)
    return replace(step, labels=labels)


def against_alone(runs: dict[str, list[Timed]], which: str = "") -> tuple[float, ...]:
    """Return the time of both kinds against the sum of each alone."""
    words, vectors = runs[f"words{which}"], runs[f"vectors{which}"]
    alone = [Timed(a.wall + b.wall, a.cpu + b.cpu) for a, b in zip(words, vectors, strict=True)]
    return ratios(runs[f"both{which}"], alone, "cpu")


def divergences(bench: Bench) -> list[Figure]:
    """Time the E-steps of the I-divergence and of KL against the cosine's."""
    K, n_rows = bench.sizes.n_clusters, bench.sizes.estep_rows.get(100, 600)
    bench.say(f"E-steps of divergences, K = {K}, {n_rows:,} rows")
    X = bench.rows(n_rows).X
    names = {"cosine": "cosine", "i_divergence": "i-divergence", "kl": "kl"}
    steps = {key: fifth_step(X, K, name) for key, name in names.items()}
    with threads(1):
        for step in steps.values():
            step.nearest()
        works = {key: step.nearest for key, step in steps.items()}
        runs = in_turn(bench.sizes.repeats, works, bench.sizes.at_least)
    asked = {"i_divergence": (1.4, 1.15), "kl": (None, None)}
    return [
        Figure(
            f"divergences-{names[key]}",
            f"E-step of the {names[key]} against the cosine's, one thread, K = {K}",
            ratios(runs[key], runs["cosine"], "cpu"), better="less", must=must, aim=aim,
            raw=raw({one: runs[one] for one in (key, "cosine")}),
            facts={"rows": n_rows, "non_zeros": int(X.nnz)},
        )
        for key, (must, aim) in asked.items()
    ]  # fmt: skip
