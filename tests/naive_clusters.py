"""The oracle of what a release says of clusters: their words, usual lengths, and outliers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tests import naive


def telling_words(counts: Sequence[Sequence[int]], words: Sequence[str], n: int) -> list[list[str]]:
    """Return the n words of each cluster with the highest p log(1 + A/f) log(1 + p/q)."""
    sizes = [sum(row) for row in counts]
    mean = sum(sizes) / max(1, sum(map(bool, sizes)))

    def score(row: Sequence[int], m: int) -> float:
        f, p = sum(other[m] for other in counts), row[m] / sum(row)
        q = (f - row[m] + 1) / (sum(sizes) - sum(row) + 1)
        return p * math.log(1 + mean / f) * math.log(1 + p / q)

    ordered = [sorted((-score(row, m), m) for m in range(len(row)) if row[m]) for row in counts]
    return [[words[m] for _, m in scores[:n]] for scores in ordered]


def usual(lengths: Sequence[int]) -> tuple[int, int]:
    """Return the lengths at the first and the third quartile."""
    n, ordered = len(lengths), sorted(lengths)
    return ordered[math.ceil(n / 4) - 1], ordered[math.ceil(3 * n / 4) - 1]


# ---- outliers


def median(numbers: Iterable[int]) -> int:
    """Return the lower median; 0 of none."""
    ordered = sorted(numbers)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0


def outliers(clusters: Sequence[Sequence[int | None]], share: float | None) -> list[list[bool]]:
    """Return which rows of each cluster are outliers, by their classes; None has no direction."""
    above = []
    for classes in clusters:
        middle = median(one for one in classes if one is not None)
        above.append([None if one is None else one - middle for one in classes])
    every = [one for cluster in above for one in cluster]
    known = [one for one in every if one is not None]
    if share is None:
        reach = 7 * max(1, median(map(abs, known))) // 2
    else:
        allowed = max(0, int(share * len(every)) - every.count(None))
        reach = 0
        while sum(one > reach for one in known) > allowed:
            reach += 1
    return [[one is None or one > reach for one in cluster] for cluster in above]


# ---- outliers kept out of centroids


def limit_factor(x: naive.Vector, began: naive.Matrix, weights: naive.Vector) -> float:
    """Return b of a text: 1 - s and s, s the mean similarity to all centroids, over breadth^.7."""
    near = math.fsum(1.0 - naive.cosine_distance(x, mu, weights) for mu in began) / len(began)
    length = math.sqrt(naive.dot(x, x, [1.0] * len(x)))
    breadth = math.fsum(abs(float(value)) for value in x) / length
    least = 2.0**-20
    return max(1.0 - near, least) * max(near, least) / max(breadth, 1.0) ** 0.7


def row_limits(
    model: naive.Model, labels: Any, weights: naive.Vector, reach: naive.Vector, began: naive.Matrix
) -> list[float]:
    """Return the distance beyond which each row is out; the phase `began` with those centroids."""
    texts = model.distortion == "cosine" and not (model.rows < 0).any()
    limits = []
    for x, h in zip(model.rows.tolist(), map(int, labels), strict=True):
        taken, limit = naive.row_as_taken(x, weights, model.distortion), float(reach[h])
        if model.distortion not in naive.LINEAR and not any(taken):
            limit = 0.0
        elif texts:
            limit *= limit_factor(x, began, weights)
        elif model.distortion == "euclidean":
            limit -= math.fsum(math.log(a) for a in weights)
        limits.append(limit)
    return limits


def own_distances(
    model: naive.Model, labels: Any, centroids: naive.Matrix, weights: naive.Vector
) -> list[float]:
    """Return D of each row to its centroid, its share of the smoothing with it."""
    own = []
    for x, h in zip(model.rows.tolist(), map(int, labels), strict=True):
        own.append(naive.distance(x, centroids[h], weights, model.distortion))
        if model.alpha:
            uniform = naive.uniform_row(model.rows.tolist(), model.distortion)
            own[-1] += model.alpha * naive.distance(
                uniform, centroids[h], weights, model.distortion
            )
    return own
