"""Hard pairs (COP-KMeans): every must-link group in the cheapest cluster that breaks no pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmrf_dask.constraints.cliques import Pair, infeasible, shown_pairs
from hmrf_dask.errors import InfeasibleError
from hmrf_dask.kernels.colour_search import critical_part, search
from hmrf_dask.kernels.colouring import Rivalry, make_rivalry, place_apart, swap_chains
from hmrf_dask.kernels.graphs import graph_of, subgraph
from hmrf_dask.kernels.problem import distortion_sums
from hmrf_dask.linked.layout import CANNOT, IcmProblem
from hmrf_dask.linked.plan import Scale
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.tasks.icm import exact_costs, grouping_of
from hmrf_dask.tasks.model import Model, Settings
from hmrf_dask.tasks.partitions import StoredLabels, pick
from hmrf_dask.types import AnyArray, IntArray, LabelArray, Sized


@dataclass(frozen=True)
class NamedCosts(Sized):
    """What a linked partition knows before its groups are placed."""

    costs: LabelArray
    ids: AnyArray


def named_costs(block: RowBlock, model: Model, scale: Scale) -> NamedCosts:
    """Return the integer costs of the rows of a linked partition, and who they are."""
    return NamedCosts(exact_costs(block, model, scale), block.ids)


def settle(
    problem: IcmProblem, partitions: list[NamedCosts], settings: Settings, stored: StoredLabels
) -> LabelArray:
    """Return the labels of a problem's points; InfeasibleError where none were found at first.

    Components that have labels keep them, with swaps, unless those made from nothing cost less.
    """
    points = partitions[0]
    if len(partitions) > 1:
        points = NamedCosts(
            np.concatenate([part.costs for part in partitions]),
            np.concatenate([part.ids for part in partitions]),
        )
    rivalry, present = _rivalry(problem), stored.read()
    placed = place_apart(points.costs, rivalry)
    stuck = np.unique(problem.group_components[placed < 0])
    if (present < 0).any():
        for component in stuck.tolist():
            _Stuck(problem, points, rivalry, settings).search(component, placed)
        swap_chains(points.costs, rivalry, placed)
        return placed[problem.groups]
    labels = present[problem.group_members[problem.group_starts[:-1]]].astype(np.int32)
    swap_chains(points.costs, rivalry, labels)
    kept = np.isin(problem.group_components, stuck)
    placed[kept] = labels[kept]
    swap_chains(points.costs, rivalry, placed)
    before, after = (_by_component(problem, points, ends) for ends in (labels, placed))
    lower = (after < before)[problem.group_components]
    return np.where(lower, placed, labels)[problem.groups].astype(np.int32)


def _rivalry(problem: IcmProblem) -> Rivalry:
    """Return the groups of an ICM problem and the cannot-links between them."""
    groups = grouping_of(problem)
    pairs = problem.kind == CANNOT
    ends = np.stack([groups.of[problem.first[pairs]], groups.of[problem.second[pairs]]], axis=1)
    return make_rivalry(groups, graph_of(len(problem.group_components), ends))


def _by_component(problem: IcmProblem, points: NamedCosts, labels: LabelArray) -> IntArray:
    """Return what the points of each component cost under labels of their groups."""
    total = np.zeros(int(problem.group_components.max(initial=-1)) + 1, np.int64)
    own = points.costs[np.arange(len(points.costs)), labels[problem.groups]].astype(np.int64)
    np.add.at(total, problem.group_components[problem.groups], own)
    return total


@dataclass(frozen=True)
class _Stuck:
    """What is known where groups were left without a cluster."""

    problem: IcmProblem
    points: NamedCosts
    rivalry: Rivalry
    settings: Settings

    def search(self, component: int, placed: LabelArray) -> None:
        """Write labels of a component that keep all pairs into `placed`, or raise."""
        groups = np.flatnonzero(self.problem.group_components == component)
        graph = subgraph(self.rivalry.graph, groups)
        lists = pick(self.rivalry.groups.start, self.rivalry.groups.member, groups)
        found = search(graph, distortion_sums(self.points.costs, *lists, 0), self.settings.retries)
        if found.proof is not None:
            raise self._proved(groups[critical_part(graph, self.settings.n_clusters, found.proof)])
        if found.labels is None:
            raise self._not_found(groups, placed, found.steps)
        placed[groups] = found.labels

    def _proved(self, groups: IntArray) -> InfeasibleError:
        """Return the error for groups that cannot be separated, with the pairs between them."""
        first, second, pairs = self._cannot_links()
        among = np.flatnonzero(np.isin(first, groups) & np.isin(second, groups))
        ends = np.sort(np.stack([first[among], second[among]], axis=1), axis=1)
        _, places = np.unique(ends, axis=0, return_index=True)
        starts = self.rivalry.groups.start
        lowest = self.points.ids[self.rivalry.groups.member[starts[groups]]]
        documents = list(zip(lowest.tolist(), np.diff(starts)[groups].tolist(), strict=True))
        named = self._named(pairs[among[places]])
        return infeasible(documents, named, self.settings.n_clusters)

    def _not_found(self, groups: IntArray, placed: LabelArray, steps: int) -> InfeasibleError:
        """Return the error for a component without labels, with the pairs around one group."""
        group = groups[placed[groups] < 0][0]
        first, second, pairs = self._cannot_links()
        here = np.flatnonzero((first == group) | (second == group))
        clusters, places = np.unique(
            placed[np.where(first == group, second, first)[here]], return_index=True
        )
        chosen = pairs[here[places[clusters >= 0]]]
        blocking = tuple(
            ends if self.problem.groups[self.problem.first[pair]] == group else ends[::-1]
            for pair, ends in zip(chosen, self._named(chosen), strict=True)
        )
        n_documents = int(np.diff(self.rivalry.groups.start)[groups].sum())
        return InfeasibleError(
            f"cannot-links must leave every document one of the {self.settings.n_clusters} "
            f"clusters, but for {n_documents} documents that pairs join no such labels were found "
            f"within {steps:,} steps, nor a proof that there are none; in the way of the first "
            f"attempt: {shown_pairs(blocking)}. Ask for more clusters or more retries, drop pairs "
            "that are uncertain, or use PCKMeans, which may break pairs",
            blocking,
        )

    def _cannot_links(self) -> tuple[LabelArray, LabelArray, IntArray]:
        """Return the groups at both ends of each cannot-link, and the numbers of the pairs."""
        problem = self.problem
        pairs = np.flatnonzero(problem.kind == CANNOT)
        return problem.groups[problem.first[pairs]], problem.groups[problem.second[pairs]], pairs

    def _named(self, pairs: IntArray) -> list[Pair]:
        """Return the ids at both ends of pairs."""
        ends = self.problem.first[pairs], self.problem.second[pairs]
        return list(zip(*(self.points.ids[end].tolist() for end in ends), strict=True))
