"""Trust: the probability that an answer is right, as log odds; what answers show of it together.

An answer that is right with probability p weighs ln(p / (1 - p)), whatever its kind; one below 1/2
is turned round. Answers that may be wrong have no closure: what follows from two of them is less
likely than either. They only join groups as far as they agree, and what does not agree shows how
many are wrong.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from hmrf_dask.constraints.answer_rows import Labelled, Notes, Said, take_vote
from hmrf_dask.constraints.closure import connected_numbers
from hmrf_dask.types import BoolArray, FloatArray, IntArray, LabelArray

CERTAIN: Final = float(np.log(1e6))  # the log odds of 1: one error in a million
# What is believed before any answer: as if so many had been checked. Of published answers of people
# 13 to 16 % are wrong; those of experts are better.
CHECKED_RIGHT, CHECKED_WRONG = 45, 5
LEAST_TRUST: Final = 0.55  # that answers without trust of their own show: none is turned round
STEPS: Final = 2.0**16  # log odds are summed as whole numbers of such steps


def log_odds(trust: FloatArray) -> FloatArray:
    """Return ln(p / (1 - p)) of probabilities, as far as `CERTAIN` either way.

    What is even but for rounding is even: costs far below distances fit no integers with them.

    Examples
    --------
    >>> log_odds(np.array([0.5, 0.9, 1.0])).round(3).tolist()
    [0.0, 2.197, 13.816]
    """
    with np.errstate(divide="ignore"):
        odds = np.log(trust) - np.log1p(-trust)
    odds[np.abs(odds) < 1.0 / STEPS] = 0.0
    return np.asarray(np.clip(odds, -CERTAIN, CERTAIN), np.float64)


class OddsPairs(NamedTuple):
    """Pairs of nodes of one kind, lower first, sorted, each once, and the log odds of each."""

    pairs: LabelArray
    odds: FloatArray  # at least 0
    costs: FloatArray  # what the odds are multiplied by

    @property
    def certain(self) -> BoolArray:
        """Which are certain: they are closed, and overrule others."""
        return np.asarray(self.odds >= CERTAIN)


def turned(must: OddsPairs, cannot: OddsPairs) -> tuple[OddsPairs, OddsPairs]:
    """Return both kinds with pairs of negative odds in the other one, where these are positive.

    One that is there already is as likely as both say; one of even odds is in neither.

    Examples
    --------
    >>> nothing = OddsPairs(np.zeros((0, 2), np.int32), np.zeros(0), np.zeros(0))
    >>> wrong = OddsPairs(np.array([[0, 1]], np.int32), np.array([-2.0]), np.ones(1))
    >>> [len(kind.pairs) for kind in turned(wrong, nothing)]
    [0, 1]
    """
    kinds = []
    for kind, opposite in ((must, cannot), (cannot, must)):
        stays, comes = kind.odds > 0, opposite.odds < 0  # even odds say nothing
        pairs = np.concatenate([kind.pairs[stays], opposite.pairs[comes]])
        odds = np.concatenate([kind.odds[stays], -opposite.odds[comes]])
        costs = np.concatenate([kind.costs[stays], opposite.costs[comes]])
        unique, place = np.unique(pairs, axis=0, return_inverse=True)
        total, weighed = (
            np.bincount(place.ravel(), values, len(unique)) for values in (odds, odds * costs)
        )
        mean = np.where(total > 0, weighed / np.where(total > 0, total, 1.0), 0.0)
        kinds.append(OddsPairs(unique.astype(np.int32), np.minimum(total, CERTAIN), mean))
    return kinds[0], kinds[1]


def joined_by_answers(n_nodes: int, must: OddsPairs, cannot: OddsPairs) -> LabelArray:
    """Return the group of every node, groups numbered by their lowest node.

    Where nothing contradicts they are those that must-links join. Else the two groups are joined
    between which answers agree most that they are one, again and again, as long as they do: greedy
    additive edge contraction (Keuper et al., ICCV 2015). Ties go to the lowest nodes. It is greedy:
    a wrong must-link that is taken first joins what later answers would have separated.

    Examples
    --------
    >>> must = np.array([[0, 1], [1, 2], [2, 3]], np.int32)
    >>> cannot = np.array([[0, 2], [0, 3], [1, 3]], np.int32)
    >>> both = (OddsPairs(pairs, np.ones(3), np.ones(3)) for pairs in (must, cannot))
    >>> joined_by_answers(4, *both).tolist()
    [0, 0, 1, 1]
    """
    groups = connected_numbers(n_nodes, must.pairs)
    inside = groups[cannot.pairs[:, 0]] == groups[cannot.pairs[:, 1]]
    torn = np.zeros(int(groups.max(initial=-1)) + 1, np.bool_)
    torn[groups[cannot.pairs[inside, 0]]] = True
    if not torn.any():
        return groups
    mine = torn[groups[must.pairs[:, 0]]]
    certain = connected_numbers(n_nodes, must.pairs[must.certain])
    owner = np.where(torn[groups], _lowest(certain), _lowest(groups))
    edges = owner[np.concatenate([must.pairs[mine], cannot.pairs[inside]])]
    steps = np.rint(np.concatenate([must.odds[mine], -cannot.odds[inside]]) * STEPS)
    joins = _contracted(edges, steps.astype(np.int64))
    own = np.stack([np.arange(n_nodes), owner], axis=1)
    return connected_numbers(n_nodes, np.concatenate([own, joins]).astype(np.int32))


def _lowest(groups: LabelArray) -> IntArray:
    """Return for every node the lowest node of its group."""
    _, first = np.unique(groups, return_index=True)
    return np.asarray(first[groups], np.int64)


def _contracted(edges: IntArray, steps: IntArray) -> IntArray:
    """Return pairs of nodes that join what is to be one; edges weigh so many steps."""
    near = _adjacent(edges, steps)
    heap = [
        (-step, here, there)
        for here, weights in near.items()
        for there, step in weights.items()
        if here < there and step > 0
    ]
    heapq.heapify(heap)
    joins: list[tuple[int, int]] = []
    while heap:
        step, here, there = heapq.heappop(heap)
        if here not in near or near[here].get(there) != -step:
            continue  # they were joined, or agree more or less by now
        stays, goes = (here, there) if len(near[here]) >= len(near[there]) else (there, here)
        joins.append((stays, goes))
        del near[stays][goes]
        for third, more in near.pop(goes).items():
            if third == stays:
                continue
            del near[third][goes]
            total = near[stays].get(third, 0) + more
            near[stays][third] = near[third][stays] = total
            if total > 0:
                heapq.heappush(heap, (-total, min(stays, third), max(stays, third)))
    return np.array(joins, np.int64).reshape(-1, 2)


def _adjacent(edges: IntArray, steps: IntArray) -> dict[int, dict[int, int]]:
    """Return for each node its neighbours, and how many steps lie between in all."""
    near: dict[int, dict[int, int]] = {}
    for (here, there), step in zip(edges.tolist(), steps.tolist(), strict=True):
        if here != there:
            for node, end in ((here, there), (there, here)):
                weights = near.setdefault(node, {})
                weights[end] = weights.get(end, 0) + step
    return near


def shown_trust(n_nodes: int, must: LabelArray, cannot: LabelArray) -> float:
    """Return how likely an answer is right, by those that do not agree.

    Of the answers that others could contradict, must-links beyond a forest and cannot-links whose
    ends must-links join, those count as wrong that the groups which answers join best would break.

    Examples
    --------
    >>> must, nothing = np.array([[0, 1]], np.int32), np.zeros((0, 2), np.int32)
    >>> shown_trust(2, must, nothing), round(shown_trust(2, must, must), 3)
    (0.9, 0.882)
    """
    both = (OddsPairs(pairs, np.ones(len(pairs)), np.ones(len(pairs))) for pairs in (must, cannot))
    reached, groups = connected_numbers(n_nodes, must), joined_by_answers(n_nodes, *both)
    n_joined = n_nodes - (int(reached.max(initial=-1)) + 1)  # must-links of a forest
    inside = int((reached[cannot[:, 0]] == reached[cannot[:, 1]]).sum())
    n_tests = len(must) - n_joined + inside
    broken = (groups[must[:, 0]] != groups[must[:, 1]]).sum()
    broken += (groups[cannot[:, 0]] == groups[cannot[:, 1]]).sum()
    n_wrong = CHECKED_WRONG + int(broken)
    return max(LEAST_TRUST, 1.0 - n_wrong / (CHECKED_RIGHT + CHECKED_WRONG + n_tests))


UNCHECKED = CHECKED_RIGHT / (CHECKED_RIGHT + CHECKED_WRONG)  # the trust of one vote among several
CERTAIN_CLASS = 1.0  # the trust of a class where nobody says otherwise


def trust_of(notes: Notes | None, annotators: Mapping[str, float]) -> float:
    """Return the trust that an answer's notes give it, or its annotator's; NaN: neither.

    Examples
    --------
    >>> trust_of({"annotator": "anna"}, {"anna": 0.9}), trust_of({"trust": 0.8}, {})
    (0.9, 0.8)
    """
    if not notes:
        return math.nan
    own: float = notes.get("trust", annotators.get(str(notes.get("annotator")), math.nan))
    return own


def trust_of_votes(
    judged: Sequence[Said], notes: Sequence[Notes | None], annotators: Mapping[str, float]
) -> FloatArray:
    """Return the trust of each line: of what one annotator says again once, of all together.

    Log odds of different annotators add up; lines that name none are one. Of two trusts in what one
    of them says it is the lower.

    Examples
    --------
    >>> said = [(True, "x", "y")] * 2
    >>> trust_of_votes(said, [{"annotator": "anna"}, {"annotator": "bob"}], {}).round(3).tolist()
    [0.988, 0.988]
    >>> trust_of_votes(said[:1], [None], {}).tolist()
    [nan]
    """
    votes: dict[Said, dict[str, float]] = {}
    for what, note in zip(judged, notes, strict=True):
        take_vote(votes.setdefault(what, {}), note, trust_of(note, annotators))
    together = {what: _of_pair([*own.values()]) for what, own in votes.items()}
    return np.array([together[what] for what in judged], np.float64)


def _of_pair(likely: list[float]) -> float:
    if len(likely) == 1:
        return likely[0]
    return _together([UNCHECKED if math.isnan(trust) else trust for trust in likely])


def _together(likely: list[float]) -> float:
    """Return how likely it is that votes for the same are right."""
    odds = log_odds(np.array(likely)).sum()
    return likely[0] if len(likely) == 1 else float(1.0 / (1.0 + np.exp(-odds)))


def trust_of_classes(row: Labelled, partner: Labelled, annotators: Mapping[str, float]) -> float:
    """Return how likely a pair is right that follows from the classes of its documents.

    Both are right, or both are wrong. Votes for a class come together as those for a pair do.

    Examples
    --------
    >>> sure, unsure = (Labelled(name, "x", 1) for name in "ab")
    >>> unsure.votes["anna"] = 0.75
    >>> trust_of_classes(sure, unsure, {}), trust_of_classes(unsure, unsure, {})
    (0.75, 0.625)
    """
    first, second = (_of_class(labelled.votes, annotators) for labelled in (row, partner))
    return first * second + (1.0 - first) * (1.0 - second)


def _of_class(votes: Mapping[str, float], annotators: Mapping[str, float]) -> float:
    own = (annotators.get(n, math.nan) if math.isnan(p) else p for n, p in votes.items())
    return _together([CERTAIN_CLASS if math.isnan(p) else p for p in own] or [CERTAIN_CLASS])
