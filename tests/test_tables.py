"""Closure tables against pair by pair, integer for integer."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from hmrf_dask.constraints import closure as closure_module
from hmrf_dask.kernels import closure_tables
from hmrf_dask.kernels.closure_sweeps import fill_tables, group_energies, table_icm
from hmrf_dask.kernels.closure_tables import (
    TableSizes,
    build_tables,
    make_closure,
    make_rows,
    table_bytes,
)
from hmrf_dask.kernels.compiled import njit
from hmrf_dask.kernels.exact import best_limbs
from hmrf_dask.kernels.problem import adjacency, make_grouping, make_problem
from tests.support.icm_oracle import join_limbs
from tests.support.icm_problems import renumbered
from tests.support.loop import iterations, make_bench
from tests.support.problems import random_problem


@njit(cache=True)
def _best_of_group(labels, problem, form, group):  # type: ignore[no-untyped-def]
    fill_tables(labels, form)
    group_energies(labels, problem, form, group)
    energies = form.tables.buffers.energies
    return best_limbs(energies[0], energies[1], 0, energies.shape[1] - 1)


def group_gain(labels, problem, rows, closure, grouping, group):  # type: ignore[no-untyped-def]
    """Return (best cluster, exact gain) of moving a whole group; (-1, 0) where none gains."""
    form = build_tables(rows, closure, grouping, problem.costs.shape[1])
    target, high, low = _best_of_group(labels, problem, form, group)
    return target, join_limbs(high, low) // 2


@dataclass
class Closed:
    """A component with closures in plain Python integers."""

    distortion: list[list[int]]
    shift: int
    rows: list[dict[int, int]]
    own: list[int]
    kappa: int
    negative_column: int
    largest: int
    groups: list[int]
    must_weight: list[int]
    rivals: dict[tuple[int, int], int]
    extra: list[tuple[int, int, int]]
    pair: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Expand the closure: the signed cost of equal labels of every pair."""
        for i, j in combinations(range(len(self.rows)), 2):
            g, r = self.groups[i], self.groups[j]
            if g == r:
                self.pair[i, j] = -self.must_weight[g] * self.phi(i, j)
            else:
                weight = self.rivals.get((min(g, r), max(g, r)), 0)
                self.pair[i, j] = weight * (self.largest - self.phi(i, j))
        for i, j, cost in self.extra:
            self.pair[min(i, j), max(i, j)] += cost

    def phi(self, i: int, j: int) -> int:
        product = 0
        for m, value in self.rows[i].items():
            sign = -1 if m == self.negative_column else 1
            product += sign * value * self.rows[j].get(m, 0)
        return self.own[i] + self.own[j] - self.kappa * product

    def energy(self, labels: list[int]) -> int:
        total = sum(row[x] << self.shift for row, x in zip(self.distortion, labels, strict=True))
        return total + sum(c for (i, j), c in self.pair.items() if labels[i] == labels[j])

    def sweep_until_quiet(self, labels: list[int]) -> tuple[int, int, int]:
        """Groups in order, then points in order, all pairs read every time."""
        n_clusters = len(self.distortion[0])
        numbers = range(max(self.groups) + 1)
        members = [[i for i, g in enumerate(self.groups) if g == q] for q in numbers]
        groups = [m for m in members if len(m) > 1]
        points = [[i] for i in range(len(labels))]
        counts = [0, 0, 0]
        while True:
            before = counts[:2]
            for kind, units in ((1, groups), (0, points)):
                for unit in units:
                    now = self.energy(labels)
                    tried = []
                    for h in range(n_clusters):
                        moved = labels.copy()
                        for i in unit:
                            moved[i] = h
                        tried.append(self.energy(moved))
                    if min(tried) < now:
                        counts[kind] += 1
                        for i in unit:
                            labels[i] = tried.index(min(tried))
            counts[2] += 1
            if counts[:2] == before:
                return counts[0], counts[1], counts[2]

    def arrays(self):
        values = [v for row in self.rows for v in row.values()]
        indices = [m for row in self.rows for m in row]
        indptr = np.concatenate(([0], np.cumsum([len(row) for row in self.rows])))
        rows = make_rows(np.array(values), np.array(indices), indptr, np.array(self.own))
        n_groups = max(self.groups) + 1
        both = sorted(
            [(g, r, w) for (g, r), w in self.rivals.items()]
            + [(r, g, w) for (g, r), w in self.rivals.items()]
        )
        closure = make_closure(
            self.kappa,
            self.negative_column,
            self.largest,
            np.array(self.must_weight),
            np.searchsorted([g for g, _, _ in both], np.arange(n_groups + 1)),
            np.array([r for _, r, _ in both]),
            np.array([w for _, _, w in both]),
        )
        ends = np.array(self.extra, np.int64).reshape(-1, 3).T
        start, neighbour, cost = adjacency(len(self.rows), *ends)
        costs = np.array(self.distortion)
        problem = make_problem(0, costs, self.shift, start, neighbour, cost)
        member = np.argsort(self.groups, kind="stable")
        group_start = np.concatenate(([0], np.cumsum(np.bincount(self.groups))))
        return problem, rows, closure, make_grouping(np.array(self.groups), group_start, member)


