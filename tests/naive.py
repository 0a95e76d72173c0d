"""The oracle: HMRF-KMeans in plain loops, to be held against algorithms.md and the papers.

It imports nothing of the package it judges. Rows are dense float64 (callers hand over values
already rounded to float32); every sum is `math.fsum`, so no result depends on an order.
Names of distortions: "cosine", "pearson", "euclidean", "i-divergence", "kl".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Vector = Sequence[float] | Floats
Matrix = Sequence[Sequence[float]] | Floats
Costs = dict[tuple[int, int], float]

LINEAR = ("euclidean", "i-divergence", "kl")  # sums over the features of a_m times something


# --- distortions (algorithms.md 2) ---------------------------------------------------------------


def dot(x: Vector, y: Vector, weights: Vector) -> float:
    """Return x' A y for A = diag(weights)."""
    return math.fsum(float(a) * float(p) * float(q) for p, q, a in zip(x, y, weights, strict=True))


def row_as_taken(x: Vector, weights: Vector, distortion: str) -> list[float]:
    """Return a row as its distortion takes it: kl divides by the sum, pearson subtracts the mean.

    A constant row under pearson is a zero row. Float64 means leave rounding noise of about 1e-16
    there, and a row of float32 values that is not constant spreads by more than 1e-10.
    """
    row = [float(value) for value in x]
    if distortion == "kl":
        mass = math.fsum(row)
        if mass <= 0.0:
            raise ValueError("kl: a row of zeros cannot be normalised to sum 1")
        return [value / mass for value in row]
    if distortion == "pearson":
        mean = dot(row, [1.0] * len(row), weights) / math.fsum(map(float, weights))
        centred = [value - mean for value in row]
        if dot(centred, centred, weights) <= 1e-24 * dot(row, row, weights):
            return [0.0] * len(row)
        return centred
    return row


def cosine_distance(x: Vector, y: Vector, weights: Vector) -> float:
    """Return 1 - x'Ay / (|x|_A |y|_A), eq. 10; 1 where either is zero."""
    norms = math.sqrt(dot(x, x, weights)) * math.sqrt(dot(y, y, weights))
    return 1.0 if norms == 0.0 else 1.0 - dot(x, y, weights) / norms


def distance_terms(x: Vector, centroid: Vector, distortion: str) -> list[float]:
    """Return d_m(x, mu) of the distortions that are linear in the weights (x as taken)."""
    terms = []
    for value, centre in zip(map(float, x), map(float, centroid), strict=True):
        if distortion == "euclidean":
            terms.append((value - centre) ** 2)
        elif value == 0.0:
            terms.append(centre)  # 0 log 0 = 0
        elif centre == 0.0:
            terms.append(math.inf)
        else:
            terms.append(value * math.log(value / centre) - value + centre)
    return terms


def distance(x: Vector, centroid: Vector, weights: Vector, distortion: str) -> float:
    """Return D(x, mu). A centroid of kl is taken as it is, not normalised."""
    row = row_as_taken(x, weights, distortion)
    if distortion not in LINEAR:
        return cosine_distance(row, row_as_taken(centroid, weights, distortion), weights)
    terms = distance_terms(row, centroid, distortion)
    total = math.fsum(float(a) * term for a, term in zip(weights, terms, strict=True))
    if distortion == "euclidean":
        total -= math.fsum(math.log(a) for a in weights)  # the Gaussian normaliser
    return total


def distances(rows: Matrix, centroids: Matrix, weights: Vector, distortion: str) -> Floats:
    """Return D of every row to every centroid, shape (n, K)."""
    table = [[distance(x, mu, weights, distortion) for mu in centroids] for x in rows]
    return np.array(table, dtype=np.float64).reshape(len(rows), len(centroids))


def uniform_row(rows: Matrix, distortion: str) -> list[float]:
    """Return u of the smoothing: 1/d for kl, mean row mass / d for i-divergence."""
    width = len(rows[0])
    if distortion == "kl":
        return [1.0 / width] * width
    mass = math.fsum(math.fsum(map(float, x)) for x in rows) / len(rows)
    return [mass / width] * width


# --- the penalty scale phi and its largest value -------------------------------------------------


