"""What rows of the proof share: memory and time, engines over pairs, gains by numpy alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
from numpy.typing import NDArray

from hmrf_dask.checkpoints.memory import MemoryRun
from hmrf_dask.constraints.closure import build_graph
from hmrf_dask.constraints.pairs import AnyArray
from hmrf_dask.distortions import make_distortion
from hmrf_dask.distortions.base import Extent
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.problem import lay_out
from hmrf_dask.flow.dataflow import Dataflow
from hmrf_dask.linked.scale import cost_unit
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.model import Settings

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


def blobs(n: int, d: int, k: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return signed rows around k centres, many nearer to a wrong one, and their classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n).astype(np.int32)
    centres = rng.normal(size=(k, d))
    rows = centres[labels] + 1.5 * rng.normal(size=(n, d))
    return rows.astype(np.float32), labels


def engine_over(
    rows: NDArray[np.float32],
    must: AnyArray,
    cannot: AnyArray,
    n_clusters: int,
    flow: Dataflow,
    *,
    task_memory: int = 2**30,
    **settings: Any,
) -> Engine:
    """Return an engine over rows in 16 parts, all of them constrained."""
    n, d = rows.shape
    asked = Settings(n_clusters, task_memory=task_memory, **settings)
    extent = Extent(n, d, rows.min(axis=0), rows.max(axis=0), 1.0, 1.0)
    largest = max(asked.must_link_cost, asked.cannot_link_cost)
    nothing = np.full(len(must), np.nan), np.full(len(cannot), np.nan)
    graph = build_graph(
        n, must, nothing[0], cannot, nothing[1], must_link_cost=asked.must_link_cost,
        cannot_link_cost=asked.cannot_link_cost, closure=asked.closure, closure_form=True,
        on_conflict="keep", names=int,
    )  # fmt: skip
    cuts = np.linspace(0, n, 17).astype(int)
    blocks = [flow.share(RowBlock.from_array(rows[first:last])) for first, last in pairwise(cuts)]
    problem = lay_out(
        flow, asked, make_distortion("cosine").bind(extent), extent, blocks,
        np.diff(cuts).tolist(), graph, np.arange(n), np.full(n, d), cost_unit(largest),
    )  # fmt: skip
    return Engine(flow, problem, MemoryRun(), 1)


def labels_by_node(engine: Engine, files: tuple[Any, ...]) -> NDArray[np.int32]:
    """Return the labels of all constrained rows."""
    laid = np.concatenate([engine.run.read_labels(file) for file in files])
    assert engine.problem.layout is not None
    return laid[engine.problem.layout.position]


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
