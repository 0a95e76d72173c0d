"""Whole fits to compare bit by bit: cases of any size, the schedulers they run under, digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import dask
import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from hmrf_dask import Constraints, HMRFKMeans
from hmrf_dask.corpus.partitioned import Corpus
from tests.support.problems import label_pairs, planted_text, string_ids

SIZES = {"n_rows": 120, "n_features": 150, "n_clusters": 3, "n_pairs": 60}
DENSE = {**SIZES, "n_features": 10, "dense": True}
SCHEDULERS = ("synchronous", "threads", "processes")


@dataclass(frozen=True, eq=False)
class Case:
    """Rows, pairs of row numbers and the parameters of an estimator."""

    X: Any
    must: NDArray[np.int64]
    cannot: NDArray[np.int64]
    parameters: dict[str, Any]
    ids: NDArray[np.str_] | None = None

    @property
    def n_rows(self) -> int:
        """Number of documents."""
        return int(self.X.shape[0])

    def corpus(self, bounds: int | Sequence[int]) -> Corpus:
        """Return the rows in so many partitions, or cut at given bounds."""
        if isinstance(bounds, int):
            return Corpus.from_rows(self.X, self.ids, n_partitions=bounds)
        return Corpus.from_rows(self.X, self.ids, n_partitions=1).with_partitions(bounds)

    def constraints(self) -> Constraints:
        """Return the pairs, by document id where there are ids."""
        if self.ids is None:
            return Constraints(self.must, self.cannot)
        return Constraints(self.ids[self.must], self.ids[self.cannot])

    def reordered(self, seed: int) -> Case:
        """Return the same documents in another order; only those with ids stay the same."""
        assert self.ids is not None
        order = np.random.default_rng(seed).permutation(self.n_rows)
        place = np.argsort(order)
        return replace(
            self,
            X=self.X[order],
            ids=self.ids[order],
            must=place[self.must],
            cannot=place[self.cannot],
        )

    def with_pairs_turned(self, seed: int) -> Case:
        """Return the same pairs in another order, each the other way round."""
        rng = np.random.default_rng(seed)
        return replace(
            self,
            must=rng.permutation(self.must)[:, ::-1],
            cannot=rng.permutation(self.cannot)[:, ::-1],
        )


def text_case(
    n_rows: int,
    n_features: int,
    n_clusters: int,
    n_pairs: int,
    *,
    dense: bool = False,
    ids: bool = False,
    seed: int = 0,
    **parameters: Any,
) -> Case:
    """Return planted text (or signed dense rows around its topics) with pairs that agree."""
    X, topics = planted_text(n_rows, n_features, n_clusters, seed, words=12)
    if dense:
        rng = np.random.default_rng(seed)
        centres = rng.normal(size=(n_clusters, n_features))
        X = (centres[topics] + rng.normal(scale=1.5, size=X.shape)).astype(np.float32)
    must, cannot = label_pairs(topics, n_pairs, seed + 1)
    chosen = {"n_clusters": n_clusters, "random_state": 0, "n_init": 2, **parameters}
    return Case(X, must, cannot, chosen, string_ids(n_rows, seed) if ids else None)


@dataclass(frozen=True)
class Result:
    """The end of a fit; `digest` is over the bytes of everything that is promised."""

    digest: str
    labels: NDArray[np.int32] = field(repr=False)
    stop: str
    n_iter: int
    history: tuple[float, ...] = field(repr=False)


def fit(case: Case, bounds: int | Sequence[int] = 1, *, run_dir: str | None = None) -> Result:
    """Fit a case under Dask's present scheduler; labels come in the order of ids."""
    model = HMRFKMeans(**case.parameters)
    model.fit(case.corpus(bounds), must_link=case.constraints(), run_dir=run_dir)
    labels = np.asarray(model.labels_.compute(), np.int32)
    if case.ids is not None:
        labels = labels[np.argsort(case.ids)]
    parts = (
        labels,
        model.cluster_centers_,
        model.feature_weights_,
        np.float64(model.objective_),
        np.asarray(model.objective_history_, np.float64),
        np.int64(model.n_iter_),
    )
    total = hashlib.sha256(model.stop_reason_.encode())
    for part in parts:
        total.update(np.ascontiguousarray(part).tobytes())
    history = tuple(model.objective_history_.tolist())
    return Result(total.hexdigest()[:16], labels, model.stop_reason_, model.n_iter_, history)


@contextmanager
def scheduled(scheduler: str, cluster: Any = None) -> Iterator[None]:
    """Run what is inside under one of `SCHEDULERS`; `cluster` holds the processes."""
    if scheduler == "processes":
        from distributed import Client

        with Client(cluster, set_as_default=True):
            yield
        return
    with dask.config.set(scheduler=scheduler, num_workers=4):
        yield


def digests(
    case: Case,
    partitions: Sequence[int | Sequence[int]],
    schedulers: Sequence[str],
    task_memory: str,
    cluster: Any = None,
) -> dict[tuple[str, str], str]:
    """Return the digest of a case for every partitioning under every scheduler."""
    found = {}
    with dask.config.set({"hmrf.task-memory": task_memory}):
        for scheduler in schedulers:
            with scheduled(scheduler, cluster) if scheduler else nullcontext():
                for bounds in partitions:
                    found[scheduler, str(bounds)] = fit(case, bounds).digest
    return found


@contextmanager
def one_process_cluster() -> Iterator[None]:
    """Open a cluster of two workers inside this process."""
    from distributed import Client

    address = "127.0.0.1:0"  # any port: tests run side by side
    with Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=address):
        yield


def chained_case() -> Case:
    """Return a case with a must-link chain so long that its closure is kept as a table."""
    case = text_case(**{**SIZES, "n_rows": 200})
    chain = np.arange(140)
    must = np.stack([chain[:-1], chain[1:]], axis=1)
    cannot = np.array([[0, 150], [3, 160], [151, 160], [152, 161]])
    return replace(case, must=must, cannot=cannot)


CASES = {
    "cosine": text_case(**SIZES),
    "cosine learned": text_case(**SIZES, learn_weights=True),
    "cosine potts open": text_case(**{**SIZES, "n_pairs": 150}, penalty="potts", closure=False),
    "cosine in tables": chained_case(),
    "euclidean": text_case(**SIZES, distortion="euclidean"),
    "i-divergence": text_case(**SIZES, distortion="i-divergence", max_iter=4),
    "kl": text_case(**SIZES, distortion="kl"),
    "pearson": text_case(**SIZES, distortion="pearson"),
    "cosine dense": text_case(**DENSE),
    "euclidean dense": text_case(**DENSE, distortion="euclidean"),
    "pearson dense": text_case(**DENSE, distortion="pearson"),
}


PARTITIONS = (1, 3, 24)


def labels_of_a_fit(seed: int) -> list[int]:
    rows = scipy.sparse.random_array((90, 40), density=0.3, rng=np.random.default_rng(0))
    model = HMRFKMeans(3, random_state=seed).fit(rows.tocsr(), must_link=[(0, 1)])
    return model.labels_.tolist()