def scale_terms(x: Vector, y: Vector, distortion: str) -> list[float]:
    """Return phi_m(x, y) of the linear distortions: (x-y)^2, or D_IM of eq. 13."""
    if distortion == "euclidean":
        return [(float(p) - float(q)) ** 2 for p, q in zip(x, y, strict=True)]
    return [to_middle(p, q) + to_middle(q, p) for p, q in zip(x, y, strict=True)]


def to_middle(p: float, q: float) -> float:
    """Return p log(2p / (p+q)), with 0 log 0 = 0."""
    p, q = float(p), float(q)
    return 0.0 if p == 0.0 else p * math.log(2.0 * p / (p + q))


def limit_terms(x: Vector, y: Vector, box: Vector, distortion: str) -> list[float]:
    """Return phi_max by feature: the squared side of the box, or ln 2 (x + y) for this pair."""
    if distortion == "euclidean":
        return [float(side) ** 2 for side in box]
    return [math.log(2.0) * (float(p) + float(q)) for p, q in zip(x, y, strict=True)]


def box_sides(rows: Matrix) -> list[float]:
    """Return max_m - min_m of the corpus."""
    return [float(max(column)) - float(min(column)) for column in zip(*rows, strict=True)]


def penalty_scale(x: Vector, y: Vector, weights: Vector, distortion: str) -> float:
    """Return phi(x, y)."""
    first, second = (row_as_taken(row, weights, distortion) for row in (x, y))
    if distortion not in LINEAR:
        return cosine_distance(first, second, weights)
    return dot(scale_terms(first, second, distortion), [1.0] * len(first), weights)


def penalty_limit(x: Vector, y: Vector, rows: Matrix, weights: Vector, distortion: str) -> float:
    """Return phi_max for a pair of the corpus `rows`."""
    if distortion == "pearson":
        return 2.0
    if distortion == "cosine":
        return 1.0 if all(float(value) >= 0.0 for row in rows for value in row) else 2.0
    first, second = (row_as_taken(row, weights, distortion) for row in (x, y))
    box = box_sides(rows) if distortion == "euclidean" else []
    return dot(limit_terms(first, second, box, distortion), [1.0] * len(first), weights)


# --- constraints (algorithms.md 3) ---------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """The pairs that stand in J with their costs, keys (i, j) with i < j.

    `components` are all must-link components of two or more rows (sorted), `conflicting` those of
    them with a given cannot-link inside, `dropped` the cannot-links left out by "drop".
    """

    must: Costs = field(default_factory=dict)
    cannot: Costs = field(default_factory=dict)
    components: tuple[tuple[int, ...], ...] = ()
    conflicting: tuple[tuple[int, ...], ...] = ()
    dropped: tuple[tuple[int, int], ...] = ()


def given_pairs(pairs: Any, costs: Iterable[float] | None, default: float) -> Costs:
    """Return one entry per unordered pair."""
    found: Costs = {}
    listed = [(int(i), int(j)) for i, j in pairs]
    costs = [default] * len(listed) if costs is None else costs
    for (i, j), cost in zip(listed, costs, strict=True):
        if i == j:
            raise ValueError(f"row {i} is paired with itself")
        if found.setdefault((min(i, j), max(i, j)), float(cost)) != float(cost):
            raise ValueError(f"pair {(i, j)} is given twice with different costs")
    return found


def must_link_components(n_rows: int, must: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return every component of the must-link graph, single rows too, each sorted."""
    neighbours: list[list[int]] = [[] for _ in range(n_rows)]
    for i, j in must:
        neighbours[i].append(j)
        neighbours[j].append(i)
    seen = [False] * n_rows
    components = []
    for start in range(n_rows):
        if seen[start]:
            continue
        seen[start] = True
        component = [start]
        for row in component:  # grows while it is read
            for other in neighbours[row]:
                if not seen[other]:
                    seen[other] = True
                    component.append(other)
        components.append(sorted(component))
    return components


