"""A linked component in plain Python integers: its energy, what still gains, its messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def join_limbs(high: int, low: int) -> int:
    """Return the two limbs as one Python integer."""
    return (int(high) << 32) + int(low)


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
    above_least = values - least[:, None]
    rival = np.where(above_least > 0, 0, np.minimum((second - least)[:, None], cost))
    return np.asarray(np.where(cost < 0, np.minimum(above_least, -cost), rival), np.int64)


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
