"""Messages of belief propagation by numpy, as `kernels.messages` has them: the same integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmrf_dask.types import AnyArray, BoolArray, IntArray


def exchange(edges: Any, beliefs: IntArray, messages: IntArray, damped: bool) -> int:
    """Renew every message from the beliefs of before; return how many numbers changed."""
    before = messages.copy()
    for side, senders in enumerate((edges.first, edges.second)):
        wanted = _wanted(beliefs[senders] - before[:, 1 - side], edges.cost[:, None])
        step = wanted - before[:, side]
        half = np.where(step >= 0, step // 2, -(-step // 2))
        messages[:, side] = wanted - half if damped else wanted
    return int((messages != before).sum())


def _wanted(values: IntArray, cost: IntArray) -> IntArray:
    """Return undamped messages of senders to whom their clusters cost these values."""
    least, second = np.partition(values, 1, axis=1)[:, :2].T
    apart = values - least[:, None]
    rival = np.where(apart > 0, 0, np.minimum((second - least)[:, None], cost))
    return np.asarray(np.where(cost < 0, np.minimum(apart, -cost), rival), np.int64)


def believe(edges: Any, costs: AnyArray, shift: int, messages: IntArray, beliefs: IntArray) -> None:
    """Write what each cluster costs a point and, by their messages, its neighbours."""
    beliefs[:] = costs.astype(np.int64) << shift
    np.add.at(beliefs, edges.second, messages[:, 0])
    np.add.at(beliefs, edges.first, messages[:, 1])


def settle(beliefs: IntArray, labels: AnyArray) -> None:
    """Give each point its cheapest cluster: a tie goes to the present one, then to the lowest."""
    least = beliefs.min(axis=1)
    leave: BoolArray = beliefs[np.arange(len(labels)), labels] > least
    labels[leave] = beliefs[leave].argmin(axis=1)
