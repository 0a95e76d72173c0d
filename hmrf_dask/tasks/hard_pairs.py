"""Hard pairs (COP-KMeans): every must-link group to the nearest cluster that breaks no pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore, LabelsFile
from hmrf_dask.errors import InfeasibleError
from hmrf_dask.kernels.problem import Rivalry, adjacency, make_grouping, make_rivalry, place_apart
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.linked.layout import CANNOT, IcmProblem
from hmrf_dask.linked.plan import Scale
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.icm import exact_costs, problem_labels
from hmrf_dask.tasks.model import Model, Settings
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
    problem: IcmProblem,
    partitions: list[KeyedCosts],
    settings: Settings,
    run: CheckpointStore,
    files: list[LabelsFile],
) -> LabelArray:
    """Return the labels of a problem's points; InfeasibleError where none were found at first."""
    found = partitions[0] if len(partitions) == 1 else _joined(partitions)
    rivalry, present = _rivalry(problem), problem_labels(run, files)
    fresh, blocked = _place_anew(found, rivalry, settings)
    if (present < 0).any():
        if (blocked >= 0).any():
            stuck = int(blocked[blocked >= 0][0])
            raise _infeasible(problem, found, rivalry, fresh, stuck, settings)
        return fresh[problem.groups]
    labels = _first_of(rivalry, present).astype(np.int32)
    order = _order(found, rivalry, settings.seed, 0, np.zeros(len(labels), np.int64))
    place_apart(found.costs, rivalry, order, labels, len(blocked))
    fresh[fresh < 0] = 0  # of components that were given up, and are not taken
    components = rivalry.component[problem.groups]
    lower = _by_component(found, components, fresh[problem.groups], len(blocked)) < _by_component(
        found, components, labels[problem.groups], len(blocked)
    )
    taken = (lower & (blocked < 0))[rivalry.component]
    return np.where(taken, fresh, labels)[problem.groups].astype(np.int32)


def _joined(partitions: Sequence[KeyedCosts]) -> KeyedCosts:
    return KeyedCosts(
        np.concatenate([one.costs for one in partitions]),
        np.concatenate([one.ids for one in partitions]),
        np.concatenate([one.keys for one in partitions]),
    )


def _rivalry(problem: IcmProblem) -> Rivalry:
    """Return the groups of an ICM problem and the cannot-links between them."""
    pairs = np.flatnonzero(problem.kind == CANNOT)
    ends = problem.groups[problem.first[pairs]], problem.groups[problem.second[pairs]]
    rivals = adjacency(len(problem.group_components), *ends, pairs)
    groups = make_grouping(problem.groups, problem.group_starts, problem.group_members)
    return make_rivalry(groups, problem.group_components, *rivals)


def _first_of(rivalry: Rivalry, values: AnyArray) -> AnyArray:
    """Return the value of the first point of each group: of the lowest id."""
    return values[rivalry.groups.member[rivalry.groups.start[:-1]]]


def _order(
    found: KeyedCosts, rivalry: Rivalry, seed: int, attempt: int, failures: IntArray
) -> IntArray:
    """Return all groups: first those that had no cluster left most often, then keyed ones."""
    numbers = uniforms(_first_of(rivalry, found.keys), seed, "order", 0, 0, attempt)
    return np.lexsort((numbers, -failures))


def _place_anew(
    found: KeyedCosts, rivalry: Rivalry, settings: Settings
) -> tuple[LabelArray, IntArray]:
    """Return labels of the groups, and of components that were given up the group they stuck at."""
    n_groups = len(rivalry.component)
    labels, failures = np.full(n_groups, -1, np.int32), np.zeros(n_groups, np.int64)
    blocked = np.zeros(int(rivalry.component.max(initial=-1)) + 1, np.int64)  # none is placed yet
    for attempt in range(1 + settings.retries):
        open_groups = blocked[rivalry.component] >= 0
        labels[open_groups] = -1
        order = _order(found, rivalry, settings.seed, attempt, failures)
        again = place_apart(found.costs, rivalry, order[open_groups[order]], labels, len(blocked))
        blocked = again
        failures[again[again >= 0]] += 1
        if not (again >= 0).any():
            break
    return labels, blocked


def _by_component(
    found: KeyedCosts, components: LabelArray, labels: LabelArray, n_components: int
) -> IntArray:
    """Return what the points of each component cost under some labels."""
    total = np.zeros(n_components, np.int64)
    np.add.at(total, components, found.costs[np.arange(len(labels)), labels].astype(np.int64))
    return total


def _infeasible(
    problem: IcmProblem,
    found: KeyedCosts,
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
        one, other = ends if problem.groups[ends[0]] == group else ends[::-1]
        blocking.append((found.ids[one].item(), found.ids[other].item()))
    members = found.ids[rivalry.groups.member[slice(*rivalry.groups.start[group : group + 2])]]
    told = ", ".join(f"{one!r} and {other!r}" for one, other in blocking[:10])
    return InfeasibleError(
        f"cannot-links must leave every document one of the {settings.n_clusters} clusters, got "
        f"none left for {members[0].item()!r} (in a must-link group of {len(members)}) in "
        f"{1 + settings.retries} orders; the cannot-links in its way: {told}"
        f"{' and more' if len(blocking) > 10 else ''}. Drop one of them, ask for more clusters or "
        "more retries, or use PCKMeans, which may break pairs",
        tuple(blocking),
    )
