"""What rows of the proof share: memory and time, engines over pairs, gains by numpy alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
from numpy.typing import NDArray

from hmrf_dask.constraints.pairs import AnyArray

MEBIBYTE = 2**20

# ---- measuring


class Resident:
    """The most memory this process had since it was asked first, beyond what it had then."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self.before = _status("VmRSS")

    @property
    def growth(self) -> int:
        """Bytes."""
        return _status("VmHWM") - self.before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(name + ":"))
    return int(line.split()[1]) * 1024


@contextmanager
def threads(task_memory: int = 2**30) -> Iterator[None]:
    """Run under Dask's threads with this memory for a task."""
    with dask.config.set({"scheduler": "threads", "hmrf.task-memory": task_memory}):
        yield


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return how long some work took, and its result."""
    began = time.perf_counter()
    result = work()
    return round(time.perf_counter() - began, 2), result


# ---- an engine over pairs


# ---- what is left to gain, by numpy alone


def left_to_gain(
    labels: NDArray[np.int32], costs: AnyArray, shift: int, problem: Any, pairs: Any
) -> tuple[int, int]:
    """Return how many points, and how many must-link groups, could still move with a gain."""
    n, k = costs.shape
    point = np.repeat(np.arange(n, dtype=np.int32), np.diff(pairs.start))
    rows = costs.astype(np.int64) << shift
    flat = rows.ravel()
    np.add.at(flat, point * np.int64(k) + labels[pairs.neighbour], pairs.signed)
    at = np.arange(n)
    singles = int((rows[at, labels] > rows.min(axis=1)).sum())
    inner = problem.groups[point] == problem.groups[pairs.neighbour]
    where, cost = point[inner], pairs.signed[inner]
    near = labels[pairs.neighbour[inner]]
    np.subtract.at(flat, where * np.int64(k) + near, cost)
    together, present = np.zeros(n, np.int64), rows[at, labels]
    lower = pairs.neighbour[inner] > where  # each pair once
    np.add.at(together, where[lower], cost[lower])
    alike = lower & (near == labels[where])
    np.add.at(present, where[alike], cost[alike])
    sizes = np.diff(problem.group_starts)
    few = np.repeat(sizes > 1, sizes)
    starts = np.concatenate([[0], np.cumsum(sizes[sizes > 1])])[:-1]
    if not len(starts):
        return singles, 0
    members = problem.group_members[few]
    now = _limbs(present[members][:, None], starts)
    groups = np.zeros(len(starts), np.bool_)
    for h in range(k):
        high, low = _limbs((rows[members, h] + together[members])[:, None], starts)
        groups |= ((high < now[0]) | ((high == now[0]) & (low < now[1])))[:, 0]
    return singles, int(groups.sum())


def _limbs(values: AnyArray, starts: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return sums that outgrow int64 as (high, low)."""
    high = np.add.reduceat(values >> 32, starts, axis=0)
    low = np.add.reduceat(values & 0xFFFFFFFF, starts, axis=0)
    return high + (low >> 32), low & 0xFFFFFFFF
