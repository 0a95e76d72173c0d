"""Whole fits to compare bit by bit: what is fitted, the schedulers it runs under, digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import dask
import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from hmrf_dask import LSA, Blocks, Constraints, HMRFKMeans
from hmrf_dask.corpus.partitioned import Corpus
from tests.support.problems import label_pairs, planted_text, string_ids

SIZES = {"n_rows": 120, "n_features": 150, "n_clusters": 3, "n_pairs": 60}
SCHEDULERS = ("synchronous", "threads", "processes")
PARTITIONS = (1, 3, 24)
NO_PAIRS = np.zeros((0, 2), np.int64)
Bounds = int | Sequence[int]  # so many partitions, or where they begin and end


@dataclass(frozen=True, eq=False)
class Case:
    """What an estimator is fitted to, and how.

    Attributes
    ----------
    X : rows
    must, cannot : pairs of row numbers
    parameters : of the estimator
    ids : of the rows, if they have any
    known : classes of rows as the estimator takes them in y, or None
    kind : the class of the estimator
    memory : what a task may use, if not what is configured
    constants : module attributes that are replaced for the fit, by their dotted names
    """

    X: Any
    must: NDArray[np.int64]
    cannot: NDArray[np.int64]
    parameters: dict[str, Any]
    ids: NDArray[np.str_] | None = None
    known: Any = None
    kind: type[Any] = HMRFKMeans
    memory: str | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """Number of documents."""
        return int(self.X.shape[0])

    def corpus(self, bounds: Bounds) -> Corpus:
        """Return the rows in so many partitions, or cut at given bounds."""
        return corpus_of(self.X, bounds, self.ids)

    def uneven(self) -> list[int]:
        """Return bounds of empty partitions, partitions of one row and large ones."""
        n_rows, most = self.n_rows, 2 * self.n_rows // 3
        return [0, 0, 1, 1, 2, most, most, n_rows - 1, n_rows, n_rows]

    def constraints(self) -> Constraints | None:
        """Return the pairs, by document id where there are ids."""
        if not len(self.must) and not len(self.cannot):
            return None
        pairs = [one if self.ids is None else self.ids[one] for one in (self.must, self.cannot)]
        return Constraints(*(one if len(one) else None for one in pairs))

    def in_other_order(self, seed: int) -> Case:
        """Return the same problem: pairs turned, and documents too where ids name them."""
        turned = self.with_pairs_turned(seed)
        return turned if self.ids is None else turned.reordered(seed)

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
            known=None if self.known is None else self.known[order],
        )

    def with_pairs_turned(self, seed: int) -> Case:
        """Return the same pairs in another order, each the other way round."""
        rng = np.random.default_rng(seed)
        return replace(
            self,
            must=rng.permutation(self.must)[:, ::-1],
            cannot=rng.permutation(self.cannot)[:, ::-1],
        )

    def fitted(self, rows: Bounds | Corpus = 1, *, run_dir: str | None = None) -> Any:
        """Return the estimator, fitted to the rows (cut as asked, or from elsewhere)."""
        corpus = rows if isinstance(rows, Corpus) else self.corpus(rows)
        more = {"run_dir": run_dir} if run_dir else {}
        if (pairs := self.constraints()) is not None:
            more["must_link"] = pairs
        with ExitStack() as stack:
            if self.memory is not None:
                stack.enter_context(dask.config.set({"hmrf.task-memory": self.memory}))
            for name, value in self.constants.items():
                stack.enter_context(mock.patch(name, value))
            return self.kind(**self.parameters).fit(corpus, self.known, **more)

    def answer(self, rows: Bounds | Corpus = 1, *, run_dir: str | None = None) -> str:
        """Return a digest of everything that is promised of a fit."""
        model = self.fitted(rows, run_dir=run_dir)
        found = result_of(model, self.ids)
        return f"{found.digest} {sorted(found.violations.items())} {model.suspect_answers_}"


def corpus_of(rows: Any, bounds: Bounds, ids: Any = None) -> Corpus:
    """Return rows in so many partitions, or cut at bounds."""
    if isinstance(bounds, int):
        return Corpus.from_rows(rows, ids, n_partitions=bounds)
    return Corpus.from_rows(rows, ids, n_partitions=1).with_partitions(bounds)


@dataclass(frozen=True, eq=False)
class Mixed(Case):
    """Rows of words, and of vectors in the last columns."""

    n_vectors: int = 10

    def corpus(self, bounds: Bounds) -> Corpus:
        """Return both kinds side by side."""
        kinds = self.X[:, : -self.n_vectors], self.X[:, -self.n_vectors :].toarray()
        return corpus_of(Blocks(kinds, weights=[1, 0.5]), bounds, self.ids)


@dataclass(frozen=True, eq=False)
class Projection(Case):
    """Rows that LSA projects: without pairs, and with nothing to resume."""

    def answer(self, rows: Bounds | Corpus = 1, *, run_dir: str | None = None) -> str:
        """Return a digest of the components and of all projected rows, in the order of ids."""
        corpus = rows if isinstance(rows, Corpus) else self.corpus(rows)
        model = LSA(**self.parameters).fit(corpus)
        blocks = dask.compute(*model.transform(corpus).partitions)
        projected = np.concatenate([block.to_dense() for block in blocks])
        order = slice(None) if self.ids is None else np.argsort(self.ids)
        values = model.components_, model.singular_values_, model.explained_variance_ratio_
        return _digest((*values, projected[order]))


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
    violations: dict[str, int] = field(repr=False)


def fit(case: Case, rows: Bounds | Corpus = 1, *, run_dir: str | None = None) -> Result:
    """Fit a case under Dask's present scheduler; labels come in the order of ids."""
    return result_of(case.fitted(rows, run_dir=run_dir), case.ids)


def result_of(model: Any, ids: NDArray[np.str_] | None = None) -> Result:
    """Return what a fit ended with."""
    labels = np.asarray(model.labels_, np.int32)
    if ids is not None:
        labels = labels[np.argsort(ids)]
    parts = (
        labels,
        model.cluster_centers_,
        model.metric_ if model.feature_weights_ is None else model.feature_weights_,
        np.float64(model.objective_),
        np.asarray(model.objective_history_, np.float64),
        np.int64(model.n_iter_),
    )
    digest = _digest(parts, model.stop_reason_)
    history = tuple(model.objective_history_.tolist())
    return Result(digest, labels, model.stop_reason_, model.n_iter_, history, model.violations_)


def _digest(parts: Iterable[Any], first: str = "") -> str:
    total = hashlib.sha256(first.encode())
    for part in parts:
        total.update(np.ascontiguousarray(part).tobytes())
    return total.hexdigest()[:16]


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
    found, case = {}, replace(case, memory=task_memory)
    for scheduler in schedulers:
        with scheduled(scheduler, cluster) if scheduler else nullcontext():
            for bounds in partitions:
                found[scheduler, str(bounds)] = fit(
                    replace(case, memory=task_memory), bounds
                ).digest
    return found


@contextmanager
def one_process_cluster() -> Iterator[None]:
    """Open a cluster of two workers inside this process."""
    from distributed import Client

    address = "127.0.0.1:0"  # any port: tests run side by side
    with Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=address):
        yield


def labels_of_a_fit(seed: int) -> list[int]:
    rows = scipy.sparse.random_array((90, 40), density=0.3, rng=np.random.default_rng(0))
    model = HMRFKMeans(3, random_state=seed).fit(rows.tocsr(), must_link=[(0, 1)])
    return model.labels_.tolist()
