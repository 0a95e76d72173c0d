"""What distances need of all rows under one set of weights, and the rows in groups with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hmrf_dask.dataflow import Dataflow, Lazy, tree
from hmrf_dask.em import parts
from hmrf_dask.em.model import State, exact
from hmrf_dask.em.parts import Part, add_limbs
from hmrf_dask.em.problem import Problem
from hmrf_dask.kernels.exact import exact_integer
from hmrf_dask.runs import LabelsFile
from hmrf_dask.types import FloatArray


@dataclass(frozen=True)
class Rows:
    """What distances need of all rows under one set of weights, kept where it was computed.

    Attributes
    ----------
    weights : float64 array, shape (d,)
    free, linked : row terms of each part; None where they are as large as the rows
    offsets : exact Σ offset over all rows
    bound : bound on the entries of summands
    """

    weights: FloatArray
    free: tuple[Lazy, ...]
    linked: tuple[Lazy, ...]
    offsets: int
    bound: float


@dataclass(frozen=True)
class Group:
    """Parts that one task takes, and the terms of their rows."""

    parts: tuple[Part, ...]
    kept: tuple[Lazy, ...]
    files: tuple[LabelsFile, ...]

    @property
    def blocks(self) -> list[Lazy]:
        """The rows of the parts."""
        return [part.block for part in self.parts]


def planned_terms(flow: Dataflow, problem: Problem, weights: FloatArray) -> list[Lazy]:
    """Return lazily the row terms of every part, free ones first; None where it is read."""
    every = [*problem.free, *problem.linked]
    if not problem.distortion.keeps_terms:
        return [None] * len(every)
    metric = flow.share((problem.distortion, weights))
    return [
        None if part.is_read else flow.lazy(parts.row_terms, part.block, metric) for part in every
    ]


def look_at_rows(
    flow: Dataflow,
    problem: Problem,
    weights: FloatArray,
    terms: Sequence[Lazy],
    wanted: Sequence[Lazy],
) -> tuple[Rows, list[Any]]:
    """Compute the `terms` of all rows, and keep them; in the same graph compute `wanted`."""
    distortion, n_free = problem.distortion, len(problem.free)
    bound = distortion.summand_bound(None, weights)
    common, metric = distortion.common_offset, flow.share((distortion, weights))
    asked = list(wanted)
    by_row = distortion.linear and distortion.keeps_terms and common is None
    if by_row:
        limbs = [
            flow.lazy(parts.offset_limbs, one.block, known, metric)
            for one, known in zip(problem.free, terms, strict=False)
        ]
        asked.append(tree(flow, add_limbs, limbs))
    if bound is None:
        ends = zip(problem.free, terms, strict=False)
        bounds = [flow.lazy(parts.summand_bound, one.block, known, metric) for one, known in ends]
        asked.append(tree(flow, max, bounds))
    lasting = [one for one in terms if one is not None]
    kept = flow.persist([*lasting, *asked]) if lasting or asked else []
    remaining = iter(kept)
    terms = [None if one is None else next(remaining) for one in terms]
    found = flow.compute(list(remaining)) if asked else []
    if bound is None:
        bound = float(found.pop())
    offsets = exact(common or 0.0) * problem.extent.n_rows
    if by_row:
        offsets = exact_integer(found.pop())
    rows = Rows(weights, tuple(terms[:n_free]), tuple(terms[n_free:]), offsets, bound)
    return rows, found


def grouped(
    problem: Problem, state: State, terms: Sequence[Lazy]
) -> tuple[list[Group], list[Group]]:
    """Return the groups of free parts, and every linked part as one of its own."""
    n_free = len(problem.free)
    free = [
        Group(
            tuple(problem.free[place] for place in places),
            tuple(terms[place] for place in places),
            tuple(state.free[place] for place in places),
        )
        for places in problem.groups
    ]
    linked = [
        Group((part,), (known,), (file,))
        for part, known, file in zip(problem.linked, terms[n_free:], state.linked, strict=True)
    ]
    return free, linked
