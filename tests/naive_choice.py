"""Oracles of the choice of K: plain loops, which import nothing from the package they judge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

Matrix = Any
Pairs = Sequence[tuple[int, int]]


def cosine(x: Any, y: Any) -> float:
    """Return 1 minus the cosine of two rows; 1 where one is all zeros."""
    lengths = math.sqrt(sum(a * a for a in x)) * math.sqrt(sum(b * b for b in y))
    return 1.0 - sum(a * b for a, b in zip(x, y, strict=True)) / lengths if lengths > 1e-9 else 1.0


def euclidean(x: Any, y: Any) -> float:
    """Return the squared distance of two rows."""
    return float(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))


def mean_of(rows: Matrix, members: Sequence[int], form: str) -> list[float]:
    """Return the mean of some rows, of length 1 each where only their directions count."""
    total = [0.0] * len(rows[0])
    for member in members:
        length = math.sqrt(sum(value * value for value in rows[member])) if form == "cosine" else 1
        for feature, value in enumerate(rows[member]):
            total[feature] += value / length / len(members)
    return total


def own_and_next(rows: Matrix, labels: Sequence[int], form: str) -> list[tuple[float, float]]:
    """Return how far each row is from the mean of its fellows, and from the nearest other mean."""
    distance = {"cosine": cosine, "euclidean": euclidean}[form]
    found = []
    for row, label in enumerate(labels):
        means = {}
        for cluster in set(labels):
            members = [i for i, other in enumerate(labels) if other == cluster and i != row]
            if members:
                means[cluster] = distance(rows[row], mean_of(rows, members, form))
        alone = 1.0 if form == "cosine" else math.inf
        found.append((means.pop(label, alone), min(means.values())))
    return found


def silhouette(distances: Sequence[tuple[float, float]]) -> float:
    """Return the mean of (b − a) / max(a, b)."""
    shares = []
    for own, other in distances:
        larger = max(own, other)
        shares.append(-1.0 if own == math.inf else (other - own) / larger if larger else 0.0)
    return sum(shares) / len(shares)


def adjusted_rand(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the adjusted Rand index of two labellings, pair by pair."""
    pairs = list(combinations(range(len(first)), 2))
    in_first = sum(first[i] == first[j] for i, j in pairs)
    in_second = sum(second[i] == second[j] for i, j in pairs)
    in_both = sum(first[i] == first[j] and second[i] == second[j] for i, j in pairs)
    chance = in_first * in_second / len(pairs)
    return (in_both - chance) / ((in_first + in_second) / 2 - chance)


def implied(n_rows: int, must: Pairs, cannot: Pairs) -> tuple[set[Any], set[Any]]:
    """Return all pairs that are the same, and all that are different, as far as pairs tell."""
    group = list(range(n_rows))
    for i, j in must:
        group = [group[i] if one == group[j] else one for one in group]
    rivals = {frozenset((group[i], group[j])) for i, j in cannot if group[i] != group[j]}
    pairs = list(combinations(range(n_rows), 2))
    same = {(i, j) for i, j in pairs if group[i] == group[j]}
    return same, {(i, j) for i, j in pairs if frozenset((group[i], group[j])) in rivals}


def contradicted(
    n_rows: int, must: Pairs, cannot: Pairs, labels: Sequence[int]
) -> tuple[float, float]:
    """Return how many answers labels contradict, all that follows weighed as the given ones."""
    same, different = implied(n_rows, must, cannot)
    share = (len(must) + len(cannot)) / (len(same) + len(different))
    split = sum(labels[i] != labels[j] for i, j in same)
    return split * share, sum(labels[i] == labels[j] for i, j in different) * share