def kept_relations(
    must: Iterable[Sequence[int]], cannot: Iterable[Sequence[int]], labels: Any, withheld: Any
) -> tuple[int, int]:
    """Return how many relations of withheld rows to groups labels keep, and how many there are.

    A group is in the cluster that has more of its rows than any other, in none where two have as
    many.
    """
    groups = must_link_components(len(labels), [(int(i), int(j)) for i, j in must])
    owner = {row: number for number, group in enumerate(groups) for row in group}
    excluded = {(owner[int(i)], owner[int(j)]) for i, j in cannot}
    excluded |= {(second, first) for first, second in excluded}
    homes = []
    for group in groups:
        counts = sorted(Counter(int(labels[row]) for row in group).items(), key=lambda at: -at[1])
        tied = len(counts) > 1 and counts[0][1] == counts[1][1]
        homes.append(None if tied else counts[0][0])
    kept = []
    for row in map(int, withheld):
        own = owner[row]
        if len(groups[own]) > 1:
            kept.append(homes[own] == labels[row])
        for first, second in excluded:
            if first == own and second != own:
                kept.append(homes[second] != labels[row])
    return sum(kept), len(kept)


def effective_pairs(
    n_rows: int,
    must: Any = (),
    cannot: Any = (),
    must_costs: Iterable[float] | None = None,
    cannot_costs: Iterable[float] | None = None,
    *,
    must_link_cost: float = 1.0,
    cannot_link_cost: float = 1.0,
    closure: bool = True,
    on_conflict: str = "raise",
) -> Pairs:
    """Return the pairs of J: the closure written out pair by pair, or the given pairs alone.

    A contradiction is a cannot-link inside a must-link component of the *given* pairs, so
    `on_conflict` comes first and holds without closure too. A contradictory component that is kept
    stays as given: neither its must-links nor the cannot-links that touch it are closed. A given
    cost replaces the cost of the closure.
    """
    must_given = given_pairs(must, must_costs, must_link_cost)
    cannot_given = given_pairs(cannot, cannot_costs, cannot_link_cost)
    components = must_link_components(n_rows, must_given)
    of = {row: number for number, rows in enumerate(components) for row in rows}
    inside = sorted((i, j) for i, j in cannot_given if of[i] == of[j])
    conflicting = {of[i] for i, _ in inside}
    if inside and on_conflict == "raise":
        raise ValueError(f"cannot-links inside must-link components: {inside}")
    dropped: list[tuple[int, int]] = []
    if on_conflict == "drop":
        dropped = inside
        cannot_given = {pair: cost for pair, cost in cannot_given.items() if pair not in inside}
    described = Pairs(
        must_given,
        cannot_given,
        tuple(tuple(rows) for rows in components if len(rows) >= 2),
        tuple(tuple(components[number]) for number in sorted(conflicting)),
        tuple(dropped),
    )
    if not closure:
        return described
    open_components = conflicting if on_conflict == "keep" else set()
    closed_must: Costs = {}
    for number, rows in enumerate(components):
        if number not in open_components:
            closed_must |= {(i, j): must_link_cost for i in rows for j in rows if i < j}
    closed_cannot: Costs = {}
    for i, j in cannot_given:
        if of[i] not in open_components and of[j] not in open_components:
            for p in components[of[i]]:
                for q in components[of[j]]:
                    closed_cannot[min(p, q), max(p, q)] = cannot_link_cost
    return replace(described, must=closed_must | must_given, cannot=closed_cannot | cannot_given)


# --- the energy (algorithms.md 1) ----------------------------------------------------------------


@dataclass(frozen=True)
class RelativeEntropy:
    """The weight prior of 2.2: sum_m (s0_m + T)/strength (a ln a - a) - s0_m a."""

    strength: float
    one_cluster: Sequence[float]  # s0_m
    typical: float  # T


@dataclass(frozen=True)
class Model:
    """What J is of, but for labels, centroids and weights.

    `normaliser` is lambda of -lambda sum_i D(x_i, global centroid); the global centroid is the
    optimum for the weights unless one is held. `alpha` is that of the final phase: J gets
    alpha n_h D(u, mu_h), and the centroids are smoothed with it.
    """

    rows: Floats
    distortion: str
    penalty: str = "distance"
    pairs: Pairs = field(default_factory=Pairs)
    normaliser: float = 0.0
    global_centroid: Vector | None = None
    alpha: float = 0.0
    entropy: RelativeEntropy | None = None


