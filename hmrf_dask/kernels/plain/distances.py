"""Distances of rows to centroids, as `kernels.distances` defines them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmrf_dask.kernels.plain.numbers import add_exactly
from hmrf_dask.kernels.plain.pieces import ENTRIES, Piece, pieces, silent, spans
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, LabelArray, RowArray

_LINKED = -1  # as in kernels.distances
_FEATURES = 1 << 10  # at once, where a table is made
_CLUSTERS = 32  # at once, where every entry meets every cluster


@silent
def moments(rows: Any, weights: FloatArray, out: FloatArray) -> None:
    """Write Σ a x², Σ a x, Σ x² and Σ |x| of each row."""
    for piece in pieces(rows):
        x = piece.values
        weighted = weights[piece.features] * x
        for number, entries in enumerate((weighted * x, weighted, x * x, np.abs(x))):
            out[number, piece.rows] = piece.sums(entries)


@silent
def sizes(rows: Any, weights: FloatArray, out: FloatArray) -> None:
    """Write Σ a x² and Σ |x| of each row."""
    for piece in pieces(rows):
        x = piece.values
        out[0, piece.rows] = piece.sums_in_four(weights[piece.features] * x * x)
        out[1, piece.rows] = piece.sums_in_four(np.abs(x))


@silent
def centred_squares(
    rows: Any, weights: FloatArray, weight_sum: float, means: FloatArray, out: FloatArray
) -> None:
    """Write Σ a (x − mean)² of each row, zeros of sparse rows included."""
    for piece in pieces(rows):
        mean = means[piece.rows]
        away = piece.values - piece.spread(mean)
        weight = weights[piece.features]
        squares = piece.sums(weight * away * away)
        absent = np.maximum(weight_sum - piece.sums(weight), 0.0) * mean * mean
        short = np.diff(piece.indptr) < len(weights)
        out[piece.rows] = np.where(short, squares + absent, squares)


def _to_one(piece: Piece, dense: bool, terms: Any, table: Any, clusters: AnyArray) -> FloatArray:
    """Return the distance of each row to one cluster."""
    n_clusters, n_features = table.exact.shape
    places = piece.spread(clusters.astype(np.int64) * n_features) + piece.features
    flat = table.exact.reshape(-1)
    offset = piece.of(terms.offset)
    if not table.squared:
        total = piece.sparse(piece.values, places, n_clusters * n_features) @ flat
        shifted = piece.of(terms.shift) * table.extra[clusters]
        scaled = piece.of(terms.scale) * total
        return np.asarray(offset + table.bias[clusters] + scaled + shifted)
    centroid, weight, x = flat[places], table.weights[piece.features], piece.values
    if dense:
        away = x - centroid
        return np.asarray(offset + piece.sums(weight * away * away))
    total = piece.sums(weight * x * (x - 2.0 * centroid))
    return np.asarray(offset + (total + table.bias[clusters]))


@silent
def own_distances(
    rows: Any, terms: Any, table: Any, labels: LabelArray, order: AnyArray, out: FloatArray
) -> None:
    """Write the float64 distance of each row to the centroid of its label, 0 without one.

    In which `order` rows are taken is of no matter here.
    """
    out[:] = 0.0
    for piece in pieces(rows):
        own = labels[piece.rows]
        with_label = np.flatnonzero(own >= 0)
        if len(with_label) < len(own):
            piece = _within(piece, with_label)
        out[piece.rows] = _to_one(piece, rows.dense, terms, table, own[with_label])


def _within(piece: Piece, positions: AnyArray) -> Piece:
    """Return rows of a run of the block's rows, which know their numbers in the block."""
    return piece.take(positions)._replace(rows=piece.rows.start + positions)


