"""A linked component in plain Python integers: random problems, energy, what still gains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass
class Component:
    """Costs `distortion[i][h]`, pairs (i, j, kind, penalty) with kind "must" or "cannot"."""

    distortion: list[list[int]]
    pairs: list[tuple[int, int, str, int]]
    groups: list[int]
    shift: int

    @property
    def n(self) -> int:
        return len(self.distortion)

    @property
    def n_clusters(self) -> int:
        return len(self.distortion[0])

    def energy(self, labels: list[int]) -> int:
        """The energy as the paper writes it: a pair costs its penalty when it is violated."""
        total = sum(
            row[label] << self.shift for row, label in zip(self.distortion, labels, strict=True)
        )
        for i, j, kind, penalty in self.pairs:
            violated = (labels[i] == labels[j]) == (kind == "cannot")
            total += penalty if violated else 0
        return total

    def constant(self) -> int:
        """What the energy of signed costs leaves out."""
        return sum(penalty for _, _, kind, penalty in self.pairs if kind == "must")

    def best_single_gain(self, labels: list[int]) -> int:
        now = self.energy(labels)
        best = 0
        for i in range(self.n):
            for h in range(self.n_clusters):
                best = max(best, now - self.energy([*labels[:i], h, *labels[i + 1 :]]))
        return best

    def best_group_gain(self, labels: list[int]) -> int:
        now = self.energy(labels)
        best = 0
        for group in set(self.groups):
            for h in range(self.n_clusters):
                moved = [h if g == group else x for g, x in zip(self.groups, labels, strict=True)]
                best = max(best, now - self.energy(moved))
        return best

    def signed_pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        first = np.array([pair[0] for pair in self.pairs], np.int32)
        second = np.array([pair[1] for pair in self.pairs], np.int32)
        signed = [-p if kind == "must" else p for _, _, kind, p in self.pairs]
        return first, second, np.array(signed, np.int64)

    def costs(self) -> np.ndarray:
        return np.array(self.distortion, np.int32)

    def group_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        groups = np.array(self.groups, np.int32)
        member = np.argsort(groups, kind="stable").astype(np.int32)
        return groups, np.concatenate(([0], np.cumsum(np.bincount(groups)))), member


def renumbered(groups: list[int]) -> list[int]:
    """Number groups by their lowest member."""
    number: dict[int, int] = {}
    return [number.setdefault(group, len(number)) for group in groups]


def random_component(rng: np.random.Generator, most: int = 40) -> Component:
    """Return a small random component: ties, contradictions, negative differences, big numbers.

    In half of them groups hold together so tightly that single moves cannot turn them.
    """
    n = int(rng.integers(2, most + 1))
    n_clusters = int(rng.integers(1, 6))
    largest = int(rng.choice([1, 3, 1000, 2**30]))
    shift = int(rng.choice([0, 1, 20]))
    distortion = rng.integers(0, largest + 1, (n, n_clusters))
    distortion -= distortion.min(axis=1, keepdims=True)
    groups = renumbered(rng.integers(0, max(1, n // int(rng.integers(1, 5))), n).tolist())
    pairs = []
    for _ in range(int(rng.integers(0, 3 * n))):
        i, j = (int(x) for x in rng.choice(n, 2, replace=False))
        # mostly as groups say, sometimes a contradiction
        kind = "must" if (groups[i] == groups[j]) != (rng.random() < 0.1) else "cannot"
        # a pair that is cheaper than its closure adds a difference below zero
        penalty = int(rng.integers(0, largest + 1)) * int(rng.choice([1, 1, 1, -1])) << shift
        pairs.append((i, j, kind, penalty))
    if rng.random() < 0.5:
        pairs += tight_pairs(rng, groups, 2 * largest << shift)
    return Component(distortion.tolist(), pairs, groups, shift)


def tight_pairs(
    rng: np.random.Generator, groups: list[int], penalty: int
) -> list[tuple[int, int, str, int]]:
    """Must-link every member to all others of its group."""
    n = len(groups)
    ends = [(i, j) for j in range(n) for i in range(j) if groups[i] == groups[j]]
    return [(i, j, "must", penalty + int(rng.integers(0, 2))) for i, j in ends]


def starting_labels(rng: np.random.Generator, component: Component) -> np.ndarray:
    """Return random labels, in half of the cases the same within a group."""
    labels = rng.integers(0, component.n_clusters, component.n).astype(np.int32)
    return labels[np.array(component.groups)] if rng.random() < 0.5 else labels


# ---- messages of belief propagation, all at once


def exchange_messages(edges: Any, beliefs: Integers, messages: Integers, damped: bool) -> int:
    """Renew every message from the beliefs of before; return how many numbers changed."""
    before = messages.copy()
    for side, senders in enumerate((edges.first, edges.second)):
        wanted = _wanted(beliefs[senders] - before[:, 1 - side], edges.cost[:, None])
        step = wanted - before[:, side]
        half = np.where(step >= 0, step // 2, -(-step // 2))
        messages[:, side] = wanted - half if damped else wanted
    return int((messages != before).sum())


def _wanted(values: Integers, cost: Integers) -> Integers:
    """Return undamped messages of senders to whom their clusters cost these values."""
    least, second = np.partition(values, 1, axis=1)[:, :2].T
    apart = values - least[:, None]
    rival = np.where(apart > 0, 0, np.minimum((second - least)[:, None], cost))
    return np.asarray(np.where(cost < 0, np.minimum(apart, -cost), rival), np.int64)


def add_messages(
    edges: Any,
    costs: NDArray[Any],
    shift: int,
    messages: Integers,
    beliefs: Integers,
) -> None:
    """Write what each cluster costs a point and, by their messages, its neighbours."""
    beliefs[:] = costs.astype(np.int64) << shift
    np.add.at(beliefs, edges.second, messages[:, 0])
    np.add.at(beliefs, edges.first, messages[:, 1])


def settle_labels(beliefs: Integers, labels: NDArray[Any]) -> None:
    """Give each point its cheapest cluster: a tie goes to the present one, then to the lowest."""
    least = beliefs.min(axis=1)
    leave: NDArray[np.bool_] = beliefs[np.arange(len(labels)), labels] > least
    labels[leave] = beliefs[leave].argmin(axis=1)
