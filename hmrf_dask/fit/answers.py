"""Answers in a fit: what the rows say of them before it, and which of them it finds improbable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore
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
from hmrf_dask.errors import LostOwnerError
from hmrf_dask.fit.owners import Owned, model_of
from hmrf_dask.fit.problem import AnswerOdds, Pairs, Problem, gather_partitions
from hmrf_dask.flow.dataflow import Dataflow, Lazy, tree
from hmrf_dask.kernels.first_variation import squares_of
from hmrf_dask.linked.plan import cost_unit, rounded_costs
from hmrf_dask.tasks.answers import (
    Asked,
    Clusters,
    Nudges,
    costs_of_rows,
    likelihood_of_same,
    spread_of_distances,
)
from hmrf_dask.tasks.first_centroids import Lowest, merge_lowest
from hmrf_dask.tasks.first_variation import column_weights
from hmrf_dask.tasks.model import Settings, State
from hmrf_dask.tasks.partitions import StoredLabels
from hmrf_dask.tasks.start_sample import Draw, lowest_rows
from hmrf_dask.types import AnyArray, BoolArray, FloatArray, IntArray, LabelArray

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


class SuspectAnswer(NamedTuple):
    """An answer that is more likely wrong than right."""

    a: object  # as the answer names the document
    b: object
    kind: str  # must or cannot
    probability: float  # that it is right


class _Answers(NamedTuple):
    """The given pairs of both kinds: nodes, and log odds that what was said is right."""

    nodes: IntArray
    must: BoolArray
    odds: FloatArray
    costs: FloatArray  # of equal labels

    @classmethod
    def of(cls, pairs: Pairs) -> _Answers:
        """Return the given pairs of a fit, must-links first."""
        odds = pairs.odds
        assert odds is not None
        signed = np.concatenate([-odds.must, odds.cannot])
        must = np.arange(len(signed)) < len(odds.must)
        nodes = np.concatenate([pairs.must, pairs.cannot]).astype(np.int64)
        return cls(nodes, must, np.where(must, -signed, signed), odds.kappa * signed)


def find_suspects(
    flow: Dataflow, problem: Problem, state: State, run: CheckpointStore, labels: LabelArray
) -> list[SuspectAnswer]:
    """Return the answers that are more likely wrong than right, the least likely first.

    `labels` are those of the constrained rows, in the order of nodes.
    """
    pairs = problem.constraints
    if pairs is None or pairs.odds is None or problem.layout is None or problem.held:
        return []
    answers = _Answers.of(pairs)
    asked = problem, StoredLabels(run, state.linked), state, answers, labels
    try:
        same = _likelihoods(flow, *asked)
    except LostOwnerError:  # the model a fit ends with is in the driver too
        state.sums.model = None
        same = _likelihoods(flow, *asked)
    agreeing = np.clip(np.where(answers.must, same, 1.0 - same), 1e-300, 1.0 - 1e-16)
    odds = np.log(agreeing) - np.log1p(-agreeing) + answers.odds
    suspect = np.flatnonzero(odds < 0)
    suspect = suspect[np.argsort(odds[suspect], kind="stable")]
    rows = zip(
        *pairs.names[answers.nodes[suspect]].T.tolist(),
        answers.must[suspect].tolist(),
        (1.0 / (1.0 + np.exp(-odds[suspect]))).tolist(),
        strict=True,
    )
    return [SuspectAnswer(a, b, "must" if must else "cannot", p) for a, b, must, p in rows]


def _likelihoods(
    flow: Dataflow, problem: Problem, stored: StoredLabels, state: State,
    answers: _Answers, labels: LabelArray,
) -> FloatArray:  # fmt: skip
    """Return how likely the ends of each answer are of one cluster."""
    assert problem.layout is not None
    assert problem.constraints is not None
    assert problem.constraints.odds is not None
    bounds = problem.layout.partition_starts
    positions = problem.layout.position[answers.nodes].astype(np.int64)
    homes = np.searchsorted(bounds, positions, side="right") - 1
    places, ends = positions - bounds[homes], labels[answers.nodes]
    parts = _costs(flow, problem, stored, state, _nudges(homes, places, ends, answers.costs))
    keys = homes[:, 0] * len(parts) + homes[:, 1]
    order = np.argsort(keys, kind="stable")
    same, tasks, groups = np.empty(len(keys)), [], []
    for group in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(order) else ():
        here, there = homes[group[0]].tolist()
        rows, others = places[group], ends[group]
        asked = Asked(rows[:, 0], rows[:, 1], others[:, 0], others[:, 1], answers.costs[group])
        kappa = problem.constraints.odds.kappa
        arguments = (parts[here], parts[there], flow.share(asked), kappa)
        tasks.append(flow.lazy(likelihood_of_same, *arguments))
        groups.append(group)
    for group, found in zip(groups, flow.compute(tasks), strict=True):
        same[group] = found
    return same


def _nudges(
    homes: IntArray, places: IntArray, ends: LabelArray, costs: FloatArray
) -> dict[int, Nudges]:
    """Return by partition what answers add to the costs of rows: at the label of the other end."""
    home, row = homes.ravel(), places.ravel()
    cluster, cost = ends[:, ::-1].ravel(), np.repeat(costs, 2)
    return {
        number: Nudges(row[home == number], cluster[home == number], cost[home == number])
        for number in np.unique(home).tolist()
    }


def _costs(
    flow: Dataflow, problem: Problem, stored: StoredLabels, state: State, nudges: dict[int, Nudges]
) -> Sequence[Lazy]:
    """Return lazily what each cluster costs each row of the linked partitions."""
    model = state.model
    squares = np.zeros(model.n_clusters)
    if model.distortion.refinement == "directional":
        if isinstance(state.sums, Owned):
            squares = state.sums.squares
        else:
            squares = squares_of(state.sums, column_weights(model), model.exponent)
    shared, clusters = model_of(flow, state), flow.share(Clusters(squares, state.counts))
    return [
        flow.lazy(
            costs_of_rows, part.block, shared, StoredLabels(stored.run, [file]), clusters,
            flow.share(nudges[number]),
        )
        if number in nudges
        else None
        for number, (part, file) in enumerate(zip(problem.linked, stored.files, strict=True))
    ]  # fmt: skip
