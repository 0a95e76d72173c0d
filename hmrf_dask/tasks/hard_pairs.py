"""Hard pairs (COP-KMeans): every must-link group to the nearest cluster that breaks no pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmrf_dask.errors import InfeasibleError
from hmrf_dask.kernels.problem import Rivalry, adjacency, make_rivalry, place_apart
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.linked.layout import CANNOT, IcmProblem
from hmrf_dask.linked.plan import Scale
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.icm import exact_costs, grouping_of
from hmrf_dask.tasks.model import Model, Settings
from hmrf_dask.tasks.partitions import StoredLabels
from hmrf_dask.types import AnyArray, IntArray, KeyArray, LabelArray, Sized


@dataclass(frozen=True)
class KeyedCosts(Sized):
    """What a linked partition knows before its groups are placed."""

    costs: LabelArray
    ids: AnyArray
    keys: KeyArray


def keyed_costs(block: RowBlock, model: Model, scale: Scale) -> KeyedCosts:
    """Return the integer costs of the rows of a linked partition, and who they are."""
    return KeyedCosts(exact_costs(block, model, scale), block.ids, block.keys)


def settle(
    problem: IcmProblem, partitions: list[KeyedCosts], settings: Settings, stored: StoredLabels
) -> LabelArray:
    """Return the labels of a problem's points; InfeasibleError where none were found at first."""
    points = partitions[0]
    if len(partitions) > 1:
        points = KeyedCosts(
            np.concatenate([part.costs for part in partitions]),
            np.concatenate([part.ids for part in partitions]),
            np.concatenate([part.keys for part in partitions]),
        )
    rivalry, present = _rivalry(problem), stored.read()
    fresh, blocked = _place_again(points, rivalry, settings)
    if (present < 0).any():
        if (blocked >= 0).any():
            stuck = int(blocked[blocked >= 0][0])
            raise _infeasible(problem, points, rivalry, fresh, stuck, settings)
        return fresh[problem.groups]
    labels = _first_of(rivalry, present).astype(np.int32)
    order = _order(points, rivalry, settings.seed, 0, np.zeros(len(labels), np.int64))
    place_apart(points.costs, rivalry, order, labels, len(blocked))
    fresh[fresh < 0] = 0  # of components that were given up, and are not taken
    components = rivalry.component[problem.groups]
    before, after = (
        _by_component(points, components, placed[problem.groups], len(blocked))
        for placed in (labels, fresh)
    )
    lower = after < before
    taken = (lower & (blocked < 0))[rivalry.component]
    return np.where(taken, fresh, labels)[problem.groups].astype(np.int32)


def _rivalry(problem: IcmProblem) -> Rivalry:
    """Return the groups of an ICM problem and the cannot-links between them."""
    pairs = np.flatnonzero(problem.kind == CANNOT)
    ends = problem.groups[problem.first[pairs]], problem.groups[problem.second[pairs]]
    rivals = adjacency(len(problem.group_components), *ends, pairs)
    return make_rivalry(grouping_of(problem), problem.group_components, *rivals)


def _first_of(rivalry: Rivalry, values: AnyArray) -> AnyArray:
    """Return the value of the first point of each group: of the lowest id."""
    return values[rivalry.groups.member[rivalry.groups.start[:-1]]]


def _order(
    points: KeyedCosts, rivalry: Rivalry, seed: int, attempt: int, failures: IntArray
) -> IntArray:
    """Return all groups: first those that had no cluster left most often, then keyed ones."""
    numbers = uniforms(_first_of(rivalry, points.keys), seed, "order", 0, 0, attempt)
    return np.lexsort((numbers, -failures))


def _place_again(
    points: KeyedCosts, rivalry: Rivalry, settings: Settings
) -> tuple[LabelArray, IntArray]:
    """Return labels of the groups, and of components that were given up the group they stuck at."""
    n_groups = len(rivalry.component)
    labels, failures = np.full(n_groups, -1, np.int32), np.zeros(n_groups, np.int64)
    blocked = np.zeros(int(rivalry.component.max(initial=-1)) + 1, np.int64)  # none is placed yet
    for attempt in range(1 + settings.retries):
        open_groups = blocked[rivalry.component] >= 0
        labels[open_groups] = -1
        order = _order(points, rivalry, settings.seed, attempt, failures)
        blocked = place_apart(
            points.costs, rivalry, order[open_groups[order]], labels, len(blocked)
        )
        failures[blocked[blocked >= 0]] += 1
        if not (blocked >= 0).any():
            break
    return labels, blocked


def _by_component(
    points: KeyedCosts, components: LabelArray, labels: LabelArray, n_components: int
) -> IntArray:
    """Return what the points of each component cost under some labels."""
    total = np.zeros(n_components, np.int64)
    np.add.at(total, components, points.costs[np.arange(len(labels)), labels].astype(np.int64))
    return total


def _infeasible(
    problem: IcmProblem,
    points: KeyedCosts,
    rivalry: Rivalry,
    labels: LabelArray,
    group: int,
    settings: Settings,
) -> InfeasibleError:
    """Return the error for a group that has no cluster left, with a pair for each cluster."""
    edges = slice(*rivalry.start[group : group + 2])
    clusters, pairs = labels[rivalry.rival[edges]], rivalry.pair[edges]
    kept, chosen = np.unique(clusters, return_index=True)
    blocking = []
    for pair in pairs[chosen[kept >= 0]]:
        ends = int(problem.first[pair]), int(problem.second[pair])
        mine, rival = ends if problem.groups[ends[0]] == group else ends[::-1]
        blocking.append((points.ids[mine].item(), points.ids[rival].item()))
    members = points.ids[rivalry.groups.member[slice(*rivalry.groups.start[group : group + 2])]]
    shown = ", ".join(f"{mine!r} and {rival!r}" for mine, rival in blocking[:10])
    return InfeasibleError(
        f"cannot-links must leave every document one of the {settings.n_clusters} clusters, got "
        f"none left for {members[0].item()!r} (in a must-link group of {len(members)}) in "
        f"{1 + settings.retries} orders; the cannot-links in its way: {shown}"
        f"{' and more' if len(blocking) > 10 else ''}. Drop one of them, ask for more clusters or "
        "more retries, or use PCKMeans, which may break pairs",
        tuple(blocking),
    )