def random_closed(rng: np.random.Generator, form: str) -> Closed:
    n = int(rng.integers(4, 19))
    n_clusters = int(rng.integers(1, 5))
    s = int(rng.choice([1, 3, 20]))
    groups = renumbered(rng.integers(0, int(rng.integers(1, 6)), n).tolist())
    n_groups = max(groups) + 1
    low = 0 if form == "cosine" else -(2**s)
    rows = []
    for _ in range(n):
        features = sorted(rng.choice(8, int(rng.integers(0, 6)), replace=False).tolist())
        rows.append({m: int(rng.integers(low, 2**s + 1)) for m in features})
    kappa, own = {"potts": 0, "euclidean": 2}.get(form, 1), [2 ** (2 * s - 1)] * n
    if form == "euclidean":
        own = [sum(v * v for v in row.values()) for row in rows]
    largest = {"potts": 2 ** (2 * s + 1), "euclidean": 32 * 4**s}.get(form, 2 * 4**s)
    pairs = list(combinations(range(n_groups), 2))
    chosen = [pairs[p] for p in range(len(pairs)) if rng.random() < 0.5]
    rivals = {pair: int(rng.integers(1, 6)) for pair in chosen}
    must_weight = (rng.integers(0, 4, n_groups) * (rng.random(n_groups) < 0.8)).tolist()
    extra = []
    for _ in range(int(rng.integers(0, n))):
        i, j = (int(x) for x in rng.choice(n, 2, replace=False))
        extra.append((i, j, int(rng.integers(-(4**s), 4**s + 1))))
    largest_cost = int(rng.choice([3, 30, 200]))
    costs = rng.integers(0, largest_cost + 1, (n, n_clusters))
    costs -= costs.min(axis=1, keepdims=True)
    empty: list[dict[int, int]] = [{} for _ in range(n)]
    return Closed(
        costs.tolist(), int(rng.integers(0, 2 * s)), empty if form == "potts" else rows, own, kappa,
        int(rng.integers(0, 8)) if form == "pearson" else -1, largest, groups, must_weight, rivals,
        extra,
    )  # fmt: skip


