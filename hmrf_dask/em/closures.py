"""What the violated pairs of closures cost in float64, from counts and summed rows.

Per group g and cluster h: N, ΣA and S = Σ z. All pairs between two such sets cost
N'·ΣA + N·ΣA' − κ S·S', so a closure costs what its rows cost, never its pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hmrf_dask.distortions.table_form import TableDistortion
from hmrf_dask.em.model import Model, Penalties
from hmrf_dask.kernels import pairs as pair_kernels
from hmrf_dask.kernels.entries import products, sum_rows
from hmrf_dask.kernels.exact import exact_sum
from hmrf_dask.linked.layout import IcmProblem
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.types import FloatArray, IntArray, LabelArray


def end_to_end(blocks: list[RowBlock]) -> RowBlock:
    """Return the rows of an ICM problem's partitions in point order."""
    return blocks[0] if len(blocks) == 1 else RowBlock.concatenate(blocks)


@dataclass(frozen=True)
class Entries:
    """The (group, cluster) in use of the groups that are closed, ascending, and their points."""

    group: IntArray
    cluster: IntArray
    count: FloatArray
    start: IntArray
    member: IntArray

    def chosen(self, entries: IntArray) -> tuple[IntArray, IntArray]:
        """Return the points of some entries as CSR."""
        lengths = np.diff(self.start)[entries]
        start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        places = np.repeat(self.start[:-1][entries] - start[:-1], lengths) + np.arange(start[-1])
        return start, self.member[places]


def entries_of(problem: IcmProblem, labels: LabelArray, n_clusters: int) -> Entries:
    """Return the entries of an ICM problem's tables, points in their order."""
    points = np.flatnonzero(problem.group_tables[problem.groups])
    keys = problem.groups[points].astype(np.int64) * n_clusters + labels[points]
    order = np.argsort(keys, kind="stable")
    used, start = np.unique(keys[order], return_index=True)
    starts = np.concatenate([start, [len(points)]]).astype(np.int64)
    return Entries(
        used // n_clusters,
        used % n_clusters,
        np.diff(starts).astype(np.float64),
        starts,
        points[order],
    )


def broken_closures(
    problem: IcmProblem, entries: Entries
) -> tuple[tuple[IntArray, IntArray], tuple[IntArray, IntArray]]:
    """Return the entries between which must-links are broken, then the same of cannot-links."""
    bounds = np.searchsorted(entries.group, np.arange(len(problem.group_tables) + 1))
    first = np.arange(len(entries.group))
    after = bounds[entries.group + 1] - first - 1
    must = _spans(first, first + 1, after)
    mine, theirs = problem.rivals.astype(np.int64).T
    used = np.diff(bounds)
    fewer = used[mine] <= used[theirs]
    mine, theirs = np.where(fewer, mine, theirs), np.where(fewer, theirs, mine)
    rival, one = _spans(np.arange(len(mine)), bounds[mine], used[mine])
    n_clusters = int(entries.cluster.max(initial=0)) + 1
    keys = entries.group * n_clusters + entries.cluster
    wanted = theirs[rival] * n_clusters + entries.cluster[one]
    other = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    broken = keys[other] == wanted if len(keys) else np.zeros(0, np.bool_)
    return must, (one[broken], other[broken])


def _spans(owner: IntArray, first: IntArray, length: IntArray) -> tuple[IntArray, IntArray]:
    """Return each owner beside each of the `length` numbers from `first` on."""
    ends = np.cumsum(length)
    numbers = np.arange(ends[-1] if len(ends) else 0)
    return np.repeat(owner, length), numbers + np.repeat(first - ends + length, length)


def _between_rows(
    taken: RowBlock, model: Model, entries: Entries, ends: tuple[IntArray, ...]
) -> FloatArray:
    """Return Σ φ over all pairs between entries ends[0][t] and ends[1][t], from the rows."""
    distortion = model.distortion
    assert isinstance(distortion, TableDistortion)
    needed, places = np.unique(np.concatenate(ends), return_inverse=True)
    one, other = np.split(places, 2)
    start, member = entries.chosen(needed)
    rows = pair_kernels.side(taken.arrays, distortion.terms(taken, model.weights))
    squared = distortion.form == pair_kernels.SQUARED
    sums = sum_rows(rows, np.sqrt(model.weights), squared=squared, start=start, member=member)
    count = entries.count[needed]
    cross = products(sums, taken.n_features, one, other)
    own = count[other] * sums.own[one] + count[one] * sums.own[other]
    return np.asarray(own - distortion.kappa * cross, np.float64)


def table_penalties(
    problem: IcmProblem,
    rows: RowBlock,
    model: Model,
    potts: bool,
    labels: LabelArray,
    explicit: Penalties,
    costs: tuple[float, float],
) -> Penalties:
    """Return the penalties of a problem in table form: the explicit ones and those of its closures.

    `rows` are in the order of the problem's partitions, `costs` what one must-link and one
    cannot-link of a closure cost.
    """
    entries = entries_of(problem, labels, model.n_clusters)
    must, cannot = broken_closures(problem, entries)
    apart, together = (entries.count[one] * entries.count[other] for one, other in (must, cannot))
    if not potts:  # else φ of every pair is 1, and so is its complement
        ends = tuple(np.concatenate(side) for side in zip(must, cannot, strict=True))
        between_sets = _between_rows(rows, model, entries, ends)
        largest = model.distortion.maximum(model.weights)
        apart, near = np.split(between_sets, [len(must[0])])
        together = largest * together - near
    return replace(
        explicit,
        must=explicit.must + exact_sum(costs[0] * apart),
        cannot=explicit.cannot + exact_sum(costs[1] * together),
    )