@silent
def all_distances(
    rows: Any, terms: Any, table: Any, turned: Any, sums: FloatArray, out: FloatArray
) -> None:
    """Write the float64 distances to all centroids, sums term by term those of `_to_one`.

    `sums` is memory of the compiled kernel.
    """
    columns = np.ascontiguousarray(turned.table[:, : len(table.exact)])
    if table.squared and not rows.dense:
        _all_sparse_squares(rows, terms, table, columns, out)
        return
    for piece in pieces(rows, width=len(table.exact)):
        offset = piece.of(terms.offset)[:, None]
        if table.squared:
            out[piece.rows] = offset + _dense_squares(piece, table, columns)
            continue
        total = piece.sparse(piece.values, piece.features, len(columns)) @ columns
        scaled = piece.of(terms.scale)[:, None] * total
        shifted = piece.of(terms.shift)[:, None] * table.extra
        out[piece.rows] = offset + table.bias + scaled + shifted


def _dense_squares(piece: Piece, table: Any, columns: FloatArray) -> FloatArray:
    """Return Σ a (x − μ)² feature by feature, of all rows at once."""
    values = np.ascontiguousarray(piece.values.reshape(piece.n_rows, -1).T)
    total = np.zeros((piece.n_rows, columns.shape[1]))
    away, weighted = np.empty_like(total), np.empty_like(total)
    for x, weight, column in zip(values, table.weights, columns, strict=True):
        np.subtract(x[:, None], column, out=away)
        np.multiply(away, weight, out=weighted)
        weighted *= away
        total += weighted
    return total


