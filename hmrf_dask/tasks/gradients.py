"""The gradient of J by feature weights (KDD 2004, eq. 18-19, signs put right), rows and pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from hmrf_dask.checkpoints.records import CheckpointStore
from hmrf_dask.distortions.base import TableDistortion
from hmrf_dask.distortions.idivergence import IDivergence
from hmrf_dask.kernels import pairs as pair_kernels
from hmrf_dask.kernels.by_cluster import Moved, line_up
from hmrf_dask.kernels.gradients import (
    feature_squares,
    member_products,
    member_squares,
    rows_by_cluster,
    weighted_squares,
)
from hmrf_dask.kernels.pairs import Side
from hmrf_dask.kernels.reweighting import all_by_cluster
from hmrf_dask.linked.layout import CANNOT, IcmProblem, PairBlock
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.files import batches
from hmrf_dask.tasks.icm import alike, broken_closures, end_to_end, entries_of
from hmrf_dask.tasks.model import Model
from hmrf_dask.tasks.partitions import StoredLabels, TaskSlice, pick, terms_of
from hmrf_dask.types import FloatArray, IntArray

TOGETHER = 2**22  # numbers of sums of partners that are held at a time


def explicit_part(
    sides: tuple[RowBlock, RowBlock],
    block: PairBlock,
    model: Model,
    labels: StoredLabels,
    units: FloatArray,
) -> IntArray:
    """Return Σ ±w dφ of the violated pairs of one block in fixed point, shape (d + 2,).

    Entry d is times every a; the last is what violated cannot-links pay for the bounding box. Every
    entry is in its own unit, since features may differ widely in theirs.
    """
    distortion = model.distortion
    assert isinstance(distortion, TableDistortion)
    same, cannot, cost = alike(block, labels), block.kind == CANNOT, block.cost
    signed = np.where(cannot, np.where(same, -cost, 0.0), np.where(same, 0.0, cost))
    chosen = np.flatnonzero(signed)
    pairs = distortion.row_pairs(*sides, block.first[chosen], block.second[chosen], model.weights)
    sizes = (signed[chosen], model.weights, units[:-1])
    gradient = pair_kernels.pair_gradient(distortion.form, pairs, *sizes)
    return np.append(gradient, in_fixed_point(cost[cannot & same], units[-1]).sum())


def in_fixed_point(numbers: FloatArray, units: Any) -> IntArray:
    """Return numbers as integers, each rounded by itself: sums of them know no order."""
    scaled: FloatArray = numbers * units
    return np.rint(scaled).astype(np.int64)


def closure_part(
    problem: IcmProblem,
    rows: list[RowBlock],
    model: Model,
    stored: StoredLabels,
    units: FloatArray,
) -> IntArray:
    """Return the same for closures kept as tables, every entry of a table rounded by itself."""
    labels, costs = stored.read(), problem.closure_costs
    entries = entries_of(problem, labels, model.n_clusters)
    must, cannot = broken_closures(problem, entries)
    box = int((entries.count[cannot[0]] * entries.count[cannot[1]]).sum())
    if not len(must[0]) + len(cannot[0]):
        return np.zeros(len(units), np.int64)
    ends = np.concatenate([must, cannot], axis=1)
    signed = np.repeat([costs[0], -costs[1]], [len(must[0]), len(cannot[0])])
    needed, places = np.unique(ends, return_inverse=True)
    places = places.reshape(2, -1)
    both_ways = np.concatenate([places, places[::-1]], axis=1)
    joined = scipy.sparse.csr_array(
        (np.tile(signed, 2), tuple(both_ways)), shape=(len(needed),) * 2
    )
    tables = _tables(end_to_end(rows), model, joined, pick(entries.start, entries.member, needed))
    if model.distortion.learning == "variance":
        gradient = _scatter_between(tables, entries.count[needed], units[:-1])
    else:
        gradient = _turning(tables, units[:-1])
    return np.append(gradient, in_fixed_point(np.array([costs[1]]), units[-1]) * box)


@dataclass(frozen=True)
class Tables:
    """Σ z of the entries that broken closures join: S, and J the signed costs between them."""

    rows: Side
    roots: FloatArray  # √a
    joined: scipy.sparse.csr_array  # J, (entries, entries)
    start: IntArray  # the rows of each entry as CSR
    member: IntArray
    sums: scipy.sparse.csr_array  # S, (entries, d + 1), the centring last

    def partners(self) -> Iterator[tuple[slice, scipy.sparse.csr_array]]:
        """Yield J S for so few entries at a time that it stays small."""
        width = np.minimum(
            self.joined.astype(np.bool_) @ np.diff(self.sums.indptr), len(self.roots)
        )
        ends = np.cumsum(width)
        first = 0
        while first < len(ends):
            before = ends[first - 1] if first else 0
            last = max(int(np.searchsorted(ends, before + TOGETHER, side="right")), first + 1)
            part = scipy.sparse.csr_array(self.joined[first:last] @ self.sums)
            part.sort_indices()
            yield slice(first, last), part
            first = last


def _tables(
    block: RowBlock,
    model: Model,
    joined: scipy.sparse.csr_array,
    members: tuple[IntArray, IntArray],
) -> Tables:
    distortion, roots = model.distortion, np.sqrt(model.weights)
    assert isinstance(distortion, TableDistortion)
    rows = pair_kernels.side(block.arrays, distortion.terms(block, model.weights))
    start, member = members
    squared = distortion.form == pair_kernels.SQUARED
    sums = pair_kernels.sum_rows(rows, roots, squared=squared, start=start, member=member)
    shape = (len(start) - 1, len(roots) + 1)
    matrix = scipy.sparse.csr_array((sums.value, sums.feature, sums.start), shape=shape)
    return Tables(rows, roots, joined, start, member, matrix)


def _add_products(
    out: IntArray, left: scipy.sparse.csr_array, right: scipy.sparse.csr_array, factors: FloatArray
) -> None:
    """Add left ∘ right by feature, every entry times `factors` and rounded by itself."""
    products = scipy.sparse.csr_array(left * right)
    inside = products.indices < len(factors)  # the others are the centring
    features = products.indices[inside]
    np.add.at(out, features, in_fixed_point(products.data[inside], factors[features]))


def _scatter_between(tables: Tables, count: FloatArray, units: FloatArray) -> IntArray:
    """Return Σ ±w (z − z')²/a by feature over all pairs between joined entries.

    It is Q_e (J N)_e less S_e ∘ (J S)_e over all entries e, Q their sums of squares.
    """
    coefficients = np.repeat(tables.joined @ count, np.diff(tables.start))
    out = member_squares(tables.rows, tables.member, coefficients, units)
    factors = -units[:-1] / (tables.roots * tables.roots)
    for chosen, partners in tables.partners():
        _add_products(out, tables.sums[chosen], partners, factors)
    return out


def _turning(tables: Tables, units: FloatArray) -> IntArray:
    """Return ∂/∂log a of Σ ±w φ over all pairs between joined entries.

    It is the sum of −z_m z'_m + ½ (z·z')(z_m² + z'_m²), z with its centring worked in; what is
    times every a comes last.
    """
    roots, out = tables.roots, np.zeros(len(units), np.int64)
    coefficients = np.zeros(len(tables.member))
    means = tables.sums[:, [-1]].toarray().ravel() / np.sqrt((roots * roots).sum())
    theirs = tables.joined @ means
    for chosen, partners in tables.partners():
        own = tables.sums[chosen]
        _add_products(out, own, partners, -0.5 * units[:-1])
        if means.any():
            crossed = np.repeat(theirs[chosen], np.diff(own.indptr))
            alike = scipy.sparse.csr_array((crossed, own.indices, own.indptr), shape=own.shape)
            _add_products(out, own, alike, -roots * units[:-1])
        here = slice(*tables.start[[chosen.start, chosen.stop]].tolist())
        compressed = (partners.data, partners.indices, partners.indptr)
        start = tables.start[chosen.start : chosen.stop + 1] - here.start
        coefficients[here] = 0.5 * member_products(
            tables.rows, roots, compressed, start, tables.member[here]
        )
    out[-1] += in_fixed_point(-0.5 * means * theirs, units[-1]).sum()
    scaled = units * np.append(roots * roots, 1.0)
    return out + member_squares(tables.rows, tables.member, coefficients, scaled)


def noted_rows(partitions: TaskSlice, model: Model, run: CheckpointStore) -> list[Moved]:
    """Return the rows of some partitions cluster by cluster, for a driver that sees them too."""
    noted = []
    for block, cached, _, labels in partitions.labelled(run):
        terms = terms_of(block, cached, model)
        noted.append(all_by_cluster(block.arrays, terms, labels, model.n_clusters))
    return noted


class Overall(NamedTuple):
    """The model of one cluster of all rows, and λ of the normaliser that compares with it."""

    model: Model
    strength: float


def squares_of_slice(
    partitions: TaskSlice, model: Model, run: CheckpointStore, overall: Overall, exponent: int
) -> IntArray:
    """Return Σ c_i z_im²/a_m of some partitions.

    c_i is the similarity to the own centroid less λ times that to the global one.
    """
    squares = np.zeros(len(model.weights) + 1, np.int64)
    table = overall.model.table()
    for places, blocks in batches(partitions.blocks):
        labels = run.read_group([partitions.files[place] for place in places])
        terms = [
            terms_of(block, partitions.terms[place], model)
            for place, block in zip(places, blocks, strict=True)
        ]
        rows = rows_by_cluster([block.arrays for block in blocks], terms, labels, model.n_clusters)
        squares += weighted_squares(
            line_up(rows, 1.0), model.table(), table, overall.strength, exponent
        )
    return squares


def feature_moments(block: RowBlock, model: Model, units: FloatArray) -> IntArray:
    """Return Σ x² (or Σ x ln x − x) by feature of a partition, in fixed point of these units."""
    distortion = model.distortion
    if isinstance(distortion, IDivergence):
        return distortion.feature_entropies(block, units)
    return feature_squares(block.arrays, units)