@dataclass(frozen=True)
class Energy:
    """J by parts; `absolute` is the sum of the absolute values of its terms."""

    distance: float
    must_link: float
    cannot_link: float
    prior: float
    absolute: float

    @property
    def total(self) -> float:
        """J."""
        return math.fsum([self.distance, self.must_link, self.cannot_link, self.prior])


def pair_costs(model: Model, weights: Vector) -> tuple[Costs, Costs]:
    """Return what each must-link and each cannot-link costs when it is violated."""
    if model.penalty == "potts":
        return dict(model.pairs.must), dict(model.pairs.cannot)
    rows, name = model.rows.tolist(), model.distortion
    common = None  # phi_max, where it is the same for all pairs
    if name in ("cosine", "pearson", "euclidean") and rows:
        common = penalty_limit(rows[0], rows[0], rows, weights, name)
    must: Costs = {}
    for (i, j), cost in model.pairs.must.items():
        must[i, j] = cost * penalty_scale(rows[i], rows[j], weights, name)
    cannot: Costs = {}
    for (i, j), cost in model.pairs.cannot.items():
        limit = common
        if limit is None:
            limit = penalty_limit(rows[i], rows[j], rows, weights, name)
        cannot[i, j] = cost * (limit - penalty_scale(rows[i], rows[j], weights, name))
    return must, cannot


def prior_terms(
    model: Model, labels: Sequence[int], centroids: Matrix, weights: Vector
) -> list[float]:
    """Return the terms of prior(a) and, in the final phase, of the smoothing."""
    terms: list[float] = []
    if model.normaliser:
        centre = model.global_centroid
        if centre is None:
            centre = optimal_centroids(model, [0] * len(model.rows), 1, weights)[0]
        terms.extend(
            -model.normaliser * distance(x, centre, weights, model.distortion) for x in model.rows
        )
    if model.alpha:
        uniform = uniform_row(model.rows.tolist(), model.distortion)
        for h in sorted(set(labels)):
            size = sum(label == h for label in labels)
            smoothing = distance(uniform, centroids[h], weights, model.distortion)
            terms.append(model.alpha * size * smoothing)
    if model.entropy is not None:
        prior = model.entropy
        for a, one_cluster in zip(map(float, weights), prior.one_cluster, strict=True):
            held = (one_cluster + prior.typical) / prior.strength
            terms.append(held * (a * math.log(a) - a) - one_cluster * a)
    return terms


def energy(model: Model, labels: Any, centroids: Matrix, weights: Vector) -> Energy:
    """Return J (KDD eq. 9), each unordered pair once."""
    label = [int(value) for value in labels]
    near = [
        distance(x, centroids[h], weights, model.distortion)
        for x, h in zip(model.rows.tolist(), label, strict=True)
    ]
    must, cannot = pair_costs(model, weights)
    broken = [cost for (i, j), cost in must.items() if label[i] != label[j]]
    joined = [cost for (i, j), cost in cannot.items() if label[i] == label[j]]
    prior = prior_terms(model, label, centroids, weights)
    return Energy(
        distance=math.fsum(near),
        must_link=math.fsum(broken),
        cannot_link=math.fsum(joined),
        prior=math.fsum(prior),
        absolute=math.fsum(map(abs, near + broken + joined + prior)),
    )


def full_metric_energy(
    rows: Matrix, labels: Any, centroids: Matrix, metrics: tuple[Floats, Floats], must: Any
) -> list[float]:
    """Return J of Euclidean rows under a full metric by terms: distances, broken must-links, prior.

    The metrics are A of (x − y)ᵀ A (x − y), and the first one, of which a fit begins: with Σ its
    inverse the prior is N (tr A Σ − d) − 2 N ln det A Σ.
    """
    metric, first = metrics

    def between(x: Vector, y: Vector) -> float:
        gap = [a - b for a, b in zip(x, y, strict=True)]
        return math.fsum(a * metric[i][j] * b for i, a in enumerate(gap) for j, b in enumerate(gap))

    near = [between(x, centroids[h]) for x, h in zip(rows, labels, strict=True)]
    broken = [between(rows[i], rows[j]) for i, j in must if labels[i] != labels[j]]
    relative = metric @ np.linalg.inv(first)
    logarithm = float(np.linalg.slogdet(relative)[1])
    prior = len(near) * (float(np.trace(relative)) - len(metric) - 2.0 * logarithm)
    return [math.fsum(near), math.fsum(broken), prior]


