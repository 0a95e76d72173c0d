"""The family in plain loops: K-Means from seeds, held or free, and which hard pairs can be kept."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from tests import naive
from tests.naive import Floats

Soft = Mapping[int, Mapping[int, float]]  # of some rows, the share of each class


def seed_centroids(model: naive.Model, seeds: Soft, n_clusters: int) -> Floats:
    """Return the centroids of seeds: a row of share s counts 16 s times, NaN where none is."""
    rows, labels = [], []
    for row, shares in seeds.items():
        for label, share in shares.items():
            times = round(16 * share)
            rows += [row] * times
            labels += [label] * times
    taken = naive.Model(model.rows[rows], model.distortion, alpha=model.alpha)
    return naive.optimal_centroids(taken, labels, n_clusters, [1.0] * model.rows.shape[1])


def seeded_kmeans(
    model: naive.Model, classes: Mapping[int, int], n_clusters: int, *, held: bool
) -> tuple[list[int], float]:
    """Return labels and J of K-Means from seeds of every class; held ones never move."""
    weights = [1.0] * model.rows.shape[1]
    soft = {row: {label: 1.0} for row, label in classes.items()}
    centroids = seed_centroids(model, soft, n_clusters)
    labels: list[int] = []
    while True:
        near = naive.distances(model.rows, centroids, weights, model.distortion)
        found = [int(row.argmin()) for row in near]
        if held:
            found = [classes.get(row, label) for row, label in enumerate(found)]
        if found == labels:
            return labels, naive.energy(model, labels, centroids, weights).total
        labels = found
        centroids = naive.optimal_centroids(model, labels, n_clusters, weights, centroids)


def broken(
    labels: Sequence[int], must: Sequence[Sequence[int]], cannot: Sequence[Sequence[int]]
) -> int:
    """Return how many pairs labels break."""
    separated = sum(labels[i] != labels[j] for i, j in must)
    return separated + sum(labels[i] == labels[j] for i, j in cannot)


def can_be_kept(
    n_rows: int, must: Sequence[Sequence[int]], cannot: Sequence[Sequence[int]], n_clusters: int
) -> bool:
    """Return whether any labels keep all pairs, by trying: a colouring of must-link groups."""
    groups = naive.must_link_components(n_rows, [(i, j) for i, j in must])
    of = {row: number for number, rows in enumerate(groups) for row in rows}
    rivals: dict[int, set[int]] = {number: set() for number in range(len(groups))}
    for i, j in cannot:
        rivals[of[i]].add(of[j])
        rivals[of[j]].add(of[i])
    order = sorted(
        (number for number in rivals if rivals[number]), key=lambda one: -len(rivals[one])
    )
    colours: dict[int, int] = {}

    def paint(place: int) -> bool:
        if place == len(order):
            return True
        taken = {colours[one] for one in rivals[order[place]] if one in colours}
        used = (
            max(colours.values(), default=-1) + 2
        )  # a colour nobody has yet is as good as another
        for colour in range(min(n_clusters, used)):
            if colour not in taken:
                colours[order[place]] = colour
                if paint(place + 1):
                    return True
                del colours[order[place]]
        return False

    return paint(0)


def best_free_move(
    model: naive.Model,
    labels: Sequence[int],
    centroids: Floats,
    must: Sequence[Sequence[int]],
    cannot: Sequence[Sequence[int]],
) -> float:
    """Return by how much J falls if one must-link group moves and no pair is broken; 0 at least."""
    near = naive.distances(model.rows, centroids, [1.0] * model.rows.shape[1], model.distortion)
    best = 0.0
    for group in naive.must_link_components(len(labels), [(i, j) for i, j in must]):
        others = {j for i, j in cannot if i in group} | {i for i, j in cannot if j in group}
        taken = {labels[other] for other in others}
        for h in range(len(centroids)):
            if h not in taken:
                best = max(best, float(sum(near[i, labels[i]] - near[i, h] for i in group)))
    return best


Rivals = Mapping[int, set[int]]


def placed_apart(costs: Sequence[Sequence[int]], rivals: Rivals) -> list[int]:
    """Return a cluster for each group, -1 where rivals have all: least freedom, then regret."""
    labels, waiting = [-1] * len(costs), set(range(len(costs)))

    def left(group: int) -> list[tuple[int, int]]:
        """Return what no rival has, the cheapest first."""
        taken = {labels[rival] for rival in rivals[group]}
        return sorted((cost, h) for h, cost in enumerate(costs[group]) if h not in taken)

    def matters(group: int) -> float:
        """Return what the second cheapest cluster would cost more."""
        return left(group)[1][0] - left(group)[0][0] if len(left(group)) > 1 else float("inf")

    while able := [group for group in sorted(waiting) if left(group)]:
        chosen = max(able, key=matters)
        labels[chosen] = left(chosen)[0][1]
        waiting.remove(chosen)
    return labels


def best_swap(costs: Sequence[Sequence[int]], rivals: Rivals, labels: Sequence[int]) -> int:
    """Return by how much the cost falls if one Kempe chain swaps its two clusters; 0 at least."""
    best = 0
    for a, b in itertools.permutations(range(len(costs[0])), 2):
        waiting = {group for group, label in enumerate(labels) if label in (a, b)}
        while waiting:
            chain = reached = {waiting.pop()}
            while reached := {rival for group in reached for rival in rivals[group]} & waiting:
                chain, waiting = chain | reached, waiting - reached
            changes = (costs[g][labels[g]] - costs[g][a + b - labels[g]] for g in chain)
            best = max(best, sum(changes))
    return best
