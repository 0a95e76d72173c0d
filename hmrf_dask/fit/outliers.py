"""Which rows of a finished fit are outliers: a pass over free rows that changes nothing of it."""

from __future__ import annotations

from hmrf_dask.checkpoints.records import CheckpointStore
from hmrf_dask.fit.problem import Problem
from hmrf_dask.flow.dataflow import Dataflow, Lazy, share_array, tree
from hmrf_dask.tasks.model import State
from hmrf_dask.tasks.outliers import added, counts_by_cluster, limits_of, outliers
from hmrf_dask.tasks.partitions import StoredLabels
from hmrf_dask.types import IntArray


def find_outliers(
    flow: Dataflow, problem: Problem, state: State, run: CheckpointStore
) -> tuple[IntArray, list[Lazy]]:
    """Return the limit of each cluster, and lazily the outliers of every corpus partition."""
    rule, model = problem.settings.outliers, flow.share(state.model)
    parts = [
        (part.block, StoredLabels(run, [file]), model)
        for part, file in zip(problem.free, state.free, strict=True)
    ]
    counts = [flow.lazy(counts_by_cluster, *part) for part in parts]
    total = flow.compute([tree(flow, added, counts)])[0]
    limits = limits_of(total, None if isinstance(rule, str) else rule)
    known = share_array(flow, limits)
    return limits, [flow.lazy(outliers, *part, known) for part in parts]
