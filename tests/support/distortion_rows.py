"""Rows as a distortion sees them, and what the nearest centroid of each must be."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from hmrf_dask.distortions import Distortion, Extent, OwnDistortion, make_distortion
from hmrf_dask.kernels.distances import LINKED
from hmrf_dask.kernels.exact import exact_integer, exact_sum
from hmrf_dask.kernels.sums import fixed_point_exponent
from hmrf_dask.rows.block import RowBlock


class OwnEuclid(OwnDistortion):
    """Squared Euclidean distance as a user would write it: loops, so a row depends on itself."""

    name = "own-euclid"

    def distance_matrix(self, rows: Any, centroids: Any) -> Any:
        dense = dense_of(rows)
        return np.array([[((x - mu) ** 2).sum() for mu in centroids] for x in dense]).reshape(
            len(dense), len(centroids)
        )

    def pair_distances(self, rows: Any, others: Any) -> Any:
        return ((dense_of(rows) - dense_of(others)) ** 2).sum(axis=1)

    def largest_pair_distance(self, minimum: Any, maximum: Any) -> float:
        return float(((maximum - minimum) ** 2).sum())


def dense_of(rows: Any) -> Any:
    return rows.toarray() if scipy.sparse.issparse(rows) else rows


def extent_of(rows: Any) -> Extent:
    rows = np.asarray(rows, np.float64)
    mass = np.abs(rows).sum(axis=1)
    return Extent(
        len(rows), rows.shape[1], rows.min(axis=0), rows.max(axis=0), mass.mean(), mass.max()
    )


def bound(name: str, rows: Any) -> Distortion:
    distortion = OwnEuclid() if name == "own-euclid" else make_distortion(name)
    return distortion.bind(extent_of(rows))


def blocks_of(rows: Any) -> list[RowBlock]:
    """Return rows as sparse ones, as dense ones, and as sparse ones with a dense end."""
    first = RowBlock.from_scipy(scipy.sparse.csr_array(rows)), RowBlock.from_array(rows)
    middle = rows.shape[1] // 2
    words = RowBlock.from_scipy(scipy.sparse.csr_array(rows[:, :middle]))
    return [*first, RowBlock.side_by_side(words, RowBlock.from_array(rows[:, middle:]))]


def used(distortion: Distortion, block: RowBlock, centroids: Any, weights: Any, smoothing=0.0):
    return distortion.terms(block, weights), distortion.table(centroids, weights, smoothing)


def expected_nearest(every: Any, labels: Any) -> Any:
    """Return what the rules say: the least float64, ties to the present, then the lowest index."""
    out = labels.copy()
    for i, label in enumerate(labels):
        if label == LINKED:
            continue
        least = every[i].min()
        if label < 0 or every[i, label] > least:
            out[i] = int(np.flatnonzero(every[i] == least)[0])
    return out


def check_nearest(distortion: Distortion, block: RowBlock, terms: Any, table: Any) -> None:
    every = distortion.distances(block, terms, table)
    rng = np.random.default_rng(block.n_rows)
    labels = rng.integers(-2, every.shape[1], block.n_rows).astype(np.int32)
    nearest, change = distortion.nearest(block, terms, table, labels)
    assert nearest.dtype == np.int32
    assert nearest.tolist() == expected_nearest(every, labels).tolist()
    moved = np.flatnonzero((labels >= 0) & (nearest != labels))
    after, before = every[moved, nearest[moved]], every[moved, labels[moved]]
    assert exact_integer(change) == exact_integer(exact_sum(after)) - exact_integer(
        exact_sum(before)
    )


def fixed_sums(distortion: Distortion, block: RowBlock, labels: Any, K: int, weights: Any) -> Any:
    """Return sums as integers, their exponent, and counts."""
    terms = distortion.terms(block, weights)
    limit = distortion.summand_bound(None, weights) or distortion.summand_bound(terms, weights)
    exponent = fixed_point_exponent(block.n_rows, float(limit or 1.0))
    nowhere = np.full(block.n_rows, -1, np.int32)
    sums = distortion.sum_moves(block, terms, weights, nowhere, labels, K, exponent)
    return sums.to_dense(), exponent, sums.counts


def sums_of(distortion: Distortion, block: RowBlock, labels: Any, K: int, weights: Any) -> Any:
    sums, exponent, counts = fixed_sums(distortion, block, labels, K, weights)
    return sums * 2.0**-exponent, counts


def text_like(n: int, d: int, seed: int) -> Any:
    """Return rows with few entries of very different frequency."""
    rng = np.random.default_rng(seed)
    rows = rng.gamma(0.5, size=(n, d)) * (rng.random((n, d)) < 0.6 / (1 + np.arange(d) / 4))
    rows[rows.sum(axis=1) == 0, 0] = 1.0
    return rows.astype(np.float32)