# --- moves (algorithms.md 5) ---------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """Rows that go to one cluster together, and by how much J falls."""

    decrease: float = 0.0
    rows: tuple[int, ...] = ()
    target: int = -1


def move_decreases(
    model: Model,
    labels: Any,
    centroids: Matrix,
    weights: Vector,
    groups: Sequence[Sequence[int]],
) -> Floats:
    """Return by how much J falls when each group goes whole to each cluster, (groups, K).

    Centroids and weights stand still; in the final phase a row pays alpha D(u, mu_h) as well.
    """
    label = [int(value) for value in labels]
    table = distances(model.rows.tolist(), centroids, weights, model.distortion)
    if model.alpha:
        uniform = uniform_row(model.rows.tolist(), model.distortion)
        table += model.alpha * distances([uniform], centroids, weights, model.distortion)
    touching: list[list[tuple[int, int, bool, float]]] = [[] for _ in label]
    for together, costs in zip((True, False), pair_costs(model, weights), strict=True):
        for (i, j), cost in costs.items():
            touching[i].append((i, j, together, cost))
            touching[j].append((i, j, together, cost))
    decreases = np.zeros((len(groups), len(centroids)))
    for number, group in enumerate(groups):
        pairs = {pair for row in group for pair in touching[row]}
        for target in range(len(centroids)):
            after = dict.fromkeys(group, target)
            terms = [float(table[row, label[row]] - table[row, target]) for row in group]
            for i, j, together, cost in pairs:
                pays_now = (label[i] == label[j]) != together
                pays_then = (after.get(i, label[i]) == after.get(j, label[j])) != together
                terms.append(cost * (int(pays_now) - int(pays_then)))
            decreases[number, target] = math.fsum(terms)
    return decreases


def best_move(decreases: Floats, groups: Sequence[Sequence[int]]) -> Move:
    """Return the move with the largest decrease; staying, with decrease 0, is one of them."""
    best = Move()
    for number, group in enumerate(groups):
        for target, decrease in enumerate(decreases[number]):
            if decrease > best.decrease:
                best = Move(float(decrease), tuple(group), target)
    return best


def best_single_move(model: Model, labels: Any, centroids: Matrix, weights: Vector) -> Move:
    """Return the single row's move that lowers J most."""
    groups = [[row] for row in range(len(model.rows))]
    return best_move(move_decreases(model, labels, centroids, weights, groups), groups)


def best_group_move(model: Model, labels: Any, centroids: Matrix, weights: Vector) -> Move:
    """Return the move of a whole must-link component (two rows or more) that lowers J most."""
    groups = model.pairs.components
    return best_move(move_decreases(model, labels, centroids, weights, groups), groups)


def degrees(pairs: Pairs, n_rows: int) -> list[int]:
    """Return in how many pairs of J each row stands."""
    counted = [0] * n_rows
    for i, j in [*pairs.must, *pairs.cannot]:
        counted[i] += 1
        counted[j] += 1
    return counted


# --- the M-step (algorithms.md 6) ----------------------------------------------------------------


