"""What answers weigh in a fit: fixed before its first iteration, the same for every candidate.

Breaking an answer that is right with probability p costs κ · ln(p / (1 - p)), alike for both kinds;
κ is the standard deviation of the distance between two rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmrf_dask.constraints.closure import (
    ClosureRules,
    ConstraintGraph,
    CostedPairs,
    Names,
    build_graph,
)
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.constraints.trust import (
    CERTAIN,
    OddsPairs,
    joined_by_answers,
    log_odds,
    shown_trust,
    turned,
)
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.fit.problem import AnswerOdds, gather_partitions
from hmrf_dask.flow.dataflow import Dataflow, tree
from hmrf_dask.linked.plan import cost_unit, rounded_costs
from hmrf_dask.tasks.answers import spread_of_distances
from hmrf_dask.tasks.first_centroids import Lowest, merge_lowest
from hmrf_dask.tasks.model import Settings
from hmrf_dask.tasks.start_sample import Draw, lowest_rows
from hmrf_dask.types import AnyArray, FloatArray, IntArray

SPREAD_ROWS = 512  # whose distances tell κ: 4,096 of them, so it is off by 2 to 4 %


@dataclass(frozen=True)
class GivenPairs:
    """The given pairs of one kind, of nodes, with what was given of each."""

    pairs: AnyArray
    costs: FloatArray  # NaN for the estimator's
    trust: FloatArray  # NaN for the estimator's


def given_pairs(constraints: Constraints, node: IntArray) -> tuple[GivenPairs, GivenPairs]:
    """Return must-links and cannot-links of constraints whose document i is node[i]."""
    return (
        GivenPairs(
            node[constraints.must_nodes], constraints.must_link_costs, constraints.must_link_trust
        ),
        GivenPairs(
            node[constraints.cannot_nodes],
            constraints.cannot_link_costs,
            constraints.cannot_link_trust,
        ),
    )


def weigh_answers(
    flow: Dataflow, corpus: Corpus, distortion: Distortion,
    given: tuple[GivenPairs, GivenPairs], settings: Settings,
) -> AnswerOdds:  # fmt: skip
    """Return what answers weigh: by what was said of them, else by what contradicts."""
    trust = settings.trust
    if trust is None:
        unknown = [kind.pairs[np.isnan(kind.trust)].astype(np.int32) for kind in given]
        n_nodes = 1 + max((int(pairs.max(initial=-1)) for pairs in unknown), default=-1)
        trust = shown_trust(n_nodes, *unknown)
    odds = (log_odds(np.where(np.isnan(kind.trust), trust, kind.trust)) for kind in given)
    return AnswerOdds(spread_of_corpus(flow, corpus, distortion), trust, *odds)


def spread_of_corpus(flow: Dataflow, corpus: Corpus, distortion: Distortion) -> float:
    """Return κ, of the rows with the lowest keyed numbers: the same for any partitioning."""
    nothing, shared = flow.share(np.zeros(0, np.int64)), flow.share(distortion)
    draw = Draw(0, SPREAD_ROWS)
    named = zip(corpus.named, corpus.offsets, strict=False)
    lists = [flow.lazy(lowest_rows, part, first, nothing, nothing, draw) for part, first in named]
    lowest: Lowest = flow.compute([tree(flow, merge_lowest, lists)])[0]
    bounds, offsets = np.asarray([0, len(lowest.rows)], np.int64), np.asarray(corpus.offsets)
    rows = gather_partitions(flow, corpus.blocks, offsets, lowest.rows, bounds, "spread")[0]
    spread: float = flow.compute([flow.lazy(spread_of_distances, rows.block, shared)])[0]
    return spread


def graph_of_answers(
    n_nodes: int,
    given: tuple[GivenPairs, GivenPairs],
    odds: AnswerOdds,
    settings: Settings,
    rules: ClosureRules,
    names: Names,
) -> tuple[float, ConstraintGraph]:
    """Return the unit of costs, and the graph where each pair costs by how likely it is right."""
    defaults = np.asarray([settings.must_link_cost, settings.cannot_link_cost])
    kinds = turned(
        _ordered(given[0], odds.must, defaults[0]), _ordered(given[1], odds.cannot, defaults[1])
    )
    costs = [odds.kappa * kind.odds * kind.costs for kind in kinds]
    closure = odds.kappa * CERTAIN * defaults
    largest = max(float(kind.max(initial=0.0)) for kind in costs)
    if any(kind.certain.any() for kind in kinds):
        largest = max(largest, *closure.tolist())
    unit = cost_unit(largest)
    closure = rounded_costs(closure, unit)
    must, cannot = (
        CostedPairs(kind.pairs, rounded_costs(cost, unit), float(closed), kind.certain)
        for kind, cost, closed in zip(kinds, costs, closure, strict=True)
    )
    joined = joined_by_answers(n_nodes, *kinds)
    return unit, build_graph(n_nodes, must, cannot, rules, names, joined)


def _ordered(given: GivenPairs, odds: FloatArray, default: float) -> OddsPairs:
    """Return pairs lower first and sorted, with their odds and costs."""
    pairs = np.sort(given.pairs, axis=1).astype(np.int32).reshape(-1, 2)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    costs = np.where(np.isnan(given.costs), default, given.costs)
    return OddsPairs(pairs[order], odds[order], costs[order])
