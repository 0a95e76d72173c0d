"""The oracle of trust in answers: what breaking them costs, and how likely each is, in plain loops.

It imports nothing of the package it judges. An answer is (i, j, same, p, cost): two rows, whether
they are said to be the same, how likely that is right, and what its cost is multiplied by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from tests import naive

Answer = tuple[int, int, bool, float, float]
CERTAIN = math.log(1e6)  # log odds of what is certain


def spread(rows: naive.Matrix, distortion: str) -> float:
    """Return the standard deviation of φ over all pairs of rows; few rows only."""
    weights = [1.0] * len(rows[0])
    scales = [
        naive.penalty_scale(one, other, weights, distortion) for one, other in combinations(rows, 2)
    ]
    mean = math.fsum(scales) / len(scales)
    return math.sqrt(math.fsum((scale - mean) ** 2 for scale in scales) / len(scales))


def log_odds(p: float) -> float:
    """Return ln(p / (1 - p)), cut off where an answer is certain."""
    if p in (0.0, 1.0):
        return CERTAIN if p else -CERTAIN
    return max(-CERTAIN, min(CERTAIN, math.log(p / (1.0 - p))))


def costed_pairs(
    n_rows: int, answers: Sequence[Answer], kappa: float, *, closure: bool
) -> naive.Pairs:
    """Return the pairs of J: certain ones closed, of the others those that these do not decide.

    Costs are multiples of the largest power of two that is 1/256 of the largest of them, or less.
    """
    votes: dict[tuple[bool, int, int], list[tuple[float, float]]] = {}
    for i, j, same, p, cost in answers:
        odds = log_odds(p)
        kind = same if odds >= 0 else not same
        votes.setdefault((kind, min(i, j), max(i, j)), []).append((abs(odds), cost))
    odds = {pair: math.fsum(own for own, _ in given) for pair, given in votes.items()}
    prices = {
        pair: kappa * min(odds[pair], CERTAIN) * _mean_cost(given) for pair, given in votes.items()
    }
    whole = kappa * CERTAIN if any(own >= CERTAIN for own in odds.values()) else 0.0
    unit = 2.0 ** (min(0, math.floor(math.log2(max(whole, *prices.values())))) - 8)
    whole = round(whole / unit) * unit
    certain: dict[bool, naive.Costs] = {True: {}, False: {}}
    doubted: dict[bool, naive.Costs] = {True: {}, False: {}}
    for (same, *pair), price in prices.items():
        kind = certain if odds[same, *pair] >= CERTAIN else doubted
        kind[same][pair[0], pair[1]] = round(price / unit) * unit
    closed = naive.effective_pairs(
        n_rows, certain[True], certain[False], certain[True].values(), certain[False].values(),
        must_link_cost=whole, cannot_link_cost=whole, closure=closure, on_conflict="keep",
    )  # fmt: skip
    torn = {row for rows in closed.conflicting for row in rows}

    def decided(pair: tuple[int, int]) -> bool:
        written = pair in closed.must or pair in closed.cannot
        return closure and written and not torn & set(pair)

    open_must, open_cannot = (
        {pair: cost for pair, cost in doubted[kind].items() if not decided(pair)}
        for kind in (True, False)
    )
    return replace(closed, must=closed.must | open_must, cannot=closed.cannot | open_cannot)


def _mean_cost(given: Sequence[tuple[float, float]]) -> float:
    """Return the mean of costs, each as often as it has odds."""
    odds = math.fsum(own for own, _ in given)
    return math.fsum(own * cost for own, cost in given) / odds if odds else 0.0


def likelihoods(
    model: naive.Model, labels: Any, n_clusters: int, answers: Sequence[Answer], kappa: float
) -> list[float]:
    """Return how likely each answer is right, by the rows without it and by its own trust."""
    label = [int(value) for value in labels]
    costs = [row_costs(model, label, n_clusters, row) for row in range(len(label))]
    right = []
    for number, (i, j, same, p, _) in enumerate(answers):
        ends = []
        for row in (i, j):
            own = list(costs[row])
            for other, (a, b, said, trust, _) in enumerate(answers):
                if other != number and row in (a, b):
                    cost = kappa * log_odds(trust)
                    own[label[b if row == a else a]] -= cost if said else -cost
            odds = [math.exp((min(own) - cost) / kappa) for cost in own]
            ends.append([value / math.fsum(odds) for value in odds])
        together = math.fsum(one * other for one, other in zip(*ends, strict=True))
        agreeing = together if same else 1.0 - together
        total = math.log(agreeing / (1.0 - agreeing)) + log_odds(p)
        right.append(1.0 / (1.0 + math.exp(-total)))
    return right


def row_costs(model: naive.Model, label: list[int], n_clusters: int, row: int) -> list[float]:
    """Return the distances of a row to centroids that it takes no part in."""
    others = list(label)
    if label.count(label[row]) > 1:
        others[row] = n_clusters
    weights = [1.0] * model.rows.shape[1]
    centroids = naive.optimal_centroids(model, others, n_clusters + 1, weights)[:n_clusters]
    near = naive.distances(model.rows[row : row + 1], centroids, weights, model.distortion)[0]
    return [float(distance) for distance in near]