def optimal_centroids(
    model: Model, labels: Any, n_clusters: int, weights: Vector, previous: Matrix | None = None
) -> Floats:
    """Return the centroids that minimise J for these labels, (K, d).

    Directions for cosine and pearson: sum of x_i / |x_i|_A (eq. 17 read right), rows centred for
    pearson. Means for the others, (mean + alpha u) / (1 + alpha) where alpha is set (eq. 16).
    An empty cluster keeps its row of `previous`; without one it is NaN.
    """
    name, width = model.distortion, model.rows.shape[1]
    taken = [row_as_taken(x, weights, name) for x in model.rows.tolist()]
    uniform = uniform_row(model.rows.tolist(), name) if model.alpha else [0.0] * width
    centroids = np.full((n_clusters, width), np.nan)
    for h in range(n_clusters):
        members = [x for x, label in zip(taken, labels, strict=True) if int(label) == h]
        if not members:
            if previous is not None:
                centroids[h] = previous[h]
        elif name in LINEAR:
            for m in range(width):
                mean = math.fsum(x[m] for x in members) / len(members)
                centroids[h, m] = (mean + model.alpha * uniform[m]) / (1.0 + model.alpha)
        else:
            norms = [math.sqrt(dot(x, x, weights)) for x in members]
            for m in range(width):
                centroids[h, m] = math.fsum(
                    x[m] / norm for x, norm in zip(members, norms, strict=True) if norm > 0.0
                )
    return centroids


def feature_distortions(model: Model, labels: Any, centroids: Matrix) -> list[float]:
    """Return s_m, the factor of a_m in J, for the distortions that are linear in the weights."""
    rows, name, label = model.rows.tolist(), model.distortion, [int(value) for value in labels]
    ones = [1.0] * model.rows.shape[1]
    taken = [row_as_taken(x, ones, name) for x in rows]
    box = box_sides(rows)
    terms = [distance_terms(x, centroids[h], name) for x, h in zip(taken, label, strict=True)]
    if model.alpha:
        uniform = uniform_row(rows, name)
        smoothing = [distance_terms(uniform, centroids[h], name) for h in label]
        terms += [[model.alpha * value for value in row] for row in smoothing]
    if model.penalty == "distance":
        for (i, j), cost in model.pairs.must.items():
            if label[i] != label[j]:
                terms.append([cost * phi for phi in scale_terms(taken[i], taken[j], name)])
        for (i, j), cost in model.pairs.cannot.items():
            if label[i] == label[j]:
                limits = limit_terms(taken[i], taken[j], box, name)
                scales = scale_terms(taken[i], taken[j], name)
                terms.append([cost * (q - p) for p, q in zip(scales, limits, strict=True)])
    return [math.fsum(column) for column in zip(*terms, strict=True)]


def one_cluster_distortions(model: Model, final_phase: bool = True) -> list[float]:
    """Return s0_m of the relative-entropy prior: all rows in one cluster, no pairs.

    The centroid is g' = (mean of all + alpha u) / (1 + alpha) in both phases; the smoothing's own
    term alpha n d_m(u, g') belongs to the final phase alone.
    """
    together = [0] * len(model.rows)
    centre = optimal_centroids(model, together, 1, [1.0] * model.rows.shape[1])
    alone = replace(model, pairs=Pairs(), alpha=model.alpha if final_phase else 0.0)
    return feature_distortions(alone, together, centre)


def numerical_gradient(model: Model, labels: Any, centroids: Matrix, weights: Vector) -> Floats:
    """Return dJ/da_m by central differences; centroids and the global centroid stand still."""
    start = [float(a) for a in weights]
    if model.normaliser and model.global_centroid is None:
        centre = optimal_centroids(model, [0] * len(model.rows), 1, start)[0]
        model = replace(model, global_centroid=centre)
    gradient = np.zeros(len(start))
    for m, a in enumerate(start):
        step = 1e-4 * a
        above, below = ([*start[:m], a + s, *start[m + 1 :]] for s in (step, -step))
        rise = energy(model, labels, centroids, above).total
        fall = energy(model, labels, centroids, below).total
        gradient[m] = (rise - fall) / (above[m] - below[m])
    return gradient


# --- quality (algorithms.md 9) -------------------------------------------------------------------


def entropy(labels: Iterable[object]) -> float:
    """Return the entropy of a labelling in nats."""
    counts = Counter(labels).values()
    return -math.fsum(n / sum(counts) * math.log(n / sum(counts)) for n in counts)


def normalized_mutual_information(first: Any, second: Any) -> float:
    """Return I / ((H1 + H2) / 2); 1 when neither splits the rows."""
    left, right = list(map(int, first)), list(map(int, second))
    alone = entropy(left) + entropy(right)
    if alone == 0.0:
        return 1.0
    return 2.0 * (alone - entropy(zip(left, right, strict=True))) / alone