@pytest.fixture(params=[(0, 0), (2, 4), (64, 512)], ids=["tables", "some tables", "no tables"])
def forms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a table to every group, to some, to none."""
    large, most = request.param
    monkeypatch.setattr(closure_tables, "LARGE_GROUP", large)
    monkeypatch.setattr(closure_tables, "MOST_PARTNERS", most)


@pytest.mark.usefixtures("forms")
@pytest.mark.parametrize("form", ["cosine", "euclidean", "pearson", "potts"])
def test_sweeps_over_tables_are_sweeps_over_pairs(form: str) -> None:
    rng = np.random.default_rng(["cosine", "euclidean", "pearson", "potts"].index(form))
    points = groups = several = 0
    for _ in range(60):
        problem = random_closed(rng, form)
        labels = rng.integers(0, len(problem.distortion[0]), len(problem.rows)).astype(np.int32)
        expected = labels.tolist()
        counts = problem.sweep_until_quiet(expected)
        assert table_icm(labels, *problem.arrays()) == counts
        assert labels.tolist() == expected
        points += counts[0] > 0
        groups += counts[1] > 0
        several += counts[2] > 2
    assert min(points, groups, several) > 4  # the problems are not idle


@pytest.mark.usefixtures("forms")
@pytest.mark.parametrize("form", ["cosine", "euclidean", "pearson", "potts"])
def test_group_gains_are_the_change_of_the_energy(form: str) -> None:
    rng = np.random.default_rng(50)
    for _ in range(2):
        problem = random_closed(rng, form)
        n_clusters = len(problem.distortion[0])
        labels = rng.integers(0, n_clusters, len(problem.rows)).astype(np.int32)
        now = problem.energy(labels.tolist())
        for group in range(max(problem.groups) + 1):
            inside = np.array(problem.groups) == group
            tried = [
                problem.energy(np.where(inside, h, labels).tolist()) for h in range(n_clusters)
            ]
            best = tried.index(min(tried)) if min(tried) < now else -1
            gain = max(0, now - min(tried))
            assert group_gain(labels, *problem.arrays(), group) == (best, gain)


@pytest.mark.parametrize("distortion", ["cosine", "euclidean", "pearson"])
@pytest.mark.parametrize("penalty", ["distance", "potts"])
def test_what_has_a_table_changes_no_label(
    distortion: str, penalty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closure_module, "EXPLICIT_PAIRS", 0)
    monkeypatch.setattr(closure_module, "EXPLICIT_RATIO", 0)
    for seed in range(5):
        problem = random_problem(
            seed, n=30, K=3, distortion=distortion, penalty=penalty, closure=True, smooth=True
        )
        ends = []
        for large, most in ((0, 0), (2, 4), (64, 512)):
            monkeypatch.setattr(closure_tables, "LARGE_GROUP", large)
            monkeypatch.setattr(closure_tables, "MOST_PARTNERS", most)
            bench = make_bench(problem)
            *_, (_, turn) = iterations(bench, most=4)
            ends.append((turn.state.energy.total, bench.labels(turn.state).tolist()))
        assert ends[0] == ends[1] == ends[2]


def arrays_of(value: Any) -> list[np.ndarray]:
    """Return the arrays of nested tuples."""
    if isinstance(value, tuple):
        return [array for part in value for array in arrays_of(part)]
    return [value]


@pytest.mark.usefixtures("forms")
def test_tables_fit_in_the_bytes_announced() -> None:
    rng = np.random.default_rng(60)
    for form in ("cosine", "potts"):
        for _ in range(30):
            problem = random_closed(rng, form)
            n_clusters = len(problem.distortion[0])
            labels = np.zeros(len(problem.rows), np.int32)
            _, rows, closure, grouping = problem.arrays()
            tables = build_tables(rows, closure, grouping, n_clusters).tables
            slot, owner = tables.slots.slot, tables.owners.owner
            features = int(rows.indices.max()) + 1 if rows.indices.size else 0
            values = np.bincount(problem.groups, np.diff(rows.indptr)).astype(np.int64)
            held = sum(array.nbytes for array in [*arrays_of(tables), *closure[4:]])
            clock = 8 * len(labels) + 32 * len(slot) + 8
            counts = rows.values.size, len(labels), len(slot), len(problem.rivals)
            sizes = TableSizes(values[slot >= 0], values[owner >= 0], *counts)
            assert held + clock <= table_bytes(features, n_clusters, sizes)


def signed_rows(rng: np.random.Generator, n: int, width: int, s: int) -> np.ndarray:
    unit = rng.standard_normal((n, width))
    unit /= np.sqrt((unit * unit).sum(axis=1, keepdims=True))
    return np.rint(unit * 2**s).astype(np.int64)


@pytest.mark.parametrize("size", [1000, 10_000])
def test_two_large_rivals_that_prefer_one_cluster(size: int) -> None:
    """No overflow, the group move is found, its gain is exact, the energy falls."""
    rng = np.random.default_rng(5)
    width, s, w = 16, 17, 5 * 256  # w = 5 in units of 2**-8; signed data, so φ_max = 2
    n = 2 * size
    q = signed_rows(rng, n, width, s)
    unit = 2 ** (2 * s)
    # in units of 2**-8 · 2**-2s, as the weights: D up to 1, everybody prefers cluster 0
    shift = 2 * s + 8 - 30
    costs = np.zeros((n, 3), np.int32)
    costs[:, 1:] = rng.integers(2**28, 2**30, (n, 2))
    indptr = np.arange(0, n * width + 1, width)
    indices = np.tile(np.arange(width), n)
    rows = make_rows(q.ravel(), indices, indptr, np.full(n, unit // 2))
    closure = make_closure(1, -1, 2 * unit, [w, w], [0, 1, 2], [1, 0], [w, w])
    groups = np.repeat([0, 1], size)
    grouping = make_grouping(groups, [0, size, n], np.arange(n))
    nothing = adjacency(n, *np.zeros((3, 0), np.int64))
    problem = make_problem(0, costs, shift, *nothing)
    labels = np.zeros(n, np.int32)

    one, other = (
        [int(x) for x in q[:size].sum(axis=0)],
        [int(x) for x in q[size:].sum(axis=0)],
    )
    product = sum(a * b for a, b in zip(one, other, strict=True))
    rival_pairs = w * (size * size * unit + product)  # Σ (φ_max − φ_ij) = Σ (1 + q_i·q_j)
    moving = [int(costs[:size, h].astype(np.int64).sum()) << shift for h in range(3)]
    gains = [0, rival_pairs - moving[1], rival_pairs - moving[2]]
    arrays = problem, rows, closure, grouping
    assert group_gain(labels, *arrays, 0) == (gains.index(max(gains)), max(gains))
    if size == 10_000:
        assert max(gains) > 2**63  # it does not fit one int64

    points, moved, sweeps = table_icm(labels, *arrays)
    assert (points, moved, sweeps) == (0, 1, 2)
    assert labels.tolist() == [gains.index(max(gains))] * size + [0] * size


def test_a_hub_with_many_small_rivals_keeps_a_small_table() -> None:
    """It holds its own features only, whoever its rivals are, and they have none."""
    n_rivals, width = 600, 5
    n = 2 + n_rivals
    indices = np.concatenate([np.arange(width) + width * i for i in range(n)])
    rows = make_rows(np.ones(n * width), indices, np.arange(0, n * width + 1, width), np.ones(n))
    groups = np.concatenate(([0, 0], np.arange(1, n_rivals + 1)))
    member = np.arange(n)
    grouping = make_grouping(groups, np.concatenate(([0], np.arange(2, n + 1))), member)
    start = np.concatenate(([0], n_rivals + np.arange(n_rivals + 1)))
    rival = np.concatenate((np.arange(1, n_rivals + 1), np.zeros(n_rivals)))
    weight = np.ones(2 * n_rivals)
    must = np.ones(n_rivals + 1)
    closure = make_closure(1, -1, 4, must, start, rival, weight)
    tables = build_tables(rows, closure, grouping, 3).tables
    assert tables.sums.shape == (2 * width, 3)
    assert tables.owners.sums.shape == (0, 3)
