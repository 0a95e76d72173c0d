"""Answers that a finished fit finds improbable, each judged with that answer left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hmrf_dask.checkpoints.records import CheckpointStore
from hmrf_dask.fit.problem import Pairs, Problem
from hmrf_dask.flow.dataflow import Dataflow, Lazy
from hmrf_dask.kernels.first_variation import squares_of
from hmrf_dask.tasks.answers import Asked, Clusters, Nudges, costs_of_rows, likelihood_of_same
from hmrf_dask.tasks.first_variation import column_weights
from hmrf_dask.tasks.model import State
from hmrf_dask.tasks.partitions import StoredLabels
from hmrf_dask.types import BoolArray, FloatArray, IntArray, LabelArray


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
    same = _likelihoods(flow, problem, StoredLabels(run, state.linked), state, answers, labels)
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
        squares = squares_of(state.sums, column_weights(model), model.exponent)
    shared, clusters = flow.share(model), flow.share(Clusters(squares, state.counts))
    return [
        flow.lazy(
            costs_of_rows, part.block, shared, StoredLabels(stored.run, [file]), clusters,
            flow.share(nudges[number]),
        )
        if number in nudges
        else None
        for number, (part, file) in enumerate(zip(problem.linked, stored.files, strict=True))
    ]  # fmt: skip
