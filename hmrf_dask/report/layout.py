"""Where clusters and documents lie on the map: clusters that are alike lie close to each other.

Clusters by t-SNE (van der Maaten, Hinton, JMLR 2008) of their centroids from principal components:
nothing is drawn, so the same centroids lie at the same places. A document lies on the way from its
cluster to its runner-up, as far as its distances to the two say; which way around is by its hash.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from hmrf_dask.types import AnyArray, FloatArray, IntArray

SIDE: Final = 1000  # places are 0 to this
MOST_PLACED: Final = 1_000  # clusters that t-SNE places; smaller ones lie next to those
_STEPS, _EARLY = 300, 80
_BLOCK = 2**23  # numbers of centroids that are in memory as float64 at a time


def likeness(centroids: AnyArray, rows: AnyArray | None = None) -> FloatArray:
    """Return the cosines of centroids, those of some rows with all; 0 of an empty one.

    Examples
    --------
    >>> likeness(np.array([[2.0, 0.0], [1.0, 1.0]])).round(3).tolist()
    [[1.0, 0.707], [0.707, 1.0]]
    """
    chosen = np.arange(len(centroids)) if rows is None else rows
    products = np.zeros((len(chosen), len(centroids)))
    sizes = np.zeros(len(centroids))
    step = max(1, _BLOCK // max(len(centroids), 1))
    with threadpool_limits(1):  # sums in one order
        for start in range(0, centroids.shape[1], step):
            part = np.asarray(centroids[:, start : start + step], np.float64)
            products += part[chosen] @ part.T
            sizes += np.einsum("ij,ij->i", part, part)
    lengths = np.sqrt(sizes)
    lengths[lengths == 0.0] = np.inf
    cosines: FloatArray = products / lengths[chosen][:, None] / lengths
    return cosines


def lay_out(alike: FloatArray) -> FloatArray:
    """Return places of clusters in a plane, (K, 2) in 0 to 1, by how alike they are.

    Examples
    --------
    >>> lay_out(np.eye(2)).tolist()
    [[0.2, 0.5], [0.8, 0.5]]
    """
    n_clusters = len(alike)
    if n_clusters < 3:
        return np.array([[0.5, 0.5]] if n_clusters == 1 else [[0.2, 0.5], [0.8, 0.5]])[:n_clusters]
    with threadpool_limits(1):
        places = _descended(_affinities(alike), _principal(alike))
    return _framed(places)


def _principal(alike: FloatArray) -> FloatArray:
    """Return the first two principal coordinates, each with its largest value positive."""
    centred = alike - alike.mean(axis=0)
    centred -= centred.mean(axis=1, keepdims=True)
    values, vectors = np.linalg.eigh((centred + centred.T) / 2)
    axes = vectors[:, [-1, -2]] * np.sqrt(np.maximum(values[[-1, -2]], 1e-12))
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    axes = axes * np.where(signs == 0, 1.0, signs)
    # Equal clusters would lie at one place for ever.
    turns = np.arange(len(axes)) * 2.399963
    axes = axes / max(float(np.abs(axes).max()), 1e-12)
    first: FloatArray = 1e-2 * (axes + 1e-3 * np.stack([np.cos(turns), np.sin(turns)], axis=1))
    return first


def _affinities(alike: FloatArray) -> FloatArray:
    """Return how likely each two clusters are neighbours, symmetric, of sum 1."""
    n_clusters = len(alike)
    far = np.maximum(1.0 - alike, 0.0)
    np.fill_diagonal(far, np.inf)
    wanted = math.log(min(12.0, (n_clusters - 1) / 2))
    low, high = np.zeros(n_clusters), np.full(n_clusters, 1e6)
    nearest = far.min(axis=1, keepdims=True)
    scale = np.ones(n_clusters)
    for _ in range(40):  # bisection of each perplexity
        likely = np.exp(-(far - nearest) * scale[:, None])
        total = likely.sum(axis=1)
        spread = np.where(np.isfinite(far), far - nearest, 0.0)
        entropy = np.log(total) + scale * (likely * spread).sum(axis=1) / total
        low, high = np.where(entropy > wanted, scale, low), np.where(entropy > wanted, high, scale)
        scale = np.where(high >= 1e6, 2 * scale, (low + high) / 2)
    likely = np.exp(-(far - nearest) * scale[:, None])
    likely /= likely.sum(axis=1, keepdims=True)
    together = (likely + likely.T) / (2 * n_clusters)
    affinities: FloatArray = np.maximum(together, 1e-12)
    return affinities


def _descended(likely: FloatArray, places: FloatArray) -> FloatArray:
    """Return the places after the descent of t-SNE."""
    n_clusters = len(places)
    rate, speed, gains = max(n_clusters / 4, 10.0), np.zeros_like(places), np.ones_like(places)
    for step in range(_STEPS):
        squares = np.einsum("ij,ij->i", places, places)
        near = 1.0 / (1.0 + np.maximum(squares[:, None] + squares - 2 * places @ places.T, 0.0))
        np.fill_diagonal(near, 0.0)
        pull = ((4.0 if step < _EARLY else 1.0) * likely - near / near.sum()) * near
        slope = 4.0 * (pull.sum(axis=1)[:, None] * places - pull @ places)
        gains = np.where(slope * speed > 0, gains * 0.8, gains + 0.2).clip(0.01)
        speed = (0.5 if step < _EARLY else 0.8) * speed - rate * gains * slope
        places = places + speed
        places = places - places.mean(axis=0)
    return places


def _framed(places: FloatArray) -> FloatArray:
    """Return places in 0 to 1, with a margin; the wider side is the horizontal one."""
    spans = np.ptp(places, axis=0)
    if spans[1] > spans[0]:
        places = places[:, ::-1]
    low, span = places.min(axis=0), np.maximum(np.ptp(places, axis=0), 1e-9)
    framed: FloatArray = 0.06 + 0.88 * (places - low) / span
    return framed


def place_clusters(centroids: AnyArray, sizes: IntArray) -> FloatArray:
    """Return places of all clusters; of more than `MOST_PLACED` the largest are laid out."""
    order = np.lexsort((np.arange(len(sizes)), -sizes))
    large, small = order[:MOST_PLACED], order[MOST_PLACED:]
    places = np.empty((len(sizes), 2))
    places[large] = lay_out(likeness(centroids[np.sort(large)]))[np.argsort(np.argsort(large))]
    for start in range(0, len(small), MOST_PLACED):
        part = small[start : start + MOST_PLACED]
        rows = MOST_PLACED + np.arange(len(part))
        alike = likeness(centroids[np.concatenate([large, part])], rows)
        nearest = large[alike[:, : len(large)].argmax(axis=1)]
        turns = 2.399963 * (start + np.arange(len(part)))
        places[part] = places[nearest] + 0.012 * np.stack([np.cos(turns), np.sin(turns)], axis=1)
    return places.clip(0.0, 1.0)


def place_documents(
    own: FloatArray, other: FloatArray, shares: FloatArray, keys: AnyArray
) -> IntArray:
    """Return places of documents, (n, 2) in 0 to `SIDE`.

    Parameters
    ----------
    own, other : float array, shape (n, 2)
        Places of the cluster and of the runner-up, 0 to 1.
    shares : float array, shape (n,)
        How far each is on the way to the runner-up, 0 to 1: 0.5 is as near to the one as the other.
    keys : uint64 array, shape (n,)
        Hashes of the ids.
    """
    turns = (keys & np.uint64(0xFFFFFF)).astype(np.float64) / 2.0**24 * (2 * math.pi)
    away = np.sqrt(((keys >> np.uint64(24)) & np.uint64(0xFFFF)).astype(np.float64) / 2.0**16)
    way = other - own
    length = np.sqrt((way**2).sum(axis=1, keepdims=True))
    reach = np.minimum(0.06, np.where(length > 0, 0.33 * length, 0.06))
    around = reach * away[:, None] * np.stack([np.cos(turns), np.sin(turns)], axis=1)
    far = np.minimum(length, 0.2) / np.where(length > 0, length, 1.0)
    shift = np.clip(shares, 0.0, 1.0)[:, None]
    places = (own + shift * far * way + around).clip(0.0, 1.0)
    rounded: IntArray = np.rint(SIDE * places).astype(np.int64)
    return rounded
