"""What the violated pairs of closures cost in float64, from counts and summed rows.

Per group g and cluster h: N, ΣA and S = Σ z. All pairs between two such sets cost
N'·ΣA + N·ΣA' − κ S·S', so a closure costs what its rows cost, never its pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse

from hmrf_dask.distortions.base import TableDistortion
from hmrf_dask.em.model import Model, Penalties
from hmrf_dask.kernels import pairs as pair_kernels
from hmrf_dask.kernels.exact import exact_sum
from hmrf_dask.linked_layout import Bundle
from hmrf_dask.rows import RowBlock
from hmrf_dask.types import FloatArray, IntArray, LabelArray


@dataclass(frozen=True)
class Embedding:
    """Rows so that φ = A_i + A_j − κ z_i·z_j, the product weighted by `metric` a column."""

    rows: scipy.sparse.csr_array
    own: FloatArray  # A
    metric: FloatArray
    kappa: float


def embed(block: RowBlock, model: Model, potts: bool) -> Embedding:
    """Return the rows of a block as the penalty's inner product sees them."""
    distortion = model.distortion
    assert isinstance(distortion, TableDistortion)
    if potts:
        nothing = scipy.sparse.csr_array((block.n_rows, block.n_features + 1))
        return Embedding(nothing, np.full(block.n_rows, 0.5), np.ones(block.n_features + 1), 0.0)
    terms = distortion.terms(block, model.weights)
    lengths = np.diff(block.indptr)
    columns = (
        np.tile(np.arange(block.n_features), block.n_rows) if block.is_dense else block.indices
    )
    roots = np.sqrt(model.weights)
    values = np.repeat(terms.factor, lengths) * roots[columns] * block.values
    starts = block.indptr.astype(np.int64)
    shape = (block.n_rows, block.n_features)
    rows = scipy.sparse.csr_array((values, columns, starts), shape=shape)
    centring = scipy.sparse.csr_array(terms.extra[:, None] * np.sqrt(model.weights.sum()))
    whole = scipy.sparse.csr_array(scipy.sparse.hstack([rows, centring], format="csr"))
    metric = np.ones(block.n_features + 1)
    metric[-1] = -1.0
    squared = distortion.form == pair_kernels.SQUARED
    own = np.asarray((rows * rows).sum(axis=1)).ravel() if squared else np.full(block.n_rows, 0.5)
    return Embedding(whole, own, metric, float(distortion.kappa))


@dataclass(frozen=True)
class ClosureSums:
    """Counts, ΣA and Σz of every (group, cluster) in use, groups in table form only."""

    group: IntArray
    cluster: IntArray
    count: FloatArray
    own: FloatArray
    sums: scipy.sparse.csr_array
    pick: scipy.sparse.csr_array  # (entries, points): which rows an entry adds up

    def of(self, group: int) -> IntArray:
        """Return the places of one group."""
        return np.arange(*np.searchsorted(self.group, [group, group + 1]))


def closure_sums(
    bundle: Bundle, embedding: Embedding, labels: LabelArray, n_clusters: int
) -> ClosureSums:
    """Return the tables of a bundle in float64, rows added in point order."""
    points = np.flatnonzero(bundle.group_tables[bundle.groups])
    keys = bundle.groups[points].astype(np.int64) * n_clusters + labels[points]
    used, places = np.unique(keys, return_inverse=True)
    pick = scipy.sparse.csr_array(
        (np.ones(len(points)), (places, points)), shape=(len(used), embedding.rows.shape[0])
    )
    return ClosureSums(
        used // n_clusters,
        used % n_clusters,
        np.bincount(places, minlength=len(used)).astype(np.float64),
        np.bincount(places, embedding.own[points], len(used)).astype(np.float64),
        scipy.sparse.csr_array(pick @ embedding.rows),
        pick,
    )


def between(sums: ClosureSums, embedding: Embedding, one: IntArray, other: IntArray) -> FloatArray:
    """Return Σ φ over all pairs between entries one[t] and other[t] of the tables."""
    products = (sums.sums[one] * sums.sums[other]) @ embedding.metric
    return (
        sums.count[other] * sums.own[one]
        + sums.count[one] * sums.own[other]
        - embedding.kappa * np.asarray(products)
    )


def broken_closures(
    bundle: Bundle, sums: ClosureSums
) -> tuple[tuple[IntArray, IntArray], tuple[IntArray, IntArray]]:
    """Return the entries between which must-links are broken, then the same of cannot-links."""
    must: list[tuple[int, int]] = []
    for group in np.flatnonzero(bundle.group_tables):
        places = sums.of(int(group))
        must.extend((int(a), int(b)) for t, a in enumerate(places) for b in places[t + 1 :])
    cannot: list[tuple[int, int]] = []
    for group, rival in bundle.rivals.tolist():
        mine, theirs = sums.of(group), sums.of(rival)
        _, a, b = np.intersect1d(sums.cluster[mine], sums.cluster[theirs], return_indices=True)
        cannot.extend(zip(mine[a].tolist(), theirs[b].tolist(), strict=True))
    return _ends(must), _ends(cannot)


def _ends(entries: list[tuple[int, int]]) -> tuple[IntArray, IntArray]:
    array = np.asarray(entries, np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def table_penalties(
    bundle: Bundle,
    rows: RowBlock,
    model: Model,
    potts: bool,
    labels: LabelArray,
    explicit: Penalties,
    costs: tuple[float, float],
) -> Penalties:
    """Return the penalties of a bundle in table form: its explicit ones and those of its closures.

    `rows` are in the order of the bundle's partitions, `costs` what one must-link and one
    cannot-link of a closure cost.
    """
    embedding = embed(rows.take(bundle.rows), model, potts)
    sums = closure_sums(bundle, embedding, labels, model.n_clusters)
    must, cannot = broken_closures(bundle, sums)
    largest = 1.0 if potts else model.distortion.maximum(model.weights)
    must_costs = costs[0] * between(sums, embedding, *must)
    together = sums.count[cannot[0]] * sums.count[cannot[1]]
    cannot_costs = (
        costs[1] * (largest * together - between(sums, embedding, *cannot))
        if not potts
        else costs[1] * together
    )
    return replace(
        explicit,
        must=explicit.must + exact_sum(must_costs),
        cannot=explicit.cannot + exact_sum(cannot_costs),
    )