def _all_sparse_squares(
    rows: Any, terms: Any, table: Any, columns: FloatArray, out: FloatArray
) -> None:
    for first in range(0, columns.shape[1], _CLUSTERS):
        last = first + _CLUSTERS
        doubled = 2.0 * columns[:, first:last]
        for piece in pieces(rows, width=len(table.exact)):
            weighted = table.weights[piece.features] * piece.values
            total = np.empty((piece.n_rows, doubled.shape[1]))
            for start, stop in spans(np.diff(piece.indptr), ENTRIES // 8, piece.n_rows):
                p, q = piece.indptr[start], piece.indptr[stop]
                terms_of = piece.values[p:q, None] - doubled[piece.features[p:q]]
                terms_of *= weighted[p:q, None]
                part = piece._replace(indptr=piece.indptr[start : stop + 1] - p)
                places = np.arange(q - p, dtype=piece.indptr.dtype)
                total[start:stop] = part.sparse(np.ones(q - p), places, int(q - p)) @ terms_of
            total += table.bias[first:last]
            out[piece.rows, first:last] = piece.of(terms.offset)[:, None] + total


@silent
def fill_finder(
    exact: FloatArray,
    metric: FloatArray,
    shares: FloatArray,
    middles: FloatArray,
    unit: float,
    begin: int,
    end: int,
    table: AnyArray,
    norms: FloatArray,
    errors: FloatArray,
    tops: FloatArray,
) -> None:
    """Write features of a float32 table and what its columns are like; see `kernels.finders`."""
    for first in range(begin, end, _FEATURES):
        chosen = slice(first, min(first + _FEATURES, end))
        part = exact[:, chosen]
        value = part - (middles[chosen] if len(middles) else part.mean(axis=0))
        value *= unit * metric[chosen] if len(metric) else unit
        stored = value.astype(np.float32)
        table[chosen, : len(exact)] = stored.T
        np.maximum(tops, np.abs(value).max(axis=1, initial=0.0), out=tops)
        share = shares[chosen] if len(shares) else 1.0
        norms += (share * (value * value)).sum(axis=1)
        value -= stored
        errors += (share * (value * value)).sum(axis=1)


@silent
def nearest(
    rows: Any,
    terms: Any,
    table: Any,
    finder: Any,
    factors: tuple[AnyArray, AnyArray],
    slack: FloatArray,
    todo: LabelArray,
    labels: LabelArray,
    scores: AnyArray,
    gaps: AnyArray,
    out: LabelArray,
    change: IntArray,
) -> None:
    """Write the nearest centroid of the rows `todo` and add the exact change of Σ D to `change`.

    Where that has no limbs it is not asked for. `scores` is memory of the compiled kernel. Margins
    stay unknown: rows are multiplied by the block, and none is spared alone.
    """
    wanted = np.zeros(len(labels), np.bool_)
    wanted[todo] = True
    for piece in pieces(rows, width=len(scores)):
        labels_of = labels[piece.rows]
        chosen, free = labels_of.copy(), wanted[piece.rows]
        if free.any():
            within, sole = _candidates(piece, finder, len(table.bias), *factors, slack)
            settled = (labels_of < 0) | (sole == labels_of) | (len(change) == 0)
            clear = free & (sole >= 0) & settled
            chosen[clear] = sole[clear]
            left = np.flatnonzero(free & ~clear)
            some = (_within(piece, left), rows.dense, terms, table, within[left], labels_of[left])
            chosen[left], moved = _decide(*some)
            if len(change):
                add_exactly(change, moved)
        out[piece.rows] = chosen


def lengths_between(
    one: FloatArray, other: FloatArray, metric: FloatArray, out: FloatArray
) -> None:
    """Write how far centroids are from those of the same clusters; no `metric`: all 1."""
    for h, (first, second) in enumerate(zip(one, other, strict=True)):
        away = (second - first) * (metric if len(metric) else 1.0)
        out[h] = np.sqrt(away @ away)


def rows_to_compare(
    norm: FloatArray,
    shift: FloatArray,
    slack: FloatArray,
    falls: FloatArray,
    labels: LabelArray,
    gaps: AnyArray,
    out: LabelArray,
    todo: LabelArray,
) -> int:
    """Write all free rows to `todo`: none has a margin here, see `nearest`."""
    out[:] = labels
    free = np.flatnonzero(labels != _LINKED)
    todo[: len(free)] = free
    return len(free)


def _candidates(
    piece: Piece, finder: Any, n_clusters: int, scale: AnyArray, shift: AnyArray, slack: FloatArray
) -> tuple[BoolArray, LabelArray]:
    """Return which clusters may be nearest by their float32 products, and the sole one or −1."""
    values, found = piece.values.astype(np.float32), finder.columns.table
    products = piece.sparse(values, piece.features, len(found)) @ found
    scores = piece.of(scale)[:, None].astype(np.float64) * products[:, :n_clusters]
    scores += finder.bias[:n_clusters]
    if finder.extra.any():
        scores += piece.of(shift)[:, None] * finder.extra[:n_clusters].astype(np.float64)
    slack = piece.of(slack)
    lowest = scores.argmin(axis=1)
    limit = scores[np.arange(len(scores)), lowest] + slack
    within = scores <= limit[:, None]
    within[slack == np.inf] = True  # what overflowed says nothing
    alone = np.count_nonzero(within, axis=1) == 1
    return within, np.where(alone & (slack < np.inf), lowest, -1).astype(np.int32)


def _decide(
    piece: Piece, dense: bool, terms: Any, table: Any, within: BoolArray, current: LabelArray
) -> tuple[LabelArray, FloatArray]:
    """Return the nearest of the candidates by float64, and by what terms Σ D changes."""
    every = np.arange(piece.n_rows)
    held = np.flatnonzero(current >= 0)
    within[held, current[held]] = True
    row, cluster = np.nonzero(within)
    distances = np.full(within.shape, np.inf)
    for first, stop in spans(np.diff(piece.indptr)[row], 4 * ENTRIES, ENTRIES):
        rows, clusters = row[first:stop], cluster[first:stop]
        some = piece.take(rows)._replace(rows=piece.rows[rows])
        distances[rows, clusters] = _to_one(some, dense, terms, table, clusters)
    present = np.where(current >= 0, distances[every, np.maximum(current, 0)], np.inf)
    distances[np.isnan(distances)] = np.inf
    best = distances.argmin(axis=1)
    least = distances[every, best]
    moves = least < present
    chosen = np.where(moves, best, current).astype(np.int32)
    left = moves & (current >= 0)
    return chosen, np.concatenate([least[left], -present[left]])


def quick_costs(
    rows: Any,
    columns: Any,
    parts: Any,
    factors: Any,
    ties: Any,
    known: RowArray,
    per_step: float,
    room: Any,
    begin: int,
    out: Any,
    near: Any,
) -> tuple[int, int]:
    """Leave every cost row to float64, which takes scipy but twice the time of float32."""
    _, _, _, coarse = out
    coarse[:] = True
    return len(coarse), 0
